//! A subscriber that moves between nodes, or stays, and acknowledges what it gets.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::client::Options;

use super::{Field, Link, Pulse, Seen, Who};

/// Between attempts to connect.
const BACKOFF: Duration = Duration::from_millis(50);
/// How long the socket of a connection that was taken over may stay open.
const OLD_SOCKET: Duration = Duration::from_secs(5);

/// How it behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Stays as long as it can.
    Stay,
    /// Connects to the next node every so often, while the old connection is open.
    Flip(Duration),
    /// Takes over, resets, disconnects or stays, as the seed says.
    Wander(u64),
}

/// A subscriber with its session.
#[derive(Debug)]
pub struct Subscriber {
    pub who: Who,
    pub streams: Vec<u32>,
    pub qos: u8,
    pub habit: Habit,
    /// Where it connects first; then it goes round.
    pub node: u8,
    pub pulse: Arc<Pulse>,
    /// Times from CONNECT to CONNACK of takeovers.
    pub takeovers: Arc<Mutex<Vec<Duration>>>,
}

impl Subscriber {
    /// A subscriber of these streams; durable or only as long as its connection.
    #[must_use]
    pub fn new(
        field: &Field,
        client_id: &str,
        durable: bool,
        streams: &[u32],
        habit: Habit,
        node: u8,
    ) -> Self {
        let session = field.recorder.session(client_id, durable);
        let options = Options::v5(client_id);
        let options = if durable { options.resume().expiry(3_600) } else { options };
        Self {
            who: Who { session, options, user: 0, will: None },
            streams: streams.to_vec(),
            qos: 2,
            habit,
            node,
            pulse: Arc::default(),
            takeovers: Arc::default(),
        }
    }

    /// Lives until the load is over.
    pub fn run(self, field: &Field) {
        let seed = if let Habit::Wander(seed) = self.habit { seed } else { 0 };
        let mut random = StdRng::seed_from_u64(seed);
        let nodes = u8::try_from(field.nodes.len()).expect("a few nodes");
        let mut node = self.node;
        let mut link: Option<Link> = None;
        let mut subscribed = false;
        while !field.is_over() {
            let fresh = link.is_none();
            let Some(mut current) = link.take().or_else(|| self.connect(field, node)) else {
                node = node % nodes + 1;
                std::thread::sleep(BACKOFF);
                continue;
            };
            if fresh {
                subscribed &= current.present;
            }
            if !subscribed && !current.subscribe(&self.streams, self.qos, field.patience) {
                node = node % nodes + 1;
                continue;
            }
            subscribed = true;
            self.pulse.subscribed();
            let stay = match self.habit {
                _ if field.is_calm() => Duration::from_millis(200),
                Habit::Stay => Duration::from_secs(1),
                Habit::Flip(every) => every,
                Habit::Wander(_) => Duration::from_millis(random.random_range(50..1_500)),
            };
            if !self.read(&mut current, field, stay) {
                node = node % nodes + 1;
                continue;
            }
            link = self.act(current, field, &mut random, &mut node);
        }
        if let Some(link) = link {
            link.leave();
        }
    }

    fn connect(&self, field: &Field, node: u8) -> Option<Link> {
        let link = Link::connect(field, &self.who, node).ok();
        self.pulse.beat(link.is_some(), field.recorder.now());
        link
    }

    /// What comes next for a connection that is still open.
    fn act(&self, current: Link, field: &Field, random: &mut StdRng, node: &mut u8) -> Option<Link> {
        let nodes = u8::try_from(field.nodes.len()).expect("a few nodes");
        let act = match self.habit {
            Habit::Stay => 3,
            _ if field.is_calm() => 3,
            Habit::Flip(_) => 0,
            Habit::Wander(_) => random.random_range(0..5),
        };
        match act {
            0 => {
                *node = *node % nodes + 1;
                return self.take_over(current, field, *node);
            }
            1 => current.reset(),
            2 => _ = current.disconnect(OLD_SOCKET),
            _ => return Some(current),
        }
        *node = random.random_range(1..=nodes);
        None
    }

    /// Connects again while the old connection is open; when that succeeds, the old one must be over.
    fn take_over(&self, old: Link, field: &Field, node: u8) -> Option<Link> {
        let began = Instant::now();
        let Ok(link) = Link::connect(field, &self.who, node) else { return Some(old) };
        let took = began.elapsed();
        self.takeovers.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        // A socket that stays open though nothing comes is judged by its PINGRESP.
        let _ = old.probe(OLD_SOCKET);
        Some(link)
    }

    /// Reads and acknowledges for a while; false when the connection is over.
    fn read(&self, link: &mut Link, field: &Field, stay: Duration) -> bool {
        let end = Instant::now() + stay;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match link.poll(left) {
                Ok(Some(Seen::Message { message, qos, packet_id })) => {
                    self.pulse.beat(true, field.recorder.now());
                    link.acknowledge(message, qos, packet_id);
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(()) => {
                    self.pulse.beat(false, field.recorder.now());
                    return false;
                }
            }
            if left.is_zero() {
                return true;
            }
        }
    }
}
