//! What the broker counts, and how it is counted without costing the hot path anything.
//!
//! Each worker writes its own cache-padded shard with plain relaxed loads and stores: one writer a shard, so no locked
//! instruction and no shared cache line. A registry of named handles (the `metrics` crate) would pay an atomic
//! read-modify-write on a line that all workers share for every packet, a hash for every look-up, and could not promise
//! that all series exist at zero. Rendering sums the shards; it may see a count of one family before that of another.

mod labels;
mod render;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use labels::{
    AuthOutcome, BridgeLabel, CloseReason, ConnectOutcome, Direction, DropReason, EndOutcome, HomeLabel,
    IsolationOutcome, LeaseLabel, Level, NodeLeaseLabel, OwnerState, PacketLabel, PauseReason, ProtocolLabel,
    QosLabel, RaftState, SessionLabel, SlowLabel, StageLabel, StandingLabel, SweepEvent, TakeoverOutcome,
    TurnedLabel, WillEvent, WillState,
};

use crate::bridge::BridgeState;
use crate::events::Feed;
use crate::slow::SlowLog;

/// Upper bounds of the histogram buckets, nanoseconds; one more bucket has no bound. The store counts its fsyncs by the same ones.
pub const BUCKETS_NS: [u64; storage::DURATION_BUCKETS_NS.len()] = storage::DURATION_BUCKETS_NS;

/// All series of one node.
#[derive(Debug)]
pub struct Metrics {
    /// One a worker, then the one that all other threads share.
    shards: Box<[Shard]>,
    taken: Box<[AtomicBool]>,
    gauges: Gauges,
    raft: Box<[[AtomicU64; RaftState::COUNT]]>,
    raft_log: Box<[AtomicU64]>,
}

#[derive(Debug, Default)]
struct Histogram {
    /// Not cumulative; the last one is above all bounds.
    buckets: [AtomicU64; BUCKETS_NS.len() + 1],
    sum_ns: AtomicU64,
}

type Counters<const N: usize> = [AtomicU64; N];

/// 128 bytes: two lines, since neighbouring lines are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    messages: [Counters<{ QosLabel::COUNT }>; Direction::COUNT],
    packets: [Counters<{ PacketLabel::COUNT }>; Direction::COUNT],
    packet_bytes: [Counters<{ PacketLabel::COUNT }>; Direction::COUNT],
    dropped: Counters<{ DropReason::COUNT }>,
    paused: Counters<{ PauseReason::COUNT }>,
    bridge_messages: Counters<{ Direction::COUNT }>,
    bridge_dropped: Counters<{ Direction::COUNT }>,
    opened: Counters<{ ProtocolLabel::COUNT }>,
    closed: Counters<{ ProtocolLabel::COUNT }>,
    close_reasons: Counters<{ CloseReason::COUNT }>,
    connects: Counters<{ ConnectOutcome::COUNT }>,
    auth: Counters<{ AuthOutcome::COUNT }>,
    ends: Counters<{ EndOutcome::COUNT }>,
    wills: Counters<{ WillEvent::COUNT }>,
    sweeps: Counters<{ SweepEvent::COUNT }>,
    takeovers: [Histogram; TakeoverOutcome::COUNT],
    isolations: [Histogram; IsolationOutcome::COUNT],
    commits: Histogram,
    stages: [Histogram; StageLabel::COUNT],
    busy_ns: AtomicU64,
    mailbox_depth: AtomicU64,
    lag_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Gauges {
    owners: Counters<{ OwnerState::COUNT }>,
    sessions: Counters<{ SessionLabel::COUNT }>,
    wills: Counters<{ WillState::COUNT }>,
    spans: [AtomicU64; 2],
    bridges: Counters<{ BridgeLabel::COUNT }>,
    subscriptions: AtomicU64,
    retained: AtomicU64,
    inboxes: AtomicU64,
    inbox_messages: AtomicU64,
    inbox_bytes: AtomicU64,
    messages_stored: AtomicU64,
    messages_resident_bytes: AtomicU64,
    queue_channels: AtomicU64,
    queue_subchannels: AtomicU64,
    queue_members: AtomicU64,
    queue_messages: AtomicU64,
    queue_bytes: AtomicU64,
    queue_reclaimable: AtomicU64,
    leases: Counters<{ LeaseLabel::COUNT }>,
    holds: Counters<{ StandingLabel::COUNT }>,
    leases_lost: AtomicU64,
    keepalive_lag_ns: AtomicU64,
    slow: Counters<{ SlowLabel::COUNT }>,
    turned: Counters<{ TurnedLabel::COUNT }>,
    levels: Counters<{ Level::COUNT }>,
    memory_used_bytes: AtomicU64,
    memory_max_bytes: AtomicU64,
    event_readers: AtomicU64,
    event_readers_dropped: AtomicU64,
    node_lease: [Counters<{ NodeLeaseLabel::COUNT }>; HomeLabel::COUNT],
    /// The store measures them itself.
    fsyncs: Histogram,
}

impl Metrics {
    /// All series at zero, for so many workers and replication groups.
    #[must_use]
    pub fn new(workers: usize, groups: usize) -> Arc<Self> {
        Arc::new(Self {
            shards: (0..=workers).map(|_| Shard::default()).collect(),
            taken: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            gauges: Gauges::default(),
            raft: (0..groups).map(|_| Default::default()).collect(),
            raft_log: (0..groups).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// The recorder of worker `index`; `None` when there is no such worker or its recorder was taken before.
    #[must_use]
    pub fn worker(self: &Arc<Self>, index: usize) -> Option<WorkerRecorder> {
        let free = !self.taken.get(index)?.swap(true, Ordering::Relaxed);
        free.then(|| Recorder { metrics: Arc::clone(self), shard: index, writer: PhantomData })
    }

    /// The recorder of everything that is not a worker; cheap to clone, safe on any thread.
    #[must_use]
    pub fn control(self: &Arc<Self>) -> ControlRecorder {
        Recorder { metrics: Arc::clone(self), shard: self.shards.len() - 1, writer: PhantomData }
    }

    /// The owner registry, as last sampled.
    pub fn set_owners(&self, sample: &session::owner::Snapshot) {
        let values = [
            (OwnerState::Held, sample.held),
            (OwnerState::Pending, sample.pending),
            (OwnerState::Active, sample.active),
            (OwnerState::Closing, sample.closing),
            (OwnerState::Operations, sample.operations),
            (OwnerState::Deadlines, sample.deadlines),
            (OwnerState::Uncertain, sample.uncertain),
        ];
        for (state, value) in values {
            self.gauges.owners[state as usize].store(value as u64, Ordering::Relaxed);
        }
    }

    /// The totals over all groups, as last sampled.
    pub fn set_store(&self, total: &session::lifecycle::GroupStat) {
        let gauges = &self.gauges;
        let values = [
            (&gauges.sessions[SessionLabel::Active as usize], total.sessions_active),
            (&gauges.sessions[SessionLabel::Offline as usize], total.sessions_offline),
            (&gauges.sessions[SessionLabel::Ended as usize], total.sessions_ended),
            (&gauges.wills[WillState::Armed as usize], total.wills_armed),
            (&gauges.wills[WillState::Waiting as usize], total.wills_waiting),
            (&gauges.wills[WillState::Ready as usize], total.wills_ready),
            (&gauges.retained, total.retained),
            (&gauges.inboxes, total.inboxes),
            (&gauges.inbox_messages, total.inbox_messages),
            (&gauges.inbox_bytes, total.inbox_bytes),
            (&gauges.messages_stored, total.messages_stored),
            (&gauges.messages_resident_bytes, total.messages_resident_bytes),
        ];
        for (gauge, value) in values {
            gauge.store(value, Ordering::Relaxed);
        }
    }

    /// The queue layer over all groups, and the leases that this process holds, as last sampled.
    pub fn set_queues(&self, queued: &crate::shared::Queued) {
        let gauges = &self.gauges;
        let (space, leases, holds) = (&queued.space, &queued.leases, &queued.holds);
        let lag_ns = u64::try_from(holds.lag.as_nanos()).unwrap_or(u64::MAX);
        let values = [
            (&gauges.queue_channels, space.channels),
            (&gauges.queue_subchannels, space.subs),
            (&gauges.queue_members, space.members),
            (&gauges.queue_messages, space.messages),
            (&gauges.queue_bytes, space.bytes),
            (&gauges.queue_reclaimable, space.reclaimable),
            (&gauges.leases[LeaseLabel::Held as usize], leases.held),
            (&gauges.leases[LeaseLabel::Armed as usize], leases.armed),
            (&gauges.leases[LeaseLabel::Delegated as usize], leases.delegated),
            (&gauges.holds[StandingLabel::Held as usize], holds.held),
            (&gauges.holds[StandingLabel::AtRisk as usize], holds.at_risk),
            (&gauges.leases_lost, holds.lost),
            (&gauges.keepalive_lag_ns, lag_ns),
        ];
        for (gauge, value) in values {
            gauge.store(value, Ordering::Relaxed);
        }
        for (home, of_home) in gauges.node_lease.iter().enumerate() {
            for (state, gauge) in of_home.iter().enumerate() {
                let is_it = home == queued.node.home as usize && state == queued.node.state as usize;
                gauge.store(u64::from(is_it), Ordering::Relaxed);
            }
        }
    }

    /// A bridge came to be (`from` none), is gone (`to` none), or changed its state.
    pub fn bridge_state(&self, from: Option<BridgeState>, to: Option<BridgeState>) {
        let cell = |state: BridgeState| &self.gauges.bridges[BridgeLabel::from(state) as usize];
        if let Some(to) = to {
            cell(to).fetch_add(1, Ordering::Relaxed);
        }
        if let Some(from) = from {
            cell(from).fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Slow operations, and who watches events, as last sampled.
    pub fn set_watch(&self, slow: &SlowLog, events: &Feed) {
        let gauges = &self.gauges;
        for (cell, count) in gauges.slow.iter().zip(slow.counts()) {
            cell.store(count, Ordering::Relaxed);
        }
        gauges.event_readers.store(events.readers() as u64, Ordering::Relaxed);
        gauges.event_readers_dropped.store(events.readers_dropped(), Ordering::Relaxed);
    }

    /// Sockets turned away before their CONNECT since the start, in the order of [`TurnedLabel::ALL`].
    pub fn set_turned(&self, turned: &[u64; TurnedLabel::COUNT]) {
        for (cell, count) in self.gauges.turned.iter().zip(turned) {
            cell.store(*count, Ordering::Relaxed);
        }
    }

    /// How loaded the node is.
    pub fn set_level(&self, level: Level) {
        for (cell, of) in self.gauges.levels.iter().zip(Level::ALL) {
            cell.store(u64::from(*of == level), Ordering::Relaxed);
        }
    }

    /// How late a worker was at most since the sample before; one that does not exist is ignored.
    pub fn set_worker_lag(&self, worker: usize, lag_ns: u64) {
        if let Some(shard) = self.shards[..self.shards.len() - 1].get(worker) {
            shard.lag_ns.store(lag_ns, Ordering::Relaxed);
        }
    }

    /// Memory that the process has for itself, and what it may have; 0: not known.
    pub fn set_memory(&self, used_bytes: u64, max_bytes: u64) {
        self.gauges.memory_used_bytes.store(used_bytes, Ordering::Relaxed);
        self.gauges.memory_max_bytes.store(max_bytes, Ordering::Relaxed);
    }

    /// Messages dropped since the start, by reason, over all workers.
    #[must_use]
    pub fn drops(&self) -> [u64; DropReason::COUNT] {
        std::array::from_fn(|reason| {
            let of = |shard: &Shard| shard.dropped[reason].load(Ordering::Relaxed);
            self.shards.iter().map(of).fold(0, u64::wrapping_add)
        })
    }

    /// How long the stages of [`StageLabel::ALL`] took since the start, over all workers.
    #[must_use]
    pub fn stages(&self) -> [storage::Durations; StageLabel::COUNT] {
        std::array::from_fn(|stage| {
            let mut sum = storage::Durations::default();
            for shard in &self.shards {
                let of = &shard.stages[stage];
                for (bucket, cell) in sum.buckets.iter_mut().zip(&of.buckets) {
                    *bucket = bucket.wrapping_add(cell.load(Ordering::Relaxed));
                }
                sum.sum_ns = sum.sum_ns.wrapping_add(of.sum_ns.load(Ordering::Relaxed));
            }
            sum
        })
    }

    /// Fsyncs of the log since the start, as last sampled.
    pub fn set_fsyncs(&self, times: &storage::Durations) {
        for (cell, count) in self.gauges.fsyncs.buckets.iter().zip(times.buckets) {
            cell.store(count, Ordering::Relaxed);
        }
        self.gauges.fsyncs.sum_ns.store(times.sum_ns, Ordering::Relaxed);
    }

    /// Subscriptions in the routing index, as last sampled.
    pub fn set_subscriptions(&self, subscriptions: u64) {
        self.gauges.subscriptions.store(subscriptions, Ordering::Relaxed);
    }

    /// Last entry of a group's log on this node.
    pub fn set_raft_log_index(&self, group: usize, index: u64) {
        if let Some(cell) = self.raft_log.get(group) {
            cell.store(index, Ordering::Relaxed);
        }
    }

    /// The role of this node in a group; a group that does not exist is ignored.
    pub fn set_raft_state(&self, group: usize, state: RaftState) {
        let Some(cells) = self.raft.get(group) else { return };
        for label in RaftState::ALL {
            cells[*label as usize].store(u64::from(*label == state), Ordering::Relaxed);
        }
    }

    /// Prometheus text format 0.0.4, every series present.
    #[must_use]
    pub fn render(&self) -> String {
        render::render(self)
    }
}

/// How a recorder adds; see [`Exclusive`] and [`Shared`].
pub trait Writer {
    #[doc(hidden)]
    fn add(cell: &AtomicU64, n: u64);
}

/// One thread writes the shard: a load and a store, no locked instruction. Not `Sync`, and handed out once a worker.
#[derive(Debug)]
pub struct Exclusive(PhantomData<Cell<()>>);

/// Many threads write the shard.
#[derive(Debug)]
pub struct Shared;

impl Writer for Exclusive {
    #[inline]
    fn add(cell: &AtomicU64, n: u64) {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

impl Writer for Shared {
    #[inline]
    fn add(cell: &AtomicU64, n: u64) {
        cell.fetch_add(n, Ordering::Relaxed);
    }
}

/// Counts into one shard.
#[derive(Debug)]
pub struct Recorder<W> {
    metrics: Arc<Metrics>,
    shard: usize,
    writer: PhantomData<W>,
}

/// For the hot path of one worker.
pub type WorkerRecorder = Recorder<Exclusive>;
/// For the control runtime and everything else.
pub type ControlRecorder = Recorder<Shared>;

impl Clone for ControlRecorder {
    fn clone(&self) -> Self {
        Self { metrics: Arc::clone(&self.metrics), shard: self.shard, writer: PhantomData }
    }
}

impl<W: Writer> Recorder<W> {
    #[inline]
    fn shard(&self) -> &Shard {
        &self.metrics.shards[self.shard]
    }

    /// Application messages: taken from publishers (`In`), handed to subscribers (`Out`).
    #[inline]
    pub fn messages(&self, direction: Direction, qos: QosLabel, count: u64) {
        W::add(&self.shard().messages[direction as usize][qos as usize], count);
    }

    /// Packets of one type and all their bytes: complete ones from clients (`In`), queued for clients (`Out`).
    pub fn packets(&self, direction: Direction, packet: PacketLabel, count: u64, bytes: u64) {
        W::add(&self.shard().packets[direction as usize][packet as usize], count);
        W::add(&self.shard().packet_bytes[direction as usize][packet as usize], bytes);
    }

    #[inline]
    pub fn dropped(&self, reason: DropReason, count: u64) {
        W::add(&self.shard().dropped[reason as usize], count);
    }

    /// A connection is not read for a while.
    pub fn pause(&self, reason: PauseReason) {
        W::add(&self.shard().paused[reason as usize], 1);
    }

    /// Spans that a collector took, and that were dropped.
    pub fn spans(&self, sent: u64, dropped: u64) {
        let [of_sent, of_dropped] = &self.metrics.gauges.spans;
        of_sent.fetch_add(sent, Ordering::Relaxed);
        of_dropped.fetch_add(dropped, Ordering::Relaxed);
    }

    /// Messages of bridges, (passed on, dropped), by direction.
    pub fn bridged(&self, out: (u64, u64), of_in: (u64, u64)) {
        let shard = self.shard();
        for (direction, (passed, dropped)) in [(Direction::Out, out), (Direction::In, of_in)] {
            W::add(&shard.bridge_messages[direction as usize], passed);
            W::add(&shard.bridge_dropped[direction as usize], dropped);
        }
    }

    pub fn connection_opened(&self, protocol: ProtocolLabel) {
        W::add(&self.shard().opened[protocol as usize], 1);
    }

    /// Call it once for each `connection_opened`, on any recorder.
    pub fn connection_closed(&self, protocol: ProtocolLabel, reason: CloseReason) {
        W::add(&self.shard().closed[protocol as usize], 1);
        W::add(&self.shard().close_reasons[reason as usize], 1);
    }

    pub fn connect(&self, outcome: ConnectOutcome) {
        W::add(&self.shard().connects[outcome as usize], 1);
    }

    pub fn auth(&self, outcome: AuthOutcome) {
        W::add(&self.shard().auth[outcome as usize], 1);
    }

    pub fn end(&self, outcome: EndOutcome) {
        W::add(&self.shard().ends[outcome as usize], 1);
    }

    pub fn will(&self, event: WillEvent) {
        W::add(&self.shard().wills[event as usize], 1);
    }

    pub fn sweep(&self, event: SweepEvent, count: u64) {
        W::add(&self.shard().sweeps[event as usize], count);
    }

    /// From the authenticated CONNECT that met an active owner to its answer.
    pub fn takeover(&self, outcome: TakeoverOutcome, elapsed_ns: u64) {
        Self::observe(&self.shard().takeovers[outcome as usize], elapsed_ns);
    }

    /// From the fence to the proof, or to giving up.
    pub fn isolation(&self, outcome: IsolationOutcome, elapsed_ns: u64) {
        Self::observe(&self.shard().isolations[outcome as usize], elapsed_ns);
    }

    /// From a worker's proposal to the turn that takes its reply.
    #[inline]
    pub fn commit(&self, elapsed_ns: u64) {
        Self::observe(&self.shard().commits, elapsed_ns);
    }

    /// A message passed a stage on its way through an inbox.
    #[inline]
    pub fn stage(&self, stage: StageLabel, elapsed_ns: u64) {
        Self::observe(&self.shard().stages[stage as usize], elapsed_ns);
    }

    /// Time for which this worker's thread did work rather than wait for it, since its start.
    pub fn set_busy(&self, total_ns: u64) {
        self.shard().busy_ns.store(total_ns, Ordering::Relaxed);
    }

    /// Entries that wait in this worker's mailbox.
    #[inline]
    pub fn set_mailbox_depth(&self, depth: u64) {
        self.shard().mailbox_depth.store(depth, Ordering::Relaxed);
    }

    fn observe(histogram: &Histogram, elapsed_ns: u64) {
        let bucket = BUCKETS_NS.partition_point(|bound| *bound < elapsed_ns);
        W::add(&histogram.buckets[bucket], 1);
        W::add(&histogram.sum_ns, elapsed_ns);
    }
}

#[cfg(test)]
mod metrics_test;
