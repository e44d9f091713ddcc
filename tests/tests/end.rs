//! An operator's End is final (P3; scenarios 26, 27, 28, 32), over the command line and HTTP.

use std::time::Duration;

use tests::client::PATIENCE;
use tests::{Client, Node, Options, eventually};

fn durable(id: &str) -> Options {
    Options::v5(id).resume().expiry(600)
}

fn end(node: &Node, id: &str, extra: &[&str]) -> i32 {
    let arguments = [&["session", "end", id][..], extra].concat();
    let output = node.cli(&arguments);
    output.status.code().unwrap_or(-1)
}

/// Scenarios 26 and 27: when the command returned, the socket is closed, v5 read 0x98, and the next CONNECT has Session Present 0.
#[test]
fn end_closes_the_socket_and_the_session() {
    let node = Node::start();
    let mut client = Client::connect(node.mqtt, &durable("x"));
    assert_eq!(client.subscribe("t", 1), 1);
    let mut old = Client::connect(node.mqtt, &Options::v3("y"));
    assert_eq!(end(&node, "x", &["--reason", "revoked"]), 0);
    assert_eq!(end(&node, "y", &[]), 0);
    let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x98));
    assert_eq!(old.until_closed(PATIENCE), []);
    let (_, present) = Client::connect_present(node.mqtt, &durable("x"));
    assert!(!present);
}

/// The list: End while publishes of that client are being processed: nothing of it happens after End returned.
#[test]
fn nothing_happens_for_an_ended_session_after_end_returned() {
    let node = Node::start();
    let mut watcher = Client::connect(node.mqtt, &durable("watcher"));
    assert_eq!(watcher.subscribe("from/#", 1), 1);
    for round in 0..10 {
        let address = node.mqtt;
        let (started, publishing) = std::sync::mpsc::channel();
        let publisher = std::thread::spawn(move || {
            let mut client = Client::connect(address, &durable("x"));
            let mut sent = 0_u32;
            loop {
                let bytes =
                    client.publish_bytes("from/x", &sent.to_be_bytes(), 2, (sent % 60_000) as u16 + 1, &[]);
                client.send(&bytes);
                sent += 1;
                if !matches!(client.poll(PATIENCE), Ok(Some(ack)) if ack.kind() == 4) {
                    return;
                }
                let _ = started.send(());
            }
        });
        let reader = spawn_reader(watcher);
        publishing.recv_timeout(PATIENCE).expect("the first acknowledgement");
        std::thread::sleep(Duration::from_millis(u64::from(rand::random::<u8>() % 64)));
        assert_eq!(end(&node, "x", &["--reason", "revoked"]), 0, "round {round}");
        publisher.join().expect("no panic");
        let mut marker = Client::connect(node.mqtt, &Options::v5("marker"));
        assert_eq!(marker.publish("from/marker", "", 1, false), 0);
        watcher = reader.join().expect("no panic");
        assert_eq!(watcher.poll(Duration::from_millis(300)), Ok(None), "something came after End");
    }
}

/// Reads until the marker, which was published after End returned.
fn spawn_reader(mut client: Client) -> std::thread::JoinHandle<Client> {
    std::thread::spawn(move || {
        while client.take_message().topic != "from/marker" {}
        client
    })
}

/// Scenario 28: the Will of an ended session is published once by default and not at all with `--will suppress`.
#[test]
fn the_will_of_an_ended_session_follows_the_operator() {
    let node = Node::start();
    let mut watcher = Client::connect(node.mqtt, &Options::v5("watcher"));
    assert_eq!(watcher.subscribe("will", 1), 1);
    for (options, delay) in [(Options::v5("a"), 0), (durable("b"), 60)] {
        let options = options.will("will", "gone", 1, false, delay);
        let mut client = Client::connect(node.mqtt, &options);
        assert_eq!(end(&node, &options.client_id, &["--reason", "revoked"]), 0);
        client.until_closed(PATIENCE);
        assert_eq!(watcher.take_message().payload, b"gone");
        let mut client = Client::connect(node.mqtt, &options);
        assert_eq!(end(&node, &options.client_id, &["--will", "suppress"]), 0);
        client.until_closed(PATIENCE);
        assert_eq!(watcher.poll(Duration::from_millis(500)), Ok(None));
    }
}

/// An offline session is ended too; its queue is gone; ending it again is no error; an unknown one exits with 1.
#[test]
fn offline_sessions_are_ended_and_the_first_reason_wins() {
    let node = Node::start();
    let mut client = Client::connect(node.mqtt, &durable("x"));
    assert_eq!(client.subscribe("t", 1), 1);
    client.disconnect();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("t", "queued", 1, false), 0);
    assert_eq!(end(&node, "x", &["--reason", "quota"]), 0);
    assert_eq!(end(&node, "x", &["--reason", "revoked"]), 0);
    let output = node.cli(&["session", "show", "x", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
    assert!(text.contains("quota") && !text.contains("revoked"), "{text}");
    let audit = node.admin_get("/v1/audit");
    let audit: serde_json::Value = serde_json::from_str(&audit).expect("JSON");
    let reasons: Vec<_> =
        audit["records"].as_array().expect("a list").iter().map(|one| &one["reason"]).collect();
    assert_eq!(reasons, ["quota", "quota"], "the record says why it really ended");
    let (mut client, present) = Client::connect_present(node.mqtt, &durable("x"));
    assert!(!present);
    client.expect_nothing();
    assert_eq!(end(&node, "nobody", &[]), 1);
}

/// A stale owner is fenced (exit 3) and its successor untouched.
#[test]
fn a_stale_owner_cannot_end_its_successor() {
    let node = Node::start();
    let _first = Client::connect(node.mqtt, &durable("x"));
    let output = node.cli(&["session", "show", "x", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let part = |name: &str| shown["owner"][name].to_string().trim_matches('"').to_owned();
    let names = ["session_generation", "owner_generation", "node_id", "boot_id", "connection_id"];
    let owner = names.map(part).join(":");
    let mut second = Client::connect(node.mqtt, &durable("x"));
    assert_eq!(end(&node, "x", &["--owner", &owner]), 3);
    assert!(second.is_alive());
}

/// `session list` shows every session with its state.
#[test]
fn session_list_shows_states() {
    let node = Node::start();
    let _online = Client::connect(node.mqtt, &durable("on"));
    Client::connect(node.mqtt, &durable("off")).disconnect();
    eventually("both sessions with their states", PATIENCE, || {
        let output = node.cli(&["session", "list", "--json"]);
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
        ["\"on\"", "\"off\"", "active", "offline"].iter().all(|word| text.contains(word)).then_some(())
    });
}

/// The admin API without its token answers 401 and does nothing; usage errors exit with 2.
#[test]
fn operators_must_show_the_token() {
    let node = Node::start();
    let mut client = Client::connect(node.mqtt, &durable("x"));
    let wrong = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(wrong.path(), "wrong").expect("written");
    let token = wrong.path().to_str().expect("UTF-8");
    let admin = format!("http://{}", node.admin);
    assert_eq!(end(&node, "x", &["--admin", &admin, "--token-file", token]), 1);
    assert!(client.is_alive());
    assert_eq!(node.cli(&["session", "end"]).status.code(), Some(2));
    assert_eq!(node.cli(&["session", "end", "x", "--reason", "because"]).status.code(), Some(2));
}
