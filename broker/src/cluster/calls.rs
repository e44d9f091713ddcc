//! Calls to the other nodes of the cluster, as the parts of the broker that make them need it. A seam, so that they can be tested
//! without a network.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;

/// Why a call to another node has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotAnswered {
    /// Nothing was sent.
    #[error("node {node_id} is not reachable: {reason}")]
    Unreachable { node_id: u64, reason: String },
    /// The node may have carried it out, or may yet.
    #[error("node {node_id} did not answer: {reason}")]
    Unknown { node_id: u64, reason: String },
    /// The node answered that it does not do it. `malformed`: it cannot read the call.
    #[error("node {node_id} refuses: {reason}")]
    Refused { node_id: u64, malformed: bool, reason: String },
}

/// The answer of a call to come.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<Bytes, NotAnswered>> + Send>>;

/// The other nodes. Service numbers are those of `ownerrpc::link::services`; who answers implements `ownerrpc::link::Service`.
pub trait PeerCalls: Send + Sync + Debug {
    /// Ids of the other members of the cluster, ascending, without this node; empty on a node that is alone.
    fn nodes(&self) -> Vec<u64>;

    /// Those of them to which a link is up at the moment, ascending. One that is dead, stopped or cut off leaves it within a second.
    fn reachable(&self) -> Vec<u64>;

    /// Calls one service of one node, once. The answer, or an error, comes by `deadline`; at once when the node is known to be
    /// unreachable. A payload is at most as large as the link's limit for its service.
    fn call(&self, node_id: u64, service: u16, payload: Bytes, deadline: Instant) -> CallFuture;
}

/// A node without peers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPeers;

impl PeerCalls for NoPeers {
    fn nodes(&self) -> Vec<u64> {
        Vec::new()
    }

    fn reachable(&self) -> Vec<u64> {
        Vec::new()
    }

    fn call(&self, node_id: u64, _service: u16, _payload: Bytes, _deadline: Instant) -> CallFuture {
        let reason = "this node is no member of a cluster".to_owned();
        Box::pin(std::future::ready(Err(NotAnswered::Unreachable { node_id, reason })))
    }
}
