//! CONNECT: the one event that changes the owner of a session (owner spec §5.4 event 2, §7.1 step 10).

use std::sync::Arc;

use super::Group;
use super::rows::RowId;
use super::will::WillEvent;
use crate::id::{Boot, Owner, check_identity};
use crate::lifecycle::command::Connect;
use crate::lifecycle::reply::{Conflict, Reply};
use crate::lifecycle::row::{SessionRow, SessionState, WillRow, WillStage};
use crate::limits;
use crate::time::Millis;

/// Distinct namespaces whose strings are shared between rows; more work, but are not shared.
const NAMESPACES_SHARED_MAX: usize = 64;

impl Group {
    pub(super) fn connect(
        &mut self,
        boot: &Boot,
        connect: &Connect,
        digest: [u8; 32],
    ) -> Result<Reply, Conflict> {
        check_connect(boot, connect)?;
        let denied = self.denies(&connect.owner.key, connect.uid.as_ref(), self.clock);
        let Some(slot) = self.sessions.get(&connect.owner.key) else {
            return if denied { Err(Conflict::Denied) } else { self.connect_new(connect, digest) };
        };
        let old = &slot.row;
        if old.last_digest == digest {
            let session_present = connect
                .previous
                .as_ref()
                .is_some_and(|(_, previous)| previous.session_generation == connect.owner.session_generation);
            return Ok(Reply::Row { row: Box::new(old.clone()), unchanged: true, session_present });
        }
        // Behind the answer to an exact retry: that CONNECT was committed before the denial.
        if denied {
            return Err(Conflict::Denied);
        }
        if old.uid != connect.uid && slot.binding_holds(self.clock) {
            return Err(Conflict::Binding);
        }
        if !connect
            .previous
            .as_ref()
            .is_some_and(|(revision, owner)| *revision == old.revision && *owner == old.owner)
        {
            return Err(Conflict::Fenced);
        }
        if old.revision == u64::MAX || old.owner.owner_generation == u64::MAX {
            return Err(Conflict::Exhausted);
        }
        let at = self.clock.max(old.updated_at);
        let fresh = begins_lifetime(old, connect.clean_start, at);
        let generation =
            old.owner.session_generation.checked_add(u64::from(fresh)).ok_or(Conflict::Exhausted)?;
        if connect.owner.session_generation != generation
            || connect.owner.owner_generation != old.owner.owner_generation + 1
        {
            return Err(Conflict::Fenced);
        }
        let event = if fresh { WillEvent::Fresh { at } } else { WillEvent::Resume { at } };
        let plan = self.plan_will(old, event)?;
        let old = old.clone();
        self.settle_will(plan, at);
        Ok(self.replace_owner(&old, connect, fresh, at, digest))
    }

    fn connect_new(&mut self, connect: &Connect, digest: [u8; 32]) -> Result<Reply, Conflict> {
        let owner = &connect.owner;
        if connect.previous.is_some() || owner.session_generation != 1 || owner.owner_generation != 1 {
            return Err(Conflict::Fenced);
        }
        let revision = self.revision_floor.checked_add(1).ok_or(Conflict::Exhausted)?;
        let row = SessionRow {
            owner: self.interned_owner(owner),
            uid: connect.uid.clone(),
            lifetime: self.allocate_lifetime(),
            revision,
            state: SessionState::Active,
            expiry_sec: connect.expiry_sec,
            durable: connect.expiry_sec > 0,
            will_generation: if connect.will.is_some() { revision } else { 0 },
            updated_at: self.clock,
            connected_at: self.clock,
            reclaimed_through: 0,
            last_digest: digest,
        };
        self.count_boot(&row.owner, 1);
        self.put_row(row.clone());
        self.arm_will(connect, &row);
        Ok(Reply::Row { row: Box::new(row), unchanged: false, session_present: false })
    }

    /// Everything was checked: the old owner is replaced.
    fn replace_owner(
        &mut self,
        old: &SessionRow,
        connect: &Connect,
        fresh: bool,
        at: Millis,
        digest: [u8; 32],
    ) -> Reply {
        let key = &connect.owner.key;
        self.disarm(key);
        if fresh && !matches!(old.state, SessionState::Ended { .. }) {
            self.retire_lifetime(key, old.lifetime);
        }
        if !fresh && old.state == SessionState::Active {
            self.assume_sent(old);
        }
        let revision = old.revision + 1;
        let mut row = SessionRow {
            owner: self.interned_owner(&connect.owner),
            uid: connect.uid.clone(),
            lifetime: if fresh { self.allocate_lifetime() } else { old.lifetime },
            revision,
            state: SessionState::Active,
            expiry_sec: connect.expiry_sec,
            durable: connect.expiry_sec > 0 || (!fresh && old.durable),
            will_generation: if connect.will.is_some() { revision } else { 0 },
            updated_at: at,
            connected_at: at,
            reclaimed_through: old.reclaimed_through,
            last_digest: digest,
        };
        self.count_boot(&old.owner, -1);
        self.count_boot(&row.owner, 1);
        if old.uid != row.uid {
            // The earlier binding is over (checked): this is a new one, not a change of it.
            if let Some(slot) = self.sessions.get_mut(key) {
                slot.row.uid.clone_from(&row.uid);
                slot.ever_durable = false;
            }
        }
        self.put_row(row.clone());
        if let Some(slot) = self.sessions.get_mut(key) {
            slot.keep_until = None;
        }
        if fresh {
            self.forget_replaced(key, old.lifetime);
        }
        self.note_reclaimed(key);
        self.arm_will(connect, &row);
        self.rearm(key);
        if let Some(slot) = self.sessions.get(key) {
            row.reclaimed_through = slot.row.reclaimed_through;
        }
        Reply::Row { row: Box::new(row), unchanged: false, session_present: !fresh }
    }

    /// A replaced lifetime is only remembered while it has children.
    pub(super) fn forget_replaced(&mut self, key: &crate::id::Key, lifetime: u64) {
        let held = self.sessions.get(key).is_some_and(|slot| slot.reclaimable.contains(&lifetime));
        if !held {
            self.forget_lifetime(lifetime);
        }
    }

    /// A takeover without a Disconnect: unless the old owner said how far it wrote, everything may have been written.
    fn assume_sent(&mut self, old: &SessionRow) {
        let Some(life) = self.lifetimes.get_mut(&old.lifetime) else { return };
        let Some(children) = life.children.as_deref_mut() else { return };
        let inbox = &mut children.inbox;
        let through = inbox.sendable_end();
        if inbox.sent_by != old.owner.owner_generation && inbox.log.delivered < through {
            inbox.log.delivered = through;
            children.touch(old.lifetime, &mut self.dirty.lifetimes);
        }
    }

    fn arm_will(&mut self, connect: &Connect, row: &SessionRow) {
        let Some(template) = &connect.will else { return };
        self.insert_will(WillRow {
            key: row.owner.key.clone(),
            session_generation: row.owner.session_generation,
            will_generation: row.will_generation,
            uid: row.uid.clone(),
            message: template.message.clone(),
            delay_sec: template.delay_sec,
            message_expiry_sec: template.message_expiry_sec,
            stage: WillStage::Armed,
            disconnected_at: None,
            due_at: None,
            executor: None,
            updated_at: row.updated_at,
        });
    }

    fn allocate_lifetime(&mut self) -> u64 {
        let lifetime = self.next_lifetime;
        self.next_lifetime += 1;
        lifetime
    }

    /// The same owner, with the strings that many rows have in common shared.
    pub(super) fn interned_owner(&mut self, owner: &Owner) -> Owner {
        let mut owner = owner.clone();
        owner.key.namespace = self.interned_namespace(&owner.key.namespace);
        if let Some(state) = self.boots.get(&Boot { node_id: owner.node_id, boot_id: owner.boot_id.clone() })
        {
            owner.boot_id = state.row.boot.boot_id.clone();
        }
        owner
    }

    fn interned_namespace(&mut self, namespace: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.namespaces.iter().find(|known| *known == namespace) {
            return known.clone();
        }
        if self.namespaces.len() < NAMESPACES_SHARED_MAX {
            self.namespaces.push(namespace.clone());
        }
        namespace.clone()
    }

    pub(super) fn mark_session(&mut self, key: &crate::id::Key) {
        self.dirty.rows.insert(RowId::Session(key.clone()));
    }
}

fn check_connect(boot: &Boot, connect: &Connect) -> Result<(), Conflict> {
    let owner = &connect.owner;
    let uid_is_valid =
        connect.uid.as_ref().is_none_or(|uid| check_identity(uid, limits::UID_BYTES_MAX).is_ok());
    if owner.check().is_err()
        || !uid_is_valid
        || owner.node_id != boot.node_id
        || owner.boot_id != boot.boot_id
    {
        return Err(Conflict::Illegal);
    }
    Ok(())
}

/// Whether CONNECT begins a new lifetime (owner spec §5.4 event 2).
fn begins_lifetime(old: &SessionRow, clean_start: bool, at: Millis) -> bool {
    clean_start
        || match old.state {
            SessionState::Active => old.expiry_sec == 0 || !old.durable,
            SessionState::Offline { offline_expires_at } => offline_expires_at <= at,
            SessionState::Ended { .. } => true,
        }
}
