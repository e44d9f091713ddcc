//! De-duplication of appends and of retained values: which (packet id, sequence) of which publisher, and which Will, was
//! appended or retained here (DESIGN §2 step 5). Bounded by age and by number.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::id::Key;
use crate::lifecycle::command::{Stamp, WillKey};
use crate::time::Millis;

/// Stamps of an origin that was not heard of for this long are dropped, unless [`Command::StampRetention`] says longer. A publisher may
/// repeat a received id as long as its session is there, 7 days after it went offline by default (`session.expiry_max_s`): one day more
/// than that, so that the stamp outlives the id.
///
/// [`Command::StampRetention`]: crate::lifecycle::Command::StampRetention
pub(super) const STAMP_RETENTION_MS: u64 = 8 * 24 * 60 * 60 * 1_000;
/// Stamps that a group remembers; beyond it the lowest sequences of the origin with the most go.
pub(super) const STAMPS_MAX: u64 = 1_000_000;
/// An overflow removes this part of an origin's stamps at once: finding the lowest costs a look at all of them.
const OVERFLOW_PART: usize = 16;
/// Added to the packet id for the stamp of a retained value: its topic and an inbox may be of one group.
const RETAINED_SLOT: u32 = 1 << 16;
/// An origin's time is written again only after this long: a busy publisher costs no index update a message.
const TOUCH_MS: u64 = 60_000;

/// Who stamps: a durable lifetime (of any group), or a Will.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Origin {
    Publisher { key: Key, lifetime: u64 },
    Will(WillKey),
}

/// The stamps of one origin.
#[derive(Debug)]
pub(super) struct StampSet {
    pub origin: Origin,
    pub touched: Millis,
    /// Highest sequence applied under each packet id (a Will uses packet id 0), [`RETAINED_SLOT`] higher for retained values.
    pub packets: BTreeMap<u32, u64>,
}

/// What a stamp is of: one publish has one of each in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Append,
    Retain,
}

/// What changed, for the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    Origin(u64),
    Packet(u64, u32),
}

#[derive(Debug)]
pub(super) struct Stamps {
    by_origin: HashMap<Origin, u64, FixedState>,
    pub sets: BTreeMap<u64, StampSet>,
    order: BTreeSet<(Millis, u64)>,
    /// Number of stamps of each origin that has some; of equal ones the earliest is last.
    sizes: BTreeSet<(usize, Reverse<u64>)>,
    /// Id of the next origin; replicated.
    pub next: u64,
    pub total: u64,
    pub max: u64,
    /// Replicated.
    pub retention_ms: u64,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Self {
            by_origin: HashMap::with_hasher(FixedState::default()),
            sets: BTreeMap::new(),
            order: BTreeSet::new(),
            sizes: BTreeSet::new(),
            next: 1,
            total: 0,
            max: STAMPS_MAX,
            retention_ms: STAMP_RETENTION_MS,
        }
    }

    fn split(stamp: &Stamp, of: Use) -> (Origin, u32, u64) {
        let (origin, packet_id, sequence) = match stamp {
            Stamp::Publisher { key, lifetime, packet_id, sequence } => {
                (Origin::Publisher { key: key.clone(), lifetime: *lifetime }, *packet_id, *sequence)
            }
            Stamp::Will(will) => (Origin::Will(will.clone()), 0, 0),
        };
        let slot = match of {
            Use::Append => u32::from(packet_id),
            Use::Retain => u32::from(packet_id) + RETAINED_SLOT,
        };
        (origin, slot, sequence)
    }

    /// Whether the command with this stamp, or a later use of its packet id, was applied already. If so, its origin lives and
    /// may ask again.
    pub(super) fn seen(
        &mut self,
        stamp: &Stamp,
        of: Use,
        now: Millis,
        changed: &mut dyn FnMut(Changed),
    ) -> bool {
        let (origin, slot, sequence) = Self::split(stamp, of);
        let Some(&id) = self.by_origin.get(&origin) else { return false };
        let seen = self.sets[&id].packets.get(&slot).is_some_and(|last| sequence <= *last);
        if seen {
            self.touch(id, now, changed);
        }
        seen
    }

    fn touch(&mut self, id: u64, now: Millis, changed: &mut dyn FnMut(Changed)) {
        let set = self.sets.get_mut(&id).expect("by_origin names a set");
        if now >= set.touched.plus_ms(TOUCH_MS) {
            self.order.remove(&(set.touched, id));
            set.touched = now;
            self.order.insert((now, id));
            changed(Changed::Origin(id));
        }
    }

    /// Remembers a stamp that was not seen.
    pub(super) fn record(&mut self, stamp: &Stamp, of: Use, now: Millis, changed: &mut dyn FnMut(Changed)) {
        let (origin, slot, sequence) = Self::split(stamp, of);
        let id = match self.by_origin.get(&origin) {
            Some(id) => *id,
            None => {
                let id = self.next;
                self.next += 1;
                self.insert_set(id, origin, now);
                changed(Changed::Origin(id));
                id
            }
        };
        self.touch(id, now, changed);
        self.insert_packet(id, slot, sequence);
        changed(Changed::Packet(id, slot));
        while self.total > self.max {
            let Some(&(_, Reverse(largest))) = self.sizes.last() else { return };
            self.remove_lowest(largest, changed);
        }
    }

    /// Removes the lowest sequences of a set: those that were acknowledged longest ago, in all likelihood.
    fn remove_lowest(&mut self, id: u64, changed: &mut dyn FnMut(Changed)) {
        let set = self.sets.get_mut(&id).expect("the caller found it");
        let before = set.packets.len();
        let mut found: Vec<(u64, u32)> =
            set.packets.iter().map(|(slot, sequence)| (*sequence, *slot)).collect();
        found.sort_unstable();
        let removed = before.div_ceil(OVERFLOW_PART);
        for (_, slot) in &found[..removed] {
            set.packets.remove(slot);
            changed(Changed::Packet(id, *slot));
        }
        self.removed(id, before, changed);
    }

    /// A set had `before` stamps.
    fn removed(&mut self, id: u64, before: usize, changed: &mut dyn FnMut(Changed)) {
        let set = &self.sets[&id];
        let (now, touched) = (set.packets.len(), set.touched);
        self.total -= (before - now) as u64;
        self.sizes.remove(&(before, Reverse(id)));
        if now > 0 {
            self.sizes.insert((now, Reverse(id)));
            return;
        }
        self.order.remove(&(touched, id));
        if let Some(set) = self.sets.remove(&id) {
            self.by_origin.remove(&set.origin);
        }
        changed(Changed::Origin(id));
    }

    /// Id of a publisher's set.
    pub(super) fn publisher(&self, key: &Key, lifetime: u64) -> Option<u64> {
        if self.by_origin.is_empty() {
            return None;
        }
        self.by_origin.get(&Origin::Publisher { key: key.clone(), lifetime }).copied()
    }

    /// Removes up to `limit` stamps of a set, and the set with its last one; returns how many.
    pub(super) fn remove(&mut self, id: u64, limit: u64, changed: &mut dyn FnMut(Changed)) -> u64 {
        let Some(set) = self.sets.get_mut(&id) else { return 0 };
        let before = set.packets.len();
        let mut removed = 0;
        while removed < limit {
            let Some((slot, _)) = set.packets.pop_first() else { break };
            removed += 1;
            changed(Changed::Packet(id, slot));
        }
        self.removed(id, before, changed);
        removed
    }

    /// The set that was not heard of for longest, if that is longer than the retention.
    pub(super) fn outdated(&self, now: Millis) -> Option<u64> {
        let (touched, id) = *self.order.first()?;
        (touched.plus_ms(self.retention_ms) <= now).then_some(id)
    }

    /// Takes a stored set back in; false when its origin is there already.
    pub(super) fn insert_set(&mut self, id: u64, origin: Origin, touched: Millis) -> bool {
        if self.by_origin.insert(origin.clone(), id).is_some() {
            return false;
        }
        self.order.insert((touched, id));
        self.sets.insert(id, StampSet { origin, touched, packets: BTreeMap::new() }).is_none()
    }

    /// Adds or replaces a stamp, or takes a stored one back in; false when its set is missing or it was there.
    pub(super) fn insert_packet(&mut self, id: u64, slot: u32, sequence: u64) -> bool {
        let Some(set) = self.sets.get_mut(&id) else { return false };
        let before = set.packets.len();
        if set.packets.insert(slot, sequence).is_some() {
            return false;
        }
        self.sizes.remove(&(before, Reverse(id)));
        self.sizes.insert((before + 1, Reverse(id)));
        self.total += 1;
        true
    }
}
