//! Appending: stamp, admission and record in one step, and which sub-channel of an MPMC channel takes it.

use super::body::Bodies;
use super::command::{Kind, QueueReply, Refusal, Role};
use super::record::Kept;
use super::space::Space;
use super::{RECORD_BYTES_MAX, RECORDS_AT_ONCE, STAMPS_KEPT};
use crate::message::{Message, QoS};
use crate::time::Millis;

impl Space {
    pub(super) fn append(
        &mut self,
        member: u64,
        sequence: u64,
        messages: &[Message],
        now: Millis,
        bodies: &mut dyn Bodies,
    ) -> Result<QueueReply, Refusal> {
        let producer = self.member(member)?;
        if producer.role != Role::Producer {
            return Err(Refusal::WrongRole);
        }
        if messages.is_empty() || messages.len() > RECORDS_AT_ONCE {
            return Err(Refusal::TooMany(messages.len() as u64));
        }
        let expected = producer.sequence + 1;
        if sequence != expected {
            let known = producer.stamps.iter().find(|(number, ..)| *number == sequence);
            let (_, channel, first) = known.ok_or(Refusal::OutOfOrder { expected })?;
            return Ok(QueueReply::Appended { channel: *channel, first: *first, duplicate: true });
        }
        let top = producer.channel;
        let row = &self.channel(top)?.row;
        if let Some(reason) = row.sealed {
            return Err(Refusal::Sealed(reason));
        }
        let need = (messages.len() as u64, messages.iter().map(|message| message.len() as u64).sum());
        let spec = row.spec;
        let fits_ever = need.0 <= spec.messages_max && need.1 <= spec.bytes_max;
        if !fits_ever || messages.iter().any(|message| message.len() > RECORD_BYTES_MAX) {
            return Err(Refusal::TooLarge);
        }
        let Some(log) = self.log_with_room(top, member, need, now)? else {
            self.member_mut(member)?.hungry = true;
            if let Some(found) = self.channels.get_mut(&top) {
                found.hungry.insert(member);
            }
            return Err(Refusal::Full);
        };
        let first = self.push(log, member, messages, bodies)?;
        self.sated(top, member);
        let producer = self.member_mut(member)?;
        producer.sequence = sequence;
        producer.stamps.push_back((sequence, log, first));
        if producer.stamps.len() > STAMPS_KEPT {
            producer.stamps.pop_front();
        }
        self.wake_consumers(top, log);
        Ok(QueueReply::Appended { channel: log, first, duplicate: false })
    }

    fn push(
        &mut self,
        log: u64,
        member: u64,
        messages: &[Message],
        bodies: &mut dyn Bodies,
    ) -> Result<u64, Refusal> {
        let producer = u32::try_from(member).map_err(|_too_large| Refusal::Fenced)?;
        let found = self.channel_mut(log)?;
        let first = found.log.end();
        let mut bytes = 0;
        for message in messages {
            let len = u32::try_from(message.len()).map_err(|_too_large| Refusal::TooLarge)?;
            let exclusive = message.qos == QoS::ExactlyOnce;
            found.log.append(Kept::new(bodies.put(message), producer, len, exclusive));
            bytes += u64::from(len);
        }
        self.stat.messages += messages.len() as u64;
        self.stat.bytes += bytes;
        Ok(first)
    }

    /// The producer does not wait any more.
    fn sated(&mut self, top: u64, member: u64) {
        if let Some(producer) = self.members.get_mut(&member).filter(|producer| producer.hungry) {
            producer.hungry = false;
            self.dirty.members.insert(member);
        }
        if let Some(found) = self.channels.get_mut(&top) {
            found.hungry.remove(&member);
        }
    }

    pub(super) fn withdraw(&mut self, member: u64) -> Result<QueueReply, Refusal> {
        let top = self.member(member)?.channel;
        self.sated(top, member);
        self.wake_producers(top);
        Ok(QueueReply::Done)
    }

    /// The log that takes `need` records and bytes now; `None`: none has room.
    fn log_with_room(
        &mut self,
        top: u64,
        member: u64,
        need: (u64, u64),
        now: Millis,
    ) -> Result<Option<u64>, Refusal> {
        if self.channel(top)?.row.kind != Kind::Mpmc {
            return Ok(self.admits(top, top, member, need).then_some(top));
        }
        let mut open = self.open_subs(top);
        if open.is_empty() {
            // Nobody consumes yet: what is appended waits for the first one.
            open.push((self.create_sub(top, now)?, 1));
        }
        open.retain(|(sub, _)| self.admits(top, *sub, member, need));
        Ok(self.rotate(top, &open))
    }

    /// Sub-channels that take records, with the weights of their consumers: owned ones, or, while there are none, those that wait for one.
    pub(super) fn open_subs(&self, top: u64) -> Vec<(u64, u32)> {
        let Some(found) = self.channels.get(&top) else { return Vec::new() };
        let open = |owned: bool| {
            let of = move |sub: &u64| {
                let row = &self.channels.get(sub)?.row;
                let fits = !row.draining && (row.consumer != 0) == owned;
                let weight = self.members.get(&row.consumer).map_or(1, |consumer| consumer.weight);
                fits.then_some((*sub, weight))
            };
            found.row.subs.keys().filter_map(of).collect::<Vec<_>>()
        };
        let owned = open(true);
        if owned.is_empty() { open(false) } else { owned }
    }

    /// Smooth weighted round robin over those that have room: each gains its weight, the richest is taken and pays for all.
    fn rotate(&mut self, top: u64, open: &[(u64, u32)]) -> Option<u64> {
        if let [(only, _)] = open {
            return Some(*only);
        }
        let subs = &mut self.channel_mut(top).ok()?.row.subs;
        let mut best: Option<(u64, i64)> = None;
        let mut total = 0;
        for (sub, weight) in open {
            let credit = subs.get_mut(sub)?;
            *credit += i64::from(*weight);
            total += i64::from(*weight);
            if best.is_none_or(|(_, most)| *credit > most) {
                best = Some((*sub, *credit));
            }
        }
        let (sub, _) = best?;
        *subs.get_mut(&sub)? -= total;
        Some(sub)
    }

    fn wake_consumers(&mut self, top: u64, log: u64) {
        let Some(found) = self.channels.get(&log) else { return };
        if found.row.consumer != 0 {
            self.wakes.insert(found.row.consumer);
        } else if found.row.kind == Kind::Group {
            self.wake_claimers(top);
        }
    }

    /// Group members that may claim.
    pub(super) fn wake_claimers(&mut self, top: u64) {
        let Some(found) = self.channels.get(&top) else { return };
        for member in &found.members {
            let may = self.members.get(member).is_some_and(|row| match row.role {
                Role::Consumer { credit } => row.claims < credit,
                Role::Producer => false,
            });
            if may {
                self.wakes.insert(*member);
            }
        }
    }
}
