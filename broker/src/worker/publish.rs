//! PUBLISH from a client: authorise, check the window, route, acknowledge.
//!
//! A message that concerns live connections only is routed from the borrowed packet and acknowledged at once; what must be
//! stored first takes its place in [`Publishes`](super::publishes::Publishes).

use std::sync::Arc;

use gateway::codec::{AckType, Publish, ReasonCode, Version, forwarded_properties};
use gateway::connection::Output;
use gateway::service::Disconnecting;
use session::lifecycle::{Command, Stamp};
use session::limits::TOPIC_LEVELS_MAX;
use session::message::{Message, QoS};
use session::qos::Received;
use session::time::Millis;
use session::topic::{TopicError, check_topic_name};

use super::Worker;
use super::client::Session;
use super::commit::Op;
use super::fanout::{Fanout, NodeTarget, Parts};
use super::publishes::Item;
use super::share::{Place, SharedMessage};
use crate::forward::{Forward, ForwardedShare};
use crate::metrics::DropReason;
use crate::route::{Left, Outgoing, PartyId, select, select_local, stamp_hash};

/// What a client is told that has no other answer to its PUBLISH.
const TOO_DEEP: Disconnecting = Disconnecting {
    reason: ReasonCode::TopicNameInvalid,
    text: Some("the topic name has more than 256 levels"),
};

impl Worker {
    /// # Errors
    /// The client broke its Receive Maximum, the store is not there, or a 3.1.1 client cannot be told that its topic is not taken: close
    /// with this reason.
    pub(super) fn publish(
        &self,
        session: &mut Session,
        publish: &Publish<'_>,
        out: &mut Output,
    ) -> Result<(), Disconnecting> {
        self.stats.received(publish.qos, publish.payload.len());
        if let Some(pace) = &session.pace {
            pace.spend(self.now.get(), publish.topic.len() + publish.payload.len());
        }
        let exceeded = |_| Disconnecting { reason: ReasonCode::ReceiveMaximumExceeded, text: None };
        let mut resumed = false;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => session.inbound.publish_qos1().map_err(exceeded)?,
            QoS::ExactlyOnce => {
                let received = session.inbound.publish_qos2(publish.packet_id).map_err(exceeded)?;
                resumed = received == Received::Duplicate && take_resumed(session, publish.packet_id);
                if received == Received::Duplicate && !resumed {
                    // [MQTT-4.3.3-10]: acknowledged again, not routed again.
                    self.answer(session, publish, ReasonCode::Success, out);
                    return Ok(());
                }
            }
        }
        let unretained;
        let mut publish = publish;
        if self.is_too_large_to_retain(publish) && !can_be_told(publish.qos, out.version()) {
            self.stats.dropped(DropReason::Retained, 1);
            unretained = Publish { retain: false, ..*publish };
            publish = &unretained;
        }
        if let Some(refusal) = self.refusal(session, publish) {
            if refusal == ReasonCode::TopicNameInvalid && out.version() == Version::V311 {
                return Err(TOO_DEEP);
            }
            if resumed && out.version() == Version::V5 {
                self.refuse_resumed(session, publish.packet_id, refusal, out);
            } else {
                self.answer(session, publish, refusal, out);
            }
            return Ok(());
        }
        let stored_first = publish.retain || (publish.qos == QoS::ExactlyOnce && session.durable.is_some());
        // Before the routing is looked at. QoS 0 is promised nothing.
        let is_unsure = publish.qos > QoS::AtMostOnce && !self.shared.forwarding.is_certain();
        if stored_first || is_unsure || session.publishes.has_unrouted() {
            self.enqueue(session, publish, is_unsure);
            self.advance_publishes(session, Some(out));
            return Ok(());
        }
        let plan = self.plan(publish.topic);
        if !plan.is_local() {
            self.publish_widely(session, publish, out);
            return Ok(());
        }
        let mut scratch = Vec::new();
        let mut fanout = Fanout::new(self, self.parts(publish, &mut scratch));
        let outgoing = outgoing(self, publish.qos, false, session.subscriber.id());
        let matched = select_local(&plan, &outgoing, &mut fanout);
        self.answer(session, publish, outcome(matched), out);
        Ok(())
    }

    /// A message that other workers, nodes or inboxes get too.
    fn publish_widely(&self, session: &mut Session, publish: &Publish<'_>, out: &mut Output) {
        let message = Arc::new(self.message(publish));
        let number = session.publishes.next_number();
        let (appends, reason) = self.route(session, number, &message, None, false);
        if appends == 0 {
            self.answer(session, publish, reason, out);
        } else {
            session.publishes.push_routed(publish.packet_id, publish.qos, reason, appends);
        }
    }

    /// Stores the retained values whose turn has come, routes what is due and acknowledges what is finished, in order.
    pub(super) fn advance_publishes(&self, session: &mut Session, mut out: Option<&mut Output>) {
        if session.post.lost.get() {
            return;
        }
        while let Some((number, message, sequence)) = session.publishes.take_retainable() {
            let group = self.shared.store.group_of_topic(message.topic());
            let stamp = sequence.and_then(|sequence| stamp(session, number, sequence));
            let command = Command::Retain { message: Message::clone(&message), stamp };
            if !self.propose(session, group, command, Op::Prepared { publish: number }) {
                session.publishes.prepared(number);
            }
        }
        while let Some((number, work)) = session.publishes.take_routable() {
            if let Some(work) = work {
                let stamp = work.sequence.and_then(|sequence| stamp(session, number, sequence));
                let (appends, reason) = self.route(session, number, &work.message, stamp, work.repeated);
                session.publishes.set_routed(number, appends, reason);
            }
        }
        while let Some((item, released)) = session.publishes.take_finished() {
            if let Some(out) = out.as_deref_mut() {
                acknowledge(session, item.packet_id, item.qos, item.reason, out);
                if released {
                    self.release(session, item.packet_id, out);
                }
            }
        }
    }

    /// Why the publish is not taken.
    fn refusal(&self, session: &mut Session, publish: &Publish<'_>) -> Option<ReasonCode> {
        if is_too_deep(publish.topic) {
            self.stats.dropped(DropReason::TooDeep, 1);
            return Some(ReasonCode::TopicNameInvalid);
        }
        if publish.topic.starts_with('$') && publish.topic.starts_with("$SYS") {
            return Some(ReasonCode::NotAuthorized);
        }
        let client_id = &session.subscriber.key.client_id;
        if !session.access.may_publish(&self.shared.auth, client_id, publish.topic) {
            self.stats.dropped(DropReason::NotAuthorized, 1);
            return Some(ReasonCode::NotAuthorized);
        }
        if self.is_too_large_to_retain(publish) {
            self.stats.dropped(DropReason::Retained, 1);
            return Some(ReasonCode::QuotaExceeded);
        }
        None
    }

    fn is_too_large_to_retain(&self, publish: &Publish<'_>) -> bool {
        publish.retain && publish.payload.len() > self.options.retained_bytes_max
    }

    /// The group of the topic holds as many retained messages as it may. Who can be told is refused; the message of anybody else is
    /// delivered as one that is not to be retained.
    pub(super) fn retain_refused(&self, session: &mut Session, number: u64) {
        self.stats.dropped(DropReason::Retained, 1);
        let Some(qos) = session.publishes.qos(number) else { return };
        if !can_be_told(qos, session.version) {
            session.publishes.not_retained(number);
            return;
        }
        let durable = session.durable.as_ref().map(|durable| (durable.group, durable.session));
        session.publishes.refused(number, ReasonCode::QuotaExceeded);
        if let (QoS::ExactlyOnce, Some((group, owner)), Some(packet_id)) =
            (qos, durable, session.publishes.packet_id(number))
        {
            // A refusing PUBREC frees the id ([MQTT-4.3.3-8]): the store forgets it first.
            let command = Command::Release { session: owner, packet_id };
            if self.propose(session, group, command, Op::Prepared { publish: number }) {
                return;
            }
        }
        session.publishes.prepared(number);
    }

    /// Answers in the order of receipt.
    fn answer(&self, session: &mut Session, publish: &Publish<'_>, reason: ReasonCode, out: &mut Output) {
        if session.publishes.is_empty() {
            acknowledge(session, publish.packet_id, publish.qos, reason, out);
        } else if publish.qos != QoS::AtMostOnce {
            session.publishes.push(Item::answer(publish.packet_id, publish.qos, reason));
            self.advance_publishes(session, Some(out));
        }
    }

    /// A refusing PUBREC frees the id for the client ([MQTT-4.3.3-8]): the store forgets first that an earlier connection received
    /// it, or the next message under it would pass for a duplicate.
    fn refuse_resumed(&self, session: &mut Session, packet_id: u16, reason: ReasonCode, out: &mut Output) {
        let number = session.publishes.next_number();
        let mut item = Item::answer(packet_id, QoS::ExactlyOnce, reason);
        let durable = session.durable.as_ref().map(|durable| (durable.group, durable.session));
        if let Some((group, owner)) = durable {
            let command = Command::Release { session: owner, packet_id };
            item.waits += u16::from(self.propose(session, group, command, Op::Prepared { publish: number }));
        }
        session.publishes.push(item);
        self.advance_publishes(session, Some(out));
    }

    /// Proposes the received id, and takes the publish into the queue; a retained value is stored when the sequence of the id is
    /// known, which stamps it.
    fn enqueue(&self, session: &mut Session, publish: &Publish<'_>, is_unsure: bool) {
        let message = Arc::new(self.message(publish));
        let number = session.publishes.next_number();
        let mut item = Item::work(publish.packet_id, message, 0);
        let durable = session.durable.as_ref().map(|durable| (durable.group, durable.session));
        if let (QoS::ExactlyOnce, Some((group, owner))) = (publish.qos, durable) {
            let command = Command::Receive { session: owner, packet_id: publish.packet_id };
            item.waits += u16::from(self.propose(session, group, command, Op::Prepared { publish: number }));
        }
        if is_unsure && let Some(waiter) = self.pend(session, Op::Ascertained { publish: number }) {
            item.waits += 1;
            self.shared.forwarding.ascertain(waiter);
        }
        session.publishes.push(item);
    }

    /// Hands one message to everybody; the number of commits that its acknowledgement waits for, and what it says.
    fn route(
        &self,
        session: &mut Session,
        number: u64,
        message: &Arc<Message>,
        stamp: Option<Stamp>,
        repeated: bool,
    ) -> (u16, ReasonCode) {
        let plan = self.plan(message.topic());
        let publisher = session.subscriber.id();
        let mut fanout = Fanout::of_message(self, message);
        if repeated {
            fanout.only_inboxes();
        }
        let outgoing = Outgoing {
            stamp: stamp.as_ref().map(stamp_hash),
            ..outgoing(self, message.qos, message.retain, publisher)
        };
        let matched = select(&plan, &outgoing, &mut fanout);
        if let Some(stamp) = &stamp
            && (fanout.is_to_connections() || !plan.shares.is_empty())
        {
            self.mark_routed(session, stamp);
        }
        let waits = self.dispatch(session, number, message, stamp.as_ref(), &mut fanout);
        (waits, outcome(matched))
    }

    /// Has it stored that a received message went to connections, or to a member of a share that a repetition may not choose again. Nothing
    /// waits for it, but the turn stays open: whoever takes the session over meets it.
    fn mark_routed(&self, session: &mut Session, stamp: &Stamp) {
        let (Stamp::Publisher { packet_id, sequence, .. }, Some(durable)) = (stamp, &session.durable) else {
            return;
        };
        let (group, owner) = (durable.group, durable.session);
        let command = Command::Routed { session: owner, packet_id: *packet_id, sequence: *sequence };
        self.propose(session, group, command, Op::Routed);
    }

    /// Leaves a message for another node; how often its acknowledgement waits for that node.
    pub(super) fn forward(
        &self,
        session: &mut Session,
        number: u64,
        message: &Arc<Message>,
        stamp: Option<&Stamp>,
        NodeTarget { node, everyone, shares }: NodeTarget,
    ) -> u16 {
        let mut waits = 0;
        let mut pend = |shared| {
            let op = Op::Forwarded { publish: number, shared };
            let waiter = (message.qos > QoS::AtMostOnce).then(|| self.pend(session, op)).flatten();
            waits += u16::from(waiter.is_some());
            waiter
        };
        let done = if everyone { pend(None) } else { None };
        let of_share = |left: Left| {
            let filter = Arc::clone(&left.filter);
            let (message, stamp, place) = (Arc::clone(message), stamp.cloned(), Place::Node(node));
            let done = pend(Some(Box::new(SharedMessage { message, stamp, left, place })));
            ForwardedShare { filter, done }
        };
        let shares = shares.into_iter().map(of_share).collect();
        let publisher = Some(session.subscriber.key.clone());
        let forward = Forward { message: Arc::clone(message), publisher, everyone, shares, done };
        self.batch.borrow_mut().forward(node, forward);
        waits
    }

    fn parts<'a>(&self, publish: &Publish<'a>, scratch: &'a mut Vec<u8>) -> Parts<'a> {
        let properties = if publish.properties_forwardable {
            publish.properties
        } else {
            forwarded_properties(publish.properties, scratch)
        };
        Parts {
            topic: publish.topic,
            properties,
            payload: publish.payload,
            qos: publish.qos,
            retain: publish.retain,
            expires_at: self.expires_at(publish.message_expiry_sec),
        }
    }

    fn message(&self, publish: &Publish<'_>) -> Message {
        let mut scratch = Vec::new();
        self.parts(publish, &mut scratch).message()
    }

    fn expires_at(&self, expiry_sec: Option<u32>) -> Option<Millis> {
        expiry_sec.map(|sec| self.now_ms.get().plus_ms(u64::from(sec) * 1_000))
    }
}

/// Whether no subscription can match it, here or on another node; a short one needs no look.
fn is_too_deep(topic: &str) -> bool {
    topic.len() >= TOPIC_LEVELS_MAX && check_topic_name(topic) == Err(TopicError::TooDeep)
}

fn outgoing(worker: &Worker, qos: QoS, retain: bool, publisher: PartyId) -> Outgoing {
    let queue_qos0_offline = worker.options.queue_qos0_offline;
    Outgoing { qos, retain, publisher, queue_qos0_offline, stamp: None }
}

fn outcome(matched: bool) -> ReasonCode {
    if matched { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers }
}

/// Whether an acknowledgement can say that a message was refused.
fn can_be_told(qos: QoS, version: Version) -> bool {
    qos != QoS::AtMostOnce && version == Version::V5
}

/// Whether the id was received on an earlier connection and is seen on this one for the first time.
fn take_resumed(session: &mut Session, packet_id: u16) -> bool {
    session.durable.as_mut().is_some_and(|durable| durable.resumed.remove(&packet_id))
}

fn stamp(session: &Session, number: u64, sequence: u64) -> Option<Stamp> {
    let durable = session.durable.as_ref()?;
    let packet_id = session.publishes.packet_id(number)?;
    let key = session.subscriber.key.clone();
    Some(Stamp::Publisher { key, lifetime: durable.session.lifetime, packet_id, sequence })
}

fn acknowledge(session: &mut Session, packet_id: u16, qos: QoS, reason: ReasonCode, out: &mut Output) {
    match qos {
        QoS::AtMostOnce => {}
        QoS::AtLeastOnce => {
            out.ack(AckType::PubAck, packet_id, reason);
            session.inbound.acked();
        }
        QoS::ExactlyOnce => {
            out.ack(AckType::PubRec, packet_id, reason);
            // A 3.1.1 client does not see the refusal and goes on with PUBREL.
            if reason.is_error() && out.version() == Version::V5 {
                session.inbound.refused(packet_id);
            }
        }
    }
}

impl Parts<'_> {
    /// The message, in one allocation.
    pub(super) fn message(&self) -> Message {
        let mut message = Message::new(self.topic, self.properties, self.payload);
        message.qos = self.qos;
        message.retain = self.retain;
        message.expires_at = self.expires_at;
        message
    }
}
