//! One channel and one member, as the space holds and stores them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::command::{Hold, Kind, Role, SealReason, Spec};
use super::record::Kept;
use crate::log::Log;
use crate::time::Millis;

/// ```text
///              Seal                    channel lease ends, Delete           payload lease ends
///   (open) ──────────▶ (sealed) ·······························▶ (closing) ──────────────────▶ reclaimed ─▶ (none)
///     │                                                             ▲
///     └─────────────────────────────────────────────────────────────┘
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChannelRow {
    pub kind: Kind,
    pub spec: Spec,
    /// The MPMC channel that this is a sub-channel of; 0: none.
    pub parent: u64,
    pub name: Option<Arc<str>>,
    pub sealed: Option<SealReason>,
    /// Its metadata is gone for everybody but the reclaimer.
    pub closing: bool,
    /// Its two leases; 0 of sub-channels, which live as long as their parent.
    pub lease: u64,
    pub payload: u64,
    /// Grows whenever the consumer changes: what an older one acknowledges is refused (R-11).
    pub epoch: u64,
    /// The member that consumes; 0: nobody.
    pub consumer: u64,
    /// A sub-channel that was adopted: nothing is appended any more, it goes when it is empty.
    pub draining: bool,
    /// Group: records below it were claimed before.
    pub cursor: u64,
    pub created_at: Millis,
    /// Records of members that went and could not give them to anybody else.
    pub discarded: u64,
    pub base: u64,
    pub end: u64,
    pub delivered: u64,
    /// MPMC: its sub-channels and where the rotation stands.
    pub subs: BTreeMap<u64, i64>,
}

#[derive(Debug)]
pub(super) struct Channel {
    /// `base`, `end` and `delivered` are those of `log` and only set when the row is written.
    pub row: ChannelRow,
    pub log: Log<Kept>,
    /// Group: offset to the member that claimed it.
    pub claims: BTreeMap<u64, u64>,
    // derived
    pub members: BTreeSet<u64>,
    /// Producers that were refused for want of room and still wait.
    pub hungry: BTreeSet<u64>,
    /// Group: claimed before and given back.
    pub released: BTreeSet<u64>,
}

impl Channel {
    pub(super) fn new(kind: Kind, spec: Spec, parent: u64, now: Millis) -> Self {
        let row = ChannelRow {
            kind,
            spec,
            parent,
            name: None,
            sealed: None,
            closing: false,
            lease: 0,
            payload: 0,
            epoch: 0,
            consumer: 0,
            draining: false,
            cursor: 0,
            created_at: now,
            discarded: 0,
            base: 0,
            end: 0,
            delivered: 0,
            subs: BTreeMap::new(),
        };
        Self::from_row(row)
    }

    pub(super) fn from_row(row: ChannelRow) -> Self {
        let mut log = Log::new(row.base);
        log.delivered = row.delivered;
        Self {
            row,
            log,
            claims: BTreeMap::new(),
            members: BTreeSet::new(),
            hungry: BTreeSet::new(),
            released: BTreeSet::new(),
        }
    }

    /// The row with the state of the log.
    pub(super) fn stored(&self) -> ChannelRow {
        ChannelRow {
            base: self.log.base(),
            end: self.log.end(),
            delivered: self.log.delivered,
            ..self.row.clone()
        }
    }

    /// Another member consumes it from now on, or nobody (0).
    pub(super) fn give_to(&mut self, member: u64) {
        self.row.consumer = member;
        self.row.epoch += 1;
    }
}

/// One queue-scoped role: one bind of one endpoint. A rebind is another member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub channel: u64,
    pub role: Role,
    pub lease: Hold,
    pub nonce: u64,
    pub weight: u32,
    pub label: Arc<str>,
    pub bound_at: Millis,
    /// The channel was made by this bind.
    pub created: bool,
    /// Producer: number of its last append.
    pub sequence: u64,
    /// Where its last appends went: sequence, channel, first offset.
    pub stamps: VecDeque<(u64, u64, u64)>,
    /// It was refused for want of room.
    pub hungry: bool,
    /// Consumer of a group: claims that are not settled.
    pub claims: u32,
}

impl Member {
    pub(super) fn is_consumer(&self) -> bool {
        matches!(self.role, Role::Consumer { .. })
    }
}
