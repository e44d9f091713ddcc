//! How long the fsyncs of the log took, as a histogram that anybody may read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, nanoseconds; one more bucket has no bound.
pub const FSYNC_BUCKETS_NS: [u64; 16] = [
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

/// The histogram at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsyncTimes {
    /// Not cumulative; the last one is above all bounds.
    pub buckets: [u64; FSYNC_BUCKETS_NS.len() + 1],
    pub sum_ns: u64,
}

/// The histogram as it is counted.
#[derive(Debug, Default)]
pub(crate) struct Times {
    buckets: [AtomicU64; FSYNC_BUCKETS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Times {
    pub(crate) fn observe(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = FSYNC_BUCKETS_NS.partition_point(|bound| *bound < took_ns);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    pub(crate) fn view(&self) -> FsyncTimes {
        FsyncTimes {
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
        let times = Times::default();
        for took_us in [0, 50, 51, 5_000_000, 5_000_001] {
            times.observe(Duration::from_micros(took_us));
        }
        let view = times.view();
        assert_eq!((view.buckets[0], view.buckets[1], view.buckets[15], view.buckets[16]), (2, 1, 1, 1));
        assert_eq!(view.buckets.iter().sum::<u64>(), 5);
        assert_eq!(view.sum_ns, 10_000_102_000);
    }
}
