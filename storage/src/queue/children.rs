//! The close order: endpoints first, then their store (R-20). A child that cannot close keeps the store open, and closing again retries it.
//!
//! ```text
//!   Open ──close──▶ Closing ──every child closed──▶ Closed
//!                     │  ▲
//!                     └──┘ a child failed: closing again retries it
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::task::{JoinError, JoinSet};

use super::QueueError;
use crate::lease::LeaseFuture;

/// Children that went and may stay in the list, whatever the number of the others.
const SWEEP_AT_LEAST: usize = 64;

/// Children that are closed at a time: their commits share log entries then.
const CLOSING_AT_ONCE: usize = 256;

/// What a store closes before itself.
pub(super) trait Child: Send + Sync + std::fmt::Debug {
    fn close(self: Arc<Self>) -> LeaseFuture<'static, Result<(), QueueError>>;
}

#[derive(Debug, Default)]
pub(super) struct Children {
    state: Mutex<State>,
    /// One close at a time.
    closing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    refuse: bool,
    next: u64,
    /// With so many it is looked for those that went, which then costs each child a constant.
    sweep_at: usize,
    children: BTreeMap<u64, Weak<dyn Child>>,
}

impl Children {
    /// Takes a child; the registry keeps it not alive.
    ///
    /// # Errors
    /// The store is closing.
    pub(super) fn register(&self, child: Weak<dyn Child>) -> Result<(), QueueError> {
        let mut state = self.state.lock();
        if state.refuse {
            return Err(QueueError::ChannelClosed("its store is closing".to_owned()));
        }
        if state.children.len() >= state.sweep_at {
            state.children.retain(|_, child| child.strong_count() > 0);
            state.sweep_at = 2 * state.children.len() + SWEEP_AT_LEAST;
        }
        state.next += 1;
        let token = state.next;
        state.children.insert(token, child);
        Ok(())
    }

    pub(super) fn is_open(&self) -> bool {
        !self.state.lock().refuse
    }

    /// Closes all that are there, also behind one that fails.
    ///
    /// # Errors
    /// How many did not; they stay for the next time.
    pub(super) async fn close_all(&self) -> Result<(), QueueError> {
        let _one = self.closing.lock().await;
        let children: Vec<_> = {
            let mut state = self.state.lock();
            state.refuse = true;
            state.children.iter().map(|(token, child)| (*token, child.upgrade())).collect()
        };
        let mut closing = JoinSet::new();
        let mut failed = 0;
        for (token, child) in children {
            closing.spawn(async move {
                match child {
                    Some(child) => (token, child.close().await.is_ok()),
                    None => (token, true),
                }
            });
            if closing.len() >= CLOSING_AT_ONCE {
                failed += self.closed(closing.join_next().await);
            }
        }
        while !closing.is_empty() {
            failed += self.closed(closing.join_next().await);
        }
        if failed == 0 { Ok(()) } else { Err(QueueError::ResourceCleanup(failed)) }
    }

    /// Forgets a child that is closed; 1 when it is not.
    fn closed(&self, ended: Option<Result<(u64, bool), JoinError>>) -> usize {
        match ended {
            None => 0,
            Some(Ok((token, true))) => {
                self.state.lock().children.remove(&token);
                0
            }
            Some(Ok((_, false)) | Err(_)) => 1,
        }
    }
}
