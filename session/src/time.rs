//! The two notions of time that the domain knows; neither can be read here, both come in as arguments.

use serde::{Deserialize, Serialize};

/// Nanoseconds on one process's monotonic clock, counted from an origin that the process chose at start.
///
/// Only deadlines of this process are expressed in it; it is never stored and never sent to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(pub u64);

/// Milliseconds since the Unix epoch on the hybrid logical clock of the cluster (`max(wall, last seen)`).
///
/// It is stamped into a replicated command by its proposer; `apply` compares it and never reads a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Millis(pub u64);

impl Tick {
    /// This instant plus `ms` milliseconds, saturating.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// Milliseconds from `earlier` to this instant, 0 when `earlier` is later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }
}

impl Millis {
    /// A deadline that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// This instant plus `ms` milliseconds, saturating.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// This instant plus `sec` seconds; `u32::MAX` seconds means never (MQTT 5 §3.1.2.11.2).
    #[must_use]
    pub const fn plus_expiry(self, sec: u32) -> Self {
        if sec == u32::MAX { Self::NEVER } else { self.plus_ms(sec as u64 * 1_000) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_saturate() {
        assert_eq!(Tick(1).plus_ms(2), Tick(2_000_001));
        assert_eq!(Tick(1).plus_ms(u64::MAX), Tick(u64::MAX));
        assert_eq!(Tick(1).ms_since(Tick(2_000_000)), 0);
        assert_eq!(Tick(5_500_000).ms_since(Tick(0)), 5);
        assert_eq!(Millis(1).plus_ms(u64::MAX), Millis::NEVER);
    }

    /// MQTT 5 §3.1.2.11.2
    #[test]
    fn the_largest_expiry_means_never() {
        assert_eq!(Millis(5).plus_expiry(0), Millis(5));
        assert_eq!(Millis(5).plus_expiry(u32::MAX - 1), Millis(5 + 4_294_967_294_000));
        assert_eq!(Millis(5).plus_expiry(u32::MAX), Millis::NEVER);
    }
}
