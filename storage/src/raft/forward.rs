//! Proposals on their way to the leader of a group, which may be another node.
//!
//! ```text
//! this node leads:     batch ──▶ log ──▶ apply ──▶ replies
//! another one leads:   batch ──Propose──▶ its log ══replication══▶ apply here ──▶ replies
//! ```
//! Replies come from this node's own `apply` in both cases: who has one reads the change here as well.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::ServerState;
use parking_lot::Mutex;
use session::id::Boot;
use session::lifecycle::Batch;
use tokio::time::Instant;

use super::message::{Answer, Request};
use super::network::Network;
use super::proposed::Proposed;
use super::service::{LEADER_TIMEOUT, NO_QUORUM};
use super::{Metrics, Raft, RaftGroup, unavailable};
use crate::StorageError;
use crate::peers::PeerAddress;

/// How long a proposal waits for a leader, and for its own commit.
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(4);
/// The answer of the leader comes a little later than its own limit.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(4_500);
/// A leader that heard of no quorum for so long leads nobody.
const QUORUM_SILENCE_MS: u64 = 3_000;

/// Batches of this node that another one leads, until they are applied here.
#[derive(Debug)]
pub(super) struct Forwarded {
    boot: Boot,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Proposed>>,
}

impl Forwarded {
    pub(super) fn new(boot: Boot) -> Self {
        Self { boot, next: AtomicU64::new(1), waiting: Mutex::default() }
    }

    pub(super) fn boot(&self) -> &Boot {
        &self.boot
    }

    /// The number of the next batch of this boot.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn insert(&self, proposed: &Proposed) {
        self.waiting.lock().insert(proposed.serial(), proposed.clone());
    }

    fn forget(&self, serial: u64) {
        self.waiting.lock().remove(&serial);
    }

    /// The batch of this boot that was applied just now under this number, if it came back from another node.
    pub(super) fn take(&self, serial: u64, batch: &Batch) -> Option<Proposed> {
        if serial == 0 || batch.boot != self.boot {
            return None;
        }
        self.waiting.lock().remove(&serial)
    }

    /// A snapshot replaced the entries: whether ours were among them is not known.
    pub(super) fn lose_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let error = Arc::new(StorageError::Unavailable("a snapshot took the place of the log".to_owned()));
        for proposed in waiting.into_values() {
            proposed.lost(&error);
        }
    }
}

/// Who leads a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leader {
    Here,
    There(PeerAddress),
    Nobody,
}

pub(super) fn leader_of(now: &Metrics) -> Leader {
    if now.state == ServerState::Leader {
        let silent = now.millis_since_quorum_ack.is_some_and(|ms| ms > QUORUM_SILENCE_MS);
        return if silent { Leader::Nobody } else { Leader::Here };
    }
    let Some(node_id) = now.current_leader.filter(|leader| *leader != now.id) else { return Leader::Nobody };
    let nodes = now.membership_config.membership();
    match nodes.get_node(&node_id) {
        Some(node) => Leader::There(PeerAddress { node_id, address: node.addr.clone() }),
        None => Leader::Nobody,
    }
}

/// Returns who leads, as soon as anybody does, [`Leader::Nobody`] at `deadline`.
pub(super) async fn await_leader(raft: &Raft, deadline: Instant) -> Leader {
    let mut metrics = raft.metrics();
    loop {
        let leader = leader_of(&metrics.borrow_and_update());
        if leader != Leader::Nobody {
            return leader;
        }
        match tokio::time::timeout_at(deadline, metrics.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Leader::Nobody,
        }
    }
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// Applied, or lost.
    Over,
    /// Nothing was done: another node leads now.
    NotLeader,
}

/// What became of one attempt.
enum Tried {
    /// Settled, or lost.
    Over,
    /// Nothing was done.
    Again,
}

impl RaftGroup {
    /// Brings one batch into the log and waits until it is applied here, or lost. Err: openraft stopped.
    pub(super) async fn bring(&self, proposed: &Proposed) -> Result<(), StorageError> {
        if self.machine.is_alone() {
            return self.write(proposed).await.map(drop);
        }
        let deadline = Instant::now() + PROPOSE_TIMEOUT;
        loop {
            let tried = match await_leader(&self.raft, deadline).await {
                Leader::Here => match tokio::time::timeout(PROPOSE_TIMEOUT, self.write(proposed)).await {
                    Ok(Ok(Written::NotLeader)) => Tried::Again,
                    Ok(Ok(Written::Over)) => Tried::Over,
                    Ok(Err(error)) => return Err(error),
                    Err(_) => {
                        proposed.lost(&no_quorum());
                        Tried::Over
                    }
                },
                Leader::There(leader) => self.bring_there(&leader, proposed).await,
                Leader::Nobody => {
                    proposed.lost(&Arc::new(no_leader()));
                    Tried::Over
                }
            };
            match tried {
                Tried::Over => return Ok(()),
                Tried::Again if Instant::now() >= deadline => {
                    proposed.lost(&Arc::new(no_leader()));
                    return Ok(());
                }
                Tried::Again => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Writes as the leader and waits until it is applied here, or lost. Err: openraft stopped.
    pub(super) async fn write(&self, proposed: &Proposed) -> Result<Written, StorageError> {
        let open = self.gate.pass().await;
        if !self.machine.is_alone() && !self.leads() {
            return Ok(Written::NotLeader);
        }
        let written =
            self.raft.client_write_ff(proposed.clone()).await.map_err(|error| unavailable(&error))?;
        drop(open);
        tokio::select! {
            biased;
            () = proposed.settled() => {}
            answer = written => {
                let reason = match answer {
                    // `apply` has answered already.
                    Ok(Ok(_)) => return Ok(Written::Over),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "the group stopped".to_owned(),
                };
                proposed.lost(&Arc::new(StorageError::Unavailable(reason)));
            }
        }
        Ok(Written::Over)
    }

    async fn bring_there(&self, leader: &PeerAddress, proposed: &Proposed) -> Tried {
        let forwarded = self.machine.forwarded();
        forwarded.insert(proposed);
        let request = Request::Propose { serial: proposed.serial(), batch: proposed.batch().clone() };
        let network: &Network = &self.network;
        let reason = match network.call(leader, request, ANSWER_TIMEOUT).await {
            Ok(Answer::Proposed) => {
                // Committed: it comes with the log, unless this node is cut off now.
                settle(proposed, PROPOSE_TIMEOUT).await;
                forwarded.forget(proposed.serial());
                return Tried::Over;
            }
            Ok(Answer::NotLeader) | Err(crate::peers::PeerError::Unreachable { .. }) => {
                forwarded.forget(proposed.serial());
                return Tried::Again;
            }
            Ok(Answer::Failed(reason) | Answer::Refused(reason)) => reason,
            Ok(other) => format!("unexpected answer {other:?}"),
            Err(error) => error.to_string(),
        };
        forwarded.forget(proposed.serial());
        proposed.lost(&Arc::new(StorageError::Unavailable(reason)));
        Tried::Over
    }
}

/// Waits until the batch is applied; after `timeout` its fate is unknown to those who wait.
async fn settle(proposed: &Proposed, timeout: Duration) {
    if tokio::time::timeout(timeout, proposed.settled()).await.is_err() {
        proposed.lost(&no_quorum());
    }
}

fn no_quorum() -> Arc<StorageError> {
    Arc::new(StorageError::Unavailable(NO_QUORUM.to_owned()))
}

pub(super) fn no_leader() -> StorageError {
    StorageError::Unavailable("the group has no leader: a majority of its nodes is needed".to_owned())
}

/// Between two attempts at a leader that is just changing.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(20);

const _: () = assert!(LEADER_TIMEOUT.as_millis() < ANSWER_TIMEOUT.as_millis());
