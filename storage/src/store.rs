//! The store as the broker sees it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use session::id::{Boot, Key};
use session::lifecycle::{Command, Group, Reply};
use session::message::{Message, QoS};
use session::queue::Refusal;
use session::time::Millis;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::durations::{DurationCounter, Durations};
use crate::identity::{Identity, Lock, make_dir};
use crate::peers::{PeerAddress, Peers};
use crate::port::{DeliveryPort, Done, EventPort};
use crate::queue::LogPage;
use crate::raft::{
    self, Checkpointer, GroupStatus, LogStore, Machine, MachineOptions, Meter, RaftGroup, Start,
};
use crate::wal::{OsDisk, Wal, WalOptions};
use crate::{StorageError, backup, engine};

/// One of the groups, 0 to `groups - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u16);

/// The hybrid logical clock of this node: `max(wall, last seen)`.
pub trait Clock: Send + Sync + std::fmt::Debug {
    fn now(&self) -> Millis;
    /// Time seen in a command or message of another node or of an earlier run.
    fn observe(&self, seen: Millis);
}

/// Which engine keeps the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineKind {
    #[default]
    Redb,
    /// Cargo feature `store-sled`.
    Sled,
    /// Tests only: nothing survives.
    Memory,
}

impl EngineKind {
    /// Whether this build has the engine.
    #[must_use]
    pub fn is_compiled_in(self) -> bool {
        match self {
            Self::Redb | Self::Memory => true,
            Self::Sled => cfg!(feature = "store-sled"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Options {
    pub data_dir: PathBuf,
    /// This start; no other one may have the same, or its changes pass for late ones of the earlier start.
    pub boot: Boot,
    /// Fixed when the data directory is made; default 4.
    pub groups: u16,
    pub engine: EngineKind,
    /// Bytes of one WAL segment; default 64 MiB.
    pub segment_bytes: u64,
    /// WAL bytes after which state is checkpointed and the log purged; default 64 MiB.
    pub checkpoint_bytes: u64,
    /// Message bodies kept in memory per node before they are read back from disk; default 256 MiB.
    pub resident_bytes_max: u64,
    /// The way to other nodes; `None`: there are none.
    pub peers: Option<Arc<dyn Peers>>,
    pub formation: Formation,
}

/// What becomes of groups that are new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Formation {
    /// This node is the first, and for now the only one.
    #[default]
    Alone,
    /// They wait to be filled by the nodes of a cluster ([`Store::add_node`] there).
    Join,
}

/// A command and who waits for it.
#[derive(Debug)]
pub struct Proposal {
    pub command: Command,
    pub done: Done,
}

/// An inbox entry with its message.
#[derive(Debug, Clone)]
pub struct InboxEntry {
    pub offset: u64,
    pub qos: QoS,
    pub retain: bool,
    /// PUBREC was received: only PUBREL is owed.
    pub received: bool,
    pub maybe_sent: bool,
    pub identifiers: smallvec::SmallVec<[u32; 1]>,
    pub message: Arc<Message>,
}

/// What an ended lifetime leaves to the other members of its shared subscriptions: a page of it.
#[derive(Debug, Clone, Default)]
pub struct Heritage {
    /// Its shared filters, with the subscription identifier of each (0: none).
    pub filters: Vec<(Arc<str>, u32)>,
    pub messages: Vec<Heirloom>,
    /// Offset to go on from; `None`: that was all.
    pub next: Option<u64>,
}

/// One message of a [`Heritage`].
#[derive(Debug, Clone)]
pub struct Heirloom {
    pub offset: u64,
    pub identifiers: smallvec::SmallVec<[u32; 1]>,
    pub message: Arc<Message>,
}

/// The store of one node. Cheap to clone; safe to use from every thread.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    groups: Vec<RaftGroup>,
    boot_node: u64,
    wal: Arc<Wal>,
    fsync_times: Arc<DurationCounter>,
    checkpointer: Arc<Checkpointer>,
    failure: Arc<Failure>,
    deadlines: Arc<Notify>,
    identity: Identity,
    /// Taken at close, so that the directory can be opened again.
    lock: Mutex<Option<Lock>>,
}

/// The first failure that nothing but a restart mends.
#[derive(Debug)]
pub(crate) struct Failure {
    first: watch::Sender<Option<Arc<StorageError>>>,
}

impl Failure {
    pub(crate) fn new() -> Self {
        Self { first: watch::Sender::new(None) }
    }

    /// Returns once there is one.
    pub(crate) async fn wait(&self) -> Arc<StorageError> {
        let mut first = self.first.subscribe();
        match first.wait_for(Option::is_some).await.map(|first| first.clone()) {
            Ok(Some(error)) => error,
            // The sender lives as long as `self`.
            _ => std::future::pending().await,
        }
    }

    pub(crate) fn set(&self, error: &StorageError) {
        let error = Arc::new(StorageError::poisoned(error));
        self.first.send_if_modified(|first| {
            let new = first.is_none();
            if new {
                *first = Some(error);
            }
            new
        });
    }
}

/// Between two attempts to hand a group over.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(50);
/// Page cache of the engine, for all groups.
pub(crate) const ENGINE_CACHE_BYTES: usize = 64 << 20;

impl Store {
    /// Recovers the data directory and starts the groups. Where this node is the only one, it waits until it leads each of them; in a
    /// cluster a majority may still be missing: writes and [`Store::barrier`] then fail until there is one.
    /// Must be called on the control runtime, whose handle serves all storage tasks.
    ///
    /// # Errors
    /// Damage, a foreign, copied or locked directory, I/O.
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<Self, StorageError> {
        let failure = Arc::new(Failure::new());
        let deadlines = Arc::new(Notify::new());
        let recovered = tokio::task::spawn_blocking({
            let (options, clock) = (options.clone(), Arc::clone(&clock));
            let (failure, deadlines) = (Arc::clone(&failure), Arc::clone(&deadlines));
            move || Recovery::run(&options, &clock, &failure, &deadlines)
        });
        let recovered = recovered.await.map_err(|error| StorageError::Unavailable(error.to_string()))??;
        let start =
            Start { boot: options.boot.clone(), peers: options.peers.clone(), formation: options.formation };
        let mut groups = Vec::new();
        for (log, machine) in recovered.groups {
            let group = RaftGroup::start(log, machine, &start, Arc::clone(&clock)).await?;
            group.watch(Arc::clone(&failure));
            groups.push(group);
        }
        let checkpointer = Checkpointer::start(groups.clone(), recovered.meter);
        Ok(Self {
            inner: Arc::new(Inner {
                groups,
                boot_node: options.boot.node_id,
                wal: recovered.wal,
                fsync_times: recovered.fsync_times,
                checkpointer,
                failure,
                deadlines,
                identity: recovered.identity,
                lock: Mutex::new(Some(recovered.lock)),
            }),
        })
    }

    #[must_use]
    pub fn groups(&self) -> u16 {
        u16::try_from(self.inner.groups.len()).expect("Options::groups is a u16")
    }

    /// This start of this node: who proposes. No other start has, had or will have the same.
    #[must_use]
    pub fn boot(&self) -> &Boot {
        self.inner.groups[0].machine.forwarded().boot()
    }

    /// Identities of the data directory.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Group of a session key (slot modulo groups).
    #[must_use]
    pub fn group_of(&self, key: &Key) -> GroupId {
        GroupId(session::lifecycle::slot_of(key) % self.groups())
    }

    /// Group that keeps the retained message of a topic: CRC-32 of its name modulo slots, modulo groups.
    #[must_use]
    pub fn group_of_topic(&self, topic: &str) -> GroupId {
        let slot = crc32fast::hash(topic.as_bytes()) % u32::from(session::limits::SLOTS);
        GroupId(u16::try_from(slot).expect("a slot is below 256") % self.groups())
    }

    /// Hands commands to the group's proposer; everything that waits goes into the next log entry. Never blocks. The order
    /// of one caller's proposals to one group is kept.
    pub fn propose(&self, group: GroupId, proposals: Vec<Proposal>) {
        self.group(group).intake.submit(proposals);
    }

    /// Answers `done` once nothing that this boot proposed to the group, and whose fate is unknown now, can take effect any more. An error:
    /// that will never be known here, the group has stopped. Never blocks.
    pub fn decide(&self, group: GroupId, done: Done) {
        self.group(group).intake.decide(done);
    }

    /// Proposes one command and waits for its reply.
    ///
    /// # Errors
    /// When the group is not available; the fate of the command is then unknown.
    pub async fn call(&self, group: GroupId, command: Command) -> Result<Reply, Arc<StorageError>> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.propose(group, vec![Proposal { command, done: Done::Once(sender) }]);
        let gone = |_| Arc::new(StorageError::Unavailable("the group stopped".to_owned()));
        receiver.await.map_err(gone)?
    }

    /// Reads the applied state under a short lock. Where this node is alone that is linearizable, since replies follow `apply`; in a
    /// cluster it is after [`Store::barrier`].
    pub fn read<R>(&self, group: GroupId, f: impl FnOnce(&Group) -> R) -> R {
        self.group(group).machine.read(f)
    }

    /// Returns when a read here sees every write that was acknowledged, on any node, before the call. Costs nothing on a node that is
    /// alone, a round to the leader and its quorum else; readers share rounds.
    ///
    /// # Errors
    /// No majority answered within 3 s, or this node is behind.
    pub async fn barrier(&self, group: GroupId) -> Result<(), Arc<StorageError>> {
        self.group(group).barrier().await
    }

    /// Last entry of the group that is applied here: what a reply was about is in it.
    #[must_use]
    pub fn applied(&self, group: GroupId) -> u64 {
        self.group(group).machine.applied_index()
    }

    /// Returns when entry `index` of the group is applied here and everybody was told of it.
    ///
    /// # Errors
    /// It is not within 3 s.
    pub async fn applied_through(&self, group: GroupId, index: u64) -> Result<(), Arc<StorageError>> {
        match self.inner.groups.get(usize::from(group.0)) {
            Some(group) => group.follow(index).await,
            None => Err(Arc::new(StorageError::Unavailable(format!("there is no group {} here", group.0)))),
        }
    }

    /// Carries out a request that [`Peers::call`] brought from another node.
    pub async fn serve_peer(&self, request: &[u8]) -> bytes::Bytes {
        raft::serve(&self.inner.groups, request).await
    }

    /// Whether this node leads the group, as far as it knows: what one node has to do for all is done by the leader.
    #[must_use]
    pub fn leads(&self, group: GroupId) -> bool {
        self.group(group).leads()
    }

    /// Hands a group that this node leads to another voter. Proposals wait meanwhile, at most two seconds, mostly a few milliseconds, and
    /// none is lost. May fail and be repeated.
    ///
    /// # Errors
    /// This node does not lead, or only since a moment ago; the other one is no voter, away or behind; or it does not lead in time.
    pub async fn hand_over(&self, group: GroupId, to: u64) -> Result<(), StorageError> {
        self.group(group).hand_over(to).await
    }

    /// The hand-over by this node that makes leaders more even, among voters that it can reach; `None`: none does.
    #[must_use]
    pub fn next_hand_over(&self, reachable: &[u64]) -> Option<(GroupId, u64)> {
        raft::next_step(self.inner.boot_node, &self.status(), reachable)
    }

    /// Hands every group that this node leads to a voter that it can reach, as evenly as it goes, and takes none from now on; one that it
    /// leads since a moment ago has to wait, about `within`. Groups that are left elect a leader when this node is gone; how many.
    pub async fn give_up_leadership(&self, reachable: &[u64], within: Duration) -> usize {
        self.inner.groups.iter().for_each(RaftGroup::leave);
        let deadline = Instant::now() + within;
        loop {
            let left = self.hand_over_all(reachable).await;
            if left == 0 || Instant::now() >= deadline {
                return left;
            }
            tokio::time::sleep(HAND_OVER_PAUSE).await;
        }
    }

    async fn hand_over_all(&self, reachable: &[u64]) -> usize {
        let mut left = 0;
        for group in self.inner.groups.iter().filter(|group| group.leads()) {
            let status = self.status();
            let led = |node: &u64| status.iter().filter(|group| group.leader == Some(*node)).count();
            let mut heirs = reachable.to_vec();
            heirs.sort_by_key(led);
            let mut gone = false;
            for heir in heirs {
                match group.hand_over(heir).await {
                    Ok(()) => {
                        gone = true;
                        break;
                    }
                    Err(error) => tracing::debug!(%error, heir, "a group stays for now"),
                }
            }
            left += usize::from(!gone);
        }
        left
    }

    /// What this node knows of each group.
    #[must_use]
    pub fn status(&self) -> Vec<GroupStatus> {
        self.inner.groups.iter().map(RaftGroup::status).collect()
    }

    /// Lets a node take part in every group: it receives their state, and votes where there are fewer than three voters. Repeating it
    /// goes on where it stopped.
    ///
    /// # Errors
    /// The node does not answer within five seconds: then nothing changes. No majority, or the node does not get the log, within two
    /// minutes a step.
    pub async fn add_node(&self, node: &PeerAddress) -> Result<(), StorageError> {
        for group in &self.inner.groups {
            group.add(node).await?;
        }
        Ok(())
    }

    /// Tells all nodes where `node`, which takes part already, is dialled from now on: its address changed, or it formed its groups
    /// before it had one.
    ///
    /// # Errors
    /// No majority.
    pub async fn set_address(&self, node: &PeerAddress) -> Result<(), StorageError> {
        for group in &self.inner.groups {
            group.set_address(node).await?;
        }
        Ok(())
    }

    /// Whether this node is the only one that holds the groups: then its reads need no [`Store::barrier`].
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.inner.groups.iter().all(|group| group.machine.is_alone())
    }

    /// Takes a node out of every group; another one votes in its place where there is one.
    ///
    /// # Errors
    /// No majority without it; it is the last node.
    pub async fn remove_node(&self, node_id: u64) -> Result<(), StorageError> {
        for group in &self.inner.groups {
            group.remove(node_id).await?;
        }
        Ok(())
    }

    /// Unsettled inbox entries from `from` on, with their messages (read from disk where needed), at most `max` entries and about
    /// `bytes_max` bytes; and the offset to go on from.
    ///
    /// # Errors
    /// I/O, damage.
    pub fn read_inbox(
        &self,
        group: GroupId,
        lifetime: u64,
        from: u64,
        max: usize,
        bytes_max: usize,
    ) -> Result<(Vec<InboxEntry>, u64), StorageError> {
        self.group(group).machine.read_inbox(lifetime, from, max, bytes_max)
    }

    /// Messages from offset `from` on that an ended lifetime leaves to the other members of its shared subscriptions (MQTT 5 §4.8.2).
    ///
    /// # Errors
    /// I/O, damage.
    pub fn inherited(&self, group: GroupId, lifetime: u64, from: u64) -> Result<Heritage, StorageError> {
        self.group(group).machine.inherited(lifetime, from)
    }

    /// The same of what a lifetime that did not end gave up (`Command::Unbind`).
    ///
    /// # Errors
    /// I/O, damage.
    pub fn unbound(&self, group: GroupId, lifetime: u64, from: u64) -> Result<Heritage, StorageError> {
        self.group(group).machine.unbound(lifetime, from)
    }

    /// Retained messages of all groups that `filter` matches, in topic order per group; stops when `visit` returns false.
    ///
    /// # Errors
    /// I/O, damage.
    pub fn retained(
        &self,
        filter: &str,
        visit: &mut dyn FnMut(Arc<Message>) -> bool,
    ) -> Result<(), StorageError> {
        self.retained_from(filter, None, usize::MAX, visit)
    }

    /// The same from the first topic behind `after` on, a topic and its group, at most `max` messages. What lies before `after` costs
    /// nothing.
    ///
    /// # Errors
    /// I/O, damage.
    pub fn retained_from(
        &self,
        filter: &str,
        after: Option<(GroupId, &str)>,
        max: usize,
        visit: &mut dyn FnMut(Arc<Message>) -> bool,
    ) -> Result<(), StorageError> {
        let (first, mut topic) =
            after.map_or((0, None), |(group, topic)| (usize::from(group.0), Some(topic)));
        let mut left = max;
        for group in self.inner.groups.iter().skip(first) {
            if !group.machine.retained_from(filter, topic.take(), &mut left, visit)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// From now on every append to the inbox `lifetime` is pushed to `port`. Returns the inbox's end at that moment, so that the caller
    /// reads what is before it and gets pushed what is behind it: no gap, no duplicate.
    pub fn attach(&self, group: GroupId, lifetime: u64, port: Arc<dyn DeliveryPort>, token: u64) -> u64 {
        self.group(group).machine.attach(lifetime, port, token)
    }

    /// Stops pushing, unless another token attached since.
    pub fn detach(&self, group: GroupId, lifetime: u64, token: u64) {
        self.group(group).machine.detach(lifetime, token);
    }

    /// Unsettled records of a log that a consumer owns, (member, channel, epoch), from `from` on, at most `max` and about
    /// [`crate::queue::PAGE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// I/O, damage. Inside: the consumer does not own it any more.
    pub fn read_channel(
        &self,
        group: GroupId,
        at: (u64, u64, u64),
        from: u64,
        max: usize,
    ) -> Result<Result<LogPage, Refusal>, StorageError> {
        self.group(group).machine.read_records(|rows, page| rows.read_channel(at, from, max, page))
    }

    /// Records that a group member has claimed, from `from` on; bounds as above.
    ///
    /// # Errors
    /// As above.
    pub fn read_claimed(
        &self,
        group: GroupId,
        member: u64,
        from: u64,
        max: usize,
    ) -> Result<Result<LogPage, Refusal>, StorageError> {
        self.group(group).machine.read_records(|rows, page| rows.read_claimed(member, from, max, page))
    }

    /// From now on wake-ups of a member of a channel are kept for [`Store::member_woken`].
    pub fn open_member(&self, group: GroupId, member: u64) {
        self.group(group).machine.wakes().open(member);
    }

    /// Returns when a commit gave the member something to look at since the last return; at once when it is gone.
    pub async fn member_woken(&self, group: GroupId, member: u64) {
        self.group(group).machine.wakes().wait(member).await;
    }

    /// Lease time as last applied here, in milliseconds, and when that was; after a start, the time that the state brought along and the
    /// moment it was loaded.
    #[must_use]
    pub fn lease_clock(&self, group: GroupId) -> (u64, std::time::Instant) {
        self.group(group).machine.lease_clock()
    }

    /// Returns when something of the queue layer became due earlier since the last return.
    pub async fn leases_changed(&self, group: GroupId) {
        self.group(group).machine.wakes().due_changed().await;
    }

    /// Tells `port` of ended lifetimes and changed Wills from now on, for all groups. One port a store; it replaces an earlier one.
    pub fn watch(&self, port: &Arc<dyn EventPort>) {
        for group in &self.inner.groups {
            group.machine.watch(Arc::clone(port));
        }
    }

    /// Returns when a committed command changed what is due since the last call: the deadline worker looks again.
    pub async fn deadlines_changed(&self) {
        self.inner.deadlines.notified().await;
    }

    /// Returns when the store failed for good: the node has to stop. Never returns otherwise.
    pub async fn failed(&self) -> Arc<StorageError> {
        self.inner.failure.wait().await
    }

    /// Makes all applied state durable in the engine and purges the log up to there. Happens by itself; a backup asks for it.
    ///
    /// # Errors
    /// I/O, a group that is not available.
    pub async fn checkpoint(&self) -> Result<(), StorageError> {
        self.inner.checkpointer.checkpoint().await
    }

    /// Checkpoints one group and writes its state as a snapshot file (`storage/FORMAT.md`), row by row. Blocks.
    ///
    /// # Errors
    /// I/O of the engine or of `out`.
    pub fn export(&self, group: GroupId, out: &mut dyn std::io::Write) -> Result<(), StorageError> {
        self.group(group).machine.cut()?.export(out)
    }

    /// Writes a backup of every group (`storage/FORMAT.md`), row by row: all of them as they are here at one moment, which is after everything
    /// that was acknowledged before, where this node is alone; in a cluster after [`Store::barrier`] of each. Commits wait for a moment.
    /// Blocks.
    ///
    /// # Errors
    /// I/O of an engine or of `out`.
    pub fn backup(&self, about: &backup::About, out: &mut dyn std::io::Write) -> Result<(), StorageError> {
        let machines: Vec<_> = self.inner.groups.iter().map(|group| Arc::clone(&group.machine)).collect();
        backup::write(&machines, &self.inner.identity, about, out)
    }

    /// Fsyncs of the log since it was opened.
    #[must_use]
    pub fn fsyncs(&self) -> u64 {
        self.inner.wal.fsyncs()
    }

    /// How long the fsyncs of the log took since it was opened.
    #[must_use]
    pub fn fsync_times(&self) -> Durations {
        self.inner.fsync_times.view()
    }

    /// Checkpoints, closes the log and stops the groups. What is proposed afterwards is refused. A store that is dropped without it
    /// stops too, without a checkpoint: the next start replays the log.
    ///
    /// # Errors
    /// I/O.
    pub async fn close(&self) -> Result<(), StorageError> {
        if self.inner.lock.lock().is_none() {
            return Ok(());
        }
        let checkpointed = self.inner.checkpointer.checkpoint().await;
        self.inner.refuse();
        for group in &self.inner.groups {
            group.shutdown().await;
        }
        let inner = Arc::clone(&self.inner);
        let released = tokio::task::spawn_blocking(move || inner.release()).await;
        checkpointed?;
        released.map_err(|error| StorageError::Unavailable(error.to_string()))
    }

    fn group(&self, group: GroupId) -> &RaftGroup {
        &self.inner.groups[usize::from(group.0)]
    }
}

impl Inner {
    /// Takes nothing any more.
    fn refuse(&self) {
        self.checkpointer.stop();
        for group in &self.groups {
            group.refuse();
        }
    }

    /// Writes what waits, lets every file go, then the lock. Blocks.
    fn release(&self) {
        self.wal.close();
        for group in &self.groups {
            group.machine.close();
        }
        drop(self.lock.lock().take());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.refuse();
        self.release();
    }
}

/// What a start reads from disk before anything runs.
struct Recovery {
    identity: Identity,
    lock: Lock,
    wal: Arc<Wal>,
    fsync_times: Arc<DurationCounter>,
    meter: Arc<Meter>,
    groups: Vec<(LogStore, Arc<Machine>)>,
}

impl Recovery {
    fn run(
        options: &Options,
        clock: &Arc<dyn Clock>,
        failure: &Arc<Failure>,
        deadlines: &Arc<Notify>,
    ) -> Result<Self, StorageError> {
        let dir = &options.data_dir;
        make_dir(dir)?;
        let lock = Lock::take(dir.join("LOCK"))?;
        let identity = Identity::open(dir, options.boot.node_id)?;
        let meter = Arc::new(Meter::new(options.checkpoint_bytes));
        let groups = options.groups.max(1);
        let engines = engine::open(options.engine, &dir.join("state"), groups, ENGINE_CACHE_BYTES)?;
        let boot = &options.boot;
        let machines = load(options, engines, |options, engine| {
            let (clock, meter) = (Arc::clone(clock), Arc::clone(&meter));
            let (failure, deadlines) = (Arc::clone(failure), Arc::clone(deadlines));
            Machine::open(options, engine, clock, meter, failure, deadlines, boot.clone()).map(Arc::new)
        })?;
        let wal_dir = dir.join("wal");
        let disk = Arc::new(OsDisk::new(wal_dir.clone()).map_err(StorageError::io(&wal_dir))?);
        let fsync_times = Arc::clone(disk.times());
        let wal_options =
            WalOptions { segment_bytes: options.segment_bytes, directory: identity.directory_id };
        let (wal, mut logs) = Wal::open(disk, wal_options)?;
        let wal = Arc::new(wal);
        let groups = (0..groups)
            .zip(machines)
            .map(|(group, machine)| {
                let log = logs.remove(&group).unwrap_or_default();
                machine.check_reaches(&log)?;
                let log = LogStore::new(group, Arc::clone(&wal), log, machine.applied(), Arc::clone(&meter))?;
                Ok((log, machine))
            })
            .collect::<Result<_, StorageError>>()?;
        Ok(Self { identity, lock, wal, fsync_times, meter, groups })
    }
}

/// Loads the groups side by side: a start with millions of rows is bound by the processor.
fn load(
    options: &Options,
    engines: Vec<Arc<dyn engine::Engine>>,
    open: impl Fn(MachineOptions, Arc<dyn engine::Engine>) -> Result<Arc<Machine>, StorageError> + Sync,
) -> Result<Vec<Arc<Machine>>, StorageError> {
    let groups = u16::try_from(engines.len()).expect("there are as many engines as groups");
    let open = &open;
    std::thread::scope(|scope| {
        let loading: Vec<_> = (0..groups)
            .zip(engines)
            .map(|(group, engine)| {
                let options = MachineOptions {
                    group,
                    groups,
                    resident_bytes_max: options.resident_bytes_max / u64::from(groups),
                    incoming_dir: options.data_dir.join("state"),
                };
                scope.spawn(move || open(options, engine))
            })
            .collect();
        let panicked = |_| StorageError::Unavailable("loading a group panicked".to_owned());
        loading.into_iter().map(|thread| thread.join().map_err(panicked)?).collect()
    })
}
