//! The stored form of a group: keys that sort so that loading in order works, values with a version byte.
//!
//! | first byte | rest of the key | value |
//! | --- | --- | --- |
//! | 0 | as in [`crate::queue`] | leases and channels |
//! | 1 | – | counters and clock of the group |
//! | 2 | node id, boot id | boot |
//! | 3 | namespace, NUL, ClientID | session |
//! | 4 | namespace, NUL, ClientID, NUL, session generation, Will generation | Will |
//! | 5 | lifetime | durable lifetime and the state of its inbox |
//! | 6 | lifetime, filter | stored subscription |
//! | 7 | lifetime, chunk number | up to 64 inbox entries |
//! | 8 | lifetime, packet id | inbound QoS 2 packet id |
//! | 9 | origin | origin of stamps |
//! | 10 | origin, packet id (+ 65,536: of a retained value) | stamp |
//! | 11 | topic | reference to a retained message |
//! | 12 | 1, user or 2, namespace, NUL, ClientID | denial |
//! | 64 | message id | message body |
//!
//! Numbers in keys are big-endian. Rows that refer to a message repeat its length and expiry, so that loading needs no body.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::stamps::Origin;
use super::{BodyVisitor, Group, RowError, RowVisitor};
use crate::id::{Boot, Key};
use crate::lifecycle::command::{QuotaRule, WillKey};
use crate::lifecycle::row::{SessionRow, Subject};
use crate::log::{CHUNK, Entry as _};
use crate::message::{Message, QoS};
use crate::time::Millis;

/// Version of every row value.
pub(super) const VERSION: u8 = 1;

pub(super) const META: u8 = 1;
pub(super) const BOOT: u8 = 2;
pub(super) const SESSION: u8 = 3;
pub(super) const WILL: u8 = 4;
pub(super) const LIFETIME: u8 = 5;
pub(super) const SUBSCRIPTION: u8 = 6;
pub(super) const CHUNK_ROW: u8 = 7;
pub(super) const RECEIVED: u8 = 8;
pub(super) const ORIGIN: u8 = 9;
pub(super) const STAMP: u8 = 10;
pub(super) const RETAINED: u8 = 11;
pub(super) const DENIED: u8 = 12;
/// The last kind: loading may stop before it.
pub(super) const BODY: u8 = 64;

/// A row that is written one by one; the order is that of the keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RowId {
    Boot(Boot),
    Session(Key),
    Will(WillKey),
    Subscription(u64, Arc<str>),
    Received(u64, u16),
    Origin(u64),
    Stamp(u64, u32),
    Retained(Arc<str>),
    Denied(Subject),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MetaRow {
    pub quota_messages: u64,
    pub quota_bytes: u64,
    pub applied: u64,
    pub clock: Millis,
    pub next_lifetime: u64,
    pub next_message: u64,
    pub next_origin: u64,
    pub revision_floor: u64,
    pub stamps_max: u64,
    pub quota_rule: QuotaRule,
    pub quota_retained: u64,
    pub stamp_retention_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredSession<'a> {
    pub row: std::borrow::Cow<'a, SessionRow>,
    pub ever_durable: bool,
    pub keep_until: Option<Millis>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LifetimeRow {
    pub key: Key,
    pub session_generation: u64,
    pub base: u64,
    pub end: u64,
    pub sent_through: u64,
    pub sent_by: u64,
    pub soonest: Millis,
    pub next_sequence: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EntryRow {
    /// 0: settled; the other fields mean nothing then.
    pub message: u64,
    pub len: u32,
    pub expires_at: Option<Millis>,
    pub qos: QoS,
    pub retain: bool,
    pub received: bool,
    pub identifiers: SmallVec<[u32; 1]>,
    pub shared: bool,
    pub unbound: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChunkRow {
    /// Offset of the first entry.
    pub first: u64,
    pub entries: Vec<EntryRow>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OriginRow {
    pub origin: Origin,
    pub touched: Millis,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RetainedRow {
    pub message: u64,
    pub len: u32,
    pub expires_at: Option<Millis>,
}

#[derive(Debug, Serialize, Deserialize)]
struct BodyRow<'a> {
    qos: QoS,
    retain: bool,
    expires_at: Option<Millis>,
    topic: &'a str,
    properties: &'a [u8],
    payload: &'a [u8],
}

/// Reused buffers of one drain or dump.
#[derive(Debug, Default)]
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Buffers {
    fn key(&mut self, kind: u8) -> &mut Vec<u8> {
        self.key.clear();
        self.key.push(kind);
        &mut self.key
    }

    fn value<T: Serialize>(&mut self, row: &T) {
        self.value.clear();
        self.value.push(VERSION);
        let value = std::mem::take(&mut self.value);
        self.value = postcard::to_extend(row, value).expect("rows hold nothing that has no stored form");
    }
}

impl Group {
    /// Visits every row changed since the last call, `None` for a removed one, and forgets the changes. Message bodies
    /// that were created and settled in between never show up.
    pub fn drain_dirty(&mut self, visit: &mut RowVisitor<'_>) {
        let mut bodies = Vec::new();
        self.drain_rows(visit, &mut |id, body| bodies.push((id, body.cloned())));
        let mut value = Vec::new();
        for (id, body) in bodies {
            value.clear();
            if let Some(message) = &body {
                Self::encode_body(message, &mut value);
            }
            visit(&Self::body_key(id), body.as_ref().map(|_| &*value));
        }
    }

    /// The same with message bodies apart, by their ids: those to write, ids ascending, then those that are gone. They are not encoded
    /// here: whoever holds a lock meanwhile holds it for the small rows only.
    pub fn drain_rows(&mut self, visit: &mut RowVisitor<'_>, body: &mut BodyVisitor<'_>) {
        let mut buffers = Buffers::default();
        self.space.drain_dirty(&self.messages, visit);
        if std::mem::take(&mut self.dirty.meta) {
            buffers.key(META);
            buffers.value(&self.meta_row());
            visit(&buffers.key, Some(&buffers.value));
        }
        let mut rows: Vec<RowId> = self.dirty.rows.drain().collect();
        rows.sort_unstable();
        for id in &rows {
            encode_row_key(id, &mut buffers);
            let exists = self.encode_row(id, &mut buffers);
            visit(&buffers.key, exists.then_some(&buffers.value));
            self.mark_stored(id);
        }
        self.drain_lifetimes(&mut buffers, visit);
        self.messages.drain(body);
    }

    fn drain_lifetimes(&mut self, buffers: &mut Buffers, visit: &mut RowVisitor<'_>) {
        for (lifetime, chunks) in std::mem::take(&mut self.dirty.dropped) {
            lifetime_key(buffers, LIFETIME, lifetime);
            visit(&buffers.key, None);
            for chunk in chunks {
                chunk_key(buffers, lifetime, chunk);
                visit(&buffers.key, None);
            }
        }
        let mut lifetimes = std::mem::take(&mut self.dirty.lifetimes);
        lifetimes.sort_unstable();
        let mut chunks = Vec::new();
        for lifetime in lifetimes {
            let Some(children) =
                self.lifetimes.get_mut(&lifetime).and_then(|life| life.children.as_deref_mut())
            else {
                continue;
            };
            children.dirty = false;
            children.stored = true;
            chunks.clear();
            children.inbox.log.drain(&mut chunks);
            self.encode_lifetime(lifetime, buffers);
            visit(&buffers.key, Some(&buffers.value));
            for (chunk, exists) in &chunks {
                if *exists {
                    self.encode_chunk(lifetime, *chunk, buffers);
                } else {
                    chunk_key(buffers, lifetime, *chunk);
                }
                visit(&buffers.key, exists.then_some(&buffers.value));
            }
        }
    }

    /// Visits every row of the group in key order, bodies last. `None` is the value of a body that is only on disk, under
    /// this very key.
    pub fn dump(&self, visit: &mut RowVisitor<'_>) {
        let mut buffers = Buffers::default();
        self.space.dump(&self.messages, visit);
        buffers.key(META);
        buffers.value(&self.meta_row());
        visit(&buffers.key, Some(&buffers.value));
        let mut lifetimes: Vec<u64> =
            self.lifetimes.iter().filter(|(_, life)| life.children.is_some()).map(|(id, _)| *id).collect();
        lifetimes.sort_unstable();
        let mut row = |id: &RowId| {
            encode_row_key(id, &mut buffers);
            if self.encode_row(id, &mut buffers) {
                visit(&buffers.key, Some(&buffers.value));
            }
        };
        self.boots.keys().for_each(|boot| row(&RowId::Boot(boot.clone())));
        self.sessions.keys().for_each(|key| row(&RowId::Session(key.clone())));
        self.wills.keys().for_each(|will| row(&RowId::Will(will.clone())));
        self.dump_lifetimes(&lifetimes, visit);
        let mut buffers = Buffers::default();
        let mut row = |id: &RowId| {
            encode_row_key(id, &mut buffers);
            if self.encode_row(id, &mut buffers) {
                visit(&buffers.key, Some(&buffers.value));
            }
        };
        self.stamps.sets.keys().for_each(|id| row(&RowId::Origin(*id)));
        for (id, set) in &self.stamps.sets {
            set.packets.keys().for_each(|slot| row(&RowId::Stamp(*id, *slot)));
        }
        self.retained.keys().for_each(|topic| row(&RowId::Retained(topic.clone())));
        self.denied.keys().for_each(|subject| row(&RowId::Denied(subject.clone())));
        for id in self.messages.ids() {
            buffers.key(BODY).extend_from_slice(&id.to_be_bytes());
            let body = self.messages.body(id);
            if let Some(message) = body {
                buffers.value(&body_row(message));
            }
            visit(&buffers.key, body.map(|_| &*buffers.value));
        }
    }

    fn dump_lifetimes(&self, lifetimes: &[u64], visit: &mut RowVisitor<'_>) {
        let mut buffers = Buffers::default();
        for lifetime in lifetimes {
            self.encode_lifetime(*lifetime, &mut buffers);
            visit(&buffers.key, Some(&buffers.value));
        }
        let children =
            |lifetime: &u64| self.lifetimes[lifetime].children.as_deref().expect("filtered by the caller");
        for lifetime in lifetimes {
            for filter in children(lifetime).subscriptions.keys() {
                let id = RowId::Subscription(*lifetime, filter.clone());
                encode_row_key(&id, &mut buffers);
                self.encode_row(&id, &mut buffers);
                visit(&buffers.key, Some(&buffers.value));
            }
        }
        for lifetime in lifetimes {
            for chunk in children(lifetime).inbox.log.chunks() {
                self.encode_chunk(*lifetime, chunk, &mut buffers);
                visit(&buffers.key, Some(&buffers.value));
            }
        }
        for lifetime in lifetimes {
            for packet_id in children(lifetime).received.keys() {
                let id = RowId::Received(*lifetime, *packet_id);
                encode_row_key(&id, &mut buffers);
                self.encode_row(&id, &mut buffers);
                visit(&buffers.key, Some(&buffers.value));
            }
        }
    }

    /// Row key of a message body.
    #[must_use]
    pub fn body_key(message_id: u64) -> Vec<u8> {
        let mut key = Vec::with_capacity(9);
        key.push(BODY);
        key.extend_from_slice(&message_id.to_be_bytes());
        key
    }

    /// Appends the row value of a message body.
    pub fn encode_body(message: &Message, out: &mut Vec<u8>) {
        out.push(VERSION);
        let row = postcard::to_extend(&body_row(message), std::mem::take(out));
        *out = row.expect("rows hold nothing that has no stored form");
    }

    /// The message whose body is stored under this key; `None`: it is another row.
    #[must_use]
    pub fn body_id(key: &[u8]) -> Option<u64> {
        match key.split_first() {
            Some((&BODY, id)) => id.try_into().ok().map(u64::from_be_bytes),
            _ => None,
        }
    }

    /// Every key from this one on is a message body: loading may stop before it.
    #[must_use]
    pub fn first_body_key() -> Vec<u8> {
        vec![BODY]
    }

    /// Decodes the row value of a message body.
    ///
    /// # Errors
    /// When it cannot be decoded.
    pub fn decode_body(value: &[u8]) -> Result<Message, RowError> {
        let row = body_row_of(value)?;
        let mut message = Message::new(row.topic, row.properties, row.payload);
        message.qos = row.qos;
        message.retain = row.retain;
        message.expires_at = row.expires_at;
        Ok(message)
    }

    /// Bytes of a message whose body has this row value, as they are counted.
    pub(super) fn body_len(value: &[u8]) -> Result<u64, RowError> {
        let row = body_row_of(value)?;
        Ok((row.topic.len() + row.properties.len() + row.payload.len()) as u64)
    }

    fn meta_row(&self) -> MetaRow {
        MetaRow {
            quota_messages: self.quota_messages,
            quota_bytes: self.quota_bytes,
            applied: self.applied,
            clock: self.clock,
            next_lifetime: self.next_lifetime,
            next_message: self.messages.next,
            next_origin: self.stamps.next,
            revision_floor: self.revision_floor,
            stamps_max: self.stamps.max,
            quota_rule: self.quota_rule,
            quota_retained: self.quota_retained,
            stamp_retention_ms: self.stamps.retention_ms,
        }
    }

    /// Encodes the value of a row; false when there is none.
    fn encode_row(&self, id: &RowId, buffers: &mut Buffers) -> bool {
        match id {
            RowId::Boot(boot) => self.boots.get(boot).map(|state| buffers.value(&state.row)),
            RowId::Session(key) => self.sessions.get(key).map(|slot| {
                buffers.value(&StoredSession {
                    row: std::borrow::Cow::Borrowed(&slot.row),
                    ever_durable: slot.ever_durable,
                    keep_until: slot.keep_until,
                });
            }),
            RowId::Will(will) => self.wills.get(will).map(|slot| buffers.value(&*slot.row)),
            RowId::Subscription(lifetime, filter) => self
                .children(*lifetime)
                .and_then(|children| children.subscriptions.get(filter))
                .map(|options| buffers.value(options)),
            RowId::Received(lifetime, packet_id) => self
                .children(*lifetime)
                .and_then(|children| children.received.get(packet_id))
                .map(|received| match received.routed {
                    false => buffers.value(&received.sequence),
                    true => buffers.value(&(received.sequence, true)),
                }),
            RowId::Origin(id) => self.stamps.sets.get(id).map(|set| {
                buffers.value(&OriginRow { origin: set.origin.clone(), touched: set.touched });
            }),
            RowId::Stamp(id, slot) => self
                .stamps
                .sets
                .get(id)
                .and_then(|set| set.packets.get(slot))
                .map(|sequence| buffers.value(sequence)),
            RowId::Retained(topic) => self.retained.get(topic).map(|message| {
                buffers.value(&RetainedRow {
                    message: *message,
                    len: self.message_len(*message),
                    expires_at: self.messages.expires_at(*message),
                });
            }),
            RowId::Denied(subject) => self.denied.get(subject).map(|row| buffers.value(row)),
        }
        .is_some()
    }

    fn children(&self, lifetime: u64) -> Option<&super::state::Children> {
        self.lifetimes.get(&lifetime)?.children.as_deref()
    }

    fn message_len(&self, id: u64) -> u32 {
        let len = self.messages.len(id).expect("a row refers to a stored message (invariant Q2)");
        u32::try_from(len).expect("a body is below 2 GiB")
    }

    fn mark_stored(&mut self, id: &RowId) {
        match id {
            RowId::Session(key) => {
                if let Some(slot) = self.sessions.get_mut(key) {
                    slot.stored = true;
                }
            }
            RowId::Will(will) => {
                if let Some(slot) = self.wills.get_mut(will) {
                    slot.stored = true;
                }
            }
            _ => {}
        }
    }

    fn encode_lifetime(&self, lifetime: u64, buffers: &mut Buffers) {
        let life = &self.lifetimes[&lifetime];
        let children = life.children.as_deref().expect("the caller saw its children");
        let inbox = &children.inbox;
        lifetime_key(buffers, LIFETIME, lifetime);
        buffers.value(&LifetimeRow {
            key: life.key.clone(),
            session_generation: children.session_generation,
            base: inbox.log.base(),
            end: inbox.log.end(),
            sent_through: inbox.log.delivered,
            sent_by: inbox.sent_by,
            soonest: inbox.soonest,
            next_sequence: children.next_sequence,
        });
    }

    fn encode_chunk(&self, lifetime: u64, chunk: u64, buffers: &mut Buffers) {
        let inbox = &self.children(lifetime).expect("the caller saw its children").inbox;
        let offsets = inbox.log.chunk_offsets(chunk);
        let mut row = ChunkRow { first: offsets.start, entries: Vec::with_capacity(CHUNK as usize) };
        for offset in offsets {
            let entry = inbox.log.entry(offset).expect("the offset is inside the inbox");
            let settled = entry.settled();
            row.entries.push(EntryRow {
                message: entry.message,
                len: if settled { 0 } else { self.message_len(entry.message) },
                expires_at: self.messages.expires_at(entry.message),
                qos: entry.qos(),
                retain: entry.retain(),
                received: entry.received(),
                identifiers: inbox.identifiers(offset, entry),
                shared: entry.shared(),
                unbound: entry.unbound(),
            });
        }
        chunk_key(buffers, lifetime, chunk);
        buffers.value(&row);
    }
}

fn lifetime_key(buffers: &mut Buffers, kind: u8, lifetime: u64) {
    buffers.key(kind).extend_from_slice(&lifetime.to_be_bytes());
}

fn chunk_key(buffers: &mut Buffers, lifetime: u64, chunk: u64) {
    lifetime_key(buffers, CHUNK_ROW, lifetime);
    buffers.key.extend_from_slice(&chunk.to_be_bytes());
}

fn encode_row_key(id: &RowId, buffers: &mut Buffers) {
    match id {
        RowId::Boot(boot) => {
            let key = buffers.key(BOOT);
            key.extend_from_slice(&boot.node_id.to_be_bytes());
            key.extend_from_slice(boot.boot_id.as_bytes());
        }
        RowId::Session(session) => push_session(buffers.key(SESSION), session),
        RowId::Will(will) => {
            let key = buffers.key(WILL);
            push_session(key, &will.key);
            key.push(0);
            key.extend_from_slice(&will.session_generation.to_be_bytes());
            key.extend_from_slice(&will.will_generation.to_be_bytes());
        }
        RowId::Subscription(lifetime, filter) => {
            lifetime_key(buffers, SUBSCRIPTION, *lifetime);
            buffers.key.extend_from_slice(filter.as_bytes());
        }
        RowId::Received(lifetime, packet_id) => {
            lifetime_key(buffers, RECEIVED, *lifetime);
            buffers.key.extend_from_slice(&packet_id.to_be_bytes());
        }
        RowId::Origin(id) => lifetime_key(buffers, ORIGIN, *id),
        RowId::Stamp(id, slot) => {
            lifetime_key(buffers, STAMP, *id);
            buffers.key.extend_from_slice(&slot.to_be_bytes());
        }
        RowId::Retained(topic) => buffers.key(RETAINED).extend_from_slice(topic.as_bytes()),
        RowId::Denied(Subject::User(user)) => {
            let key = buffers.key(DENIED);
            key.push(1);
            key.extend_from_slice(user.as_bytes());
        }
        RowId::Denied(Subject::Client(client)) => {
            let key = buffers.key(DENIED);
            key.push(2);
            push_session(key, client);
        }
    }
}

/// Namespace and ClientID hold no NUL (checked at CONNECT), so the separator keeps their order.
fn push_session(key: &mut Vec<u8>, session: &Key) {
    key.extend_from_slice(session.namespace.as_bytes());
    key.push(0);
    key.extend_from_slice(session.client_id.as_bytes());
}

fn body_row_of(value: &[u8]) -> Result<BodyRow<'_>, RowError> {
    let row: BodyRow<'_> = super::load::decode(&[BODY], value)?;
    if row.topic.len() > usize::from(u16::MAX) || u32::try_from(row.properties.len()).is_err() {
        return Err(super::load::corrupt(&[BODY], "topic or properties are too long"));
    }
    Ok(row)
}

fn body_row(message: &Message) -> BodyRow<'_> {
    BodyRow {
        qos: message.qos,
        retain: message.retain,
        expires_at: message.expires_at,
        topic: message.topic(),
        properties: message.properties(),
        payload: message.payload(),
    }
}
