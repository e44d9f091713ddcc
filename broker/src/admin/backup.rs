//! The call that backs the node up: the bytes leave while they are made, at the pace of whoever takes them.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::SendTimeoutError};

use super::audit::{self, AuditRecord};
use super::role::Caller;
use super::{AdminState, Problem};

/// Bytes that leave at once.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for the caller; its pace is the pace of the backup then.
const PIECES_MAX: usize = 4;
/// A caller that takes no piece for so long has gone: what it reads so slowly keeps others from their backup.
const PIECE_MAX: Duration = Duration::from_secs(10);

/// One at a time: each holds a view of every group.
static RUNS: AtomicBool = AtomicBool::new(false);

struct Running;

impl Running {
    fn begin() -> Result<Self, Problem> {
        match RUNS.swap(true, Ordering::AcqRel) {
            false => Ok(Self),
            true => Err(Problem::new(409, "busy", "a backup of this node is being made; wait for its end")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNS.store(false, Ordering::Release);
    }
}

pub(super) async fn backup(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let running = Running::begin()?;
    let write = state.port.backup().await?;
    let record = AuditRecord { result: "begun".to_owned(), ..AuditRecord::of("backup", &caller.who()) };
    audit::append(&state.audit, vec![record])
        .await
        .map_err(|error| Problem::new(503, "audit", error.to_string()))?;
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let revoked = async move { state.callers.revoked(&caller).await };
    let runtime = Handle::current();
    let whole = Arc::new(AtomicBool::new(false));
    let is_whole = Arc::clone(&whole);
    tokio::task::spawn_blocking(move || {
        let _running = running;
        let mut out = Pieces::new(sender, runtime, PIECE_MAX, Box::pin(revoked));
        match write(&mut out) {
            Ok(()) => is_whole.store(true, Ordering::Release),
            Err(error) => tracing::warn!(%error, "a backup was cut short"),
        }
    });
    let headers = [
        (CONTENT_TYPE, "application/vnd.exactmq.backup"),
        (CONTENT_DISPOSITION, "attachment; filename=\"exactmq.backup\""),
    ];
    Ok((headers, Body::from_stream(Stream { pieces, whole })).into_response())
}

struct Pieces {
    sender: mpsc::Sender<Bytes>,
    piece: Vec<u8>,
    runtime: Handle,
    /// How long the caller may take for a piece.
    wait: Duration,
    /// Ends when the caller may not have it any more.
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Pieces {
    fn new(
        sender: mpsc::Sender<Bytes>,
        runtime: Handle,
        wait: Duration,
        revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> Self {
        Self { sender, piece: Vec::with_capacity(PIECE_BYTES), runtime, wait, revoked }
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        let Self { sender, runtime, wait, revoked, .. } = self;
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = revoked => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the token of the caller was revoked")),
                sent = sender.send_timeout(piece.into(), *wait) => sent.map_err(|error| match error {
                    SendTimeoutError::Timeout(_) => io::Error::new(io::ErrorKind::TimedOut, "the caller reads too slowly"),
                    SendTimeoutError::Closed(_) => io::Error::new(io::ErrorKind::BrokenPipe, "the caller has gone"),
                }),
            }
        })
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == PIECE_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() { Ok(()) } else { self.send() }
    }
}

struct Stream {
    pieces: mpsc::Receiver<Bytes>,
    /// Nothing is missing. Set before the last sender is gone.
    whole: Arc<AtomicBool>,
}

impl futures_core::Stream for Stream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = self.pieces.poll_recv(context);
        if matches!(piece, Poll::Ready(None)) && !self.whole.swap(true, Ordering::AcqRel) {
            // The connection breaks off instead of ending in order: the caller knows.
            return Poll::Ready(Some(Err(io::Error::other("the backup was cut short"))));
        }
        piece.map(|piece| piece.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P9: a caller that takes nothing does not keep the one place for a backup.
    #[tokio::test]
    async fn a_caller_that_takes_nothing_is_let_go() {
        let (sender, pieces) = mpsc::channel(1);
        let (wait, never) = (Duration::from_millis(20), Box::pin(std::future::pending()));
        let mut out = Pieces::new(sender, Handle::current(), wait, never);
        let written = tokio::task::spawn_blocking(move || {
            out.write_all(&vec![0; 3 * PIECE_BYTES]).map_err(|e| e.kind())
        });
        assert_eq!(written.await.expect("no panic"), Err(io::ErrorKind::TimedOut));
        drop(pieces);
    }

    /// A token that is taken away takes the backup with it.
    #[tokio::test]
    async fn a_backup_ends_with_its_token() {
        let (sender, mut pieces) = mpsc::channel(1);
        let (revoke, revoked) = tokio::sync::oneshot::channel::<()>();
        let revoked = Box::pin(async { drop(revoked.await) });
        let mut out = Pieces::new(sender, Handle::current(), Duration::from_secs(60), revoked);
        let written = tokio::task::spawn_blocking(move || {
            out.write_all(&vec![0; 9 * PIECE_BYTES]).map_err(|e| e.kind())
        });
        assert_eq!(pieces.recv().await.expect("a piece").len(), PIECE_BYTES);
        drop(revoke);
        assert_eq!(written.await.expect("no panic"), Err(io::ErrorKind::PermissionDenied));
    }
}
