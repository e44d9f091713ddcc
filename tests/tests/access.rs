//! A changed access rule acts at once: on connections, on stored subscriptions, on what waits for them (scenario 30).

use tests::client::PATIENCE;
use tests::{Client, Node, Options, eventually};

/// Everything is allowed.
const OPEN: &str = "topic readwrite #\n";
/// `secret` may be published to, and read by nobody.
const REVOKED: &str = "topic write secret\ntopic readwrite open\ntopic readwrite other\n";

/// A node with a rule file that can be replaced.
struct Ruled {
    node: Node,
    file: tempfile::NamedTempFile,
}

impl Ruled {
    fn start(rules: &str) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), rules).expect("written");
        let node = Node::start_with(&[&format!("acl.file={}", file.path().display())]);
        Self { node, file }
    }

    /// Replaces the rules and waits until a probe is answered `expected` to a SUBSCRIBE to `secret`.
    fn rules(&self, rules: &str, expected: u8) {
        let mut probe = Client::connect(self.node.mqtt, &Options::v5("probe"));
        self.replace(rules);
        self.node.reload();
        eventually("the new rules", PATIENCE, || (probe.subscribe("secret", 1) == expected).then_some(()));
        probe.disconnect();
    }

    /// At once: the broker reads the one or the other file.
    fn replace(&self, rules: &str) {
        let new = self.file.path().with_extension("new");
        std::fs::write(&new, rules).expect("written");
        std::fs::rename(&new, self.file.path()).expect("renamed");
    }

    fn subscriber(&self, options: &Options) -> Client {
        let mut client = Client::connect(self.node.mqtt, options);
        for topic in ["secret", "open"] {
            assert_eq!(client.subscribe(topic, 2), 2);
        }
        client
    }

    /// Publishes to `secret` with every QoS, then to `open`.
    fn publish_all(&self, text: &str) {
        let mut publisher = Client::connect(self.node.mqtt, &Options::v5("p"));
        for qos in 0..=2 {
            assert!(publisher.publish("secret", format!("secret {text}"), qos, false) < 0x80);
        }
        assert_eq!(publisher.publish("open", format!("open {text}"), 1, false), 0);
        publisher.disconnect();
    }
}

fn durable(id: &str) -> Options {
    Options::v5(id).resume().expiry(600)
}

/// The next message is the one on `open`: nothing on `secret` came before it, and nothing comes behind it.
fn only_open(client: &mut Client, text: &str) {
    let got = client.take_message();
    assert_eq!((got.topic.as_str(), got.payload), ("open", format!("open {text}").into_bytes()));
    client.expect_nothing();
}

/// Scenario 30: after the reload nothing of a revoked topic is delivered: not to connections, not to stored subscriptions, not when
/// they resume, not what was queued before; what is still allowed goes on, and a rule that comes back acts again.
#[test]
fn a_revoked_rule_acts_on_live_and_stored_subscriptions_at_once() {
    let ruled = Ruled::start(OPEN);
    let address = ruled.node.mqtt;
    let mut online = [
        ruled.subscriber(&Options::v5("transient")),
        ruled.subscriber(&Options::v3("old")),
        ruled.subscriber(&durable("online")),
    ];
    ruled.subscriber(&durable("offline")).disconnect();
    let mut publisher = Client::connect(address, &Options::v5("before"));
    assert_eq!(publisher.publish("secret", "queued before", 1, false), 0);
    for client in &mut online {
        assert_eq!(client.take_message().payload, b"queued before");
    }

    ruled.rules(REVOKED, 0x87);
    ruled.publish_all("revoked");
    for client in &mut online {
        only_open(client, "revoked");
    }
    let (mut offline, present) = Client::connect_present(address, &durable("offline"));
    assert!(present);
    only_open(&mut offline, "revoked");
    ruled.publish_all("after the resume");
    only_open(&mut offline, "after the resume");
    for client in &mut online {
        only_open(client, "after the resume");
    }

    ruled.rules(OPEN, 1);
    let mut publisher = Client::connect(address, &Options::v5("again"));
    assert_eq!(publisher.publish("secret", "allowed again", 1, false), 0);
    for client in online.iter_mut().chain([&mut offline]) {
        assert_eq!(client.take_message().payload, b"allowed again");
        client.expect_nothing();
    }
}

/// Scenario 30: the stored session of a client that was away during the whole change, also over a restart.
#[test]
fn a_revoked_rule_holds_for_stored_sessions_over_a_restart() {
    let mut ruled = Ruled::start(OPEN);
    ruled.subscriber(&durable("offline")).disconnect();
    ruled.publish_all("before");
    ruled.replace(REVOKED);
    ruled.node.kill();
    ruled.node.restart();
    ruled.publish_all("after");
    let (mut offline, present) = Client::connect_present(ruled.node.mqtt, &durable("offline"));
    assert!(present);
    assert_eq!(offline.take_message().payload, b"open before");
    only_open(&mut offline, "after");
}

/// Scenario 30: publishing ends as soon as the rule does, for a connection that published before; 3.1.1 is acknowledged and ignored.
#[test]
fn a_revoked_write_rule_acts_on_the_next_publish() {
    let ruled = Ruled::start(OPEN);
    let mut watcher = Client::connect(ruled.node.mqtt, &Options::v5("watcher"));
    assert_eq!(watcher.subscribe("other", 1), 1);
    let mut new = Client::connect(ruled.node.mqtt, &Options::v5("new"));
    let mut old = Client::connect(ruled.node.mqtt, &Options::v3("old"));
    for client in [&mut new, &mut old] {
        assert_eq!(client.publish("other", "before", 1, false), 0);
        assert_eq!(watcher.take_message().payload, b"before");
    }
    ruled.rules("topic read other\n", 0x87);
    assert_eq!(new.publish("other", "after", 1, false), 0x87);
    assert_eq!(new.publish("other", "after", 2, false), 0x87);
    assert_eq!(old.publish("other", "after", 1, false), 0);
    watcher.expect_nothing();
    assert!(new.is_alive() && old.is_alive());
}

/// Scenario 30: no retained value of a revoked topic, also through a wildcard that is still granted by `overlap`.
#[test]
fn retained_values_of_a_revoked_topic_are_not_sent() {
    let ruled = Ruled::start(OPEN);
    let mut publisher = Client::connect(ruled.node.mqtt, &Options::v5("p"));
    for topic in ["secret", "open"] {
        assert!(publisher.publish(topic, topic, 1, true) < 0x80);
    }
    ruled.rules(REVOKED, 0x87);
    let mut sub = Client::connect(ruled.node.mqtt, &Options::v5("s"));
    assert_eq!(sub.subscribe("secret", 1), 0x87);
    assert_eq!(sub.subscribe("+", 1), 0x87);
    assert_eq!(sub.subscribe("open", 1), 1);
    assert_eq!(sub.take_message().payload, b"open");
    sub.expect_nothing();
}

/// A rule file with a fault changes nothing: the running rules stay in force, and the next good file is taken.
#[test]
fn a_faulty_rule_file_keeps_the_old_rules() {
    let ruled = Ruled::start(OPEN);
    let mut client = ruled.subscriber(&Options::v5("s"));
    for faulty in ["allow me\n", "user\n", "topic read a/#/b\n"] {
        ruled.replace(faulty);
        ruled.node.reload();
        ruled.publish_all("still open");
        for _ in 0..3 {
            assert_eq!(client.take_message().topic, "secret");
        }
        only_open(&mut client, "still open");
    }
    ruled.rules(REVOKED, 0x87);
    ruled.publish_all("revoked");
    only_open(&mut client, "revoked");
}

/// A user that is gone from the password file, and anonymous clients once they are not let in any more, are told 0x87 and closed at the
/// reload, idle or not; everybody else stays.
#[test]
fn removed_users_are_closed_at_the_reload() {
    let users = tempfile::NamedTempFile::new().expect("a file");
    let config = tempfile::NamedTempFile::new().expect("a file");
    for name in ["alice", "bob"] {
        let status = std::process::Command::new("mosquitto_passwd")
            .args(["-b", users.path().to_str().expect("UTF-8"), name, "secret"])
            .status()
            .expect("mosquitto_passwd is installed");
        assert!(status.success());
    }
    let path = users.path().display().to_string();
    let write = |anonymous: bool| {
        let text = format!("[auth]\npassword_file = \"{path}\"\nanonymous = {anonymous}\n");
        std::fs::write(config.path(), text).expect("written");
    };
    write(true);
    let node = Node::start_with(&[&format!("--config={}", config.path().display())]);
    let mut alice = Client::connect(node.mqtt, &Options::v5("alice").login("alice", "secret"));
    let mut bob = Client::connect(node.mqtt, &durable("bob").login("bob", "secret"));
    let mut old = Client::connect(node.mqtt, &Options::v3("old").login("bob", "secret"));
    let mut nobody = Client::connect(node.mqtt, &Options::v5("nobody"));
    let text = std::fs::read_to_string(users.path()).expect("the users");
    let rest: Vec<&str> = text.lines().filter(|line| !line.starts_with("bob:")).collect();
    std::fs::write(users.path(), rest.join("\n")).expect("written");
    node.reload();
    let last = bob.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x87));
    assert!(old.until_closed(PATIENCE).is_empty());
    assert!(alice.is_alive() && nobody.is_alive());
    write(false);
    node.reload();
    let last = nobody.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x87));
    assert!(alice.is_alive());
}

/// P8: a PROXY header that names a verified certificate logs nobody in, unless the listener is told to believe it.
#[test]
fn p8_a_forged_proxy_header_logs_nobody_in() {
    // PROXY over TCP/IPv4; SSL with a verified certificate of the connection and session, common name `admin`.
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x1C".to_vec();
    header.extend_from_slice(&[203, 0, 113, 9, 192, 0, 2, 1, 0x30, 0x39, 0x07, 0x5B]);
    header.extend_from_slice(b"\x20\x00\x0D\x07\x00\x00\x00\x00\x22\x00\x05admin");
    for (believed, reason) in [(false, 0x87), (true, 0)] {
        let node = Node::start_with(&[
            "listener.mqtt.proxy_protocol=true",
            &format!("listener.mqtt.proxy_certificate_user={believed}"),
            "auth.anonymous=false",
        ]);
        let mut client = Client::open(node.mqtt, true);
        client.send(&[&header[..], &Options::v5("forged").bytes()].concat());
        assert_eq!(client.receive().reason(), reason);
    }
}
