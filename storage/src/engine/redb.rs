//! redb, the default: one file per group, so that groups checkpoint side by side (redb has one writer a file), damage stays in one
//! group, and a snapshot replaces one file's content only. Message bodies are beside it, in [`Bodies`]; a commit of the file decides which.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};
use session::lifecycle::Group;

use super::bodies::{Bodies, Changed};
use super::{Engine, Fill, Rows, View, Visit, VisitBody};
use crate::StorageError;

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<'static, u8, &[u8]> = TableDefinition::new("meta");
const META_KEY: u8 = 0;
/// Files of bodies by the first id of each.
const BODIES: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("bodies");
const TABLES: usize = 3;

/// Bytes of a block as `stat` counts them.
const BLOCK: u64 = 512;
/// A file that takes this many times what its rows take is made smaller: moving what is left costs little then.
const SPARE: u64 = 4;
/// A file may take this much in any case.
const SPARE_MIN: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct Redb {
    path: PathBuf,
    group: u16,
    /// Written by [`Engine::give_back`] alone, which needs it for itself.
    database: RwLock<Database>,
    bodies: Bodies,
    /// State of format 4 had bodies among the rows: they stay there until they are settled.
    bodies_in_rows: bool,
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
        // The tables tell, not the file: a start that was killed may have left the file without them.
        if database.begin_read().at(&path)?.list_tables().at(&path)?.count() < TABLES {
            let write = database.begin_write().at(&path)?;
            // Made once, so that readers need not tell "no table" from damage.
            write.open_table(ROWS).at(&path)?;
            write.open_table(META).at(&path)?;
            write.open_table(BODIES).at(&path)?;
            write.commit().at(&path)?;
            crate::wal::sync_dir(dir).map_err(StorageError::io(dir))?;
        }
        let read = database.begin_read().at(&path)?;
        let bodies = Bodies::open(dir, group, rows_of_files(&read, &path)?)?;
        let rows = read.open_table(ROWS).at(&path)?;
        let first_body = Group::first_body_key();
        let mut behind = rows.range(&first_body[..]..).at(&path)?;
        let bodies_in_rows = match behind.next().transpose().at(&path)? {
            Some((key, _)) => Group::body_id(key.value()).is_some(),
            None => false,
        };
        drop((behind, rows, read));
        Ok(Self { path, group, database: RwLock::new(database), bodies, bodies_in_rows })
    }

    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// One durable commit of what `change` does.
    fn commit(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let database = self.database.read();
        let mut write = database.begin_write().at(&self.path)?;
        write.set_durability(Durability::Immediate).at(&self.path)?;
        change(&write)?;
        write.commit().at(&self.path)
    }

    fn put_meta(&self, write: &WriteTransaction, meta: &[u8]) -> Result<(), StorageError> {
        write.open_table(META).at(&self.path)?.insert(META_KEY, meta).at(&self.path)?;
        Ok(())
    }

    /// Makes bodies durable ahead of the commit that speaks of them, and marks those that are gone; returns those that stand in rows.
    fn write_bodies(&self, rows: &Rows, changed: &mut Changed) -> Result<Vec<u64>, StorageError> {
        let mut appender = self.bodies.appender(changed);
        for (id, message) in &rows.bodies.written {
            appender.put(*id, &mut |out| Group::encode_body(message, out))?;
        }
        appender.finish()?;
        let mut elsewhere = Vec::new();
        self.bodies.free(&rows.bodies.gone, changed, &mut elsewhere);
        Ok(elsewhere)
    }

    /// Puts files together that have little left.
    fn merge_bodies(&self) -> Result<(), StorageError> {
        let merges = self.bodies.merge()?;
        if merges.is_empty() {
            return Ok(());
        }
        self.commit(|write| {
            let mut files = write.open_table(BODIES).at(&self.path)?;
            for merge in &merges {
                for first in &merge.old {
                    files.remove(first).at(&self.path)?;
                }
                files.insert(merge.new, &*Bodies::merged_row(merge)).at(&self.path)?;
            }
            Ok(())
        })?;
        self.bodies.merged(merges);
        Ok(())
    }
}

/// Rows of the files of bodies.
fn rows_of_files(read: &ReadTransaction, path: &Path) -> Result<Vec<(u64, Vec<u8>)>, StorageError> {
    let files = read.open_table(BODIES).at(path)?;
    let rows = files.iter().at(path)?;
    rows.map(|row| row.at(path).map(|(first, value)| (first.value(), value.value().to_vec()))).collect()
}

impl Engine for Redb {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        if let Some(id) = Group::body_id(key)
            && let found = self.bodies.get(id)?
            && (found.is_some() || !self.bodies_in_rows)
        {
            return Ok(found);
        }
        // Under the lock to the end: a look at one row never stands in the way of giving space back.
        let database = self.database.read();
        let rows = database.begin_read().at(&self.path)?.open_table(ROWS).at(&self.path)?;
        Ok(rows.get(key).at(&self.path)?.map(|value| value.value().to_vec()))
    }

    fn visit_bodies(&self, ids: &[u64], visit: &mut VisitBody<'_>) -> Result<(), StorageError> {
        if !self.bodies_in_rows {
            return self.bodies.visit(ids, visit);
        }
        for (at, id) in ids.iter().enumerate() {
            if let Some(value) = self.get(&Group::body_key(*id))? {
                visit(at, &value)?;
            }
        }
        Ok(())
    }

    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError> {
        self.view()?.meta()
    }

    fn write(&self, rows: &Rows, meta: &[u8]) -> Result<(), StorageError> {
        let mut changed = Changed::new();
        let in_rows = self.write_bodies(rows, &mut changed)?;
        self.commit(|write| {
            let mut table = write.open_table(ROWS).at(&self.path)?;
            for (key, value) in rows.iter() {
                match value {
                    Some(value) => drop(table.insert(key, value).at(&self.path)?),
                    None => drop(table.remove(key).at(&self.path)?),
                }
            }
            for id in in_rows.iter().filter(|_| self.bodies_in_rows) {
                table.remove(&*Group::body_key(*id)).at(&self.path)?;
            }
            let mut files = write.open_table(BODIES).at(&self.path)?;
            for first in &changed {
                match self.bodies.row(*first) {
                    Some(row) => drop(files.insert(first, &*row).at(&self.path)?),
                    None => drop(files.remove(first).at(&self.path)?),
                }
            }
            self.put_meta(write, meta)
        })?;
        self.bodies.committed(&changed);
        Ok(())
    }

    fn replace(&self, fill: &mut Fill<'_>, meta: &[u8]) -> Result<(), StorageError> {
        let bodies = self.bodies.successor();
        let replaced = self.commit(|write| {
            let mut table = write.open_table(ROWS).at(&self.path)?;
            table.retain(|_, _| false).at(&self.path)?;
            let mut changed = Changed::new();
            let mut appender = bodies.appender(&mut changed);
            fill(&mut |key, value| match Group::body_id(key) {
                Some(id) => appender.put(id, &mut |out| out.extend_from_slice(value)),
                None => table.insert(key, value).map(drop).at(&self.path),
            })?;
            appender.finish()?;
            let mut files = write.open_table(BODIES).at(&self.path)?;
            files.retain(|_, _| false).at(&self.path)?;
            for (first, row) in bodies.rows() {
                files.insert(first, &*row).at(&self.path)?;
            }
            self.put_meta(write, meta)
        });
        match replaced {
            Ok(()) => self.bodies.become_successor(bodies),
            Err(_) => bodies.abandon(),
        }
        replaced
    }

    fn give_back(&self, row_bytes: u64, body_bytes: u64) -> Result<(), StorageError> {
        self.merge_bodies()?;
        let live_bytes = if self.bodies_in_rows { row_bytes.saturating_add(body_bytes) } else { row_bytes };
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
        let (read, files) = self.bodies.hold(|| self.database.read().begin_read());
        let (dir, read) = (self.dir().to_owned(), read.at(&self.path)?);
        Ok(Box::new(RedbView { path: self.path.clone(), dir, group: self.group, read, files }))
    }
}

struct RedbView {
    path: PathBuf,
    dir: PathBuf,
    group: u16,
    read: ReadTransaction,
    files: HashMap<u64, Arc<File>>,
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
        for (_, row) in rows_of_files(&self.read, &self.path)? {
            Bodies::kept(&self.dir, self.group, &row, &self.files)?.scan_rows(visit)?;
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
