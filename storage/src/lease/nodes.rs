//! Which boot of which node runs: a claim that goes with the node's lease, at a backend outside of the cluster (ADR 0010).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Alive, LeaseBackend, LeaseError, LeaseFuture, LeaseRef};

/// What a node says of itself, for operators and for whoever wants to run under the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClaim {
    pub node_id: u64,
    pub boot_id: Arc<str>,
    pub version: String,
    /// Milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Where it is reached, by the name of the listener; `peer` for other nodes.
    pub addresses: BTreeMap<String, String>,
}

/// Why a node may not run under its id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClaimError {
    /// Another boot holds it, which nothing proves to be over.
    #[error(
        "node id {} is in use: boot {} of it, version {}, at {}, holds its lease in etcd; give this node another node.id, or stop \
         that one. If nothing of it runs any more, its lease ends by itself within queue.etcd_ttl_s",
        .0.node_id, .0.boot_id, .0.version, .0.places()
    )]
    Taken(Box<NodeClaim>),
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl NodeClaim {
    fn places(&self) -> String {
        let places: Vec<String> = self.addresses.iter().map(|(name, at)| format!("{name} {at}")).collect();
        if places.is_empty() { "an unknown address".to_owned() } else { places.join(", ") }
    }
}

/// Leases that tell which boot holds them. Every call returns within the backend's own limits.
pub trait NodeLeases: LeaseBackend {
    /// Makes `claim` the one of its node, for as long as `lease` lives. A claim of the same boot under an earlier lease, and one of a boot in
    /// `ended`, which the caller can prove to be over, gives way, and its lease is revoked. Repeating it is safe.
    fn claim<'a>(
        &'a self,
        claim: &'a NodeClaim,
        lease: LeaseRef,
        ended: &'a [Arc<str>],
    ) -> LeaseFuture<'a, Result<(), ClaimError>>;
    /// All claims that stand.
    fn claims(&self) -> LeaseFuture<'_, Result<Vec<NodeClaim>, LeaseError>>;
    /// What the backend says of the lease of a boot. [`Alive::Unknown`] also when it has no record of it: a backend that lost its data, or that
    /// never had any of it, proves nothing.
    fn boot<'a>(&'a self, node_id: u64, boot_id: &'a str) -> LeaseFuture<'a, Alive>;
    /// Drops the records of boots that are over for everybody.
    fn forget<'a>(&'a self, node_id: u64, boots: &'a [Arc<str>]) -> LeaseFuture<'a, Result<(), LeaseError>>;
}
