//! Bounds of the link, each with its range.

use thiserror::Error;

use super::frame::HEADER_BYTES;
use super::services::Limits;

/// Bytes that a call costs in the write queue beside its payload: its own header, and its budget.
pub(super) const CALL_BYTES: usize = 2 * HEADER_BYTES + 4;
/// Longest time that a call is handled for, whatever the caller asks, in milliseconds.
pub const CALL_MS_MAX: u32 = 60_000;

/// Bounds of all links of a node, checked when its [`super::Endpoint`] is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// A peer from which nothing was heard for this long is dead: 50 to 5,000, default 1,000. It is pinged five times as often.
    pub silence_ms: u64,
    /// For connecting and the handshake together, on either side: 10 to 10,000, default 1,000.
    pub handshake_ms: u64,
    /// Pause before a peer that could not be reached is tried again: 1 to 60,000, default 50; it doubles with each failure.
    pub backoff_min_ms: u64,
    /// Longest such pause: at least `backoff_min_ms`, at most 60,000, default 1,000.
    pub backoff_max_ms: u64,
    /// Calls under way to one peer, and calls handled for one peer: 1 to 65,536, default 1,024.
    pub calls_max: usize,
    /// Calls to one peer that wait because `calls_max` are under way or its write queue is full: 0 to 65,536, default 4,096.
    pub calls_waiting_max: usize,
    /// Bytes queued for one connection: at least the largest payload and its headers, at most 1 GiB, default 16 MiB.
    pub write_queue_bytes_max: usize,
    /// Bytes of requests handled for one peer: at least the largest payload, at most 1 GiB, default 64 MiB.
    pub handled_bytes_max: usize,
    /// Accepted connections that have not yet got through the handshake: 1 to 1,024, default 64.
    pub handshakes_max: usize,
    /// Nodes that may hold a link to this one: 1 to 1,024, default 64.
    pub peers_max: usize,
    pub limits: Limits,
}

/// An option out of its range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name} is {value}, it must be {min} to {max}")]
pub struct OptionsError {
    pub name: &'static str,
    pub value: u64,
    pub min: u64,
    pub max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            silence_ms: 1_000,
            handshake_ms: 1_000,
            backoff_min_ms: 50,
            backoff_max_ms: 1_000,
            calls_max: 1_024,
            calls_waiting_max: 4_096,
            write_queue_bytes_max: 16 << 20,
            handled_bytes_max: 64 << 20,
            handshakes_max: 64,
            peers_max: 64,
            limits: Limits::default(),
        }
    }
}

impl Options {
    /// # Errors
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), OptionsError> {
        const BYTES_MAX: u64 = 1 << 30;
        let largest = self.limits.largest() as u64;
        let ranges = [
            ("silence_ms", self.silence_ms, 50, 5_000),
            ("handshake_ms", self.handshake_ms, 10, 10_000),
            ("backoff_min_ms", self.backoff_min_ms, 1, 60_000),
            ("backoff_max_ms", self.backoff_max_ms, self.backoff_min_ms, 60_000),
            ("calls_max", self.calls_max as u64, 1, 65_536),
            ("calls_waiting_max", self.calls_waiting_max as u64, 0, 65_536),
            (
                "write_queue_bytes_max",
                self.write_queue_bytes_max as u64,
                largest + CALL_BYTES as u64,
                BYTES_MAX,
            ),
            ("handled_bytes_max", self.handled_bytes_max as u64, largest, BYTES_MAX),
            ("handshakes_max", self.handshakes_max as u64, 1, 1_024),
            ("peers_max", self.peers_max as u64, 1, 1_024),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(OptionsError { name, value, min, max });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P9: an option out of its range is named.
    #[test]
    fn options_out_of_range_are_named() {
        assert_eq!(Options::default().check(), Ok(()));
        let named = |options: Options| options.check().expect_err("out of range").name;
        assert_eq!(named(Options { silence_ms: 5_001, ..Options::default() }), "silence_ms");
        assert_eq!(named(Options { backoff_max_ms: 49, ..Options::default() }), "backoff_max_ms");
        assert_eq!(named(Options { calls_max: 0, ..Options::default() }), "calls_max");
        let limits = Limits::default().with(9_000, 20 << 20);
        assert_eq!(named(Options { limits, ..Options::default() }), "write_queue_bytes_max");
    }
}
