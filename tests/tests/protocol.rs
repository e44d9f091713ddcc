//! Wrong packets close the wrong client and nobody else (P9, P10; scenarios 91 to 98 and their last section).

use std::time::{Duration, Instant};

use tests::client::PATIENCE;
use tests::wire;
use tests::{Client, Node, Options};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex"))
        .collect()
}

/// Sends bytes on a connected client and returns the reason of the DISCONNECT that closes it (v5), or 0 for a bare close.
fn reason_after(node: &Node, v5: bool, bytes: &[u8]) -> u8 {
    let options = if v5 { Options::v5("bad") } else { Options::v3("bad") };
    let mut client = Client::connect(node.mqtt, &options);
    client.send(bytes);
    let packets = client.until_closed(PATIENCE);
    match packets.last() {
        Some(last) if last.kind() == 14 => last.reason(),
        _ => 0,
    }
}

/// Packets only a server may send, reserved types and flags, second CONNECT: closed, v5 with 0x81 or 0x82 ([MQTT-2.2.2-2], [MQTT-3.1.0-2]; scenario 96).
#[test]
fn packets_that_no_client_may_send_close_the_connection() {
    let node = Node::start();
    let table = [
        "20020000",
        "2003000000",
        "9003000101",
        "900400010001",
        "b0020001",
        "b00400010000",
        "d000",
        "0000",
        "f200",
        "8002000a",
        "8405000100000000",
        "a0020001",
        "c100",
        "c001ff",
        "e100",
        "40020000",
        "4003000177",
        "60020001",
        "36080001740001 0061 62",
        "100c00044d5154540402003c0000",
        "80050001000161",
        "3e070001740001 61",
    ];
    for case in table {
        for v5 in [true, false] {
            let reason = reason_after(&node, v5, &hex(case));
            assert!(!v5 || matches!(reason, 0x81 | 0x82), "{case}: reason {reason:#04x}");
        }
    }
    assert!(Client::connect(node.mqtt, &Options::v5("good")).is_alive());
}

/// Scenario 94: a SUBSCRIBE whose filter has no options byte.
#[test]
fn a_truncated_subscribe_closes_only_its_sender() {
    let node = Node::start();
    let mut other = Client::connect(node.mqtt, &Options::v5("other"));
    reason_after(&node, false, &hex("82050001000161"));
    assert_eq!(reason_after(&node, true, &hex("8206000100000161")), 0x81);
    assert!(other.is_alive());
}

/// Scenario 96: CONNECT then CONNACK from the client, byte for byte.
#[test]
fn a_connack_from_a_client_harms_nobody() {
    let node = Node::start();
    let mut client = Client::open(node.mqtt, true);
    client.send(&hex("101000044d5154540502003c03210014000029020001e000"));
    client.until_closed(PATIENCE);
    let mut client = Client::open(node.mqtt, true);
    client.send(&hex("2002 0000"));
    client.until_closed(PATIENCE);
    assert!(Client::connect(node.mqtt, &Options::v5("good")).is_alive());
}

/// Scenarios 97, 98: properties that do not belong there, or stand there twice.
#[test]
fn properties_are_held_to_their_tables() {
    let node = Node::start();
    let publish = |properties: &[u8]| {
        let client = Client::open(node.mqtt, true);
        client.publish_bytes("t", b"x", 0, 0, properties)
    };
    let table: [(&[u8], u8); 8] = [
        (&[0x0B, 1], 0x82),
        (&[0x01, 0, 0x01, 0], 0x82),
        (&[0x11, 0, 0, 0, 1], 0x82),
        (&[0x7F, 0], 0x81),
        (&[0x23, 0, 0], 0x94),
        (&[0x23, 0xFF, 0xFF], 0x94),
        (&[0x08, 0, 1, b'#'], 0x90),
        (&[0x03, 0, 2, 0xC3, 0x28], 0x81),
    ];
    for (properties, expected) in table {
        let reason = reason_after(&node, true, &publish(properties));
        let accepted = reason == expected || matches!((reason, expected), (0x81, 0x82) | (0x82, 0x81 | 0x90));
        assert!(accepted, "{properties:02x?}: {reason:#04x}, expected {expected:#04x}");
    }
}

/// Wildcards and U+0000 in topic names, invalid UTF-8, empty topic without alias.
#[test]
fn bad_topic_names_are_refused() {
    let node = Node::start();
    for topic in ["a/#", "a/+", "a\0b", ""] {
        let client = Client::open(node.mqtt, true);
        let reason = reason_after(&node, true, &client.publish_bytes(topic, b"x", 0, 0, &[]));
        assert!(matches!(reason, 0x81 | 0x82 | 0x90), "{topic:?}: {reason:#04x}");
    }
    reason_after(&node, true, &wire::packet(0x30, &hex("0003 eda080 00 78")));
    assert!(Client::connect(node.mqtt, &Options::v5("good")).is_alive());
}

/// [MQTT-3.1.2-2]: unknown protocol level: CONNACK 0x84 (or 3.1.1 code 1), then close; a wrong name: close.
#[test]
fn unknown_protocol_levels_are_told() {
    let node = Node::start();
    for (level, expected) in [(3, 1), (6, 0x84), (0x7F, 0x84)] {
        let mut client = Client::open(node.mqtt, true);
        let mut body = Vec::new();
        wire::string("MQTT", &mut body);
        body.extend_from_slice(&[level, 2, 0, 60, 0]);
        wire::string("x", &mut body);
        client.send(&wire::packet(0x10, &body));
        let packets = client.until_closed(PATIENCE);
        assert!(
            matches!(packets.first().map(|p| (p.kind(), p.body[1])), Some((2, code)) if code == expected || code == 1 || code == 0x84),
            "level {level}: {packets:02x?}"
        );
    }
    let mut client = Client::open(node.mqtt, true);
    client.send(&hex("100c 0004 4d515458 05 02 003c 00 0000"));
    assert!(client.until_closed(PATIENCE).iter().all(|packet| packet.kind() == 2));
}

/// CONNECT flags: reserved bit, Will bits without Will, Will QoS 3, password without user on 3.1.1 ([MQTT-3.1.2-3], -11 to -14, -22).
#[test]
fn connect_flags_are_checked() {
    let node = Node::start();
    for (v5, flags) in [(true, 0x03), (true, 0x0A), (true, 0x22), (true, 0x1E), (false, 0x42), (false, 0x03)]
    {
        let mut client = Client::open(node.mqtt, v5);
        let mut body = Vec::new();
        wire::string("MQTT", &mut body);
        body.extend_from_slice(&[if v5 { 5 } else { 4 }, flags, 0, 60]);
        if v5 {
            body.push(0);
        }
        wire::string("x", &mut body);
        body.extend_from_slice(&[0, 0, 0, 1, b't', 0, 0]);
        client.send(&wire::packet(0x10, &body));
        let packets = client.until_closed(PATIENCE);
        assert!(
            packets.iter().all(|p| p.kind() == 2 && p.body[1] != 0),
            "flags {flags:#04x}: {packets:02x?}"
        );
    }
}

/// Non-minimal and overlong remaining lengths ([MQTT-1.5.5-1]).
#[test]
fn remaining_lengths_must_be_minimal() {
    let node = Node::start();
    for case in ["c08000", "c0ffffffff01", "3084808000 0001 74 00"] {
        reason_after(&node, true, &hex(case));
    }
    assert!(Client::connect(node.mqtt, &Options::v5("good")).is_alive());
}

/// Scenario 91: in: too large a packet closes with 0x95; out: a message above the client's Maximum Packet Size is dropped for it and
/// counts as delivered ([MQTT-3.1.2-25]), CONNACK fits too.
#[test]
fn maximum_packet_sizes_are_honoured_both_ways() {
    let node = Node::start_with(&["listener.mqtt.packet_size_max=10000"]);
    let (mut client, connack) = Client::try_connect(node.mqtt, &Options::v5("p"));
    let announced = wire::property(&connack.body[3..], 0x27).expect("Maximum Packet Size in CONNACK");
    assert_eq!(announced, 10_000_u32.to_be_bytes());
    let bytes = client.publish_bytes("t", &vec![b'x'; 20_000], 0, 0, &[]);
    client.send(&bytes);
    let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x95));
    for options in [Options::v5("s"), Options::v5("d").resume().expiry(60)] {
        let mut sub = Client::connect(node.mqtt, &options.maximum_packet_size(100));
        assert_eq!(sub.subscribe("t", 1), 1);
        let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
        for size in [200, 10, 200, 20] {
            assert_eq!(publisher.publish("t", vec![b'x'; size], 1, false), 0);
        }
        assert_eq!(sub.take_message().payload.len(), 10);
        assert_eq!(sub.take_message().payload.len(), 20);
        sub.expect_nothing();
    }
}

/// Scenario 92 and the last section: sockets that announce huge first packets, or send none, cost bounded memory and are closed.
#[test]
fn unauthenticated_sockets_cannot_buffer_much() {
    let node = Node::start();
    let before = node.resident_bytes();
    let mut sockets: Vec<Client> = (0..14).map(|_| Client::open(node.mqtt, true)).collect();
    let chunk = vec![0; 1 << 20];
    for socket in &mut sockets {
        socket.stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        socket.send(&hex("10ffffff7f00044d515454"));
        for _ in 0..8 {
            socket.send(&chunk);
        }
    }
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes");
    for socket in &mut sockets {
        socket.until_closed(Duration::from_secs(30));
    }
    assert!(Client::connect(node.mqtt, &Options::v5("good")).is_alive());
}

/// A socket that says nothing, or half a CONNECT, is closed in bounded time.
#[test]
fn silence_before_connect_is_bounded() {
    let node = Node::start_with(&["listener.mqtt.connect_timeout_ms=1500"]);
    let started = Instant::now();
    let mut silent = Client::open(node.mqtt, true);
    let mut half = Client::open(node.mqtt, true);
    half.send(&hex("101000044d51"));
    silent.until_closed(PATIENCE);
    half.until_closed(PATIENCE);
    assert!(started.elapsed() >= Duration::from_secs(1));
}

/// [MQTT-3.1.0-1]: anything before CONNECT closes.
#[test]
fn the_first_packet_must_be_connect() {
    let node = Node::start();
    for case in ["c000", "300400017431", "82060001000174 00", "e000", "ffff", "16030100"] {
        let mut client = Client::open(node.mqtt, true);
        client.send(&hex(case));
        client.until_closed(PATIENCE);
    }
}

/// Filters and topics of 65,535 slashes are refused and nobody dies.
#[test]
fn absurdly_deep_topics_are_refused() {
    let node = Node::start();
    let deep = "/".repeat(65_535);
    let mut client = Client::connect(node.mqtt, &Options::v5("x"));
    assert_eq!(client.subscribe(&deep, 0), 0x8F);
    assert!(client.is_alive());
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let bytes = publisher.publish_bytes(&deep, b"x", 2, 1, &[]);
    publisher.send(&bytes);
    publisher.receive();
    assert!(Client::connect(node.mqtt, &Options::v5("good")).is_alive());
}

/// Random bytes, cut anywhere, at any state: the broker lives and serves.
#[test]
fn noise_harms_nobody() {
    let node = Node::start();
    let mut other = Client::connect(node.mqtt, &Options::v5("other"));
    for round in 0..300_u32 {
        let mut client = Client::open(node.mqtt, true);
        client.stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        if round % 2 == 0 {
            client.send(&Options::v5("noise").bytes());
        }
        let noise: Vec<u8> = (0..rand::random::<u16>() % 600).map(|_| rand::random()).collect();
        client.send(&noise);
    }
    assert!(other.is_alive());
}

/// Topic aliases from the client ([MQTT-3.3.2-8] to -12): set, used, replaced, unknown.
#[test]
fn inbound_topic_aliases_work() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
    assert_eq!(sub.subscribe("alias/#", 0), 0);
    let mut p = Client::connect(node.mqtt, &Options::v5("p"));
    for (topic, expected) in
        [("alias/1", "alias/1"), ("", "alias/1"), ("alias/2", "alias/2"), ("", "alias/2")]
    {
        let bytes = p.publish_bytes(topic, b"x", 0, 0, &[0x23, 0, 1]);
        p.send(&bytes);
        let got = sub.take_message();
        assert_eq!(got.topic, expected);
    }
    let bytes = p.publish_bytes("", b"x", 0, 0, &[0x23, 0, 2]);
    p.send(&bytes);
    let last = p.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert!(matches!(last.reason(), 0x82 | 0x94), "{last:02x?}");
}

/// Topic aliases to a client that allows them: its view of the topic is right for every message.
#[test]
fn outbound_topic_aliases_stay_within_the_clients_maximum() {
    let node = Node::start();
    let mut options = Options::v5("s");
    options.properties.extend_from_slice(&[0x22, 0, 2]);
    let mut sub = Client::connect(node.mqtt, &options);
    assert_eq!(sub.subscribe("alias/#", 1), 1);
    let mut p = Client::connect(node.mqtt, &Options::v5("p"));
    let mut known: std::collections::BTreeMap<u16, String> = std::collections::BTreeMap::new();
    for number in 0..40 {
        let topic = format!("alias/{}", number % 4);
        assert_eq!(p.publish(&topic, "x", 1, false), 0);
        let mut got = sub.take_message();
        if let Some(alias) = wire::property(&got.properties, 0x23) {
            let alias = u16::from_be_bytes([alias[0], alias[1]]);
            assert!((1..=2).contains(&alias));
            if got.topic.is_empty() {
                got.topic = known[&alias].clone();
            }
            known.insert(alias, got.topic.clone());
        }
        assert_eq!(got.topic, topic);
    }
}
