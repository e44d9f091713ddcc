//! The space against what the lease spec asks of it, hole by hole.

mod group;
mod life;
mod mpmc;
mod mpsc;
mod purity;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::lease::{GRACE_MS, LeaseCommand, LeaseOutcome};
use crate::message::{Message, QoS};
use crate::time::Millis;

pub(super) const TTL_MS: u64 = 90_000;

/// A space with its bodies, checked after every step.
#[derive(Debug, Default)]
pub(super) struct World {
    pub space: Space,
    pub bodies: PlainBodies,
    nonce: u64,
    sequences: BTreeMap<u64, u64>,
}

impl World {
    pub(super) fn lease_command(&mut self, command: &LeaseCommand) -> LeaseOutcome {
        let reply = self.space.apply_lease(command, &mut self.bodies);
        self.check();
        reply.outcome.expect("the command is allowed")
    }

    pub(super) fn queue(&mut self, command: &QueueCommand) -> QueueReply {
        let reply = self.space.apply_queue(command, Millis(1), &mut self.bodies);
        self.check();
        reply
    }

    fn check(&self) {
        self.space.check().expect("invariants hold after every command");
        assert_eq!(self.bodies.len() as u64, self.space.stat().messages, "each record has one body");
    }

    pub(super) fn grant(&mut self) -> u64 {
        match self.lease_command(&LeaseCommand::Grant { ttl_ms: TTL_MS }) {
            LeaseOutcome::Granted { lease } => lease,
            other => panic!("{other:?}"),
        }
    }

    /// Lease time passes, and what is due ends.
    pub(super) fn pass(&mut self, ms: u64) {
        let from = self.space.leases().clock();
        self.lease_command(&LeaseCommand::Beat { from, to: from + ms });
        self.lease_command(&LeaseCommand::Expire { limit: 1_000 });
    }

    pub(super) fn keep(&mut self, lease: u64) {
        self.lease_command(&LeaseCommand::Keepalive { leases: vec![lease] });
    }

    pub(super) fn try_bind(
        &mut self,
        name: &str,
        kind: Kind,
        role: Role,
        weight: u32,
        lease: u64,
    ) -> QueueReply {
        self.nonce += 1;
        let spec = spec(10);
        let target = Target::Named { name: name.into(), kind, spec };
        let bind =
            Bind { target, role, lease: Hold::Own(lease), nonce: self.nonce, weight, label: "test".into() };
        self.queue(&QueueCommand::Bind(Box::new(bind)))
    }

    pub(super) fn bind_spec(&mut self, name: &str, kind: Kind, role: Role, weight: u32, spec: Spec) -> Bound {
        self.nonce += 1;
        let lease = self.grant();
        let target = Target::Named { name: name.into(), kind, spec };
        let bind =
            Bind { target, role, lease: Hold::Own(lease), nonce: self.nonce, weight, label: "test".into() };
        match self.queue(&QueueCommand::Bind(Box::new(bind))) {
            QueueReply::Bound(bound) => bound,
            other => panic!("{other:?}"),
        }
    }

    /// A producer or consumer with a lease of its own.
    pub(super) fn bind(&mut self, name: &str, kind: Kind, role: Role) -> (Bound, u64) {
        let lease = self.grant();
        match self.try_bind(name, kind, role, 1, lease) {
            QueueReply::Bound(bound) => (bound, lease),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn put(&mut self, member: u64, payload: &[u8]) -> QueueReply {
        let sequence = self.sequences.get(&member).copied().unwrap_or_default() + 1;
        let reply = self.append(member, sequence, &[payload]);
        if matches!(reply, QueueReply::Appended { .. }) {
            self.sequences.insert(member, sequence);
        }
        reply
    }

    pub(super) fn append(&mut self, member: u64, sequence: u64, payloads: &[&[u8]]) -> QueueReply {
        let messages = payloads.iter().map(|payload| message(payload)).collect();
        self.queue(&QueueCommand::Append { member, sequence, messages })
    }

    /// Everything that the consumer has to read now: channel, offset, payload, redelivered.
    pub(super) fn readable(&self, member: u64) -> Vec<(Owned, u64, Vec<u8>, bool)> {
        let mut all = Vec::new();
        for owned in self.space.owned(member).expect("it is a consumer") {
            let mut page = Page::default();
            let at = (member, owned.channel, owned.epoch);
            self.space.read(at, 0, usize::MAX, &self.bodies, &mut page).expect("it owns the log");
            all.extend(page.records.into_iter().map(|record| {
                let payload = record.message.expect("bodies are in memory").payload().to_vec();
                (owned, record.offset, payload, record.redelivered)
            }));
        }
        all
    }

    /// Reads and acknowledges everything; returns the payloads.
    pub(super) fn consume(&mut self, member: u64) -> Vec<Vec<u8>> {
        let readable = self.readable(member);
        for (owned, offset, ..) in &readable {
            assert_eq!(self.ack(member, *owned, *offset), QueueReply::Settled { records: 1 });
        }
        readable.into_iter().map(|(_, _, payload, _)| payload).collect()
    }

    pub(super) fn ack(&mut self, member: u64, owned: Owned, offset: u64) -> QueueReply {
        let (channel, epoch) = (owned.channel, owned.epoch);
        self.queue(&QueueCommand::Ack { member, channel, epoch, through: 0, sparse: vec![offset] })
    }

    pub(super) fn leave(&mut self, member: u64) {
        assert_eq!(self.queue(&QueueCommand::Leave { member, delivered: Vec::new() }), QueueReply::Done);
    }
}

pub(super) const CONSUMER: Role = Role::Consumer { credit: 5 };

pub(super) fn spec(messages_max: u64) -> Spec {
    Spec { messages_max, bytes_max: 1 << 20, ttl_ms: TTL_MS }
}

pub(super) fn message(payload: &[u8]) -> Message {
    let mut message = Message::new("", &[], payload);
    message.qos = QoS::AtLeastOnce;
    message
}

pub(super) fn after_ttl() -> u64 {
    TTL_MS + GRACE_MS
}

/// All rows as stored from scratch.
pub(super) fn dump(space: &Space, bodies: &PlainBodies) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut rows = BTreeMap::new();
    space.dump(bodies, &mut |key, value| {
        rows.insert(key.to_vec(), value.expect("a dump has only values").to_vec());
    });
    rows
}

pub(super) fn drain(space: &mut Space, bodies: &PlainBodies, rows: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    space.drain_dirty(bodies, &mut |key, value| match value {
        Some(value) => drop(rows.insert(key.to_vec(), value.to_vec())),
        None => drop(rows.remove(key)),
    });
}

pub(super) fn load(rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Space, String> {
    let mut space = Space::default();
    for (key, value) in rows {
        space.load(key, value)?;
    }
    if !space.take_loaded_bodies(&mut |_, _, _| true) {
        return Err("bodies".to_owned());
    }
    space.finish_load()?;
    Ok(space)
}

/// A body that both spaces share.
pub(super) fn copy(bodies: &PlainBodies, ids: impl Iterator<Item = u64>) -> PlainBodies {
    let mut copy = PlainBodies::default();
    for id in ids {
        copy.restore(id, Arc::clone(&bodies.get(id).expect("it is there")));
    }
    copy
}
