//! The hand-over to a connection inside its worker: deliveries, completions and close requests that other tasks leave for it.
//!
//! A link lives on one worker thread (`Rc`), so pushing takes no lock; the task is woken only when it was idle.

mod lane;
mod links;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use session::message::{Message, QoS};
use session::time::Tick;

use crate::codec::{PublishTemplate, ReasonCode, Version};
use crate::driver::traffic;

pub(crate) use lane::{Entry, Lane};
pub use links::Links;

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
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub identifiers: smallvec::SmallVec<[u32; 1]>,
    /// Offset in the session's inbox; `None`: transient.
    pub offset: Option<u64>,
    /// Filter of the shared subscription through which a transient QoS > 0 delivery comes: what was not sent when the link shuts is left
    /// for another member ([`Link::take_left`]).
    pub share: Option<Arc<str>>,
}

/// What the client behind a link can take; fixed when its CONNECT is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub version: Version,
    /// Bytes of a whole packet ([MQTT-3.1.2-24]); `u32::MAX`: no limit.
    pub maximum_packet_size: u32,
    /// The client takes topic aliases: [`Link::push_message`] lets the output use them, bytes are taken as well.
    pub wants_messages: bool,
}

/// The bounded outbox of a connection (DESIGN §2 "Threads") and the other things that tasks of its worker leave for it.
#[derive(Debug)]
pub struct Link<E> {
    id: LinkId,
    shape: Cell<Shape>,
    arrivals: RefCell<Lane>,
    /// Exchanges that found no room in the client's window, in order; they wait here while QoS 0 passes.
    held: RefCell<Option<Box<Lane>>>,
    /// Bytes that may wait, unless one delivery alone is larger; 0 before CONNECT is accepted and after the close.
    bytes_max: Cell<usize>,
    /// By how many powers of two it is smaller for QoS 0; the same for all links of a worker.
    relief: Rc<Cell<u32>>,
    /// A push was refused since the outbox was last empty.
    refused: Cell<bool>,
    events: RefCell<Vec<E>>,
    close: Cell<Option<CloseRequest>>,
    waker: RefCell<Option<Waker>>,
    /// The task sleeps: the next push wakes it.
    idle: Cell<bool>,
    /// When the task must look at its clock; read by the worker's timer.
    deadline: Cell<Tick>,
    /// The timer found the deadline in the past.
    due: Cell<bool>,
    /// Shared deliveries that waited when the link was shut.
    left: RefCell<Vec<MessageDelivery>>,
}

impl<E> Link<E> {
    pub(crate) fn new(id: LinkId, relief: Rc<Cell<u32>>) -> Self {
        Self {
            id,
            shape: Cell::new(Shape {
                version: Version::V5,
                maximum_packet_size: u32::MAX,
                wants_messages: false,
            }),
            arrivals: RefCell::default(),
            held: RefCell::default(),
            bytes_max: Cell::new(0),
            relief,
            refused: Cell::new(false),
            events: RefCell::default(),
            close: Cell::new(None),
            waker: RefCell::new(None),
            idle: Cell::new(false),
            deadline: Cell::new(Tick(u64::MAX)),
            due: Cell::new(false),
            left: RefCell::default(),
        }
    }

    /// Its place.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// What the client can take; the router chooses the template by it.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape.get()
    }

    /// Appends an encoded QoS 0 PUBLISH; false when the outbox is full (the caller counts the drop). A packet above the client's
    /// Maximum Packet Size counts as delivered ([MQTT-3.1.2-25]).
    pub fn push_bytes(&self, template: &PublishTemplate) -> bool {
        let bytes = template.bytes();
        if bytes.len() > self.shape.get().maximum_packet_size as usize {
            return true;
        }
        if !self.has_room(bytes.len(), self.bytes_max.get() >> self.relief.get()) {
            return false;
        }
        traffic::sent(bytes);
        self.arrivals.borrow_mut().push_bytes(bytes);
        self.wake();
        true
    }

    /// Appends an encoded QoS > 0 PUBLISH whose packet id is set when it is taken out; false when full. A packet above the
    /// client's Maximum Packet Size counts as delivered ([MQTT-3.1.2-25]).
    pub fn push_exchange(&self, template: &PublishTemplate, exactly_once: bool) -> bool {
        let bytes = template.bytes();
        if bytes.len() > self.shape.get().maximum_packet_size as usize {
            return true;
        }
        let Some(packet_id_at) = template.packet_id_at() else { return self.push_bytes(template) };
        if !self.has_room(bytes.len(), self.bytes_max.get()) {
            return false;
        }
        traffic::sent(bytes);
        self.arrivals.borrow_mut().push_exchange(bytes, packet_id_at, exactly_once);
        self.wake();
        true
    }

    /// Appends a message to be encoded when it is taken out; false when full.
    pub fn push_message(&self, delivery: MessageDelivery) -> bool {
        let relief = if delivery.qos == QoS::AtMostOnce { self.relief.get() } else { 0 };
        if !self.has_room(lane::weight(&delivery), self.bytes_max.get() >> relief) {
            return false;
        }
        self.arrivals.borrow_mut().push_message(Box::new(delivery));
        self.wake();
        true
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

    /// Deliveries of shared subscriptions that were not taken out before the link was shut, in order.
    #[must_use]
    pub fn take_left(&self) -> Vec<MessageDelivery> {
        self.left.take()
    }

    /// Bytes (for messages: an estimate) that wait in the outbox.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.arrivals.borrow().weight() + self.held.borrow().as_ref().map_or(0, |held| held.weight())
    }

    /// Wakes the task, for instance when [`crate::service::Service::may_read`] became true.
    pub fn wake(&self) {
        if self.idle.replace(false)
            && let Some(waker) = self.waker.borrow().as_ref()
        {
            waker.wake_by_ref();
        }
    }

    /// An empty outbox takes anything: what is larger than the bound must not wait for ever.
    fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        let pending = self.pending();
        let fits = bytes_max > 0 && (pending == 0 || pending.saturating_add(bytes) <= bytes_max);
        if !fits {
            self.refused.set(true);
        }
        fits
    }
}

/// The task's side.
impl<E> Link<E> {
    /// CONNECT was accepted: pushes are taken from now on.
    pub(crate) fn open(&self, shape: Shape, bytes_max: usize) {
        self.shape.set(shape);
        self.bytes_max.set(bytes_max);
    }

    /// The socket is closed: whatever waits is dropped, but for what another member of a share can take; pushes are refused.
    pub(crate) fn shut(&self) {
        self.bytes_max.set(0);
        self.idle.set(false);
        self.waker.take();
        self.events.take();
        let mut left = self.left.borrow_mut();
        if let Some(held) = self.held.take() {
            held.release_shared(&mut left);
        }
        self.arrivals.take().release_shared(&mut left);
    }

    pub(crate) fn set_busy(&self, waker: &Waker) {
        self.idle.set(false);
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    /// The task goes to sleep; false when something came in meanwhile. `blocked`: the socket takes no bytes, so arrivals wait.
    pub(crate) fn set_idle(&self, blocked: bool) -> bool {
        if self.close.get().is_some()
            || self.due.get()
            || !self.events.borrow().is_empty()
            || (!blocked && !self.arrivals.borrow().is_empty())
        {
            return false;
        }
        self.idle.set(true);
        true
    }

    pub(crate) fn close_request(&self) -> Option<CloseRequest> {
        self.close.get()
    }

    pub(crate) fn take_events(&self) -> Vec<E> {
        self.events.take()
    }

    /// Gives the emptied vector back, so that a busy connection does not allocate one a turn.
    pub(crate) fn recycle_events(&self, mut spare: Vec<E>) {
        const KEPT: usize = 64;
        spare.clear();
        let mut events = self.events.borrow_mut();
        if events.is_empty() && events.capacity() == 0 && spare.capacity() <= KEPT {
            *events = spare;
        }
    }

    pub(crate) fn take_arrivals(&self) -> Lane {
        self.arrivals.take()
    }

    pub(crate) fn put_back_arrivals(&self, lane: Lane) {
        let mut arrivals = self.arrivals.borrow_mut();
        if arrivals.is_empty() {
            std::mem::replace(&mut *arrivals, lane).release();
        } else {
            // The service pushed to its own link while it was asked about what is in front of that.
            arrivals.prepend(lane);
        }
    }

    pub(crate) fn arrivals_are_empty(&self) -> bool {
        self.arrivals.borrow().is_empty()
    }

    pub(crate) fn take_held(&self) -> Option<Box<Lane>> {
        self.held.take()
    }

    pub(crate) fn put_back_held(&self, held: Option<Box<Lane>>) {
        *self.held.borrow_mut() = held;
    }

    pub(crate) fn take_refused(&self) -> bool {
        self.refused.take()
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.deadline.get()
    }

    pub(crate) fn set_deadline(&self, at: Tick) {
        self.deadline.set(at);
    }

    pub(crate) fn set_due(&self) {
        self.due.set(true);
        self.wake();
    }

    pub(crate) fn take_due(&self) -> bool {
        self.due.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(len: usize) -> MessageDelivery {
        MessageDelivery {
            message: Arc::new(Message::new("a", &[], &vec![0; len])),
            qos: QoS::AtLeastOnce,
            retain: false,
            dup: false,
            identifiers: smallvec::SmallVec::new(),
            offset: Some(0),
            share: None,
        }
    }

    /// P9: a delivery above the bound passes alone, so that nothing behind it waits for ever.
    #[test]
    fn p9_an_empty_outbox_takes_what_is_larger_than_its_bound() {
        let link = Link::<()>::new(LinkId { worker: 0, slot: 0, serial: 1 }, Rc::default());
        assert!(!link.push_message(delivery(1)), "CONNECT is not accepted yet");
        let shape = Shape { version: Version::V5, maximum_packet_size: u32::MAX, wants_messages: false };
        link.open(shape, 1_000);
        assert!(link.push_message(delivery(10_000)));
        assert!(!link.push_message(delivery(1)), "the bound holds as soon as something waits");
        link.take_arrivals().release();
        assert!(link.push_message(delivery(1)));
        assert!(!link.push_message(delivery(10_000)));
        link.shut();
        assert!(!link.push_message(delivery(1)), "the socket is closed");
    }

    /// Issue 5 §3, P9: under relief QoS 0 finds a smaller outbox; QoS 1 and 2 find the whole one.
    #[test]
    fn p9_relief_is_for_qos_0_alone() {
        let links = Links::<()>::new(0);
        let link = links.insert().expect("a slot");
        let shape = Shape { version: Version::V5, maximum_packet_size: u32::MAX, wants_messages: false };
        link.open(shape, 64_000);
        links.set_relief(4);
        assert!(link.push_message(delivery(5_000)));
        let qos0 = || MessageDelivery { qos: QoS::AtMostOnce, ..delivery(100) };
        assert!(!link.push_message(qos0()));
        assert!(link.push_message(delivery(100)));
        links.set_relief(0);
        assert!(link.push_message(qos0()));
    }
}
