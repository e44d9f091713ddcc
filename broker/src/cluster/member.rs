//! This node as a member: it follows the committed membership, says where it is dialled, finishes a join, and does what operators ask.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use storage::{Formation, GroupStatus, PeerAddress, Role, Store};
use tokio::sync::Notify;

use super::calls::PeerCalls as _;
use super::join::{self, JoinError};
use super::link::Links;
use super::mark::{Mark, MarkError, Stage};
use super::services::LOOK;
use crate::clock::NodeClock;
use crate::owners::Owners;
use crate::shared::Shared;

/// How long the connections that came while the seed was asked may take to close.
const CLOSE_TIMEOUT_MS: u64 = 2_000;
/// Distance of two looks whether the others took this node out.
const REMOVAL_LOOK: Duration = Duration::from_secs(2);
/// What a node says of itself that was taken out.
pub(crate) const REMOVED: &str = "this node was removed from its cluster and serves nobody from the end of its lease on; stop it, and join with an empty data directory to bring it back";

/// What has to happen before the store of `data_dir` is opened: a join that was begun empties the node's own groups. Blocks.
///
/// # Errors
/// A mark or a directory that cannot be used.
pub fn prepare(data_dir: &Path, node_id: u64) -> Result<Formation, PrepareError> {
    let Some(mut mark) = Mark::read(data_dir)? else { return Ok(Formation::Alone) };
    let id = mark.id().unwrap_or_default();
    if let Stage::Joining { emptied, .. } = &mut mark.stage {
        if !*emptied {
            *emptied = true;
            storage::join::reset(data_dir, node_id, id)?;
            mark.write(data_dir)?;
        }
        return Ok(Formation::Join);
    }
    // Its groups exist; should they be lost, they are not made anew beside those of the others.
    Ok(Formation::Join)
}

/// Why a node with a mark does not start.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("{0}")]
    Mark(#[from] MarkError),
    #[error("{0}")]
    Storage(#[from] storage::StorageError),
}

/// The node in its cluster. Every node has one, also without a peer port.
#[derive(Debug)]
pub struct Member {
    pub node_id: u64,
    pub store: Store,
    pub owners: Arc<Owners>,
    pub links: Option<Arc<Links>>,
    pub data_dir: PathBuf,
    pub clock: NodeClock,
    /// The process starts the node anew, as one that joins.
    pub restart: Arc<Notify>,
    /// Another node says that this one is in no group any more.
    removed: AtomicBool,
    /// One operator's change at a time.
    turn: tokio::sync::Mutex<()>,
}

/// The cluster as this node sees it.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterView {
    /// `alone`, `joining`, `member` or `removed`.
    pub state: &'static str,
    pub node_id: u64,
    pub cluster_id: String,
    /// Where other nodes dial this one; `None`: no peer port.
    pub address: Option<String>,
    pub nodes: Vec<MemberView>,
    pub groups: Vec<GroupView>,
}

#[derive(Debug, Clone, Serialize)]
pub struct MemberView {
    pub node_id: u64,
    pub address: String,
    pub local: bool,
    pub reachable: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct GroupView {
    pub group: u16,
    pub term: u64,
    pub leader: Option<u64>,
    /// Of this node.
    pub role: &'static str,
    pub voters: Vec<u64>,
    pub nodes: Vec<u64>,
    pub last_index: u64,
    pub applied_index: u64,
    /// Entries of the log that are not applied here yet.
    pub lag: u64,
}

impl Member {
    #[must_use]
    pub fn new(shared: &Shared, links: Option<Arc<Links>>, data_dir: &Path) -> Self {
        Self {
            node_id: shared.boot.node_id,
            store: shared.store.clone(),
            owners: shared.owners.clone(),
            links,
            data_dir: data_dir.to_owned(),
            clock: (*shared.clock).clone(),
            restart: Arc::default(),
            removed: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
        }
    }

    fn mark(&self) -> Result<Option<Mark>, JoinError> {
        Mark::read(&self.data_dir).map_err(|error| JoinError::Io(error.to_string()))
    }

    fn write_member(&self, joined: bool) -> Result<(), JoinError> {
        let mut mark = Mark::new(self.store.identity().cluster_id, Stage::Member);
        mark.joined = joined;
        mark.write(&self.data_dir).map_err(|error| JoinError::Io(error.to_string()))
    }

    /// Members of any group, by id.
    #[must_use]
    pub fn members(&self) -> Vec<PeerAddress> {
        let mut members = BTreeMap::new();
        for node in self.store.status().into_iter().flat_map(|group| group.nodes) {
            let known = members.entry(node.node_id).or_insert_with(String::new);
            if known.is_empty() {
                *known = node.address;
            }
        }
        members.into_iter().map(|(node_id, address)| PeerAddress { node_id, address }).collect()
    }

    /// Keeps links, addresses and a join that was begun in step with what is committed. Runs until the task is dropped.
    pub async fn follow_forever(self: Arc<Self>) {
        let Some(links) = &self.links else { return };
        // Finished on its own, so that links are followed meanwhile.
        let joining = tokio::spawn({
            let me = self.clone();
            async move { me.finish_join().await }
        });
        let removal = tokio::spawn({
            let me = self.clone();
            async move { me.watch_for_removal().await }
        });
        let _aborted = (AbortOnDrop(joining), AbortOnDrop(removal));
        loop {
            let mut members = self.members();
            if let Ok(Some(Mark { stage: Stage::Joining { seed_id, seed, emptied: true }, .. })) = self.mark()
                && !members.iter().any(|member| member.node_id == seed_id)
            {
                members.push(PeerAddress { node_id: seed_id, address: seed });
            }
            links.follow(&members);
            let own = PeerAddress { node_id: self.node_id, address: links.advertised() };
            let moved = members.iter().any(|member| member.node_id == own.node_id && *member != own);
            let marked = matches!(self.mark(), Ok(Some(Mark { stage: Stage::Member, .. })));
            if moved
                && marked
                && !own.address.is_empty()
                && let Err(error) = self.store.set_address(&own).await
            {
                tracing::debug!(%error, "the address of this node is not told yet");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Nobody replicates to a node that was taken out, so it may never hear of that by itself: where a group lacks a leader or does without
    /// its vote, it asks.
    async fn watch_for_removal(&self) {
        let Some(links) = &self.links else { return };
        loop {
            tokio::time::sleep(REMOVAL_LOOK).await;
            let is_odd = |group: GroupStatus| group.leader.is_none() || !group.voters.contains(&self.node_id);
            let removed = matches!(self.mark(), Ok(Some(Mark { stage: Stage::Member, .. })))
                && self.store.status().into_iter().any(is_odd)
                && join::is_removed(links, self.node_id).await;
            if removed && !self.is_removed() {
                tracing::error!("{REMOVED}");
            }
            self.removed.store(removed, Ordering::Relaxed);
        }
    }

    /// Whether the others took this node out of the cluster, as they say.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Whether this node takes part in every group and has applied what it was given.
    fn is_in_all(&self) -> bool {
        self.store.status().iter().all(|group| {
            group.applied_index > 0 && group.nodes.iter().any(|node| node.node_id == self.node_id)
        })
    }

    async fn finish_join(&self) {
        let Some(links) = &self.links else { return };
        loop {
            let Ok(Some(Mark { stage: Stage::Joining { seed_id, .. }, .. })) = self.mark() else { return };
            let taken = join::take_in(links, seed_id, self.node_id, links.advertised()).await;
            match taken {
                Ok(()) if self.is_in_all() => match self.write_member(true) {
                    Ok(()) => {
                        tracing::info!("this node is a member of the cluster now");
                        return;
                    }
                    Err(error) => tracing::error!(%error, "the join is not recorded yet"),
                },
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "this node is not taken in yet"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Marks this node as the first of a cluster; repeating it changes nothing. Where others dial it.
    ///
    /// # Errors
    /// No peer port; it joins another cluster, or did.
    pub async fn init(&self) -> Result<String, JoinError> {
        let links = self.links.as_ref().ok_or(JoinError::NoPeerPort)?;
        let _turn = self.turn.lock().await;
        match self.mark()? {
            Some(Mark { stage: Stage::Joining { seed, .. }, .. }) => {
                return Err(JoinError::Refused(format!("this node is joining the cluster of {seed}")));
            }
            Some(Mark { joined: true, .. }) => {
                let reason = "this node is a member of a cluster already, and joined it: it is not its first";
                return Err(JoinError::Refused(reason.to_owned()));
            }
            _ => {}
        }
        self.write_member(false)?;
        let own = PeerAddress { node_id: self.node_id, address: links.advertised() };
        self.store.set_address(&own).await.map_err(|error| JoinError::Refused(error.to_string()))?;
        Ok(own.address)
    }

    /// Begins to join the cluster of the node at `seed`; the node starts anew for it. Repeating it goes on.
    ///
    /// # Errors
    /// No peer port; a node that has sessions or retained messages, or is a member already; a seed that refuses or does not answer.
    pub async fn join(&self, seed: &str) -> Result<(), JoinError> {
        let links = self.links.as_ref().ok_or(JoinError::NoPeerPort)?;
        let _turn = self.turn.lock().await;
        match self.mark()? {
            Some(Mark { stage: Stage::Joining { seed: known, .. }, .. }) if known == seed => return Ok(()),
            Some(Mark { stage: Stage::Joining { seed: known, .. }, .. }) => {
                return Err(JoinError::Refused(format!(
                    "this node is joining the cluster of {known} already"
                )));
            }
            Some(_) => {
                return Err(JoinError::Refused("this node is a member of a cluster already".to_owned()));
            }
            None => {}
        }
        self.check_fresh()?;
        let mark = join::may_join(links, seed, self.node_id, self.store.groups()).await?;
        // Nobody gets a session any more that would be lost; one that came in between is seen now, or when the node has stopped.
        self.owners.stop_admission();
        if let Err(held) = self.owners.close_all(self.clock.tick().plus_ms(CLOSE_TIMEOUT_MS)).await {
            tracing::warn!(held, "connections are not closed yet; the stop goes on with them");
        }
        let marked = self
            .check_fresh()
            .and_then(|()| mark.write(&self.data_dir).map_err(|error| JoinError::Io(error.to_string())));
        // Also when it came to nothing: this boot admits nobody any more.
        self.restart.notify_one();
        marked
    }

    fn check_fresh(&self) -> Result<(), JoinError> {
        if is_fresh(&self.store) {
            return Ok(());
        }
        let reason = "this node has sessions or retained messages, which a join would destroy; join with an empty data directory";
        Err(JoinError::Refused(reason.to_owned()))
    }

    /// Takes another node out of every group.
    ///
    /// # Errors
    /// It is this node, or unknown; no majority without it.
    pub async fn remove(&self, node_id: u64) -> Result<(), JoinError> {
        if node_id == self.node_id {
            let reason = "a node is removed by another one: ask one that stays".to_owned();
            return Err(JoinError::Refused(reason));
        }
        if !self.members().iter().any(|member| member.node_id == node_id) {
            return Err(JoinError::Refused(format!(
                "node {node_id} is no member of this cluster; `exactmq node show {node_id}` says what is left of it"
            )));
        }
        let _turn = self.turn.lock().await;
        self.store.remove_node(node_id).await.map_err(|error| JoinError::HalfDone(error.to_string()))
    }

    /// The cluster as this node sees it.
    #[must_use]
    pub fn view(&self) -> ClusterView {
        let reachable = self.links.as_ref().map(|links| links.reachable()).unwrap_or_default();
        let view = |node: PeerAddress| {
            let local = node.node_id == self.node_id;
            MemberView {
                local,
                reachable: local || reachable.contains(&node.node_id),
                node_id: node.node_id,
                address: node.address,
            }
        };
        let state = match self.mark() {
            Ok(Some(Mark { stage: Stage::Joining { .. }, .. })) => "joining",
            _ if self.is_removed() => "removed",
            Ok(Some(Mark { stage: Stage::Member, .. })) => "member",
            _ => "alone",
        };
        ClusterView {
            state,
            node_id: self.node_id,
            cluster_id: super::mark::hex(&self.store.identity().cluster_id),
            address: self.links.as_ref().map(|links| links.advertised()),
            nodes: self.members().into_iter().map(view).collect(),
            groups: self.store.status().into_iter().map(group_view).collect(),
        }
    }
}

/// Whether nothing would be lost with the groups of `store`.
#[must_use]
pub fn is_fresh(store: &Store) -> bool {
    (0..store.groups()).all(|group| {
        store.read(storage::GroupId(group), |rows| {
            let stat = rows.stat();
            stat.sessions_active + stat.sessions_offline + stat.retained + stat.wills_waiting == 0
        })
    })
}

/// A join that the stopped node cannot go on with is given up: a session came in between. Blocks.
pub fn give_up_unless_fresh(store: &Store, data_dir: &Path) {
    let Ok(Some(Mark { stage: Stage::Joining { emptied: false, .. }, .. })) = Mark::read(data_dir) else {
        return;
    };
    if is_fresh(store) {
        return;
    }
    tracing::error!("a session came while this node was about to join: it does not join");
    if let Err(error) = Mark::remove(data_dir) {
        tracing::error!(%error, "the join could not be given up");
    }
}

fn group_view(group: GroupStatus) -> GroupView {
    GroupView {
        group: group.group.0,
        term: group.term,
        leader: group.leader,
        role: match group.role {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
            Role::Stopped => "stopped",
        },
        voters: group.voters,
        nodes: group.nodes.into_iter().map(|node| node.node_id).collect(),
        last_index: group.last_index,
        applied_index: group.applied_index,
        lag: group.last_index.saturating_sub(group.applied_index),
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
