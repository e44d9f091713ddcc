//! DISCONNECT (§3.14).

use super::ReasonCode;
use super::properties::UserProperties;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect<'a> {
    pub reason: ReasonCode,
    pub session_expiry_sec: Option<u32>,
    pub reason_string: Option<&'a str>,
    pub server_reference: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}
