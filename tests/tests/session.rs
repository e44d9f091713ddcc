//! Session expiry and Session Present (MQTT 5 §3.1.2.11, §3.14.2; scenarios 55, 56, 58).

use std::time::Duration;

use tests::client::PATIENCE;
use tests::{Client, Node, Options};

fn present(node: &Node, options: &Options) -> bool {
    let (client, present) = Client::connect_present(node.mqtt, options);
    client.disconnect();
    present
}

/// Scenario 55: a session with an expiry of 1 s is there at once and gone after it.
#[test]
fn a_session_expires_at_its_time() {
    let node = Node::start();
    let options = Options::v5("x").resume().expiry(1);
    assert!(!present(&node, &options));
    assert!(present(&node, &options));
    std::thread::sleep(Duration::from_millis(1_600));
    assert!(!present(&node, &options));
}

/// Scenario 56: Clean Start 0 with an expiry resumes, expiry 0 (or none) ends with the connection; 3.1.1 Clean Session 0 resumes.
#[test]
fn what_is_durable_follows_the_connect_flags() {
    let node = Node::start();
    for options in [Options::v5("a").resume(), Options::v5("b"), Options::v3("c")] {
        assert!(!present(&node, &options));
        assert!(!present(&node, &options), "{}", options.client_id);
    }
    for options in [Options::v5("d").resume().expiry(60), Options::v3("e").resume()] {
        assert!(!present(&node, &options));
        assert!(present(&node, &options), "{}", options.client_id);
    }
}

/// Scenario 58 ([MQTT-3.14.2-2]): DISCONNECT may shorten the expiry to 0 or lengthen it, but not raise 0.
#[test]
fn disconnect_may_change_the_expiry_but_not_raise_zero() {
    let node = Node::start();
    let with = |sec: u8| [0xE0, 7, 0, 5, 0x11, 0, 0, 0, sec];
    let options = Options::v5("x").resume().expiry(60);
    let mut client = Client::connect(node.mqtt, &options);
    client.send(&with(0));
    client.until_closed(PATIENCE);
    assert!(!present(&node, &options));
    let mut client = Client::connect(node.mqtt, &Options::v5("y").resume());
    client.send(&with(30));
    let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x82));
    let options = Options::v5("z").resume().expiry(1);
    let mut client = Client::connect(node.mqtt, &options);
    client.send(&with(60));
    client.until_closed(PATIENCE);
    std::thread::sleep(Duration::from_millis(1_600));
    assert!(present(&node, &options));
}

/// [MQTT-3.14.2-2]: the rule speaks of the interval in CONNECT: a client whose interval was capped, even to 0, may repeat it in DISCONNECT. That
/// is a normal end (no Will), and the cap holds for it too.
#[test]
fn a_capped_expiry_may_be_repeated_in_disconnect() {
    for cap in [0, 1] {
        let node = Node::start_with(&[&format!("session.expiry_max_s={cap}")]);
        let mut watcher = Client::connect(node.mqtt, &Options::v5("watcher"));
        assert_eq!(watcher.subscribe("will", 1), 1);
        let options = Options::v5("x").resume().expiry(60).will("will", "no", 1, false, 0);
        let (mut client, connack) = Client::try_connect(node.mqtt, &options);
        let granted = tests::wire::property(&connack.body[3..], 0x11).expect("the granted interval");
        assert_eq!(granted, u32::from(cap as u8).to_be_bytes());
        client.send(&[0xE0, 7, 0, 5, 0x11, 0, 0, 0, 60]);
        assert_eq!(client.until_closed(PATIENCE), [], "no DISCONNECT 0x82");
        std::thread::sleep(Duration::from_millis(1_600));
        assert!(!present(&node, &options), "cap {cap}");
        watcher.expect_nothing();
    }
}

/// [MQTT-3.2.2-3], bug 15.4 of the owner spec: an EOF right behind DISCONNECT does not turn it into an abnormal one.
#[test]
fn disconnect_and_eof_in_one_breath_is_a_normal_disconnect() {
    let node = Node::start();
    let mut watcher = Client::connect(node.mqtt, &Options::v5("watcher"));
    assert_eq!(watcher.subscribe("will", 1), 1);
    for _ in 0..50 {
        let mut client = Client::connect(node.mqtt, &Options::v5("x").will("will", "no", 1, false, 0));
        client.send(&[0xE0, 0]);
        drop(client);
    }
    assert_eq!(watcher.poll(Duration::from_millis(700)), Ok(None));
}

/// [MQTT-3.1.3-6], §3.2.2.3.7: an empty ClientID gets an assigned one on MQTT 5, and works on 3.1.1 with Clean Session 1 only.
#[test]
fn an_empty_client_id_is_assigned_or_refused() {
    let node = Node::start();
    let (mut client, connack) = Client::try_connect(node.mqtt, &Options::v5(""));
    assert_eq!(connack.reason(), 0);
    let assigned = tests::wire::property(&connack.body[3..], 0x12).expect("Assigned Client Identifier");
    assert!(!assigned.is_empty());
    assert!(client.is_alive());
    assert!(Client::connect(node.mqtt, &Options::v3("")).is_alive());
    let (_, connack) = Client::try_connect(node.mqtt, &Options::v3("").resume());
    assert_eq!(connack.reason(), 2);
}

/// A ClientID of more than 1,024 bytes is refused with 0x85 or code 2 (DESIGN §3).
#[test]
fn an_overlong_client_id_is_refused() {
    let node = Node::start();
    let id = "x".repeat(1_025);
    assert_eq!(Client::try_connect(node.mqtt, &Options::v5(&id)).1.reason(), 0x85);
    assert_eq!(Client::try_connect(node.mqtt, &Options::v3(&id)).1.reason(), 2);
    assert!(Client::connect(node.mqtt, &Options::v5(&id[1..])).is_alive());
}

/// "A broker that is stopped right after the last packet still has the session" (scenarios, last section).
#[test]
fn a_graceful_stop_keeps_sessions_and_messages() {
    let mut node = Node::start();
    let options = Options::v5("d").resume().expiry(600);
    let mut client = Client::connect(node.mqtt, &options);
    assert_eq!(client.subscribe("g", 1), 1);
    client.disconnect();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    for number in 0..20 {
        assert_eq!(publisher.publish("g", format!("{number}"), 1, false), 0);
    }
    node.stop();
    node.restart();
    let (mut client, present) = Client::connect_present(node.mqtt, &options);
    assert!(present);
    for number in 0..20 {
        assert_eq!(client.take_message().payload, number.to_string().as_bytes());
    }
}

/// DESIGN §6, issue list of a clean stop: v5 clients get DISCONNECT 0x8B.
#[test]
fn a_graceful_stop_tells_v5_clients() {
    let mut node = Node::start();
    let mut client = Client::connect(node.mqtt, &Options::v5("x"));
    node.stop();
    let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x8B));
}
