//! What can go wrong with durable state, and whose fault it is.

use std::path::{Path, PathBuf};

use thiserror::Error;

const POISONED: &str = "the store is poisoned: an earlier write or fsync failed (";
const CURE: &str = "); free space or replace the disk, then restart";

/// A failure of the store. Everything but `Unavailable` stops the node: it is never guessed around.
#[derive(Debug, Error)]
pub enum StorageError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// A failed fsync is never retried: the store refuses everything from then on.
    #[error("{before}{0}{after}", before = POISONED, after = CURE)]
    Poisoned(String),
    #[error(
        "{path} is damaged at offset {offset}: {what}; move the data directory away and start with an empty one: what this one holds is lost, unless other nodes of its cluster have it and this one joins them anew"
    )]
    Damaged { path: PathBuf, offset: u64, what: String },
    #[error(
        "{path} is missing: {what}; put the file back, as it was, if somebody moved it. If it is gone: in a cluster start this node with an empty \
         directory, retire its old boot, remove it and have it join anew; alone, restore the last backup to a new directory"
    )]
    Missing { path: PathBuf, what: String },
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
    #[error("the backup {path} is damaged at offset {offset}: {what}; nothing was restored")]
    Backup { path: PathBuf, offset: u64, what: String },
    #[error("{path} {what}; a backup is restored to a directory that is new or empty")]
    Target { path: PathBuf, what: String },
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

    /// The store is poisoned for this reason. Openraft hands our own words back as a reason: they are said once.
    pub(crate) fn poisoned(reason: &dyn std::fmt::Display) -> Self {
        let text = reason.to_string();
        let first = text.rsplit_once(POISONED).map_or(&*text, |(_, first)| first);
        Self::Poisoned(first.split_once(CURE).map_or(first, |(first, _)| first).to_owned())
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P10: what failed first is said, once, however many layers hand it on.
    #[test]
    fn a_poisoned_store_says_so_once() {
        let first = StorageError::poisoned(&"fsync of wal-1: no space left (os error 28)");
        let raft = StorageError::poisoned(&format!("when Write Logs: {first}"));
        let store = StorageError::poisoned(&raft);
        assert_eq!(store.to_string(), first.to_string());
        assert_eq!(first.to_string().matches("poisoned").count(), 1);
        assert!(
            first.to_string().contains("(fsync of wal-1: no space left (os error 28)); free space"),
            "{first}"
        );
    }
}
