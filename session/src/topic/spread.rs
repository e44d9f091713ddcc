//! The children of one level: a persistent hash trie, found in a few steps without any comparison but the last.
//!
//! An update of a shared trie copies one path of small arrays; an array changes in place when it is not shared and
//! keeps its length.

use std::cmp::Ordering;
use std::iter::once;
use std::sync::Arc;

use super::ordered::{Block, Item};

/// Bits of the hash that choose a slot, one of 32.
const BITS: u32 = 5;
/// Behind so many levels the hash is used up.
const DEPTH_MAX: u32 = u64::BITS.div_ceil(BITS);

/// What has a name that can be hashed. The hash only spreads: names of equal hash are told apart at logarithmic cost, so
/// chosen collisions gain nothing.
pub(super) trait Named: Clone {
    fn name(&self) -> &[u8];
    fn hash(name: &[u8]) -> u64;
}

/// One array of the trie. Invariant: `bitmap` has a bit for each of `slots`, in their order.
#[derive(Clone)]
pub(super) struct Spread<N: Named> {
    bitmap: u32,
    slots: Arc<[Slot<N>]>,
}

#[derive(Clone)]
enum Slot<N: Named> {
    One(Arc<N>),
    More(Spread<N>),
    /// Names of the same hash.
    Twins(Arc<Block<Twin<N>>>),
}

#[derive(Clone)]
struct Twin<N>(Arc<N>);

impl<N: Named> Spread<N> {
    /// A trie that holds `node`.
    pub(super) fn new(node: Arc<N>) -> Self {
        let hash = N::hash(node.name());
        Self::single(node, hash)
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&N> {
        let mut hash = N::hash(name);
        let mut here = self;
        loop {
            let (bit, at) = here.place(hash);
            if here.bitmap & bit == 0 {
                return None;
            }
            match &here.slots[at] {
                Slot::One(node) => return (node.name() == name).then_some(&**node),
                Slot::More(next) => here = next,
                Slot::Twins(twins) => return twins.get(name).map(|twin| &*twin.0),
            }
            hash >>= BITS;
        }
    }

    /// The node of `name`, made by `make` when absent.
    pub(super) fn get_or_insert(&mut self, name: &[u8], make: impl FnOnce() -> Arc<N>) -> &mut N {
        let mut hash = N::hash(name);
        let mut depth = 1;
        let mut here = self;
        loop {
            let (bit, at) = here.place(hash);
            if here.bitmap & bit == 0 {
                here.bitmap |= bit;
                here.slots = with(&here.slots, at, Slot::One(make()));
                return here.node_mut(at);
            }
            let slot = &mut Arc::make_mut(&mut here.slots)[at];
            if let Slot::One(node) = slot
                && node.name() != name
            {
                let node = Arc::clone(node);
                *slot = if depth == DEPTH_MAX {
                    Slot::Twins(Arc::new(Block::Leaf(vec![Twin(node)])))
                } else {
                    let rest = N::hash(node.name()) >> (depth * BITS);
                    Slot::More(Self::single(node, rest))
                };
            }
            match slot {
                Slot::One(node) => return Arc::make_mut(node),
                Slot::Twins(twins) => {
                    let twins = Arc::make_mut(twins);
                    return Arc::make_mut(&mut twins.get_or_insert(name, || Twin(make())).0);
                }
                Slot::More(next) => here = next,
            }
            hash >>= BITS;
            depth += 1;
        }
    }

    /// The node of `name`; an absent one copies shared arrays for nothing.
    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut N> {
        let mut hash = N::hash(name);
        let mut here = self;
        loop {
            let (bit, at) = here.place(hash);
            if here.bitmap & bit == 0 {
                return None;
            }
            match &mut Arc::make_mut(&mut here.slots)[at] {
                Slot::One(node) if node.name() == name => return Some(Arc::make_mut(node)),
                Slot::One(_) => return None,
                Slot::More(next) => here = next,
                Slot::Twins(twins) => {
                    let twin = Arc::make_mut(twins).get_mut(name)?;
                    return Some(Arc::make_mut(&mut twin.0));
                }
            }
            hash >>= BITS;
        }
    }

    /// Removes the node of `name`, which should be present.
    pub(super) fn remove(&mut self, name: &[u8]) {
        self.remove_below(name, N::hash(name));
    }

    /// The only node, when there is exactly one.
    pub(super) fn only(&self) -> Option<&Arc<N>> {
        match &*self.slots {
            [Slot::One(node)] => Some(node),
            _ => None,
        }
    }

    /// Recursion is as deep as the trie, at most [`DEPTH_MAX`].
    fn remove_below(&mut self, name: &[u8], hash: u64) {
        let (bit, at) = self.place(hash);
        if self.bitmap & bit == 0 {
            return;
        }
        let slot = &mut Arc::make_mut(&mut self.slots)[at];
        match slot {
            Slot::One(node) if node.name() == name => {
                self.bitmap &= !bit;
                self.slots = without(&self.slots, at);
            }
            Slot::One(_) => {}
            Slot::More(next) => {
                next.remove_below(name, hash >> BITS);
                if let Some(node) = next.only() {
                    *slot = Slot::One(Arc::clone(node));
                }
            }
            Slot::Twins(twins) => {
                let block = Arc::make_mut(twins);
                block.remove(name);
                if let Some(twin) = block.take_only() {
                    *slot = Slot::One(twin.0);
                }
            }
        }
    }

    fn single(node: Arc<N>, hash: u64) -> Self {
        Self { bitmap: bit_of(hash), slots: Arc::new([Slot::One(node)]) }
    }

    /// The bit of `hash` and where its slot stands, or would.
    fn place(&self, hash: u64) -> (u32, usize) {
        let bit = bit_of(hash);
        (bit, (self.bitmap & (bit - 1)).count_ones() as usize)
    }

    fn node_mut(&mut self, at: usize) -> &mut N {
        match &mut Arc::make_mut(&mut self.slots)[at] {
            Slot::One(node) => Arc::make_mut(node),
            Slot::More(_) | Slot::Twins(_) => unreachable!("a new slot holds one node"),
        }
    }
}

impl<N: Named> Item for Twin<N> {
    type Mark = ();
    type Key<'k> = &'k [u8];
    const LEAF_MAX: usize = 32;

    fn mark(&self) {}

    fn mark_of(_key: &[u8]) {}

    fn order(&self, key: &[u8]) -> Ordering {
        self.0.name().cmp(key)
    }
}

fn bit_of(hash: u64) -> u32 {
    1 << (hash & ((1 << BITS) - 1))
}

fn with<N: Named>(slots: &[Slot<N>], at: usize, slot: Slot<N>) -> Arc<[Slot<N>]> {
    slots[..at].iter().cloned().chain(once(slot)).chain(slots[at..].iter().cloned()).collect()
}

fn without<N: Named>(slots: &[Slot<N>], at: usize) -> Arc<[Slot<N>]> {
    slots[..at].iter().chain(&slots[at + 1..]).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Four letters have the same hash, the rest of the hash is as uneven as can be.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Letter(Vec<u8>, u32);

    impl Named for Letter {
        fn name(&self) -> &[u8] {
            &self.0
        }

        fn hash(name: &[u8]) -> u64 {
            let letter = u64::from(name[0] / 4);
            if letter % 2 == 0 { letter << 57 } else { letter.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
        }
    }

    proptest! {
        /// Insert, change, remove and look up agree with a map, also among names of equal hash; a clone stays as it was.
        #[test]
        fn children_agree_with_their_model(steps in prop::collection::vec((0..4_u8, 0..120_u8), 1..300)) {
            let mut spread = Spread::new(Arc::new(Letter(vec![0], 0)));
            let mut model = BTreeMap::from([(0_u8, 0_u32)]);
            let mut clones = Vec::new();
            for (step, (kind, letter)) in (1..).zip(steps) {
                let name = [letter];
                match kind {
                    0 | 1 => {
                        spread.get_or_insert(&name, || Arc::new(Letter(name.to_vec(), 0))).1 = step;
                        model.insert(letter, step);
                    }
                    2 => {
                        if let Some(node) = spread.get_mut(&name) {
                            node.1 += 1;
                        }
                        model.entry(letter).and_modify(|count| *count += 1);
                    }
                    _ => {
                        spread.remove(&name);
                        model.remove(&letter);
                    }
                }
                if step % 32 == 0 {
                    clones.push((spread.clone(), model.clone()));
                }
            }
            clones.push((spread, model));
            for (spread, model) in &clones {
                for letter in 0..120 {
                    let found = spread.get(&[letter]).map(|node| node.1);
                    prop_assert_eq!(found, model.get(&letter).copied());
                }
                let only = spread.only().map(|node| (node.0[0], node.1));
                let expected = if model.len() == 1 { model.first_key_value() } else { None };
                prop_assert_eq!(only, expected.map(|(&letter, &count)| (letter, count)));
            }
        }
    }
}
