//! A table from numbers that are given out in sequence to small values: dense, since most of the living are neighbours.
//!
//! `CHUNK` neighbours share an allocation, which goes with the last of them. Ten million take what they are and a part of 32 bytes for
//! finding them; one alone takes the place of `CHUNK`.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// The table is cut into shards so that growing it never stops `apply` for long.
const SHARDS: u64 = 16;

/// Chunks by number.
type Shard<T, const CHUNK: usize> = HashMap<u64, Box<[Option<T>; CHUNK]>, FixedState>;

#[derive(Debug)]
pub(super) struct Slots<T, const CHUNK: usize> {
    shards: Box<[Shard<T, CHUNK>]>,
}

impl<T, const CHUNK: usize> Slots<T, CHUNK> {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| HashMap::with_hasher(FixedState::default())).collect() }
    }

    pub(super) fn get(&self, id: u64) -> Option<&T> {
        let (chunk, at) = place::<CHUNK>(id);
        self.shards[shard(chunk)].get(&chunk)?[at].as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let (chunk, at) = place::<CHUNK>(id);
        self.shards[shard(chunk)].get_mut(&chunk)?[at].as_mut()
    }

    pub(super) fn insert(&mut self, id: u64, value: T) {
        let (chunk, at) = place::<CHUNK>(id);
        let empty = || Box::new([const { None }; CHUNK]);
        self.shards[shard(chunk)].entry(chunk).or_insert_with(empty)[at] = Some(value);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        let (chunk, at) = place::<CHUNK>(id);
        let shard = &mut self.shards[shard(chunk)];
        let values = shard.get_mut(&chunk)?;
        let value = values[at].take();
        if values.iter().all(Option::is_none) {
            shard.remove(&chunk);
            // After a deep backlog the table would keep the memory of all of it.
            if shard.capacity() > SPARE_MIN && shard.len() < shard.capacity() / SPARE {
                shard.shrink_to(shard.len() * 2);
            }
        }
        value
    }

    /// The numbers that are there, ascending.
    pub(super) fn ids(&self) -> Vec<u64> {
        let mut ids = Vec::new();
        for (chunk, values) in self.shards.iter().flatten() {
            let numbered = (chunk * CHUNK as u64..).zip(values.iter());
            ids.extend(numbered.filter(|(_, value)| value.is_some()).map(|(id, _)| id));
        }
        ids.sort_unstable();
        ids
    }
}

/// A table with more room than this for one entry gives it back.
const SPARE: usize = 8;
/// Room that is never given back.
const SPARE_MIN: usize = 1_024;

fn place<const CHUNK: usize>(id: u64) -> (u64, usize) {
    (id / CHUNK as u64, (id % CHUNK as u64) as usize)
}

fn shard(chunk: u64) -> usize {
    (chunk % SHARDS) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// P9: against an ordered map.
        #[test]
        fn slots_are_a_map(ops in prop::collection::vec((0_u64..200, any::<bool>()), 1..400)) {
            let (mut slots, mut map) = (Slots::<_, 16>::new(), BTreeMap::new());
            for (at, (id, insert)) in ops.into_iter().enumerate() {
                if insert {
                    slots.insert(id, at);
                    map.insert(id, at);
                } else {
                    prop_assert_eq!(slots.remove(id), map.remove(&id));
                }
                prop_assert_eq!(slots.get(id), map.get(&id));
                prop_assert_eq!(slots.get_mut(id), map.get_mut(&id));
            }
            prop_assert_eq!(slots.ids(), map.keys().copied().collect::<Vec<_>>());
        }
    }

    /// P9: what is empty takes no memory, however much was there.
    #[test]
    fn an_empty_table_keeps_nothing() {
        let mut slots = Slots::<_, 16>::new();
        for id in 0..1_000_000_u64 {
            slots.insert(id, id);
        }
        for id in 0..1_000_000 {
            assert_eq!(slots.remove(id), Some(id));
        }
        assert!(slots.shards.iter().all(|shard| shard.is_empty() && shard.capacity() <= 2 * SPARE_MIN));
    }
}
