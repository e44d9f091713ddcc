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

/// `Tick` counts from the start of the process; `Millis` is `max(wall, last seen)` (DESIGN §5 "Time"), and never stands still: while the
/// wall clock is behind, it goes on with the monotonic one. Cheap to clone.
///
/// A wall clock that is set ahead while the node runs, by more than [`STEP_MAX_MS`], is not followed: a wrong date would expire the sessions of
/// all nodes at once. It counts from the next start of the process on.
#[derive(Debug, Clone)]
pub struct NodeClock {
    source: Arc<dyn TimeSource>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// Highest time given or seen.
    last: AtomicU64,
    /// What is added to the milliseconds of `Tick`; it only grows.
    ahead: AtomicU64,
}

/// Steps of the wall clock that are followed: those of time servers are far below.
pub const STEP_MAX_MS: u64 = 5 * 60 * 1_000;

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
        let ahead = source.wall().0.saturating_sub(tick_ms(source.tick()));
        let state = Arc::new(State { last: AtomicU64::new(0), ahead: AtomicU64::new(ahead) });
        Self { source, state }
    }

    /// Monotonic now of this process.
    #[must_use]
    pub fn tick(&self) -> Tick {
        self.source.tick()
    }

    /// Hybrid logical now: never less than anything seen before.
    #[must_use]
    pub fn millis(&self) -> Millis {
        let (tick_ms, wall) = (tick_ms(self.source.tick()), self.source.wall().0);
        let went_on = tick_ms + self.state.ahead.load(Ordering::Acquire);
        let mut now = went_on;
        if wall > went_on && wall - went_on <= STEP_MAX_MS {
            self.state.ahead.fetch_max(wall - tick_ms, Ordering::AcqRel);
            now = wall;
        }
        Millis(self.state.last.fetch_max(now, Ordering::AcqRel).max(now))
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
        let ahead = seen.0.saturating_sub(tick_ms(self.source.tick()));
        self.state.ahead.fetch_max(ahead, Ordering::AcqRel);
        self.state.last.fetch_max(seen.0, Ordering::AcqRel);
    }
}

fn tick_ms(tick: Tick) -> u64 {
    tick.0 / 1_000_000
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

    /// DESIGN §5: a wall clock that stepped back, or was ahead for a while, does not stop the hybrid clock: Wills and expiry go on.
    #[test]
    fn hybrid_time_never_stands_still() {
        let time = ManualTime::at(10_000);
        let clock = NodeClock::new(time.clone());
        time.set_wall(200_000);
        assert_eq!(clock.millis(), Millis(200_000));
        time.set_wall(11_000);
        assert_eq!(clock.millis(), Millis(200_000));
        time.advance_ms(5_000);
        assert_eq!(clock.millis(), Millis(205_000));
        clock.observe(Millis(300_000));
        time.advance_ms(1);
        assert_eq!(clock.millis(), Millis(300_001));
    }

    /// DESIGN §5: a clock that is set ahead while the node runs expires nothing.
    #[test]
    fn a_large_step_of_the_wall_clock_is_not_followed() {
        const EIGHT_DAYS_MS: u64 = 8 * 24 * 60 * 60 * 1_000;
        let time = ManualTime::at(10_000);
        let clock = NodeClock::new(time.clone());
        time.set_wall(EIGHT_DAYS_MS);
        time.advance_ms(5_000);
        assert_eq!(clock.millis(), Millis(15_000));
        time.set_wall(16_000);
        assert_eq!(clock.millis(), Millis(16_000));
        assert_eq!(NodeClock::new(ManualTime::at(EIGHT_DAYS_MS)).millis(), Millis(EIGHT_DAYS_MS));
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
