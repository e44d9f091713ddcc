//! The peer port: authenticates who connects and answers his calls, one link per node.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::driver::Driver;
use super::endpoint::Endpoint;
use super::error::{HandshakeError, LinkDown};
use super::handshake::{self, Agreed};
use super::hello::NO_CLUSTER;
use super::inbound::{Acceptor, Handling};
use super::observer::{Direction, PeerInfo};
use super::peer::GOODBYE;
use super::refusal::{Refusal, RefusalKind};
use super::service::Service;

/// Pause when the process has no descriptor or memory for another socket.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// An open peer port. Dropping it closes the port and all its links at once.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    stop: watch::Sender<Option<Duration>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    endpoint: Arc<Endpoint>,
    service: Arc<dyn Service>,
    links: Mutex<HashMap<LinkKey, Link, RandomState>>,
    handshakes: Arc<Semaphore>,
    serials: AtomicU64,
}

/// A node that joins never takes the place of a member with the same id.
type LinkKey = (u64, bool);

struct Link {
    serial: u64,
    peer: Arc<PeerInfo>,
    replaced: oneshot::Sender<()>,
}

/// A link's place among the links, given up when it ends.
struct Registered<'a> {
    shared: &'a Shared,
    key: LinkKey,
    serial: u64,
    why: Option<LinkDown>,
}

impl Listener {
    /// Opens the peer port on the endpoint's runtime. Port 0: the system chooses.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(
        endpoint: Arc<Endpoint>,
        address: SocketAddr,
        service: Arc<dyn Service>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stop = watch::Sender::new(None);
        let shared = Arc::new(Shared {
            service,
            links: Mutex::default(),
            handshakes: Arc::new(Semaphore::new(endpoint.options.handshakes_max)),
            serials: AtomicU64::new(0),
            endpoint: Arc::clone(&endpoint),
        });
        let task = endpoint.runtime.spawn(accept(shared, listener, stop.subscribe()));
        Ok(Self { address, stop, task: Mutex::new(Some(task)) })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nobody any more, tells the peers to make no more calls, gives those under way `grace` to be answered, and closes
    /// the links.
    pub async fn close(&self, grace: Duration) {
        self.stop.send_replace(Some(grace));
        let task = self.task.lock().take();
        if let Some(task) = task {
            // Bounded by itself: see `accept`.
            let _ = task.await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

/// Accepts until it is stopped. Dropping it drops the links.
async fn accept(shared: Arc<Shared>, listener: TcpListener, mut stop: watch::Receiver<Option<Duration>>) {
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, address)) => match Arc::clone(&shared.handshakes).try_acquire_owned() {
                    Ok(slot) => {
                        links.spawn(serve(Arc::clone(&shared), tcp, address, slot, stop.clone()));
                    }
                    Err(_) => {
                        let why = HandshakeError::Busy(shared.endpoint.options.handshakes_max);
                        shared.endpoint.observer.refused(address, &why);
                    }
                },
                Err(_) => sleep(EXHAUSTED_PAUSE).await,
            },
            Some(_) = links.join_next() => {}
            _ = stop.changed() => break,
        }
    }
    drop(listener);
    let grace = stop.borrow().unwrap_or_default();
    let all = async { while links.join_next().await.is_some() {} };
    let _ = timeout(grace + 2 * GOODBYE, all).await;
}

/// One connection from its first byte to its last.
async fn serve(
    shared: Arc<Shared>,
    tcp: TcpStream,
    address: SocketAddr,
    slot: OwnedSemaphorePermit,
    mut stop: watch::Receiver<Option<Duration>>,
) {
    let endpoint = &shared.endpoint;
    let timeout_ms = endpoint.options.handshake_ms;
    let agreeing = timeout(Duration::from_millis(timeout_ms), shared.agree(tcp, address));
    let agreed = tokio::select! {
        agreed = agreeing => agreed.unwrap_or(Err(HandshakeError::Timeout(timeout_ms))),
        _ = stop.wait_for(Option::is_some) => return,
    };
    drop(slot);
    match agreed {
        Ok(agreed) => carry(&shared, agreed, stop).await,
        Err(why) => endpoint.observer.refused(address, &why),
    }
}

async fn carry(shared: &Shared, agreed: Agreed, mut stop: watch::Receiver<Option<Duration>>) {
    let Agreed { stream, peer } = agreed;
    let endpoint = &shared.endpoint;
    let handling = Arc::new(Handling::new(&endpoint.options));
    let side = Acceptor::new(
        Arc::clone(&handling),
        Arc::clone(&shared.service),
        Arc::clone(&peer),
        Arc::clone(&endpoint.limits),
    );
    let driver = Driver::new(stream, Arc::clone(&handling.outbox), side, endpoint.acceptor_environment());
    let mut driver = pin!(driver);
    let (mut registered, replaced) = shared.register(&peer);
    let grace = tokio::select! {
        why = &mut driver => {
            registered.why = Some(why);
            return;
        }
        _ = replaced => return,
        stopped = stop.wait_for(Option::is_some) => stopped.ok().and_then(|grace| *grace).unwrap_or_default(),
    };
    handling.stop();
    tokio::select! {
        _ = &mut driver => return,
        () = handling.drained() => {}
        () = sleep(grace) => {}
    }
    handling.outbox.finish();
    let _ = timeout(GOODBYE, driver).await;
}

impl Shared {
    async fn agree(&self, tcp: TcpStream, address: SocketAddr) -> Result<Agreed, HandshakeError> {
        tcp.set_nodelay(true)?;
        let security = self.endpoint.security();
        handshake::accept(&self.endpoint.node, &security, tcp, address, |peer| self.admit(peer)).await
    }

    fn admit(&self, peer: &PeerInfo) -> Result<(), Refusal> {
        if !self.endpoint.observer.admits(peer) {
            return Err(Refusal::new(RefusalKind::NotAdmitted, ""));
        }
        let links = self.links.lock();
        if links.len() >= self.endpoint.options.peers_max && !links.contains_key(&key(peer)) {
            return Err(Refusal::new(RefusalKind::Busy, "no more nodes can link to this one"));
        }
        Ok(())
    }

    /// Gives the link its place; whoever held it has lost it.
    fn register(&self, peer: &Arc<PeerInfo>) -> (Registered<'_>, oneshot::Receiver<()>) {
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let (replaced, receiver) = oneshot::channel();
        let link = Link { serial, peer: Arc::clone(peer), replaced };
        let old = self.links.lock().insert(key(peer), link);
        if let Some(old) = old {
            self.endpoint.observer.down(Direction::Inbound, &old.peer, &LinkDown::Replaced);
            let _ = old.replaced.send(());
        }
        self.endpoint.observer.up(Direction::Inbound, peer);
        if peer.cluster_id != NO_CLUSTER {
            self.endpoint.arrived(peer.node_id);
        }
        (Registered { shared: self, key: key(peer), serial, why: None }, receiver)
    }
}

fn key(peer: &PeerInfo) -> LinkKey {
    (peer.node_id, peer.cluster_id == NO_CLUSTER)
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let link = {
            let mut links = self.shared.links.lock();
            let ours = links.get(&self.key).is_some_and(|link| link.serial == self.serial);
            if ours { links.remove(&self.key) } else { None }
        };
        if let Some(link) = link {
            let why = self.why.take().unwrap_or(LinkDown::Stopped);
            self.shared.endpoint.observer.down(Direction::Inbound, &link.peer, &why);
        }
    }
}
