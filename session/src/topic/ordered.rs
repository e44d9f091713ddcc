//! A persistent sorted set: a B+ tree whose blocks are shared between clones until they change.
//!
//! One update of a shared set copies one path of at most a few blocks, of an unshared set nothing; so neither
//! 100,000 children of a topic level nor 15,000 subscribers of one filter make an update expensive. Leaves are
//! plain vectors, so that a reader gets its items as slices.

use std::cmp::Ordering;
use std::sync::Arc;

/// Branches of an inner block.
const INNER_MAX: usize = 32;

/// What the set needs to know of its items.
///
/// Items are ordered by their mark and, among equal marks, by the rest of their key. A mark is a cheap prefix of
/// the key which inner blocks keep, so that a search touches items only where marks are equal.
pub(super) trait Item: Clone {
    type Mark: Copy + Ord;
    type Key<'k>: Copy;
    /// Items of a leaf, at least 4.
    const LEAF_MAX: usize;

    fn mark(&self) -> Self::Mark;
    fn mark_of(key: Self::Key<'_>) -> Self::Mark;
    /// How this item's key compares to `key`; agrees with the order of marks.
    fn order(&self, key: Self::Key<'_>) -> Ordering;
}

/// A block: all leaves of a set are equally deep, every block but the root holds at least one item or branch.
///
/// Invariant of an inner block: marks in branch `i - 1` ≤ separator `i` ≤ marks in branch `i`.
#[derive(Clone)]
pub(super) enum Block<T: Item> {
    Leaf(Vec<T>),
    Inner(Vec<(T::Mark, Arc<Self>)>),
}

impl<T: Item> Block<T> {
    pub(super) fn get(&self, key: T::Key<'_>) -> Option<&T> {
        let mut block = self;
        loop {
            match block {
                Self::Leaf(items) => {
                    let at = items.binary_search_by(|item| item.order(key)).ok()?;
                    return Some(&items[at]);
                }
                Self::Inner(branches) => block = &branches[branch_of(branches, key)].1,
            }
        }
    }

    /// The item of `key`, made by `make` when absent. Full blocks are split on the way down.
    pub(super) fn get_or_insert(&mut self, key: T::Key<'_>, make: impl FnOnce() -> T) -> &mut T {
        if self.is_full() {
            let right = self.split();
            let left = std::mem::replace(self, Self::Inner(Vec::with_capacity(2)));
            let branch = |block: Self| (block.first().mark(), Arc::new(block));
            *self = Self::Inner(vec![branch(left), branch(right)]);
        }
        let mut block = self;
        loop {
            match block {
                Self::Leaf(items) => {
                    let at = match items.binary_search_by(|item| item.order(key)) {
                        Ok(at) => at,
                        Err(at) => {
                            items.insert(at, make());
                            at
                        }
                    };
                    return &mut items[at];
                }
                Self::Inner(branches) => {
                    let mut at = branch_of(branches, key);
                    if branches[at].1.is_full() {
                        let right = Arc::make_mut(&mut branches[at].1).split();
                        branches.insert(at + 1, (right.first().mark(), Arc::new(right)));
                        at = branch_of(branches, key);
                    }
                    // Only the first branch can get a mark below its separator.
                    branches[at].0 = branches[at].0.min(T::mark_of(key));
                    block = Arc::make_mut(&mut branches[at].1);
                }
            }
        }
    }

    /// The item of `key`, which must be present: an absent one would copy shared blocks for nothing.
    pub(super) fn get_mut(&mut self, key: T::Key<'_>) -> Option<&mut T> {
        let mut block = self;
        loop {
            match block {
                Self::Leaf(items) => {
                    let at = items.binary_search_by(|item| item.order(key)).ok()?;
                    return Some(&mut items[at]);
                }
                Self::Inner(branches) => {
                    let at = branch_of(branches, key);
                    block = Arc::make_mut(&mut branches[at].1);
                }
            }
        }
    }

    /// Removes the item of `key`, which should be present. Small blocks join a neighbour; recursion is as deep as the
    /// set, at most a dozen.
    pub(super) fn remove(&mut self, key: T::Key<'_>) -> Option<T> {
        let removed = self.remove_below(key)?;
        loop {
            let only = match self {
                Self::Inner(branches) if branches.len() == 1 => branches.pop().map(|(_, block)| block),
                _ => None,
            };
            match only {
                Some(block) => *self = Arc::unwrap_or_clone(block),
                None => return Some(removed),
            }
        }
    }

    fn remove_below(&mut self, key: T::Key<'_>) -> Option<T> {
        match self {
            Self::Leaf(items) => {
                let at = items.binary_search_by(|item| item.order(key)).ok()?;
                let removed = items.remove(at);
                if items.capacity() > 2 * items.len().max(4) {
                    items.shrink_to(items.len());
                }
                Some(removed)
            }
            Self::Inner(branches) => {
                let at = branch_of(branches, key);
                let removed = Arc::make_mut(&mut branches[at].1).remove_below(key)?;
                join_small(branches, at);
                Some(removed)
            }
        }
    }

    /// Items or branches of this block.
    fn width(&self) -> usize {
        match self {
            Self::Leaf(items) => items.len(),
            Self::Inner(branches) => branches.len(),
        }
    }

    fn width_max(&self) -> usize {
        match self {
            Self::Leaf(_) => T::LEAF_MAX,
            Self::Inner(_) => INNER_MAX,
        }
    }

    fn is_full(&self) -> bool {
        self.width() >= self.width_max()
    }

    /// Whether the set holds nothing; only a root may be so.
    pub(super) fn is_empty(&self) -> bool {
        self.width() == 0
    }

    /// Takes the only item out, when there is exactly one.
    pub(super) fn take_only(&mut self) -> Option<T> {
        match self {
            Self::Leaf(items) if items.len() == 1 => items.pop(),
            _ => None,
        }
    }

    /// Cuts the upper half off.
    fn split(&mut self) -> Self {
        let half = self.width() / 2;
        match self {
            Self::Leaf(items) => {
                let right = items.split_off(half);
                items.shrink_to_fit();
                Self::Leaf(right)
            }
            Self::Inner(branches) => Self::Inner(branches.split_off(half)),
        }
    }

    /// Joins the next block, before which `separator` stood.
    fn append(&mut self, separator: T::Mark, right: Self) {
        match (self, right) {
            (Self::Leaf(items), Self::Leaf(more)) => items.extend(more),
            (Self::Inner(branches), Self::Inner(mut more)) => {
                // A first separator may be stale: too low for what came in on its left since.
                more[0].0 = separator;
                branches.extend(more);
            }
            _ => unreachable!("neighbours are equally deep"),
        }
    }

    fn first(&self) -> &T {
        let mut block = self;
        loop {
            match block {
                Self::Leaf(items) => return &items[0],
                Self::Inner(branches) => block = &branches[0].1,
            }
        }
    }

    /// Visits the items leaf by leaf.
    pub(super) fn leaves<'a>(&'a self, visit: &mut impl FnMut(&'a [T])) {
        match self {
            Self::Leaf(items) => visit(items),
            Self::Inner(branches) => branches.iter().for_each(|(_, block)| block.leaves(visit)),
        }
    }
}

/// The branch that holds `key`, or would.
fn branch_of<T: Item>(branches: &[(T::Mark, Arc<Block<T>>)], key: T::Key<'_>) -> usize {
    let mark = T::mark_of(key);
    let behind = branches.partition_point(|(separator, block)| match separator.cmp(&mark) {
        Ordering::Less => true,
        Ordering::Equal => block.first().order(key) != Ordering::Greater,
        Ordering::Greater => false,
    });
    behind.saturating_sub(1)
}

/// Joins branch `at` to a neighbour when it has become small and both fit one block.
fn join_small<T: Item>(branches: &mut Vec<(T::Mark, Arc<Block<T>>)>, at: usize) {
    let width = branches[at].1.width();
    if width >= branches[at].1.width_max() / 4 {
        return;
    }
    if branches.len() == 1 {
        if width == 0 {
            branches.clear();
        }
        return;
    }
    let left = at.saturating_sub(1);
    if branches[left].1.width() + branches[left + 1].1.width() > branches[left].1.width_max() {
        return;
    }
    let (separator, right) = branches.remove(left + 1);
    if !right.is_empty() {
        Arc::make_mut(&mut branches[left].1).append(separator, Arc::unwrap_or_clone(right));
    }
}

#[cfg(test)]
#[path = "ordered_test.rs"]
mod tests;
