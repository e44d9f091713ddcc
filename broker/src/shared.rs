//! What every part of one running node shares; made once by `node`, handed around as `Arc<Shared>`.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use gateway::codec::ReasonCode;
use gateway::listener::Door;
use hashbrown::HashMap;
use parking_lot::Mutex;
use session::id::{Key, Owner};
use session::lease::LeaseStat;
use session::lifecycle::{
    EndReason, Group, GroupStat, SessionRow, SessionState, UserStat, WillKey, WillStage,
};
use session::queue::SpaceStat;
use session::time::Tick;
use storage::lease::HoldStat;
use storage::{EventPort, GroupId, StorageError};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::admin::end_reason_word;
use crate::auth::{Authority, ClientRules};
use crate::clock::NodeClock;
use crate::cluster::{self, PeerCalls};
use crate::config::LeaseHome;
use crate::events::{Event, EventKind, Feed};
use crate::forward::{FollowFuture, Forwarding, StoredRoutes};
use crate::metrics::{ControlRecorder, Metrics, SlowLabel, TakeoverOutcome};
use crate::overload::Load;
use crate::owners::Owners;
use crate::route::{Router, Subscriber};
use crate::slow::SlowLog;
use crate::trace::Tracer;
use crate::usecase::authority::{Authority as _, StoreAuthority};
use crate::usecase::connect::{ConnectCase, Takeovers};
use crate::usecase::disconnect::{Disconnects, IntentClaim, LifetimeOver};
use crate::usecase::end::{Call, EndCase, EndError};
use crate::usecase::hold::{LeaseState, NodeHold, NodeLease};
use crate::usecase::isolation::{ClusterIsolation, Timed};
use crate::usecase::queue::ConnectQueue;
use crate::usecase::quota::FullInboxes;
use crate::usecase::reclaim::Reclaimer;
use crate::usecase::will::{EarlierWills, WillExecutor};
use crate::usecase::{ConnectError, ConnectInput, Connected, EndInput};
use crate::users::Users;
use crate::worker::{self, Workers};

/// Lifetimes whose subscriptions are taken over under one version of the routing index.
const FOLLOW_PAGE: usize = 256;
/// How long an End waits for messages that are on their way to other nodes: what a node that cannot be reached is given.
const PUBLISHED_MAX: Duration = Duration::from_secs(2);
/// How often and at which distance an End is tried again when the end of the connection was recorded at the same time.
const END_ATTEMPTS: usize = 3;
const END_PAUSE: Duration = Duration::from_millis(10);

/// The node. Fields are immutable handles; each guards its own state.
#[derive(Debug)]
pub struct Shared {
    pub boot: session::id::Boot,
    pub clock: Arc<NodeClock>,
    pub store: storage::Store,
    /// Channels in that store, for programs in this process; its keeper ends and reclaims them.
    pub queues: storage::queue::QueueStore,
    /// The lease of the node in etcd, where the configuration wants one.
    pub hold: Option<Arc<NodeHold>>,
    pub owners: Arc<Owners>,
    pub router: Arc<Router>,
    /// Live subscribers on other nodes.
    pub forwarding: Arc<Forwarding>,
    pub auth: Arc<Authority>,
    pub metrics: Arc<Metrics>,
    /// What happens, for those who watch.
    pub events: Arc<Feed>,
    pub slow: Arc<SlowLog>,
    pub tracer: Tracer,
    /// The data plane, from any thread.
    pub workers: Arc<Workers>,
    /// What the configuration says about sessions.
    pub options: Arc<worker::Options>,
    /// How loaded this node is.
    pub load: Arc<Load>,
    /// What each user has here.
    pub users: Arc<Users>,
    pub disconnects: Arc<Disconnects>,
    pub connects: ConnectQueue,
    /// The executor of Wills; it publishes through this node, so it comes last and is not kept alive from here.
    pub wills: OnceLock<Weak<WillExecutor>>,
    pub isolation: ClusterIsolation,
    /// The other nodes of the cluster.
    pub peers: Arc<dyn PeerCalls>,
    /// `owner.lease` in milliseconds.
    pub lease_ms: u64,
    /// Where the clients of a listener may go, once this node stops and another one said it.
    pub references: OnceLock<HashMap<Arc<str>, Arc<str>>>,
    /// What the listeners have in common, once there are any.
    pub door: OnceLock<Arc<Door>>,
    /// Reclamation; it hands messages on through this node, so it comes last and is not kept alive from here.
    pub reclaimer: OnceLock<Weak<Reclaimer>>,
}

/// Totals of the queue layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queued {
    pub space: SpaceStat,
    /// In the replicated tables.
    pub leases: LeaseStat,
    /// Held by this process.
    pub holds: HoldStat,
    /// Under which it serves.
    pub node: NodeLease,
}

/// Takes ended lifetimes out of the routing: at once for a use case that saw the end, and all of them from the store's news, whoever
/// ended them and whatever became of the call.
#[derive(Debug)]
pub struct ForgetLifetimes {
    pub boot: session::id::Boot,
    pub store: storage::Store,
    pub router: Arc<Router>,
    news: EndedNews,
    /// Held from taking the news until the routing has them: who finds none knows that it has.
    following: Mutex<()>,
}

/// Ended lifetimes that the store reported and that are not forgotten yet; bounded by the durable sessions.
#[derive(Debug, Default)]
pub struct EndedNews(Arc<EndedQueue>);

#[derive(Debug, Default)]
struct EndedQueue {
    ended: Mutex<Vec<(GroupId, u64)>>,
    /// Lifetimes whose stored subscriptions changed; only where other nodes change them too.
    subscribed: Mutex<Vec<(GroupId, u64)>>,
    /// Groups whose whole state was replaced.
    replaced: Mutex<Vec<GroupId>>,
    follows: bool,
    wake: Notify,
    full: Arc<FullInboxes>,
}

impl EventPort for EndedQueue {
    fn changed(&self, group: GroupId, ended: Vec<u64>, _wills: Vec<(WillKey, WillStage)>) {
        if !ended.is_empty() {
            self.ended.lock().extend(ended.into_iter().map(|lifetime| (group, lifetime)));
            self.wake.notify_one();
        }
    }

    fn over_quota(&self, group: GroupId, lifetimes: Vec<u64>) {
        self.full.report(group, lifetimes);
    }

    fn subscribed(&self, group: GroupId, lifetimes: Vec<u64>) {
        if self.follows && !lifetimes.is_empty() {
            self.subscribed.lock().extend(lifetimes.into_iter().map(|lifetime| (group, lifetime)));
            self.wake.notify_one();
        }
    }

    fn replaced(&self, group: GroupId) {
        self.replaced.lock().push(group);
        self.wake.notify_one();
    }
}

impl EndedNews {
    /// Where sessions are reported whose inbox is full, for their End.
    #[must_use]
    pub fn full_inboxes(&self) -> Arc<FullInboxes> {
        self.0.full.clone()
    }

    /// Collects the news of `store` from now on; `follows`: other nodes change subscriptions too. Begin before the routes are restored, so that none is missed.
    #[must_use]
    pub fn of(store: &storage::Store, follows: bool) -> Self {
        let queue = Arc::new(EndedQueue { follows, ..EndedQueue::default() });
        store.watch(&(queue.clone() as Arc<dyn EventPort>));
        Self(queue)
    }
}

impl ForgetLifetimes {
    #[must_use]
    pub fn new(boot: session::id::Boot, store: storage::Store, router: Arc<Router>, news: EndedNews) -> Self {
        Self { boot, store, router, news, following: Mutex::new(()) }
    }

    /// Takes over the subscriptions that other nodes stored.
    fn follow(&self) {
        let _one = self.following.lock();
        let mut changed = std::mem::take(&mut *self.news.0.subscribed.lock());
        for group in std::mem::take(&mut *self.news.0.replaced.lock()) {
            let stored = crate::node::durable_lifetimes(&self.store, group);
            let all = stored.into_iter().chain(self.router.lifetimes(group));
            changed.extend(all.map(|lifetime| (group, lifetime)));
        }
        changed.sort_unstable();
        changed.dedup();
        for page in changed.chunks(FOLLOW_PAGE) {
            self.router.follow(page, |group, lifetime| {
                crate::node::stored_routes(&self.store, &self.boot, group, lifetime)
            });
        }
    }

    /// Forgets what the store reports; the storage thread is not held up by the routing. Runs until the task is dropped.
    pub async fn run_forever(self: Arc<Self>) {
        loop {
            self.news.0.wake.notified().await;
            self.follow();
            let ended = std::mem::take(&mut *self.news.0.ended.lock());
            for (group, lifetime) in ended {
                self.router.forget_inbox(group, lifetime);
            }
        }
    }
}

impl StoredRoutes for ForgetLifetimes {
    fn is_alone(&self) -> bool {
        self.store.is_alone()
    }

    fn all(self: Arc<Self>) -> FollowFuture {
        Box::pin(async move {
            let mut rounds = JoinSet::new();
            for group in (0..self.store.groups()).map(GroupId) {
                let store = self.store.clone();
                rounds.spawn(async move { store.barrier(group).await });
            }
            while let Some(round) = rounds.join_next().await {
                round.map_err(|error| Arc::new(StorageError::Unavailable(error.to_string())))??;
            }
            self.follow();
            Ok(())
        })
    }

    fn through(self: Arc<Self>, entries: Vec<(GroupId, u64)>) -> FollowFuture {
        Box::pin(async move {
            for (group, index) in entries {
                self.store.applied_through(group, index).await?;
            }
            self.follow();
            Ok(())
        })
    }
}

impl LifetimeOver for ForgetLifetimes {
    fn lifetime_over(&self, key: &Key, lifetime: u64) {
        self.router.forget_inbox(self.store.group_of(key), lifetime);
    }
}

impl LifetimeOver for Shared {
    fn lifetime_over(&self, key: &Key, lifetime: u64) {
        self.router.forget_inbox(self.store.group_of(key), lifetime);
    }
}

impl Shared {
    /// Totals of the stored state over all groups.
    #[must_use]
    pub fn stored(&self) -> GroupStat {
        (0..self.store.groups()).map(|group| self.store.read(GroupId(group), Group::stat)).sum()
    }

    /// What a user has in the store, over all groups, as far as this node has applied.
    #[must_use]
    pub fn stored_of(&self, user: Option<&Arc<str>>) -> UserStat {
        (0..self.store.groups()).map(|group| self.store.read(GroupId(group), |rows| rows.user(user))).sum()
    }

    /// Whether a client has a session of this user that did not end.
    #[must_use]
    pub fn has_session(&self, key: &Key, user: Option<&Arc<str>>) -> bool {
        let is_its =
            |row: &SessionRow| row.uid.as_ref() == user && !matches!(row.state, SessionState::Ended { .. });
        self.store.read(self.store.group_of(key), |rows| rows.session(key).is_some_and(is_its))
    }

    /// Totals of the queue layer over all groups.
    #[must_use]
    pub fn queued(&self) -> Queued {
        let (holds, node) = (self.queues.leases().stat(), self.node_lease());
        let mut queued = Queued { holds, node, ..Queued::default() };
        for group in (0..self.store.groups()).map(GroupId) {
            let of_group = |rows: &Group| (rows.space().stat(), rows.space().leases().stat());
            let (space, leases) = self.store.read(group, of_group);
            (queued.space, queued.leases) = (queued.space + space, queued.leases + leases);
        }
        queued
    }

    /// How the lease stands under which this node serves: the worse of the two where there is one in etcd.
    #[must_use]
    pub fn node_lease(&self) -> NodeLease {
        let left_ms = self.owners.boot_lease_until().ms_since(self.clock.tick());
        let boot = match left_ms {
            0 => LeaseState::Lost,
            // It is renewed every third: one went without an answer.
            left_ms if left_ms < self.lease_ms / 2 => LeaseState::AtRisk,
            _ => LeaseState::Held,
        };
        match &self.hold {
            Some(hold) => NodeLease { home: LeaseHome::Etcd, state: boot.max(hold.standing()) },
            None => NodeLease { home: LeaseHome::Embedded, state: boot },
        }
    }

    /// Whether an operator denied the user or the ClientID, as far as this node has applied.
    #[must_use]
    pub fn denies(&self, key: &Key, user: Option<&Arc<str>>) -> bool {
        let now = self.clock.millis();
        self.store.read(self.store.group_of(key), |rows| rows.denies(key, user, now))
    }

    /// The routing handle of a connected session, and the QoS 2 ids that its lifetime received. A lifetime that ended meanwhile, whatever
    /// ended it, gets a handle that the routing does not know: nobody would forget it again.
    #[must_use]
    pub fn open_subscriber(
        &self,
        key: &Key,
        (user, rules): (Option<&Arc<str>>, Option<Arc<ClientRules>>),
        inbox: Option<(GroupId, u64)>,
    ) -> (Arc<Subscriber>, Vec<u16>) {
        let subscriber = self.router.open(key, user, inbox);
        self.router.set_brought(&subscriber, rules);
        let Some((group, lifetime)) = inbox else { return (subscriber, Vec::new()) };
        // After the opening: an end that is not seen here is told to the routing later.
        let (lives, received) =
            self.store.read(group, |rows| (rows.inbox(lifetime).is_some(), rows.received(lifetime)));
        if !lives {
            self.router.forget_inbox(group, lifetime);
        }
        (subscriber, received)
    }

    /// The CONNECT use case for an authenticated CONNECT; `recheck` authorises it a second time after the isolation.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(
        &self,
        input: &ConnectInput,
        recheck: &impl Fn() -> bool,
    ) -> Result<Connected, ConnectError> {
        let alone = self.store.is_alone() && self.hold.is_none();
        if self.owners.lease_until() <= self.clock.tick() && !alone {
            // No majority took the lease, or etcd did not: nobody could be served, and nothing is disturbed for it.
            return Err(ConnectError::Unavailable);
        }
        let authority = StoreAuthority(self.store.clone());
        let wills = self.wills.get().and_then(Weak::upgrade);
        let recorder = self.metrics.control();
        let isolation = Timed { isolation: &self.isolation, clock: &self.clock, recorder: &recorder };
        let case = ConnectCase {
            boot: &self.boot,
            clock: &self.clock,
            owners: &self.owners,
            disconnects: &self.disconnects,
            queue: &self.connects,
            authority: &authority,
            isolation: &isolation,
            over: self,
            wills: wills.as_ref().map(|wills| wills as &dyn EarlierWills),
            lease_ms: self.lease_ms,
            takeovers: Some(&WatchedTakeovers { shared: self, input, recorder: &recorder }),
        };
        case.run(input, recheck).await
    }

    /// The End use case (owner spec §8): ends exactly `input.owner`, tells its client why, and, with `release`, frees the ClientID.
    ///
    /// # Errors
    /// See [`EndError`]; repeating the call is always safe.
    pub async fn end(&self, input: &EndInput, deadline: Tick) -> Result<SessionRow, EndError> {
        let row = match self.end_there(input, deadline).await {
            Some(outcome) => outcome?,
            None => self.end_from_here(input, deadline).await?,
        };
        if row.durable {
            self.lifetime_over(&row.owner.key, row.lifetime);
        }
        self.published(deadline).await;
        self.tell_end(input, &row);
        if input.release {
            let reclaimer = self.reclaimer.get().and_then(Weak::upgrade).ok_or(EndError::Unavailable)?;
            reclaimer.release(&input.owner.key).await.map_err(|_| EndError::Unavailable)?;
        }
        Ok(row)
    }

    /// Waits until what connections of this node published before, with QoS 0 too, is in the outboxes of all workers and nodes that it is for: P3,
    /// nothing of an ended session arrives behind what is published after its End. A node that hangs is not waited for longer than
    /// messages wait for it.
    async fn published(&self, deadline: Tick) {
        let reach = async {
            self.workers.read().await;
            self.forwarding.drained().await;
        };
        let within = self.clock.until(deadline).min(PUBLISHED_MAX);
        if tokio::time::timeout(within, reach).await.is_err() {
            tracing::warn!("a session is ended; a node that hangs may still have messages of it to come");
        }
    }

    fn tell_end(&self, input: &EndInput, row: &SessionRow) {
        let SessionState::Ended { reason } = row.state else { return };
        let event = Event::of(EventKind::End, &input.owner.key, row.uid.as_ref()).node(input.owner.node_id);
        self.events.push(event.detail(end_reason_word(reason)));
    }

    /// The node of the owner does it, if it is another one and can.
    async fn end_there(&self, input: &EndInput, deadline: Tick) -> Option<Result<SessionRow, EndError>> {
        if input.owner.node_id == self.boot.node_id {
            return None;
        }
        let until = tokio::time::Instant::now() + self.clock.until(deadline);
        let outcome = cluster::end::ask(&*self.peers, input, until).await?;
        // What follows reads the state of this node.
        match StoreAuthority(self.store.clone()).read(&input.owner.key).await {
            Ok(_) => Some(outcome.map(|row| *row)),
            Err(_) => Some(Err(EndError::Unavailable)),
        }
    }

    async fn end_from_here(&self, input: &EndInput, deadline: Tick) -> Result<SessionRow, EndError> {
        let known = || vec![("client_id", input.owner.key.client_id.to_string())];
        self.tracer.root("End", known, self.end_in_steps(input, deadline)).await
    }

    async fn end_in_steps(&self, input: &EndInput, deadline: Tick) -> Result<SessionRow, EndError> {
        let authority = StoreAuthority(self.store.clone());
        let own = Some((&self.boot, self.owners.lease_until()));
        let recorder = self.metrics.control();
        let isolation = Timed { isolation: &self.isolation, clock: &self.clock, recorder: &recorder };
        let case = EndCase { authority: &authority, isolation: &isolation, clock: &*self.clock, own };
        let cancelled = AtomicBool::new(false);
        let call = Call { deadline, cancelled: &cancelled };
        let mut attempts = 0;
        loop {
            let claim = self.claim_end(input);
            // Without a report everything may have been written: a QoS 2 message of a share is then nobody else's ([MQTT-4.8.2-5]).
            let sent_through =
                || claim.as_ref().and_then(IntentClaim::held).map_or(u64::MAX, |closed| closed.sent_through);
            match case.run(&call, input, &sent_through).await {
                Ok(row) => {
                    if let Some(claim) = claim {
                        claim.replace();
                    }
                    return Ok(row);
                }
                // The end of the connection itself was recorded in between; the owner is still the same.
                Err(EndError::Conflict | EndError::Clock) if attempts < END_ATTEMPTS => {
                    attempts += 1;
                    drop(claim);
                    tokio::time::sleep(END_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes over what becomes of the connection's end, and leaves the notice for its client, when `input` names the current owner.
    fn claim_end(&self, input: &EndInput) -> Option<IntentClaim> {
        let notice = match input.reason {
            EndReason::Quota => ReasonCode::QuotaExceeded,
            _ => ReasonCode::AdministrativeAction,
        };
        self.claim_if_current(&input.owner, notice)
    }

    /// The same for an owner that somebody else, maybe another node, is about to stop.
    pub(crate) fn claim_if_current(&self, owner: &Owner, notice: ReasonCode) -> Option<IntentClaim> {
        let group = self.store.group_of(&owner.key);
        let current =
            self.store.read(group, |rows| rows.session(&owner.key).is_some_and(|row| row.owner == *owner));
        if !current || owner.node_id != self.boot.node_id || owner.boot_id != self.boot.boot_id {
            return None;
        }
        self.owners.notice(owner, notice);
        self.disconnects.claim(owner)
    }
}

/// Counts the takeover that a CONNECT is, tells those who watch, and logs it when it was slow.
#[derive(Debug)]
struct WatchedTakeovers<'a> {
    shared: &'a Shared,
    input: &'a ConnectInput,
    recorder: &'a ControlRecorder,
}

impl Takeovers for WatchedTakeovers<'_> {
    fn took(&self, met: &Owner, outcome: TakeoverOutcome, elapsed_ns: u64) {
        self.recorder.takeover(outcome, elapsed_ns);
        let key = &self.input.key;
        let event = Event::of(EventKind::Takeover, key, self.input.uid.as_ref()).node(met.node_id);
        self.shared.events.push(event.detail(outcome.word()).took_ns(elapsed_ns));
        if let Some(line) = self.shared.slow.look(SlowLabel::Takeover, elapsed_ns) {
            tracing::warn!(
                operation = SlowLabel::Takeover.word(), took_ms = line.took_ms, outcome = outcome.word(),
                client_id = ?key.client_id, from_node = met.node_id, suppressed = line.suppressed, "slow operation"
            );
        }
    }
}
