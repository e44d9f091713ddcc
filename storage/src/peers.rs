//! The way to the other nodes, as the store needs it: requests that it does not look into go out, answers come back.
//!
//! The broker carries them over the peer link; what is inside is `storage`'s own business and has its own version.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

/// Where a node listens for peers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerAddress {
    pub node_id: u64,
    /// `host:port`.
    pub address: String,
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PeerError {
    /// The request did not leave this node.
    #[error("node {node_id} is not reachable: {reason}")]
    Unreachable { node_id: u64, reason: String },
    /// Nothing was sent: the request is larger than the link takes.
    #[error("a request of {bytes} bytes is more than the {limit} that the link to node {node_id} takes")]
    TooLarge { node_id: u64, bytes: usize, limit: usize },
    /// It may have arrived and may have been carried out.
    #[error("node {node_id} did not answer: {reason}")]
    Unknown { node_id: u64, reason: String },
}

/// The answer of a call to come.
pub type PeerFuture = Pin<Box<dyn Future<Output = Result<Bytes, PeerError>> + Send>>;

/// Calls to other nodes. `request` is for [`crate::Store::serve_peer`] of the node called.
pub trait Peers: Send + Sync + Debug {
    /// Calls `to`; the answer, or an error, comes within `timeout`.
    fn call(&self, to: &PeerAddress, request: Bytes, timeout: Duration) -> PeerFuture;
}
