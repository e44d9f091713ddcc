//! The groups on openraft 0.9, the only module that names its types.
//!
//! ```text
//! propose ─▶ Intake ─▶ proposer task ─▶ RaftCore ─▶ LogStore ─▶ WAL (fsync) ─▶ RaftCore ─▶ Machine::apply ─▶ replies, deliveries
//! ```

mod barrier;
mod checkpoint;
mod forward;
mod hand_over;
mod intake;
mod log_store;
mod machine;
mod membership;
mod message;
mod network;
mod proposed;
mod restore;
mod service;
mod snapshot;

#[cfg(test)]
mod suite_test;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::{BasicNode, Config, ServerState, SnapshotPolicy};
use session::id::Boot;
use session::lifecycle::Batch;

pub(crate) use checkpoint::{Checkpointer, Meter};
pub(crate) use hand_over::next_step;
pub(crate) use intake::Intake;
pub(crate) use log_store::LogStore;
pub(crate) use machine::{Machine, MachineOptions};
pub use membership::{GroupStatus, Role};
pub(crate) use restore::{check_group, restore_group};
pub(crate) use snapshot::SnapshotData;

use crate::StorageError;
use crate::peers::Peers;
use crate::store::{Clock, Failure, Formation};
use proposed::Proposed;

openraft::declare_raft_types!(
    /// The types of a group.
    pub(crate) Types:
        D = Proposed,
        R = (),
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = SnapshotData,
        AsyncRuntime = openraft::TokioRuntime,
        Responder = openraft::impls::OneshotResponder<Types>,
);

pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type Membership = openraft::StoredMembership<u64, BasicNode>;
type RaftError = openraft::StorageError<u64>;
type Raft = openraft::Raft<Types>;
type Metrics = openraft::RaftMetrics<u64, BasicNode>;

/// Heartbeats and elections. A follower votes for nobody else for `ELECTION_MAX_MS` after it heard of its leader, and asks for votes itself after
/// that and a random time between the two: a dead leader is replaced after 1.8 to 2.4 s. Seven heartbeats have to be late for a
/// needless election; a slow fsync delays none, since heartbeats wait for no disk.
const HEARTBEAT_MS: u64 = 250;
const ELECTION_MIN_MS: u64 = 600;
const ELECTION_MAX_MS: u64 = 1_200;
/// Entries of one replication message.
const PAYLOAD_ENTRIES_MAX: u64 = 2_000;
/// How long a start may take to apply what the log holds behind the checkpoint.
const START_WAIT: Duration = Duration::from_secs(120);

/// Entries that stay in the log behind a checkpoint, until the next one, for followers that are a little behind: without them each
/// checkpoint would send them a whole snapshot.
const ENTRIES_KEPT: u64 = 1_000;

/// One running group of this node.
#[derive(Clone)]
pub(crate) struct RaftGroup {
    raft: Raft,
    log: LogStore,
    network: network::Network,
    pub(crate) machine: Arc<Machine>,
    pub(crate) intake: Arc<Intake>,
    barrier: Arc<barrier::Barrier>,
    gate: Arc<hand_over::Gate>,
    /// The snapshot that is being received.
    incoming: Arc<tokio::sync::Mutex<service::Incoming>>,
}

/// How a group starts.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) boot: Boot,
    pub(crate) peers: Option<Arc<dyn Peers>>,
    pub(crate) formation: Formation,
}

impl std::fmt::Debug for RaftGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaftGroup").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl RaftGroup {
    /// Starts the group. A new one that forms alone gets this node as its only voter. Where this node is the only one, it returns when
    /// it leads and has applied its log; else at once: the others may not be there yet.
    pub(crate) async fn start(
        log: LogStore,
        machine: Arc<Machine>,
        start: &Start,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StorageError> {
        let config = Config {
            cluster_name: "exactmq".to_owned(),
            heartbeat_interval: HEARTBEAT_MS,
            election_timeout_min: ELECTION_MIN_MS,
            election_timeout_max: ELECTION_MAX_MS,
            max_payload_entries: PAYLOAD_ENTRIES_MAX,
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: if start.peers.is_some() { ENTRIES_KEPT } else { 0 },
            purge_batch_size: 1,
            ..Config::default()
        };
        let config = Arc::new(config.validate().map_err(|error| unavailable(&error))?);
        let state_machine = machine::StateMachine { machine: Arc::clone(&machine), log: log.clone() };
        let node_id = start.boot.node_id;
        let network = network::Network { group: machine.group_id().0, peers: start.peers.clone() };
        let raft = Raft::new(node_id, config, network.clone(), log.clone(), state_machine)
            .await
            .map_err(|error| unavailable(&error))?;
        let (intake, barrier, gate, incoming) =
            (Arc::default(), Arc::default(), Arc::default(), Arc::default());
        let this = Self { raft, log, network, machine, intake, barrier, gate, incoming };
        let is_new = !this.raft.is_initialized().await.map_err(|error| unavailable(&error))?;
        match start.formation {
            Formation::Alone if is_new => this.initialize(node_id).await?,
            _ if is_new || !this.machine.is_alone() => {}
            _ => this.lead().await?,
        }
        tokio::spawn(intake::run(this.clone(), start.boot.clone(), clock));
        tokio::spawn(this.clone().run_barrier());
        tokio::spawn(this.clone().run_gate());
        Ok(this)
    }

    async fn initialize(&self, node_id: u64) -> Result<(), StorageError> {
        let voters = BTreeMap::from([(node_id, BasicNode::default())]);
        self.raft.initialize(voters).await.map_err(|error| unavailable(&error))?;
        self.await_leadership().await
    }

    async fn lead(&self) -> Result<(), StorageError> {
        if !self.leads() {
            self.raft.trigger().elect().await.map_err(|error| unavailable(&error))?;
        }
        self.await_leadership().await
    }

    async fn await_leadership(&self) -> Result<(), StorageError> {
        let mut metrics = self.raft.metrics();
        let ready = metrics.wait_for(|now| {
            let applied = now.last_applied.map(|id| id.index);
            now.running_state.is_err() || now.state == ServerState::Leader && applied == now.last_log_index
        });
        let now = tokio::time::timeout(START_WAIT, ready)
            .await
            .map_err(|error| unavailable(&error))?
            .map_err(|error| unavailable(&error))?
            .clone();
        now.running_state.map_err(|error| unavailable(&error))
    }

    /// Reports to `failure` when openraft stops the group on an error of its storage.
    pub(crate) fn watch(&self, failure: Arc<Failure>) {
        let mut metrics = self.raft.metrics();
        let intake = Arc::clone(&self.intake);
        tokio::spawn(async move {
            let Ok(stopped) = metrics.wait_for(|now| now.running_state.is_err()).await else { return };
            let Some(fatal) = stopped.running_state.as_ref().err().cloned() else { return };
            drop(stopped);
            if !matches!(fatal, openraft::error::Fatal::Stopped) {
                let error = StorageError::poisoned(&fatal);
                failure.set(&error);
                intake.close(Arc::new(error));
            }
        });
    }

    /// Stops taking proposals; what waits is refused.
    pub(crate) fn refuse(&self) {
        self.intake.close(Arc::new(StorageError::Unavailable("the store is closed".to_owned())));
        self.barrier.close();
    }

    /// Stops the group's tasks.
    pub(crate) async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "a group did not stop in order");
        }
    }
}

fn unavailable(error: &impl ToString) -> StorageError {
    StorageError::Unavailable(error.to_string())
}

/// Encodes a batch for the log.
fn encode_batch(batch: &Batch, out: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(batch, out).expect("a batch is plain data and a Vec grows")
}

/// Carries out a request of another node to one of `groups`.
pub(crate) async fn serve(groups: &[RaftGroup], request: &[u8]) -> Bytes {
    let answer = match message::decode::<message::Envelope>(request) {
        Ok(envelope) => match groups.get(usize::from(envelope.group)) {
            Some(group) => group.answer(envelope.request).await,
            None => message::Answer::Failed(format!("there is no group {} here", envelope.group)),
        },
        Err(error) => message::Answer::Failed(error.to_string()),
    };
    message::encode(&answer)
}
