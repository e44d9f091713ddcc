//! The backend `embedded`: channels in the Raft groups of a [`Store`], with its write-ahead log and its fsync.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use session::lease::LeaseCommand;
use session::lifecycle::{Command, Reply};
use session::queue::QueueReply;
use session::time::Millis;

use super::{ChannelStore, Request, Response, Unavailable};
use crate::lease::LeaseFuture;
use crate::port::Done;
use crate::store::{Clock, GroupId, Proposal, Store};

/// A store as the queue layer sees it. The boot of the store must have begun (`Command::BootStart`): commands of others are refused.
#[derive(Debug, Clone)]
pub struct EmbeddedStore {
    store: Store,
    clock: Arc<dyn Clock>,
    incarnation: u64,
    /// By group: lease time after our own last beat, and when it was proposed.
    known: Arc<[Mutex<(u64, Instant)>]>,
}

impl EmbeddedStore {
    /// `clock` is the one that the store was opened with.
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        let (half, _) = store.identity().cluster_id.as_chunks::<8>();
        let incarnation = u64::from_le_bytes(half[0]) | 1;
        let known = (0..store.groups()).map(|group| Mutex::new(store.lease_clock(GroupId(group))));
        let known = known.collect();
        Self { store, clock, incarnation, known }
    }

    /// The store itself.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Proposes commands that stay in their order, behind a beat where `timed`, and waits for all replies.
    async fn propose(
        &self,
        group: GroupId,
        commands: Vec<Command>,
        timed: bool,
    ) -> Result<Vec<Reply>, Unavailable> {
        let beat = if timed { self.beat(group) } else { None };
        let mut proposals = Vec::with_capacity(commands.len() + 1);
        let mut beaten = None;
        if let Some((from, to, _)) = beat {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let command = Command::Lease(LeaseCommand::Beat { from, to });
            proposals.push(Proposal { command, done: Done::Once(sender) });
            beaten = Some(receiver);
        }
        let mut waiting = Vec::with_capacity(commands.len());
        for command in commands {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            proposals.push(Proposal { command, done: Done::Once(sender) });
            waiting.push(receiver);
        }
        self.store.propose(group, proposals);
        if let (Some(receiver), Some((_, to, at))) = (beaten, beat)
            && let Ok(Ok(Reply::Lease(reply))) = receiver.await
            && reply.clock == to
        {
            *self.known[usize::from(group.0)].lock() = (to, at);
        }
        let mut replies = Vec::with_capacity(waiting.len());
        for receiver in waiting {
            let reply = receiver.await.map_err(|_gone| Unavailable("the group stopped".to_owned()))?;
            replies.push(reply.map_err(|error| Unavailable(error.to_string()))?);
        }
        Ok(replies)
    }

    /// Lease time now: where it stands, where it should, and the moment of the latter. Counted from the proposal of our own last beat, or
    /// from the moment when the last one of another node was applied here: late by its way, never early.
    fn beat(&self, group: GroupId) -> Option<(u64, u64, Instant)> {
        let seen = self.store.lease_clock(group);
        let known = *self.known[usize::from(group.0)].lock();
        let (from, at) = if known.0 == seen.0 { known } else { seen };
        let passed = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let to = from.saturating_add(passed);
        (passed > 0).then(|| (from, to, at + Duration::from_millis(passed)))
    }

    async fn answer(&self, group: GroupId, request: Request) -> Result<Response, Unavailable> {
        let store = &self.store;
        let timed = super::memory::passes_time(&request);
        match request {
            Request::Leases(commands) => {
                let replies =
                    self.propose(group, commands.into_iter().map(Command::Lease).collect(), timed).await?;
                let replies = replies.into_iter().map(|reply| match reply {
                    Reply::Lease(reply) => Ok(reply),
                    other => Err(unexpected(&other)),
                });
                Ok(Response::Leases(replies.collect::<Result<_, _>>()?))
            }
            Request::Queue(command) => {
                match self.propose(group, vec![Command::Queue(command)], timed).await?.pop() {
                    Some(Reply::Queue(reply)) => {
                        if let QueueReply::Bound(bound) = &reply {
                            store.open_member(group, bound.member);
                        }
                        Ok(Response::Queue(reply))
                    }
                    Some(other) => Err(unexpected(&other)),
                    None => Err(Unavailable("no reply".to_owned())),
                }
            }
            Request::LeasesLeft(leases) => Ok(store.read(group, |rows| {
                let table = rows.space().leases();
                Response::LeasesLeft(leases.iter().map(|lease| table.left_ms(*lease)).collect())
            })),
            Request::Owned { member } => {
                Ok(Response::Owned(store.read(group, |rows| rows.space().owned(member))))
            }
            Request::Read { at, from, max } => {
                let page = store.read_channel(group, at, from, max as usize);
                Ok(Response::Page(page.map_err(|error| Unavailable(error.to_string()))?))
            }
            Request::Claimed { member, from, max } => {
                let page = store.read_claimed(group, member, from, max as usize);
                Ok(Response::Page(page.map_err(|error| Unavailable(error.to_string()))?))
            }
            Request::Appends { member } => Ok(Response::Appends(
                store.read(group, |rows| rows.space().member_stat(member).map(|stat| stat.appends)),
            )),
            Request::Due => {
                let ours = store.leads(group);
                let now = self.beat(group).map(|(_, to, _)| to);
                Ok(Response::Due(store.read(group, |rows| {
                    let now = now.unwrap_or_else(|| rows.space().leases().clock());
                    super::memory::due(rows.space(), ours, now)
                })))
            }
            Request::Wait { member } => {
                store.member_woken(group, member).await;
                Ok(Response::Woken)
            }
            Request::DueChanged => {
                store.leases_changed(group).await;
                Ok(Response::Woken)
            }
        }
    }
}

fn unexpected(reply: &Reply) -> Unavailable {
    Unavailable(match reply {
        Reply::Conflict(conflict) => conflict.to_string(),
        other => format!("unexpected reply {other:?}"),
    })
}

impl ChannelStore for EmbeddedStore {
    fn name(&self) -> &str {
        "embedded"
    }

    fn groups(&self) -> u16 {
        self.store.groups()
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn now(&self) -> Millis {
        self.clock.now()
    }

    fn call(&self, group: u16, request: Request) -> LeaseFuture<'_, Result<Response, Unavailable>> {
        Box::pin(async move {
            if group >= self.store.groups() {
                return Err(Unavailable(format!("there is no group {group}")));
            }
            self.answer(GroupId(group), request).await
        })
    }
}
