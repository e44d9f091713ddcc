//! A data directory changes its cluster: what it held goes, and nothing of it can come back.

use std::path::Path;

use crate::StorageError;
use crate::identity::{Identity, Lock, make_dir};
use crate::wal::sync_dir;

/// Empties the groups of `data_dir` and makes it one of `cluster_id`. The caller has written down that it does so: it is repeated when it
/// was cut short, and must never be repeated after the store was opened as a member of that cluster.
///
/// Receipts and markers of earlier boots stay: they are of this node, whatever its cluster.
///
/// # Errors
/// A process that runs on the directory, I/O.
pub fn reset(data_dir: &Path, node_id: u64, cluster_id: [u8; 16]) -> Result<Identity, StorageError> {
    make_dir(data_dir)?;
    let _lock = Lock::take(data_dir.join("LOCK"))?;
    for name in ["state", "wal"] {
        let path = data_dir.join(name);
        match std::fs::remove_dir_all(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(StorageError::Io { path, source });
            }
            _ => {}
        }
    }
    sync_dir(data_dir).map_err(StorageError::io(data_dir))?;
    Identity::join(data_dir, node_id, cluster_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN §7: a directory that changed its cluster is bound to the new one, also when that was cut short and repeated.
    #[test]
    fn a_reset_directory_is_of_the_new_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let old = Identity::open(dir.path(), 3).unwrap();
        std::fs::create_dir(dir.path().join("wal")).unwrap();
        std::fs::write(dir.path().join("wal/0"), b"old").unwrap();
        for _ in 0..2 {
            let new = reset(dir.path(), 3, [7; 16]).unwrap();
            assert_eq!((new.cluster_id, new.node_id), ([7; 16], 3));
            assert_ne!(new.directory_id, old.directory_id, "nothing written before fits");
            assert!(!dir.path().join("wal").exists());
            assert_eq!(Identity::open(dir.path(), 3).unwrap(), new);
        }
    }
}
