//! P7: a retained message read after its PUBACK is the new one, from any node; nobody reads an older one after a newer one.

use std::collections::HashMap;

use super::index::Index;
use super::{Kind, Message, Micros, Violation, What};

pub(super) fn check(index: &Index<'_>, found: &mut Vec<Violation>) {
    // By stream: (time of the acknowledgement or of a read, the number that everyone must see after it), the numbers rising.
    let mut known: HashMap<u32, Vec<(Micros, u32)>> = HashMap::new();
    for event in &index.history.events {
        match event.what {
            What::Acknowledged { message, .. } => {
                let stream = index.history.streams.get(message.stream as usize);
                if stream.is_some_and(|stream| stream.kind == Kind::Retained) {
                    raise(known.entry(message.stream).or_default(), event.at, message.number);
                }
            }
            What::Read { stream, number, asked } => {
                let least = known.get(&stream).map_or(0, |known| floor(known, asked));
                if number.unwrap_or(0) < least {
                    let says = format!(
                        "{} read {number:?} of stream {stream} on connection {}, though {least} had been acknowledged or read when it asked",
                        index.name(event.session),
                        event.connection
                    );
                    found.push(Violation { promise: "P7", says, at: event.at, session: event.session });
                }
                if let Some(number) = number {
                    let message = Message { stream, number };
                    if index.messages.get(&message).is_none_or(|publication| publication.asked > event.at) {
                        let says = format!("{} read {message}, which nobody sent", index.name(event.session));
                        found.push(Violation { promise: "P7", says, at: event.at, session: event.session });
                    }
                    raise(known.entry(stream).or_default(), event.at, number);
                }
            }
            _ => {}
        }
    }
}

fn raise(known: &mut Vec<(Micros, u32)>, at: Micros, number: u32) {
    if known.last().is_none_or(|(_, last)| *last < number) {
        known.push((at, number));
    }
}

fn floor(known: &[(Micros, u32)], asked: Micros) -> u32 {
    let before = known.partition_point(|(at, _)| *at < asked);
    before.checked_sub(1).map_or(0, |at| known[at].1)
}
