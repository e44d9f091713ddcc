//! One retained owner and its admission: a few atomic operations, no lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::after::After;
use super::operations::Operations;
use super::registry::{Options, OwnerError};
use super::table::Table;
use crate::id::Owner;
use crate::time::Tick;

/// ```text
/// reserve ──▶ Pending ──activate──▶ Active
///                │                    │ fence, lease end, quiesce, sweep, uncertain, stop, socket closed
///                └──timeout, fence──▶ Closing ──(socket closed && no operation && nothing uncertain)──▶ Retired
/// ```
/// Stages only advance, and only under the registry's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub(super) enum Stage {
    Pending = 0,
    Active = 1,
    Closing = 2,
    Retired = 3,
}

/// The state word: open operations in the lower half, the stage above. Both change in one atomic operation, so that no
/// operation begins after the fence and the last one to end behind it knows that it is the last.
const STAGE_SHIFT: u32 = 32;
const OPERATIONS_MASK: u64 = (1 << STAGE_SHIFT) - 1;

/// One retained owner. The connection keeps an `Arc` of it: admission needs no look-up and no lock.
pub struct Entry {
    owner: Owner,
    uid: Arc<str>,
    state: AtomicU64,
    /// Pending: end of the pending timeout. Active: end of the owner's own lease. Written under the lock.
    lease_until: AtomicU64,
    pub(super) slot: u32,
    shared: Arc<Shared>,
}

/// What the entries and their registry share.
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) stopped: AtomicBool,
    /// End of the boot lease, 0 before the first one; written under the lock. See [`Entry::deadline`].
    pub(super) boot_until: AtomicU64,
    /// End of what the boot holds elsewhere (a lease in etcd), which its own lease never outlasts; `u64::MAX`: nothing. Written under the
    /// lock.
    pub(super) hold_until: AtomicU64,
    pub(super) operations: Operations,
    pub(super) table: Locked,
}

/// The lock, on cache lines of its own: what admission reads must not move with it.
#[repr(align(128))]
pub(super) struct Locked(pub(super) Mutex<Table>);

/// One admitted unit of work. Dropping it is `done` (covers panics); it is not `Clone`.
///
/// It must outlive every effect of the work and the network write. A dropped future is not an ended effect: a scope
/// belongs into the task that runs the effect (owner spec §2.6).
#[derive(Debug)]
pub struct Scope {
    entry: Arc<Entry>,
}

impl Entry {
    pub(super) fn new(owner: Owner, uid: Arc<str>, until: Tick, slot: u32, shared: Arc<Shared>) -> Self {
        Self { owner, uid, state: AtomicU64::new(0), lease_until: AtomicU64::new(until.0), slot, shared }
    }

    /// The exact owner that this entry holds.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The user that was pinned when it was reserved.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Whether admission is closed for ever; one atomic load. A pending owner is not fenced, though it admits nothing yet.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.stage() >= Stage::Closing
    }

    /// When this owner stops to execute unless a lease is renewed: for an active one the later of its own lease and the boot
    /// lease, but never behind what the boot holds; else the end of the pending timeout.
    ///
    /// A renewed boot lease never revives an owner: `renew_boot` and `hold` fence, before it moves the lease, every owner whose
    /// deadline had passed at its `now`; and whoever finds a deadline passed closes the stage under the same lock, looking
    /// again there. So at any moment an active owner's deadline lies ahead of every time at which it was examined, and a
    /// stage never goes back.
    #[must_use]
    pub fn deadline(&self) -> Tick {
        if self.stage() == Stage::Active { self.active_deadline() } else { self.lease_until() }
    }

    /// Whether bytes for this owner may still go to its socket: nothing leaves behind the end of its lease, whatever its stage. Ask with
    /// a clock read for this write: the process may have been stopped since the turn began. Three atomic loads.
    #[must_use]
    pub fn may_write(&self, now: Tick) -> bool {
        now < self.active_deadline()
    }

    pub(super) fn lease_until(&self) -> Tick {
        Tick(self.lease_until.load(Ordering::Acquire))
    }

    /// Under the lock only.
    pub(super) fn set_lease(&self, until: Tick) {
        self.lease_until.store(until.0, Ordering::Release);
    }

    pub(super) fn stage(&self) -> Stage {
        stage_of(self.state.load(Ordering::Acquire))
    }

    pub(super) fn operations(&self) -> u64 {
        self.state.load(Ordering::Acquire) & OPERATIONS_MASK
    }

    /// Advances to `stage`; under the lock only.
    pub(super) fn advance(&self, stage: Stage) {
        let from = self.stage();
        assert!(from < stage, "stages only advance");
        self.state.fetch_add((stage as u64 - from as u64) << STAGE_SHIFT, Ordering::AcqRel);
    }

    pub(super) fn belongs_to(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Admits one operation.
    pub(super) fn begin(self: &Arc<Self>, now: Tick) -> Result<Scope, OwnerError> {
        let shared = &*self.shared;
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            shared.check_open()?;
            if stage_of(state) != Stage::Active {
                return Err(OwnerError::Fenced);
            }
            if now >= self.active_deadline() {
                shared.fence_expired(now, self)?;
            }
            if state & OPERATIONS_MASK >= u64::from(shared.options.operations_max) {
                return Err(OwnerError::Limit);
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    shared.operations.begin();
                    return Ok(Scope { entry: Arc::clone(self) });
                }
                Err(actual) => state = actual,
            }
        }
    }

    fn active_deadline(&self) -> Tick {
        self.lease_until().max(self.shared.boot_until()).min(self.shared.hold_until())
    }

    fn check(&self, now: Tick) -> Result<(), OwnerError> {
        self.shared.check_open()?;
        if self.stage() != Stage::Active {
            return Err(OwnerError::Fenced);
        }
        if now >= self.active_deadline() { self.shared.fence_expired(now, self) } else { Ok(()) }
    }
}

impl Scope {
    /// The owner that was admitted.
    #[must_use]
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Revalidates before another effect without using a second slot.
    ///
    /// # Errors
    /// Stopped; Fenced (also when the lease has run out).
    pub fn check(&self, now: Tick) -> Result<(), OwnerError> {
        self.entry.check(now)
    }

    /// Records that a dependency may still act after this scope ends; the owner is fenced and stays unproved until a resolver
    /// calls [`super::Registry::resolve`] with this token (DESIGN §4 "Uncertain effects").
    ///
    /// A token names one effect of this owner: marking it twice is marking it once.
    ///
    /// # Errors
    /// Fenced when the entry is retired already.
    pub fn mark_uncertain(&mut self, token: u64) -> Result<(), OwnerError> {
        self.entry.shared.mark_uncertain(&self.entry, token)
    }

    /// Ends the unit of work (same as dropping it).
    pub fn done(self) {}
}

impl Drop for Scope {
    fn drop(&mut self) {
        let shared = &*self.entry.shared;
        shared.operations.end();
        let before = self.entry.state.fetch_sub(1, Ordering::AcqRel);
        debug_assert_ne!(before & OPERATIONS_MASK, 0, "a scope ends once");
        if before & OPERATIONS_MASK == 1 && stage_of(before) != Stage::Active {
            shared.drained(&self.entry);
        }
    }
}

impl Shared {
    pub(super) fn boot_until(&self) -> Tick {
        Tick(self.boot_until.load(Ordering::Acquire))
    }

    pub(super) fn hold_until(&self) -> Tick {
        Tick(self.hold_until.load(Ordering::Acquire))
    }

    pub(super) fn check_open(&self) -> Result<(), OwnerError> {
        if self.stopped.load(Ordering::Acquire) { Err(OwnerError::Stopped) } else { Ok(()) }
    }

    /// Fences an owner whose deadline was seen to have passed; Ok when a renewal came first.
    #[cold]
    fn fence_expired(&self, now: Tick, entry: &Entry) -> Result<(), OwnerError> {
        let mut table = self.table.0.lock();
        if entry.stage() == Stage::Active && now < entry.active_deadline() {
            return Ok(());
        }
        if table.holds(entry) {
            table.fence(entry.slot, now.plus_ms(self.options.close_retry_ms));
        }
        Err(OwnerError::Fenced)
    }

    /// The last operation of a closing owner has ended.
    #[cold]
    fn drained(&self, entry: &Entry) {
        let mut after = After::default();
        let mut table = self.table.0.lock();
        if table.holds(entry) {
            table.settle(entry.slot, &mut after);
        }
        drop(table);
        after.wake_all();
    }

    #[cold]
    fn mark_uncertain(&self, entry: &Entry, token: u64) -> Result<(), OwnerError> {
        let mut table = self.table.0.lock();
        if !table.holds(entry) {
            return Err(OwnerError::Fenced);
        }
        // Without a time at hand the owner is due at once.
        table.fence(entry.slot, Tick(0));
        table.mark_uncertain(entry.slot, token);
        Ok(())
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("owner", &self.owner)
            .field("stage", &self.stage())
            .field("operations", &self.operations())
            .finish_non_exhaustive()
    }
}

fn stage_of(state: u64) -> Stage {
    match state >> STAGE_SHIFT {
        0 => Stage::Pending,
        1 => Stage::Active,
        2 => Stage::Closing,
        _ => Stage::Retired,
    }
}
