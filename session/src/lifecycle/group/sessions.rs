//! The sessions of a group: found by hash on the hot path, walked in key order where order reaches rows or readers.

use std::collections::BTreeSet;
use std::ops::Bound;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::state::Slot;
use crate::id::Key;

#[derive(Debug)]
pub(super) struct Sessions {
    slots: HashMap<Key, Box<Slot>, FixedState>,
    order: BTreeSet<Key>,
}

impl Sessions {
    pub(super) fn new() -> Self {
        Self { slots: HashMap::with_hasher(FixedState::default()), order: BTreeSet::new() }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Slot> {
        self.slots.get(key).map(|slot| &**slot)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Slot> {
        self.slots.get_mut(key).map(|slot| &mut **slot)
    }

    pub(super) fn insert(&mut self, slot: Slot) {
        let key = slot.row.owner.key.clone();
        self.order.insert(key.clone());
        self.slots.insert(key, Box::new(slot));
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Box<Slot>> {
        self.order.remove(key);
        self.slots.remove(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.order.iter()
    }

    /// All slots in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.after(None)
    }

    /// Slots in key order, from the first key after `after`.
    pub(super) fn after(&self, after: Option<&Key>) -> impl Iterator<Item = &Slot> {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.order.range((from, Bound::Unbounded)).filter_map(|key| self.get(key))
    }

    /// Whether both indexes hold the same keys.
    pub(super) fn is_coherent(&self) -> bool {
        self.slots.len() == self.order.len() && self.order.iter().all(|key| self.slots.contains_key(key))
    }
}
