//! PUBACK, PUBREC, PUBREL and PUBCOMP (§3.4 to §3.7): one shape, four types.

use super::primitive::Reader;
use super::properties::{self, Properties, UserProperties};
use super::property::Property;
use super::sink::{Body, Sink, write_packet};
use super::{Error, Frame, From, Kind, PacketType, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AckType {
    PubAck,
    PubRec,
    PubRel,
    PubComp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    pub ack_type: AckType,
    pub packet_id: u16,
    pub reason: ReasonCode,
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}

impl AckType {
    /// Its packet type.
    #[must_use]
    pub const fn packet_type(self) -> PacketType {
        match self {
            Self::PubAck => PacketType::PubAck,
            Self::PubRec => PacketType::PubRec,
            Self::PubRel => PacketType::PubRel,
            Self::PubComp => PacketType::PubComp,
        }
    }
}

impl Ack<'_> {
    /// An acknowledgement without properties.
    #[must_use]
    pub const fn new(ack_type: AckType, packet_id: u16, reason: ReasonCode) -> Self {
        Self { ack_type, packet_id, reason, reason_string: None, user_properties: UserProperties::EMPTY }
    }
}

/// Appends an acknowledgement without properties: 4 bytes for Success and for every 3.1.1 one, else 5. A 3.1.1
/// acknowledgement has no reason code ([MQTT-3.3.5-2] of 3.1.1: acknowledge or close), so `reason` is left out there.
///
/// # Errors
/// Packet id 0, or a reason that this acknowledgement cannot carry. `out` is unchanged then.
#[inline]
pub fn write_ack_short(
    version: Version,
    ack_type: AckType,
    packet_id: u16,
    reason: ReasonCode,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    if packet_id == 0 {
        return Err(Kind::PacketIdZero.into());
    }
    let first = ack_type.packet_type().first_byte();
    let [high, low] = packet_id.to_be_bytes();
    if reason == ReasonCode::Success || version == Version::V311 {
        out.extend_from_slice(&[first, 2, high, low]);
        return Ok(());
    }
    if !reason.encodable_in(ack_type.packet_type()) {
        return Err(Kind::ReasonCode.into());
    }
    out.extend_from_slice(&[first, 3, high, low, reason.code()]);
    Ok(())
}

#[inline]
pub(super) fn read<'a>(
    version: Version,
    from: From,
    ack_type: AckType,
    frame: Frame<'a>,
) -> Result<Ack<'a>, Error> {
    let mut reader = Reader::new(frame.body);
    let mut ack = Ack::new(ack_type, reader.packet_id()?, ReasonCode::Success);
    if reader.is_empty() {
        return Ok(ack);
    }
    if version == Version::V311 {
        return Err(Kind::TrailingBytes.into());
    }
    ack.reason = ReasonCode::read(reader.u8()?, ack_type.packet_type(), from)?;
    if !reader.is_empty() {
        (ack.reason_string, ack.user_properties) = read_reason_properties(&mut reader)?;
        reader.end()?;
    }
    Ok(ack)
}

/// The properties of all acknowledgements: reason string and user properties.
pub(super) fn read_reason_properties<'a>(
    reader: &mut Reader<'a>,
) -> Result<(Option<&'a str>, UserProperties<'a>), Error> {
    let mut properties = Properties::take(properties::ACK, reader)?;
    let mut reason_string = None;
    while let Some(property) = properties.next()? {
        if let Property::ReasonString(text) = property {
            reason_string = Some(text);
        }
    }
    Ok((reason_string, properties.user()))
}

pub(super) fn put_reason_properties(
    reason_string: Option<&str>,
    user_properties: &UserProperties<'_>,
    sink: &mut impl Sink,
) {
    if let Some(text) = reason_string {
        Property::ReasonString(text).put(sink);
    }
    user_properties.put(sink);
}

pub(super) fn write(version: Version, ack: &Ack<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    if version == Version::V311 || (ack.reason_string.is_none() && ack.user_properties.raw.is_empty()) {
        return write_ack_short(version, ack.ack_type, ack.packet_id, ack.reason, out);
    }
    write_packet(version, ack, out)
}

impl Body for Ack<'_> {
    fn first_byte(&self) -> u8 {
        self.ack_type.packet_type().first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        put_reason_properties(self.reason_string, &self.user_properties, sink);
    }

    fn body(&self, _version: Version, properties_len: usize, sink: &mut impl Sink) {
        if !self.reason.encodable_in(self.ack_type.packet_type()) {
            sink.refuse(Kind::ReasonCode);
        }
        sink.packet_id(self.packet_id);
        sink.u8(self.reason.code());
        sink.varint(properties_len);
        self.properties(sink);
    }
}
