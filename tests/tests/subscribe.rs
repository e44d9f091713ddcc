//! Subscriptions: effective at SUBACK (P7), overlaps, No Local, identifiers, shared ones (MQTT 5 §3.8, §4.7, §4.8).

use std::time::Duration;

use tests::client::PATIENCE;
use tests::{Client, Node, Options, eventually};

/// Scenario 77 (P7): a message published right after SUBACK arrives, every time, for transient and durable sessions.
#[test]
fn suback_means_effective() {
    let node = Node::start();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    for options in [Options::v5("t"), Options::v5("d").resume().expiry(60)] {
        let mut sub = Client::connect(node.mqtt, &options);
        for number in 0..300 {
            let topic = format!("n/{number}");
            assert_eq!(sub.subscribe(&topic, 1), 1);
            assert_eq!(publisher.publish(&topic, "x", 1, false), 0);
            assert_eq!(sub.take_message().topic, topic);
            assert_eq!(sub.unsubscribe(&topic), 0);
            publisher.publish(&topic, "y", 1, false);
        }
        sub.expect_nothing();
    }
}

/// [MQTT-3.3.4-2], -3: overlapping filters give one copy with the highest QoS and every identifier.
#[test]
fn overlapping_filters_give_one_copy_with_all_identifiers() {
    let node = Node::start();
    for options in [Options::v5("t"), Options::v5("d").resume().expiry(60)] {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe_with("o/#", 0, &[0x0B, 1]), 0);
        assert_eq!(sub.subscribe_with("o/+", 1, &[0x0B, 2]), 1);
        assert_eq!(sub.subscribe("o/x", 0), 0);
        let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
        publisher.publish("o/x", "v", 1, false);
        let got = sub.take_message();
        assert_eq!(got.qos, 1);
        let mut ids: Vec<_> = tests::wire::all_properties(&got.properties)
            .into_iter()
            .filter(|(id, _)| *id == 0x0B)
            .map(|(_, value)| value[0])
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        sub.expect_nothing();
    }
}

/// [MQTT-3.8.3-3]: No Local.
#[test]
fn no_local_keeps_own_messages_away() {
    let node = Node::start();
    for options in [Options::v5("t"), Options::v5("d").resume().expiry(60)] {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("l", 1 | 4), 1);
        assert!(sub.publish("l", "own", 1, false) < 0x80);
        sub.expect_nothing();
        let mut other = Client::connect(node.mqtt, &Options::v5("p"));
        assert_eq!(other.publish("l", "other", 1, false), 0);
        assert_eq!(sub.take_message().payload, b"other");
    }
}

/// [MQTT-3.8.4-3]: a second SUBSCRIBE to the same filter replaces its options.
#[test]
fn a_second_subscribe_replaces_the_first() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &Options::v5("t"));
    assert_eq!(sub.subscribe_with("x", 2, &[0x0B, 1]), 2);
    assert_eq!(sub.subscribe_with("x", 0, &[0x0B, 9]), 0);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("x", "v", 1, false), 0);
    let got = sub.take_message();
    assert_eq!((got.qos, tests::wire::property(&got.properties, 0x0B)), (0, Some(vec![9])));
    sub.expect_nothing();
}

/// [MQTT-4.7.1-1] to -3, [MQTT-4.7.3-1]: bad filters are refused one by one (0x8F), good ones beside them granted; 3.1.1 gets 0x80.
#[test]
fn bad_filters_are_refused_one_by_one() {
    let node = Node::start();
    for (options, refusal) in [(Options::v5("a"), 0x8F), (Options::v3("b"), 0x80)] {
        let mut sub = Client::connect(node.mqtt, &options);
        for filter in ["a/#/b", "a#", "a/b+", "+a/b", "$share/g", "$share//a", "$share/+/a"] {
            if !options.v5 && filter.starts_with('$') {
                continue;
            }
            assert_eq!(sub.subscribe(filter, 1), refusal, "{filter}");
        }
        assert_eq!(sub.subscribe("a/+/#", 1), 1);
    }
}

/// [MQTT-4.7.2-1]: a leading wildcard does not match `$` topics, an explicit `$SYS/#` does.
#[test]
fn leading_wildcards_do_not_match_dollar_topics() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &Options::v5("t"));
    assert_eq!(sub.subscribe("#", 1), 1);
    assert_eq!(sub.subscribe("+/x", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    publisher.publish("$internal/x", "v", 1, false);
    sub.expect_nothing();
}

/// UNSUBACK: 0x00 for a filter that was there, 0x11 for one that was not ([MQTT-3.10.4]).
#[test]
fn unsuback_tells_whether_the_filter_existed() {
    let node = Node::start();
    for options in [Options::v5("t"), Options::v5("d").resume().expiry(60)] {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("u", 1), 1);
        assert_eq!(sub.unsubscribe("u"), 0);
        assert_eq!(sub.unsubscribe("u"), 0x11);
    }
}

/// §4.8.2: a shared subscription gives each message to one member, and every member some.
#[test]
fn a_shared_subscription_spreads_messages_once() {
    let node = Node::start();
    let mut members: Vec<Client> = (0..3)
        .map(|n| {
            let mut client = Client::connect(node.mqtt, &Options::v5(&format!("m{n}")));
            assert_eq!(client.subscribe("$share/g/s/#", 1), 1);
            client
        })
        .collect();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    for number in 0..90 {
        assert_eq!(publisher.publish("s/x", format!("{number}"), 1, false), 0);
    }
    let (mut all, mut own) = (Vec::<u32>::new(), [0; 3]);
    // A member on another worker may have its last ones a moment after the publisher has its PUBACK.
    eventually("every message has come", Duration::from_secs(10), || {
        for (member, own) in members.iter_mut().zip(&mut own) {
            while let Ok(Some(packet)) = member.poll(Duration::from_millis(5)) {
                let got = packet.publish(true);
                member.settle(&got);
                all.push(String::from_utf8(got.payload).expect("text").parse().expect("a number"));
                *own += 1;
            }
        }
        (all.len() >= 90).then_some(())
    });
    members.iter_mut().for_each(Client::expect_nothing);
    all.sort_unstable();
    assert_eq!(all, (0..90).collect::<Vec<_>>());
    assert!(own.iter().all(|own| *own > 0), "{own:?}");
}

/// Scenario 86: a message for a group whose only member is an absent durable session is kept for it.
#[test]
fn an_absent_durable_member_of_a_group_gets_its_share_later() {
    let node = Node::start();
    let options = Options::v5("m").resume().expiry(60);
    let mut member = Client::connect(node.mqtt, &options);
    assert_eq!(member.subscribe("$share/g/s", 1), 1);
    member.disconnect();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("s", "kept", 1, false), 0);
    let mut member = Client::connect(node.mqtt, &options);
    assert_eq!(member.take_message().payload, b"kept");
}

/// [MQTT-3.8.3-4] of MQTT 5: No Local on a shared subscription is a protocol error.
#[test]
fn no_local_on_a_shared_subscription_is_a_protocol_error() {
    let node = Node::start();
    let mut client = Client::connect(node.mqtt, &Options::v5("m"));
    let mut body = vec![0, 1, 0];
    tests::wire::string("$share/g/s", &mut body);
    body.push(1 | 4);
    client.send(&tests::wire::packet(0x82, &body));
    let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x82));
}

/// Subscriptions of a durable session are there after a reconnect, without SUBSCRIBE, and after Clean Start they are gone ([MQTT-3.1.2-4]).
#[test]
fn subscriptions_live_and_die_with_the_session() {
    let node = Node::start();
    let options = Options::v5("d").resume().expiry(60);
    let mut client = Client::connect(node.mqtt, &options);
    assert_eq!(client.subscribe("keep/#", 1), 1);
    client.disconnect();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let (mut client, present) = Client::connect_present(node.mqtt, &options);
    assert!(present);
    assert_eq!(publisher.publish("keep/x", "1", 1, false), 0);
    assert_eq!(client.take_message().payload, b"1");
    client.reset();
    let (mut client, present) = Client::connect_present(node.mqtt, &Options::v5("d").expiry(60));
    assert!(!present);
    publisher.publish("keep/x", "2", 1, false);
    client.expect_nothing();
}
