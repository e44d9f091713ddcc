//! Retained messages (MQTT 5 §3.3.1.3; P7).

use tests::{Client, Node, Options, Packet};

fn publisher(node: &Node) -> Client {
    Client::connect(node.mqtt, &Options::v5("p"))
}

/// [MQTT-3.3.1-5] to -8, P7: the last acknowledged value is what a new subscriber gets; an empty payload removes it; QoS 0 retains too.
#[test]
fn the_last_value_is_kept_and_an_empty_one_removes_it() {
    let node = Node::start();
    let mut p = publisher(&node);
    for (number, qos) in [(1, 1), (2, 2), (3, 1)] {
        assert!(p.publish("r/a", format!("{number}"), qos, true) < 0x80);
        let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
        assert_eq!(sub.subscribe("r/+", 2), 2);
        let got = sub.take_message();
        assert_eq!((got.payload.as_slice(), got.retain), (number.to_string().as_bytes(), true));
        assert_eq!(got.qos, qos);
    }
    assert!(p.publish("r/a", "", 1, true) < 0x80);
    let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
    assert_eq!(sub.subscribe("r/#", 2), 2);
    sub.expect_nothing();
    p.publish("r/zero", "0", 0, true);
    assert!(p.is_alive());
    assert!(p.publish("r/other", "1", 1, true) < 0x80);
    let mut sub = Client::connect(node.mqtt, &Options::v5("s2"));
    assert_eq!(sub.subscribe("r/zero", 0), 0);
    assert_eq!(sub.take_message().payload, b"0");
}

/// P7: never v1 after v2, never nothing, for subscribers that come while values change.
#[test]
fn a_value_read_after_its_acknowledgement_is_not_older() {
    let node = Node::start();
    let mut p = publisher(&node);
    for number in 1..200_u32 {
        assert!(p.publish("r/v", number.to_string(), 1, true) < 0x80);
        let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
        assert_eq!(sub.subscribe("r/v", 1), 1);
        assert_eq!(sub.take_message().payload, number.to_string().as_bytes());
    }
}

/// P7: a retained message that is sent for a subscription never follows a newer value of its topic, although values change while it is looked
/// up, stored for the session and sent; so with and without an inbox.
#[test]
fn p7_a_retained_message_never_follows_a_newer_value() {
    const TOPICS: usize = 300;
    let node = Node::start_with(&["node.workers=2", "session.receive_maximum=1000"]);
    let publish_round = |publisher: &mut Client, round: u32| {
        let mut batch = Vec::new();
        for topic in 0..TOPICS {
            let id = publisher.packet_id();
            let payload = round.to_string();
            batch.extend(publisher.publish_bytes(&format!("r/{topic}"), payload.as_bytes(), 3, id, &[]));
        }
        publisher.send(&batch);
        for _ in 0..TOPICS {
            assert!(publisher.receive_kind(4).reason() < 0x80);
        }
    };
    let mut p = publisher(&node);
    publish_round(&mut p, 0);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            let mut round = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                round += 1;
                publish_round(&mut p, round);
            }
        });
        let readers = [Options::v5("d").resume().expiry(60), Options::v5("t")]
            .map(|options| scope.spawn(move || follow(node.mqtt, &options)));
        let outcomes = readers.map(|reader| reader.join());
        done.store(true, std::sync::atomic::Ordering::Release);
        publishing.join().expect("no panic");
        assert!(outcomes.iter().all(Result::is_ok), "a value went back");
    });
}

/// Subscribes again and again; of each topic the values that come never go back.
fn follow(address: std::net::SocketAddr, options: &Options) {
    let mut sub = Client::connect(address, options);
    let mut last = std::collections::BTreeMap::<String, u32>::new();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while std::time::Instant::now() < end {
        sub.send(&tests::wire::packet(0x82, b"\x00\x09\x00\x00\x03r/+\x01"));
        for _ in 0..600 {
            let Ok(Some(packet)) = sub.poll(std::time::Duration::from_millis(20)) else { break };
            if packet.kind() != 3 {
                continue;
            }
            let got = packet.publish(true);
            sub.ack(4, got.packet_id);
            let value = String::from_utf8(got.payload).expect("text").parse().expect("a number");
            let before = last.insert(got.topic.clone(), value);
            assert!(before.is_none_or(|before| before <= value), "{}: {before:?}, then {value}", got.topic);
        }
    }
}

/// [MQTT-3.3.1-9] to -11, [MQTT-3.8.3-4]: Retain Handling 0, 1, 2.
#[test]
fn retain_handling_is_obeyed() {
    let node = Node::start();
    assert!(publisher(&node).publish("r/h", "v", 1, true) < 0x80);
    let options = Options::v5("s").resume().expiry(60);
    for options in [Options::v5("t"), options] {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("r/h", 0x01 | 2 << 4), 1);
        sub.expect_nothing();
        assert_eq!(sub.subscribe("r/h", 0x01 | 1 << 4), 1);
        sub.expect_nothing();
        assert_eq!(sub.subscribe("r/h", 0x01), 1);
        assert_eq!(sub.take_message().payload, b"v");
        assert_eq!(sub.subscribe("r/+", 0x01 | 1 << 4), 1);
        assert_eq!(sub.take_message().payload, b"v");
    }
}

/// [MQTT-3.3.1-10] of MQTT 5, [MQTT-3.8.4-3] of 3.1.1: with Retain Handling 1 a subscription that a durable session brought along is not new,
/// with 0 (and on 3.1.1) it is served again; a subscription that was removed is new again.
#[test]
fn a_resumed_subscription_is_not_new() {
    let node = Node::start();
    assert!(publisher(&node).publish("r/h", "v", 1, true) < 0x80);
    let options = Options::v5("d").resume().expiry(60);
    let mut sub = Client::connect(node.mqtt, &options);
    assert_eq!(sub.subscribe("r/h", 0x01 | 1 << 4), 1);
    assert_eq!(sub.take_message().payload, b"v");
    sub.reset();
    let mut sub = Client::connect(node.mqtt, &options);
    assert_eq!(sub.subscribe("r/h", 0x01 | 1 << 4), 1);
    sub.expect_nothing();
    assert_eq!(sub.subscribe("r/h", 0x01), 1);
    assert_eq!(sub.take_message().payload, b"v");
    assert_eq!(sub.unsubscribe("r/h"), 0);
    assert_eq!(sub.subscribe("r/h", 0x01 | 1 << 4), 1);
    assert_eq!(sub.take_message().payload, b"v");
    let mut old = Client::connect(node.mqtt, &Options::v3("o").resume());
    for _ in 0..2 {
        assert_eq!(old.subscribe("r/h", 1), 1);
        let got = old.take_message();
        assert_eq!((got.retain, got.payload.as_slice()), (true, &b"v"[..]));
    }
}

/// Scenario 80 ([MQTT-3.8.4-8] of MQTT 5, [MQTT-3.8.4-6] of 3.1.1): the QoS of a retained message, and of the same message live, is at
/// most the granted one and at most the published one, whatever else the subscription asks for.
#[test]
fn the_granted_qos_caps_retained_and_live_messages() {
    let node = Node::start();
    for (granted, published) in (0..=2).flat_map(|granted| (0..=2).map(move |qos| (granted, qos))) {
        let topic = format!("cap/{granted}/{published}");
        let mut p = publisher(&node);
        assert!(p.publish(&topic, "kept", published, true) < 0x80);
        assert!(p.is_alive());
        for options in [Options::v5("t"), Options::v5("d").resume().expiry(60), Options::v3("o")] {
            let mut sub = Client::connect(node.mqtt, &options);
            let as_published = if options.v5 { 8 } else { 0 };
            assert_eq!(sub.subscribe(&topic, granted | as_published), granted);
            let kept = sub.take_message();
            let case = format!("{topic} {}", options.client_id);
            assert_eq!((kept.qos, kept.retain), (granted.min(published), true), "{case}");
            assert!(p.publish(&topic, "live", published, true) < 0x80);
            let live = sub.take_message();
            assert_eq!((live.qos, live.retain), (granted.min(published), options.v5), "{case}");
            sub.expect_nothing();
            assert!(p.publish(&topic, "kept", published, true) < 0x80);
            assert!(p.is_alive());
            sub.take_message();
            assert_eq!(sub.unsubscribe(&topic), 0);
            sub.disconnect();
        }
    }
}

/// Scenario 80 ([MQTT-3.3.1-9] of 3.1.1, [MQTT-3.3.1-12] of MQTT 5): of a subscriber with overlapping subscriptions, one of them Retain As
/// Published, the live message keeps its flag; one that is not retained never has it.
#[test]
fn a_message_that_is_not_retained_never_has_the_flag() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
    assert_eq!(sub.subscribe("f/+", 1), 1);
    assert_eq!(sub.subscribe("f/x", 0x01 | 8), 1);
    let mut p = publisher(&node);
    assert!(p.publish("f/x", "1", 1, true) < 0x80);
    assert!(sub.take_message().retain);
    assert_eq!(p.publish("f/x", "2", 1, false), 0);
    assert!(!sub.take_message().retain);
}

/// [MQTT-3.3.1-12], -13: Retain As Published keeps the flag, without it a live message has RETAIN 0.
#[test]
fn retain_as_published_is_obeyed() {
    let node = Node::start();
    for options in [Options::v5("t"), Options::v5("d").resume().expiry(60)] {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("rap/1", 0x01 | 8), 1);
        assert_eq!(sub.subscribe("rap/0", 0x01), 1);
        let mut p = publisher(&node);
        for topic in ["rap/1", "rap/0"] {
            assert!(p.publish(topic, "v", 1, true) < 0x80);
            let got = sub.take_message();
            assert_eq!((got.topic.as_str(), got.retain), (topic, topic == "rap/1"));
            assert!(p.publish(topic, "", 1, true) < 0x80);
            assert_eq!(sub.take_message().payload, b"");
        }
    }
}

/// Scenario 81: no retained message for a shared subscription; `#` and `+` do not see `$SYS`.
#[test]
fn shared_subscriptions_get_nothing_retained_and_wildcards_no_sys() {
    let node = Node::start();
    assert!(publisher(&node).publish("r/x", "v", 1, true) < 0x80);
    let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
    assert_eq!(sub.subscribe("$share/g/r/x", 1), 1);
    sub.expect_nothing();
    assert_eq!(sub.subscribe("#", 1), 1);
    assert_eq!(sub.take_message().topic, "r/x");
    sub.expect_nothing();
    assert_eq!(sub.subscribe("+/broker/version", 1), 1);
    sub.expect_nothing();
    assert_eq!(sub.subscribe("$SYS/broker/version", 1), 1);
    let got = sub.take_message();
    assert!(String::from_utf8_lossy(&got.payload).to_lowercase().contains("exactmq"));
}

/// Scenario 82: a wildcard look-up returns matching topics only, and all of them.
#[test]
fn wildcards_find_exactly_the_matching_topics() {
    let node = Node::start();
    let topics = ["a", "a/b", "a/b/c", "a/c", "ab", "b/b", "/a", "a/", "a//b"];
    let mut p = publisher(&node);
    for topic in topics {
        assert!(p.publish(topic, topic, 1, true) < 0x80);
    }
    let table: [(&str, &[&str]); 7] = [
        ("#", &topics),
        ("a/#", &["a", "a/b", "a/b/c", "a/c", "a/", "a//b"]),
        ("a/+", &["a/b", "a/c", "a/"]),
        ("+/b", &["a/b", "b/b"]),
        ("+/+", &["a/b", "a/c", "b/b", "/a", "a/"]),
        ("/+", &["/a"]),
        ("a/+/b", &["a//b"]),
    ];
    for (filter, expected) in table {
        let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
        assert_eq!(sub.subscribe(filter, 1), 1);
        let mut got: Vec<String> = expected.iter().map(|_| sub.take_message().topic).collect();
        sub.expect_nothing();
        let mut expected: Vec<&str> = expected.to_vec();
        got.sort_unstable();
        expected.sort_unstable();
        assert_eq!(got, expected, "{filter}");
    }
}

/// Scenario 59 ([MQTT-3.3.2-5], -6): a retained or queued message expires, and what is left of its interval is forwarded.
#[test]
fn message_expiry_is_counted_down_and_honoured() {
    let mut node = Node::start();
    let durable = Options::v5("d").resume().expiry(60);
    let mut sub = Client::connect(node.mqtt, &durable);
    assert_eq!(sub.subscribe("e/#", 1), 1);
    sub.disconnect();
    let mut p = publisher(&node);
    let mut send = |topic: &str, sec: u8, retain: u8| {
        let id = p.packet_id();
        let bytes = p.publish_bytes(topic, topic.as_bytes(), 2 | retain, id, &[2, 0, 0, 0, sec]);
        p.send(&bytes);
        assert!(p.receive_kind(4).reason() < 0x80);
    };
    send("e/short", 1, 1);
    send("e/long", 60, 1);
    node.kill();
    node.restart();
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    let mut sub = Client::connect(node.mqtt, &durable);
    let mut fresh = Client::connect(node.mqtt, &Options::v5("f"));
    assert_eq!(fresh.subscribe("e/#", 1), 1);
    for client in [&mut sub, &mut fresh] {
        let got = client.take_message();
        assert_eq!(got.topic, "e/long");
        let left = tests::wire::property(&got.properties, 2).expect("Message Expiry Interval");
        assert!(left[3] <= 59 && left[3] > 40, "{left:?}");
        client.expect_nothing();
    }
}

/// [MQTT-3.3.1-4] sibling: a retained message that was published with properties comes back with them.
#[test]
fn retained_messages_keep_their_properties() {
    let node = Node::start();
    let mut p = publisher(&node);
    let properties =
        [&[0x01, 1, 0x08, 0, 5][..], b"reply", &[0x09, 0, 2, 1, 2, 0x26, 0, 1, b'k', 0, 1, b'v']].concat();
    let bytes = p.publish_bytes("r/p", b"v", 3, 1, &properties);
    p.send(&bytes);
    assert!(Packet::reason(&p.receive_kind(4)) < 0x80);
    let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
    assert_eq!(sub.subscribe_with("r/p", 1, &[0x0B, 5]), 1);
    let got = sub.take_message();
    let mut found = tests::wire::all_properties(&got.properties);
    assert_eq!(
        found.iter().position(|(id, value)| *id == 0x0B && value == &[5]).map(|at| found.remove(at)),
        Some((0x0B, vec![5]))
    );
    assert_eq!(found, tests::wire::all_properties(&properties));
}

/// P9: `limits.retained_messages_max` holds at once; a value at the limit is replaced and removed; MQTT 5 is told 0x97; 3.1.1 and QoS 0 cannot
/// be told, and a Will has nobody to tell: those messages reach subscribers and are not retained.
#[test]
fn the_limit_of_retained_messages_is_exact() {
    let node = Node::start_with(&[
        "cluster.groups=1",
        "limits.retained_messages_max=2",
        "limits.retained_bytes_max=64",
    ]);
    let mut sub = Client::connect(node.mqtt, &Options::v5("sub"));
    assert_eq!(sub.subscribe("t/#", 1), 1);
    let mut v5 = Client::connect(node.mqtt, &Options::v5("p5").resume().expiry(60));
    let mut v3 = Client::connect(node.mqtt, &Options::v3("p3"));
    for (topic, payload) in [("t/a", "1"), ("t/b", "1"), ("t/a", "2")] {
        assert_eq!(v5.publish(topic, payload, 2, true), 0);
        assert_eq!(sub.take_message().payload, payload.as_bytes());
    }
    for qos in [1, 2, 2] {
        assert_eq!(v5.publish("t/c", "refused", qos, true), 0x97);
    }
    v5.publish("t/c", "zero", 0, true);
    assert_eq!(sub.take_message().payload, b"zero");
    for qos in [1, 2] {
        v3.publish("t/c", "old", qos, true);
        assert_eq!(sub.take_message().payload, b"old");
        v3.publish("t/a", "x".repeat(65), qos, true);
        assert_eq!(sub.take_message().payload.len(), 65);
    }
    let dying = Client::connect(node.mqtt, &Options::v5("w").will("t/w", "bye", 1, true, 0));
    dying.reset();
    assert_eq!(sub.take_message().payload, b"bye");
    let mut late = Client::connect(node.mqtt, &Options::v5("late"));
    late.subscribe("t/#", 1);
    let mut found: Vec<_> = (0..2).map(|_| late.take_message()).map(|got| (got.topic, got.payload)).collect();
    found.sort();
    assert_eq!(found, [("t/a".to_owned(), b"2".to_vec()), ("t/b".to_owned(), b"1".to_vec())]);
    late.expect_nothing();
    assert_eq!(v5.publish("t/b", "", 1, true), 0);
    assert_eq!(v5.publish("t/c", "3", 1, true), 0);
}
