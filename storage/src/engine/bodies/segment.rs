//! One file of message bodies: records in the order of their ids, only ever appended to (`storage/FORMAT.md`).

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::index::{Index, Place};
use crate::StorageError;

const MAGIC: [u8; 6] = *b"XMQB\0\x01";
/// Magic number, group, number of the file.
pub(super) const HEADER_BYTES: u32 = 16;
/// Id, length, checksum.
pub(super) const HEAD_BYTES: usize = 16;
/// Bytes of one read of a whole file.
const READ_BYTES: usize = 1 << 20;

/// A file and what of it counts. Its records of a number in `dead` are gone.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) serial: u64,
    pub(super) file: Arc<File>,
    /// Behind the last record that counts.
    pub(super) end: u32,
    pub(super) index: Index,
    pub(super) dead: Dead,
    pub(super) live_bytes: u64,
}

impl Segment {
    /// Makes an empty file.
    pub(super) fn create(dir: &Path, group: u16, serial: u64) -> Result<Self, StorageError> {
        let path = path(dir, group, serial);
        let io = StorageError::io(&path);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).map_err(&io)?;
        file.write_all_at(&header(group, serial), 0).map_err(&io)?;
        Ok(Self {
            serial,
            file: Arc::new(file),
            end: HEADER_BYTES,
            index: Index::default(),
            dead: Dead::default(),
            live_bytes: 0,
        })
    }

    /// Opens a file, checks every record below `end` and cuts off what is behind: no commit speaks of it.
    pub(super) fn open(
        dir: &Path,
        group: u16,
        serial: u64,
        end: u32,
        dead: Dead,
    ) -> Result<Self, StorageError> {
        let path = path(dir, group, serial);
        let io = StorageError::io(&path);
        let damaged = |what: &str| StorageError::damaged(&path, 0, what);
        let file =
            OpenOptions::new().read(true).write(true).open(&path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    let what = format!(
                        "it holds queued or retained messages of group {group}, and the state speaks of it"
                    );
                    StorageError::Missing { path: path.clone(), what }
                }
                _ => io(error),
            })?;
        let len = file.metadata().map_err(&io)?.len();
        let mut found = [0; HEADER_BYTES as usize];
        if len < u64::from(end) || end < HEADER_BYTES {
            return Err(damaged("it is cut off"));
        }
        file.read_exact_at(&mut found, 0).map_err(&io)?;
        if found != header(group, serial) {
            return Err(damaged("its header is not that of this file"));
        }
        if len > u64::from(end) {
            file.set_len(u64::from(end)).map_err(&io)?;
        }
        let (file, index) = (Arc::new(file), Index::default());
        let mut this = Self { serial, file: Arc::clone(&file), end, index, dead, live_bytes: 0 };
        scan(&file, &path, end, &mut |number, id, offset, value| {
            let bytes = HEAD_BYTES + value.len();
            let bytes_u32 = u32::try_from(bytes).unwrap_or(u32::MAX);
            if !this.index.push(id, offset, bytes_u32) {
                return Err(StorageError::damaged(&path, u64::from(offset), "its ids do not ascend"));
            }
            this.live_bytes += if this.dead.contains(number) { 0 } else { bytes as u64 };
            Ok(())
        })?;
        this.index.seal();
        Ok(this)
    }

    /// The record of `id`, unless it is gone.
    pub(super) fn find(&self, id: u64) -> Option<Place> {
        self.index.find(id).filter(|place| !self.dead.contains(place.number))
    }

    pub(super) fn live(&self) -> usize {
        self.index.len() - self.dead.count
    }
}

/// Which records of a segment are gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Dead {
    bits: Vec<u8>,
    count: usize,
}

impl Dead {
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self { count: bytes.iter().map(|byte| byte.count_ones() as usize).sum(), bits: bytes.to_vec() }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bits
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.bits.get(number / 8).is_some_and(|byte| byte & (1 << (number % 8)) != 0)
    }

    pub(super) fn insert(&mut self, number: usize) {
        if self.contains(number) {
            return;
        }
        if self.bits.len() <= number / 8 {
            self.bits.resize(number / 8 + 1, 0);
        }
        self.bits[number / 8] |= 1 << (number % 8);
        self.count += 1;
    }
}

pub(super) fn path(dir: &Path, group: u16, serial: u64) -> PathBuf {
    dir.join(format!("g{group:03}.{serial:016x}.bodies"))
}

/// The number in the name of a file of this group.
pub(super) fn serial_of(name: &str, group: u16) -> Option<u64> {
    let serial = name.strip_prefix(&format!("g{group:03}."))?.strip_suffix(".bodies")?;
    u64::from_str_radix(serial, 16).ok()
}

fn header(group: u16, serial: u64) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[..6].copy_from_slice(&MAGIC);
    header[6..8].copy_from_slice(&group.to_le_bytes());
    header[8..].copy_from_slice(&serial.to_le_bytes());
    header
}

/// Appends a record whose value `fill` appends; returns its bytes.
pub(super) fn encode(id: u64, out: &mut Vec<u8>, fill: &mut dyn FnMut(&mut Vec<u8>)) -> usize {
    let start = out.len();
    out.resize(start + HEAD_BYTES, 0);
    fill(out);
    let bytes = out.len() - start;
    let len = u32::try_from(bytes - HEAD_BYTES).expect("a body is one MQTT packet, below 1 GiB");
    out[start..start + 8].copy_from_slice(&id.to_le_bytes());
    out[start + 8..start + 12].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(&out[start..]);
    out[start + 12..start + HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The value of a whole record, when it is that of `id`.
pub(super) fn decode(id: u64, record: &[u8]) -> Option<&[u8]> {
    let (head, value) = record.split_at_checked(HEAD_BYTES)?;
    let (found, len, crc) = split_head(head)?;
    (found == id && len as usize == value.len() && crc == checksum(record)).then_some(value)
}

fn split_head(head: &[u8]) -> Option<(u64, u32, u32)> {
    let (id, rest) = head.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (crc, _) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*id), u32::from_le_bytes(*len), u32::from_le_bytes(*crc)))
}

/// Of everything but itself.
fn checksum(record: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&record[..12]);
    crc.update(&record[HEAD_BYTES..]);
    crc.finalize()
}

/// Sees the number, id, offset and value of a record.
pub(super) type VisitRecord<'a> = dyn FnMut(usize, u64, u32, &[u8]) -> Result<(), StorageError> + 'a;

/// Visits every record below `end`, checked.
pub(super) fn scan(
    file: &File,
    path: &Path,
    end: u32,
    visit: &mut VisitRecord<'_>,
) -> Result<(), StorageError> {
    let mut reader = BufReader::with_capacity(READ_BYTES, At { file, at: u64::from(HEADER_BYTES) });
    let (mut offset, mut number, mut record) = (HEADER_BYTES, 0, Vec::new());
    while offset < end {
        let damaged = |what: &str| StorageError::damaged(path, u64::from(offset), what);
        let left = (end - offset) as usize;
        record.resize(HEAD_BYTES.min(left), 0);
        reader.read_exact(&mut record).map_err(StorageError::io(path))?;
        let (id, len, _) = split_head(&record).ok_or_else(|| damaged("a record is cut off"))?;
        let bytes = HEAD_BYTES.saturating_add(len as usize);
        if bytes > left {
            return Err(damaged("a record is longer than the file"));
        }
        record.resize(bytes, 0);
        reader.read_exact(&mut record[HEAD_BYTES..]).map_err(StorageError::io(path))?;
        let value = decode(id, &record).ok_or_else(|| damaged("the checksum of a record is wrong"))?;
        visit(number, id, offset, value)?;
        number += 1;
        offset += u32::try_from(bytes).map_err(|_| damaged("a record is too long"))?;
    }
    Ok(())
}

/// Reads on from a place, whoever else reads the file.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
