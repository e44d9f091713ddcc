//! The bytes of one log record and of a segment's header. `storage/FORMAT.md` describes them; golden vectors pin them.

use std::ops::Range;

/// Bytes in front of every payload.
pub(crate) const RECORD_HEADER_BYTES: usize = 40;
/// Bytes in front of the first record of a segment.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;
/// Records start at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// One record's payload; far above any proposal (4 MiB and one largest MQTT packet).
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

const SEGMENT_MAGIC: [u8; 6] = *b"XMQW\0\x02";

/// What a record says. Durable numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A Raft log entry.
    Entry = 1,
    /// Entries of the group from `index` on are void.
    Truncate = 2,
    /// The group's vote.
    Vote = 3,
    /// The group's entries up to `index` are committed; a hint that saves work at start.
    Committed = 4,
    /// The group's entries up to `index` are in its state and may go.
    Purge = 5,
    /// Last vote, committed hint and purge of the group, repeated at the start of a segment so that older ones can go.
    Checkpoint = 6,
}

impl Kind {
    const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Entry,
            2 => Self::Truncate,
            3 => Self::Vote,
            4 => Self::Committed,
            5 => Self::Purge,
            6 => Self::Checkpoint,
            _ => return None,
        })
    }
}

/// A record to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) group: u16,
    pub(crate) kind: Kind,
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) payload: Vec<u8>,
}

/// A record as found in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) group: u16,
    pub(crate) kind: Kind,
    pub(crate) index: u64,
    pub(crate) term: u64,
    /// Number of this record in the whole log, without gaps.
    pub(crate) number: u64,
    /// Number of the first record of the write that this one was part of.
    pub(crate) write_start: u64,
    /// Where the payload is in the segment.
    pub(crate) payload: Range<usize>,
    /// Where the next record starts.
    pub(crate) end: usize,
}

/// What the checksum of every record of a segment begins with: the identity of the data directory, which nobody outside knows, and the
/// segment's number. So a record of another place never passes for one of this segment, nor do bytes that a client chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal(u32);

impl Seal {
    pub(crate) fn of(directory: [u8; 16], segment: u64) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&directory);
        hasher.update(&segment.to_le_bytes());
        Self(hasher.finalize())
    }

    /// CRC-32 that goes on over the header without the checksum, and the payload.
    fn checksum(self, record: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(&record[..4]);
        hasher.update(&record[8..]);
        hasher.finalize()
    }
}

/// Bytes that a record with this payload takes.
pub(crate) const fn record_bytes(payload: usize) -> usize {
    (RECORD_HEADER_BYTES + payload).next_multiple_of(ALIGN)
}

/// Appends one record to `out`. `number - write_start` must fit 32 bits: a write holds fewer records.
pub(crate) fn encode(record: &Record, seal: Seal, number: u64, write_start: u64, out: &mut Vec<u8>) {
    let at = out.len();
    let len = u32::try_from(record.payload.len()).expect("a payload is below 1 GiB");
    let back = u32::try_from(number - write_start).expect("a write has fewer than 2^32 records");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&record.index.to_le_bytes());
    out.extend_from_slice(&record.term.to_le_bytes());
    out.extend_from_slice(&back.to_le_bytes());
    out.extend_from_slice(&record.group.to_le_bytes());
    out.extend_from_slice(&[record.kind as u8, 0]);
    out.extend_from_slice(&record.payload);
    let crc = seal.checksum(&out[at..]);
    out[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
    out.resize(at + record_bytes(record.payload.len()), 0);
}

/// The record at `at`, if there is a whole and valid one.
pub(crate) fn decode(bytes: &[u8], at: usize, seal: Seal) -> Option<Found> {
    let header = bytes.get(at..at.checked_add(RECORD_HEADER_BYTES)?)?;
    let kind = Kind::from_u8(header[38])?;
    let len = u32_at(header, 0) as usize;
    if len > PAYLOAD_BYTES_MAX || header[39] != 0 {
        return None;
    }
    let number = u64_at(header, 8);
    let write_start = number.checked_sub(u64::from(u32_at(header, 32)))?;
    let end = at.checked_add(record_bytes(len))?;
    if end > bytes.len() {
        return None;
    }
    let payload = at + RECORD_HEADER_BYTES..at + RECORD_HEADER_BYTES + len;
    if seal.checksum(&bytes[at..payload.end]) != u32_at(header, 4) {
        return None;
    }
    if bytes[payload.end..end].iter().any(|byte| *byte != 0) {
        return None;
    }
    Some(Found {
        group: u16::from_le_bytes([header[36], header[37]]),
        kind,
        index: u64_at(header, 16),
        term: u64_at(header, 24),
        number,
        write_start,
        payload,
        end,
    })
}

/// What a segment's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) segment: u64,
    /// Number of the first record in it.
    pub(crate) first: u64,
    /// Identity of the data directory.
    pub(crate) directory: [u8; 16],
    /// Bytes of the whole file: it never shrinks.
    pub(crate) len: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..6].copy_from_slice(&SEGMENT_MAGIC);
        out[8..16].copy_from_slice(&self.segment.to_le_bytes());
        out[16..24].copy_from_slice(&self.first.to_le_bytes());
        out[24..40].copy_from_slice(&self.directory);
        out[40..48].copy_from_slice(&self.len.to_le_bytes());
        let crc = crc32fast::hash(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let header = bytes.get(..SEGMENT_HEADER_BYTES).ok_or("the segment is shorter than its header")?;
        if header[..4] != SEGMENT_MAGIC[..4] {
            return Err("not a segment of the write-ahead log");
        }
        if u32_at(header, 60) != crc32fast::hash(&header[..60]) {
            return Err("the checksum of the segment's header is wrong");
        }
        if header[..6] != SEGMENT_MAGIC {
            return Err("the segment was written by a version that this one cannot read");
        }
        let mut directory = [0; 16];
        directory.copy_from_slice(&header[24..40]);
        Ok(Self { segment: u64_at(header, 8), first: u64_at(header, 16), directory, len: u64_at(header, 40) })
    }
}

/// File name of a segment.
pub(crate) fn segment_name(segment: u64) -> String {
    format!("{segment:016x}.wal")
}

/// Number of the segment with this file name.
pub(crate) fn parse_segment_name(name: &str) -> Option<u64> {
    let stem = name.strip_suffix(".wal")?;
    if stem.len() == 16 { u64::from_str_radix(stem, 16).ok() } else { None }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}
