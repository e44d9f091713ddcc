//! How many scopes are open in the whole registry, counted without a cache line that all workers share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters; threads beyond this number share them.
const STRIPES: usize = 32;

/// A counter that each thread changes in its own stripe. A stripe may go below zero (a scope may end on another
/// thread), their sum is the count.
#[derive(Default)]
pub(super) struct Operations {
    stripes: [Stripe; STRIPES],
}

/// Alone on its cache lines (two: the adjacent one is fetched with it).
#[derive(Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES;
}

impl Operations {
    pub(super) fn begin(&self) {
        self.stripe().fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.stripe().fetch_sub(1, Ordering::Relaxed);
    }

    /// Exact when no scope begins or ends meanwhile.
    pub(super) fn count(&self) -> usize {
        let sum =
            self.stripes.iter().fold(0_u64, |sum, stripe| sum.wrapping_add(stripe.0.load(Ordering::Relaxed)));
        // A scope that ended on a stripe read late and began on one read early makes the sum negative for a moment.
        usize::try_from(sum.cast_signed().max(0)).unwrap_or(usize::MAX)
    }

    fn stripe(&self) -> &AtomicU64 {
        // While its thread is torn down a scope may still end: any stripe will do.
        &self.stripes[STRIPE.try_with(|&stripe| stripe).unwrap_or(0)].0
    }
}
