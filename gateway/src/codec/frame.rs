//! Cuts packets out of the read buffer; the only place that may wait for more bytes.

use super::{Error, Version};

/// Packet types by their number (§2.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

/// One complete packet in the read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub packet_type: PacketType,
    /// Low four bits of the first byte.
    pub flags: u8,
    /// Everything behind the fixed header.
    pub body: &'a [u8],
    /// Length of the whole packet, fixed header included.
    pub len: usize,
}

/// Looks for one complete packet at the start of `buffer`. `Ok(None)`: wait for more bytes. The first byte is judged as
/// soon as it is there (type and flags, for `version`), the size as soon as the remaining length is known; `size_max` counts the whole packet.
///
/// # Errors
/// Reserved type, illegal flags, a length of more than four bytes or not minimal ([MQTT-1.5.5-1]), too large (0x95).
pub fn frame(_version: Version, _buffer: &[u8], _size_max: usize) -> Result<Option<Frame<'_>>, Error> {
    unimplemented!()
}
