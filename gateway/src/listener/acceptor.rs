//! The thread that accepts: one loop a listener, each socket to the worker with the fewest connections.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;

use super::{CountGuard, Endpoint, ListenError, ListenerConfig};
use crate::driver::{Incoming, MailReceiver, Mailbox};

/// Connections that the kernel may hold before they are accepted.
const BACKLOG: i32 = 4096;
/// Sockets accepted before other listeners get their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Pause when the process has no descriptor or memory for another socket.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Chooses the worker of a socket.
pub(crate) struct Placement {
    connections: Arc<[AtomicUsize]>,
    hand_over: Box<dyn Fn(usize, Incoming) + Send + Sync>,
}

/// The accepting thread.
pub(crate) struct Acceptor {
    commands: Mailbox<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Command {
    Listen(TcpListener, Arc<Endpoint>),
    Stop,
}

impl Placement {
    pub(crate) fn new(
        connections: Arc<[AtomicUsize]>,
        hand_over: impl Fn(usize, Incoming) + Send + Sync + 'static,
    ) -> Self {
        Self { connections, hand_over: Box::new(hand_over) }
    }

    /// Hands the socket over, or drops (closes) it when its listener is full.
    fn place(&self, socket: TcpStream, address: SocketAddr, endpoint: &Arc<Endpoint>) {
        if endpoint.open.fetch_add(1, Ordering::Relaxed) >= endpoint.connections_max {
            endpoint.open.fetch_sub(1, Ordering::Relaxed);
            tracing::debug!(listener = %endpoint.name, "connection limit reached");
            return;
        }
        let loads = self.connections.iter().map(|count| count.load(Ordering::Relaxed));
        let worker = loads.enumerate().min_by_key(|(_, load)| *load).map_or(0, |(worker, _)| worker);
        // Counted here and not by the worker, so that a burst is spread as well.
        self.connections[worker].fetch_add(1, Ordering::Relaxed);
        let count =
            CountGuard { endpoint: Arc::clone(endpoint), workers: Arc::clone(&self.connections), worker };
        let endpoint = Arc::clone(endpoint);
        (self.hand_over)(worker, Incoming { socket, address, endpoint, count });
    }
}

impl Acceptor {
    pub(crate) fn start(placement: Placement) -> io::Result<Self> {
        let (commands, receiver) = Mailbox::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new()
            .name("acceptor".into())
            .spawn(move || runtime.block_on(run(&receiver, Arc::new(placement))))?;
        Ok(Self { commands, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn listen(&self, config: ListenerConfig) -> Result<SocketAddr, ListenError> {
        let address = config.address;
        let listener = bind(address).map_err(|source| ListenError::Bind { address, source })?;
        let bound = listener.local_addr().map_err(|source| ListenError::Bind { address, source })?;
        let endpoint = Arc::new(Endpoint::new(config));
        self.commands.push(Command::Listen(listener, endpoint)).map_err(|_| ListenError::Stopped)?;
        Ok(bound)
    }

    /// Closes all listening sockets; returns when they are closed.
    pub(crate) fn stop(&self) {
        drop(self.commands.push(Command::Stop));
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has closed the sockets too.
            drop(thread.join());
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
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

async fn run(commands: &MailReceiver<Command>, placement: Arc<Placement>) {
    let mut batch = Vec::new();
    loop {
        poll_fn(|cx| commands.poll_take(cx, &mut batch)).await;
        for command in batch.drain(..) {
            match command {
                Command::Stop => return,
                Command::Listen(listener, endpoint) => {
                    tokio::spawn(accept(listener, endpoint, Arc::clone(&placement)));
                }
            }
        }
    }
}

async fn accept(listener: TcpListener, endpoint: Arc<Endpoint>, placement: Arc<Placement>) {
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
        let mut accepted = 0;
        let pause = loop {
            match listener.get_ref().accept() {
                Ok((socket, address)) => placement.place(socket, address, &endpoint),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    break false;
                }
                Err(error) if is_exhaustion(&error) => {
                    tracing::warn!(%error, listener = %endpoint.name, "cannot accept for now");
                    break true;
                }
                // The peer gave up while it waited.
                Err(error) => tracing::debug!(%error, listener = %endpoint.name, "accept failed"),
            }
            accepted += 1;
            if accepted >= ACCEPTS_PER_TURN {
                break false;
            }
        };
        drop(ready);
        if pause {
            tokio::time::sleep(EXHAUSTED_PAUSE).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
