//! How a node gets into a cluster: what the node that joins asks (service 150), and what a member answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ownerrpc::link::services::CLUSTER;
use ownerrpc::link::{
    Answer, Call, CallError, HandshakeError, LinkDown, Peer, Refusal, RefusalKind, Service,
};
use serde::{Deserialize, Serialize};
use session::id::Boot;
use storage::{PeerAddress, Store};
use tokio::time::Instant;

use super::farewell::{Farewell, Reacting, Served};
use super::link::Links;
use super::mark::{Mark, Stage, hex, unhex};
use crate::clock::NodeClock;

/// How long the first question may take.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one request to be taken in may take; it is repeated.
const TAKE_IN_TIMEOUT: Duration = Duration::from_secs(50);

/// Nodes that are asked whether this one was taken out, at most.
const ASKED_MAX: usize = 3;

/// How long a node waits for its turn to be taken in.
const TURN_TIMEOUT: Duration = Duration::from_secs(40);

/// What a node that joins asks, as JSON: rare, and read by people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
enum Question {
    /// Whether a node with this id and this many groups may come.
    MayJoin { node_id: u64, groups: u16 },
    /// Take this node into every group.
    TakeIn { node_id: u64, address: String },
    /// Whether this node is in any group.
    IsIn { node_id: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum Told {
    Welcome { cluster_id: String, node_id: u64 },
    TakenIn,
    In { any: bool },
    No { reason: String },
}

/// Why a node may not join.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error(
        "this node has no peer port; set cluster.peer and its secret or certificates, and start it again"
    )]
    NoPeerPort,
    #[error("{0}")]
    Refused(String),
    #[error("{0}; some groups may have done it: the same command again goes on where this one stopped")]
    HalfDone(String),
    #[error("{seed} cannot be asked: {reason}")]
    Unreachable { seed: String, reason: String },
    #[error("{0}")]
    Io(String),
}

/// Answers service 150.
#[derive(Clone)]
pub(crate) struct JoinService {
    store: Store,
    data_dir: Arc<std::path::Path>,
    cluster_id: [u8; 16],
    node_id: u64,
    groups: u16,
    reacting: Reacting,
    /// One node comes at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl JoinService {
    pub(crate) fn new(
        store: Store,
        data_dir: &std::path::Path,
        node_id: u64,
        (clock, served): (Arc<NodeClock>, Served),
    ) -> Self {
        Self {
            reacting: Reacting { store: store.clone(), clock, served: Arc::new(served) },
            data_dir: data_dir.into(),
            cluster_id: store.identity().cluster_id,
            node_id,
            groups: store.groups(),
            store,
            turn: Arc::default(),
        }
    }

    async fn told(&self, question: Question, is_member: bool) -> Told {
        let refuse = |reason: String| Told::No { reason };
        if !matches!(Mark::read(&self.data_dir), Ok(Some(Mark { stage: Stage::Member, .. }))) {
            return refuse(format!(
                "node {} is no member of a cluster; run `exactmq cluster init` on the first node",
                self.node_id
            ));
        }
        match question {
            Question::MayJoin { groups, .. } if groups != self.groups => refuse(format!(
                "this cluster has {} groups, the node that joins {groups}: set cluster.groups on it",
                self.groups
            )),
            Question::MayJoin { node_id, .. } if self.knows(node_id) => refuse(taken(node_id)),
            Question::MayJoin { .. } => {
                Told::Welcome { cluster_id: hex(&self.cluster_id), node_id: self.node_id }
            }
            Question::TakeIn { .. } | Question::IsIn { .. } if !is_member => {
                refuse("ask whether you may join first".to_owned())
            }
            Question::IsIn { node_id } => Told::In { any: self.knows(node_id) },
            Question::TakeIn { node_id, address } => {
                // Who waited as long as it is listened to asks again; otherwise those that wait would add up.
                let Ok(_turn) = tokio::time::timeout(TURN_TIMEOUT, self.turn.lock()).await else {
                    return refuse("another node is being taken in".to_owned());
                };
                match self.store.add_node(&PeerAddress { node_id, address }).await {
                    Ok(()) => Told::TakenIn,
                    Err(error) => refuse(error.to_string()),
                }
            }
        }
    }

    /// What another member that stops says.
    fn hear(&self, farewell: Farewell, peer: &ownerrpc::link::PeerInfo) -> Answer {
        let boot = Boot { node_id: peer.node_id, boot_id: Arc::clone(&peer.boot_id) };
        let reacting = self.reacting.clone();
        Box::pin(async move {
            // In a task of its own: what was begun is finished also when the caller is gone.
            let reaction = tokio::spawn(async move { reacting.react(boot, farewell).await }).await;
            let reaction = reaction.map_err(|_| Refusal::new(RefusalKind::Failed, ""))?;
            serde_json::to_vec(&reaction).map(Bytes::from).map_err(|_| Refusal::new(RefusalKind::Failed, ""))
        })
    }

    fn knows(&self, node_id: u64) -> bool {
        let status = self.store.status();
        node_id == self.node_id
            || status.iter().any(|group| group.nodes.iter().any(|node| node.node_id == node_id))
    }
}

impl Service for JoinService {
    fn call(&self, call: Call) -> Answer {
        if call.peer.cluster_id == self.cluster_id
            && let Ok(farewell) = serde_json::from_slice(&call.payload)
        {
            return self.hear(farewell, &call.peer);
        }
        let service = self.clone();
        Box::pin(async move {
            let question: Question = serde_json::from_slice(&call.payload)
                .map_err(|_| Refusal::new(RefusalKind::Malformed, "not a question of a join"))?;
            if let Question::TakeIn { node_id, .. } = &question
                && *node_id != call.peer.node_id
            {
                return Err(Refusal::new(RefusalKind::Malformed, "a node joins for itself"));
            }
            let is_member = call.peer.cluster_id == service.cluster_id;
            // In a task of its own: a step that was begun is finished also when the caller is gone.
            let told = tokio::spawn(async move { service.told(question, is_member).await }).await;
            let told = told.map_err(|_| Refusal::new(RefusalKind::Failed, ""))?;
            serde_json::to_vec(&told).map(Bytes::from).map_err(|_| Refusal::new(RefusalKind::Failed, ""))
        })
    }
}

/// Asks `seed` whether this node may join; what to remember when it may.
///
/// # Errors
/// It may not, or the seed does not answer.
pub(super) async fn may_join(
    links: &Links,
    seed: &str,
    node_id: u64,
    groups: u16,
) -> Result<Mark, JoinError> {
    let unreachable = |reason: String| JoinError::Unreachable { seed: seed.to_owned(), reason };
    let endpoint = links.joiner().map_err(|error| JoinError::Io(error.to_string()))?;
    let peer = Peer::start(endpoint, 0, seed);
    let deadline = Instant::now() + HELLO_TIMEOUT;
    let question = encode(&Question::MayJoin { node_id, groups })?;
    let answer = peer.call(CLUSTER, question, deadline).await;
    peer.close(Duration::ZERO).await;
    let answer = answer.map_err(|error| {
        if is_namesake(&error, node_id) {
            return JoinError::Refused(taken(node_id));
        }
        unreachable(error.to_string())
    })?;
    match serde_json::from_slice(&answer) {
        Ok(Told::Welcome { cluster_id, node_id: seed_id }) => {
            let id = unhex(&cluster_id).ok_or_else(|| unreachable("its cluster id is damaged".to_owned()))?;
            Ok(Mark::new(id, Stage::Joining { seed_id, seed: seed.to_owned(), emptied: false }))
        }
        Ok(Told::No { reason }) => Err(JoinError::Refused(reason)),
        Ok(Told::TakenIn | Told::In { .. }) | Err(_) => {
            Err(unreachable("it does not answer as a member does".to_owned()))
        }
    }
}

/// Asks the seed to take this node in; returns what kept it from that, if anything did.
pub(super) async fn take_in(
    links: &Links,
    seed_id: u64,
    node_id: u64,
    address: String,
) -> Result<(), JoinError> {
    let question = encode(&Question::TakeIn { node_id, address })?;
    let answer = links.peers().call(seed_id, CLUSTER, question, Instant::now() + TAKE_IN_TIMEOUT).await;
    let unreachable = |error: CallError| JoinError::Unreachable {
        seed: format!("node {seed_id}"),
        reason: error.to_string(),
    };
    match serde_json::from_slice(&answer.map_err(unreachable)?) {
        Ok(Told::TakenIn) => Ok(()),
        Ok(Told::No { reason }) => Err(JoinError::Refused(reason)),
        Ok(Told::Welcome { .. } | Told::In { .. }) | Err(_) => {
            Err(JoinError::Refused("an answer to another question".to_owned()))
        }
    }
}

/// Whether another node says that this one is in no group, and none that it is.
pub(super) async fn is_removed(links: &Links, node_id: u64) -> bool {
    let Ok(question) = encode(&Question::IsIn { node_id }) else { return false };
    let mut removed = false;
    for peer in links.peers().reachable().into_iter().filter(|peer| *peer != node_id).take(ASKED_MAX) {
        let deadline = Instant::now() + HELLO_TIMEOUT;
        let Ok(answer) = links.peers().call(peer, CLUSTER, question.clone(), deadline).await else {
            continue;
        };
        match serde_json::from_slice(&answer) {
            Ok(Told::In { any: true }) => return false,
            Ok(Told::In { any: false }) => removed = true,
            _ => {}
        }
    }
    removed
}

fn taken(node_id: u64) -> String {
    format!(
        "node id {node_id} is taken; give the node another node.id, or run `exactmq cluster remove {node_id}` first"
    )
}

/// The node that was asked has the id of this one: the link does not even come up.
fn is_namesake(error: &CallError, node_id: u64) -> bool {
    let CallError::Unreachable { why, .. } = error else { return false };
    matches!(&**why, LinkDown::Handshake(HandshakeError::Node { found, .. }) if *found == node_id)
}

fn encode(question: &Question) -> Result<Bytes, JoinError> {
    serde_json::to_vec(question).map(Bytes::from).map_err(|error| JoinError::Io(error.to_string()))
}
