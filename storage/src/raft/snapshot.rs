//! The bytes of a snapshot on its way to another node: a checksummed file of rows, streamed, so that memory stays bounded.
//! `storage/FORMAT.md` describes it.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::StorageError;
use crate::engine::{View, Visit};

const MAGIC: [u8; 6] = *b"XMQS\0\x01";
/// Stands where a key length would: no more rows.
const END: u32 = u32::MAX;
/// Longest key or value: far above any row (a body is one MQTT packet).
const FIELD_BYTES_MAX: u32 = 1 << 30;
const BUFFER_BYTES: usize = 1 << 20;

/// The state of a group at one log position.
pub(crate) struct SnapshotData(Source);

enum Source {
    /// As the engine has it.
    View(Mutex<Box<dyn View>>),
    /// As it came from another node; the file goes with this value.
    File(Received),
}

struct Received {
    path: PathBuf,
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "a received snapshot could not be removed");
        }
    }
}

impl SnapshotData {
    pub(super) fn from_view(view: Box<dyn View>) -> Self {
        Self(Source::View(Mutex::new(view)))
    }

    /// An empty file that a snapshot from another node is written to.
    pub(super) fn receive(path: PathBuf) -> Result<Self, StorageError> {
        if let Some(dir) = path.parent() {
            crate::identity::make_dir(dir)?;
        }
        File::create(&path).map_err(StorageError::io(&path))?;
        Ok(Self(Source::File(Received { path })))
    }

    /// A whole snapshot file; it goes with this value.
    pub(super) fn received(path: PathBuf) -> Self {
        Self(Source::File(Received { path }))
    }

    /// Writes the snapshot file, row by row.
    pub(crate) fn export(&self, out: impl Write) -> Result<(), StorageError> {
        let path = Path::new("snapshot");
        let io = StorageError::io(path);
        let mut out =
            Checked { inner: BufWriter::with_capacity(BUFFER_BYTES, out), crc: crc32fast::Hasher::new() };
        out.write_all(&MAGIC).map_err(&io)?;
        out.field(&self.meta()?).map_err(&io)?;
        let mut rows: u64 = 0;
        self.rows(&mut |key, value| {
            rows += 1;
            out.field(key).and_then(|()| out.field(value)).map_err(&io)
        })?;
        out.write_all(&END.to_le_bytes()).map_err(&io)?;
        out.write_all(&rows.to_le_bytes()).map_err(&io)?;
        let crc = out.crc.clone().finalize();
        out.inner.write_all(&crc.to_le_bytes()).and_then(|()| out.inner.flush()).map_err(&io)
    }

    /// Checks the whole snapshot without keeping it and gives its meta value.
    pub(super) fn verify(&self) -> Result<Vec<u8>, StorageError> {
        match &self.0 {
            Source::View(_) => self.meta(),
            Source::File(file) => {
                let mut reader = Reader::open(&file.path)?;
                let meta = reader.meta()?;
                reader.rows(&mut |_, _| Ok(()))?;
                Ok(meta)
            }
        }
    }

    /// Visits every row in key order. A file has to be verified before: its checksum is behind the rows.
    pub(super) fn rows(&self, visit: &mut Visit<'_>) -> Result<(), StorageError> {
        match &self.0 {
            Source::View(view) => view.lock().scan(visit),
            Source::File(file) => {
                let mut reader = Reader::open(&file.path)?;
                reader.meta()?;
                reader.rows(visit)
            }
        }
    }

    fn meta(&self) -> Result<Vec<u8>, StorageError> {
        match &self.0 {
            Source::View(view) => {
                let missing = || StorageError::damaged("state".as_ref(), 0, "the snapshot has no meta value");
                view.lock().meta()?.ok_or_else(missing)
            }
            Source::File(file) => Reader::open(&file.path)?.meta(),
        }
    }

    /// Where a received snapshot has to be written.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.0 {
            Source::View(_) => None,
            Source::File(file) => Some(&file.path),
        }
    }
}

struct Checked<W: Write> {
    inner: BufWriter<W>,
    crc: crc32fast::Hasher,
}

impl<W: Write> Checked<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc.update(bytes);
        self.inner.write_all(bytes)
    }

    fn field(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).ok().filter(|len| *len <= FIELD_BYTES_MAX);
        let len = len.ok_or_else(|| io::Error::other("a row is larger than 1 GiB"))?;
        self.write_all(&len.to_le_bytes())?;
        self.write_all(bytes)
    }
}

struct Reader<'a> {
    path: &'a Path,
    inner: BufReader<File>,
    crc: crc32fast::Hasher,
    at: u64,
}

impl<'a> Reader<'a> {
    fn open(path: &'a Path) -> Result<Self, StorageError> {
        let file = File::open(path).map_err(StorageError::io(path))?;
        let inner = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut reader = Self { path, inner, crc: crc32fast::Hasher::new(), at: 0 };
        let mut magic = [0; 6];
        reader.read(&mut magic)?;
        if magic == MAGIC {
            Ok(reader)
        } else {
            Err(reader.damaged("not a snapshot that this version can read"))
        }
    }

    fn meta(&mut self) -> Result<Vec<u8>, StorageError> {
        let mut meta = Vec::new();
        if self.field(&mut meta)? { Ok(meta) } else { Err(self.damaged("the meta value is missing")) }
    }

    fn rows(&mut self, visit: &mut Visit<'_>) -> Result<(), StorageError> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut rows: u64 = 0;
        while self.field(&mut key)? {
            if !self.field(&mut value)? {
                return Err(self.damaged("a row has no value"));
            }
            rows += 1;
            visit(&key, &value)?;
        }
        let mut count = [0; 8];
        self.read(&mut count)?;
        let crc = self.crc.clone().finalize();
        let mut expected = [0; 4];
        self.read(&mut expected)?;
        if u64::from_le_bytes(count) != rows || u32::from_le_bytes(expected) != crc {
            return Err(self.damaged("the checksum or the number of rows is wrong"));
        }
        Ok(())
    }

    /// False: the end mark.
    fn field(&mut self, into: &mut Vec<u8>) -> Result<bool, StorageError> {
        let mut len = [0; 4];
        self.read(&mut len)?;
        let len = u32::from_le_bytes(len);
        if len == END {
            return Ok(false);
        }
        if len > FIELD_BYTES_MAX {
            return Err(self.damaged("a field is too long"));
        }
        into.clear();
        // The length is not to be trusted before the checksum: take only what is there.
        let read =
            (&mut self.inner).take(u64::from(len)).read_to_end(into).map_err(StorageError::io(self.path))?;
        if read != len as usize {
            return Err(self.damaged("it is cut off"));
        }
        self.crc.update(into);
        self.at += u64::from(len);
        Ok(true)
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), StorageError> {
        match self.inner.read_exact(into) {
            Ok(()) => {
                self.crc.update(into);
                self.at += into.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.damaged("it is cut off")),
            Err(source) => Err(StorageError::Io { path: self.path.to_owned(), source }),
        }
    }

    fn damaged(&self, what: &str) -> StorageError {
        StorageError::damaged(self.path, self.at, what)
    }
}
