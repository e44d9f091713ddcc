//! CONNECT (§3.1).

use session::message::QoS;

use super::primitive::Reader;
use super::properties::{self, Properties, UserProperties};
use super::property::Property;
use super::sink::{Body, Measure, Sink, write_packet};
use super::{Error, Frame, Kind, PacketType, Version};

/// Bits of the connect flags (§3.1.2.3).
mod flag {
    pub(super) const RESERVED: u8 = 0x01;
    pub(super) const CLEAN_START: u8 = 0x02;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const WILL_QOS: u8 = 0x18;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const USER_NAME: u8 = 0x80;
}

/// Set in the protocol level by bridges of mosquitto and RSMB that try for a private variant first.
const BRIDGE: u8 = 0x80;

/// A CONNECT as the client sent it. Defaults of absent properties are filled in (§3.1.2.11).
#[derive(Debug, Clone, PartialEq)]
pub struct Connect<'a> {
    pub version: Version,
    pub clean_start: bool,
    pub keep_alive_sec: u16,
    /// Empty: the server assigns one.
    pub client_id: &'a str,
    pub login: Login<'a>,
    pub will: Option<Will<'a>>,
    /// Seconds; 3.1.1: 0 with Clean Session 1, `u32::MAX` with 0.
    pub session_expiry_sec: u32,
    pub receive_maximum: u16,
    /// Bytes of a whole packet; `u32::MAX` when absent.
    pub maximum_packet_size: u32,
    pub topic_alias_maximum: u16,
    pub request_response_information: bool,
    pub request_problem_information: bool,
    pub authentication_method: Option<&'a str>,
    pub authentication_data: Option<&'a [u8]>,
    pub user_properties: UserProperties<'a>,
}

/// User name and password, each as it was present.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Login<'a> {
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
}

/// A password stands in no log.
impl std::fmt::Debug for Login<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let password = self.password.map(|_| "…");
        f.debug_struct("Login").field("user_name", &self.user_name).field("password", &password).finish()
    }
}

/// The Will of a CONNECT.
#[derive(Debug, Clone, PartialEq)]
pub struct Will<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub delay_sec: u32,
    pub message_expiry_sec: Option<u32>,
    /// Forwarded properties in wire form, without length prefix (as in `session::message::Message`).
    pub properties: &'a [u8],
    /// When the properties to forward are not contiguous on the wire, they are collected here and `properties` is empty.
    pub properties_collected: Option<Vec<u8>>,
}

impl<'a> Connect<'a> {
    /// A CONNECT with every optional part absent.
    #[must_use]
    pub const fn new(version: Version, client_id: &'a str, clean_start: bool) -> Self {
        Self {
            version,
            clean_start,
            keep_alive_sec: 0,
            client_id,
            login: Login { user_name: None, password: None },
            will: None,
            session_expiry_sec: default_expiry(version, clean_start),
            receive_maximum: 65_535,
            maximum_packet_size: u32::MAX,
            topic_alias_maximum: 0,
            request_response_information: false,
            request_problem_information: true,
            authentication_method: None,
            authentication_data: None,
            user_properties: UserProperties::EMPTY,
        }
    }

    fn set(&mut self, property: Property<'a>) {
        match property {
            Property::SessionExpiry(seconds) => self.session_expiry_sec = seconds,
            Property::ReceiveMaximum(value) => self.receive_maximum = value,
            Property::MaximumPacketSize(value) => self.maximum_packet_size = value,
            Property::TopicAliasMaximum(value) => self.topic_alias_maximum = value,
            Property::RequestResponseInformation(value) => self.request_response_information = value,
            Property::RequestProblemInformation(value) => self.request_problem_information = value,
            Property::AuthenticationMethod(text) => self.authentication_method = Some(text),
            Property::AuthenticationData(bytes) => self.authentication_data = Some(bytes),
            _ => {}
        }
    }

    fn flags(&self) -> u8 {
        let mut flags = 0;
        if self.clean_start {
            flags |= flag::CLEAN_START;
        }
        if let Some(will) = &self.will {
            flags |= flag::WILL | (will.qos as u8) << 3;
            if will.retain {
                flags |= flag::WILL_RETAIN;
            }
        }
        if self.login.password.is_some() {
            flags |= flag::PASSWORD;
        }
        if self.login.user_name.is_some() {
            flags |= flag::USER_NAME;
        }
        flags
    }
}

impl Will<'_> {
    /// The properties to forward, wherever they stand.
    #[must_use]
    pub fn forwarded(&self) -> &[u8] {
        self.properties_collected.as_deref().unwrap_or(self.properties)
    }

    fn put_properties(&self, sink: &mut impl Sink) {
        if self.delay_sec != 0 {
            Property::WillDelay(self.delay_sec).put(sink);
        }
        if let Some(seconds) = self.message_expiry_sec {
            Property::MessageExpiry(seconds).put(sink);
        }
        sink.raw(self.forwarded());
    }

    fn put(&self, version: Version, sink: &mut impl Sink) {
        if version == Version::V5 {
            let len = Measure::of(|measure| self.put_properties(measure)).unwrap_or(0);
            sink.varint(len);
            self.put_properties(sink);
        }
        if self.topic.is_empty() || memchr::memchr2(b'+', b'#', self.topic.as_bytes()).is_some() {
            sink.refuse(Kind::WillTopic);
        }
        sink.string(self.topic);
        sink.binary(self.payload);
    }
}

/// 3.1.1 has no Session Expiry Interval: a session ends with its connection or never.
const fn default_expiry(version: Version, clean_start: bool) -> u32 {
    match version {
        Version::V311 if !clean_start => u32::MAX,
        _ => 0,
    }
}

/// Version of the CONNECT whose frame has this body, from protocol name and level.
///
/// # Errors
/// [`Kind::ProtocolName`]: not MQTT, close without an answer. [`Kind::ProtocolVersion`]: another version of MQTT (3.1 with
/// its name `MQIsdp` among them); answer CONNACK 0x84 or return code 1, see [`refusal_version`].
pub fn connect_version(body: &[u8]) -> Result<Version, Error> {
    take_version(&mut Reader::new(body))
}

/// In which version to answer a CONNECT that [`read_connect`] refused: the level that the client named, or the nearest one
/// that exists. `None`: it is not MQTT or cut off before the level; close without CONNACK.
#[must_use]
pub fn refusal_version(body: &[u8]) -> Option<Version> {
    let mut reader = Reader::new(body);
    let name = reader.binary().ok()?;
    let level = reader.u8().ok()?;
    match name {
        b"MQTT" if level & !BRIDGE >= 5 => Some(Version::V5),
        b"MQTT" | b"MQIsdp" => Some(Version::V311),
        _ => None,
    }
}

fn take_version(reader: &mut Reader<'_>) -> Result<Version, Error> {
    let name = reader.binary()?;
    if name != b"MQTT" && name != b"MQIsdp" {
        return Err(Kind::ProtocolName.into());
    }
    match (name, reader.u8()?) {
        (b"MQTT", 4) => Ok(Version::V311),
        (b"MQTT", 5) => Ok(Version::V5),
        _ => Err(Kind::ProtocolVersion.into()),
    }
}

/// Decodes a CONNECT of either version; it says itself which one ([`Connect::version`]).
///
/// # Errors
/// The rule that it breaks, with the reason code for CONNACK; see [`refusal_version`] for its version. A reason without 3.1.1
/// return code ([`super::ReasonCode::return_code`]): close without CONNACK.
pub fn read_connect<'a>(frame: Frame<'a>) -> Result<Connect<'a>, Error> {
    if frame.packet_type != PacketType::Connect {
        return Err(Kind::ConnectExpected.into());
    }
    let mut reader = Reader::new(frame.body);
    let version = take_version(&mut reader)?;
    let flags = reader.u8()?;
    check_flags(version, flags)?;
    let clean_start = flags & flag::CLEAN_START != 0;
    let mut connect = Connect::new(version, "", clean_start);
    connect.keep_alive_sec = reader.u16()?;
    if version == Version::V5 {
        let mut properties = Properties::take(properties::CONNECT, &mut reader)?;
        while let Some(property) = properties.next()? {
            connect.set(property);
        }
        connect.user_properties = properties.user();
        if connect.authentication_data.is_some() && connect.authentication_method.is_none() {
            return Err(Kind::AuthenticationDataWithoutMethod.into());
        }
    }
    connect.client_id = reader.string()?;
    if flags & flag::WILL != 0 {
        connect.will = Some(read_will(version, flags, &mut reader)?);
    }
    if flags & flag::USER_NAME != 0 {
        connect.login.user_name = Some(reader.string()?);
    }
    if flags & flag::PASSWORD != 0 {
        connect.login.password = Some(reader.binary()?);
    }
    reader.end()?;
    if version == Version::V311 && connect.client_id.is_empty() && !clean_start {
        return Err(Kind::ClientIdentifier.into());
    }
    Ok(connect)
}

fn check_flags(version: Version, flags: u8) -> Result<(), Error> {
    if flags & flag::RESERVED != 0 {
        return Err(Kind::ConnectFlags.into());
    }
    if flags & flag::WILL == 0 && flags & (flag::WILL_QOS | flag::WILL_RETAIN) != 0 {
        return Err(Kind::WillFlags.into());
    }
    if flags & flag::WILL_QOS == flag::WILL_QOS {
        return Err(Kind::WillQoS.into());
    }
    if version == Version::V311 && flags & flag::PASSWORD != 0 && flags & flag::USER_NAME == 0 {
        return Err(Kind::PasswordWithoutUserName.into());
    }
    Ok(())
}

fn read_will<'a>(version: Version, flags: u8, reader: &mut Reader<'a>) -> Result<Will<'a>, Error> {
    let mut will = Will {
        topic: "",
        payload: &[],
        qos: QoS::from_u8((flags & flag::WILL_QOS) >> 3).ok_or(Kind::WillQoS)?,
        retain: flags & flag::WILL_RETAIN != 0,
        delay_sec: 0,
        message_expiry_sec: None,
        properties: &[],
        properties_collected: None,
    };
    if version == Version::V5 {
        let mut properties = Properties::take(properties::WILL, reader)?;
        while let Some(property) = properties.next()? {
            match property {
                Property::WillDelay(seconds) => will.delay_sec = seconds,
                Property::MessageExpiry(seconds) => will.message_expiry_sec = Some(seconds),
                _ => {}
            }
        }
        match properties::contiguous_forwarded(properties.raw()) {
            Some(run) => will.properties = run,
            None => {
                let mut collected = Vec::new();
                properties::collect_forwarded(properties.raw(), &mut collected);
                will.properties_collected = Some(collected);
            }
        }
    }
    will.topic = reader.topic_name(Kind::WillTopic)?;
    if will.topic.is_empty() {
        return Err(Kind::WillTopic.into());
    }
    will.payload = reader.binary()?;
    Ok(will)
}

pub(super) fn write(version: Version, connect: &Connect<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    if version != connect.version {
        return Err(Kind::NotInVersion.into());
    }
    write_packet(version, connect, out)
}

impl Body for Connect<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Connect.first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        if self.session_expiry_sec != 0 {
            Property::SessionExpiry(self.session_expiry_sec).put(sink);
        }
        if self.receive_maximum != 65_535 {
            Property::ReceiveMaximum(self.receive_maximum).put(sink);
        }
        if self.maximum_packet_size != u32::MAX {
            Property::MaximumPacketSize(self.maximum_packet_size).put(sink);
        }
        if self.topic_alias_maximum != 0 {
            Property::TopicAliasMaximum(self.topic_alias_maximum).put(sink);
        }
        if self.request_response_information {
            Property::RequestResponseInformation(true).put(sink);
        }
        if !self.request_problem_information {
            Property::RequestProblemInformation(false).put(sink);
        }
        if let Some(text) = self.authentication_method {
            Property::AuthenticationMethod(text).put(sink);
        }
        if let Some(bytes) = self.authentication_data {
            if self.authentication_method.is_none() {
                sink.refuse(Kind::AuthenticationDataWithoutMethod);
            }
            Property::AuthenticationData(bytes).put(sink);
        }
        self.user_properties.put(sink);
    }

    fn body(&self, version: Version, properties_len: usize, sink: &mut impl Sink) {
        let flags = self.flags();
        if let Err(error) = check_flags(version, flags) {
            sink.refuse(error.kind);
        }
        if version == Version::V311 && self.client_id.is_empty() && !self.clean_start {
            sink.refuse(Kind::ClientIdentifier);
        }
        sink.string("MQTT");
        sink.u8(match version {
            Version::V311 => 4,
            Version::V5 => 5,
        });
        sink.u8(flags);
        sink.u16(self.keep_alive_sec);
        if version == Version::V5 {
            sink.varint(properties_len);
            self.properties(sink);
        }
        sink.string(self.client_id);
        if let Some(will) = &self.will {
            will.put(version, sink);
        }
        if let Some(name) = self.login.user_name {
            sink.string(name);
        }
        if let Some(password) = self.login.password {
            sink.binary(password);
        }
    }
}
