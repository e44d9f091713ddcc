//! The clocks of one simulated node: a monotonic one that goes on while the process is stopped, and a wall clock that may step.

use std::sync::atomic::{AtomicI64, Ordering};

use broker::clock::TimeSource;
use session::time::{Millis, Tick};
use tokio::time::Instant;

/// Wall clock at the start of every run.
const EPOCH_MS: i64 = 1_700_000_000_000;

/// Simulated time as one node reads it.
#[derive(Debug)]
pub struct SimTime {
    origin: Instant,
    /// Where the monotonic clock of this boot began; differs between boots, so that no reading means anything elsewhere.
    monotonic_ms: u64,
    wall_offset_ms: AtomicI64,
}

impl SimTime {
    #[must_use]
    pub fn new(origin: Instant, monotonic_ms: u64, wall_offset_ms: i64) -> Self {
        Self { origin, monotonic_ms, wall_offset_ms: AtomicI64::new(wall_offset_ms) }
    }

    pub fn step_wall(&self, ms: i64) {
        self.wall_offset_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub fn wall_offset_ms(&self) -> i64 {
        self.wall_offset_ms.load(Ordering::Relaxed)
    }

    /// Never lets the wall clock be behind `at`.
    pub fn raise_wall(&self, at: Millis) {
        let behind = at.0.saturating_sub(self.wall().0);
        self.step_wall(i64::try_from(behind).unwrap_or(0));
    }
}

impl TimeSource for SimTime {
    fn tick(&self) -> Tick {
        let elapsed = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Tick(elapsed).plus_ms(self.monotonic_ms)
    }

    fn wall(&self) -> Millis {
        let elapsed = i64::try_from(self.origin.elapsed().as_millis()).unwrap_or(i64::MAX);
        let wall = EPOCH_MS.saturating_add(elapsed).saturating_add(self.wall_offset_ms());
        Millis(u64::try_from(wall).unwrap_or(0))
    }
}
