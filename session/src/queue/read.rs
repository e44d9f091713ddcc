//! What readers see of a space: records for consumers, rows for operators.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::body::Bodies;
use super::command::{Hold, Kind, Refusal, Role, SealReason, Spec};
use super::record::Kept;
use super::space::Space;
use crate::lease::LeaseTable;
use crate::log::Entry as _;
use crate::message::Message;
use crate::time::Millis;

/// A log that a consumer reads, and the epoch under which it acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    pub channel: u64,
    pub epoch: u64,
    /// Oldest record that is not settled.
    pub base: u64,
    pub end: u64,
}

/// One record as a consumer reads it.
#[derive(Debug, Clone)]
pub struct Record {
    pub offset: u64,
    /// It may have been delivered before.
    pub redelivered: bool,
    /// `None`: on disk; fetch it by `body`.
    pub message: Option<Arc<Message>>,
    pub body: u64,
}

/// A page of a log.
#[derive(Debug, Default)]
pub struct Page {
    pub records: Vec<Record>,
    /// Offset to go on from.
    pub next: u64,
    /// Nothing more will ever come behind these records.
    pub sealed: Option<SealReason>,
}

/// Totals of a space, O(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceStat {
    /// Without sub-channels.
    pub channels: u64,
    pub subs: u64,
    pub members: u64,
    /// Records that are not settled.
    pub messages: u64,
    pub bytes: u64,
    /// Channels that wait for their reclamation.
    pub reclaimable: u64,
}

impl std::ops::Add for SpaceStat {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            channels: self.channels + other.channels,
            subs: self.subs + other.subs,
            members: self.members + other.members,
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            reclaimable: self.reclaimable + other.reclaimable,
        }
    }
}

/// One channel or sub-channel, for operators. The backlog is exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelStat {
    pub channel: u64,
    pub kind: Kind,
    /// 0: it is no sub-channel.
    pub parent: u64,
    pub name: Option<Arc<str>>,
    pub spec: Spec,
    pub sealed: Option<SealReason>,
    pub closing: bool,
    pub draining: bool,
    pub epoch: u64,
    /// 0: nobody.
    pub consumer: u64,
    pub base: u64,
    pub end: u64,
    pub messages: u64,
    pub bytes: u64,
    /// Group: records that some member has.
    pub claimed: u64,
    pub discarded: u64,
    pub producers: u64,
    pub consumers: u64,
    pub subs: u64,
    /// `u64::MAX`: held by its members; `None`: gone, or a sub-channel.
    pub lease_left_ms: Option<u64>,
    pub created_at: Millis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStat {
    pub member: u64,
    pub channel: u64,
    pub role: Role,
    pub label: Arc<str>,
    pub weight: u32,
    pub lease: Hold,
    pub bound_at: Millis,
    /// Appends of a producer so far.
    pub appends: u64,
    /// It waits for room.
    pub waiting: bool,
    /// Claims of a group consumer that are not settled.
    pub claims: u32,
}

impl Space {
    /// The leases of this space.
    #[must_use]
    pub fn leases(&self) -> &LeaseTable {
        &self.leases
    }

    #[must_use]
    pub fn stat(&self) -> SpaceStat {
        SpaceStat { reclaimable: self.reclaimable.len() as u64, ..self.stat }
    }

    /// Channels that wait for their reclamation.
    pub fn reclaimable(&self) -> impl Iterator<Item = u64> {
        self.reclaimable.iter().copied()
    }

    /// Leases of other backends that members hang on.
    pub fn foreign_holds(&self) -> impl Iterator<Item = Hold> {
        self.holders.keys().copied().filter(|hold| matches!(hold, Hold::Foreign { .. }))
    }

    /// The logs that a consumer owns, oldest first.
    ///
    /// # Errors
    /// `Fenced`: the member is gone. `WrongRole`: it is a producer.
    pub fn owned(&self, member: u64) -> Result<Vec<Owned>, Refusal> {
        let row = self.member(member)?;
        if !row.is_consumer() {
            return Err(Refusal::WrongRole);
        }
        let found = self.channel(row.channel)?;
        let logs = match found.row.kind {
            Kind::Mpmc => self.subs_of(row.channel, member),
            Kind::Mpsc | Kind::Group => vec![row.channel],
        };
        let owned = |channel: u64| {
            let found = self.channels.get(&channel)?;
            Some(Owned { channel, epoch: found.row.epoch, base: found.log.base(), end: found.log.end() })
        };
        Ok(logs.into_iter().filter_map(owned).collect())
    }

    /// Up to `max` unsettled records from offset `from` on, for the owner of the log only.
    ///
    /// # Errors
    /// `Fenced`: another one owns it now. `Missing`, `WrongKind`.
    pub fn read(
        &self,
        at: (u64, u64, u64),
        from: u64,
        max: usize,
        bodies: &dyn Bodies,
        out: &mut Page,
    ) -> Result<(), Refusal> {
        let (member, channel, epoch) = at;
        self.member(member)?;
        let found = self.channel(channel).map_err(|_gone| Refusal::Fenced)?;
        if found.row.kind != Kind::Mpsc {
            return Err(Refusal::WrongKind);
        }
        if found.row.consumer != member || found.row.epoch != epoch {
            return Err(Refusal::Fenced);
        }
        let delivered = found.log.delivered;
        out.next = found.log.end().max(from);
        for (taken, (offset, entry)) in found.log.unsettled(from).enumerate() {
            if taken == max {
                out.next = offset;
                return Ok(());
            }
            out.records.push(record(offset, entry, offset < delivered, bodies));
        }
        let top = if found.row.parent == 0 { found } else { self.channel(found.row.parent)? };
        out.sealed = top.row.sealed;
        Ok(())
    }

    /// Records that a group member has claimed from offset `from` on, ascending.
    ///
    /// # Errors
    /// `Fenced`, `Missing`, `WrongKind`.
    pub fn claimed(
        &self,
        member: u64,
        from: u64,
        max: usize,
        bodies: &dyn Bodies,
        out: &mut Page,
    ) -> Result<(), Refusal> {
        let top = self.member(member)?.channel;
        let found = self.channel(top)?;
        if found.row.kind != Kind::Group {
            return Err(Refusal::WrongKind);
        }
        out.next = from;
        let mine = found.claims.range(from..).filter(|(_, by)| **by == member);
        for (offset, _) in mine.take(max) {
            let Some(entry) = found.log.entry(*offset).filter(|entry| !entry.settled()) else { continue };
            out.records.push(record(*offset, entry, entry.redelivered(), bodies));
            out.next = offset + 1;
        }
        out.sealed = found.row.sealed.filter(|_| found.log.messages() == 0);
        Ok(())
    }

    /// Whether a claim of this group member would yield something.
    #[must_use]
    pub fn may_claim(&self, member: u64) -> bool {
        let Ok(row) = self.member(member) else { return false };
        let Some(found) = self.channels.get(&row.channel) else { return false };
        let credit = matches!(row.role, Role::Consumer { credit } if row.claims < credit);
        credit && (!found.released.is_empty() || found.log.unsettled(found.row.cursor).next().is_some())
    }

    /// Whether an append of one producer would be taken now, as far as room goes. `need`: records, bytes.
    ///
    /// # Errors
    /// `Fenced`: the member is gone. `Sealed`.
    pub fn may_append(&self, member: u64, need: (u64, u64)) -> Result<bool, Refusal> {
        let top = self.member(member)?.channel;
        let found = self.channel(top)?;
        if let Some(reason) = found.row.sealed {
            return Err(Refusal::Sealed(reason));
        }
        if found.row.kind != Kind::Mpmc {
            return Ok(self.admits(top, top, member, need));
        }
        let open = self.open_subs(top);
        Ok(open.is_empty() || open.iter().any(|(sub, _)| self.admits(top, *sub, member, need)))
    }

    /// The channel of a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// Kind of a channel, or of a sub-channel: MPSC.
    #[must_use]
    pub fn kind(&self, channel: u64) -> Option<Kind> {
        Some(self.channels.get(&channel)?.row.kind)
    }

    #[must_use]
    pub fn channel_stat(&self, channel: u64) -> Option<ChannelStat> {
        let found = self.channels.get(&channel)?;
        let row = &found.row;
        let consumers =
            found.members.iter().filter(|id| self.members.get(id).is_some_and(|m| m.is_consumer()));
        let consumers = consumers.count() as u64;
        let subs = || row.subs.keys().filter_map(|sub| self.channels.get(sub));
        Some(ChannelStat {
            channel,
            kind: row.kind,
            parent: row.parent,
            name: row.name.clone(),
            spec: row.spec,
            sealed: row.sealed,
            closing: row.closing,
            draining: row.draining,
            epoch: row.epoch,
            consumer: row.consumer,
            base: found.log.base(),
            end: found.log.end(),
            messages: found.log.messages() + subs().map(|sub| sub.log.messages()).sum::<u64>(),
            bytes: found.log.bytes() + subs().map(|sub| sub.log.bytes()).sum::<u64>(),
            claimed: found.claims.len() as u64,
            discarded: row.discarded,
            producers: found.members.len() as u64 - consumers,
            consumers,
            subs: row.subs.len() as u64,
            lease_left_ms: self.leases.left_ms(row.lease),
            created_at: row.created_at,
        })
    }

    /// Channels and sub-channels by id, from the first one behind `after`.
    pub fn channels_after(&self, after: u64) -> impl Iterator<Item = ChannelStat> {
        self.channels.range(after.saturating_add(1)..).filter_map(|(id, _)| self.channel_stat(*id))
    }

    #[must_use]
    pub fn member_stat(&self, member: u64) -> Option<MemberStat> {
        let row = self.members.get(&member)?;
        Some(MemberStat {
            member,
            channel: row.channel,
            role: row.role,
            label: row.label.clone(),
            weight: row.weight,
            lease: row.lease,
            bound_at: row.bound_at,
            appends: row.sequence,
            waiting: row.hungry,
            claims: row.claims,
        })
    }

    /// Members by id, from the first one behind `after`.
    pub fn members_after(&self, after: u64) -> impl Iterator<Item = MemberStat> {
        self.members.range(after.saturating_add(1)..).filter_map(|(id, _)| self.member_stat(*id))
    }
}

fn record(offset: u64, entry: Kept, before: bool, bodies: &dyn Bodies) -> Record {
    Record {
        offset,
        redelivered: before || entry.redelivered(),
        message: bodies.get(entry.body),
        body: entry.body,
    }
}
