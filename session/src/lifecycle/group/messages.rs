//! Message bodies of the group: each is stored once, counted by its references, in memory or only on disk.

use std::collections::VecDeque;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::slots::Slots;
use crate::message::Message;
use crate::time::Millis;

/// Dead ids that may wait in the eviction queue before it is swept.
const DEAD_IDS_MAX: usize = 4_096;
/// A message body is shorter than this (a packet has at most 256 MiB); the bit above marks "on disk".
pub(super) const MESSAGE_BYTES_MAX: u32 = 1 << 31;

/// 16 bytes a message beside its body, which may be on disk only.
#[derive(Debug)]
struct Stored {
    body: Option<Arc<Message>>,
    /// Not zero, so that an empty place needs no byte more.
    refs: NonZeroU32,
    /// Length of the body; the highest bit says that its row is on disk.
    len_and_disk: u32,
}

impl Stored {
    fn len(&self) -> u64 {
        u64::from(self.len_and_disk & !MESSAGE_BYTES_MAX)
    }

    fn on_disk(&self) -> bool {
        self.len_and_disk & MESSAGE_BYTES_MAX != 0
    }
}

/// All messages that an inbox or a retained topic refers to.
#[derive(Debug)]
pub(super) struct Messages {
    slots: Slots<Stored, 16>,
    /// Lengths of bodies that are on disk only, with one reference: what a backlog is made of. Ten million must fit in memory.
    parked: Slots<NonZeroU16, 64>,
    /// Only messages that expire stand here.
    expires: HashMap<u64, Millis, FixedState>,
    /// Id of the next message; replicated, never reused.
    pub next: u64,
    /// Created since the last drain.
    fresh: Vec<u64>,
    /// Freed since the last drain although on disk.
    freed: Vec<u64>,
    /// Resident and on disk, oldest first; may hold dead ids.
    evictable: VecDeque<u64>,
    pub resident_bytes: u64,
    /// Of all bodies, on disk or not.
    pub bytes: u64,
    resident: usize,
    pub stored: u64,
}

impl Messages {
    pub(super) fn new() -> Self {
        Self {
            slots: Slots::new(),
            parked: Slots::new(),
            expires: HashMap::with_hasher(FixedState::default()),
            next: 1,
            fresh: Vec::new(),
            freed: Vec::new(),
            evictable: VecDeque::new(),
            resident_bytes: 0,
            bytes: 0,
            resident: 0,
            stored: 0,
        }
    }

    /// Stores `message` under the next id with `refs` references (at least 1).
    pub(super) fn insert(&mut self, message: &Message, refs: u32) -> u64 {
        let refs = NonZeroU32::new(refs).expect("a message that nobody refers to is not stored");
        debug_assert!(message.len() < MESSAGE_BYTES_MAX as usize);
        let id = self.next;
        self.next += 1;
        let len_and_disk = u32::try_from(message.len()).expect("checked: a body is below 2 GiB");
        self.resident_bytes += u64::from(len_and_disk);
        self.resident += 1;
        self.stored += 1;
        if let Some(at) = message.expires_at {
            self.expires.insert(id, at);
        }
        self.fresh.push(id);
        self.bytes += u64::from(len_and_disk);
        self.slots.insert(id, Stored { body: Some(Arc::new(message.clone())), refs, len_and_disk });
        id
    }

    /// Drops one reference and returns the length of the body; the last one frees it.
    pub(super) fn release(&mut self, id: u64) -> u64 {
        if let Some(len) = self.parked.remove(id) {
            let len = u64::from(len.get());
            self.freed.push(id);
            self.removed(id, len);
            return len;
        }
        let stored = self.slots.get_mut(id).expect("an entry refers to a stored message (invariant Q2)");
        let len = stored.len();
        if let Some(left) = NonZeroU32::new(stored.refs.get() - 1) {
            stored.refs = left;
            return len;
        }
        let stored = self.slots.remove(id).expect("it was just found");
        if stored.body.is_some() {
            self.resident_bytes -= len;
            self.resident -= 1;
        }
        if stored.on_disk() {
            self.freed.push(id);
        }
        self.removed(id, len);
        len
    }

    fn removed(&mut self, id: u64, len: u64) {
        self.bytes -= len;
        self.stored -= 1;
        if !self.expires.is_empty() {
            self.expires.remove(&id);
        }
    }

    pub(super) fn body(&self, id: u64) -> Option<&Arc<Message>> {
        self.slots.get(id)?.body.as_ref()
    }

    pub(super) fn len(&self, id: u64) -> Option<u64> {
        let parked = || self.parked.get(id).map(|len| u64::from(len.get()));
        self.slots.get(id).map(Stored::len).or_else(parked)
    }

    pub(super) fn refs(&self, id: u64) -> u32 {
        let parked = || u32::from(self.parked.get(id).is_some());
        self.slots.get(id).map_or_else(parked, |stored| stored.refs.get())
    }

    pub(super) fn expires_at(&self, id: u64) -> Option<Millis> {
        self.expires.get(&id).copied()
    }

    /// Takes a reference that stands in a stored row; the body stays on disk. False when two rows disagree about it.
    pub(super) fn adopt(&mut self, id: u64, len: u32, expires_at: Option<Millis>) -> bool {
        if id == 0 || id >= self.next || len >= MESSAGE_BYTES_MAX {
            return false;
        }
        if let Some(parked) = self.parked.remove(id) {
            let len_and_disk = u32::from(parked.get()) | MESSAGE_BYTES_MAX;
            self.slots.insert(id, Stored { body: None, refs: NonZeroU32::MIN, len_and_disk });
        }
        if let Some(stored) = self.slots.get_mut(id) {
            stored.refs = stored.refs.saturating_add(1);
            return stored.len() == u64::from(len) && self.expires_at(id) == expires_at;
        }
        self.bytes += u64::from(len);
        self.keep_on_disk(id, NonZeroU32::MIN, len);
        self.stored += 1;
        if let Some(at) = expires_at {
            self.expires.insert(id, at);
        }
        true
    }

    /// Knows of a body that is on disk only.
    fn keep_on_disk(&mut self, id: u64, refs: NonZeroU32, len: u32) {
        match u16::try_from(len).ok().and_then(NonZeroU16::new).filter(|_| refs == NonZeroU32::MIN) {
            Some(len) => self.parked.insert(id, len),
            None => {
                let len_and_disk = len | MESSAGE_BYTES_MAX;
                self.slots.insert(id, Stored { body: None, refs, len_and_disk });
            }
        }
    }

    /// Visits the bodies to write and the ids to delete since the last call.
    pub(super) fn drain(&mut self, visit: &mut dyn FnMut(u64, Option<&Arc<Message>>)) {
        for id in std::mem::take(&mut self.fresh) {
            let Some(stored) = self.slots.get_mut(id) else { continue };
            stored.len_and_disk |= MESSAGE_BYTES_MAX;
            let body = stored.body.as_ref().expect("a body that is not on disk is resident");
            visit(id, Some(body));
            self.evictable.push_back(id);
        }
        for id in std::mem::take(&mut self.freed) {
            visit(id, None);
        }
        if self.evictable.len() > 2 * self.resident + DEAD_IDS_MAX {
            let slots = &self.slots;
            self.evictable.retain(|id| slots.get(*id).is_some_and(|stored| stored.body.is_some()));
        }
    }

    /// Forgets bodies that are on disk, oldest first, until at most `budget_bytes` are resident.
    pub(super) fn evict(&mut self, budget_bytes: u64) {
        while self.resident_bytes > budget_bytes {
            let Some(id) = self.evictable.pop_front() else { return };
            let Some(Stored { body, refs, len_and_disk }) = self.slots.remove(id) else { continue };
            if body.is_some() {
                self.resident_bytes -= u64::from(len_and_disk & !MESSAGE_BYTES_MAX);
                self.resident -= 1;
            }
            self.keep_on_disk(id, refs, len_and_disk & !MESSAGE_BYTES_MAX);
        }
    }

    /// Ids of all messages, ascending.
    pub(super) fn ids(&self) -> Vec<u64> {
        let mut ids = self.slots.ids();
        let parked = self.parked.ids();
        if !parked.is_empty() {
            ids.extend(parked);
            ids.sort_unstable();
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P9: what ten million of them take is bounded by this.
    #[test]
    fn a_stored_message_is_small() {
        assert_eq!(size_of::<Option<Stored>>(), 16);
    }
}
