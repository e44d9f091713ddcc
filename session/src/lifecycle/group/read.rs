//! What readers see of a group.

use std::ops::Bound;
use std::sync::Arc;

use super::inbox::{Inbox, Reference};
use super::will::will_due;
use super::{Delivery, Due, Group, GroupStat, InboxRead, Inherited, RetainedVisitor};
use crate::id::{Boot, Key};
use crate::lifecycle::command::{QuotaRule, WillKey};
use crate::lifecycle::row::{BootRow, InboxStat, SessionRow, SubscriptionOptions, WillRow};
use crate::message::Message;
use crate::time::Millis;

/// Start of a shared filter.
pub(super) const SHARE: &str = "$share/";

impl Group {
    /// Index of the last applied entry.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Highest time that any applied batch carried.
    #[must_use]
    pub fn clock(&self) -> Millis {
        self.clock
    }

    /// Inbox quotas per session: messages, bytes.
    #[must_use]
    pub fn quotas(&self) -> (u64, u64) {
        (self.quota_messages, self.quota_bytes)
    }

    /// What gives way when an inbox is full.
    #[must_use]
    pub fn quota_rule(&self) -> QuotaRule {
        self.quota_rule
    }

    /// Retained messages that this group holds at most.
    #[must_use]
    pub fn quota_retained(&self) -> u64 {
        self.quota_retained
    }

    /// How long the stamps of a silent publisher are kept, milliseconds.
    #[must_use]
    pub fn stamp_retention_ms(&self) -> u64 {
        self.stamps.retention_ms
    }

    /// The row of a key.
    #[must_use]
    pub fn session(&self, key: &Key) -> Option<&SessionRow> {
        self.sessions.get(key).map(|slot| &slot.row)
    }

    /// The row whose current lifetime has this number.
    #[must_use]
    pub fn session_by_lifetime(&self, lifetime: u64) -> Option<&SessionRow> {
        let life = self.lifetimes.get(&lifetime)?;
        self.session(&life.key).filter(|row| row.lifetime == lifetime)
    }

    #[must_use]
    pub fn boot(&self, boot: &Boot) -> Option<&BootRow> {
        self.boots.get(boot).map(|state| &state.row)
    }

    /// All boots, by node.
    pub fn boots(&self) -> impl Iterator<Item = &BootRow> {
        self.boots.values().map(|state| &state.row)
    }

    /// Sessions in key order, from the first key after `after`.
    pub fn sessions_after(&self, after: Option<&Key>) -> impl Iterator<Item = &SessionRow> {
        self.sessions.after(after).map(|slot| &slot.row)
    }

    /// Stored subscriptions of a lifetime, in the order of their filters; none of an ended one.
    pub fn subscriptions(&self, lifetime: u64) -> impl Iterator<Item = (&Arc<str>, &SubscriptionOptions)> {
        self.lifetimes
            .get(&lifetime)
            .filter(|life| !life.ended)
            .and_then(|life| life.children.as_deref())
            .into_iter()
            .flat_map(|children| children.subscriptions.iter())
    }

    #[must_use]
    pub fn will(&self, will: &WillKey) -> Option<&WillRow> {
        self.wills.get(will).map(|slot| &*slot.row)
    }

    /// Wills of a key that have not reached a terminal stage, oldest first.
    pub fn wills_of(&self, key: &Key) -> impl Iterator<Item = (&WillKey, &WillRow)> {
        self.range_of_wills(key)
    }

    /// Until when the ClientID belongs to the user of its row ([`Millis::NEVER`]: as long as the row is as it is); `None`: anybody may
    /// connect with it.
    #[must_use]
    pub fn bound_until(&self, key: &Key) -> Option<Millis> {
        self.sessions.get(key)?.bound_until()
    }

    /// The newest Will of a key that has not reached a terminal stage.
    #[must_use]
    pub fn last_will(&self, key: &Key) -> Option<&WillRow> {
        self.newest_will(key)
    }

    /// Counters of the inbox of a durable lifetime that has not ended.
    #[must_use]
    pub fn inbox(&self, lifetime: u64) -> Option<InboxStat> {
        let life = self.lifetimes.get(&lifetime).filter(|life| !life.ended)?;
        Some(life.children.as_deref()?.inbox.stat())
    }

    /// Up to `max` unsettled entries from offset `from` on, added to `out`. `out.next` is the offset to go on from; at the end
    /// of the inbox it is the next offset to be appended. An ended or unknown lifetime yields nothing.
    pub fn read_inbox(&self, lifetime: u64, from: u64, max: usize, out: &mut InboxRead) {
        out.next = from;
        let Some(life) = self.lifetimes.get(&lifetime).filter(|life| !life.ended) else { return };
        let Some(children) = life.children.as_deref() else { return };
        let inbox = &children.inbox;
        out.stat = inbox.stat();
        out.next = inbox.log.end().max(from);
        let own = inbox.log.unsettled(from).filter(|(_, entry)| !entry.unbound());
        for (taken, (offset, entry)) in own.enumerate() {
            if taken == max {
                out.next = offset;
                return;
            }
            out.entries.push(Delivery {
                offset,
                qos: entry.qos(),
                retain: entry.retain(),
                received: entry.received(),
                maybe_sent: offset < inbox.log.delivered,
                identifiers: inbox.identifiers(offset, entry),
                message: self.messages.body(entry.message).cloned(),
                message_id: entry.message,
                len: self.messages.len(entry.message).unwrap_or(0),
            });
        }
    }

    /// Lifetimes of `key` that are over and wait for their reclamation, oldest first.
    #[must_use]
    pub fn reclaimable(&self, key: &Key) -> &[u64] {
        self.sessions.get(key).map_or(&[], |slot| &slot.reclaimable)
    }

    /// Filters that an ended lifetime shared with others, with the subscription identifier of each; none once it is being reclaimed.
    pub fn shared_filters(&self, lifetime: u64) -> impl Iterator<Item = (&Arc<str>, u32)> {
        self.ended_children(lifetime)
            .into_iter()
            .flat_map(|children| {
                children.subscriptions.range::<str, _>((Bound::Included(SHARE), Bound::Unbounded))
            })
            .take_while(|(filter, _)| filter.starts_with(SHARE))
            .map(|(filter, options)| (filter, options.identifier))
    }

    /// Up to `max` messages from offset `from` on that an ended lifetime leaves to the other members of its shared subscriptions (MQTT 5
    /// §4.8.2): what it never sent, and what it sent with QoS 1 and was not acknowledged. A QoS 2 message that its client may know of
    /// is for nobody else ([MQTT-4.8.2-5]). `None`: nothing more; else the offset to go on from.
    pub fn inherited(&self, lifetime: u64, from: u64, max: usize, out: &mut Vec<Inherited>) -> Option<u64> {
        let inbox = &self.ended_children(lifetime)?.inbox;
        let left = inbox.log.unsettled(from).filter(|(offset, entry)| inbox.may_leave(*offset, *entry));
        self.hand_out(inbox, left, max, out)
    }

    /// The same of what a lifetime that did not end gave up (`Command::Unbind`).
    pub fn unbound(&self, lifetime: u64, from: u64, max: usize, out: &mut Vec<Inherited>) -> Option<u64> {
        let life = self.lifetimes.get(&lifetime).filter(|life| !life.ended)?;
        let inbox = &life.children.as_deref()?.inbox;
        self.hand_out(inbox, inbox.log.unsettled(from).filter(|(_, entry)| entry.unbound()), max, out)
    }

    fn hand_out(
        &self,
        inbox: &Inbox,
        left: impl Iterator<Item = (u64, Reference)>,
        max: usize,
        out: &mut Vec<Inherited>,
    ) -> Option<u64> {
        for (taken, (offset, entry)) in left.enumerate() {
            if taken == max {
                return Some(offset);
            }
            out.push(Inherited {
                offset,
                identifiers: inbox.identifiers(offset, entry),
                message: self.messages.body(entry.message).cloned(),
                message_id: entry.message,
            });
        }
        None
    }

    fn ended_children(&self, lifetime: u64) -> Option<&super::state::Children> {
        self.lifetimes.get(&lifetime).filter(|life| life.ended)?.children.as_deref()
    }

    /// A stored message, when it is in memory.
    #[must_use]
    pub fn message(&self, message_id: u64) -> Option<&Arc<Message>> {
        self.messages.body(message_id)
    }

    /// Inbound QoS 2 packet ids that are received and not released, ascending.
    #[must_use]
    pub fn received(&self, lifetime: u64) -> Vec<u16> {
        self.lifetimes
            .get(&lifetime)
            .filter(|life| !life.ended)
            .and_then(|life| life.children.as_deref())
            .map_or_else(Vec::new, |children| children.received.keys().copied().collect())
    }

    /// Retained messages that `filter` (no `$share/`) matches: (topic, message or `None` when on disk, message id), in topic
    /// order until `visit` returns false. Messages that expired by the time of the last batch are passed over; the caller
    /// compares the rest with its own clock.
    pub fn retained(&self, filter: &str, visit: &mut RetainedVisitor<'_>) {
        self.scan_retained(filter, None, visit);
    }

    /// The same, from the first topic behind `after` on.
    pub fn retained_behind(&self, filter: &str, after: Option<&str>, visit: &mut RetainedVisitor<'_>) {
        self.scan_retained(filter, after, visit);
    }

    /// Adds up to `max` due items at `now` to `out`, one of each kind in turn.
    pub fn due(&self, now: Millis, max: usize, out: &mut Vec<Due>) {
        let mut sessions = self.deadlines.sessions.iter().take_while(|(at, _)| *at <= now);
        let mut wills = self.deadlines.wills.iter().take_while(|(at, _)| *at <= now);
        let mut reclaims = self.deadlines.reclaims.iter().take_while(|(at, _)| *at <= now);
        let end = out.len().saturating_add(max);
        loop {
            let before = out.len();
            if let Some(row) = sessions.next().and_then(|(_, lifetime)| self.session_by_lifetime(*lifetime)) {
                out.push(Due::Session { key: row.owner.key.clone(), revision: row.revision });
            }
            if let Some((_, will)) = (out.len() < end).then(|| wills.next()).flatten() {
                out.push(Due::Will(will.clone()));
            }
            if out.len() < end
                && let Some(row) =
                    reclaims.next().and_then(|(_, lifetime)| self.session_by_lifetime(*lifetime))
            {
                out.push(Due::Reclaim { key: row.owner.key.clone(), revision: row.revision });
            }
            if out.len() == before || out.len() >= end {
                out.truncate(end);
                return;
            }
        }
    }

    /// When the next item is due; it may be in the past.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        self.deadlines.next()
    }

    /// Totals, O(1).
    #[must_use]
    pub fn stat(&self) -> GroupStat {
        GroupStat {
            messages_stored: self.messages.stored,
            messages_bytes: self.messages.bytes,
            messages_resident_bytes: self.messages.resident_bytes,
            ..self.stat
        }
    }

    /// When somebody must look at this Will, for the consistency check.
    pub(super) fn will_due_of(will: &WillRow) -> Option<Millis> {
        will_due(will)
    }
}
