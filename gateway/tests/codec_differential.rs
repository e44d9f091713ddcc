//! The codec beside `mqttbytes`: what it encodes rightly we decode to the same fields, what we encode it decodes to the same
//! fields; and the list of what it gets wrong, each proved, so that a difference is never a surprise.

use bytes::{Bytes, BytesMut};
use gateway::codec::{self, From, Kind, Packet, Publish, RetainHandling, Version};
use mqttbytes::{QoS, v4, v5};
use proptest::prelude::*;

const SIZE_MAX: usize = 1 << 20;

fn ours(version: Version, from: From, bytes: &[u8]) -> Result<Packet<'_>, Kind> {
    let frame = codec::frame(version, bytes, SIZE_MAX).map_err(|error| error.kind)?.expect("complete");
    assert_eq!(frame.len, bytes.len());
    codec::read(version, from, frame).map_err(|error| error.kind)
}

fn theirs(version: Version, bytes: &[u8]) -> Result<(), mqttbytes::Error> {
    let mut stream = BytesMut::from(bytes);
    match version {
        Version::V311 => v4::read(&mut stream, SIZE_MAX).map(drop),
        Version::V5 => v5::read(&mut stream, SIZE_MAX).map(drop),
    }
}

fn their_qos(value: u8) -> QoS {
    mqttbytes::qos(value % 3).expect("0 to 2")
}

#[derive(Debug, Clone)]
struct Parts {
    topic: String,
    texts: Vec<String>,
    payload: Vec<u8>,
    id: u16,
    words: Vec<u32>,
    flags: u32,
    user: Vec<(String, String)>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let text = "[^\u{0}]{1,12}";
    (
        "[^\u{0}+#]{1,12}",
        prop::collection::vec(text, 4),
        prop::collection::vec(any::<u8>(), 0..40),
        1..=u16::MAX,
        prop::collection::vec(1..u32::MAX, 4),
        any::<u32>(),
        prop::collection::vec((text, text), 0..3),
    )
        .prop_map(|(topic, texts, payload, id, words, flags, user)| Parts {
            topic,
            texts,
            payload,
            id,
            words,
            flags,
            user,
        })
}

impl Parts {
    fn flag(&self, bit: u32) -> bool {
        self.flags >> bit & 1 == 1
    }

    fn text(&self, at: usize) -> Option<String> {
        self.flag(at as u32).then(|| self.texts[at].clone())
    }

    fn word(&self, at: usize) -> Option<u32> {
        self.flag(8 + at as u32).then(|| self.words[at])
    }

    fn qos(&self) -> QoS {
        their_qos((self.flags >> 16 & 3) as u8)
    }

    fn will_v4(&self) -> v4::LastWill {
        v4::LastWill::new(self.topic.clone(), self.payload.clone(), self.qos(), self.flag(20))
    }
}

fn user_pairs(properties: &codec::UserProperties<'_>) -> Vec<(String, String)> {
    properties.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn check_publish(publish: &Publish<'_>, parts: &Parts, dup: bool) {
    assert_eq!(publish.topic, parts.topic);
    assert_eq!(publish.payload, parts.payload);
    assert_eq!(publish.qos as u8, parts.qos() as u8);
    assert_eq!(publish.dup, dup);
    assert_eq!(publish.retain, parts.flag(21));
    assert_eq!(publish.packet_id, if parts.qos() == QoS::AtMostOnce { 0 } else { parts.id });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn publish_of_3_1_1_is_the_same(parts in parts()) {
        let mut publish = v4::Publish::new(parts.topic.clone(), parts.qos(), parts.payload.clone());
        publish.retain = parts.flag(21);
        publish.dup = parts.flag(22) && parts.qos() != QoS::AtMostOnce;
        publish.pkid = if parts.qos() == QoS::AtMostOnce { 0 } else { parts.id };
        let mut bytes = BytesMut::new();
        publish.write(&mut bytes).expect("theirs");
        let Ok(Packet::Publish(decoded)) = ours(Version::V311, From::Client, &bytes) else { panic!("a PUBLISH") };
        check_publish(&decoded, &parts, publish.dup);
        let mut again = Vec::new();
        codec::write(Version::V311, &Packet::Publish(decoded), &mut again).expect("legal");
        prop_assert_eq!(&again[..], &bytes[..]);
        prop_assert_eq!(v4::read(&mut BytesMut::from(&again[..]), SIZE_MAX), Ok(v4::Packet::Publish(publish)));
    }

    #[test]
    fn publish_of_5_is_the_same(parts in parts()) {
        let mut publish = v5::Publish::new(parts.topic.clone(), parts.qos(), parts.payload.clone());
        publish.retain = parts.flag(21);
        publish.dup = parts.flag(22) && parts.qos() != QoS::AtMostOnce;
        publish.pkid = if parts.qos() == QoS::AtMostOnce { 0 } else { parts.id };
        let properties = v5::PublishProperties {
            payload_format_indicator: parts.flag(23).then_some(1),
            message_expiry_interval: parts.word(0),
            topic_alias: parts.word(1).map(|word| (word as u16).max(1)),
            response_topic: parts.flag(24).then(|| parts.topic.clone()),
            correlation_data: parts.flag(25).then(|| Bytes::from(parts.payload.clone())),
            user_properties: parts.user.clone(),
            // It counts this property one byte too long: see the list below.
            subscription_identifiers: Vec::new(),
            content_type: parts.text(0),
        };
        publish.properties = Some(properties.clone());
        let mut bytes = BytesMut::new();
        publish.write(&mut bytes).expect("theirs");
        let Ok(Packet::Publish(decoded)) = ours(Version::V5, From::Client, &bytes) else { panic!("a PUBLISH") };
        check_publish(&decoded, &parts, publish.dup);
        prop_assert_eq!(decoded.message_expiry_sec, properties.message_expiry_interval);
        prop_assert_eq!(decoded.topic_alias, properties.topic_alias);
        let pairs = user_pairs(&codec::UserProperties { raw: decoded.properties });
        prop_assert_eq!(pairs, properties.user_properties);
        let mut again = Vec::new();
        codec::write(Version::V5, &Packet::Publish(decoded), &mut again).expect("legal");
        prop_assert_eq!(&again[..], &bytes[..]);
    }

    #[test]
    fn connect_of_3_1_1_is_the_same(parts in parts()) {
        let mut connect = v4::Connect::new(parts.texts[0].clone());
        connect.keep_alive = parts.id;
        connect.clean_session = parts.flag(1);
        connect.last_will = parts.flag(2).then(|| parts.will_v4());
        connect.login = parts.flag(3).then(|| v4::Login::new(parts.texts[1].clone(), parts.texts[2].clone()));
        let mut bytes = BytesMut::new();
        connect.write(&mut bytes).expect("theirs");
        let Ok(Packet::Connect(decoded)) = ours(Version::V311, From::Client, &bytes) else { panic!("a CONNECT") };
        prop_assert_eq!(decoded.client_id, &connect.client_id);
        prop_assert_eq!((decoded.keep_alive_sec, decoded.clean_start), (parts.id, connect.clean_session));
        prop_assert_eq!(decoded.will.is_some(), connect.last_will.is_some());
        if let (Some(will), Some(theirs)) = (&decoded.will, &connect.last_will) {
            prop_assert_eq!((will.topic, will.payload), (&theirs.topic[..], &theirs.message[..]));
            prop_assert_eq!((will.qos as u8, will.retain), (theirs.qos as u8, theirs.retain));
        }
        let login = connect.login.as_ref();
        prop_assert_eq!(decoded.login.user_name, login.map(|login| &login.username[..]));
        prop_assert_eq!(decoded.login.password, login.map(|login| login.password.as_bytes()));
        let mut again = Vec::new();
        codec::write(Version::V311, &Packet::Connect(decoded), &mut again).expect("legal");
        prop_assert_eq!(v4::read(&mut BytesMut::from(&again[..]), SIZE_MAX), Ok(v4::Packet::Connect(connect)));
    }

    #[test]
    fn connect_of_5_is_the_same(parts in parts()) {
        let mut connect = v5::Connect::new(parts.texts[0].clone());
        connect.keep_alive = parts.id;
        connect.clean_session = parts.flag(4);
        connect.properties = Some(v5::ConnectProperties {
            session_expiry_interval: parts.word(0),
            receive_maximum: parts.word(1).map(|word| (word as u16).max(1)),
            max_packet_size: parts.word(2),
            topic_alias_max: parts.word(3).map(|word| word as u16),
            request_response_info: parts.flag(5).then_some(1),
            request_problem_info: parts.flag(6).then_some(0),
            user_properties: parts.user.clone(),
            authentication_method: parts.flag(7).then(|| parts.texts[3].clone()),
            authentication_data: parts.flag(7).then(|| Bytes::from(parts.payload.clone())),
        });
        let mut bytes = BytesMut::new();
        connect.write(&mut bytes).expect("theirs");
        let Ok(Packet::Connect(decoded)) = ours(Version::V5, From::Client, &bytes) else { panic!("a CONNECT") };
        let properties = connect.properties.as_ref().expect("set above");
        prop_assert_eq!(decoded.client_id, &connect.client_id);
        prop_assert_eq!(decoded.session_expiry_sec, properties.session_expiry_interval.unwrap_or(0));
        prop_assert_eq!(decoded.receive_maximum, properties.receive_maximum.unwrap_or(65_535));
        prop_assert_eq!(decoded.maximum_packet_size, properties.max_packet_size.unwrap_or(u32::MAX));
        prop_assert_eq!(decoded.topic_alias_maximum, properties.topic_alias_max.unwrap_or(0));
        prop_assert_eq!(decoded.request_response_information, parts.flag(5));
        prop_assert_eq!(decoded.request_problem_information, !parts.flag(6));
        prop_assert_eq!(decoded.authentication_method, properties.authentication_method.as_deref());
        prop_assert_eq!(decoded.authentication_data, properties.authentication_data.as_deref());
        prop_assert_eq!(user_pairs(&decoded.user_properties), parts.user);
    }

    #[test]
    fn subscribe_is_the_same(parts in parts()) {
        let mut subscribe = v4::Subscribe::new(parts.texts[0].clone(), parts.qos());
        subscribe.pkid = parts.id;
        subscribe.add(parts.texts[1].clone(), QoS::ExactlyOnce);
        let mut bytes = BytesMut::new();
        subscribe.write(&mut bytes).expect("theirs");
        let Ok(Packet::Subscribe(decoded)) = ours(Version::V311, From::Client, &bytes) else { panic!("SUBSCRIBE") };
        let filters: Vec<_> = decoded.filters.iter().map(|filter| (filter.filter.to_owned(), filter.qos as u8)).collect();
        let expected: Vec<_> = subscribe.filters.iter().map(|filter| (filter.path.clone(), filter.qos as u8)).collect();
        prop_assert_eq!(filters, expected);

        let mut filter = v5::SubscribeFilter::new(parts.topic.clone(), parts.qos());
        filter.set_nolocal(parts.flag(1) && !parts.topic.starts_with("$share/"));
        filter.set_preserve_retain(parts.flag(2));
        filter.set_retain_forward_rule(v5::RetainForwardRule::OnNewSubscribe);
        let mut subscribe = v5::Subscribe::new(parts.texts[0].clone(), parts.qos());
        subscribe.pkid = parts.id;
        subscribe.filters.push(filter.clone());
        let id = parts.words[0] as usize % 268_435_455 + 1;
        subscribe.properties = Some(v5::SubscribeProperties { id: Some(id), user_properties: parts.user.clone() });
        let mut bytes = BytesMut::new();
        subscribe.write(&mut bytes).expect("theirs");
        let Ok(Packet::Subscribe(decoded)) = ours(Version::V5, From::Client, &bytes) else { panic!("SUBSCRIBE") };
        prop_assert_eq!(decoded.identifier as usize, id);
        prop_assert_eq!(decoded.packet_id, parts.id);
        let second = decoded.filters.iter().nth(1).expect("two filters");
        prop_assert_eq!((second.filter, second.qos as u8), (&filter.path[..], filter.qos as u8));
        prop_assert_eq!((second.no_local, second.retain_as_published), (filter.nolocal, filter.preserve_retain));
        prop_assert_eq!(second.retain_handling, RetainHandling::SendIfNew);
        prop_assert_eq!(user_pairs(&decoded.user_properties), parts.user);
    }

    #[test]
    fn acknowledgements_and_unsubscribe_are_the_same(parts in parts()) {
        let mut bytes = BytesMut::new();
        let mut puback = v5::PubAck::new(parts.id);
        puback.reason = v5::PubAckReason::QuotaExceeded;
        puback.properties = Some(v5::PubAckProperties { reason_string: parts.text(0), user_properties: parts.user.clone() });
        puback.write(&mut bytes).expect("theirs");
        let Ok(Packet::Ack(ack)) = ours(Version::V5, From::Server, &bytes) else { panic!("PUBACK") };
        prop_assert_eq!((ack.packet_id, ack.reason.code()), (parts.id, 0x97));
        let text = parts.text(0);
        prop_assert_eq!(ack.reason_string, text.as_deref());
        prop_assert_eq!(user_pairs(&ack.user_properties), parts.user.clone());

        let mut bytes = BytesMut::new();
        v4::PubRec::new(parts.id).write(&mut bytes).expect("theirs");
        v4::PubRel::new(parts.id).write(&mut bytes).expect("theirs");
        v4::PubComp::new(parts.id).write(&mut bytes).expect("theirs");
        for (chunk, first) in bytes.chunks(4).zip([0x50, 0x62, 0x70]) {
            let Ok(Packet::Ack(ack)) = ours(Version::V311, From::Client, chunk) else { panic!("an ack") };
            prop_assert_eq!((chunk[0], ack.packet_id), (first, parts.id));
        }

        let mut unsubscribe = v4::Unsubscribe::new(parts.texts[0].clone());
        unsubscribe.pkid = parts.id;
        let mut bytes = BytesMut::new();
        unsubscribe.write(&mut bytes).expect("theirs");
        let Ok(Packet::Unsubscribe(decoded)) = ours(Version::V311, From::Client, &bytes) else { panic!("UNSUBSCRIBE") };
        prop_assert_eq!(decoded.iter().collect::<Vec<_>>(), vec![&parts.texts[0][..]]);

        let codes = vec![v5::SubscribeReasonCode::QoS2, v5::SubscribeReasonCode::QuotaExceeded];
        let suback = v5::SubAck::new(parts.id, codes);
        let mut bytes = BytesMut::new();
        suback.write(&mut bytes).expect("theirs");
        let Ok(Packet::SubAck(decoded)) = ours(Version::V5, From::Server, &bytes) else { panic!("SUBACK") };
        prop_assert_eq!((decoded.packet_id, decoded.reasons), (parts.id, &[2, 0x97][..]));
    }
}

/// Legal packets that mqttbytes refuses and we take.
#[test]
fn what_mqttbytes_refuses_wrongly() {
    let cases: &[(Version, &[u8], &str)] = &[
        (Version::V5, b"\xE0\x00", "DISCONNECT without reason code, MQTT 5 §3.14.2.1"),
        (Version::V5, b"\xE0\x01\x04", "DISCONNECT without property length, MQTT 5 §3.14.2.2.1"),
        (Version::V5, b"\xF0\x07\x18\x05\x15\x00\x02ab", "AUTH"),
        (
            Version::V311,
            b"\x10\x13\x00\x04MQTT\x04\xC2\x00\x00\x00\x01a\x00\x01u\x00\x01\xFF",
            "binary password [3.1.3.5]",
        ),
        (
            Version::V5,
            b"\x10\x14\x00\x04MQTT\x05\xC2\x00\x00\x00\x00\x01a\x00\x01u\x00\x01\xFF",
            "binary password [3.1.3.6]",
        ),
    ];
    for (version, bytes, why) in cases {
        assert!(theirs(*version, bytes).is_err(), "{why}");
        assert!(ours(*version, From::Client, bytes).is_ok(), "{why}");
    }
}

/// Illegal packets that mqttbytes takes and we refuse, by rule.
#[test]
fn what_mqttbytes_takes_wrongly() {
    use Kind as K;
    let v311: &[(&[u8], Kind)] = &[
        (b"\x11\x0D\x00\x04MQTT\x04\x02\x00\x00\x00\x01a", K::Flags),
        (b"\x80\x06\x00\x01\x00\x01a\x00", K::Flags),
        (b"\xA0\x05\x00\x01\x00\x01a", K::Flags),
        (b"\x60\x02\x00\x01", K::Flags),
        (b"\xC1\x00", K::Flags),
        (b"\x10\x0D\x00\x04MQTT\x04\x03\x00\x00\x00\x01a", K::ConnectFlags),
        (b"\x10\x10\x00\x04MQTT\x04\x42\x00\x00\x00\x01a\x00\x01p", K::PasswordWithoutUserName),
        (b"\x10\x0E\x00\x04MQTT\x04\x02\x00\x00\x00\x01ax", K::TrailingBytes),
        (b"\x40\x03\x00\x01\x00", K::TrailingBytes),
        (b"\x10\x0C\x00\x04MQTT\x04\x00\x00\x00\x00\x00", K::ClientIdentifier),
        (b"\x10\x0D\x00\x04MQTT\x04\x02\x00\x00\x00\x01\x00", K::NulCharacter),
        (b"\x30\x03\x00\x01\x00", K::NulCharacter),
        (b"\x38\x03\x00\x01a", K::DupWithQoS0),
        (b"\x30\x02\x00\x00", K::TopicMissing),
        (b"\x30\x03\x00\x01+", K::TopicWildcard),
        (b"\x10\x12\x00\x04MQTT\x04\x06\x00\x00\x00\x01a\x00\x01#\x00\x00", K::WillTopic),
        (b"\xA2\x02\x00\x01", K::FiltersMissing),
        (b"\x82\x06\x00\x00\x00\x01a\x00", K::PacketIdZero),
        (b"\xA2\x05\x00\x00\x00\x01a", K::PacketIdZero),
        (b"\x40\x02\x00\x00", K::PacketIdZero),
        (b"\x82\x06\x00\x01\x00\x01a\x04", K::SubscriptionOptions),
        (b"\x30\x83\x00\x00\x01a", K::VarintNotMinimal),
    ];
    let v5: &[(&[u8], Kind)] = &[
        (b"\x30\x08\x00\x01a\x04\x01\x00\x01\x00", K::PropertyDuplicate),
        (b"\x10\x11\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x00\x00\x01a", K::ReceiveMaximumZero),
        (b"\x10\x13\x00\x04MQTT\x05\x02\x00\x00\x05\x27\x00\x00\x00\x00\x00\x01a", K::MaximumPacketSizeZero),
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x02\x17\x02\x00\x01a", K::PropertyValue),
        (
            b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x04\x16\x00\x01d\x00\x01a",
            K::AuthenticationDataWithoutMethod,
        ),
        (b"\x30\x07\x00\x01a\x03\x23\x00\x00", K::TopicAliasZero),
        (b"\x30\x06\x00\x01a\x02\x01\x02", K::PropertyValue),
        (b"\x30\x08\x00\x01a\x04\x08\x00\x01#", K::ResponseTopic),
        (b"\x30\x06\x00\x01a\x01\x01\x00", K::Truncated),
        (b"\x82\x07\x00\x01\x00\x00\x01a\xC0", K::SubscriptionOptions),
        (b"\x82\x0F\x00\x01\x00\x00\x09$share/gx\x04", K::NoLocalShared),
        (b"\xC0\x01\x00", K::TrailingBytes),
    ];
    let all = v311.iter().map(|case| (Version::V311, case)).chain(v5.iter().map(|case| (Version::V5, case)));
    for (version, (bytes, kind)) in all {
        assert_eq!(ours(version, From::Client, bytes).map(drop), Err(*kind), "{bytes:02x?}");
        assert!(
            theirs(version, bytes).is_ok(),
            "mqttbytes refuses {bytes:02x?} too: {:?}",
            theirs(version, bytes)
        );
    }
}

/// Packets that mqttbytes writes wrongly and we rightly.
#[test]
fn what_mqttbytes_writes_wrongly() {
    let mut bytes = BytesMut::new();
    v5::ConnAck::new(v5::ConnectReturnCode::Success, false).write(&mut bytes).expect("theirs");
    assert_eq!(&bytes[..], b"\x20\x02\x00\x00", "the property length is missing");
    let mut out = Vec::new();
    let connack = codec::ConnAck::new(codec::ReasonCode::Success, false);
    codec::write(Version::V5, &Packet::ConnAck(Box::new(connack)), &mut out).expect("legal");
    assert_eq!(out, b"\x20\x03\x00\x00\x00");

    let mut bytes = BytesMut::new();
    let long = "x".repeat(70_000);
    let written = v4::Publish::new(long, QoS::AtMostOnce, "").write(&mut bytes);
    assert!(written.is_ok() && bytes[4..6] == 4_464_u16.to_be_bytes(), "the topic's length wrapped");
}

/// Inside a complete frame mqttbytes may ask for more bytes, after it has taken the frame out: the caller waits for ever. We never do.
#[test]
fn where_mqttbytes_loses_its_place() {
    for bytes in [&b"\xE0\x01\x04"[..], b"\x30\x03\x00\x01a"] {
        let mut stream = BytesMut::from(bytes);
        let error = v5::read(&mut stream, SIZE_MAX).expect_err("theirs");
        assert!(matches!(error, mqttbytes::Error::InsufficientBytes(_)) && stream.is_empty(), "{bytes:02x?}");
        let frame = codec::frame(Version::V5, bytes, SIZE_MAX).expect("legal header");
        assert!(frame.is_some(), "{bytes:02x?}");
    }
}
