//! Files that prove how a boot ended: the lock, started markers, graceful and crash receipts (owner spec §10).
//!
//! ```text
//! (none) ──recover──▶ started ──record_graceful──▶ receipt with the highest connection id
//!                        └──next recover, under the lock──▶ receipt with u64::MAX (crashed)
//! ```

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use session::id::{Boot, Owner, check_identity};
use session::limits::BOOT_ID_BYTES_MAX;
use sha2::{Digest, Sha256};

use crate::StorageError;
use crate::identity::{Identity, Lock, hex, make_dir};
use crate::wal::sync_dir;

/// Largest receipt or marker.
const FILE_BYTES_MAX: u64 = 1_024;
const RECEIPT_MAGIC: [u8; 6] = *b"MQOR\0\x01";
const MARKER_MAGIC: [u8; 6] = *b"MQOS\0\x01";
const RECEIPT: &str = "receipt";
const MARKER: &str = "started";
/// The highest connection id of a crash receipt: it covers every owner of that boot.
const CRASHED: u64 = u64::MAX;

/// How one boot of this node ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retirement {
    pub boot: Boot,
    /// Highest connection id that was issued; `u64::MAX` when the boot crashed.
    pub connection_id_max: u64,
}

/// What was found at start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Boots of this node that crashed: their receipts were written now or are still there.
    pub crashed: Vec<Arc<str>>,
    /// Boots that stopped in order.
    pub graceful: Vec<Retirement>,
}

/// What a receipt says about an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Every owner up to its connection id had stopped when the receipt was written.
    Graceful,
    /// The process of that boot is gone: its lock was free.
    Crashed,
    /// No receipt, or one that does not cover the owner. Nothing is proved.
    Unknown,
}

/// The boots of this node, under the lock that proves that only this process runs.
#[derive(Debug)]
pub struct Boots {
    dir: PathBuf,
    current: Boot,
    _lock: Lock,
}

impl Boots {
    /// Takes the lock, turns markers of earlier boots into crash receipts, and writes the marker of this boot (owner spec §10.2).
    /// Must be called before anything that may accept a client.
    ///
    /// # Errors
    /// A second process, a copied directory, a marker or receipt that is damaged, foreign or renamed, a boot id that was used
    /// before, I/O. All of them stop the start.
    pub fn recover(data_dir: &Path, node_id: u64, boot_id: &str) -> Result<(Self, Recovered), StorageError> {
        Identity::open(data_dir, node_id)?;
        let dir = receipts_dir(data_dir);
        check_identity(boot_id, BOOT_ID_BYTES_MAX)
            .map_err(|error| StorageError::damaged(&dir, 0, format!("boot id {error}")))?;
        let lock = Lock::take(dir.join("LOCK"))?;
        let current = Boot { node_id, boot_id: boot_id.into() };
        let boots = Self { dir, current, _lock: lock };
        let recovered = boots.settle()?;
        boots.start()?;
        Ok((boots, recovered))
    }

    /// Boot of this process.
    #[must_use]
    pub fn current(&self) -> &Boot {
        &self.current
    }

    /// Records that this boot has stopped: admission is closed, every owner is closed and drained, the registry is empty (owner spec
    /// §10.1). Nothing is written when no connection id was issued: the marker stays, and the next start calls it a crash,
    /// which is harmless.
    ///
    /// # Errors
    /// I/O, a receipt that says something else.
    pub fn record_graceful(&self, connection_id_max: u64) -> Result<(), StorageError> {
        if connection_id_max == 0 {
            return Ok(());
        }
        self.publish(&self.current, RECEIPT, &receipt(&self.current, connection_id_max))?;
        self.remove(&self.current, MARKER)
    }

    /// What the files prove about an owner. Never consulted for the current boot: only its live registry knows (owner spec §10.3).
    ///
    /// # Errors
    /// I/O. A damaged or foreign receipt proves nothing and is `Unknown`.
    pub fn lookup(&self, owner: &Owner) -> Result<Proof, StorageError> {
        let boot = Boot { node_id: owner.node_id, boot_id: Arc::clone(&owner.boot_id) };
        if boot.node_id != self.current.node_id || boot == self.current || owner.check().is_err() {
            return Ok(Proof::Unknown);
        }
        let path = self.path(&boot, RECEIPT);
        let Some(bytes) = read_regular(&path)? else { return Ok(Proof::Unknown) };
        Ok(match decode_receipt(&bytes) {
            Ok(found) if found.boot == boot && owner.connection_id <= found.connection_id_max => {
                if found.connection_id_max == CRASHED { Proof::Crashed } else { Proof::Graceful }
            }
            _ => Proof::Unknown,
        })
    }

    /// Forgets a boot that the groups retired by commit.
    ///
    /// # Errors
    /// I/O; the current boot cannot be forgotten.
    pub fn prune(&self, boot: &Boot) -> Result<(), StorageError> {
        if *boot == self.current {
            return Err(StorageError::Unavailable("the current boot cannot be pruned".to_owned()));
        }
        self.remove(boot, RECEIPT)
    }

    /// Drops the markers of a directory that was moved ([`Identity::adopt`]): the boots behind them can be retired by attestation only.
    ///
    /// # Errors
    /// A process that runs, I/O.
    pub fn forget_started(data_dir: &Path) -> Result<(), StorageError> {
        let dir = receipts_dir(data_dir);
        let _lock = Lock::take(dir.join("LOCK"))?;
        let io = StorageError::io(&dir);
        for entry in std::fs::read_dir(&dir).map_err(&io)? {
            let path = entry.map_err(&io)?.path();
            if path.extension().is_some_and(|extension| extension == MARKER) {
                std::fs::remove_file(&path).map_err(StorageError::io(&path))?;
            }
        }
        sync_dir(&dir).map_err(&io)
    }

    /// Steps 2 of owner spec §10.2: idempotent, so a crash in between is repaired by the next start.
    fn settle(&self) -> Result<Recovered, StorageError> {
        let io = StorageError::io(&self.dir);
        let mut found = Recovered::default();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(&io)? {
            names.push(entry.map_err(&io)?.path());
        }
        names.sort();
        for path in names {
            match path.extension().and_then(std::ffi::OsStr::to_str) {
                Some("tmp") => std::fs::remove_file(&path).map_err(StorageError::io(&path))?,
                Some(MARKER) => self.settle_marker(&path)?,
                _ => {}
            }
        }
        // Markers are receipts now; read them all.
        let mut receipts = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(&io)? {
            let path = entry.map_err(&io)?.path();
            if path.extension().is_some_and(|extension| extension == RECEIPT) {
                receipts.push(path);
            }
        }
        receipts.sort();
        for path in receipts {
            let retirement = read_regular(&path)?
                .ok_or("it is not a regular file")
                .and_then(|bytes| decode_receipt(&bytes))
                .and_then(|found| self.check(found, |found| &found.boot, &path, RECEIPT))
                .map_err(|what| StorageError::damaged(&path, 0, what))?;
            if retirement.connection_id_max == CRASHED {
                found.crashed.push(retirement.boot.boot_id);
            } else {
                found.graceful.push(retirement);
            }
        }
        Ok(found)
    }

    fn settle_marker(&self, path: &Path) -> Result<(), StorageError> {
        let boot = read_regular(path)?
            .ok_or("it is not a regular file")
            .and_then(|bytes| decode_marker(&bytes))
            .and_then(|boot| self.check(boot, |boot| boot, path, MARKER))
            .map_err(|what| StorageError::damaged(path, 0, what))?;
        if read_regular(&self.path(&boot, RECEIPT))?.is_none() {
            self.publish(&boot, RECEIPT, &receipt(&boot, CRASHED))?;
        }
        self.remove(&boot, MARKER)
    }

    /// A file must be of this node, of an earlier boot, and under its own name.
    fn check<T>(
        &self,
        found: T,
        boot: impl Fn(&T) -> &Boot,
        path: &Path,
        kind: &str,
    ) -> Result<T, &'static str> {
        let of = boot(&found);
        if of.node_id != self.current.node_id {
            return Err("it belongs to another node");
        }
        if *of == self.current {
            return Err("it is of the boot that starts now; a boot id must never be used twice");
        }
        if self.path(of, kind) != path {
            return Err("it was renamed");
        }
        Ok(found)
    }

    fn start(&self) -> Result<(), StorageError> {
        if self.path(&self.current, RECEIPT).exists() {
            let what = "a receipt of the boot that starts now exists; a boot id must never be used twice";
            return Err(StorageError::damaged(&self.path(&self.current, RECEIPT), 0, what));
        }
        self.publish(&self.current, MARKER, &marker(&self.current))
    }

    /// Temporary file, fsync, link to the final name (never over another file), fsync of the directory.
    fn publish(&self, boot: &Boot, kind: &str, bytes: &[u8]) -> Result<(), StorageError> {
        make_dir(&self.dir)?;
        let path = self.path(boot, kind);
        let temporary = path.with_extension(format!("{kind}.tmp"));
        let io = StorageError::io(&temporary);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).open(&temporary).map_err(&io)?;
        file.write_all(bytes).map_err(&io)?;
        file.sync_all().map_err(&io)?;
        let linked = std::fs::hard_link(&temporary, &path);
        std::fs::remove_file(&temporary).map_err(&io)?;
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                if read_regular(&path)?.as_deref() != Some(bytes) {
                    return Err(StorageError::damaged(&path, 0, "it exists and says something else"));
                }
            }
            Err(source) => return Err(StorageError::Io { path, source }),
        }
        sync_dir(&self.dir).map_err(StorageError::io(&self.dir))
    }

    fn remove(&self, boot: &Boot, kind: &str) -> Result<(), StorageError> {
        let path = self.path(boot, kind);
        match std::fs::remove_file(&path) {
            Ok(()) => sync_dir(&self.dir).map_err(StorageError::io(&self.dir)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(StorageError::Io { path, source }),
        }
    }

    fn path(&self, boot: &Boot, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", stem(boot)))
    }
}

pub(crate) fn receipts_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("mqtt").join("retired-owners")
}

/// `hex(sha256(u64be node || boot))`.
fn stem(boot: &Boot) -> String {
    let mut hasher = Sha256::new();
    hasher.update(boot.node_id.to_be_bytes());
    hasher.update(boot.boot_id.as_bytes());
    hex(&hasher.finalize())
}

fn receipt(boot: &Boot, connection_id_max: u64) -> Vec<u8> {
    let mut out = RECEIPT_MAGIC.to_vec();
    out.extend_from_slice(&boot.node_id.to_be_bytes());
    out.extend_from_slice(&connection_id_max.to_be_bytes());
    finish(out, boot)
}

fn marker(boot: &Boot) -> Vec<u8> {
    let mut out = MARKER_MAGIC.to_vec();
    out.extend_from_slice(&boot.node_id.to_be_bytes());
    finish(out, boot)
}

fn finish(mut out: Vec<u8>, boot: &Boot) -> Vec<u8> {
    let len = u16::try_from(boot.boot_id.len()).expect("a boot id has at most 128 bytes");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(boot.boot_id.as_bytes());
    let digest = Sha256::digest(&out);
    out.extend_from_slice(&digest);
    out
}

fn decode_receipt(bytes: &[u8]) -> Result<Retirement, &'static str> {
    let (head, boot_id) = unwrap_file(bytes, RECEIPT_MAGIC, 22)?;
    let connection_id_max = be64(&head[14..22]);
    if connection_id_max == 0 {
        return Err("it covers no connection");
    }
    Ok(Retirement { boot: Boot { node_id: be64(&head[6..14]), boot_id }, connection_id_max })
}

fn decode_marker(bytes: &[u8]) -> Result<Boot, &'static str> {
    let (head, boot_id) = unwrap_file(bytes, MARKER_MAGIC, 14)?;
    Ok(Boot { node_id: be64(&head[6..14]), boot_id })
}

/// Checks magic, length and checksum; gives the fixed part and the boot id.
fn unwrap_file(bytes: &[u8], magic: [u8; 6], fixed: usize) -> Result<(&[u8], Arc<str>), &'static str> {
    let (body, digest) = bytes.split_last_chunk::<32>().ok_or("it is too short")?;
    if body.len() < fixed + 2 || body[..6] != magic {
        return Err("it has the wrong magic number or version");
    }
    if Sha256::digest(body).as_slice() != digest {
        return Err("its checksum is wrong");
    }
    let (head, rest) = body.split_at(fixed);
    let (len, boot_id) = rest.split_at(2);
    if usize::from(u16::from_be_bytes([len[0], len[1]])) != boot_id.len() {
        return Err("its length is wrong");
    }
    let boot_id = std::str::from_utf8(boot_id).map_err(|_| "its boot id is not UTF-8")?;
    check_identity(boot_id, BOOT_ID_BYTES_MAX).map_err(|_| "its boot id is not valid")?;
    Ok((head, boot_id.into()))
}

fn be64(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(bytes);
    u64::from_be_bytes(value)
}

/// The content of a regular file that is not too large; `None` when there is none, or it is a link or something else.
fn read_regular(path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    use std::io::Read;
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StorageError::Io { path: path.to_owned(), source }),
    };
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Ok(None);
    }
    let io = StorageError::io(path);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(&io)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(&io)?;
    Ok(Some(bytes))
}

#[cfg(test)]
#[path = "boot_test.rs"]
mod boot_test;
