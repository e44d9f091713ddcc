//! What proves that an exact owner stopped (DESIGN §7): the live registry for this boot, boot receipts for older boots of this node, the
//! committed retirement of a boot ([`super::retire`]) for any. Nothing else here is evidence: neither time, nor the state of a row, nor an error.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ownerrpc::link::CallError;
use ownerrpc::{QuiesceClient, QuiesceError};
use session::id::Owner;
use session::time::Tick;
use tokio::time::Instant;

use super::disconnect::Disconnects;
use crate::clock::NodeClock;
use crate::metrics::{ControlRecorder, IsolationOutcome};
pub use crate::owners::IsolationError;
use crate::owners::Owners;
use crate::trace::child;

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
    /// Whether `owner`'s boot, of whatever node, was retired by commit: all its connections are proved stopped.
    fn is_retired(&self, _owner: &Owner) -> bool {
        false
    }

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
    pub disconnects: Arc<Disconnects>,
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
                self.owners.quiesce(owner, deadline).await?;
                // A DISCONNECT is admitted work too.
                let recorded = self.disconnects.goodbye_recorded(owner, deadline).await;
                return recorded.map_err(|_| IsolationError::Deadline);
            }
            if self.receipts.covers(owner) { Ok(()) } else { Err(IsolationError::Unproved) }
        })
    }
}

/// The isolation that the cluster can give: of this node's owners by itself, of another node's by its retired boot or by that node.
#[derive(Debug, Clone)]
pub struct ClusterIsolation {
    pub local: LocalIsolation,
    pub clock: NodeClock,
    pub peers: QuiesceClient,
}

impl Isolation for ClusterIsolation {
    fn quiesce<'a>(&'a self, owner: &'a Owner, deadline: Tick) -> IsolationFuture<'a> {
        Box::pin(async move {
            if owner.node_id == self.local.node_id {
                return self.local.quiesce(owner, deadline).await;
            }
            owner.check().map_err(|_| IsolationError::Invalid)?;
            if self.local.receipts.is_retired(owner) {
                return Ok(());
            }
            let until = Instant::now() + self.clock.until(deadline);
            let proved = child("Service 107", self.peers.quiesce(owner, until)).await;
            if proved.is_err() && self.local.receipts.is_retired(owner) {
                // Its node stopped in order while it was asked.
                return Ok(());
            }
            proved.map_err(|error| {
                tracing::debug!(node_id = owner.node_id, %error, "no proof from the owner's node");
                match error {
                    QuiesceError::Invalid(_) => IsolationError::Invalid,
                    QuiesceError::Close => IsolationError::Close,
                    QuiesceError::Cancelled => IsolationError::Cancelled,
                    QuiesceError::Deadline | QuiesceError::Call(CallError::Deadline) => {
                        IsolationError::Deadline
                    }
                    QuiesceError::Unproved | QuiesceError::Answer(_) | QuiesceError::Call(_) => {
                        IsolationError::Unproved
                    }
                }
            })
        })
    }
}
