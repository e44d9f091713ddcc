//! Why a link could not be made or did not last, and why a call has no answer.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use super::frame::Violation;
use super::hello::HelloError;
use super::refusal::Refusal;

/// Why two nodes did not become peers.
#[derive(Debug, Error)]
pub enum HandshakeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("not done within {0} ms")]
    Timeout(u64),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("the certificate is not that of node {node_id}: {source}")]
    Certificate {
        node_id: u64,
        #[source]
        source: rustls::Error,
    },
    #[error("what came is not a handshake of this link")]
    Malformed,
    #[error("hello: {0}")]
    Hello(#[from] HelloError),
    #[error("this node speaks versions {}..{} of the link, the other {}..{}", ours.0, ours.1, theirs.0, theirs.1)]
    Version { ours: (u16, u16), theirs: (u16, u16) },
    #[error("the other node belongs to another cluster")]
    Cluster,
    #[error("node {wanted} was expected, node {found} is there")]
    Node { wanted: u64, found: u64 },
    #[error("one side authenticates with the cluster secret, the other with certificates only")]
    Method,
    #[error("the other node does not know the cluster secret")]
    Proof,
    #[error("node {0} is no member of the cluster")]
    NotAdmitted(u64),
    #[error("the other node refuses: {0}")]
    Refused(Refusal),
    #[error("{0} handshakes are under way")]
    Busy(usize),
    #[error("no random numbers")]
    Random,
}

/// Why there is no link, or there is none any more.
#[derive(Debug, Error)]
pub enum LinkDown {
    #[error("cannot connect to {address}: {source}")]
    Connect {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Eof,
    #[error("nothing was heard for {0} ms")]
    Silent(u64),
    #[error("the peer took nothing for {0} ms of what waits for it")]
    Stalled(u64),
    #[error("the peer broke the rules of the link: {0}")]
    Violation(#[from] Violation),
    #[error("the peer left")]
    Left,
    #[error("the peer opened another link")]
    Replaced,
    #[error("this node closed the link")]
    Stopped,
}

/// Why a call has no answer. None of these says that the call had no effect, except where it is written.
#[derive(Debug, Clone, Error)]
pub enum CallError {
    /// Refused at once; nothing was sent.
    #[error("node {node_id} is not reachable: {why}")]
    Unreachable { node_id: u64, why: Arc<LinkDown> },
    /// No such peer is configured; nothing was sent.
    #[error("node {0} is not known")]
    UnknownNode(u64),
    /// The link was lost while the call was under way: the peer may have handled it.
    #[error("the link to node {node_id} was lost: {why}")]
    Lost { node_id: u64, why: Arc<LinkDown> },
    /// No answer in time: the peer may have handled it, or may yet.
    #[error("no answer in time")]
    Deadline,
    #[error("the peer refuses: {0}")]
    Refused(Refusal),
    /// Nothing was sent.
    #[error("a payload of {bytes} bytes for service {service} is more than the {limit} allowed")]
    TooLarge { service: u16, bytes: usize, limit: usize },
    /// Nothing was sent.
    #[error("service {0} belongs to the link itself")]
    Reserved(u16),
    /// As many callers wait as may; nothing was sent.
    #[error("too many calls to node {0} wait")]
    Busy(u64),
}
