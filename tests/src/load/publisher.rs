//! A publisher of one stream with a store: what was not acknowledged is sent again, first and in order, on the next connection.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::client::Options;
use crate::history::{Kind, Message};

use super::{Field, Link, Seen, Who};

/// Between attempts to connect.
const BACKOFF: Duration = Duration::from_millis(50);

/// What it publishes, and how.
#[derive(Debug, Clone)]
pub struct Publisher {
    pub who: Who,
    pub stream: u32,
    pub topic: String,
    pub qos: u8,
    pub retain: bool,
    /// Unacknowledged at a time: not more than the Receive Maximum of the broker, 100 unless configured.
    pub window: usize,
    /// Messages a second.
    pub rate: u32,
    /// Payloads are filled up to this many bytes.
    pub size: usize,
    /// Where it connects first; then it goes round.
    pub node: u8,
}

/// How far an unacknowledged message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Published,
    /// PUBREC came (QoS 2).
    Received,
}

struct Run<'a> {
    own: &'a Publisher,
    open: BTreeMap<u32, Stage>,
    /// Last number sent.
    number: u32,
    began: Instant,
    acknowledged: u32,
}

impl Publisher {
    /// A publisher with a durable session of its own.
    #[must_use]
    pub fn new(field: &Field, topic: &str, qos: u8, kind: Kind, rate: u32, node: u8) -> Self {
        let client_id = format!("pub-{}", topic.replace('/', "-"));
        let session = field.recorder.session(&client_id, true);
        let who =
            Who { session, options: Options::v5(&client_id).resume().expiry(3_600), user: 0, will: None };
        let stream = field.recorder.stream(topic, qos, kind);
        Self {
            who,
            stream,
            topic: topic.into(),
            qos,
            retain: kind == Kind::Retained,
            window: if kind == Kind::Retained { 1 } else { 64 },
            rate,
            size: 64,
            node,
        }
    }

    /// Publishes until the load calms down, then until all is acknowledged. Returns how many were.
    #[must_use]
    pub fn run(self, field: &Field) -> u32 {
        let mut run =
            Run { own: &self, open: BTreeMap::new(), number: 0, began: Instant::now(), acknowledged: 0 };
        let nodes = u8::try_from(field.nodes.len()).expect("a few nodes");
        let mut node = self.node;
        while !(field.open.load(Ordering::Acquire) || field.is_over()) {
            std::thread::sleep(BACKOFF);
        }
        run.began = Instant::now();
        while !(field.is_over() || field.is_calm() && run.open.is_empty()) {
            match Link::connect(field, &self.who, node) {
                Ok(mut link) => {
                    run.serve(&mut link, field);
                    if field.is_calm() && run.open.is_empty() {
                        link.leave();
                    }
                }
                Err(_) => std::thread::sleep(BACKOFF),
            }
            node = node % nodes + 1;
        }
        run.acknowledged
    }
}

impl Run<'_> {
    fn serve(&mut self, link: &mut Link, field: &Field) {
        let open: Vec<(u32, Stage)> = self.open.iter().map(|(number, stage)| (*number, *stage)).collect();
        for (number, stage) in open {
            match stage {
                Stage::Published => self.send(link, number, link.present),
                Stage::Received => link.client.ack(6, packet_id(number)),
            }
        }
        loop {
            if field.is_over() || field.is_calm() && self.open.is_empty() {
                return;
            }
            let due = self.due(field);
            if due {
                self.number += 1;
                self.open.insert(self.number, Stage::Published);
                self.send(link, self.number, false);
            }
            // Below a millisecond it spins through what has come; the rate gives the pace.
            let wait = if due { Duration::from_micros(1) } else { Duration::from_millis(1) };
            match link.poll(wait) {
                Ok(Some(seen)) => {
                    if self.saw(seen) {
                        return;
                    }
                }
                Ok(None) => {}
                Err(()) => return,
            }
        }
    }

    fn due(&self, field: &Field) -> bool {
        let allowed = self.began.elapsed().as_secs_f64() * f64::from(self.own.rate);
        !field.is_calm() && self.open.len() < self.own.window && f64::from(self.number) < allowed
    }

    /// True when the connection is over.
    fn saw(&mut self, seen: Seen) -> bool {
        match seen {
            Seen::Acknowledged { packet_id, reason } => {
                let Some(number) = self.number_of(packet_id) else { return false };
                if reason >= 0x80 {
                    // Refused for good: sent again it would come after those that were sent since.
                    self.open.remove(&number);
                } else if self.own.qos == 1 {
                    self.acknowledged += 1;
                    self.open.remove(&number);
                } else {
                    self.acknowledged += 1;
                    self.open.insert(number, Stage::Received);
                }
                false
            }
            Seen::Completed { packet_id } => {
                if let Some(number) = self.number_of(packet_id) {
                    self.open.remove(&number);
                }
                false
            }
            Seen::Told { .. } => true,
            _ => false,
        }
    }

    fn number_of(&self, wanted: u16) -> Option<u32> {
        self.open.keys().copied().find(|number| packet_id(*number) == wanted)
    }

    fn send(&self, link: &mut Link, number: u32, again: bool) {
        let message = Message { stream: self.own.stream, number };
        let flags = self.own.qos << 1 | u8::from(again) << 3 | u8::from(self.own.retain);
        let text = format!("{message}");
        let payload = format!("{text:<size$}", size = self.own.size);
        link.publish(message, flags, packet_id(number), &self.own.topic, payload.as_bytes());
    }
}

fn packet_id(number: u32) -> u16 {
    u16::try_from(number % 65_535 + 1).expect("at most 65,535")
}
