//! The peer link of this node: who is called, who is let in, and what the other parts of the broker call over it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ownerrpc::QuiesceClient;
use ownerrpc::link::services::RAFT;
use ownerrpc::link::{
    CallError, Direction, Endpoint, EndpointError, HandshakeError, LinkDown, Listener, LocalNode, Observer,
    Options, PeerInfo, Peers, RefusalKind, Security, SecurityError, SecuritySettings, Services, TlsSettings,
};
use parking_lot::Mutex;
use session::id::Boot;
use session::time::Millis;
use storage::{PeerAddress, PeerError, PeerFuture};
use tokio::time::Instant;

use super::calls::{CallFuture, NotAnswered, PeerCalls};
use crate::clock::NodeClock;
use crate::config::{Cluster, Config};

/// Time for calls under way when the links are closed.
const CLOSE_GRACE: Duration = Duration::from_millis(250);
/// Bytes of a secret file that are read.
const SECRET_FILE_BYTES_MAX: u64 = 2_048;

/// Why there is no peer link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{key} {path}: {source}", path = path.display())]
    File { key: &'static str, path: std::path::PathBuf, source: std::io::Error },
    #[error("cluster: {0}; set cluster.secret_file, or cluster.tls_cert, cluster.tls_key and cluster.tls_ca")]
    Security(#[from] SecurityError),
    #[error("cluster: {0}")]
    Endpoint(#[from] EndpointError),
    #[error("cluster.peer {address}: {source}")]
    Bind { address: SocketAddr, source: std::io::Error },
}

impl LinkError {
    /// The key that says what it is about.
    pub(crate) fn key(&self) -> &'static str {
        match self {
            Self::File { key, .. } => key,
            Self::Security(_) | Self::Endpoint(_) | Self::Bind { .. } => "cluster.peer",
        }
    }
}

/// Reads what tells peers from strangers, as a start does. Makes and changes nothing.
///
/// # Errors
/// Files that cannot be read, or that hold something else.
pub(crate) fn check(cluster: &Cluster) -> Result<(), LinkError> {
    if cluster.peer.0.is_some() {
        Security::new(&settings(cluster)?)?;
    }
    Ok(())
}

/// The links of this node. Made before the store, which calls over it; it answers once [`Links::listen`] was called.
#[derive(Debug)]
pub struct Links {
    endpoint: Arc<Endpoint>,
    peers: Arc<Peers>,
    listener: Mutex<Option<Listener>>,
    /// Where the peer port is to be opened.
    bind: SocketAddr,
    advertised: Option<Arc<str>>,
    security: Security,
    clock: Arc<NodeClock>,
}

impl Links {
    /// The links that the configuration asks for; `None`: no peer port. Must be called on the control runtime.
    ///
    /// # Errors
    /// Files that cannot be read; nothing that tells peers from strangers.
    pub fn open(
        config: &Config,
        boot: &Boot,
        cluster_id: [u8; 16],
        clock: &Arc<NodeClock>,
    ) -> Result<Option<Arc<Self>>, LinkError> {
        let Some(bind) = config.cluster.peer.0 else { return Ok(None) };
        let security = Security::new(&settings(&config.cluster)?)?;
        let node = LocalNode::new(cluster_id, boot.node_id, boot.boot_id.clone());
        let endpoint = endpoint(node, &security, clock)?;
        Ok(Some(Arc::new(Self {
            peers: Arc::new(Peers::new(Arc::clone(&endpoint))),
            endpoint,
            listener: Mutex::new(None),
            bind,
            advertised: config.cluster.advertise.as_ref().map(|advertise| advertise.0.clone()),
            security,
            clock: Arc::clone(clock),
        })))
    }

    /// Opens the peer port.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn listen(&self, services: Services) -> Result<SocketAddr, LinkError> {
        let bind = |source| LinkError::Bind { address: self.bind, source };
        let listener =
            Listener::bind(Arc::clone(&self.endpoint), self.bind, Arc::new(services)).await.map_err(bind)?;
        let address = listener.address();
        *self.listener.lock() = Some(listener);
        Ok(address)
    }

    /// Where the peer port is; `None`: not open.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.lock().as_ref().map(Listener::address)
    }

    /// Where other nodes dial this one; empty before the port is open.
    #[must_use]
    pub fn advertised(&self) -> String {
        if let Some(advertised) = &self.advertised {
            return advertised.to_string();
        }
        self.address().map_or_else(String::new, |address| address.to_string())
    }

    /// All peers that are called.
    #[must_use]
    pub fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// The asking side of Service 107.
    #[must_use]
    pub fn quiescence(&self) -> QuiesceClient {
        QuiesceClient::new(self.peers.clone())
    }

    /// An endpoint of a node that belongs to no cluster yet, to ask one whether it may come.
    ///
    /// # Errors
    /// No runtime.
    pub(super) fn joiner(&self) -> Result<Arc<Endpoint>, LinkError> {
        let own = self.endpoint.node();
        let node = LocalNode::new([0; 16], own.node_id, own.boot_id.clone());
        endpoint(node, &self.security, &self.clock)
    }

    /// Calls exactly these nodes from now on.
    pub fn follow(&self, members: &[PeerAddress]) {
        for peer in self.peers.all() {
            if !members.iter().any(|member| member.node_id == peer.node_id()) {
                drop(self.peers.remove(peer.node_id()));
            }
        }
        for member in members.iter().filter(|member| !member.address.is_empty()) {
            self.peers.set(member.node_id, &member.address);
        }
    }

    /// Closes the port and all links.
    pub async fn close(&self) {
        let listener = self.listener.lock().take();
        if let Some(listener) = listener {
            listener.close(CLOSE_GRACE).await;
        }
        self.peers.close(CLOSE_GRACE).await;
    }
}

fn endpoint(
    node: LocalNode,
    security: &Security,
    clock: &Arc<NodeClock>,
) -> Result<Arc<Endpoint>, LinkError> {
    let clock = Arc::new(LinkClock(Arc::clone(clock)));
    Ok(Endpoint::new(node, security.clone(), Options::default(), clock, Arc::new(Log))?)
}

fn settings(cluster: &Cluster) -> Result<SecuritySettings, LinkError> {
    let read = |key: &'static str, path: &std::path::PathBuf| {
        std::fs::read(path).map_err(|source| LinkError::File { key, path: path.clone(), source })
    };
    let secret = match (&cluster.secret, &cluster.secret_file) {
        (Some(secret), _) => Some(secret.0.as_bytes().to_vec()),
        (None, Some(path)) => {
            let large = std::fs::metadata(path).is_ok_and(|file| file.len() > SECRET_FILE_BYTES_MAX);
            let key = "cluster.secret_file";
            if large {
                let source = std::io::Error::other("the file is too large for a secret");
                return Err(LinkError::File { key, path: path.clone(), source });
            }
            Some(read(key, path)?.trim_ascii().to_vec())
        }
        (None, None) => None,
    };
    let tls = match (&cluster.tls_cert, &cluster.tls_key, &cluster.tls_ca) {
        (Some(certificates), Some(key), Some(authorities)) => Some(TlsSettings {
            certificates_pem: read("cluster.tls_cert", certificates)?,
            private_key_pem: read("cluster.tls_key", key)?,
            authorities_pem: read("cluster.tls_ca", authorities)?,
            node_name: None,
        }),
        _ => None,
    };
    Ok(SecuritySettings { secret, tls, trusted_network: cluster.trusted_network })
}

impl storage::Peers for Links {
    fn call(&self, to: &PeerAddress, request: Bytes, timeout: Duration) -> PeerFuture {
        if self.peers.get(to.node_id).is_none() && !to.address.is_empty() {
            self.peers.set(to.node_id, &to.address);
        }
        let (peers, node_id) = (Arc::clone(&self.peers), to.node_id);
        Box::pin(async move {
            let answer = peers.call(node_id, RAFT, request, Instant::now() + timeout).await;
            answer.map_err(|error| match error {
                CallError::TooLarge { bytes, limit, .. } => PeerError::TooLarge { node_id, bytes, limit },
                error if was_not_sent(&error) => {
                    PeerError::Unreachable { node_id, reason: error.to_string() }
                }
                error => PeerError::Unknown { node_id, reason: error.to_string() },
            })
        })
    }
}

impl PeerCalls for Links {
    fn nodes(&self) -> Vec<u64> {
        self.peers.all().iter().map(|peer| peer.node_id()).collect()
    }

    fn reachable(&self) -> Vec<u64> {
        self.peers.reachable()
    }

    fn call(&self, node_id: u64, service: u16, payload: Bytes, deadline: Instant) -> CallFuture {
        let peers = Arc::clone(&self.peers);
        Box::pin(async move {
            let answer = peers.call(node_id, service, payload, deadline).await;
            answer.map_err(|error| match error {
                CallError::Refused(refusal) => NotAnswered::Refused {
                    node_id,
                    malformed: refusal.kind == RefusalKind::Malformed,
                    reason: refusal.to_string(),
                },
                error if was_not_sent(&error) => {
                    NotAnswered::Unreachable { node_id, reason: error.to_string() }
                }
                error => NotAnswered::Unknown { node_id, reason: error.to_string() },
            })
        })
    }
}

fn was_not_sent(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. }
        | CallError::UnknownNode(_)
        | CallError::TooLarge { .. }
        | CallError::Reserved(_)
        | CallError::Busy(_) => true,
        CallError::Lost { .. } | CallError::Deadline | CallError::Refused(_) => false,
    }
}

/// The hybrid logical clock of the node, as the link tells and hears it.
#[derive(Debug)]
struct LinkClock(Arc<NodeClock>);

impl ownerrpc::link::Clock for LinkClock {
    fn now_ms(&self) -> u64 {
        self.0.millis().0
    }

    fn observe(&self, ms: u64) {
        storage::Clock::observe(&*self.0, Millis(ms));
    }
}

/// Tells the log of links that come and go. Nodes that belong to no cluster yet are let in: [`super::services`] answers them nothing but
/// the calls of a join.
#[derive(Debug)]
struct Log;

impl Observer for Log {
    fn admits(&self, _peer: &PeerInfo) -> bool {
        true
    }

    fn up(&self, direction: Direction, peer: &PeerInfo) {
        if direction == Direction::Outbound {
            tracing::info!(node_id = peer.node_id, boot = %peer.boot_id, "peer is up");
        }
    }

    fn down(&self, direction: Direction, peer: &PeerInfo, why: &LinkDown) {
        if direction == Direction::Outbound {
            tracing::warn!(node_id = peer.node_id, %why, "peer is down");
        }
    }

    fn refused(&self, address: SocketAddr, why: &HandshakeError) {
        tracing::warn!(%address, %why, "a peer was not let in");
    }

    fn unreachable(&self, node_id: u64, why: &LinkDown) {
        tracing::debug!(node_id, %why, "peer is not reachable");
    }
}
