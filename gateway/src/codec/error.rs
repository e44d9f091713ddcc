//! What is wrong with a packet, and what to answer.

use thiserror::Error;

use super::ReasonCode;

/// A packet that breaks a rule. MQTT 5: answer with `reason` (CONNACK before the session, DISCONNECT after) and close;
/// 3.1.1: close, except for 0x84 and 0x85 in CONNECT, which have a return code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{kind} (reason {reason:?})")]
pub struct Error {
    pub kind: Kind,
    pub reason: ReasonCode,
}

impl From<Kind> for Error {
    #[cold]
    fn from(kind: Kind) -> Self {
        Self { kind, reason: kind.reason() }
    }
}

/// The rule that was broken. One variant a rule; tests name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Kind {
    // Fixed header.
    #[error("reserved packet type [MQTT-2.1.2]")]
    PacketType,
    #[error("reserved flags of the fixed header are not as required [MQTT-2.1.3-1]")]
    Flags,
    #[error("PUBLISH with both QoS bits set [MQTT-3.3.1-4]")]
    PublishQoS,
    #[error("DUP set in a PUBLISH of QoS 0 [MQTT-3.3.1-2]")]
    DupWithQoS0,
    #[error("variable byte integer of more than four bytes [MQTT-1.5.5]")]
    VarintTooLong,
    #[error("variable byte integer is not encoded with the fewest bytes [MQTT-1.5.5-1]")]
    VarintNotMinimal,
    #[error("packet exceeds the maximum packet size [MQTT-3.1.2-24]")]
    PacketTooLarge,
    #[error("packet type may not come from this side")]
    Direction,
    #[error("first packet is not CONNECT [MQTT-3.1.0-1]")]
    ConnectExpected,

    // Fields.
    #[error("a field reaches beyond the packet")]
    Truncated,
    #[error("bytes behind the last field")]
    TrailingBytes,
    #[error("string is not well-formed UTF-8 [MQTT-1.5.4-1]")]
    Utf8,
    #[error("string contains U+0000 [MQTT-1.5.4-2]")]
    NulCharacter,
    #[error("packet identifier is zero [MQTT-2.2.1-3]")]
    PacketIdZero,
    #[error("reason code is not one of this packet and sender")]
    ReasonCode,

    // Properties.
    #[error("unknown property identifier [MQTT-2.2.2.2]")]
    PropertyUnknown,
    #[error("property is not allowed in this packet [MQTT-2.2.2.2]")]
    PropertyNotAllowed,
    #[error("property may not come from this side")]
    PropertyDirection,
    #[error("property occurs more than once")]
    PropertyDuplicate,
    #[error("property value is neither 0 nor 1")]
    PropertyValue,
    #[error("receive maximum is zero (MQTT 5 §3.1.2.11.3)")]
    ReceiveMaximumZero,
    #[error("maximum packet size is zero (MQTT 5 §3.1.2.11.4)")]
    MaximumPacketSizeZero,
    #[error("topic alias is zero [MQTT-3.3.2-8]")]
    TopicAliasZero,
    #[error("subscription identifier is zero (MQTT 5 §3.8.2.1.2)")]
    SubscriptionIdentifierZero,
    #[error("response topic is empty or contains a wildcard [MQTT-3.3.2-14]")]
    ResponseTopic,
    #[error("authentication data without authentication method (MQTT 5 §3.1.2.11.10)")]
    AuthenticationDataWithoutMethod,
    #[error("AUTH without authentication method (MQTT 5 §3.15.2.2.2)")]
    AuthenticationMethodMissing,

    // CONNECT.
    #[error("protocol name is not MQTT [MQTT-3.1.2-1]")]
    ProtocolName,
    #[error("protocol level is not supported [MQTT-3.1.2-2]")]
    ProtocolVersion,
    #[error("reserved connect flag is set [MQTT-3.1.2-3]")]
    ConnectFlags,
    #[error("will QoS or will retain without will flag [MQTT-3.1.2-11] [MQTT-3.1.2-13]")]
    WillFlags,
    #[error("will QoS is 3 [MQTT-3.1.2-12]")]
    WillQoS,
    #[error("password without user name [MQTT-3.1.2-22]")]
    PasswordWithoutUserName,
    #[error("empty client identifier without clean session [MQTT-3.1.3-8]")]
    ClientIdentifier,
    #[error("will topic is empty or contains a wildcard (§4.7)")]
    WillTopic,

    // CONNACK.
    #[error("reserved connect acknowledge flags are set [MQTT-3.2.2-1]")]
    ConnAckFlags,
    #[error("session present in a refusal [MQTT-3.2.2-6]")]
    SessionPresent,

    // PUBLISH.
    #[error("empty topic name without topic alias [MQTT-4.7.3-1]")]
    TopicMissing,
    #[error("topic name contains a wildcard [MQTT-3.3.2-2]")]
    TopicWildcard,
    #[error("payload is not the UTF-8 that its payload format indicator promises (MQTT 5 §3.3.2.3.2)")]
    PayloadFormat,

    // SUBSCRIBE, UNSUBSCRIBE and their acknowledgements.
    #[error("no topic filter [MQTT-3.8.3-2] [MQTT-3.10.3-2]")]
    FiltersMissing,
    #[error("empty topic filter [MQTT-4.7.3-1]")]
    FilterEmpty,
    #[error("more than 65,535 topic filters")]
    FiltersTooMany,
    #[error("reserved subscription option bits are set [MQTT-3.8.3-5]")]
    SubscriptionOptions,
    #[error("subscription QoS is 3 (§3.8.3.1)")]
    SubscriptionQoS,
    #[error("retain handling is 3 (MQTT 5 §3.8.3.1)")]
    RetainHandling,
    #[error("no local on a shared subscription [MQTT-3.8.3-4]")]
    NoLocalShared,
    #[error("acknowledgement without reason codes")]
    ReasonsMissing,

    // Encoding only.
    #[error("a string, binary value or packet is longer than its length field can say")]
    TooLong,
    #[error("this packet or value does not exist in this protocol version")]
    NotInVersion,
}

impl Kind {
    /// The reason code that MQTT 5 asks for.
    #[must_use]
    pub const fn reason(self) -> ReasonCode {
        match self {
            Self::PacketType
            | Self::Flags
            | Self::PublishQoS
            | Self::DupWithQoS0
            | Self::VarintTooLong
            | Self::VarintNotMinimal
            | Self::Truncated
            | Self::TrailingBytes
            | Self::Utf8
            | Self::NulCharacter
            | Self::PropertyUnknown
            | Self::PropertyNotAllowed
            | Self::ProtocolName
            | Self::ConnectFlags
            | Self::WillFlags
            | Self::WillQoS
            | Self::PasswordWithoutUserName
            | Self::ConnAckFlags
            | Self::FilterEmpty
            | Self::SubscriptionOptions => ReasonCode::MalformedPacket,
            Self::Direction
            | Self::ConnectExpected
            | Self::PacketIdZero
            | Self::ReasonCode
            | Self::PropertyDirection
            | Self::PropertyDuplicate
            | Self::PropertyValue
            | Self::ReceiveMaximumZero
            | Self::MaximumPacketSizeZero
            | Self::SubscriptionIdentifierZero
            | Self::ResponseTopic
            | Self::AuthenticationDataWithoutMethod
            | Self::AuthenticationMethodMissing
            | Self::SessionPresent
            | Self::TopicMissing
            | Self::FiltersMissing
            | Self::SubscriptionQoS
            | Self::RetainHandling
            | Self::NoLocalShared
            | Self::ReasonsMissing
            | Self::NotInVersion => ReasonCode::ProtocolError,
            Self::ProtocolVersion => ReasonCode::UnsupportedProtocolVersion,
            Self::ClientIdentifier => ReasonCode::ClientIdentifierNotValid,
            Self::WillTopic | Self::TopicWildcard => ReasonCode::TopicNameInvalid,
            Self::TopicAliasZero => ReasonCode::TopicAliasInvalid,
            Self::PacketTooLarge | Self::TooLong => ReasonCode::PacketTooLarge,
            Self::FiltersTooMany => ReasonCode::QuotaExceeded,
            Self::PayloadFormat => ReasonCode::PayloadFormatInvalid,
        }
    }
}
