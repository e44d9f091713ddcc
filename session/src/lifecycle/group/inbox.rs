//! The inbox of one durable lifetime: offset order is delivery order, the client's acknowledgement is the commit point
//! (DESIGN §9). Pure bookkeeping; message bodies are in [`super::messages`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use smallvec::SmallVec;

use super::entries::Entries;
use crate::lifecycle::command::Target;
use crate::lifecycle::row::InboxStat;
use crate::limits::INBOX_SPAN_MAX;
use crate::message::QoS;
use crate::time::Millis;

/// Entries of one stored row.
pub(super) const CHUNK: u64 = 64;

const QOS_MASK: u8 = 0b0000_0011;
const RETAIN: u8 = 0b0000_0100;
const RECEIVED: u8 = 0b0000_1000;
const SETTLED: u8 = 0b0001_0000;
const MANY_IDENTIFIERS: u8 = 0b0010_0000;
const SHARED: u8 = 0b0100_0000;
const UNBOUND: u8 = 0b1000_0000;

/// One queued reference to a message: 16 bytes; [`Entries`] takes less for most of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub message: u64,
    /// The only subscription identifier; 0: none, or several (out of line).
    identifier: u32,
    flags: u8,
}

impl Entry {
    const GONE: Self = Self { message: 0, identifier: 0, flags: SETTLED };

    #[cfg(test)]
    pub(super) fn of_test(message: u64, odd: bool) -> Self {
        Self { message, identifier: 0, flags: if odd { RETAIN } else { 1 } }
    }

    /// The same, of another message.
    pub(super) fn with_message(self, message: u64) -> Self {
        Self { message, ..self }
    }

    pub(super) fn qos(self) -> QoS {
        QoS::from_u8(self.flags & QOS_MASK).expect("flags hold the number of a QoS")
    }

    pub(super) fn retain(self) -> bool {
        self.flags & RETAIN != 0
    }

    pub(super) fn received(self) -> bool {
        self.flags & RECEIVED != 0
    }

    pub(super) fn settled(self) -> bool {
        self.flags & SETTLED != 0
    }

    pub(super) fn shared(self) -> bool {
        self.flags & SHARED != 0
    }

    /// It is for another member of its share, and not for this session any more.
    pub(super) fn unbound(self) -> bool {
        self.flags & UNBOUND != 0
    }
}

/// An entry that was settled, for the caller to release its message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub message: u64,
    pub shared: bool,
}

/// What an entry looks like in a stored row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loaded {
    pub message: u64,
    pub qos: QoS,
    pub retain: bool,
    pub received: bool,
    pub settled: bool,
    pub shared: bool,
    pub unbound: bool,
    pub identifiers: SmallVec<[u32; 1]>,
}

/// ```text
///   settled      base ── may be in flight ≤ 65,535 ──▶ sendable_end ── waits ──▶ end
///  ─────────────┤ unsettled or settled out of order                              ├────
/// ```
#[derive(Debug)]
pub(super) struct Inbox {
    /// `base <= offset of every unsettled entry < base + entries.len()`.
    base: u64,
    entries: Entries,
    /// Unsettled entries and the bytes of their messages.
    messages: u64,
    pub bytes: u64,
    /// Unsettled entries that came through shared subscriptions: those of this session, and those that are for another member.
    bound: u64,
    unbound: u64,
    /// Entries below it may have been written to a client.
    pub sent_through: u64,
    /// Owner generation that reported `sent_through` exactly.
    pub sent_by: u64,
    /// No unsettled entry expires before this.
    pub soonest: Millis,
    /// Everything before it is settled: where looking for an entry that may give way begins. Derived.
    oldest: u64,
    /// Subscription identifiers of entries that have several.
    identifiers: BTreeMap<u64, Box<[u32]>>,
    /// First chunk that was appended to since the last drain.
    touched_from: u64,
    /// Chunks below `touched_from` that changed since the last drain.
    touched: BTreeSet<u64>,
    last_touched: u64,
    /// Chunks that have a row on disk.
    stored: Range<u64>,
}

impl Inbox {
    /// An empty inbox whose next offset is `base`.
    pub(super) fn new(base: u64) -> Self {
        Self {
            base,
            entries: Entries::default(),
            messages: 0,
            bytes: 0,
            bound: 0,
            unbound: 0,
            sent_through: base,
            sent_by: 0,
            soonest: Millis::NEVER,
            oldest: base,
            identifiers: BTreeMap::new(),
            touched_from: u64::MAX,
            touched: BTreeSet::new(),
            last_touched: u64::MAX,
            stored: 0..0,
        }
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Entries below it may be in flight: no two of them share a packet id.
    pub(super) fn sendable_end(&self) -> u64 {
        self.end().min(self.base.saturating_add(INBOX_SPAN_MAX))
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    /// Unsettled entries of shared subscriptions: those of this session, and those that are for another member.
    pub(super) fn of_shares(&self) -> (u64, u64) {
        (self.bound, self.unbound)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn stat(&self) -> InboxStat {
        InboxStat { base: self.base, end: self.end(), messages: self.messages, bytes: self.bytes }
    }

    /// Whether one more message of `len` bytes fits the quota. What is settled behind an unsettled base counts for nothing until there is
    /// more of it than a client alone can cause: [`INBOX_SPAN_MAX`].
    pub(super) fn has_room(&self, len: u64, quota_messages: u64, quota_bytes: u64) -> bool {
        self.messages < quota_messages
            && self.bytes.saturating_add(len) <= quota_bytes
            && !self.is_spent(quota_messages)
    }

    /// Whether the entries, settled ones among them, are as many as may be kept.
    fn is_spent(&self, quota_messages: u64) -> bool {
        self.entries.len() as u64 >= quota_messages.saturating_add(INBOX_SPAN_MAX)
    }

    /// The oldest entry that may give way to a new one; `None`: none may, or that would make no room. `active`: a connection may know of
    /// any entry that can be in flight, else of those below `sent_through`.
    pub(super) fn droppable(&mut self, active: bool, quota_messages: u64) -> Option<u64> {
        let skip = self.oldest.saturating_sub(self.base);
        let settled = self.entries.from(usize::try_from(skip).ok()?).take_while(|entry| entry.settled());
        self.oldest = self.base + skip + settled.count() as u64;
        let known = if active { self.sendable_end() } else { self.sent_through };
        let may_go = |(offset, entry): &(u64, Entry)| {
            !entry.received() && (entry.qos() != QoS::ExactlyOnce || *offset >= known)
        };
        let (offset, _) = self.unsettled(self.oldest).find(may_go)?;
        // Only the first entry gives its place back.
        (!self.is_spent(quota_messages) || offset == self.base).then_some(offset)
    }

    /// Appends a reference and returns its offset.
    pub(super) fn append(&mut self, message: u64, len: u64, target: &Target) -> u64 {
        let offset = self.end();
        let mut flags = target.qos as u8;
        if target.retain {
            flags |= RETAIN;
        }
        if target.shared {
            flags |= SHARED;
            self.bound += 1;
        }
        self.push(message, flags, &target.identifiers, offset);
        self.messages += 1;
        self.bytes += len;
        self.touched_from = self.touched_from.min(offset / CHUNK);
        offset
    }

    fn push(&mut self, message: u64, mut flags: u8, identifiers: &[u32], offset: u64) {
        let identifier = match identifiers {
            [] => 0,
            [one] => *one,
            many => {
                self.identifiers.insert(offset, many.into());
                flags |= MANY_IDENTIFIERS;
                0
            }
        };
        self.entries.push_back(Entry { message, identifier, flags });
    }

    /// The entry of `offset`, settled or not.
    pub(super) fn entry(&self, offset: u64) -> Option<Entry> {
        let at = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        self.entries.get(at)
    }

    fn unsettled_mut(&mut self, offset: u64) -> Option<&mut Entry> {
        let at = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        self.entries.get_mut(at).filter(|entry| !entry.settled())
    }

    /// Subscription identifiers of an unsettled entry.
    pub(super) fn identifiers(&self, offset: u64, entry: Entry) -> SmallVec<[u32; 1]> {
        if entry.flags & MANY_IDENTIFIERS != 0 {
            return self
                .identifiers
                .get(&offset)
                .map_or_else(SmallVec::new, |all| all.iter().copied().collect());
        }
        (entry.identifier != 0).then_some(entry.identifier).into_iter().collect()
    }

    /// Settles an entry; `None` when it is settled already. The caller accounts its bytes and releases its message.
    pub(super) fn settle(&mut self, offset: u64) -> Option<Taken> {
        let at = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        let entry = self.entries.get_mut(at)?;
        if entry.settled() {
            return None;
        }
        let taken = Taken { message: entry.message, shared: entry.shared() };
        match (entry.shared(), entry.unbound()) {
            (true, false) => self.bound -= 1,
            (true, true) => self.unbound -= 1,
            (false, _) => {}
        }
        if entry.flags & MANY_IDENTIFIERS != 0 {
            self.identifiers.remove(&offset);
        }
        *entry = Entry::GONE;
        self.messages -= 1;
        self.touch(offset / CHUNK);
        if at == 0 {
            self.advance();
        }
        Some(taken)
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
        if self.entries.is_empty() {
            self.soonest = Millis::NEVER;
            self.entries.shrink_empty();
        }
    }

    /// Marks PUBREC of an unsettled entry; false when it was marked or settled already.
    pub(super) fn receive(&mut self, offset: u64) -> bool {
        let Some(entry) = self.unsettled_mut(offset).filter(|entry| !entry.received()) else { return false };
        entry.flags |= RECEIVED;
        self.touch(offset / CHUNK);
        true
    }

    /// Gives an unsettled entry of a share up to another member; false when it is none, or given up already.
    pub(super) fn unbind(&mut self, offset: u64) -> bool {
        let may_go = |entry: &&mut Entry| entry.shared() && !entry.unbound();
        let Some(entry) = self.unsettled_mut(offset).filter(may_go) else { return false };
        entry.flags |= UNBOUND;
        self.bound -= 1;
        self.unbound += 1;
        self.touch(offset / CHUNK);
        true
    }

    /// Whether another member of the share may get the entry in place of this session (MQTT 5 §4.8.2): nothing of QoS 2 that its client may
    /// know of ([MQTT-4.8.2-5]).
    pub(super) fn may_leave(&self, offset: u64, entry: Entry) -> bool {
        let known = entry.received() || offset < self.sent_through;
        entry.shared() && (entry.unbound() || entry.qos() != QoS::ExactlyOnce || !known)
    }

    /// Unsettled entries from `from` on, in order.
    pub(super) fn unsettled(&self, from: u64) -> impl Iterator<Item = (u64, Entry)> {
        let skip = from.saturating_sub(self.base).min(self.entries.len() as u64);
        self.entries
            .from(skip as usize)
            .enumerate()
            .map(move |(at, entry)| (self.base + skip + at as u64, entry))
            .filter(|(_, entry)| !entry.settled())
    }

    fn touch(&mut self, chunk: u64) {
        if chunk >= self.touched_from || chunk == self.last_touched {
            return;
        }
        self.last_touched = chunk;
        self.touched.insert(chunk);
    }

    // ---- stored form --------------------------------------------------------------------------------------------

    fn chunks(&self) -> Range<u64> {
        if self.entries.is_empty() { 0..0 } else { self.base / CHUNK..(self.end() - 1) / CHUNK + 1 }
    }

    /// Offsets of one chunk that have not been passed by `base`.
    pub(super) fn chunk_offsets(&self, chunk: u64) -> Range<u64> {
        (chunk * CHUNK).max(self.base)..((chunk + 1) * CHUNK).min(self.end())
    }

    /// All chunks that exist now.
    pub(super) fn all_chunks(&self) -> Range<u64> {
        self.chunks()
    }

    /// Chunks to write (true) and to delete (false) since the last call.
    pub(super) fn drain(&mut self, out: &mut Vec<(u64, bool)>) {
        let now = self.chunks();
        for chunk in self.stored.clone() {
            if !now.contains(&chunk) {
                out.push((chunk, false));
            }
        }
        for chunk in now.clone() {
            if chunk >= self.touched_from || self.touched.contains(&chunk) || !self.stored.contains(&chunk) {
                out.push((chunk, true));
            }
        }
        self.stored = now;
        self.touched_from = u64::MAX;
        self.touched.clear();
        self.last_touched = u64::MAX;
    }

    /// Chunks that have rows on disk, to be deleted with the inbox.
    pub(super) fn stored_chunks(&self) -> Range<u64> {
        self.stored.clone()
    }

    /// Takes one entry of a stored row; rows come in order. False when `offset` is not the next one.
    pub(super) fn load(&mut self, offset: u64, loaded: &Loaded) -> bool {
        if offset != self.end() {
            return false;
        }
        let chunk = offset / CHUNK;
        self.stored = if self.entries.is_empty() { chunk..chunk + 1 } else { self.stored.start..chunk + 1 };
        if loaded.settled {
            self.entries.push_back(Entry::GONE);
            return true;
        }
        let mut flags = loaded.qos as u8;
        if loaded.retain {
            flags |= RETAIN;
        }
        if loaded.received {
            flags |= RECEIVED;
        }
        if loaded.shared {
            flags |= SHARED;
            self.bound += u64::from(!loaded.unbound);
        }
        if loaded.shared && loaded.unbound {
            flags |= UNBOUND;
            self.unbound += 1;
        }
        self.push(loaded.message, flags, &loaded.identifiers, offset);
        self.messages += 1;
        true
    }
}
