//! MQTT 3.1.1 and 5 packets ↔ bytes: strict, borrowed on decode, exact on encode. One file per packet, tables for what
//! is allowed (fixed-header flags, properties per packet, reason codes per packet).
//!
//! A connection starts with [`first_frame`] and [`read_connect`], which finds the version out; then each turn cuts packets
//! with [`frame`] and decodes them with [`read`]. [`write`] encodes any packet; the hot ones have short cuts: [`read_publish`],
//! [`write_ack_short`], [`Delivery`] and [`PublishTemplate`].
//!
//! Only [`frame`] may say "wait for more"; inside a complete frame everything is either right or a typed [`Error`].

mod ack;
mod auth;
mod connack;
mod connect;
mod delivery;
mod disconnect;
mod error;
mod frame;
mod ping;
mod primitive;
mod properties;
mod property;
mod publish;
mod reason;
mod sink;
mod suback;
mod subscribe;
mod template;
mod unsuback;
mod unsubscribe;

pub use ack::{Ack, AckType, write_ack_short};
pub use auth::Auth;
pub use connack::ConnAck;
pub use connect::{Connect, Login, Will, connect_version, read_connect, refusal_version};
pub use delivery::Delivery;
pub use disconnect::Disconnect;
pub use error::{Error, Kind};
pub use frame::{Frame, PacketType, first_frame, frame};
pub use properties::{UserProperties, check_payload_format, forwarded_properties, subscription_identifiers};
pub use publish::{Publish, read_publish};
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

impl Packet<'_> {
    /// Its type.
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        match self {
            Self::Connect(_) => PacketType::Connect,
            Self::ConnAck(_) => PacketType::ConnAck,
            Self::Publish(_) => PacketType::Publish,
            Self::Ack(ack) => ack.ack_type.packet_type(),
            Self::Subscribe(_) => PacketType::Subscribe,
            Self::SubAck(_) => PacketType::SubAck,
            Self::Unsubscribe(_) => PacketType::Unsubscribe,
            Self::UnsubAck(_) => PacketType::UnsubAck,
            Self::PingReq => PacketType::PingReq,
            Self::PingResp => PacketType::PingResp,
            Self::Disconnect(_) => PacketType::Disconnect,
            Self::Auth(_) => PacketType::Auth,
        }
    }
}

impl PacketType {
    /// Whether `from` may send it (§2.1.2, table 2-1 "Direction of flow").
    #[must_use]
    #[inline]
    pub const fn may_come(self, version: Version, from: From) -> bool {
        match self {
            Self::Connect | Self::Subscribe | Self::Unsubscribe | Self::PingReq => {
                matches!(from, From::Client)
            }
            Self::ConnAck | Self::SubAck | Self::UnsubAck | Self::PingResp => matches!(from, From::Server),
            Self::Publish | Self::PubAck | Self::PubRec | Self::PubRel | Self::PubComp => true,
            Self::Disconnect => matches!((version, from), (Version::V5, _) | (_, From::Client)),
            Self::Auth => matches!(version, Version::V5),
        }
    }
}

/// Decodes one complete frame. A CONNECT is decoded in the version that it names itself.
///
/// # Errors
/// The rule that the packet breaks, with the reason code to answer with.
pub fn read<'a>(version: Version, from: From, frame: Frame<'a>) -> Result<Packet<'a>, Error> {
    if !frame.packet_type.may_come(version, from) {
        return Err(Kind::Direction.into());
    }
    let ack = |ack_type| ack::read(version, from, ack_type, frame).map(Packet::Ack);
    match frame.packet_type {
        PacketType::Publish => read_publish(version, from, frame).map(Packet::Publish),
        PacketType::PubAck => ack(AckType::PubAck),
        PacketType::PubRec => ack(AckType::PubRec),
        PacketType::PubRel => ack(AckType::PubRel),
        PacketType::PubComp => ack(AckType::PubComp),
        PacketType::Connect => read_connect(frame).map(|connect| Packet::Connect(Box::new(connect))),
        PacketType::ConnAck => {
            connack::read(version, frame).map(|connack| Packet::ConnAck(Box::new(connack)))
        }
        PacketType::Subscribe => subscribe::read(version, frame).map(Packet::Subscribe),
        PacketType::SubAck => suback::read(version, frame).map(Packet::SubAck),
        PacketType::Unsubscribe => unsubscribe::read(version, frame).map(Packet::Unsubscribe),
        PacketType::UnsubAck => unsuback::read(version, frame).map(Packet::UnsubAck),
        PacketType::PingReq => ping::check(frame).map(|()| Packet::PingReq),
        PacketType::PingResp => ping::check(frame).map(|()| Packet::PingResp),
        PacketType::Disconnect => disconnect::read(version, from, frame).map(Packet::Disconnect),
        PacketType::Auth => auth::read(from, frame).map(Packet::Auth),
    }
}

/// Appends the encoded packet to `out`.
///
/// # Errors
/// When the packet cannot be represented (too long, illegal for the version). `out` is unchanged then.
pub fn write(version: Version, packet: &Packet<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    match packet {
        Packet::Connect(connect) => connect::write(version, connect, out),
        Packet::ConnAck(connack) => connack::write(version, connack, out),
        Packet::Publish(publish) => publish::write(version, publish, out),
        Packet::Ack(ack) => ack::write(version, ack, out),
        Packet::Subscribe(subscribe) => subscribe::write(version, subscribe, out),
        Packet::SubAck(suback) => suback::write(version, suback, out),
        Packet::Unsubscribe(unsubscribe) => unsubscribe::write(version, unsubscribe, out),
        Packet::UnsubAck(unsuback) => unsuback::write(version, unsuback, out),
        Packet::PingReq => {
            ping::write(PacketType::PingReq, out);
            Ok(())
        }
        Packet::PingResp => {
            ping::write(PacketType::PingResp, out);
            Ok(())
        }
        Packet::Disconnect(disconnect) => disconnect::write(version, disconnect, out),
        Packet::Auth(auth) => auth::write(version, auth, out),
    }
}
