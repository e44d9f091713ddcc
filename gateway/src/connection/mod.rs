//! The sans-IO connection machine: CONNECT first, keep alive, packet sizes, topic aliases, enhanced authentication,
//! reason codes. It reads no clock and no socket: frames and `now` come in, what to do comes out.

mod alias;
mod machine;
mod output;

pub use machine::{Answer, Fault, Input, Machine};
pub use output::{ClientLimits, Output};

/// Largest packet that the protocol can express (§2.1.4): 268,435,455 bytes behind a fixed header of 5.
pub const PACKET_SIZE_PROTOCOL_MAX: u32 = 268_435_460;

/// What this server offers on a listener; sent in CONNACK.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Largest packet taken from a client, whole packet; before CONNECT is accepted `connect_packet_size_max` holds.
    pub packet_size_max: u32,
    /// Largest CONNECT.
    pub connect_packet_size_max: u32,
    /// Receive Maximum of the server.
    pub receive_maximum: u16,
    /// Topic Alias Maximum of the server.
    pub topic_alias_maximum: u16,
    /// Topic aliases that the server itself uses towards a client, at most what the client allows.
    pub topic_alias_out_maximum: u16,
    /// Bytes that may wait in an outbox.
    pub outbox_bytes_max: usize,
    /// How long a socket may take from accept to a complete CONNECT.
    pub connect_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            packet_size_max: 1024 * 1024,
            connect_packet_size_max: 64 * 1024,
            receive_maximum: 100,
            topic_alias_maximum: 16,
            topic_alias_out_maximum: 16,
            outbox_bytes_max: 4 * 1024 * 1024,
            connect_timeout_ms: 10_000,
        }
    }
}
