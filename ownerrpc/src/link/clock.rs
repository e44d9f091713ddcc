//! The hybrid logical clock, as the link needs it: it tells the time in what it sends and hears it in what it receives.

use std::fmt;

/// Hybrid logical time of this node: `max(wall, last seen)` (DESIGN §5 "Time").
pub trait Clock: Send + Sync + fmt::Debug {
    /// Now, in milliseconds since the Unix epoch.
    fn now_ms(&self) -> u64;

    /// A time that a peer had reached, in milliseconds since the Unix epoch, at most [`super::TIME_MS_MAX`]. Called before
    /// anything that the peer sent with it is handed on.
    fn observe(&self, ms: u64);
}
