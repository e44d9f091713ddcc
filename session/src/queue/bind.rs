//! Joining a channel, making it where the name is free. Everything is checked before anything changes, so that nothing half-made is ever
//! seen (lease spec 5.1, 15.13).

use super::channel::{Channel, Member};
use super::command::{Bind, Bound, Hold, Kind, Mismatch, QueueReply, Refusal, Role, Spec, Target};
use super::space::Space;
use super::{LABEL_BYTES_MAX, MEMBERS_MAX, NAME_BYTES_MAX, PAYLOAD_GRACE_MS, WEIGHT_MAX};
use crate::lease::{Protects, TTL_MS_MAX, TTL_MS_MIN};
use crate::time::Millis;

impl Space {
    pub(super) fn bind(&mut self, bind: &Bind, now: Millis) -> Result<QueueReply, Refusal> {
        check_bind(bind)?;
        if let Hold::Own(lease) = bind.lease
            && !self.leases.is_bindable(lease)
        {
            return Err(Refusal::LeaseLost);
        }
        if let Some(bound) = self.bound_before(bind) {
            return Ok(QueueReply::Bound(bound));
        }
        let member = self.last_member.checked_add(1).ok_or(Refusal::Exhausted)?;
        let (channel, created) = match &bind.target {
            Target::Channel(channel) => (*channel, false),
            Target::Named { name, kind, spec } => match self.names.get(name).copied() {
                Some(channel) => {
                    self.check_same(channel, *kind, *spec)?;
                    (channel, false)
                }
                None => (self.create(name.clone(), *kind, *spec, now)?, true),
            },
        };
        self.check_role(channel, bind.role)?;
        self.last_member = member;
        self.dirty.meta = true;
        let member = u64::from(member);
        self.join(channel, member, bind, created, now);
        if matches!(bind.role, Role::Consumer { .. }) {
            self.start_consuming(channel, member, now)?;
        }
        self.reply_bound(channel, member, created).map(QueueReply::Bound)
    }

    /// The member that an earlier try of this very bind made.
    fn bound_before(&self, bind: &Bind) -> Option<Bound> {
        let id = self.binds.get(&(bind.lease, bind.nonce))?;
        let member = self.members.get(id)?;
        self.reply_bound(member.channel, *id, member.created).ok()
    }

    fn reply_bound(&self, channel: u64, member: u64, created: bool) -> Result<Bound, Refusal> {
        let row = &self.channel(channel)?.row;
        Ok(Bound { channel, member, kind: row.kind, spec: row.spec, created })
    }

    fn check_same(&self, channel: u64, kind: Kind, spec: Spec) -> Result<(), Refusal> {
        let row = &self.channel(channel)?.row;
        let differs = if row.kind != kind {
            Mismatch::Kind
        } else if row.spec.messages_max != spec.messages_max {
            Mismatch::MessagesMax
        } else if row.spec.bytes_max != spec.bytes_max {
            Mismatch::BytesMax
        } else if row.spec.ttl_ms != spec.ttl_ms {
            Mismatch::TtlMs
        } else {
            return Ok(());
        };
        Err(Refusal::Mismatch(differs))
    }

    /// A new channel cannot fail it.
    fn check_role(&self, channel: u64, role: Role) -> Result<(), Refusal> {
        let found = self.channel(channel)?;
        let row = &found.row;
        if row.closing || row.parent != 0 {
            return Err(Refusal::Missing);
        }
        if found.members.len() >= MEMBERS_MAX {
            return Err(Refusal::TooMany(MEMBERS_MAX as u64));
        }
        match (role, row.sealed) {
            (Role::Producer, Some(reason)) => Err(Refusal::Sealed(reason)),
            (Role::Consumer { .. }, _) if row.kind == Kind::Mpsc && row.consumer != 0 => {
                Err(Refusal::Occupied { member: row.consumer })
            }
            _ => Ok(()),
        }
    }

    fn create(
        &mut self,
        name: std::sync::Arc<str>,
        kind: Kind,
        spec: Spec,
        now: Millis,
    ) -> Result<u64, Refusal> {
        let id = self.last_channel.checked_add(1).ok_or(Refusal::Exhausted)?;
        let payload_ttl = spec.ttl_ms.saturating_add(PAYLOAD_GRACE_MS).min(TTL_MS_MAX);
        let lease = self.leases.grant(spec.ttl_ms, Protects::Channel(id)).map_err(|_ttl| Refusal::Invalid)?;
        let payload =
            self.leases.grant(payload_ttl, Protects::Payload(id)).map_err(|_ttl| Refusal::Invalid)?;
        let mut channel = Channel::new(kind, spec, 0, now);
        (channel.row.lease, channel.row.payload) = (lease, payload);
        channel.row.name = Some(name.clone());
        self.last_channel = id;
        self.dirty.meta = true;
        self.dirty.channels.insert(id);
        self.names.insert(name, id);
        self.channels.insert(id, channel);
        self.stat.channels += 1;
        Ok(id)
    }

    fn join(&mut self, channel: u64, member: u64, bind: &Bind, created: bool, now: Millis) {
        let row = Member {
            channel,
            role: bind.role,
            lease: bind.lease,
            nonce: bind.nonce,
            weight: bind.weight,
            label: bind.label.clone(),
            bound_at: now,
            created,
            sequence: 0,
            stamps: std::collections::VecDeque::new(),
            hungry: false,
            claims: 0,
        };
        self.members.insert(member, row);
        self.dirty.members.insert(member);
        self.stat.members += 1;
        self.holders.entry(bind.lease).or_default().insert(member);
        self.binds.insert((bind.lease, bind.nonce), member);
        let Some(found) = self.channels.get_mut(&channel) else { return };
        found.members.insert(member);
        // A member that is alive keeps the channel alive (H-10, H-33).
        let (lease, payload) = (found.row.lease, found.row.payload);
        self.leases.delegate(lease);
        self.leases.delegate(payload);
    }

    /// What a new consumer owns from the start.
    fn start_consuming(&mut self, channel: u64, member: u64, now: Millis) -> Result<(), Refusal> {
        match self.channel(channel)?.row.kind {
            Kind::Mpsc => self.channel_mut(channel)?.give_to(member),
            Kind::Group => {}
            Kind::Mpmc => {
                let free = self.subs_of(channel, 0);
                let Some((first, rest)) = free.split_first() else {
                    let sub = self.create_sub(channel, now)?;
                    self.channel_mut(sub)?.give_to(member);
                    return Ok(());
                };
                self.channel_mut(*first)?.give_to(member);
                for sub in rest {
                    let found = self.channel_mut(*sub)?;
                    found.give_to(member);
                    found.row.draining = true;
                    self.drop_if_drained(*sub);
                }
            }
        }
        self.wakes.insert(member);
        Ok(())
    }

    /// Sub-channels that `consumer` owns (0: nobody), ascending.
    pub(super) fn subs_of(&self, channel: u64, consumer: u64) -> Vec<u64> {
        let Some(found) = self.channels.get(&channel) else { return Vec::new() };
        let owned = |sub: &&u64| self.channels.get(sub).is_some_and(|sub| sub.row.consumer == consumer);
        found.row.subs.keys().filter(owned).copied().collect()
    }

    pub(super) fn create_sub(&mut self, parent: u64, now: Millis) -> Result<u64, Refusal> {
        let id = self.last_channel.checked_add(1).ok_or(Refusal::Exhausted)?;
        let spec = self.channel(parent)?.row.spec;
        self.last_channel = id;
        self.dirty.meta = true;
        self.dirty.channels.insert(id);
        self.channels.insert(id, Channel::new(Kind::Mpsc, spec, parent, now));
        self.channel_mut(parent)?.row.subs.insert(id, 0);
        self.stat.subs += 1;
        Ok(id)
    }
}

fn check_bind(bind: &Bind) -> Result<(), Refusal> {
    let credit = match bind.role {
        Role::Producer => 1,
        Role::Consumer { credit } => credit,
    };
    let named = match &bind.target {
        Target::Channel(_) => true,
        Target::Named { name, spec, .. } => {
            !name.is_empty()
                && name.len() <= NAME_BYTES_MAX
                && spec.messages_max >= 1
                && spec.bytes_max >= 1
                && (TTL_MS_MIN..=TTL_MS_MAX).contains(&spec.ttl_ms)
        }
    };
    let fits = named
        && credit >= 1
        && (1..=WEIGHT_MAX).contains(&bind.weight)
        && bind.label.len() <= LABEL_BYTES_MAX;
    fits.then_some(()).ok_or(Refusal::Invalid)
}
