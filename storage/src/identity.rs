//! Who a data directory belongs to: the identity file, its binding to the place where it was made, and the lock.
//!
//! A copied directory must not mint crash receipts for boots of its original (DESIGN §7). So the identity file remembers its own
//! inode, creation time and device: a copy has another inode or creation time, and is refused.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use crate::StorageError;
use crate::boot::receipts_dir;
use crate::wal::sync_dir;

/// Identities of a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Random; the same on all nodes of a cluster.
    pub cluster_id: [u8; 16],
    pub node_id: u64,
    /// Random; made with the directory.
    pub directory_id: [u8; 16],
    place: Place,
}

/// A directory without an identity has no log and no marker of a boot; a restored one has a state.
fn refuse_remains(data_dir: &Path) -> Result<(), StorageError> {
    for dir in [data_dir.join("wal"), receipts_dir(data_dir)] {
        let is_empty = match std::fs::read_dir(&dir) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(source) => return Err(StorageError::Io { path: dir, source }),
        };
        if !is_empty {
            let what = format!("{} is not empty", dir.display());
            return Err(StorageError::Missing { path: data_dir.join(FILE), what });
        }
    }
    Ok(())
}

/// Where the identity file was made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    device: u64,
    inode: u64,
    /// Creation time in nanoseconds since the epoch, 0 where the file system has none.
    created_ns: u64,
    /// Boot of the operating system: device numbers are only comparable within one.
    kernel_boot: [u8; 16],
}

const MAGIC: [u8; 6] = *b"XMQI\0\x01";
const FILE: &str = "identity";
const BODY_BYTES: usize = 6 + 16 + 8 + 16 + 8 + 8 + 8 + 16;
const FILE_BYTES: usize = BODY_BYTES + 32;

impl Identity {
    /// Reads the identity of `data_dir`, or makes one for `node_id` when there is none, and checks that it is this node's and
    /// still where it was made. A directory that lost its identity file gets no new one: the boots whose markers it has would be proved to
    /// have stopped, and they may be those of another machine.
    ///
    /// # Errors
    /// [`StorageError::Foreign`], [`StorageError::Copied`], [`StorageError::Damaged`], I/O.
    pub fn open(data_dir: &Path, node_id: u64) -> Result<Self, StorageError> {
        let identity = match Self::read(data_dir)? {
            Some(identity) => identity,
            None => {
                refuse_remains(data_dir)?;
                Self::create(data_dir, node_id, random()?, random()?)?
            }
        };
        if identity.node_id != node_id {
            return Err(StorageError::Foreign {
                found: format!("node {}", identity.node_id),
                wanted: format!("node {node_id}"),
            });
        }
        identity.check_place(data_dir)?;
        Ok(identity)
    }

    /// Accepts a directory that was moved here for good: binds it to this place. The boots that ran before cannot be proved
    /// stopped by this directory any more; [`crate::boot::Boots::forget_started`] has to be called too.
    ///
    /// # Errors
    /// I/O, damage, a directory without identity.
    pub fn adopt(data_dir: &Path) -> Result<Self, StorageError> {
        let path = data_dir.join(FILE);
        let old = Self::read(data_dir)?
            .ok_or_else(|| StorageError::damaged(&path, 0, "there is no identity to adopt"))?;
        std::fs::remove_file(&path).map_err(StorageError::io(&path))?;
        Self::create(data_dir, old.node_id, old.cluster_id, old.directory_id)
    }

    /// Makes the directory one of the cluster `cluster_id`, whatever cluster it was of. What it held must be gone already.
    pub(crate) fn join(data_dir: &Path, node_id: u64, cluster_id: [u8; 16]) -> Result<Self, StorageError> {
        let path = data_dir.join(FILE);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(StorageError::Io { path, source });
            }
            _ => {}
        }
        Self::create(data_dir, node_id, cluster_id, random()?)
    }

    fn create(
        data_dir: &Path,
        node_id: u64,
        cluster_id: [u8; 16],
        directory_id: [u8; 16],
    ) -> Result<Self, StorageError> {
        make_dir(data_dir)?;
        let path = data_dir.join(FILE);
        let temporary = data_dir.join(format!("{FILE}.{}.tmp", hex(&random()?)));
        let io = StorageError::io(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(&io)?;
        let place = Place::of(&file).map_err(&io)?;
        let identity = Self { cluster_id, node_id, directory_id, place };
        file.write_all(&identity.encode()).map_err(&io)?;
        file.sync_all().map_err(&io)?;
        let linked = std::fs::hard_link(&temporary, &path);
        std::fs::remove_file(&temporary).map_err(&io)?;
        match linked {
            Ok(()) => sync_dir(data_dir).map_err(StorageError::io(data_dir))?,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(StorageError::Io { path, source: error }),
        }
        Self::read(data_dir)?.ok_or_else(|| StorageError::damaged(&path, 0, "it vanished"))
    }

    fn read(data_dir: &Path) -> Result<Option<Self>, StorageError> {
        let path = data_dir.join(FILE);
        match std::fs::read(&path) {
            Ok(bytes) => Self::decode(&bytes).map(Some).map_err(|what| StorageError::damaged(&path, 0, what)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StorageError::Io { path, source }),
        }
    }

    fn check_place(&self, data_dir: &Path) -> Result<(), StorageError> {
        let path = data_dir.join(FILE);
        let file = File::open(&path).map_err(StorageError::io(&path))?;
        let here = Place::of(&file).map_err(StorageError::io(&path))?;
        let there = &self.place;
        let what = if here.inode != there.inode {
            format!("the identity file was made as inode {}, this one is {}", there.inode, here.inode)
        } else if here.created_ns != there.created_ns && here.created_ns != 0 && there.created_ns != 0 {
            "the identity file was made at another time".to_owned()
        } else if here.kernel_boot == there.kernel_boot && here.device != there.device {
            format!("it was made on device {}, this one is {}", there.device, here.device)
        } else {
            return Ok(());
        };
        Err(StorageError::Copied { path: data_dir.to_owned(), what })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.cluster_id);
        out.extend_from_slice(&self.node_id.to_be_bytes());
        out.extend_from_slice(&self.directory_id);
        out.extend_from_slice(&self.place.device.to_be_bytes());
        out.extend_from_slice(&self.place.inode.to_be_bytes());
        out.extend_from_slice(&self.place.created_ns.to_be_bytes());
        out.extend_from_slice(&self.place.kernel_boot);
        let digest = Sha256::digest(&out);
        out.extend_from_slice(&digest);
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != FILE_BYTES {
            return Err("the identity file has a wrong length");
        }
        if bytes[..6] != MAGIC {
            return Err("this is not an identity file that this version can read");
        }
        if Sha256::digest(&bytes[..BODY_BYTES]).as_slice() != &bytes[BODY_BYTES..] {
            return Err("the checksum of the identity file is wrong");
        }
        Ok(Self {
            cluster_id: array(bytes, 6),
            node_id: u64::from_be_bytes(array(bytes, 22)),
            directory_id: array(bytes, 30),
            place: Place {
                device: u64::from_be_bytes(array(bytes, 46)),
                inode: u64::from_be_bytes(array(bytes, 54)),
                created_ns: u64::from_be_bytes(array(bytes, 62)),
                kernel_boot: array(bytes, 70),
            },
        })
    }
}

impl Place {
    fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        let created = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let kernel_boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            created_ns: created.and_then(|age| u64::try_from(age.as_nanos()).ok()).unwrap_or(0),
            kernel_boot: array(Sha256::digest(kernel_boot).as_slice(), 0),
        })
    }
}

/// An exclusive advisory lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// # Errors
    /// [`StorageError::Locked`] when another process, or another part of this one, holds it.
    pub(crate) fn take(path: PathBuf) -> Result<Self, StorageError> {
        if let Some(dir) = path.parent() {
            make_dir(dir)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StorageError::io(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(std::fs::TryLockError::WouldBlock) => Err(StorageError::Locked(path)),
            Err(std::fs::TryLockError::Error(source)) => Err(StorageError::Io { path, source }),
        }
    }
}

/// Makes a directory with its parents; their names are durable when it returns.
pub(crate) fn make_dir(dir: &Path) -> Result<(), StorageError> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().unwrap_or(Path::new("."));
    make_dir(parent)?;
    match std::fs::create_dir(dir) {
        Ok(()) => sync_dir(parent).map_err(StorageError::io(parent)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(StorageError::Io { path: dir.to_owned(), source }),
    }
}

/// 16 bytes of the operating system's random numbers.
fn random() -> Result<[u8; 16], StorageError> {
    use std::io::Read;
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 16];
    let mut source = File::open(path).map_err(StorageError::io(path))?;
    source.read_exact(&mut bytes).map_err(StorageError::io(path))?;
    Ok(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN §7: a copied directory cannot mint a receipt.
    #[test]
    fn a_copied_directory_is_refused_until_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let (original, copy) = (dir.path().join("a"), dir.path().join("b"));
        let made = Identity::open(&original, 7).unwrap();
        assert_eq!(Identity::open(&original, 7).unwrap(), made);
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(original.join(FILE), copy.join(FILE)).unwrap();
        assert!(matches!(Identity::open(&copy, 7), Err(StorageError::Copied { .. })));
        let adopted = Identity::adopt(&copy).unwrap();
        assert_eq!(adopted.directory_id, made.directory_id);
        assert_eq!(Identity::open(&copy, 7).unwrap(), adopted);
    }

    /// P4: without its identity nobody can tell a directory from a copy, whose boots must not be proved to have stopped.
    #[test]
    fn p4_a_directory_that_lost_its_identity_gets_no_new_one() {
        let dir = tempfile::tempdir().unwrap();
        Identity::open(dir.path(), 1).unwrap();
        std::fs::remove_file(dir.path().join(FILE)).unwrap();
        for part in [dir.path().join("wal"), receipts_dir(dir.path())] {
            std::fs::create_dir_all(&part).unwrap();
            std::fs::write(part.join("1"), b"").unwrap();
            assert!(matches!(Identity::open(dir.path(), 1), Err(StorageError::Missing { .. })));
            std::fs::remove_dir_all(&part).unwrap();
        }
        Identity::open(dir.path(), 1).unwrap();
    }

    #[test]
    fn a_directory_of_another_node_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        Identity::open(dir.path(), 1).unwrap();
        assert!(matches!(Identity::open(dir.path(), 2), Err(StorageError::Foreign { .. })));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let made = Identity::open(dir.path(), 1).unwrap();
        let bytes = made.encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Identity::decode(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_lock_is_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path().join("LOCK")).unwrap();
        assert!(matches!(Lock::take(dir.path().join("LOCK")), Err(StorageError::Locked(_))));
        drop(lock);
        Lock::take(dir.path().join("LOCK")).unwrap();
    }
}
