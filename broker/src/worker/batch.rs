//! What a turn collects for others: proposals by group, messages by worker and by node. They leave together when it ends.

use storage::{GroupId, Proposal};

use super::Worker;
use super::mail::Parcel;
use crate::forward::Forward;
use crate::metrics::DropReason;

#[derive(Debug)]
pub(super) struct Batch {
    proposals: Box<[Vec<Proposal>]>,
    parcels: Box<[Vec<Parcel>]>,
    /// By node.
    forwards: Vec<(u64, Vec<Forward>)>,
    is_empty: bool,
}

impl Batch {
    pub(super) fn new(groups: u16, workers: usize) -> Self {
        Self {
            proposals: (0..groups).map(|_| Vec::new()).collect(),
            parcels: (0..workers).map(|_| Vec::new()).collect(),
            forwards: Vec::new(),
            is_empty: true,
        }
    }

    pub(super) fn propose(&mut self, group: GroupId, proposal: Proposal) {
        self.is_empty = false;
        self.proposals[usize::from(group.0)].push(proposal);
    }

    pub(super) fn send(&mut self, worker: u16, parcel: Parcel) {
        self.is_empty = false;
        self.parcels[usize::from(worker)].push(parcel);
    }

    pub(super) fn forward(&mut self, node: u64, forward: Forward) {
        self.is_empty = false;
        match self.forwards.iter_mut().find(|(other, _)| *other == node) {
            Some((_, forwards)) => forwards.push(forward),
            None => self.forwards.push((node, vec![forward])),
        }
    }
}

impl Worker {
    /// Lets everything go that was collected.
    pub(super) fn flush(&self) {
        let batch = &mut *self.batch.borrow_mut();
        if std::mem::replace(&mut batch.is_empty, true) {
            return;
        }
        for (group, proposals) in (0..).zip(batch.proposals.iter_mut()) {
            if !proposals.is_empty() {
                self.shared.store.propose(GroupId(group), std::mem::take(proposals));
            }
        }
        for (worker, parcels) in (0..).zip(batch.parcels.iter_mut()) {
            if !parcels.is_empty() {
                let dropped = self.shared.workers.deliver(worker, std::mem::take(parcels));
                if dropped > 0 {
                    self.stats.dropped(DropReason::MailboxFull, dropped);
                }
            }
        }
        for (node, forwards) in batch.forwards.drain(..) {
            let dropped = self.shared.forwarding.send(node, forwards);
            if dropped > 0 {
                self.stats.dropped(DropReason::ForwardQueueFull, dropped);
            }
        }
    }
}
