//! How members, channels and their records go: leaving, lost leases, orphans, seals and reclamation.

use super::RECORDS_AT_ONCE;
use super::body::Bodies;
use super::command::{Hold, Kind, QueueReply, Refusal, SealReason};
use super::space::Space;

impl Space {
    pub(super) fn leave(
        &mut self,
        member: u64,
        delivered: &[(u64, u64)],
        bodies: &mut dyn Bodies,
    ) -> QueueReply {
        self.drop_member(member, Some(delivered), bodies);
        QueueReply::Done
    }

    /// Their lease is gone.
    pub(super) fn drop_holders(&mut self, lease: Hold, bodies: &mut dyn Bodies) {
        for member in self.holders.get(&lease).cloned().unwrap_or_default() {
            self.drop_member(member, None, bodies);
        }
    }

    /// Removes a member. `delivered`: what it handed out; `None`: nobody knows.
    fn drop_member(&mut self, member: u64, delivered: Option<&[(u64, u64)]>, bodies: &mut dyn Bodies) {
        let Some(row) = self.members.remove(&member) else { return };
        self.dirty.members.insert(member);
        self.stat.members -= 1;
        self.wakes.insert(member);
        self.binds.remove(&(row.lease, row.nonce));
        if let Some(holders) = self.holders.get_mut(&row.lease) {
            holders.remove(&member);
            if holders.is_empty() {
                self.holders.remove(&row.lease);
            }
        }
        let top = row.channel;
        let Some(found) = self.channels.get_mut(&top) else { return };
        found.members.remove(&member);
        found.hungry.remove(&member);
        let (kind, alone) = (found.row.kind, found.members.is_empty());
        let (lease, payload) = (found.row.lease, found.row.payload);
        if row.is_consumer() {
            match kind {
                Kind::Mpsc => self.free_log(top, member, delivered),
                Kind::Mpmc => self.orphan(top, member, delivered),
                Kind::Group => self.release_claims(top, member, bodies),
            }
        }
        self.wake_producers(top);
        if alone {
            self.leases.run_down(lease);
            self.leases.run_down(payload);
        }
    }

    /// Nobody consumes the log any more.
    fn free_log(&mut self, channel: u64, member: u64, delivered: Option<&[(u64, u64)]>) {
        let Ok(found) = self.channel_mut(channel) else { return };
        if found.row.consumer != member {
            return;
        }
        let end = found.log.end();
        let through = delivered.map_or(end, |delivered| {
            let of = delivered.iter().find(|(of, _)| *of == channel);
            of.map_or(0, |(_, through)| (*through).min(end))
        });
        found.log.delivered = found.log.delivered.max(through);
        found.give_to(0);
    }

    /// The sub-channels of a consumer that goes are adopted at once by those that stay (R-13, H-09); without any they wait for the next one.
    fn orphan(&mut self, top: u64, member: u64, delivered: Option<&[(u64, u64)]>) {
        for sub in self.subs_of(top, member) {
            self.free_log(sub, member, delivered);
            let heir = self.heir(top);
            let subs = self.channel(top).map_or(0, |found| found.row.subs.len());
            let Ok(found) = self.channel_mut(sub) else { continue };
            if heir != 0 || found.log.messages() == 0 && subs > 1 {
                found.row.draining = true;
                found.give_to(heir);
                if heir != 0 {
                    self.wakes.insert(heir);
                }
                self.drop_if_drained(sub);
            } else {
                // It takes records until somebody comes.
                found.row.draining = false;
            }
        }
    }

    /// The consumer with the fewest sub-channels; 0: there is none.
    fn heir(&self, top: u64) -> u64 {
        let Some(found) = self.channels.get(&top) else { return 0 };
        let consumers =
            found.members.iter().filter(|id| self.members.get(id).is_some_and(|m| m.is_consumer()));
        consumers.map(|id| (self.subs_of(top, *id).len(), *id)).min().map_or(0, |(_, id)| id)
    }

    /// What a group member had goes to the others, in its old place; a QoS 2 record is for nobody else ([MQTT-4.8.2-5]).
    fn release_claims(&mut self, top: u64, member: u64, bodies: &mut dyn Bodies) {
        let Some(found) = self.channels.get(&top) else { return };
        let claimed: Vec<u64> =
            found.claims.iter().filter(|(_, by)| **by == member).map(|(offset, _)| *offset).collect();
        for offset in claimed {
            self.unclaim(top, offset, member);
            let Ok(found) = self.channel_mut(top) else { return };
            if found.log.entry(offset).is_some_and(|entry| entry.exclusive()) {
                found.row.discarded += 1;
                self.settle_one(top, offset, bodies);
            } else {
                found.log.mark_redelivered(offset);
                found.released.insert(offset);
            }
        }
        self.wake_claimers(top);
    }

    // ---- channels -----------------------------------------------------------------------------------------------

    pub(super) fn seal(&mut self, channel: u64, reason: SealReason) -> Result<QueueReply, Refusal> {
        if self.channel(channel)?.row.parent != 0 {
            return Err(Refusal::WrongKind);
        }
        let found = self.channel_mut(channel)?;
        let reason = *found.row.sealed.get_or_insert(reason);
        let members = found.members.clone();
        self.wakes.extend(members);
        Ok(QueueReply::Sealed { reason })
    }

    /// The channel lease is gone: there was no member for the whole TTL.
    pub(super) fn expire_channel(&mut self, channel: u64) {
        let Ok(found) = self.channel_mut(channel) else { return };
        found.row.closing = true;
        found.row.lease = 0;
        found.row.sealed.get_or_insert(SealReason::Expired);
        self.free_name(channel);
    }

    fn free_name(&mut self, channel: u64) {
        let Some(name) = self.channels.get(&channel).and_then(|found| found.row.name.clone()) else { return };
        if self.names.get(&name) == Some(&channel) {
            self.names.remove(&name);
        }
    }

    pub(super) fn delete(&mut self, channel: u64, bodies: &mut dyn Bodies) -> Result<QueueReply, Refusal> {
        let found = self.channel(channel)?;
        if found.row.parent != 0 {
            return Err(Refusal::WrongKind);
        }
        let (lease, payload) = (found.row.lease, found.row.payload);
        self.seal(channel, SealReason::Deleted)?;
        for member in self.channel(channel)?.members.clone() {
            self.drop_member(member, None, bodies);
        }
        self.expire_channel(channel);
        self.leases.end(lease);
        self.leases.end(payload);
        self.reclaimable.insert(channel);
        self.due_changed = true;
        Ok(QueueReply::Done)
    }

    pub(super) fn reclaim(
        &mut self,
        channel: u64,
        limit: u32,
        bodies: &mut dyn Bodies,
    ) -> Result<QueueReply, Refusal> {
        self.channel(channel)?;
        if !self.reclaimable.contains(&channel) {
            return Err(Refusal::NotDue);
        }
        let limit = (limit as usize).min(RECORDS_AT_ONCE);
        let (before, mut records) = (self.stat.bytes, 0);
        let mut logs: Vec<u64> = self.channel(channel)?.row.subs.keys().copied().collect();
        logs.push(channel);
        for log in logs {
            while records < limit
                && let Some(offset) = self.channel(log)?.log.oldest()
            {
                records += usize::from(self.settle_one(log, offset, bodies));
            }
            if self.channel(log)?.log.messages() > 0 {
                break;
            }
            if log != channel {
                self.remove_log(log);
                self.channel_mut(channel)?.row.subs.remove(&log);
                self.stat.subs -= 1;
            }
        }
        let found = self.channel(channel)?;
        let done = found.row.subs.is_empty() && found.log.messages() == 0;
        if done {
            self.remove_log(channel);
            self.reclaimable.remove(&channel);
            self.stat.channels -= 1;
        }
        Ok(QueueReply::Reclaimed { records: records as u64, bytes: before - self.stat.bytes, done })
    }

    /// Forgets a channel or sub-channel whose log is empty.
    pub(super) fn remove_log(&mut self, channel: u64) {
        let Some(found) = self.channels.remove(&channel) else { return };
        debug_assert_eq!(found.log.messages(), 0, "records are freed before their log");
        self.dirty.channels.insert(channel);
        self.dirty.claims.extend(found.claims.keys().map(|offset| (channel, *offset)));
        let chunks = found.log.stored_chunks();
        if !chunks.is_empty() {
            self.dirty.chunks.push((channel, chunks));
        }
    }
}
