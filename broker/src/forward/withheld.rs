//! Whether this node kept messages from another one: its own subscribers see what they get, those of the other node would never know.
//!
//! Each other node has a mark, which is another one after each time that messages of QoS 1 or 2 may have passed it by: it could not be
//! called for so long that its table was dropped, or its queue gave them up. The answers to its announcer carry the mark (WIRE.md §8); a
//! node that finds it changed closes the connections that may have missed something ([`Missed`]).

use std::fmt::Debug;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::NodeClock;
use crate::worker::Workers;

/// The mark of a node from which this boot withheld nothing.
pub(super) const NOTHING: u64 = 0;

/// The marks of the other nodes; as many as were members since this boot began.
#[derive(Debug)]
pub(super) struct Withheld {
    clock: Arc<NodeClock>,
    marks: Mutex<HashMap<u64, u64>>,
}

impl Withheld {
    pub(super) fn new(clock: Arc<NodeClock>) -> Self {
        Self { clock, marks: Mutex::default() }
    }

    /// Messages are withheld from this node, or were.
    pub(super) fn note(&self, node: u64) {
        // The hybrid time, so that those of different boots of this node differ.
        let now = self.clock.millis().0;
        let mut marks = self.marks.lock();
        let mark = marks.entry(node).or_insert(NOTHING);
        *mark = now.max(*mark + 1);
    }

    /// What it is told.
    pub(super) fn mark(&self, node: u64) -> u64 {
        self.marks.lock().get(&node).copied().unwrap_or(NOTHING)
    }
}

/// Who sees to the subscribers here when another node kept messages from this one.
pub(super) trait Missed: Send + Sync + Debug {
    /// Any message of QoS 1 or 2 that was published on `node` until now may be missing.
    fn missed(&self, node: u64);
}

impl Missed for Workers {
    fn missed(&self, node: u64) {
        tracing::warn!(
            node,
            "a node may have kept messages from this one; connections that may have missed any are closed"
        );
        self.withheld();
    }
}
