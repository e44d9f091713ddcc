//! Topics that a worker resolved already: a repeated topic costs one hash and one comparison.

use std::hash::BuildHasher;
use std::rc::Rc;

use super::plan::Plan;
use super::readers::Readers;
use super::router::Snapshot;

/// Slots; a topic has exactly one, and the last one in it stays.
const SLOTS: usize = 2_048;
/// Longer topics are resolved each time, so that hostile ones cannot fill the memory.
const TOPIC_BYTES_MAX: usize = 256;
/// Destinations in all plans together; when there are more, the cache starts over.
const WEIGHT_MAX: usize = 128 * 1_024;

/// Resolved topics of one worker. A plan is good for exactly one version of the index and one epoch of the rules.
#[derive(Debug)]
pub struct PlanCache {
    worker: Option<u16>,
    slots: Box<[Option<Slot>]>,
    hasher: foldhash::fast::RandomState,
    weight: usize,
}

#[derive(Debug)]
struct Slot {
    version: u64,
    epoch: u64,
    topic: Box<str>,
    plan: Rc<Plan>,
}

impl PlanCache {
    /// An empty one for `worker`.
    #[must_use]
    pub fn new(worker: Option<u16>) -> Self {
        let slots = (0..SLOTS).map(|_| None).collect();
        Self { worker, slots, hasher: foldhash::fast::RandomState::default(), weight: 0 }
    }

    /// The plan of `topic` in this version of the index, under these rules.
    pub fn plan(&mut self, snapshot: &Snapshot, readers: &Readers, topic: &str) -> Rc<Plan> {
        let at = self.hasher.hash_one(topic.as_bytes()) as usize % SLOTS;
        if let Some(slot) = &self.slots[at]
            && slot.version == snapshot.version
            && slot.epoch == readers.epoch()
            && *slot.topic == *topic
        {
            return Rc::clone(&slot.plan);
        }
        let plan = Rc::new(Plan::resolve(snapshot, topic, self.worker, readers));
        if topic.len() <= TOPIC_BYTES_MAX {
            let (version, epoch) = (snapshot.version, readers.epoch());
            self.keep(at, Slot { version, epoch, topic: topic.into(), plan: Rc::clone(&plan) });
        }
        plan
    }

    fn keep(&mut self, at: usize, slot: Slot) {
        let weight = slot.plan.weight();
        if weight > WEIGHT_MAX {
            return;
        }
        if let Some(old) = self.slots[at].take() {
            self.weight -= old.plan.weight();
        }
        if self.weight + weight > WEIGHT_MAX {
            self.slots.fill_with(|| None);
            self.weight = 0;
        }
        self.weight += weight;
        self.slots[at] = Some(slot);
    }
}
