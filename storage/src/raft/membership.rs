//! Who replicates a group: status, and changes one step at a time by its leader.
//!
//! Every node holds every group, so that each reads what it needs by itself; at most [`VOTERS_MAX`] of them vote.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::{BasicNode, ChangeMembers, ServerState};
use tokio::time::Instant;

use super::forward::{Leader, await_leader, no_leader};
use super::message::{Answer, Change, Request};
use super::service::NO_QUORUM;
use super::{Metrics, RaftGroup};
use crate::StorageError;
use crate::peers::PeerAddress;
use crate::store::GroupId;

/// Voters of a group: more would only make a commit slower.
const VOTERS_MAX: usize = 3;
/// How long one step may take; a new node receives a whole snapshot in it.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two attempts at a leader that is just changing.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a node that is to be taken in may take to answer the leader at all.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a learner may take to have the last entry before it is not made a voter.
const KEEP_UP_TIMEOUT: Duration = Duration::from_secs(3);

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

    /// Makes `node` a learner, and a voter when there is room for one; finishes a change of the voters that was cut short. Done already:
    /// nothing happens.
    pub(crate) async fn add(&self, node: &PeerAddress) -> Result<(), StorageError> {
        let learner = Change::Learner { node_id: node.node_id, address: node.address.clone() };
        self.step(learner).await?;
        let Voters { mut next, joint } = self.voters();
        let grows = next.len() < VOTERS_MAX && next.insert(node.node_id);
        if grows || joint {
            self.step(Change::Voters(next)).await?;
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

    /// Takes `node_id` out; a learner that keeps up takes its place as a voter.
    pub(crate) async fn remove(&self, node_id: u64) -> Result<(), StorageError> {
        self.know().await?;
        let votes = self.status().voters.contains(&node_id);
        if votes || self.voters().joint {
            self.step(Change::Without(node_id)).await?;
        }
        self.step(Change::Forget(node_id)).await
    }

    fn voters(&self) -> Voters {
        let metrics = self.raft.metrics();
        let now = metrics.borrow();
        let configs = now.membership_config.membership().get_joint_config();
        Voters { next: configs.last().cloned().unwrap_or_default(), joint: configs.len() > 1 }
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
                Leader::Here => self.change(change.clone(), deadline).await,
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
                Answer::Refused(reason) => return Err(StorageError::Unavailable(reason)),
                Answer::Failed(reason) if Instant::now() >= deadline => {
                    return Err(StorageError::Unavailable(reason));
                }
                Answer::NotLeader | Answer::Failed(_) => tokio::time::sleep(RETRY_PAUSE).await,
                other => return Err(StorageError::Unavailable(format!("unexpected answer {other:?}"))),
            }
        }
    }

    /// One step of a membership change, as the leader; it ends at `deadline`, within [`STEP_TIMEOUT`] for another node that asked.
    pub(super) async fn change(&self, change: Change, deadline: Instant) -> Answer {
        // Not while the group is handed over: the new leader would lack the entry.
        let Ok(_one) = tokio::time::timeout_at(deadline, self.gate.turn.lock()).await else {
            return Answer::Failed(
                "another change of the members, or of the leader, takes too long".to_owned(),
            );
        };
        if !self.leads() {
            return Answer::NotLeader;
        }
        let changed = match change {
            Change::Learner { node_id, address } => {
                self.take_in(PeerAddress { node_id, address }, deadline).await
            }
            Change::Voters(voters) => self.set_voters(voters, deadline).await,
            Change::Without(node_id) => self.withdraw(node_id, deadline).await,
            Change::Address { node_id, address } => {
                let node = BTreeMap::from([(node_id, BasicNode { addr: address })]);
                self.commit(ChangeMembers::SetNodes(node), deadline).await.map(drop)
            }
            Change::Forget(node_id) => {
                self.commit(ChangeMembers::RemoveNodes([node_id].into()), deadline).await.map(drop)
            }
        };
        changed.err().unwrap_or(Answer::Changed)
    }

    /// What was asked for by another node has this long.
    pub(super) fn step_deadline() -> Instant {
        Instant::now() + STEP_TIMEOUT
    }

    /// A node becomes a learner once it answers, and this returns once it has the log. A node that was never reached must not even be a
    /// learner: it would be made a voter next, and the commit of that would wait for it for ever.
    async fn take_in(&self, node: PeerAddress, deadline: Instant) -> Result<(), Answer> {
        let PeerAddress { node_id, address } = &node;
        let basic = BTreeMap::from([(*node_id, BasicNode { addr: address.clone() })]);
        let known = self.status().nodes.into_iter().find(|known| known.node_id == *node_id);
        if known.is_some_and(|known| known.address != *address && !address.is_empty()) {
            // Openraft keeps the address that it knows: the corrected one would never be dialled.
            self.commit(ChangeMembers::SetNodes(basic.clone()), deadline).await?;
        }
        if *node_id == self.machine.node_id() {
            return Ok(());
        }
        self.reach(&node).await?;
        let index = self.commit(ChangeMembers::AddNodes(basic), deadline).await?;
        self.matched(&[*node_id].into(), index, deadline).await
    }

    /// Returns once the node answered a call of this one.
    async fn reach(&self, node: &PeerAddress) -> Result<(), Answer> {
        let deadline = Instant::now() + REACH_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Err(error) = self.network.call(node, Request::ReadIndex, left).await else { return Ok(()) };
            if Instant::now() + RETRY_PAUSE >= deadline {
                let reason = format!("{error}; its address is {:?}", node.address);
                return Err(Answer::Refused(reason));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Exactly `voters` vote. Who did not before has the log up to now.
    async fn set_voters(&self, voters: BTreeSet<u64>, deadline: Instant) -> Result<(), Answer> {
        let (new, index) = {
            let metrics = self.raft.metrics();
            let now = metrics.borrow();
            let old: BTreeSet<u64> = now.membership_config.membership().voter_ids().collect();
            let index = now.membership_config.log_id().map_or(0, |id| id.index);
            (voters.difference(&old).copied().collect(), index)
        };
        self.matched(&new, index, deadline.min(Instant::now() + KEEP_UP_TIMEOUT)).await?;
        self.commit(voters, deadline).await.map(drop)
    }

    /// `node_id` does not vote any more; learners that keep up take its place.
    async fn withdraw(&self, node_id: u64, deadline: Instant) -> Result<(), Answer> {
        let Voters { next: mut voters, .. } = self.voters();
        voters.remove(&node_id);
        let others = self.status().nodes.into_iter().map(|node| node.node_id);
        let spare: BTreeSet<u64> = others.filter(|id| *id != node_id && !voters.contains(id)).collect();
        if voters.len() < VOTERS_MAX && !spare.is_empty() {
            // A change of nothing is an entry that shows who is there: one who is not would hold up every commit as a voter.
            let index = self.commit(ChangeMembers::AddNodes(BTreeMap::new()), deadline).await?;
            let until = deadline.min(Instant::now() + KEEP_UP_TIMEOUT);
            // Those that have it are taken, whether or not all have.
            let _ = self.matched(&spare, index, until).await;
            let metrics = self.raft.metrics();
            let kept_up = has(&metrics.borrow(), index);
            let room = VOTERS_MAX - voters.len();
            voters.extend(spare.intersection(&kept_up).take(room));
        }
        if voters.is_empty() {
            return Err(Answer::Refused("the last node of a cluster cannot be removed".to_owned()));
        }
        self.commit(voters, deadline).await.map(drop)
    }

    /// Commits a change of the membership and returns its index.
    async fn commit(
        &self,
        change: impl Into<ChangeMembers<u64, BasicNode>>,
        deadline: Instant,
    ) -> Result<u64, Answer> {
        match tokio::time::timeout_at(deadline, self.raft.change_membership(change, true)).await {
            Ok(Ok(written)) => Ok(written.log_id.index),
            Ok(Err(error)) => Err(Answer::Failed(error.to_string())),
            Err(_) => Err(Answer::Failed(NO_QUORUM.to_owned())),
        }
    }

    /// Returns once all of `nodes` have the log up to `index`.
    async fn matched(&self, nodes: &BTreeSet<u64>, index: u64, deadline: Instant) -> Result<(), Answer> {
        if nodes.is_empty() {
            return Ok(());
        }
        let mut metrics = self.raft.metrics();
        let all = metrics.wait_for(|now| now.replication.is_none() || has(now, index).is_superset(nodes));
        match tokio::time::timeout_at(deadline, all).await {
            Ok(Ok(now)) if now.replication.is_none() => Err(Answer::NotLeader),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Answer::Failed("the group stopped".to_owned())),
            Err(_) => Err(Answer::Failed(format!("nodes {nodes:?} do not take the log up to entry {index}"))),
        }
    }
}

/// Who votes.
struct Voters {
    /// From the end of a change of the voters on; the same as now when there is none.
    next: BTreeSet<u64>,
    /// A change was begun and is not finished: both, those before it and those after it, have to agree.
    joint: bool,
}

/// Nodes that have the log up to `index`, as their leader knows.
fn has(now: &Metrics, index: u64) -> BTreeSet<u64> {
    let matched = now.replication.iter().flatten();
    matched.filter(|(_, id)| id.is_some_and(|id| id.index >= index)).map(|(node_id, _)| *node_id).collect()
}
