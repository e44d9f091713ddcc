//! Messages of shared subscriptions that wait for a disconnected member go to one that is connected (MQTT 5 §4.8.2; late binding, DESIGN
//! §9): nothing is stranded behind a member that does not come back while others are there.
//!
//! ```text
//! offline for the grace ──Unbind──▶ given up ──appended to the inbox of a connected member, on whatever node──▶ Rebound
//! ```
//! The leader of a group does it for the inboxes of the group. Only members with an inbox are given messages: what was acknowledged stays
//! durable. A crash after the append repeats it: with QoS 2 the stamp keeps the same inbox from having it twice.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use session::id::Key;
use session::lifecycle::{Append, Command, Reply, SessionState, Target};
use session::message::{Message, QoS};
use storage::{GroupId, Heritage, Store};

use super::heritage;
use super::will::propose_all;
use crate::clock::NodeClock;

/// How often the inboxes of a group are looked at; nothing is done while none has a message of a share.
const LOOK: Duration = Duration::from_millis(250);
/// Lifetimes that are looked at while a group is read.
const PAGE: usize = 256;
/// Messages that are given up at a time.
const UNBIND: u32 = 1_024;
/// `session.share_grace_ms` that stands for no end.
pub const NEVER_MS: u64 = u32::MAX as u64;

/// A member of a share with an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareInbox {
    pub group: GroupId,
    pub lifetime: u64,
    /// Granted.
    pub qos: QoS,
    pub retain_as_published: bool,
    /// Subscription identifier; 0: none.
    pub identifier: u32,
}

/// The members of shared subscriptions.
pub trait ShareMembers: Send + Sync + std::fmt::Debug {
    /// Members with an inbox of the share with this whole filter that may read `topic`; `None`: any topic.
    fn inboxes(&self, filter: &str, topic: Option<&str>) -> Vec<ShareInbox>;
}

/// Does it for the groups of one node.
#[derive(Debug)]
pub struct Rebinder {
    pub clock: Arc<NodeClock>,
    pub store: Store,
    pub members: Arc<dyn ShareMembers>,
    /// How long messages wait for their member to come back.
    pub grace_ms: u64,
}

/// Shares that had no connected member when this look asked: many absent members of one share ask once.
type Nobody = HashSet<Arc<str>>;

/// A lifetime that may have something to give away.
struct Candidate {
    key: Key,
    lifetime: u64,
    /// Offline for long enough, at this revision, with messages.
    leaves_at: Option<u64>,
}

impl Rebinder {
    /// Serves one group. Runs until the task is dropped.
    pub async fn run_forever(self: Arc<Self>, group: GroupId) {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.store.leads(group) {
                self.look(group).await;
            }
        }
    }

    async fn look(&self, group: GroupId) {
        let (mut after, mut nobody) = (Some(0), Nobody::default());
        while let Some(from) = after {
            let (candidates, next) = self.page(group, from);
            after = next;
            for candidate in candidates {
                self.serve(group, &candidate, &mut nobody).await;
            }
        }
    }

    /// Lifetimes with something to give away behind `after`, and where to go on.
    fn page(&self, group: GroupId, after: u64) -> (Vec<Candidate>, Option<u64>) {
        let now = self.clock.millis();
        self.store.read(group, |rows| {
            let (mut found, mut next) = (Vec::new(), None);
            for waiting in rows.sharing(after).take(PAGE) {
                let row = waiting.row;
                next = Some(row.lifetime);
                let is_away = matches!(row.state, SessionState::Offline { .. })
                    && self.grace_ms < NEVER_MS
                    && row.updated_at.plus_ms(self.grace_ms) <= now;
                let leaves_at = (is_away && waiting.bound > 0).then_some(row.revision);
                if leaves_at.is_some() || waiting.unbound > 0 {
                    found.push(Candidate { key: row.owner.key.clone(), lifetime: row.lifetime, leaves_at });
                }
            }
            (found, next)
        })
    }

    /// Gives away what one lifetime has, a page at a time, while somebody takes it.
    async fn serve(&self, group: GroupId, candidate: &Candidate, nobody: &mut Nobody) {
        loop {
            let more = self.unbind(group, candidate, nobody).await;
            if self.give_all(group, candidate).await == 0 || !more {
                return;
            }
        }
    }

    /// Whether there may be more to give up.
    async fn unbind(&self, group: GroupId, candidate: &Candidate, nobody: &mut Nobody) -> bool {
        let Some(revision) =
            candidate.leaves_at.filter(|_| self.has_taker(group, candidate.lifetime, nobody))
        else {
            return false;
        };
        let (key, limit) = (candidate.key.clone(), UNBIND);
        // Refused: it came back, or ended.
        let reply = self.store.call(group, Command::Unbind { key, revision, limit }).await;
        matches!(reply, Ok(Reply::Done { unchanged: false, .. }))
    }

    /// How many of those that were given up are over.
    async fn give_all(&self, group: GroupId, candidate: &Candidate) -> usize {
        let (mut from, mut over) = (Some(0), 0);
        while let Some(offset) = from {
            let (store, lifetime) = (self.store.clone(), candidate.lifetime);
            // Bodies may have to be read from disk.
            let page = tokio::task::spawn_blocking(move || store.unbound(group, lifetime, offset)).await;
            let Ok(Ok(page)) = page else {
                tracing::error!("what a disconnected member of a share gave up cannot be read");
                return over;
            };
            from = page.next;
            over += self.give(group, candidate, page).await;
        }
        over
    }

    /// Whether a connected session would take what this one has.
    fn has_taker(&self, group: GroupId, lifetime: u64, nobody: &mut Nobody) -> bool {
        let filters: Vec<Arc<str>> = self.store.read(group, |rows| {
            rows.shared_subscriptions(lifetime).map(|(filter, _)| Arc::clone(filter)).collect()
        });
        filters.into_iter().any(|filter| {
            if nobody.contains(&filter) {
                return false;
            }
            let is_there = !self.connected(&filter, None).is_empty();
            if !is_there {
                nobody.insert(filter);
            }
            is_there
        })
    }

    /// Connected members with an inbox, on whatever node.
    fn connected(&self, filter: &str, topic: Option<&str>) -> Vec<ShareInbox> {
        let mut members = self.members.inboxes(filter, topic);
        members.retain(|member| {
            member.qos > QoS::AtMostOnce
                && self.store.read(member.group, |rows| {
                    let row = rows.session_by_lifetime(member.lifetime);
                    row.is_some_and(|row| row.state == SessionState::Active)
                })
        });
        members
    }

    /// Gives a page to connected members in turn; what nobody takes now stays for the next look. How many are over.
    async fn give(&self, group: GroupId, candidate: &Candidate, page: Heritage) -> usize {
        let (mut given, mut shared) = (Vec::new(), Vec::new());
        let mut known: HashMap<(Arc<str>, &str), Vec<ShareInbox>> = HashMap::new();
        for (filter, heirloom) in heritage::shares(&page) {
            shared.push(heirloom.offset);
            let topic = heirloom.message.topic();
            let members = known
                .entry((Arc::clone(&filter), topic))
                .or_insert_with(|| self.connected(&filter, Some(topic)));
            let Some(member) = members.get(heirloom.offset as usize % members.len().max(1)) else { continue };
            let stamp = heritage::stamp(&candidate.key, candidate.lifetime, heirloom);
            let append = Append {
                message: Message::clone(&heirloom.message),
                stamp: stamp.map(|stamp| crate::route::share_stamp(&stamp, &filter)),
                targets: vec![target(member, &heirloom.message)],
            };
            given.push((heirloom.offset, member.group, Command::Append(Box::new(append))));
        }
        // It left the share meanwhile: nothing says any more who else is in it.
        let orphans = page.messages.iter().map(|heirloom| heirloom.offset);
        let mut over: Vec<u64> = orphans.filter(|offset| !shared.contains(offset)).collect();
        given.sort_by_key(|(_, group, _)| group.0);
        for of_group in given.chunk_by(|one, other| one.1 == other.1) {
            let commands = of_group.iter().map(|(_, _, command)| command.clone());
            let replies = propose_all(&self.store, of_group[0].1, commands).await;
            let taken = of_group.iter().zip(replies).filter(|(_, reply)| is_taken(reply.as_ref()));
            over.extend(taken.map(|((offset, ..), _)| *offset));
        }
        let count = over.len();
        if count > 0 {
            let command = Command::Rebound { lifetime: candidate.lifetime, offsets: over };
            // Lost: the next look gives it again.
            let _ = self.store.call(group, command).await;
        }
        count
    }
}

fn target(member: &ShareInbox, message: &Message) -> Target {
    Target {
        lifetime: member.lifetime,
        qos: message.qos.min(member.qos),
        retain: message.retain && member.retain_as_published,
        identifiers: (member.identifier != 0).then_some(member.identifier).into_iter().collect(),
        shared: true,
    }
}

/// Whether the inbox has it: it was there and had room, or had it before.
fn is_taken(reply: Option<&Reply>) -> bool {
    matches!(reply, Some(Reply::Appended { accepted: 1.., .. } | Reply::Appended { duplicate: true, .. }))
}
