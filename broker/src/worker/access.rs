//! What the user of a connection may publish, subscribe and be sent, under the rules as they are now.

use std::sync::Arc;

use crate::auth::{Authority, Grants, Proof, Subscribing};

/// The rights of one connection's user. Cheap to ask: without an ACL every answer is one comparison and one flag.
#[derive(Debug)]
pub(super) struct Access {
    grants: Grants,
    user: Option<Arc<str>>,
    proof: Proof,
    /// Epoch under which the user was last found to be one that may be here; 0: none.
    admitted: u64,
}

impl Access {
    pub(super) fn new(authority: &Authority, user: Option<Arc<str>>, proof: Proof) -> Self {
        Self { grants: authority.grants(user.as_deref()), user, proof, admitted: 0 }
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

    /// Whether the user may still be connected; one comparison as long as nothing was reloaded.
    pub(super) fn is_admitted(&mut self, authority: &Authority) -> bool {
        let epoch = authority.epoch();
        if epoch != self.admitted {
            if !authority.admits(self.user.as_deref(), self.proof) {
                return false;
            }
            self.admitted = epoch;
        }
        true
    }

    /// A changed rule acts on the next message.
    fn refresh(&mut self, authority: &Authority) {
        if authority.epoch() != self.grants.epoch() {
            self.grants = authority.grants(self.user.as_deref());
        }
    }
}
