//! DISCONNECT (§3.14).

use super::primitive::Reader;
use super::properties::{Allowed, Properties, UserProperties};
use super::property::Property;
use super::sink::{Body, Sink, write_packet};
use super::{Error, Frame, From, Kind, PacketType, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect<'a> {
    pub reason: ReasonCode,
    pub session_expiry_sec: Option<u32>,
    pub reason_string: Option<&'a str>,
    pub server_reference: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}

impl Disconnect<'_> {
    /// A DISCONNECT without properties.
    #[must_use]
    pub const fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            session_expiry_sec: None,
            reason_string: None,
            server_reference: None,
            user_properties: UserProperties::EMPTY,
        }
    }
}

pub(super) fn read<'a>(version: Version, from: From, frame: Frame<'a>) -> Result<Disconnect<'a>, Error> {
    let mut reader = Reader::new(frame.body);
    let mut disconnect = Disconnect::new(ReasonCode::Success);
    if reader.is_empty() {
        return Ok(disconnect);
    }
    if version == Version::V311 {
        return Err(Kind::TrailingBytes.into());
    }
    disconnect.reason = ReasonCode::read(reader.u8()?, PacketType::Disconnect, from)?;
    if reader.is_empty() {
        return Ok(disconnect);
    }
    let mut properties = Properties::take(Allowed::disconnect(from), &mut reader)?;
    while let Some(property) = properties.next()? {
        match property {
            Property::SessionExpiry(seconds) => disconnect.session_expiry_sec = Some(seconds),
            Property::ReasonString(text) => disconnect.reason_string = Some(text),
            Property::ServerReference(text) => disconnect.server_reference = Some(text),
            _ => {}
        }
    }
    disconnect.user_properties = properties.user();
    reader.end()?;
    Ok(disconnect)
}

pub(super) fn write(version: Version, disconnect: &Disconnect<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    if version == Version::V311 && *disconnect != Disconnect::new(ReasonCode::Success) {
        return Err(Kind::NotInVersion.into());
    }
    write_packet(version, disconnect, out)
}

impl Body for Disconnect<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Disconnect.first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        if let Some(seconds) = self.session_expiry_sec {
            Property::SessionExpiry(seconds).put(sink);
        }
        if let Some(text) = self.server_reference {
            Property::ServerReference(text).put(sink);
        }
        super::ack::put_reason_properties(self.reason_string, &self.user_properties, sink);
    }

    fn body(&self, _version: Version, properties_len: usize, sink: &mut impl Sink) {
        if !self.reason.encodable_in(PacketType::Disconnect) {
            sink.refuse(Kind::ReasonCode);
        }
        if properties_len > 0 {
            sink.u8(self.reason.code());
            sink.varint(properties_len);
            self.properties(sink);
        } else if self.reason != ReasonCode::Success {
            sink.u8(self.reason.code());
        }
    }
}
