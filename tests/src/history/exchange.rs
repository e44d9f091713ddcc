//! P5: QoS 2 exactly once; packet ids, DUP and order of what is sent again.

use std::collections::{HashMap, HashSet};

use super::index::{Connection, Index};
use super::{Event, Kind, Message, Violation, What};

/// Where the deliveries of one message to one session are.
#[derive(Default)]
struct Exchange {
    packet_ids: HashSet<u16>,
    released: bool,
}

pub(super) fn check(index: &Index<'_>, found: &mut Vec<Violation>) {
    for (_, connections) in index.of(true) {
        let mut exchanges: HashMap<Message, Exchange> = HashMap::new();
        // By the time of their events, not connection by connection: an old socket may still hold packets when the new one is open.
        let mut events: Vec<&Event> = connections.iter().flat_map(|connection| &connection.events).collect();
        events.sort_by_key(|event| event.at);
        let mut seen: HashSet<(u32, Message, u16)> = HashSet::new();
        for event in events {
            match event.what {
                What::Deliver { message, qos, packet_id, dup } if qos > 0 => {
                    let first_here = seen.insert((event.connection, message, packet_id));
                    let exchange = exchanges.entry(message).or_default();
                    delivery(index, event, exchange, (message, qos, packet_id, dup), first_here, found);
                }
                What::Released { message, .. } => exchanges.entry(message).or_default().released = true,
                _ => {}
            }
        }
        for connection in connections {
            order_on_connection(index, connection, found);
        }
    }
}

fn delivery(
    index: &Index<'_>,
    event: &Event,
    exchange: &mut Exchange,
    (message, qos, packet_id, dup): (Message, u8, u16, bool),
    first_here: bool,
    found: &mut Vec<Violation>,
) {
    let known = exchange.packet_ids.contains(&packet_id);
    exchange.packet_ids.insert(packet_id);
    // A publisher that sends a QoS 1 message again makes it a second message ([MQTT-4.3.2-5]); with QoS 2 it does not.
    let sent = index.messages.get(&message).map_or(1, |publication| publication.times);
    let copies = if qos == 1 { sent as usize } else { 1 };
    let name = index.name(event.session);
    let mut accuse = |says: String| {
        found.push(Violation { promise: "P5", says, at: event.at, session: event.session });
    };
    if exchange.packet_ids.len() > copies {
        let ids = &exchange.packet_ids;
        accuse(format!("{name} got {message} (QoS {qos}, sent {sent} times) with {} packet ids", ids.len()));
    }
    if known && !dup {
        accuse(format!("{name} got {message} again without DUP"));
    }
    if !first_here {
        accuse(format!("{name} got {message} twice on one connection"));
    }
    if qos == 2 && exchange.released {
        accuse(format!("{name} got {message} again after its PUBREL"));
    }
}

/// [MQTT-4.6.0-1]: on one connection, what is sent again and then what is new comes in the order of publication.
fn order_on_connection(index: &Index<'_>, connection: &Connection, found: &mut Vec<Violation>) {
    let mut last: HashMap<u32, u32> = HashMap::new();
    for event in &connection.events {
        let What::Deliver { message, qos, .. } = event.what else { continue };
        let once = index.messages.get(&message).is_some_and(|publication| publication.times == 1);
        let plain = index.history.streams.get(message.stream as usize).is_some_and(|s| s.kind == Kind::Plain);
        if qos == 0 || !once || !plain {
            continue;
        }
        let last = last.entry(message.stream).or_insert(0);
        if message.number < *last {
            let name = index.name(event.session);
            let says = format!("{name} got {message} after number {last} on one connection");
            found.push(Violation { promise: "P5", says, at: event.at, session: event.session });
        }
        *last = message.number;
    }
}
