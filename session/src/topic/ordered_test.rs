//! The sorted set against a `BTreeSet`, with marks that collide and clones that must not change.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Four of each kind share a mark.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Number(u32);

impl Item for Number {
    type Mark = u32;
    type Key<'k> = u32;
    const LEAF_MAX: usize = 4;

    fn mark(&self) -> u32 {
        self.0 / 4
    }

    fn mark_of(key: u32) -> u32 {
        key / 4
    }

    fn order(&self, key: u32) -> Ordering {
        self.0.cmp(&key)
    }
}

fn items(set: &Block<Number>) -> Vec<u32> {
    let mut all = Vec::new();
    set.leaves(&mut |leaf| all.extend(leaf.iter().map(|item| item.0)));
    all
}

fn check(set: &Block<Number>, root: bool) -> usize {
    assert!(root || !set.is_empty(), "an inner block has no empty branch");
    assert!(set.width() <= set.width_max());
    match set {
        Block::Leaf(_) => 1,
        Block::Inner(branches) => {
            let depths: BTreeSet<usize> = branches.iter().map(|(_, block)| check(block, false)).collect();
            assert_eq!(depths.len(), 1, "all leaves are equally deep");
            for (at, (separator, block)) in branches.iter().enumerate() {
                let marks = items(block).into_iter().map(|item| item / 4);
                assert!(marks.clone().all(|mark| mark >= *separator));
                if let Some((next, _)) = branches.get(at + 1) {
                    assert!(marks.clone().all(|mark| mark <= *next));
                }
            }
            depths.into_iter().next().unwrap_or(0) + 1
        }
    }
}

proptest! {
    /// Insert, remove and look up agree with the model; a clone keeps what it held when it was made.
    #[test]
    fn a_set_agrees_with_its_model(steps in prop::collection::vec((0..3_u8, 0..400_u32), 1..600)) {
        let mut set = Block::Leaf(Vec::new());
        let mut model = BTreeSet::new();
        let mut clones: Vec<(Block<Number>, Vec<u32>)> = Vec::new();
        for (step, (kind, key)) in steps.into_iter().enumerate() {
            if kind < 2 {
                prop_assert_eq!(set.get_or_insert(key, || Number(key)).0, key);
                model.insert(key);
            } else if set.get(key).is_some() {
                prop_assert_eq!(set.get_mut(key).map(|item| item.0), Some(key));
                prop_assert_eq!(set.remove(key), Some(Number(key)));
                prop_assert!(model.remove(&key));
            } else {
                prop_assert!(!model.contains(&key));
            }
            if step % 64 == 0 {
                clones.push((set.clone(), items(&set)));
            }
        }
        check(&set, true);
        prop_assert_eq!(items(&set), model.iter().copied().collect::<Vec<_>>());
        for key in 0..400 {
            prop_assert_eq!(set.get(key).is_some(), model.contains(&key));
        }
        for (clone, expected) in clones {
            prop_assert_eq!(items(&clone), expected);
        }
    }
}

/// Emptying in both directions leaves an empty root, whatever joined on the way.
#[test]
fn a_set_can_be_emptied() {
    for reverse in [false, true] {
        let mut set = Block::Leaf(Vec::new());
        for key in 0..3_000 {
            set.get_or_insert(key, || Number(key));
        }
        check(&set, true);
        for key in 0..3_000 {
            let key = if reverse { 2_999 - key } else { key };
            assert_eq!(set.remove(key), Some(Number(key)));
            if key % 97 == 0 {
                check(&set, true);
            }
        }
        assert!(set.is_empty());
        assert!(matches!(set, Block::Leaf(_)), "the set has shrunk to one leaf");
    }
}
