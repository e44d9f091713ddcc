//! Revocation that holds (P3; scenario 32): deny first, then End, so that nobody slips back in between; many sessions by one call.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tests::client::PATIENCE;
use tests::{Client, Node, Options, eventually};

/// A node with the users alice and bob, both with the password `secret`.
fn node_with_users() -> (Node, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("passwords");
    for user in ["alice", "bob"] {
        let mut child = Command::new(tests::node::binary())
            .args(["user", "add", user, "--file"])
            .arg(&file)
            .stdin(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        child.stdin.take().expect("piped").write_all(b"secret\n").expect("taken");
        assert!(child.wait().expect("ended").success());
    }
    let setting = format!("auth.password_file={}", file.display());
    (Node::start_with(&[&setting]), directory)
}

fn of(user: &str, id: &str) -> Options {
    Options::v5(id).resume().expiry(600).login(user, "secret")
}

fn json(node: &Node, arguments: &[&str]) -> Value {
    let output = node.cli(&[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A user that publishes as fast as it can and reconnects at once is revoked: after the call returned not one more message of it arrives,
/// it is told 0x8A, also after a restart, and others are not touched.
#[test]
fn a_revoked_user_is_gone_and_stays_gone() {
    let (mut node, _directory) = node_with_users();
    let mut watcher = Client::connect(node.mqtt, &of("bob", "watcher"));
    assert_eq!(watcher.subscribe("from/#", 0), 0);
    let stop = Arc::new(AtomicBool::new(false));
    let clients = ["a1", "a2"].map(|id| {
        let (address, stop) = (node.mqtt, stop.clone());
        std::thread::spawn(move || {
            let mut refused = None;
            while !stop.load(Ordering::Relaxed) {
                let (mut client, answer) = Client::try_connect(address, &of("alice", id));
                if answer.reason() != 0 {
                    refused = Some(answer.reason());
                    continue;
                }
                while client.is_alive() {
                    let bytes = client.publish_bytes("from/alice", b"x", 0, 0, &[]);
                    client.send(&bytes);
                }
            }
            refused
        })
    });
    watcher.take_message();
    let job = json(&node, &["session", "end", "--user", "alice", "--reason", "revoked", "--deny"]);
    assert_eq!((&job["state"], &job["failed"]), (&Value::from("done"), &Value::from(0)), "{job}");
    let mut marker = Client::connect(node.mqtt, &of("bob", "marker"));
    assert_eq!(marker.publish("from/marker", "", 1, false), 0);
    while watcher.take_message().topic != "from/marker" {}
    assert_eq!(watcher.poll(Duration::from_millis(300)), Ok(None), "something came after the call");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        assert_eq!(client.join().expect("no panic"), Some(0x8A));
    }
    let (_, answer) = Client::try_connect(node.mqtt, &Options::v3("a3").login("alice", "secret"));
    assert_eq!(answer.bytes()[3], 5);
    node.kill();
    node.restart();
    assert_eq!(Client::try_connect(node.mqtt, &of("alice", "a1")).1.reason(), 0x8A);
    assert!(node.cli(&["deny", "remove", "--user", "alice"]).status.success());
    let (_, present) = Client::connect_present(node.mqtt, &of("alice", "a1"));
    assert!(!present, "the ended session came back");
}

/// The node dies in the middle of a job: what the job says afterwards is true, and a second call finishes it.
#[test]
fn a_job_that_is_cut_off_is_finished_by_a_second_call() {
    const SESSIONS: usize = 300;
    let (mut node, _directory) = node_with_users();
    for n in 0..SESSIONS {
        Client::connect(node.mqtt, &of("alice", &format!("c{n}"))).disconnect();
    }
    let _bob = Client::connect(node.mqtt, &of("bob", "b"));
    let mut call = Command::new(tests::node::binary())
        .args(["session", "end", "--user", "alice", "--reason", "revoked", "--data-dir"])
        .arg(node.dir())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let file = node.dir().join("jobs/1.jsonl");
    eventually("the first results", PATIENCE, || {
        let text = std::fs::read_to_string(&file).ok()?;
        (text.lines().count() > 64).then_some(())
    });
    node.kill();
    let _ = call.wait();
    node.restart();
    let listed = |state: &str| {
        let list = json(&node, &["session", "list", "--user", "alice", "--limit", "1000", "--state", state]);
        list["sessions"].as_array().map_or(0, Vec::len)
    };
    let (ended, left) = (listed("ended"), listed("offline"));
    assert_eq!(ended + left, SESSIONS);
    let text = node.admin_get("/v1/end/1");
    let job: Value = serde_json::from_str(&text).expect("JSON");
    let said = job["ended"].as_u64().expect("a number");
    if job["state"] == "interrupted" {
        assert!(said >= 64 && usize::try_from(said).is_ok_and(|said| said <= ended), "{said} of {ended}");
    } else {
        assert_eq!((&job["state"], left), (&Value::from("done"), 0));
    }
    let job = json(&node, &["session", "end", "--user", "alice", "--reason", "revoked"]);
    assert_eq!((&job["state"], &job["ended"], &job["failed"]), (&"done".into(), &left.into(), &0.into()));
    assert_eq!((listed("ended"), listed("offline")), (SESSIONS, 0));
    assert_eq!(json(&node, &["session", "show", "b"])["state"], "offline", "bob was touched");
}
