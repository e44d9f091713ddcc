//! Delivery from a durable session's inbox to its connection: in offset order, within the client's window, never more in
//! memory than a page.
//!
//! ```text
//!  pushed (caught up) ──▶ ┌───────┐ window has room ┌────────┐ taken out ┌───────────┐ PUBACK, PUBCOMP
//!  page   (behind)    ──▶ │ queue │ ───────────────▶│ outbox │ ─────────▶│ in flight │ ──────────────▶ Ack
//!                         └───────┘                 └────────┘           └───────────┘
//! ```
//! While the queue is full, or a page is being read, pushed messages are only noted: they are read from the store when
//! there is room.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use gateway::codec::{AckType, ReasonCode};
use gateway::connection::Output;
use gateway::link::MessageDelivery;
use session::lifecycle::{Ack, AckKind, Command};
use session::limits::INBOX_SPAN_MAX;
use session::message::{Message, QoS};
use session::time::{Millis, Tick};
use smallvec::SmallVec;
use storage::{InboxEntry, Pushed, StorageError};

use super::Worker;
use super::client::{Durable, Event, Session};
use super::commit::Op;
use super::mail::{InboxPage, Mail, link_token};
use crate::metrics::{DropReason, StageLabel};

/// Entries that wait in memory for one connection.
const QUEUE_MAX: usize = 256;
/// Bytes that wait in memory for one connection, unless one entry alone is larger.
const QUEUE_BYTES_MAX: usize = 1024 * 1024;
/// Below this many entries the next page is read.
const QUEUE_LOW: usize = QUEUE_MAX / 4;

/// The consumer of one inbox.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    queue: VecDeque<InboxEntry>,
    queue_bytes: usize,
    /// Offset of the next entry for the queue.
    next: u64,
    /// End of the inbox as far as it is known.
    end: u64,
    /// A page is being read.
    reading: bool,
    /// Every offset below it is settled and committed, as far as is known: where the packet ids in use begin.
    base: u64,
    /// Entries in the outbox that were not taken out yet.
    handed: u16,
    /// Offsets below this were written.
    sent_through: u64,
    /// Acknowledgements to be recorded.
    acks: Vec<Ack>,
    /// Packet ids that are owed a PUBREL once `acks` are committed.
    receipts: SmallVec<[u16; 8]>,
    /// Retained messages of new subscriptions that wait in the inbox: looked at again before they are sent. Bounded by the inbox.
    fed: BTreeSet<u64>,
    /// The entry whose way is measured.
    sample: Option<Sample>,
    /// When the page that is being read was asked for.
    asked: Tick,
}

/// The way of one entry at a time is measured: a clock a message would cost more than it tells.
#[derive(Debug, Clone, Copy)]
struct Sample {
    offset: u64,
    /// When its stage began.
    since: Tick,
    written: bool,
}

impl Inbox {
    /// Offsets below this were written to the client.
    pub(super) fn sent_through(&self) -> u64 {
        self.sent_through
    }

    /// The entry is done with.
    pub(super) fn settled(&mut self, offset: u64) {
        self.sample = self.sample.filter(|sample| sample.offset != offset);
        self.acks.push(Ack { offset, kind: AckKind::Settled });
    }

    /// The client is done with the entry; nanoseconds since it was written, where that is measured.
    pub(super) fn acknowledged(&mut self, offset: u64, now: Tick) -> Option<u64> {
        let sample = self.sample.filter(|sample| sample.offset == offset && sample.written);
        self.settled(offset);
        sample.map(|sample| now.0.saturating_sub(sample.since.0))
    }

    /// The entry was written; nanoseconds since it was in the queue, where that is measured.
    fn written(&mut self, offset: u64, now: impl FnOnce() -> Tick) -> Option<u64> {
        let sample = self.sample.as_mut().filter(|sample| sample.offset == offset && !sample.written)?;
        let now = now();
        let since = std::mem::replace(&mut sample.since, now);
        sample.written = true;
        Some(now.0.saturating_sub(since.0))
    }

    /// PUBREC came for the entry.
    pub(super) fn received(&mut self, offset: u64, packet_id: u16) {
        self.acks.push(Ack { offset, kind: AckKind::Received });
        self.receipts.push(packet_id);
    }

    /// The entry is a retained message of a new subscription. It is told before the entry is pushed: the reply of an append goes out
    /// ahead of what it brought.
    pub(super) fn fed(&mut self, offset: u64) {
        if offset >= self.sent_through {
            self.fed.insert(offset);
        }
    }

    pub(super) fn has_acks(&self) -> bool {
        !self.acks.is_empty()
    }

    fn has_room(&self) -> bool {
        self.queue.len() < QUEUE_MAX && self.queue_bytes < QUEUE_BYTES_MAX
    }

    /// Whether the packet id of `offset` may still belong to an exchange that a crash would resume.
    fn is_beyond_ids(&self, offset: u64) -> bool {
        offset.saturating_sub(self.base) >= INBOX_SPAN_MAX
    }

    fn push(&mut self, entry: InboxEntry, now: Tick) {
        let begun = Sample { offset: entry.offset, since: now, written: false };
        self.sample.get_or_insert(begun);
        self.queue_bytes += entry.message.len();
        self.queue.push_back(entry);
    }

    fn pop(&mut self) {
        if let Some(entry) = self.queue.pop_front() {
            self.queue_bytes -= entry.message.len();
        }
        if self.queue.is_empty() && self.queue.capacity() > QUEUE_LOW {
            self.queue = VecDeque::new();
        }
    }

    /// A message was appended: taken when it is the next one and there is room, else only noted.
    fn pushed(&mut self, pushed: Pushed, now: Tick) {
        let Pushed { offset, message, qos, retain, identifiers, .. } = pushed;
        if offset < self.next {
            return;
        }
        self.end = self.end.max(offset + 1);
        if offset == self.next && !self.reading && self.has_room() {
            self.next += 1;
            let (received, maybe_sent) = (false, false);
            self.push(InboxEntry { offset, qos, retain, received, maybe_sent, identifiers, message }, now);
        }
    }

    fn page(&mut self, page: InboxPage, now: Tick) {
        self.reading = false;
        let before = self.next;
        for entry in page.entries {
            if entry.offset >= self.next {
                self.next = entry.offset + 1;
                self.push(entry, now);
            }
        }
        self.next = self.next.max(page.next);
        if self.next == before {
            // Nothing there: whatever was noted is settled already.
            self.end = self.next;
        }
    }
}

impl Worker {
    /// CONNACK is written: everything that is appended from now on is pushed; what was there before is read.
    pub(super) fn attach_inbox(&self, session: &mut Session) {
        let token = link_token(session.post.link.id());
        let Some(Durable { group, session: owner, inbox, .. }) = session.durable.as_deref_mut() else {
            return;
        };
        let port = Arc::clone(&self.port) as Arc<dyn storage::DeliveryPort>;
        inbox.end = self.shared.store.attach(*group, owner.lifetime, port, token);
        inbox.next = inbox.end;
        inbox.base = inbox.end;
        let stat = self.shared.store.read(*group, |rows| rows.inbox(owner.lifetime));
        if let Some(stat) = stat.filter(|stat| stat.messages > 0) {
            inbox.next = stat.base.min(inbox.end);
            inbox.base = inbox.next;
        }
    }

    pub(super) fn detach_inbox(&self, session: &Session) {
        if let Some(durable) = &session.durable {
            let token = link_token(session.post.link.id());
            self.shared.store.detach(durable.group, durable.session.lifetime, token);
        }
    }

    pub(super) fn inbox_pushed(&self, session: &mut Session, pushed: Pushed) {
        // A Will is appended beside its retained value: the inbox may know of it first. With the flag kept it cannot be told
        // from a message of the feed itself.
        if session.feed.is_some() && pushed.message.retain && !pushed.retain {
            self.supersede(session.post.link.id(), pushed.message.topic());
        }
        if let Some(durable) = &mut session.durable {
            durable.inbox.pushed(pushed, self.now.get());
        }
    }

    pub(super) fn inbox_page(&self, session: &mut Session, page: Result<InboxPage, Arc<StorageError>>) {
        let Some(durable) = &mut session.durable else { return };
        match page {
            Ok(page) => {
                let now = self.now.get();
                self.stage(StageLabel::Read, now.0.saturating_sub(durable.inbox.asked.0));
                durable.inbox.page(page, now);
            }
            Err(error) => {
                tracing::error!(%error, "an inbox cannot be read");
                session.failed = true;
            }
        }
    }

    /// Moves entries from the queue to the outbox as far as the client's window allows, and reads on when few are left.
    pub(super) fn pump_inbox(&self, session: &mut Session, out: &mut Output) {
        loop {
            if self.pass_outdated(session) {
                continue;
            }
            let Some(durable) = session.durable.as_deref_mut() else { return };
            if self.waits_for_id(durable) {
                break;
            }
            let inbox = &mut durable.inbox;
            let Some(entry) = inbox.queue.front() else { break };
            if entry.received {
                // Only PUBREL is owed; its PUBLISH is not sent again ([MQTT-4.4.0-1]).
                let Some(packet_id) = session.outbound.begin_inbox(entry.offset, true, true) else { break };
                out.ack(AckType::PubRel, packet_id, ReasonCode::Success);
                inbox.pop();
                continue;
            }
            if entry.qos != QoS::AtMostOnce && inbox.handed >= session.outbound.room() {
                break;
            }
            let delivery = MessageDelivery {
                message: Arc::clone(&entry.message),
                qos: entry.qos,
                retain: entry.retain,
                dup: entry.maybe_sent,
                identifiers: entry.identifiers.clone(),
                offset: Some(entry.offset),
                share: None,
            };
            if !session.post.link.push_message(delivery) {
                break;
            }
            inbox.handed += u16::from(entry.qos != QoS::AtMostOnce);
            if !inbox.fed.is_empty() {
                inbox.fed.remove(&entry.offset);
            }
            inbox.pop();
        }
        let Some(durable) = session.durable.as_deref_mut() else { return };
        let inbox = &mut durable.inbox;
        let behind = inbox.next < inbox.end && !inbox.reading;
        if behind && inbox.queue.len() <= QUEUE_LOW && inbox.has_room() {
            inbox.reading = true;
            inbox.asked = self.now.get();
            self.read_page(session);
        }
    }

    /// Whether the packet id of the entry at the front of the queue may belong to an older one that is not settled and committed: a crash
    /// would resume that one. The commit of the session's acknowledgements comes by here again.
    fn waits_for_id(&self, durable: &mut Durable) -> bool {
        let Some(offset) = durable.inbox.queue.front().map(|entry| entry.offset) else { return false };
        if !durable.inbox.is_beyond_ids(offset) {
            return false;
        }
        let lifetime = durable.session.lifetime;
        if let Some(stat) = self.shared.store.read(durable.group, |rows| rows.inbox(lifetime)) {
            durable.inbox.base = durable.inbox.base.max(stat.base);
        }
        durable.inbox.is_beyond_ids(offset)
    }

    /// Whether the entry at the front of the queue is a retained message of a new subscription that is not the value of its topic any more;
    /// it is passed over then. That can only be told now: a newer value that was stored after the retained message had been looked up may
    /// stand before it in the inbox, or have overtaken it with QoS 0 (P7). One that is stored from now on comes behind it.
    fn pass_outdated(&self, session: &mut Session) -> bool {
        let Some(durable) = session.durable.as_deref().filter(|durable| !durable.inbox.fed.is_empty()) else {
            return false;
        };
        let Some(entry) = durable.inbox.queue.front() else { return false };
        let (offset, message) = (entry.offset, Arc::clone(&entry.message));
        if entry.maybe_sent || !durable.inbox.fed.contains(&offset) || self.is_current(session, &message) {
            return false;
        }
        if let Some(durable) = session.durable.as_deref_mut() {
            durable.inbox.fed.remove(&offset);
            durable.inbox.pop();
        }
        self.settle_unsent(session, offset)
    }

    fn read_page(&self, session: &Session) {
        let Some(durable) = &session.durable else { return };
        let (group, lifetime, from) = (durable.group, durable.session.lifetime, durable.inbox.next);
        let (store, port) = (self.shared.store.clone(), Arc::clone(&self.port));
        let link = session.post.link.id();
        // The bodies may have to be read from disk: not on a worker.
        self.shared.workers.spawn_blocking(move || {
            let page = store.read_inbox(group, lifetime, from, QUEUE_MAX, QUEUE_BYTES_MAX);
            let page = page.map(|(entries, next)| InboxPage { entries, next }).map_err(Arc::new);
            port.send(Mail::InboxPage { link, page });
        });
    }

    /// Writes one entry that was taken out of the outbox; false: the client's window is full.
    pub(super) fn deliver_entry(
        &self,
        session: &mut Session,
        delivery: &MessageDelivery,
        offset: u64,
        out: &mut Output,
    ) -> bool {
        let client_id = &session.subscriber.key.client_id;
        let may_read = session.access.may_read(&self.shared.auth, client_id, delivery.message.topic());
        let Some(durable) = session.durable.as_deref_mut() else { return true };
        let inbox = &mut durable.inbox;
        let counted = u16::from(delivery.qos != QoS::AtMostOnce);
        // What may be at the client already must be finished, however old it is.
        let expired = !delivery.dup && is_expired(&delivery.message, self.now_ms.get());
        // The same goes for a revoked permission: the receiver may hold the id of an exchange that is to happen once.
        let forbidden = !(may_read || (delivery.dup && delivery.qos == QoS::ExactlyOnce));
        if expired || forbidden {
            let why = if forbidden { DropReason::NotAuthorized } else { DropReason::Expired };
            self.stats.dropped(why, 1);
            inbox.handed = inbox.handed.saturating_sub(counted);
            return self.settle_unsent(session, offset);
        }
        let expiry_sec = remaining_sec(&delivery.message, self.now_ms.get());
        let mut packet_id = 0;
        if delivery.qos != QoS::AtMostOnce {
            let exactly_once = delivery.qos == QoS::ExactlyOnce;
            match session.outbound.begin_inbox(offset, exactly_once, false) {
                Some(id) => packet_id = id,
                None => return false,
            }
        }
        inbox.handed = inbox.handed.saturating_sub(counted);
        inbox.sent_through = inbox.sent_through.max(offset + 1);
        if !out.publish(delivery, packet_id, expiry_sec) {
            self.stats.dropped(DropReason::TooLarge, 1);
            cancel(session, packet_id, delivery.qos);
            return self.settle_unsent(session, offset);
        }
        if let Some(took_ns) = inbox.written(offset, || self.shared.clock.tick()) {
            self.stage(StageLabel::Wait, took_ns);
        }
        self.stats.sent(delivery.qos, 1, delivery.message.payload().len());
        if delivery.qos == QoS::AtMostOnce {
            return self.settle_unsent(session, offset);
        }
        // It may be written after the turn that counts them.
        session.subscriber.set_load(u32::try_from(session.outbound.in_flight()).unwrap_or(u32::MAX));
        true
    }

    /// Has the entry settled without an answer of the client, at the next turn.
    fn settle_unsent(&self, session: &mut Session, offset: u64) -> bool {
        if let Some(durable) = &mut session.durable {
            durable.inbox.settled(offset);
            session.post.link.push_event(Event::Wake);
        }
        true
    }

    /// Proposes the acknowledgements of the turn as one command.
    pub(super) fn flush_acks(&self, session: &mut Session) {
        let Some(durable) = session.durable.as_deref_mut().filter(|durable| durable.inbox.has_acks()) else {
            return;
        };
        let (group, owner) = (durable.group, durable.session);
        let acks = std::mem::take(&mut durable.inbox.acks);
        let received = std::mem::take(&mut durable.inbox.receipts);
        // Outside of a turn the owner is fenced: whoever comes next resends, and the client answers again.
        self.propose(session, group, Command::Ack { session: owner, acks }, Op::Acked { received });
    }
}

/// Ends an exchange whose PUBLISH cannot be sent ([MQTT-3.1.2-25]: it counts as delivered).
pub(super) fn cancel(session: &mut Session, packet_id: u16, qos: QoS) {
    let over = match qos {
        QoS::AtMostOnce => return,
        QoS::AtLeastOnce => session.outbound.puback(packet_id),
        QoS::ExactlyOnce => session.outbound.pubrec_refused(packet_id),
    };
    debug_assert!(over.is_ok(), "the exchange has just begun");
}

/// [MQTT-3.3.2-5].
pub(super) fn is_expired(message: &Message, now: Millis) -> bool {
    message.expires_at.is_some_and(|at| at <= now)
}

/// Remaining Message Expiry Interval in seconds, rounded up ([MQTT-3.3.2-6]).
pub(super) fn remaining_sec(message: &Message, now: Millis) -> Option<u32> {
    let at = message.expires_at?;
    Some(u32::try_from(at.0.saturating_sub(now.0).div_ceil(1_000)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Arc<Message> {
        Arc::new(Message::new("a", &[], b"payload"))
    }

    fn pushed(offset: u64) -> Pushed {
        Pushed {
            token: 0,
            offset,
            message: message(),
            qos: QoS::AtLeastOnce,
            retain: false,
            identifiers: SmallVec::new(),
        }
    }

    fn entry(offset: u64) -> InboxEntry {
        InboxEntry {
            offset,
            qos: QoS::AtLeastOnce,
            retain: false,
            received: false,
            maybe_sent: true,
            identifiers: SmallVec::new(),
            message: message(),
        }
    }

    fn offsets(inbox: &Inbox) -> Vec<u64> {
        inbox.queue.iter().map(|entry| entry.offset).collect()
    }

    /// [MQTT-4.6.0-6]: while a page is read, pushed entries are not taken out of order, and none is lost.
    #[test]
    fn pushes_during_a_read_are_read_later() {
        let mut inbox = Inbox { next: 3, end: 5, reading: true, ..Inbox::default() };
        inbox.pushed(pushed(5), Tick(0));
        assert!(offsets(&inbox).is_empty());
        inbox.page(InboxPage { entries: vec![entry(3), entry(4)], next: 5 }, Tick(0));
        assert_eq!(offsets(&inbox), [3, 4]);
        assert!(inbox.next < inbox.end, "offset 5 is still to be read");
        inbox.reading = true;
        inbox.page(InboxPage { entries: vec![entry(5)], next: 6 }, Tick(0));
        inbox.pushed(pushed(5), Tick(0));
        inbox.pushed(pushed(6), Tick(0));
        assert_eq!(offsets(&inbox), [3, 4, 5, 6]);
        assert_eq!(inbox.next, inbox.end);
    }

    /// P9: a slow client's backlog stays in the store.
    #[test]
    fn the_queue_is_bounded() {
        let mut inbox = Inbox::default();
        (0..10_000).for_each(|offset| inbox.pushed(pushed(offset), Tick(0)));
        assert_eq!(inbox.queue.len(), QUEUE_MAX);
        assert_eq!((inbox.next, inbox.end), (QUEUE_MAX as u64, 10_000));
    }

    /// Scenario 72: an offset whose id an unsettled one may have is told from one that is free.
    #[test]
    fn ids_in_use_end_65_535_behind_the_base() {
        let inbox = Inbox { base: 7, ..Inbox::default() };
        assert!(!inbox.is_beyond_ids(3) && !inbox.is_beyond_ids(7 + 65_534));
        assert!(inbox.is_beyond_ids(7 + 65_535));
    }

    #[test]
    fn an_empty_page_ends_the_reading() {
        let mut inbox = Inbox { next: 3, end: 9, reading: true, ..Inbox::default() };
        inbox.page(InboxPage { entries: Vec::new(), next: 3 }, Tick(0));
        assert_eq!(inbox.next, inbox.end);
    }

    /// DESIGN §9 "Monitor": one entry at a time is measured, from the inbox to the write and from there to the client's answer; one that is
    /// passed over makes room for the next.
    #[test]
    fn the_way_of_one_entry_at_a_time_is_measured() {
        let mut inbox = Inbox::default();
        inbox.pushed(pushed(0), Tick(100));
        inbox.pushed(pushed(1), Tick(200));
        assert_eq!(inbox.written(1, || panic!("no clock is read for others")), None);
        assert_eq!(inbox.written(0, || Tick(150)), Some(50));
        assert_eq!(inbox.written(0, || panic!("it was written")), None);
        assert_eq!(inbox.acknowledged(1, Tick(160)), None);
        assert_eq!(inbox.acknowledged(0, Tick(450)), Some(300));
        inbox.pushed(pushed(2), Tick(500));
        inbox.settled(2);
        inbox.pushed(pushed(3), Tick(600));
        assert_eq!(inbox.acknowledged(3, Tick(700)), None, "it was never written");
        inbox.pushed(pushed(4), Tick(800));
        assert_eq!(inbox.written(4, || Tick(801)), Some(1));
    }

    #[test]
    fn remaining_expiry_is_rounded_up() {
        let mut message = Message::new("a", &[], b"");
        assert_eq!(remaining_sec(&message, Millis(5)), None);
        message.expires_at = Some(Millis(10_001));
        assert_eq!(remaining_sec(&message, Millis(9_000)), Some(2));
        assert!(!is_expired(&message, Millis(10_000)));
        assert!(is_expired(&message, Millis(10_001)));
    }
}
