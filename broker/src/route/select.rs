//! From a plan to deliveries of one message: QoS, RETAIN, No Local, offline sessions, one member a share group.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use gateway::link::LinkId;
use session::id::Key;
use session::lifecycle::{Stamp, Target};
use session::message::QoS;
use smallvec::SmallVec;
use storage::GroupId;

use super::plan::{Destination, Grant, Plan, Share};
use super::subscriber::{PartyId, Subscriber};
use super::subscription::{Member, ShareGroup};
use super::tried::Left;

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

/// What another node sent a message for.
#[derive(Debug, Clone, Copy)]
pub struct Foreign<'a> {
    /// The session that published it there, for No Local; `None`: nobody's.
    pub publisher: Option<&'a Key>,
    /// To every matching subscriber that has a connection here.
    pub everyone: bool,
    /// To one member of each of these shares (whole filters).
    pub shares: &'a [Arc<str>],
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

/// The stamp of the delivery through the share with this whole filter: one of its own, since a member may end while the message is on
/// its way, and the inbox of the next one be of a group that took the message for others.
#[must_use]
pub fn share_stamp(stamp: &Stamp, filter: &str) -> Stamp {
    let mut of_share = stamp.clone();
    let key = match &mut of_share {
        Stamp::Publisher { key, .. } => key,
        Stamp::Will(will) => &mut will.key,
    };
    // No namespace has a NUL in it.
    key.namespace = format!("{}\0{filter}", key.namespace).into();
    of_share
}

/// Takes the deliveries of one message.
pub trait Sink {
    /// To a connection, past any inbox.
    fn live(&mut self, link: LinkId, shape: Shape<'_>);
    /// To the connections of another worker that have no inbox: that worker resolves them itself.
    fn remote(&mut self, worker: u16);
    /// To an inbox; `share`: filter of the shared subscription through which it comes.
    fn durable(&mut self, group: GroupId, target: Target, share: Option<&Arc<str>>);
    /// To another node: to its connections, or with `share` to one member there of the share with this filter.
    fn node(&mut self, node: u64, share: Option<&Arc<str>>);
    /// It was for a member of the share with this filter that has no connection any more, and no inbox that takes it; `None`: another node
    /// sent it here, where there is none.
    fn nobody(&mut self, share: &Arc<str>, member: Option<PartyId>);
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
    for share in &plan.shares {
        matched |= select_share(share, &[], message, sink);
    }
    for node in &plan.nodes {
        matched = true;
        sink.node(*node, None);
    }
    matched
}

/// One member of a share, on any node, and whether there is one. Publishers of all nodes go by the same rule: a repeated message to the
/// inbox that its stamp chooses; else to a member that is connected to the publisher's node; else to the next node in turn that has
/// members without inbox, which chooses one of them; else to an inbox, which takes QoS 0 too where there are other nodes, since its session
/// may be connected to one of them. `tried`: nodes that are passed over.
pub(super) fn select_share(share: &Share, tried: &[u64], message: &Outgoing, sink: &mut impl Sink) -> bool {
    let group = share.group.as_ref();
    let nodes = share.nodes.as_ref().filter(|nodes| nodes.has_other(tried));
    let picked = match (group, nodes, message.stamp) {
        (Some(group), None, Some(stamp)) => group.pick_stamped(stamp, message.publisher),
        (Some(group), None, None) => group.pick(message.publisher),
        (Some(group), Some(_), stamp) => stamp
            .and_then(|stamp| group.pick_inbox(stamp))
            .or_else(|| group.pick_connected(message.publisher)),
        (None, ..) => None,
    };
    match (group, picked, nodes) {
        (Some(group), Some(member), _) => {
            let queue_qos0_offline = message.queue_qos0_offline || share.has_nodes;
            select_member(group, member, &Outgoing { queue_qos0_offline, ..*message }, sink);
        }
        (_, None, Some(nodes)) | (None, Some(_), Some(nodes)) => {
            sink.node(nodes.pick(tried), Some(&nodes.filter));
        }
        (_, None, None) | (None, Some(_), None) => return false,
    }
    true
}

/// Hands out a message that another node sent here: to connections alone, never to an inbox and never to a node, which the sender saw
/// to. A durable session that is connected here gets with QoS 0 what its inbox does not keep.
pub fn select_foreign(plan: &Plan, message: &Outgoing, foreign: &Foreign<'_>, sink: &mut impl Sink) {
    if foreign.everyone {
        select_own(plan, message, foreign.publisher, sink);
        for worker in &plan.remote {
            sink.remote(*worker);
        }
        for destination in &plan.durable {
            let Some(grant) = destination.grant_if(is_own(destination, foreign.publisher)) else { continue };
            let shape = shape(grant, message);
            if let Some(live) = destination.subscriber.live()
                && shape.qos == QoS::AtMostOnce
                && !message.queue_qos0_offline
            {
                sink.live(live, shape);
            }
        }
    }
    for filter in foreign.shares {
        match group_here(plan, filter).and_then(|group| Some((group, group.pick_without_inbox()?))) {
            Some((group, member)) => select_member(group, member, message, sink),
            None => sink.nobody(filter, None),
        }
    }
}

/// Gives a message of another node to another member here, when those that were tried could not take it; whether there is one.
pub fn select_other_here(plan: &Plan, left: &Left, message: &Outgoing, sink: &mut impl Sink) -> bool {
    let group = group_here(plan, &left.filter).filter(|_| !left.tried.is_over());
    let Some(group) = group.and_then(|group| group.except(&left.tried)) else { return false };
    let Some(member) = group.pick_without_inbox() else { return false };
    select_member(&group, member, message, sink);
    true
}

fn group_here<'a>(plan: &'a Plan, filter: &Arc<str>) -> Option<&'a Arc<ShareGroup>> {
    plan.shares.iter().filter_map(|share| share.group.as_ref()).find(|group| group.filter == *filter)
}

/// As [`select_local`], for a message that another node sent.
pub fn select_own(plan: &Plan, message: &Outgoing, publisher: Option<&Key>, sink: &mut impl Sink) {
    for destination in &plan.local {
        if let Some(grant) = destination.grant_if(is_own(destination, publisher))
            && let Some(live) = destination.subscriber.live()
        {
            sink.live(live, shape(grant, message));
        }
    }
}

/// [MQTT-3.8.3-3] goes by the ClientID.
fn is_own(destination: &Destination, publisher: Option<&Key>) -> bool {
    publisher.is_some_and(|publisher| destination.subscriber.key == *publisher)
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
            sink.durable(group, target(lifetime, shape), shape.share);
        }
        (Some((group, lifetime)), Some(_)) if shape.qos > QoS::AtMostOnce => {
            sink.durable(group, target(lifetime, shape), shape.share);
        }
        (_, Some(live)) => sink.live(live, shape),
        // It was connected when it was chosen: another member, or node, is to get the message.
        (_, None) => {
            if let Some(share) = shape.share {
                sink.nobody(share, Some(subscriber.id()));
            }
        }
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
