//! PUBLISH (§3.3): a borrowed view on the hot path.

use session::message::QoS;

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
    /// Whether `properties` holds only forwarded ones, so that it can be copied as it is.
    pub properties_forwardable: bool,
    pub payload: &'a [u8],
}
