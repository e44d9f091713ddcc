//! The writer thread: segments, group commit, poisoning, deletion of what every group purged.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

use super::disk::{Disk, DiskFile};
use super::record::{
    Found, Kind, RECORD_HEADER_BYTES, Record, SEGMENT_HEADER_BYTES, Seal, SegmentHeader, encode,
    record_bytes, segment_name,
};
use super::recovery::{Location, Tail, io as io_error, recover};
use super::{Mark, Marks, Poison, Recovered, RecoveredEntry, Request, Shared, WalOptions};
use crate::StorageError;

pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    options: WalOptions,
    current: Current,
    /// Segments oldest first, the current one last, with the highest entry index of each group in it.
    segments: VecDeque<Segment>,
    marks: BTreeMap<u16, Marks>,
    buffer: Vec<u8>,
}

struct Current {
    segment: u64,
    seal: Seal,
    file: Arc<dyn DiskFile>,
    len: u64,
    /// Where the next write goes.
    at: u64,
    /// Number of the next record.
    next: u64,
}

#[derive(Debug, Default)]
struct Segment {
    number: u64,
    highest: BTreeMap<u16, u64>,
}

impl Writer {
    pub(super) fn recover(
        disk: Arc<dyn Disk>,
        options: WalOptions,
    ) -> Result<(Self, HashMap<u16, Recovered>), StorageError> {
        let mut groups: HashMap<u16, Recovered> = HashMap::new();
        let mut segments: VecDeque<Segment> = VecDeque::new();
        let tail = recover(disk.as_ref(), options.directory, &mut |found, location, payload| {
            if segments.back().is_none_or(|segment| segment.number != location.segment) {
                segments.push_back(Segment { number: location.segment, ..Segment::default() });
            }
            if let (Kind::Entry, Some(segment)) = (found.kind, segments.back_mut()) {
                segment.note(found.group, found.index);
            }
            let group = groups.entry(found.group).or_default();
            group.take(found, location, payload).map_err(|what| StorageError::Damaged {
                path: disk.path(&segment_name(location.segment)),
                offset: location.offset,
                what,
            })
        })?;
        let marks = groups.iter().map(|(group, found)| (*group, found.marks.clone())).collect();
        let current = match tail {
            Some(tail) => Current::from_tail(tail, options, &mut segments),
            None => Current::first(disk.as_ref(), options, &mut segments)?,
        };
        Ok((Self { disk, options, current, segments, marks, buffer: Vec::new() }, groups))
    }

    pub(super) fn run(mut self, shared: &Shared, fill: &SyncSender<()>) {
        shared.files.write().insert(self.current.segment, Arc::clone(&self.current.file));
        // One file is always ready; a full channel means that one is being made.
        let _ = fill.try_send(());
        loop {
            let (requests, hints, closed) = {
                let mut queue = shared.queue.lock();
                while queue.waiting.is_empty() && !queue.closed {
                    shared.wake.wait(&mut queue);
                }
                (std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.hints), queue.closed)
            };
            let poison = shared.queue.lock().poison.clone();
            if let Some(poison) = poison {
                fail(requests, &poison);
            } else {
                self.turn(requests, hints.into_values(), shared, fill);
            }
            if closed && shared.queue.lock().waiting.is_empty() {
                return;
            }
        }
    }

    /// One write and fsync for everything, then the callbacks, then deletions.
    fn turn(
        &mut self,
        requests: Vec<Request>,
        hints: impl Iterator<Item = Record>,
        shared: &Shared,
        fill: &SyncSender<()>,
    ) {
        match self.write(&requests, hints, shared, fill) {
            Ok(locations) => {
                let mut from = 0;
                for request in requests {
                    let to = from + request.records.len();
                    (request.written)(Ok(&locations[from..to]));
                    from = to;
                }
                if let Err((name, error)) = self.delete_purged(shared) {
                    // What could not be deleted is only space; but a disk that fails here is not to be trusted.
                    self.poison(shared, &name, &error, Vec::new());
                }
            }
            Err(error) => {
                let name = segment_name(self.current.segment);
                self.poison(shared, &name, &error, requests);
            }
        }
    }

    fn poison(&self, shared: &Shared, name: &str, error: &io::Error, requests: Vec<Request>) {
        let poison = Poison(format!("{}: {error}", self.disk.path(name).display()).into());
        tracing::error!(error = %poison.0, "write-ahead log failed; it takes nothing any more");
        shared.queue.lock().poison = Some(poison.clone());
        fail(requests, &poison);
    }

    fn write(
        &mut self,
        requests: &[Request],
        hints: impl Iterator<Item = Record>,
        shared: &Shared,
        fill: &SyncSender<()>,
    ) -> io::Result<Vec<Location>> {
        let mut locations = Vec::with_capacity(requests.iter().map(|request| request.records.len()).sum());
        let mut write_start = self.current.next;
        for record in requests.iter().flat_map(|request| &request.records) {
            write_start = self.put(record, write_start, shared, fill, Some(&mut locations))?;
        }
        for record in hints {
            write_start = self.put(&record, write_start, shared, fill, None)?;
        }
        self.flush(shared)?;
        Ok(locations)
    }

    /// Encodes one record behind the others, in a new segment when this one is full.
    fn put(
        &mut self,
        record: &Record,
        write_start: u64,
        shared: &Shared,
        fill: &SyncSender<()>,
        locations: Option<&mut Vec<Location>>,
    ) -> io::Result<u64> {
        let mut write_start = write_start;
        let bytes = record_bytes(record.payload.len()) as u64;
        if self.current.at + self.buffer.len() as u64 + bytes > self.current.len {
            self.flush(shared)?;
            self.roll(bytes, shared)?;
            let _ = fill.try_send(());
            write_start = self.current.next;
        }
        let offset = self.current.at + self.buffer.len() as u64 + RECORD_HEADER_BYTES as u64;
        encode(record, self.current.seal, self.current.next, write_start, &mut self.buffer);
        self.current.next += 1;
        if let Some(locations) = locations {
            let len = u32::try_from(record.payload.len()).expect("a payload is below 1 GiB");
            locations.push(Location { segment: self.current.segment, offset, len });
        }
        self.marks.entry(record.group).or_default().take(
            record.kind,
            record.index,
            record.term,
            &record.payload,
        );
        if let (Kind::Entry, Some(segment)) = (record.kind, self.segments.back_mut()) {
            segment.note(record.group, record.index);
        }
        Ok(write_start)
    }

    fn flush(&mut self, shared: &Shared) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.current.file.write_at(self.current.at, &self.buffer)?;
        self.current.file.sync()?;
        shared.fsyncs.fetch_add(1, Ordering::Relaxed);
        self.current.at += self.buffer.len() as u64;
        self.buffer.clear();
        // A single huge write must not pin its memory for ever.
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        Ok(())
    }

    /// Starts the next segment with the marks of every group, so that it stands without the older ones.
    fn roll(&mut self, record_bytes: u64, shared: &Shared) -> io::Result<()> {
        let segment = self.current.segment + 1;
        let seal = Seal::of(self.options.directory, segment);
        let mut next = self.current.next;
        let first = next;
        let mut head = vec![0; SEGMENT_HEADER_BYTES];
        for (group, marks) in &self.marks {
            let record = marks.to_record(*group);
            encode(&record, seal, next, first, &mut head);
            next += 1;
        }
        let len = self.options.segment_bytes.max(head.len() as u64 + record_bytes);
        let header = SegmentHeader { segment, first, directory: self.options.directory, len };
        head[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
        let file: Arc<dyn DiskFile> = self.disk.create(&segment_name(segment), len, &head)?.into();
        shared.files.write().insert(segment, Arc::clone(&file));
        self.segments.push_back(Segment { number: segment, ..Segment::default() });
        self.current = Current { segment, seal, file, len, at: head.len() as u64, next };
        Ok(())
    }

    /// Deletes segments from the oldest on, as long as every group purged past what they hold.
    fn delete_purged(&mut self, shared: &Shared) -> Result<(), (String, io::Error)> {
        while self.segments.len() > 1 {
            let oldest = &self.segments[0];
            let needed = oldest.highest.iter().any(|(group, highest)| {
                let purged = self.marks.get(group).and_then(|marks| marks.purged.as_ref());
                purged.is_none_or(|purged| purged.index < *highest)
            });
            if needed {
                return Ok(());
            }
            let name = segment_name(oldest.number);
            shared.files.write().remove(&oldest.number);
            self.disk.remove(&name).map_err(|error| (name, error))?;
            self.segments.pop_front();
        }
        Ok(())
    }
}

impl Current {
    fn from_tail(tail: Tail, options: WalOptions, segments: &mut VecDeque<Segment>) -> Self {
        // Segments that hold no record were not visited.
        let mut all: VecDeque<Segment> = VecDeque::new();
        for number in tail.older.iter().copied().chain([tail.segment]) {
            let visited = segments.iter().position(|segment| segment.number == number);
            let segment = visited.and_then(|at| segments.remove(at));
            all.push_back(segment.unwrap_or(Segment { number, ..Segment::default() }));
        }
        *segments = all;
        Self {
            segment: tail.segment,
            seal: Seal::of(options.directory, tail.segment),
            file: tail.file.into(),
            len: tail.len,
            at: tail.at,
            next: tail.next,
        }
    }

    fn first(
        disk: &dyn Disk,
        options: WalOptions,
        segments: &mut VecDeque<Segment>,
    ) -> Result<Self, StorageError> {
        let len = options.segment_bytes.max(SEGMENT_HEADER_BYTES as u64);
        let header = SegmentHeader { segment: 1, first: 1, directory: options.directory, len };
        let name = segment_name(1);
        let file = disk.create(&name, len, &header.encode()).map_err(|error| io_error(disk, &name, error))?;
        segments.push_back(Segment { number: 1, ..Segment::default() });
        Ok(Self {
            segment: 1,
            seal: Seal::of(options.directory, 1),
            file: file.into(),
            len,
            at: SEGMENT_HEADER_BYTES as u64,
            next: 1,
        })
    }
}

impl Segment {
    fn note(&mut self, group: u16, index: u64) {
        let highest = self.highest.entry(group).or_default();
        *highest = index.max(*highest);
    }
}

impl Recovered {
    fn take(&mut self, found: &Found, location: Location, payload: &[u8]) -> Result<(), String> {
        match found.kind {
            Kind::Entry => {
                // An entry replaces those from its index on: they were of a leader that lost.
                self.entries.split_off(&found.index);
                let head = payload.first_chunk().copied().unwrap_or_default();
                self.entries.insert(found.index, RecoveredEntry { term: found.term, head, location });
            }
            Kind::Truncate => {
                self.entries.split_off(&found.index);
            }
            Kind::Purge => self.entries = self.entries.split_off(&found.index.saturating_add(1)),
            Kind::Vote | Kind::Committed => {}
            Kind::Checkpoint => {
                self.marks = Marks::decode(payload).ok_or("a checkpoint record cannot be decoded")?;
                if let Some(purged) = &self.marks.purged {
                    self.entries = self.entries.split_off(&purged.index.saturating_add(1));
                }
                return Ok(());
            }
        }
        self.marks.take(found.kind, found.index, found.term, payload);
        Ok(())
    }
}

impl Marks {
    fn take(&mut self, kind: Kind, index: u64, term: u64, payload: &[u8]) {
        let slot = match kind {
            Kind::Vote => &mut self.vote,
            Kind::Committed => &mut self.committed,
            Kind::Purge => &mut self.purged,
            Kind::Entry | Kind::Truncate | Kind::Checkpoint => return,
        };
        *slot = Some(Mark { index, term, payload: payload.to_vec() });
    }

    fn to_record(&self, group: u16) -> Record {
        let mut payload = Vec::new();
        for mark in [&self.vote, &self.committed, &self.purged] {
            payload.push(u8::from(mark.is_some()));
            if let Some(mark) = mark {
                payload.extend_from_slice(&mark.index.to_le_bytes());
                payload.extend_from_slice(&mark.term.to_le_bytes());
                payload.extend_from_slice(&(mark.payload.len() as u64).to_le_bytes());
                payload.extend_from_slice(&mark.payload);
            }
        }
        Record { group, kind: Kind::Checkpoint, index: 0, term: 0, payload }
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let mut rest = payload;
        let marks = Self {
            vote: Mark::decode(&mut rest)?,
            committed: Mark::decode(&mut rest)?,
            purged: Mark::decode(&mut rest)?,
        };
        rest.is_empty().then_some(marks)
    }
}

impl Mark {
    /// `None`: not decodable; `Some(None)`: absent.
    #[expect(clippy::option_option, reason = "damage and absence are two things")]
    fn decode(rest: &mut &[u8]) -> Option<Option<Self>> {
        let (present, tail) = rest.split_first()?;
        *rest = tail;
        match present {
            0 => Some(None),
            1 => {
                let mut number = || {
                    let (value, tail) = rest.split_first_chunk::<8>()?;
                    *rest = tail;
                    Some(u64::from_le_bytes(*value))
                };
                let (index, term) = (number()?, number()?);
                let len = usize::try_from(number()?).ok()?;
                let (payload, tail) = rest.split_at_checked(len)?;
                *rest = tail;
                Some(Some(Self { index, term, payload: payload.to_vec() }))
            }
            _ => None,
        }
    }
}

fn fail(requests: Vec<Request>, poison: &Poison) {
    for request in requests {
        (request.written)(Err(poison));
    }
}

/// The write buffer shrinks to this after a larger write.
const BUFFER_BYTES_KEPT: usize = 8 << 20;
