//! A topic resolved once: who gets a message published to it, with overlapping subscriptions of one subscriber merged
//! ([MQTT-3.3.4-2], -3: one delivery with the maximum QoS and all identifiers), as one worker sees it.

use std::sync::Arc;

use hashbrown::HashMap;
use session::lifecycle::SubscriptionOptions;
use session::message::QoS;
use session::topic::Matches;
use smallvec::SmallVec;

use super::readers::Readers;
use super::remote::RemoteShare;
use super::router::Snapshot;
use super::subscriber::{PartyId, Subscriber};
use super::subscription::{Member, ShareGroup, Sub};

/// What the matching subscriptions of one subscriber grant together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub qos: QoS,
    pub retain_as_published: bool,
    pub identifiers: SmallVec<[u32; 1]>,
}

impl Grant {
    pub(crate) fn of(options: &SubscriptionOptions) -> Self {
        let mut identifiers = SmallVec::new();
        if options.identifier != 0 {
            identifiers.push(options.identifier);
        }
        Self { qos: options.qos, retain_as_published: options.retain_as_published, identifiers }
    }

    fn merge(&mut self, other: Self) {
        self.qos = self.qos.max(other.qos);
        self.retain_as_published |= other.retain_as_published;
        self.identifiers.extend(other.identifiers);
    }
}

/// What a subscriber gets of its own messages (No Local, [MQTT-3.8.3-3]).
#[derive(Debug, Clone, PartialEq, Eq)]
enum Own {
    /// No matching subscription is No Local.
    Same,
    /// All are.
    Nothing,
    /// Some are: what the others grant.
    Rest(Box<Grant>),
}

/// One subscriber of the topic.
#[derive(Debug, Clone)]
pub struct Destination {
    pub subscriber: Arc<Subscriber>,
    grant: Grant,
    own: Own,
}

impl Destination {
    fn new(member: &Member) -> Self {
        let own = if member.options.no_local { Own::Nothing } else { Own::Same };
        Self { subscriber: Arc::clone(&member.subscriber), grant: Grant::of(&member.options), own }
    }

    fn merge(&mut self, options: &SubscriptionOptions) {
        let grant = Grant::of(options);
        match (&mut self.own, options.no_local) {
            (Own::Same, true) => self.own = Own::Rest(Box::new(self.grant.clone())),
            (Own::Nothing, false) => self.own = Own::Rest(Box::new(grant.clone())),
            (Own::Rest(rest), false) => rest.merge(grant.clone()),
            (Own::Same, false) | (Own::Nothing | Own::Rest(_), true) => {}
        }
        self.grant.merge(grant);
    }

    /// What is delivered of a message of `publisher`; `None`: nothing (No Local).
    #[must_use]
    pub fn grant(&self, publisher: PartyId) -> Option<&Grant> {
        self.grant_if(self.subscriber.id() == publisher)
    }

    /// The same for a message that is its own or not.
    pub(super) fn grant_if(&self, is_own: bool) -> Option<&Grant> {
        if !is_own {
            return Some(&self.grant);
        }
        match &self.own {
            Own::Same => Some(&self.grant),
            Own::Nothing => None,
            Own::Rest(rest) => Some(rest),
        }
    }
}

/// Who gets messages of one topic, from the point of view of one worker. Publishers, QoS and liveness of durable
/// subscribers vary per message and are looked at when it is used.
#[derive(Debug, Default)]
pub struct Plan {
    /// Sessions without inbox whose connection lives on this worker. Such a connection never moves.
    pub local: Vec<Destination>,
    /// Other workers that have sessions without inbox to serve.
    pub remote: SmallVec<[u16; 4]>,
    /// Sessions with an inbox.
    pub durable: Vec<Destination>,
    pub shares: Vec<Share>,
    /// Other nodes that have live subscribers.
    pub nodes: SmallVec<[u64; 2]>,
}

/// A shared subscription, with what this node knows of its members: those here and those with an inbox, and the nodes that have others.
#[derive(Debug)]
pub struct Share {
    pub group: Option<Arc<ShareGroup>>,
    pub nodes: Option<Arc<RemoteShare>>,
    /// There are other nodes: a member with an inbox that has no connection here may have one there.
    pub has_nodes: bool,
}

impl Plan {
    /// Resolves `topic` for `worker`; `None`: for a caller that has no connections.
    #[must_use]
    pub fn resolve(snapshot: &Snapshot, topic: &str, worker: Option<u16>, readers: &Readers) -> Self {
        let mut matches = Matches::new();
        snapshot.tree.matches(topic, &mut matches);
        let mut builder = Builder::default();
        let distinct = matches.slices.len() == 1;
        for sub in matches.slices.iter().flat_map(|slice| slice.iter()) {
            match sub {
                Sub::One(member) => builder.add(member, distinct),
                Sub::Share(group) => builder.shares.push(Arc::clone(group)),
            }
        }
        if !readers.is_open() {
            builder.all.retain(|destination| readers.may_read(&destination.subscriber, topic));
            builder.shares =
                builder.shares.iter().filter_map(|group| group.readable(readers, topic)).collect();
        }
        let has_nodes = snapshot.remote.has_nodes;
        let mut plan = builder.finish(worker, has_nodes);
        let (nodes, shares) = snapshot.remote.matches(topic);
        plan.nodes = nodes;
        for nodes in shares {
            let known = plan
                .shares
                .iter_mut()
                .find(|share| share.group.as_ref().is_some_and(|group| group.filter == nodes.filter));
            match known {
                Some(share) => share.nodes = Some(nodes),
                None => plan.shares.push(Share { group: None, nodes: Some(nodes), has_nodes }),
            }
        }
        plan
    }

    /// Whether nobody gets anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.local.is_empty() && self.is_local()
    }

    /// Whether every message goes to connections of this worker only.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.remote.is_empty() && self.durable.is_empty() && self.shares.is_empty() && self.nodes.is_empty()
    }

    /// A measure of its size, for the bound of a cache.
    #[must_use]
    pub fn weight(&self) -> usize {
        1 + self.local.len() + self.durable.len() + self.shares.len()
    }
}

/// Up to this many destinations an overlap is looked for by walking them.
const WALK_MAX: usize = 16;

#[derive(Default)]
struct Builder {
    all: Vec<Destination>,
    /// Position of each subscriber in `all`, once that is long.
    index: HashMap<PartyId, usize>,
    shares: Vec<Arc<ShareGroup>>,
}

impl Builder {
    fn add(&mut self, member: &Member, distinct: bool) {
        let at = if distinct { None } else { self.find(member.subscriber.id()) };
        match at {
            Some(at) => self.all[at].merge(&member.options),
            None => self.all.push(Destination::new(member)),
        }
    }

    fn find(&mut self, id: PartyId) -> Option<usize> {
        if self.all.len() <= WALK_MAX {
            return self.all.iter().position(|other| other.subscriber.id() == id);
        }
        for at in self.index.len()..self.all.len() {
            self.index.insert(self.all[at].subscriber.id(), at);
        }
        self.index.get(&id).copied()
    }

    fn finish(self, worker: Option<u16>, has_nodes: bool) -> Plan {
        let share = |group| Share { group: Some(group), nodes: None, has_nodes };
        let shares = self.shares.into_iter().map(share);
        let mut plan = Plan { shares: shares.collect(), ..Plan::default() };
        for destination in self.all {
            if destination.subscriber.inbox.is_some() {
                plan.durable.push(destination);
                continue;
            }
            let Some(at) = destination.subscriber.worker() else { continue };
            if Some(at) == worker {
                plan.local.push(destination);
            } else if !plan.remote.contains(&at) {
                plan.remote.push(at);
            }
        }
        plan
    }
}
