//! Takes messages from other nodes to this one's workers and answers when the outboxes have them (service 140).

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ownerrpc::link::{Answer, Call, Refusal, RefusalKind, Service};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::wire::{self, Received};
use crate::worker::{Arrival, Taken, Unserved, Workers};

/// Nodes whose last batch is remembered; as many as can hold a link to this one, several times over.
const NODES_MAX: usize = 4_096;

/// Service 140.
#[derive(Debug)]
pub(super) struct Receiver {
    workers: Arc<Workers>,
    last: Mutex<HashMap<u64, Last>>,
}

/// The last batch of a node: when it comes again, its sender did not get the answer.
#[derive(Debug)]
struct Last {
    boot: Arc<str>,
    number: u64,
    /// Closed once the workers have taken it; then it holds the answer.
    taken: watch::Receiver<Unserved>,
}

impl Receiver {
    pub(super) fn new(workers: Arc<Workers>) -> Self {
        Self { workers, last: Mutex::default() }
    }

    /// Hands the messages to the workers, unless they have them already; closed when they are in the outboxes.
    fn take(&self, call: &Call) -> Result<watch::Receiver<Unserved>, Refusal> {
        if let Some(refusal) = super::stranger(call) {
            return Err(refusal);
        }
        let malformed = |error: wire::Malformed| Refusal::new(RefusalKind::Malformed, error.0);
        let (number, messages, passed_over) = wire::read_batch(&call.payload).map_err(malformed)?;
        let (node, boot) = (call.peer.node_id, &call.peer.boot_id);
        let mut last = self.last.lock();
        if let Some(known) = last.get(&node)
            && known.boot == *boot
            && number <= known.number
        {
            return Ok(known.taken.clone());
        }
        let (sender, taken) = watch::channel(Unserved::new());
        self.workers.passed_over(passed_over);
        self.hand_over(messages, &Arc::new(Taken::new(sender)));
        if last.len() >= NODES_MAX {
            last.retain(|_, last| last.taken.has_changed().is_ok());
        }
        last.insert(node, Last { boot: Arc::clone(boot), number, taken: taken.clone() });
        Ok(taken)
    }

    /// All messages of one publisher go to the same worker, in order: it chooses the subscribers, as for a publisher of its own.
    fn hand_over(&self, messages: Vec<Received>, taken: &Arc<Taken>) {
        let workers = self.workers.len().max(1);
        let mut by_worker: Vec<Vec<Arrival>> = (0..workers).map(|_| Vec::new()).collect();
        let hash = FixedState::default();
        for Received { at: index, message, publisher, everyone, shares } in messages {
            let at = match &publisher {
                Some(key) => hash.hash_one((&*key.namespace, &*key.client_id)),
                None => hash.hash_one(message.topic()),
            };
            let taken = (Arc::clone(taken), index);
            let arrival = Arrival { message, publisher, everyone, shares, taken };
            by_worker[at as usize % workers].push(arrival);
        }
        for (worker, arrivals) in (0..).zip(by_worker) {
            if !arrivals.is_empty() {
                self.workers.arrive(worker, arrivals);
            }
        }
    }
}

impl Service for Receiver {
    fn call(&self, call: Call) -> Answer {
        // In the order of sending: before it returns.
        match self.take(&call) {
            Ok(mut taken) => Box::pin(async move {
                while taken.changed().await.is_ok() {}
                Ok(wire::unserved(&taken.borrow()))
            }),
            Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
        }
    }
}

#[cfg(test)]
#[path = "receiver_test.rs"]
mod receiver_test;
