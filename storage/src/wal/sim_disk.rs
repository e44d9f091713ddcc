//! A disk in memory that loses what was not synced: some sectors of it stay, some do not, names included.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::{Disk, DiskFile};

/// What a disk writes as a whole.
pub(crate) const SECTOR_BYTES: usize = 512;

#[derive(Debug, Clone, Default)]
pub(crate) struct SimDisk(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    files: BTreeMap<String, Arc<Mutex<SimFile>>>,
    /// Operations left before every write and sync fails.
    budget: Option<usize>,
    /// Operations left before the next sync fails, once.
    failing_sync: Option<usize>,
}

#[derive(Debug, Default)]
struct SimFile {
    durable: Vec<u8>,
    current: Vec<u8>,
}

impl SimDisk {
    /// After `operations` more writes and syncs everything fails, as after a power cut.
    pub(crate) fn cut_after(&self, operations: usize) {
        self.0.lock().budget = Some(operations);
    }

    /// The sync after `syncs` more fails, once: later ones would succeed, as on Linux.
    pub(crate) fn fail_sync_after(&self, syncs: usize) {
        self.0.lock().failing_sync = Some(syncs);
    }

    /// The disk after the power came back: of every unsynced sector, `keep` says whether it reached the disk.
    pub(crate) fn after_cut(&self, mut keep: impl FnMut() -> bool) -> Self {
        let mut files = BTreeMap::new();
        for (name, file) in &self.0.lock().files {
            let file = file.lock();
            let mut bytes = file.durable.clone();
            for at in (0..bytes.len()).step_by(SECTOR_BYTES) {
                let sector = at..(at + SECTOR_BYTES).min(bytes.len());
                if file.current[sector.clone()] != bytes[sector.clone()] && keep() {
                    bytes[sector.clone()].copy_from_slice(&file.current[sector]);
                }
            }
            let file = SimFile { durable: bytes.clone(), current: bytes };
            files.insert(name.clone(), Arc::new(Mutex::new(file)));
        }
        Self(Arc::new(Mutex::new(Content { files, ..Content::default() })))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().files.keys().cloned().collect()
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        self.0.lock().files[name].lock().current.clone()
    }

    /// Changes a byte in the page cache alone: a write that was cut short by the end of the process.
    pub(crate) fn scribble(&self, name: &str, at: usize) {
        self.0.lock().files[name].lock().current[at] ^= 1;
    }

    /// Changes bytes behind the log's back.
    pub(crate) fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let content = self.0.lock();
        let mut file = content.files[name].lock();
        change(&mut file.current);
        file.durable = file.current.clone();
    }
}

impl Content {
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.budget {
            Some(0) => Err(io::Error::other("the power is off")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let content = self.0.lock();
        let file = content.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Handle { disk: self.clone(), file: Arc::clone(file) }))
    }

    fn create(&self, name: &str, len: u64, head: &[u8]) -> io::Result<Box<dyn DiskFile>> {
        let mut content = self.0.lock();
        content.spend()?;
        let mut bytes = vec![0; len as usize];
        bytes[..head.len()].copy_from_slice(head);
        let file = Arc::new(Mutex::new(SimFile { durable: bytes.clone(), current: bytes }));
        content.files.insert(name.to_owned(), Arc::clone(&file));
        Ok(Box::new(Handle { disk: self.clone(), file }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut content = self.0.lock();
        content.spend()?;
        content.files.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/sim").join(name)
    }
}

#[derive(Debug)]
struct Handle {
    disk: SimDisk,
    file: Arc<Mutex<SimFile>>,
}

impl DiskFile for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.lock().current.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let file = self.file.lock();
        let at = offset as usize;
        let bytes = file.current.get(at..at + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let spent = self.disk.0.lock().spend();
        let mut file = self.file.lock();
        let at = offset as usize;
        // A write that the power cut caught may be there in part.
        file.current[at..at + bytes.len()].copy_from_slice(bytes);
        spent
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.disk.0.lock();
        content.spend()?;
        match &mut content.failing_sync {
            Some(0) => {
                content.failing_sync = None;
                return Err(io::Error::other("the disk is broken"));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        drop(content);
        let mut file = self.file.lock();
        file.durable = file.current.clone();
        Ok(())
    }
}
