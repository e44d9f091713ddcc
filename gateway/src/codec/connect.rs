//! CONNECT (§3.1).

use session::message::QoS;

use super::Version;
use super::properties::UserProperties;

/// A CONNECT as the client sent it. Defaults of absent properties are filled in (§3.1.2.11).
#[derive(Debug, Clone, PartialEq)]
pub struct Connect<'a> {
    pub version: Version,
    pub clean_start: bool,
    pub keep_alive_sec: u16,
    /// Empty: the server assigns one.
    pub client_id: &'a str,
    pub login: Login<'a>,
    pub will: Option<Will<'a>>,
    /// Seconds; 3.1.1: 0 with Clean Session 1, `u32::MAX` with 0.
    pub session_expiry_sec: u32,
    pub receive_maximum: u16,
    /// Bytes of a whole packet; `u32::MAX` when absent.
    pub maximum_packet_size: u32,
    pub topic_alias_maximum: u16,
    pub request_response_information: bool,
    pub request_problem_information: bool,
    pub authentication_method: Option<&'a str>,
    pub authentication_data: Option<&'a [u8]>,
    pub user_properties: UserProperties<'a>,
}

/// User name and password, each as it was present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Login<'a> {
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
}

/// The Will of a CONNECT.
#[derive(Debug, Clone, PartialEq)]
pub struct Will<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub delay_sec: u32,
    pub message_expiry_sec: Option<u32>,
    /// Forwarded properties in wire form, without length prefix (as in `session::message::Message`).
    pub properties: &'a [u8],
    /// When the properties to forward are not contiguous on the wire, they are collected here and `properties` is empty.
    pub properties_collected: Option<Vec<u8>>,
}
