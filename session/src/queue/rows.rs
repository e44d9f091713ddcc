//! The stored form of a space, behind the first byte [`super::ROW`]:
//!
//! | second byte | rest of the key | value |
//! | --- | --- | --- |
//! | 1 | – | lease time and counters |
//! | 2 | lease | lease |
//! | 3 | channel | channel and the state of its log |
//! | 4 | member | member |
//! | 5 | channel, chunk number | up to 64 records |
//! | 6 | channel, offset | claim of a group member |
//!
//! Numbers in keys are big-endian; values are a version byte and postcard. Records repeat when their body expires, so that loading
//! needs no body.

use serde::{Deserialize, Serialize};

use super::ROW;
use super::body::Bodies;
use super::space::Space;
use crate::lease::LeaseMeta;
use crate::time::Millis;

pub(super) const VERSION: u8 = 1;
pub(super) const META: u8 = 1;
pub(super) const LEASE: u8 = 2;
pub(super) const CHANNEL: u8 = 3;
pub(super) const MEMBER: u8 = 4;
pub(super) const CHUNK_ROW: u8 = 5;
pub(super) const CLAIM: u8 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MetaRow {
    pub leases: LeaseMeta,
    pub last_channel: u64,
    pub last_member: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RecordRow {
    /// 0: settled.
    pub body: u64,
    pub producer: u32,
    /// Length in the low 28 bits, flags above.
    pub word: u32,
    pub expires_at: Option<Millis>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChunkRow {
    pub first: u64,
    pub records: Vec<RecordRow>,
}

/// Takes a row: its key, and its value or `None`.
type Visit<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;

#[derive(Debug, Default)]
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Buffers {
    fn key(&mut self, kind: u8, numbers: &[u64]) {
        self.key.clear();
        self.key.extend_from_slice(&[ROW, kind]);
        numbers.iter().for_each(|number| self.key.extend_from_slice(&number.to_be_bytes()));
    }

    fn value<T: Serialize>(&mut self, row: &T) {
        self.value.clear();
        self.value.push(VERSION);
        let value = std::mem::take(&mut self.value);
        self.value = postcard::to_extend(row, value).expect("rows hold nothing that has no stored form");
    }
}

impl Space {
    fn meta_row(&self) -> MetaRow {
        MetaRow { leases: self.leases.meta(), last_channel: self.last_channel, last_member: self.last_member }
    }

    /// Whether it was ever used.
    fn has_meta(&self) -> bool {
        let meta = self.meta_row();
        meta.leases.clock > 0 || meta.leases.next > 1 || meta.last_channel > 0 || meta.last_member > 0
    }

    /// Visits every row changed since the last call, `None` for a removed one, and forgets the changes.
    pub fn drain_dirty(&mut self, bodies: &dyn Bodies, visit: &mut Visit<'_>) {
        let mut buffers = Buffers::default();
        if std::mem::take(&mut self.dirty.meta) | std::mem::take(&mut self.leases.dirty_meta) {
            buffers.key(META, &[]);
            buffers.value(&self.meta_row());
            visit(&buffers.key, Some(&buffers.value));
        }
        for lease in std::mem::take(&mut self.leases.dirty) {
            let row = self.leases.row(lease);
            Self::put(&mut buffers, LEASE, &[lease], row, visit);
        }
        for (channel, chunks) in std::mem::take(&mut self.dirty.chunks) {
            for chunk in chunks {
                buffers.key(CHUNK_ROW, &[channel, chunk]);
                visit(&buffers.key, None);
            }
        }
        let mut chunks = Vec::new();
        for channel in std::mem::take(&mut self.dirty.channels) {
            let row = self.channels.get(&channel).map(super::channel::Channel::stored);
            Self::put(&mut buffers, CHANNEL, &[channel], row.as_ref(), visit);
            let Some(found) = self.channels.get_mut(&channel) else { continue };
            found.log.drain(&mut chunks);
            for (chunk, exists) in chunks.drain(..) {
                if exists {
                    self.encode_chunk(channel, chunk, bodies, &mut buffers);
                } else {
                    buffers.key(CHUNK_ROW, &[channel, chunk]);
                }
                visit(&buffers.key, exists.then_some(&buffers.value));
            }
        }
        for member in std::mem::take(&mut self.dirty.members) {
            Self::put(&mut buffers, MEMBER, &[member], self.members.get(&member), visit);
        }
        for (channel, offset) in std::mem::take(&mut self.dirty.claims) {
            let by = self.channels.get(&channel).and_then(|found| found.claims.get(&offset));
            Self::put(&mut buffers, CLAIM, &[channel, offset], by, visit);
        }
    }

    /// Visits every row in key order.
    pub fn dump(&self, bodies: &dyn Bodies, visit: &mut Visit<'_>) {
        let mut buffers = Buffers::default();
        if self.has_meta() {
            Self::put(&mut buffers, META, &[], Some(&self.meta_row()), visit);
        }
        for (lease, row) in self.leases.rows() {
            Self::put(&mut buffers, LEASE, &[lease], Some(row), visit);
        }
        for (id, found) in &self.channels {
            Self::put(&mut buffers, CHANNEL, &[*id], Some(&found.stored()), visit);
        }
        for (id, row) in &self.members {
            Self::put(&mut buffers, MEMBER, &[*id], Some(row), visit);
        }
        for (id, found) in &self.channels {
            for chunk in found.log.chunks() {
                self.encode_chunk(*id, chunk, bodies, &mut buffers);
                visit(&buffers.key, Some(&buffers.value));
            }
        }
        for (id, found) in &self.channels {
            for (offset, by) in &found.claims {
                Self::put(&mut buffers, CLAIM, &[*id, *offset], Some(by), visit);
            }
        }
    }

    fn put<T: Serialize>(
        buffers: &mut Buffers,
        kind: u8,
        numbers: &[u64],
        row: Option<&T>,
        visit: &mut Visit<'_>,
    ) {
        buffers.key(kind, numbers);
        if let Some(row) = row {
            buffers.value(row);
        }
        visit(&buffers.key, row.map(|_| &*buffers.value));
    }

    fn encode_chunk(&self, channel: u64, chunk: u64, bodies: &dyn Bodies, buffers: &mut Buffers) {
        let Some(found) = self.channels.get(&channel) else { return };
        let offsets = found.log.chunk_offsets(chunk);
        let records = offsets.clone().filter_map(|offset| found.log.entry(offset)).map(|entry| RecordRow {
            body: entry.body,
            producer: entry.producer,
            word: entry.word(),
            expires_at: bodies.expires_at(entry.body),
        });
        let row = ChunkRow { first: offsets.start, records: records.collect() };
        buffers.key(CHUNK_ROW, &[channel, chunk]);
        buffers.value(&row);
    }
}
