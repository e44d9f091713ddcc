//! What the registry's lock guards: the retained owners, their deadlines and close attempts, the counts and the id counter.
//!
//! Nothing here calls out: what is to be called, woken or dropped is left in an [`After`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::after::{After, CloseRequest};
use super::closing::{Closing, Socket};
use super::deadlines::{Deadlines, Record};
use super::entry::{Entry, Shared, Stage};
use super::registry::{Claim, CloseOutcome, Options, OwnerError, Quiesce, Snapshot, Transport};
use crate::id::Owner;
use crate::time::Tick;

/// Records of renewed owners that one turn under the lock moves: about 100 microseconds.
const CORRECTIONS_MAX: usize = 128;

/// Invariant: `pending + active + closing` = slots in use = records in `deadlines`.
#[derive(Default)]
pub(super) struct Table {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    by_id: HashMap<u64, u32, FixedState>,
    deadlines: Deadlines,
    /// The last connection id issued.
    issued: u64,
    pub(super) boot_revision: u64,
    pending: usize,
    active: usize,
    closing: usize,
    uncertain: usize,
}

/// One retained owner, as the lock guards it.
pub(super) struct Slot {
    entry: Arc<Entry>,
    transport: Arc<dyn Transport>,
    /// Revision of its own lease; 0 while pending.
    revision: u64,
    /// Present from the fence on.
    closing: Option<Box<Closing>>,
}

/// Where a page of the sweeper stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    /// Nothing more is due, or the limit is reached.
    Over,
    /// More may be due, behind records that were corrected.
    More,
}

impl Table {
    pub(super) fn held(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    pub(super) fn next_deadline(&self) -> Option<Tick> {
        self.deadlines.head().map(|record| record.deadline)
    }

    pub(super) fn snapshot(&self, operations: usize) -> Snapshot {
        Snapshot {
            held: self.held(),
            pending: self.pending,
            active: self.active,
            closing: self.closing,
            operations,
            deadlines: self.deadlines.len(),
            uncertain: self.uncertain,
        }
    }

    /// Drops every entry; the registry goes away.
    pub(super) fn take_slots(&mut self) -> Vec<Option<Slot>> {
        self.by_id.clear();
        std::mem::take(&mut self.slots)
    }

    /// The look-up rule of every operation (owner spec §2.3); `None`: retired.
    pub(super) fn find(&self, options: &Options, owner: &Owner) -> Result<Option<u32>, OwnerError> {
        owner.check().map_err(|_| OwnerError::Invalid)?;
        let foreign = owner.node_id != options.node_id || owner.boot_id != options.boot_id;
        if foreign || owner.connection_id > self.issued {
            return Err(OwnerError::Unknown);
        }
        match self.by_id.get(&owner.connection_id) {
            Some(&slot) if self.slot(slot).entry.owner() != owner => Err(OwnerError::Unknown),
            found => Ok(found.copied()),
        }
    }

    /// Whether `entry` is retained.
    pub(super) fn holds(&self, entry: &Entry) -> bool {
        matches!(self.slots.get(entry.slot as usize), Some(Some(slot)) if std::ptr::eq(&*slot.entry, entry))
    }

    pub(super) fn reserve(
        &mut self,
        shared: &Arc<Shared>,
        now: Tick,
        claim: Claim,
        transport: Arc<dyn Transport>,
    ) -> Result<Arc<Entry>, OwnerError> {
        let options = &shared.options;
        if self.held() >= options.capacity || self.issued == u64::MAX {
            return Err(OwnerError::Limit);
        }
        self.issued += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("a registry holds at most 1,000,000 owners")
        });
        let owner = Owner {
            key: claim.key,
            session_generation: claim.session_generation,
            owner_generation: claim.owner_generation,
            node_id: options.node_id,
            boot_id: Arc::clone(&options.boot_id),
            connection_id: self.issued,
        };
        let deadline = now.plus_ms(options.pending_timeout_ms);
        let entry = Arc::new(Entry::new(owner, claim.uid, deadline, slot, Arc::clone(shared)));
        self.slots[slot as usize] =
            Some(Slot { entry: Arc::clone(&entry), transport, revision: 0, closing: None });
        self.by_id.insert(self.issued, slot);
        self.deadlines.insert(Record { deadline, connection_id: self.issued, slot });
        self.pending += 1;
        Ok(entry)
    }

    /// Activate (from Pending) or Renew (from Active), in the order of owner spec §2.4 `installLease`.
    pub(super) fn install_lease(
        &mut self,
        shared: &Shared,
        now: Tick,
        owner: &Owner,
        lease: Lease,
    ) -> Result<(), OwnerError> {
        let options = &shared.options;
        let slot = self.find(options, owner)?.ok_or(OwnerError::Fenced)?;
        let entry = Arc::clone(&self.slot(slot).entry);
        let stage = entry.stage();
        if stage >= Stage::Closing || now >= entry.deadline() {
            self.fence(slot, now.plus_ms(options.close_retry_ms));
            return Err(OwnerError::Fenced);
        }
        let over = lease.until.min(shared.hold_until()) <= now;
        if lease.revision == 0 || over || lease.until > now.plus_ms(options.lease_max_ms) {
            return Err(OwnerError::Invalid);
        }
        let current = self.slot(slot).revision;
        if stage == Stage::Active && lease.revision == current && lease.until == entry.lease_until() {
            return Ok(());
        }
        if stage != lease.from || (stage == Stage::Active && lease.revision <= current) {
            return Err(OwnerError::Fenced);
        }
        self.slot_mut(slot).revision = lease.revision;
        entry.set_lease(lease.until);
        if stage == Stage::Pending {
            entry.advance(Stage::Active);
            self.pending -= 1;
            self.active += 1;
        }
        self.deadlines.set(slot, entry.deadline());
        Ok(())
    }

    /// Moves the boot lease, see [`Entry::deadline`].
    pub(super) fn renew_boot(&mut self, shared: &Shared, now: Tick, lease: Lease) -> Result<(), OwnerError> {
        let options = &shared.options;
        if lease.revision <= self.boot_revision
            || lease.until <= now
            || lease.until > now.plus_ms(options.lease_max_ms)
        {
            return Err(OwnerError::Invalid);
        }
        let until = shared.boot_until();
        if until <= now {
            self.fence_due(now, now.plus_ms(options.close_retry_ms));
        }
        self.boot_revision = lease.revision;
        shared.boot_until.store(lease.until.0, Ordering::Release);
        if lease.until < until {
            self.advance_records();
        }
        Ok(())
    }

    /// Moves the end of what the boot holds, see [`Entry::deadline`].
    pub(super) fn hold(&mut self, shared: &Shared, now: Tick, until: Tick) {
        let before = shared.hold_until();
        if before.min(until) <= now {
            // In both cases: whoever was active is over, also when it is held again by now.
            shared.hold_until.store(before.min(until).0, Ordering::Release);
            self.fence_due(now, now);
        }
        shared.hold_until.store(until.0, Ordering::Release);
        if until < before {
            self.advance_records();
        }
    }

    /// Fences every active owner whose deadline has passed.
    fn fence_due(&mut self, now: Tick, retry_at: Tick) {
        for slot in self.slots_where(|entry| entry.stage() == Stage::Active && entry.deadline() <= now) {
            self.fence(slot, retry_at);
        }
    }

    /// A shorter boot lease, or hold: no record of an active owner may lie behind its deadline.
    fn advance_records(&mut self) {
        for slot in self.slots_where(|entry| entry.stage() == Stage::Active) {
            let deadline = self.slot(slot).entry.deadline();
            if deadline < self.deadlines.get(slot) {
                self.deadlines.set(slot, deadline);
            }
        }
    }

    /// Fences every owner; all that were not closing are due at once.
    pub(super) fn fence_all(&mut self, now: Tick) {
        for slot in self.slots_where(|entry| entry.stage() < Stage::Closing) {
            self.fence(slot, now);
        }
    }

    /// Ends the leases of all owners and of the boot, for ever: `renew_boot` and `install_lease` are refused once admission is stopped.
    pub(super) fn expire(&mut self, shared: &Shared, now: Tick) {
        if shared.boot_until() > now {
            shared.boot_until.store(now.0, Ordering::Release);
        }
        for slot in self.slots_where(|entry| entry.lease_until() > now) {
            self.slot(slot).entry.set_lease(now);
        }
    }

    /// Closes the admission of an owner; it is due for the sweeper at `due`. Does nothing when it is fenced already.
    pub(super) fn fence(&mut self, slot: u32, due: Tick) {
        let held = self.slot_mut(slot);
        match held.entry.stage() {
            Stage::Closing | Stage::Retired => return,
            stage => {
                held.entry.advance(Stage::Closing);
                held.closing = Some(Box::new(Closing::new()));
                if stage == Stage::Pending { self.pending -= 1 } else { self.active -= 1 }
            }
        }
        self.closing += 1;
        self.deadlines.set(slot, due);
    }

    /// One step of the quiescence of exactly this owner (owner spec §2.5).
    pub(super) fn quiesce(
        &mut self,
        options: &Options,
        now: Tick,
        owner: &Owner,
        waker: Option<&Waker>,
        after: &mut After,
    ) -> Result<Quiesce, OwnerError> {
        let Some(slot) = self.find(options, owner)? else {
            return Ok(Quiesce::Proved);
        };
        self.fence(slot, now.plus_ms(options.close_retry_ms));
        let due = self.deadlines.get(slot) <= now;
        let drained = self.slot(slot).entry.operations() == 0;
        let closing = self.closing_mut(slot);
        match closing.socket {
            Socket::Closed if drained => {
                if closing.is_uncertain() {
                    return Err(OwnerError::Unknown);
                }
                self.settle(slot, after);
                return Ok(Quiesce::Proved);
            }
            Socket::Closed => {}
            Socket::Asked if !due => {}
            Socket::Open | Socket::Asked => {
                if closing.learns_of_failure(waker) {
                    return Err(OwnerError::Close);
                }
                self.ask(options, now, slot, after);
            }
        }
        self.closing_mut(slot).wait(waker)?;
        Ok(Quiesce::Pending)
    }

    pub(super) fn transport_closed(
        &mut self,
        options: &Options,
        now: Tick,
        owner: &Owner,
        outcome: CloseOutcome,
        after: &mut After,
    ) {
        let Ok(Some(slot)) = self.find(options, owner) else {
            return;
        };
        match outcome {
            CloseOutcome::Closed => {
                self.fence(slot, now.plus_ms(options.close_retry_ms));
                self.closing_mut(slot).socket = Socket::Closed;
                self.settle(slot, after);
            }
            CloseOutcome::Failed => {
                let asked =
                    self.slot(slot).closing.as_ref().is_some_and(|closing| closing.socket == Socket::Asked);
                if asked {
                    let closing = self.closing_mut(slot);
                    after.wake.extend(closing.fail());
                    let pause_ms = closing.pause_ms(options.close_retry_ms);
                    self.deadlines.set(slot, now.plus_ms(pause_ms));
                }
            }
        }
    }

    /// Visits due owners until `limit`; each is fenced and its next visit fixed before its transport is asked, so that none
    /// stays at the head (owner spec §3.2).
    pub(super) fn sweep(
        &mut self,
        options: &Options,
        now: Tick,
        limit: usize,
        after: &mut After,
        visited: &mut usize,
    ) -> Page {
        let mut corrections = 0;
        while *visited < limit {
            let Some(record) = self.deadlines.head().filter(|record| record.deadline <= now) else {
                return Page::Over;
            };
            let deadline = self.slot(record.slot).entry.deadline();
            if self.slot(record.slot).entry.stage() == Stage::Active && deadline > now {
                // A lease was renewed since the record was made.
                self.deadlines.set(record.slot, deadline);
                corrections += 1;
                if corrections >= CORRECTIONS_MAX {
                    return Page::More;
                }
                continue;
            }
            *visited += 1;
            self.visit(options, now, record.slot, after);
        }
        Page::Over
    }

    fn visit(&mut self, options: &Options, now: Tick, slot: u32, after: &mut After) {
        self.fence(slot, now);
        if self.closing_mut(slot).socket == Socket::Closed {
            // Operations or uncertain effects keep it.
            let closing = self.closing_mut(slot);
            closing.visit();
            let pause_ms = closing.pause_ms(options.close_retry_ms);
            after.wake.extend(closing.take_waiters());
            self.deadlines.set(slot, now.plus_ms(pause_ms));
            self.settle(slot, after);
        } else {
            self.ask(options, now, slot, after);
        }
    }

    /// Starts a close attempt; it counts as lost when its retry is due before it was reported.
    fn ask(&mut self, options: &Options, now: Tick, slot: u32, after: &mut After) {
        let held = self.slot_mut(slot);
        after
            .close
            .push(CloseRequest { transport: Arc::clone(&held.transport), entry: Arc::clone(&held.entry) });
        let closing = self.closing_mut(slot);
        closing.visit();
        after.wake.extend(closing.ask());
        let pause_ms = closing.pause_ms(options.close_retry_ms);
        self.deadlines.set(slot, now.plus_ms(pause_ms));
    }

    /// Retires a closing owner whose socket is closed, with no operation left and nothing uncertain. With something
    /// uncertain it stays, and whoever waits learns that.
    pub(super) fn settle(&mut self, slot: u32, after: &mut After) {
        let held = self.slot_mut(slot);
        let drained = held.entry.operations() == 0;
        let Some(closing) = held.closing.as_mut() else { return };
        if closing.socket != Socket::Closed || !drained {
            return;
        }
        after.wake.extend(closing.take_waiters());
        if closing.is_uncertain() {
            return;
        }
        held.entry.advance(Stage::Retired);
        let connection_id = held.entry.owner().connection_id;
        self.by_id.remove(&connection_id);
        self.deadlines.remove(slot);
        self.closing -= 1;
        self.free.push(slot);
        after.retired.extend(self.slots[slot as usize].take());
    }

    pub(super) fn mark_uncertain(&mut self, slot: u32, token: u64) {
        self.uncertain += usize::from(self.closing_mut(slot).mark_uncertain(token));
    }

    pub(super) fn resolve(&mut self, options: &Options, owner: &Owner, token: u64, after: &mut After) {
        let Ok(Some(slot)) = self.find(options, owner) else {
            return;
        };
        let Some(closing) = self.slot_mut(slot).closing.as_mut() else {
            return;
        };
        if closing.resolve(token) {
            self.uncertain -= 1;
            self.settle(slot, after);
        }
    }

    fn slots_where(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<u32> {
        self.slots.iter().flatten().filter(|slot| wanted(&slot.entry)).map(|slot| slot.entry.slot).collect()
    }

    fn slot(&self, slot: u32) -> &Slot {
        self.slots[slot as usize].as_ref().expect("a known slot is in use")
    }

    fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        self.slots[slot as usize].as_mut().expect("a known slot is in use")
    }

    fn closing_mut(&mut self, slot: u32) -> &mut Closing {
        self.slot_mut(slot).closing.as_mut().expect("a fenced owner has it until it is retired")
    }
}

/// A lease that is to be installed, own or of the boot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) revision: u64,
    pub(super) until: Tick,
    /// Stage that it is for: Pending to activate, Active to renew.
    pub(super) from: Stage,
}
