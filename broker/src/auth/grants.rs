//! What one client may publish, subscribe and be sent, under one policy.

use std::sync::Arc;

use super::acl::{Access, Rule, Rules, Subscribing, Who};
use crate::config::SubscribeRule;

/// Rules that a client brought with it, of its token or of a hook; they hold for the connection that brought them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRules(pub(super) Box<[Rule]>);

/// What is known of the rules that a client brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Brought {
    /// It is not connected here, and was not since the start: only its next connection says.
    Unknown,
    /// It was let in with these, or without any.
    Known(Option<Arc<ClientRules>>),
}

/// The rules of one client under one policy. Cheap to clone; keep it with the session and take it anew when the epoch moved.
#[derive(Debug, Clone)]
pub struct Grants {
    pub(super) epoch: u64,
    pub(super) user: Option<Arc<str>>,
    /// `None`: no ACL, everything is allowed.
    pub(super) rules: Option<Arc<Rules>>,
    pub(super) brought: Option<Arc<ClientRules>>,
    /// The client may have brought rules that are not known here: what no rule denies may be kept for it, and is looked at again when it
    /// is sent.
    pub(super) is_partial: bool,
    pub(super) subscribe: SubscribeRule,
}

impl Grants {
    /// Epoch of the policy that these rules come from.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether there are rules at all; without any every question is answered yes.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.rules.is_some()
    }

    fn brought(&self) -> &[Rule] {
        self.brought.as_deref().map_or(&[], |brought| &brought.0)
    }

    fn may(&self, access: Access, client_id: &str, topic: &str) -> bool {
        let Some(rules) = &self.rules else { return true };
        let who = Who { user: self.user.as_deref(), client_id };
        rules.decide(access, self.brought(), who, topic).unwrap_or(self.is_partial)
    }

    #[must_use]
    pub fn may_publish(&self, client_id: &str, topic: &str) -> bool {
        self.may(Access::Write, client_id, topic)
    }

    /// Whether a message on `topic` may be delivered.
    #[must_use]
    pub fn may_read(&self, client_id: &str, topic: &str) -> bool {
        self.may(Access::Read, client_id, topic)
    }

    /// Whether `filter` may be subscribed to, `$share/…/` included or not.
    #[must_use]
    pub fn may_subscribe(&self, client_id: &str, filter: &str) -> Subscribing {
        let Some(rules) = &self.rules else { return Subscribing::Granted };
        let who = Who { user: self.user.as_deref(), client_id };
        rules.subscribing(self.brought(), who, filter, self.subscribe)
    }
}
