//! CONNACK (§3.2).

use super::ReasonCode;
use super::properties::UserProperties;

/// A CONNACK. For 3.1.1 the reason maps to its return code: 0x84→1, 0x85→2, 0x88/0x89/0x97→3, 0x86→4, 0x87→5.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnAck<'a> {
    pub session_present: bool,
    pub reason: ReasonCode,
    pub session_expiry_sec: Option<u32>,
    /// 65,535 when absent.
    pub receive_maximum: u16,
    /// `None`: 2.
    pub maximum_qos: Option<u8>,
    pub retain_available: bool,
    pub maximum_packet_size: Option<u32>,
    pub assigned_client_id: Option<&'a str>,
    pub topic_alias_maximum: u16,
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
    pub wildcard_subscription_available: bool,
    pub subscription_identifiers_available: bool,
    pub shared_subscription_available: bool,
    pub server_keep_alive_sec: Option<u16>,
    pub response_information: Option<&'a str>,
    pub server_reference: Option<&'a str>,
    pub authentication_method: Option<&'a str>,
    pub authentication_data: Option<&'a [u8]>,
}

impl ConnAck<'_> {
    /// A CONNACK with every property absent.
    #[must_use]
    pub const fn new(reason: ReasonCode, session_present: bool) -> Self {
        Self {
            session_present,
            reason,
            session_expiry_sec: None,
            receive_maximum: 65_535,
            maximum_qos: None,
            retain_available: true,
            maximum_packet_size: None,
            assigned_client_id: None,
            topic_alias_maximum: 0,
            reason_string: None,
            user_properties: UserProperties::EMPTY,
            wildcard_subscription_available: true,
            subscription_identifiers_available: true,
            shared_subscription_available: true,
            server_keep_alive_sec: None,
            response_information: None,
            server_reference: None,
            authentication_method: None,
            authentication_data: None,
        }
    }
}
