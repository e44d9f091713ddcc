//! A slow or hostile client costs only itself (P9; scenarios 64, 89; the memory list).

use std::time::Duration;

use tests::client::PATIENCE;
use tests::{Client, Node, Options, eventually};

/// Scenario 89 and the list: a subscriber that never reads while 1 GiB is published at it costs bounded memory; others are served.
#[test]
fn a_client_that_stops_reading_costs_bounded_memory() {
    let node = Node::start();
    let total: usize =
        std::env::var("EXACTMQ_FLOOD_MIB").ok().and_then(|n| n.parse().ok()).unwrap_or(1_024) << 20;
    let deaf: Vec<Client> = [Options::v5("a"), Options::v5("b").resume().expiry(60), Options::v3("c")]
        .iter()
        .map(|options| {
            let mut client = Client::connect(node.mqtt, options);
            client.subscribe("flood/#", 0);
            client
        })
        .collect();
    let mut good = Client::connect(node.mqtt, &Options::v5("good"));
    assert_eq!(good.subscribe("other", 1), 1);
    let before = node.resident_bytes();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let bytes = publisher.publish_bytes("flood/x", &vec![b'z'; 256 << 10], 0, 0, &[]);
    let mut peak = 0;
    for number in 0..total / bytes.len() {
        publisher.send(&bytes);
        if number % 256 == 0 {
            assert_eq!(publisher.publish("other", "ping", 1, false), 0);
            assert_eq!(good.take_message().payload, b"ping");
            peak = peak.max(node.resident_bytes());
        }
    }
    assert!(publisher.is_alive());
    let grown = peak.max(node.resident_bytes()).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    drop(deaf);
}

/// QoS 1 at a deaf durable subscriber: what was acknowledged waits on disk within its quota; memory stays bounded.
#[test]
fn a_deaf_durable_subscriber_does_not_fill_memory() {
    let node = Node::start_with(&["storage.resident_bytes_max=8388608", "session.inbox_messages_max=100000"]);
    let mut deaf = Client::connect(node.mqtt, &Options::v5("d").resume().expiry(600));
    assert_eq!(deaf.subscribe("q", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let payload = vec![b'z'; 16 << 10];
    let before = node.resident_bytes();
    let mut sent = 0_usize;
    for _ in 0..60 {
        let mut batch = Vec::new();
        for id in 1..=50 {
            batch.extend(publisher.publish_bytes("q", &payload, 2, id, &[]));
        }
        publisher.send(&batch);
        for _ in 0..50 {
            assert_eq!(publisher.receive().reason(), 0);
            sent += 1;
        }
    }
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 120 << 20, "{grown} bytes for {} MiB queued", (sent * payload.len()) >> 20);
    drop(deaf);
    let mut reader = Client::connect(node.mqtt, &Options::v5("d").resume().expiry(600));
    for _ in 0..sent {
        assert_eq!(reader.take_message().payload.len(), payload.len());
    }
    reader.expect_nothing();
}

/// Scenario 64: the inbox quota counts messages; what is above it is dropped and the rest is intact, in order.
#[test]
fn the_inbox_quota_holds() {
    for quota in [1, 7] {
        let node = Node::start_with(&[&format!("session.inbox_messages_max={quota}")]);
        let options = Options::v5("d").resume().expiry(60);
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("q", 1), 1);
        sub.disconnect();
        let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
        for number in 0..20 {
            publisher.publish("q", format!("{number}"), 1, false);
        }
        let mut sub = Client::connect(node.mqtt, &options);
        for number in 0..quota {
            assert_eq!(sub.take_message().payload, number.to_string().as_bytes());
        }
        sub.expect_nothing();
        assert_eq!(publisher.publish("q", "again", 1, false), 0);
        assert_eq!(sub.take_message().payload, b"again");
    }
}

/// The connection limit of a listener refuses the next client and serves it when one has gone.
#[test]
fn the_connection_limit_is_kept_and_given_back() {
    let node = Node::start_with(&["listener.mqtt.max_connections=3"]);
    let mut clients: Vec<Client> =
        (0..3).map(|n| Client::connect(node.mqtt, &Options::v5(&format!("c{n}")))).collect();
    let mut fourth = Client::open(node.mqtt, true);
    fourth.send(&Options::v5("c3").bytes());
    match fourth.poll(PATIENCE) {
        Ok(Some(connack)) => assert!(connack.reason() >= 0x80, "{connack:02x?}"),
        Ok(None) => panic!("neither refused nor closed"),
        Err(()) => {}
    }
    clients.pop().expect("one").disconnect();
    eventually("a place for the next client", Duration::from_secs(5), || {
        let mut client = Client::open(node.mqtt, true);
        client.send(&Options::v5("c4").bytes());
        matches!(client.poll(PATIENCE), Ok(Some(connack)) if connack.reason() == 0).then_some(())
    });
    assert!(clients[0].is_alive());
}

/// Subscriptions per session are limited (0x97), and the session works on.
#[test]
fn subscriptions_per_session_are_limited() {
    let node = Node::start_with(&["limits.subscriptions_max=10"]);
    for options in [Options::v5("t"), Options::v5("d").resume().expiry(60)] {
        let mut client = Client::connect(node.mqtt, &options);
        for number in 0..10 {
            assert_eq!(client.subscribe(&format!("s/{number}"), 1), 1);
        }
        assert_eq!(client.subscribe("s/10", 1), 0x97);
        assert_eq!(client.subscribe("s/9", 0), 0);
        assert_eq!(client.unsubscribe("s/0"), 0);
        assert_eq!(client.subscribe("s/10", 1), 1);
    }
}
