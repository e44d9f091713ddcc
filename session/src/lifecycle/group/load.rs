//! Taking stored rows back in. Nothing that comes from disk is trusted: each row is checked alone when it is read and
//! against the others at the end.

use std::fmt::Write;
use std::sync::Arc;

use serde::Deserialize;

use super::inbox::{Inbox, Loaded};
use super::rows::{
    BODY, BOOT, CHUNK_ROW, ChunkRow, DENIED, LIFETIME, LifetimeRow, META, MetaRow, ORIGIN, OriginRow,
    RECEIVED, RETAINED, RetainedRow, SESSION, STAMP, SUBSCRIPTION, StoredSession, VERSION, WILL,
};
use super::state::{Children, Lifetime, Received, Slot, count_state};
use super::{BootState, Group, RowError, WillSlot};
use crate::id::{Boot, Owner};
use crate::invariants;
use crate::lifecycle::command::WillKey;
use crate::lifecycle::row::{BootRow, SessionState, SubscriptionOptions, WillRow};
use crate::log::CHUNK;
use crate::queue;
use crate::time::Millis;

impl Group {
    /// Takes one row back in, in key order. Message bodies stay on disk; their rows need not be given at all
    /// ([`Self::first_body_key`]), since what refers to them knows their lengths.
    ///
    /// # Errors
    /// When the row cannot be decoded, or does not fit what was loaded before.
    pub fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowError> {
        let (kind, rest) = key.split_first().ok_or_else(|| corrupt(key, "the key is empty"))?;
        match *kind {
            queue::ROW => self.space.load(key, value).map_err(|what| corrupt(key, &what))?,
            META => self.load_meta(key, decode(key, value)?)?,
            BOOT => self.load_boot(decode(key, value)?),
            SESSION => self.load_session(key, decode(key, value)?)?,
            WILL => self.load_will(key, decode(key, value)?)?,
            LIFETIME => self.load_lifetime(key, number(key, rest)?, decode(key, value)?)?,
            SUBSCRIPTION => {
                let (lifetime, filter) = numbered_text(key, rest)?;
                let options: SubscriptionOptions = decode(key, value)?;
                self.loaded_children(key, lifetime)?.subscriptions.insert(filter, options);
                self.stat.subscriptions += 1;
            }
            CHUNK_ROW => self.load_chunk(key, rest, decode(key, value)?)?,
            RECEIVED => {
                let (lifetime, packet_id) = numbered_packet(key, rest)?;
                let (sequence, routed) = match decode(key, value) {
                    Ok(sequence) => (sequence, false),
                    Err(_) => decode::<(u64, bool)>(key, value)?,
                };
                let children = self.loaded_children(key, lifetime)?;
                if packet_id == 0 || sequence >= children.next_sequence {
                    return Err(corrupt(key, "the packet id or its sequence was never given out"));
                }
                children.received.insert(packet_id, Received { sequence, routed });
            }
            ORIGIN => {
                let row: OriginRow = decode(key, value)?;
                let id = number(key, rest)?;
                if id >= self.stamps.next || !self.stamps.insert_set(id, row.origin, row.touched) {
                    return Err(corrupt(key, "the origin is there twice or was never given out"));
                }
            }
            STAMP => {
                let (id, slot) = numbered_slot(key, rest)?;
                if !self.stamps.insert_packet(id, slot, decode(key, value)?) {
                    return Err(corrupt(key, "the stamp has no origin"));
                }
            }
            RETAINED => self.load_retained(key, text(key, rest)?, decode(key, value)?)?,
            DENIED => self.load_denied(key, decode(key, value)?)?,
            BODY => {
                if self.messages.len(number(key, rest)?) != Some(Self::body_len(value)?) {
                    return Err(corrupt(key, "no row refers to a body of this length"));
                }
            }
            _ => return Err(corrupt(key, "the kind of row is unknown")),
        }
        Ok(())
    }

    /// Rebuilds indexes and counters after the last `load` and checks the invariants.
    ///
    /// # Errors
    /// When rows contradict each other.
    pub fn finish_load(&mut self) -> Result<(), RowError> {
        let owners: Vec<Owner> = self.sessions.iter().map(|slot| slot.row.owner.clone()).collect();
        for owner in owners {
            self.count_boot(&owner, 1);
        }
        let mut lifetimes: Vec<u64> = self.lifetimes.keys().copied().collect();
        lifetimes.sort_unstable();
        for lifetime in lifetimes {
            self.finish_lifetime(lifetime)?;
        }
        let keys: Vec<_> = self.sessions.keys().cloned().collect();
        for key in keys {
            self.rearm(&key);
        }
        self.deadlines.changed = false;
        self.dirty.meta = true;
        self.space.finish_load().map_err(RowError::Incoherent)?;
        self.check().map_err(|violation| RowError::Incoherent(violation.to_string()))
    }

    fn finish_lifetime(&mut self, lifetime: u64) -> Result<(), RowError> {
        let life = &self.lifetimes[&lifetime];
        let key = life.key.clone();
        let Some(slot) = self.sessions.get(&key) else {
            return Err(RowError::Incoherent(format!("lifetime {lifetime} has no session")));
        };
        let current = slot.row.lifetime == lifetime;
        let ended = !current || slot.ended();
        if let Some(life) = self.lifetimes.get_mut(&lifetime) {
            life.ended = ended;
            if let Some(children) = life.children.as_deref() {
                let inbox = &children.inbox;
                if inbox.log.delivered > inbox.log.end() {
                    return Err(RowError::Incoherent(format!("lifetime {lifetime} sent more than it has")));
                }
                invariants::inbox_span(inbox.log.base(), inbox.log.delivered)
                    .map_err(|violation| RowError::Incoherent(violation.to_string()))?;
                self.stat.inbox_messages += inbox.log.messages();
                self.stat.inbox_bytes += inbox.bytes;
                let user = self.users.stat(life.user);
                user.inbox_messages += inbox.log.messages();
                user.inbox_bytes += inbox.bytes;
            }
        }
        let has_children = self.lifetimes[&lifetime].children.is_some();
        if ended
            && has_children
            && let Some(slot) = self.sessions.get_mut(&key)
        {
            slot.reclaimable.push(lifetime);
        }
        self.sync_expiring(lifetime);
        self.sync_sharing(lifetime);
        Ok(())
    }

    fn load_meta(&mut self, key: &[u8], row: MetaRow) -> Result<(), RowError> {
        self.quota_messages = row.quota_messages;
        self.quota_bytes = row.quota_bytes;
        self.applied = row.applied;
        self.clock = row.clock;
        self.next_lifetime = row.next_lifetime;
        self.messages.next = row.next_message;
        self.stamps.next = row.next_origin;
        self.stamps.max = row.stamps_max;
        self.revision_floor = row.revision_floor;
        self.quota_rule = row.quota_rule;
        self.quota_retained = row.quota_retained;
        self.stamps.retention_ms = row.stamp_retention_ms;
        self.dirty.meta = false;
        // Rows of channels come before this one, which says which ids of messages were given out.
        let messages = &mut self.messages;
        let adopted =
            self.space.take_loaded_bodies(&mut |id, len, expires_at| messages.adopt(id, len, expires_at));
        adopted.then_some(()).ok_or_else(|| corrupt(key, "a record refers to a message that cannot be"))
    }

    fn load_boot(&mut self, row: BootRow) {
        self.boots.insert(row.boot.clone(), BootState { row, sessions: 0 });
    }

    fn load_session(&mut self, key: &[u8], stored: StoredSession<'static>) -> Result<(), RowError> {
        let mut row = stored.row.into_owned();
        row.owner = self.interned_owner(&row.owner);
        invariants::row_shape(&row).map_err(|violation| corrupt(key, &violation.to_string()))?;
        if row.lifetime >= self.next_lifetime {
            return Err(corrupt(key, "its lifetime was never given out"));
        }
        *count_state(&mut self.stat, row.state) += 1;
        let fence = if row.state == SessionState::Active { row.owner.owner_generation } else { 0 };
        let life = Lifetime {
            key: row.owner.key.clone(),
            fence,
            ended: fence == 0 && matches!(row.state, SessionState::Ended { .. }),
            children: None,
            expiring: Millis::NEVER,
            user: self.users.enter(row.uid.as_ref()),
        };
        let is_live = !life.ended;
        if self.lifetimes.insert(row.lifetime, life).is_some() {
            return Err(corrupt(key, "two sessions share a lifetime"));
        }
        let mut slot = Slot::new(row, stored.ever_durable, stored.keep_until);
        slot.stored = true;
        let lifetime = slot.row.lifetime;
        self.sessions.insert(slot);
        self.count_session(lifetime, i64::from(is_live));
        Ok(())
    }

    fn load_will(&mut self, key: &[u8], mut row: WillRow) -> Result<(), RowError> {
        invariants::will_shape(&row).map_err(|violation| corrupt(key, &violation.to_string()))?;
        let slot = self.sessions.get_mut(&row.key).ok_or_else(|| corrupt(key, "its session is not there"))?;
        slot.wills += 1;
        row.key = slot.row.owner.key.clone();
        let id = WillKey {
            key: row.key.clone(),
            session_generation: row.session_generation,
            will_generation: row.will_generation,
        };
        self.count_will(row.stage, 1);
        if let Some(at) = Self::will_due_of(&row) {
            self.deadlines.wills.insert((at, id.clone()));
        }
        self.wills.insert(id, WillSlot { row: Box::new(row), stored: true });
        Ok(())
    }

    fn load_lifetime(&mut self, key: &[u8], lifetime: u64, row: LifetimeRow) -> Result<(), RowError> {
        if lifetime >= self.next_lifetime || row.end < row.base {
            return Err(corrupt(key, "the lifetime was never given out or its inbox is inside out"));
        }
        let mut children = Children::new(row.session_generation, row.base);
        children.next_sequence = row.next_sequence;
        children.stored = true;
        children.inbox.log.delivered = row.sent_through;
        children.inbox.sent_by = row.sent_by;
        children.inbox.soonest = row.soonest;
        // One that is over counts for the user whose row it is now.
        let uid = self.uid_of(&row.key);
        let users = &mut self.users;
        let life = self.lifetimes.entry(lifetime).or_insert_with(|| Lifetime {
            key: row.key.clone(),
            fence: 0,
            ended: true,
            children: None,
            expiring: Millis::NEVER,
            user: users.enter(uid.as_ref()),
        });
        if life.key != row.key {
            return Err(corrupt(key, "the lifetime belongs to another session"));
        }
        life.children = Some(Box::new(children));
        self.stat.inboxes += 1;
        Ok(())
    }

    fn load_chunk(&mut self, key: &[u8], rest: &[u8], row: ChunkRow) -> Result<(), RowError> {
        let (lifetime, chunk) =
            rest.split_at_checked(8).ok_or_else(|| corrupt(key, "the key is too short"))?;
        let (lifetime, chunk) = (number(key, lifetime)?, number(key, chunk)?);
        let life = self.lifetimes.get_mut(&lifetime).and_then(|life| life.children.as_deref_mut());
        let inbox: &mut Inbox = &mut life.ok_or_else(|| corrupt(key, "its lifetime is not there"))?.inbox;
        for (at, entry) in row.entries.into_iter().enumerate() {
            let offset = row.first.saturating_add(at as u64);
            let loaded = Loaded {
                message: entry.message,
                qos: entry.qos,
                retain: entry.retain,
                received: entry.received,
                settled: entry.message == 0,
                shared: entry.shared,
                unbound: entry.unbound,
                identifiers: entry.identifiers,
            };
            if offset / CHUNK != chunk || !inbox.load(offset, &loaded) {
                return Err(corrupt(key, "its entries do not follow those before"));
            }
            if loaded.settled {
                continue;
            }
            if !self.messages.adopt(entry.message, entry.len, entry.expires_at) {
                return Err(corrupt(key, "an entry refers to a message that cannot be"));
            }
            inbox.bytes += u64::from(entry.len);
        }
        Ok(())
    }

    fn load_retained(&mut self, key: &[u8], topic: Arc<str>, row: RetainedRow) -> Result<(), RowError> {
        if !self.messages.adopt(row.message, row.len, row.expires_at) {
            return Err(corrupt(key, "it refers to a message that cannot be"));
        }
        if let Some(at) = row.expires_at {
            self.retained_expiry.insert((at, topic.clone()));
        }
        self.retained.insert(topic, row.message);
        self.stat.retained += 1;
        Ok(())
    }

    fn loaded_children(&mut self, key: &[u8], lifetime: u64) -> Result<&mut Children, RowError> {
        self.lifetimes
            .get_mut(&lifetime)
            .and_then(|life| life.children.as_deref_mut())
            .ok_or_else(|| corrupt(key, "its lifetime is not there"))
    }

    /// Whether the boot is known, for rows that name it.
    pub(super) fn knows_boot_of(&self, owner: &Owner) -> bool {
        self.boots.contains_key(&Boot { node_id: owner.node_id, boot_id: owner.boot_id.clone() })
    }
}

/// Decodes a row value behind its version byte.
pub(super) fn decode<'a, T: Deserialize<'a>>(key: &[u8], value: &'a [u8]) -> Result<T, RowError> {
    match value.split_first() {
        Some((&VERSION, rest)) => match postcard::take_from_bytes(rest) {
            Ok((row, [])) => Ok(row),
            Ok(_) => Err(corrupt(key, "bytes are left over")),
            Err(error) => Err(corrupt(key, &error.to_string())),
        },
        Some((version, _)) => Err(corrupt(key, &format!("its version {version} is unknown"))),
        None => Err(corrupt(key, "the value is empty")),
    }
}

pub(super) fn corrupt(key: &[u8], what: &str) -> RowError {
    let mut hex = String::with_capacity(2 * key.len());
    for byte in key {
        let _ = write!(hex, "{byte:02x}");
    }
    RowError::Corrupt { key: hex, what: what.to_owned() }
}

fn number(key: &[u8], bytes: &[u8]) -> Result<u64, RowError> {
    let bytes: [u8; 8] = bytes.try_into().map_err(|_| corrupt(key, "the key has the wrong length"))?;
    Ok(u64::from_be_bytes(bytes))
}

fn numbered_text(key: &[u8], rest: &[u8]) -> Result<(u64, Arc<str>), RowError> {
    let (id, name) = rest.split_at_checked(8).ok_or_else(|| corrupt(key, "the key is too short"))?;
    Ok((number(key, id)?, text(key, name)?))
}

fn numbered_packet(key: &[u8], rest: &[u8]) -> Result<(u64, u16), RowError> {
    let (id, packet_id) = rest.split_at_checked(8).ok_or_else(|| corrupt(key, "the key is too short"))?;
    let packet_id: [u8; 2] =
        packet_id.try_into().map_err(|_| corrupt(key, "the key has the wrong length"))?;
    Ok((number(key, id)?, u16::from_be_bytes(packet_id)))
}

fn numbered_slot(key: &[u8], rest: &[u8]) -> Result<(u64, u32), RowError> {
    let (id, slot) = rest.split_at_checked(8).ok_or_else(|| corrupt(key, "the key is too short"))?;
    let slot: [u8; 4] = slot.try_into().map_err(|_| corrupt(key, "the key has the wrong length"))?;
    Ok((number(key, id)?, u32::from_be_bytes(slot)))
}

fn text(key: &[u8], bytes: &[u8]) -> Result<Arc<str>, RowError> {
    std::str::from_utf8(bytes).map(Into::into).map_err(|_| corrupt(key, "the key is not UTF-8"))
}
