//! One group's state: rows in memory, message bodies in memory until they are on disk and over budget.

use std::sync::Arc;

use smallvec::SmallVec;
use thiserror::Error;

use super::command::{Batch, WillKey};
use super::reply::Reply;
use super::row::{BootRow, InboxStat, SessionRow, SubscriptionOptions, WillRow};
use crate::id::{Boot, Key};
use crate::message::{Message, QoS};
use crate::time::Millis;

/// Quotas that `apply` enforces; part of the group's state so that every replica decides alike.
/// State of one group.
#[derive(Debug)]
pub struct Group {
    _private: (),
}

/// What one batch did, besides changing rows.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One reply a command.
    pub replies: Vec<Reply>,
    /// Every append, in order, for the shell that wakes attached consumers.
    pub appended: Vec<Appended>,
    /// Due times changed: the deadline worker should look again.
    pub deadlines_changed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    pub lifetime: u64,
    pub offset: u64,
}

/// One inbox entry as a consumer reads it.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub offset: u64,
    pub qos: QoS,
    pub retain: bool,
    /// PUBREC was received: only PUBREL is owed, `message` is not sent again.
    pub received: bool,
    /// It may have been written to a client before (DUP=1).
    pub maybe_sent: bool,
    pub identifiers: SmallVec<[u32; 1]>,
    /// `None`: on disk; fetch it by `message_id`.
    pub message: Option<Arc<Message>>,
    pub message_id: u64,
}

/// A page of an inbox.
#[derive(Debug, Default)]
pub struct InboxRead {
    pub entries: Vec<Delivery>,
    /// Offset to go on from.
    pub next: u64,
    pub stat: InboxStat,
}

/// What is due at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// Propose `Reconcile`: a Waiting Will is due or an Offline session expired.
    Session { key: Key, revision: u64 },
    /// A Ready Will, or an Executing one whose lease ran out, waits for an executor.
    Will(WillKey),
    /// Ended lifetimes with children to remove, or a row whose binding retention passed.
    Reclaim { key: Key, revision: u64 },
}

/// Totals, O(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupStat {
    pub sessions_active: u64,
    pub sessions_offline: u64,
    pub sessions_ended: u64,
    pub subscriptions: u64,
    pub inbox_messages: u64,
    pub inbox_bytes: u64,
    pub messages_stored: u64,
    pub messages_resident_bytes: u64,
    pub retained: u64,
    pub wills_armed: u64,
    pub wills_waiting: u64,
    pub wills_ready: u64,
}

/// A stored row cannot be what we wrote.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RowError {
    #[error("row {key} cannot be decoded: {what}")]
    Corrupt { key: String, what: String },
    #[error("rows contradict each other: {0}")]
    Incoherent(String),
}

impl Group {
    /// An empty group with these inbox quotas per session (messages, bytes).
    #[must_use]
    pub fn new(_quota_messages: u64, _quota_bytes: u64) -> Self {
        unimplemented!()
    }

    /// Applies one log entry. Pure: equal logs give equal rows. `index` must grow.
    pub fn apply(&mut self, _index: u64, _batch: &Batch, _outcome: &mut Outcome) {
        unimplemented!()
    }

    /// Index of the last applied entry.
    #[must_use]
    pub fn applied(&self) -> u64 {
        unimplemented!()
    }

    // ---- rows on disk -------------------------------------------------------------------------------------------

    /// Visits every row changed since the last call, `None` for a removed one, and forgets the changes. Message bodies
    /// that were created and settled in between never show up. Keys sort so that loading in key order works.
    pub fn drain_dirty(&mut self, _visit: &mut dyn FnMut(&[u8], Option<&[u8]>)) {
        unimplemented!()
    }

    /// Takes one row back in; message bodies stay on disk (only their lengths are kept).
    ///
    /// # Errors
    /// When the row cannot be decoded.
    pub fn load(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), RowError> {
        unimplemented!()
    }

    /// Rebuilds indexes and counters after the last `load` and checks the invariants.
    ///
    /// # Errors
    /// When rows contradict each other.
    pub fn finish_load(&mut self) -> Result<(), RowError> {
        unimplemented!()
    }

    /// Row key of a message body.
    #[must_use]
    pub fn body_key(_message_id: u64) -> Vec<u8> {
        unimplemented!()
    }

    /// Decodes the row value of a message body.
    ///
    /// # Errors
    /// When it cannot be decoded.
    pub fn decode_body(_value: &[u8]) -> Result<Message, RowError> {
        unimplemented!()
    }

    /// Forgets bodies that are on disk (drained before) until at most `budget_bytes` are resident.
    pub fn evict(&mut self, _budget_bytes: u64) {
        unimplemented!()
    }

    // ---- reads --------------------------------------------------------------------------------------------------

    #[must_use]
    pub fn session(&self, _key: &Key) -> Option<&SessionRow> {
        unimplemented!()
    }

    #[must_use]
    pub fn session_by_lifetime(&self, _lifetime: u64) -> Option<&SessionRow> {
        unimplemented!()
    }

    #[must_use]
    pub fn boot(&self, _boot: &Boot) -> Option<&BootRow> {
        unimplemented!()
    }

    pub fn boots(&self) -> impl Iterator<Item = &BootRow> {
        std::iter::empty()
    }

    /// Sessions in key order, from the first key after `after`.
    pub fn sessions_after(&self, _after: Option<&Key>) -> impl Iterator<Item = &SessionRow> {
        std::iter::empty()
    }

    /// Stored subscriptions of a lifetime.
    pub fn subscriptions(&self, _lifetime: u64) -> impl Iterator<Item = (&Arc<str>, &SubscriptionOptions)> {
        std::iter::empty()
    }

    #[must_use]
    pub fn will(&self, _will: &WillKey) -> Option<&WillRow> {
        unimplemented!()
    }

    /// Will that the row references, in any stage the last one.
    #[must_use]
    pub fn last_will(&self, _key: &Key) -> Option<&WillRow> {
        unimplemented!()
    }

    #[must_use]
    pub fn inbox(&self, _lifetime: u64) -> Option<InboxStat> {
        unimplemented!()
    }

    /// Up to `max` unsettled entries from offset `from` on.
    pub fn read_inbox(&self, _lifetime: u64, _from: u64, _max: usize, _out: &mut InboxRead) {
        unimplemented!()
    }

    /// Inbound QoS 2 packet ids that are received and not released.
    #[must_use]
    pub fn received(&self, _lifetime: u64) -> Vec<u16> {
        unimplemented!()
    }

    /// Retained messages that `filter` (no `$share/`) matches: (topic, message or `None` when on disk, message id).
    pub fn retained(&self, _filter: &str, _visit: &mut dyn FnMut(&str, Option<&Arc<Message>>, u64) -> bool) {
        unimplemented!()
    }

    /// Up to `max` due items at `now`, fair between kinds.
    pub fn due(&self, _now: Millis, _max: usize, _out: &mut Vec<Due>) {
        unimplemented!()
    }

    /// When the next item is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        unimplemented!()
    }

    #[must_use]
    pub fn stat(&self) -> GroupStat {
        unimplemented!()
    }
}
