//! From a plan to deliveries of one message: QoS, RETAIN, No Local, offline sessions, one member a share group.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use gateway::link::LinkId;
use session::lifecycle::{Stamp, Target};
use session::message::QoS;
use smallvec::SmallVec;
use storage::GroupId;

use super::plan::{Grant, Plan};
use super::subscriber::{PartyId, Subscriber};
use super::subscription::{Member, ShareGroup};

/// What the fan-out needs to know of a message.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing {
    /// QoS with which it was published.
    pub qos: QoS,
    /// RETAIN flag with which it was published.
    pub retain: bool,
    /// For No Local; the default is nobody.
    pub publisher: PartyId,
    /// Whether a QoS 0 message for an offline durable session is kept.
    pub queue_qos0_offline: bool,
    /// Identity of a message whose routing may be repeated: its share groups pick by it ([`stamp_hash`]).
    pub stamp: Option<u64>,
}

/// What [`Outgoing::stamp`] is for a stamp.
#[must_use]
pub fn stamp_hash(stamp: &Stamp) -> u64 {
    let hash = FixedState::default();
    match stamp {
        Stamp::Publisher { lifetime, packet_id, sequence, .. } => {
            hash.hash_one((lifetime, packet_id, sequence))
        }
        Stamp::Will(will) => {
            let key = (&*will.key.namespace, &*will.key.client_id);
            hash.hash_one((key, will.session_generation, will.will_generation))
        }
    }
}

/// Takes the deliveries of one message.
pub trait Sink {
    /// To a connection, past any inbox.
    fn live(&mut self, link: LinkId, shape: Shape<'_>);
    /// To the connections of another worker that have no inbox: that worker resolves them itself.
    fn remote(&mut self, worker: u16);
    /// To an inbox.
    fn durable(&mut self, group: GroupId, target: Target);
}

/// What distinguishes the encodings of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape<'a> {
    pub qos: QoS,
    pub retain: bool,
    pub identifiers: &'a [u32],
    /// Filter of the shared subscription through which it comes.
    pub share: Option<&'a Arc<str>>,
}

/// Hands every delivery of a message to `sink`; whether it has any subscriber.
pub fn select(plan: &Plan, message: &Outgoing, sink: &mut impl Sink) -> bool {
    let mut matched = select_local(plan, message, sink);
    for worker in &plan.remote {
        matched = true;
        sink.remote(*worker);
    }
    for destination in &plan.durable {
        let Some(grant) = destination.grant(message.publisher) else { continue };
        matched = true;
        one(&destination.subscriber, shape(grant, message), message, sink);
    }
    for group in &plan.shares {
        let picked = match message.stamp {
            Some(stamp) => group.pick_stamped(stamp),
            None => group.pick(),
        };
        let Some(member) = picked else { continue };
        matched = true;
        select_member(group, member, message, sink);
    }
    matched
}

/// The delivery of a share group's message to the member that takes it.
pub(super) fn select_member(group: &ShareGroup, member: &Member, message: &Outgoing, sink: &mut impl Sink) {
    let grant = Grant::of(&member.options);
    let shape = Shape { share: Some(&group.filter), ..shape(&grant, message) };
    one(&member.subscriber, shape, message, sink);
}

/// The part of [`select`] that concerns the connections of the plan's own worker.
pub fn select_local(plan: &Plan, message: &Outgoing, sink: &mut impl Sink) -> bool {
    let mut matched = false;
    for destination in &plan.local {
        let Some(grant) = destination.grant(message.publisher) else { continue };
        matched = true;
        if let Some(live) = destination.subscriber.live() {
            sink.live(live, shape(grant, message));
        }
    }
    matched
}

fn one(subscriber: &Arc<Subscriber>, shape: Shape<'_>, message: &Outgoing, sink: &mut impl Sink) {
    let live = subscriber.live();
    match (subscriber.inbox, live) {
        (Some((group, lifetime)), None) if shape.qos > QoS::AtMostOnce || message.queue_qos0_offline => {
            sink.durable(group, target(lifetime, shape));
        }
        (Some((group, lifetime)), Some(_)) if shape.qos > QoS::AtMostOnce => {
            sink.durable(group, target(lifetime, shape));
        }
        (_, Some(live)) => sink.live(live, shape),
        (_, None) => {}
    }
}

fn shape<'a>(grant: &'a Grant, message: &Outgoing) -> Shape<'a> {
    Shape {
        qos: message.qos.min(grant.qos),
        retain: message.retain && grant.retain_as_published,
        identifiers: &grant.identifiers,
        share: None,
    }
}

fn target(lifetime: u64, shape: Shape<'_>) -> Target {
    Target {
        lifetime,
        qos: shape.qos,
        retain: shape.retain,
        identifiers: SmallVec::from_slice(shape.identifiers),
        shared: shape.share.is_some(),
    }
}
