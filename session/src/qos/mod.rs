//! QoS 1 and 2 exchanges of one connection, both directions, as pure windows (MQTT §4.3, §4.9).

mod inbound;
mod outbound;

pub use inbound::{Inbound, InboundError, Received};
pub use outbound::{Outbound, OutboundError, Settled, inbox_packet_id};
