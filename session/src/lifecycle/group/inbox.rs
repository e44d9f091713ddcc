//! The inbox of one durable lifetime: an MPSC channel (DESIGN §9). Its log is that of every channel, its producers are the nodes, its one
//! consumer is the exact owner, whose generation is the epoch, and the client's acknowledgement is the commit point. Message bodies are in
//! [`super::messages`].

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::lifecycle::command::Target;
use crate::lifecycle::row::InboxStat;
use crate::limits::INBOX_SPAN_MAX;
use crate::log::{Entry, Log, Tally};
use crate::message::QoS;
use crate::time::Millis;

const QOS_MASK: u8 = 0b0000_0011;
const RETAIN: u8 = 0b0000_0100;
const RECEIVED: u8 = 0b0000_1000;
const SETTLED: u8 = 0b0001_0000;
const MANY_IDENTIFIERS: u8 = 0b0010_0000;
const SHARED: u8 = 0b0100_0000;
const UNBOUND: u8 = 0b1000_0000;

/// One queued reference to a message: 16 bytes, less in a long log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reference {
    pub message: u64,
    /// The only subscription identifier; 0: none, or several (out of line).
    identifier: u32,
    flags: u8,
}

impl Entry for Reference {
    const SETTLED: Self = Self { message: 0, identifier: 0, flags: SETTLED };
    type Tally = OfShares;

    fn settled(&self) -> bool {
        self.flags & SETTLED != 0
    }

    fn body(&self) -> u64 {
        self.message
    }

    fn with_body(self, message: u64) -> Self {
        Self { message, ..self }
    }
}

impl Reference {
    pub(super) fn qos(self) -> QoS {
        QoS::from_u8(self.flags & QOS_MASK).expect("flags hold the number of a QoS")
    }

    pub(super) fn retain(self) -> bool {
        self.flags & RETAIN != 0
    }

    pub(super) fn received(self) -> bool {
        self.flags & RECEIVED != 0
    }

    pub(super) fn shared(self) -> bool {
        self.flags & SHARED != 0
    }

    /// It is for another member of its share, and not for this session any more.
    pub(super) fn unbound(self) -> bool {
        self.flags & UNBOUND != 0
    }
}

/// Unsettled references that came through shared subscriptions: those of this session, and those that are for another member.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfShares {
    pub bound: u64,
    pub unbound: u64,
}

impl OfShares {
    fn of(&mut self, reference: Reference) -> Option<&mut u64> {
        let counter = if reference.unbound() { &mut self.unbound } else { &mut self.bound };
        reference.shared().then_some(counter)
    }
}

impl Tally<Reference> for OfShares {
    fn add(&mut self, reference: &Reference) {
        self.of(*reference).into_iter().for_each(|count| *count += 1);
    }

    fn remove(&mut self, reference: &Reference) {
        self.of(*reference).into_iter().for_each(|count| *count -= 1);
    }
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
    /// Entries below its `delivered` may have been written to a client.
    pub log: Log<Reference>,
    /// Bytes of the messages of unsettled entries.
    pub bytes: u64,
    /// Owner generation that reported `delivered` exactly.
    pub sent_by: u64,
    /// No unsettled entry expires before this.
    pub soonest: Millis,
    /// Everything before it is settled: where looking for an entry that may give way begins. Derived.
    oldest: u64,
    /// Subscription identifiers of entries that have several.
    identifiers: BTreeMap<u64, Box<[u32]>>,
}

impl Inbox {
    /// An empty inbox whose next offset is `base`.
    pub(super) fn new(base: u64) -> Self {
        Self {
            log: Log::new(base),
            bytes: 0,
            sent_by: 0,
            soonest: Millis::NEVER,
            oldest: base,
            identifiers: BTreeMap::new(),
        }
    }

    /// Entries below it may be in flight: no two of them share a packet id.
    pub(super) fn sendable_end(&self) -> u64 {
        self.log.end().min(self.log.base().saturating_add(INBOX_SPAN_MAX))
    }

    pub(super) fn stat(&self) -> InboxStat {
        let log = &self.log;
        InboxStat { base: log.base(), end: log.end(), messages: log.messages(), bytes: self.bytes }
    }

    /// Whether one more message of `len` bytes fits the quota. What is settled behind an unsettled base counts for nothing until there is
    /// more of it than a client alone can cause: [`INBOX_SPAN_MAX`].
    pub(super) fn has_room(&self, len: u64, quota_messages: u64, quota_bytes: u64) -> bool {
        self.log.messages() < quota_messages
            && self.bytes.saturating_add(len) <= quota_bytes
            && !self.is_spent(quota_messages)
    }

    /// Whether the entries, settled ones among them, are as many as may be kept.
    fn is_spent(&self, quota_messages: u64) -> bool {
        self.log.end() - self.log.base() >= quota_messages.saturating_add(INBOX_SPAN_MAX)
    }

    /// The oldest entry that may give way to a new one; `None`: none may, or that would make no room. `active`: a connection may know of
    /// any entry that can be in flight, else of those that may have been written.
    pub(super) fn droppable(&mut self, active: bool, quota_messages: u64) -> Option<u64> {
        self.oldest = self.log.unsettled(self.oldest).next().map_or(self.log.end(), |(offset, _)| offset);
        let known = if active { self.sendable_end() } else { self.log.delivered };
        let may_go = |(offset, entry): &(u64, Reference)| {
            !entry.received() && (entry.qos() != QoS::ExactlyOnce || *offset >= known)
        };
        let (offset, _) = self.log.unsettled(self.oldest).find(may_go)?;
        // Only the first entry gives its place back.
        (!self.is_spent(quota_messages) || offset == self.log.base()).then_some(offset)
    }

    /// Appends a reference and returns its offset.
    pub(super) fn append(&mut self, message: u64, len: u64, target: &Target) -> u64 {
        let mut flags = target.qos as u8;
        if target.retain {
            flags |= RETAIN;
        }
        if target.shared {
            flags |= SHARED;
        }
        self.bytes += len;
        let reference = self.reference(message, flags, &target.identifiers, self.log.end());
        self.log.append(reference)
    }

    fn reference(&mut self, message: u64, mut flags: u8, identifiers: &[u32], offset: u64) -> Reference {
        let identifier = match identifiers {
            [] => 0,
            [one] => *one,
            many => {
                self.identifiers.insert(offset, many.into());
                flags |= MANY_IDENTIFIERS;
                0
            }
        };
        Reference { message, identifier, flags }
    }

    /// Subscription identifiers of an unsettled entry.
    pub(super) fn identifiers(&self, offset: u64, entry: Reference) -> SmallVec<[u32; 1]> {
        if entry.flags & MANY_IDENTIFIERS != 0 {
            return self
                .identifiers
                .get(&offset)
                .map_or_else(SmallVec::new, |all| all.iter().copied().collect());
        }
        (entry.identifier != 0).then_some(entry.identifier).into_iter().collect()
    }

    /// Settles an entry; `None` when it is settled already. The caller accounts its bytes and releases its message.
    pub(super) fn settle(&mut self, offset: u64) -> Option<Reference> {
        let taken = self.log.settle(offset)?;
        if taken.flags & MANY_IDENTIFIERS != 0 {
            self.identifiers.remove(&offset);
        }
        if self.log.is_empty() {
            self.soonest = Millis::NEVER;
        }
        Some(taken)
    }

    /// Marks PUBREC of an unsettled entry; false when it was marked or settled already.
    pub(super) fn receive(&mut self, offset: u64) -> bool {
        let marked = |entry: Reference| Reference { flags: entry.flags | RECEIVED, ..entry };
        self.log.change(offset, |entry| (!entry.received()).then(|| marked(entry)))
    }

    /// Gives an unsettled entry of a share up to another member; false when it is none, or given up already.
    pub(super) fn unbind(&mut self, offset: u64) -> bool {
        let marked = |entry: Reference| Reference { flags: entry.flags | UNBOUND, ..entry };
        self.log.change(offset, |entry| (entry.shared() && !entry.unbound()).then(|| marked(entry)))
    }

    /// Whether another member of the share may get the entry in place of this session (MQTT 5 §4.8.2): nothing of QoS 2 that its client may
    /// know of ([MQTT-4.8.2-5]).
    pub(super) fn may_leave(&self, offset: u64, entry: Reference) -> bool {
        let known = entry.received() || offset < self.log.delivered;
        entry.shared() && (entry.unbound() || entry.qos() != QoS::ExactlyOnce || !known)
    }

    /// Takes one entry of a stored row; rows come in order. False when `offset` is not the next one.
    pub(super) fn load(&mut self, offset: u64, loaded: &Loaded) -> bool {
        if offset != self.log.end() {
            return false;
        }
        if loaded.settled {
            return self.log.load(offset, Reference::SETTLED);
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
        }
        if loaded.shared && loaded.unbound {
            flags |= UNBOUND;
        }
        let reference = self.reference(loaded.message, flags, &loaded.identifiers, offset);
        self.log.load(offset, reference)
    }
}
