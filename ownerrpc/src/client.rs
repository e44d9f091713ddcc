//! The asking side of Service 107 (owner spec §4.4).

use std::fmt;
use std::sync::Arc;

use session::id::Owner;
use thiserror::Error;
use tokio::time::Instant;

use crate::link::{CallError, Caller};
use crate::quiesce::{DecodeError, EncodeError, Request, Response, SERVICE, Status};

/// Why there is no proof that an owner stopped. None of these is evidence that it still runs, and none that it does not.
#[derive(Debug, Clone, Error)]
pub enum QuiesceError {
    /// The owner is not valid; nobody was asked.
    #[error("invalid owner: {0}")]
    Invalid(#[from] EncodeError),
    /// Its node cannot prove it, or answered for another owner, or nobody can be asked.
    #[error("isolation of the owner is not proved")]
    Unproved,
    #[error("the transport of the owner could not be closed")]
    Close,
    #[error("the isolation was cancelled on the owner's node")]
    Cancelled,
    #[error("the deadline passed on the owner's node")]
    Deadline,
    /// Its node answered what is no answer.
    #[error("malformed answer: {0}")]
    Answer(#[from] DecodeError),
    /// Its node could not be asked or did not answer.
    #[error("{0}")]
    Call(#[from] CallError),
}

/// Asks the node of an owner, and no other, to prove that the owner stopped.
#[derive(Clone)]
pub struct QuiesceClient {
    caller: Option<Arc<dyn Caller>>,
}

impl QuiesceClient {
    #[must_use]
    pub fn new(caller: Arc<dyn Caller>) -> Self {
        Self { caller: Some(caller) }
    }

    /// For a node without peers: nothing is proved.
    #[must_use]
    pub fn without_peers() -> Self {
        Self { caller: None }
    }

    /// Ok is the proof: exactly this owner admits nothing, runs nothing, and its socket is closed. One request to
    /// `owner.node_id`, never repeated or sent elsewhere.
    ///
    /// # Errors
    /// No proof, for the reason given.
    pub async fn quiesce(&self, owner: &Owner, deadline: Instant) -> Result<(), QuiesceError> {
        let request = Request { owner: owner.clone() };
        let bytes = request.encode()?;
        let caller = self.caller.as_ref().ok_or(QuiesceError::Unproved)?;
        let answer = caller.call(owner.node_id, SERVICE, bytes, deadline).await?;
        let response = Response::decode(&answer)?;
        if response.owner != *owner {
            return Err(QuiesceError::Unproved);
        }
        match response.status {
            Status::Quiesced => Ok(()),
            Status::Unproved => Err(QuiesceError::Unproved),
            Status::Close => Err(QuiesceError::Close),
            Status::Cancelled => Err(QuiesceError::Cancelled),
            Status::Deadline => Err(QuiesceError::Deadline),
        }
    }
}

impl fmt::Debug for QuiesceClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuiesceClient").field("peers", &self.caller.is_some()).finish()
    }
}
