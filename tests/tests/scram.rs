//! SCRAM-SHA-256 over AUTH packets (MQTT 5 §4.12), against real brokers.

use std::path::PathBuf;

use tests::client::PATIENCE;
use tests::scram::{METHOD, Scram, auth, connect, connect_with, data};
use tests::users::{reload, user_at};
use tests::{Client, Node, Options};

const PASSWORD: &str = "correct horse";

/// A node with alice and bob in its file of verifiers.
struct There {
    directory: tempfile::TempDir,
    node: Node,
}

impl There {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("verifiers");
        tests::users::add_scram_user(&file, "alice", PASSWORD);
        tests::users::add_scram_user(&file, "bob", PASSWORD);
        let node = Node::start_with(&[&format!("auth.scram_file={}", file.display())]);
        Self { directory, node }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("verifiers")
    }

    fn alice(&self, id: &str) -> Client {
        let (client, connack, scram) =
            connect(self.node.mqtt, Options::v5(id), Scram::new("alice", PASSWORD));
        assert_eq!(connack.reason(), 0);
        assert!(scram.is_proved_by(&data(&connack)), "the broker did not prove itself");
        client
    }
}

/// A whole exchange lets in, and proves the broker to the client; everything else is refused without saying why, an unknown user as a wrong
/// password.
#[test]
fn only_who_knows_the_password_is_let_in() {
    let there = There::start();
    let mqtt = there.node.mqtt;
    let mut alice = there.alice("a");
    assert_eq!(alice.publish("t", "x", 1, false), 0x10);
    for (user, password) in [("alice", "wrong"), ("nobody", PASSWORD), ("ALICE", PASSWORD)] {
        let (mut client, connack, _) = connect(mqtt, Options::v5("x"), Scram::new(user, password));
        assert_eq!(connack.reason(), 0x87, "{user}");
        client.until_closed(PATIENCE);
    }
    let name_beside = |name: &str| {
        connect(mqtt, Options::v5("n").login(name, "ignored"), Scram::new("alice", PASSWORD)).1.reason()
    };
    assert_eq!((name_beside("alice"), name_beside("bob")), (0, 0x86));
    assert_eq!(Client::try_connect(mqtt, &Options::v5("p").login("alice", PASSWORD)).1.reason(), 0x86);
    assert_eq!(Client::try_connect(mqtt, &Options::v5("p")).1.reason(), 0x87);
}

/// [MQTT-4.12.0-1]: a method that is not known is 0x8C; a first message that is malformed, and an answer that is replayed, 0x87.
#[test]
fn other_methods_and_broken_exchanges_are_refused() {
    let there = There::start();
    let mqtt = there.node.mqtt;
    let first = Scram::new("alice", PASSWORD).first();
    for (method, message, reason) in [
        ("SCRAM-SHA-1", first.as_str(), 0x8C),
        ("SCRAM-SHA-256-PLUS", &first, 0x8C),
        ("scram-sha-256", &first, 0x8C),
        (METHOD, "p=tls-unique,,n=alice,r=x", 0x87),
        (METHOD, "nonsense", 0x87),
        (METHOD, "", 0x87),
    ] {
        let mut client = Client::open(mqtt, true);
        client.send(&connect_with(Options::v5("m"), method, message.as_bytes()).bytes());
        assert_eq!(client.receive().reason(), reason, "{method} {message}");
        client.until_closed(PATIENCE);
    }
    let without = Node::start();
    let mut client = Client::open(without.mqtt, true);
    client.send(&connect_with(Options::v5("m"), METHOD, first.as_bytes()).bytes());
    assert_eq!(client.receive().reason(), 0x8C);
    // What was good for one challenge is good for no other.
    let mut scram = Scram::new("alice", PASSWORD);
    let mut client = Client::open(mqtt, true);
    client.send(&connect_with(Options::v5("r"), METHOD, scram.first().as_bytes()).bytes());
    let last = scram.last(&String::from_utf8(data(&client.receive())).expect("UTF-8"));
    let mut replay = Client::open(mqtt, true);
    replay.send(&connect_with(Options::v5("r"), METHOD, scram.first().as_bytes()).bytes());
    replay.receive();
    replay.send(&auth(0x18, METHOD, last.as_bytes()));
    assert_eq!(replay.receive().reason(), 0x87);
    client.send(&auth(0x18, METHOD, last.as_bytes()));
    assert_eq!(client.receive().reason(), 0);
}

fn again(client: &mut Client, mut scram: Scram) -> tests::Packet {
    client.send(&auth(0x19, METHOD, scram.first().as_bytes()));
    let asked = client.receive();
    assert_eq!((asked.kind(), asked.body[0]), (15, 0x18), "{asked:02x?}");
    let last = scram.last(&String::from_utf8(data(&asked)).expect("UTF-8"));
    client.send(&auth(0x18, METHOD, last.as_bytes()));
    let outcome = client.receive();
    assert!(outcome.kind() != 15 || scram.is_proved_by(&data(&outcome)));
    outcome
}

/// §4.12.1: a client may prove itself again while it is connected; when it cannot, or turns out to be another user, it is closed (0x87).
#[test]
fn a_client_authenticates_again() {
    let there = There::start();
    let mut alice = there.alice("a");
    for _ in 0..2 {
        let outcome = again(&mut alice, Scram::new("alice", PASSWORD));
        assert_eq!((outcome.kind(), outcome.body[0]), (15, 0));
        assert_eq!(alice.publish("t", "x", 1, false), 0x10);
    }
    let outcome = again(&mut alice, Scram::new("alice", "wrong"));
    assert_eq!((outcome.kind(), outcome.reason()), (14, 0x87));
    alice.until_closed(PATIENCE);
    let mut alice = there.alice("a");
    let outcome = again(&mut alice, Scram::new("bob", PASSWORD));
    assert_eq!((outcome.kind(), outcome.reason()), (14, 0x87), "bob went on as alice");
}

/// The file of verifiers is edited as the password file is, and acts as fast.
#[test]
fn a_removed_user_is_gone() {
    let there = There::start();
    let mut alice = there.alice("a");
    let file = there.file().display().to_string();
    let output = user_at(&there.node, &["remove", "alice", "--scram", "--file", &file], "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = alice.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert!(last.kind() == 14 && matches!(last.reason(), 0x87 | 0x98));
    let refused = connect(there.node.mqtt, Options::v5("a"), Scram::new("alice", PASSWORD));
    assert_eq!(refused.1.reason(), 0x87);
    let output = user_at(&there.node, &["add", "alice", "--scram", "--file", &file], "new password");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut alice, connack, _) =
        connect(there.node.mqtt, Options::v5("a"), Scram::new("alice", "new password"));
    assert_eq!(connack.reason(), 0);
    reload(&there.node);
    assert!(alice.is_alive());
}
