//! The registry and its entries. `begin`, `check` and `done` are a few atomic operations on the owner's own entry; the
//! registry's lock guards stage changes, the deadline heap and the id counter.

use std::sync::Arc;
use std::task::Waker;

use thiserror::Error;

use crate::id::{Key, Owner};
use crate::time::Tick;

/// Bounds of one registry, checked by [`Registry::new`] (owner spec §2.1).
#[derive(Debug, Clone)]
pub struct Options {
    /// Not 0.
    pub node_id: u64,
    /// Valid, at most 128 bytes, unique per registry lifetime.
    pub boot_id: Arc<str>,
    /// 1 to 1,000,000 retained entries, pending, closing and uncertain ones included.
    pub capacity: usize,
    /// 1 to 1,024 open scopes per owner; default 64.
    pub operations_max: u32,
    /// Above 0, at most 60,000.
    pub pending_timeout_ms: u64,
    /// Above 0, at most 60,000.
    pub lease_max_ms: u64,
    /// Above 0, at most 60,000; doubles per failure of one owner up to 10,000 (DESIGN §4).
    pub close_retry_ms: u64,
}

/// Why an operation of the registry is refused (owner spec §2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OwnerError {
    #[error("malformed owner, claim or lease")]
    Invalid,
    #[error("the owner is fenced: its admission is closed")]
    Fenced,
    #[error("isolation of the owner is not proved")]
    Unknown,
    #[error("the registry or the owner is at its limit")]
    Limit,
    #[error("the registry is stopped")]
    Stopped,
    #[error("the transport could not be closed")]
    Close,
}

/// What a CONNECT asks to own; reserving it commits nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub key: Key,
    pub uid: Arc<str>,
    pub session_generation: u64,
    pub owner_generation: u64,
}

/// The way to an owner's socket. Implementations only *request*: they must not block, wait or call the registry.
/// When the socket is physically closed, the shell reports it with [`Registry::transport_closed`].
pub trait Transport: Send + Sync {
    /// Ask the connection to close its socket now.
    fn request_close(&self, owner: &Owner);
}

/// Outcome of a close attempt as the shell reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseOutcome {
    Closed,
    Failed,
}

/// Where a quiescence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiesce {
    /// Proved: the socket is closed, nothing admitted runs, nothing is uncertain.
    Proved,
    /// Not yet; the waker that was handed in is woken at the next change, then call again.
    Pending,
}

/// One retained owner. The connection keeps an `Arc` of it: admission needs no look-up and no lock.
#[derive(Debug)]
pub struct Entry {
    _private: (),
}

/// One admitted unit of work. Dropping it is `done` (covers panics); it is not `Clone`.
#[derive(Debug)]
pub struct Scope {
    _entry: Arc<Entry>,
}

/// Counts only, no identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    pub held: usize,
    pub pending: usize,
    pub active: usize,
    pub closing: usize,
    pub operations: usize,
    pub deadlines: usize,
    pub uncertain: usize,
}

/// Evidence that a stopped registry retired every owner it ever issued (owner spec §10.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retirement {
    pub node_id: u64,
    pub boot_id: Arc<str>,
    pub connection_id_max: u64,
}

/// All owners of one boot of one node.
#[derive(Debug)]
pub struct Registry {
    _private: (),
}

impl Registry {
    /// # Errors
    /// [`OwnerError::Invalid`] when an option is out of its range.
    pub fn new(_options: Options) -> Result<Self, OwnerError> {
        unimplemented!()
    }

    /// Reserves an owner for an authenticated claim: Pending until activated or `pending_timeout_ms` passed.
    ///
    /// # Errors
    /// Invalid, Stopped, Limit.
    pub fn reserve(
        &self,
        _now: Tick,
        _claim: Claim,
        _transport: Arc<dyn Transport>,
    ) -> Result<Arc<Entry>, OwnerError> {
        unimplemented!()
    }

    /// Pending to Active with a lease that was captured before the proposal (owner spec §2.4 `installLease`).
    ///
    /// # Errors
    /// Fenced, Invalid, Stopped, Unknown, in the order of the specification.
    pub fn activate(
        &self,
        _now: Tick,
        _owner: &Owner,
        _revision: u64,
        _until: Tick,
    ) -> Result<(), OwnerError> {
        unimplemented!()
    }

    /// Renews one owner's own lease (owner spec §2.4).
    ///
    /// # Errors
    /// As [`Self::activate`].
    pub fn renew(&self, _now: Tick, _owner: &Owner, _revision: u64, _until: Tick) -> Result<(), OwnerError> {
        unimplemented!()
    }

    /// Moves the effective deadline of every active owner of this boot at once (DESIGN §4, boot lease): one atomic store;
    /// heap records are corrected lazily when they surface.
    ///
    /// # Errors
    /// Stopped; Invalid when `until` is not ahead, too far ahead, or `revision` does not grow.
    pub fn renew_boot(&self, _now: Tick, _revision: u64, _until: Tick) -> Result<(), OwnerError> {
        unimplemented!()
    }

    /// Admits one unit of work. A few atomic operations, no allocation, no lock.
    ///
    /// # Errors
    /// Stopped, Fenced (also when the lease has run out: the owner is fenced then), Limit.
    pub fn begin(&self, _now: Tick, _entry: &Arc<Entry>) -> Result<Scope, OwnerError> {
        unimplemented!()
    }

    /// Closes admission; no transport call, no wait, no proof. Ok when already retired.
    ///
    /// # Errors
    /// Invalid, Unknown.
    pub fn fence(&self, _now: Tick, _owner: &Owner) -> Result<(), OwnerError> {
        unimplemented!()
    }

    /// Drives the quiescence of exactly this owner (owner spec §2.5): fences it, asks its transport to close once per
    /// attempt however many callers race, and reports proof when the socket is closed and every scope is done. `waker` is
    /// kept until the next change. Retired owners are proved at once.
    ///
    /// # Errors
    /// Invalid, Unknown (not ours, or uncertain), Close (this attempt failed; the owner stays fenced and is retried).
    pub fn quiesce(&self, _now: Tick, _owner: &Owner, _waker: Option<&Waker>) -> Result<Quiesce, OwnerError> {
        unimplemented!()
    }

    /// The shell's report that the socket of `owner` is physically closed, or that closing failed. Also called when the
    /// peer closed first, without any attempt under way.
    pub fn transport_closed(&self, _now: Tick, _owner: &Owner, _outcome: CloseOutcome) {
        unimplemented!()
    }

    /// Fences up to `limit` (1 to 256) due owners, asks their transports to close and returns how many were visited; a failing
    /// or uncertain owner backs off alone (250 ms doubling to 10 s). The caller calls again at once while full pages are due.
    ///
    /// # Errors
    /// Invalid limit.
    pub fn sweep(&self, _now: Tick, _limit: usize) -> Result<usize, OwnerError> {
        unimplemented!()
    }

    /// When the next owner is due for the sweeper.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        unimplemented!()
    }

    /// A resolver proved that the uncertain effect behind `token` is done or impossible: its mark is cleared.
    pub fn resolve(&self, _now: Tick, _owner: &Owner, _token: u64) {
        unimplemented!()
    }

    /// Permanently refuses reservations and scopes and fences every owner; no proof.
    pub fn stop_admission(&self, _now: Tick) {
        unimplemented!()
    }

    /// Requests the close of every held owner, a page of at most 256 a call; returns how many are still held.
    pub fn close_page(&self, _now: Tick) -> usize {
        unimplemented!()
    }

    /// Stopped and empty: the proof that covers every id issued.
    ///
    /// # Errors
    /// Unknown while an entry is held or admission is open.
    pub fn retirement(&self) -> Result<Retirement, OwnerError> {
        unimplemented!()
    }

    /// O(1).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        unimplemented!()
    }
}

impl Entry {
    /// The exact owner that this entry holds.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        unimplemented!()
    }

    /// The user that was pinned when it was reserved.
    #[must_use]
    pub fn uid(&self) -> &str {
        unimplemented!()
    }

    /// Whether admission is closed; one atomic load.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        unimplemented!()
    }
}

impl Scope {
    /// Revalidates before another effect without using a second slot.
    ///
    /// # Errors
    /// Fenced (also when the lease has run out).
    pub fn check(&self, _now: Tick) -> Result<(), OwnerError> {
        unimplemented!()
    }

    /// Records that a dependency may still act after this scope ends; the owner is fenced and stays unproved until a resolver
    /// calls [`Registry::resolve`] with this token (DESIGN §4 "Uncertain effects").
    ///
    /// # Errors
    /// Fenced when the entry is retired already.
    pub fn mark_uncertain(&mut self, _token: u64) -> Result<(), OwnerError> {
        unimplemented!()
    }

    /// Ends the unit of work (same as dropping it).
    pub fn done(self) {}
}
