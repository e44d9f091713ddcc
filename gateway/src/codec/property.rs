//! One MQTT 5 property (§2.2.2.2): its identifier, its type and the rules for its value.

use super::primitive::Reader;
use super::sink::Sink;
use super::{Error, Kind};

/// Property identifiers (§2.2.2.2, table 2-4).
pub(super) mod id {
    pub(in super::super) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(in super::super) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(in super::super) const CONTENT_TYPE: u8 = 0x03;
    pub(in super::super) const RESPONSE_TOPIC: u8 = 0x08;
    pub(in super::super) const CORRELATION_DATA: u8 = 0x09;
    pub(in super::super) const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
    pub(in super::super) const SESSION_EXPIRY: u8 = 0x11;
    pub(in super::super) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(in super::super) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(in super::super) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(in super::super) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(in super::super) const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub(in super::super) const WILL_DELAY: u8 = 0x18;
    pub(in super::super) const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub(in super::super) const RESPONSE_INFORMATION: u8 = 0x1A;
    pub(in super::super) const SERVER_REFERENCE: u8 = 0x1C;
    pub(in super::super) const REASON_STRING: u8 = 0x1F;
    pub(in super::super) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(in super::super) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(in super::super) const TOPIC_ALIAS: u8 = 0x23;
    pub(in super::super) const MAXIMUM_QOS: u8 = 0x24;
    pub(in super::super) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(in super::super) const USER: u8 = 0x26;
    pub(in super::super) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub(in super::super) const WILDCARD_SUBSCRIPTION_AVAILABLE: u8 = 0x28;
    pub(in super::super) const SUBSCRIPTION_IDENTIFIERS_AVAILABLE: u8 = 0x29;
    pub(in super::super) const SHARED_SUBSCRIPTION_AVAILABLE: u8 = 0x2A;
    /// The largest one.
    pub(in super::super) const LAST: u8 = SHARED_SUBSCRIPTION_AVAILABLE;
}

/// A property with a legal value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Property<'a> {
    /// Whether the payload is UTF-8.
    PayloadFormat(bool),
    MessageExpiry(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    SubscriptionIdentifier(u32),
    SessionExpiry(u32),
    AssignedClientId(&'a str),
    ServerKeepAlive(u16),
    AuthenticationMethod(&'a str),
    AuthenticationData(&'a [u8]),
    RequestProblemInformation(bool),
    WillDelay(u32),
    RequestResponseInformation(bool),
    ResponseInformation(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    ReceiveMaximum(u16),
    TopicAliasMaximum(u16),
    TopicAlias(u16),
    MaximumQoS(u8),
    RetainAvailable(bool),
    User(&'a str, &'a str),
    MaximumPacketSize(u32),
    WildcardSubscriptionAvailable(bool),
    SubscriptionIdentifiersAvailable(bool),
    SharedSubscriptionAvailable(bool),
}

impl<'a> Property<'a> {
    /// The value behind identifier `id`.
    ///
    /// # Errors
    /// Unknown identifier, value that is cut off or against its rule.
    pub(super) fn read(id: u8, reader: &mut Reader<'a>) -> Result<Self, Error> {
        Ok(match id {
            id::PAYLOAD_FORMAT => Self::PayloadFormat(flag(reader)?),
            id::MESSAGE_EXPIRY => Self::MessageExpiry(reader.u32()?),
            id::CONTENT_TYPE => Self::ContentType(reader.string()?),
            id::RESPONSE_TOPIC => Self::ResponseTopic(response_topic(reader)?),
            id::CORRELATION_DATA => Self::CorrelationData(reader.binary()?),
            id::SUBSCRIPTION_IDENTIFIER => {
                Self::SubscriptionIdentifier(non_zero(reader.varint()?, Kind::SubscriptionIdentifierZero)?)
            }
            id::SESSION_EXPIRY => Self::SessionExpiry(reader.u32()?),
            id::ASSIGNED_CLIENT_ID => Self::AssignedClientId(reader.string()?),
            id::SERVER_KEEP_ALIVE => Self::ServerKeepAlive(reader.u16()?),
            id::AUTHENTICATION_METHOD => Self::AuthenticationMethod(reader.string()?),
            id::AUTHENTICATION_DATA => Self::AuthenticationData(reader.binary()?),
            id::REQUEST_PROBLEM_INFORMATION => Self::RequestProblemInformation(flag(reader)?),
            id::WILL_DELAY => Self::WillDelay(reader.u32()?),
            id::REQUEST_RESPONSE_INFORMATION => Self::RequestResponseInformation(flag(reader)?),
            id::RESPONSE_INFORMATION => Self::ResponseInformation(reader.string()?),
            id::SERVER_REFERENCE => Self::ServerReference(reader.string()?),
            id::REASON_STRING => Self::ReasonString(reader.string()?),
            id::RECEIVE_MAXIMUM => Self::ReceiveMaximum(non_zero(reader.u16()?, Kind::ReceiveMaximumZero)?),
            id::TOPIC_ALIAS_MAXIMUM => Self::TopicAliasMaximum(reader.u16()?),
            id::TOPIC_ALIAS => Self::TopicAlias(non_zero(reader.u16()?, Kind::TopicAliasZero)?),
            id::MAXIMUM_QOS => Self::MaximumQoS(u8::from(flag(reader)?)),
            id::RETAIN_AVAILABLE => Self::RetainAvailable(flag(reader)?),
            id::USER => Self::User(reader.string()?, reader.string()?),
            id::MAXIMUM_PACKET_SIZE => {
                Self::MaximumPacketSize(non_zero(reader.u32()?, Kind::MaximumPacketSizeZero)?)
            }
            id::WILDCARD_SUBSCRIPTION_AVAILABLE => Self::WildcardSubscriptionAvailable(flag(reader)?),
            id::SUBSCRIPTION_IDENTIFIERS_AVAILABLE => Self::SubscriptionIdentifiersAvailable(flag(reader)?),
            id::SHARED_SUBSCRIPTION_AVAILABLE => Self::SharedSubscriptionAvailable(flag(reader)?),
            _ => return Err(Kind::PropertyUnknown.into()),
        })
    }

    /// Identifier and value.
    pub(super) fn put(self, sink: &mut impl Sink) {
        match self {
            Self::PayloadFormat(value) => put_flag(sink, id::PAYLOAD_FORMAT, value),
            Self::MessageExpiry(value) => put_u32(sink, id::MESSAGE_EXPIRY, value),
            Self::ContentType(text) => put_string(sink, id::CONTENT_TYPE, text),
            Self::ResponseTopic(text) => put_string(sink, id::RESPONSE_TOPIC, text),
            Self::CorrelationData(bytes) => put_binary(sink, id::CORRELATION_DATA, bytes),
            Self::SubscriptionIdentifier(value) => put_identifier(sink, value),
            Self::SessionExpiry(value) => put_u32(sink, id::SESSION_EXPIRY, value),
            Self::AssignedClientId(text) => put_string(sink, id::ASSIGNED_CLIENT_ID, text),
            Self::ServerKeepAlive(value) => put_u16(sink, id::SERVER_KEEP_ALIVE, value),
            Self::AuthenticationMethod(text) => put_string(sink, id::AUTHENTICATION_METHOD, text),
            Self::AuthenticationData(bytes) => put_binary(sink, id::AUTHENTICATION_DATA, bytes),
            Self::RequestProblemInformation(value) => put_flag(sink, id::REQUEST_PROBLEM_INFORMATION, value),
            Self::WillDelay(value) => put_u32(sink, id::WILL_DELAY, value),
            Self::RequestResponseInformation(value) => {
                put_flag(sink, id::REQUEST_RESPONSE_INFORMATION, value);
            }
            Self::ResponseInformation(text) => put_string(sink, id::RESPONSE_INFORMATION, text),
            Self::ServerReference(text) => put_string(sink, id::SERVER_REFERENCE, text),
            Self::ReasonString(text) => put_string(sink, id::REASON_STRING, text),
            Self::ReceiveMaximum(value) => {
                refuse_zero(sink, u32::from(value), Kind::ReceiveMaximumZero);
                put_u16(sink, id::RECEIVE_MAXIMUM, value);
            }
            Self::TopicAliasMaximum(value) => put_u16(sink, id::TOPIC_ALIAS_MAXIMUM, value),
            Self::TopicAlias(value) => {
                refuse_zero(sink, u32::from(value), Kind::TopicAliasZero);
                put_u16(sink, id::TOPIC_ALIAS, value);
            }
            Self::MaximumQoS(value) => {
                if value > 1 {
                    sink.refuse(Kind::PropertyValue);
                }
                sink.raw(&[id::MAXIMUM_QOS, value]);
            }
            Self::RetainAvailable(value) => put_flag(sink, id::RETAIN_AVAILABLE, value),
            Self::User(name, value) => {
                put_string(sink, id::USER, name);
                sink.string(value);
            }
            Self::MaximumPacketSize(value) => {
                refuse_zero(sink, value, Kind::MaximumPacketSizeZero);
                put_u32(sink, id::MAXIMUM_PACKET_SIZE, value);
            }
            Self::WildcardSubscriptionAvailable(value) => {
                put_flag(sink, id::WILDCARD_SUBSCRIPTION_AVAILABLE, value);
            }
            Self::SubscriptionIdentifiersAvailable(value) => {
                put_flag(sink, id::SUBSCRIPTION_IDENTIFIERS_AVAILABLE, value);
            }
            Self::SharedSubscriptionAvailable(value) => {
                put_flag(sink, id::SHARED_SUBSCRIPTION_AVAILABLE, value);
            }
        }
    }
}

/// Steps over the value behind identifier `id`, without judging it.
///
/// # Errors
/// Unknown identifier or value that is cut off.
pub(super) fn skip(id: u8, reader: &mut Reader<'_>) -> Result<(), Error> {
    match id {
        id::PAYLOAD_FORMAT
        | id::REQUEST_PROBLEM_INFORMATION
        | id::REQUEST_RESPONSE_INFORMATION
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_SUBSCRIPTION_AVAILABLE
        | id::SUBSCRIPTION_IDENTIFIERS_AVAILABLE
        | id::SHARED_SUBSCRIPTION_AVAILABLE => reader.take(1).map(drop),
        id::SERVER_KEEP_ALIVE | id::RECEIVE_MAXIMUM | id::TOPIC_ALIAS_MAXIMUM | id::TOPIC_ALIAS => {
            reader.take(2).map(drop)
        }
        id::MESSAGE_EXPIRY | id::SESSION_EXPIRY | id::WILL_DELAY | id::MAXIMUM_PACKET_SIZE => {
            reader.take(4).map(drop)
        }
        id::SUBSCRIPTION_IDENTIFIER => reader.varint().map(drop),
        id::USER => {
            reader.binary()?;
            reader.binary().map(drop)
        }
        id::CONTENT_TYPE
        | id::RESPONSE_TOPIC
        | id::CORRELATION_DATA
        | id::ASSIGNED_CLIENT_ID
        | id::AUTHENTICATION_METHOD
        | id::AUTHENTICATION_DATA
        | id::RESPONSE_INFORMATION
        | id::SERVER_REFERENCE
        | id::REASON_STRING => reader.binary().map(drop),
        _ => Err(Kind::PropertyUnknown.into()),
    }
}

fn flag(reader: &mut Reader<'_>) -> Result<bool, Error> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Kind::PropertyValue.into()),
    }
}

fn response_topic<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Error> {
    match reader.topic_name(Kind::ResponseTopic)? {
        "" => Err(Kind::ResponseTopic.into()),
        topic => Ok(topic),
    }
}

fn non_zero<T: PartialEq + Default>(value: T, zero: Kind) -> Result<T, Error> {
    if value == T::default() { Err(zero.into()) } else { Ok(value) }
}

fn refuse_zero(sink: &mut impl Sink, value: u32, zero: Kind) {
    if value == 0 {
        sink.refuse(zero);
    }
}

fn put_flag(sink: &mut impl Sink, id: u8, value: bool) {
    sink.raw(&[id, u8::from(value)]);
}

fn put_u16(sink: &mut impl Sink, id: u8, value: u16) {
    sink.u8(id);
    sink.u16(value);
}

fn put_u32(sink: &mut impl Sink, id: u8, value: u32) {
    sink.u8(id);
    sink.u32(value);
}

fn put_identifier(sink: &mut impl Sink, value: u32) {
    refuse_zero(sink, value, Kind::SubscriptionIdentifierZero);
    sink.u8(id::SUBSCRIPTION_IDENTIFIER);
    sink.varint(value as usize);
}

fn put_string(sink: &mut impl Sink, id: u8, text: &str) {
    sink.u8(id);
    sink.string(text);
}

fn put_binary(sink: &mut impl Sink, id: u8, bytes: &[u8]) {
    sink.u8(id);
    sink.binary(bytes);
}
