//! A registry with a clock, transports that count requests, and wakers that count wake-ups.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::*;

pub(super) fn options() -> Options {
    Options {
        node_id: 7,
        boot_id: Arc::from("b0075000000000000000000000000001"),
        capacity: 16,
        operations_max: 4,
        pending_timeout_ms: 1_000,
        lease_max_ms: 60_000,
        close_retry_ms: 250,
    }
}

/// Counts what is asked of it; closes nothing by itself.
#[derive(Default)]
pub(super) struct Socket {
    pub(super) requests: AtomicUsize,
    pub(super) panics: bool,
}

impl Transport for Socket {
    fn request_close(&self, _owner: &Owner) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "a transport that is wrong");
    }
}

impl Socket {
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// A waiting caller.
#[derive(Default)]
pub(super) struct Caller {
    wakes: AtomicUsize,
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
    }
}

impl Caller {
    pub(super) fn new() -> (Arc<Self>, Waker) {
        let caller = Arc::new(Self::default());
        (Arc::clone(&caller), Waker::from(caller))
    }

    pub(super) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }
}

pub(super) fn claim(client_id: &str) -> Claim {
    Claim {
        key: Key { namespace: Arc::from("main"), client_id: Arc::from(client_id) },
        uid: Arc::from("alice"),
        session_generation: 1,
        owner_generation: 1,
    }
}

/// Milliseconds as a point in time.
pub(super) fn at(ms: u64) -> Tick {
    Tick(0).plus_ms(ms)
}

pub(super) fn pending(registry: &Registry, now: Tick) -> (Arc<Entry>, Arc<Socket>) {
    let socket = Arc::new(Socket::default());
    let entry = registry.reserve(now, claim("c"), Arc::<Socket>::clone(&socket)).expect("room for an owner");
    (entry, socket)
}

pub(super) fn active(registry: &Registry, now: Tick, until: Tick) -> (Arc<Entry>, Arc<Socket>) {
    let (entry, socket) = pending(registry, now);
    registry.activate(now, entry.owner(), 1, until).expect("a fresh owner can be activated");
    (entry, socket)
}

pub(super) fn closed(registry: &Registry, now: Tick, entry: &Entry) {
    registry.transport_closed(now, entry.owner(), CloseOutcome::Closed);
}
