//! One connected session, as its connection's task owns it: kept small, since most of them are idle.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use gateway::codec::Version;
use gateway::link::{Link, MessageDelivery};
use hashbrown::HashSet;
use session::lifecycle::SessionRef;
use session::owner::{Entry, Scope};
use session::qos::{Inbound, Outbound};
use storage::{GroupId, Pushed, StorageError};

use super::access::Access;
use super::commit::Committed;
use super::inbox::Inbox;
use super::mail::InboxPage;
use super::pace::Pace;
use super::publishes::Publishes;
use super::relief::Brought;
use super::retained::{Feed, RetainedPage};
use super::subscribe::Changing;
use crate::metrics::ProtocolLabel;
use crate::route::Subscriber;
use crate::usecase::disconnect::OwnerGuard;
use crate::users::Seat;

/// Something for a session that came in from outside its own turns.
#[derive(Debug)]
pub enum Event {
    /// Look at the completions in the post, or go on with deliveries.
    Wake,
    /// A message was appended to the inbox.
    Pushed(Pushed),
    /// A page of the inbox was read.
    InboxPage(Result<InboxPage, Arc<StorageError>>),
    /// Another node kept messages from this one.
    Withheld,
    /// Retained messages of a new subscription were found.
    Retained(Result<RetainedPage, Arc<StorageError>>),
}

/// State of one connected session.
#[derive(Debug)]
pub struct Session {
    pub(super) post: Rc<Post>,
    pub(super) entry: Arc<Entry>,
    /// `None` once the close was reported.
    pub(super) guard: Option<OwnerGuard>,
    pub(super) subscriber: Arc<Subscriber>,
    pub(super) access: Access,
    pub(super) version: Version,
    pub(super) protocol: ProtocolLabel,
    pub(super) scopes: Scopes,
    pub(super) inbound: Inbound,
    pub(super) outbound: Outbound,
    pub(super) publishes: Publishes,
    /// QoS 1 messages of shared subscriptions in flight to a session without inbox, by packet id.
    pub(super) shared: BTreeMap<u16, MessageDelivery>,
    pub(super) durable: Option<Box<Durable>>,
    /// How fast it may publish; `None`: any way it likes.
    pub(super) pace: Option<Box<Pace>>,
    /// What it published in this turn.
    pub(super) brought: Brought,
    /// Its place among the connections of its user, where users are limited.
    pub(super) seat: Option<Seat>,
    /// Retained messages that are being sent.
    pub(super) feed: Option<Box<Feed>>,
    /// A SUBACK granted it a subscription.
    pub(super) is_subscribed: bool,
    /// Subscriptions in packets that are not answered.
    pub(super) changing: Option<Box<Changing>>,
    /// The store refused or lost a command: the connection ends.
    pub(super) failed: bool,
}

/// What only a session with an inbox has.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) group: GroupId,
    pub(super) session: SessionRef,
    /// QoS 2 ids received on an earlier connection: a duplicate of one repeats the appends, which their stamp de-duplicates.
    pub(super) resumed: HashSet<u16, foldhash::fast::RandomState>,
    pub(super) inbox: Inbox,
}

/// Where completions for a session are left: it outlives the connection as long as commands are under way.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) link: Rc<Link<Event>>,
    pub(super) committed: RefCell<Vec<Committed>>,
    /// The connection is gone.
    pub(super) closed: Cell<bool>,
    /// A command of it was lost: nothing that came behind it goes on.
    pub(super) lost: Cell<bool>,
    /// The session of a closed connection whose admitted publishes are not routed yet.
    pub(super) orphan: RefCell<Option<Box<Session>>>,
}

/// The admitted scopes of a session (owner spec §2.6): one a turn, kept as long as a command of the turn is under way.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    turn: Turn,
    /// Scopes that wait for commits.
    open: u32,
}

#[derive(Debug, Default)]
enum Turn {
    #[default]
    Closed,
    /// Nothing was proposed in it yet.
    Own(Scope),
    Shared(Rc<Scope>),
}

impl Scopes {
    /// Scopes that wait for commits.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    pub(super) fn in_turn(&self) -> bool {
        !matches!(self.turn, Turn::Closed)
    }

    pub(super) fn enter(&mut self, scope: Scope) {
        self.turn = Turn::Own(scope);
    }

    /// A completion of a turn continues under that turn's scope.
    pub(super) fn resume(&mut self, scope: Rc<Scope>) {
        self.leave();
        self.open = self.open.saturating_sub(1);
        self.turn = Turn::Shared(scope);
    }

    /// A share of the turn's scope for a command; `None` outside of a turn.
    pub(super) fn share(&mut self) -> Option<Rc<Scope>> {
        let scope = match std::mem::take(&mut self.turn) {
            Turn::Closed => return None,
            Turn::Own(scope) => Rc::new(scope),
            Turn::Shared(scope) => scope,
        };
        self.turn = Turn::Shared(Rc::clone(&scope));
        Some(scope)
    }

    /// The turn ends: its scope ends too unless a command holds it.
    pub(super) fn leave(&mut self) {
        if let Turn::Shared(scope) = std::mem::take(&mut self.turn)
            && Rc::strong_count(&scope) > 1
        {
            self.open += 1;
        }
    }
}
