//! Leases of the process: one registry over all backends, guards that contribute keepalive and nothing else (DESIGN §9; lease spec §4).
//!
//! A lease that one process holds for many endpoints costs one keepalive, batched with the others of its backend, with jitter. The guard
//! learns of the loss before the backend can have expired it, from the process's own monotonic clock: what it guards is fenced in time
//! even when nothing can be reached any more.

mod etcd_options;
mod manager;
mod nodes;
mod table;

#[cfg(feature = "etcd")]
pub mod etcd;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use thiserror::Error;

pub use etcd_options::{EtcdOptions, EtcdTls, Password};
pub use manager::{ArmedLease, HoldStat, LeaseGuard, LeaseManager, LeaseView, Standing};
pub use nodes::{ClaimError, NodeClaim, NodeLeases};
pub use table::TableBackend;

/// One lease of one incarnation of a backend: an id is never taken for another one after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseRef {
    pub incarnation: u64,
    pub id: u64,
}

/// What a backend says of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alive {
    /// For at least so long from the moment the question was sent.
    Left(Duration),
    /// Definitely not any more.
    Gone,
    /// Nothing is known: it was not reached, or it had no answer.
    Unknown,
}

/// Why a lease operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LeaseError {
    /// Definitive: nothing brings it back.
    #[error("the lease is gone: it expired or was revoked")]
    Gone,
    #[error("a TTL of {ttl_ms} ms is not allowed by the {backend} backend; at least {min_ms} ms is")]
    Ttl { backend: String, ttl_ms: u64, min_ms: u64 },
    #[error("the lease is of another incarnation of the {0} backend")]
    Incarnation(String),
    /// Nothing was done, and asking again does not help: who asks is not let in.
    #[error("the lease backend {backend} refuses: {reason}")]
    Refused { backend: String, reason: String },
    /// Whether it was done is not known.
    #[error("the lease backend {backend} did not answer: {reason}")]
    Unavailable { backend: String, reason: String },
}

/// An answer to come.
pub type LeaseFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who decides whether a lease lives. Every call returns within the backend's own limits; the caller bounds it again.
pub trait LeaseBackend: Send + Sync + Debug {
    /// Names the backend and the place where it is: two with the same name are the same.
    fn uid(&self) -> &str;
    fn incarnation(&self) -> u64;
    /// A new lease that runs from now on.
    fn grant(&self, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>>;
    /// Starts the TTL of each anew; one answer each, in order.
    fn keepalive(&self, leases: Vec<LeaseRef>) -> LeaseFuture<'_, Vec<Alive>>;
    /// Looks without starting anything anew; one answer each, in order.
    fn probe(&self, leases: Vec<LeaseRef>) -> LeaseFuture<'_, Vec<Alive>>;
    /// Another TTL from now on. The lease may have another id then.
    fn set_ttl(&self, lease: LeaseRef, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>>;
    /// The lease runs down from now on.
    fn arm(&self, lease: LeaseRef, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>>;
    /// Changes whenever leases of this backend may have gone that nobody here knows of: a hint to look, no word of any. `None`: it gives no
    /// hints.
    fn news(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        None
    }
    /// Ends it now. One that is gone is revoked.
    fn revoke(&self, lease: LeaseRef) -> LeaseFuture<'_, Result<(), LeaseError>>;
}
