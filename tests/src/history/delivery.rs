//! P4 and P7: what was acknowledged arrives, in order, at every subscriber that was there.

use std::collections::{HashMap, HashSet};

use super::index::{Connection, Index};
use super::{Kind, Message, Micros, Violation, What};

pub(super) fn check(index: &Index<'_>, found: &mut Vec<Violation>) {
    let acknowledged = Acknowledged::of(index);
    for (session, connections) in index.of(true) {
        everything_arrives(index, &acknowledged, session, connections, found);
        in_order(index, connections, found);
    }
    for (_, connections) in index.of(false) {
        for connection in connections {
            in_order(index, std::slice::from_ref(connection), found);
            live(index, &acknowledged, connection, found);
        }
    }
    invented(index, found);
}

/// Acknowledged messages by stream.
struct Acknowledged(HashMap<u32, Vec<(Micros, Message)>>);

impl Acknowledged {
    fn of(index: &Index<'_>) -> Self {
        let mut streams: HashMap<u32, Vec<(Micros, Message)>> = HashMap::new();
        for (message, publication) in &index.messages {
            let kind = index.history.streams[message.stream as usize].kind;
            if publication.acknowledged.is_some() && kind == Kind::Plain {
                streams.entry(message.stream).or_default().push((publication.asked, *message));
            }
        }
        for messages in streams.values_mut() {
            messages.sort_unstable();
        }
        Self(streams)
    }

    /// What was published to `stream` after `since`.
    fn after(&self, stream: u32, since: Micros) -> &[(Micros, Message)] {
        let all = self.0.get(&stream).map_or(&[][..], Vec::as_slice);
        &all[all.partition_point(|(asked, _)| *asked <= since)..]
    }
}

/// P4: every acknowledged message that was published after the SUBACK of a durable session reaches it.
fn everything_arrives(
    index: &Index<'_>,
    acknowledged: &Acknowledged,
    session: u32,
    connections: &[Connection],
    found: &mut Vec<Violation>,
) {
    if !index.history.drained {
        return;
    }
    // An End takes the subscriptions and what is queued with it.
    let since = index.ends[session as usize].iter().map(|(_, told)| *told).max().unwrap_or(0);
    let mut subscribed: HashMap<u32, Micros> = HashMap::new();
    let mut got: HashSet<Message> = HashSet::new();
    for event in connections.iter().flat_map(|connection| &connection.events) {
        match event.what {
            What::Subscribed { stream, asked } if asked >= since => {
                subscribed.entry(stream).or_insert(event.at);
            }
            What::Deliver { message, .. } => _ = got.insert(message),
            _ => {}
        }
    }
    for (stream, at) in subscribed {
        let missing: Vec<Message> = acknowledged
            .after(stream, at)
            .iter()
            .map(|(_, message)| *message)
            .filter(|message| !got.contains(message))
            .collect();
        if let Some(first) = missing.first() {
            let asked = index.messages[first].asked;
            let says = format!(
                "{} never got {} acknowledged messages, the first is {first}",
                index.name(session),
                missing.len()
            );
            found.push(Violation { promise: "P4", says, at: asked, session });
        }
    }
}

/// [MQTT-4.6.0-5]: the first deliveries of a stream come in the order of its publications. One that was on its way when the
/// subscription began may have been routed before it, and comes first when its publisher sends it again.
fn in_order(index: &Index<'_>, connections: &[Connection], found: &mut Vec<Violation>) {
    let mut deliveries: Vec<_> = connections.iter().flat_map(|connection| &connection.events).collect();
    deliveries.sort_by_key(|event| event.at);
    let mut got: HashSet<Message> = HashSet::new();
    let mut last: HashMap<u32, u32> = HashMap::new();
    let mut subscribed: HashMap<u32, Micros> = HashMap::new();
    for event in deliveries {
        if let What::Subscribed { stream, .. } = event.what {
            subscribed.insert(stream, event.at);
        }
        let What::Deliver { message, .. } = event.what else { continue };
        let plain = index.history.streams.get(message.stream as usize).is_some_and(|s| s.kind == Kind::Plain);
        if !plain || !got.insert(message) {
            continue;
        }
        let last = last.entry(message.stream).or_insert(0);
        let began = subscribed.get(&message.stream).copied().unwrap_or(Micros::MAX);
        let passed_by = index.messages.get(&message).is_some_and(|publication| {
            publication.asked <= began && publication.repeated.is_some_and(|again| again <= event.at)
        });
        if message.number < *last && !passed_by {
            let says = format!("{} got {message} first after number {last}", index.name(event.session));
            found.push(Violation { promise: "P5", says, at: event.at, session: event.session });
        }
        *last = (*last).max(message.number);
    }
}

/// P7: a connection that stayed got everything that was published, on whatever node, after its SUBACK.
fn live(index: &Index<'_>, acknowledged: &Acknowledged, connection: &Connection, found: &mut Vec<Violation>) {
    if !index.history.drained || connection.closed.is_some() || connection.disconnect.is_some() {
        return;
    }
    let delivered = connection.events.iter().filter_map(|event| match event.what {
        What::Deliver { message, .. } => Some(message),
        _ => None,
    });
    let got: HashSet<Message> = delivered.collect();
    for event in &connection.events {
        let What::Subscribed { stream, .. } = event.what else { continue };
        let missing = acknowledged.after(stream, event.at).iter().filter(|(_, one)| !got.contains(one));
        let missing: Vec<_> = missing.collect();
        if let Some((asked, first)) = missing.first() {
            let says = format!(
                "{} on node {} missed {} messages published after its SUBACK, the first is {first}",
                index.name(connection.session),
                connection.node,
                missing.len()
            );
            found.push(Violation { promise: "P7", says, at: *asked, session: connection.session });
        }
    }
}

/// Nothing is delivered that nobody sent.
fn invented(index: &Index<'_>, found: &mut Vec<Violation>) {
    for event in &index.history.events {
        let What::Deliver { message, .. } = event.what else { continue };
        let will = index.history.streams.get(message.stream as usize).is_some_and(|s| s.kind == Kind::Will);
        let sent = index.messages.get(&message).is_some_and(|publication| publication.asked <= event.at);
        if !will && !sent {
            let says = format!("{} got {message}, which nobody sent", index.name(event.session));
            found.push(Violation { promise: "P5", says, at: event.at, session: event.session });
        }
    }
}
