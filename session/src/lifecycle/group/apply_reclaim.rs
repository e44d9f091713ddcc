//! Removal of what nobody needs any more: children of ended lifetimes, rows past their retention, expired messages, old
//! stamps (owner spec §9). Each command does a bounded amount of work.

use super::Group;
use super::rows::RowId;
use super::state::stamp_row;
use crate::id::Key;
use crate::lifecycle::reply::{Conflict, Reply};
use crate::message::QoS;
use crate::time::Millis;

/// Children that one Reclaim may remove.
pub(super) const RECLAIM_MAX: u32 = 4_096;
/// Retained messages and stamps that one Tidy may remove, each.
pub(super) const TIDY_MAX: u64 = 1_024;
/// Inbox entries after which one Tidy looks at no further inbox.
pub(super) const TIDY_ENTRIES_MAX: u64 = 65_536;
/// A retired boot that no row names is forgotten after this long.
pub(super) const BOOT_RETENTION_MS: u64 = 30 * 24 * 60 * 60 * 1_000;

impl Group {
    pub(super) fn reclaim(
        &mut self,
        key: &Key,
        revision: u64,
        limit: u32,
        binding_until: Millis,
    ) -> Result<Reply, Conflict> {
        let slot = self.sessions.get(key).ok_or(Conflict::Missing)?;
        if slot.row.revision != revision {
            return Err(Conflict::Fenced);
        }
        let current = slot.row.lifetime;
        let lifetimes = slot.reclaimable.clone();
        let limit = u64::from(limit.clamp(1, RECLAIM_MAX));
        let mut removed = 0;
        let mut finished = 0;
        for lifetime in &lifetimes {
            removed += self.reclaim_children(key, *lifetime, limit - removed);
            if !self.has_children(key, *lifetime) {
                self.drop_children(*lifetime);
                if *lifetime != current {
                    self.forget_lifetime(*lifetime);
                }
                finished += 1;
            }
            if removed == limit {
                break;
            }
        }
        if let Some(slot) = self.sessions.get_mut(key) {
            slot.reclaimable.drain(..finished);
        }
        let done = finished == lifetimes.len();
        if done {
            self.note_reclaimed(key);
            self.keep_row_until(key, binding_until);
        }
        if !self.try_remove(key) {
            self.rearm(key);
        }
        Ok(Reply::Reclaimed { removed: u32::try_from(removed).unwrap_or(u32::MAX), done })
    }

    fn keep_row_until(&mut self, key: &Key, binding_until: Millis) {
        let Some(slot) = self.sessions.get_mut(key) else { return };
        if !slot.ended() {
            return;
        }
        let bound = slot.ever_durable && slot.row.uid.is_some();
        let until = match slot.keep_until {
            Some(receipt) if !bound => receipt.max(binding_until),
            _ => binding_until,
        };
        if slot.keep_until != Some(until) {
            slot.keep_until = Some(until);
            self.mark_session(key);
        }
    }

    fn has_children(&self, key: &Key, lifetime: u64) -> bool {
        let children = self.lifetimes.get(&lifetime).and_then(|life| life.children.as_deref());
        let own = children.is_some_and(|c| {
            !(c.subscriptions.is_empty() && c.received.is_empty() && c.inbox.log.is_empty())
        });
        own || self.stamps.publisher(key, lifetime).is_some()
    }

    /// Removes up to `limit` children of one ended lifetime.
    fn reclaim_children(&mut self, key: &Key, lifetime: u64, limit: u64) -> u64 {
        let mut removed = 0;
        if let Some(children) =
            self.lifetimes.get_mut(&lifetime).and_then(|life| life.children.as_deref_mut())
        {
            children.touch(lifetime, &mut self.dirty.lifetimes);
            while removed < limit
                && let Some((filter, _)) = children.subscriptions.pop_first()
            {
                removed += 1;
                self.stat.subscriptions -= 1;
                self.dirty.rows.insert(RowId::Subscription(lifetime, filter));
            }
            while removed < limit
                && let Some((packet_id, _)) = children.received.pop_first()
            {
                removed += 1;
                self.dirty.rows.insert(RowId::Received(lifetime, packet_id));
            }
        }
        while removed < limit {
            let children = self.lifetimes.get(&lifetime).and_then(|life| life.children.as_deref());
            let Some((offset, _)) = children.and_then(|children| children.inbox.log.unsettled(0).next())
            else {
                break;
            };
            self.settle(lifetime, offset);
            removed += 1;
        }
        if let Some(id) = self.stamps.publisher(key, lifetime) {
            let dirty = &mut self.dirty.rows;
            removed += self.stamps.remove(id, limit - removed, &mut |changed| {
                dirty.insert(stamp_row(changed));
            });
        }
        removed
    }

    /// Drops the binding of an ended, reclaimed row by removing the row.
    pub(super) fn release_binding(&mut self, key: &Key) -> Result<Reply, Conflict> {
        let slot = self.sessions.get(key).ok_or(Conflict::Missing)?;
        if !slot.ended() || !slot.reclaimable.is_empty() || slot.wills != 0 {
            return Err(Conflict::Illegal);
        }
        let revision = slot.row.revision;
        self.remove_row(key);
        Ok(Reply::Done { revision, unchanged: false })
    }

    /// Housekeeping; `done` in the reply says that nothing was left over.
    pub(super) fn tidy(&mut self) -> Reply {
        let retained = self.tidy_retained();
        let (entries, more_entries) = self.tidy_inboxes();
        let stamps = self.tidy_stamps();
        self.tidy_boots();
        let denials = self.tidy_denied(TIDY_MAX);
        let done = retained < TIDY_MAX && !more_entries && stamps < TIDY_MAX && denials < TIDY_MAX;
        let removed = retained + entries + stamps + denials;
        Reply::Reclaimed { removed: u32::try_from(removed).unwrap_or(u32::MAX), done }
    }

    fn tidy_retained(&mut self) -> u64 {
        let mut removed = 0;
        while removed < TIDY_MAX
            && let Some((_, topic)) =
                self.retained_expiry.first().filter(|(at, _)| *at <= self.clock).cloned()
        {
            self.remove_retained(&topic);
            removed += 1;
        }
        removed
    }

    /// Expired entries of offline inboxes. An entry that may be known to the client is kept for QoS 2: its packet id must
    /// not come back for another message while the client holds it ([MQTT-4.3.3-10]).
    fn tidy_inboxes(&mut self) -> (u64, bool) {
        let (mut removed, mut seen) = (0, 0);
        while let Some(&(at, lifetime)) = self.expiring.first() {
            if at > self.clock {
                return (removed, false);
            }
            if seen >= TIDY_ENTRIES_MAX {
                return (removed, true);
            }
            let Some(children) = self.lifetimes.get(&lifetime).and_then(|life| life.children.as_deref())
            else {
                self.expiring.remove(&(at, lifetime));
                continue;
            };
            let mut soonest = Millis::NEVER;
            let mut expired = Vec::new();
            for (offset, entry) in children.inbox.log.unsettled(0) {
                seen += 1;
                let Some(at) = self.messages.expires_at(entry.message) else { continue };
                let known = entry.qos() == QoS::ExactlyOnce && offset < children.inbox.log.delivered;
                if at <= self.clock && !known {
                    expired.push(offset);
                } else if at > self.clock {
                    soonest = soonest.min(at);
                }
            }
            for offset in expired {
                removed += u64::from(self.settle(lifetime, offset));
            }
            if let Some(life) = self.lifetimes.get_mut(&lifetime)
                && let Some(children) = life.children.as_deref_mut()
            {
                children.inbox.soonest = soonest;
                children.touch(lifetime, &mut self.dirty.lifetimes);
            }
            self.sync_expiring(lifetime);
        }
        (removed, false)
    }

    fn tidy_stamps(&mut self) -> u64 {
        let mut removed = 0;
        while removed < TIDY_MAX
            && let Some(id) = self.stamps.outdated(self.clock)
        {
            let dirty = &mut self.dirty.rows;
            removed += self.stamps.remove(id, TIDY_MAX - removed, &mut |changed| {
                dirty.insert(stamp_row(changed));
            });
        }
        removed
    }

    fn tidy_boots(&mut self) {
        let outdated = self.boots.values().find(|state| {
            state.sessions == 0
                && state
                    .row
                    .retired
                    .as_ref()
                    .is_some_and(|(at, _)| at.plus_ms(BOOT_RETENTION_MS) <= self.clock)
        });
        if let Some(boot) = outdated.map(|state| state.row.boot.clone()) {
            self.boots.remove(&boot);
            self.dirty.rows.insert(RowId::Boot(boot));
        }
    }
}
