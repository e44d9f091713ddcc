//! What a data directory remembers of its way into a cluster, so that a join goes on after a crash at any point.
//!
//! ```text
//! (none) ──init──▶ Member
//!   │                 ▲
//!   └─join─▶ Joining ─┴─ a member of every group
//!            (not emptied ─▶ emptied)
//! ```

use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// File in the data directory.
const FILE: &str = "cluster.json";
const VERSION: u16 = 1;

/// The mark on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    version: u16,
    /// 32 hex digits.
    pub cluster_id: String,
    pub stage: Stage,
    /// It came to a cluster that was there before; `false` in marks of builds that did not write it.
    #[serde(default)]
    pub joined: bool,
}

/// How far this node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It becomes a member of the cluster of `seed`.
    Joining {
        seed_id: u64,
        seed: String,
        /// Its own groups were emptied: from then on they hold what the cluster gave them.
        emptied: bool,
    },
    Member,
}

/// The mark cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{} is not a mark that this version can read: {what}; restore it, or start with an empty directory", path.display())]
    Damaged { path: PathBuf, what: String },
}

impl Mark {
    #[must_use]
    pub fn new(cluster_id: [u8; 16], stage: Stage) -> Self {
        let joined = matches!(stage, Stage::Joining { .. });
        Self { version: VERSION, cluster_id: hex(&cluster_id), stage, joined }
    }

    /// The cluster.
    #[must_use]
    pub fn id(&self) -> Option<[u8; 16]> {
        unhex(&self.cluster_id)
    }

    /// # Errors
    /// I/O, damage. `None`: this directory never took part in a cluster.
    pub fn read(data_dir: &Path) -> Result<Option<Self>, MarkError> {
        let path = data_dir.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(MarkError::Io { path, source }),
        };
        let damaged = |what: String| MarkError::Damaged { path: path.clone(), what };
        let mark: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if mark.version != VERSION {
            return Err(damaged(format!("version {}", mark.version)));
        }
        if mark.id().is_none() {
            return Err(damaged("the cluster id is not 32 hex digits".to_owned()));
        }
        Ok(Some(mark))
    }

    /// Durable when it returns. Blocks.
    ///
    /// # Errors
    /// I/O.
    pub fn write(&self, data_dir: &Path) -> Result<(), MarkError> {
        let path = data_dir.join(FILE);
        let temporary = data_dir.join(format!("{FILE}.tmp"));
        let write = || {
            std::fs::create_dir_all(data_dir)?;
            let mut file = std::fs::File::create(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            std::fs::File::open(data_dir)?.sync_all()
        };
        write().map_err(|source| MarkError::Io { path: path.clone(), source })
    }

    /// The node gives up to join. Durable when it returns. Blocks.
    ///
    /// # Errors
    /// I/O.
    pub fn remove(data_dir: &Path) -> Result<(), MarkError> {
        let path = data_dir.join(FILE);
        let remove = || {
            std::fs::remove_file(&path)?;
            std::fs::File::open(data_dir)?.sync_all()
        };
        match remove() {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(MarkError::Io { path, source })
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn hex(bytes: &[u8; 16]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn unhex(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(Mark::read(dir.path()).expect("none"), None);
        let stage = Stage::Joining { seed_id: 1, seed: "a:1".to_owned(), emptied: true };
        let mark = Mark::new([0xab; 16], stage);
        mark.write(dir.path()).expect("written");
        assert_eq!(Mark::read(dir.path()).expect("read"), Some(mark.clone()));
        assert_eq!(mark.id(), Some([0xab; 16]));
        Mark::remove(dir.path()).expect("removed");
        assert_eq!(Mark::read(dir.path()).expect("none"), None);
        std::fs::write(dir.path().join(FILE), "{}").expect("written");
        assert!(matches!(Mark::read(dir.path()), Err(MarkError::Damaged { .. })));
    }
}
