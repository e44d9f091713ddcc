//! The whole-state check: every invariant that costs more than O(1), for loading, tests and the simulator.

use super::Group;
use super::state::{Lifetime, Slot};
use crate::invariants::{self, Violation};
use crate::lifecycle::row::{SessionState, WillStage};
use crate::time::Millis;

impl Group {
    /// Checks every invariant of the group against its whole state. O(n): not for the hot path.
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        if !self.sessions.is_coherent() {
            return Err(Violation::Orphan { what: "index of sessions", id: 0 });
        }
        let mut counted = super::GroupStat::default();
        for slot in self.sessions.iter() {
            self.check_slot(slot)?;
            *super::state::count_state(&mut counted, slot.row.state) += 1;
        }
        self.check_wills(&mut counted)?;
        self.check_lifetimes(&mut counted)?;
        self.space.check().map_err(|what| Violation::Queue { what })?;
        counted.retained = self.retained.len() as u64;
        counted.messages_stored = self.messages.stored;
        counted.messages_resident_bytes = self.messages.resident_bytes;
        invariants::totals(&counted, &self.stat())?;
        let (users, live) = (self.users.total(), counted.sessions_active + counted.sessions_offline);
        invariants::equal("sessions by user", users.sessions, live)?;
        invariants::equal("messages by user", users.inbox_messages, counted.inbox_messages)?;
        invariants::equal("queued bytes by user", users.inbox_bytes, counted.inbox_bytes)?;
        invariants::equal("lifetimes by user", self.users.lifetimes(), self.lifetimes.len() as u64)?;
        let held: u64 = self.boots.values().map(|state| state.sessions).sum();
        let named = self.sessions.iter().filter(|slot| self.knows_boot_of(&slot.row.owner)).count() as u64;
        invariants::equal("rows counted by boot", held, named)
    }

    fn check_slot(&self, slot: &Slot) -> Result<(), Violation> {
        let row = &slot.row;
        invariants::row_shape(row)?;
        invariants::boot_is_known(row, self.knows_boot_of(&row.owner))?;
        let will = (row.will_generation != 0).then(|| self.wills.get(&super::will_key(row)));
        if let Some(will) = will {
            let stage = will.map(|will| will.row.stage);
            let fits = match row.state {
                SessionState::Active => stage == Some(WillStage::Armed),
                SessionState::Offline { .. } => stage == Some(WillStage::Waiting),
                SessionState::Ended { .. } => false,
            };
            invariants::will_reference(row, fits)?;
        }
        let life = self.lifetimes.get(&row.lifetime);
        let current = life.is_some_and(|life| life.key == row.owner.key);
        invariants::lifetime_is_indexed(row, current)?;
        for (at, lifetime) in [(slot.due_session, true), (slot.due_reclaim, false)] {
            let index = if lifetime { &self.deadlines.sessions } else { &self.deadlines.reclaims };
            let there = at == Millis::NEVER || index.contains(&(at, row.lifetime));
            invariants::deadline_is_indexed(row, there)?;
        }
        Ok(())
    }

    fn check_wills(&self, counted: &mut super::GroupStat) -> Result<(), Violation> {
        let mut due = 0;
        for (key, will) in &self.wills {
            let row = &will.row;
            invariants::will_shape(row)?;
            let session = self.sessions.get(&key.key).map(|slot| &slot.row);
            let referenced = session.is_some_and(|session| super::will_key(session) == *key);
            let must = matches!(row.stage, WillStage::Armed | WillStage::Waiting);
            invariants::will_is_reachable(row, session.is_some() && referenced == must)?;
            match row.stage {
                WillStage::Armed => counted.wills_armed += 1,
                WillStage::Waiting => counted.wills_waiting += 1,
                _ => counted.wills_ready += 1,
            }
            if let Some(at) = Self::will_due_of(row) {
                due += 1;
                invariants::will_is_reachable(row, self.deadlines.wills.contains(&(at, key.clone())))?;
            }
        }
        invariants::equal("Wills in the due index", self.deadlines.wills.len() as u64, due)
    }

    fn check_lifetimes(&self, counted: &mut super::GroupStat) -> Result<(), Violation> {
        let mut refs = hashbrown::HashMap::<u64, u32>::new();
        for (number, life) in &self.lifetimes {
            let Some(slot) = self.sessions.get(&life.key) else {
                return Err(Violation::Orphan { what: "lifetime", id: *number });
            };
            let current = slot.row.lifetime == *number;
            let active = current && slot.row.state == SessionState::Active;
            let fence = if active { slot.row.owner.owner_generation } else { 0 };
            let ended = !current || slot.ended();
            if life.fence != fence
                || life.ended != ended
                || (current && slot.row.durable && !ended) != has_inbox(life)
            {
                return Err(Violation::Orphan { what: "fence of lifetime", id: *number });
            }
            let Some(children) = &life.children else { continue };
            counted.inboxes += 1;
            counted.subscriptions += children.subscriptions.len() as u64;
            counted.inbox_messages += children.inbox.log.messages();
            counted.inbox_bytes += children.inbox.bytes;
            let mut bytes = 0;
            let mut messages = 0;
            for (_, entry) in children.inbox.log.unsettled(0) {
                *refs.entry(entry.message).or_default() += 1;
                messages += 1;
                bytes += self.messages.len(entry.message).unwrap_or_default();
            }
            let unsettled = || children.inbox.log.unsettled(0).map(|(_, entry)| entry);
            let bound = unsettled().filter(|entry| entry.shared() && !entry.unbound()).count();
            let unbound = unsettled().filter(|entry| entry.unbound()).count();
            invariants::equal("shared messages of an inbox", bound as u64, children.inbox.log.tally().bound)?;
            invariants::equal(
                "given up messages of an inbox",
                unbound as u64,
                children.inbox.log.tally().unbound,
            )?;
            let listed = u64::from(self.sharing.contains(number));
            let lists = u64::from(!life.ended && bound + unbound > 0);
            invariants::equal("inbox among those with shared messages", lists, listed)?;
            let stat = children.inbox.stat();
            invariants::inbox_shape(&stat, messages, bytes)?;
            invariants::inbox_span(stat.base, children.inbox.log.delivered)?;
        }
        for id in self.retained.values() {
            *refs.entry(*id).or_default() += 1;
        }
        for id in self.space.body_ids() {
            *refs.entry(id).or_default() += 1;
        }
        invariants::equal("messages referred to", refs.len() as u64, self.messages.stored)?;
        let bytes = refs.keys().filter_map(|id| self.messages.len(*id)).sum();
        invariants::equal("bytes of messages", bytes, self.messages.bytes)?;
        for (id, count) in refs {
            invariants::equal(
                "references of a message",
                u64::from(count),
                u64::from(self.messages.refs(id)),
            )?;
        }
        Ok(())
    }
}

/// A live durable lifetime has its children.
fn has_inbox(life: &Lifetime) -> bool {
    !life.ended && life.children.is_some()
}
