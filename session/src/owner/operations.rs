//! How many scopes are open in the whole registry, counted without a cache line that all workers share and without a
//! locked instruction.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads that have a counter of their own; those beyond share one more.
const THREADS_MAX: usize = 127;

/// A counter that each thread changes in its own stripe. A stripe may go below zero (a scope may end on another
/// thread), their sum is the count.
pub(super) struct Operations {
    stripes: Box<[Stripe]>,
}

/// Alone on its cache lines (two: the adjacent one is fetched with it).
#[derive(Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Never given to a second thread below [`THREADS_MAX`].
    static STRIPE: usize = THREADS.fetch_add(1, Ordering::Relaxed).min(THREADS_MAX);
}

impl Operations {
    pub(super) fn new() -> Self {
        Self { stripes: (0..=THREADS_MAX).map(|_| Stripe::default()).collect() }
    }

    pub(super) fn begin(&self) {
        self.add(1);
    }

    pub(super) fn end(&self) {
        self.add(u64::MAX); // minus one
    }

    /// Exact when no scope begins or ends meanwhile.
    pub(super) fn count(&self) -> usize {
        let sum =
            self.stripes.iter().fold(0_u64, |sum, stripe| sum.wrapping_add(stripe.0.load(Ordering::Relaxed)));
        // A scope that ended on a stripe read late and began on one read early makes the sum negative for a moment.
        usize::try_from(sum.cast_signed().max(0)).unwrap_or(usize::MAX)
    }

    fn add(&self, change: u64) {
        // While its thread is torn down a scope may still end: on the shared stripe.
        let stripe = STRIPE.try_with(|&stripe| stripe).unwrap_or(THREADS_MAX);
        let counter = &self.stripes[stripe].0;
        if stripe < THREADS_MAX {
            // This thread is the only one that writes it.
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
        } else {
            counter.fetch_add(change, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More threads than stripes, scopes that end on another thread: no count is lost.
    #[test]
    fn the_count_adds_up_over_threads() {
        let operations = Operations::new();
        for _ in 0..2 {
            std::thread::scope(|threads| {
                for _ in 0..200 {
                    threads.spawn(|| (0..500).for_each(|_| operations.begin()));
                }
            });
        }
        assert_eq!(operations.count(), 200_000);
        (0..200_000).for_each(|_| operations.end());
        assert_eq!(operations.count(), 0);
    }
}
