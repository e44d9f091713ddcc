//! Message bodies of one group in files of their own. A tree would write each body twice, take it apart page by page when it is settled, and
//! hold pages of it in memory; here a body is written once, read with one call, and its file goes when the last one in it is settled.
//!
//! ```text
//!  append ──▶ [ last file ]  full  [ file ] … [ file ]        a row of the engine per file says how far it counts and which
//!                                    └─ few are left: merged   of its records are gone; what no row speaks of is not there
//! ```

mod index;
mod segment;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use self::index::Place;
use self::segment::{Dead, Segment, decode, encode, path, scan, serial_of};
use super::{Visit, VisitBody};
use crate::StorageError;

/// A file that has this much takes no more. Tests fill some.
const SEGMENT_BYTES: u32 = if cfg!(test) { 4 << 20 } else { 128 << 20 };
/// Bytes of one write.
const WRITE_BYTES: usize = 1 << 20;
/// Files with less than this are put together.
const SPARSE_BYTES: u64 = SEGMENT_BYTES as u64 / 4;
/// A file is made smaller when the rest of it is at most this part.
const SPARSE_PART: u64 = 4;
/// A file this small stays as it is.
const SMALL_BYTES: u32 = SEGMENT_BYTES / 128;
/// Wanted bodies that are no farther apart are read with one call.
const GAP_BYTES: u64 = 2 << 10;
/// Bytes of one such call, unless one body has more.
const READ_BYTES: u64 = 1 << 20;

/// The files of one group. One writes at a time, any number read.
#[derive(Debug)]
pub(super) struct Bodies {
    dir: PathBuf,
    group: u16,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// By the first id of each; ids of a file are below those of the next.
    segments: BTreeMap<u64, Segment>,
    next_serial: u64,
}

/// First ids of files whose rows change.
pub(super) type Changed = BTreeSet<u64>;

/// Files that are put together.
pub(super) struct Merge {
    pub(super) old: Vec<u64>,
    pub(super) new: u64,
    segment: Segment,
}

/// Sees the id of a body and its row value.
type VisitById<'a> = dyn FnMut(u64, &[u8]) -> Result<(), StorageError> + 'a;

/// A file as a view sees it.
pub(super) struct Kept {
    file: Arc<File>,
    path: PathBuf,
    end: u32,
    dead: Dead,
}

impl Bodies {
    /// Opens what `rows` (first id, value) speak of and removes other files of the group.
    pub(super) fn open(dir: &Path, group: u16, rows: Vec<(u64, Vec<u8>)>) -> Result<Self, StorageError> {
        let mut table = Table { segments: BTreeMap::new(), next_serial: 1 };
        for (first, value) in rows {
            let (serial, end, dead) = decode_row(&value).ok_or_else(|| {
                StorageError::damaged(dir, 0, format!("group {group}: a file of bodies has no valid row"))
            })?;
            let segment = Segment::open(dir, group, serial, end, dead)?;
            table.next_serial = table.next_serial.max(serial + 1);
            table.segments.insert(first, segment);
        }
        let this = Self { dir: dir.to_owned(), group, table: RwLock::new(table) };
        this.remove_others()?;
        Ok(this)
    }

    /// Files of which no row speaks: made before a crash, and not committed.
    fn remove_others(&self) -> Result<(), StorageError> {
        let io = StorageError::io(&self.dir);
        let table = self.table.read();
        for entry in std::fs::read_dir(&self.dir).map_err(&io)? {
            let entry = entry.map_err(&io)?;
            let serial = entry.file_name().to_str().and_then(|name| serial_of(name, self.group));
            let known = |serial| table.segments.values().any(|segment| segment.serial == serial);
            if serial.is_some_and(|serial| !known(serial)) {
                std::fs::remove_file(entry.path()).map_err(StorageError::io(&entry.path()))?;
            }
        }
        Ok(())
    }

    /// An empty one that will take the place of this one.
    pub(super) fn successor(&self) -> Self {
        let next_serial = self.table.read().next_serial;
        let table = RwLock::new(Table { segments: BTreeMap::new(), next_serial });
        Self { dir: self.dir.clone(), group: self.group, table }
    }

    /// Takes the place of what was here.
    pub(super) fn become_successor(&self, successor: Self) {
        let old = std::mem::replace(&mut *self.table.write(), successor.table.into_inner());
        self.remove(old.segments.values());
    }

    /// It will not take the place of anything.
    pub(super) fn abandon(self) {
        self.remove(self.table.read().segments.values());
    }

    fn remove<'a>(&self, segments: impl Iterator<Item = &'a Segment>) {
        for segment in segments {
            let path = path(&self.dir, self.group, segment.serial);
            if let Err(error) = std::fs::remove_file(&path) {
                // Only space; the next start tries again.
                tracing::warn!(path = %path.display(), %error, "a file of bodies could not be removed");
            }
        }
    }

    /// Where bodies are appended; durable once [`Appender::finish`] has returned.
    pub(super) fn appender<'a>(&'a self, changed: &'a mut Changed) -> Appender<'a> {
        let (buffer, waiting, touched) = (Vec::new(), Vec::new(), BTreeMap::new());
        Appender { bodies: self, changed, buffer, waiting, touched, made: false }
    }

    /// Marks bodies as gone; adds those that are not here to `elsewhere`.
    pub(super) fn free(&self, ids: &[u64], changed: &mut Changed, elsewhere: &mut Vec<u64>) {
        // In the order of the files: what finds one finds its neighbour in the processor's cache.
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        let mut table = self.table.write();
        for id in ids {
            let holder = table.segments.range_mut(..=id).next_back();
            let found = holder.and_then(|(first, segment)| Some((*first, segment.find(id)?, segment)));
            let Some((first, place, segment)) = found else {
                elsewhere.push(id);
                continue;
            };
            segment.dead.insert(place.number);
            segment.live_bytes -= place.bytes as u64;
            changed.insert(first);
        }
    }

    /// The value of a file's row; `None`: nothing in it is left, it has none.
    pub(super) fn row(&self, first: u64) -> Option<Vec<u8>> {
        self.table.read().segments.get(&first).filter(|segment| segment.live() > 0).map(encode_row)
    }

    pub(super) fn rows(&self) -> Vec<(u64, Vec<u8>)> {
        let table = self.table.read();
        table.segments.iter().map(|(first, segment)| (*first, encode_row(segment))).collect()
    }

    /// The rows of `changed` are committed: files of which nothing is left go.
    pub(super) fn committed(&self, changed: &Changed) {
        let mut gone = Vec::new();
        {
            let mut table = self.table.write();
            for first in changed {
                if table.segments.get(first).is_some_and(|segment| segment.live() == 0) {
                    gone.extend(table.segments.remove(first));
                }
            }
        }
        self.remove(gone.iter());
    }

    /// Row value of one body.
    pub(super) fn get(&self, id: u64) -> Result<Option<Vec<u8>>, StorageError> {
        let mut found = None;
        self.visit(&[id], &mut |_, value| {
            found = Some(value.to_vec());
            Ok(())
        })?;
        Ok(found)
    }

    /// Visits the row values of those of `ids` that are here, with their position in `ids`. Neighbours are read together.
    pub(super) fn visit(&self, ids: &[u64], visit: &mut VisitBody<'_>) -> Result<(), StorageError> {
        let mut runs: Vec<Run> = Vec::new();
        {
            let table = self.table.read();
            for (at, id) in ids.iter().enumerate() {
                let holder = table.segments.range(..=*id).next_back().map(|(_, segment)| segment);
                let Some((segment, place)) = holder.and_then(|holder| Some((holder, holder.find(*id)?)))
                else {
                    continue;
                };
                match runs.last_mut().filter(|run| run.takes(segment, place)) {
                    Some(run) => run.wanted.push((at, *id, place)),
                    None => runs.push(Run::new(segment, (at, *id, place))),
                }
            }
        }
        let mut buffer = Vec::new();
        for run in runs {
            let (start, end) = run.span();
            buffer.resize((end - start) as usize, 0);
            // A backlog is drained by one read a body: the name is only made where it is told.
            let path = || path(&self.dir, self.group, run.serial);
            run.file.read_exact_at(&mut buffer, start).map_err(|error| StorageError::io(&path())(error))?;
            for (at, id, place) in run.wanted {
                let from = (place.offset - start) as usize;
                let value = decode(id, &buffer[from..from + place.bytes]);
                let damaged =
                    || StorageError::damaged(&path(), place.offset, "the checksum of a record is wrong");
                visit(at, value.ok_or_else(damaged)?)?;
            }
        }
        Ok(())
    }

    /// Calls `begin` while no file is removed, and says which are there.
    pub(super) fn hold<T>(&self, begin: impl FnOnce() -> T) -> (T, HashMap<u64, Arc<File>>) {
        let table = self.table.read();
        let begun = begin();
        (begun, table.segments.values().map(|segment| (segment.serial, Arc::clone(&segment.file))).collect())
    }

    /// A file as the row says it is.
    pub(super) fn kept(
        dir: &Path,
        group: u16,
        row: &[u8],
        files: &HashMap<u64, Arc<File>>,
    ) -> Result<Kept, StorageError> {
        let missing = || StorageError::damaged(dir, 0, format!("group {group}: a file of bodies is missing"));
        let (serial, end, dead) = decode_row(row).ok_or_else(missing)?;
        let file = Arc::clone(files.get(&serial).ok_or_else(missing)?);
        Ok(Kept { file, path: path(dir, group, serial), end, dead })
    }

    /// Copies what is left of files with little into new ones, which are durable then. The caller commits the rows.
    pub(super) fn merge(&self) -> Result<Vec<Merge>, StorageError> {
        let mut merges = Vec::new();
        for old in self.sparse() {
            let serial = {
                let mut table = self.table.write();
                table.next_serial += 1;
                table.next_serial - 1
            };
            let mut segment = Segment::create(&self.dir, self.group, serial)?;
            let mut new = None;
            for first in &old {
                let kept = {
                    let table = self.table.read();
                    let from = &table.segments[first];
                    let (file, dead) = (Arc::clone(&from.file), from.dead.clone());
                    Kept { file, path: path(&self.dir, self.group, from.serial), end: from.end, dead }
                };
                self.copy(&kept, &mut segment, &mut new)?;
            }
            let path = path(&self.dir, self.group, serial);
            segment.file.sync_data().map_err(StorageError::io(&path))?;
            segment.index.seal();
            if let Some(new) = new {
                merges.push(Merge { old, new, segment });
            }
        }
        if !merges.is_empty() {
            crate::wal::sync_dir(&self.dir).map_err(StorageError::io(&self.dir))?;
        }
        Ok(merges)
    }

    fn copy(&self, from: &Kept, to: &mut Segment, new: &mut Option<u64>) -> Result<(), StorageError> {
        let path = path(&self.dir, self.group, to.serial);
        let mut record = Vec::new();
        from.scan(&mut |id, value| {
            record.clear();
            let bytes = encode(id, &mut record, &mut |out| out.extend_from_slice(value));
            to.file.write_all_at(&record, u64::from(to.end)).map_err(StorageError::io(&path))?;
            new.get_or_insert(id);
            to.take(id, bytes);
            Ok(())
        })
    }

    /// Neighbours, the last file apart, that together fill at most one.
    fn sparse(&self) -> Vec<Vec<u64>> {
        let table = self.table.read();
        let (mut found, mut run, mut bytes): (Vec<Vec<u64>>, Vec<u64>, u64) = (Vec::new(), Vec::new(), 0);
        let last = table.segments.len().saturating_sub(1);
        for (first, segment) in table.segments.iter().take(last) {
            let few = segment.live_bytes < SPARSE_BYTES;
            if !few || bytes + segment.live_bytes > u64::from(SEGMENT_BYTES) {
                found.push(std::mem::take(&mut run));
                bytes = 0;
            }
            if few {
                run.push(*first);
                bytes += segment.live_bytes;
            }
        }
        found.push(run);
        found.retain(|run| match run.as_slice() {
            [] => false,
            [one] => {
                let segment = &table.segments[one];
                segment.end > SMALL_BYTES && segment.live_bytes * SPARSE_PART < u64::from(segment.end)
            }
            _ => true,
        });
        found
    }

    /// The value of the row of a new file.
    pub(super) fn merged_row(merge: &Merge) -> Vec<u8> {
        encode_row(&merge.segment)
    }

    /// The rows are committed.
    pub(super) fn merged(&self, merges: Vec<Merge>) {
        let mut gone = Vec::new();
        {
            let mut table = self.table.write();
            for merge in merges {
                gone.extend(merge.old.iter().filter_map(|first| table.segments.remove(first)));
                table.segments.insert(merge.new, merge.segment);
            }
        }
        self.remove(gone.iter());
    }
}

impl Segment {
    /// A record was written behind the others.
    fn take(&mut self, id: u64, bytes: usize) -> bool {
        let bytes_u32 = u32::try_from(bytes).expect("a body is one MQTT packet, below 1 GiB");
        let taken = self.index.push(id, self.end, bytes_u32);
        self.end = self.end.checked_add(bytes_u32).expect("a file ends soon behind 128 MiB");
        self.live_bytes += bytes as u64;
        taken
    }
}

impl Kept {
    /// Visits what is left, by id.
    fn scan(&self, visit: &mut VisitById<'_>) -> Result<(), StorageError> {
        scan(&self.file, &self.path, self.end, &mut |number, id, _, value| {
            if self.dead.contains(number) { Ok(()) } else { visit(id, value) }
        })
    }

    /// Visits it as rows.
    pub(super) fn scan_rows(&self, visit: &mut Visit<'_>) -> Result<(), StorageError> {
        self.scan(&mut |id, value| visit(&session::lifecycle::Group::body_key(id), value))
    }
}

/// Bodies that are read with one call.
struct Run {
    serial: u64,
    file: Arc<File>,
    /// Position among those asked for, id, place; ascending.
    wanted: Vec<(usize, u64, Place)>,
}

impl Run {
    fn new(segment: &Segment, first: (usize, u64, Place)) -> Self {
        Self { serial: segment.serial, file: Arc::clone(&segment.file), wanted: vec![first] }
    }

    fn span(&self) -> (u64, u64) {
        let start = self.wanted.first().map_or(0, |(_, _, place)| place.offset);
        let end = self.wanted.last().map_or(0, |(_, _, place)| place.offset + place.bytes as u64);
        (start, end.max(start))
    }

    fn takes(&self, segment: &Segment, place: Place) -> bool {
        let (start, end) = self.span();
        let near = (end..=end + GAP_BYTES).contains(&place.offset);
        segment.serial == self.serial && near && place.offset + place.bytes as u64 - start <= READ_BYTES
    }
}

/// Writes bodies behind those that are there.
pub(super) struct Appender<'a> {
    bodies: &'a Bodies,
    changed: &'a mut Changed,
    buffer: Vec<u8>,
    /// Id and bytes of each record in `buffer`.
    waiting: Vec<(u64, usize)>,
    /// Written to and not synced yet.
    touched: BTreeMap<u64, Arc<File>>,
    made: bool,
}

impl Appender<'_> {
    /// Appends a body, whose row value `fill` appends.
    pub(super) fn put(&mut self, id: u64, fill: &mut dyn FnMut(&mut Vec<u8>)) -> Result<(), StorageError> {
        let bytes = encode(id, &mut self.buffer, fill);
        self.waiting.push((id, bytes));
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        let Some((id, _)) = self.waiting.first().copied() else { return Ok(()) };
        let (first, serial, file, end) = self.target(id)?;
        let path = path(&self.bodies.dir, self.bodies.group, serial);
        file.write_all_at(&self.buffer, u64::from(end)).map_err(StorageError::io(&path))?;
        self.touched.insert(serial, file);
        self.changed.insert(first);
        self.buffer.clear();
        let mut table = self.bodies.table.write();
        let segment = table.segments.get_mut(&first).expect("only the writer removes one");
        let ascending = self.waiting.drain(..).all(|(id, bytes)| segment.take(id, bytes));
        ascending
            .then_some(())
            .ok_or_else(|| StorageError::damaged(&path, u64::from(end), "ids do not ascend"))
    }

    /// The file that takes `id` and those behind it: its first id, number, handle and end.
    fn target(&mut self, id: u64) -> Result<(u64, u64, Arc<File>, u32), StorageError> {
        let of =
            |first: u64, segment: &Segment| (first, segment.serial, Arc::clone(&segment.file), segment.end);
        let serial = {
            let mut table = self.bodies.table.write();
            if let Some((first, segment)) = table.segments.last_key_value()
                && segment.end < SEGMENT_BYTES
            {
                return Ok(of(*first, segment));
            }
            if let Some((_, full)) = table.segments.iter_mut().next_back() {
                full.index.seal();
            }
            table.next_serial += 1;
            table.next_serial - 1
        };
        let segment = Segment::create(&self.bodies.dir, self.bodies.group, serial)?;
        self.made = true;
        let made = of(id, &segment);
        self.bodies.table.write().segments.insert(id, segment);
        Ok(made)
    }

    /// Everything that was put is durable when this returns, and nothing speaks of it yet.
    pub(super) fn finish(mut self) -> Result<(), StorageError> {
        self.flush()?;
        let (dir, group) = (&self.bodies.dir, self.bodies.group);
        for (serial, file) in &self.touched {
            file.sync_data().map_err(StorageError::io(&path(dir, group, *serial)))?;
        }
        if self.made { crate::wal::sync_dir(dir).map_err(StorageError::io(dir)) } else { Ok(()) }
    }
}

/// `u64 number of the file | u32 end | a bit a record, set when it is gone`.
fn encode_row(segment: &Segment) -> Vec<u8> {
    let mut row = segment.serial.to_le_bytes().to_vec();
    row.extend_from_slice(&segment.end.to_le_bytes());
    row.extend_from_slice(segment.dead.as_bytes());
    row
}

fn decode_row(row: &[u8]) -> Option<(u64, u32, Dead)> {
    let (serial, rest) = row.split_first_chunk()?;
    let (end, bits) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*serial), u32::from_le_bytes(*end), Dead::from_bytes(bits)))
}
