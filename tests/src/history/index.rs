//! A history sorted by what the rules ask for: connections of a session, publications of a message, faults of a node.

use std::collections::HashMap;

use super::{Event, History, Message, Micros, NONE, What};

/// A history and the ways into it.
pub(super) struct Index<'a> {
    pub(super) history: &'a History,
    /// By session, in the order of their CONNECTs.
    pub(super) sessions: Vec<Vec<Connection>>,
    /// By session: when an operator asked for its end and was told of it.
    pub(super) ends: Vec<Vec<(Micros, Micros)>>,
    /// By session: since when an End that was asked for may come at any time.
    pub(super) doubts: Vec<Micros>,
    pub(super) messages: HashMap<Message, Publication>,
    /// By node: from when until when it did not execute.
    pub(super) halts: HashMap<u8, Vec<(Micros, Micros)>>,
    /// By node: from when until when anything was wrong with it, halts included.
    pub(super) troubles: HashMap<u8, Vec<(Micros, Micros)>>,
}

/// One CONNECT and what followed on its socket.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) id: u32,
    pub(super) session: u32,
    pub(super) node: u8,
    pub(super) user: u8,
    pub(super) will: bool,
    /// When CONNECT was sent.
    pub(super) asked: Micros,
    /// When CONNACK with success was read, and its Session Present.
    pub(super) connected: Option<(Micros, bool)>,
    /// When any answer was read, or the end of the socket.
    pub(super) answered: Option<Micros>,
    /// CONNACK with a refusal was read.
    pub(super) refused: bool,
    pub(super) disconnect: Option<Micros>,
    pub(super) closed: Option<Micros>,
    /// It was the client that closed.
    pub(super) closed_by_client: bool,
    /// From here on another connection of the session is known to have taken over, or the session to have ended.
    pub(super) dead_from: Option<(Micros, Why)>,
    /// Entries of the history.
    pub(super) events: Vec<Event>,
}

/// Why a connection may not act any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    TakenOver,
    Ended,
}

/// How a message was published.
#[derive(Debug, Clone, Copy)]
pub(super) struct Publication {
    /// When its first PUBLISH was sent.
    pub(super) asked: Micros,
    /// How many were sent.
    pub(super) times: u32,
    /// When the second one was sent.
    pub(super) repeated: Option<Micros>,
    /// When the first acknowledgement was read.
    pub(super) acknowledged: Option<Micros>,
}

impl<'a> Index<'a> {
    pub(super) fn new(history: &'a History) -> Self {
        let sessions = history.sessions.len();
        let mut index = Self {
            history,
            sessions: vec![Vec::new(); sessions],
            ends: vec![Vec::new(); sessions],
            doubts: vec![Micros::MAX; sessions],
            messages: HashMap::new(),
            halts: HashMap::new(),
            troubles: HashMap::new(),
        };
        index.collect();
        index.bury();
        index
    }

    fn collect(&mut self) {
        let mut places: HashMap<u32, (usize, usize)> = HashMap::new();
        let mut open: HashMap<(u8, bool), Micros> = HashMap::new();
        for event in &self.history.events {
            self.publication(event);
            if event.session == NONE {
                self.node(event, &mut open);
                continue;
            }
            let session = event.session as usize;
            match event.what {
                What::EndDoubted { asked } => {
                    self.doubts[session] = self.doubts[session].min(asked);
                }
                What::Ended { asked } => self.ends[session].push((asked, event.at)),
                What::Connect { node, user, will } => {
                    places.insert(event.connection, (session, self.sessions[session].len()));
                    self.sessions[session].push(Connection::new(event, node, user, will));
                }
                _ => {
                    if let Some(&(session, at)) = places.get(&event.connection) {
                        self.sessions[session][at].note(event);
                    }
                }
            }
        }
        for ((node, halted), from) in open {
            self.interval(node, halted, from, Micros::MAX);
        }
    }

    fn publication(&mut self, event: &Event) {
        match event.what {
            What::Publish { message, .. } => {
                let first = Publication { asked: event.at, times: 0, repeated: None, acknowledged: None };
                let publication = self.messages.entry(message).or_insert(first);
                publication.times += 1;
                if publication.times == 2 {
                    publication.repeated = Some(event.at);
                }
            }
            What::Acknowledged { message, .. } => {
                if let Some(publication) = self.messages.get_mut(&message) {
                    publication.acknowledged.get_or_insert(event.at);
                }
            }
            _ => {}
        }
    }

    fn node(&mut self, event: &Event, open: &mut HashMap<(u8, bool), Micros>) {
        match event.what {
            What::Halted { node } => _ = open.entry((node, true)).or_insert(event.at),
            What::Troubled { node } => _ = open.entry((node, false)).or_insert(event.at),
            What::Revived { node } => {
                if let Some(from) = open.remove(&(node, true)) {
                    self.interval(node, true, from, event.at);
                }
            }
            What::Healed { node } => {
                if let Some(from) = open.remove(&(node, false)) {
                    self.interval(node, false, from, event.at);
                }
            }
            _ => {}
        }
    }

    fn interval(&mut self, node: u8, halted: bool, from: Micros, until: Micros) {
        if halted {
            self.halts.entry(node).or_default().push((from, until));
        }
        self.troubles.entry(node).or_default().push((from, until));
    }

    /// Finds from when on each connection is known to be over.
    fn bury(&mut self) {
        for (connections, ends) in self.sessions.iter_mut().zip(&self.ends) {
            // Of all later CONNECTs, the one whose success was read first: looked for from behind.
            let mut successes: Vec<(Micros, Micros)> = connections
                .iter()
                .filter_map(|connection| Some((connection.asked, connection.connected?.0)))
                .collect();
            successes.sort_unstable();
            let mut earliest = Micros::MAX;
            for success in successes.iter_mut().rev() {
                earliest = earliest.min(success.1);
                success.1 = earliest;
            }
            for connection in connections {
                let Some((connected, _)) = connection.connected else { continue };
                let next = successes.partition_point(|(asked, _)| *asked <= connected);
                let taken = successes.get(next).map(|(_, at)| (*at, Why::TakenOver));
                let ended =
                    ends.iter().find(|(asked, _)| *asked > connected).map(|(_, at)| (*at, Why::Ended));
                connection.dead_from = taken.into_iter().chain(ended).min_by_key(|(at, _)| *at);
            }
        }
    }

    /// Whether anything was wrong with `node` at some time from `from` to `until`.
    pub(super) fn troubled(&self, node: u8, from: Micros, until: Micros) -> bool {
        let troubles = self.troubles.get(&node);
        troubles.is_some_and(|all| all.iter().any(|(begin, end)| *begin <= until && *end >= from))
    }

    /// Name of a session.
    pub(super) fn name(&self, session: u32) -> &'a str {
        &self.history.sessions[session as usize].client_id
    }

    /// Connections with their sessions, durable ones or the others.
    pub(super) fn of(&self, durable: bool) -> impl Iterator<Item = (u32, &[Connection])> {
        let sessions = self.history.sessions.iter().zip(&self.sessions);
        (0..).zip(sessions).filter_map(move |(number, (session, connections))| {
            (session.durable == durable).then_some((number, connections.as_slice()))
        })
    }
}

impl Connection {
    fn new(event: &Event, node: u8, user: u8, will: bool) -> Self {
        Self {
            id: event.connection,
            session: event.session,
            node,
            user,
            will,
            asked: event.at,
            connected: None,
            answered: None,
            refused: false,
            disconnect: None,
            closed: None,
            closed_by_client: false,
            dead_from: None,
            events: Vec::new(),
        }
    }

    fn note(&mut self, event: &Event) {
        match event.what {
            What::Connected { present } => {
                self.connected = Some((event.at, present));
                self.answered.get_or_insert(event.at);
            }
            What::Refused { .. } => {
                self.refused = true;
                self.answered.get_or_insert(event.at);
            }
            What::Disconnect => self.disconnect = Some(event.at),
            What::Closed { by_client } => {
                self.closed_by_client |= by_client && self.closed.is_none();
                self.closed.get_or_insert(event.at);
                self.answered.get_or_insert(event.at);
            }
            _ => {}
        }
        self.events.push(*event);
    }
}
