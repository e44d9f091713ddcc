//! The clocks of this node: monotonic ticks for local deadlines, hybrid logical milliseconds for what is replicated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use session::time::{Millis, Tick};

/// Where time comes from. Tests and the simulator set it by hand; regressions are allowed there, because surviving them is a
/// promise.
pub trait TimeSource: Send + Sync + std::fmt::Debug {
    /// Monotonic now.
    fn tick(&self) -> Tick;
    /// Wall clock, milliseconds since the Unix epoch.
    fn wall(&self) -> Millis;
}

/// The clocks of the operating system.
#[derive(Debug)]
struct SystemTimeSource {
    origin: Instant,
}

/// A clock that only moves when it is told to.
#[derive(Debug, Default)]
pub struct ManualTime {
    tick: AtomicU64,
    wall: AtomicU64,
}

/// `Tick` counts from the start of the process; `Millis` is `max(wall, last seen)` (DESIGN §5 "Time"). Cheap to clone.
#[derive(Debug, Clone)]
pub struct NodeClock {
    source: Arc<dyn TimeSource>,
    last: Arc<AtomicU64>,
}

impl TimeSource for SystemTimeSource {
    fn tick(&self) -> Tick {
        Tick(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall(&self) -> Millis {
        // A wall clock before 1970 counts as 1970: the hybrid clock goes on from the last time seen.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

impl ManualTime {
    /// A clock that stands at `wall_ms` on both faces.
    #[must_use]
    pub fn at(wall_ms: u64) -> Arc<Self> {
        Arc::new(Self {
            tick: AtomicU64::new(Tick::default().plus_ms(wall_ms).0),
            wall: AtomicU64::new(wall_ms),
        })
    }

    /// Moves both faces on.
    pub fn advance_ms(&self, ms: u64) {
        self.tick.fetch_add(ms * 1_000_000, Ordering::AcqRel);
        self.wall.fetch_add(ms, Ordering::AcqRel);
    }

    /// Sets the wall clock alone, forward or back.
    pub fn set_wall(&self, ms: u64) {
        self.wall.store(ms, Ordering::Release);
    }
}

impl TimeSource for ManualTime {
    fn tick(&self) -> Tick {
        Tick(self.tick.load(Ordering::Acquire))
    }

    fn wall(&self) -> Millis {
        Millis(self.wall.load(Ordering::Acquire))
    }
}

impl Default for NodeClock {
    fn default() -> Self {
        Self::new(Arc::new(SystemTimeSource { origin: Instant::now() }))
    }
}

impl NodeClock {
    #[must_use]
    pub fn new(source: Arc<dyn TimeSource>) -> Self {
        Self { source, last: Arc::new(AtomicU64::new(0)) }
    }

    /// Monotonic now of this process.
    #[must_use]
    pub fn tick(&self) -> Tick {
        self.source.tick()
    }

    /// Hybrid logical now: never less than anything seen before.
    #[must_use]
    pub fn millis(&self) -> Millis {
        let wall = self.source.wall().0;
        Millis(self.last.fetch_max(wall, Ordering::AcqRel).max(wall))
    }

    /// The wall clock as it is, for what only people read (audit, logs).
    #[must_use]
    pub fn wall(&self) -> Millis {
        self.source.wall()
    }

    /// How long until `deadline`, for a timer; zero when it passed.
    #[must_use]
    pub fn until(&self, deadline: Tick) -> Duration {
        Duration::from_nanos(deadline.0.saturating_sub(self.tick().0))
    }
}

impl storage::Clock for NodeClock {
    fn now(&self) -> Millis {
        self.millis()
    }

    fn observe(&self, seen: Millis) {
        self.last.fetch_max(seen.0, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use storage::Clock as _;

    use super::*;

    /// DESIGN §5: a wall clock that steps back never takes the hybrid clock back.
    #[test]
    fn hybrid_time_survives_a_step_back_of_the_wall_clock() {
        let time = ManualTime::at(10_000);
        let clock = NodeClock::new(time.clone());
        assert_eq!(clock.millis(), Millis(10_000));
        time.set_wall(4_000);
        assert_eq!(clock.millis(), Millis(10_000));
        clock.observe(Millis(12_345));
        assert_eq!(clock.millis(), Millis(12_345));
        time.set_wall(20_000);
        assert_eq!(clock.millis(), Millis(20_000));
    }

    #[test]
    fn deadlines_in_the_past_wait_for_nothing() {
        let time = ManualTime::at(1_000);
        let clock = NodeClock::new(time.clone());
        let deadline = clock.tick().plus_ms(50);
        assert_eq!(clock.until(deadline), Duration::from_millis(50));
        time.advance_ms(60);
        assert_eq!(clock.until(deadline), Duration::ZERO);
    }
}
