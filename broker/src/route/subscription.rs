//! What stands in the subscription index under one filter: a subscriber with its options, or a share group.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use session::lifecycle::SubscriptionOptions;
use session::message::QoS;
use session::topic::Subscription;

use super::readers::Readers;
use super::subscriber::{PartyId, Subscriber};
use super::tried::Tried;
use crate::config::SharePick;

/// One entry of the index.
#[derive(Debug, Clone)]
pub enum Sub {
    One(Member),
    Share(Arc<ShareGroup>),
}

/// A subscriber and the options of one of its subscriptions.
#[derive(Debug, Clone)]
pub struct Member {
    pub subscriber: Arc<Subscriber>,
    pub options: SubscriptionOptions,
}

impl Subscription for Sub {
    type Id = PartyId;

    fn id(&self) -> PartyId {
        match self {
            Self::One(member) => member.subscriber.id(),
            Self::Share(group) => group.id,
        }
    }
}

/// All members of one `$share/{group}/{filter}` (§4.8.2). Immutable; a change of membership makes a new one that takes
/// the turn over.
#[derive(Debug)]
pub struct ShareGroup {
    pub(super) id: PartyId,
    /// The whole filter, `$share/` included.
    pub(super) filter: Arc<str>,
    pub(super) members: Box<[Member]>,
    pub(super) turn: Arc<AtomicUsize>,
    pub(super) picks: SharePick,
}

/// Members that are compared for the least load, from the turn on: a large group costs no more than a small one.
const CANDIDATES_MAX: usize = 8;

impl ShareGroup {
    /// The member that takes the next message of `publisher`: of the connected ones that which `session.share_pick` says; when none is
    /// connected, the next one in turn that has an inbox, and of those one whose inbox takes more than QoS 0.
    #[must_use]
    pub fn pick(&self, publisher: PartyId) -> Option<&Member> {
        let (candidates, sticky) = match self.picks {
            SharePick::LeastInFlight => (CANDIDATES_MAX, None),
            SharePick::RoundRobin => (1, None),
            SharePick::Sticky => (1, self.pick_sticky(publisher)),
        };
        sticky.or_else(|| self.pick_in_turn(candidates))
    }

    /// The same connected member for the same publisher: a member that comes or goes moves only its own part.
    fn pick_sticky(&self, publisher: PartyId) -> Option<&Member> {
        let choice = FixedState::with_seed(publisher.0);
        let live = self.members.iter().filter(|member| member.subscriber.is_live());
        live.max_by_key(|member| choice.hash_one(member.subscriber.id().0))
    }

    /// Of so many connected members, next in turn, the one with the least in flight.
    fn pick_in_turn(&self, candidates_max: usize) -> Option<&Member> {
        let len = self.members.len();
        if len == 0 {
            return None;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..len).map(|step| &self.members[turn.wrapping_add(step) % len]);
        let mut offline: Option<&Member> = None;
        let takes = |member: &Member| member.options.qos > QoS::AtMostOnce;
        let mut best: Option<(&Member, u32)> = None;
        let mut candidates = 0;
        for member in in_turn {
            if member.subscriber.is_live() {
                let load = member.subscriber.load();
                if best.is_none_or(|(_, least)| load < least) {
                    best = Some((member, load));
                }
                candidates += 1;
                if load == 0 || candidates == candidates_max {
                    break;
                }
            } else if member.subscriber.inbox.is_some()
                && offline.is_none_or(|known| takes(member) && !takes(known))
            {
                offline = Some(member);
            }
        }
        best.map(|(member, _)| member).or(offline)
    }

    /// The next connected member in turn.
    #[must_use]
    pub fn pick_connected(&self, publisher: PartyId) -> Option<&Member> {
        self.pick(publisher).filter(|member| member.subscriber.is_live())
    }

    /// The next connected member in turn that has no inbox: what another node announced.
    #[must_use]
    pub fn pick_without_inbox(&self) -> Option<&Member> {
        let len = self.members.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        (0..len)
            .map(|step| &self.members[turn.wrapping_add(step) % len])
            .find(|member| member.subscriber.inbox.is_none() && member.subscriber.is_live())
    }

    /// The member that takes a message whose routing may be repeated after a loss: the same one for the same `stamp`, whoever is
    /// connected, so that the repetition meets the inbox that may have the message already ([MQTT-4.3.3-10]). Only inboxes
    /// de-duplicate: without a member that has one for it, as [`Self::pick`].
    #[must_use]
    pub fn pick_stamped(&self, stamp: u64, publisher: PartyId) -> Option<&Member> {
        self.pick_inbox(stamp).or_else(|| self.pick(publisher))
    }

    /// The same, of the members with an inbox alone: every node knows all of them, so every node chooses the same one.
    #[must_use]
    pub fn pick_inbox(&self, stamp: u64) -> Option<&Member> {
        let choice = FixedState::with_seed(stamp);
        // The highest hash wins: a member that comes or goes moves only its own messages.
        self.members
            .iter()
            .filter(|member| member.options.qos > QoS::AtMostOnce)
            .filter_map(|member| Some((member, member.subscriber.inbox?)))
            .max_by_key(|(_, (group, lifetime))| choice.hash_one((group.0, *lifetime)))
            .map(|(member, _)| member)
    }

    /// The group of those members that may read `topic`; `None`: nobody may.
    pub(super) fn readable(self: &Arc<Self>, readers: &Readers, topic: &str) -> Option<Arc<Self>> {
        let may_read = |member: &&Member| readers.may_read(&member.subscriber, topic);
        if self.members.iter().all(|member| may_read(&member)) {
            return Some(Arc::clone(self));
        }
        let members: Box<[Member]> = self.members.iter().filter(may_read).cloned().collect();
        (!members.is_empty()).then(|| Arc::new(self.of(members)))
    }

    /// The group of those members that were not tried; `None`: there is nobody else.
    pub(super) fn except(self: &Arc<Self>, tried: &Tried) -> Option<Arc<Self>> {
        if !tried.has_members() {
            return Some(Arc::clone(self));
        }
        let is_other = |member: &&Member| !tried.has_member(&member.subscriber);
        let members: Box<[Member]> = self.members.iter().filter(is_other).cloned().collect();
        (!members.is_empty()).then(|| Arc::new(self.of(members)))
    }

    /// With `member` added or replaced.
    pub(super) fn with(&self, member: Member) -> Self {
        let id = member.subscriber.id();
        let mut members: Vec<_> =
            self.members.iter().filter(|other| other.subscriber.id() != id).cloned().collect();
        members.push(member);
        self.of(members.into_boxed_slice())
    }

    /// Without the subscriber `id`.
    pub(super) fn without(&self, id: PartyId) -> Self {
        let members =
            self.members.iter().filter(|other| other.subscriber.id() != id).cloned().collect::<Vec<_>>();
        self.of(members.into_boxed_slice())
    }

    fn of(&self, members: Box<[Member]>) -> Self {
        let (filter, turn) = (Arc::clone(&self.filter), Arc::clone(&self.turn));
        Self { id: self.id, filter, members, turn, picks: self.picks }
    }
}
