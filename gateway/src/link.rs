//! The hand-over to a connection inside its worker: deliveries, completions and close requests that other tasks leave for it.
//!
//! A link lives on one worker thread (`Rc`), so pushing takes no lock; the task is woken only when it was idle.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use session::message::Message;

use crate::codec::{PublishTemplate, ReasonCode};

/// Where a connection is: its worker and its slot there. `serial` tells reused slots apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    pub worker: u16,
    pub slot: u32,
    pub serial: u32,
}

/// A request to close the socket, with the DISCONNECT to try first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseRequest {
    /// Written best-effort to a v5 client before the close; `None`: close only.
    pub notice: Option<ReasonCode>,
    /// Isolation: unsent bytes are dropped and a peer that does not read is reset (SO_LINGER 0).
    pub reset: bool,
}

/// One delivery that is not just bytes: it has an expiry, an inbox offset, or a subscriber with aliases.
#[derive(Debug, Clone)]
pub struct MessageDelivery {
    pub message: Arc<Message>,
    pub qos: session::message::QoS,
    pub retain: bool,
    pub dup: bool,
    pub identifiers: smallvec::SmallVec<[u32; 1]>,
    /// Offset in the session's inbox; `None`: transient.
    pub offset: Option<u64>,
}

/// The bounded outbox of a connection (DESIGN §2 "Threads"). The developer of the driver fills this in; the broker uses the
/// methods below.
#[derive(Debug)]
pub struct Link<E> {
    id: LinkId,
    events: RefCell<Vec<E>>,
    close: Cell<Option<CloseRequest>>,
    waker: RefCell<Option<Waker>>,
}

impl<E> Link<E> {
    /// Its place.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Appends an encoded QoS 0 PUBLISH; false when the outbox is full (the caller counts the drop).
    pub fn push_bytes(&self, _template: &PublishTemplate) -> bool {
        unimplemented!()
    }

    /// Appends an encoded QoS > 0 PUBLISH whose packet id is set when it is taken out; false when full.
    pub fn push_exchange(&self, _template: &PublishTemplate, _exactly_once: bool) -> bool {
        unimplemented!()
    }

    /// Appends a message to be encoded when it is taken out; false when full.
    pub fn push_message(&self, _delivery: MessageDelivery) -> bool {
        unimplemented!()
    }

    /// Leaves an event (a completion) for the service; wakes the task. Events are bounded by what the session itself began.
    pub fn push_event(&self, event: E) {
        self.events.borrow_mut().push(event);
        self.wake();
    }

    /// Asks the task to close; the first request wins.
    pub fn request_close(&self, request: CloseRequest) {
        if self.close.get().is_none() {
            self.close.set(Some(request));
        }
        self.wake();
    }

    /// Bytes and messages that wait in the outbox.
    #[must_use]
    pub fn pending(&self) -> usize {
        unimplemented!()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// The connections of one worker.
#[derive(Debug)]
pub struct Links<E> {
    _slots: RefCell<slab::Slab<Rc<Link<E>>>>,
}

impl<E> Links<E> {
    /// The link with this id, unless it is gone.
    #[must_use]
    pub fn get(&self, _id: LinkId) -> Option<Rc<Link<E>>> {
        unimplemented!()
    }
}
