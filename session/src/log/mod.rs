//! The log of one channel: an inbox, an MPSC channel, a part of an MPMC channel. Offset order is delivery order, what is settled gives its
//! place back from the front. Pure bookkeeping, stored in chunks of entries; bodies are elsewhere.

use std::collections::BTreeSet;
use std::ops::Range;

mod entries;

use entries::Entries;

/// Entries of one stored row.
pub(crate) const CHUNK: u64 = 64;

/// What one kind of channel keeps for each record.
pub(crate) trait Entry: Copy + PartialEq {
    /// What stands in the place of a record that was settled out of order.
    const SETTLED: Self;
    /// What is counted over the records that are not settled.
    type Tally: Tally<Self>;

    fn settled(&self) -> bool;
    /// The number of its body; the bodies of neighbours are mostly neighbours.
    fn body(&self) -> u64;
    /// The same, of another body.
    fn with_body(self, body: u64) -> Self;
}

/// Counters over the unsettled entries of a log.
pub(crate) trait Tally<E>: Default + PartialEq {
    fn add(&mut self, entry: &E);
    fn remove(&mut self, entry: &E);
}

/// ```text
///   settled      base ── unsettled, or settled out of order ──▶ end
///  ─────────────┤                                               ├────
/// ```
#[derive(Debug)]
pub(crate) struct Log<E: Entry> {
    /// `base <= offset of every unsettled entry < base + entries.len()`; the entry there is unsettled.
    base: u64,
    entries: Entries<E>,
    /// Unsettled entries. Derived, like `tally`.
    messages: u64,
    tally: E::Tally,
    /// Entries below it may have been handed to the consumer: written to a client, or given to an application.
    pub delivered: u64,
    /// First chunk that was appended to since the last drain.
    touched_from: u64,
    /// Chunks below `touched_from` that changed since the last drain.
    touched: BTreeSet<u64>,
    last_touched: u64,
    /// Chunks that have a row on disk.
    stored: Range<u64>,
}

impl<E: Entry> Log<E> {
    /// An empty log whose next offset is `base`.
    pub(crate) fn new(base: u64) -> Self {
        Self {
            base,
            entries: Entries::default(),
            messages: 0,
            tally: E::Tally::default(),
            delivered: base,
            touched_from: u64::MAX,
            touched: BTreeSet::new(),
            last_touched: u64::MAX,
            stored: 0..0,
        }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Unsettled entries.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    pub(crate) fn tally(&self) -> &E::Tally {
        &self.tally
    }

    /// Nothing is unsettled, then nothing is kept either.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The oldest unsettled entry.
    pub(crate) fn oldest(&self) -> Option<u64> {
        (!self.entries.is_empty()).then_some(self.base)
    }

    fn at(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset.checked_sub(self.base)?).ok()
    }

    /// The entry of `offset`, settled or not.
    pub(crate) fn entry(&self, offset: u64) -> Option<E> {
        self.entries.get(self.at(offset)?)
    }

    /// Appends and returns the offset.
    pub(crate) fn append(&mut self, entry: E) -> u64 {
        let offset = self.end();
        self.push(entry);
        self.touched_from = self.touched_from.min(offset / CHUNK);
        offset
    }

    fn push(&mut self, entry: E) {
        self.entries.push_back(entry);
        if !entry.settled() {
            self.messages += 1;
            self.tally.add(&entry);
        }
    }

    /// Settles an entry; `None` when it is already, or never was.
    pub(crate) fn settle(&mut self, offset: u64) -> Option<E> {
        let at = self.at(offset)?;
        let slot = self.entries.get_mut(at).filter(|entry| !entry.settled())?;
        let entry = std::mem::replace(slot, E::SETTLED);
        self.messages -= 1;
        self.tally.remove(&entry);
        self.touch(offset / CHUNK);
        if at == 0 {
            self.advance();
        }
        Some(entry)
    }

    fn advance(&mut self) {
        let chunk_before = self.base / CHUNK;
        while self.entries.get(0).is_some_and(|entry| entry.settled()) {
            self.entries.pop_front();
            self.base += 1;
        }
        let chunk = self.base / CHUNK;
        if chunk != chunk_before {
            self.touched = self.touched.split_off(&chunk);
        }
        self.touch(chunk);
        self.entries.shrink_empty();
    }

    /// Changes an unsettled entry, unless `change` returns none; whether it did.
    pub(crate) fn change(&mut self, offset: u64, change: impl FnOnce(E) -> Option<E>) -> bool {
        let Some(at) = self.at(offset) else { return false };
        let Some(entry) = self.entries.get(at).filter(|entry| !entry.settled()) else { return false };
        let (Some(changed), Some(slot)) = (change(entry), self.entries.get_mut(at)) else { return false };
        *slot = changed;
        self.tally.remove(&entry);
        self.tally.add(&changed);
        self.touch(offset / CHUNK);
        true
    }

    /// Unsettled entries from `from` on, in order.
    pub(crate) fn unsettled(&self, from: u64) -> impl Iterator<Item = (u64, E)> {
        let skip = from.saturating_sub(self.base).min(self.entries.len() as u64);
        let at = usize::try_from(skip).expect("it is at most the number of entries");
        (self.base + skip..).zip(self.entries.from(at)).filter(|(_, entry)| !entry.settled())
    }

    fn touch(&mut self, chunk: u64) {
        if chunk >= self.touched_from || chunk == self.last_touched {
            return;
        }
        self.last_touched = chunk;
        self.touched.insert(chunk);
    }

    // ---- stored form --------------------------------------------------------------------------------------------

    /// Chunks that exist now.
    pub(crate) fn chunks(&self) -> Range<u64> {
        if self.entries.is_empty() { 0..0 } else { self.base / CHUNK..(self.end() - 1) / CHUNK + 1 }
    }

    /// Offsets of one chunk that `base` has not passed.
    pub(crate) fn chunk_offsets(&self, chunk: u64) -> Range<u64> {
        (chunk * CHUNK).max(self.base)..((chunk + 1) * CHUNK).min(self.end())
    }

    /// Chunks to write (true) and to delete (false) since the last call.
    pub(crate) fn drain(&mut self, out: &mut Vec<(u64, bool)>) {
        let now = self.chunks();
        out.extend(self.stored.clone().filter(|chunk| !now.contains(chunk)).map(|chunk| (chunk, false)));
        let changed = |chunk: &u64| {
            *chunk >= self.touched_from || self.touched.contains(chunk) || !self.stored.contains(chunk)
        };
        out.extend(now.clone().filter(changed).map(|chunk| (chunk, true)));
        self.stored = now;
        self.touched_from = u64::MAX;
        self.touched.clear();
        self.last_touched = u64::MAX;
    }

    /// Chunks that have rows on disk, to be deleted with the log.
    pub(crate) fn stored_chunks(&self) -> Range<u64> {
        self.stored.clone()
    }

    /// Takes one entry of a stored row; rows come in order. False when `offset` is not the next one.
    pub(crate) fn load(&mut self, offset: u64, entry: E) -> bool {
        if offset != self.end() {
            return false;
        }
        let chunk = offset / CHUNK;
        self.stored = if self.entries.is_empty() { chunk..chunk + 1 } else { self.stored.start..chunk + 1 };
        self.push(entry);
        true
    }

    /// Whether the first entry is unsettled, as it must be, and the counters are right.
    pub(crate) fn is_coherent(&self) -> bool {
        let (mut messages, mut tally) = (0, E::Tally::default());
        for (_, entry) in self.unsettled(0) {
            messages += 1;
            tally.add(&entry);
        }
        messages == self.messages
            && tally == self.tally
            && self.entries.get(0).is_none_or(|entry| !entry.settled())
    }
}
