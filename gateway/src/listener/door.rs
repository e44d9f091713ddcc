//! Who is let in at all: what was turned away before its CONNECT, and how fast sockets are taken at most while the node is short of time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Why a socket was closed before anything was read from it, or before it had said who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// The listener has as many connections as it may.
    Full,
    /// The process has no descriptor left for it.
    Descriptors,
    /// Its address has as many connections as one may.
    Address,
    /// It waited for its turn for too long, or too many waited.
    Rate,
    /// No complete CONNECT came in time.
    Silent,
}

impl Turned {
    pub const ALL: [Self; 5] = [Self::Full, Self::Descriptors, Self::Address, Self::Rate, Self::Silent];
    pub const COUNT: usize = Self::ALL.len();
}

/// What all listeners of a process have in common. Anybody may read and set it.
#[derive(Debug, Default)]
pub struct Door {
    turned: [AtomicU64; Turned::COUNT],
    accept_rate_max: AtomicU32,
}

impl Door {
    /// Sockets turned away since the start, in the order of [`Turned::ALL`].
    #[must_use]
    pub fn turned(&self) -> [u64; Turned::COUNT] {
        std::array::from_fn(|at| self.turned[at].load(Ordering::Relaxed))
    }

    /// From now on each listener takes at most so many sockets a second, whatever more its own rate allows; 0: as its own rate says.
    pub fn set_accept_rate_max(&self, per_sec: u32) {
        self.accept_rate_max.store(per_sec, Ordering::Relaxed);
    }

    pub(super) fn accept_rate_max(&self) -> u32 {
        self.accept_rate_max.load(Ordering::Relaxed)
    }

    pub(crate) fn turn_away(&self, why: Turned) {
        self.turned[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}
