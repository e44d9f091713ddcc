//! What the user of a connection may publish, subscribe and be sent, under the rules as they are now.

use std::sync::Arc;

use crate::auth::{Authority, Grants, Subscribing};

/// The rights of one connection's user. Cheap to ask: without an ACL every answer is one comparison and one flag.
#[derive(Debug)]
pub(super) struct Access {
    grants: Grants,
    user: Option<Arc<str>>,
}

impl Access {
    pub(super) fn new(authority: &Authority, user: Option<Arc<str>>) -> Self {
        Self { grants: authority.grants(user.as_deref()), user }
    }

    pub(super) fn user(&self) -> Option<&Arc<str>> {
        self.user.as_ref()
    }

    /// Epoch of the rules that were looked at last.
    pub(super) fn epoch(&self) -> u64 {
        self.grants.epoch()
    }

    pub(super) fn may_publish(&mut self, authority: &Authority, client_id: &str, topic: &str) -> bool {
        self.refresh(authority);
        self.grants.may_publish(client_id, topic)
    }

    pub(super) fn may_subscribe(&mut self, authority: &Authority, client_id: &str, filter: &str) -> bool {
        self.refresh(authority);
        self.grants.may_subscribe(client_id, filter) != Subscribing::Denied
    }

    pub(super) fn may_read(&mut self, authority: &Authority, client_id: &str, topic: &str) -> bool {
        self.refresh(authority);
        self.grants.may_read(client_id, topic)
    }

    /// A changed rule acts on the next message.
    fn refresh(&mut self, authority: &Authority) {
        if authority.epoch() != self.grants.epoch() {
            self.grants = authority.grants(self.user.as_deref());
        }
    }
}
