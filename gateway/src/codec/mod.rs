//! MQTT 3.1.1 and 5 packets ↔ bytes: strict, borrowed on decode, exact on encode. One file per packet, tables for what
//! is allowed (fixed-header flags, properties per packet, reason codes per packet).
//!
//! Only [`frame`] may say "wait for more"; inside a complete frame everything is either right or a typed [`Error`].

mod ack;
mod auth;
mod connack;
mod connect;
mod disconnect;
mod error;
mod frame;
mod ping;
mod primitive;
mod properties;
mod publish;
mod reason;
mod suback;
mod subscribe;
mod template;
mod unsuback;
mod unsubscribe;

pub use ack::{Ack, AckType};
pub use auth::Auth;
pub use connack::ConnAck;
pub use connect::{Connect, Login, Will};
pub use disconnect::Disconnect;
pub use error::{Error, Kind};
pub use frame::{Frame, PacketType, frame};
pub use properties::{UserProperties, forwarded_properties};
pub use publish::Publish;
pub use reason::ReasonCode;
pub use suback::SubAck;
pub use subscribe::{Filters, RetainHandling, Subscribe, SubscribeFilter};
pub use template::PublishTemplate;
pub use unsuback::UnsubAck;
pub use unsubscribe::Unsubscribe;

/// Protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1.1 (level 4).
    V311,
    /// MQTT 5.0 (level 5).
    V5,
}

/// Who sent the packet: some packets and properties are legal in one direction only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum From {
    Client,
    Server,
}

/// Any packet, borrowed from the frame it was decoded from.
#[derive(Debug, Clone, PartialEq)]
pub enum Packet<'a> {
    Connect(Box<Connect<'a>>),
    ConnAck(Box<ConnAck<'a>>),
    Publish(Publish<'a>),
    /// PUBACK, PUBREC, PUBREL or PUBCOMP.
    Ack(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(UnsubAck<'a>),
    PingReq,
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// Decodes one complete frame.
///
/// # Errors
/// The rule that the packet breaks, with the reason code to answer with.
pub fn read<'a>(_version: Version, _from: From, _frame: Frame<'a>) -> Result<Packet<'a>, Error> {
    unimplemented!()
}

/// Appends the encoded packet to `out`.
///
/// # Errors
/// When the packet cannot be represented (too long, illegal for the version). `out` is unchanged then.
pub fn write(_version: Version, _packet: &Packet<'_>, _out: &mut Vec<u8>) -> Result<(), Error> {
    unimplemented!()
}
