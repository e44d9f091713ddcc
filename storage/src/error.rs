//! What can go wrong with durable state, and whose fault it is.

use std::path::PathBuf;

use thiserror::Error;

/// A failure of the store. Everything but `Unavailable` stops the node: it is never guessed around.
#[derive(Debug, Error)]
pub enum StorageError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// A failed fsync is never retried: the store refuses everything from then on.
    #[error(
        "the store is poisoned: an earlier write or fsync failed ({0}); free space or replace the disk, then restart"
    )]
    Poisoned(String),
    #[error("{path} is damaged at offset {offset}: {what}; restore it from a backup or another node")]
    Damaged { path: PathBuf, offset: u64, what: String },
    #[error("{0}")]
    Row(#[from] session::lifecycle::RowError),
    #[error(
        "the data directory belongs to {found}, this node is {wanted}; use the right --data-dir or --node-id"
    )]
    Foreign { found: String, wanted: String },
    #[error("another process holds {0}; stop it or use another --data-dir")]
    Locked(PathBuf),
    #[error("engine {0} is not compiled in; build with --features store-sled")]
    EngineMissing(&'static str),
    /// No quorum, or shutting down: nothing is known of the fate of what was proposed.
    #[error("the group is not available: {0}")]
    Unavailable(String),
}
