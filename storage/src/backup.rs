//! The bytes of a backup: every group's snapshot, one behind the other, so that it can be written while it is made.
//! `storage/FORMAT.md` describes it.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use session::time::Millis;

use crate::StorageError;
use crate::identity::Identity;
use crate::raft::{Machine, SnapshotData};

const MAGIC: [u8; 6] = *b"XMQA\0\x01";
const END: [u8; 4] = *b"XMQE";
const MANIFEST_BYTES_MAX: u32 = 4 << 10;
const CHUNK_BYTES: usize = 1 << 20;

/// What the maker says of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Of the program.
    pub version: String,
    pub at: Millis,
}

/// What a backup says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Cluster and node that it was made from.
    pub cluster_id: [u8; 16],
    pub node_id: u64,
    pub groups: u16,
    /// Version of the program that made it.
    pub version: String,
    /// Begin of its making.
    pub at: Millis,
}

pub(crate) fn write(
    machines: &[Arc<Machine>],
    identity: &Identity,
    about: &About,
    out: &mut dyn Write,
) -> Result<(), StorageError> {
    let path = Path::new("backup");
    let io = StorageError::io(path);
    let manifest = Manifest {
        cluster_id: identity.cluster_id,
        node_id: identity.node_id,
        groups: u16::try_from(machines.len()).expect("Options::groups is a u16"),
        version: about.version.clone(),
        at: about.at,
    };
    let manifest = postcard::to_allocvec(&manifest).expect("a manifest is plain data");
    let len = u32::try_from(manifest.len()).ok().filter(|len| *len <= MANIFEST_BYTES_MAX);
    let len = len.ok_or_else(|| StorageError::damaged(path, 0, "the version is too long"))?;
    for part in [&MAGIC[..], &len.to_le_bytes(), &manifest, &crc32fast::hash(&manifest).to_le_bytes()] {
        out.write_all(part).map_err(&io)?;
    }
    for cut in cuts(machines)? {
        let mut chunks = Chunks { out };
        cut.export(&mut chunks)?;
        chunks.send(&[]).map_err(&io)?;
    }
    out.write_all(&END).and_then(|()| out.flush()).map_err(&io)
}

/// All groups at one moment. What one group lets go for another to have (a message that goes to another member of its share, a Will that was
/// published) is in one of them.
fn cuts(machines: &[Arc<Machine>]) -> Result<Vec<SnapshotData>, StorageError> {
    // Most of it before anybody has to wait.
    for machine in machines {
        machine.cut()?;
    }
    let _still: Vec<_> = machines.iter().map(|machine| machine.still()).collect();
    machines.iter().map(|machine| machine.cut()).collect()
}

/// Puts the length before each piece of a group; an empty one ends it. What is exported comes in large pieces by itself.
struct Chunks<'a> {
    out: &'a mut dyn Write,
}

impl Chunks<'_> {
    fn send(&mut self, piece: &[u8]) -> io::Result<()> {
        let len = u32::try_from(piece.len()).map_err(io::Error::other)?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(piece)
    }
}

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES);
        if taken > 0 {
            self.send(&bytes[..taken])?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A backup that is read.
#[derive(Debug)]
pub(crate) struct Reading {
    path: PathBuf,
    input: BufReader<File>,
    at: u64,
}

impl Reading {
    pub(crate) fn open(path: &Path) -> Result<(Self, Manifest), StorageError> {
        let file = File::open(path).map_err(StorageError::io(path))?;
        let mut this =
            Self { path: path.to_owned(), input: BufReader::with_capacity(CHUNK_BYTES, file), at: 0 };
        let mut magic = [0; 6];
        this.read(&mut magic)?;
        if magic != MAGIC {
            return Err(this.damaged("it is not a backup that this version can read"));
        }
        let len = this.length()?;
        if len > MANIFEST_BYTES_MAX {
            return Err(this.damaged("what it says of itself is too long"));
        }
        let mut manifest = vec![0; len as usize];
        this.read(&mut manifest)?;
        let expected = this.length()?;
        let decoded = postcard::from_bytes::<Manifest>(&manifest).ok();
        match decoded.filter(|found| crc32fast::hash(&manifest) == expected && found.groups > 0) {
            Some(manifest) => Ok((this, manifest)),
            None => Err(this.damaged("what it says of itself is damaged")),
        }
    }

    /// Copies the snapshot file of the next group.
    pub(crate) fn group(&mut self, out: &mut dyn Write) -> Result<(), StorageError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let len = self.length()? as usize;
            if len == 0 {
                return Ok(());
            }
            if len > CHUNK_BYTES {
                return Err(self.damaged("a piece is too long"));
            }
            self.read(&mut chunk[..len])?;
            let io = StorageError::io(&self.path);
            out.write_all(&chunk[..len]).map_err(io)?;
        }
    }

    /// Nothing more may come.
    pub(crate) fn end(mut self) -> Result<(), StorageError> {
        let mut end = [0; 4];
        self.read(&mut end)?;
        let more = self.input.read(&mut [0]).map_err(StorageError::io(&self.path))?;
        if end == END && more == 0 { Ok(()) } else { Err(self.damaged("it does not end as a backup does")) }
    }

    fn length(&mut self) -> Result<u32, StorageError> {
        let mut len = [0; 4];
        self.read(&mut len)?;
        Ok(u32::from_le_bytes(len))
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), StorageError> {
        match self.input.read_exact(into) {
            Ok(()) => {
                self.at += into.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damaged("it is cut off")),
            Err(source) => Err(StorageError::Io { path: self.path.clone(), source }),
        }
    }

    fn damaged(&self, what: &str) -> StorageError {
        StorageError::Backup { path: self.path.clone(), offset: self.at, what: what.to_owned() }
    }
}
