//! Who replicates a group: status, and changes one step at a time by its leader.
//!
//! Every node holds every group, so that each reads what it needs by itself; at most [`VOTERS_MAX`] of them vote.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::ServerState;
use tokio::time::Instant;

use super::RaftGroup;
use super::forward::{Leader, await_leader, no_leader};
use super::message::{Answer, Change, Request};
use crate::StorageError;
use crate::peers::PeerAddress;
use crate::store::GroupId;

/// Voters of a group: more would only make a commit slower.
const VOTERS_MAX: usize = 3;
/// How long one step may take; a new node receives a whole snapshot in it.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two attempts at a leader that is just changing.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What this node knows of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    pub group: GroupId,
    pub term: u64,
    /// `None`: nobody leads, or it is not known here.
    pub leader: Option<u64>,
    pub role: Role,
    /// Last entry of the log, and last one applied here.
    pub last_index: u64,
    pub applied_index: u64,
    pub voters: Vec<u64>,
    /// All nodes that receive the log, voters or not, by id.
    pub nodes: Vec<PeerAddress>,
}

/// The part that this node plays in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Leader,
    Follower,
    Candidate,
    Learner,
    /// The group stopped.
    Stopped,
}

impl RaftGroup {
    /// Whether this node leads the group, as far as it knows.
    pub(crate) fn leads(&self) -> bool {
        self.raft.metrics().borrow().state == ServerState::Leader
    }

    pub(crate) fn status(&self) -> GroupStatus {
        let metrics = self.raft.metrics();
        let now = metrics.borrow();
        let membership = now.membership_config.membership();
        let nodes =
            membership.nodes().map(|(id, node)| PeerAddress { node_id: *id, address: node.addr.clone() });
        GroupStatus {
            group: self.machine.group_id(),
            term: now.current_term,
            leader: now.current_leader,
            role: match now.state {
                ServerState::Leader => Role::Leader,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Learner => Role::Learner,
                ServerState::Shutdown => Role::Stopped,
            },
            last_index: now.last_log_index.unwrap_or_default(),
            applied_index: now.last_applied.map_or(0, |id| id.index),
            voters: membership.voter_ids().collect(),
            nodes: nodes.collect(),
        }
    }

    /// Makes `node` a learner, and a voter when there is room for one. Done already: nothing happens.
    pub(crate) async fn add(&self, node: &PeerAddress) -> Result<(), StorageError> {
        let learner = Change::Learner { node_id: node.node_id, address: node.address.clone() };
        self.step(learner).await?;
        let mut voters: BTreeSet<u64> = self.status().voters.into_iter().collect();
        if voters.len() < VOTERS_MAX && voters.insert(node.node_id) {
            self.step(Change::Voters(voters)).await?;
        }
        Ok(())
    }

    /// Says where `node` is dialled, if it takes part. Said already: nothing happens.
    pub(crate) async fn set_address(&self, node: &PeerAddress) -> Result<(), StorageError> {
        let status = self.status();
        let known = status.nodes.iter().find(|known| known.node_id == node.node_id);
        if known.is_none_or(|known| known.address == node.address) {
            return Ok(());
        }
        self.step(Change::Address { node_id: node.node_id, address: node.address.clone() }).await
    }

    /// Takes `node_id` out; a learner takes its place as a voter.
    pub(crate) async fn remove(&self, node_id: u64) -> Result<(), StorageError> {
        self.know().await?;
        let status = self.status();
        let mut voters: BTreeSet<u64> = status.voters.into_iter().collect();
        if voters.remove(&node_id) {
            let others = status.nodes.iter().map(|node| node.node_id).filter(|id| *id != node_id);
            for other in others {
                if voters.len() >= VOTERS_MAX {
                    break;
                }
                voters.insert(other);
            }
            if voters.is_empty() {
                return Err(StorageError::Unavailable(
                    "the last node of a cluster cannot be removed".to_owned(),
                ));
            }
            self.step(Change::Voters(voters)).await?;
        }
        self.step(Change::Forget(node_id)).await
    }

    /// Returns when every change that was committed is known here.
    async fn know(&self) -> Result<(), StorageError> {
        self.barrier().await.map_err(|error| StorageError::Unavailable(error.to_string()))
    }

    async fn step(&self, change: Change) -> Result<(), StorageError> {
        let deadline = Instant::now() + STEP_TIMEOUT;
        loop {
            let answer = match await_leader(&self.raft, deadline).await {
                Leader::Nobody => return Err(no_leader()),
                Leader::Here => self.change(change.clone()).await,
                Leader::There(leader) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let request = Request::Change(change.clone());
                    match self.network.call(&leader, request, left).await {
                        Ok(answer) => answer,
                        Err(error) => Answer::Failed(error.to_string()),
                    }
                }
            };
            match answer {
                // The next step is computed from what is known here.
                Answer::Changed => return self.know().await,
                Answer::Failed(reason) if Instant::now() >= deadline => {
                    return Err(StorageError::Unavailable(reason));
                }
                Answer::NotLeader | Answer::Failed(_) => tokio::time::sleep(RETRY_PAUSE).await,
                other => return Err(StorageError::Unavailable(format!("unexpected answer {other:?}"))),
            }
        }
    }
}
