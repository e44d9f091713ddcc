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

fn durable(id: &str) -> Options {
    Options::v5(id).resume().expiry(600)
}

/// Publishes numbers to `q` with QoS 1, all acknowledged.
fn publish_numbers(node: &Node, numbers: std::ops::Range<usize>) {
    let mut publisher = Client::connect(node.mqtt, &Options::v5("publisher"));
    for number in numbers {
        assert_eq!(publisher.publish("q", number.to_string(), 1, false), 0);
    }
    publisher.disconnect();
}

fn gets_numbers(client: &mut Client, numbers: std::ops::Range<usize>) {
    for number in numbers {
        assert_eq!(client.take_message().payload, number.to_string().as_bytes());
    }
    client.expect_nothing();
}

/// DESIGN §6: `session.on_quota = drop_new` keeps what was there first; the drops are counted.
#[test]
fn a_full_inbox_drops_the_new_message_by_default() {
    let node = Node::start_with(&["session.inbox_messages_max=5"]);
    let mut sub = Client::connect(node.mqtt, &durable("d"));
    assert_eq!(sub.subscribe("q", 1), 1);
    sub.disconnect();
    publish_numbers(&node, 0..12);
    gets_numbers(&mut Client::connect(node.mqtt, &durable("d")), 0..5);
    dropped(&node, 7.0);
}

fn dropped(node: &Node, expected: f64) {
    let series = "exactmq_messages_dropped_total{reason=\"inbox_quota\"}";
    eventually("the drops are counted", PATIENCE, || (node.metric(series) == expected).then_some(()));
}

/// DESIGN §6: `session.on_quota = drop_old` keeps what came last, for a session that is away and for one that does not acknowledge; the
/// drops are counted; the rule may be changed for a store that exists.
#[test]
fn a_full_inbox_drops_the_oldest_messages_where_it_is_told_to() {
    let mut node = Node::start_with(&["session.inbox_messages_max=5", "session.on_quota=drop_old"]);
    let mut sub = Client::connect(node.mqtt, &durable("d"));
    assert_eq!(sub.subscribe("q", 1), 1);
    sub.disconnect();
    publish_numbers(&node, 0..12);
    node.kill();
    node.restart();
    gets_numbers(&mut Client::connect(node.mqtt, &durable("d")), 7..12);

    let mut slow = Client::connect(node.mqtt, &durable("d").receive_maximum(2));
    publish_numbers(&node, 0..12);
    let first = [slow.receive_publish(), slow.receive_publish()];
    for (number, sent) in first.iter().enumerate() {
        assert_eq!(sent.payload, number.to_string().as_bytes());
    }
    slow.reset();
    // Nothing that was dropped is sent again, whatever the connection had of it.
    gets_numbers(&mut Client::connect(node.mqtt, &durable("d")), 7..12);
    dropped(&node, 7.0);
}

/// DESIGN §6: `session.on_quota = end` ends the session with reason quota: its v5 client is told 0x97, its Will is published, its queue is
/// gone and the next CONNECT begins anew; so for a session that is away. Others are served.
#[test]
fn a_full_inbox_ends_the_session_where_it_is_told_to() {
    let node = Node::start_with(&["session.inbox_messages_max=5", "session.on_quota=end"]);
    let mut watcher = Client::connect(node.mqtt, &Options::v5("watcher"));
    assert_eq!(watcher.subscribe("will", 1), 1);
    let mut good = Client::connect(node.mqtt, &durable("good"));
    assert_eq!(good.subscribe("q", 1), 1);
    let with_will = durable("slow").receive_maximum(1).will("will", "gone", 1, false, 60);
    let mut slow = Client::connect(node.mqtt, &with_will);
    let mut old = Client::connect(node.mqtt, &Options::v3("old").resume());
    let mut away = Client::connect(node.mqtt, &durable("away"));
    for client in [&mut slow, &mut old, &mut away] {
        assert_eq!(client.subscribe("q", 1), 1);
    }
    away.disconnect();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("publisher"));
    for number in 0..12 {
        assert_eq!(publisher.publish("q", number.to_string(), 1, false), 0);
        assert_eq!(good.take_message().payload, number.to_string().as_bytes());
        assert!(good.is_alive());
    }
    let last = slow.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x97));
    assert!(old.until_closed(PATIENCE).iter().all(|packet| packet.kind() == 3));
    assert_eq!(watcher.take_message().payload, b"gone");
    for id in ["slow", "away"] {
        eventually("the session has ended with reason quota", PATIENCE, || {
            let output = node.cli(&["session", "show", id, "--json"]);
            let shown: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
            (shown["end_reason"] == "quota").then_some(())
        });
        let (mut client, present) = Client::connect_present(node.mqtt, &durable(id));
        assert!(!present, "{id}");
        client.expect_nothing();
    }
    assert!(good.is_alive());
}

/// DESIGN §11: packets and bytes of MQTT are counted by type and direction, commits and fsyncs are timed.
#[test]
fn packets_commits_and_fsyncs_are_counted() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &durable("d"));
    assert_eq!(sub.subscribe("q", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let before = |name: &str, direction: &str, kind: &str| {
        node.metric(&format!("exactmq_{name}_total{{direction=\"{direction}\",type=\"{kind}\"}}"))
    };
    for number in 0..10 {
        assert_eq!(publisher.publish("q", format!("{number}"), 1, false), 0);
        sub.take_message();
    }
    assert!(publisher.is_alive() && sub.is_alive());
    for (direction, kind, packets, bytes) in [
        ("in", "connect", 2.0, 2.0 * 14.0),
        ("out", "connack", 2.0, 0.0),
        ("in", "subscribe", 1.0, 9.0),
        ("out", "suback", 1.0, 6.0),
        ("in", "publish", 10.0, 80.0),
        ("out", "publish", 10.0, 80.0),
        ("in", "puback", 10.0, 40.0),
        ("out", "puback", 10.0, 40.0),
        ("in", "pingreq", 2.0, 4.0),
        ("out", "pingresp", 2.0, 4.0),
        ("in", "auth", 0.0, 0.0),
    ] {
        eventually(&format!("{direction} {kind}"), PATIENCE, || {
            (before("packets", direction, kind) == packets).then_some(())
        });
        assert!(before("packet_bytes", direction, kind) >= bytes, "{direction} {kind}");
    }
    eventually("commits and fsyncs", PATIENCE, || {
        let commits = node.metric("exactmq_commit_seconds_count");
        let fsyncs = node.metric("exactmq_fsync_seconds_count");
        (commits >= 10.0 && fsyncs >= 10.0 && node.metric("exactmq_fsync_seconds_sum") > 0.0).then_some(())
    });
}
