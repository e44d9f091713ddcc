//! Rules of the codec that a line of hex cannot show: sizes at their limits, what encoding refuses, templates, and what the
//! caller asks about a refused CONNECT.

use gateway::codec::{
    self, Ack, AckType, ConnAck, Connect, Delivery, Disconnect, Filters, From, Kind, Packet, Publish,
    PublishTemplate, ReasonCode, SubAck, SubscribeFilter, Unsubscribe, UserProperties, Version,
};
use session::message::{Message, QoS};

const SIZE_MAX: usize = 1 << 28;

fn encode(version: Version, packet: &Packet<'_>) -> Result<Vec<u8>, Kind> {
    let mut out = b"kept".to_vec();
    match codec::write(version, packet, &mut out) {
        Ok(()) => Ok(out.split_off(4)),
        Err(error) => {
            assert_eq!(out, b"kept", "nothing is written on an error");
            Err(error.kind)
        }
    }
}

fn decode(version: Version, from: From, bytes: &[u8]) -> Packet<'_> {
    let frame = codec::frame(version, bytes, SIZE_MAX).expect("legal").expect("complete");
    codec::read(version, from, frame).expect("legal")
}

fn publish(topic: &str) -> Publish<'_> {
    Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        packet_id: 0,
        topic_alias: None,
        message_expiry_sec: None,
        properties: &[],
        properties_forwardable: true,
        payload: b"x",
    }
}

/// A topic and a filter of 65,535 `/` are legal strings; whether so many levels are served is decided elsewhere.
#[test]
fn the_deepest_topic_and_filter_pass() {
    let slashes = "/".repeat(65_535);
    for version in [Version::V311, Version::V5] {
        let bytes = encode(version, &Packet::Publish(publish(&slashes))).expect("legal");
        assert!(matches!(decode(version, From::Client, &bytes), Packet::Publish(p) if p.topic == slashes));
        let mut raw = Vec::new();
        let filter = SubscribeFilter {
            filter: &slashes,
            qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: codec::RetainHandling::Send,
        };
        filter.push(&mut raw).expect("legal");
        assert_eq!(Filters::new(version, &raw).expect("legal").iter().next(), Some(filter));
    }
}

/// ClientIDs above 1,024 bytes are the broker's to refuse (0x85), not the codec's.
#[test]
fn a_long_client_id_passes() {
    let id = "i".repeat(65_535);
    let connect = Connect::new(Version::V5, &id, true);
    let bytes = encode(Version::V5, &Packet::Connect(Box::new(connect.clone()))).expect("legal");
    assert_eq!(decode(Version::V5, From::Client, &bytes), Packet::Connect(Box::new(connect)));
}

/// [MQTT-1.5.5-1]: the largest packet that the length can say, judged by its header alone.
#[test]
fn the_largest_packet_is_judged_by_its_header() {
    let header = [0x30, 0xFF, 0xFF, 0xFF, 0x7F];
    assert_eq!(codec::frame(Version::V5, &header, 268_435_460), Ok(None));
    let error = codec::frame(Version::V5, &header, 268_435_459).expect_err("one byte too large");
    assert_eq!((error.kind, error.reason), (Kind::PacketTooLarge, ReasonCode::PacketTooLarge));
}

#[test]
fn strings_longer_than_their_length_field_are_refused() {
    let long = "x".repeat(65_536);
    for version in [Version::V311, Version::V5] {
        assert_eq!(encode(version, &Packet::Publish(publish(&long))), Err(Kind::TooLong));
        let connect = Connect::new(version, &long, true);
        assert_eq!(encode(version, &Packet::Connect(Box::new(connect))), Err(Kind::TooLong));
    }
    let mut connack = ConnAck::new(ReasonCode::Success, false);
    connack.reason_string = Some(&long);
    assert_eq!(encode(Version::V5, &Packet::ConnAck(Box::new(connack))), Err(Kind::TooLong));
    let mut raw = Vec::new();
    assert_eq!(UserProperties::push(&mut raw, "k", &long).map_err(|error| error.kind), Err(Kind::TooLong));
    assert_eq!(Unsubscribe::push(&mut raw, &long).map_err(|error| error.kind), Err(Kind::TooLong));
    assert!(raw.is_empty());
}

#[test]
fn what_no_receiver_may_see_is_not_written() {
    let cases = [
        (Publish { topic: "a/+", ..publish("") }, Kind::TopicWildcard),
        (Publish { topic: "a\0", ..publish("") }, Kind::NulCharacter),
        (publish(""), Kind::TopicMissing),
        (Publish { qos: QoS::AtLeastOnce, ..publish("a") }, Kind::PacketIdZero),
        (Publish { dup: true, ..publish("a") }, Kind::DupWithQoS0),
        (Publish { topic_alias: Some(0), ..publish("a") }, Kind::TopicAliasZero),
    ];
    for (packet, kind) in cases {
        assert_eq!(encode(Version::V5, &Packet::Publish(packet)), Err(kind));
    }
    let ack = Ack::new(AckType::PubRel, 1, ReasonCode::QuotaExceeded);
    assert_eq!(encode(Version::V5, &Packet::Ack(ack)), Err(Kind::ReasonCode));
    let ack = Ack::new(AckType::PubAck, 0, ReasonCode::Success);
    assert_eq!(encode(Version::V5, &Packet::Ack(ack)), Err(Kind::PacketIdZero));
    let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::ServerUnavailable));
    assert_eq!(encode(Version::V5, &disconnect), Err(Kind::ReasonCode), "[MQTT-3.14.2-1]");
    assert_eq!(encode(Version::V5, &Packet::SubAck(SubAck::new(1, &[]))), Err(Kind::ReasonsMissing));
    assert_eq!(encode(Version::V5, &Packet::SubAck(SubAck::new(1, &[3]))), Err(Kind::ReasonCode));
    let refused = ConnAck::new(ReasonCode::NotAuthorized, true);
    assert_eq!(encode(Version::V5, &Packet::ConnAck(Box::new(refused))), Err(Kind::SessionPresent));
}

/// 3.1.1 has no DISCONNECT from the server, no AUTH, and five reasons in CONNACK.
#[test]
fn what_3_1_1_does_not_know_is_not_written() {
    let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::SessionTakenOver));
    assert_eq!(encode(Version::V311, &disconnect), Err(Kind::NotInVersion));
    let auth = codec::Auth::new(ReasonCode::ContinueAuthentication, Some("M"), None);
    assert_eq!(encode(Version::V311, &Packet::Auth(auth)), Err(Kind::NotInVersion));
    let malformed = ConnAck::new(ReasonCode::MalformedPacket, false);
    assert_eq!(encode(Version::V311, &Packet::ConnAck(Box::new(malformed))), Err(Kind::NotInVersion));
    let codes = [
        (ReasonCode::UnsupportedProtocolVersion, 1),
        (ReasonCode::ClientIdentifierNotValid, 2),
        (ReasonCode::ServerUnavailable, 3),
        (ReasonCode::ServerBusy, 3),
        (ReasonCode::QuotaExceeded, 3),
        (ReasonCode::BadUserNameOrPassword, 4),
        (ReasonCode::NotAuthorized, 5),
    ];
    for (reason, code) in codes {
        let connack = Packet::ConnAck(Box::new(ConnAck::new(reason, false)));
        assert_eq!(encode(Version::V311, &connack), Ok(vec![0x20, 2, 0, code]));
    }
    let suback = Packet::SubAck(SubAck::new(1, &[2, 0x87, 0x8F]));
    assert_eq!(encode(Version::V311, &suback), Ok(vec![0x90, 5, 0, 1, 2, 0x80, 0x80]));
    let ack = Packet::Ack(Ack::new(AckType::PubRec, 1, ReasonCode::QuotaExceeded));
    assert_eq!(encode(Version::V311, &ack), Ok(vec![0x50, 2, 0, 1]));
}

/// [MQTT-3.1.2-2]: who is refused for its version is told in a form that it knows.
#[test]
fn a_refused_connect_is_answered_in_its_own_version() {
    let body = |name: &str, level: u8| {
        let mut body = vec![0, name.len() as u8];
        body.extend_from_slice(name.as_bytes());
        body.push(level);
        body
    };
    let answer = |name, level| codec::refusal_version(&body(name, level));
    assert_eq!(answer("MQTT", 4), Some(Version::V311));
    assert_eq!(answer("MQTT", 5), Some(Version::V5));
    assert_eq!(answer("MQTT", 6), Some(Version::V5));
    assert_eq!(answer("MQTT", 3), Some(Version::V311));
    assert_eq!(answer("MQTT", 0x84), Some(Version::V311));
    assert_eq!(answer("MQIsdp", 3), Some(Version::V311));
    assert_eq!(answer("mqtt", 4), None);
    assert_eq!(codec::refusal_version(b"\x00\x04MQTT"), None);
    assert_eq!(codec::refusal_version(b""), None);
    assert_eq!(codec::connect_version(&body("MQTT", 4)), Ok(Version::V311));
    assert_eq!(codec::connect_version(&body("MQTT", 5)), Ok(Version::V5));
    let error = codec::connect_version(&body("MQTT", 6)).expect_err("level 6");
    assert_eq!(error.reason, ReasonCode::UnsupportedProtocolVersion);
}

/// Scenario 14: what a taken-over client reads last.
#[test]
fn a_disconnect_without_properties_is_short() {
    let taken_over = Packet::Disconnect(Disconnect::new(ReasonCode::SessionTakenOver));
    assert_eq!(encode(Version::V5, &taken_over), Ok(vec![0xE0, 1, 0x8E]));
}

#[test]
fn a_template_equals_the_packet_written_alone() {
    let message = Message::new("a/b", &[0x01, 0x01], b"payload");
    for version in [Version::V311, Version::V5] {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            for dup in [false, true] {
                let template =
                    PublishTemplate::new(version, &message, qos, true, &[7, 300], Some(9)).expect("short");
                let mut patched = b"in front".to_vec();
                template.append(0xABCD, dup, &mut patched);
                let delivery = Delivery {
                    dup,
                    packet_id: 0xABCD,
                    expiry_sec: Some(9),
                    identifiers: &[7, 300],
                    ..Delivery::of(&message, qos, true)
                };
                let mut alone = b"in front".to_vec();
                delivery.write(version, SIZE_MAX, &mut alone).expect("short");
                assert_eq!(patched, alone);
                assert_eq!(delivery.len(version), Ok(alone.len() - 8));
                assert_eq!(template.bytes().len(), alone.len() - 8);
                assert_eq!(template.packet_id_at().is_some(), qos != QoS::AtMostOnce);
                let Packet::Publish(publish) = decode(version, From::Server, &patched[8..]) else {
                    panic!("a PUBLISH")
                };
                assert_eq!(publish.packet_id, if qos == QoS::AtMostOnce { 0 } else { 0xABCD });
                assert_eq!(publish.dup, dup && qos != QoS::AtMostOnce, "[MQTT-3.3.1-2]");
                assert_eq!(publish.payload, b"payload");
                let v5 = version == Version::V5;
                assert_eq!(publish.message_expiry_sec, v5.then_some(9));
                let identifiers: Vec<u32> = codec::subscription_identifiers(publish.properties).collect();
                assert_eq!(identifiers, if v5 { vec![7, 300] } else { vec![] });
            }
        }
    }
}

/// [MQTT-3.1.2-24]: exactly at the client's limit it is sent, one byte above it is not, and nothing is left behind.
#[test]
fn a_delivery_respects_the_maximum_packet_size() {
    let message = Message::new("topic", &[], &[0; 200]);
    let delivery =
        Delivery { packet_id: 1, topic_alias: Some(3), ..Delivery::of(&message, QoS::AtLeastOnce, false) };
    let len = delivery.len(Version::V5).expect("short");
    let mut out = Vec::new();
    let error = delivery.write(Version::V5, len - 1, &mut out).expect_err("too large");
    assert_eq!((error.kind, out.len()), (Kind::PacketTooLarge, 0));
    delivery.write(Version::V5, len, &mut out).expect("fits");
    assert_eq!(out.len(), len);
}

/// MQTT 5 §3.3.2.3.2: the check is there for who wants it and knows its answer (0x99).
#[test]
fn a_broken_payload_format_promise_is_found() {
    assert_eq!(codec::check_payload_format(&[1, 1], "é".as_bytes()), Ok(()));
    assert_eq!(codec::check_payload_format(&[1, 0], &[0xFF]), Ok(()));
    assert_eq!(codec::check_payload_format(&[], &[0xFF]), Ok(()));
    let error = codec::check_payload_format(&[3, 0, 0, 1, 1], &[0xFF]).expect_err("not UTF-8");
    assert_eq!(error.reason, ReasonCode::PayloadFormatInvalid);
}

/// More filters than SUBACK could count are refused, not counted wrongly.
#[test]
fn too_many_filters_are_refused() {
    let mut raw = b"\x00\x01a\x00".repeat(65_535);
    assert_eq!(Filters::new(Version::V5, &raw).map(|filters| filters.count), Ok(65_535));
    raw.extend_from_slice(b"\x00\x01a\x00");
    let error = Filters::new(Version::V5, &raw).expect_err("one too many");
    assert_eq!((error.kind, error.reason), (Kind::FiltersTooMany, ReasonCode::QuotaExceeded));
}

/// Bytes that were not validated (a damaged store) end the iteration; they never panic.
#[test]
fn damaged_property_bytes_end_the_iteration() {
    for raw in [&[0x26, 0, 1][..], &[0xFF], &[0x26], &[0x0B, 0x80], &[0x26, 0, 1, 0xFF, 0, 0]] {
        assert_eq!(UserProperties { raw }.iter().count(), 0);
        assert_eq!(codec::subscription_identifiers(raw).count(), 0);
        let mut scratch = Vec::new();
        let _ = codec::forwarded_properties(raw, &mut scratch);
    }
}
