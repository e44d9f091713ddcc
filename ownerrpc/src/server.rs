//! The answering side of Service 107 (owner spec §4.3).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use session::id::Owner;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use crate::link::{Answer, Call, Refusal, RefusalKind, Service};
use crate::quiesce::{Request, Response, Status};

/// Kept back from the caller's time so that status 5 still reaches it: a tenth, at most this.
const ANSWER_MARGIN: Duration = Duration::from_millis(20);

/// Why this node has no proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum QuiesceFailure {
    /// Also for everything that has no name of its own.
    #[error("isolation of the owner is not proved")]
    Unproved,
    #[error("the transport of the owner could not be closed")]
    Close,
    #[error("cancelled")]
    Cancelled,
    #[error("the deadline passed")]
    Deadline,
}

/// The proof to come.
pub type Quiescing<'a> = Pin<Box<dyn Future<Output = Result<(), QuiesceFailure>> + Send + 'a>>;

/// Proves with what this node itself knows that an owner stopped: its live registry for its current boot, receipts for older
/// ones (owner spec §10.3). It never asks another node.
pub trait Quiesce: Send + Sync {
    /// Ok only when exactly this owner is fenced, its socket closed and its work drained. The future may be dropped at the
    /// deadline: the fence stays.
    fn quiesce<'a>(&'a self, owner: &'a Owner, deadline: Instant) -> Quiescing<'a>;
}

/// Answers Service 107.
#[derive(Clone)]
pub struct QuiesceServer {
    port: Option<Arc<dyn Quiesce>>,
}

impl QuiesceServer {
    #[must_use]
    pub fn new(port: Arc<dyn Quiesce>) -> Self {
        Self { port: Some(port) }
    }

    /// Proves nothing: a node that does not serve clients.
    #[must_use]
    pub fn without_port() -> Self {
        Self { port: None }
    }
}

impl Service for QuiesceServer {
    fn call(&self, call: Call) -> Answer {
        let port = self.port.clone();
        Box::pin(answer(port, call))
    }
}

async fn answer(port: Option<Arc<dyn Quiesce>>, call: Call) -> Result<Bytes, Refusal> {
    // Opaque: what exactly is wrong is not told to the peer (owner spec §4.2).
    let Ok(Request { owner }) = Request::decode(&call.payload) else {
        return Err(Refusal::new(RefusalKind::Malformed, ""));
    };
    let status = match port {
        None => Status::Unproved,
        Some(port) => {
            let left = call.deadline.saturating_duration_since(Instant::now());
            let deadline = call.deadline - ANSWER_MARGIN.min(left / 10);
            match timeout_at(deadline, port.quiesce(&owner, deadline)).await {
                Ok(Ok(())) => Status::Quiesced,
                Ok(Err(QuiesceFailure::Unproved)) => Status::Unproved,
                Ok(Err(QuiesceFailure::Close)) => Status::Close,
                Ok(Err(QuiesceFailure::Cancelled)) => Status::Cancelled,
                Ok(Err(QuiesceFailure::Deadline)) | Err(_) => Status::Deadline,
            }
        }
    };
    // The owner was valid when it was decoded, so it can be encoded.
    Response { status, owner }.encode().map_err(|_| Refusal::new(RefusalKind::Failed, ""))
}

impl fmt::Debug for QuiesceServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuiesceServer").field("port", &self.port.is_some()).finish()
    }
}
