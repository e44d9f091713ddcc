//! Encode once, send to many: a PUBLISH for one (version, QoS, RETAIN, identifiers) shape whose packet id and DUP flag are patched
//! per subscriber.

use session::message::{Message, QoS};

use super::Version;
use super::delivery::Delivery;

/// An encoded PUBLISH with a hole for the packet id.
#[derive(Debug, Clone)]
pub struct PublishTemplate {
    bytes: Vec<u8>,
    /// Position of the packet id, 0 for QoS 0.
    packet_id_at: u32,
}

impl PublishTemplate {
    /// Encodes `message` for deliveries of this shape; `expiry_sec` is the remaining Message Expiry Interval.
    /// `None` when the packet would exceed the protocol's maximum.
    #[must_use]
    pub fn new(
        version: Version,
        message: &Message,
        qos: QoS,
        retain: bool,
        identifiers: &[u32],
        expiry_sec: Option<u32>,
    ) -> Option<Self> {
        let delivery = Delivery { expiry_sec, identifiers, ..Delivery::of(message, qos, retain) };
        Self::encode(version, &delivery, Vec::new())
    }

    /// Encodes a delivery, packet id 0 for QoS > 0, into `buffer`, whose content is replaced. `None` when the packet would exceed
    /// the protocol's maximum.
    #[must_use]
    pub fn encode(version: Version, delivery: &Delivery<'_>, mut buffer: Vec<u8>) -> Option<Self> {
        buffer.clear();
        let packet_id_at = delivery.write_template(version, usize::MAX, &mut buffer).ok()?;
        Some(Self { bytes: buffer, packet_id_at: u32::try_from(packet_id_at).ok()? })
    }

    /// The buffer, to be used for another one.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// The encoded packet; for QoS > 0 with packet id 0 in its place.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the packet id stands in [`Self::bytes`]; `None` for QoS 0.
    #[must_use]
    pub fn packet_id_at(&self) -> Option<usize> {
        (self.packet_id_at != 0).then_some(self.packet_id_at as usize)
    }

    /// Appends a copy with this packet id and DUP flag; both are ignored for QoS 0.
    #[inline]
    pub fn append(&self, packet_id: u16, dup: bool, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        if self.packet_id_at != 0 {
            let at = start + self.packet_id_at as usize;
            out[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
            out[start] |= u8::from(dup) << 3;
        }
    }
}
