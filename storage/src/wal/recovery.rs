//! Reading the log at start: what is whole is taken, a torn tail is cut, damage in the middle refuses to start.
//!
//! Every write is followed by its fsync before the next write begins, and every record names the first record of its
//! write. So a bad record may be followed by valid ones of **its own** write (the disk kept some sectors of a write that was never
//! acknowledged), but never by a valid one of a **later** write: that would mean that synced bytes changed.

use super::disk::{Disk, DiskFile, TEMPORARY};
use super::record::{
    ALIGN, Found, SEGMENT_HEADER_BYTES, Seal, SegmentHeader, decode, parse_segment_name, segment_name,
};
use crate::StorageError;

/// Where a payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Sees a record, where its payload is, and the payload.
pub(super) type Visit<'a> = dyn FnMut(&Found, Location, &[u8]) -> Result<(), StorageError> + 'a;

/// The end of the log after recovery.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) segment: u64,
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) len: u64,
    /// Where the next record goes.
    pub(crate) at: u64,
    /// Its number.
    pub(crate) next: u64,
    /// Older segments, oldest first.
    pub(crate) older: Vec<u64>,
}

/// Reads every segment, hands each whole record in order to `visit`, and cuts a torn tail. What it handed out is durable when it returns.
/// `None`: the log is new.
pub(crate) fn recover(
    disk: &dyn Disk,
    directory: [u8; 16],
    visit: &mut Visit<'_>,
) -> Result<Option<Tail>, StorageError> {
    let mut segments = Vec::new();
    for name in disk.list().map_err(|error| io(disk, "", error))? {
        if name.ends_with(TEMPORARY) {
            disk.remove(&name).map_err(|error| io(disk, &name, error))?;
        } else if let Some(segment) = parse_segment_name(&name) {
            segments.push(segment);
        }
    }
    segments.sort_unstable();
    let Some(last) = segments.last().copied() else { return Ok(None) };
    let mut next = None;
    for (position, segment) in segments.iter().copied().enumerate() {
        let name = segment_name(segment);
        if position > 0 && segments[position - 1] + 1 != segment {
            return Err(damaged(disk, &name, 0, "the segment before it is missing"));
        }
        let (file, bytes) = read(disk, &name)?;
        let header = SegmentHeader::decode(&bytes).map_err(|what| damaged(disk, &name, 0, what))?;
        check_header(disk, &name, &header, segment, directory, next)?;
        if (bytes.len() as u64) < header.len {
            // What was cut off may have been synced.
            let what = format!(
                "the segment has {} bytes, {} are missing",
                bytes.len(),
                header.len - bytes.len() as u64
            );
            return Err(damaged(disk, &name, bytes.len() as u64, &what));
        }
        let seal = Seal::of(directory, segment);
        let scan = scan(&bytes, segment, seal, header.first, visit)?;
        next = Some(scan.next);
        if segment != last {
            // Whether records are missing here shows at the header of the segment behind it.
            continue;
        }
        if let Some(later) = later_write(&bytes, scan.at, seal, scan.next) {
            let what = format!("a record is damaged, but records of a later write follow at offset {later}");
            return Err(damaged(disk, &name, scan.at as u64, &what));
        }
        settle(file.as_ref(), &bytes, &scan).map_err(|error| io(disk, &name, error))?;
        segments.pop();
        return Ok(Some(Tail {
            segment,
            file,
            len: bytes.len() as u64,
            at: scan.at as u64,
            next: scan.next,
            older: segments,
        }));
    }
    Ok(None)
}

fn check_header(
    disk: &dyn Disk,
    name: &str,
    header: &SegmentHeader,
    segment: u64,
    directory: [u8; 16],
    next: Option<u64>,
) -> Result<(), StorageError> {
    if header.segment != segment {
        return Err(damaged(disk, name, 8, "the segment was renamed"));
    }
    if header.directory != directory {
        return Err(damaged(disk, name, 24, "the segment belongs to another data directory"));
    }
    match next {
        Some(next) if next != header.first => {
            let previous = segment_name(segment - 1);
            let what = format!(
                "records {next} to {} are damaged or missing, although later ones are there",
                header.first.saturating_sub(1)
            );
            Err(damaged(disk, &previous, SEGMENT_HEADER_BYTES as u64, &what))
        }
        _ => Ok(()),
    }
}

fn read(disk: &dyn Disk, name: &str) -> Result<(Box<dyn DiskFile>, Vec<u8>), StorageError> {
    let file = disk.open(name).map_err(|error| io(disk, name, error))?;
    let len = file.len().map_err(|error| io(disk, name, error))?;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    file.read_at(0, &mut bytes).map_err(|error| io(disk, name, error))?;
    Ok((file, bytes))
}

struct Scan {
    /// Where the last write begins, of which whole records were found.
    write_at: usize,
    /// Where there is no record any more.
    at: usize,
    next: u64,
}

/// Visits whole records until the first place where there is none with the expected number.
fn scan(
    bytes: &[u8],
    segment: u64,
    seal: Seal,
    first: u64,
    visit: &mut Visit<'_>,
) -> Result<Scan, StorageError> {
    let mut at = SEGMENT_HEADER_BYTES;
    let mut write_at = at;
    let mut next = first;
    while let Some(found) = decode(bytes, at, seal).filter(|found| found.number == next) {
        if found.write_start == found.number {
            write_at = at;
        }
        let location = Location {
            segment,
            offset: found.payload.start as u64,
            len: u32::try_from(found.payload.len()).expect("a payload is below 1 GiB"),
        };
        visit(&found, location, &bytes[found.payload.clone()])?;
        at = found.end;
        next += 1;
    }
    Ok(Scan { write_at, at, next })
}

/// Offset of a valid record behind `at` that belongs to a later write than record `expected` would.
fn later_write(bytes: &[u8], at: usize, seal: Seal, expected: u64) -> Option<usize> {
    let mut at = at;
    while at < bytes.len() {
        if let Some(found) = decode(bytes, at, seal)
            && found.write_start > expected
        {
            return Some(at);
        }
        at += ALIGN;
    }
    None
}

/// Makes the end of the log what it looks like. The last write may be in the page cache alone: of a process that was killed before its
/// fsync, or whose fsync failed, after which the kernel takes those pages for written. So it is written again. All before it was synced
/// before it began. What is behind the tail becomes zeros, so that no remnant of a torn write can ever pass for a record that follows.
fn settle(file: &dyn DiskFile, bytes: &[u8], scan: &Scan) -> std::io::Result<()> {
    let dirty = bytes[scan.at..].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let mut end = bytes[scan.write_at..scan.at].to_vec();
    end.resize(end.len() + dirty, 0);
    if end.is_empty() {
        return Ok(());
    }
    file.write_at(scan.write_at as u64, &end)?;
    file.sync()
}

pub(super) fn io(disk: &dyn Disk, name: &str, source: std::io::Error) -> StorageError {
    StorageError::Io { path: disk.path(name), source }
}

fn damaged(disk: &dyn Disk, name: &str, offset: u64, what: &str) -> StorageError {
    StorageError::Damaged { path: disk.path(name), offset, what: what.to_owned() }
}
