//! Encode once, send to many: a PUBLISH for one (version, QoS, RETAIN, identifiers) shape whose packet id and DUP flag are patched
//! per subscriber.

use session::message::{Message, QoS};

use super::Version;

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
        _version: Version,
        _message: &Message,
        _qos: QoS,
        _retain: bool,
        _identifiers: &[u32],
        _expiry_sec: Option<u32>,
    ) -> Option<Self> {
        unimplemented!()
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

    /// Appends a copy with this packet id and DUP flag.
    pub fn append(&self, _packet_id: u16, _dup: bool, _out: &mut Vec<u8>) {
        unimplemented!()
    }
}
