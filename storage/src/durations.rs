//! How long something took, as a histogram that anybody may read: fsyncs of the log, stages of the queue layer.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, nanoseconds; one more bucket has no bound.
pub const DURATION_BUCKETS_NS: [u64; 16] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
];

/// A histogram at one moment, or what came to it between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Durations {
    /// Not cumulative; the last one is above all bounds.
    pub buckets: [u64; DURATION_BUCKETS_NS.len() + 1],
    pub sum_ns: u64,
}

impl Durations {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// What came since `earlier`, a view of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            buckets: std::array::from_fn(|at| self.buckets[at].saturating_sub(earlier.buckets[at])),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
        }
    }

    /// Bound of the bucket below which so many per mille of them are; `None`: they are not below any bound, or there are none.
    #[must_use]
    pub fn below_ns(&self, per_mille: u64) -> Option<u64> {
        let wanted = u128::from(self.count()) * u128::from(per_mille.min(1_000));
        let mut seen = 0_u128;
        let at = self.buckets.iter().position(|count| {
            seen += u128::from(*count) * 1_000;
            seen > 0 && seen >= wanted
        });
        DURATION_BUCKETS_NS.get(at?).copied()
    }
}

/// In words for a log: `n 12 avg 1.250 ms p50 <= 1 ms p99 <= 5 ms max <= 10 ms`; `-` when there are none.
impl fmt::Display for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count();
        if count == 0 {
            return f.write_str("-");
        }
        let average_us = self.sum_ns / count / 1_000;
        write!(f, "n {count} avg {}.{:03} ms", average_us / 1_000, average_us % 1_000)?;
        for (name, per_mille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
            match self.below_ns(per_mille) {
                Some(bound) if bound < 1_000_000 => {
                    write!(f, " {name} <= 0.{:02} ms", bound / 10_000)?;
                }
                Some(bound) if bound % 1_000_000 == 0 => write!(f, " {name} <= {} ms", bound / 1_000_000)?,
                Some(bound) => {
                    write!(f, " {name} <= {}.{} ms", bound / 1_000_000, bound / 100_000 % 10)?;
                }
                None => write!(f, " {name} > 5000 ms")?,
            }
        }
        Ok(())
    }
}

/// The histogram as it is counted.
#[derive(Debug, Default)]
pub(crate) struct DurationCounter {
    buckets: [AtomicU64; DURATION_BUCKETS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl DurationCounter {
    pub(crate) fn observe(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = DURATION_BUCKETS_NS.partition_point(|bound| *bound < took_ns);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    pub(crate) fn view(&self) -> Durations {
        Durations {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_nothing_is_lost() {
        let counter = DurationCounter::default();
        for took_us in [0, 50, 51, 5_000_000, 5_000_001] {
            counter.observe(Duration::from_micros(took_us));
        }
        let view = counter.view();
        assert_eq!((view.buckets[0], view.buckets[1], view.buckets[15], view.buckets[16]), (2, 1, 1, 1));
        assert_eq!((view.count(), view.sum_ns), (5, 10_000_102_000));
    }

    /// The reading guide in `broker/MONITOR.md` says what these words mean.
    #[test]
    fn a_window_is_told_in_words() {
        let counter = DurationCounter::default();
        counter.observe(Duration::from_secs(9));
        let before = counter.view();
        assert_eq!(before.to_string(), "n 1 avg 9000.000 ms p50 > 5000 ms p99 > 5000 ms max > 5000 ms");
        assert_eq!(before.since(&before).to_string(), "-");
        (0..98).for_each(|_| counter.observe(Duration::from_micros(40)));
        counter.observe(Duration::from_micros(600));
        counter.observe(Duration::from_millis(2));
        let window = counter.view().since(&before);
        assert_eq!(window.to_string(), "n 100 avg 0.065 ms p50 <= 0.05 ms p99 <= 1 ms max <= 2.5 ms");
        assert_eq!((window.below_ns(0), Durations::default().below_ns(500)), (Some(50_000), None));
    }
}
