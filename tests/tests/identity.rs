//! A change of users or rules acts at once on everything of a client: its connection, its subscriptions, what is stored for it and what
//! waits for it; on one node and on three.

use std::path::PathBuf;

use serde_json::Value;
use tests::client::PATIENCE;
use tests::cluster::{Cluster, connect_when_served, succeeds};
use tests::users::{add_user, reload, user_at};
use tests::{Client, Node, Options};

const PASSWORD: &str = "correct horse";
/// `secret` may be published to, and read by nobody.
const REVOKED: &str = "user alice\ntopic readwrite open\n\nuser bob\ntopic readwrite #\n";

/// alice and bob in a password file.
struct Users {
    directory: tempfile::TempDir,
}

impl Users {
    fn new() -> Self {
        let users = Self { directory: tempfile::tempdir().expect("a directory") };
        add_user(&users.file(), "alice", PASSWORD);
        add_user(&users.file(), "bob", PASSWORD);
        users
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("passwords")
    }

    fn setting(&self) -> String {
        format!("auth.password_file={}", self.file().display())
    }

    fn at(&self, node: &Node, command: &[&str]) -> String {
        let file = self.file().display().to_string();
        let output = user_at(node, &[command, &["--file", &file]].concat(), PASSWORD);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said
    }
}

fn of(user: &str, id: &str) -> Options {
    Options::v5(id).resume().expiry(600).login(user, PASSWORD)
}

fn subscribed(node: &Node, options: &Options, filter: &str) -> Client {
    let mut client = Client::connect(node.mqtt, options);
    assert_eq!(client.subscribe(filter, 1), 1);
    client
}

fn states(node: &Node, user: &str) -> Vec<String> {
    let output = node.cli(&["session", "list", "--user", user, "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let state = |session: &Value| session["state"].as_str().expect("a word").to_owned();
    list["sessions"].as_array().expect("a list").iter().map(state).collect()
}

/// Removing a user ends its connection, its live and stored subscriptions and what waits for it, keeps it out, and touches nobody else. What
/// it left is not there for one who gets its name later.
#[test]
fn a_removed_user_leaves_nothing() {
    let users = Users::new();
    let node = Node::start_with(&[&users.setting()]);
    let mut bob = Client::connect(node.mqtt, &of("bob", "bob"));
    let mut live = subscribed(&node, &of("alice", "live"), "jobs");
    let mut transient = subscribed(&node, &Options::v3("old").login("alice", PASSWORD), "jobs");
    subscribed(&node, &of("alice", "away"), "jobs").disconnect();
    assert_eq!(bob.publish("jobs", "queued", 1, false), 0);
    assert_eq!(live.receive_publish().payload, b"queued");
    assert_eq!(transient.take_message().payload, b"queued");

    let said = users.at(&node, &["remove", "alice"]);
    assert!(said.contains("in force at") && said.contains("failed 0"), "{said}");
    let last = live.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert!(last.kind() == 14 && matches!(last.reason(), 0x87 | 0x98), "{last:02x?}");
    transient.until_closed(PATIENCE);
    assert!(bob.is_alive());
    for id in ["live", "away", "new"] {
        assert_eq!(Client::try_connect(node.mqtt, &of("alice", id)).1.reason(), 0x86, "{id}");
    }
    assert!(states(&node, "alice").iter().all(|state| state == "ended"));
    assert_eq!(bob.publish("jobs", "later", 1, false), 0x10, "nobody is subscribed any more");

    users.at(&node, &["add", "alice"]);
    let (mut away, present) = Client::connect_present(node.mqtt, &of("alice", "away"));
    assert!(!present, "the session came back with the name");
    away.expect_nothing();
}

/// A new user, and a new password, are in force when the command returns; a connection under the old password stays.
#[test]
fn an_added_user_may_connect_at_once() {
    let users = Users::new();
    let node = Node::start_with(&[&users.setting()]);
    assert_eq!(Client::try_connect(node.mqtt, &of("carol", "c")).1.reason(), 0x86);
    users.at(&node, &["add", "carol"]);
    let mut carol = Client::connect(node.mqtt, &of("carol", "c"));
    let file = users.file().display().to_string();
    succeeds(&user_at(&node, &["add", "carol", "--file", &file], "another"));
    assert_eq!(Client::try_connect(node.mqtt, &of("carol", "c2")).1.reason(), 0x86);
    let _other = Client::connect(node.mqtt, &Options::v5("c3").login("carol", "another"));
    assert!(carol.is_alive());
    let faulty = std::fs::read_to_string(&file).expect("text") + "nonsense\n";
    std::fs::write(&file, faulty).expect("written");
    let (head, body) = node.admin_ask("POST", "/v1/reload", "").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 409") && body.contains("faulty") && body.contains(":4: "), "{body}");
    assert!(carol.is_alive());
}

/// A user that is gone from the file, and nothing else, is cut off from what is stored for it: nothing of it is delivered. It is there again
/// when a mistake in the file is undone.
#[test]
fn a_user_that_is_missing_in_the_file_is_cut_off_until_it_is_back() {
    let users = Users::new();
    let node = Node::start_with(&[&users.setting()]);
    let mut live = subscribed(&node, &of("alice", "live"), "jobs");
    subscribed(&node, &of("alice", "away"), "jobs").disconnect();
    let before = std::fs::read_to_string(users.file()).expect("text");
    let without: Vec<&str> = before.lines().filter(|line| !line.starts_with("alice:")).collect();
    std::fs::write(users.file(), without.join("\n")).expect("written");
    let done = reload(&node);
    assert_eq!(done["changed"], serde_json::json!(["the content of auth.password_file"]));
    let last = live.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x87));
    let mut bob = Client::connect(node.mqtt, &of("bob", "bob"));
    assert_eq!(bob.publish("jobs", "meanwhile", 1, false), 0);
    assert_eq!(Client::try_connect(node.mqtt, &of("alice", "away")).1.reason(), 0x86);
    std::fs::write(users.file(), before).expect("written");
    reload(&node);
    for id in ["live", "away"] {
        let (mut client, present) = Client::connect_present(node.mqtt, &of("alice", id));
        assert!(present);
        assert_eq!(client.take_message().payload, b"meanwhile");
    }
}

/// Removing a user that stands in no file changes and ends nothing, and says so, with what there is to do about its sessions; exit code 1.
#[test]
fn removing_an_unknown_user_says_what_it_did_not_do() {
    let users = Users::new();
    let node = Node::start_with(&[&users.setting()]);
    let mut alice = subscribed(&node, &of("alice", "live"), "jobs");
    let file = users.file().display().to_string();
    let remove = |name: &str| {
        let output = user_at(&node, &["remove", name, "--file", &file], "");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = remove("nobody");
    assert!(said.contains("nothing was ended") && said.contains("has no session of it"), "{said}");
    // By hand, without a reload: the node still lets it in.
    let before = std::fs::read_to_string(users.file()).expect("text");
    let without: Vec<&str> = before.lines().filter(|line| !line.starts_with("alice:")).collect();
    std::fs::write(users.file(), without.join("\n")).expect("written");
    let said = remove("alice");
    assert!(
        said.contains("nothing was ended") && said.contains("exactmq session end --user alice"),
        "{said}"
    );
    assert!(alice.is_alive());
}

/// On three nodes a user that is removed from one is removed from all of them at once, wherever it is connected, also where the password
/// file still has it; adding it again lets it in again.
#[test]
fn a_removed_user_is_gone_from_all_nodes() {
    let users = Users::new();
    let cluster = Cluster::of_three_with(&[&users.setting(), "auth.anonymous=true"]);
    let (first, second, third) = (cluster.node(1), cluster.node(2), cluster.node(3));
    let mut bob = connect_when_served(first, &of("bob", "bob")).0;
    let mut live = subscribed(second, &of("alice", "live"), "jobs");
    subscribed(third, &of("alice", "away"), "jobs").disconnect();
    assert_eq!(bob.publish("jobs", "queued", 1, false), 0);
    assert_eq!(live.take_message().payload, b"queued");
    users.at(first, &["remove", "alice"]);
    let last = live.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x98));
    assert_eq!(Client::try_connect(first.mqtt, &of("alice", "away")).1.reason(), 0x86);
    for node in [second, third] {
        assert_eq!(Client::try_connect(node.mqtt, &of("alice", "away")).1.reason(), 0x8A);
    }
    assert!(states(third, "alice").iter().all(|state| state == "ended"));
    assert!(bob.is_alive());
    let said = users.at(first, &["add", "alice"]);
    assert!(said.contains("may connect again"), "{said}");
    for node in [first, second, third] {
        let (mut away, present) = connect_when_served(node, &of("alice", "away"));
        assert!(!present || node.mqtt != first.mqtt, "the session came back with the name");
        away.expect_nothing();
    }
}

/// On three nodes a revoked rule acts on connections, live and stored subscriptions and queued messages of every node.
#[test]
fn a_revoked_rule_acts_on_all_nodes() {
    let users = Users::new();
    let rules = users.directory.path().join("acl");
    std::fs::write(&rules, "user alice\ntopic readwrite #\n\nuser bob\ntopic readwrite #\n")
        .expect("written");
    let rule_setting = format!("acl.file={}", rules.display());
    let cluster = Cluster::of_three_with(&[&users.setting(), &rule_setting, "auth.anonymous=true"]);
    let mut bob = connect_when_served(cluster.node(1), &of("bob", "bob")).0;
    let both = |node: &Node, options: &Options| {
        let mut client = subscribed(node, options, "secret");
        assert_eq!(client.subscribe("open", 1), 1);
        client
    };
    let mut live = [
        both(cluster.node(2), &of("alice", "durable")),
        both(cluster.node(2), &Options::v5("transient").login("alice", PASSWORD)),
        both(cluster.node(1), &Options::v3("old").login("alice", PASSWORD)),
    ];
    both(cluster.node(3), &of("alice", "away")).disconnect();
    assert_eq!(bob.publish("secret", "queued", 1, false), 0);
    for client in &mut live {
        assert_eq!(client.take_message().payload, b"queued");
    }
    std::fs::write(&rules, REVOKED).expect("written");
    for node in &cluster.nodes {
        reload(node);
    }
    assert!(bob.publish("secret", "revoked", 1, false) < 0x80);
    assert_eq!(bob.publish("open", "open", 1, false), 0);
    for client in &mut live {
        assert_eq!(client.take_message().payload, b"open");
        client.expect_nothing();
    }
    assert_eq!(live[0].subscribe("secret", 1), 0x87);
    assert_eq!(live[1].publish("secret", "mine", 1, false), 0x87);
    let (mut away, present) = connect_when_served(cluster.node(1), &of("alice", "away"));
    assert!(present);
    assert_eq!(away.take_message().payload, b"open", "what was queued before, or stored, got out");
    away.expect_nothing();
    assert!(bob.is_alive());
}
