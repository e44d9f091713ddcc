//! What proves that an exact owner stopped (DESIGN §7): the live registry for this boot, boot receipts for older boots of this node.
//! Nothing else here is evidence: neither time, nor the state of a row, nor an error.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use session::id::Owner;
use session::time::Tick;

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
