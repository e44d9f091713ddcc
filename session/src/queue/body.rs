//! Where the bytes of records are: outside of the log, so that a backlog may be on disk while its bookkeeping is in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::message::Message;
use crate::time::Millis;

/// Keeps message bodies, each with a number of references.
pub trait Bodies {
    /// Stores one with one reference; ids are never 0 and never reused.
    fn put(&mut self, message: &Message) -> u64;
    /// Drops the reference.
    fn release(&mut self, id: u64);
    /// `None`: it never expires.
    fn expires_at(&self, id: u64) -> Option<Millis>;
    /// `None`: it is only on disk.
    fn get(&self, id: u64) -> Option<Arc<Message>>;
}

/// All in memory.
#[derive(Debug, Default)]
pub struct PlainBodies {
    last: u64,
    bodies: BTreeMap<u64, Arc<Message>>,
}

impl PlainBodies {
    #[must_use]
    pub fn len(&self) -> usize {
        self.bodies.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Takes one back in under its id.
    pub fn restore(&mut self, id: u64, message: Arc<Message>) {
        self.last = self.last.max(id);
        self.bodies.insert(id, message);
    }
}

impl Bodies for PlainBodies {
    fn put(&mut self, message: &Message) -> u64 {
        self.last += 1;
        self.bodies.insert(self.last, Arc::new(message.clone()));
        self.last
    }

    fn release(&mut self, id: u64) {
        self.bodies.remove(&id);
    }

    fn expires_at(&self, id: u64) -> Option<Millis> {
        self.bodies.get(&id)?.expires_at
    }

    fn get(&self, id: u64) -> Option<Arc<Message>> {
        self.bodies.get(&id).cloned()
    }
}
