//! PUBACK, PUBREC, PUBREL and PUBCOMP (§3.4 to §3.7): one shape, four types.

use super::ReasonCode;
use super::properties::UserProperties;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AckType {
    PubAck,
    PubRec,
    PubRel,
    PubComp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    pub ack_type: AckType,
    pub packet_id: u16,
    pub reason: ReasonCode,
    pub reason_string: Option<&'a str>,
    pub user_properties: UserProperties<'a>,
}
