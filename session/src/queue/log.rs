//! The log of one channel: offset order is delivery order, 16 bytes a record beside its body. Pure bookkeeping, stored in chunks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Entries of one stored row.
pub(super) const CHUNK: u64 = 64;
/// Memory of an emptied log is given back above this many entries.
const KEPT_CAPACITY: usize = 4 * CHUNK as usize;

const LEN_MASK: u32 = (1 << 28) - 1;
/// It may have been delivered before.
const REDELIVERED: u32 = 1 << 28;
/// QoS 2: once somebody has it, it is for nobody else.
const EXCLUSIVE: u32 = 1 << 29;

/// One record. A settled one has body 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub body: u64,
    /// The member that appended it.
    pub producer: u32,
    len_and_flags: u32,
}

impl Entry {
    pub(super) const SETTLED: Self = Self { body: 0, producer: 0, len_and_flags: 0 };

    /// `len` is below 2^28.
    pub(super) fn new(body: u64, producer: u32, len: u32, exclusive: bool) -> Self {
        debug_assert!(len <= LEN_MASK && body != 0);
        Self { body, producer, len_and_flags: len | if exclusive { EXCLUSIVE } else { 0 } }
    }

    pub(super) fn settled(self) -> bool {
        self.body == 0
    }

    pub(super) fn len(self) -> u64 {
        u64::from(self.len_and_flags & LEN_MASK)
    }

    pub(super) fn redelivered(self) -> bool {
        self.len_and_flags & REDELIVERED != 0
    }

    pub(super) fn exclusive(self) -> bool {
        self.len_and_flags & EXCLUSIVE != 0
    }

    /// Length and flags as stored.
    pub(super) fn word(self) -> u32 {
        self.len_and_flags
    }

    /// `None`: unknown flags.
    pub(super) fn from_stored(body: u64, producer: u32, word: u32) -> Option<Self> {
        let known = word & !(LEN_MASK | REDELIVERED | EXCLUSIVE) == 0;
        known.then_some(Self { body, producer, len_and_flags: word })
    }
}

/// ```text
///   settled      base ── unsettled, or settled out of order ──▶ end
/// ```
#[derive(Debug)]
pub(super) struct Log {
    base: u64,
    entries: VecDeque<Entry>,
    messages: u64,
    bytes: u64,
    /// Records below it may have been handed to an application before.
    pub delivered: u64,
    /// Unsettled records by producer. Derived.
    held: BTreeMap<u32, u64>,
    touched_from: u64,
    touched: BTreeSet<u64>,
    stored: Range<u64>,
}

impl Log {
    pub(super) fn new(base: u64) -> Self {
        Self {
            base,
            entries: VecDeque::new(),
            messages: 0,
            bytes: 0,
            delivered: base,
            held: BTreeMap::new(),
            touched_from: u64::MAX,
            touched: BTreeSet::new(),
            stored: 0..0,
        }
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Unsettled records.
    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The oldest unsettled record.
    pub(super) fn oldest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then_some(self.base)
    }

    /// Unsettled records of one producer.
    pub(super) fn held(&self, producer: u32) -> u64 {
        self.held.get(&producer).copied().unwrap_or_default()
    }

    /// Producers with unsettled records.
    pub(super) fn holders(&self) -> impl Iterator<Item = u32> {
        self.held.keys().copied()
    }

    pub(super) fn entry(&self, offset: u64) -> Option<Entry> {
        let at = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        self.entries.get(at).copied()
    }

    /// Appends and returns the offset.
    pub(super) fn append(&mut self, entry: Entry) -> u64 {
        let offset = self.end();
        self.push(entry);
        self.touched_from = self.touched_from.min(offset / CHUNK);
        offset
    }

    fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
        if !entry.settled() {
            self.messages += 1;
            self.bytes += entry.len();
            *self.held.entry(entry.producer).or_default() += 1;
        }
    }

    /// Settles a record; `None` when it is already.
    pub(super) fn settle(&mut self, offset: u64) -> Option<Entry> {
        let at = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        let slot = self.entries.get_mut(at).filter(|entry| !entry.settled())?;
        let entry = std::mem::replace(slot, Entry::SETTLED);
        self.messages -= 1;
        self.bytes -= entry.len();
        if let Some(held) = self.held.get_mut(&entry.producer) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&entry.producer);
            }
        }
        self.touch(offset / CHUNK);
        if at == 0 {
            self.advance();
        }
        Some(entry)
    }

    fn advance(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.settled()) {
            self.entries.pop_front();
            self.base += 1;
        }
        self.touched = self.touched.split_off(&(self.base / CHUNK));
        self.touch(self.base / CHUNK);
        if self.entries.is_empty() && self.entries.capacity() > KEPT_CAPACITY {
            self.entries = VecDeque::new();
        }
    }

    /// Marks a record as possibly delivered.
    pub(super) fn mark_redelivered(&mut self, offset: u64) {
        let Some(at) = offset.checked_sub(self.base).and_then(|at| usize::try_from(at).ok()) else { return };
        if let Some(entry) = self.entries.get_mut(at).filter(|entry| !entry.settled()) {
            entry.len_and_flags |= REDELIVERED;
            self.touch(offset / CHUNK);
        }
    }

    /// Unsettled records from `from` on, in order.
    pub(super) fn unsettled(&self, from: u64) -> impl Iterator<Item = (u64, Entry)> {
        let skip = from.saturating_sub(self.base).min(self.entries.len() as u64);
        let at = usize::try_from(skip).expect("it is at most the number of entries");
        self.entries
            .range(at..)
            .enumerate()
            .map(move |(at, entry)| (self.base + skip + at as u64, *entry))
            .filter(|(_, entry)| !entry.settled())
    }

    fn touch(&mut self, chunk: u64) {
        if chunk < self.touched_from {
            self.touched.insert(chunk);
        }
    }

    // ---- stored form --------------------------------------------------------------------------------------------

    /// Chunks that exist now.
    pub(super) fn chunks(&self) -> Range<u64> {
        if self.entries.is_empty() { 0..0 } else { self.base / CHUNK..(self.end() - 1) / CHUNK + 1 }
    }

    /// Offsets of one chunk that `base` has not passed.
    pub(super) fn chunk_offsets(&self, chunk: u64) -> Range<u64> {
        (chunk * CHUNK).max(self.base)..((chunk + 1) * CHUNK).min(self.end())
    }

    /// Chunks to write (true) and to delete (false) since the last call.
    pub(super) fn drain(&mut self, out: &mut Vec<(u64, bool)>) {
        let now = self.chunks();
        out.extend(self.stored.clone().filter(|chunk| !now.contains(chunk)).map(|chunk| (chunk, false)));
        let changed = |chunk: &u64| {
            *chunk >= self.touched_from || self.touched.contains(chunk) || !self.stored.contains(chunk)
        };
        out.extend(now.clone().filter(changed).map(|chunk| (chunk, true)));
        self.stored = now;
        self.touched_from = u64::MAX;
        self.touched.clear();
    }

    /// Chunks that have rows on disk.
    pub(super) fn stored_chunks(&self) -> Range<u64> {
        self.stored.clone()
    }

    /// Takes one entry of a stored row; rows come in order. False when `offset` is not the next one.
    pub(super) fn load(&mut self, offset: u64, entry: Entry) -> bool {
        if offset != self.end() {
            return false;
        }
        let chunk = offset / CHUNK;
        self.stored = if self.entries.is_empty() { chunk..chunk + 1 } else { self.stored.start..chunk + 1 };
        self.push(entry);
        true
    }

    /// Whether the first entry is unsettled, as it must be, and the counters are right.
    pub(super) fn is_coherent(&self) -> bool {
        let (mut messages, mut bytes) = (0, 0);
        for (_, entry) in self.unsettled(0) {
            messages += 1;
            bytes += entry.len();
        }
        (messages, bytes) == (self.messages, self.bytes)
            && self.held.values().sum::<u64>() == messages
            && self.entries.front().is_none_or(|entry| !entry.settled())
    }
}
