//! Clients with a purpose of their own: one that leaves with and without a word, one that reads what is retained, one that is ended.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::client::Options;
use crate::history::{Message, What};
use crate::node::ask;

use super::{Field, Link, Seen, Who};

const BACKOFF: Duration = Duration::from_millis(100);
/// How long a client waits for a SUBACK, and for the end of a socket.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a reader waits for a retained message. A broker that lost a leader looks twice for another one, 3 s each, before it closes the
/// connection: silence says nothing until then.
const RETAINED_PATIENCE: Duration = Duration::from_secs(10);

fn any_node(field: &Field, random: &mut StdRng) -> u8 {
    random.random_range(1..=u8::try_from(field.nodes.len()).expect("a few nodes"))
}

/// A client with a Will on each of its connections.
#[derive(Debug)]
pub struct Mourned {
    who: Who,
    random: StdRng,
}

impl Mourned {
    #[must_use]
    pub fn new(field: &Field, client_id: &str, wills: u32, seed: u64) -> Self {
        let session = field.recorder.session(client_id, false);
        let who = Who { session, options: Options::v5(client_id), user: 0, will: Some(wills) };
        Self { who, random: StdRng::seed_from_u64(seed) }
    }

    /// Connects, stays for a while, and leaves in one way or another, until the load calms down.
    pub fn run(mut self, field: &Field) {
        while !(field.is_calm() || field.is_over()) {
            let node = any_node(field, &mut self.random);
            let Ok(mut link) = Link::connect(field, &self.who, node) else {
                std::thread::sleep(BACKOFF);
                continue;
            };
            let end = Instant::now() + Duration::from_millis(self.random.random_range(50..1_200));
            let mut open = true;
            while open && Instant::now() < end {
                link.ping();
                open = link.poll(Duration::from_millis(100)).is_ok();
            }
            if open && self.random.random_bool(0.5) {
                link.disconnect(PATIENCE);
            } else if open {
                link.reset();
            }
            std::thread::sleep(BACKOFF);
        }
    }
}

/// Reads the retained message of a stream, each time as a new subscriber.
#[derive(Debug)]
pub struct Reader {
    who: Who,
    stream: u32,
    random: StdRng,
}

impl Reader {
    #[must_use]
    pub fn new(field: &Field, client_id: &str, stream: u32, seed: u64) -> Self {
        let session = field.recorder.session(client_id, false);
        let who = Who { session, options: Options::v5(client_id), user: 0, will: None };
        Self { who, stream, random: StdRng::seed_from_u64(seed) }
    }

    /// Reads until the load is over.
    pub fn run(mut self, field: &Field) {
        while !field.is_over() {
            let node = any_node(field, &mut self.random);
            if let Ok(mut link) = Link::connect(field, &self.who, node) {
                self.read(&mut link, field);
                link.disconnect(PATIENCE);
            }
            std::thread::sleep(BACKOFF);
        }
    }

    fn read(&self, link: &mut Link, field: &Field) {
        let asked = field.recorder.now();
        if !link.subscribe(&[self.stream], 0, PATIENCE) {
            return;
        }
        let end = Instant::now() + RETAINED_PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let number = match link.poll(left) {
                Ok(Some(Seen::Message { message: Message { number, .. }, .. })) => Some(number),
                Ok(Some(_)) => continue,
                Ok(None) => None,
                Err(()) => return,
            };
            let what = What::Read { stream: self.stream, number, asked };
            field.recorder.note(self.who.session, link.connection, what);
            return;
        }
    }
}

/// A durable client whose session is ended through the admin API of any node.
#[derive(Debug)]
pub struct Victim {
    who: Who,
    admins: [(SocketAddr, String); 3],
    random: StdRng,
}

impl Victim {
    #[must_use]
    pub fn new(field: &Field, client_id: &str, admins: [(SocketAddr, String); 3], seed: u64) -> Self {
        let session = field.recorder.session(client_id, true);
        let options = Options::v5(client_id).resume().expiry(3_600);
        let who = Who { session, options, user: 0, will: None };
        Self { who, admins, random: StdRng::seed_from_u64(seed) }
    }

    /// Connects and is ended until the load calms down.
    pub fn run(mut self, field: &Field) {
        while !(field.is_calm() || field.is_over()) {
            let node = any_node(field, &mut self.random);
            let Ok(link) = Link::connect(field, &self.who, node) else {
                std::thread::sleep(BACKOFF);
                continue;
            };
            std::thread::sleep(Duration::from_millis(self.random.random_range(20..400)));
            let (admin, token) = &self.admins[self.random.random_range(0..3)];
            let path = format!("/v1/sessions/{}/end", self.who.options.client_id);
            let asked = field.recorder.now();
            let answer = ask(*admin, token, "POST", &path, r#"{"reason":"explicit"}"#);
            if answer.is_ok_and(|(head, _)| head.starts_with("HTTP/1.1 200")) {
                field.recorder.note(self.who.session, link.connection, What::Ended { asked });
                link.probe(PATIENCE);
            } else {
                field.recorder.note(self.who.session, link.connection, What::EndDoubted { asked });
            }
        }
    }
}
