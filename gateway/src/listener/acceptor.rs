//! Accepting: one loop a listener, on a worker's thread; each socket goes to the worker with the fewest connections.
//!
//! A socket that stays on the accepting worker, and with one worker all do, costs no switch between threads. Where a listener has a rate,
//! sockets above it wait unread ([`Turns`]) and are let in by turns.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;

use super::door::{Door, Turned};
use super::turns::{Bucket, Turns};
use super::{CountGuard, Endpoint, ListenError, ListenerConfig, Share};
use crate::driver::{Incoming, Socket as Accepted};

/// Connections that the kernel may hold before they are accepted.
const BACKLOG: i32 = 4096;
/// Sockets accepted before the connections of the worker get their turn.
const ACCEPTS_PER_TURN: usize = 16;
/// Pause when the process has no descriptor or memory for another socket.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// How often sockets are looked at that wait for their turn.
const TURNS_PAUSE: Duration = Duration::from_millis(100);

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
            endpoint.door.turn_away(Turned::Descriptors);
            return None;
        }
        // Behind a proxy it is the header that says whose connection it is.
        let share = match endpoint.shares.as_ref().filter(|_| !endpoint.proxy_protocol) {
            Some(shares) => match shares.enter(address.ip()) {
                None => {
                    endpoint.door.turn_away(Turned::Address);
                    return None;
                }
                share => share,
            },
            None => None,
        };
        let (worker, count) = place(&self.connections, endpoint, share)?;
        let (socket, endpoint) = (Accepted::Tcp(socket), Arc::clone(endpoint));
        Some((worker, Incoming { socket, address, endpoint, count }))
    }

    /// Gives the socket to its worker, unless there is no place for it.
    fn pass(
        &self,
        socket: TcpStream,
        address: SocketAddr,
        endpoint: &Arc<Endpoint>,
        take: &impl Fn(usize, Incoming),
    ) {
        if let Some((worker, incoming)) = self.place(socket, address, endpoint) {
            take(worker, incoming);
        }
    }
}

/// The worker with the fewest connections, and what counts one more there; none when the endpoint is full.
pub(crate) fn place(
    connections: &Arc<[AtomicUsize]>,
    endpoint: &Arc<Endpoint>,
    share: Option<Share>,
) -> Option<(usize, CountGuard)> {
    if endpoint.open.fetch_add(1, Ordering::Relaxed) >= endpoint.connections_max {
        endpoint.open.fetch_sub(1, Ordering::Relaxed);
        tracing::debug!(listener = %endpoint.name, "connection limit reached");
        endpoint.door.turn_away(Turned::Full);
        return None;
    }
    let loads = connections.iter().map(|count| count.load(Ordering::Relaxed));
    let worker = loads.enumerate().min_by_key(|(_, load)| *load).map_or(0, |(worker, _)| worker);
    // Counted here and not by the worker, so that a burst is spread as well.
    connections[worker].fetch_add(1, Ordering::Relaxed);
    Some((
        worker,
        CountGuard { endpoint: Arc::clone(endpoint), workers: Arc::clone(connections), worker, share },
    ))
}

impl Listening {
    /// Binds; the address that the listener got.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) fn bind(
        config: ListenerConfig,
        connections: Arc<[AtomicUsize]>,
        door: Arc<Door>,
    ) -> Result<(Self, SocketAddr), ListenError> {
        let address = config.address;
        let listener = bind(address).map_err(|source| ListenError::Bind { address, source })?;
        let bound = listener.local_addr().map_err(|source| ListenError::Bind { address, source })?;
        let endpoint = Arc::new(Endpoint::new(config, door));
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
        let mut queue = Queue::default();
        loop {
            let ready = if queue.turns.is_empty() {
                listener.readable().await
            } else {
                match tokio::time::timeout(queue.pause, listener.readable()).await {
                    Ok(ready) => ready,
                    // Nobody else came: those that wait go on.
                    Err(_elapsed) => {
                        queue.let_in(&endpoint, |socket, address| {
                            placement.pass(socket, address, &endpoint, &take);
                        });
                        tokio::task::yield_now().await;
                        continue;
                    }
                }
            };
            let Ok(mut ready) = ready else { return };
            let found = drain(listener.get_ref(), &endpoint, |socket, address| {
                if queue.is_needed(&endpoint) {
                    queue.push(socket, address, &endpoint);
                } else {
                    placement.pass(socket, address, &endpoint, &take);
                }
            });
            if found == Found::Nothing {
                ready.clear_ready();
            }
            drop(ready);
            queue.let_in(&endpoint, |socket, address| placement.pass(socket, address, &endpoint, &take));
            if found == Found::Exhausted {
                tokio::time::sleep(EXHAUSTED_PAUSE).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Sockets of a listener that has a rate, by turns.
#[derive(Debug, Default)]
struct Queue {
    turns: Turns,
    bucket: Bucket,
    /// How long until there is a turn, or somebody has waited too long.
    pause: Duration,
}

impl Queue {
    /// Whether sockets wait for their turn.
    fn is_needed(&self, endpoint: &Endpoint) -> bool {
        !self.turns.is_empty() || endpoint.accept_rate_max() > 0
    }

    fn push(&mut self, socket: TcpStream, address: SocketAddr, endpoint: &Endpoint) {
        // The rest of what the process may open is for files and for those that are let in.
        let is_scarce = u64::try_from(socket.as_raw_fd()).is_ok_and(|fd| fd >= endpoint.descriptors_max);
        if is_scarce {
            return endpoint.door.turn_away(Turned::Descriptors);
        }
        let until = Instant::now() + Duration::from_millis(endpoint.limits.connect_timeout_ms);
        if !self.turns.push(socket, address, until) {
            endpoint.door.turn_away(Turned::Rate);
        }
    }

    /// Lets in those whose turn it is.
    fn let_in(&mut self, endpoint: &Endpoint, pass: impl Fn(TcpStream, SocketAddr)) {
        if self.turns.is_empty() {
            return;
        }
        let now = Instant::now();
        for _ in 0..self.turns.expire(now) {
            endpoint.door.turn_away(Turned::Rate);
        }
        self.pause = TURNS_PAUSE;
        for _ in 0..ACCEPTS_PER_TURN {
            let per_sec = endpoint.accept_rate_max();
            if !self.turns.is_empty()
                && per_sec > 0
                && let Err(wait) = self.bucket.take(per_sec, now)
            {
                self.pause = self.pause.min(wait);
                return;
            }
            let Some((socket, address)) = self.turns.pop() else { return };
            pass(socket, address);
        }
        self.pause = Duration::ZERO;
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
