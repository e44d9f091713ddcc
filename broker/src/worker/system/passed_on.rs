//! Messages of shared subscriptions for which no publisher waits any more: the member that had them left, or could not take them, and they
//! are on their way to another one (MQTT 5 §4.8.2). Who meets a member that is not there goes on to the next one, an append that is
//! lost is made again, and what is given up is counted.
//!
//! A lost append may have taken effect, or still take it. So it is made again only once the fate of the lost one is sure
//! (`Store::decide`), to the same inbox and under the same stamp: with QoS 2 a message that came without a stamp gets one here.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use session::id::Key;
use session::lifecycle::{Reply, Stamp};
use session::message::QoS;
use slab::Slab;
use storage::{CompletionPort, Done, GroupId, Proposal, StorageError};

use super::super::share::{SharedMessage, is_missing, shared_append};
use super::SystemPublisher;
use crate::forward::Waiter;
use crate::metrics::DropReason;
use crate::route::SharedTarget;
use crate::shared::Shared;

/// Messages on their way at once: each has a packet id of its own for the stamp that it may need.
const MESSAGES_MAX: usize = 1 << 16;
/// Bytes of the messages whose append was lost and is not made again yet.
const LOST_BYTES_MAX: usize = 64 << 20;
/// How often one append is made.
const ATTEMPTS_MAX: u8 = 8;

/// Tells the stamps of one origin from those of others of this boot.
static ORIGINS: AtomicU64 = AtomicU64::new(0);

/// What is asked of the node.
pub(super) trait Ways: Send + Sync + Debug {
    fn propose(&self, group: GroupId, proposals: Vec<Proposal>);

    /// Answers once nothing that was lost can take effect any more.
    fn decide(&self, group: GroupId, done: Done);

    /// The members of these were not there. Called on a storage thread: must not block.
    fn pass_over(&self, passed_on: Arc<PassedOn>, messages: Vec<SharedMessage>);

    fn dropped(&self, why: DropReason, count: u64);
}

/// The ways of a running node.
#[derive(Debug)]
pub(super) struct NodeWays(pub Arc<Shared>);

impl Ways for NodeWays {
    fn propose(&self, group: GroupId, proposals: Vec<Proposal>) {
        self.0.store.propose(group, proposals);
    }

    fn decide(&self, group: GroupId, done: Done) {
        self.0.store.decide(group, done);
    }

    fn pass_over(&self, passed_on: Arc<PassedOn>, messages: Vec<SharedMessage>) {
        let publisher = SystemPublisher { shared: self.0.clone(), kept: Arc::default(), passed_on };
        self.0.workers.spawn(async move {
            messages.into_iter().for_each(|message| publisher.pass_over(message));
        });
    }

    fn dropped(&self, why: DropReason, count: u64) {
        self.0.metrics.control().dropped(why, count);
    }
}

/// The messages on their way.
#[derive(Debug)]
pub(super) struct PassedOn {
    me: Weak<Self>,
    ways: Box<dyn Ways>,
    /// Whose stamps the messages get that came without one: nobody's who can connect, since no namespace is empty.
    origin: (Key, u64),
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the token of their reply.
    messages: Slab<Given>,
    /// Bytes of those whose append was lost.
    lost_bytes: usize,
    /// Of the last stamp.
    sequence: u64,
}

/// A message that was given to a member.
#[derive(Debug)]
struct Given {
    message: SharedMessage,
    /// The append to its inbox and the stamp of that; `None`: the member is on another node.
    append: Option<(SharedTarget, Option<Stamp>)>,
    attempts: u8,
}

/// What a reply means for its message.
enum Fate {
    Settled,
    /// Deliveries that found no room in the inbox.
    OverQuota(u32),
    Missing(SharedMessage),
    Lost(GroupId),
    GivenUp,
}

impl Given {
    fn command(&self) -> Option<(GroupId, session::lifecycle::Command)> {
        let (target, stamp) = self.append.as_ref()?;
        Some((target.group, shared_append(&self.message.message, stamp.as_ref(), target)))
    }
}

impl State {
    /// The stamp of an append to `target` whose token is `slot`. A slot is used again once its message is done with, and under a higher
    /// sequence: whatever of this boot still takes effect then, takes it in the order of proposing.
    fn stamp(
        &mut self,
        origin: &(Key, u64),
        message: &SharedMessage,
        target: &SharedTarget,
        slot: usize,
    ) -> Option<Stamp> {
        if message.stamp.is_some() || target.target.qos < QoS::ExactlyOnce {
            return message.stamp.clone();
        }
        self.sequence += 1;
        let packet_id = u16::try_from(slot).ok()?;
        let (key, lifetime) = origin.clone();
        Some(Stamp::Publisher { key, lifetime, packet_id, sequence: self.sequence })
    }

    /// Takes in the reply about message `slot`.
    fn take_in(&mut self, slot: usize, reply: &Result<Reply, Arc<StorageError>>) -> Fate {
        let Some(given) = self.messages.get_mut(slot) else { return Fate::Settled };
        if let (Err(_), Some((target, _))) = (reply, &given.append) {
            let (group, len) = (target.group, given.message.message.len());
            given.attempts += 1;
            let has_room = self.lost_bytes == 0 || self.lost_bytes + len <= LOST_BYTES_MAX;
            if given.attempts < ATTEMPTS_MAX && has_room {
                self.lost_bytes += len;
                return Fate::Lost(group);
            }
        }
        let given = self.messages.remove(slot);
        match reply {
            Ok(reply) if is_missing(reply) => Fate::Missing(given.message),
            Ok(Reply::Appended { over_quota: over @ 1.., .. }) => Fate::OverQuota(*over),
            Ok(Reply::Appended { .. } | Reply::Done { .. }) => Fate::Settled,
            Ok(_) | Err(_) => Fate::GivenUp,
        }
    }

    /// The fate of what was lost is sure: these are proposed again.
    fn again(&mut self, slots: &[usize], me: &Arc<PassedOn>) -> Vec<(GroupId, Proposal)> {
        let mut proposals = Vec::new();
        for slot in slots {
            let Some(given) = self.messages.get(*slot) else { continue };
            self.lost_bytes = self.lost_bytes.saturating_sub(given.message.message.len());
            if let Some((group, command)) = given.command() {
                proposals.push((group, Proposal { command, done: me.done(*slot) }));
            }
        }
        proposals
    }
}

impl PassedOn {
    /// `boot`: which one this is, of all that ever were.
    pub(super) fn new(ways: Box<dyn Ways>, boot: &Arc<str>) -> Arc<Self> {
        let key = Key { namespace: "".into(), client_id: Arc::clone(boot) };
        let origin = (key, ORIGINS.fetch_add(1, Ordering::Relaxed));
        Arc::new_cyclic(|me| Self { me: me.clone(), ways, origin, state: Mutex::default() })
    }

    /// Gives the message to the inbox of a member.
    pub(super) fn give(self: &Arc<Self>, message: SharedMessage, target: SharedTarget) {
        let proposal = {
            let state = &mut *self.state.lock();
            let slot = state.messages.vacant_key();
            if slot < MESSAGES_MAX {
                let stamp = state.stamp(&self.origin, &message, &target, slot);
                let given = Given { message, append: Some((target, stamp)), attempts: 0 };
                let command = given.command();
                state.messages.insert(given);
                command.map(|(group, command)| (group, Proposal { command, done: self.done(slot) }))
            } else {
                None
            }
        };
        match proposal {
            Some((group, proposal)) => self.ways.propose(group, vec![proposal]),
            None => self.ways.dropped(DropReason::MailboxFull, 1),
        }
    }

    /// Who waits for another node that is given the message; `None`: too many are on their way, and it is dropped.
    pub(super) fn waiter(self: &Arc<Self>, message: SharedMessage) -> Option<Waiter> {
        let slot = {
            let state = &mut *self.state.lock();
            let has_room = state.messages.vacant_key() < MESSAGES_MAX;
            has_room.then(|| state.messages.insert(Given { message, append: None, attempts: 0 }))
        };
        let Some(slot) = slot else {
            self.ways.dropped(DropReason::MailboxFull, 1);
            return None;
        };
        Some(Waiter { port: Arc::clone(self) as Arc<dyn CompletionPort>, token: slot as u64 })
    }

    fn done(self: &Arc<Self>, slot: usize) -> Done {
        Done::Port { port: Arc::clone(self) as Arc<dyn CompletionPort>, token: slot as u64 }
    }

    /// What was lost in `group` has no effect any more, or it is not known: the group has stopped.
    fn decided(self: &Arc<Self>, group: GroupId, slots: &[usize], is_sure: bool) {
        let (proposals, given_up) = {
            let state = &mut *self.state.lock();
            let proposals = state.again(slots, self);
            if !is_sure {
                slots.iter().for_each(|slot| drop(state.messages.try_remove(*slot)));
            }
            let given_up = if is_sure { 0 } else { proposals.len() };
            (proposals, given_up as u64)
        };
        if is_sure {
            self.ways.propose(group, proposals.into_iter().map(|(_, proposal)| proposal).collect());
        } else {
            self.ways.dropped(DropReason::AppendLost, given_up);
        }
    }
}

impl CompletionPort for PassedOn {
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        let Some(me) = self.me.upgrade() else { return };
        let (mut missing, mut lost) = (Vec::new(), Vec::<(GroupId, Vec<usize>)>::new());
        let (mut over_quota, mut given_up) = (0, 0);
        {
            let state = &mut *self.state.lock();
            for (token, reply) in batch {
                let Ok(slot) = usize::try_from(token) else { continue };
                match state.take_in(slot, &reply) {
                    Fate::Settled => {}
                    Fate::OverQuota(over) => over_quota += u64::from(over),
                    Fate::Missing(message) => missing.push(message),
                    Fate::GivenUp => given_up += 1,
                    Fate::Lost(group) => match lost.iter_mut().find(|(other, _)| *other == group) {
                        Some((_, slots)) => slots.push(slot),
                        None => lost.push((group, vec![slot])),
                    },
                }
            }
        }
        self.ways.dropped(DropReason::InboxQuota, over_quota);
        self.ways.dropped(DropReason::AppendLost, given_up);
        if !missing.is_empty() {
            self.ways.pass_over(Arc::clone(&me), missing);
        }
        for (group, slots) in lost {
            let port = Arc::new(Decided { passed_on: Arc::clone(&me), group, slots });
            self.ways.decide(group, Done::Port { port, token: 0 });
        }
    }
}

/// Goes on with messages whose append was lost.
#[derive(Debug)]
struct Decided {
    passed_on: Arc<PassedOn>,
    group: GroupId,
    slots: Vec<usize>,
}

impl CompletionPort for Decided {
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        let is_sure = batch.iter().all(|(_, reply)| reply.is_ok());
        self.passed_on.decided(self.group, &self.slots, is_sure);
    }
}

#[cfg(test)]
#[path = "passed_on_test.rs"]
mod passed_on_test;
