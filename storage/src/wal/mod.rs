//! One segmented write-ahead log for all groups of a node: one writer thread, one write and one fsync for everything that
//! waits.
//!
//! ```text
//! append ──▶ queue ──▶ writer thread: encode, write, fdatasync ──▶ callbacks
//!                            │ failed: poisoned, every later append fails
//! ```

mod disk;
mod record;
mod recovery;
mod writer;

#[cfg(test)]
mod sim_disk;
#[cfg(test)]
mod wal_test;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, RwLock};

pub(crate) use disk::{Disk, DiskFile, OsDisk, sync_dir};
pub(crate) use record::{Kind, Record};
pub(crate) use recovery::Location;
#[cfg(test)]
pub(crate) use sim_disk::SimDisk;

use crate::StorageError;
use record::{RECORD_HEADER_BYTES, Seal, decode, segment_name};
use writer::Writer;

/// Told where the records went, or why nothing is known of them. Called on the writer thread: must be short.
pub(crate) type Written = Box<dyn FnOnce(Result<&[Location], &Poison>) + Send>;

/// Why the log refuses everything.
#[derive(Debug, Clone)]
pub(crate) struct Poison(pub(crate) Arc<str>);

/// What recovery found for one group.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) entries: BTreeMap<u64, RecoveredEntry>,
    pub(crate) marks: Marks,
}

/// One Raft log entry that recovery found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecoveredEntry {
    pub(crate) term: u64,
    /// First eight bytes of the payload, zeros when it is shorter: the owner of the log keeps there what it needs of every entry.
    pub(crate) head: [u8; 8],
    pub(crate) location: Location,
}

/// The last record of each kind that is not an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) vote: Option<Mark>,
    pub(crate) committed: Option<Mark>,
    pub(crate) purged: Option<Mark>,
}

/// A log position with the payload that came with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) payload: Vec<u8>,
}

/// Sizes and identity of the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WalOptions {
    pub(crate) segment_bytes: u64,
    /// Identity of the data directory, stamped into every segment and secret to those whose bytes are written: see [`Seal`].
    pub(crate) directory: [u8; 16],
}

/// The log. Shared by the groups.
#[derive(Debug)]
pub(crate) struct Wal {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    directory: [u8; 16],
    queue: Mutex<Queue>,
    wake: Condvar,
    files: RwLock<HashMap<u64, Arc<dyn DiskFile>>>,
    fsyncs: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Request>,
    /// Committed hints by group: they ride on the next write and are worth none of their own.
    hints: BTreeMap<u16, Record>,
    closed: bool,
    poison: Option<Poison>,
}

struct Request {
    records: Vec<Record>,
    written: Written,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("waiting", &self.waiting.len()).field("poison", &self.poison).finish()
    }
}

impl Wal {
    /// Recovers the log in `disk` and starts its threads.
    ///
    /// # Errors
    /// Damage in the middle, I/O.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        options: WalOptions,
    ) -> Result<(Self, HashMap<u16, Recovered>), StorageError> {
        let (writer, recovered) = Writer::recover(Arc::clone(&disk), options)?;
        let shared = Arc::new(Shared {
            disk,
            directory: options.directory,
            queue: Mutex::default(),
            wake: Condvar::new(),
            files: RwLock::default(),
            fsyncs: AtomicU64::new(0),
        });
        let (fill, filled) = std::sync::mpsc::sync_channel(1);
        let filler = Arc::clone(&shared.disk);
        let threads = vec![
            spawn("wal-fill", move || {
                while filled.recv().is_ok() {
                    filler.prepare(options.segment_bytes);
                }
            })?,
            spawn("wal", {
                let shared = Arc::clone(&shared);
                move || writer.run(&shared, &fill)
            })?,
        ];
        Ok((Self { shared, threads: Mutex::new(threads) }, recovered))
    }

    /// Queues records; `written` is called once they are durable, or the log is poisoned.
    pub(crate) fn append(&self, records: Vec<Record>, written: Written) {
        let poison = {
            let mut queue = self.shared.queue.lock();
            match queue.refusal() {
                Some(poison) => poison,
                None => {
                    queue.waiting.push(Request { records, written });
                    self.shared.wake.notify_one();
                    return;
                }
            }
        };
        written(Err(&poison));
    }

    /// Leaves a committed hint, to be written along with whatever comes next.
    pub(crate) fn hint(&self, record: Record) {
        self.shared.queue.lock().hints.insert(record.group, record);
    }

    /// Reads a payload back and checks it.
    ///
    /// # Errors
    /// I/O, damage.
    pub(crate) fn read(&self, location: Location) -> Result<Vec<u8>, StorageError> {
        let name = segment_name(location.segment);
        let io = |source| StorageError::Io { path: self.shared.disk.path(&name), source };
        let file = self.shared.file(location.segment).map_err(io)?;
        let start = location.offset - RECORD_HEADER_BYTES as u64;
        let mut bytes = vec![0; record::record_bytes(location.len as usize)];
        file.read_at(start, &mut bytes).map_err(io)?;
        let found =
            decode(&bytes, 0, Seal::of(self.shared.directory, location.segment)).ok_or_else(|| {
                StorageError::Damaged {
                    path: self.shared.disk.path(&name),
                    offset: start,
                    what: "a record that was whole before is damaged now".to_owned(),
                }
            })?;
        bytes.truncate(found.payload.end);
        bytes.drain(..found.payload.start);
        Ok(bytes)
    }

    /// Fsyncs since the log was opened.
    pub(crate) fn fsyncs(&self) -> u64 {
        self.shared.fsyncs.load(Ordering::Relaxed)
    }

    /// Writes what waits and stops the threads. Later appends are refused.
    pub(crate) fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_all();
        for thread in self.threads.lock().drain(..).rev() {
            // A thread that panicked has aborted the process or is a failed test already.
            let _ = thread.join();
        }
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    fn refusal(&self) -> Option<Poison> {
        if let Some(poison) = &self.poison {
            return Some(poison.clone());
        }
        self.closed.then(|| Poison("the log is closed".into()))
    }
}

impl Shared {
    fn file(&self, segment: u64) -> std::io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.files.read().get(&segment) {
            return Ok(Arc::clone(file));
        }
        let file: Arc<dyn DiskFile> = self.disk.open(&segment_name(segment))?.into();
        self.files.write().insert(segment, Arc::clone(&file));
        Ok(file)
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StorageError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|source| StorageError::Io { path: name.into(), source })
}
