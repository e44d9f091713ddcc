//! sled 0.34 (cargo feature `store-sled`). Its `flush` does not reach the disk on Linux: it calls `sync_file_range`. So every
//! flush here is followed by our own `fdatasync` of its data file (`storage/README.md` has the measurements and the limits).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Engine, Fill, Rows, View, Visit};
use crate::StorageError;
use crate::wal::sync_dir;

/// Keys of rows start with this; the meta value has a key of its own in the same tree, so that one batch changes both.
const ROW: u8 = 1;
const META_KEY: &[u8] = &[0];

/// One database for all groups, a tree each.
#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    database: sled::Db,
    data: File,
    /// One flush at a time: a flush and its fdatasync belong together.
    flushing: Mutex<()>,
}

#[derive(Debug)]
struct Sled {
    shared: Arc<Shared>,
    tree: sled::Tree,
    /// Counts writes: a view is only good while nothing was written.
    writes: Arc<AtomicU64>,
}

pub(super) fn open(dir: &Path, groups: u16) -> Result<Vec<Arc<dyn Engine>>, StorageError> {
    crate::identity::make_dir(dir)?;
    let fail = failure(dir);
    let database = sled::Config::new().path(dir).flush_every_ms(None).open().map_err(&fail)?;
    let trees = (0..groups)
        .map(|group| database.open_tree(format!("g{group:03}")))
        .collect::<Result<Vec<_>, sled::Error>>()
        .map_err(&fail)?;
    let data = File::open(dir.join("db")).map_err(StorageError::io(dir))?;
    let shared = Arc::new(Shared { dir: dir.to_owned(), database, data, flushing: Mutex::new(()) });
    shared.flush()?;
    shared.sync_names()?;
    Ok(trees
        .into_iter()
        .map(|tree| Arc::new(Sled { shared: Arc::clone(&shared), tree, writes: Arc::default() }) as _)
        .collect())
}

impl Shared {
    fn flush(&self) -> Result<(), StorageError> {
        let _one = self.flushing.lock();
        self.database.flush().map_err(failure(&self.dir))?;
        self.data.sync_data().map_err(StorageError::io(&self.dir))
    }

    /// Once after creation: the files beside the data file, and the names of all of them.
    fn sync_names(&self) -> Result<(), StorageError> {
        let conf = self.dir.join("conf");
        File::open(&conf).and_then(|file| file.sync_all()).map_err(StorageError::io(&conf))?;
        let blobs = self.dir.join("blobs");
        if blobs.is_dir() {
            sync_dir(&blobs).map_err(StorageError::io(&blobs))?;
        }
        sync_dir(&self.dir).map_err(StorageError::io(&self.dir))?;
        let parent = self.dir.parent().unwrap_or(Path::new("."));
        sync_dir(parent).map_err(StorageError::io(parent))
    }
}

impl Sled {
    fn apply(&self, batch: sled::Batch) -> Result<(), StorageError> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.tree.apply_batch(batch).map_err(failure(&self.shared.dir))?;
        self.shared.flush()
    }
}

impl Engine for Sled {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let value = self.tree.get(row_key(key)).map_err(failure(&self.shared.dir))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.tree.get(META_KEY).map_err(failure(&self.shared.dir))?.map(|value| value.to_vec()))
    }

    fn write(&self, rows: &Rows, meta: &[u8]) -> Result<(), StorageError> {
        let mut batch = sled::Batch::default();
        for (key, value) in rows.iter() {
            match value {
                Some(value) => batch.insert(row_key(key), value),
                None => batch.remove(row_key(key)),
            }
        }
        rows.bodies.for_each(&mut |key, value| match value {
            Some(value) => batch.insert(row_key(key), value),
            None => batch.remove(row_key(key)),
        });
        batch.insert(META_KEY, meta);
        self.apply(batch)
    }

    fn replace(&self, fill: &mut Fill<'_>, meta: &[u8]) -> Result<(), StorageError> {
        // sled has no transaction that spills to disk: a replaced group has to fit in memory (`storage/README.md`).
        let fail = failure(&self.shared.dir);
        let mut batch = sled::Batch::default();
        for key in self.tree.scan_prefix([ROW]).keys() {
            batch.remove(key.map_err(&fail)?);
        }
        fill(&mut |key, value| {
            batch.insert(row_key(key), value);
            Ok(())
        })?;
        batch.insert(META_KEY, meta);
        self.apply(batch)
    }

    fn path(&self) -> PathBuf {
        self.shared.dir.clone()
    }

    fn view(&self) -> Result<Box<dyn View>, StorageError> {
        Ok(Box::new(SledView {
            shared: Arc::clone(&self.shared),
            tree: self.tree.clone(),
            writes: Arc::clone(&self.writes),
            at: self.writes.load(Ordering::SeqCst),
        }))
    }
}

/// sled has no snapshots: a view that was overtaken by a write says so, and its reader takes a new one.
struct SledView {
    shared: Arc<Shared>,
    tree: sled::Tree,
    writes: Arc<AtomicU64>,
    at: u64,
}

impl SledView {
    fn check(&self) -> Result<(), StorageError> {
        if self.writes.load(Ordering::SeqCst) == self.at {
            return Ok(());
        }
        Err(StorageError::Unavailable("the state changed while it was read; read it again".to_owned()))
    }
}

impl View for SledView {
    fn meta(&self) -> Result<Option<Vec<u8>>, StorageError> {
        let meta = self.tree.get(META_KEY).map_err(failure(&self.shared.dir))?;
        self.check()?;
        Ok(meta.map(|value| value.to_vec()))
    }

    fn scan(&self, visit: &mut Visit<'_>) -> Result<(), StorageError> {
        let fail = failure(&self.shared.dir);
        for row in self.tree.scan_prefix([ROW]) {
            let (key, value) = row.map_err(&fail)?;
            self.check()?;
            visit(&key[1..], &value)?;
        }
        self.check()
    }
}

fn row_key(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 1);
    out.push(ROW);
    out.extend_from_slice(key);
    out
}

fn failure(dir: &Path) -> impl Fn(sled::Error) -> StorageError + '_ {
    move |error| match error {
        sled::Error::Io(source) => StorageError::Io { path: dir.to_owned(), source },
        sled::Error::Corruption { .. } => StorageError::damaged(dir, 0, error.to_string()),
        other => StorageError::Io { path: dir.to_owned(), source: std::io::Error::other(other.to_string()) },
    }
}
