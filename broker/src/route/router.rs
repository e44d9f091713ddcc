//! The writer of the subscription index and the directory of durable subscribers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use gateway::link::LinkId;
use hashbrown::HashMap;
use parking_lot::Mutex;
use session::id::Key;
use session::lifecycle::{SubscriptionOptions, Target};
use session::message::{Message, QoS};
use session::topic::{TopicFilter, Tree};
use smallvec::SmallVec;
use storage::GroupId;

use super::announced::Announced;
use super::plan::{Plan, Share};
use super::readers::Readers;
use super::remote::{Remote, RemoteWriter};
use super::select::{Outgoing, Shape, Sink, select, select_share};
use super::subscriber::{PartyId, Subscriber};
use super::subscription::{Member, ShareGroup, Sub};
use super::tried::{Left, Tried};
use crate::auth::{Authoriser, ClientRules};
use crate::config::SharePick;

/// One immutable version of the index.
#[derive(Debug)]
pub struct Snapshot {
    /// Grows with every change: a plan belongs to exactly one version.
    pub version: u64,
    pub tree: Tree<Sub>,
    /// Subscribers of other nodes.
    pub remote: Remote,
}

/// A reader's own handle on the current version: an atomic comparison per look, no reference count.
pub type SnapshotCache = arc_swap::Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>;

/// The routing of one node.
#[derive(Debug)]
pub struct Router {
    current: Arc<ArcSwap<Snapshot>>,
    access: Arc<dyn Authoriser>,
    writer: Mutex<Writer>,
    ids: AtomicU64,
    announced: Arc<Announced>,
    share_pick: SharePick,
}

/// What only the one writer sees.
#[derive(Debug)]
struct Writer {
    tree: Tree<Sub>,
    version: u64,
    /// By the whole filter, `$share/` included.
    shares: HashMap<Arc<str>, Arc<ShareGroup>>,
    /// Durable subscribers by inbox.
    directory: HashMap<(GroupId, u64), Arc<Subscriber>>,
    remote: RemoteWriter,
    announced: Arc<Announced>,
    /// Subscriptions of each user.
    by_user: HashMap<Option<Arc<str>>, u64>,
}

/// Where a message goes, as found on one version of the index.
#[derive(Debug, Default)]
pub struct Route {
    /// Workers whose connections without inbox are to be served; each resolves them itself.
    pub workers: SmallVec<[u16; 4]>,
    /// Deliveries to one connection past any inbox: QoS 0 to durable sessions, and picks of share groups.
    pub live: Vec<LiveTarget>,
    /// Deliveries through inboxes, by group.
    pub durable: Vec<(GroupId, Vec<Target>)>,
    /// Deliveries through inboxes of members of shares.
    pub shared: Vec<SharedTarget>,
    /// Other nodes: to their connections, or to one member there of the share with this filter.
    pub nodes: Vec<(u64, Option<Arc<str>>)>,
    /// Shares whose chosen member is not there. [`Router`] looks for another one before it hands the route out.
    left: Vec<Left>,
    /// Shares of which nobody takes it who was not tried.
    pub unserved: Vec<Left>,
    /// Who was tried before of the share that is being served.
    tried: Tried,
    /// Whether the message has any subscriber.
    pub matched: bool,
}

/// One live delivery.
#[derive(Debug, Clone)]
pub struct LiveTarget {
    pub link: LinkId,
    pub qos: QoS,
    pub retain: bool,
    pub identifiers: SmallVec<[u32; 1]>,
    /// Filter of the shared subscription through which it comes.
    pub share: Option<Arc<str>>,
    /// Other members of it that could not take the message; `None`: nobody was tried before.
    pub tried: Option<Box<Tried>>,
}

/// One delivery through the inbox of a member of a share.
#[derive(Debug, Clone)]
pub struct SharedTarget {
    pub group: GroupId,
    pub target: Target,
    /// The whole filter, `$share/` included.
    pub filter: Arc<str>,
}

/// A durable session's subscriptions as they are read back at start.
#[derive(Debug)]
pub struct Restored {
    pub key: Key,
    pub user: Option<Arc<str>>,
    pub inbox: (GroupId, u64),
    pub filters: Vec<(TopicFilter, SubscriptionOptions)>,
}

/// The same while the node runs.
#[derive(Debug)]
pub struct Followed {
    pub session: Restored,
    /// Its owner is a connection of this boot.
    pub owned_here: bool,
}

impl Router {
    /// An empty one; `access` says what a subscriber may be sent.
    #[must_use]
    pub fn new(access: Arc<dyn Authoriser>) -> Self {
        let tree = Tree::new();
        let announced = Arc::<Announced>::default();
        let first = Snapshot { version: 1, tree: tree.clone(), remote: Remote::default() };
        Self {
            current: Arc::new(ArcSwap::from_pointee(first)),
            access,
            writer: Mutex::new(Writer {
                tree,
                version: 1,
                shares: HashMap::new(),
                directory: HashMap::new(),
                remote: RemoteWriter::default(),
                announced: Arc::clone(&announced),
                by_user: HashMap::new(),
            }),
            ids: AtomicU64::new(1),
            announced,
            share_pick: SharePick::LeastInFlight,
        }
    }

    /// The same with another rule for members of shared subscriptions.
    #[must_use]
    pub fn picking(self, share_pick: SharePick) -> Self {
        Self { share_pick, ..self }
    }

    /// A handle for one reader thread.
    #[must_use]
    pub fn reader(&self) -> SnapshotCache {
        SnapshotCache::new(Arc::clone(&self.current))
    }

    /// The handle of a session: the existing one for this inbox, or a new one.
    pub fn open(&self, key: &Key, user: Option<&Arc<str>>, inbox: Option<(GroupId, u64)>) -> Arc<Subscriber> {
        match inbox {
            None => Arc::new(Subscriber::new(self.next_id(), key.clone(), user.cloned(), None)),
            Some(inbox) => self.open_durable(&mut self.writer.lock(), key, user, inbox),
        }
    }

    /// The handle of the durable session with this inbox, if it has one.
    #[must_use]
    pub fn find(&self, group: GroupId, lifetime: u64) -> Option<Arc<Subscriber>> {
        self.writer.lock().directory.get(&(group, lifetime)).cloned()
    }

    /// The client of a session came with these rules; later publishes on this node see them.
    pub fn set_brought(&self, subscriber: &Subscriber, rules: Option<Arc<ClientRules>>) {
        if subscriber.set_brought(rules) && subscriber.subscription_count() > 0 {
            self.publish(&mut self.writer.lock());
        }
    }

    /// The session is connected from now on.
    pub fn attach(&self, subscriber: &Subscriber, link: LinkId) {
        subscriber.set_live(link);
        if subscriber.inbox.is_some() && self.announced.is_active() {
            self.writer.lock().announce(subscriber);
        }
    }

    /// The connection at `link` is gone; does nothing when another one attached since.
    pub fn detach(&self, subscriber: &Subscriber, link: LinkId) {
        subscriber.clear_live(link);
        if subscriber.announced.load(Ordering::Relaxed) {
            self.writer.lock().conceal(subscriber);
        }
    }

    /// Other nodes are to be told of the subscriptions of this one from now on; what they are told.
    pub fn announce(&self) -> Arc<Announced> {
        let writer = self.writer.lock();
        self.announced.activate();
        for subscriber in writer.directory.values() {
            writer.announce(subscriber);
        }
        Arc::clone(&self.announced)
    }

    /// Number of the last change that other nodes have to know of; every subscription that was made before is in it.
    #[must_use]
    pub fn announced(&self) -> u64 {
        self.announced.number()
    }

    /// Stored subscriptions changed with entry `index` of `group`, or before it: other nodes are told. The number of that change.
    #[must_use]
    pub fn stored_changed(&self, group: GroupId, index: u64) -> u64 {
        self.announced.stored(group, index)
    }

    /// Another node has subscribers of these filters, or has none any more; later publishes on this node see it.
    pub fn change_remote<'a>(&self, node: u64, changes: impl IntoIterator<Item = (&'a TopicFilter, bool)>) {
        let mut writer = self.writer.lock();
        for (filter, added) in changes {
            if added {
                writer.remote.add(node, filter);
            } else {
                writer.remote.remove(node, filter);
            }
        }
        self.publish(&mut writer);
    }

    /// Whether there is no other node from now on.
    pub fn set_alone(&self, is_alone: bool) {
        let mut writer = self.writer.lock();
        writer.remote.set_has_nodes(!is_alone);
        self.publish(&mut writer);
    }

    /// The other nodes that get every message from now on, because it is not known for certain what they have subscribers of.
    pub fn send_everything(&self, nodes: &[u64]) {
        let mut writer = self.writer.lock();
        writer.remote.set_everything(nodes);
        self.publish(&mut writer);
    }

    /// Adds or replaces subscriptions; when it returns, every later publish on this node sees them. For each filter
    /// whether it is new.
    pub fn subscribe(
        &self,
        subscriber: &Arc<Subscriber>,
        filters: &[(TopicFilter, SubscriptionOptions)],
    ) -> SmallVec<[bool; 4]> {
        let mut writer = self.writer.lock();
        let new = filters
            .iter()
            .map(|(filter, options)| self.add(&mut writer, subscriber, filter, *options))
            .collect();
        self.publish(&mut writer);
        new
    }

    /// Removes subscriptions; when it returns, no later publish on this node sees them. For each filter whether it
    /// existed.
    pub fn unsubscribe(&self, subscriber: &Arc<Subscriber>, filters: &[TopicFilter]) -> SmallVec<[bool; 4]> {
        let mut writer = self.writer.lock();
        let existed: SmallVec<[bool; 4]> =
            filters.iter().map(|filter| writer.remove(subscriber, filter)).collect();
        if existed.contains(&true) {
            self.publish(&mut writer);
        }
        existed
    }

    /// The lifetime is over: all its subscriptions and its handle go.
    pub fn forget(&self, subscriber: &Arc<Subscriber>) {
        if subscriber.inbox.is_none() && subscriber.subscription_count() == 0 {
            return;
        }
        let mut writer = self.writer.lock();
        self.forget_locked(&mut writer, subscriber);
    }

    /// The same for a durable lifetime that is known by its inbox only (expired, ended, replaced).
    pub fn forget_inbox(&self, group: GroupId, lifetime: u64) {
        let mut writer = self.writer.lock();
        if let Some(subscriber) = writer.directory.get(&(group, lifetime)).cloned() {
            self.forget_locked(&mut writer, &subscriber);
        }
    }

    /// Durable lifetimes of a group that have a handle here.
    #[must_use]
    pub fn lifetimes(&self, group: GroupId) -> Vec<u64> {
        let writer = self.writer.lock();
        writer.directory.keys().filter(|(of, _)| *of == group).map(|(_, lifetime)| *lifetime).collect()
    }

    /// Makes the subscriptions of durable lifetimes what `stored` says, under one new version of the index; `None`: the lifetime is over.
    /// What is stored is read under the writer's lock: a change that a connection here makes meanwhile comes after it.
    pub fn follow(&self, inboxes: &[(GroupId, u64)], stored: impl Fn(GroupId, u64) -> Option<Followed>) {
        let mut writer = self.writer.lock();
        for (group, lifetime) in inboxes {
            let Some(Followed { session, owned_here }) = stored(*group, *lifetime) else {
                if let Some(subscriber) = writer.directory.get(&(*group, *lifetime)).cloned() {
                    self.forget_locked(&mut writer, &subscriber);
                }
                continue;
            };
            let subscriber =
                self.open_durable(&mut writer, &session.key, session.user.as_ref(), session.inbox);
            let known = subscriber.filters.lock().clone();
            let mut wanted: Vec<&TopicFilter> = session.filters.iter().map(|(filter, _)| filter).collect();
            wanted.sort_unstable();
            for filter in known.iter().filter(|filter| wanted.binary_search(filter).is_err()) {
                writer.remove(&subscriber, filter);
            }
            for (filter, options) in &session.filters {
                // The worker of a connection here keeps the options of what it subscribed itself.
                if !(owned_here && known.binary_search(filter).is_ok()) {
                    self.add(&mut writer, &subscriber, filter, *options);
                }
            }
        }
        self.publish(&mut writer);
    }

    /// Takes stored subscriptions back at start, under one new version of the index.
    pub fn restore(&self, sessions: impl IntoIterator<Item = Restored>) {
        let mut writer = self.writer.lock();
        for session in sessions {
            let subscriber =
                self.open_durable(&mut writer, &session.key, session.user.as_ref(), session.inbox);
            for (filter, options) in &session.filters {
                self.add(&mut writer, &subscriber, filter, *options);
            }
        }
        self.publish(&mut writer);
    }

    /// Number of subscriptions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.current.load().tree.len()
    }

    /// Subscriptions of a user (`None`: of everybody who is anonymous): of durable sessions, and of connections of this node.
    #[must_use]
    pub fn len_of(&self, user: Option<&Arc<str>>) -> u64 {
        self.writer.lock().by_user.get(&user.cloned()).copied().unwrap_or(0)
    }

    /// Whether nobody subscribes to anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Who gets `message`, for a caller that is no worker; `stamp`: see [`Outgoing::stamp`].
    #[must_use]
    pub fn route(
        &self,
        message: &Message,
        publisher: PartyId,
        queue_qos0_offline: bool,
        stamp: Option<u64>,
    ) -> Route {
        let snapshot = self.current.load();
        let plan = Plan::resolve(&snapshot, message.topic(), None, &self.readers());
        let outgoing =
            Outgoing { qos: message.qos, retain: message.retain, publisher, queue_qos0_offline, stamp };
        let mut route = Route::default();
        route.matched = select(&plan, &outgoing, &mut route);
        self.serve_left(&mut route, message.topic(), &outgoing);
        route
    }

    /// The next member of a shared subscription that takes `message`, after others that could not; [`Route::unserved`], when there is no
    /// other one that may. `stamp`: see [`Outgoing::stamp`].
    #[must_use]
    pub fn route_shared(&self, left: &Left, message: &Message, stamp: Option<u64>) -> Route {
        let (qos, retain) = (message.qos, message.retain);
        let outgoing =
            Outgoing { qos, retain, publisher: PartyId::default(), queue_qos0_offline: false, stamp };
        let mut route = Route { left: vec![left.clone()], ..Route::default() };
        self.serve_left(&mut route, message.topic(), &outgoing);
        route.matched = route.unserved.is_empty();
        route
    }

    /// Looks for other members where the chosen one is not there.
    fn serve_left(&self, route: &mut Route, topic: &str, message: &Outgoing) {
        while let Some(left) = route.left.pop() {
            route.tried = left.tried.clone();
            if !self.select_shared(&left, topic, message, route) {
                route.unserved.push(left);
            }
        }
        route.tried = Tried::default();
    }

    /// The same into `sink`; whether somebody gets it.
    pub fn select_shared(&self, left: &Left, topic: &str, message: &Outgoing, sink: &mut impl Sink) -> bool {
        if left.tried.is_over() {
            return false;
        }
        let (group, nodes, has_nodes) = {
            let writer = self.writer.lock();
            let (group, nodes) = (writer.shares.get(&left.filter), writer.remote.share(&left.filter));
            (group.cloned(), nodes.cloned(), writer.remote.has_nodes())
        };
        let readers = self.readers();
        let group = group
            .and_then(|group| group.readable(&readers, topic))
            .and_then(|group| group.except(&left.tried));
        select_share(&Share { group, nodes, has_nodes }, left.tried.nodes(), message, sink)
    }

    /// The members of the share with this whole filter.
    pub(super) fn share(&self, filter: &str) -> Option<Arc<ShareGroup>> {
        self.writer.lock().shares.get(filter).cloned()
    }

    /// What says which subscribers may be sent a message. Take it anew when the epoch of the rules moved.
    #[must_use]
    pub fn readers(&self) -> Readers {
        Readers::new(&self.access)
    }

    fn next_id(&self) -> PartyId {
        PartyId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn open_durable(
        &self,
        writer: &mut Writer,
        key: &Key,
        user: Option<&Arc<str>>,
        inbox: (GroupId, u64),
    ) -> Arc<Subscriber> {
        let new = || Arc::new(Subscriber::new(self.next_id(), key.clone(), user.cloned(), Some(inbox)));
        Arc::clone(writer.directory.entry(inbox).or_insert_with(new))
    }

    fn add(
        &self,
        writer: &mut Writer,
        subscriber: &Arc<Subscriber>,
        filter: &TopicFilter,
        options: SubscriptionOptions,
    ) -> bool {
        let member = Member { subscriber: Arc::clone(subscriber), options };
        let sub = if filter.share().is_some() {
            let group = match writer.shares.get(&filter.full) {
                Some(group) => group.with(member),
                None => ShareGroup {
                    id: self.next_id(),
                    filter: Arc::clone(&filter.full),
                    members: Box::new([member]),
                    turn: Arc::new(AtomicUsize::new(0)),
                    picks: self.share_pick,
                },
            };
            let group = Arc::new(group);
            writer.shares.insert(Arc::clone(&filter.full), Arc::clone(&group));
            Sub::Share(group)
        } else {
            Sub::One(member)
        };
        writer.tree.insert(filter.pattern(), sub);
        let mut filters = subscriber.filters.lock();
        match filters.binary_search(filter) {
            Ok(_) => false,
            Err(at) => {
                filters.insert(at, filter.clone());
                *writer.by_user.entry(subscriber.user.clone()).or_insert(0) += 1;
                if subscriber.announces(filter) {
                    self.announced.hold(&filter.full);
                }
                true
            }
        }
    }

    fn forget_locked(&self, writer: &mut Writer, subscriber: &Arc<Subscriber>) {
        if let Some(inbox) = subscriber.inbox {
            writer.directory.remove(&inbox);
        }
        let filters = std::mem::take(&mut *subscriber.filters.lock());
        if filters.is_empty() {
            return;
        }
        for filter in &filters {
            writer.take_out(subscriber, filter);
        }
        subscriber.announced.store(false, Ordering::Relaxed);
        self.publish(writer);
    }

    fn publish(&self, writer: &mut Writer) {
        writer.version += 1;
        let (version, tree, remote) = (writer.version, writer.tree.clone(), writer.remote.version());
        self.current.store(Arc::new(Snapshot { version, tree, remote }));
    }
}

impl Writer {
    fn remove(&mut self, subscriber: &Arc<Subscriber>, filter: &TopicFilter) -> bool {
        {
            let mut filters = subscriber.filters.lock();
            let Ok(at) = filters.binary_search(filter) else { return false };
            filters.remove(at);
        }
        self.take_out(subscriber, filter);
        true
    }

    /// Tells other nodes of the filters of a session with an inbox that is connected here.
    fn announce(&self, subscriber: &Subscriber) {
        if !subscriber.is_live() || subscriber.announced.swap(true, Ordering::Relaxed) {
            return;
        }
        let filters = subscriber.filters.lock();
        filters
            .iter()
            .filter(|filter| filter.share().is_none())
            .for_each(|filter| self.announced.hold(&filter.full));
    }

    /// It is connected here no more, unless it is again.
    fn conceal(&self, subscriber: &Subscriber) {
        if subscriber.is_live() || !subscriber.announced.swap(false, Ordering::Relaxed) {
            return;
        }
        let filters = subscriber.filters.lock();
        filters
            .iter()
            .filter(|filter| filter.share().is_none())
            .for_each(|filter| self.announced.release(&filter.full));
    }

    fn take_out(&mut self, subscriber: &Arc<Subscriber>, filter: &TopicFilter) {
        if let Some(count) = self.by_user.get_mut(&subscriber.user) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(&subscriber.user);
            }
        }
        if subscriber.announces(filter) {
            self.announced.release(&filter.full);
        }
        if filter.share().is_none() {
            self.tree.remove(filter.pattern(), subscriber.id());
            return;
        }
        let Some(group) = self.shares.get(&filter.full) else { return };
        let rest = Arc::new(group.without(subscriber.id()));
        if rest.members.is_empty() {
            self.tree.remove(filter.pattern(), rest.id);
            self.shares.remove(&filter.full);
        } else {
            self.shares.insert(Arc::clone(&filter.full), Arc::clone(&rest));
            self.tree.insert(filter.pattern(), Sub::Share(rest));
        }
    }
}

impl Sink for Route {
    fn live(&mut self, link: LinkId, shape: Shape<'_>) {
        self.live.push(LiveTarget {
            link,
            qos: shape.qos,
            retain: shape.retain,
            identifiers: SmallVec::from_slice(shape.identifiers),
            share: shape.share.cloned(),
            tried: (self.tried != Tried::default()).then(|| Box::new(self.tried.clone())),
        });
    }

    fn remote(&mut self, worker: u16) {
        self.workers.push(worker);
    }

    fn node(&mut self, node: u64, share: Option<&Arc<str>>) {
        self.nodes.push((node, share.cloned()));
    }

    fn nobody(&mut self, share: &Arc<str>, member: Option<PartyId>) {
        let mut tried = self.tried.clone();
        member.into_iter().for_each(|member| tried.add_member(member));
        self.left.push(Left { filter: Arc::clone(share), tried });
    }

    fn durable(&mut self, group: GroupId, target: Target, share: Option<&Arc<str>>) {
        if let Some(filter) = share {
            self.shared.push(SharedTarget { group, target, filter: Arc::clone(filter) });
            return;
        }
        match self.durable.iter_mut().find(|(other, _)| *other == group) {
            Some((_, targets)) => targets.push(target),
            None => self.durable.push((group, vec![target])),
        }
    }
}
