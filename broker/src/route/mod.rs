//! Who gets a message: the subscription index (an immutable snapshot, swapped on change), the directory of subscribers, shared
//! subscriptions, and the fan-out to workers and inboxes.

use std::sync::Arc;

use gateway::link::LinkId;
use session::id::Key;
use session::lifecycle::{SubscriptionOptions, Target};
use session::message::Message;
use storage::GroupId;

/// One session that subscribes, connected or not. The handle outlives connections of a durable session, so that reconnecting does
/// not touch the index.
#[derive(Debug)]
pub struct Subscriber {
    pub key: Key,
    /// Group and lifetime of its inbox; `None` for a session that ends with its connection.
    pub inbox: Option<(GroupId, u64)>,
    // live link, counters: added by the owner of this file
}

/// Where a message goes, as found on one snapshot of the index.
#[derive(Debug, Default)]
pub struct Route {
    /// Deliveries that do not pass through an inbox, by worker.
    pub live: Vec<(u16, Vec<LiveTarget>)>,
    /// Deliveries through inboxes, by group.
    pub durable: Vec<(GroupId, Vec<Target>)>,
}

/// One live delivery.
#[derive(Debug, Clone)]
pub struct LiveTarget {
    pub link: LinkId,
    pub qos: session::message::QoS,
    pub retain: bool,
    pub identifiers: smallvec::SmallVec<[u32; 1]>,
}

/// The routing of one node.
#[derive(Debug)]
pub struct Router {
    _private: (),
}

impl Router {
    /// The handle of a session: the existing one for this inbox, or a new one.
    pub fn open(&self, _key: &Key, _inbox: Option<(GroupId, u64)>) -> Arc<Subscriber> {
        unimplemented!()
    }

    /// The session is connected at `link` from now on.
    pub fn attach(&self, _subscriber: &Arc<Subscriber>, _link: LinkId) {
        unimplemented!()
    }

    /// The connection at `link` is gone; does nothing when another one attached since.
    pub fn detach(&self, _subscriber: &Arc<Subscriber>, _link: LinkId) {
        unimplemented!()
    }

    /// Adds or replaces subscriptions; when it returns, every later publish on this node sees them.
    pub fn subscribe(
        &self,
        _subscriber: &Arc<Subscriber>,
        _filters: &[(session::topic::TopicFilter, SubscriptionOptions)],
    ) {
        unimplemented!()
    }

    pub fn unsubscribe(&self, _subscriber: &Arc<Subscriber>, _filters: &[session::topic::TopicFilter]) {
        unimplemented!()
    }

    /// The lifetime is over: all its subscriptions and its handle go.
    pub fn forget(&self, _subscriber: &Arc<Subscriber>) {
        unimplemented!()
    }

    /// The same for a durable lifetime that is known by its inbox only (expired, ended, replaced).
    pub fn forget_inbox(&self, _group: GroupId, _lifetime: u64) {
        unimplemented!()
    }

    /// Who gets `message`; `publisher` for No Local.
    pub fn route(&self, _message: &Message, _publisher: Option<&Key>) -> Route {
        unimplemented!()
    }
}
