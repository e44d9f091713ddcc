//! Taking stored rows back in. Nothing that comes from disk is trusted.

use serde::Deserialize;

use super::channel::{Channel, ChannelRow, Member};
use super::command::{Kind, Role};
use super::record::Kept;
use super::rows::{CHANNEL, CHUNK_ROW, CLAIM, ChunkRow, LEASE, MEMBER, META, MetaRow, VERSION};
use super::space::Space;
use crate::lease::{LeaseRow, Protects};
use crate::log::{CHUNK, Entry};
use crate::time::Millis;

impl Space {
    /// Takes one row back in, in key order.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let rest = key.get(1..).unwrap_or_default();
        let (kind, rest) = rest.split_first().ok_or("the key is too short")?;
        let numbers = numbers(rest)?;
        match (*kind, numbers.as_slice()) {
            (META, []) => {
                let row: MetaRow = decode(value)?;
                self.leases.load_meta(row.leases);
                (self.last_channel, self.last_member) = (row.last_channel, row.last_member);
                Ok(())
            }
            (LEASE, [lease]) => {
                let row: LeaseRow = decode(value)?;
                self.leases.load(*lease, row).then_some(()).ok_or_else(|| "the lease cannot be".to_owned())
            }
            (CHANNEL, [id]) => self.load_channel(*id, decode(value)?),
            (MEMBER, [id]) => self.load_member(*id, decode(value)?),
            (CHUNK_ROW, [channel, chunk]) => self.load_chunk(*channel, *chunk, decode(value)?),
            (CLAIM, [channel, offset]) => self.load_claim(*channel, *offset, decode(value)?),
            _ => Err("the kind of row is unknown".to_owned()),
        }
    }

    fn load_channel(&mut self, id: u64, row: ChannelRow) -> Result<(), String> {
        if id == 0 || id > self.last_channel || row.end < row.base || row.delivered > row.end {
            return Err("the channel was never given out or its log is inside out".to_owned());
        }
        if let Some(name) = row.name.clone().filter(|_| !row.closing)
            && self.names.insert(name, id).is_some()
        {
            return Err("two channels have one name".to_owned());
        }
        if row.parent == 0 {
            self.stat.channels += 1;
        } else {
            self.stat.subs += 1;
        }
        self.channels.insert(id, Channel::from_row(row));
        Ok(())
    }

    fn load_member(&mut self, id: u64, row: Member) -> Result<(), String> {
        if id == 0 || id > u64::from(self.last_member) {
            return Err("the member was never given out".to_owned());
        }
        let channel = self.channels.get_mut(&row.channel).ok_or("its channel is not there")?;
        channel.members.insert(id);
        if row.hungry {
            channel.hungry.insert(id);
        }
        self.holders.entry(row.lease).or_default().insert(id);
        self.binds.insert((row.lease, row.nonce), id);
        self.members.insert(id, row);
        self.stat.members += 1;
        Ok(())
    }

    fn load_chunk(&mut self, channel: u64, chunk: u64, row: ChunkRow) -> Result<(), String> {
        let found = self.channels.get_mut(&channel).ok_or("its channel is not there")?;
        for (at, record) in row.records.into_iter().enumerate() {
            let offset = row.first.saturating_add(at as u64);
            let entry = Kept::from_stored(record.body, record.producer, record.word);
            let entry = entry.ok_or("a record has unknown flags")?;
            if offset / CHUNK != chunk || !found.log.load(offset, entry) {
                return Err("its records do not follow those before".to_owned());
            }
            if entry.settled() {
                continue;
            }
            self.stat.messages += 1;
            self.stat.bytes += entry.len();
            if let Some(at) = record.expires_at {
                self.loading.insert(record.body, at);
            }
        }
        Ok(())
    }

    fn load_claim(&mut self, channel: u64, offset: u64, member: u64) -> Result<(), String> {
        let found = self.channels.get_mut(&channel).ok_or("its channel is not there")?;
        if found.row.kind != Kind::Group || !found.members.contains(&member) {
            return Err("a claim has no member".to_owned());
        }
        if found.log.entry(offset).is_none_or(|entry| entry.settled()) || offset >= found.row.cursor {
            return Err("a claim is of no record".to_owned());
        }
        found.claims.insert(offset, member);
        Ok(())
    }

    /// The bodies that loaded records refer to: id, length, when they expire. To be called once, behind the last row.
    pub fn take_loaded_bodies(&mut self, visit: &mut dyn FnMut(u64, u32, Option<Millis>) -> bool) -> bool {
        let expires = std::mem::take(&mut self.loading);
        let mut records = self.channels.values().flat_map(|found| found.log.unsettled(0));
        records.all(|(_, entry)| {
            let len = u32::try_from(entry.len()).unwrap_or(u32::MAX);
            visit(entry.body, len, expires.get(&entry.body).copied())
        })
    }

    /// Rebuilds what is derived, and checks what the rows say of each other.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn finish_load(&mut self) -> Result<(), String> {
        let ids: Vec<u64> = self.channels.keys().copied().collect();
        for id in ids {
            let Some(found) = self.channels.get_mut(&id) else { continue };
            if found.row.kind == Kind::Group {
                let cursor = found.row.cursor;
                let unclaimed = found.log.unsettled(0).map(|(offset, _)| offset);
                let released: Vec<u64> = unclaimed
                    .take_while(|offset| *offset < cursor)
                    .filter(|offset| !found.claims.contains_key(offset))
                    .collect();
                found.released.extend(released);
            }
            if found.row.closing && self.leases.row(found.row.payload).is_none() {
                self.reclaimable.insert(id);
            }
        }
        self.dirty.meta = false;
        self.check()
    }

    /// Checks every invariant of the space. O(n).
    ///
    /// # Errors
    /// The first one that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut counted = super::read::SpaceStat { members: self.members.len() as u64, ..Default::default() };
        if !self.leases.is_coherent() {
            return Err("the counters of the leases are wrong".to_owned());
        }
        for (id, found) in &self.channels {
            let row = &found.row;
            if row.parent == 0 {
                counted.channels += 1;
                self.check_leases(*id, found)?;
            } else {
                counted.subs += 1;
                let parent = self.channels.get(&row.parent);
                if parent.is_none_or(|parent| !parent.row.subs.contains_key(id)) {
                    return Err(format!("sub-channel {id} has no parent"));
                }
            }
            if row.subs.keys().any(|sub| self.channels.get(sub).is_none_or(|sub| sub.row.parent != *id)) {
                return Err(format!("channel {id} lists a sub-channel that is not its own"));
            }
            counted.messages += found.log.messages();
            counted.bytes += found.log.bytes();
            if !found.log.is_coherent() {
                return Err(format!("the counters of channel {id} are wrong"));
            }
            let top = if row.parent == 0 { Some(found) } else { self.channels.get(&row.parent) };
            let consumes = row.consumer == 0 || top.is_some_and(|top| top.members.contains(&row.consumer));
            if !consumes {
                return Err(format!("the consumer of channel {id} is no member"));
            }
        }
        for (id, member) in &self.members {
            let claims = self.channels.get(&member.channel).map_or(0, |found| {
                if found.row.kind == Kind::Group {
                    found.claims.values().filter(|by| *by == id).count()
                } else {
                    0
                }
            });
            let credit = match member.role {
                Role::Consumer { credit } => credit,
                Role::Producer => 0,
            };
            if claims != member.claims as usize || member.claims > credit {
                return Err(format!("the claims of member {id} are miscounted"));
            }
        }
        if counted == self.stat {
            Ok(())
        } else {
            Err(format!("totals {:?}, counted {counted:?}", self.stat))
        }
    }

    /// A channel with members has leases without a deadline; both of an open one are there.
    fn check_leases(&self, id: u64, found: &Channel) -> Result<(), String> {
        let row = &found.row;
        for (lease, protects) in [(row.lease, Protects::Channel(id)), (row.payload, Protects::Payload(id))] {
            let there = self.leases.row(lease);
            let fits = there.is_none_or(|there| there.protects == protects);
            let held = there.is_some_and(|there| {
                self.leases.left_ms(lease) == Some(u64::MAX) && there.protects == protects
            });
            if !fits || !row.closing && there.is_none() || held == found.members.is_empty() && !row.closing {
                return Err(format!("a lease of channel {id} is not as its members are"));
            }
        }
        Ok(())
    }

    /// References that records hold, for the check of the bodies.
    pub fn body_ids(&self) -> impl Iterator<Item = u64> {
        self.channels.values().flat_map(|found| found.log.unsettled(0)).map(|(_, entry)| entry.body)
    }
}

fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, String> {
    match value.split_first() {
        Some((&VERSION, rest)) => match postcard::take_from_bytes(rest) {
            Ok((row, [])) => Ok(row),
            Ok(_) => Err("bytes are left over".to_owned()),
            Err(error) => Err(error.to_string()),
        },
        Some((version, _)) => Err(format!("its version {version} is unknown")),
        None => Err("the value is empty".to_owned()),
    }
}

fn numbers(rest: &[u8]) -> Result<Vec<u64>, String> {
    let (numbers, left) = rest.as_chunks::<8>();
    if !left.is_empty() {
        return Err("the key has the wrong length".to_owned());
    }
    Ok(numbers.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect())
}
