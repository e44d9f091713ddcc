//! Random numbers of one run. SplitMix64, written out: a seed that was printed must mean the same run under every later version of
//! any library.

use std::sync::atomic::{AtomicU64, Ordering};

/// All random decisions of a run come from here, in the order in which they are taken.
#[derive(Debug)]
pub struct Chance(AtomicU64);

impl Chance {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub fn draw(&self) -> u64 {
        let state =
            self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// 0 to `bound - 1`; 0 for a bound of 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// `from` to `to`, both included.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True in `per_mille` of 1,000 cases.
    pub fn happens(&self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    pub fn index(&self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    pub fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}
