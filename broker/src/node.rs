//! One running node: the order in which its parts start and stop (owner spec §12).
//!
//! ```text
//! start: boot id ▸ lock, receipts ▸ (lease in etcd) ▸ store ▸ boot lease ▸ earlier boots retired ▸ routes restored ▸ sweeper, deadlines, Wills
//!        ▸ workers ▸ listeners ▸ bridges
//! stop:  admin ▸ bridges ▸ listeners ▸ connections (0x8B) ▸ owners closed ▸ ends recorded ▸ receipt ▸ queues ▸ tasks ▸ boot retired by another node
//!        ▸ leadership handed over ▸ store ▸ peer links ▸ (lease in etcd) ▸ lock
//! ```
//! Every step of a stop may be cut short: whatever is missing then is repaired by the next start, as after a crash.

mod boot;
mod denials;
mod etcd;
mod listeners;
mod load;
mod monitor;
mod operator;
mod process;
mod serve;
mod telemetry;

pub(crate) use boot::{durable_lifetimes, stored_routes};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gateway::driver::{Gateway, StartError};
use gateway::listener::{ListenError, Tls};
use session::id::Boot;
use session::owner::{self, OwnerError};
use session::time::Tick;
use storage::boot::{Boots, Recovered};
use storage::lease::ClaimError;
use storage::queue::{EmbeddedStore, QueueOptions, QueueStore};
use storage::{StorageError, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub use etcd::EtcdError;
pub(crate) use etcd::etcd_options;
pub(crate) use listeners::tls;
pub use listeners::{BoundListener, LISTENERS_FILE};
pub use operator::ReloadCall;
pub use serve::{ReadConfig, serve};

use crate::admin;
use crate::auth::{AuthFileError, Authority};
use crate::bridge::{Bridges, SettingsError};
use crate::clock::NodeClock;
use crate::cluster::balance::balance_forever;
use crate::cluster::join::JoinService;
use crate::cluster::member::{PrepareError, give_up_unless_fresh, prepare};
use crate::cluster::services::{services, until_retired};
use crate::cluster::{LinkError, Links, Member, NoPeers, PeerCalls, farewell};
use crate::config::{Config, SharePick};
use crate::forward::{Forwarding, StoredRoutes};
use crate::metrics::Metrics;
use crate::overload::Load;
use crate::owners::Owners;
use crate::route::Router;
use crate::shared::{EndedNews, ForgetLifetimes, Shared};
use crate::slow::SlowLog;
use crate::trace::Tracer;
use crate::usecase::deadlines::{DeadlineCounters, Deadlines};
use crate::usecase::disconnect::Disconnects;
use crate::usecase::hold::NodeHold;
use crate::usecase::isolation::{ClusterIsolation, LocalIsolation};
use crate::usecase::lease::{BootLease, LeaseError};
use crate::usecase::queue::ConnectQueue;
use crate::usecase::rebind::Rebinder;
use crate::usecase::reclaim::{Reclaimer, Retention};
use crate::usecase::retire::Retirer;
use crate::usecase::will::WillExecutor;
use crate::users::{UserLimits, Users};
use crate::worker::{self, Worker, Workers};

/// Why a node does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Storage(#[from] StorageError),
    #[error("the store does not answer: {0}")]
    Proposal(Arc<StorageError>),
    #[error("the store failed: {0}")]
    StoreFailed(Arc<StorageError>),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("the system gives no random numbers")]
    Randomness,
    #[error("the owner registry refuses its configuration: {0}; check owner.*")]
    Owners(#[from] OwnerError),
    #[error("{0}")]
    Lease(#[from] LeaseError),
    #[error("queue.leases: {0}")]
    Etcd(#[from] EtcdError),
    #[error("{0}")]
    Claim(#[from] ClaimError),
    #[error("{0}")]
    Cluster(#[from] PrepareError),
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("an earlier boot of this node could not be retired; the log says why")]
    Retire,
    #[error("listener {listener}: {what}")]
    Tls { listener: Arc<str>, what: String },
    #[error("listener {listener}: {source}")]
    Listen { listener: Arc<str>, source: ListenError },
    #[error("{0}")]
    Auth(#[from] AuthFileError),
    #[error("{0}")]
    Bridge(#[from] SettingsError),
    #[error("{0}")]
    Admin(#[from] admin::StartError),
    #[error("{0}")]
    Workers(#[from] StartError),
    #[error("the control runtime could not be made: {0}")]
    Runtime(std::io::Error),
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
}

/// How a stop went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Everything ended in order; a receipt proves it.
    Graceful,
    /// Something did not end in time: the next start treats this boot as crashed.
    Unproved,
}

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    gateway: Gateway<Worker>,
    boots: Arc<Boots>,
    tasks: Vec<JoinHandle<()>>,
    lease: JoinHandle<LeaseError>,
    /// Holds the lease in etcd; without one it waits for ever.
    hold: JoinHandle<ClaimError>,
    listeners: Vec<BoundListener>,
    /// Certificates and keys of the listeners that have some.
    tls: Vec<(Arc<str>, Tls)>,
    deadlines: Arc<Deadlines>,
    admin: Option<admin::Running>,
    /// `None` before clients are let in.
    bridges: Option<Arc<Bridges>>,
    member: Arc<Member>,
    /// Reloads that operators ask for; `None` once somebody takes them.
    reloads: Option<mpsc::Receiver<ReloadCall>>,
}

impl Node {
    /// Starts everything, in order; when it returns, clients are served. Must be called on the control runtime.
    ///
    /// # Errors
    /// See [`ServeError`]; nothing is left running.
    pub async fn start(config: &Config) -> Result<Self, ServeError> {
        let clock = Arc::new(NodeClock::default());
        let boot = Boot { node_id: config.node.id, boot_id: boot::new_boot_id()? };
        let data_dir = config.node.data_dir.clone();
        let node_id = boot.node_id;
        let prepared = tokio::task::spawn_blocking(move || prepare(&data_dir, node_id)).await;
        let formation = prepared.map_err(|error| StorageError::Unavailable(error.to_string()))??;
        let (boots, recovered) = Boots::recover(&config.node.data_dir, boot.node_id, &boot.boot_id)?;
        let boots = Arc::new(boots);
        let identity = storage::Identity::open(&config.node.data_dir, boot.node_id)?;
        let hold = etcd::hold(config, &boot, identity.cluster_id, &recovered, clock.millis())?;
        if let Some(hold) = &hold {
            // Before the store: nothing of a node that runs already may be started a second time.
            hold.begin().await?;
        }
        let parts = Parts { clock, boot, boots, recovered, hold: hold.clone() };
        let started = Self::open_store(config, parts, (formation, identity.cluster_id)).await;
        if let (Err(_), Some(hold)) = (&started, hold) {
            hold.release().await;
        }
        started
    }

    async fn open_store(
        config: &Config,
        parts: Parts,
        (formation, cluster_id): (storage::Formation, [u8; 16]),
    ) -> Result<Self, ServeError> {
        let (clock, boot) = (&parts.clock, &parts.boot);
        let links = Links::open(config, boot, cluster_id, clock)?;
        let options = storage::Options {
            peers: links.clone().map(|links| links as Arc<dyn storage::Peers>),
            formation,
            ..store_options(config, boot)
        };
        let store = Store::open(options, clock.clone()).await?;
        let node = Self::assemble(config, parts, (store.clone(), links)).await;
        if node.is_err()
            && let Err(error) = store.close().await
        {
            tracing::warn!(%error, "the store did not close in order");
        }
        node
    }

    async fn assemble(
        config: &Config,
        Parts { clock, boot, boots, recovered, hold }: Parts,
        (store, links): (Store, Option<Arc<Links>>),
    ) -> Result<Self, ServeError> {
        let workers = Arc::new(Workers::new(config.node.workers()));
        let owners = owners(config, &boot, (&clock, &workers), hold.is_some())?;
        let lease = boot_lease(config, &boot, (&clock, &store), &owners);
        let settle = Settle { boots: boots.clone(), recovered, config: config.clone() };
        let settled = settle.run_if_alone(&lease).await?;
        let metrics = Metrics::new(config.node.workers(), usize::from(config.cluster.groups));
        let tracer = Tracer::start(config, metrics.control());
        let auth = Arc::new(Authority::open(config, metrics.control())?);
        let router = restored_routes(&auth, &store, config.session.share_pick);
        let ended = EndedNews::of(&store, links.is_some());
        let full = ended.full_inboxes();
        let forget = Arc::new(ForgetLifetimes::new(boot.clone(), store.clone(), router.clone(), ended));
        let disconnects =
            Disconnects::new((*clock).clone(), owners.clone(), Arc::new(store.clone()), forget.clone());
        let stored = (clock.clone(), forget.clone() as Arc<dyn StoredRoutes>);
        let forwarding = Arc::new(Forwarding::new(router.clone(), workers.clone(), stored, &metrics));
        let isolation = isolation(&boot, (&owners, &disconnects), &boots, &store, (&clock, links.as_deref()));
        let queues = open_queues(&boot, &store, &clock, hold.as_deref());
        let shared = Arc::new(Shared {
            boot,
            clock,
            store,
            queues,
            hold,
            owners,
            router,
            forwarding,
            auth,
            metrics,
            events: Arc::default(),
            slow: Arc::new(SlowLog::new(config.log.slow_ms)),
            tracer,
            workers,
            options: Arc::new(worker::Options::from(config)),
            load: Arc::new(Load::new(config.node.workers(), config.limits.memory_max_bytes)),
            users: Users::new(UserLimits::from(&config.limits)),
            disconnects,
            connects: ConnectQueue::default(),
            wills: std::sync::OnceLock::new(),
            isolation,
            peers: links.clone().map_or_else(|| Arc::new(NoPeers) as _, |links| links as Arc<dyn PeerCalls>),
            lease_ms: config.owner.lease_ms,
            reclaimer: std::sync::OnceLock::new(),
            references: std::sync::OnceLock::new(),
            door: std::sync::OnceLock::new(),
        });
        let member = Arc::new(Member::new(&shared, links, &config.node.data_dir));
        let deadlines = Self::deadlines(&shared, forget.clone(), retention(config));
        let mut tasks = Self::spawn_tasks(&shared, &deadlines, config.session.share_grace_ms);
        tasks.extend([tokio::spawn(forget.run_forever()), tokio::spawn(full.end_forever(shared.clone()))]);
        let node = Self {
            lease: spawn_lease(lease, (!settled).then_some(settle)),
            hold: spawn_hold(&shared),
            gateway: Self::start_workers(&shared, config)?,
            shared,
            boots,
            tasks,
            listeners: Vec::new(),
            tls: Vec::new(),
            deadlines,
            admin: None,
            bridges: None,
            member,
            reloads: None,
        };
        node.opened(config).await
    }

    /// Lets clients and operators in, or nobody.
    async fn opened(mut self, config: &Config) -> Result<Self, ServeError> {
        if let Err(error) = self.open(config).await {
            self.stop(Duration::from_secs(1)).await;
            return Err(error);
        }
        Ok(self)
    }

    fn start_workers(shared: &Arc<Shared>, config: &Config) -> Result<Gateway<Worker>, StartError> {
        let (service, workers) = (shared.clone(), u16::try_from(config.node.workers()).unwrap_or(u16::MAX));
        let gateway = Gateway::start(workers, move |context| Worker::new(service.clone(), &context))?;
        // Set once: a node has one gateway.
        let _ = shared.door.set(gateway.door().clone());
        Ok(gateway)
    }

    /// Lets clients and operators in.
    async fn open(&mut self, config: &Config) -> Result<(), ServeError> {
        if let Some(links) = &self.member.links {
            let join = JoinService::new(
                self.shared.store.clone(),
                &config.node.data_dir,
                self.shared.boot.node_id,
                (self.shared.clock.clone(), farewell::served(config)),
            );
            let answered = self.shared.forwarding.serve(services(&self.shared, join));
            let address = links.listen(until_retired(answered, &self.shared.store)).await?;
            tracing::info!(%address, "peers are let in");
            links.follow(&self.member.members());
            self.shared.forwarding.start(links.clone());
            self.shared.forwarding.settled(ROUTES_WAIT).await;
            self.tasks.push(tokio::spawn(self.member.clone().follow_forever()));
            self.tasks.push(tokio::spawn(balance_forever(self.shared.store.clone(), links.clone())));
        }
        self.listen(config)?;
        let retirer = Arc::new(Retirer::new(&self.shared, self.member.clone(), config));
        if self.member.links.is_some() {
            self.tasks.push(tokio::spawn(retirer.clone().watch_forever()));
        }
        let bridges = Bridges::start(&self.shared, self.gateway.inlet(), config)?;
        self.bridges = Some(bridges.clone());
        let (reload, reloads) = mpsc::channel(RELOADS_MAX);
        self.reloads = Some(reloads);
        let operator = operator::Operator {
            shared: self.shared.clone(),
            member: self.member.clone(),
            started_at: self.shared.clock.millis(),
            recorder: self.shared.metrics.control(),
            retirer,
            lists: monitor::Turns::default(),
            reload,
            bridges,
        };
        self.admin = admin::start(config, Arc::new(operator), self.shared.metrics.clone()).await?;
        Ok(())
    }

    fn deadlines(shared: &Arc<Shared>, over: Arc<ForgetLifetimes>, retention: Retention) -> Arc<Deadlines> {
        let publisher = Arc::new(worker::SystemPublisher::new(shared.clone()));
        let reclaimer =
            Arc::new(Reclaimer::new(shared.store.clone(), retention, publisher.clone(), over.clone()));
        let wills =
            WillExecutor::new(shared.boot.clone(), shared.clock.clone(), shared.store.clone(), publisher);
        // Set once: a node has one of each.
        let _ = shared.wills.set(Arc::downgrade(&wills));
        let _ = shared.reclaimer.set(Arc::downgrade(&reclaimer));
        Arc::new(Deadlines {
            clock: shared.clock.clone(),
            store: shared.store.clone(),
            wills,
            over,
            reclaimer,
            counters: DeadlineCounters::default(),
            changed: tokio::sync::Notify::new(),
        })
    }

    fn spawn_tasks(
        shared: &Arc<Shared>,
        deadlines: &Arc<Deadlines>,
        share_grace_ms: u64,
    ) -> Vec<JoinHandle<()>> {
        let mut tasks = vec![
            tokio::spawn(shared.owners.clone().sweep_forever()),
            tokio::spawn(shared.disconnects.clone().run_forever()),
            tokio::spawn(deadlines.clone().watch_forever()),
            tokio::spawn(telemetry::sample_forever(shared.clone(), deadlines.clone())),
            tokio::spawn(telemetry::log_latency_forever(shared.clone())),
            tokio::spawn(load::watch_forever(shared.clone())),
        ];
        for group in (0..shared.store.groups()).map(storage::GroupId) {
            tasks.push(tokio::spawn(deadlines.clone().run_forever(group)));
        }
        tasks.extend(Self::spawn_rebinders(shared, share_grace_ms));
        tasks
    }

    fn spawn_rebinders(shared: &Arc<Shared>, grace_ms: u64) -> Vec<JoinHandle<()>> {
        let (clock, store, members) = (shared.clock.clone(), shared.store.clone(), shared.router.clone());
        let rebinder = Arc::new(Rebinder { clock, store, members, grace_ms });
        let groups = (0..shared.store.groups()).map(storage::GroupId);
        groups.map(|group| tokio::spawn(rebinder.clone().run_forever(group))).collect()
    }

    fn listen(&mut self, config: &Config) -> Result<(), ServeError> {
        for (name, listener) in &config.listeners {
            let settings = listeners::listener_config(name, listener, config)?;
            self.tls.extend(settings.tls.clone().map(|tls| (name.clone(), tls)));
            let address = self
                .gateway
                .listen(settings)
                .map_err(|source| ServeError::Listen { listener: name.clone(), source })?;
            self.listeners.push(BoundListener {
                name: name.clone(),
                protocol: listener.protocol.word().to_owned(),
                address,
            });
        }
        let text = serde_json::to_vec_pretty(&self.listeners)
            .map_err(|error| ServeError::Io { path: LISTENERS_FILE.into(), source: error.into() })?;
        listeners::write_file(&config.node.data_dir, LISTENERS_FILE, &text)
    }

    /// Reads the certificates and keys of all listeners again: connections from now on see them. One that cannot be used leaves its
    /// listener with what it has; what is wrong with each of those.
    #[must_use]
    pub fn reload_tls(&self, config: &Config) -> Vec<ServeError> {
        let reload = |(name, tls): &(Arc<str>, Tls)| {
            let listener = config.listeners.get(name)?;
            match listeners::tls(name, listener) {
                Ok(new) => {
                    tls.adopt(&new);
                    None
                }
                Err(error) => Some(error),
            }
        };
        self.tls.iter().filter_map(reload).collect()
    }

    /// The same for the certificate of the admin API.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn reload_admin_tls(&self, config: &Config) -> Result<(), ServeError> {
        Ok(self.admin.as_ref().map_or(Ok(()), |admin| admin.reload_tls(config))?)
    }

    /// From now on these tokens are good for the admin API, and no others; what of them changed.
    pub fn adopt_tokens(&self, tokens: admin::Tokens) -> Vec<&'static str> {
        self.admin.as_ref().map_or_else(Vec::new, |admin| admin.adopt(tokens))
    }

    /// Applies what changed of the bridges and the files that they name: which ones, and what is wrong with those that go on as they are.
    #[must_use]
    pub fn reload_bridges(&self, config: &Config) -> (Vec<String>, Vec<SettingsError>) {
        self.bridges.as_ref().map_or_else(Default::default, |bridges| bridges.reload(config))
    }

    /// What the parts of the node share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Where clients may connect.
    #[must_use]
    pub fn listeners(&self) -> &[BoundListener] {
        &self.listeners
    }

    /// Counters of the deadline tasks and the Will executor.
    #[must_use]
    pub fn deadline_tasks(&self) -> &Arc<Deadlines> {
        &self.deadlines
    }

    /// Address of the admin API, when there is one.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.address)
    }

    /// Address of the peer port, when there is one.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.member.links.as_ref().and_then(|links| links.address())
    }

    /// Address of the listener with this name.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<SocketAddr> {
        self.listeners.iter().find(|bound| &*bound.name == name).map(|bound| bound.address)
    }

    /// Notified when the node has to be started anew to join a cluster.
    #[must_use]
    pub fn restart_wanted(&self) -> Arc<tokio::sync::Notify> {
        self.member.restart.clone()
    }

    /// Reloads that operators ask for, for whoever can read the configuration again; once.
    pub fn take_reloads(&mut self) -> Option<mpsc::Receiver<ReloadCall>> {
        self.reloads.take()
    }

    /// Returns when the node cannot go on: the store failed, this boot was retired, or another one has the node id.
    pub async fn failed(&mut self) -> ServeError {
        tokio::select! {
            error = self.shared.store.failed() => ServeError::StoreFailed(error),
            ended = &mut self.hold => ended.map_or(ServeError::Lease(LeaseError::Unavailable), ServeError::Claim),
            ended = &mut self.lease => ServeError::Lease(ended.unwrap_or(LeaseError::Unavailable)),
        }
    }

    /// Stops everything, in order, within about `timeout`.
    pub async fn stop(self, timeout: Duration) -> Stopped {
        let Self { shared, gateway, boots, tasks, lease, hold, admin, bridges, member, .. } = self;
        if let Some(admin) = admin {
            // An operator's call that takes longer than its share is cut off with the process.
            let _ = tokio::time::timeout(timeout / 8, admin.stop()).await;
        }
        if let Some(bridges) = bridges {
            bridges.stop(timeout / 8).await;
        }
        let deadline = shared.clock.tick().plus_ms(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        if let Some(links) = &member.links {
            // Set once: a node stops once.
            let _ = shared.references.set(farewell::references(&**links).await);
        }
        let share = timeout / 4;
        let left_open = tokio::task::spawn_blocking(move || gateway.stop(share)).await.unwrap_or(usize::MAX);
        if left_open > 0 {
            tracing::warn!(left_open, "connections did not end in time");
        }
        shared.owners.stop_admission();
        shared.forwarding.stop();
        let stopped = Self::retire(&shared, &boots, deadline).await;
        Self::close_queues(&shared, timeout / 8).await;
        shared.tracer.flush().await;
        lease.abort();
        for task in &tasks {
            task.abort();
        }
        give_up_unless_fresh(&shared.store, &member.data_dir);
        if let Some(links) = &member.links
            && !shared.store.is_alone()
        {
            Self::take_leave(&shared, &**links, stopped).await;
        }
        let closed = shared.store.close().await;
        if let Some(links) = &member.links {
            links.close().await;
        }
        hold.abort();
        if let Some(hold) = &shared.hold {
            hold.release().await;
        }
        if let Err(error) = closed {
            tracing::error!(%error, "the store did not close in order; the next start recovers it");
            return Stopped::Unproved;
        }
        stopped
    }

    /// Programs in this process leave their channels; what cannot be told within `timeout` ends with its lease.
    async fn close_queues(shared: &Shared, timeout: Duration) {
        match tokio::time::timeout(timeout, shared.queues.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "queues did not close in order"),
            Err(_elapsed) => tracing::warn!("queues did not close in time"),
        }
    }

    /// Leaves nothing to the other nodes that waits for this one: its boot is over by commit, and it leads no group.
    async fn take_leave(shared: &Shared, peers: &dyn PeerCalls, stopped: Stopped) {
        if stopped == Stopped::Graceful
            && let Ok(retirement) = shared.owners.retirement()
            && !farewell::retire(peers, &shared.boot, retirement.connection_id_max).await
        {
            tracing::warn!("no other node committed the end of this boot; the next start does it");
        }
        let left = shared.store.give_up_leadership(&peers.reachable(), LEAVE_WAIT).await;
        if left > 0 {
            tracing::warn!(left, "groups without a new leader elect one when this node is gone");
        }
    }

    /// Closes all owners, records their ends and writes the receipt (owner spec §10.1).
    async fn retire(shared: &Shared, boots: &Boots, deadline: Tick) -> Stopped {
        if let Err(held) = shared.owners.close_all(deadline).await {
            tracing::warn!(held, "owners are not proved stopped; the next start treats this boot as crashed");
            return Stopped::Unproved;
        }
        if let Err(left) = shared.disconnects.drain(deadline).await {
            tracing::warn!(left, "ends of connections are not recorded; the next start does it");
        }
        let receipt = match shared.owners.retirement() {
            Ok(retirement) => boots.record_graceful(retirement.connection_id_max),
            Err(error) => {
                tracing::warn!(%error, "no proof that all owners stopped");
                return Stopped::Unproved;
            }
        };
        match receipt {
            Ok(()) => Stopped::Graceful,
            Err(error) => {
                tracing::error!(%error, "the receipt of this boot could not be written");
                Stopped::Unproved
            }
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("boot", &self.shared.boot).field("listeners", &self.listeners).finish()
    }
}

/// Renews the boot lease until that fails. With `settle` the lease is not begun yet: a majority may still be missing.
fn spawn_lease(lease: BootLease, settle: Option<Settle>) -> JoinHandle<LeaseError> {
    tokio::spawn(async move {
        if let Some(settle) = settle
            && let Err(error) = settle.until_done(&lease).await
        {
            return error;
        }
        match lease.run_forever().await {
            Ok(()) => LeaseError::Unavailable,
            Err(error) => error,
        }
    })
}

/// The routing of everything that sessions subscribed to before.
fn restored_routes(auth: &Arc<Authority>, store: &Store, share_pick: SharePick) -> Arc<Router> {
    let router = Arc::new(Router::new(auth.clone()).picking(share_pick));
    boot::restore_routes(store, &router);
    router
}

/// Holds the lease in etcd, where there is to be one.
fn spawn_hold(shared: &Arc<Shared>) -> JoinHandle<ClaimError> {
    let Some(hold) = shared.hold.clone() else { return tokio::spawn(std::future::pending()) };
    let (owners, queues, store) = (shared.owners.clone(), shared.queues.clone(), shared.store.clone());
    tokio::spawn(hold.run_forever(owners, queues, store))
}

/// What a start has before it opens the store.
struct Parts {
    clock: Arc<NodeClock>,
    boot: Boot,
    boots: Arc<Boots>,
    recovered: Recovered,
    hold: Option<Arc<NodeHold>>,
}

/// What the groups have to take before this node is settled: the quotas of its configuration, the retirement of its earlier boots.
struct Settle {
    boots: Arc<Boots>,
    recovered: Recovered,
    config: Config,
}

impl Settle {
    async fn run(&self, store: &Store, clock: &NodeClock) -> Result<(), ServeError> {
        boot::set_quotas(store, &self.config).await?;
        boot::retire_earlier(&self.boots, &self.recovered, store, clock).await
    }

    /// At once where no other node is asked; whether that is so.
    async fn run_if_alone(&self, lease: &BootLease) -> Result<bool, ServeError> {
        let (store, clock) = (&lease.store, &lease.clock);
        let is_alone = store.is_alone() && store.status().iter().all(|group| !group.nodes.is_empty());
        if is_alone {
            lease.start().await?;
            self.run(store, clock).await?;
        }
        Ok(is_alone)
    }

    /// Tries until a majority takes the lease and the rest.
    async fn until_done(&self, lease: &BootLease) -> Result<(), LeaseError> {
        loop {
            match lease.start().await {
                Ok(()) => break,
                Err(LeaseError::Retired) => return Err(LeaseError::Retired),
                Err(error) => tracing::info!(%error, "waiting for a majority"),
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        while let Err(error) = self.run(&lease.store, &lease.clock).await {
            tracing::warn!(%error, "earlier boots are not retired yet");
            if lease.renew().await == Err(LeaseError::Retired) {
                return Err(LeaseError::Retired);
            }
            tokio::time::sleep(SETTLE_PAUSE).await;
        }
        Ok(())
    }
}

/// Calls that wait while a reload is under way; more are refused.
const RELOADS_MAX: usize = 16;

/// How long a stop waits until it may hand over the groups that it began to lead just now.
const LEAVE_WAIT: Duration = Duration::from_secs(2);

/// How long a start waits for what other nodes have subscribers of; until it is known, they get everything.
const ROUTES_WAIT: Duration = Duration::from_secs(1);

/// Between two attempts at groups that have no majority.
const SETTLE_PAUSE: Duration = Duration::from_millis(250);

/// The owner registry; with `held` nobody executes before there is a lease in etcd.
fn owners(
    config: &Config,
    boot: &Boot,
    (clock, workers): (&NodeClock, &Arc<Workers>),
    held: bool,
) -> Result<Arc<Owners>, OwnerError> {
    let owners = Owners::new(owner_options(config, boot), clock.clone(), workers.clone())?;
    if held {
        owners.hold(Tick(0));
    }
    Ok(Arc::new(owners))
}

/// What this node can prove by itself, and what it may ask others.
fn isolation(
    boot: &Boot,
    (owners, disconnects): (&Arc<Owners>, &Arc<Disconnects>),
    boots: &Arc<Boots>,
    store: &Store,
    (clock, links): (&NodeClock, Option<&Links>),
) -> ClusterIsolation {
    let evidence = boot::BootEvidence { boots: boots.clone(), store: store.clone() };
    let local = LocalIsolation {
        node_id: boot.node_id,
        boot_id: boot.boot_id.clone(),
        owners: owners.clone(),
        disconnects: disconnects.clone(),
        receipts: Arc::new(evidence),
    };
    let peers = links.map_or_else(ownerrpc::QuiesceClient::without_peers, Links::quiescence);
    ClusterIsolation { local, clock: clock.clone(), peers }
}

/// The queue layer over the store of this node. Its members hang on the lease of the node where that is in etcd.
fn open_queues(boot: &Boot, store: &Store, clock: &Arc<NodeClock>, hold: Option<&NodeHold>) -> QueueStore {
    let channels = EmbeddedStore::new(store.clone(), clock.clone());
    let label = format!("node {}, boot {}", boot.node_id, boot.boot_id);
    let options = QueueOptions { label, ..QueueOptions::default() };
    match hold {
        Some(hold) => QueueStore::open_lent(Arc::new(channels), options, hold.leases().clone()),
        None => QueueStore::open(Arc::new(channels), options),
    }
}

fn boot_lease(
    config: &Config,
    boot: &Boot,
    (clock, store): (&Arc<NodeClock>, &Store),
    owners: &Arc<Owners>,
) -> BootLease {
    BootLease {
        boot: boot.clone(),
        clock: clock.clone(),
        store: store.clone(),
        owners: owners.clone(),
        lease_ms: config.owner.lease_ms,
    }
}

fn retention(config: &Config) -> Retention {
    Retention { binding_ms: u64::from(config.session.binding_retention_s) * 1_000 }
}

fn store_options(config: &Config, boot: &Boot) -> storage::Options {
    storage::Options {
        data_dir: config.node.data_dir.clone(),
        boot: boot.clone(),
        groups: config.cluster.groups,
        engine: config.storage.engine,
        segment_bytes: config.storage.segment_bytes,
        checkpoint_bytes: config.storage.checkpoint_bytes,
        resident_bytes_max: config.storage.resident_bytes_max,
        peers: None,
        formation: storage::Formation::Alone,
    }
}

fn owner_options(config: &Config, boot: &Boot) -> owner::Options {
    owner::Options {
        node_id: boot.node_id,
        boot_id: boot.boot_id.clone(),
        capacity: config.owner.capacity,
        operations_max: config.owner.operations,
        pending_timeout_ms: config.owner.connect_timeout_ms,
        lease_max_ms: 60_000,
        close_retry_ms: config.owner.close_retry_ms,
    }
}
