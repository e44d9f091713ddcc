//! redb, the default: one file per group, so that groups checkpoint side by side (redb has one writer a file), damage stays in one
//! group, and a snapshot replaces one file's content only.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::RwLock;
use redb::{Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Engine, Fill, Rows, View, Visit};
use crate::StorageError;

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<'static, u8, &[u8]> = TableDefinition::new("meta");
const META_KEY: u8 = 0;

/// Bytes of a block as `stat` counts them.
const BLOCK: u64 = 512;
/// A file that takes this many times what its rows take is made smaller: moving what is left costs little then.
const SPARE: u64 = 4;
/// A file may take this much in any case.
const SPARE_MIN: u64 = 64 << 20;

type Change<'a> = dyn FnMut(&mut redb::Table<'_, &[u8], &[u8]>) -> Result<(), StorageError> + 'a;

#[derive(Debug)]
pub(crate) struct Redb {
    path: PathBuf,
    /// Written by [`Engine::give_back`] alone, which needs it for itself.
    database: RwLock<Database>,
}

/// File of a group.
pub(super) fn path(dir: &Path, group: u16) -> PathBuf {
    dir.join(format!("g{group:03}.redb"))
}

impl Redb {
    pub(crate) fn open(dir: &Path, group: u16, cache_bytes: usize) -> Result<Self, StorageError> {
        let path = path(dir, group);
        let mut database = Database::builder().set_cache_size(cache_bytes).create(&path).at(&path)?;
        // Reading does not look at checksums: a flipped bit would be served, or be taken for a page of another kind. What a check mends it
        // mends by going back to an earlier commit, which may lack what the log does not have any more.
        if !database.check_integrity().at(&path)? {
            return Err(StorageError::damaged(&path, 0, "pages do not match their checksums"));
        }
        let this = Self { path, database: RwLock::new(database) };
        // The tables tell, not the file: a start that was killed may have left the file without them.
        if !this.has_tables()? {
            let write = this.database.read().begin_write().at(&this.path)?;
            // Made once, so that readers need not tell "no table" from damage.
            write.open_table(ROWS).at(&this.path)?;
            write.open_table(META).at(&this.path)?;
            write.commit().at(&this.path)?;
            crate::wal::sync_dir(dir).map_err(StorageError::io(dir))?;
        }
        Ok(this)
    }

    /// Both are made by one commit.
    fn has_tables(&self) -> Result<bool, StorageError> {
        let read = self.database.read().begin_read().at(&self.path)?;
        Ok(read.list_tables().at(&self.path)?.next().is_some())
    }

    fn commit(&self, meta: &[u8], change: &mut Change<'_>) -> Result<(), StorageError> {
        let database = self.database.read();
        let mut write = database.begin_write().at(&self.path)?;
        write.set_durability(Durability::Immediate).at(&self.path)?;
        {
            let mut rows = write.open_table(ROWS).at(&self.path)?;
            change(&mut rows)?;
            write.open_table(META).at(&self.path)?.insert(META_KEY, meta).at(&self.path)?;
        }
        write.commit().at(&self.path)
    }
}

impl Engine for Redb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        // Under the lock to the end: a look at one row never stands in the way of giving space back.
        let database = self.database.read();
        let rows = database.begin_read().at(&self.path)?.open_table(ROWS).at(&self.path)?;
        Ok(rows.get(key).at(&self.path)?.map(|value| value.value().to_vec()))
    }

    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError> {
        self.view()?.meta()
    }

    fn write(&self, rows: &Rows, meta: &[u8]) -> Result<(), StorageError> {
        self.commit(meta, &mut |table| {
            for (key, value) in rows.iter() {
                match value {
                    Some(value) => drop(table.insert(key, value).at(&self.path)?),
                    None => drop(table.remove(key).at(&self.path)?),
                }
            }
            Ok(())
        })
    }

    fn replace(&self, fill: &mut Fill<'_>, meta: &[u8]) -> Result<(), StorageError> {
        self.commit(meta, &mut |table| {
            table.retain(|_, _| false).at(&self.path)?;
            fill(&mut |key, value| table.insert(key, value).map(drop).at(&self.path))
        })
    }

    fn give_back(&self, live_bytes: u64) -> Result<(), StorageError> {
        let taken = std::fs::metadata(&self.path).map_err(StorageError::io(&self.path))?.blocks() * BLOCK;
        if taken < SPARE_MIN.saturating_add(live_bytes.saturating_mul(SPARE)) {
            return Ok(());
        }
        match self.database.write().compact() {
            // Somebody reads a view: later.
            Ok(_) | Err(redb::CompactionError::TransactionInProgress) => Ok(()),
            Err(error) => Err(error).at(&self.path),
        }
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn view(&self) -> Result<Box<dyn View>, StorageError> {
        let read = self.database.read().begin_read().at(&self.path)?;
        Ok(Box::new(RedbView { path: self.path.clone(), read }))
    }
}

struct RedbView {
    path: PathBuf,
    read: ReadTransaction,
}

impl View for RedbView {
    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError> {
        let meta = self.read.open_table(META).at(&self.path)?;
        Ok(meta.get(META_KEY).at(&self.path)?.map(|value| value.value().to_vec()))
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<(), StorageError> {
        let rows = self.read.open_table(ROWS).at(&self.path)?;
        for row in rows.iter().at(&self.path)? {
            let (key, value) = row.at(&self.path)?;
            visit(key.value(), value.value())?;
        }
        Ok(())
    }
}

/// What a redb error means to the operator.
trait At<T> {
    fn at(self, path: &Path) -> Result<T, StorageError>;
}

impl<T, E: Into<redb::Error>> At<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, StorageError> {
        self.map_err(|error| match error.into() {
            redb::Error::Corrupted(what) => StorageError::damaged(path, 0, what),
            redb::Error::DatabaseAlreadyOpen => StorageError::Locked(path.to_owned()),
            redb::Error::Io(source) => StorageError::Io { path: path.to_owned(), source },
            other => StorageError::Io { path: path.to_owned(), source: std::io::Error::other(other) },
        })
    }
}
