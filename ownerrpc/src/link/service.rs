//! What answers calls, as the node that offers it implements it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::observer::PeerInfo;
use super::refusal::{Refusal, RefusalKind};

/// One call of a peer.
#[derive(Debug, Clone)]
pub struct Call {
    pub peer: Arc<PeerInfo>,
    pub service: u16,
    /// A part of the buffer that was read into, which lives as long as this does: what is kept for long is copied.
    pub payload: Bytes,
    /// When the caller stops to wait, as far as this node can tell.
    pub deadline: Instant,
}

/// The answer to come.
pub type Answer = Pin<Box<dyn Future<Output = Result<Bytes, Refusal>> + Send>>;

/// Answers calls.
///
/// `call` is invoked on the task that reads the connection, in the order in which the peer sent the calls, and must not block:
/// what must happen in that order is done before it returns. The answers are worked on side by side, and may be given in any
/// order. The future is dropped at the deadline and when the link is lost: an effect that must be completed belongs into a task
/// of its own.
pub trait Service: Send + Sync {
    fn call(&self, call: Call) -> Answer;
}

/// Several services behind one port, told apart by their numbers.
#[derive(Clone, Default)]
pub struct Services {
    services: Vec<(u16, Arc<dyn Service>)>,
}

impl Services {
    #[must_use]
    pub fn with(mut self, number: u16, service: Arc<dyn Service>) -> Self {
        self.services.retain(|(other, _)| *other != number);
        self.services.push((number, service));
        self
    }

    /// Puts something in front of the service with this number, if there is one.
    #[must_use]
    pub fn behind(mut self, number: u16, front: impl FnOnce(Arc<dyn Service>) -> Arc<dyn Service>) -> Self {
        if let Some((_, service)) = self.services.iter_mut().find(|(known, _)| *known == number) {
            *service = front(Arc::clone(service));
        }
        self
    }
}

impl Service for Services {
    fn call(&self, call: Call) -> Answer {
        match self.services.iter().find(|(number, _)| *number == call.service) {
            Some((_, service)) => service.call(call),
            None => {
                let text = format!("nobody answers service {} here", call.service);
                Box::pin(std::future::ready(Err(Refusal::new(RefusalKind::UnknownService, text))))
            }
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.services.iter().map(|(number, _)| number)).finish()
    }
}
