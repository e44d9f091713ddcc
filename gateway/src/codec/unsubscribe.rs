//! UNSUBSCRIBE (§3.10).

use super::primitive::Reader;
use super::properties::{self, Properties, UserProperties};
use super::sink::{Body, Measure, Sink, write_packet};
use super::{Error, Frame, Kind, PacketType, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    pub packet_id: u16,
    /// Length-prefixed filters, validated. Never empty.
    pub raw: &'a [u8],
    pub count: u16,
    pub user_properties: UserProperties<'a>,
}

impl<'a> Unsubscribe<'a> {
    /// Each filter, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || if reader.is_empty() { None } else { reader.string().ok() })
    }

    /// An UNSUBSCRIBE for filters in wire form, as [`Self::push`] makes them.
    ///
    /// # Errors
    /// The rule that the filters break.
    pub fn new(packet_id: u16, raw: &'a [u8]) -> Result<Self, Error> {
        let count = check_filters(raw)?;
        Ok(Self { packet_id, raw, count, user_properties: UserProperties::EMPTY })
    }

    /// Appends a filter in wire form to `raw`.
    ///
    /// # Errors
    /// A filter that is longer than 65,535 bytes or contains U+0000. `raw` is unchanged then.
    pub fn push(raw: &mut Vec<u8>, filter: &str) -> Result<(), Error> {
        Measure::of(|sink| sink.string(filter))?;
        raw.string(filter);
        Ok(())
    }
}

fn check_filters(raw: &[u8]) -> Result<u16, Error> {
    let mut reader = Reader::new(raw);
    let mut count = 0_u16;
    while !reader.is_empty() {
        if reader.string()?.is_empty() {
            return Err(Kind::FilterEmpty.into());
        }
        count = count.checked_add(1).ok_or(Kind::FiltersTooMany)?;
    }
    if count == 0 { Err(Kind::FiltersMissing.into()) } else { Ok(count) }
}

pub(super) fn read<'a>(version: Version, frame: Frame<'a>) -> Result<Unsubscribe<'a>, Error> {
    let mut reader = Reader::new(frame.body);
    let packet_id = reader.packet_id()?;
    let mut user_properties = UserProperties::EMPTY;
    if version == Version::V5 {
        let mut properties = Properties::take(properties::UNSUBSCRIBE, &mut reader)?;
        while properties.next()?.is_some() {}
        user_properties = properties.user();
    }
    Ok(Unsubscribe { user_properties, ..Unsubscribe::new(packet_id, reader.rest())? })
}

pub(super) fn write(version: Version, unsubscribe: &Unsubscribe<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    check_filters(unsubscribe.raw)?;
    write_packet(version, unsubscribe, out)
}

impl Body for Unsubscribe<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Unsubscribe.first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        self.user_properties.put(sink);
    }

    fn body(&self, version: Version, properties_len: usize, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        if version == Version::V5 {
            sink.varint(properties_len);
            self.properties(sink);
        }
        sink.raw(self.raw);
    }
}
