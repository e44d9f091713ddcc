//! The in-memory form of sessions and lifetimes, and the few functions through which every change of a row goes: they
//! keep indexes, counters and the list of changed rows in step.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::inbox::{Inbox, OfShares};
use super::rows::RowId;
use super::stamps::Changed;
use super::{Group, GroupStat};
use crate::id::{Boot, Key, Owner};
use crate::invariants;
use crate::lifecycle::command::SessionRef;
use crate::lifecycle::reply::Conflict;
use crate::lifecycle::row::{SessionRow, SessionState, SubscriptionOptions, WillStage};
use crate::time::Millis;

/// One row with what belongs to it alone.
#[derive(Debug)]
pub(super) struct Slot {
    pub row: SessionRow,
    /// Some lifetime of this row was durable: its user stays bound for the binding retention (DESIGN §3).
    pub ever_durable: bool,
    /// The row is not removed before; `None`: not decided yet (a durable row) or not at all.
    pub keep_until: Option<Millis>,
    // Derived from other rows:
    /// Wills of this key.
    pub wills: u32,
    /// Lifetimes that are over and still have children, oldest first.
    pub reclaimable: SmallVec<[u64; 1]>,
    pub due_session: Millis,
    pub due_reclaim: Millis,
    /// The row is on disk.
    pub stored: bool,
}

impl Slot {
    pub(super) fn new(row: SessionRow, ever_durable: bool, keep_until: Option<Millis>) -> Self {
        Self {
            row,
            ever_durable,
            keep_until,
            wills: 0,
            reclaimable: SmallVec::new(),
            due_session: Millis::NEVER,
            due_reclaim: Millis::NEVER,
            stored: false,
        }
    }

    pub(super) fn ended(&self) -> bool {
        matches!(self.row.state, SessionState::Ended { .. })
    }

    /// Whether the ClientID still belongs to the user of the row.
    pub(super) fn binding_holds(&self, now: Millis) -> bool {
        self.bound_until().is_some_and(|until| now < until)
    }

    /// Until when it does; `None`: it does not.
    pub(super) fn bound_until(&self) -> Option<Millis> {
        if !self.ended() {
            return Some(Millis::NEVER);
        }
        (self.ever_durable && self.row.uid.is_some()).then(|| self.keep_until.unwrap_or(Millis::NEVER))
    }

    /// Whether the ended row itself must stay.
    pub(super) fn kept(&self, now: Millis) -> bool {
        match self.keep_until {
            Some(until) => now < until,
            None => self.ever_durable && self.row.uid.is_some(),
        }
    }
}

/// One lifetime, found by its number: the fast path of appends and acknowledgements.
#[derive(Debug)]
pub(super) struct Lifetime {
    pub key: Key,
    /// Owner generation while the session is Active, else 0.
    pub fence: u64,
    /// Ended or replaced: takes nothing any more.
    pub ended: bool,
    /// Of durable lifetimes, until reclaimed.
    pub children: Option<Box<Children>>,
    /// Position in the index of inboxes with messages that expire.
    pub expiring: Millis,
    /// Its user, by number.
    pub user: u32,
}

/// What belongs to a durable lifetime.
#[derive(Debug)]
pub(super) struct Children {
    pub session_generation: u64,
    pub subscriptions: BTreeMap<Arc<str>, SubscriptionOptions>,
    /// Inbound QoS 2 packet ids that are not released.
    pub received: BTreeMap<u16, Received>,
    pub next_sequence: u64,
    pub inbox: Inbox,
    /// Stands in the list of changed lifetimes.
    pub dirty: bool,
    /// The row is on disk.
    pub stored: bool,
}

/// An inbound QoS 2 exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// Stamps its appends.
    pub sequence: u64,
    /// Connections were served.
    pub routed: bool,
}

impl Children {
    pub(super) fn new(session_generation: u64, base: u64) -> Self {
        Self {
            session_generation,
            subscriptions: BTreeMap::new(),
            received: BTreeMap::new(),
            next_sequence: 1,
            inbox: Inbox::new(base),
            dirty: false,
            stored: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.subscriptions.is_empty() && self.received.is_empty() && self.inbox.log.is_empty()
    }

    pub(super) fn touch(&mut self, lifetime: u64, dirty: &mut Vec<u64>) {
        if !self.dirty {
            self.dirty = true;
            dirty.push(lifetime);
        }
    }
}

pub(super) fn count_state(stat: &mut GroupStat, state: SessionState) -> &mut u64 {
    match state {
        SessionState::Active => &mut stat.sessions_active,
        SessionState::Offline { .. } => &mut stat.sessions_offline,
        SessionState::Ended { .. } => &mut stat.sessions_ended,
    }
}

impl Group {
    /// Writes the next version of a row: the one place where rows change.
    pub(super) fn put_row(&mut self, next: SessionRow) {
        let key = next.owner.key.clone();
        let lifetime = next.lifetime;
        let fence = if next.state == SessionState::Active { next.owner.owner_generation } else { 0 };
        let ended = matches!(next.state, SessionState::Ended { .. });
        let durable = next.durable;
        let generation = next.owner.session_generation;
        invariants::row_shape(&next).unwrap_or_else(|violation| panic!("{violation}"));
        *count_state(&mut self.stat, next.state) += 1;
        let uid = next.uid.clone();
        let mut counted = None;
        match self.sessions.get_mut(&key) {
            Some(slot) => {
                counted = (!slot.ended()).then_some(slot.row.lifetime);
                invariants::row_follows(&slot.row, &next).unwrap_or_else(|violation| panic!("{violation}"));
                *count_state(&mut self.stat, slot.row.state) -= 1;
                slot.ever_durable |= durable;
                slot.row = next;
            }
            None => {
                let mut slot = Slot::new(next, durable, None);
                // A row of the key that was removed since the last drain is still on disk.
                slot.stored = self.dirty.rows.contains(&RowId::Session(key.clone()));
                self.sessions.insert(slot);
            }
        }
        let (inboxes, users) = (&mut self.stat.inboxes, &mut self.users);
        let life = self.lifetimes.entry(lifetime).or_insert_with(|| {
            *inboxes += u64::from(durable);
            Lifetime {
                key: key.clone(),
                fence,
                ended,
                children: durable.then(|| Box::new(Children::new(generation, 0))),
                expiring: Millis::NEVER,
                user: users.enter(uid.as_ref()),
            }
        });
        life.fence = fence;
        if let Some(children) = life.children.as_deref_mut().filter(|children| !children.stored) {
            children.touch(lifetime, &mut self.dirty.lifetimes);
        }
        if let Some(before) = counted {
            self.count_session(before, -1);
        }
        self.count_session(lifetime, i64::from(!ended));
        self.sync_expiring(lifetime);
        self.dirty.rows.insert(RowId::Session(key));
    }

    /// Closes a lifetime for ever: it takes nothing more, its children wait for Reclaim (or are gone, if there are none).
    pub(super) fn retire_lifetime(&mut self, key: &Key, lifetime: u64) {
        self.events_ended.push(lifetime);
        let Some(life) = self.lifetimes.get_mut(&lifetime) else { return };
        life.ended = true;
        life.fence = 0;
        let stamped = self.stamps.publisher(key, lifetime).is_some();
        // Stamps alone do not keep a lifetime: one that comes late, from a publisher that is gone, is left to Tidy.
        let empty = life.children.as_ref().is_none_or(|children| children.is_empty() && !stamped);
        self.sync_expiring(lifetime);
        self.sync_sharing(lifetime);
        if empty {
            self.drop_children(lifetime);
        } else if let Some(slot) = self.sessions.get_mut(key) {
            slot.reclaimable.push(lifetime);
        }
    }

    /// Forgets the (empty) children of a lifetime, and the lifetime unless it is the row's current one.
    pub(super) fn drop_children(&mut self, lifetime: u64) {
        let Some(life) = self.lifetimes.get_mut(&lifetime) else { return };
        if let Some(children) = life.children.take() {
            debug_assert!(children.is_empty(), "only empty children are dropped");
            self.stat.inboxes -= 1;
            if children.stored {
                self.dirty.dropped.push((lifetime, children.inbox.log.stored_chunks()));
            }
        }
    }

    /// Recomputes when the session of `key` is due.
    pub(super) fn rearm(&mut self, key: &Key) {
        let Some(slot) = self.sessions.get_mut(key) else { return };
        let row = &slot.row;
        let will_due = if row.will_generation == 0 {
            None
        } else {
            self.wills.get(&super::will_key(row)).and_then(|will| will.row.due_at)
        };
        let session = match row.state {
            SessionState::Offline { offline_expires_at } => {
                will_due.map_or(offline_expires_at, |due| due.min(offline_expires_at))
            }
            _ => Millis::NEVER,
        };
        let reclaim = if !slot.reclaimable.is_empty() {
            row.updated_at
        } else if slot.ended() && slot.wills == 0 {
            slot.keep_until.unwrap_or(row.updated_at)
        } else {
            Millis::NEVER
        };
        let lifetime = row.lifetime;
        self.deadlines.arm_session(lifetime, &mut slot.due_session, session);
        self.deadlines.arm_reclaim(lifetime, &mut slot.due_reclaim, reclaim);
    }

    /// The current lifetime of a row is about to change: its deadlines are named by it.
    pub(super) fn disarm(&mut self, key: &Key) {
        let Some(slot) = self.sessions.get_mut(key) else { return };
        let lifetime = slot.row.lifetime;
        self.deadlines.arm_session(lifetime, &mut slot.due_session, Millis::NEVER);
        self.deadlines.arm_reclaim(lifetime, &mut slot.due_reclaim, Millis::NEVER);
    }

    /// Removes the row if nothing needs it any more.
    pub(super) fn try_remove(&mut self, key: &Key) -> bool {
        let Some(slot) = self.sessions.get(key) else { return false };
        if !slot.ended() || !slot.reclaimable.is_empty() || slot.wills != 0 || slot.kept(self.clock) {
            return false;
        }
        self.remove_row(key);
        true
    }

    pub(super) fn remove_row(&mut self, key: &Key) {
        self.disarm(key);
        let Some(slot) = self.sessions.remove(key) else { return };
        self.drop_children(slot.row.lifetime);
        self.count_session(slot.row.lifetime, -i64::from(!slot.ended()));
        self.forget_lifetime(slot.row.lifetime);
        // A later row of this key must never produce a Will key or an exact retry of this one.
        self.revision_floor = self.revision_floor.max(slot.row.revision);
        *count_state(&mut self.stat, slot.row.state) -= 1;
        self.count_boot(&slot.row.owner, -1);
        let id = RowId::Session(key.clone());
        if slot.stored {
            self.dirty.rows.insert(id);
        } else {
            self.dirty.rows.remove(&id);
        }
    }

    /// Everything up to the last ended generation is reclaimed.
    pub(super) fn note_reclaimed(&mut self, key: &Key) {
        let Some(slot) = self.sessions.get_mut(key) else { return };
        if !slot.reclaimable.is_empty() {
            return;
        }
        let generation = slot.row.owner.session_generation;
        let through = if slot.ended() { generation } else { generation - 1 };
        if slot.row.reclaimed_through != through {
            slot.row.reclaimed_through = through;
            self.dirty.rows.insert(RowId::Session(key.clone()));
        }
    }

    /// Sessions that name a boot as their last owner's.
    pub(super) fn count_boot(&mut self, owner: &Owner, by: i64) {
        if let Some(state) =
            self.boots.get_mut(&Boot { node_id: owner.node_id, boot_id: owner.boot_id.clone() })
        {
            state.sessions =
                state.sessions.checked_add_signed(by).expect("rows of a boot are counted both ways");
        }
    }

    /// The children of a session, for its exact owner only.
    ///
    /// # Errors
    /// `Missing` for an unknown lifetime, `Fenced` for another owner or an ended lifetime, `Illegal` for a session that is
    /// not durable.
    pub(super) fn fenced(
        &mut self,
        session: SessionRef,
    ) -> Result<(&mut Children, &mut super::Dirty, &mut GroupStat), Conflict> {
        let life = self.lifetimes.get_mut(&session.lifetime).ok_or(Conflict::Missing)?;
        if life.ended || life.fence == 0 || life.fence != session.owner_generation {
            return Err(Conflict::Fenced);
        }
        let children = life.children.as_deref_mut().ok_or(Conflict::Illegal)?;
        Ok((children, &mut self.dirty, &mut self.stat))
    }

    /// Keeps the index of offline inboxes with messages that expire.
    pub(super) fn sync_expiring(&mut self, lifetime: u64) {
        let Some(life) = self.lifetimes.get_mut(&lifetime) else { return };
        let Some(children) = &life.children else { return };
        let want = if life.ended || life.fence != 0 { Millis::NEVER } else { children.inbox.soonest };
        if want == life.expiring {
            return;
        }
        if life.expiring != Millis::NEVER {
            self.expiring.remove(&(life.expiring, lifetime));
        }
        if want != Millis::NEVER {
            self.expiring.insert((want, lifetime));
        }
        life.expiring = want;
    }

    /// Keeps the index of inboxes with messages of shared subscriptions.
    pub(super) fn sync_sharing(&mut self, lifetime: u64) {
        let life = self.lifetimes.get(&lifetime).filter(|life| !life.ended);
        let children = life.and_then(|life| life.children.as_deref());
        if children.is_some_and(|children| *children.inbox.log.tally() != OfShares::default()) {
            self.sharing.insert(lifetime);
        } else {
            self.sharing.remove(&lifetime);
        }
    }

    /// Counts Wills by the stages that the totals show.
    pub(super) fn count_will(&mut self, stage: WillStage, by: i64) {
        let counter = match stage {
            WillStage::Armed => &mut self.stat.wills_armed,
            WillStage::Waiting => &mut self.stat.wills_waiting,
            WillStage::Ready | WillStage::Executing => &mut self.stat.wills_ready,
            WillStage::Published | WillStage::Cancelled | WillStage::Rejected => return,
        };
        *counter = counter.checked_add_signed(by).expect("Wills of a stage are counted both ways");
    }
}

/// Turns a change of stamps into the row that it dirties.
pub(super) fn stamp_row(changed: Changed) -> RowId {
    match changed {
        Changed::Origin(id) => RowId::Origin(id),
        Changed::Packet(id, slot) => RowId::Stamp(id, slot),
    }
}
