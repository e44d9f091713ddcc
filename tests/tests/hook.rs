//! Authentication and rules over HTTP, against real brokers and a service that answers, refuses, hangs, lies and dies.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tests::client::PATIENCE;
use tests::hook::{Hook, Reply};
use tests::users::{add_user, reload};
use tests::{Client, Node, Options, eventually};

/// Alice with her password, and nobody else.
fn only_alice(question: &Value) -> Reply {
    let right = question["username"] == "alice" && question["password"] == "secret";
    Reply::Json(json!({ "result": if right { "allow" } else { "deny" } }))
}

fn node(hook: &Hook, settings: &[&str]) -> Node {
    let own = [&format!("auth.http_url={}", hook.url()), "auth.http_timeout_ms=500"];
    Node::start_with(&[&own, settings].concat())
}

fn reason(node: &Node, options: &Options) -> u8 {
    Client::try_connect(node.mqtt, options).1.reason()
}

fn alice(id: &str) -> Options {
    Options::v5(id).login("alice", "secret")
}

/// The hook is told who wants to come in from where, and what it says is done.
#[test]
fn the_hook_decides() {
    let hook = Hook::start(only_alice);
    let node = node(&hook, &[]);
    assert_eq!(reason(&node, &alice("c1").resume().expiry(60)), 0);
    let asked = hook.asked();
    let expected = json!({
        "client_id": "c1", "username": "alice", "password": "secret", "address": "127.0.0.1", "certificate_cn": null,
    });
    assert_eq!(asked, [expected]);
    let output = node.cli(&["session", "show", "c1", "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(shown["user"], "alice");
    assert_eq!(reason(&node, &Options::v5("c2").login("alice", "wrong")), 0x86);
    assert_eq!(reason(&node, &Options::v5("c3")), 0x86);
    hook.decide(|question| {
        let named = question["client_id"] == "named";
        Reply::Json(if named {
            json!({ "result": "allow", "user": "bob" })
        } else {
            json!({ "result": "ignore" })
        })
    });
    assert_eq!(reason(&node, &Options::v5("named")), 0);
    assert_eq!(reason(&node, &Options::v5("c1")), 0x87, "nobody knows it, and anonymous ones are not let in");
    assert_eq!(reason(&node, &alice("c1")), 0x86);
    assert_eq!(hook.connections(), 1, "one connection served all questions");
}

/// A hook that is down, hangs or lies lets nobody in (0x88), soon; it is left alone then, and found again by itself.
#[test]
fn a_hook_that_does_not_answer_lets_nobody_in() {
    let hook = Hook::start(only_alice);
    let node = node(&hook, &[]);
    let mut before = Client::connect(node.mqtt, &alice("before"));
    let raw = |text: &str| Reply::Raw(text.as_bytes().to_vec());
    let big = format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{}", " ".repeat(100_000));
    let replies = [
        Reply::Status(500),
        Reply::Status(204),
        Reply::Json(json!({ "result": "allow", "acls": [] })),
        raw("HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{\"result\":\"allow\"}"),
        raw("nonsense\r\n\r\n"),
        raw(&big),
        Reply::Json(json!({ "result": "allow", "acl": "everything" })),
    ];
    for reply in replies {
        let of_hook = reply.clone();
        hook.decide(move |_| of_hook.clone());
        assert_eq!(reason(&node, &alice("c")), 0x88, "{reply:?}");
        hook.decide(only_alice);
        eventually("it is asked again", PATIENCE, || (reason(&node, &alice("c")) == 0).then_some(()));
    }
    hook.decide(|_| Reply::Hang);
    let began = Instant::now();
    assert_eq!(reason(&node, &alice("c")), 0x88);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    // A worker is not held up meanwhile, nor is a connection that is there already.
    let mut waiting = Client::open(node.mqtt, true);
    waiting.send(&alice("waiting").bytes());
    assert!(before.is_alive());
    assert_eq!(waiting.receive().reason(), 0x88);
    for _ in 0..8 {
        assert_eq!(reason(&node, &alice("c")), 0x88);
    }
    let asked = hook.asked().len();
    let began = Instant::now();
    assert_eq!(reason(&node, &alice("c")), 0x88);
    assert!(hook.asked().len() <= asked + 1 && began.elapsed() < Duration::from_millis(1_500));
    assert_eq!(Client::try_connect(node.mqtt, &Options::v3("old").login("alice", "secret")).1.body[1], 3);
    hook.decide(only_alice);
    eventually("the hook is found again", Duration::from_secs(60), || {
        (reason(&node, &alice("c")) == 0).then_some(())
    });
}

/// Files decide about the users that they have; the hook is not asked about them, and lets nobody in under their names.
#[test]
fn the_password_file_goes_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("passwords");
    add_user(&file, "carol", "of the file");
    let hook = Hook::start(|_| Reply::Json(json!({ "result": "allow", "user": "carol" })));
    let node = node(&hook, &[&format!("auth.password_file={}", file.display())]);
    assert_eq!(reason(&node, &Options::v5("c").login("carol", "of the file")), 0);
    assert_eq!(reason(&node, &Options::v5("c").login("carol", "wrong")), 0x86);
    assert!(hook.asked().is_empty());
    assert_eq!(reason(&node, &Options::v5("c").login("dave", "any")), 0x86, "the hook made dave carol");
    assert_eq!(hook.asked().len(), 1);
}

fn in_sec(sec: u64) -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() + sec
}

/// Answers are kept for as long as is configured and no longer than they hold; `expire_at` ends the connection.
#[test]
fn answers_are_kept_and_expire() {
    let hook = Hook::start(only_alice);
    let node = node(&hook, &["auth.http_cache_s=600"]);
    for _ in 0..3 {
        assert_eq!(reason(&node, &alice("c")), 0);
        assert_eq!(reason(&node, &Options::v5("c").login("alice", "wrong")), 0x86);
    }
    assert_eq!(hook.asked().len(), 2);
    hook.decide(|_| Reply::Json(json!({ "result": "deny" })));
    assert_eq!(reason(&node, &alice("c")), 0);
    assert_eq!(reason(&node, &alice("other")), 0x86, "it was asked about this client, not about another one");
    reload(&node);
    assert_eq!(reason(&node, &alice("c")), 0x86, "a reload forgets what was said");
    hook.decide(|_| Reply::Json(json!({ "result": "allow", "expire_at": in_sec(2) })));
    let mut brief = Client::connect(node.mqtt, &alice("brief"));
    let last = brief.until_closed(Duration::from_secs(20)).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x87));
    hook.decide(|_| Reply::Json(json!({ "result": "allow", "expire_at": 1 })));
    assert_eq!(reason(&node, &alice("brief")), 0x86, "what is over was said yesterday");
}

/// Rules of the hook hold for the client, alone or with the ACL file; the hook for rules adds to them whoever let the client in.
#[test]
fn rules_of_hooks_hold() {
    let acl = json!([{ "permission": "allow", "action": "all", "topic": "home/%u/#" }]);
    let hook = Hook::start(move |_| Reply::Json(json!({ "result": "allow", "acl": acl })));
    let of_hook = node(&hook, &[]);
    let mut client = Client::connect(of_hook.mqtt, &alice("c"));
    assert_eq!((client.subscribe("home/alice/#", 1), client.subscribe("home/bob", 1)), (1, 0x87));
    assert_eq!(
        (client.publish("home/alice/a", "x", 1, false), client.publish("b", "x", 1, false)),
        (0, 0x87)
    );

    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("passwords");
    add_user(&file, "alice", "secret");
    let rules = Hook::start(|question| {
        let mine = json!([{ "permission": "allow", "action": "all", "topic": "%c/mine" }]);
        match question["username"].as_str() {
            Some("alice") => Reply::Json(json!({ "result": "allow", "acl": mine })),
            _ => Reply::Json(json!({ "result": "deny" })),
        }
    });
    let settings =
        [format!("acl.http_url={}", rules.url()), format!("auth.password_file={}", file.display())];
    let with_rules = Node::start_with(&[&settings[0], &settings[1], "auth.anonymous=true"]);
    let mut client = Client::connect(with_rules.mqtt, &alice("c9"));
    assert_eq!((client.subscribe("c9/mine", 1), client.subscribe("other", 1)), (1, 0x87));
    assert_eq!(client.publish("c9/mine", "x", 1, false), 0);
    assert_eq!(client.take_message().topic, "c9/mine");
    assert!(rules.asked().iter().all(|question| question.get("password").is_none()), "it needs no password");
    assert_eq!(
        reason(&with_rules, &Options::v5("n")),
        0x87,
        "the hook for rules lets nobody in whom it denies"
    );
}

/// Over TLS the hook must show a certificate of the configured authorities.
#[test]
fn a_hook_over_tls_proves_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a certificate and its key");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let hook = Hook::start_at(listener, Some(Arc::new(config)), only_alice);
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let url = format!("auth.http_url=https://localhost:{}/mqtt", hook.address.port());
    for (pem, expected) in [(made.cert.pem(), 0), (other.cert.pem(), 0x88)] {
        let file = directory.path().join("ca.pem");
        std::fs::write(&file, pem).expect("written");
        let ca = format!("auth.http_ca_file={}", file.display());
        let node = Node::start_with(&[&url, &ca]);
        assert_eq!(reason(&node, &alice("c")), expected);
    }
    assert_eq!(hook.asked().len(), 1, "a password went to a stranger");
}
