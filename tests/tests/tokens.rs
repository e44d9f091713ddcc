//! JSON Web Tokens as passwords, against real brokers: who is let in, until when, and what the rules in the token allow.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};
use tests::client::PATIENCE;
use tests::cluster::succeeds;
use tests::users::{add_user, reload, user_at};
use tests::{Client, Node, Options};

const SECRET: &str = "a secret of thirty-two bytes or more";
const OTHER: &str = "another secret of thirty-two bytes or more";

/// A node that takes tokens signed with [`SECRET`], and the directory of its files.
struct Tokened {
    directory: tempfile::TempDir,
    node: Node,
}

impl Tokened {
    fn start(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let secret = directory.path().join("secret");
        std::fs::write(&secret, SECRET).expect("written");
        let own = [&format!("auth.jwt_secret_file={}", secret.display()), "auth.jwt_leeway_s=0"];
        let node = Node::start_with(&[&own, settings].concat());
        Self { directory, node }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn now_sec() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn token(secret: &str, claims: &Value) -> String {
    let text = [&json!({ "alg": "HS256", "typ": "JWT" }), claims]
        .map(|part| URL_SAFE_NO_PAD.encode(part.to_string()))
        .join(".");
    let sign = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(sign))
}

fn of(user: &str) -> String {
    token(SECRET, &json!({ "sub": user, "exp": now_sec() + 600 }))
}

fn with_rules(user: &str, acl: &Value) -> String {
    token(SECRET, &json!({ "sub": user, "exp": now_sec() + 600, "acl": acl }))
}

fn reason(node: &Node, options: &Options) -> u8 {
    Client::try_connect(node.mqtt, options).1.reason()
}

/// The user of a token is the user of the session (P8); whoever has no good token is refused, whatever it says.
#[test]
fn only_a_good_token_lets_in() {
    let there = Tokened::start(&[]);
    let alice = Options::v5("c").resume().expiry(60).login("alice", &of("alice"));
    let (_alice, _) = Client::connect_present(there.node.mqtt, &alice);
    let output = there.node.cli(&["session", "show", "c", "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(shown["user"], "alice");
    assert_eq!(
        reason(&there.node, &Options::v5("c").login("bob", &of("bob"))),
        0x87,
        "bob got alice's session"
    );
    let _old = Client::connect(there.node.mqtt, &Options::v3("old").login("", &of("carol")));
    let expired = token(SECRET, &json!({ "sub": "alice", "exp": now_sec() - 1 }));
    let forged = token(OTHER, &json!({ "sub": "alice", "exp": now_sec() + 600 }));
    for (user, password) in
        [("alice", of("bob")), ("alice", expired), ("alice", forged), ("alice", "x".into())]
    {
        assert_eq!(reason(&there.node, &Options::v5("x").login(user, &password)), 0x86, "{password}");
    }
    assert_eq!(reason(&there.node, &Options::v5("x")), 0x87);
}

/// `exp` ends the connection, idle or not, with 0x87 and the reason; a new token resumes the session with everything in it.
#[test]
fn a_token_that_expires_ends_its_connection() {
    let there = Tokened::start(&[]);
    let short = token(SECRET, &json!({ "sub": "alice", "exp": now_sec() + 6 }));
    let options = |password: &str| Options::v5("c").resume().expiry(600).login("alice", password);
    let mut idle = Client::connect(there.node.mqtt, &options(&short));
    assert_eq!(idle.subscribe("a", 1), 1);
    let mut old = Client::connect(there.node.mqtt, &Options::v3("old").login("alice", &short));
    let mut other = Client::connect(there.node.mqtt, &Options::v5("o").login("alice", &of("alice")));
    let last = idle.until_closed(Duration::from_secs(20)).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x87));
    assert!(String::from_utf8_lossy(&last.body).contains("expired"), "{last:02x?}");
    assert!(old.until_closed(PATIENCE).is_empty());
    assert!(other.is_alive());
    assert_eq!(other.publish("a", "meanwhile", 1, false), 0);
    assert_eq!(reason(&there.node, &options(&short)), 0x86);
    let (mut resumed, present) = Client::connect_present(there.node.mqtt, &options(&of("alice")));
    assert!(present);
    assert_eq!(resumed.take_message().payload, b"meanwhile");
}

/// A key that is taken away takes its tokens with it, also those of connections.
#[test]
fn a_key_that_is_gone_ends_the_connections_of_its_tokens() {
    let there = Tokened::start(&[]);
    let mut alice = Client::connect(there.node.mqtt, &Options::v5("a").login("alice", &of("alice")));
    reload(&there.node);
    assert!(alice.is_alive());
    std::fs::write(there.file("secret"), OTHER).expect("written");
    assert_eq!(reload(&there.node)["changed"], json!(["the content of auth.jwt_secret_file"]));
    let last = alice.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x87));
    assert_eq!(reason(&there.node, &Options::v5("a").login("alice", &of("alice"))), 0x86);
}

/// Without an ACL file the rules in a token are all that its client may do; for connections, stored sessions and queued messages.
#[test]
fn rules_of_a_token_are_all_that_it_may() {
    let there = Tokened::start(&[]);
    let node = &there.node;
    let rules = json!([
        { "permission": "deny", "action": "publish", "topic": "home/alice/locked" },
        { "permission": "deny", "action": "subscribe", "topic": "home/alice/hidden" },
        { "permission": "allow", "action": "all", "topic": "home/%u/#" },
        { "permission": "allow", "action": "subscribe", "topic": "news/%c" },
    ]);
    let alice = Options::v5("c1").resume().expiry(600).login("alice", &with_rules("alice", &rules));
    let mut client = Client::connect(node.mqtt, &alice);
    for (filter, granted) in
        [("home/alice/#", 1), ("home/#", 0x87), ("news/c1", 1), ("news/c2", 0x87), ("#", 0x87)]
    {
        assert_eq!(client.subscribe(filter, 1), granted, "{filter}");
    }
    for (topic, answer) in [("home/alice/locked", 0x87), ("home/bob", 0x87), ("news/c1", 0x87)] {
        assert_eq!(client.publish(topic, "x", 1, false), answer, "{topic}");
    }
    assert_eq!(client.publish("home/alice/lamp", "on", 1, false), 0);
    assert_eq!(client.take_message().payload, b"on");
    let mut root = Client::connect(node.mqtt, &Options::v5("root").login("root", &of("root")));
    for topic in ["home/alice/hidden", "home/alice/open", "news/c1"] {
        assert!(root.publish(topic, topic, 1, false) < 0x80);
    }
    for topic in ["home/alice/open", "news/c1"] {
        assert_eq!(client.take_message().topic, topic);
    }
    client.expect_nothing();
    client.disconnect();
    // What waits is judged by the token that comes for it.
    for topic in ["home/alice/first", "news/c1"] {
        assert_eq!(root.publish(topic, topic, 1, false), 0);
    }
    let fewer = json!([{ "permission": "allow", "action": "all", "topic": "home/%u/#" }]);
    let alice = Options { password: Some(with_rules("alice", &fewer)), ..alice };
    let (mut client, present) = Client::connect_present(node.mqtt, &alice);
    assert!(present);
    assert_eq!(client.take_message().topic, "home/alice/first");
    client.expect_nothing();
    assert!(root.publish("news/c1", "again", 1, false) < 0x80);
    client.expect_nothing();
}

/// With an ACL file the rules of a token join the section of its user: what either denies is denied. A stored session keeps what its token
/// allowed over a restart, when nobody is there to say so.
#[test]
fn rules_of_a_token_join_those_of_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let rules = directory.path().join("acl");
    std::fs::write(
        &rules,
        "user alice\ntopic read shared/#\ntopic deny shared/secret\n\nuser root\ntopic #\n",
    )
    .expect("written");
    let mut there = Tokened::start(&[&format!("acl.file={}", rules.display())]);
    let mine = json!([
        { "permission": "allow", "action": "all", "topic": "shared/secret" },
        { "permission": "allow", "action": "all", "topic": "mine" },
        { "permission": "deny", "action": "all", "topic": "shared/not" },
    ]);
    let alice = Options::v5("c").resume().expiry(600).login("alice", &with_rules("alice", &mine));
    let mut client = Client::connect(there.node.mqtt, &alice);
    for (filter, granted) in
        [("shared/a", 1), ("shared/not", 0x87), ("shared/secret", 0x87), ("mine", 1), ("x", 0x87)]
    {
        assert_eq!(client.subscribe(filter, 1), granted, "{filter}");
    }
    assert_eq!(client.publish("shared/a", "x", 1, false), 0x87);
    client.disconnect();
    there.node.kill();
    there.node.restart();
    let root = Options::v5("root").login("root", &of("root"));
    let mut root = Client::connect(there.node.mqtt, &root);
    for topic in ["mine", "shared/a"] {
        assert_eq!(root.publish(topic, topic, 1, false), 0, "{topic}: nobody is known to read it");
    }
    let (mut client, present) = Client::connect_present(there.node.mqtt, &alice);
    assert!(present);
    for topic in ["mine", "shared/a"] {
        assert_eq!(client.take_message().topic, topic);
    }
    std::fs::write(&rules, "user alice\ntopic deny mine\n\nuser root\ntopic #\n").expect("written");
    reload(&there.node);
    assert_eq!(root.publish("mine", "denied", 1, false), 0x10);
    client.expect_nothing();
    assert_eq!(client.publish("mine", "x", 1, false), 0x87);
}

/// The password file decides about the users that it has; tokens, about all others.
#[test]
fn the_password_file_goes_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("passwords");
    add_user(&file, "alice", "secret");
    let there = Tokened::start(&[&format!("auth.password_file={}", file.display())]);
    let connect = |user: &str, password: &str| reason(&there.node, &Options::v5("c").login(user, password));
    assert_eq!(connect("alice", "secret"), 0);
    assert_eq!(connect("alice", &of("alice")), 0x86, "a token stood in for the password");
    assert_eq!(connect("", &of("alice")), 0x86, "a token stood in for the password");
    assert_eq!(connect("", &of("bob")), 0);
    assert_eq!(connect("bob", &of("bob")), 0);
    assert_eq!(connect("bob", "secret"), 0x86);
}

/// README "Who decides": a file decides about a name from the moment on that it has it, also about whoever is connected under it by a token. Others
/// stay.
#[test]
fn a_name_that_a_file_takes_is_taken_from_its_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("passwords");
    add_user(&file, "root", "secret");
    let there = Tokened::start(&[&format!("auth.password_file={}", file.display())]);
    let mut alice = Client::connect(there.node.mqtt, &Options::v5("a").login("alice", &of("alice")));
    let mut unnamed = Client::connect(there.node.mqtt, &Options::v5("u").login("", &of("alice")));
    let mut bob = Client::connect(there.node.mqtt, &Options::v5("b").login("bob", &of("bob")));
    let named = file.display().to_string();
    succeeds(&user_at(&there.node, &["add", "alice", "--file", &named], "another secret"));
    for client in [&mut alice, &mut unnamed] {
        let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
        assert_eq!((last.kind(), last.reason()), (14, 0x87));
    }
    assert!(bob.is_alive());
    assert_eq!(reason(&there.node, &Options::v5("a").login("alice", &of("alice"))), 0x86);
    assert_eq!(reason(&there.node, &Options::v5("a").login("alice", "another secret")), 0);
}

/// P8, README "Who decides": a user is its name, whoever proves it. One that a file lost to a token keeps its sessions under that token, and
/// nobody else gets them; who shall not have them is removed or denied, which holds whatever proves the name.
#[test]
fn a_user_is_its_name_whoever_proves_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("passwords");
    for user in ["alice", "carol", "root"] {
        add_user(&file, user, "secret");
    }
    let there = Tokened::start(&[&format!("auth.password_file={}", file.display())]);
    let node = &there.node;
    let by_password = |user: &str, id: &str| Options::v5(id).resume().expiry(600).login(user, "secret");
    let by_token = |user: &str, id: &str| Options::v5(id).resume().expiry(600).login(user, &of(user));
    for user in ["alice", "carol"] {
        let mut client = Client::connect(node.mqtt, &by_password(user, user));
        assert_eq!(client.subscribe(user, 1), 1);
        client.disconnect();
    }
    let mut root = Client::connect(node.mqtt, &by_password("root", "root"));
    for user in ["alice", "carol"] {
        assert_eq!(root.publish(user, "queued", 1, false), 0);
    }
    let text = std::fs::read_to_string(&file).expect("text");
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("alice:")).collect();
    std::fs::write(&file, without.join("\n")).expect("written");
    reload(node);
    assert_eq!(reason(node, &by_token("bob", "alice")), 0x87, "another user got the session");
    let (mut alice, present) = Client::connect_present(node.mqtt, &by_token("alice", "alice"));
    assert!(present);
    assert_eq!(alice.take_message().payload, b"queued");
    // Removed, not only missing: nothing is left for who has the name next.
    let named = file.display().to_string();
    succeeds(&user_at(node, &["remove", "carol", "--file", &named], ""));
    let (mut carol, present) = Client::connect_present(node.mqtt, &by_token("carol", "carol"));
    assert!(!present);
    carol.expect_nothing();
    succeeds(&node.cli(&["session", "end", "--user", "alice", "--reason", "revoked", "--deny"]));
    assert_eq!(reason(node, &by_token("alice", "alice")), 0x8A);
}

/// `auth.jwt_lifetime_max_s`: a token that is good for longer than a token may be is refused, not shortened: whoever signs it should hear of it.
#[test]
fn a_token_that_would_be_good_for_too_long_is_refused() {
    let there = Tokened::start(&["auth.jwt_lifetime_max_s=3600"]);
    let until = |sec: u64| token(SECRET, &json!({ "sub": "alice", "exp": now_sec() + sec }));
    let connect = |password: String| reason(&there.node, &Options::v5("c").login("alice", &password));
    assert_eq!(connect(until(3_000)), 0);
    assert_eq!(connect(until(4_000)), 0x86);
    assert_eq!(connect(token(SECRET, &json!({ "sub": "alice", "exp": u64::MAX }))), 0x86);
}
