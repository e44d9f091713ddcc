//! How loaded this node is, as one named level: from how late its workers are, how long commits take, and its memory. The judgement is pure;
//! `node::load` takes the samples.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use session::time::Tick;

use crate::metrics::Level;

/// What a sample says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signals {
    /// How late the event loop of the latest worker was.
    pub lag_ms: u64,
    /// The slowest commit that was answered.
    pub commit_ms: u64,
    /// Used memory by what may be used, in thousandths; 0: not known.
    pub memory_permille: u64,
}

/// From where on a signal means busy, overloaded, critical.
type Thresholds = [u64; 3];

const LAG_MS: Thresholds = [250, 1_000, 3_000];
const COMMIT_MS: Thresholds = [1_500, 4_000, 8_000];
const MEMORY_PERMILLE: Thresholds = [800, 900, 950];

/// Samples in a row that must say so before time signals raise the level: one that is late once means nothing. Memory raises it at once.
const RAISING: usize = 3;
/// Samples in a row that must be below three quarters of the thresholds before the level goes down by one.
const LOWERING: u32 = 6;

/// Finds the level from sample to sample.
#[derive(Debug, Default)]
pub struct Judge {
    level: Level,
    /// What the last samples said about time.
    late: [Level; RAISING],
    calm: u32,
}

impl Judge {
    /// The level after one more sample.
    pub fn sample(&mut self, signals: &Signals) -> Level {
        self.late.rotate_left(1);
        self.late[RAISING - 1] = late(signals);
        let lasting = self.late.iter().copied().min().unwrap_or_default();
        let raised = lasting.max(level(signals.memory_permille, MEMORY_PERMILLE));
        if raised >= self.level {
            self.calm = 0;
            self.level = raised;
            return raised;
        }
        let with_margin = |value: u64| value.saturating_mul(4) / 3;
        let margin = Signals {
            lag_ms: with_margin(signals.lag_ms),
            commit_ms: with_margin(signals.commit_ms),
            memory_permille: with_margin_of_memory(signals.memory_permille),
        };
        if late(&margin).max(level(margin.memory_permille, MEMORY_PERMILLE)) < self.level {
            self.calm += 1;
        } else {
            self.calm = 0;
        }
        if self.calm >= LOWERING {
            self.calm = 0;
            self.level = self.level.below();
        }
        self.level
    }
}

/// Memory is given back slowly: a twentieth is enough of a margin.
fn with_margin_of_memory(permille: u64) -> u64 {
    if permille == 0 { 0 } else { permille.saturating_add(50) }
}

fn late(signals: &Signals) -> Level {
    level(signals.lag_ms, LAG_MS).max(level(signals.commit_ms, COMMIT_MS))
}

fn level(value: u64, thresholds: Thresholds) -> Level {
    Level::ALL[thresholds.iter().filter(|threshold| value >= **threshold).count()]
}

/// The level of this node and what it is found from; written by one task and by each worker, read by anybody.
#[derive(Debug)]
pub struct Load {
    level: AtomicU8,
    memory_max_bytes: AtomicU64,
    pulses: Box<[Pulse]>,
}

/// What a worker tells of itself.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Pulse {
    /// When it last looked at its clock by itself.
    beat_at: AtomicU64,
    /// Since they were last taken: how late it was at most, and its slowest commit.
    lag_ns: AtomicU64,
    commit_ns: AtomicU64,
}

impl Load {
    #[must_use]
    pub fn new(workers: usize, memory_max_bytes: u64) -> Self {
        Self {
            level: AtomicU8::new(Level::Normal as u8),
            memory_max_bytes: AtomicU64::new(memory_max_bytes),
            pulses: (0..workers).map(|_| Pulse::default()).collect(),
        }
    }

    #[must_use]
    pub fn level(&self) -> Level {
        Level::ALL.get(usize::from(self.level.load(Ordering::Relaxed))).copied().unwrap_or_default()
    }

    /// Sets the level; the one before.
    pub fn set_level(&self, level: Level) -> Level {
        let before = self.level.swap(level as u8, Ordering::Relaxed);
        Level::ALL.get(usize::from(before)).copied().unwrap_or_default()
    }

    /// `limits.memory_max_bytes`; 0: what the system gives.
    #[must_use]
    pub fn memory_max_bytes(&self) -> u64 {
        self.memory_max_bytes.load(Ordering::Relaxed)
    }

    pub fn set_memory_max_bytes(&self, bytes: u64) {
        self.memory_max_bytes.store(bytes, Ordering::Relaxed);
    }

    #[must_use]
    pub fn pulses(&self) -> &[Pulse] {
        &self.pulses
    }
}

impl Pulse {
    /// The worker looks at its clock, every `period_ms` when it is not late.
    pub fn beat(&self, now: Tick, period_ms: u64) {
        let before = self.beat_at.swap(now.0, Ordering::Relaxed);
        if before > 0 {
            self.raise(&self.lag_ns, now.0.saturating_sub(Tick(before).plus_ms(period_ms).0));
        }
    }

    /// A commit took so long.
    pub fn committed(&self, took_ns: u64) {
        self.raise(&self.commit_ns, took_ns);
    }

    fn raise(&self, cell: &AtomicU64, value: u64) {
        if value > cell.load(Ordering::Relaxed) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// How late it was since the last look, a worker that stands still included, and its slowest commit since then; nanoseconds.
    pub fn take(&self, now: Tick, period_ms: u64) -> (u64, u64) {
        let beat_at = self.beat_at.load(Ordering::Relaxed);
        let overdue = if beat_at == 0 { 0 } else { now.0.saturating_sub(Tick(beat_at).plus_ms(period_ms).0) };
        let lag_ns = self.lag_ns.swap(0, Ordering::Relaxed).max(overdue);
        (lag_ns, self.commit_ns.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lag(lag_ms: u64) -> Signals {
        Signals { lag_ms, ..Signals::default() }
    }

    fn levels(judge: &mut Judge, samples: impl IntoIterator<Item = Signals>) -> Vec<Level> {
        samples.into_iter().map(|signals| judge.sample(&signals)).collect()
    }

    /// Issue 5 §3: a level is raised by what lasts, not by one late sample.
    #[test]
    fn one_late_sample_means_nothing() {
        use Level::{Busy, Normal, Overloaded};
        let mut judge = Judge::default();
        assert_eq!(levels(&mut judge, [lag(9_000), lag(9_000), lag(0), lag(9_000)]), [Normal; 4]);
        assert_eq!(levels(&mut judge, [lag(300), lag(1_200)]), [Normal, Busy], "the least of three");
        assert_eq!(levels(&mut judge, [lag(1_200), lag(1_200)]), [Busy, Overloaded]);
        let slow = Signals { commit_ms: 8_000, ..Signals::default() };
        assert_eq!(levels(&mut Judge::default(), [slow; 3])[2], Level::Critical);
    }

    /// Issue 5 §3: it goes down by one level at a time, after a calm that lasts, with a margin.
    #[test]
    fn the_level_goes_down_slowly() {
        let mut judge = Judge::default();
        levels(&mut judge, [lag(3_000); 3]);
        let seen = levels(&mut judge, [lag(0); 17]);
        let steps: Vec<usize> =
            Level::ALL.iter().rev().map(|level| seen.iter().filter(|at| *at == level).count()).collect();
        assert_eq!(steps, [5, 6, 6, 0], "critical, overloaded, busy, normal");
        assert_eq!(judge.sample(&lag(0)), Level::Normal);
        levels(&mut judge, [lag(300); 3]);
        let near = levels(&mut judge, [lag(200); 20]);
        assert!(near.iter().all(|level| *level == Level::Busy), "just below the threshold is no calm");
    }

    /// Issue 5 §3, P9: memory is acted upon at once.
    #[test]
    fn p9_memory_raises_the_level_at_once() {
        let memory = |memory_permille| Signals { memory_permille, ..Signals::default() };
        let mut judge = Judge::default();
        assert_eq!(judge.sample(&memory(799)), Level::Normal);
        assert_eq!(judge.sample(&memory(800)), Level::Busy);
        assert_eq!(judge.sample(&memory(960)), Level::Critical);
        let held = levels(&mut judge, [memory(920); 20]);
        assert!(held.iter().all(|level| *level == Level::Critical), "within the margin of 950");
        assert_eq!(levels(&mut judge, [memory(880); 6])[5], Level::Overloaded);
    }

    /// Issue 5 §3: a worker that stands still is late too.
    #[test]
    fn a_worker_that_stands_still_is_late() {
        let ms = |ms: u64| Tick(0).plus_ms(ms);
        let pulse = Pulse::default();
        assert_eq!(pulse.take(ms(10_000), 250), (0, 0), "it did not begin");
        pulse.beat(ms(10_000), 250);
        pulse.beat(ms(10_750), 250);
        pulse.beat(ms(11_000), 250);
        pulse.committed(7);
        pulse.committed(3);
        assert_eq!(pulse.take(ms(11_100), 250), (500_000_000, 7));
        assert_eq!(pulse.take(ms(11_200), 250), (0, 0));
        assert_eq!(pulse.take(ms(14_250), 250), (3_000_000_000, 0));
    }
}
