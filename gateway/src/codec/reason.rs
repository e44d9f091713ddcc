//! Reason codes of MQTT 5 §2.4, and the CONNACK return codes of 3.1.1 that they map to.

use super::{Error, From, Kind, PacketType};

/// A reason code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReasonCode {
    /// Success, Normal disconnection, Granted QoS 0.
    Success = 0x00,
    GrantedQoS1 = 0x01,
    GrantedQoS2 = 0x02,
    DisconnectWithWill = 0x04,
    NoMatchingSubscribers = 0x10,
    NoSubscriptionExisted = 0x11,
    ContinueAuthentication = 0x18,
    Reauthenticate = 0x19,
    UnspecifiedError = 0x80,
    MalformedPacket = 0x81,
    ProtocolError = 0x82,
    ImplementationSpecificError = 0x83,
    UnsupportedProtocolVersion = 0x84,
    ClientIdentifierNotValid = 0x85,
    BadUserNameOrPassword = 0x86,
    NotAuthorized = 0x87,
    ServerUnavailable = 0x88,
    ServerBusy = 0x89,
    Banned = 0x8A,
    ServerShuttingDown = 0x8B,
    BadAuthenticationMethod = 0x8C,
    KeepAliveTimeout = 0x8D,
    SessionTakenOver = 0x8E,
    TopicFilterInvalid = 0x8F,
    TopicNameInvalid = 0x90,
    PacketIdentifierInUse = 0x91,
    PacketIdentifierNotFound = 0x92,
    ReceiveMaximumExceeded = 0x93,
    TopicAliasInvalid = 0x94,
    PacketTooLarge = 0x95,
    MessageRateTooHigh = 0x96,
    QuotaExceeded = 0x97,
    AdministrativeAction = 0x98,
    PayloadFormatInvalid = 0x99,
    RetainNotSupported = 0x9A,
    QoSNotSupported = 0x9B,
    UseAnotherServer = 0x9C,
    ServerMoved = 0x9D,
    SharedSubscriptionsNotSupported = 0x9E,
    ConnectionRateExceeded = 0x9F,
    MaximumConnectTime = 0xA0,
    SubscriptionIdentifiersNotSupported = 0xA1,
    WildcardSubscriptionsNotSupported = 0xA2,
}

impl ReasonCode {
    /// Wire value.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The reason code with this wire value.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Success,
            0x01 => Self::GrantedQoS1,
            0x02 => Self::GrantedQoS2,
            0x04 => Self::DisconnectWithWill,
            0x10 => Self::NoMatchingSubscribers,
            0x11 => Self::NoSubscriptionExisted,
            0x18 => Self::ContinueAuthentication,
            0x19 => Self::Reauthenticate,
            0x80 => Self::UnspecifiedError,
            0x81 => Self::MalformedPacket,
            0x82 => Self::ProtocolError,
            0x83 => Self::ImplementationSpecificError,
            0x84 => Self::UnsupportedProtocolVersion,
            0x85 => Self::ClientIdentifierNotValid,
            0x86 => Self::BadUserNameOrPassword,
            0x87 => Self::NotAuthorized,
            0x88 => Self::ServerUnavailable,
            0x89 => Self::ServerBusy,
            0x8A => Self::Banned,
            0x8B => Self::ServerShuttingDown,
            0x8C => Self::BadAuthenticationMethod,
            0x8D => Self::KeepAliveTimeout,
            0x8E => Self::SessionTakenOver,
            0x8F => Self::TopicFilterInvalid,
            0x90 => Self::TopicNameInvalid,
            0x91 => Self::PacketIdentifierInUse,
            0x92 => Self::PacketIdentifierNotFound,
            0x93 => Self::ReceiveMaximumExceeded,
            0x94 => Self::TopicAliasInvalid,
            0x95 => Self::PacketTooLarge,
            0x96 => Self::MessageRateTooHigh,
            0x97 => Self::QuotaExceeded,
            0x98 => Self::AdministrativeAction,
            0x99 => Self::PayloadFormatInvalid,
            0x9A => Self::RetainNotSupported,
            0x9B => Self::QoSNotSupported,
            0x9C => Self::UseAnotherServer,
            0x9D => Self::ServerMoved,
            0x9E => Self::SharedSubscriptionsNotSupported,
            0x9F => Self::ConnectionRateExceeded,
            0xA0 => Self::MaximumConnectTime,
            0xA1 => Self::SubscriptionIdentifiersNotSupported,
            0xA2 => Self::WildcardSubscriptionsNotSupported,
            _ => return None,
        })
    }

    /// Whether it reports a failure.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.code() >= 0x80
    }

    /// Whether a packet of this type may carry it when sent by this side (the tables of §3.2.2.2, §3.4.2.1 to §3.15.2.1).
    /// Always false for packets without reason code.
    #[must_use]
    pub const fn allowed_in(self, packet_type: PacketType, from: From) -> bool {
        let codes = match (packet_type, from) {
            (PacketType::ConnAck, From::Server) => CONNACK,
            (PacketType::PubAck | PacketType::PubRec, _) => PUBACK,
            (PacketType::PubRel | PacketType::PubComp, _) => PUBREL,
            (PacketType::SubAck, From::Server) => SUBACK,
            (PacketType::UnsubAck, From::Server) => UNSUBACK,
            (PacketType::Disconnect, From::Client) => DISCONNECT_CLIENT,
            (PacketType::Disconnect, From::Server) => DISCONNECT_SERVER,
            (PacketType::Auth, From::Client) => AUTH_CLIENT,
            (PacketType::Auth, From::Server) => AUTH_SERVER,
            _ => return false,
        };
        codes.contains(self)
    }

    /// Return code of a 3.1.1 CONNACK (3.1.1 §3.2.2.3); `None`: there is none, close without CONNACK.
    #[must_use]
    pub const fn return_code(self) -> Option<u8> {
        match self {
            Self::Success => Some(0),
            Self::UnsupportedProtocolVersion => Some(1),
            Self::ClientIdentifierNotValid => Some(2),
            Self::ServerUnavailable
            | Self::ServerBusy
            | Self::QuotaExceeded
            | Self::ServerShuttingDown
            | Self::UseAnotherServer
            | Self::ServerMoved
            | Self::ConnectionRateExceeded => Some(3),
            Self::BadUserNameOrPassword => Some(4),
            Self::NotAuthorized | Self::Banned => Some(5),
            _ => None,
        }
    }

    /// The reason that a 3.1.1 return code stands for.
    #[must_use]
    pub const fn from_return_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Success),
            1 => Some(Self::UnsupportedProtocolVersion),
            2 => Some(Self::ClientIdentifierNotValid),
            3 => Some(Self::ServerUnavailable),
            4 => Some(Self::BadUserNameOrPassword),
            5 => Some(Self::NotAuthorized),
            _ => None,
        }
    }

    /// The reason code `code` of a packet, checked against the tables.
    ///
    /// # Errors
    /// [`Kind::ReasonCode`].
    pub(super) fn read(code: u8, packet_type: PacketType, from: From) -> Result<Self, Error> {
        match Self::from_code(code) {
            Some(reason) if reason.allowed_in(packet_type, from) => Ok(reason),
            _ => Err(Kind::ReasonCode.into()),
        }
    }

    /// Whether either side may send it in a packet of this type.
    pub(super) const fn encodable_in(self, packet_type: PacketType) -> bool {
        self.allowed_in(packet_type, From::Client) || self.allowed_in(packet_type, From::Server)
    }
}

/// A set of reason codes: those below and those from 0x80.
#[derive(Clone, Copy)]
struct Codes(u64, u64);

impl Codes {
    const fn new(codes: &[u8]) -> Self {
        let mut set = Self(0, 0);
        let mut at = 0;
        while at < codes.len() {
            match codes[at] {
                code @ 0..0x40 => set.0 |= 1 << code,
                code => set.1 |= 1 << (code - 0x80),
            }
            at += 1;
        }
        set
    }

    const fn contains(self, reason: ReasonCode) -> bool {
        match reason.code() {
            code @ 0..0x40 => self.0 & (1 << code) != 0,
            code => self.1 & (1 << (code - 0x80)) != 0,
        }
    }
}

const CONNACK: Codes = Codes::new(&[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99,
    0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
]);
const PUBACK: Codes = Codes::new(&[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]);
const PUBREL: Codes = Codes::new(&[0x00, 0x92]);
const SUBACK: Codes = Codes::new(&[0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2]);
const UNSUBACK: Codes = Codes::new(&[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]);
const DISCONNECT_CLIENT: Codes =
    Codes::new(&[0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]);
/// 0x8C is named for DISCONNECT in §2.4 and §4.12.1, though §3.14.2.1 leaves it out.
const DISCONNECT_SERVER: Codes = Codes::new(&[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96,
    0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
]);
const AUTH_CLIENT: Codes = Codes::new(&[0x18, 0x19]);
const AUTH_SERVER: Codes = Codes::new(&[0x00, 0x18]);
