//! The interface of the registry. `begin`, `check` and `done` are a few atomic operations on the owner's own entry; the
//! registry's lock guards stage changes, the deadline heap and the id counter.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use thiserror::Error;

use super::after::After;
use super::entry::{Entry, Locked, Scope, Shared, Stage};
use super::operations::Operations;
use super::table::{Lease, Page, Table};
use crate::id::{Key, Owner, check_identity};
use crate::limits;
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

/// The way to an owner's socket. Implementations only *request*: they must not block, wait or call the registry. A request
/// is repeated when its outcome is not reported before the owner's retry is due.
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
pub struct Registry {
    shared: Arc<Shared>,
}

impl Registry {
    /// # Errors
    /// [`OwnerError::Invalid`] when an option is out of its range.
    pub fn new(options: Options) -> Result<Self, OwnerError> {
        let timeouts = [options.pending_timeout_ms, options.lease_max_ms, options.close_retry_ms];
        let valid = options.node_id != 0
            && check_identity(&options.boot_id, limits::BOOT_ID_BYTES_MAX).is_ok()
            && (1..=limits::OWNERS_MAX).contains(&options.capacity)
            && (1..=limits::OWNER_OPERATIONS_MAX).contains(&options.operations_max)
            && timeouts.iter().all(|ms| (1..=limits::OWNER_TIMEOUT_MS_MAX).contains(ms));
        if !valid {
            return Err(OwnerError::Invalid);
        }
        Ok(Self {
            shared: Arc::new(Shared {
                options,
                stopped: AtomicBool::new(false),
                boot_until: AtomicU64::new(0),
                hold_until: AtomicU64::new(u64::MAX),
                operations: Operations::new(),
                table: Locked(Mutex::new(Table::default())),
            }),
        })
    }

    /// Reserves an owner for an authenticated claim: Pending until activated or `pending_timeout_ms` passed.
    ///
    /// # Errors
    /// Invalid, Stopped, Limit.
    pub fn reserve(
        &self,
        now: Tick,
        claim: Claim,
        transport: Arc<dyn Transport>,
    ) -> Result<Arc<Entry>, OwnerError> {
        claim.check()?;
        let mut table = self.shared.table.0.lock();
        self.shared.check_open()?;
        table.reserve(&self.shared, now, claim, transport)
    }

    /// Pending to Active with a lease that was captured before the proposal (owner spec §2.4 `installLease`).
    ///
    /// # Errors
    /// Fenced, Invalid, Stopped, Unknown, in the order of the specification.
    pub fn activate(&self, now: Tick, owner: &Owner, revision: u64, until: Tick) -> Result<(), OwnerError> {
        self.install_lease(now, owner, Lease { revision, until, from: Stage::Pending })
    }

    /// Renews one owner's own lease (owner spec §2.4).
    ///
    /// # Errors
    /// As [`Self::activate`].
    pub fn renew(&self, now: Tick, owner: &Owner, revision: u64, until: Tick) -> Result<(), OwnerError> {
        self.install_lease(now, owner, Lease { revision, until, from: Stage::Active })
    }

    /// Moves the effective deadline of every active owner of this boot at once (DESIGN §4, boot lease): one atomic store;
    /// heap records are corrected lazily when they surface.
    ///
    /// After the boot lease has run out it may be renewed for the owners to come: those whose deadline had passed at `now`
    /// are fenced first ([`Entry::deadline`] says why none is revived).
    ///
    /// # Errors
    /// Stopped; Invalid when `until` is not ahead, too far ahead, or `revision` does not grow.
    pub fn renew_boot(&self, now: Tick, revision: u64, until: Tick) -> Result<(), OwnerError> {
        let mut table = self.shared.table.0.lock();
        self.shared.check_open()?;
        table.renew_boot(&self.shared, now, Lease { revision, until, from: Stage::Active })
    }

    /// What the boot holds elsewhere ends at `until` unless it is held anew: no owner executes behind that, whatever its leases say. An
    /// `until` that has passed fences all owners that are active at once; what is held again later is for the owners to come.
    pub fn hold(&self, now: Tick, until: Tick) {
        self.shared.table.0.lock().hold(&self.shared, now, until);
    }

    /// Admits one unit of work. A few atomic operations, no allocation, no lock.
    ///
    /// # Errors
    /// Stopped, Unknown (an entry of another registry), Fenced (also when the lease has run out: the owner is fenced then),
    /// Limit.
    pub fn begin(&self, now: Tick, entry: &Arc<Entry>) -> Result<Scope, OwnerError> {
        if entry.belongs_to(&self.shared) { entry.begin(now) } else { Err(OwnerError::Unknown) }
    }

    /// Closes admission; no transport call, no wait, no proof. Ok when already retired.
    ///
    /// # Errors
    /// Invalid, Unknown.
    pub fn fence(&self, now: Tick, owner: &Owner) -> Result<(), OwnerError> {
        let options = &self.shared.options;
        let mut table = self.shared.table.0.lock();
        if let Some(slot) = table.find(options, owner)? {
            table.fence(slot, now.plus_ms(options.close_retry_ms));
        }
        Ok(())
    }

    /// Drives the quiescence of exactly this owner (owner spec §2.5): fences it, asks its transport to close once per
    /// attempt however many callers race, and reports proof when the socket is closed and every scope is done. `waker` is
    /// kept until the next change. Retired owners are proved at once.
    ///
    /// A call that finds the last attempt failed starts the next one, unless its waker waited for the failed one: then it
    /// learns of that first.
    ///
    /// # Errors
    /// Invalid, Unknown (not ours, or uncertain), Close (this attempt failed; the owner stays fenced and is retried), Limit
    /// (256 callers wait for this owner).
    pub fn quiesce(&self, now: Tick, owner: &Owner, waker: Option<&Waker>) -> Result<Quiesce, OwnerError> {
        let mut after = After::default();
        let outcome = self.shared.table.0.lock().quiesce(&self.shared.options, now, owner, waker, &mut after);
        after.run(&self.shared, now);
        outcome
    }

    /// The shell's report that the socket of `owner` is physically closed, or that closing failed. Also called when the
    /// peer closed first, without any attempt under way: the owner is fenced then. A report about an owner that is not held
    /// changes nothing.
    pub fn transport_closed(&self, now: Tick, owner: &Owner, outcome: CloseOutcome) {
        self.shared.transport_closed(now, owner, outcome);
    }

    /// Fences up to `limit` (1 to 256) due owners, asks their transports to close and returns how many were visited; a failing
    /// or uncertain owner backs off alone (250 ms doubling to 10 s). The caller calls again at once while full pages are due.
    ///
    /// # Errors
    /// Invalid limit.
    pub fn sweep(&self, now: Tick, limit: usize) -> Result<usize, OwnerError> {
        if !(1..=limits::OWNER_SWEEP_MAX).contains(&limit) {
            return Err(OwnerError::Invalid);
        }
        let mut visited = 0;
        loop {
            let mut after = After::default();
            let page =
                self.shared.table.0.lock().sweep(&self.shared.options, now, limit, &mut after, &mut visited);
            after.run(&self.shared, now);
            if page == Page::Over {
                return Ok(visited);
            }
        }
    }

    /// When the sweeper is to look next: never later than the next owner is due, earlier where leases were renewed since.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.shared.table.0.lock().next_deadline()
    }

    /// A resolver proved that the uncertain effect behind `token` is done or impossible: its mark is cleared. The owner stays
    /// fenced; without another mark it can be proved stopped.
    pub fn resolve(&self, now: Tick, owner: &Owner, token: u64) {
        let mut after = After::default();
        self.shared.table.0.lock().resolve(&self.shared.options, owner, token, &mut after);
        after.run(&self.shared, now);
    }

    /// Permanently refuses reservations and scopes and fences every owner; no proof.
    pub fn stop_admission(&self, now: Tick) {
        // Under the lock: what was reserved before is fenced, what comes later is refused.
        let mut table = self.shared.table.0.lock();
        if !self.shared.stopped.swap(true, Ordering::AcqRel) {
            table.fence_all(now);
        }
    }

    /// The boot is over, whatever its lease said: as [`Self::stop_admission`], and nothing may be written for any owner any more.
    pub fn expire(&self, now: Tick) {
        self.stop_admission(now);
        self.shared.table.0.lock().expire(&self.shared, now);
    }

    /// Stops admission and requests the close of held owners, a page of at most 256 a call; returns how many are still held.
    /// Failing ones are asked again when their retry is due, so it may be called in a loop.
    pub fn close_page(&self, now: Tick) -> usize {
        self.stop_admission(now);
        let visited = self.sweep(now, limits::OWNER_SWEEP_MAX);
        debug_assert!(visited.is_ok(), "the limit is valid");
        self.shared.table.0.lock().held()
    }

    /// Stopped and empty: the proof that covers every id issued.
    ///
    /// # Errors
    /// Unknown while an entry is held or admission is open.
    pub fn retirement(&self) -> Result<Retirement, OwnerError> {
        let table = self.shared.table.0.lock();
        if self.shared.check_open().is_ok() || table.held() != 0 {
            return Err(OwnerError::Unknown);
        }
        Ok(Retirement {
            node_id: self.shared.options.node_id,
            boot_id: Arc::clone(&self.shared.options.boot_id),
            connection_id_max: table.issued(),
        })
    }

    /// O(1).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let operations = self.shared.operations.count();
        self.shared.table.0.lock().snapshot(operations)
    }

    fn install_lease(&self, now: Tick, owner: &Owner, lease: Lease) -> Result<(), OwnerError> {
        let mut table = self.shared.table.0.lock();
        self.shared.check_open()?;
        table.install_lease(&self.shared, now, owner, lease)
    }
}

impl Claim {
    fn check(&self) -> Result<(), OwnerError> {
        let valid = check_identity(&self.key.namespace, limits::NAMESPACE_BYTES_MAX).is_ok()
            && check_identity(&self.key.client_id, limits::CLIENT_ID_BYTES_MAX).is_ok()
            && check_identity(&self.uid, limits::UID_BYTES_MAX).is_ok()
            && self.session_generation != 0
            && self.owner_generation != 0;
        if valid { Ok(()) } else { Err(OwnerError::Invalid) }
    }
}

impl Shared {
    pub(super) fn transport_closed(&self, now: Tick, owner: &Owner, outcome: CloseOutcome) {
        let mut after = After::default();
        self.table.0.lock().transport_closed(&self.options, now, owner, outcome, &mut after);
        after.run(self, now);
    }
}

/// Entries refer to what the registry shares, and its table to the entries: the circle ends here.
impl Drop for Registry {
    fn drop(&mut self) {
        let slots = self.shared.table.0.lock().take_slots();
        drop(slots);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "fixture_test.rs"]
mod fixture;
#[cfg(test)]
#[path = "model_test.rs"]
mod model_test;
#[cfg(test)]
#[path = "race_test.rs"]
mod race_test;
#[cfg(test)]
#[path = "registry_test.rs"]
mod tests;
