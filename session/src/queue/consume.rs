//! Settling records: acknowledgements of a consumer under its epoch, claims and settlements of group members.

use super::RECORDS_AT_ONCE;
use super::body::Bodies;
use super::command::{Kind, QueueReply, Refusal, Role, Settle};
use super::space::Space;
use crate::log::Entry as _;

impl Space {
    /// Cumulative and sparse; `at` is (member, channel, epoch).
    pub(super) fn ack(
        &mut self,
        at: (u64, u64, u64),
        through: u64,
        sparse: &[u64],
        bodies: &mut dyn Bodies,
    ) -> Result<QueueReply, Refusal> {
        let (member, channel, epoch) = at;
        self.member(member)?;
        let found = self.channel(channel)?;
        if found.row.kind != Kind::Mpsc {
            return Err(Refusal::WrongKind);
        }
        if found.row.consumer != member || found.row.epoch != epoch {
            return Err(Refusal::Fenced);
        }
        if sparse.len() > RECORDS_AT_ONCE {
            return Err(Refusal::TooMany(sparse.len() as u64));
        }
        let end = found.log.end();
        if through > end || sparse.iter().any(|offset| *offset >= end) {
            return Err(Refusal::NoSuchRecord);
        }
        let mut records = 0;
        while let Some(offset) = self.channel(channel)?.log.oldest()
            && offset < through
        {
            records += u64::from(self.settle_one(channel, offset, bodies));
        }
        for offset in sparse {
            records += u64::from(self.settle_one(channel, *offset, bodies));
        }
        if records > 0 {
            let parent = self.channel(channel)?.row.parent;
            self.drop_if_drained(channel);
            self.wake_producers(if parent == 0 { channel } else { parent });
        }
        Ok(QueueReply::Settled { records })
    }

    /// Frees one record; false when it is settled already.
    pub(super) fn settle_one(&mut self, channel: u64, offset: u64, bodies: &mut dyn Bodies) -> bool {
        let Ok(found) = self.channel_mut(channel) else { return false };
        let Some(entry) = found.log.settle(offset) else { return false };
        found.released.remove(&offset);
        bodies.release(entry.body);
        self.stat.messages -= 1;
        self.stat.bytes -= entry.len();
        true
    }

    /// An adopted sub-channel goes with its last record, unless it is the only one.
    pub(super) fn drop_if_drained(&mut self, sub: u64) {
        let Some(found) = self.channels.get(&sub) else { return };
        let parent = found.row.parent;
        if parent != 0 && found.row.draining && found.log.messages() == 0 {
            self.remove_log(sub);
            if let Ok(parent) = self.channel_mut(parent) {
                parent.row.subs.remove(&sub);
            }
            self.stat.subs -= 1;
        }
    }

    /// The member takes the oldest records that nobody has, as its credit allows.
    pub(super) fn claim(&mut self, member: u64, max: u32) -> Result<QueueReply, Refusal> {
        let row = self.member(member)?;
        let Role::Consumer { credit } = row.role else { return Err(Refusal::WrongRole) };
        let top = row.channel;
        let max = max.min(credit.saturating_sub(row.claims)).min(RECORDS_AT_ONCE as u32);
        let found = self.channel(top)?;
        if found.row.kind != Kind::Group {
            return Err(Refusal::WrongKind);
        }
        let mut offsets: Vec<u64> = found.released.iter().take(max as usize).copied().collect();
        let fresh = max as usize - offsets.len();
        offsets.extend(found.log.unsettled(found.row.cursor).map(|(offset, _)| offset).take(fresh));
        if offsets.is_empty() {
            return Ok(QueueReply::Claimed { offsets });
        }
        let found = self.channel_mut(top)?;
        for offset in &offsets {
            found.released.remove(offset);
            found.claims.insert(*offset, member);
            found.row.cursor = found.row.cursor.max(offset + 1);
        }
        self.dirty.claims.extend(offsets.iter().map(|offset| (top, *offset)));
        self.member_mut(member)?.claims += u32::try_from(offsets.len()).unwrap_or(u32::MAX);
        Ok(QueueReply::Claimed { offsets })
    }

    pub(super) fn settle(
        &mut self,
        member: u64,
        settles: &[(u64, Settle)],
        bodies: &mut dyn Bodies,
    ) -> Result<QueueReply, Refusal> {
        let top = self.member(member)?.channel;
        let found = self.channel(top)?;
        if found.row.kind != Kind::Group {
            return Err(Refusal::WrongKind);
        }
        if settles.len() > RECORDS_AT_ONCE {
            return Err(Refusal::TooMany(settles.len() as u64));
        }
        for (offset, _) in settles {
            if *offset >= found.log.end() {
                return Err(Refusal::NoSuchRecord);
            }
            let settled = found.log.entry(*offset).is_none_or(|entry| entry.settled());
            if !settled && found.claims.get(offset) != Some(&member) {
                return Err(Refusal::Fenced);
            }
        }
        let mut records = 0;
        for (offset, how) in settles {
            if self.channel(top)?.claims.get(offset) != Some(&member) {
                continue;
            }
            self.unclaim(top, *offset, member);
            match how {
                Settle::Ack => records += u64::from(self.settle_one(top, *offset, bodies)),
                Settle::Discard => {
                    records += u64::from(self.settle_one(top, *offset, bodies));
                    self.channel_mut(top)?.row.discarded += 1;
                }
                Settle::Release => {
                    let found = self.channel_mut(top)?;
                    found.log.mark_redelivered(*offset);
                    found.released.insert(*offset);
                }
            }
        }
        self.wake_claimers(top);
        self.wake_producers(top);
        Ok(QueueReply::Settled { records })
    }

    pub(super) fn unclaim(&mut self, top: u64, offset: u64, member: u64) {
        if let Ok(found) = self.channel_mut(top) {
            found.claims.remove(&offset);
        }
        self.dirty.claims.insert((top, offset));
        if let Ok(row) = self.member_mut(member) {
            row.claims = row.claims.saturating_sub(1);
        }
    }
}
