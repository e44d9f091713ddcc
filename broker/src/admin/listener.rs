//! The socket side of the admin API: a bounded number of connections, none of them idle for long.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::{AdminState, router};

/// Open connections; more wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 128;
/// A connection on which nothing is read for so long is closed. Longer than any call takes.
const IDLE: Duration = Duration::from_secs(30);
/// Pause after an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the API until `stop` completes and the calls under way are answered.
///
/// # Errors
/// When the socket fails.
pub async fn serve(
    listener: TcpListener,
    state: AdminState,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let guard = Guard { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) };
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
    free: Arc<Semaphore>,
}

impl Listener for Guard {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let Ok(permit) = Arc::clone(&self.free).acquire_owned().await else {
                // The semaphore is never closed; were it, no connection may be let in.
                std::future::pending::<()>().await;
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let _ = stream.set_nodelay(true);
                    return (Connection { stream, idle: Box::pin(sleep(IDLE)), _permit: permit }, peer);
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

struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn touch(&mut self) {
        self.idle.as_mut().reset(Instant::now() + IDLE);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            self.touch();
            return Poll::Ready(result);
        }
        ready!(self.idle.as_mut().poll(cx));
        // Polled again after it fired, a timer must be armed.
        self.idle = Box::pin(sleep_until(Instant::now() + IDLE));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.touch();
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
