//! Members of a shared subscription that could not take a message: it goes on to another one (MQTT 5 §4.8.2), and to none of them again.

use std::sync::Arc;

use gateway::link::LinkId;

/// Members, and nodes with members, that are tried for one message.
const TRIED_MAX: usize = 16;

/// Who was tried for one message of a share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tried {
    /// Connections that are gone, or whose outbox is full.
    links: Vec<LinkId>,
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
        self.links.len() + self.nodes.len() + self.inboxes >= TRIED_MAX
    }

    /// Whether a message that nobody takes counts as dropped for want of room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    pub(super) fn links(&self) -> &[LinkId] {
        &self.links
    }

    pub(super) fn nodes(&self) -> &[u64] {
        &self.nodes
    }
}
