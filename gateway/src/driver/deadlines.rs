//! When which connection must look at its clock: an indexed heap with one entry a connection.
//!
//! A keep alive is renewed in the link alone; its entry here is moved only when it surfaces, so a packet costs no heap
//! operation and an idle connection no timer.

use session::time::Tick;

const ABSENT: u32 = u32::MAX;

/// A 4-ary min-heap of (deadline, slot) that knows where each slot stands.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: Vec<(Tick, u32)>,
    /// Index into `heap` by slot.
    position: Vec<u32>,
}

const ARITY: usize = 4;

impl Deadlines {
    /// Sets the deadline of `slot`.
    pub(super) fn set(&mut self, slot: u32, at: Tick) {
        let index = slot as usize;
        if index >= self.position.len() {
            self.position.resize(index + 1, ABSENT);
        }
        let found = self.position[index];
        let from = if found == ABSENT {
            self.heap.push((at, slot));
            self.heap.len() - 1
        } else {
            self.heap[found as usize].0 = at;
            found as usize
        };
        let from = self.rise(from);
        self.sink(from);
    }

    /// Forgets `slot`.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(&found) = self.position.get(slot as usize) else { return };
        if found == ABSENT {
            return;
        }
        let index = found as usize;
        self.position[slot as usize] = ABSENT;
        let last = self.heap.pop();
        if index < self.heap.len()
            && let Some(last) = last
        {
            self.place(index, last);
            let index = self.rise(index);
            self.sink(index);
        }
    }

    /// The earliest entry, when it is due.
    pub(super) fn due(&self, now: Tick) -> Option<u32> {
        self.heap.first().filter(|(at, _)| *at <= now).map(|(_, slot)| *slot)
    }

    fn rise(&mut self, mut index: usize) -> usize {
        let entry = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / ARITY;
            if self.heap[parent] <= entry {
                break;
            }
            self.place(index, self.heap[parent]);
            index = parent;
        }
        self.place(index, entry);
        index
    }

    fn sink(&mut self, mut index: usize) {
        let entry = self.heap[index];
        loop {
            let first = index * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if entry <= self.heap[least] {
                break;
            }
            self.place(index, self.heap[least]);
            index = least;
        }
        self.place(index, entry);
    }

    fn place(&mut self, index: usize, entry: (Tick, u32)) {
        self.heap[index] = entry;
        // Slots are u32, so an index fits as well.
        self.position[entry.1 as usize] = index as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// P9: whatever the order of sets and removals, entries surface in the order of their last deadline, once.
    #[test]
    fn surfaces_in_order_like_a_sorted_map() {
        let mut heap = Deadlines::default();
        let mut model = BTreeMap::new();
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let slot = (random % 300) as u32;
            if random >> 60 < 5 {
                heap.remove(slot);
                model.remove(&slot);
            } else {
                let at = Tick((random >> 20) % 1000);
                heap.set(slot, at);
                model.insert(slot, at);
            }
        }
        let mut last = Tick(0);
        while let Some(slot) = heap.due(Tick(u64::MAX)) {
            let at = model.remove(&slot).expect("in the model");
            assert!(at >= last);
            last = at;
            heap.remove(slot);
        }
        assert!(model.is_empty());
    }
}
