//! Properties of the codec over arbitrary packets and arbitrary bytes: round trip, any byte split, no panic, nothing written on an
//! error.

use std::path::Path;

use gateway::codec::{
    self, Ack, AckType, Auth, ConnAck, Connect, Disconnect, Filters, From, Login, Packet, Publish,
    ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeFilter, UnsubAck, Unsubscribe, UserProperties,
    Version, Will,
};
use proptest::prelude::*;
use session::message::QoS;

const SIZE_MAX: usize = 1 << 20;
/// How many mutated packets [`mutated_packets_never_panic`] tries.
const MUTATIONS: usize = 400_000;

/// What an arbitrary packet is made of.
#[derive(Debug, Clone)]
struct Parts {
    kind: u8,
    strings: Vec<String>,
    topic: String,
    blobs: Vec<Vec<u8>>,
    words: Vec<u32>,
    flags: u32,
    user: Vec<(String, String)>,
    filters: Vec<(String, u8)>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let string = "[^\u{0}]{0,12}";
    (
        0..12_u8,
        prop::collection::vec(string, 5),
        "[^\u{0}+#]{1,12}",
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 3),
        prop::collection::vec(any::<u32>(), 6),
        any::<u32>(),
        prop::collection::vec((string, string), 0..3),
        prop::collection::vec(("[^\u{0}]{1,12}", any::<u8>()), 1..4),
    )
        .prop_map(|(kind, strings, topic, blobs, words, flags, user, filters)| Parts {
            kind,
            strings,
            topic,
            blobs,
            words,
            flags,
            user,
            filters,
        })
}

/// Wire forms that packets borrow.
struct Raw {
    user: Vec<u8>,
    filters: Vec<u8>,
    names: Vec<u8>,
    forwarded: Vec<u8>,
}

impl Parts {
    fn raw(&self) -> Raw {
        let mut raw = Raw { user: vec![], filters: vec![], names: vec![], forwarded: vec![] };
        for (name, value) in &self.user {
            UserProperties::push(&mut raw.user, name, value).expect("short");
        }
        for (filter, options) in &self.filters {
            let no_local = options & 4 != 0 && !filter.starts_with("$share/");
            let filter = SubscribeFilter {
                filter,
                qos: qos(*options),
                no_local,
                retain_as_published: options & 8 != 0,
                retain_handling: match options >> 4 & 3 {
                    0 | 3 => RetainHandling::Send,
                    1 => RetainHandling::SendIfNew,
                    _ => RetainHandling::DoNotSend,
                },
            };
            filter.push(&mut raw.filters).expect("short");
            Unsubscribe::push(&mut raw.names, filter.filter).expect("short");
        }
        if self.flag(20) {
            raw.forwarded.extend_from_slice(&[0x01, 0x01]);
        }
        if self.flag(21) {
            raw.forwarded.extend_from_slice(&[0x03, 0, 1, b't']);
        }
        raw.forwarded.extend_from_slice(&raw.user);
        raw
    }

    fn flag(&self, bit: u32) -> bool {
        self.flags >> bit & 1 == 1
    }

    fn word(&self, at: usize) -> Option<u32> {
        self.flag(at as u32).then_some(self.words[at])
    }

    fn short(&self, at: usize) -> u16 {
        self.words[at] as u16
    }

    fn id(&self) -> u16 {
        self.short(0).max(1)
    }

    fn string(&self, at: usize) -> Option<&str> {
        self.flag(8 + at as u32).then_some(&self.strings[at])
    }

    fn blob(&self, at: usize) -> Option<&[u8]> {
        self.flag(14 + at as u32).then_some(&self.blobs[at])
    }

    fn reason(&self, codes: &[u8]) -> ReasonCode {
        ReasonCode::from_code(codes[self.words[5] as usize % codes.len()]).expect("a reason code")
    }

    /// The packet and who sends it.
    fn packet<'a>(&'a self, version: Version, raw: &'a Raw) -> (From, Packet<'a>) {
        let v5 = version == Version::V5;
        let user_properties = UserProperties { raw: if v5 { &raw.user } else { &[] } };
        let reason_string = self.string(0).filter(|_| v5);
        match self.kind {
            0 => (From::Client, Packet::Connect(Box::new(self.connect(version, raw, user_properties)))),
            1 => (From::Server, Packet::ConnAck(Box::new(self.connack(v5, user_properties)))),
            2 | 3 => (From::Client, Packet::Publish(self.publish(v5, raw))),
            4 => {
                let (ack_type, codes): (_, &[u8]) = match self.words[4] % 4 {
                    0 => (AckType::PubAck, &[0x00, 0x10, 0x87, 0x97]),
                    1 => (AckType::PubRec, &[0x00, 0x80, 0x99]),
                    2 => (AckType::PubRel, &[0x00, 0x92]),
                    _ => (AckType::PubComp, &[0x00, 0x92]),
                };
                let reason = if v5 { self.reason(codes) } else { ReasonCode::Success };
                let packet_id = self.id();
                let ack = Ack { ack_type, packet_id, reason, reason_string, user_properties };
                (From::Server, Packet::Ack(ack))
            }
            5 => {
                let identifier = if v5 { self.words[1] % 268_435_456 } else { 0 };
                let filters = match version {
                    Version::V5 => &raw.filters[..],
                    Version::V311 => b"\x00\x01a\x00\x00\x03b/#\x02",
                };
                let filters = Filters::new(version, filters).expect("legal filters");
                let packet_id = self.id();
                (
                    From::Client,
                    Packet::Subscribe(Subscribe { packet_id, identifier, filters, user_properties }),
                )
            }
            6 => {
                let reasons: &[u8] = if v5 { &[0, 1, 2, 0x80, 0x87, 0x8F] } else { &[0, 1, 2, 0x80] };
                let packet_id = self.id();
                (From::Server, Packet::SubAck(SubAck { packet_id, reasons, reason_string, user_properties }))
            }
            7 => {
                let unsubscribe = Unsubscribe::new(self.id(), &raw.names).expect("legal filters");
                (From::Client, Packet::Unsubscribe(Unsubscribe { user_properties, ..unsubscribe }))
            }
            8 => {
                let reasons: &[u8] = if v5 { &[0x00, 0x11, 0x87] } else { &[] };
                let packet_id = self.id();
                (
                    From::Server,
                    Packet::UnsubAck(UnsubAck { packet_id, reasons, reason_string, user_properties }),
                )
            }
            9 => (From::Client, self.disconnect(v5, user_properties)),
            10 if v5 => {
                let mut auth = Auth::new(self.reason(&[0x18, 0x19]), Some(&self.strings[1]), self.blob(0));
                (auth.reason_string, auth.user_properties) = (reason_string, user_properties);
                (From::Client, Packet::Auth(auth))
            }
            _ if self.flag(0) => (From::Client, Packet::PingReq),
            _ => (From::Server, Packet::PingResp),
        }
    }

    fn connect<'a>(
        &'a self,
        version: Version,
        raw: &'a Raw,
        user_properties: UserProperties<'a>,
    ) -> Connect<'a> {
        let v5 = version == Version::V5;
        let clean = self.flag(0);
        let client_id = if self.strings[1].is_empty() && !v5 { "id" } else { &self.strings[1] };
        let mut connect = Connect::new(version, client_id, clean);
        connect.keep_alive_sec = self.short(1);
        connect.login = Login { user_name: self.string(2), password: self.blob(1) };
        if !v5 && connect.login.user_name.is_none() {
            connect.login.password = None;
        }
        connect.will = self.flag(18).then(|| Will {
            topic: &self.topic,
            payload: &self.blobs[2],
            qos: qos(self.words[2] as u8),
            retain: self.flag(19),
            delay_sec: if v5 { self.words[3] } else { 0 },
            message_expiry_sec: self.word(4).filter(|_| v5),
            properties: if v5 { &raw.forwarded } else { &[] },
            properties_collected: None,
        });
        if v5 {
            connect.session_expiry_sec = self.words[0];
            connect.receive_maximum = self.short(2).max(1);
            connect.maximum_packet_size = self.words[3].max(1);
            connect.topic_alias_maximum = self.short(4);
            connect.request_response_information = self.flag(1);
            connect.request_problem_information = self.flag(2);
            connect.authentication_method = self.string(3);
            connect.authentication_data = self.blob(0).filter(|_| connect.authentication_method.is_some());
            connect.user_properties = user_properties;
        }
        connect
    }

    fn connack<'a>(&'a self, v5: bool, user_properties: UserProperties<'a>) -> ConnAck<'a> {
        let reason = self.reason(&[0x00, 0x84, 0x85, 0x86, 0x87, 0x88]);
        let mut connack = ConnAck::new(reason, self.flag(0) && reason == ReasonCode::Success);
        if v5 {
            connack.session_expiry_sec = self.word(1);
            connack.receive_maximum = self.short(2).max(1);
            connack.maximum_qos = self.word(3).map(|value| (value & 1) as u8);
            connack.retain_available = self.flag(4);
            connack.maximum_packet_size = self.word(5).map(|value| value.max(1));
            connack.assigned_client_id = self.string(0);
            connack.topic_alias_maximum = self.short(4);
            connack.reason_string = self.string(1);
            connack.user_properties = user_properties;
            connack.wildcard_subscription_available = self.flag(22);
            connack.subscription_identifiers_available = self.flag(23);
            connack.shared_subscription_available = self.flag(24);
            connack.server_keep_alive_sec = self.word(2).map(|value| value as u16);
            connack.response_information = self.string(2);
            connack.server_reference = self.string(3);
            connack.authentication_method = self.string(4);
            connack.authentication_data = self.blob(0).filter(|_| connack.authentication_method.is_some());
        }
        connack
    }

    fn publish<'a>(&'a self, v5: bool, raw: &'a Raw) -> Publish<'a> {
        let qos = qos(self.words[1] as u8);
        Publish {
            dup: self.flag(0) && qos != QoS::AtMostOnce,
            qos,
            retain: self.flag(1),
            topic: &self.topic,
            packet_id: if qos == QoS::AtMostOnce { 0 } else { self.id() },
            topic_alias: self.word(2).map(|value| (value as u16).max(1)).filter(|_| v5),
            message_expiry_sec: self.word(3).filter(|_| v5),
            properties: if v5 { &raw.forwarded } else { &[] },
            properties_forwardable: true,
            payload: &self.blobs[0],
        }
    }

    fn disconnect<'a>(&'a self, v5: bool, user_properties: UserProperties<'a>) -> Packet<'a> {
        let mut disconnect = Disconnect::new(ReasonCode::Success);
        if v5 {
            disconnect.reason = self.reason(&[0x00, 0x04, 0x80, 0x82, 0x98]);
            disconnect.session_expiry_sec = self.word(1);
            disconnect.reason_string = self.string(0);
            disconnect.server_reference = self.string(1);
            disconnect.user_properties = user_properties;
        }
        Packet::Disconnect(disconnect)
    }
}

fn qos(value: u8) -> QoS {
    QoS::from_u8(value % 3).expect("0 to 2")
}

/// A PUBLISH with alias or expiry is decoded with all its property bytes; compared are the fields and what is forwarded.
fn same(left: &Packet<'_>, right: &Packet<'_>) -> bool {
    let (Packet::Publish(left), Packet::Publish(right)) = (left, right) else { return left == right };
    let (mut one, mut two) = (Vec::new(), Vec::new());
    let forwarded = codec::forwarded_properties(left.properties, &mut one)
        == codec::forwarded_properties(right.properties, &mut two);
    let plain = |publish: &Publish<'_>| {
        let packet_id = publish.packet_id;
        (publish.dup, publish.qos, publish.retain, packet_id, publish.topic_alias, publish.message_expiry_sec)
    };
    forwarded && left.topic == right.topic && left.payload == right.payload && plain(left) == plain(right)
}

fn version(v5: bool) -> Version {
    if v5 { Version::V5 } else { Version::V311 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is written is read back, and is as long as it says.
    #[test]
    fn any_packet_survives_the_round_trip(parts in parts(), v5 in any::<bool>()) {
        let version = version(v5);
        let raw = parts.raw();
        let (from, packet) = parts.packet(version, &raw);
        let mut bytes = Vec::new();
        codec::write(version, &packet, &mut bytes).expect("legal by construction");
        let frame = codec::frame(version, &bytes, bytes.len()).expect("legal").expect("complete");
        prop_assert_eq!(frame.len, bytes.len());
        prop_assert_eq!(frame.packet_type, packet.packet_type());
        let again = codec::read(version, from, frame).expect("legal by construction");
        prop_assert!(same(&packet, &again), "{packet:?}\n{again:?}");
        let mut bytes_again = Vec::new();
        codec::write(version, &again, &mut bytes_again).expect("legal");
        prop_assert_eq!(bytes, bytes_again);
    }

    /// Every prefix waits, one byte more than the limit is too large [MQTT-3.1.2-24].
    #[test]
    fn a_prefix_waits_and_the_limit_holds(parts in parts(), v5 in any::<bool>()) {
        let version = version(v5);
        let raw = parts.raw();
        let (_, packet) = parts.packet(version, &raw);
        let mut bytes = Vec::new();
        codec::write(version, &packet, &mut bytes).expect("legal by construction");
        for len in 0..bytes.len() {
            prop_assert_eq!(codec::frame(version, &bytes[..len], bytes.len()), Ok(None));
        }
        let error = codec::frame(version, &bytes, bytes.len() - 1).expect_err("too large");
        prop_assert_eq!(error.kind, codec::Kind::PacketTooLarge);
        // The limit is known as soon as the length is, without the body (P9).
        let header = bytes.len() - codec::frame(version, &bytes, SIZE_MAX).expect("legal").expect("complete").body.len();
        prop_assert!(codec::frame(version, &bytes[..header], bytes.len() - 1).is_err());
    }

    /// However a stream is cut into reads, the same packets come out.
    #[test]
    fn any_byte_split_gives_the_same_packets(
        parts in prop::collection::vec(parts(), 1..6),
        cuts in prop::collection::vec(1..40_usize, 1..20),
        v5 in any::<bool>(),
    ) {
        let version = version(v5);
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for part in &parts {
            let start = stream.len();
            codec::write(version, &part.packet(version, &part.raw()).1, &mut stream).expect("legal");
            expected.push(stream[start..].to_vec());
        }
        let mut buffer = Vec::new();
        let mut got = Vec::new();
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            let (chunk, behind) = rest.split_at((*cut).min(rest.len()));
            rest = behind;
            buffer.extend_from_slice(chunk);
            while let Some(frame) = codec::frame(version, &buffer, SIZE_MAX).expect("legal") {
                let len = frame.len;
                got.push(buffer[..len].to_vec());
                buffer.drain(..len);
            }
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(got, expected);
    }

    /// Arbitrary bytes are refused or understood, and never make anything panic.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        exercise(&bytes);
    }
}

/// Flips, cuts, doubles and splices the golden packets and feeds them to both versions and directions.
#[test]
fn mutated_packets_never_panic() {
    let corpus = corpus();
    let mut random = XorShift(0x9E37_79B9_7F4A_7C15);
    for _ in 0..MUTATIONS {
        let mut bytes = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut bytes, &mut random, &corpus);
        }
        exercise(&bytes);
    }
}

/// Decodes in every way; what is understood can be written, and then reads and writes the same for ever.
fn exercise(bytes: &[u8]) {
    let _ = codec::refusal_version(bytes);
    let _ = codec::connect_version(bytes);
    if let Ok(Some(frame)) = codec::first_frame(bytes, SIZE_MAX) {
        let _ = codec::read_connect(frame);
    }
    for version in [Version::V311, Version::V5] {
        let Ok(Some(frame)) = codec::frame(version, bytes, SIZE_MAX) else { continue };
        for from in [From::Client, From::Server] {
            let Ok(packet) = codec::read(version, from, frame) else { continue };
            visit(&packet);
            let version = if let Packet::Connect(connect) = &packet { connect.version } else { version };
            let mut once = Vec::new();
            codec::write(version, &packet, &mut once).expect("what was understood can be written");
            let frame = codec::frame(version, &once, SIZE_MAX).expect("legal").expect("complete");
            let again = codec::read(version, from, frame).expect("legal");
            let mut twice = Vec::new();
            codec::write(version, &again, &mut twice).expect("legal");
            assert_eq!(once, twice);
        }
    }
}

fn visit(packet: &Packet<'_>) {
    match packet {
        Packet::Subscribe(subscribe) => {
            assert_eq!(subscribe.filters.iter().count(), usize::from(subscribe.filters.count));
        }
        Packet::Unsubscribe(unsubscribe) => {
            assert_eq!(unsubscribe.iter().count(), usize::from(unsubscribe.count));
        }
        Packet::Publish(publish) => {
            let mut scratch = Vec::new();
            let forwarded = codec::forwarded_properties(publish.properties, &mut scratch);
            assert!(!publish.properties_forwardable || forwarded == publish.properties);
            let _ = codec::check_payload_format(publish.properties, publish.payload);
            let _ = UserProperties { raw: publish.properties }.iter().count();
        }
        _ => {}
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut XorShift, corpus: &[Vec<u8>]) {
    if bytes.is_empty() {
        bytes.push(random.next() as u8);
    }
    let at = random.below(bytes.len());
    match random.below(7) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.insert(at, random.next() as u8),
        4 => {
            bytes.remove(at);
        }
        5 => {
            let other = &corpus[random.below(corpus.len())];
            bytes.splice(at.., other[random.below(other.len())..].iter().copied());
        }
        _ => {
            // Keep the frame whole, so that the body is looked at.
            if bytes.len() >= 2 && bytes.len() < 129 {
                bytes[1] = (bytes.len() - 2) as u8;
            }
        }
    }
}

struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let mut corpus = Vec::new();
    for file in ["mqtt311/packets.txt", "mqtt5/packets.txt", "mqtt5/malformed.txt"] {
        let column = if file.ends_with("malformed.txt") { 3 } else { 2 };
        let text = std::fs::read_to_string(vectors.join(file)).expect("the vectors are there");
        for line in text.lines().filter(|line| line.contains(" | ") && !line.starts_with('#')) {
            let hex = line.split(" | ").nth(column).expect("a column of bytes");
            let bytes = hex.split_ascii_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hex"));
            corpus.push(bytes.collect());
        }
    }
    assert!(corpus.len() > 500);
    corpus
}
