//! A backup becomes the data directory of the first node of a new cluster.
//!
//! The cluster that the backup was made from may still run, so nothing in the new directory may say that one of its boots ended: it has
//! neither marker nor receipt of them. What retires them is the operator's word that comes with the restore, as with a node that is gone
//! (DESIGN §7). The new directory has identities of its own, so that nodes of both clusters never mix.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use session::lifecycle::{GroupStat, RetireProof};
use session::time::Millis;

use crate::backup::{Manifest, Reading};
use crate::identity::{Identity, make_dir};
use crate::store::{ENGINE_CACHE_BYTES, EngineKind};
use crate::wal::sync_dir;
use crate::{StorageError, engine, raft};

/// Where it is made, below the directory.
const MAKING: &str = "restoring";

/// How a backup is restored.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    /// Where; it must not exist, or be empty.
    pub data_dir: PathBuf,
    /// Of the node whose directory it becomes.
    pub node_id: u64,
    pub engine: EngineKind,
    /// Now.
    pub at: Millis,
    /// By what the boots in the backup are retired.
    pub proof: RetireProof,
}

/// What was restored.
#[derive(Debug, Clone)]
pub struct Restored {
    pub manifest: Manifest,
    /// The new cluster.
    pub cluster_id: [u8; 16],
    /// Boots that were not retired when the backup was made, and are now.
    pub boots_retired: u64,
    /// Sum over the groups.
    pub sessions: u64,
    pub queued_messages: u64,
    pub subscriptions: u64,
    pub retained: u64,
}

/// Fills the directory, in a part of it until everything is whole; it keeps its owner and mode, and what is in it is of the same owner. One
/// that is made is for this user only where the process has such an umask.
///
/// # Errors
/// The directory is not empty, the backup is damaged or of another format, I/O. Nothing is made then.
pub fn restore(backup: &Path, options: &RestoreOptions) -> Result<Restored, StorageError> {
    let dir = &options.data_dir;
    let is_new = check_target(dir)?;
    make_dir(dir)?;
    let making = dir.join(MAKING);
    std::fs::create_dir(&making).map_err(StorageError::io(&making))?;
    let made = fill(backup, &making, options).and_then(|restored| settle(&making, dir).map(|()| restored));
    if made.is_err() {
        // The error that counts is the first one.
        let _ = std::fs::remove_dir_all(&making);
        if is_new {
            let _ = std::fs::remove_dir(dir);
        }
    }
    made
}

/// What is made stands in its place; last what makes it a data directory.
fn settle(making: &Path, dir: &Path) -> Result<(), StorageError> {
    let of = std::fs::metadata(dir).map_err(StorageError::io(dir))?;
    give(making, (of.uid(), of.gid()))?;
    for name in ["state", "identity"] {
        let (from, to) = (making.join(name), dir.join(name));
        std::fs::rename(&from, &to).map_err(StorageError::io(&to))?;
        sync_dir(dir).map_err(StorageError::io(dir))?;
    }
    std::fs::remove_dir(making).map_err(StorageError::io(making))
}

/// To the owner of the directory: a service does not run as whoever restores for it.
fn give(path: &Path, owner: (u32, u32)) -> Result<(), StorageError> {
    let io = StorageError::io(path);
    let now = std::fs::metadata(path).map_err(&io)?;
    if now.is_dir() {
        for entry in std::fs::read_dir(path).map_err(&io)? {
            give(&entry.map_err(&io)?.path(), owner)?;
        }
    }
    if (now.uid(), now.gid()) == owner {
        return Ok(());
    }
    std::os::unix::fs::chown(path, Some(owner.0), Some(owner.1)).map_err(&io)
}

/// Reads a whole backup, makes nothing of it, and tells what it says of itself.
///
/// # Errors
/// It is damaged or of another format, I/O; no room in the directory for temporary files.
pub fn check(backup: &Path) -> Result<Manifest, StorageError> {
    let dir = std::env::temp_dir().join(format!("exactmq-check-{}", std::process::id()));
    std::fs::create_dir(&dir).map_err(StorageError::io(&dir))?;
    let checked = check_in(backup, &dir);
    std::fs::remove_dir_all(&dir).map_err(StorageError::io(&dir))?;
    checked
}

fn check_in(backup: &Path, dir: &Path) -> Result<Manifest, StorageError> {
    let (mut reading, manifest) = Reading::open(backup)?;
    for group in 0..manifest.groups {
        raft::check_group(extract(&mut reading, dir, group)?, manifest.groups).map_err(of(backup))?;
    }
    reading.end()?;
    Ok(manifest)
}

fn fill(backup: &Path, dir: &Path, options: &RestoreOptions) -> Result<Restored, StorageError> {
    let (mut reading, manifest) = Reading::open(backup)?;
    let state = dir.join("state");
    make_dir(&state)?;
    let groups = manifest.groups;
    let engines = engine::open(options.engine, &state, groups, ENGINE_CACHE_BYTES)?;
    let mut restored = Restored {
        manifest,
        cluster_id: [0; 16],
        boots_retired: 0,
        sessions: 0,
        queued_messages: 0,
        subscriptions: 0,
        retained: 0,
    };
    for (group, engine) in (0..groups).zip(engines) {
        let path = extract(&mut reading, &state, group)?;
        let node = (groups, options.node_id);
        let (retired, stat) = raft::restore_group(engine.as_ref(), path, node, options.at, &options.proof)
            .map_err(of(backup))?;
        // Every group knows every boot.
        restored.boots_retired = restored.boots_retired.max(retired);
        restored.add(&stat);
    }
    reading.end()?;
    sync_dir(&state).map_err(StorageError::io(&state))?;
    // Last: a directory without it is none.
    restored.cluster_id = Identity::open(dir, options.node_id)?.cluster_id;
    Ok(restored)
}

/// Damage in what was copied out of a backup is damage of the backup.
fn of(backup: &Path) -> impl Fn(StorageError) -> StorageError + '_ {
    |error| match error {
        StorageError::Damaged { offset, what, .. } => {
            StorageError::Backup { path: backup.to_owned(), offset, what }
        }
        StorageError::Row(error) => {
            StorageError::Backup { path: backup.to_owned(), offset: 0, what: error.to_string() }
        }
        other => other,
    }
}

impl Restored {
    fn add(&mut self, stat: &GroupStat) {
        self.sessions += stat.sessions_active + stat.sessions_offline;
        self.queued_messages += stat.inbox_messages;
        self.subscriptions += stat.subscriptions;
        self.retained += stat.retained;
    }
}

fn extract(reading: &mut Reading, dir: &Path, group: u16) -> Result<PathBuf, StorageError> {
    let path = dir.join(format!("g{group:03}.incoming"));
    let mut file = File::create(&path).map_err(StorageError::io(&path))?;
    reading.group(&mut file)?;
    Ok(path)
}

/// Whether it is not there; one that is there is empty, but for what a file system puts at its root.
fn check_target(dir: &Path) -> Result<bool, StorageError> {
    let refuse = |what: &str| Err(StorageError::Target { path: dir.to_owned(), what: what.to_owned() });
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        entries => entries.map_err(StorageError::io(dir))?,
    };
    for entry in entries {
        let name = entry.map_err(StorageError::io(dir))?.file_name();
        if name == MAKING {
            return refuse(
                "has a part `restoring` of a restore that was cut short, or that still runs: remove that part",
            );
        }
        if name != "lost+found" {
            return refuse("is not empty");
        }
    }
    Ok(false)
}
