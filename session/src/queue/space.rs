//! The space: leases and channels of one group, and the one dispatch through which both change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::body::Bodies;
use super::channel::{Channel, Member};
use super::command::{Hold, QueueCommand, QueueReply, Refusal};
use super::read::SpaceStat;
use crate::lease::{Ended, LeaseCommand, LeaseReply, LeaseTable, Protects};
use crate::time::Millis;

/// All leases and channels of one group.
#[derive(Debug, Default)]
pub struct Space {
    pub(super) leases: LeaseTable,
    /// Ids given out so far; never reused, so that an id fences.
    pub(super) last_channel: u64,
    pub(super) last_member: u32,
    pub(super) channels: BTreeMap<u64, Channel>,
    pub(super) members: BTreeMap<u64, Member>,
    // derived
    pub(super) names: BTreeMap<Arc<str>, u64>,
    pub(super) holders: BTreeMap<Hold, BTreeSet<u64>>,
    /// Lease and nonce of a bind to the member that it made: for a bind that is tried again.
    pub(super) binds: BTreeMap<(Hold, u64), u64>,
    /// Channels whose leases are gone.
    pub(super) reclaimable: BTreeSet<u64>,
    pub(super) stat: SpaceStat,
    pub(super) dirty: Dirty,
    /// Members that have something to look at since the last [`Self::take_wakes`].
    pub(super) wakes: BTreeSet<u64>,
    pub(super) due_changed: bool,
    /// While rows are loaded: when bodies expire.
    pub(super) loading: BTreeMap<u64, Millis>,
}

/// What changed since the last drain.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub meta: bool,
    pub channels: BTreeSet<u64>,
    pub members: BTreeSet<u64>,
    pub claims: BTreeSet<(u64, u64)>,
    /// Chunks of logs that are gone.
    pub chunks: Vec<(u64, std::ops::Range<u64>)>,
}

impl Space {
    /// Applies a command to the leases, and to the channels what follows from it.
    pub fn apply_lease(&mut self, command: &LeaseCommand, bodies: &mut dyn Bodies) -> LeaseReply {
        let mut ended = Vec::new();
        let reply = self.leases.apply(command, &mut ended);
        for ended in ended {
            self.lease_ended(ended, bodies);
        }
        reply
    }

    /// Applies a command to the channels. `now` is only shown to operators: nothing is decided by it.
    pub fn apply_queue(
        &mut self,
        command: &QueueCommand,
        now: Millis,
        bodies: &mut dyn Bodies,
    ) -> QueueReply {
        let result = match command {
            QueueCommand::Bind(bind) => self.bind(bind, now),
            QueueCommand::Leave { member, delivered } => Ok(self.leave(*member, delivered, bodies)),
            QueueCommand::Append { member, sequence, messages } => {
                self.append(*member, *sequence, messages, now, bodies)
            }
            QueueCommand::Withdraw { member } => self.withdraw(*member),
            QueueCommand::Ack { member, channel, epoch, through, sparse } => {
                self.ack((*member, *channel, *epoch), *through, sparse, bodies)
            }
            QueueCommand::Claim { member, max } => self.claim(*member, *max),
            QueueCommand::Settle { member, settles } => self.settle(*member, settles, bodies),
            QueueCommand::Seal { channel, reason } => self.seal(*channel, *reason),
            QueueCommand::Delete { channel } => self.delete(*channel, bodies),
            QueueCommand::Reclaim { channel, limit } => self.reclaim(*channel, *limit, bodies),
            QueueCommand::LeaseGone { lease } => {
                self.drop_holders(*lease, bodies);
                Ok(QueueReply::Done)
            }
        };
        result.unwrap_or_else(QueueReply::Refused)
    }

    fn lease_ended(&mut self, ended: Ended, bodies: &mut dyn Bodies) {
        match ended.protects {
            Protects::Members => self.drop_holders(Hold::Own(ended.lease), bodies),
            Protects::Channel(channel) => self.expire_channel(channel),
            Protects::Payload(channel) => {
                self.reclaimable.insert(channel);
                self.due_changed = true;
            }
        }
    }

    /// Members that have something to look at since the last call, ascending.
    pub fn take_wakes(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.wakes).into_iter().collect()
    }

    /// Whether something became due earlier since the last call: the keeper looks again.
    pub fn take_due_changed(&mut self) -> bool {
        self.leases.take_changed() | std::mem::take(&mut self.due_changed)
    }

    pub(super) fn channel(&self, channel: u64) -> Result<&Channel, Refusal> {
        self.channels.get(&channel).ok_or(Refusal::Missing)
    }

    /// For changing it: it is written with the next drain.
    pub(super) fn channel_mut(&mut self, channel: u64) -> Result<&mut Channel, Refusal> {
        let found = self.channels.get_mut(&channel).ok_or(Refusal::Missing)?;
        self.dirty.channels.insert(channel);
        Ok(found)
    }

    pub(super) fn member(&self, member: u64) -> Result<&Member, Refusal> {
        self.members.get(&member).ok_or(Refusal::Fenced)
    }

    pub(super) fn member_mut(&mut self, member: u64) -> Result<&mut Member, Refusal> {
        let found = self.members.get_mut(&member).ok_or(Refusal::Fenced)?;
        self.dirty.members.insert(member);
        Ok(found)
    }
}
