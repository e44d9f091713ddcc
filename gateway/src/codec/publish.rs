//! PUBLISH (§3.3): a borrowed view on the hot path.

use session::message::QoS;

use super::delivery::Delivery;
use super::primitive::{Reader, VARINT_MAX};
use super::properties::{Allowed, Properties};
use super::property::Property;
use super::{Error, Frame, From, Kind, Version};

/// A PUBLISH, borrowed from its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty only with a topic alias. Checked: UTF-8, no U+0000, no wildcard (from a client and from a server).
    pub topic: &'a str,
    /// 0 for QoS 0.
    pub packet_id: u16,
    pub topic_alias: Option<u16>,
    pub message_expiry_sec: Option<u32>,
    /// All property bytes, validated, without length prefix (empty for 3.1.1).
    pub properties: &'a [u8],
    /// Whether `properties` holds only forwarded ones, so that it can be copied as it is. When encoding: true writes
    /// `topic_alias` and `message_expiry_sec` in front of `properties`; false writes `properties` alone, which hold them already.
    pub properties_forwardable: bool,
    pub payload: &'a [u8],
}

/// Decodes a PUBLISH; what [`super::read`] does for it, without the enum around it.
///
/// # Errors
/// The rule that it breaks.
#[inline]
pub fn read_publish<'a>(version: Version, from: From, frame: Frame<'a>) -> Result<Publish<'a>, Error> {
    let qos = QoS::from_u8((frame.flags >> 1) & 3).ok_or(Kind::PublishQoS)?;
    let mut reader = Reader::new(frame.body);
    let topic = reader.topic_name(Kind::TopicWildcard)?;
    let packet_id = match qos {
        QoS::AtMostOnce => 0,
        QoS::AtLeastOnce | QoS::ExactlyOnce => reader.packet_id()?,
    };
    let mut publish = Publish {
        dup: frame.flags & 0x08 != 0,
        qos,
        retain: frame.flags & 0x01 != 0,
        topic,
        packet_id,
        topic_alias: None,
        message_expiry_sec: None,
        properties: &[],
        properties_forwardable: true,
        payload: &[],
    };
    if version == Version::V5 {
        match reader.rest().first() {
            Some(0) => reader = Reader::new(&reader.rest()[1..]),
            _ => read_properties(from, &mut reader, &mut publish)?,
        }
    }
    if topic.is_empty() && publish.topic_alias.is_none() {
        return Err(Kind::TopicMissing.into());
    }
    publish.payload = reader.rest();
    Ok(publish)
}

fn read_properties<'a>(from: From, reader: &mut Reader<'a>, publish: &mut Publish<'a>) -> Result<(), Error> {
    let mut properties = Properties::take(Allowed::publish(from), reader)?;
    while let Some(property) = properties.next()? {
        match property {
            Property::MessageExpiry(seconds) => publish.message_expiry_sec = Some(seconds),
            Property::TopicAlias(alias) => publish.topic_alias = Some(alias),
            _ => {}
        }
    }
    publish.properties = properties.raw();
    publish.properties_forwardable = properties.forwardable();
    Ok(())
}

pub(super) fn write(version: Version, publish: &Publish<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    let with_alias = version == Version::V5 && publish.topic_alias.is_some();
    let topic = publish.topic.as_bytes();
    if topic.is_empty() && !with_alias {
        return Err(Kind::TopicMissing.into());
    }
    if memchr::memchr(0, topic).is_some() {
        return Err(Kind::NulCharacter.into());
    }
    if memchr::memchr2(b'+', b'#', topic).is_some() {
        return Err(Kind::TopicWildcard.into());
    }
    if publish.dup && publish.qos == QoS::AtMostOnce {
        return Err(Kind::DupWithQoS0.into());
    }
    let fields_apart = publish.properties_forwardable;
    let delivery = Delivery {
        topic: publish.topic,
        properties: publish.properties,
        payload: publish.payload,
        qos: publish.qos,
        retain: publish.retain,
        dup: publish.dup,
        packet_id: publish.packet_id,
        topic_alias: publish.topic_alias.filter(|_| fields_apart),
        expiry_sec: publish.message_expiry_sec.filter(|_| fields_apart),
        identifiers: &[],
    };
    // The whole packet: first byte and up to four bytes of length in front of the remaining length.
    delivery.write(version, VARINT_MAX + 5, out)
}
