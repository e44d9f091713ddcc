//! Members of a shared subscription that could not take a message: it goes on to another one (MQTT 5 §4.8.2), and to none of them again.

use std::sync::Arc;

use gateway::link::LinkId;

use super::subscriber::{PartyId, Subscriber};
use crate::metrics::DropReason;

/// Members, and nodes with members, that are tried for one message.
const TRIED_MAX: usize = 16;

/// Who was tried for one message of a share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tried {
    /// Connections that are gone, or whose outbox is full.
    links: Vec<LinkId>,
    /// Members that were chosen and had no connection any more, and no inbox that takes it.
    members: Vec<PartyId>,
    /// Nodes whose members are gone.
    nodes: Vec<u64>,
    /// Number of inboxes that had ended.
    inboxes: usize,
    /// One of the connections is there, and its outbox full.
    is_full: bool,
}

/// A message's way through one share, behind those that could not take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The whole filter, `$share/` included.
    pub filter: Arc<str>,
    pub tried: Tried,
}

impl Left {
    /// Nobody was tried yet.
    #[must_use]
    pub fn of(filter: &Arc<str>) -> Self {
        Self { filter: Arc::clone(filter), tried: Tried::default() }
    }
}

impl Tried {
    /// The connection is gone, or its outbox is full.
    pub fn add_link(&mut self, link: LinkId, is_full: bool) {
        self.links.push(link);
        self.is_full |= is_full;
    }

    /// The member has no connection any more, and no inbox that takes the message.
    pub fn add_member(&mut self, member: PartyId) {
        self.members.push(member);
    }

    /// The node has no member any more.
    pub fn add_node(&mut self, node: u64) {
        self.nodes.push(node);
    }

    /// The session of an inbox had ended.
    pub fn add_inbox(&mut self) {
        self.inboxes += 1;
    }

    /// Whether it is time to give up.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.links.len() + self.members.len() + self.nodes.len() + self.inboxes >= TRIED_MAX
    }

    /// Why a message that nobody takes counts as dropped.
    #[must_use]
    pub fn drop_reason(&self) -> DropReason {
        if self.is_full { DropReason::OutboxFull } else { DropReason::ShareUnserved }
    }

    /// Whether this member, as it is connected now, could not take it.
    pub(super) fn has_member(&self, member: &Subscriber) -> bool {
        self.members.contains(&member.id()) || member.live().is_some_and(|link| self.links.contains(&link))
    }

    /// Whether a member was tried.
    pub(super) fn has_members(&self) -> bool {
        !self.links.is_empty() || !self.members.is_empty()
    }

    pub(super) fn nodes(&self) -> &[u64] {
        &self.nodes
    }
}
