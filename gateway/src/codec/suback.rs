//! SUBACK (§3.9).

use super::ack::{put_reason_properties, read_reason_properties};
use super::primitive::Reader;
use super::properties::UserProperties;
use super::sink::{Body, Sink, write_packet};
use super::{Error, Frame, From, Kind, PacketType, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubAck<'a> {
    pub packet_id: u16,
    /// One reason code per filter: 0 to 2 granted, ≥ 0x80 refused. 3.1.1 knows 0x80 only: every other refusal is encoded as that.
    pub reasons: &'a [u8],
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}

impl<'a> SubAck<'a> {
    /// A SUBACK without properties.
    #[must_use]
    pub const fn new(packet_id: u16, reasons: &'a [u8]) -> Self {
        Self { packet_id, reasons, reason_string: None, user_properties: UserProperties::EMPTY }
    }
}

pub(super) fn read<'a>(version: Version, frame: Frame<'a>) -> Result<SubAck<'a>, Error> {
    let mut reader = Reader::new(frame.body);
    let mut suback = SubAck::new(reader.packet_id()?, &[]);
    if version == Version::V5 {
        (suback.reason_string, suback.user_properties) = read_reason_properties(&mut reader)?;
    }
    suback.reasons = reader.rest();
    check_reasons(suback.reasons)?;
    if version == Version::V311 && suback.reasons.iter().any(|&code| code > 0x80) {
        return Err(Kind::ReasonCode.into());
    }
    Ok(suback)
}

fn check_reasons(reasons: &[u8]) -> Result<(), Error> {
    if reasons.is_empty() {
        return Err(Kind::ReasonsMissing.into());
    }
    for &code in reasons {
        ReasonCode::read(code, PacketType::SubAck, From::Server)?;
    }
    Ok(())
}

pub(super) fn write(version: Version, suback: &SubAck<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    check_reasons(suback.reasons)?;
    write_packet(version, suback, out)
}

impl Body for SubAck<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::SubAck.first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        put_reason_properties(self.reason_string, &self.user_properties, sink);
    }

    fn body(&self, version: Version, properties_len: usize, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        match version {
            Version::V311 => {
                for &code in self.reasons {
                    sink.u8(code.min(ReasonCode::UnspecifiedError.code()));
                }
            }
            Version::V5 => {
                sink.varint(properties_len);
                self.properties(sink);
                sink.raw(self.reasons);
            }
        }
    }
}
