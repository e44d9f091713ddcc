//! What is wrong with a file of access rules.

use std::path::{Path, PathBuf};

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
    /// A file of keys or certificates.
    #[error("{path}: {what}")]
    Key { path: PathBuf, what: String },
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
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Bytes of the largest file of keys or certificates.
const KEY_FILE_BYTES_MAX: u64 = 1 << 20;

/// The text of a file of bounded size.
pub(crate) fn read_text(path: &Path) -> Result<String, AuthFileError> {
    read(path, FILE_BYTES_MAX, |path| std::fs::read_to_string(path))
}

/// The bytes of a file of users, rules or keys.
pub(super) fn read_content(path: &Path) -> Result<Vec<u8>, AuthFileError> {
    read(path, FILE_BYTES_MAX, |path| std::fs::read(path))
}

/// The content of a file of keys.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, AuthFileError> {
    read(path, KEY_FILE_BYTES_MAX, |path| std::fs::read(path))
}

fn read<T>(
    path: &Path,
    bytes_max: u64,
    read: impl FnOnce(&Path) -> std::io::Result<T>,
) -> Result<T, AuthFileError> {
    let checked = || {
        if std::fs::metadata(path)?.len() > bytes_max {
            return Err(std::io::Error::other(format!("is larger than {bytes_max} bytes")));
        }
        read(path)
    };
    checked().map_err(|source| AuthFileError::Read { path: path.to_owned(), source })
}
