//! A PUBLISH as the server composes it for a subscriber: the stored parts of a message and what is said per delivery.

use session::message::{Message, QoS};

use super::primitive::{VARINT_MAX, varint_len};
use super::property::Property;
use super::sink::{Measure, Sink, low_byte};
use super::{Error, Kind, Version};

/// The parts of an outgoing PUBLISH. Topic and properties are those of a decoded packet: they are not checked again. 3.1.1 leaves
/// out `properties`, `topic_alias`, `expiry_sec` and `identifiers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// Empty when `topic_alias` stands for it.
    pub topic: &'a str,
    /// Forwarded properties in wire form, without length prefix.
    pub properties: &'a [u8],
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Ignored for QoS 0 ([MQTT-3.3.1-2]).
    pub dup: bool,
    /// Ignored for QoS 0.
    pub packet_id: u16,
    pub topic_alias: Option<u16>,
    /// Remaining Message Expiry Interval, seconds ([MQTT-3.3.2-6]).
    pub expiry_sec: Option<u32>,
    /// Identifiers of the matching subscriptions ([MQTT-3.3.4-3]).
    pub identifiers: &'a [u32],
}

/// Lengths of a delivery: what the length fields say.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    topic: u16,
    properties: usize,
    remaining: usize,
}

impl<'a> Delivery<'a> {
    /// A delivery of `message` with this QoS and RETAIN flag; packet id 0, no DUP, alias, expiry or identifiers.
    #[must_use]
    #[inline]
    pub fn of(message: &'a Message, qos: QoS, retain: bool) -> Self {
        Self {
            topic: message.topic(),
            properties: message.properties(),
            payload: message.payload(),
            qos,
            retain,
            dup: false,
            packet_id: 0,
            topic_alias: None,
            expiry_sec: None,
            identifiers: &[],
        }
    }

    /// Length of the whole packet in bytes.
    ///
    /// # Errors
    /// [`Kind::TooLong`]: it cannot be encoded.
    pub fn len(&self, version: Version) -> Result<usize, Error> {
        let remaining = self.lengths(version)?.remaining;
        Ok(1 + varint_len(remaining) + remaining)
    }

    /// Appends the packet to `out` unless it is longer than `size_max`, the client's Maximum Packet Size ([MQTT-3.1.2-24]).
    ///
    /// # Errors
    /// [`Kind::PacketTooLarge`]; [`Kind::TooLong`]: it cannot be encoded; a zero packet id with QoS > 0, a zero alias or
    /// identifier. `out` is unchanged then.
    #[inline]
    pub fn write(&self, version: Version, size_max: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.qos != QoS::AtMostOnce && self.packet_id == 0 {
            return Err(Kind::PacketIdZero.into());
        }
        self.write_template(version, size_max, out).map(drop)
    }

    /// [`Self::write`] that allows packet id 0, to be patched; yields where it stands in the packet (0 for QoS 0).
    #[inline]
    pub(super) fn write_template(
        &self,
        version: Version,
        size_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, Error> {
        let Lengths { topic: topic_len, properties, remaining } = self.lengths(version)?;
        let len = 1 + varint_len(remaining) + remaining;
        if len > size_max {
            return Err(Kind::PacketTooLarge.into());
        }
        out.reserve(len);
        let start = out.len();
        // Fixed header and topic length in one piece, packet id and property length in another: few appends.
        let mut head = Head::new();
        head.push(self.first_byte());
        head.varint(remaining);
        head.u16(topic_len);
        out.extend_from_slice(head.bytes());
        out.extend_from_slice(self.topic.as_bytes());
        let mut packet_id_at = 0;
        let mut head = Head::new();
        if self.qos != QoS::AtMostOnce {
            packet_id_at = out.len() - start;
            head.u16(self.packet_id);
        }
        if version == Version::V311 {
            out.extend_from_slice(head.bytes());
        } else {
            head.varint(properties);
            out.extend_from_slice(head.bytes());
            self.put_own_properties(out);
            out.extend_from_slice(self.properties);
        }
        out.extend_from_slice(self.payload);
        Ok(packet_id_at)
    }

    #[inline]
    fn first_byte(&self) -> u8 {
        let qos = self.qos as u8;
        let dup = self.dup && self.qos != QoS::AtMostOnce;
        0x30 | u8::from(dup) << 3 | qos << 1 | u8::from(self.retain)
    }

    #[inline]
    fn lengths(&self, version: Version) -> Result<Lengths, Error> {
        let topic = u16::try_from(self.topic.len()).map_err(|_| Kind::TooLong)?;
        let properties = match version {
            Version::V311 => 0,
            Version::V5 => self.own_properties_len()? + self.properties.len(),
        };
        let mut remaining = 2 + self.topic.len() + self.payload.len();
        if self.qos != QoS::AtMostOnce {
            remaining += 2;
        }
        if version == Version::V5 {
            remaining += varint_len(properties) + properties;
        }
        if remaining > VARINT_MAX {
            return Err(Kind::TooLong.into());
        }
        Ok(Lengths { topic, properties, remaining })
    }

    #[inline]
    fn own_properties_len(&self) -> Result<usize, Error> {
        if self.topic_alias.is_none() && self.expiry_sec.is_none() && self.identifiers.is_empty() {
            return Ok(0);
        }
        Measure::of(|sink| self.put_own_properties(sink))
    }

    #[inline]
    fn put_own_properties(&self, sink: &mut impl Sink) {
        if let Some(alias) = self.topic_alias {
            Property::TopicAlias(alias).put(sink);
        }
        if let Some(seconds) = self.expiry_sec {
            Property::MessageExpiry(seconds).put(sink);
        }
        for &identifier in self.identifiers {
            Property::SubscriptionIdentifier(identifier).put(sink);
        }
    }
}

/// A few header bytes, collected before they are appended.
struct Head {
    bytes: [u8; 8],
    len: usize,
}

impl Head {
    #[inline]
    const fn new() -> Self {
        Self { bytes: [0; 8], len: 0 }
    }

    /// At most 7 bytes are ever pushed: type, length and topic length, or packet id and property length.
    #[inline]
    const fn push(&mut self, byte: u8) {
        self.bytes[self.len & 7] = byte;
        self.len += 1;
    }

    #[inline]
    const fn u16(&mut self, value: u16) {
        let [high, low] = value.to_be_bytes();
        self.push(high);
        self.push(low);
    }

    #[inline]
    const fn varint(&mut self, mut value: usize) {
        while value >= 0x80 {
            self.push(low_byte(value) | 0x80);
            value >>= 7;
        }
        self.push(low_byte(value));
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
