//! What clients saw of a cluster, with the times of one clock, and the checker that holds it against the promises P1 to P8.
//!
//! A request is noted before its first byte is sent and an answer after its last byte is read. What happened at the broker lies somewhere
//! between, so a rule here convicts only by causality: an answer to a request that was made after another answer had been read. A rule that
//! would need the time at which a broker did something is no rule of this checker.

mod delivery;
mod exchange;
mod index;
mod ownership;
mod record;
mod retained;
mod will;

#[cfg(test)]
mod delivery_test;
#[cfg(test)]
mod ownership_test;
#[cfg(test)]
mod will_test;

use std::fmt::{self, Write as _};

pub use record::Recorder;

/// Microseconds since the recorder was made.
pub type Micros = u64;

/// The session of what is not about a session.
pub const NONE: u32 = u32::MAX;

/// A message as the load names it in its payload, `stream:number`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// Index into [`History::streams`].
    pub stream: u32,
    /// Counts up from 1 in a stream; of a Will, the connection that carried it.
    pub number: u32,
}

/// What one publisher sends to one topic, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    pub topic: String,
    pub qos: u8,
    pub kind: Kind,
}

/// What a stream is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Messages for subscribers.
    Plain,
    /// Values of a retained topic with one writer.
    Retained,
    /// The Wills of all clients.
    Will,
}

/// A ClientID of the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub client_id: String,
    /// Whether it outlives its connections.
    pub durable: bool,
}

/// One thing that a client did or saw, or that was done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// CONNECT is sent to this node as this user.
    Connect { node: u8, user: u8, will: bool },
    /// CONNACK with success was read.
    Connected { present: bool },
    /// CONNACK with a refusal was read.
    Refused { reason: u8 },
    /// DISCONNECT with reason 0 is sent.
    Disconnect,
    /// The end of the socket was read, or the client closed it.
    Closed { by_client: bool },
    /// A subscription that covers this stream was acknowledged; it was asked for at `asked`.
    Subscribed { stream: u32, asked: Micros },
    /// PUBLISH is sent.
    Publish { message: Message, dup: bool },
    /// PUBACK or PUBREC with success was read for a PUBLISH sent on this connection at `asked`.
    Acknowledged { message: Message, asked: Micros },
    /// PUBLISH was read.
    Deliver { message: Message, qos: u8, packet_id: u16, dup: bool },
    /// PUBACK or PUBREC is sent for this message.
    Ack { message: Message },
    /// PUBREL was read for a PUBREC that was sent on this connection at `asked`.
    Released { message: Message, asked: Micros },
    /// PINGRESP was read for a PINGREQ sent at `asked`.
    Pong { asked: Micros },
    /// An operator asked at `asked` that the session be ended, and was told that it is.
    Ended { asked: Micros },
    /// An operator asked at `asked` for its end and had no answer that says so: it may end from then on.
    EndDoubted { asked: Micros },
    /// A new subscriber asked at `asked` for a retained topic, and read this number, or for some seconds nothing.
    Read { stream: u32, number: Option<u32>, asked: Micros },
    /// The node stops executing from here (SIGKILL, SIGSTOP were sent before this was noted).
    Halted { node: u8 },
    /// The node may execute again from here, or was retired (noted before it was done).
    Revived { node: u8 },
    /// Something else troubles the node from here: its links, its disk, its clock.
    Troubled { node: u8 },
    /// Nothing troubles the node any more.
    Healed { node: u8 },
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    pub at: Micros,
    /// Index into [`History::sessions`], or [`NONE`].
    pub session: u32,
    /// Counted over all sessions.
    pub connection: u32,
    pub what: What,
}

/// All that was recorded, in the order of `at`.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub streams: Vec<Stream>,
    pub sessions: Vec<Session>,
    pub events: Vec<Event>,
    /// Every durable session had a connection at the end that took everything until nothing came any more. What must arrive "in the end"
    /// is judged only then.
    pub drained: bool,
    /// Within which every CONNECT to an untroubled node has an answer.
    pub connect_limit: Micros,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// P1 to P8.
    pub promise: &'static str,
    pub says: String,
    pub at: Micros,
    pub session: u32,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at {:.6} s: {}", self.promise, self.at as f64 / 1e6, self.says)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.stream, self.number)
    }
}

impl Message {
    /// Reads a payload of the load.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (stream, number) = std::str::from_utf8(payload).ok()?.split_once(':')?;
        Some(Self { stream: stream.parse().ok()?, number: number.trim_end().parse().ok()? })
    }
}

impl History {
    /// Holds the history against every promise that clients can judge.
    #[must_use]
    pub fn check(&self) -> Vec<Violation> {
        let index = index::Index::new(self);
        let mut found = Vec::new();
        ownership::check(&index, &mut found);
        delivery::check(&index, &mut found);
        exchange::check(&index, &mut found);
        will::check(&index, &mut found);
        retained::check(&index, &mut found);
        found.sort_by_key(|violation| violation.at);
        found
    }

    /// What the session of a violation did and saw around it, and what was done to nodes, as lines.
    #[must_use]
    pub fn slice(&self, violation: &Violation, window: Micros) -> String {
        let name = |session: u32| {
            let found = usize::try_from(session).ok().and_then(|at| self.sessions.get(at));
            found.map_or("-", |session| session.client_id.as_str())
        };
        let near = violation.at.saturating_sub(window)..=violation.at.saturating_add(window);
        let mut lines = String::new();
        for event in &self.events {
            if near.contains(&event.at) && (event.session == violation.session || event.session == NONE) {
                let Event { at, session, connection, what } = event;
                let _ = writeln!(
                    lines,
                    "{:>12.6} {:<12} #{connection:<5} {what:?}",
                    *at as f64 / 1e6,
                    name(*session)
                );
            }
        }
        lines
    }

    /// The last CONNECTs and SUBACKs of the session of a violation before it.
    #[must_use]
    pub fn before(&self, violation: &Violation) -> String {
        let until = self.events.iter().filter(|event| event.at <= violation.at);
        let own = until.filter(|event| event.session == violation.session);
        let frame = own.filter(|event| matches!(event.what, What::Connect { .. } | What::Subscribed { .. }));
        let frame: Vec<String> = frame.map(|event| format!("{event:?}\n")).collect();
        frame[frame.len().saturating_sub(6)..].concat()
    }

    /// Every event about one message.
    #[must_use]
    pub fn of_message(&self, wanted: Message) -> String {
        let mut lines = String::new();
        for event in &self.events {
            let (What::Publish { message, .. }
            | What::Acknowledged { message, .. }
            | What::Deliver { message, .. }
            | What::Ack { message }
            | What::Released { message, .. }) = event.what
            else {
                continue;
            };
            if message == wanted {
                let _ = writeln!(lines, "{event:?}");
            }
        }
        lines
    }
}
