//! What the user of a connection may publish, subscribe and be sent, under the rules as they are now.

use std::sync::Arc;

use session::time::Millis;

use crate::auth::{Authority, Brought, ClientRules, Grants, Principal, Proof, Subscribing};

/// The rights of one connection's user. Cheap to ask: without an ACL every answer is one comparison and one flag.
#[derive(Debug)]
pub(super) struct Access {
    grants: Grants,
    user: Option<Arc<str>>,
    proof: Proof,
    rules: Option<Arc<ClientRules>>,
    /// [`Millis::NEVER`]: the proof does not end by itself.
    until: Millis,
    /// Epoch under which the user was last found to be one that may be here; 0: none.
    admitted: u64,
}

/// Why a client may not stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwelcome {
    /// Its user, or what its proof rests on, is gone.
    Removed,
    /// What it proved itself with is over.
    Expired,
    /// It proved to be somebody else than it was.
    Other,
}

impl Access {
    pub(super) fn new(authority: &Authority, principal: Principal) -> Self {
        Self {
            grants: authority.grants(principal.user.as_deref(), &principal.brought()),
            user: principal.user,
            proof: principal.proof,
            rules: principal.rules,
            until: principal.until.unwrap_or(Millis::NEVER),
            admitted: 0,
        }
    }

    pub(super) fn user(&self) -> Option<&Arc<str>> {
        self.user.as_ref()
    }

    /// Rules that the client brought.
    pub(super) fn rules(&self) -> Option<&Arc<ClientRules>> {
        self.rules.as_ref()
    }

    /// When what the client proved itself with is over; `None`: never.
    pub(super) fn until(&self) -> Option<Millis> {
        (self.until != Millis::NEVER).then_some(self.until)
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

    /// Whether the user may still be connected; two comparisons as long as nothing was reloaded.
    pub(super) fn check(&mut self, authority: &Authority, now: Millis) -> Result<(), Unwelcome> {
        if now >= self.until {
            return Err(Unwelcome::Expired);
        }
        let epoch = authority.epoch();
        if epoch != self.admitted {
            if !authority.admits(self.user.as_deref(), self.proof) {
                return Err(Unwelcome::Removed);
            }
            self.admitted = epoch;
        }
        Ok(())
    }

    /// A changed rule acts on the next message.
    fn refresh(&mut self, authority: &Authority) {
        if authority.epoch() != self.grants.epoch() {
            self.grants = authority.grants(self.user.as_deref(), &Brought::Known(self.rules.clone()));
        }
    }
}
