//! Commands and other things under way: who waits for which reply, under which scope, and what happens when it comes.

use std::rc::Rc;
use std::sync::Arc;

use gateway::codec::{AckType, ReasonCode};
use gateway::connection::Output;
use session::lifecycle::{Command, Conflict, Reply};
use session::owner::Scope;
use session::time::Tick;
use smallvec::SmallVec;
use storage::{Done, GroupId, Proposal, StorageError};

use super::Worker;
use super::client::{Event, Post, Session};
use super::mail::Source;
use super::share::{SharedMessage, is_missing};
use super::subscribe::{SubscribeTicket, UnsubscribeTicket};
use crate::forward::Waiter;
use crate::metrics::{DropReason, SlowLabel, StageLabel};

/// What goes on when a command is committed.
#[derive(Debug)]
pub(super) enum Op {
    /// A publish that must be stored (retained, received id) before it is routed.
    Prepared {
        publish: u64,
    },
    /// A publish was appended to the inboxes of one group.
    Appended {
        publish: u64,
        /// To one member of a share.
        shared: Option<Box<SharedMessage>>,
    },
    /// A publish that is routed once the routing is known to have every stored subscription.
    Ascertained {
        publish: u64,
    },
    /// A publish was taken by another node for its live subscribers.
    Forwarded {
        publish: u64,
        /// For one member of a share.
        shared: Option<Box<SharedMessage>>,
    },
    /// PUBREL of a durable session: PUBCOMP is owed.
    Released {
        packet_id: u16,
    },
    /// Acknowledgements were recorded; PUBREL is owed for these packet ids.
    Acked {
        received: SmallVec<[u16; 8]>,
    },
    Subscribed(Box<SubscribeTicket>),
    /// Other nodes know of the subscriptions. For each filter whether it is new.
    Announced(Box<(SubscribeTicket, SmallVec<[bool; 4]>)>),
    Unsubscribed(Box<UnsubscribeTicket>),
    /// Other nodes know that stored subscriptions ended. For each filter whether it existed.
    Withdrawn(Box<(UnsubscribeTicket, SmallVec<[bool; 4]>)>),
    /// A retained message was appended to the session's own inbox.
    Fed,
    /// A received QoS 2 message is known to have been handed to connections.
    Routed,
    /// A command was lost; by now it has taken effect, or never will.
    Decided,
}

impl Op {
    /// For the log.
    const fn word(&self) -> &'static str {
        match self {
            Self::Prepared { .. } => "prepare",
            Self::Appended { .. } => "append",
            Self::Ascertained { .. } => "ascertain",
            Self::Forwarded { .. } => "forward",
            Self::Released { .. } => "release",
            Self::Acked { .. } => "acknowledge",
            Self::Subscribed(_) => "subscribe",
            Self::Announced(_) => "announce",
            Self::Unsubscribed(_) => "unsubscribe",
            Self::Withdrawn(_) => "withdraw",
            Self::Fed => "feed",
            Self::Routed => "routed",
            Self::Decided => "decide",
        }
    }
}

/// A command under way.
#[derive(Debug)]
pub(super) struct Pending {
    post: Rc<Post>,
    op: Op,
    /// Of the command; `None`: it waits for something else.
    group: Option<GroupId>,
    scope: Rc<Scope>,
    /// The turn that proposed it.
    proposed: Tick,
}

impl Pending {
    /// Whether it may still have an effect when it is not waited for any more.
    fn is_uncertain(&self) -> bool {
        self.group.is_some() || matches!(self.op, Op::Decided | Op::Forwarded { .. })
    }
}

/// A command that came back.
#[derive(Debug)]
pub(super) struct Committed {
    op: Op,
    reply: Result<Reply, Arc<StorageError>>,
    scope: Rc<Scope>,
}

/// A worker that ends proves nothing of what is still under way: those owners stay held, and the boot writes no receipt (P5).
impl Drop for Worker {
    fn drop(&mut self) {
        let pending = self.pending.get_mut().drain().filter(Pending::is_uncertain);
        for scope in pending.map(|pending| pending.scope).chain(self.undecided.get_mut().drain(..)) {
            std::mem::forget(scope);
        }
    }
}

impl Worker {
    /// Proposes a command in the session's turn; its reply comes back as `op`. False outside of a turn (fenced).
    pub(super) fn propose(&self, session: &mut Session, group: GroupId, command: Command, op: Op) -> bool {
        let Some(Waiter { port, token }) = self.wait(session, op, Some(group)) else { return false };
        let done = Done::Port { port, token };
        self.batch.borrow_mut().propose(group, Proposal { command, done });
        true
    }

    /// Keeps the turn open for something that comes back as `op`. `None` outside of a turn (fenced).
    pub(super) fn pend(&self, session: &mut Session, op: Op) -> Option<Waiter> {
        self.wait(session, op, None)
    }

    /// Whether nothing is under way that may still have an effect.
    pub(super) fn has_no_uncertain(&self) -> bool {
        !self.pending.borrow().iter().any(|(_, pending)| pending.is_uncertain())
    }

    fn wait(&self, session: &mut Session, op: Op, group: Option<GroupId>) -> Option<Waiter> {
        let scope = session.scopes.share()?;
        let post = Rc::clone(&session.post);
        let pending = Pending { post, op, group, scope, proposed: self.now.get() };
        let token = self.pending.borrow_mut().insert(pending);
        Some(self.waiter(group, token))
    }

    fn waiter(&self, group: Option<GroupId>, token: usize) -> Waiter {
        let port = group.map_or(&self.port, |group| &self.ports[usize::from(group.0)]);
        Waiter { port: Arc::clone(port) as Arc<dyn storage::CompletionPort>, token: token as u64 }
    }

    /// The fate of a command of this owner is unknown: the client repeats it elsewhere, and it may still take effect. The scope stays open,
    /// which keeps the owner from being proved stopped, until one or the other is sure (P5, DESIGN §4 "Uncertain effects").
    fn lost(&self, post: &Rc<Post>, group: GroupId, scope: &Rc<Scope>) {
        post.lost.set(true);
        let (post, scope, proposed) = (Rc::clone(post), Rc::clone(scope), self.now.get());
        let pending = Pending { post, op: Op::Decided, group: None, scope, proposed };
        let token = self.pending.borrow_mut().insert(pending);
        let Waiter { port, token } = self.waiter(None, token);
        self.shared.store.decide(group, Done::Port { port, token });
    }

    /// Replies came back.
    pub(super) fn committed(&self, source: Source, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        if let Source::Group(group) = source
            && batch.iter().any(|(_, reply)| reply.is_err())
        {
            // What was collected for the group in ignorance of the loss is refused like what waited behind it.
            self.flush();
            self.ports[usize::from(group.0)].caught_up();
        }
        for (token, reply) in batch {
            let pending =
                usize::try_from(token).ok().and_then(|token| self.pending.borrow_mut().try_remove(token));
            let Some(Pending { post, op, group, scope, proposed }) = pending else { continue };
            if let Op::Decided = op {
                if reply.is_err() {
                    // The group has stopped, and with it, soon, the node. Until then nobody proves that this owner stopped.
                    self.undecided.borrow_mut().push(scope);
                }
                continue;
            }
            if let (Err(_), Some(group)) = (&reply, group) {
                self.lost(&post, group, &scope);
            }
            if let Some(recorder) = &self.recorder
                && !matches!(
                    op,
                    Op::Forwarded { .. } | Op::Ascertained { .. } | Op::Announced(_) | Op::Withdrawn(_)
                )
            {
                let took_ns = self.now.get().0.saturating_sub(proposed.0);
                self.pulse().committed(took_ns);
                recorder.commit(took_ns);
                self.look_slow(group, &op, took_ns);
                match op {
                    Op::Appended { .. } => recorder.stage(StageLabel::Append, took_ns),
                    Op::Acked { .. } => recorder.stage(StageLabel::Settle, took_ns),
                    _ => {}
                }
            }
            let committed = Committed { op, reply, scope };
            if post.closed.get() {
                self.settle_closed(&post, committed);
                continue;
            }
            let mut waiting = post.committed.borrow_mut();
            waiting.push(committed);
            if waiting.len() == 1 {
                post.link.push_event(Event::Wake);
            }
        }
    }

    fn look_slow(&self, group: Option<GroupId>, op: &Op, took_ns: u64) {
        if let Some(line) = self.shared.slow.look(SlowLabel::Commit, took_ns) {
            tracing::warn!(
                operation = SlowLabel::Commit.word(),
                took_ms = line.took_ms,
                command = op.word(),
                group = group.map(|group| group.0),
                worker = self.id,
                suppressed = line.suppressed,
                "slow operation"
            );
        }
    }

    /// Completions of a connected session.
    ///
    /// The scope of each stays open until its acknowledgement is written.
    pub(super) fn settle(&self, session: &mut Session, out: &mut Output) {
        let waiting = std::mem::take(&mut *session.post.committed.borrow_mut());
        for committed in waiting {
            session.scopes.resume(committed.scope);
            self.go_on(session, committed.op, committed.reply, Some(out));
        }
        self.advance_publishes(session, Some(out));
    }

    /// A completion for a connection that is gone: what was admitted is still done, nobody is answered.
    fn settle_closed(&self, post: &Rc<Post>, committed: Committed) {
        let orphan = post.orphan.borrow_mut().take();
        let Some(mut session) = orphan else { return self.finish_detached(committed) };
        session.scopes.resume(committed.scope);
        self.go_on(&mut session, committed.op, committed.reply, None);
        self.advance_publishes(&mut session, None);
        // Parcels and proposals leave before the End of this owner can be proved.
        self.flush();
        session.scopes.leave();
        self.keep_orphan(session);
    }

    /// Keeps the session of a closed connection while publishes of it are not routed.
    pub(super) fn keep_orphan(&self, session: Box<Session>) {
        if session.publishes.has_unrouted() && !session.failed {
            let post = Rc::clone(&session.post);
            *post.orphan.borrow_mut() = Some(session);
        }
    }

    /// Completions that were left when the connection closed.
    pub(super) fn settle_left_over(&self, session: &mut Session) {
        let waiting = std::mem::take(&mut *session.post.committed.borrow_mut());
        for committed in waiting {
            session.scopes.resume(committed.scope);
            self.go_on(session, committed.op, committed.reply, None);
        }
        self.advance_publishes(session, None);
        // Parcels and proposals leave before the End of this owner can be proved.
        self.flush();
        session.scopes.leave();
    }

    /// A subscription that was committed is in the stored session: it must take effect without a connection too. A message of a share is
    /// still somebody's.
    fn finish_detached(&self, committed: Committed) {
        if let (Op::Appended { .. }, Ok(reply)) = (&committed.op, &committed.reply) {
            self.count_quota(reply);
        }
        match (committed.op, committed.reply) {
            (Op::Subscribed(ticket), Ok(Reply::Subscribed { .. })) => self.take_effect(&ticket),
            (Op::Unsubscribed(ticket), Ok(Reply::Unsubscribed { .. })) => self.end_effect(&ticket),
            (
                Op::Appended { shared: Some(shared), .. } | Op::Forwarded { shared: Some(shared), .. },
                Ok(reply),
            ) if is_missing(&reply) => {
                self.publisher.pass_over(*shared);
            }
            _ => {}
        }
    }

    fn go_on(
        &self,
        session: &mut Session,
        op: Op,
        reply: Result<Reply, Arc<StorageError>>,
        out: Option<&mut Output>,
    ) {
        let Some(reply) = self.applied(session, &op, reply) else { return };
        match (op, reply) {
            (Op::Prepared { publish }, Reply::Received { routed, sequence }) => {
                session.publishes.received(publish, routed, sequence);
            }
            (Op::Prepared { publish }, _) => session.publishes.prepared(publish),
            (Op::Appended { publish, shared } | Op::Forwarded { publish, shared }, reply) => {
                self.arrived(session, publish, shared, &reply);
            }
            (Op::Ascertained { publish }, _) => session.publishes.appended(publish),
            (Op::Fed, reply) => {
                if let Reply::Fed { offset, over_quota } = reply {
                    self.stats.dropped(DropReason::InboxQuota, u64::from(over_quota));
                    if let (Some(offset), Some(durable)) = (offset, &mut session.durable) {
                        durable.inbox.fed(offset);
                    }
                }
                self.feed_appended(session);
            }
            (Op::Released { packet_id }, reply) => {
                let known = !matches!(reply, Reply::Released { known: false });
                let reason = if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
                if let Some(out) = out {
                    out.ack(AckType::PubComp, packet_id, reason);
                }
            }
            (Op::Acked { received }, _) => {
                if let Some(out) = out {
                    for packet_id in received {
                        out.ack(AckType::PubRel, packet_id, ReasonCode::Success);
                    }
                }
            }
            (Op::Subscribed(ticket), Reply::Subscribed { new }) => {
                self.take_effect(&ticket);
                self.tell_others(session, Op::Announced(Box::new((*ticket, new.into_iter().collect()))), out);
            }
            (Op::Announced(announced), _) => {
                if let Some(out) = out {
                    self.subscribed(session, &announced.0, &announced.1, out);
                }
            }
            (Op::Unsubscribed(ticket), Reply::Unsubscribed { existed }) => {
                self.end_effect(&ticket);
                let withdrawn = (*ticket, existed.into_iter().collect());
                self.tell_others(session, Op::Withdrawn(Box::new(withdrawn)), out);
            }
            (Op::Withdrawn(withdrawn), _) => {
                if let Some(out) = out {
                    self.unsubscribed(session, &withdrawn.0, &withdrawn.1, out);
                }
            }
            (Op::Subscribed(_) | Op::Unsubscribed(_), _) => session.failed = true,
            (Op::Routed | Op::Decided, _) => {}
        }
    }

    /// Goes on with `op` once every other node's routing follows what was stored just now (P7).
    fn tell_others(&self, session: &mut Session, op: Op, out: Option<&mut Output>) {
        let Some(group) = session.durable.as_ref().map(|durable| durable.group) else { return };
        let number = self.shared.router.stored_changed(group, self.shared.store.applied(group));
        // Shares among them are served by the inboxes of their members, which every node knows from its own state: none needs a table.
        if self.shared.forwarding.is_confirmed(number, false) {
            self.go_on(session, op, Ok(Reply::Done { revision: 0, unchanged: false }), out);
        } else if let Some(waiter) = self.pend(session, op) {
            self.shared.forwarding.confirm(number, false, waiter);
        }
    }

    /// The reply, when there is something to go on with.
    fn applied(
        &self,
        session: &mut Session,
        op: &Op,
        reply: Result<Reply, Arc<StorageError>>,
    ) -> Option<Reply> {
        match (reply, op) {
            // Nothing waits for it; without it, a repetition is routed anew.
            (_, Op::Routed) => {}
            (Ok(Reply::Conflict(Conflict::Quota)), Op::Prepared { publish }) => {
                self.retain_refused(session, *publish);
            }
            (Ok(Reply::Conflict(conflict)), _) => {
                tracing::debug!(%conflict, "a command of a connection was refused");
                session.failed = true;
            }
            (Ok(reply), _) => return Some(reply),
            (Err(error), _) => {
                tracing::debug!(%error, "a command of a connection has no answer");
                session.failed = true;
            }
        }
        None
    }

    /// A publish is in the inboxes of a group, or at another node, or, where the member of a share is not there, on its way to the next one.
    fn arrived(
        &self,
        session: &mut Session,
        publish: u64,
        shared: Option<Box<SharedMessage>>,
        reply: &Reply,
    ) {
        self.count_quota(reply);
        if let Some(shared) = shared.filter(|_| is_missing(reply)) {
            self.share_again(session, publish, *shared);
        }
        session.publishes.appended(publish);
    }

    fn count_quota(&self, reply: &Reply) {
        if let Reply::Appended { over_quota, .. } = reply
            && *over_quota > 0
        {
            self.stats.dropped(DropReason::InboxQuota, u64::from(*over_quota));
        }
    }
}
