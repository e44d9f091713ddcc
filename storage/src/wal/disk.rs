//! The few file operations that the log needs, behind a trait, so that tests can cut the power at any of them.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::durations::DurationCounter;

/// A directory of segment files.
pub(crate) trait Disk: Send + Sync + Debug + 'static {
    /// Names of the files that are there.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Makes a file of `len` zero bytes that starts with `head`. When this returns, its bytes and its name are durable: it was
    /// filled under a temporary name, fsynced, renamed, and its directory was fsynced.
    fn create(&self, name: &str, len: u64, head: &[u8]) -> io::Result<Box<dyn DiskFile>>;
    /// Fills the next file of `len` bytes ahead of time, so that [`Disk::create`] is quick. Called on a thread of its own.
    fn prepare(&self, _len: u64) {}
    /// Removes a file; durable when it returns.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// For messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// One open segment.
pub(crate) trait DiskFile: Send + Sync + Debug {
    fn len(&self) -> io::Result<u64>;
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes everything written before durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
}

/// Suffix of a file that is not complete yet.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Bytes written at once when a file is filled with zeros.
const FILL_BYTES: usize = 1 << 20;

/// The real one.
#[derive(Debug)]
pub(crate) struct OsDisk {
    dir: PathBuf,
    /// A file filled ahead of time, with its length. The lock is held while it is filled: `create` waits for it.
    prepared: Mutex<Option<(File, u64)>>,
    times: Arc<DurationCounter>,
}

/// A segment whose fsyncs are timed.
#[derive(Debug)]
struct OsFile {
    file: File,
    times: Arc<DurationCounter>,
}

/// Name of the file that is filled ahead of time.
const PREPARED: &str = "next.tmp";

impl OsDisk {
    /// Makes the directory if it is missing.
    pub(crate) fn new(dir: PathBuf) -> io::Result<Self> {
        if !dir.is_dir() {
            std::fs::create_dir_all(&dir)?;
            if let Some(parent) = dir.parent() {
                sync_dir(parent)?;
            }
        }
        Ok(Self { dir, prepared: Mutex::new(None), times: Arc::default() })
    }

    /// How long the fsyncs of segments take.
    pub(crate) fn times(&self) -> &Arc<DurationCounter> {
        &self.times
    }

    fn timed(&self, file: File) -> Box<dyn DiskFile> {
        Box::new(OsFile { file, times: Arc::clone(&self.times) })
    }

    fn fill(&self, len: u64) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(true).open(self.dir.join(PREPARED))?;
        let zeros = vec![0; FILL_BYTES];
        let mut at = 0;
        while at < len {
            let n = zeros.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            file.write_all_at(&zeros[..n], at)?;
            // Synced piece by piece: one big flush would hold up the log's own fsyncs.
            file.sync_data()?;
            at += n as u64;
        }
        Ok(file)
    }
}

impl Disk for OsDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.timed(OpenOptions::new().read(true).write(true).open(self.dir.join(name))?))
    }

    fn create(&self, name: &str, len: u64, head: &[u8]) -> io::Result<Box<dyn DiskFile>> {
        let mut prepared = self.prepared.lock();
        let file = match prepared.take() {
            Some((file, ready)) if ready == len => file,
            _ => self.fill(len)?,
        };
        file.write_all_at(head, 0)?;
        file.sync_all()?;
        std::fs::rename(self.dir.join(PREPARED), self.dir.join(name))?;
        sync_dir(&self.dir)?;
        Ok(self.timed(file))
    }

    fn prepare(&self, len: u64) {
        let mut prepared = self.prepared.lock();
        if prepared.is_none() {
            // A failure shows again, and is reported, when the file is needed.
            *prepared = self.fill(len).ok().map(|file| (file, len));
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(name))?;
        sync_dir(&self.dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl DiskFile for OsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let began = Instant::now();
        let outcome = self.file.sync_data();
        self.times.observe(began.elapsed());
        outcome
    }
}

/// Makes names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}
