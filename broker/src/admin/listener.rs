//! The socket side of the admin API: a bounded number of connections, none of them idle for long.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::stream::Stream;
use super::tls::AdminTls;
use super::{AdminState, router};

/// Open connections. At the limit the oldest one that waits for its client gives way to a new one.
const CONNECTIONS_MAX: usize = 128;
/// From the accept, or the first byte of a further request, to the end of its headers.
const HEADERS: Duration = Duration::from_secs(3);
/// From the accept to the end of the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A connection on which nothing happens for so long is closed. Longer than any call takes.
const IDLE: Duration = Duration::from_secs(30);
/// Pause after an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What connections from now on meet; a reload changes it.
pub(super) type SharedTls = Arc<Mutex<AdminTls>>;

/// Serves the API until `stop` completes and the calls under way are answered.
///
/// # Errors
/// When the socket fails.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<SharedTls>,
    state: AdminState,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let guard = Guard { listener, tls, table: Arc::default() };
    let service = router(state).into_make_service_with_connect_info::<Peer>();
    axum::serve(guard, service).with_graceful_shutdown(stop).await
}

/// Who calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, Guard>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Guard>) -> Self {
        Self(*stream.remote_addr())
    }
}

struct Guard {
    listener: TcpListener,
    tls: Option<SharedTls>,
    table: Arc<Table>,
}

/// The open connections, oldest first.
#[derive(Default)]
struct Table {
    slots: Mutex<BTreeMap<u64, Slot>>,
    /// A connection is gone.
    freed: Notify,
}

/// What the listener knows of a connection.
#[derive(Default)]
struct Slot {
    /// A request is complete and its answer has not begun.
    busy: bool,
    evicted: bool,
    waker: Option<Waker>,
}

impl Table {
    /// Waits until one more connection may be there; at the limit the oldest that holds nobody's call is closed.
    async fn make_room(&self) {
        loop {
            let freed = self.freed.notified();
            {
                let mut slots = self.slots.lock();
                if slots.len() < CONNECTIONS_MAX {
                    return;
                }
                let leaving = slots.values().filter(|slot| slot.evicted).count();
                if slots.len() - leaving >= CONNECTIONS_MAX
                    && let Some(slot) = slots.values_mut().find(|slot| !slot.busy && !slot.evicted)
                {
                    slot.evicted = true;
                    if let Some(waker) = slot.waker.take() {
                        waker.wake();
                    }
                }
            }
            freed.await;
        }
    }

    fn add(&self) -> u64 {
        let mut slots = self.slots.lock();
        let id = slots.last_key_value().map_or(0, |(last, _)| last + 1);
        slots.insert(id, Slot::default());
        id
    }

    /// Whether the connection may go on; it is woken when it may not any more.
    fn check(&self, id: u64, cx: &Context<'_>) -> io::Result<()> {
        match self.slots.lock().get_mut(&id) {
            Some(slot) if !slot.evicted => {
                slot.waker = Some(cx.waker().clone());
                Ok(())
            }
            _ => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    fn set_busy(&self, id: u64, busy: bool) {
        if let Some(slot) = self.slots.lock().get_mut(&id) {
            slot.busy = busy;
        }
    }

    fn remove(&self, id: u64) {
        self.slots.lock().remove(&id);
        self.freed.notify_one();
    }
}

impl Listener for Guard {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let _ = stream.set_nodelay(true);
                    self.table.make_room().await;
                    let local = stream.local_addr().ok();
                    let tls = self.tls.as_ref().map(|tls| tls.lock().acceptor(peer, local));
                    let stream = Stream::new(stream, tls);
                    return (Connection::new(stream, Arc::clone(&self.table)), peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "admin connection not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// ```text
/// accept ──▶ (Handshake) ──▶ Headers ──empty line──▶ Call ──first byte of the answer──▶ Between ──first byte──▶ Headers
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Handshake,
    Headers,
    Call,
    Between,
}

struct Connection {
    stream: Stream,
    phase: Phase,
    /// The bytes before were a line end: one more is the empty line.
    at_line_start: bool,
    limit: Pin<Box<Sleep>>,
    id: u64,
    table: Arc<Table>,
}

impl Connection {
    fn new(stream: Stream, table: Arc<Table>) -> Self {
        let id = table.add();
        let (phase, limit) =
            if stream.is_in_handshake() { (Phase::Handshake, HANDSHAKE) } else { (Phase::Headers, HEADERS) };
        let limit = Box::pin(sleep(limit));
        Self { stream, phase, at_line_start: false, limit, id, table }
    }

    fn limit(&mut self, limit: Duration) {
        self.limit.as_mut().reset(Instant::now() + limit);
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.table.set_busy(self.id, phase == Phase::Call);
        self.limit(if phase == Phase::Headers { HEADERS } else { IDLE });
    }

    /// What the socket said, unless it keeps us waiting for longer than it may.
    fn in_time<T>(&mut self, cx: &mut Context<'_>, said: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if self.phase == Phase::Handshake && !self.stream.is_in_handshake() {
            self.enter(Phase::Headers);
        }
        if said.is_ready() {
            return said;
        }
        ready!(self.limit.as_mut().poll(cx));
        // Polled again after it fired, a timer must be armed.
        self.limit = Box::pin(sleep_until(Instant::now() + IDLE));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn read(&mut self, bytes: &[u8]) {
        match self.phase {
            Phase::Call => self.limit(IDLE),
            _ if bytes.is_empty() => {}
            // Bytes come behind it only.
            Phase::Handshake => {}
            Phase::Between => {
                self.at_line_start = false;
                self.enter(Phase::Headers);
                self.scan(bytes);
            }
            Phase::Headers => self.scan(bytes),
        }
    }

    /// Looks for the empty line that ends the headers.
    fn scan(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' if self.at_line_start => return self.enter(Phase::Call),
                b'\n' => self.at_line_start = true,
                b'\r' => {}
                _ => self.at_line_start = false,
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.table.remove(self.id);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.table.check(self.id, cx)?;
        let before = buf.filled().len();
        let said = Pin::new(&mut self.stream).poll_read(cx, buf);
        let result = ready!(self.in_time(cx, said));
        self.read(&buf.filled()[before..]);
        Poll::Ready(result)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.table.check(self.id, cx)?;
        let said = Pin::new(&mut self.stream).poll_write(cx, bytes);
        let written = ready!(self.in_time(cx, said));
        self.enter(Phase::Between);
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.table.check(self.id, cx)?;
        let said = Pin::new(&mut self.stream).poll_flush(cx);
        self.in_time(cx, said)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.table.check(self.id, cx)?;
        let said = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.in_time(cx, said)
    }
}
