//! Clients that load a cluster and note what they do and see. They survive whatever happens to their connections, as real clients with a
//! store do: a publisher sends again what was not acknowledged, a subscriber acknowledges what it got.

mod link;
mod others;
mod publisher;
mod subscriber;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use link::{Link, Seen, Who};
pub use others::{Mourned, Reader, Victim};
pub use publisher::Publisher;
pub use subscriber::{Habit, Subscriber};

use crate::history::{History, Message, Micros, Recorder, Violation};

/// What all clients of a load share.
#[derive(Debug, Clone)]
pub struct Field {
    pub recorder: Recorder,
    /// Where nodes 1, 2, … serve MQTT.
    pub nodes: Arc<[SocketAddr]>,
    /// Publishers begin.
    pub open: Arc<AtomicBool>,
    /// Publishers start nothing new, subscribers stay where they are.
    pub calm: Arc<AtomicBool>,
    /// Everybody goes home.
    pub over: Arc<AtomicBool>,
    /// How long a client waits for its CONNACK.
    pub patience: Duration,
}

/// What a subscriber tells whoever waits for the load to drain.
#[derive(Debug, Default)]
pub struct Pulse {
    connected: AtomicBool,
    subscribed: AtomicBool,
    last: AtomicU64,
}

impl Field {
    /// A load on these nodes.
    #[must_use]
    pub fn new(nodes: &[SocketAddr], patience: Duration, connect_limit: Duration) -> Self {
        Self {
            recorder: Recorder::new(connect_limit),
            nodes: nodes.into(),
            open: Arc::default(),
            calm: Arc::default(),
            over: Arc::default(),
            patience,
        }
    }

    /// Whether publishers are to end.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Acquire)
    }

    /// Whether everybody is to go home.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Lets publishers begin once all subscribers have their SUBACK, which is effective on every node (P7). Returns whether all subscribed
    /// within 30 s.
    pub fn open(&self, pulses: &[Arc<Pulse>]) -> bool {
        let end = Instant::now() + Duration::from_secs(30);
        let ready = || pulses.iter().all(|pulse| pulse.subscribed.load(Ordering::Acquire));
        while !ready() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.open.store(true, Ordering::Release);
        ready()
    }

    /// Starts a client.
    ///
    /// # Panics
    /// When there is no thread to be had.
    pub fn spawn<T: Send + 'static>(&self, client: impl FnOnce(Self) -> T + Send + 'static) -> JoinHandle<T> {
        let field = self.clone();
        std::thread::Builder::new().stack_size(512 << 10).spawn(move || client(field)).expect("a thread")
    }

    /// Calms the load and waits until `publishers` got every acknowledgement and all subscribers are connected and quiet, then until nothing is missing any more,
    /// for at most `limit`. Returns the history as it then is, and what is wrong with it.
    pub fn drain<T>(
        &self,
        publishers: &[JoinHandle<T>],
        pulses: &[Arc<Pulse>],
        limit: Duration,
    ) -> (History, Vec<Violation>) {
        self.calm.store(true, Ordering::Release);
        let end = Instant::now() + limit;
        // Once is enough: idle clients are closed by their keep alive and come back.
        let mut settled = false;
        loop {
            let done = publishers.iter().all(JoinHandle::is_finished);
            let quiet = pulses.iter().all(|pulse| pulse.is_quiet(self.recorder.now()));
            settled |= done && quiet;
            let late = Instant::now() > end;
            if done && quiet || late {
                let history = self.recorder.history(true);
                let mut found = history.check();
                if late && !settled {
                    found.push(not_converged(&history, publishers, pulses, self.recorder.now()));
                }
                if found.is_empty() || late {
                    return (history, found);
                }
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

fn not_converged<T>(
    history: &History,
    publishers: &[JoinHandle<T>],
    pulses: &[Arc<Pulse>],
    now: Micros,
) -> Violation {
    let busy = publishers.iter().filter(|publisher| !publisher.is_finished()).count();
    let away = pulses.iter().filter(|pulse| !pulse.connected.load(Ordering::Acquire)).count();
    let ages: Vec<u64> =
        pulses.iter().map(|pulse| (now - pulse.last.load(Ordering::Acquire)) / 1_000).collect();
    let says = format!(
        "the load did not drain: {busy} publishers wait for acknowledgements, {away} of {} subscribers are not connected, they got something {ages:?} ms ago",
        pulses.len()
    );
    let at = history.events.last().map_or(now, |event| event.at);
    Violation { promise: "P2", says, at, session: crate::history::NONE }
}

impl Pulse {
    /// Notes that the subscriber is connected or not, and that something came.
    pub fn beat(&self, connected: bool, now: Micros) {
        self.connected.store(connected, Ordering::Release);
        self.last.store(now, Ordering::Release);
    }

    /// Notes that it has its subscriptions.
    pub fn subscribed(&self) {
        self.subscribed.store(true, Ordering::Release);
    }

    fn is_quiet(&self, now: Micros) -> bool {
        let quiet = now.saturating_sub(self.last.load(Ordering::Acquire)) > 1_000_000;
        quiet && self.connected.load(Ordering::Acquire)
    }
}

/// What is wrong with a history in words, with what the client of each violation saw around it; at most `limit` violations. The whole
/// history goes to the file that `EXACTMQ_HISTORY` names.
#[must_use]
pub fn account(history: &History, found: &[Violation], limit: usize) -> String {
    let mut text = format!("{} violations", found.len());
    if let Some(path) = std::env::var_os("EXACTMQ_HISTORY") {
        let lines: String = history.events.iter().map(|event| format!("{event:?}\n")).collect();
        let wrote = std::fs::write(path, lines);
        text.push_str(&format!("; the whole history was written: {}", wrote.is_ok()));
    }
    for violation in found.iter().take(limit) {
        let slice = history.slice(violation, 300_000);
        let lines: Vec<&str> = slice.lines().collect();
        let middle = lines.len() / 2;
        let near = lines[middle.saturating_sub(30)..lines.len().min(middle + 30)].join("\n");
        text.push_str(&format!("\n{violation}\n{}{near}\n", history.before(violation)));
        let words = violation.says.split(|letter: char| !(letter.is_ascii_digit() || letter == ':'));
        for message in words.filter_map(|word| Message::parse(word.as_bytes())) {
            text.push_str(&history.of_message(message));
        }
    }
    text
}

/// The quantile `q` (0 to 1) of some times.
#[must_use]
pub fn quantile(times: &mut [Duration], q: f64) -> Duration {
    times.sort_unstable();
    let at = (times.len() as f64 * q) as usize;
    times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}
