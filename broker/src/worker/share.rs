//! Messages of shared subscriptions whose member cannot take them: it ended, its connection is gone, its outbox is full, or its node
//! has no member any more. Another member gets them (MQTT 5 §4.8.2), while there is one.
//!
//! The acknowledgement of a message waits for the member that takes it at last, as it would have for the first one.

use std::sync::Arc;

use session::lifecycle::{Append, Command, Reply, Stamp, Target};
use session::message::{Message, QoS};
use storage::GroupId;

use super::Worker;
use super::client::Session;
use super::commit::Op;
use super::fanout::Fanout;
use super::mail::Taken;
use crate::metrics::DropReason;
use crate::route::{
    Left, Outgoing, PartyId, Router, SharedTarget, select_other_here, share_stamp, stamp_hash,
};
use crate::users::UserRoom;

/// A message on its way to a member of a share.
#[derive(Debug, Clone)]
pub(super) struct SharedMessage {
    pub message: Arc<Message>,
    /// Stamp with which it was published.
    pub stamp: Option<Stamp>,
    pub left: Left,
    pub place: Place,
}

/// Where the member is that it was given to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Inbox(GroupId, u64),
    Node(u64),
}

impl SharedMessage {
    /// The member was not there.
    pub(super) fn pass_over(&mut self, router: &Router) {
        match self.place {
            Place::Inbox(group, lifetime) => {
                router.forget_inbox(group, lifetime);
                self.left.tried.add_inbox();
            }
            Place::Node(node) => self.left.tried.add_node(node),
        }
    }
}

/// Whether an append, or another node, did not find the member.
pub(super) fn is_missing(reply: &Reply) -> bool {
    matches!(reply, Reply::Appended { missing: 1.., .. })
}

/// The append to the inbox of a member of a share.
pub(super) fn shared_append(message: &Message, stamp: Option<&Stamp>, target: &SharedTarget) -> Command {
    let stamp = stamp.map(|stamp| share_stamp(stamp, &target.filter));
    let targets = vec![target.target.clone()];
    Command::Append(Box::new(Append { message: Message::clone(message), stamp, targets }))
}

impl Worker {
    /// Lets go what a fan-out selected beside the connections of this worker; the number of commits that the acknowledgement of publish
    /// `number` waits for.
    pub(super) fn dispatch(
        &self,
        session: &mut Session,
        number: u64,
        message: &Arc<Message>,
        stamp: Option<&Stamp>,
        fanout: &mut Fanout<'_>,
    ) -> u16 {
        let mut waits = 0;
        let mut room = UserRoom::of(&self.shared, message.len());
        loop {
            fanout.send_parcels(session.subscriber.id());
            for target in fanout.take_nodes() {
                waits += self.forward(session, number, message, stamp, target);
            }
            for (group, mut targets) in fanout.take_durable() {
                if !self.keep_within(&mut room, group, &mut targets) {
                    continue;
                }
                let append = Append { message: Message::clone(message), stamp: stamp.cloned(), targets };
                let op = Op::Appended { publish: number, shared: None };
                waits += u16::from(self.propose(session, group, Command::Append(Box::new(append)), op));
            }
            for (target, tried) in fanout.take_shared() {
                if !self.keep_within(&mut room, target.group, &mut vec![target.target.clone()]) {
                    continue;
                }
                let command = shared_append(message, stamp, &target);
                let place = Place::Inbox(target.group, target.target.lifetime);
                let left = Left { filter: target.filter, tried };
                let shared =
                    SharedMessage { message: Arc::clone(message), stamp: stamp.cloned(), left, place };
                let op = Op::Appended { publish: number, shared: Some(Box::new(shared)) };
                waits += u16::from(self.propose(session, target.group, command, op));
            }
            let Some(left) = fanout.take_left() else { return waits };
            self.next_member(message, stamp, left, fanout);
        }
    }

    /// Drops and counts what the users of inboxes have no room for; whether anything is left.
    pub(super) fn keep_within(
        &self,
        room: &mut Option<UserRoom<'_>>,
        group: GroupId,
        targets: &mut Vec<Target>,
    ) -> bool {
        let Some(room) = room else { return true };
        self.stats.dropped(DropReason::UserQuota, room.filter(group, targets));
        !targets.is_empty()
    }

    /// The member that a message was given to is not there; the acknowledgement of publish `number` waits for the next one.
    pub(super) fn share_again(&self, session: &mut Session, number: u64, mut shared: SharedMessage) {
        shared.pass_over(&self.shared.router);
        let SharedMessage { message, stamp, left, .. } = shared;
        let mut fanout = Fanout::of_message(self, &message);
        self.next_member(&message, stamp.as_ref(), left, &mut fanout);
        let waits = self.dispatch(session, number, &message, stamp.as_ref(), &mut fanout);
        session.publishes.also_waits(number, waits);
    }

    fn next_member(&self, message: &Message, stamp: Option<&Stamp>, left: Left, fanout: &mut Fanout<'_>) {
        let outgoing = Outgoing { stamp: stamp.map(stamp_hash), ..self.to_share(message) };
        fanout.follow(&left.tried);
        if !self.shared.router.select_shared(&left, message.topic(), &outgoing, fanout) {
            self.stats.dropped(left.tried.drop_reason(), 1);
        }
    }

    /// A message of another node for a member here: another one here gets it, or that node is told that there is none.
    pub(super) fn pass_on_here(&self, fanout: &mut Fanout<'_>, message: &Message, taken: &(Arc<Taken>, u32)) {
        while let Some(left) = fanout.take_left() {
            let plan = self.plan(message.topic());
            fanout.follow(&left.tried);
            if !select_other_here(&plan, &left, &self.to_share(message), fanout) {
                taken.0.nobody(taken.1, &left.filter);
            }
        }
    }

    fn to_share(&self, message: &Message) -> Outgoing {
        Outgoing {
            qos: message.qos,
            retain: message.retain,
            publisher: PartyId::default(),
            queue_qos0_offline: self.options.queue_qos0_offline,
            stamp: None,
        }
    }

    /// Hands on what was not sent, and what was sent with QoS 1 and not acknowledged. A QoS 2 message that was sent is for nobody else
    /// ([MQTT-4.8.2-5]). An inbox hands on what it holds by itself, when its lifetime is over.
    pub(super) fn leave_shares(&self, session: &mut Session) {
        let unsent = session.post.link.take_left();
        let in_flight = std::mem::take(&mut session.shared);
        for delivery in in_flight.into_values().chain(unsent) {
            if let Some(share) = &delivery.share {
                self.publisher.pass_on(&delivery.message, None, &Left::of(share));
            }
        }
    }

    /// Whether a message that a member of a share cannot take is somebody else's.
    pub(super) fn is_passed_on(qos: QoS) -> bool {
        qos > QoS::AtMostOnce
    }
}
