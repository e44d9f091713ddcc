//! The payloads of services 130 and 140, as `ownerrpc/WIRE.md` §8 and §9 describe them.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use session::id::Key;
use session::message::{Message, QoS};
use session::time::Millis;
use smallvec::SmallVec;
use thiserror::Error;

use storage::GroupId;

use super::queue::{Forward, ForwardedShare};
use crate::route::RouteChange;
use crate::worker::Unserved;

/// Formats of service 130. The oldest one does not tell of stored subscriptions.
pub(super) const ROUTES_OLD: u8 = 1;
pub(super) const ROUTES_NEWEST: u8 = 3;
/// From this one on the answers tell whether messages were withheld.
const ROUTES_MARKED: u8 = 3;
/// Format of service 140.
const FORMAT: u8 = 1;

const DELTA: u8 = 1;
const BEGIN: u8 = 2;
const CHUNK: u8 = 3;
const FINISH: u8 = 4;

/// Kinds of changes.
const REMOVED: u8 = 0;
const ADDED: u8 = 1;
const STORED: u8 = 2;

/// The table is as the sender believes.
pub(super) const DONE: u8 = 1;
/// There is no table that the change could be applied to: the sender tells everything.
pub(super) const TELL_ALL: u8 = 2;
/// The sender cannot be reached from there: nothing that it says counts, nor does it get anything.
pub(super) const NOT_REACHED: u8 = 3;

const RETAIN: u8 = 0x04;
const EXPIRES: u8 = 0x08;
const PUBLISHER: u8 = 0x10;
const SAME_PUBLISHER: u8 = 0x20;
const SHARES: u8 = 0x40;
const EVERYONE: u8 = 0x80;

/// Bytes of a request before its messages: format, number, count.
const BATCH_HEADER_BYTES: usize = 1 + 8 + 4;
/// Bytes of one message beside its strings, at most: flags, expiry, five lengths, count of shares.
const MESSAGE_HEADER_BYTES: usize = 1 + 8 + 2 + 2 + 1 + 2 + 4 + 4;

/// Shares that one message of a batch names: their number has one byte.
const SHARES_MAX: usize = u8::MAX as usize;
/// Bytes of the filters of those shares, unless one alone is larger: a message that fits a request fits with them.
const SHARES_BYTES_MAX: usize = 64 << 10;

/// What came is not what WIRE.md describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0}")]
pub(super) struct Malformed(pub &'static str);

const SHORT: Malformed = Malformed("the payload ends too early");

/// One call of service 130.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RouteCall<'a> {
    /// What changed behind `base`, through `through`. The table is good until `until`.
    /// `stored`: groups whose stored subscriptions changed, each with the entry that did it last.
    Delta {
        base: u64,
        through: u64,
        until: Millis,
        changes: Vec<(&'a str, bool)>,
        stored: Vec<(GroupId, u64)>,
    },
    /// Everything is told: until it is, the table is not known. `round` tells this time from others.
    Begin { round: u64 },
    /// A part of everything.
    Chunk { round: u64, filters: Vec<&'a str> },
    /// That was everything, through change `through`. The table is good until `until`.
    Finish { round: u64, through: u64, until: Millis },
}

/// Bytes that one filter needs.
pub(super) fn filter_bytes(filter: &str) -> usize {
    1 + 2 + filter.len()
}

/// Bytes that one change needs.
pub(super) fn change_bytes(change: &RouteChange) -> usize {
    match change {
        RouteChange::Filter { filter, .. } => filter_bytes(filter),
        RouteChange::Stored { .. } => 1 + 2 + 8,
    }
}

fn head(format: u8, kind: u8, number: u64) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u8(format);
    out.put_u8(kind);
    out.put_u64(number);
    out
}

/// A string of at most 65,535 bytes, as filters, topics and identities are.
fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u16(u16::try_from(text.len()).unwrap_or(u16::MAX));
    out.put_slice(&text.as_bytes()[..text.len().min(usize::from(u16::MAX))]);
}

pub(super) fn delta(
    format: u8,
    (base, through): (u64, u64),
    until: Millis,
    changes: &[RouteChange],
) -> Bytes {
    let mut out = head(format, DELTA, through);
    out.put_u64(base);
    out.put_u64(until.0);
    for change in changes {
        match change {
            RouteChange::Filter { filter, added } => {
                out.put_u8(if *added { ADDED } else { REMOVED });
                put_text(&mut out, filter);
            }
            RouteChange::Stored { .. } if format == ROUTES_OLD => {}
            RouteChange::Stored { group, index } => {
                out.put_u8(STORED);
                out.put_u16(group.0);
                out.put_u64(*index);
            }
        }
    }
    out.freeze()
}

pub(super) fn begin(format: u8, round: u64) -> Bytes {
    head(format, BEGIN, round).freeze()
}

pub(super) fn chunk(format: u8, round: u64, filters: &[Arc<str>]) -> Bytes {
    let mut out = head(format, CHUNK, round);
    for filter in filters {
        out.put_u8(ADDED);
        put_text(&mut out, filter);
    }
    out.freeze()
}

pub(super) fn finish(format: u8, round: u64, through: u64, until: Millis) -> Bytes {
    let mut out = head(format, FINISH, round);
    out.put_u64(through);
    out.put_u64(until.0);
    out.freeze()
}

impl<'a> RouteCall<'a> {
    pub(super) fn read(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = payload;
        let format = rest.try_get_u8().map_err(|_| SHORT)?;
        if !(ROUTES_OLD..=ROUTES_NEWEST).contains(&format) {
            return Err(Malformed("an unknown format"));
        }
        let kind = rest.try_get_u8().map_err(|_| SHORT)?;
        let number = rest.try_get_u64().map_err(|_| SHORT)?;
        let call = match kind {
            DELTA => {
                let base = rest.try_get_u64().map_err(|_| SHORT)?;
                let until = Millis(rest.try_get_u64().map_err(|_| SHORT)?);
                let through = number;
                if base > through {
                    return Err(Malformed("a change that ends before it begins"));
                }
                let (changes, stored) = changes(&mut rest, format)?;
                return Ok(Self::Delta { base, through, until, changes, stored });
            }
            BEGIN => Self::Begin { round: number },
            CHUNK => {
                let (changes, stored) = changes(&mut rest, format)?;
                if !stored.is_empty() {
                    return Err(Malformed("a part of a table that is none"));
                }
                let filters = changes.into_iter().map(|(filter, _)| filter).collect();
                return Ok(Self::Chunk { round: number, filters });
            }
            FINISH => {
                let through = rest.try_get_u64().map_err(|_| SHORT)?;
                let until = Millis(rest.try_get_u64().map_err(|_| SHORT)?);
                Self::Finish { round: number, through, until }
            }
            _ => return Err(Malformed("an unknown kind of route call")),
        };
        if rest.is_empty() { Ok(call) } else { Err(Malformed("bytes follow the route call")) }
    }
}

/// The answer to a call of that format. `withheld`: the mark of the caller; one that cannot be reached is not told, since messages may be
/// withheld from it until it can be.
pub(super) fn told(format: u8, answer: u8, withheld: u64) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(answer);
    if format >= ROUTES_MARKED && answer != NOT_REACHED {
        out.put_u64(withheld);
    }
    out.freeze()
}

/// What an answer says, and the mark, if it has one.
pub(super) fn read_told(payload: &[u8]) -> Result<(u8, Option<u64>), Malformed> {
    let mut rest = payload;
    let answer = rest.try_get_u8().map_err(|_| SHORT)?;
    if rest.is_empty() {
        return Ok((answer, None));
    }
    let withheld = rest.try_get_u64().map_err(|_| SHORT)?;
    if rest.is_empty() { Ok((answer, Some(withheld))) } else { Err(Malformed("bytes follow the answer")) }
}

fn check_format(rest: &mut &[u8]) -> Result<(), Malformed> {
    match rest.try_get_u8() {
        Ok(FORMAT) => Ok(()),
        Ok(_) => Err(Malformed("an unknown format")),
        Err(_) => Err(SHORT),
    }
}

/// Changed filters, and groups whose stored subscriptions changed.
type Changes<'a> = (Vec<(&'a str, bool)>, Vec<(GroupId, u64)>);

fn changes<'a>(rest: &mut &'a [u8], format: u8) -> Result<Changes<'a>, Malformed> {
    let mut changes = Vec::new();
    let mut stored: Vec<(GroupId, u64)> = Vec::new();
    while !rest.is_empty() {
        match rest.try_get_u8() {
            Ok(REMOVED) => changes.push((text(rest)?, false)),
            Ok(ADDED) => changes.push((text(rest)?, true)),
            Ok(STORED) if format > ROUTES_OLD => {
                let group = GroupId(rest.try_get_u16().map_err(|_| SHORT)?);
                let index = rest.try_get_u64().map_err(|_| SHORT)?;
                match stored.iter_mut().find(|(known, _)| *known == group) {
                    Some((_, last)) => *last = index.max(*last),
                    None => stored.push((group, index)),
                }
            }
            _ => return Err(Malformed("an unknown change")),
        }
    }
    Ok((changes, stored))
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    let len = usize::from(rest.try_get_u16().map_err(|_| SHORT)?);
    std::str::from_utf8(take(rest, len)?).map_err(|_| Malformed("a string is not UTF-8"))
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], Malformed> {
    let (taken, behind) = rest.split_at_checked(len).ok_or(SHORT)?;
    *rest = behind;
    Ok(taken)
}

/// One message as it came from another node.
#[derive(Debug)]
pub(super) struct Received {
    /// Its place in the batch, from 0.
    pub at: u32,
    pub message: Arc<Message>,
    pub publisher: Option<Arc<Key>>,
    pub everyone: bool,
    pub shares: SmallVec<[Arc<str>; 1]>,
}

/// How many of these one message of a batch names: at least one, if there is any.
pub(super) fn shares_at_once(shares: &[ForwardedShare]) -> usize {
    let mut bytes = 0;
    let fits = |share: &&ForwardedShare| {
        bytes += share_bytes(share);
        bytes <= SHARES_BYTES_MAX
    };
    shares.iter().take(SHARES_MAX).take_while(fits).count().max(1).min(shares.len())
}

fn share_bytes(share: &ForwardedShare) -> usize {
    2 + share.filter.len()
}

/// Bytes that `forward` needs in a batch, at most.
pub(super) fn forward_bytes(forward: &Forward) -> usize {
    let publisher = forward.publisher.as_ref().map_or(0, |key| key.namespace.len() + key.client_id.len());
    let shares = forward.shares.iter().map(share_bytes).sum::<usize>();
    MESSAGE_HEADER_BYTES + publisher + shares + forward.message.len()
}

/// Bytes of messages that one request has room for.
pub(super) fn batch_room(payload_bytes_max: usize) -> usize {
    payload_bytes_max.saturating_sub(BATCH_HEADER_BYTES)
}

/// The request that carries `batch` under its number. No message in it names more shares than [`shares_at_once`].
pub(super) fn batch(number: u64, batch: &[Forward]) -> Bytes {
    let bytes = batch.iter().map(forward_bytes).sum::<usize>();
    let mut out = BytesMut::with_capacity(BATCH_HEADER_BYTES + bytes);
    out.put_u8(FORMAT);
    out.put_u64(number);
    out.put_u32(u32::try_from(batch.len()).unwrap_or(u32::MAX));
    let mut last: Option<&Key> = None;
    for forward in batch {
        put_forward(&mut out, forward, &mut last);
    }
    out.freeze()
}

fn put_forward<'a>(out: &mut BytesMut, forward: &'a Forward, last: &mut Option<&'a Key>) {
    let message = &forward.message;
    let publisher = forward.publisher.as_ref();
    let is_same = publisher.is_some() && publisher == *last;
    let shares = &forward.shares[..];
    debug_assert!(shares.len() <= SHARES_MAX, "the queue split it");
    let mut flags = message.qos as u8;
    for (flag, holds) in [
        (RETAIN, message.retain),
        (EXPIRES, message.expires_at.is_some()),
        (PUBLISHER, publisher.is_some() && !is_same),
        (SAME_PUBLISHER, is_same),
        (SHARES, !shares.is_empty()),
        (EVERYONE, forward.everyone),
    ] {
        flags |= if holds { flag } else { 0 };
    }
    out.put_u8(flags);
    if let Some(at) = message.expires_at {
        out.put_u64(at.0);
    }
    if let Some(key) = publisher.filter(|_| !is_same) {
        put_text(out, &key.namespace);
        put_text(out, &key.client_id);
        *last = Some(key);
    }
    if !shares.is_empty() {
        out.put_u8(u8::try_from(shares.len()).unwrap_or(u8::MAX));
        shares.iter().for_each(|share| put_text(out, &share.filter));
    }
    put_text(out, message.topic());
    let (properties, payload) = (message.properties(), message.payload());
    // A message comes from one MQTT packet, which has at most 268,435,460 bytes.
    out.put_u32(u32::try_from(properties.len()).unwrap_or(u32::MAX));
    out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_slice(properties);
    out.put_slice(payload);
}

/// The answer to a batch: the shares that nobody took a message for.
pub(super) fn unserved(unserved: &Unserved) -> Bytes {
    if unserved.is_empty() {
        return Bytes::new();
    }
    let mut out = BytesMut::new();
    out.put_u8(FORMAT);
    for (message, share) in unserved {
        out.put_u32(*message);
        put_text(&mut out, share);
    }
    out.freeze()
}

/// What an answer says; a node of the version before answers nothing, and what cannot be read says nothing.
pub(super) fn read_unserved(payload: &[u8]) -> Unserved {
    let mut rest = payload;
    let mut unserved = Unserved::new();
    if check_format(&mut rest).is_err() {
        return unserved;
    }
    while let Ok(message) = rest.try_get_u32() {
        let Ok(share) = text(&mut rest) else { break };
        unserved.push((message, share.into()));
    }
    unserved
}

/// The number of a batch and its messages, in order, and how many were passed over: one whose topic nobody may publish to costs only
/// itself, the others of the batch are somebody else's.
pub(super) fn read_batch(payload: &[u8]) -> Result<(u64, Vec<Received>, u64), Malformed> {
    let mut rest = payload;
    check_format(&mut rest)?;
    let number = rest.try_get_u64().map_err(|_| SHORT)?;
    let count = rest.try_get_u32().map_err(|_| SHORT)?;
    let mut messages = Vec::new();
    let (mut last, mut passed_over) = (None, 0);
    for at in 0..count {
        match read_forward(&mut rest, &mut last, at)? {
            Some(received) => messages.push(received),
            None => passed_over += 1,
        }
    }
    if rest.is_empty() {
        Ok((number, messages, passed_over))
    } else {
        Err(Malformed("bytes follow the messages"))
    }
}

fn read_forward(
    rest: &mut &[u8],
    last: &mut Option<Arc<Key>>,
    at: u32,
) -> Result<Option<Received>, Malformed> {
    let flags = rest.try_get_u8().map_err(|_| SHORT)?;
    let qos = QoS::from_u8(flags & 3).ok_or(Malformed("a QoS of 3"))?;
    let expires_at = match flags & EXPIRES {
        0 => None,
        _ => Some(Millis(rest.try_get_u64().map_err(|_| SHORT)?)),
    };
    let publisher = match flags & (PUBLISHER | SAME_PUBLISHER) {
        0 => None,
        PUBLISHER => {
            let (namespace, client_id) = (text(rest)?, text(rest)?);
            let key = Key { namespace: namespace.into(), client_id: client_id.into() };
            *last = Some(Arc::new(key));
            last.clone()
        }
        SAME_PUBLISHER if last.is_some() => last.clone(),
        _ => return Err(Malformed("a publisher that was not named")),
    };
    let mut shares = SmallVec::new();
    if flags & SHARES != 0 {
        for _ in 0..rest.try_get_u8().map_err(|_| SHORT)? {
            shares.push(text(rest)?.into());
        }
    }
    let topic = text(rest)?;
    let properties = rest.try_get_u32().map_err(|_| SHORT)? as usize;
    let payload = rest.try_get_u32().map_err(|_| SHORT)? as usize;
    let (properties, payload) = (take(rest, properties)?, take(rest, payload)?);
    if session::topic::check_topic_name(topic).is_err() {
        return Ok(None);
    }
    let mut message = Message::new(topic, properties, payload);
    message.qos = qos;
    message.retain = flags & RETAIN != 0;
    message.expires_at = expires_at;
    let (message, everyone) = (Arc::new(message), flags & EVERYONE != 0);
    Ok(Some(Received { at, message, publisher, everyone, shares }))
}

#[cfg(test)]
#[path = "wire_test.rs"]
mod wire_test;
