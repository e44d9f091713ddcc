//! The hot commands: one message into many inboxes, and what consumers and publishers acknowledge.

use super::messages::MESSAGE_BYTES_MAX;
use super::rows::RowId;
use super::stamps::Use;
use super::state::{Received, stamp_row};
use super::{Appended, Group};
use crate::lifecycle::command::{Ack, AckKind, Append, QuotaRule, SessionRef, Stamp};
use crate::lifecycle::reply::{Conflict, Reply};
use crate::log::Entry as _;
use crate::message::QoS;

impl Group {
    /// Stores the message once and a reference in every inbox that is there and has room.
    pub(super) fn append(
        &mut self,
        append: &Append,
        appended: &mut Vec<Appended>,
    ) -> Result<Reply, Conflict> {
        if append.message.len() >= MESSAGE_BYTES_MAX as usize {
            return Err(Conflict::Illegal);
        }
        if append.stamp.as_ref().is_some_and(|stamp| self.seen(stamp, Use::Append)) {
            return Ok(Reply::Appended { accepted: 0, over_quota: 0, missing: 0, duplicate: true });
        }
        let len = append.message.len() as u64;
        let id = self.messages.next;
        let (mut accepted, mut over_quota, mut missing) = (0_u32, 0_u32, 0_u32);
        for target in &append.targets {
            over_quota += self.make_room(target.lifetime, len);
            let Some(life) = self.lifetimes.get_mut(&target.lifetime).filter(|life| !life.ended) else {
                missing += 1;
                continue;
            };
            let Some(children) = life.children.as_deref_mut() else {
                missing += 1;
                continue;
            };
            if !children.inbox.has_room(len, self.quota_messages, self.quota_bytes) {
                over_quota += 1;
                if self.quota_rule == QuotaRule::End {
                    self.events_over_quota.push(target.lifetime);
                }
                continue;
            }
            let offset = children.inbox.append(id, len, target);
            children.touch(target.lifetime, &mut self.dirty.lifetimes);
            let user = self.users.stat(life.user);
            user.inbox_messages += 1;
            user.inbox_bytes += len;
            accepted += 1;
            appended.push(Appended { lifetime: target.lifetime, offset });
            if let Some(at) = append.message.expires_at {
                children.inbox.soonest = children.inbox.soonest.min(at);
                self.sync_expiring(target.lifetime);
            }
            if target.shared {
                self.sync_sharing(target.lifetime);
            }
        }
        if accepted > 0 {
            let stored = self.messages.insert(&append.message, accepted);
            debug_assert_eq!(stored, id);
            self.stat.inbox_messages += u64::from(accepted);
            self.stat.inbox_bytes += u64::from(accepted) * len;
        }
        if let Some(stamp) = &append.stamp
            && accepted + over_quota > 0
        {
            self.record(stamp, Use::Append);
        }
        Ok(Reply::Appended { accepted, over_quota, missing, duplicate: false })
    }

    /// Lets older messages give way to one of `len` bytes, where the rule says so; returns how many.
    fn make_room(&mut self, lifetime: u64, len: u64) -> u32 {
        let mut dropped = 0;
        if self.quota_rule != QuotaRule::DropOld || len > self.quota_bytes || self.quota_messages == 0 {
            return dropped;
        }
        while let Some(life) = self.lifetimes.get_mut(&lifetime).filter(|life| !life.ended)
            && let Some(children) = life.children.as_deref_mut()
            && !children.inbox.has_room(len, self.quota_messages, self.quota_bytes)
            && let Some(oldest) = children.inbox.droppable(life.fence != 0, self.quota_messages)
        {
            self.settle(lifetime, oldest);
            dropped += 1;
        }
        dropped
    }

    /// A retained message for one inbox.
    pub(super) fn feed(&mut self, append: &Append, appended: &mut Vec<Appended>) -> Result<Reply, Conflict> {
        let before = appended.len();
        let Reply::Appended { over_quota, .. } = self.append(append, appended)? else {
            return Err(Conflict::Illegal);
        };
        Ok(Reply::Fed { offset: appended.get(before).map(|appended| appended.offset), over_quota })
    }

    /// Whether a command with this stamp was applied already.
    pub(super) fn seen(&mut self, stamp: &Stamp, of: Use) -> bool {
        let dirty = &mut self.dirty.rows;
        self.stamps.seen(stamp, of, self.clock, &mut |changed| {
            dirty.insert(stamp_row(changed));
        })
    }

    /// Remembers that it was.
    pub(super) fn record(&mut self, stamp: &Stamp, of: Use) {
        let dirty = &mut self.dirty.rows;
        self.stamps.record(stamp, of, self.clock, &mut |changed| {
            dirty.insert(stamp_row(changed));
        });
    }

    /// Acknowledgements of a consumer; a repeated one changes nothing.
    pub(super) fn ack(&mut self, session: SessionRef, acks: &[Ack]) -> Result<Reply, Conflict> {
        let (children, _, _) = self.fenced(session)?;
        let end = children.inbox.log.end();
        for ack in acks {
            let wrong_kind = ack.kind == AckKind::Received
                && children
                    .inbox
                    .log
                    .entry(ack.offset)
                    .is_some_and(|entry| !entry.settled() && entry.qos() != QoS::ExactlyOnce);
            if ack.offset >= end || wrong_kind {
                return Err(Conflict::Illegal);
            }
        }
        let mut changed = false;
        for ack in acks {
            changed |= match ack.kind {
                AckKind::Settled => self.settle(session.lifetime, ack.offset),
                AckKind::Received => {
                    let (children, dirty, _) = self.fenced(session)?;
                    let marked = children.inbox.receive(ack.offset);
                    if marked {
                        children.touch(session.lifetime, &mut dirty.lifetimes);
                    }
                    marked
                }
            };
        }
        Ok(Reply::Done { revision: 0, unchanged: !changed })
    }

    /// Settles one entry and gives its message back; false when it was settled already.
    pub(super) fn settle(&mut self, lifetime: u64, offset: u64) -> bool {
        let Some(life) = self.lifetimes.get_mut(&lifetime) else { return false };
        let Some(children) = life.children.as_deref_mut() else { return false };
        let Some(taken) = children.inbox.settle(offset) else { return false };
        let len = self.messages.release(taken.message);
        children.inbox.bytes -= len;
        children.touch(lifetime, &mut self.dirty.lifetimes);
        self.stat.inbox_messages -= 1;
        self.stat.inbox_bytes -= len;
        let user = self.users.stat(life.user);
        user.inbox_messages -= 1;
        user.inbox_bytes -= len;
        if taken.shared() {
            self.sync_sharing(lifetime);
        }
        true
    }

    /// Inbound QoS 2: remembers the packet id under a sequence that no other use of it has.
    pub(super) fn receive(&mut self, session: SessionRef, packet_id: u16) -> Result<Reply, Conflict> {
        if packet_id == 0 {
            return Err(Conflict::Illegal);
        }
        let (children, dirty, _) = self.fenced(session)?;
        if let Some(Received { sequence, routed }) = children.received.get(&packet_id).copied() {
            return Ok(Reply::Received { routed, sequence });
        }
        let sequence = children.next_sequence;
        children.next_sequence = sequence.checked_add(1).ok_or(Conflict::Exhausted)?;
        children.received.insert(packet_id, Received { sequence, routed: false });
        children.touch(session.lifetime, &mut dirty.lifetimes);
        dirty.rows.insert(RowId::Received(session.lifetime, packet_id));
        Ok(Reply::Received { routed: false, sequence })
    }

    /// Inbound QoS 2: connections were served.
    pub(super) fn routed(
        &mut self,
        session: SessionRef,
        packet_id: u16,
        sequence: u64,
    ) -> Result<Reply, Conflict> {
        let (children, dirty, _) = self.fenced(session)?;
        let received = children.received.get_mut(&packet_id).filter(|known| known.sequence == sequence);
        let unchanged = received.is_none_or(|known| std::mem::replace(&mut known.routed, true));
        if !unchanged {
            dirty.rows.insert(RowId::Received(session.lifetime, packet_id));
        }
        Ok(Reply::Done { revision: 0, unchanged })
    }

    /// Inbound QoS 2: PUBREL.
    pub(super) fn release(&mut self, session: SessionRef, packet_id: u16) -> Result<Reply, Conflict> {
        let (children, dirty, _) = self.fenced(session)?;
        let known = children.received.remove(&packet_id).is_some();
        if known {
            dirty.rows.insert(RowId::Received(session.lifetime, packet_id));
        }
        Ok(Reply::Released { known })
    }

    /// The consumer says exactly how far it wrote, ahead of a takeover.
    pub(super) fn sent(&mut self, session: SessionRef, through: u64) -> Result<Reply, Conflict> {
        let (children, dirty, _) = self.fenced(session)?;
        let inbox = &mut children.inbox;
        let through = through.min(inbox.sendable_end()).max(inbox.log.delivered);
        let unchanged = inbox.sent_by == session.owner_generation && inbox.log.delivered == through;
        inbox.sent_by = session.owner_generation;
        inbox.log.delivered = through;
        if !unchanged {
            children.touch(session.lifetime, &mut dirty.lifetimes);
        }
        Ok(Reply::Done { revision: 0, unchanged })
    }
}
