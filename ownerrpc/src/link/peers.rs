//! All peers that this node calls, by node id.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::RwLock;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::endpoint::Endpoint;
use super::error::CallError;
use super::peer::{Peer, PeerState};

/// The answer to come of a call.
pub type Calling<'a> = Pin<Box<dyn Future<Output = Result<Bytes, CallError>> + Send + 'a>>;

/// Calls a service of exactly one node. A simulated network is another implementation than [`Peers`].
pub trait Caller: Send + Sync {
    /// As [`Peer::call`].
    fn call(&self, node_id: u64, service: u16, payload: Bytes, deadline: Instant) -> Calling<'_>;
}

/// The peers of this node.
#[derive(Debug)]
pub struct Peers {
    endpoint: Arc<Endpoint>,
    peers: RwLock<HashMap<u64, Arc<Peer>, RandomState>>,
}

impl Peers {
    #[must_use]
    pub fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint, peers: RwLock::default() }
    }

    /// Calls `node_id` at `address` (`host:port`) from now on; links that are up stay. This node itself and node id 0 are no
    /// peers: they are ignored.
    pub fn set(&self, node_id: u64, address: &str) {
        if node_id == 0 || node_id == self.endpoint.node.node_id {
            return;
        }
        let mut peers = self.peers.write();
        match peers.get(&node_id) {
            Some(peer) if *peer.address() == *address => {}
            Some(peer) => peer.set_address(address),
            None => {
                let peer = Peer::start(Arc::clone(&self.endpoint), node_id, address);
                peers.insert(node_id, Arc::new(peer));
            }
        }
    }

    /// Calls `node_id` no more; its link is closed when the last handle is dropped.
    pub fn remove(&self, node_id: u64) -> Option<Arc<Peer>> {
        self.peers.write().remove(&node_id)
    }

    #[must_use]
    pub fn get(&self, node_id: u64) -> Option<Arc<Peer>> {
        self.peers.read().get(&node_id).cloned()
    }

    /// Every peer, by ascending node id.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Peer>> {
        let mut all: Vec<Arc<Peer>> = self.peers.read().values().cloned().collect();
        all.sort_unstable_by_key(|peer| peer.node_id());
        all
    }

    /// Node ids of the peers that can be called now.
    #[must_use]
    pub fn reachable(&self) -> Vec<u64> {
        let up = |peer: &Arc<Peer>| matches!(peer.state(), PeerState::Up(_));
        self.all().iter().filter(|peer| up(peer)).map(|peer| peer.node_id()).collect()
    }

    /// As [`Peer::call`].
    ///
    /// # Errors
    /// As [`CallError`] lists.
    pub async fn call(
        &self,
        node_id: u64,
        service: u16,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, CallError> {
        match self.get(node_id) {
            Some(peer) => peer.call(service, payload, deadline).await,
            None => Err(CallError::UnknownNode(node_id)),
        }
    }

    /// Closes all links side by side, as [`Peer::close`] does.
    pub async fn close(&self, grace: Duration) {
        let peers: Vec<Arc<Peer>> = self.peers.write().drain().map(|(_, peer)| peer).collect();
        let mut closing = JoinSet::new();
        for peer in peers {
            closing.spawn(async move { peer.close(grace).await });
        }
        closing.join_all().await;
    }
}

impl Caller for Peers {
    fn call(&self, node_id: u64, service: u16, payload: Bytes, deadline: Instant) -> Calling<'_> {
        Box::pin(self.call(node_id, service, payload, deadline))
    }
}
