//! The recorder that all clients of a load share: it stamps and orders what they note.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Event, History, Kind, Micros, NONE, Session, Stream, What};

/// A handle; clones write into the same history.
#[derive(Debug, Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    began: Instant,
    connections: AtomicU32,
    history: Mutex<History>,
}

impl Recorder {
    /// An empty history; CONNECT must be answered within `connect_limit` by a node without trouble.
    #[must_use]
    pub fn new(connect_limit: Duration) -> Self {
        let connect_limit = micros(connect_limit);
        let history = History { connect_limit, ..History::default() };
        let inner =
            Inner { began: Instant::now(), connections: AtomicU32::new(0), history: Mutex::new(history) };
        Self { inner: Arc::new(inner) }
    }

    /// Enters a ClientID.
    #[must_use]
    pub fn session(&self, client_id: &str, durable: bool) -> u32 {
        let mut history = self.lock();
        history.sessions.push(Session { client_id: client_id.into(), durable });
        index(history.sessions.len())
    }

    /// Enters a stream.
    #[must_use]
    pub fn stream(&self, topic: &str, qos: u8, kind: Kind) -> u32 {
        let mut history = self.lock();
        history.streams.push(Stream { topic: topic.into(), qos, kind });
        index(history.streams.len())
    }

    /// Topic of a stream.
    ///
    /// # Panics
    /// When it was not entered.
    #[must_use]
    pub fn topic(&self, stream: u32) -> String {
        self.lock().streams[stream as usize].topic.clone()
    }

    /// Numbers a connection.
    #[must_use]
    pub fn connection(&self) -> u32 {
        self.inner.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Micros {
        micros(self.inner.began.elapsed())
    }

    /// Notes something and returns its time. The time is taken under the lock, so the order of entries is that of their times.
    pub fn note(&self, session: u32, connection: u32, what: What) -> Micros {
        let mut history = self.lock();
        let at = self.now();
        history.events.push(Event { at, session, connection, what });
        at
    }

    /// Notes what was done to a node.
    pub fn note_node(&self, what: What) {
        self.note(NONE, NONE, what);
    }

    /// Entries so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// Whether nothing was noted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The history until now.
    #[must_use]
    pub fn history(&self, drained: bool) -> History {
        let mut history = self.lock().clone();
        history.drained = drained;
        history
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.inner.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn micros(time: Duration) -> Micros {
    u64::try_from(time.as_micros()).expect("shorter than 500,000 years")
}

fn index(len: usize) -> u32 {
    u32::try_from(len - 1).expect("a load has few of them")
}
