//! QoS 1 and 2 exchanges in both directions (P5; MQTT §4.3, §4.4, §4.6, §4.9).

use std::time::Duration;

use tests::client::PATIENCE;
use tests::{Client, Node, Options};

fn durable(id: &str) -> Options {
    Options::v5(id).resume().expiry(300)
}

/// Scenarios 67 and 68 ([MQTT-4.3.3-10]): a QoS 2 PUBLISH repeated before PUBREL is delivered once and answered with PUBREC 0x00 each time, on
/// the same connection and after a reconnect; DUP on the first one is legal.
#[test]
fn a_repeated_qos2_publish_is_delivered_once() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &Options::v5("sub"));
    assert_eq!(sub.subscribe("t", 2), 2);
    let mut client = Client::connect(node.mqtt, &durable("pub"));
    for flags in [0x0C, 0x0C, 0x04] {
        let bytes = client.publish_bytes("t", b"once", flags, 1, &[]);
        client.send(&bytes);
        let rec = client.receive();
        assert_eq!((rec.kind(), rec.packet_id(), rec.reason()), (5, 1, 0));
    }
    client.reset();
    let (mut client, present) = Client::connect_present(node.mqtt, &durable("pub"));
    assert!(present);
    let bytes = client.publish_bytes("t", b"once", 0x0C, 1, &[]);
    client.send(&bytes);
    assert_eq!((client.receive().reason(), 5), (0, 5));
    client.ack(6, 1);
    let comp = client.receive();
    assert_eq!((comp.kind(), comp.reason()), (7, 0));
    assert_eq!(sub.take_message().payload, b"once");
    assert_eq!(client.publish("t", "next", 2, false), 0);
    assert_eq!(sub.take_message().payload, b"next");
    sub.expect_nothing();
}

/// [MQTT-4.3.3-8], [MQTT-4.3.3-11]: PUBLISH and PUBREL in one write are answered with PUBREC and then PUBCOMP, and the message arrives.
#[test]
fn a_pubrel_does_not_overtake_its_publish() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    assert_eq!(sub.subscribe("t", 2), 2);
    for options in [durable("p"), Options::v5("q")] {
        let mut client = Client::connect(node.mqtt, &options);
        for (round, retain) in [(1, 0), (2, 1)] {
            let mut bytes = client.publish_bytes("t", b"x", 4 | retain, round, &[]);
            bytes.extend([0x62, 2, 0, u8::try_from(round).expect("small")]);
            client.send(&bytes);
            let answers = [client.receive(), client.receive()];
            assert_eq!(
                answers.map(|answer| (answer.kind(), answer.packet_id(), answer.reason())),
                [(5, round, 0), (7, round, 0)]
            );
            assert_eq!(sub.take_message().payload, b"x");
        }
    }
}

/// Scenario 71: PUBREL for an exchange in progress is answered 0x00 also after a reconnect, for an unknown id 0x92.
#[test]
fn pubrel_is_completed_when_known_and_0x92_when_not() {
    let node = Node::start();
    let mut client = Client::connect(node.mqtt, &durable("pub"));
    let bytes = client.publish_bytes("t", b"x", 4, 7, &[]);
    client.send(&bytes);
    assert_eq!(client.receive().kind(), 5);
    client.reset();
    let mut client = Client::connect(node.mqtt, &durable("pub"));
    client.ack(6, 7);
    let comp = client.receive();
    assert_eq!((comp.kind(), comp.packet_id(), comp.reason()), (7, 7, 0));
    client.ack(6, 9);
    let comp = client.receive();
    assert_eq!((comp.kind(), comp.packet_id(), comp.reason()), (7, 9, 0x92));
}

/// Scenario 69 ([MQTT-4.4.0-1]): what was PUBREC'd resumes with PUBREL, same id, no PUBLISH; what was not acknowledged with PUBLISH, DUP=1, same id.
#[test]
fn a_resumed_session_continues_each_exchange_where_it_stood() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    assert_eq!(sub.subscribe("t/#", 2), 2);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("t/1", "received", 2, false), 0);
    assert_eq!(publisher.publish("t/2", "sent", 2, false), 0);
    assert_eq!(publisher.publish("t/3", "one", 1, false), 0);
    let first = sub.receive_publish();
    let second = sub.receive_publish();
    let third = sub.receive_publish();
    sub.ack(5, first.packet_id);
    assert_eq!(sub.receive().kind(), 6);
    sub.reset();
    let (mut sub, present) = Client::connect_present(node.mqtt, &durable("sub"));
    assert!(present);
    let rel = sub.receive();
    assert_eq!((rel.kind(), rel.packet_id()), (6, first.packet_id));
    sub.ack(7, first.packet_id);
    for before in [second, third] {
        let again = sub.take_message();
        assert!(again.dup);
        assert_eq!((again.packet_id, again.payload), (before.packet_id, before.payload));
    }
    sub.expect_nothing();
    sub.reset();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    sub.expect_nothing();
}

/// [MQTT-4.3.3-4]: after a PUBREC of 0x80 or more the exchange is over: no PUBREL, no resend.
#[test]
fn a_refused_qos2_message_is_over() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    assert_eq!(sub.subscribe("t", 2), 2);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("t", "x", 2, false), 0);
    let got = sub.receive_publish();
    let id = got.packet_id.to_be_bytes();
    sub.send(&[0x50, 3, id[0], id[1], 0x97]);
    sub.expect_nothing();
    sub.reset();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    sub.expect_nothing();
}

/// Scenario 61 (§4.9): in-flight slots do not leak over reconnects; after 30 half-finished connections message 31 arrives.
#[test]
fn reconnects_leak_no_window() {
    let node = Node::start();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let options = durable("x").receive_maximum(3);
    for round in 0..30 {
        let mut client = Client::connect(node.mqtt, &options);
        assert_eq!(client.subscribe("t", 2), 2);
        assert_eq!(publisher.publish("t", format!("{round}"), 2, false), 0);
        assert_eq!(client.take_message().payload, round.to_string().as_bytes());
        assert!(client.is_alive());
        client.reset();
    }
    let mut client = Client::connect(node.mqtt, &options);
    assert_eq!(publisher.publish("t", "31", 2, false), 0);
    assert_eq!(client.take_message().payload, b"31");
}

/// Scenario 72 (§2.2.1): ids in flight are not reused after a resume under load, nor when the counter wraps past 65,535 with one unacknowledged.
#[test]
fn packet_ids_in_flight_are_never_reused() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    assert_eq!(sub.subscribe("t", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    for number in 0..50 {
        assert_eq!(publisher.publish("t", format!("{number}"), 1, false), 0);
    }
    let mut open: Vec<u16> = (0..50).map(|_| sub.receive_publish().packet_id).collect();
    sub.reset();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    let resent: Vec<u16> = (0..50).map(|_| sub.receive_publish().packet_id).collect();
    assert_eq!(open, resent);
    for number in 50..100 {
        assert_eq!(publisher.publish("t", format!("{number}"), 1, false), 0);
        let id = sub.receive_publish().packet_id;
        assert!(!open.contains(&id));
        open.push(id);
    }
}

/// P5, scenario 72 (§2.2.1): an inbox holds more messages than there are packet ids. With the first message unacknowledged delivery waits at
/// the one that would share its id, also after a reconnect, and nothing is lost.
#[test]
fn more_messages_than_packet_ids_are_kept_and_delivered() {
    const MESSAGES: usize = 66_000;
    const IDS: usize = 65_535;
    let node = Node::start_with(&[
        "session.inbox_messages_max=100000",
        "session.inbox_bytes_max=100000000",
        "session.receive_maximum=1000",
    ]);
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    assert_eq!(sub.subscribe("t", 1), 1);
    sub.reset();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    for first in (0..MESSAGES).step_by(1_000) {
        let batch: Vec<u8> = (first..first + 1_000)
            .flat_map(|number| {
                let id = u16::try_from(number % 1_000 + 1).expect("small");
                publisher.publish_bytes("t", number.to_string().as_bytes(), 2, id, &[])
            })
            .collect();
        publisher.send(&batch);
        for _ in 0..1_000 {
            assert_eq!(publisher.receive_kind(4).reason(), 0);
        }
    }
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    let first = sub.receive_publish();
    assert_eq!(first.payload, b"0");
    let mut acks = Vec::new();
    for number in 1..IDS {
        let got = sub.receive_publish();
        assert_eq!(got.payload, number.to_string().as_bytes());
        assert_ne!(got.packet_id, first.packet_id);
        let [high, low] = got.packet_id.to_be_bytes();
        acks.extend([0x40, 2, high, low]);
        if acks.len() == 100 || number + 1 == IDS {
            sub.send(&acks);
            acks.clear();
        }
    }
    sub.expect_nothing();
    sub.reset();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    let again = sub.receive_publish();
    assert_eq!((again.packet_id, again.payload.as_slice(), again.dup), (first.packet_id, &b"0"[..], true));
    sub.expect_nothing();
    sub.settle(&again);
    for number in IDS..MESSAGES {
        let got = sub.receive_publish();
        assert_eq!((got.payload.as_slice(), got.dup), (number.to_string().as_bytes(), false));
        sub.settle(&got);
    }
    sub.expect_nothing();
}

/// [MQTT-3.3.4-9]: never more than Receive Maximum unacknowledged; QoS 0 passes meanwhile (§4.9), and acknowledgements make the rest flow.
#[test]
fn the_clients_receive_maximum_is_respected() {
    let node = Node::start();
    for (id, options) in [("a", Options::v5("a").receive_maximum(2)), ("b", durable("b").receive_maximum(2))]
    {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe(&format!("w/{id}/#"), 1), 1);
        let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
        for number in 0..6 {
            assert_eq!(publisher.publish(&format!("w/{id}/1"), format!("{number}"), 1, false), 0);
        }
        publisher.publish(&format!("w/{id}/0"), "zero", 0, false);
        let first = sub.receive_publish();
        let second = sub.receive_publish();
        let zero = sub.receive_publish();
        assert_eq!((zero.qos, zero.payload.as_slice()), (0, &b"zero"[..]), "{id}");
        sub.expect_nothing();
        sub.settle(&second);
        sub.settle(&first);
        for number in 2..6 {
            assert_eq!(sub.take_message().payload, number.to_string().as_bytes(), "{id}");
        }
        sub.expect_nothing();
    }
}

/// Scenario 75: more unacknowledged QoS 2 than the server's Receive Maximum (default 100): DISCONNECT 0x93.
#[test]
fn the_servers_receive_maximum_is_enforced() {
    let node = Node::start();
    let (mut client, connack) = Client::try_connect(node.mqtt, &Options::v5("p"));
    let maximum = tests::wire::property(&connack.body[3..], 0x21).expect("Receive Maximum in CONNACK");
    let maximum = u16::from_be_bytes([maximum[0], maximum[1]]);
    assert_eq!(maximum, 100);
    for id in 1..=maximum + 1 {
        let bytes = client.publish_bytes("t", b"x", 4, id, &[]);
        client.send(&bytes);
    }
    let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x93));
}

/// Scenario 74: the same QoS 2 id with new payloads for ever costs bounded memory.
#[test]
fn repeating_one_qos2_id_costs_bounded_memory() {
    let node = Node::start();
    let mut client = Client::connect(node.mqtt, &durable("p"));
    let payload = vec![b'x'; 4_096];
    let bytes = client.publish_bytes("t", &payload, 4, 1, &[]);
    let before = node.resident_bytes();
    for _ in 0..200 {
        for _ in 0..50 {
            client.send(&bytes);
        }
        for _ in 0..50 {
            assert_eq!(client.receive().kind(), 5);
        }
    }
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes for 40 MB of repeats");
    assert!(client.is_alive());
}

/// [MQTT-4.6.0-2]: acknowledgements come in the order of the messages, also when only some need a commit.
#[test]
fn acknowledgements_keep_the_order_of_receipt() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    assert_eq!(sub.subscribe("durable", 1), 1);
    let mut client = Client::connect(node.mqtt, &Options::v5("p"));
    let mut all = Vec::new();
    for id in 1..=60_u16 {
        let topic = if id % 3 == 0 { "durable" } else { "nobody" };
        all.extend(client.publish_bytes(topic, b"x", 2, id, &[]));
    }
    client.send(&all);
    for id in 1..=60 {
        let ack = client.receive();
        assert_eq!((ack.kind(), ack.packet_id()), (4, id));
    }
}

/// [MQTT-4.6.0]: per topic and QoS, order of arrival is order of delivery, to transient and durable subscribers alike.
#[test]
fn order_is_kept_for_every_qos() {
    let node = Node::start();
    for qos in 0..=2 {
        let mut transient = Client::connect(node.mqtt, &Options::v5("t"));
        let mut kept = Client::connect(node.mqtt, &durable("d"));
        assert_eq!(transient.subscribe("o", qos), qos);
        assert_eq!(kept.subscribe("o", qos), qos);
        let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
        for number in 0..200 {
            publisher.publish("o", format!("{number}"), qos, false);
        }
        for client in [&mut transient, &mut kept] {
            for number in 0..200 {
                assert_eq!(client.take_message().payload, number.to_string().as_bytes());
            }
        }
    }
}

/// [MQTT-4.3.1] to -3: delivery QoS is the lower of published and granted.
#[test]
fn delivery_qos_is_the_lower_of_both() {
    let node = Node::start();
    for (granted, published) in (0..=2).flat_map(|g| (0..=2).map(move |p| (g, p))) {
        for options in [Options::v5("t"), durable("d")] {
            let mut sub = Client::connect(node.mqtt, &options);
            let topic = format!("q/{granted}/{published}/{}", options.client_id);
            assert_eq!(sub.subscribe(&topic, granted), granted);
            let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
            publisher.publish(&topic, "x", published, false);
            assert_eq!(sub.take_message().qos, granted.min(published));
        }
    }
}

/// [MQTT-4.3.1-1], durable sessions: QoS 0 reaches a connected durable session, and is not kept for an absent one by default.
#[test]
fn qos0_is_not_queued_for_the_absent() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &durable("d"));
    assert_eq!(sub.subscribe("z", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    publisher.publish("z", "live", 0, false);
    assert_eq!(sub.take_message().payload, b"live");
    sub.disconnect();
    publisher.publish("z", "lost", 0, false);
    assert_eq!(publisher.publish("z", "kept", 1, false), 0);
    let mut sub = Client::connect(node.mqtt, &durable("d"));
    assert_eq!(sub.take_message().payload, b"kept");
    assert_eq!(sub.poll(Duration::from_millis(300)), Ok(None));
}

/// MQTT 5 §4.10 and [MQTT-3.3.4]: nobody subscribed: PUBACK and PUBREC say 0x10 or 0x00, and the exchange completes.
#[test]
fn publishing_to_nobody_is_acknowledged() {
    let node = Node::start();
    let mut client = Client::connect(node.mqtt, &Options::v5("p"));
    assert!(matches!(client.publish("nobody", "x", 1, false), 0 | 0x10));
    assert!(matches!(client.publish("nobody", "x", 2, false), 0 | 0x10));
    let mut old = Client::connect(node.mqtt, &Options::v3("q"));
    assert_eq!(old.publish("nobody", "x", 1, false), 0);
    assert_eq!(old.publish("nobody", "x", 2, false), 0);
}
