//! SUBSCRIBE (§3.8).

use session::message::QoS;

use super::primitive::Reader;
use super::properties::{self, Properties, UserProperties};
use super::property::Property;
use super::sink::{Body, Measure, Sink, write_packet};
use super::{Error, Frame, Kind, PacketType, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub packet_id: u16,
    /// 0: none.
    pub identifier: u32,
    pub filters: Filters<'a>,
    pub user_properties: UserProperties<'a>,
}

/// The validated list of filters; iterate to read it. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filters<'a> {
    pub raw: &'a [u8],
    pub count: u16,
}

/// When retained messages are sent (§3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RetainHandling {
    #[default]
    Send,
    SendIfNew,
    DoNotSend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscribeFilter<'a> {
    /// UTF-8 without U+0000 and not empty; its grammar is checked by `session::topic::TopicFilter::parse` (0x8F per filter).
    pub filter: &'a str,
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
}

impl<'a> Filters<'a> {
    /// Each filter with its options, in order.
    pub fn iter(&self) -> impl Iterator<Item = SubscribeFilter<'a>> + use<'a> {
        let mut reader = Reader::new(self.raw);
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return None;
            }
            read_filter(Version::V5, &mut reader).ok()
        })
    }

    /// Checks filters in wire form, as [`SubscribeFilter::push`] makes them.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn new(version: Version, raw: &'a [u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(raw);
        let mut count = 0_u16;
        while !reader.is_empty() {
            read_filter(version, &mut reader)?;
            count = count.checked_add(1).ok_or(Kind::FiltersTooMany)?;
        }
        if count == 0 {
            return Err(Kind::FiltersMissing.into());
        }
        Ok(Self { raw, count })
    }
}

impl SubscribeFilter<'_> {
    /// Appends the filter and its options in wire form to `raw`.
    ///
    /// # Errors
    /// A filter that is longer than 65,535 bytes or contains U+0000. `raw` is unchanged then.
    pub fn push(&self, raw: &mut Vec<u8>) -> Result<(), Error> {
        Measure::of(|sink| sink.string(self.filter))?;
        raw.string(self.filter);
        raw.u8(self.options());
        Ok(())
    }

    /// The options byte (§3.8.3.1).
    const fn options(&self) -> u8 {
        let retain_handling = match self.retain_handling {
            RetainHandling::Send => 0,
            RetainHandling::SendIfNew => 1,
            RetainHandling::DoNotSend => 2,
        };
        self.qos as u8
            | (self.no_local as u8) << 2
            | (self.retain_as_published as u8) << 3
            | retain_handling << 4
    }
}

fn read_filter<'a>(version: Version, reader: &mut Reader<'a>) -> Result<SubscribeFilter<'a>, Error> {
    let filter = reader.string()?;
    let options = reader.u8()?;
    if filter.is_empty() {
        return Err(Kind::FilterEmpty.into());
    }
    let reserved = match version {
        Version::V311 => 0xFC,
        Version::V5 => 0xC0,
    };
    if options & reserved != 0 {
        return Err(Kind::SubscriptionOptions.into());
    }
    let no_local = options & 0x04 != 0;
    if no_local && filter.starts_with("$share/") {
        return Err(Kind::NoLocalShared.into());
    }
    Ok(SubscribeFilter {
        filter,
        qos: QoS::from_u8(options & 3).ok_or(Kind::SubscriptionQoS)?,
        no_local,
        retain_as_published: options & 0x08 != 0,
        retain_handling: match options >> 4 & 3 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(Kind::RetainHandling.into()),
        },
    })
}

pub(super) fn read<'a>(version: Version, frame: Frame<'a>) -> Result<Subscribe<'a>, Error> {
    let mut reader = Reader::new(frame.body);
    let packet_id = reader.packet_id()?;
    let mut identifier = 0;
    let mut user_properties = UserProperties::EMPTY;
    if version == Version::V5 {
        let mut properties = Properties::take(properties::SUBSCRIBE, &mut reader)?;
        while let Some(property) = properties.next()? {
            if let Property::SubscriptionIdentifier(value) = property {
                identifier = value;
            }
        }
        user_properties = properties.user();
    }
    let filters = Filters::new(version, reader.rest())?;
    Ok(Subscribe { packet_id, identifier, filters, user_properties })
}

pub(super) fn write(version: Version, subscribe: &Subscribe<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    Filters::new(version, subscribe.filters.raw)?;
    write_packet(version, subscribe, out)
}

impl Body for Subscribe<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Subscribe.first_byte()
    }

    fn properties(&self, sink: &mut impl Sink) {
        if self.identifier != 0 {
            Property::SubscriptionIdentifier(self.identifier).put(sink);
        }
        self.user_properties.put(sink);
    }

    fn body(&self, version: Version, properties_len: usize, sink: &mut impl Sink) {
        sink.packet_id(self.packet_id);
        if version == Version::V5 {
            sink.varint(properties_len);
            self.properties(sink);
        }
        sink.raw(self.filters.raw);
    }
}
