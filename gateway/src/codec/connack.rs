//! CONNACK (§3.2).

use super::primitive::Reader;
use super::properties::{self, Properties, UserProperties};
use super::property::Property;
use super::sink::{Body, Sink, write_packet};
use super::{Error, Frame, From, Kind, PacketType, ReasonCode, Version};

/// A CONNACK. For 3.1.1 the reason maps to its return code ([`ReasonCode::return_code`]): 0x84→1, 0x85→2, 0x88/0x89/0x97→3,
/// 0x86→4, 0x87→5; a reason without one cannot be encoded (close without CONNACK), and no property is.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnAck<'a> {
    pub session_present: bool,
    pub reason: ReasonCode,
    pub session_expiry_sec: Option<u32>,
    /// 65,535 when absent.
    pub receive_maximum: u16,
    /// `None`: 2.
    pub maximum_qos: Option<u8>,
    pub retain_available: bool,
    pub maximum_packet_size: Option<u32>,
    pub assigned_client_id: Option<&'a str>,
    pub topic_alias_maximum: u16,
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
    pub wildcard_subscription_available: bool,
    pub subscription_identifiers_available: bool,
    pub shared_subscription_available: bool,
    pub server_keep_alive_sec: Option<u16>,
    pub response_information: Option<&'a str>,
    pub server_reference: Option<&'a str>,
    pub authentication_method: Option<&'a str>,
    pub authentication_data: Option<&'a [u8]>,
}

impl ConnAck<'_> {
    /// A CONNACK with every property absent.
    #[must_use]
    pub const fn new(reason: ReasonCode, session_present: bool) -> Self {
        Self {
            session_present,
            reason,
            session_expiry_sec: None,
            receive_maximum: 65_535,
            maximum_qos: None,
            retain_available: true,
            maximum_packet_size: None,
            assigned_client_id: None,
            topic_alias_maximum: 0,
            reason_string: None,
            user_properties: UserProperties::EMPTY,
            wildcard_subscription_available: true,
            subscription_identifiers_available: true,
            shared_subscription_available: true,
            server_keep_alive_sec: None,
            response_information: None,
            server_reference: None,
            authentication_method: None,
            authentication_data: None,
        }
    }
}

impl<'a> ConnAck<'a> {
    fn set(&mut self, property: Property<'a>) {
        match property {
            Property::SessionExpiry(value) => self.session_expiry_sec = Some(value),
            Property::ReceiveMaximum(value) => self.receive_maximum = value,
            Property::MaximumQoS(value) => self.maximum_qos = Some(value),
            Property::RetainAvailable(value) => self.retain_available = value,
            Property::MaximumPacketSize(value) => self.maximum_packet_size = Some(value),
            Property::AssignedClientId(text) => self.assigned_client_id = Some(text),
            Property::TopicAliasMaximum(value) => self.topic_alias_maximum = value,
            Property::ReasonString(text) => self.reason_string = Some(text),
            Property::WildcardSubscriptionAvailable(value) => self.wildcard_subscription_available = value,
            Property::SubscriptionIdentifiersAvailable(value) => {
                self.subscription_identifiers_available = value;
            }
            Property::SharedSubscriptionAvailable(value) => self.shared_subscription_available = value,
            Property::ServerKeepAlive(value) => self.server_keep_alive_sec = Some(value),
            Property::ResponseInformation(text) => self.response_information = Some(text),
            Property::ServerReference(text) => self.server_reference = Some(text),
            Property::AuthenticationMethod(text) => self.authentication_method = Some(text),
            Property::AuthenticationData(bytes) => self.authentication_data = Some(bytes),
            _ => {}
        }
    }

    fn put_limits(&self, sink: &mut impl Sink) {
        if let Some(value) = self.session_expiry_sec {
            Property::SessionExpiry(value).put(sink);
        }
        if self.receive_maximum != 65_535 {
            Property::ReceiveMaximum(self.receive_maximum).put(sink);
        }
        if let Some(value) = self.maximum_qos {
            Property::MaximumQoS(value).put(sink);
        }
        if !self.retain_available {
            Property::RetainAvailable(false).put(sink);
        }
        if let Some(value) = self.maximum_packet_size {
            Property::MaximumPacketSize(value).put(sink);
        }
        if let Some(text) = self.assigned_client_id {
            Property::AssignedClientId(text).put(sink);
        }
        if self.topic_alias_maximum != 0 {
            Property::TopicAliasMaximum(self.topic_alias_maximum).put(sink);
        }
        if !self.wildcard_subscription_available {
            Property::WildcardSubscriptionAvailable(false).put(sink);
        }
        if !self.subscription_identifiers_available {
            Property::SubscriptionIdentifiersAvailable(false).put(sink);
        }
        if !self.shared_subscription_available {
            Property::SharedSubscriptionAvailable(false).put(sink);
        }
        if let Some(value) = self.server_keep_alive_sec {
            Property::ServerKeepAlive(value).put(sink);
        }
    }
}

pub(super) fn read<'a>(version: Version, frame: Frame<'a>) -> Result<ConnAck<'a>, Error> {
    let mut reader = Reader::new(frame.body);
    let flags = reader.u8()?;
    let code = reader.u8()?;
    if flags & 0xFE != 0 {
        return Err(Kind::ConnAckFlags.into());
    }
    let reason = match version {
        Version::V311 => ReasonCode::from_return_code(code).ok_or(Kind::ReasonCode)?,
        Version::V5 => ReasonCode::read(code, PacketType::ConnAck, From::Server)?,
    };
    let mut connack = ConnAck::new(reason, flags == 1);
    if connack.session_present && reason != ReasonCode::Success {
        return Err(Kind::SessionPresent.into());
    }
    if version == Version::V5 {
        let mut properties = Properties::take(properties::CONNACK, &mut reader)?;
        while let Some(property) = properties.next()? {
            connack.set(property);
        }
        connack.user_properties = properties.user();
        if connack.authentication_data.is_some() && connack.authentication_method.is_none() {
            return Err(Kind::AuthenticationDataWithoutMethod.into());
        }
    }
    reader.end()?;
    Ok(connack)
}

pub(super) fn write(version: Version, connack: &ConnAck<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    write_packet(version, connack, out)
}

impl Body for ConnAck<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::ConnAck.first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        self.put_limits(sink);
        if let Some(text) = self.response_information {
            Property::ResponseInformation(text).put(sink);
        }
        if let Some(text) = self.server_reference {
            Property::ServerReference(text).put(sink);
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
        super::ack::put_reason_properties(self.reason_string, &self.user_properties, sink);
    }

    fn body(&self, version: Version, properties_len: usize, sink: &mut impl Sink) {
        if self.session_present && self.reason != ReasonCode::Success {
            sink.refuse(Kind::SessionPresent);
        }
        sink.u8(u8::from(self.session_present));
        match version {
            Version::V311 => match self.reason.return_code() {
                Some(code) => sink.u8(code),
                None => sink.refuse(Kind::NotInVersion),
            },
            Version::V5 => {
                if !self.reason.encodable_in(PacketType::ConnAck) {
                    sink.refuse(Kind::ReasonCode);
                }
                sink.u8(self.reason.code());
                sink.varint(properties_len);
                self.properties(sink);
            }
        }
    }
}
