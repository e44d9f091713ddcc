//! SUBACK (§3.9).

use super::properties::UserProperties;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubAck<'a> {
    pub packet_id: u16,
    /// One reason code per filter: 0 to 2 granted, ≥ 0x80 refused (3.1.1: 0x80).
    pub reasons: &'a [u8],
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}
