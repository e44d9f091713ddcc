//! One simulated node: the real owner registry, use cases and rows, over the simulated log and network.
//!
//! Real: `broker::owners`, `usecase::{connect, disconnect, end, isolation, queue}`, `ownerrpc` codec and client,
//! `session::{owner, lifecycle}`. Driven here instead of by `broker`, because there they hold a whole store: the boot lease, the deadline
//! task, the Will executor (`duties.rs`), and what a worker does for a connection (`connection.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use broker::clock::NodeClock;
use broker::owners::{CloseLinks, Owners};
use broker::usecase::disconnect::{Disconnects, LifetimeOver, Proposer};
use broker::usecase::isolation::{ClusterIsolation, LocalIsolation, Receipts};
use broker::usecase::queue::ConnectQueue;
use gateway::link::{CloseRequest, LinkId};
use ownerrpc::QuiesceClient;
use parking_lot::Mutex;
use session::id::{Boot, Key, Owner};
use session::lifecycle::{Batch, Command, Reply};
use session::owner::Options;
use storage::{Clock as _, Done, StorageError};
use tokio::sync::{Notify, mpsc, oneshot};

use super::calls::{Asks, Calls};
use super::clock::SimTime;
use super::mutant::Mutant;
use super::raft::{Applied, Msg, Out, Raft};
use super::tasks::Power;
use super::world::World;

/// How long a proposal waits for its commit.
const PROPOSE: Duration = Duration::from_millis(1_500);
/// Pause before a batch is brought to another leader.
const AGAIN: Duration = Duration::from_millis(30);
/// What a leader says regularly.
const BEAT: Duration = Duration::from_millis(40);
/// How long a read waits for the leader.
const BARRIER: Duration = Duration::from_millis(800);

/// A connection as its node sees it from outside of its task.
#[derive(Debug)]
pub struct Socket {
    /// Set when CONNECT was accepted.
    pub owner: OnceLock<Owner>,
    pub asked: Mutex<Option<CloseRequest>>,
    pub wake: Notify,
}

/// A batch that waits for its commit.
#[derive(Debug)]
struct Waiting {
    dones: Vec<Done>,
    settled: oneshot::Sender<bool>,
}

#[derive(Debug)]
pub struct Node {
    pub world: Arc<World>,
    pub at: usize,
    pub boot: Boot,
    pub power: Arc<Power>,
    pub time: Arc<SimTime>,
    pub clock: NodeClock,
    pub owners: Arc<Owners>,
    pub disconnects: Arc<Disconnects>,
    pub queue: ConnectQueue,
    pub isolation: ClusterIsolation,
    pub raft: Mutex<Raft>,
    pub calls: Arc<Calls>,
    pub sockets: Arc<Sockets>,
    inbox: mpsc::UnboundedSender<(usize, Msg)>,
    pending: Mutex<Vec<(Command, Done)>>,
    /// Who waits until no batch of unknown fate can take effect any more.
    undecided: Mutex<Vec<oneshot::Sender<()>>>,
    proposed: Notify,
    serial: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    barriers: Mutex<BTreeMap<u64, oneshot::Sender<Option<u64>>>>,
    barrier_wanted: Mutex<Vec<oneshot::Sender<bool>>>,
    barrier_wake: Notify,
    applied: Notify,
    /// Who reads which inbox here.
    pub consumers: Mutex<BTreeMap<u64, Arc<Socket>>>,
    /// The lease is held.
    pub serves: std::sync::atomic::AtomicBool,
}

/// All sockets of one process.
#[derive(Debug)]
pub struct Sockets {
    world: Arc<World>,
    clock: NodeClock,
    pub open: Mutex<BTreeMap<LinkId, Arc<Socket>>>,
    next: AtomicU64,
    owners: OnceLock<Weak<Owners>>,
}

impl CloseLinks for Sockets {
    fn close(&self, link: LinkId, request: CloseRequest) {
        let Some(socket) = self.open.lock().get(&link).cloned() else { return };
        if let (Some(owner), Some(owners)) = (socket.owner.get(), self.owners.get().and_then(Weak::upgrade)) {
            self.world.oracle.closes(&self.world, &self.clock, owner, &owners);
        }
        socket.asked.lock().get_or_insert(request);
        socket.wake.notify_one();
    }
}

impl Sockets {
    /// The sockets of a boot and the registry of those who own them.
    ///
    /// # Panics
    /// When the options of the registry are out of range.
    fn with_owners(world: &Arc<World>, clock: &NodeClock, boot: &Boot) -> (Arc<Self>, Arc<Owners>) {
        let options = Options {
            node_id: boot.node_id,
            boot_id: boot.boot_id.clone(),
            capacity: 200_000,
            operations_max: 64,
            pending_timeout_ms: 2_500,
            lease_max_ms: 60_000,
            close_retry_ms: 250,
        };
        let sockets = Arc::new(Self {
            world: world.clone(),
            clock: clock.clone(),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            owners: OnceLock::new(),
        });
        let owners = Arc::new(Owners::new(options, clock.clone(), sockets.clone()).expect("valid options"));
        // A thing that is set once cannot be set before.
        let _ = sockets.owners.set(Arc::downgrade(&owners));
        (sockets, owners)
    }

    pub fn open(&self) -> (LinkId, Arc<Socket>) {
        let slot = u32::try_from(self.next.fetch_add(1, Ordering::Relaxed)).unwrap_or(u32::MAX);
        let link = LinkId { worker: 0, slot, serial: 1 };
        let socket =
            Arc::new(Socket { owner: OnceLock::new(), asked: Mutex::default(), wake: Notify::new() });
        self.open.lock().insert(link, socket.clone());
        (link, socket)
    }

    pub fn is_open(&self, owner: &Owner) -> bool {
        self.open.lock().values().any(|socket| socket.owner.get() == Some(owner))
    }
}

/// What proves that a boot of any node ended: its committed retirement, or its receipt on this machine.
#[derive(Debug)]
struct Proofs(OnceLock<Weak<Node>>);

impl Receipts for Proofs {
    fn is_retired(&self, owner: &Owner) -> bool {
        let Some(node) = self.0.get().and_then(Weak::upgrade) else { return false };
        let boot = Boot { node_id: owner.node_id, boot_id: owner.boot_id.clone() };
        node.raft.lock().group.boot(&boot).is_some_and(|row| row.retired.is_some())
    }

    fn covers(&self, owner: &Owner) -> bool {
        if self.is_retired(owner) {
            return true;
        }
        let Some(node) = self.0.get().and_then(Weak::upgrade) else { return false };
        let disk = node.world.machines[node.at].disk.lock();
        disk.receipts.get(&owner.boot_id).is_some_and(|max| owner.connection_id <= *max)
    }
}

#[derive(Debug)]
struct Proposals(OnceLock<Weak<Node>>);

impl Proposer for Proposals {
    fn propose(&self, _key: &Key, command: Command, done: Done) {
        if let Some(node) = self.0.get().and_then(Weak::upgrade) {
            node.propose(command, done);
        }
    }
}

/// Nothing is routed by lifetime here: the rows are asked for every message.
#[derive(Debug)]
pub struct Forgotten;

impl LifetimeOver for Forgotten {
    fn lifetime_over(&self, _key: &Key, _lifetime: u64) {}
}

impl Node {
    /// # Panics
    /// When the options of the registry are out of range.
    pub fn start(world: Arc<World>, at: usize, number: u64) -> Arc<Self> {
        let node_id = at as u64 + 1;
        let boot = Boot { node_id, boot_id: format!("boot-{number:04}").into() };
        let machine = &world.machines[at];
        let offset = *machine.wall_offset_ms.lock();
        let time = Arc::new(SimTime::new(world.origin, world.chance.between(1, 1_000_000), offset));
        let clock = NodeClock::new(time.clone());
        let (sockets, owners) = Sockets::with_owners(&world, &clock, &boot);
        let (proposals, proofs) = (Arc::new(Proposals(OnceLock::new())), Arc::new(Proofs(OnceLock::new())));
        let disconnects =
            Disconnects::new(clock.clone(), owners.clone(), proposals.clone(), Arc::new(Forgotten));
        let calls = Arc::new(Calls::new(world.clone(), at));
        let local = LocalIsolation {
            node_id,
            boot_id: boot.boot_id.clone(),
            owners: owners.clone(),
            disconnects: disconnects.clone(),
            receipts: proofs.clone(),
        };
        let peers = QuiesceClient::new(Arc::new(Asks(calls.clone())));
        let isolation = ClusterIsolation { local, clock: clock.clone(), peers };
        let raft = {
            let mut disk = machine.disk.lock();
            if let Some(crashed) = disk.marker.replace(boot.boot_id.clone()) {
                // The lock of the directory was free: that process is gone.
                disk.receipts.insert(crashed, u64::MAX);
            }
            Raft::new(at, world.nodes(), &disk)
        };
        storage::Clock::observe(&clock, raft.group.clock());
        let (inbox, arrivals) = mpsc::unbounded_channel();
        let node = Arc::new(Self {
            world,
            at,
            boot,
            power: Arc::new(Power::default()),
            time,
            clock,
            owners,
            disconnects,
            queue: ConnectQueue::default(),
            isolation,
            raft: Mutex::new(raft),
            calls,
            sockets,
            inbox,
            pending: Mutex::default(),
            undecided: Mutex::default(),
            proposed: Notify::new(),
            serial: AtomicU64::new(1),
            waiting: Mutex::default(),
            barriers: Mutex::default(),
            barrier_wanted: Mutex::default(),
            barrier_wake: Notify::new(),
            applied: Notify::new(),
            consumers: Mutex::default(),
            serves: std::sync::atomic::AtomicBool::new(false),
        });
        let _ = proposals.0.set(Arc::downgrade(&node));
        let _ = proofs.0.set(Arc::downgrade(&node));
        node.run(arrivals);
        node
    }

    fn run(self: &Arc<Self>, arrivals: mpsc::UnboundedReceiver<(usize, Msg)>) {
        let power = &self.power;
        power.spawn(self.clone().hear(arrivals));
        power.spawn(self.clone().beat());
        power.spawn(self.clone().bring());
        power.spawn(self.clone().look());
        power.spawn(self.owners.clone().sweep_forever());
        power.spawn(self.disconnects.clone().run_forever());
        power.spawn(self.clone().serve_boot());
        power.spawn(self.clone().duties());
    }

    /// A message is in the socket buffer of this node.
    pub fn arrives(&self, from: usize, message: Msg) {
        // A process that is gone does not read.
        let _ = self.inbox.send((from, message));
    }

    fn send(&self, to: usize, message: Msg) {
        if !self.power.is_dead() {
            self.world.send(self.at, to, message);
        }
    }

    async fn hear(self: Arc<Self>, mut arrivals: mpsc::UnboundedReceiver<(usize, Msg)>) {
        while let Some((from, message)) = arrivals.recv().await {
            match message {
                Msg::Propose { serial, batch } => {
                    let mut out = Out::default();
                    let taken = {
                        let mut disk = self.disk();
                        self.raft.lock().propose(&mut disk, serial, batch, &mut out)
                    };
                    if !taken {
                        self.send(from, Msg::NotLeader { serial });
                    }
                    self.act(out);
                }
                Msg::NotLeader { serial } => self.settle(serial, false),
                Msg::Read { id } => {
                    let mut out = Out::default();
                    self.raft.lock().read(&self.disk(), from, id, &mut out);
                    self.act(out);
                }
                Msg::ReadAt { id, index } => {
                    if let Some(asker) = self.barriers.lock().remove(&id) {
                        let _ = asker.send(index);
                    }
                }
                Msg::Call { id, bytes, wait_ms } => self.clone().called(from, id, bytes, wait_ms),
                Msg::Answer { id, bytes } => self.calls.answered(id, bytes),
                message => {
                    let lies = self.world.has(Mutant::AckBeforeSync);
                    let out = {
                        let mut disk = self.disk();
                        self.raft.lock().hear(&mut disk, from, message, lies)
                    };
                    self.act(out);
                }
            }
        }
    }

    pub fn disk(&self) -> parking_lot::MutexGuard<'_, super::raft::Disk> {
        self.world.machines[self.at].disk.lock()
    }

    /// Does what the log asks for: messages, a sync, and what is committed now.
    pub fn act(self: &Arc<Self>, out: Out) {
        for (to, message) in out.send {
            self.send(to, message);
        }
        if out.replaced {
            self.lose_all();
        }
        if out.sync {
            self.sync();
        }
        self.apply();
    }

    fn sync(self: &Arc<Self>) {
        let (through, cuts, synced) = {
            let disk = self.disk();
            (disk.last(), disk.cuts, disk.synced)
        };
        if synced >= through {
            return;
        }
        let (least, most) = *self.world.machines[self.at].sync_ms.lock();
        let pause = Duration::from_millis(self.world.chance.between(least, most));
        let node = self.clone();
        self.power.spawn(async move {
            tokio::time::sleep(pause).await;
            let out = {
                let mut disk = node.disk();
                node.raft.lock().synced(&mut disk, through, cuts)
            };
            node.act(out);
        });
    }

    fn apply(self: &Arc<Self>) {
        let clock = self.world.has(Mutant::ApplyReadsClock).then(|| self.clock.millis());
        let applied = {
            let mut disk = self.disk();
            let mut raft = self.raft.lock();
            let applied = raft.apply(&disk, clock, self.world.has(Mutant::ApplyLate));
            if !applied.is_empty() {
                self.world.oracle.applied(&self.world, self, &raft.group, &disk, &applied);
                raft.checkpoint(&mut disk);
            }
            applied
        };
        for one in applied {
            self.applied_one(one);
        }
        self.applied.notify_waiters();
    }

    fn applied_one(&self, one: Applied) {
        self.clock.observe(one.batch.at);
        if one.batch.boot == self.boot {
            let waiting = self.waiting.lock().remove(&one.serial);
            if let Some(Waiting { dones, settled }) = waiting {
                answer(dones, one.outcome.replies.into_iter().map(Ok));
                let _ = settled.send(true);
            }
        }
        let consumers = self.consumers.lock();
        for appended in &one.outcome.appended {
            if let Some(socket) = consumers.get(&appended.lifetime) {
                socket.wake.notify_one();
            }
        }
    }

    fn lose_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for (_, one) in waiting {
            lose(one.dones);
        }
    }

    async fn beat(self: Arc<Self>) {
        loop {
            tokio::time::sleep(BEAT).await;
            let out = {
                let disk = self.disk();
                let mut raft = self.raft.lock();
                if !raft.leads() {
                    continue;
                }
                raft.beat(&disk)
            };
            self.act(out);
        }
    }

    // ---- proposals ---------------------------------------------------------------------------------------------

    /// Never blocks. What waits goes into the next batch.
    pub fn propose(&self, command: Command, done: Done) {
        if self.power.is_dead() {
            return;
        }
        self.pending.lock().push((command, done));
        self.proposed.notify_one();
    }

    pub fn ask(&self, command: Command) -> oneshot::Receiver<Result<Reply, Arc<StorageError>>> {
        let (sender, receiver) = oneshot::channel();
        self.propose(command, Done::Once(sender));
        receiver
    }

    pub async fn call(&self, command: Command) -> Option<Reply> {
        self.ask(command).await.ok().and_then(Result::ok)
    }

    /// Brings batch after batch to the leader.
    async fn bring(self: Arc<Self>) {
        loop {
            let taken = std::mem::take(&mut *self.pending.lock());
            let undecided = std::mem::take(&mut *self.undecided.lock());
            if taken.is_empty() && undecided.is_empty() {
                self.proposed.notified().await;
                continue;
            }
            let (commands, dones): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
            let batch = Batch { boot: self.boot.clone(), at: self.clock.millis(), commands };
            let bytes = bytes::Bytes::from(postcard::to_allocvec(&batch).expect("a batch has a stored form"));
            if self.bring_one(bytes, dones).await {
                for one in undecided {
                    let _ = one.send(());
                }
            } else {
                self.undecided.lock().extend(undecided);
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// Returns once nothing that this boot proposed, and whose fate was unknown, can take effect any more: a later batch was applied.
    pub async fn decided(&self) {
        let (sender, receiver) = oneshot::channel();
        self.undecided.lock().push(sender);
        self.proposed.notify_one();
        let _ = receiver.await;
    }

    /// Keeps the owner of `scope` from being proved stopped while a command of it, whose fate is unknown, may still take effect.
    pub fn hold(self: &Arc<Self>, scope: session::owner::Scope) {
        let node = self.clone();
        self.power.spawn(async move {
            node.decided().await;
            drop(scope);
        });
    }

    /// Whether it is applied; else its fate is unknown.
    async fn bring_one(&self, batch: bytes::Bytes, mut dones: Vec<Done>) -> bool {
        let deadline = tokio::time::Instant::now() + PROPOSE;
        while tokio::time::Instant::now() < deadline {
            let leader = self.raft.lock().leader;
            let Some(leader) = leader else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            let (settled, over) = oneshot::channel();
            self.waiting.lock().insert(serial, Waiting { dones: std::mem::take(&mut dones), settled });
            self.send(leader, Msg::Propose { serial, batch: batch.clone() });
            let outcome = tokio::time::timeout_at(deadline, over).await;
            match outcome {
                Ok(Ok(true)) => return true,
                Ok(Ok(false)) => {
                    let Some(back) = self.waiting.lock().remove(&serial) else { break };
                    dones = back.dones;
                    tokio::time::sleep(AGAIN).await;
                }
                // A snapshot took the place of the log and of what it says of this batch, or it is late.
                Ok(Err(_)) | Err(_) => {
                    let late = self.waiting.lock().remove(&serial);
                    dones = late.map(|late| late.dones).unwrap_or_default();
                    break;
                }
            }
        }
        self.give_up(dones);
        false
    }

    /// The fate of a batch is unknown. What was proposed behind it, before anybody could know, must not be committed in its place: a
    /// publish would overtake the one before it ([MQTT-4.6.0-6]).
    fn give_up(&self, dones: Vec<Done>) {
        lose(dones);
        if !self.world.has(Mutant::PassLostBatch) {
            let behind = std::mem::take(&mut *self.pending.lock());
            lose(behind.into_iter().map(|(_, done)| done).collect());
        }
    }

    /// The leader says that it is none: nothing was done.
    fn settle(&self, serial: u64, done: bool) {
        let mut waiting = self.waiting.lock();
        if let Some(one) = waiting.get_mut(&serial) {
            let (closed, _) = oneshot::channel();
            let _ = std::mem::replace(&mut one.settled, closed).send(done);
        }
    }

    // ---- reads -------------------------------------------------------------------------------------------------

    /// Waits until this node has everything that was committed when it was called. Callers that wait share one question.
    pub async fn barrier(&self) -> bool {
        let (sender, receiver) = oneshot::channel();
        self.barrier_wanted.lock().push(sender);
        self.barrier_wake.notify_one();
        receiver.await.unwrap_or(false)
    }

    async fn look(self: Arc<Self>) {
        loop {
            let asked = std::mem::take(&mut *self.barrier_wanted.lock());
            if asked.is_empty() {
                self.barrier_wake.notified().await;
                continue;
            }
            let node = self.clone();
            // Rounds overlap: one that waits does not hold up those who come later.
            self.power.spawn(async move {
                let passed = tokio::time::timeout(BARRIER, node.barrier_once()).await.unwrap_or(false);
                for one in asked {
                    let _ = one.send(passed);
                }
            });
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn barrier_once(&self) -> bool {
        loop {
            let leader = self.raft.lock().leader;
            let index = match leader {
                None => None,
                Some(leader) => {
                    let id = self.serial.fetch_add(1, Ordering::Relaxed);
                    let (sender, receiver) = oneshot::channel();
                    self.barriers.lock().insert(id, sender);
                    self.send(leader, Msg::Read { id });
                    let index = receiver.await.ok().flatten();
                    self.barriers.lock().remove(&id);
                    index
                }
            };
            let Some(index) = index else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            loop {
                let mut news = std::pin::pin!(self.applied.notified());
                news.as_mut().enable();
                if self.raft.lock().group.applied() >= index {
                    return true;
                }
                news.await;
            }
        }
    }
}

fn lost() -> Arc<StorageError> {
    Arc::new(StorageError::Unavailable("the fate of the proposal is unknown".to_owned()))
}

fn lose(dones: Vec<Done>) {
    let replies: Vec<_> = dones.iter().map(|_| Err(lost())).collect();
    answer(dones, replies.into_iter());
}

fn answer(dones: Vec<Done>, replies: impl Iterator<Item = Result<Reply, Arc<StorageError>>>) {
    // Who waits for one reply hears before a port that goes on at once.
    let mut ports = VecDeque::new();
    for (done, reply) in dones.into_iter().zip(replies) {
        match done {
            Done::Nobody => {}
            Done::Once(sender) => drop(sender.send(reply)),
            Done::Port { port, token } => ports.push_back((port, vec![(token, reply)])),
        }
    }
    for (port, replies) in ports {
        port.complete(replies);
    }
}
