//! AUTH (MQTT 5 §3.15).

use super::primitive::Reader;
use super::properties::{self, Properties, UserProperties};
use super::property::Property;
use super::sink::{Body, Sink, write_packet};
use super::{Error, Frame, From, Kind, PacketType, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    pub reason: ReasonCode,
    /// `None` only in the short form of Success, which a server may send.
    pub method: Option<&'a str>,
    pub data: Option<&'a [u8]>,
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}

impl<'a> Auth<'a> {
    /// An AUTH with method and data only.
    #[must_use]
    pub const fn new(reason: ReasonCode, method: Option<&'a str>, data: Option<&'a [u8]>) -> Self {
        Self { reason, method, data, reason_string: None, user_properties: UserProperties::EMPTY }
    }

    fn is_short(&self) -> bool {
        self.reason == ReasonCode::Success
            && self.method.is_none()
            && self.data.is_none()
            && self.reason_string.is_none()
            && self.user_properties.raw.is_empty()
    }
}

pub(super) fn read<'a>(from: From, frame: Frame<'a>) -> Result<Auth<'a>, Error> {
    let mut reader = Reader::new(frame.body);
    if reader.is_empty() {
        let reason = ReasonCode::read(0, PacketType::Auth, from)?;
        return Ok(Auth::new(reason, None, None));
    }
    let reason = ReasonCode::read(reader.u8()?, PacketType::Auth, from)?;
    let mut auth = Auth::new(reason, None, None);
    let mut properties = Properties::take(properties::AUTH, &mut reader)?;
    while let Some(property) = properties.next()? {
        match property {
            Property::AuthenticationMethod(text) => auth.method = Some(text),
            Property::AuthenticationData(bytes) => auth.data = Some(bytes),
            Property::ReasonString(text) => auth.reason_string = Some(text),
            _ => {}
        }
    }
    auth.user_properties = properties.user();
    reader.end()?;
    if auth.method.is_none() {
        return Err(Kind::AuthenticationMethodMissing.into());
    }
    Ok(auth)
}

pub(super) fn write(version: Version, auth: &Auth<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    if version == Version::V311 {
        return Err(Kind::NotInVersion.into());
    }
    write_packet(version, auth, out)
}

impl Body for Auth<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Auth.first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        if let Some(text) = self.method {
            Property::AuthenticationMethod(text).put(sink);
        }
        if let Some(bytes) = self.data {
            Property::AuthenticationData(bytes).put(sink);
        }
        super::ack::put_reason_properties(self.reason_string, &self.user_properties, sink);
    }

    fn body(&self, _version: Version, properties_len: usize, sink: &mut impl Sink) {
        if !self.reason.encodable_in(PacketType::Auth) {
            sink.refuse(Kind::ReasonCode);
        }
        if self.is_short() {
            return;
        }
        if self.method.is_none() {
            sink.refuse(Kind::AuthenticationMethodMissing);
        }
        sink.u8(self.reason.code());
        sink.varint(properties_len);
        self.properties(sink);
    }
}
