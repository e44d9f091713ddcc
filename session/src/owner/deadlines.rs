//! The deadline heap: exactly one record per retained owner (owner spec §3.1), fixed in place when it moves.

use crate::time::Tick;

/// Children of a heap node: four records share two cache lines.
const ARITY: usize = 4;
/// No record.
const NOWHERE: u32 = u32::MAX;

/// When an owner is due for the sweeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record {
    pub(super) deadline: Tick,
    /// Breaks ties, the lower first.
    pub(super) connection_id: u64,
    pub(super) slot: u32,
}

/// An indexed min-heap of records; `positions[slot]` is where a slot's record stands.
#[derive(Default)]
pub(super) struct Deadlines {
    heap: Vec<Record>,
    positions: Vec<u32>,
}

impl Deadlines {
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn head(&self) -> Option<Record> {
        self.heap.first().copied()
    }

    pub(super) fn get(&self, slot: u32) -> Tick {
        self.heap[self.position(slot)].deadline
    }

    /// Adds the record of a slot that has none.
    pub(super) fn insert(&mut self, record: Record) {
        let slot = record.slot as usize;
        if slot >= self.positions.len() {
            self.positions.resize(slot + 1, NOWHERE);
        }
        debug_assert_eq!(self.positions[slot], NOWHERE, "one record per slot");
        self.heap.push(record);
        self.sift_up(self.heap.len() - 1);
    }

    /// Moves the record of `slot`.
    pub(super) fn set(&mut self, slot: u32, deadline: Tick) {
        let at = self.position(slot);
        let earlier = deadline < self.heap[at].deadline;
        self.heap[at].deadline = deadline;
        if earlier { self.sift_up(at) } else { self.sift_down(at) }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        let at = self.position(slot);
        self.positions[slot as usize] = NOWHERE;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            // What came from the end may belong above or below; one of the two does nothing.
            let moved = self.heap[at].slot;
            self.sift_up(at);
            self.sift_down(self.position(moved));
        }
    }

    fn position(&self, slot: u32) -> usize {
        let at = self.positions[slot as usize];
        debug_assert_ne!(at, NOWHERE, "a retained owner has a record");
        at as usize
    }

    fn sift_up(&mut self, mut at: usize) {
        let record = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.heap[parent] <= record {
                break;
            }
            self.place(at, self.heap[parent]);
            at = parent;
        }
        self.place(at, record);
    }

    fn sift_down(&mut self, mut at: usize) {
        let record = self.heap[at];
        loop {
            let first = at * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if record <= self.heap[least] {
                break;
            }
            self.place(at, self.heap[least]);
            at = least;
        }
        self.place(at, record);
    }

    fn place(&mut self, at: usize, record: Record) {
        self.heap[at] = record;
        self.positions[record.slot as usize] =
            u32::try_from(at).expect("a registry holds at most 1,000,000 owners");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Owner spec §3.1: deadline ascending, ties by connection id ascending, one record per owner.
        #[test]
        fn the_heap_yields_records_in_order(steps in prop::collection::vec((0..4_u8, 0..40_u32, 0..30_u64), 0..300)) {
            let mut deadlines = Deadlines::default();
            let mut model: BTreeSet<(u64, u64, u32)> = BTreeSet::new();
            for (kind, slot, deadline) in steps {
                let known = model.iter().find(|record| record.2 == slot).copied();
                let connection_id = u64::from(slot ^ 21);
                match (kind, known) {
                    (0 | 1, None) => {
                        deadlines.insert(Record { deadline: Tick(deadline), connection_id, slot });
                        model.insert((deadline, connection_id, slot));
                    }
                    (2, Some(record)) => {
                        deadlines.remove(slot);
                        model.remove(&record);
                    }
                    (_, Some(record)) => {
                        deadlines.set(slot, Tick(deadline));
                        model.remove(&record);
                        model.insert((deadline, connection_id, slot));
                        prop_assert_eq!(deadlines.get(slot), Tick(deadline));
                    }
                    (_, None) => {}
                }
                prop_assert_eq!(deadlines.len(), model.len());
                let head = deadlines.head().map(|head| (head.deadline.0, head.connection_id, head.slot));
                prop_assert_eq!(head, model.first().copied());
            }
            while let Some(head) = deadlines.head() {
                prop_assert_eq!(model.pop_first().map(|record| record.2), Some(head.slot));
                deadlines.remove(head.slot);
            }
        }
    }
}
