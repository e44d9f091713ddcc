//! The call that backs the node up: the bytes leave while they are made, at the pace of whoever takes them.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;

use super::audit::{self, AuditRecord};
use super::listener::Peer;
use super::{AdminState, Problem};

/// Bytes that leave at once.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for the caller; its pace is the pace of the backup then.
const PIECES_MAX: usize = 4;

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
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Response, Problem> {
    let running = Running::begin()?;
    let write = state.port.backup().await?;
    let record = AuditRecord { result: "begun".to_owned(), ..AuditRecord::of("backup", &peer.who()) };
    audit::append(&state.audit, vec![record])
        .await
        .map_err(|error| Problem::new(503, "audit", error.to_string()))?;
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        let _running = running;
        let mut out = Pieces { sender, piece: Vec::with_capacity(PIECE_BYTES) };
        if let Err(error) = write(&mut out) {
            tracing::warn!(%error, "a backup was cut short");
            // The connection breaks off instead of ending in order: the caller knows.
            let _ = out.sender.blocking_send(Err(io::Error::other(error)));
        }
    });
    let headers = [
        (CONTENT_TYPE, "application/vnd.exactmq.backup"),
        (CONTENT_DISPOSITION, "attachment; filename=\"exactmq.backup\""),
    ];
    Ok((headers, Body::from_stream(Stream(pieces))).into_response())
}

struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Pieces {
    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the caller has gone");
        self.sender.blocking_send(Ok(piece.into())).map_err(gone)
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

struct Stream(mpsc::Receiver<io::Result<Bytes>>);

impl futures_core::Stream for Stream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
