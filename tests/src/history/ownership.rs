//! P1 to P3 and P8: who executes for a session, and on what proof.

use std::collections::HashMap;

use super::index::{Connection, Index, Why};
use super::{Micros, Violation, What};

pub(super) fn check(index: &Index<'_>, found: &mut Vec<Violation>) {
    for durable in [true, false] {
        for (_, connections) in index.of(durable) {
            for connection in connections {
                after_its_end(index, connection, found);
                answered_in_time(index, connection, found);
            }
        }
    }
    for (session, connections) in index.of(true) {
        late_acknowledgements(index, connections, found);
        without_proof(index, connections, found);
        continuity(index, session, connections, found);
        one_user(index, connections, found);
    }
}

/// P1, P3: nothing that was asked of a connection after its end was known is answered, and nothing newer is delivered on it.
fn after_its_end(index: &Index<'_>, connection: &Connection, found: &mut Vec<Violation>) {
    let Some((dead, why)) = connection.dead_from else { return };
    for event in &connection.events {
        let (cause, act) = match event.what {
            What::Pong { asked } => (asked, "answered a PINGREQ"),
            What::Acknowledged { asked, .. } => (asked, "acknowledged a PUBLISH"),
            What::Subscribed { asked, .. } => (asked, "acknowledged a SUBSCRIBE"),
            What::Released { asked, .. } => (asked, "answered a PUBREC"),
            What::Deliver { message, .. } => match index.messages.get(&message) {
                Some(publication) => (publication.asked, "delivered a message"),
                None => continue,
            },
            _ => continue,
        };
        if cause > dead {
            let promise = if why == Why::Ended { "P3" } else { "P1" };
            let says = format!(
                "connection {} of {} on node {} {act} of {:.6} s, though at {:.6} s it was {}",
                connection.id,
                index.name(connection.session),
                connection.node,
                cause as f64 / 1e6,
                dead as f64 / 1e6,
                if why == Why::Ended { "ended" } else { "taken over" }
            );
            found.push(Violation { promise, says, at: event.at, session: connection.session });
        }
    }
}

/// P1: an acknowledgement sent on a connection that was known to be over has no effect: the message comes again.
fn late_acknowledgements(index: &Index<'_>, connections: &[Connection], found: &mut Vec<Violation>) {
    let ended = connections.first().is_some_and(|first| !index.ends[first.session as usize].is_empty());
    if !index.history.drained || ended {
        return;
    }
    // By message: the last delivery, and whether an acknowledgement was sent that may count.
    let mut fate: HashMap<super::Message, (Micros, bool)> = HashMap::new();
    for connection in connections {
        let dead = connection.dead_from.map_or(Micros::MAX, |(at, _)| at);
        for event in &connection.events {
            match event.what {
                What::Deliver { message, qos, .. } if qos > 0 => {
                    fate.entry(message).or_insert((event.at, false)).0 = event.at;
                }
                What::Ack { message } if event.at < dead => {
                    fate.entry(message).or_insert((event.at, false)).1 = true;
                }
                _ => {}
            }
        }
    }
    for (message, (at, acknowledged)) in fate {
        if !acknowledged {
            let session = connections[0].session;
            let says = format!(
                "{} was sent {message} and acknowledged it only after a takeover or not at all, and it never came again",
                index.name(session)
            );
            found.push(Violation { promise: "P1", says, at, session });
        }
    }
}

/// P2: nobody takes a session over whose owner's node does not execute.
fn without_proof(index: &Index<'_>, connections: &[Connection], found: &mut Vec<Violation>) {
    let mut owner: Option<&Connection> = None;
    for candidate in connections {
        if let (Some(owner), Some((taken, _))) = (owner, candidate.connected) {
            let gone = owner.closed.into_iter().chain(owner.disconnect).min().unwrap_or(Micros::MAX);
            let owned = owner.connected.map_or(0, |(at, _)| at);
            for (from, until) in index.halts.get(&owner.node).into_iter().flatten() {
                let held = owned < *from && gone > *from;
                if held && candidate.asked > *from && taken < *until && candidate.node != owner.node {
                    let says = format!(
                        "{} was taken over from node {} by node {}, though its owner has not executed since {:.6} s",
                        index.name(owner.session),
                        owner.node,
                        candidate.node,
                        *from as f64 / 1e6
                    );
                    found.push(Violation { promise: "P2", says, at: taken, session: owner.session });
                }
            }
        }
        // A refused attempt changes nothing. One without an answer may have taken over: then nobody knows who owns.
        if candidate.connected.is_some() {
            owner = Some(candidate);
        } else if !candidate.refused {
            owner = None;
        }
    }
}

/// P2: a CONNECT to a node that nothing troubles is answered in bounded time.
fn answered_in_time(index: &Index<'_>, connection: &Connection, found: &mut Vec<Violation>) {
    let limit = connection.asked + index.history.connect_limit;
    let end = index.history.events.last().map_or(0, |event| event.at);
    let late = connection.answered.map_or(end > limit, |at| at > limit);
    if late && !index.troubled(connection.node, connection.asked, limit) {
        let says = format!(
            "CONNECT of {} to node {} had no answer in time",
            index.name(connection.session),
            connection.node
        );
        found.push(Violation { promise: "P2", says, at: connection.asked, session: connection.session });
    }
}

/// P3, P4: a durable session is there at the next CONNECT, unless somebody ended it; then it is not.
fn continuity(index: &Index<'_>, session: u32, connections: &[Connection], found: &mut Vec<Violation>) {
    let ends = &index.ends[session as usize];
    for (at, connection) in connections.iter().enumerate() {
        let Some((connected, present)) = connection.connected else { continue };
        let before = connections[..at]
            .iter()
            .rposition(|earlier| earlier.connected.is_some_and(|(earlier, _)| earlier < connection.asked));
        let Some(before) = before else { continue };
        let earlier = &connections[before];
        let since = earlier.connected.map_or(0, |(at, _)| at);
        let overlapping = ends.iter().any(|(asked, told)| *asked < connected && *told > earlier.asked)
            || index.doubts[session as usize] < connected;
        if !present && !overlapping {
            let says =
                format!("{} was gone: Session Present is 0, though nobody ended it", index.name(session));
            found.push(Violation { promise: "P4", says, at: connected, session });
        }
        let alone = before + 1 == at;
        let ended = ends.iter().any(|(asked, told)| *asked > since && *told < connection.asked);
        if present && ended && alone {
            let says = format!("{} was ended, and its next CONNECT found it", index.name(session));
            found.push(Violation { promise: "P3", says, at: connected, session });
        }
    }
}

/// P8: a durable session is only ever the session of its first user.
fn one_user(index: &Index<'_>, connections: &[Connection], found: &mut Vec<Violation>) {
    let mut successes = connections.iter().filter(|connection| connection.connected.is_some());
    let Some(first) = successes.next() else { return };
    for other in successes.filter(|connection| connection.user != first.user) {
        let says =
            format!("user {} was let into {} of user {}", other.user, index.name(first.session), first.user);
        let at = other.connected.map_or(0, |(at, _)| at);
        found.push(Violation { promise: "P8", says, at, session: first.session });
    }
}
