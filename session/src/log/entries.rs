//! The entries of one log: a deque that takes 16 bytes an entry while it is short, and less than 3 in the middle of a backlog.
//!
//! ```text
//!  pop ◀── [ front: loose ] [ blocks of 64, packed where they are alike ] [ last: loose, up to 1,024 ] ◀── push
//!           └────────────── only of a deep log ─ ──────────────────────┘
//! ```

use std::collections::VecDeque;

use super::Entry;

/// Entries of one block.
const BLOCK: usize = 64;
/// Entries behind the blocks: so many stay loose.
const LOOSE_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct Entries<E> {
    deep: Option<Box<Deep<E>>>,
    last: VecDeque<E>,
}

impl<E> Default for Entries<E> {
    fn default() -> Self {
        Self { deep: None, last: VecDeque::new() }
    }
}

#[derive(Debug)]
struct Deep<E> {
    front: VecDeque<E>,
    blocks: VecDeque<Block<E>>,
}

#[derive(Debug)]
enum Block<E> {
    Packed(Packed<E>),
    Loose(Box<[E; BLOCK]>),
}

/// Entries that differ in their body only, by less than 65,536 from the first.
#[derive(Debug)]
struct Packed<E> {
    first: E,
    distances: Box<[u16; BLOCK]>,
}

impl<E: Entry> Packed<E> {
    fn get(&self, at: usize) -> E {
        self.first.with_body(self.first.body() + u64::from(self.distances[at]))
    }
}

impl<E: Entry> Block<E> {
    fn new(entries: [E; BLOCK]) -> Self {
        let first = entries[0];
        let mut distances = Box::new([0; BLOCK]);
        for (entry, distance) in entries.iter().zip(distances.iter_mut()) {
            let alike = entry.with_body(first.body()) == first;
            match entry.body().checked_sub(first.body()).map(u16::try_from) {
                Some(Ok(far)) if alike => *distance = far,
                _ => return Self::Loose(Box::new(entries)),
            }
        }
        Self::Packed(Packed { first, distances })
    }

    fn get(&self, at: usize) -> E {
        match self {
            Self::Packed(packed) => packed.get(at),
            Self::Loose(entries) => entries[at],
        }
    }

    fn get_mut(&mut self, at: usize) -> &mut E {
        if let Self::Packed(packed) = self {
            *self = Self::Loose(Box::new(std::array::from_fn(|at| packed.get(at))));
        }
        match self {
            Self::Loose(entries) => &mut entries[at],
            Self::Packed(_) => unreachable!("it was made loose just now"),
        }
    }
}

/// Where an entry is.
enum Place {
    Front(usize),
    Block(usize, usize),
    Last(usize),
}

impl<E: Entry> Entries<E> {
    pub(super) fn len(&self) -> usize {
        self.before_last() + self.last.len()
    }

    fn before_last(&self) -> usize {
        self.deep.as_ref().map_or(0, |deep| deep.front.len() + deep.blocks.len() * BLOCK)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.deep.is_none() && self.last.is_empty()
    }

    fn place(&self, at: usize) -> Place {
        let Some(deep) = &self.deep else { return Place::Last(at) };
        let Some(behind) = at.checked_sub(deep.front.len()) else { return Place::Front(at) };
        if behind < deep.blocks.len() * BLOCK {
            return Place::Block(behind / BLOCK, behind % BLOCK);
        }
        Place::Last(behind - deep.blocks.len() * BLOCK)
    }

    pub(super) fn get(&self, at: usize) -> Option<E> {
        match (self.place(at), &self.deep) {
            (Place::Front(at), Some(deep)) => deep.front.get(at).copied(),
            (Place::Block(block, at), Some(deep)) => deep.blocks.get(block).map(|block| block.get(at)),
            (Place::Last(at), _) => self.last.get(at).copied(),
            (_, None) => None,
        }
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut E> {
        match (self.place(at), &mut self.deep) {
            (Place::Front(at), Some(deep)) => deep.front.get_mut(at),
            (Place::Block(block, at), Some(deep)) => {
                deep.blocks.get_mut(block).map(|block| block.get_mut(at))
            }
            (Place::Last(at), _) => self.last.get_mut(at),
            (_, None) => None,
        }
    }

    /// Entries from the one at `from` on.
    pub(super) fn from(&self, from: usize) -> impl Iterator<Item = E> {
        (from..self.len()).map_while(|at| self.get(at))
    }

    pub(super) fn push_back(&mut self, entry: E) {
        self.last.push_back(entry);
        if self.last.len() < LOOSE_MAX + BLOCK {
            return;
        }
        let oldest: Vec<E> = self.last.drain(..BLOCK).collect();
        let Ok(oldest) = <[E; BLOCK]>::try_from(oldest) else { unreachable!("a block was drained") };
        let deep = self
            .deep
            .get_or_insert_with(|| Box::new(Deep { front: VecDeque::new(), blocks: VecDeque::new() }));
        deep.blocks.push_back(Block::new(oldest));
    }

    pub(super) fn pop_front(&mut self) -> Option<E> {
        let Some(deep) = &mut self.deep else { return self.last.pop_front() };
        if deep.front.is_empty()
            && let Some(block) = deep.blocks.pop_front()
        {
            deep.front.extend((0..BLOCK).map(|at| block.get(at)));
        }
        let popped = deep.front.pop_front();
        if deep.blocks.is_empty() && deep.front.is_empty() {
            self.deep = None;
        } else if deep.blocks.capacity() > 4 * (deep.blocks.len() + BLOCK) {
            deep.blocks.shrink_to(2 * deep.blocks.len());
        }
        popped
    }

    /// Gives room to grow back once nothing is left.
    pub(super) fn shrink_empty(&mut self) {
        if self.is_empty() && self.last.capacity() > 4 * BLOCK {
            self.last = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::Tally;

    /// A body and whether it is unlike its neighbours.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Plain {
        body: u64,
        odd: u64,
    }

    impl Plain {
        fn of(body: u64, odd: bool) -> Self {
            Self { body, odd: u64::from(odd) }
        }
    }

    impl Tally<Plain> for () {
        fn add(&mut self, _: &Plain) {}
        fn remove(&mut self, _: &Plain) {}
    }

    impl Entry for Plain {
        const SETTLED: Self = Self { body: 0, odd: 0 };
        type Tally = ();

        fn settled(&self) -> bool {
            self.body == 0
        }

        fn body(&self) -> u64 {
            self.body
        }

        fn with_body(self, body: u64) -> Self {
            Self { body, ..self }
        }
    }

    #[derive(Debug, Clone)]
    enum Op {
        /// So many entries, each so far from the last; every so many-th is of another kind.
        Push(usize, u64, usize),
        Pop(usize),
        /// Changes the one at this part of the length.
        Change(f64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1_usize..900, 0_u64..40_000, 1_usize..2_000).prop_map(|(n, step, odd)| Op::Push(n, step, odd)),
            2 => (1_usize..900).prop_map(Op::Pop),
            1 => (0.0..1.0).prop_map(Op::Change),
        ]
    }

    proptest! {
        /// P5: against a plain deque: nothing is lost, changed or out of order, wherever an entry stands.
        #[test]
        fn entries_are_a_deque(ops in prop::collection::vec(op(), 1..40)) {
            let (mut entries, mut model, mut message) = (Entries::<Plain>::default(), VecDeque::new(), 1);
            for op in ops {
                match op {
                    Op::Push(count, step, odd) => for number in 1..=count {
                        message += step;
                        let entry = Plain::of(message, number % odd == 0);
                        entries.push_back(entry);
                        model.push_back(entry);
                    },
                    Op::Pop(count) => for _ in 0..count {
                        prop_assert_eq!(entries.pop_front(), model.pop_front());
                    },
                    Op::Change(part) => {
                        let at = (part * model.len() as f64) as usize;
                        let changed = Plain::of(7, true);
                        prop_assert_eq!(entries.get_mut(at).map(|entry| *entry = changed).is_some(), at < model.len());
                        if let Some(entry) = model.get_mut(at) {
                            *entry = changed;
                        }
                    }
                }
                entries.shrink_empty();
                prop_assert_eq!((entries.len(), entries.is_empty()), (model.len(), model.is_empty()));
                let from = model.len() / 3;
                prop_assert!(entries.from(from).eq(model.iter().skip(from).copied()));
                prop_assert_eq!(entries.get(model.len()), None);
            }
        }
    }

    /// P9: ten million queued messages take less than 30 MB here; what is empty takes nothing.
    #[test]
    fn an_entry_of_a_backlog_takes_less_than_3_bytes() {
        let mut entries = Entries::<Plain>::default();
        for number in 0..100_000 {
            entries.push_back(Plain::of(number * 100 + 1, false));
        }
        let deep = entries.deep.as_ref().expect("it is deep");
        assert!(deep.blocks.iter().all(|block| matches!(block, Block::Packed(_))));
        let bytes = size_of::<Block<Plain>>() + size_of::<[u16; BLOCK]>();
        assert!(bytes < 3 * BLOCK, "{bytes} for {BLOCK}");
        while entries.pop_front().is_some() {}
        entries.shrink_empty();
        assert!(entries.is_empty() && entries.deep.is_none() && entries.last.capacity() == 0);
    }
}
