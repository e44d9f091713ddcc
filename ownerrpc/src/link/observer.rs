//! Who is told about links that come and go, and who is asked whether a node may link at all.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::error::{HandshakeError, LinkDown};

/// The node at the other end of a link, as the handshake found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    pub node_id: u64,
    pub boot_id: Arc<str>,
    /// All zeros: the node is not yet a member of any cluster.
    pub cluster_id: [u8; 16],
    /// Version of the link that both agreed on.
    pub version: u16,
    pub address: SocketAddr,
}

/// Which side opened the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// This node calls over it.
    Outbound,
    /// The peer calls over it.
    Inbound,
}

/// Called from the tasks of the links: must not block.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Whether an authenticated node may open a link to this one. A node that is not yet a member of a cluster has a
    /// [`PeerInfo::cluster_id`] of zeros; by default only members are admitted.
    fn admits(&self, peer: &PeerInfo) -> bool {
        peer.cluster_id != [0; 16]
    }

    fn up(&self, direction: Direction, peer: &PeerInfo) {
        let _ = (direction, peer);
    }

    /// Follows every `up` once.
    fn down(&self, direction: Direction, peer: &PeerInfo, why: &LinkDown) {
        let _ = (direction, peer, why);
    }

    /// Somebody connected here and did not get through the handshake.
    fn refused(&self, address: SocketAddr, why: &HandshakeError) {
        let _ = (address, why);
    }

    /// A node could not be reached; told at every attempt.
    fn unreachable(&self, node_id: u64, why: &LinkDown) {
        let _ = (node_id, why);
    }
}

/// Admits members and tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
