//! AUTH (MQTT 5 §3.15).

use super::ReasonCode;
use super::properties::UserProperties;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    pub reason: ReasonCode,
    pub method: Option<&'a str>,
    pub data: Option<&'a [u8]>,
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}
