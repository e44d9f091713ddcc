//! P6: a Will fires once, and only when its client is gone without a word.

use std::collections::{HashMap, HashSet};

use super::index::{Connection, Index};
use super::{Kind, Message, Micros, Violation, What};

/// How long after its DISCONNECT a node must stay untroubled for the client to know that it was taken note of.
const TAKEN_NOTE: Micros = 2_000_000;

/// What one watcher saw of one Will.
#[derive(Default)]
struct Seen {
    first: Option<Micros>,
    packet_ids: HashSet<u16>,
}

pub(super) fn check(index: &Index<'_>, found: &mut Vec<Violation>) {
    let mut carriers: HashMap<u32, &Connection> = HashMap::new();
    for connection in index.sessions.iter().flatten().filter(|connection| connection.will) {
        carriers.insert(connection.id, connection);
    }
    for (watcher, connections) in index.of(true) {
        let Some(since) = watching_since(index, connections) else { continue };
        let seen = sightings(index, connections);
        for (number, seen) in &seen {
            let at = seen.first.unwrap_or(0);
            let mut accuse = |says: String| {
                found.push(Violation { promise: "P6", says, at, session: watcher });
            };
            let Some(carrier) = carriers.get(number) else {
                accuse(format!("the Will of connection {number}, which carried none, fired"));
                continue;
            };
            let name = index.name(carrier.session);
            if seen.packet_ids.len() > 1 {
                accuse(format!(
                    "the Will of connection {number} of {name} fired {} times",
                    seen.packet_ids.len()
                ));
            }
            if said_goodbye(index, carrier) {
                accuse(format!("the Will of connection {number} of {name} fired after its clean DISCONNECT"));
            }
            if served_after(carrier, at) {
                accuse(format!("the Will of connection {number} of {name} fired while it was served"));
            }
        }
        if index.history.drained {
            missing(index, &carriers, &seen, since, watcher, found);
        }
    }
}

fn watching_since(index: &Index<'_>, connections: &[Connection]) -> Option<Micros> {
    connections.iter().flat_map(|connection| &connection.events).find_map(|event| match event.what {
        What::Subscribed { stream, .. } if kind(index, stream) == Some(Kind::Will) => Some(event.at),
        _ => None,
    })
}

fn sightings(index: &Index<'_>, connections: &[Connection]) -> HashMap<u32, Seen> {
    let mut all: HashMap<u32, Seen> = HashMap::new();
    for event in connections.iter().flat_map(|connection| &connection.events) {
        let What::Deliver { message: Message { stream, number }, packet_id, .. } = event.what else {
            continue;
        };
        if kind(index, stream) == Some(Kind::Will) {
            let seen = all.entry(number).or_default();
            seen.first.get_or_insert(event.at);
            seen.packet_ids.insert(packet_id);
        }
    }
    all
}

fn kind(index: &Index<'_>, stream: u32) -> Option<Kind> {
    index.history.streams.get(stream as usize).map(|stream| stream.kind)
}

/// Whether it disconnected, was closed upon that, and nothing was wrong with its node that could have swallowed the DISCONNECT.
fn said_goodbye(index: &Index<'_>, carrier: &Connection) -> bool {
    let (Some(said), Some(closed)) = (carrier.disconnect, carrier.closed) else { return false };
    let taken_over_before = carrier.dead_from.is_some_and(|(at, _)| at < closed);
    said <= closed
        && !carrier.closed_by_client
        && !taken_over_before
        && !index.troubled(carrier.node, said, closed + TAKEN_NOTE)
}

/// Whether it had an answer to something that it asked after `at`.
fn served_after(carrier: &Connection, at: Micros) -> bool {
    carrier.events.iter().any(|event| match event.what {
        What::Pong { asked } | What::Acknowledged { asked, .. } => asked > at,
        _ => false,
    })
}

/// The Will of every connection that broke off without another one taking over is seen in the end.
fn missing(
    index: &Index<'_>,
    carriers: &HashMap<u32, &Connection>,
    seen: &HashMap<u32, Seen>,
    since: Micros,
    watcher: u32,
    found: &mut Vec<Violation>,
) {
    for carrier in carriers.values() {
        let (Some(_), Some(closed)) = (carrier.connected, carrier.closed) else { continue };
        let superseded = carrier.dead_from.is_some_and(|(at, _)| at < closed);
        let due = carrier.asked > since && carrier.disconnect.is_none() && !superseded;
        if due && !seen.contains_key(&carrier.id) {
            let name = index.name(carrier.session);
            let says = format!("the Will of connection {} of {name} never fired", carrier.id);
            found.push(Violation { promise: "P6", says, at: closed, session: watcher });
        }
    }
}
