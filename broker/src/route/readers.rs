//! Which subscribers may be sent a message: asked when a topic is resolved, not per message, and again when the rules change.

use std::sync::Arc;

use super::subscriber::Subscriber;
use crate::auth::Authoriser;

/// The rules about reading under one epoch.
#[derive(Debug, Clone)]
pub struct Readers {
    epoch: u64,
    /// `None`: there is no ACL, everything may be read.
    access: Option<Arc<dyn Authoriser>>,
}

impl Readers {
    pub(super) fn new(access: &Arc<dyn Authoriser>) -> Self {
        let (restricts, epoch) = access.restricts();
        Self { epoch, access: restricts.then(|| Arc::clone(access)) }
    }

    /// Epoch of the rules.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether messages on `topic` may be sent to the subscriber.
    #[must_use]
    pub fn may_read(&self, subscriber: &Subscriber, topic: &str) -> bool {
        self.access.as_ref().is_none_or(|access| {
            let grants = access.grants(subscriber.user.as_deref(), &subscriber.brought());
            grants.may_read(&subscriber.key.client_id, topic)
        })
    }

    /// Whether everything may be read by everybody.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.access.is_none()
    }
}
