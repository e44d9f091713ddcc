//! The connections of one worker, by slot and serial.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use slab::Slab;

use super::{CloseRequest, Link, LinkId};

/// The connections of one worker.
#[derive(Debug)]
pub struct Links<E> {
    worker: u16,
    serial: Cell<u32>,
    /// By how many powers of two the outboxes are smaller for QoS 0.
    relief: Rc<Cell<u32>>,
    slots: RefCell<Slab<Rc<Link<E>>>>,
}

impl<E> Links<E> {
    /// The table of worker number `worker`.
    #[must_use]
    pub fn new(worker: u16) -> Self {
        Self { worker, serial: Cell::new(0), relief: Rc::default(), slots: RefCell::new(Slab::new()) }
    }

    /// The link with this id, unless it is gone.
    #[must_use]
    pub fn get(&self, id: LinkId) -> Option<Rc<Link<E>>> {
        let slots = self.slots.borrow();
        let link = slots.get(id.slot as usize)?;
        (link.id() == id).then(|| Rc::clone(link))
    }

    /// Runs `f` on the link with this id, unless it is gone; without touching its reference count.
    pub fn with<T>(&self, id: LinkId, f: impl FnOnce(&Link<E>) -> T) -> Option<T> {
        let slots = self.slots.borrow();
        let link = slots.get(id.slot as usize)?;
        (link.id() == id).then(|| f(link))
    }

    /// Connections, those included that did not send CONNECT yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.borrow().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.borrow().is_empty()
    }

    /// Runs `f` on every link; `f` must not open or close connections.
    pub fn for_each(&self, mut f: impl FnMut(&Link<E>)) {
        for (_, link) in self.slots.borrow().iter() {
            f(link);
        }
    }

    /// Asks all to close.
    pub fn request_close_all(&self, request: CloseRequest) {
        for (_, link) in self.slots.borrow().iter() {
            link.request_close(request);
        }
    }

    /// From now on QoS 0 finds outboxes so many powers of two smaller; 0: as large as they are.
    pub fn set_relief(&self, powers: u32) {
        self.relief.set(powers);
    }

    /// Makes a link in a free slot; `None` when all 2^32 slots are taken. Also for tests of a service without sockets.
    pub fn insert(&self) -> Option<Rc<Link<E>>> {
        let mut slots = self.slots.borrow_mut();
        let entry = slots.vacant_entry();
        let slot = u32::try_from(entry.key()).ok()?;
        let serial = self.serial.get().wrapping_add(1);
        self.serial.set(serial);
        let id = LinkId { worker: self.worker, slot, serial };
        let link = Rc::new(Link::new(id, Rc::clone(&self.relief)));
        entry.insert(Rc::clone(&link));
        Some(link)
    }

    pub(crate) fn by_slot(&self, slot: u32) -> Option<Rc<Link<E>>> {
        self.slots.borrow().get(slot as usize).map(Rc::clone)
    }

    pub(crate) fn remove(&self, id: LinkId) {
        let mut slots = self.slots.borrow_mut();
        if slots.get(id.slot as usize).is_some_and(|link| link.id() == id) {
            slots.remove(id.slot as usize);
        }
    }
}
