//! Accepting: one loop a listener, on a worker's thread; each socket goes to the worker with the fewest connections.
//!
//! A socket that stays on the accepting worker, and with one worker all do, costs no switch between threads.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;

use super::{CountGuard, Endpoint, ListenError, ListenerConfig};
use crate::driver::{Incoming, Socket as Accepted};

/// Connections that the kernel may hold before they are accepted.
const BACKLOG: i32 = 4096;
/// Sockets accepted before the connections of the worker get their turn.
const ACCEPTS_PER_TURN: usize = 16;
/// Pause when the process has no descriptor or memory for another socket.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Chooses the worker of a socket.
#[derive(Debug)]
pub(crate) struct Placement {
    connections: Arc<[AtomicUsize]>,
}

/// A bound listener on its way to the worker that accepts from it.
pub(crate) struct Listening {
    listener: TcpListener,
    endpoint: Arc<Endpoint>,
    placement: Placement,
}

impl Placement {
    /// The worker that gets the socket; none, and the socket is dropped (closed), when its listener is full.
    fn place(
        &self,
        socket: TcpStream,
        address: SocketAddr,
        endpoint: &Arc<Endpoint>,
    ) -> Option<(usize, Incoming)> {
        // The system gives the lowest free number.
        if u64::try_from(socket.as_raw_fd()).is_ok_and(|number| number >= endpoint.descriptors_max) {
            tracing::debug!(listener = %endpoint.name, "descriptors are short");
            return None;
        }
        let (worker, count) = place(&self.connections, endpoint)?;
        let (socket, endpoint) = (Accepted::Tcp(socket), Arc::clone(endpoint));
        Some((worker, Incoming { socket, address, endpoint, count }))
    }
}

/// The worker with the fewest connections, and what counts one more there; none when the endpoint is full.
pub(crate) fn place(
    connections: &Arc<[AtomicUsize]>,
    endpoint: &Arc<Endpoint>,
) -> Option<(usize, CountGuard)> {
    if endpoint.open.fetch_add(1, Ordering::Relaxed) >= endpoint.connections_max {
        endpoint.open.fetch_sub(1, Ordering::Relaxed);
        tracing::debug!(listener = %endpoint.name, "connection limit reached");
        return None;
    }
    let loads = connections.iter().map(|count| count.load(Ordering::Relaxed));
    let worker = loads.enumerate().min_by_key(|(_, load)| *load).map_or(0, |(worker, _)| worker);
    // Counted here and not by the worker, so that a burst is spread as well.
    connections[worker].fetch_add(1, Ordering::Relaxed);
    Some((worker, CountGuard { endpoint: Arc::clone(endpoint), workers: Arc::clone(connections), worker }))
}

impl Listening {
    /// Binds; the address that the listener got.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) fn bind(
        config: ListenerConfig,
        connections: Arc<[AtomicUsize]>,
    ) -> Result<(Self, SocketAddr), ListenError> {
        let address = config.address;
        let listener = bind(address).map_err(|source| ListenError::Bind { address, source })?;
        let bound = listener.local_addr().map_err(|source| ListenError::Bind { address, source })?;
        let endpoint = Arc::new(Endpoint::new(config));
        Ok((Self { listener, endpoint, placement: Placement { connections } }, bound))
    }

    /// Accepts for ever; each socket goes to `take` with the number of its worker. Dropping the future closes the listener.
    pub(crate) async fn run(self, take: impl Fn(usize, Incoming)) {
        let Self { listener, endpoint, placement } = self;
        // tokio's own listener would register each accepted socket here only to take it out again for its worker.
        #[expect(
            deprecated,
            reason = "its successor is unsafe; a TcpListener keeps its descriptor until it is dropped"
        )]
        let watched = AsyncFd::new(listener);
        let listener = match watched {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, listener = %endpoint.name, "listener cannot be watched");
                return;
            }
        };
        loop {
            let Ok(mut ready) = listener.readable().await else { return };
            let found = drain(listener.get_ref(), &endpoint, |socket, address| {
                if let Some((worker, incoming)) = placement.place(socket, address, &endpoint) {
                    take(worker, incoming);
                }
            });
            if found == Found::Nothing {
                ready.clear_ready();
            }
            drop(ready);
            if found == Found::Exhausted {
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// What the kernel has left after a turn of accepting.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Perhaps,
    /// The process has no descriptor or memory for another socket.
    Exhausted,
}

fn drain(
    listener: &TcpListener,
    endpoint: &Endpoint,
    mut accepted: impl FnMut(TcpStream, SocketAddr),
) -> Found {
    for _ in 0..ACCEPTS_PER_TURN {
        match listener.accept() {
            Ok((socket, address)) => accepted(socket, address),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Found::Nothing,
            Err(error) if is_exhaustion(&error) => {
                tracing::warn!(%error, listener = %endpoint.name, "cannot accept for now");
                return Found::Exhausted;
            }
            // The peer gave up while it waited.
            Err(error) => tracing::debug!(%error, listener = %endpoint.name, "accept failed"),
        }
    }
    Found::Perhaps
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Accepted sockets inherit it on Linux.
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
