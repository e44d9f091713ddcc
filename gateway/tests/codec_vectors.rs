//! Golden vectors of the codec: bytes ↔ value ↔ bytes for every packet of both versions, and malformed packets with the exact
//! rule and reason code. The data is in `tests/vectors`; a new case is a line there.

use std::fmt::Write as _;
use std::path::Path;

use gateway::codec::{
    self, Ack, Auth, ConnAck, Connect, Disconnect, Error, Frame, From, Packet, Publish, RetainHandling,
    Subscribe, UserProperties, Version, Will,
};
use session::message::QoS;

const SIZE_MAX: usize = 1 << 20;

#[test]
fn packets_of_mqtt_311_stand_for_their_values() {
    assert!(check_packets(Version::V311, "mqtt311/packets.txt") >= 35);
}

#[test]
fn packets_of_mqtt_5_stand_for_their_values() {
    assert!(check_packets(Version::V5, "mqtt5/packets.txt") >= 60);
}

/// Written by clients that we did not make (`tests/vectors/README.md` says which).
#[test]
fn packets_of_other_encoders_stand_for_their_values() {
    assert!(check_packets(Version::V311, "mqtt311/foreign.txt") >= 10);
    assert!(check_packets(Version::V5, "mqtt5/foreign.txt") >= 10);
}

#[test]
fn malformed_packets_of_mqtt_311_are_refused_with_their_reason() {
    assert!(check_malformed("mqtt311/malformed.txt") >= 120);
}

#[test]
fn malformed_packets_of_mqtt_5_are_refused_with_their_reason() {
    assert!(check_malformed("mqtt5/malformed.txt") >= 500);
}

/// A broken packet is never "wait for more", whatever follows it (P9): the same bytes with others behind them fail the same way.
#[test]
fn malformed_packets_fail_the_same_in_front_of_other_bytes() {
    for file in ["mqtt311/malformed.txt", "mqtt5/malformed.txt"] {
        for line in lines(file) {
            let columns: Vec<&str> = line.split(" | ").collect();
            let bytes = hex(columns[3]);
            let complete = matches!(codec::frame(Version::V5, &bytes, SIZE_MAX), Ok(Some(_)));
            let alone = decode_malformed(columns[1], columns[2], &bytes);
            let followed = decode_malformed(columns[1], columns[2], &[&bytes[..], &[0xC0, 0x00]].concat());
            assert!(!complete || alone == followed, "{line}");
        }
    }
}

fn check_packets(version: Version, file: &str) -> usize {
    let lines = lines(file);
    for line in &lines {
        let columns: Vec<&str> = line.split(" | ").collect();
        let [name, from, bytes, value] = columns[..4] else { panic!("four columns in {line}") };
        let bytes = hex(bytes);
        let frame = codec::frame(version, &bytes, SIZE_MAX)
            .unwrap_or_else(|error| panic!("{file} {name}: {error}"))
            .unwrap_or_else(|| panic!("{file} {name}: waits for more"));
        assert_eq!(frame.len, bytes.len(), "{file} {name}");
        let packet =
            codec::read(version, side(from), frame).unwrap_or_else(|error| panic!("{file} {name}: {error}"));
        assert_eq!(render(&packet), value, "{file} {name}");
        let mut again = b"in front".to_vec();
        codec::write(version, &packet, &mut again).unwrap_or_else(|error| panic!("{file} {name}: {error}"));
        let again = &again[8..];
        if columns.get(4) == Some(&"one-way") {
            let frame = codec::frame(version, again, SIZE_MAX).expect("ours").expect("complete");
            let packet = codec::read(version, side(from), frame).expect("ours is legal");
            assert_eq!(render(&packet), value, "{file} {name}, written again");
        } else {
            assert_eq!(again, bytes, "{file} {name}");
        }
    }
    lines.len()
}

fn check_malformed(file: &str) -> usize {
    let lines = lines(file);
    for line in &lines {
        let columns: Vec<&str> = line.split(" | ").collect();
        let [name, version, from, bytes, kind, reason] = columns[..] else { panic!("six columns in {line}") };
        match decode_malformed(version, from, &hex(bytes)) {
            Outcome::Refused(error) => {
                let got = (format!("{:?}", error.kind), format!("0x{:02x}", error.reason.code()));
                assert_eq!(got, (kind.to_owned(), reason.to_owned()), "{file} {name}");
            }
            Outcome::Waits => panic!("{file} {name}: waits for more"),
            Outcome::Decoded => panic!("{file} {name}: was taken"),
        }
    }
    lines.len()
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Refused(Error),
    Waits,
    Decoded,
}

fn decode_malformed(version: &str, from: &str, bytes: &[u8]) -> Outcome {
    let decoded = match version {
        "first" => {
            codec::first_frame(bytes, SIZE_MAX).map(|frame| frame.map(codec::read_connect)).map(drop_value)
        }
        _ => {
            let version = if version == "5" { Version::V5 } else { Version::V311 };
            let read = |frame: Frame<'_>| codec::read(version, side(from), frame).map(drop);
            codec::frame(version, bytes, SIZE_MAX).map(|frame| frame.map(read))
        }
    };
    match decoded {
        Err(error) | Ok(Some(Err(error))) => Outcome::Refused(error),
        Ok(None) => Outcome::Waits,
        Ok(Some(Ok(()))) => Outcome::Decoded,
    }
}

fn drop_value(decoded: Option<Result<Connect<'_>, Error>>) -> Option<Result<(), Error>> {
    decoded.map(|result| result.map(drop))
}

fn lines(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn hex(text: &str) -> Vec<u8> {
    text.split_ascii_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits")).collect()
}

fn side(name: &str) -> From {
    match name {
        "client" => From::Client,
        "server" => From::Server,
        other => panic!("{other} is not a side"),
    }
}

/// A line of text that shows everything in the packet that is not a default.
fn render(packet: &Packet<'_>) -> String {
    let mut text = Text::default();
    match packet {
        Packet::Connect(connect) => text.connect(connect),
        Packet::ConnAck(connack) => text.connack(connack),
        Packet::Publish(publish) => text.publish(publish),
        Packet::Ack(ack) => text.ack(ack),
        Packet::Subscribe(subscribe) => text.subscribe(subscribe),
        Packet::SubAck(suback) => {
            text.word("SUBACK").field("id", suback.packet_id).bytes("reasons", Some(suback.reasons));
            text.string("text", suback.reason_string).user(&suback.user_properties);
        }
        Packet::Unsubscribe(unsubscribe) => {
            text.word("UNSUBSCRIBE").field("id", unsubscribe.packet_id);
            for filter in unsubscribe.iter() {
                text.word(&format!("\"{filter}\""));
            }
            assert_eq!(unsubscribe.iter().count(), usize::from(unsubscribe.count));
            text.user(&unsubscribe.user_properties);
        }
        Packet::UnsubAck(unsuback) => {
            text.word("UNSUBACK").field("id", unsuback.packet_id).bytes("reasons", Some(unsuback.reasons));
            text.string("text", unsuback.reason_string).user(&unsuback.user_properties);
        }
        Packet::PingReq => drop(text.word("PINGREQ")),
        Packet::PingResp => drop(text.word("PINGRESP")),
        Packet::Disconnect(disconnect) => text.disconnect(disconnect),
        Packet::Auth(auth) => text.auth(auth),
    }
    text.0.trim_end().to_owned()
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn word(&mut self, word: &str) -> &mut Self {
        self.0 += word;
        self.0.push(' ');
        self
    }

    fn flag(&mut self, name: &str, set: bool) -> &mut Self {
        if set { self.word(name) } else { self }
    }

    fn field(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Self {
        self.word(&format!("{name}={value}"))
    }

    fn unless<T: std::fmt::Display + PartialEq>(&mut self, name: &str, value: T, default: T) -> &mut Self {
        if value == default { self } else { self.field(name, value) }
    }

    fn option(&mut self, name: &str, value: Option<impl std::fmt::Display>) -> &mut Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    fn string(&mut self, name: &str, value: Option<&str>) -> &mut Self {
        self.option(name, value.map(|value| format!("\"{value}\"")))
    }

    fn bytes(&mut self, name: &str, value: Option<&[u8]>) -> &mut Self {
        self.option(name, value.map(to_hex))
    }

    fn reason(&mut self, reason: codec::ReasonCode) -> &mut Self {
        self.word(&format!("reason=0x{:02X}", reason.code()))
    }

    fn user(&mut self, user_properties: &UserProperties<'_>) {
        for (name, value) in user_properties.iter() {
            self.word(&format!("user=(\"{name}\",\"{value}\")"));
        }
    }

    fn connect(&mut self, connect: &Connect<'_>) {
        self.word("CONNECT").word(if connect.version == Version::V5 { "5" } else { "3.1.1" });
        self.flag("clean", connect.clean_start).field("keepalive", connect.keep_alive_sec);
        self.string("id", Some(connect.client_id)).string("user", connect.login.user_name);
        self.bytes("password", connect.login.password);
        if let Some(will) = &connect.will {
            self.will(will);
        }
        self.unless("expiry", connect.session_expiry_sec, 0).unless(
            "receive",
            connect.receive_maximum,
            65_535,
        );
        self.unless("packet", connect.maximum_packet_size, u32::MAX);
        self.unless("alias", connect.topic_alias_maximum, 0);
        self.flag("response-info", connect.request_response_information);
        self.flag("no-problem-info", !connect.request_problem_information);
        self.string("method", connect.authentication_method).bytes("data", connect.authentication_data);
        self.user(&connect.user_properties);
    }

    fn will(&mut self, will: &Will<'_>) {
        let mut text = Self::default();
        text.string("topic", Some(will.topic)).field("qos", will.qos as u8).flag("retain", will.retain);
        text.bytes("payload", Some(will.payload)).unless("delay", will.delay_sec, 0);
        text.option("expiry", will.message_expiry_sec);
        text.bytes("forwarded", Some(will.forwarded()).filter(|bytes| !bytes.is_empty()));
        self.word(&format!("will={{{}}}", text.0.trim_end()));
    }

    fn connack(&mut self, connack: &ConnAck<'_>) {
        self.word("CONNACK").flag("session-present", connack.session_present).reason(connack.reason);
        self.option("expiry", connack.session_expiry_sec).unless("receive", connack.receive_maximum, 65_535);
        self.option("maximum-qos", connack.maximum_qos).flag("no-retain", !connack.retain_available);
        self.option("packet", connack.maximum_packet_size).string("assigned", connack.assigned_client_id);
        self.unless("alias", connack.topic_alias_maximum, 0);
        self.flag("no-wildcard", !connack.wildcard_subscription_available);
        self.flag("no-identifiers", !connack.subscription_identifiers_available);
        self.flag("no-shared", !connack.shared_subscription_available);
        self.option("keepalive", connack.server_keep_alive_sec);
        self.string("response", connack.response_information).string("server", connack.server_reference);
        self.string("method", connack.authentication_method).bytes("data", connack.authentication_data);
        self.string("text", connack.reason_string).user(&connack.user_properties);
    }

    fn publish(&mut self, publish: &Publish<'_>) {
        self.word("PUBLISH").flag("dup", publish.dup).field("qos", publish.qos as u8);
        self.flag("retain", publish.retain);
        assert_eq!(publish.packet_id == 0, publish.qos == QoS::AtMostOnce);
        self.unless("id", publish.packet_id, 0).string("topic", Some(publish.topic));
        self.bytes("payload", Some(publish.payload));
        self.option("alias", publish.topic_alias).option("expiry", publish.message_expiry_sec);
        let identifiers: Vec<String> =
            codec::subscription_identifiers(publish.properties).map(|id| id.to_string()).collect();
        self.option("identifiers", (!identifiers.is_empty()).then(|| format!("[{}]", identifiers.join(","))));
        let mut scratch = Vec::new();
        let forwarded = codec::forwarded_properties(publish.properties, &mut scratch);
        if !publish.properties_forwardable {
            self.bytes("forwarded", Some(forwarded));
        } else {
            assert_eq!(forwarded, publish.properties);
            self.bytes("forwardable", Some(forwarded).filter(|bytes| !bytes.is_empty()));
        }
    }

    fn ack(&mut self, ack: &Ack<'_>) {
        self.word(&format!("{:?}", ack.ack_type).to_uppercase())
            .field("id", ack.packet_id)
            .reason(ack.reason);
        self.string("text", ack.reason_string).user(&ack.user_properties);
    }

    fn subscribe(&mut self, subscribe: &Subscribe<'_>) {
        self.word("SUBSCRIBE").field("id", subscribe.packet_id);
        self.unless("identifier", subscribe.identifier, 0);
        assert_eq!(subscribe.filters.iter().count(), usize::from(subscribe.filters.count));
        for filter in subscribe.filters.iter() {
            let mut text = Self::default();
            text.word(&format!("\"{}\"", filter.filter)).field("qos", filter.qos as u8);
            text.flag("no-local", filter.no_local).flag("retain-as-published", filter.retain_as_published);
            match filter.retain_handling {
                RetainHandling::Send => {}
                RetainHandling::SendIfNew => drop(text.word("retain-handling=1")),
                RetainHandling::DoNotSend => drop(text.word("retain-handling=2")),
            }
            self.word(&format!("[{}]", text.0.trim_end()));
        }
        self.user(&subscribe.user_properties);
    }

    fn disconnect(&mut self, disconnect: &Disconnect<'_>) {
        self.word("DISCONNECT").reason(disconnect.reason).option("expiry", disconnect.session_expiry_sec);
        self.string("server", disconnect.server_reference).string("text", disconnect.reason_string);
        self.user(&disconnect.user_properties);
    }

    fn auth(&mut self, auth: &Auth<'_>) {
        self.word("AUTH").reason(auth.reason).string("method", auth.method).bytes("data", auth.data);
        self.string("text", auth.reason_string).user(&auth.user_properties);
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}
