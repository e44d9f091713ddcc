//! What proves that an exact owner stopped (DESIGN §7): the live registry for this boot, boot receipts for older boots of this node.
//! Nothing else here is evidence: neither time, nor the state of a row, nor an error.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use session::id::Owner;
use session::time::Tick;

use crate::clock::NodeClock;
use crate::metrics::{ControlRecorder, IsolationOutcome};
pub use crate::owners::IsolationError;
use crate::owners::Owners;

/// The future of one isolation.
pub type IsolationFuture<'a> = Pin<Box<dyn Future<Output = Result<(), IsolationError>> + Send + 'a>>;

/// Proves that one exact owner neither admits nor executes anything and that its socket is closed.
pub trait Isolation: Send + Sync {
    /// # Errors
    /// No proof by `deadline`. Never evidence of the contrary.
    fn quiesce<'a>(&'a self, owner: &'a Owner, deadline: Tick) -> IsolationFuture<'a>;
}

/// Receipts of earlier boots of this node.
pub trait Receipts: Send + Sync + std::fmt::Debug {
    /// Whether a receipt proves that `owner`'s boot stopped with all its connections.
    fn covers(&self, owner: &Owner) -> bool;
}

/// Counts what another isolation proved and how long it took.
#[derive(Debug)]
pub struct Timed<'a, I> {
    pub isolation: &'a I,
    pub clock: &'a NodeClock,
    pub recorder: &'a ControlRecorder,
}

impl<I: Isolation> Isolation for Timed<'_, I> {
    fn quiesce<'a>(&'a self, owner: &'a Owner, deadline: Tick) -> IsolationFuture<'a> {
        Box::pin(async move {
            let began = self.clock.tick();
            let proof = self.isolation.quiesce(owner, deadline).await;
            let outcome = match &proof {
                Ok(()) => IsolationOutcome::Proved,
                Err(IsolationError::Unproved) => IsolationOutcome::Unknown,
                Err(IsolationError::Close) => IsolationOutcome::Close,
                Err(IsolationError::Deadline | IsolationError::Cancelled) => IsolationOutcome::Deadline,
                Err(IsolationError::Invalid) => IsolationOutcome::Invalid,
            };
            self.recorder.isolation(outcome, self.clock.tick().0.saturating_sub(began.0));
            proof
        })
    }
}

/// The isolation that one node can give by itself.
#[derive(Debug, Clone)]
pub struct LocalIsolation {
    pub node_id: u64,
    pub boot_id: Arc<str>,
    pub owners: Arc<Owners>,
    pub receipts: Arc<dyn Receipts>,
}

impl Isolation for LocalIsolation {
    fn quiesce<'a>(&'a self, owner: &'a Owner, deadline: Tick) -> IsolationFuture<'a> {
        Box::pin(async move {
            owner.check().map_err(|_| IsolationError::Invalid)?;
            if owner.node_id != self.node_id {
                return Err(IsolationError::Unproved);
            }
            if owner.boot_id == self.boot_id {
                // The live registry alone: an error of it is never repaired by a receipt (owner spec §10.3).
                return self.owners.quiesce(owner, deadline).await;
            }
            if self.receipts.covers(owner) { Ok(()) } else { Err(IsolationError::Unproved) }
        })
    }
}
