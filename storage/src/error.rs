//! What can go wrong with durable state, and whose fault it is.

use std::path::{Path, PathBuf};

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
    #[error(
        "{path} is damaged at offset {offset}: {what}; move the data directory away and start with an empty one: what this one holds is lost, unless other nodes of its cluster have it and this one joins them anew"
    )]
    Damaged { path: PathBuf, offset: u64, what: String },
    #[error("{0}")]
    Row(#[from] session::lifecycle::RowError),
    #[error(
        "the data directory belongs to {found}, this node is {wanted}; use the right --data-dir or --node-id"
    )]
    Foreign { found: String, wanted: String },
    /// The directory is not where it was made: a copy must not prove that the boots of its original ended.
    #[error(
        "the data directory {path} was copied or moved since it was made ({what}); if the original may still run, \
         use the original. This version cannot adopt a copy: start with an empty directory instead"
    )]
    Copied { path: PathBuf, what: String },
    #[error("another process holds {0}; stop it or use another --data-dir")]
    Locked(PathBuf),
    #[error("engine {0} is not compiled in; build with --features store-sled")]
    EngineMissing(&'static str),
    /// No quorum, or shutting down: nothing is known of the fate of what was proposed.
    #[error("the group is not available: {0}")]
    Unavailable(String),
}

impl StorageError {
    /// An I/O error at `path`, for `map_err`.
    pub(crate) fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, what: what.into() }
    }
}
