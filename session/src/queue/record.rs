//! What the log of a channel keeps for each record: 16 bytes beside its body.

use std::collections::BTreeMap;

use crate::log::{Entry, Log, Tally};

const LEN_MASK: u32 = (1 << 28) - 1;
/// It may have been delivered before.
const REDELIVERED: u32 = 1 << 28;
/// QoS 2: once somebody has it, it is for nobody else.
const EXCLUSIVE: u32 = 1 << 29;

/// One record. A settled one has body 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub body: u64,
    /// The member that appended it.
    pub producer: u32,
    len_and_flags: u32,
}

impl Entry for Kept {
    const SETTLED: Self = Self { body: 0, producer: 0, len_and_flags: 0 };
    type Tally = Held;

    fn settled(&self) -> bool {
        self.body == 0
    }

    fn body(&self) -> u64 {
        self.body
    }

    fn with_body(self, body: u64) -> Self {
        Self { body, ..self }
    }
}

impl Kept {
    /// `len` is below 2^28.
    pub(super) fn new(body: u64, producer: u32, len: u32, exclusive: bool) -> Self {
        debug_assert!(len <= LEN_MASK && body != 0);
        Self { body, producer, len_and_flags: len | if exclusive { EXCLUSIVE } else { 0 } }
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

/// Bytes of unsettled records, and their number by producer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    bytes: u64,
    by_producer: BTreeMap<u32, u64>,
}

impl Tally<Kept> for Held {
    fn add(&mut self, entry: &Kept) {
        self.bytes += entry.len();
        *self.by_producer.entry(entry.producer).or_default() += 1;
    }

    fn remove(&mut self, entry: &Kept) {
        self.bytes -= entry.len();
        if let Some(held) = self.by_producer.get_mut(&entry.producer) {
            *held -= 1;
            if *held == 0 {
                self.by_producer.remove(&entry.producer);
            }
        }
    }
}

impl Log<Kept> {
    pub(super) fn bytes(&self) -> u64 {
        self.tally().bytes
    }

    /// Unsettled records of one producer.
    pub(super) fn held(&self, producer: u32) -> u64 {
        self.tally().by_producer.get(&producer).copied().unwrap_or_default()
    }

    /// Producers with unsettled records.
    pub(super) fn holders(&self) -> impl Iterator<Item = u32> {
        self.tally().by_producer.keys().copied()
    }

    /// Marks a record as possibly delivered.
    pub(super) fn mark_redelivered(&mut self, offset: u64) {
        self.change(offset, |entry| Some(Kept { len_and_flags: entry.len_and_flags | REDELIVERED, ..entry }));
    }
}
