//! UNSUBACK (§3.11); 3.1.1 has no reason codes in it.

use super::ack::{put_reason_properties, read_reason_properties};
use super::primitive::Reader;
use super::properties::UserProperties;
use super::sink::{Body, Sink, write_packet};
use super::{Error, Frame, From, Kind, PacketType, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    pub packet_id: u16,
    /// One reason code per filter; empty when decoded from 3.1.1 and left out when encoded for it.
    pub reasons: &'a [u8],
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}

impl<'a> UnsubAck<'a> {
    /// An UNSUBACK without properties.
    #[must_use]
    pub const fn new(packet_id: u16, reasons: &'a [u8]) -> Self {
        Self { packet_id, reasons, reason_string: None, user_properties: UserProperties::EMPTY }
    }
}

pub(super) fn read<'a>(version: Version, frame: Frame<'a>) -> Result<UnsubAck<'a>, Error> {
    let mut reader = Reader::new(frame.body);
    let mut unsuback = UnsubAck::new(reader.packet_id()?, &[]);
    match version {
        Version::V311 => reader.end()?,
        Version::V5 => {
            (unsuback.reason_string, unsuback.user_properties) = read_reason_properties(&mut reader)?;
            unsuback.reasons = reader.rest();
            check_reasons(unsuback.reasons)?;
        }
    }
    Ok(unsuback)
}

fn check_reasons(reasons: &[u8]) -> Result<(), Error> {
    if reasons.is_empty() {
        return Err(Kind::ReasonsMissing.into());
    }
    for &code in reasons {
        ReasonCode::read(code, PacketType::UnsubAck, From::Server)?;
    }
    Ok(())
}

pub(super) fn write(version: Version, unsuback: &UnsubAck<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    if version == Version::V5 {
        check_reasons(unsuback.reasons)?;
    }
    write_packet(version, unsuback, out)
}

impl Body for UnsubAck<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::UnsubAck.first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        put_reason_properties(self.reason_string, &self.user_properties, sink);
    }

    fn body(&self, version: Version, properties_len: usize, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        if version == Version::V5 {
            sink.varint(properties_len);
            self.properties(sink);
            sink.raw(self.reasons);
        }
    }
}
