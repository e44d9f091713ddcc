//! UNSUBACK (§3.11); 3.1.1 has no reason codes in it.

use super::properties::UserProperties;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    pub packet_id: u16,
    pub reasons: &'a [u8],
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}
