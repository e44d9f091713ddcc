//! MQTT 5 properties (§2.2.2): tables of what is allowed where, checked in one pass, kept as borrowed wire bytes.

use super::primitive::Reader;
use super::property::{self, Property, id};
use super::sink::{Measure, Sink};
use super::{Error, From, Kind};

/// What a packet may carry. Sets of identifiers: bit `n` is property `n`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    ids: u64,
    /// May occur more than once.
    repeatable: u64,
    /// Defined for this packet, but only in the other direction.
    wrong_way: u64,
}

const fn set(ids: &[u8]) -> u64 {
    let mut bits = 0;
    let mut at = 0;
    while at < ids.len() {
        bits |= 1 << ids[at];
        at += 1;
    }
    bits
}

const fn allowed(ids: &[u8]) -> Allowed {
    Allowed { ids: set(ids) | set(&[id::USER]), repeatable: set(&[id::USER]), wrong_way: 0 }
}

pub(super) const CONNECT: Allowed = allowed(&[
    id::SESSION_EXPIRY,
    id::AUTHENTICATION_METHOD,
    id::AUTHENTICATION_DATA,
    id::REQUEST_PROBLEM_INFORMATION,
    id::REQUEST_RESPONSE_INFORMATION,
    id::RECEIVE_MAXIMUM,
    id::TOPIC_ALIAS_MAXIMUM,
    id::MAXIMUM_PACKET_SIZE,
]);
pub(super) const WILL: Allowed = allowed(&[
    id::PAYLOAD_FORMAT,
    id::MESSAGE_EXPIRY,
    id::CONTENT_TYPE,
    id::RESPONSE_TOPIC,
    id::CORRELATION_DATA,
    id::WILL_DELAY,
]);
pub(super) const CONNACK: Allowed = allowed(&[
    id::SESSION_EXPIRY,
    id::ASSIGNED_CLIENT_ID,
    id::SERVER_KEEP_ALIVE,
    id::AUTHENTICATION_METHOD,
    id::AUTHENTICATION_DATA,
    id::RESPONSE_INFORMATION,
    id::SERVER_REFERENCE,
    id::REASON_STRING,
    id::RECEIVE_MAXIMUM,
    id::TOPIC_ALIAS_MAXIMUM,
    id::MAXIMUM_QOS,
    id::RETAIN_AVAILABLE,
    id::MAXIMUM_PACKET_SIZE,
    id::WILDCARD_SUBSCRIPTION_AVAILABLE,
    id::SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
    id::SHARED_SUBSCRIPTION_AVAILABLE,
]);
const PUBLISH: Allowed = allowed(&[
    id::PAYLOAD_FORMAT,
    id::MESSAGE_EXPIRY,
    id::CONTENT_TYPE,
    id::RESPONSE_TOPIC,
    id::CORRELATION_DATA,
    id::SUBSCRIPTION_IDENTIFIER,
    id::TOPIC_ALIAS,
]);
/// [MQTT-3.3.4-6]: a client sends no Subscription Identifier.
const PUBLISH_FROM_CLIENT: Allowed = Allowed { wrong_way: set(&[id::SUBSCRIPTION_IDENTIFIER]), ..PUBLISH };
const PUBLISH_FROM_SERVER: Allowed =
    Allowed { repeatable: set(&[id::USER, id::SUBSCRIPTION_IDENTIFIER]), ..PUBLISH };
/// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK.
pub(super) const ACK: Allowed = allowed(&[id::REASON_STRING]);
pub(super) const SUBSCRIBE: Allowed = allowed(&[id::SUBSCRIPTION_IDENTIFIER]);
pub(super) const UNSUBSCRIBE: Allowed = allowed(&[]);
const DISCONNECT_FROM_CLIENT: Allowed =
    allowed(&[id::SESSION_EXPIRY, id::SERVER_REFERENCE, id::REASON_STRING]);
/// [MQTT-3.14.2-2]: a server sends no Session Expiry Interval.
const DISCONNECT_FROM_SERVER: Allowed =
    Allowed { wrong_way: set(&[id::SESSION_EXPIRY]), ..DISCONNECT_FROM_CLIENT };
pub(super) const AUTH: Allowed =
    allowed(&[id::AUTHENTICATION_METHOD, id::AUTHENTICATION_DATA, id::REASON_STRING]);

/// What a server forwards unaltered ([MQTT-3.3.2-4], -15, -16, -17, -18, -20).
pub(super) const FORWARDED: u64 =
    set(&[id::PAYLOAD_FORMAT, id::CONTENT_TYPE, id::RESPONSE_TOPIC, id::CORRELATION_DATA, id::USER]);

impl Allowed {
    pub(super) const fn publish(from: From) -> Self {
        match from {
            From::Client => PUBLISH_FROM_CLIENT,
            From::Server => PUBLISH_FROM_SERVER,
        }
    }

    pub(super) const fn disconnect(from: From) -> Self {
        match from {
            From::Client => DISCONNECT_FROM_CLIENT,
            From::Server => DISCONNECT_FROM_SERVER,
        }
    }
}

/// Reads the properties of one packet, each checked against the tables.
#[derive(Debug)]
pub(super) struct Properties<'a> {
    raw: &'a [u8],
    reader: Reader<'a>,
    allowed: Allowed,
    seen: u64,
    /// From the first user property to the end of the last one: bounds in `raw`.
    user: (usize, usize),
}

impl<'a> Properties<'a> {
    /// Takes property length and properties from `reader`.
    ///
    /// # Errors
    /// A length that is missing or reaches beyond the packet.
    pub(super) fn take(allowed: Allowed, reader: &mut Reader<'a>) -> Result<Self, Error> {
        let len = reader.varint()?;
        let raw = reader.take(len as usize)?;
        Ok(Self { raw, reader: Reader::new(raw), allowed, seen: 0, user: (0, 0) })
    }

    /// The next one; `None` behind the last.
    ///
    /// # Errors
    /// What is not allowed here, occurs twice, is cut off or has an illegal value.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<Property<'a>>, Error> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let start = self.raw.len() - self.reader.rest().len();
        let id = identifier(&mut self.reader)?;
        let bit = 1 << id;
        if self.allowed.ids & bit == 0 {
            return Err(not_allowed(id).into());
        }
        if self.allowed.wrong_way & bit != 0 {
            return Err(Kind::PropertyDirection.into());
        }
        if self.seen & bit & !self.allowed.repeatable != 0 {
            return Err(Kind::PropertyDuplicate.into());
        }
        let first = self.seen & bit == 0;
        self.seen |= bit;
        let property = Property::read(id, &mut self.reader)?;
        if id == id::USER {
            if first {
                self.user.0 = start;
            }
            self.user.1 = self.raw.len() - self.reader.rest().len();
        }
        Ok(Some(property))
    }

    /// All bytes, without length prefix.
    pub(super) const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether what was read so far is all forwarded.
    pub(super) const fn forwardable(&self) -> bool {
        self.seen & !FORWARDED == 0
    }

    /// The user properties that were read so far.
    pub(super) fn user(&self) -> UserProperties<'a> {
        UserProperties { raw: &self.raw[self.user.0..self.user.1] }
    }
}

/// An identifier is a variable byte integer by the letter, of which all defined ones take one byte.
fn identifier(reader: &mut Reader<'_>) -> Result<u8, Error> {
    match u8::try_from(reader.varint()?) {
        Ok(id) if id <= id::LAST => Ok(id),
        _ => Err(Kind::PropertyUnknown.into()),
    }
}

#[cold]
const fn not_allowed(id: u8) -> Kind {
    const KNOWN: u64 = CONNECT.ids | WILL.ids | CONNACK.ids | PUBLISH.ids;
    if KNOWN & (1 << id) == 0 { Kind::PropertyUnknown } else { Kind::PropertyNotAllowed }
}

/// User properties (and, in forwarded ones, the others) as validated wire bytes: iterate to read, copy to forward.
/// Two are equal when they yield the same pairs in the same order.
#[derive(Debug, Clone, Copy, Default)]
pub struct UserProperties<'a> {
    /// Property bytes without length prefix; entries other than user properties are skipped on iteration.
    pub raw: &'a [u8],
}

impl<'a> UserProperties<'a> {
    /// No property.
    pub const EMPTY: Self = UserProperties { raw: &[] };

    /// Name and value of each, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        Entries { rest: self.raw }.filter_map(|(id, entry)| {
            let mut reader = Reader::new(&entry[1..]);
            match Property::read(id, &mut reader) {
                Ok(Property::User(name, value)) if id == id::USER => Some((name, value)),
                _ => None,
            }
        })
    }

    /// Appends one pair in wire form to `raw`, from which `UserProperties { raw }` can be made.
    ///
    /// # Errors
    /// Name or value longer than 65,535 bytes or with U+0000. `raw` is unchanged then.
    pub fn push(raw: &mut Vec<u8>, name: &str, value: &str) -> Result<(), Error> {
        Measure::of(|sink| Property::User(name, value).put(sink))?;
        Property::User(name, value).put(raw);
        Ok(())
    }

    pub(super) fn put(&self, sink: &mut impl Sink) {
        for (name, value) in self.iter() {
            Property::User(name, value).put(sink);
        }
    }
}

impl PartialEq for UserProperties<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for UserProperties<'_> {}

/// Property bytes of a PUBLISH that a server forwards (everything but Message Expiry Interval, Topic Alias and Subscription
/// Identifier), without length prefix. Borrowed when they are contiguous, else collected in `scratch`.
#[must_use]
pub fn forwarded_properties<'a>(raw: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    match contiguous_forwarded(raw) {
        Some(run) => run,
        None => {
            collect_forwarded(raw, scratch);
            scratch
        }
    }
}

/// The subscription identifiers among validated property bytes, in order ([MQTT-3.3.4-3]).
pub fn subscription_identifiers(raw: &[u8]) -> impl Iterator<Item = u32> {
    Entries { rest: raw }
        .filter(|(id, _)| *id == id::SUBSCRIPTION_IDENTIFIER)
        .filter_map(|(_, entry)| Reader::new(&entry[1..]).varint().ok())
}

/// Checks the promise of a Payload Format Indicator of 1 among validated property bytes: the payload is UTF-8 (MQTT 5
/// §3.3.2.3.2). A receiver may check it and then answer 0x99 in PUBACK, PUBREC or DISCONNECT, so [`super::read`] does not.
///
/// # Errors
/// [`Kind::PayloadFormat`].
pub fn check_payload_format(raw: &[u8], payload: &[u8]) -> Result<(), Error> {
    let promised =
        Entries { rest: raw }.any(|(id, entry)| id == id::PAYLOAD_FORMAT && entry.get(1) == Some(&1));
    if promised && simdutf8::basic::from_utf8(payload).is_err() {
        return Err(Kind::PayloadFormat.into());
    }
    Ok(())
}

/// The forwarded properties as one slice of `raw`, when they stand together.
pub(super) fn contiguous_forwarded(raw: &[u8]) -> Option<&[u8]> {
    let mut run = 0..0;
    let mut at = 0;
    for (id, entry) in (Entries { rest: raw }) {
        let end = at + entry.len();
        if FORWARDED & (1 << id) != 0 {
            if run.is_empty() {
                run = at..end;
            } else if run.end == at {
                run.end = end;
            } else {
                return None;
            }
        }
        at = end;
    }
    Some(&raw[run])
}

/// Replaces `out` by the forwarded properties of `raw`.
pub(super) fn collect_forwarded(raw: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for (id, entry) in (Entries { rest: raw }) {
        if FORWARDED & (1 << id) != 0 {
            out.extend_from_slice(entry);
        }
    }
}

/// Splits validated property bytes into entries (identifier and all its bytes); stops at what is not one.
struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let &id = self.rest.first()?;
        let mut reader = Reader::new(&self.rest[1..]);
        property::skip(id, &mut reader).ok()?;
        let (entry, rest) = self.rest.split_at(self.rest.len() - reader.rest().len());
        self.rest = rest;
        Some((id, entry))
    }
}
