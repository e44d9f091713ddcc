//! What is wrong with a file of access rules.

use std::path::PathBuf;

use thiserror::Error;

/// Why there is no policy.
#[derive(Debug, Error)]
pub enum AuthFileError {
    #[error("{path}: cannot be read: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: cannot be written: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    /// Line counted from 1.
    #[error("{path}:{line}: {what}")]
    Line { path: PathBuf, line: usize, what: String },
    #[error("user name {name:?} {what}")]
    UserName { name: String, what: String },
    #[error("there is no user {name:?} in {path}")]
    NoUser { path: PathBuf, name: String },
    #[error("cannot start the threads that check passwords: {0}")]
    Threads(std::io::Error),
    #[error("the system gives no random numbers")]
    Random,
}

/// Bytes of the largest file read.
pub(super) const FILE_BYTES_MAX: u64 = 256 << 20;

/// The text of a file of bounded size.
pub(super) fn read_text(path: &std::path::Path) -> Result<String, AuthFileError> {
    let read = || {
        if std::fs::metadata(path)?.len() > FILE_BYTES_MAX {
            return Err(std::io::Error::other(format!("is larger than {FILE_BYTES_MAX} bytes")));
        }
        std::fs::read_to_string(path)
    };
    read().map_err(|source| AuthFileError::Read { path: path.to_owned(), source })
}
