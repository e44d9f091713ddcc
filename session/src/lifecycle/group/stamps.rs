//! De-duplication of appends: which (packet id, sequence) of which publisher, and which Will, was appended here
//! (DESIGN §2 step 5). Bounded by age and by number.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::id::Key;
use crate::lifecycle::command::{Stamp, WillKey};
use crate::time::Millis;

/// Stamps of an origin that was not heard of for this long are dropped.
pub(super) const STAMP_RETENTION_MS: u64 = 24 * 60 * 60 * 1_000;
/// Stamps that a group remembers; beyond it those of the origin heard of least recently go.
pub(super) const STAMPS_MAX: u64 = 1_000_000;
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
    /// Highest sequence appended under each packet id; a Will uses packet id 0.
    pub packets: BTreeMap<u16, u64>,
}

/// What changed, for the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    Origin(u64),
    Packet(u64, u16),
}

#[derive(Debug)]
pub(super) struct Stamps {
    by_origin: HashMap<Origin, u64, FixedState>,
    pub sets: BTreeMap<u64, StampSet>,
    order: BTreeSet<(Millis, u64)>,
    /// Id of the next origin; replicated.
    pub next: u64,
    pub total: u64,
    pub max: u64,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Self {
            by_origin: HashMap::with_hasher(FixedState::default()),
            sets: BTreeMap::new(),
            order: BTreeSet::new(),
            next: 1,
            total: 0,
            max: STAMPS_MAX,
        }
    }

    fn split(stamp: &Stamp) -> (Origin, u16, u64) {
        match stamp {
            Stamp::Publisher { key, lifetime, packet_id, sequence } => {
                (Origin::Publisher { key: key.clone(), lifetime: *lifetime }, *packet_id, *sequence)
            }
            Stamp::Will(will) => (Origin::Will(will.clone()), 0, 0),
        }
    }

    /// Whether the append with this stamp, or a later use of its packet id, was applied already.
    pub(super) fn seen(&self, stamp: &Stamp) -> bool {
        let (origin, packet_id, sequence) = Self::split(stamp);
        let Some(id) = self.by_origin.get(&origin) else { return false };
        self.sets[id].packets.get(&packet_id).is_some_and(|last| sequence <= *last)
    }

    /// Remembers a stamp that was not seen.
    pub(super) fn record(&mut self, stamp: &Stamp, now: Millis, changed: &mut dyn FnMut(Changed)) {
        let (origin, packet_id, sequence) = Self::split(stamp);
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
        let set = self.sets.get_mut(&id).expect("by_origin names a set");
        if now >= set.touched.plus_ms(TOUCH_MS) {
            self.order.remove(&(set.touched, id));
            set.touched = now;
            self.order.insert((now, id));
            changed(Changed::Origin(id));
        }
        if set.packets.insert(packet_id, sequence).is_none() {
            self.total += 1;
        }
        changed(Changed::Packet(id, packet_id));
        while self.total > self.max {
            let Some(&(_, oldest)) = self.order.first() else { return };
            self.remove(oldest, u64::MAX, changed);
        }
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
        let mut removed = 0;
        while removed < limit {
            let Some((packet_id, _)) = set.packets.pop_first() else { break };
            removed += 1;
            changed(Changed::Packet(id, packet_id));
        }
        self.total -= removed;
        if set.packets.is_empty() {
            self.order.remove(&(set.touched, id));
            let set = self.sets.remove(&id).expect("it was just found");
            self.by_origin.remove(&set.origin);
            changed(Changed::Origin(id));
        }
        removed
    }

    /// The set that was not heard of for longest, if that is longer than the retention.
    pub(super) fn outdated(&self, now: Millis) -> Option<u64> {
        let (touched, id) = *self.order.first()?;
        (touched.plus_ms(STAMP_RETENTION_MS) <= now).then_some(id)
    }

    /// Takes a stored set back in; false when its origin is there already.
    pub(super) fn insert_set(&mut self, id: u64, origin: Origin, touched: Millis) -> bool {
        if self.by_origin.insert(origin.clone(), id).is_some() {
            return false;
        }
        self.order.insert((touched, id));
        self.sets.insert(id, StampSet { origin, touched, packets: BTreeMap::new() }).is_none()
    }

    /// Takes a stored stamp back in; false when its set is missing.
    pub(super) fn insert_packet(&mut self, id: u64, packet_id: u16, sequence: u64) -> bool {
        let Some(set) = self.sets.get_mut(&id) else { return false };
        self.total += 1;
        set.packets.insert(packet_id, sequence).is_none()
    }
}
