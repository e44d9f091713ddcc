//! What a node does before it routes to inboxes while it cannot know for certain that its routing has every stored subscription (P7):
//! it asks a majority, and follows.
//!
//! It is certain while the tables of all other members are good ([`super::tables`]); in good times nobody waits here.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use session::lifecycle::Reply;
use storage::{GroupId, StorageError};
use tokio::sync::Notify;

use super::queue::{Waiter, answer};

/// The end of following.
pub type FollowFuture = Pin<Box<dyn Future<Output = Result<(), Arc<StorageError>>> + Send>>;

/// The routing of this node behind the stored subscriptions of all nodes.
pub trait StoredRoutes: Send + Sync + Debug {
    /// Whether no other node can change them.
    fn is_alone(&self) -> bool;

    /// Returns when the routing has every change that was acknowledged, on any node, before the call; an error within seconds.
    fn all(self: Arc<Self>) -> FollowFuture;

    /// Returns when the routing has every change through these entries of the groups; an error within seconds.
    fn through(self: Arc<Self>, entries: Vec<(GroupId, u64)>) -> FollowFuture;
}

/// Those who wait. Bounded by the open scopes of the sessions. Who comes during a round shares the next one.
#[derive(Debug)]
pub(super) struct Certainty {
    pub(super) stored: Arc<dyn StoredRoutes>,
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    waiters: Vec<Waiter>,
    closed: bool,
}

impl Certainty {
    pub(super) fn new(stored: Arc<dyn StoredRoutes>) -> Self {
        Self { stored, waiting: Mutex::default(), wake: Notify::new() }
    }

    /// Tells `waiter` once the routing has everything that was acknowledged before now, or that this cannot be known.
    pub(super) fn wait(&self, waiter: Waiter) {
        let refused = {
            let mut waiting = self.waiting.lock();
            if waiting.closed {
                Some(waiter)
            } else {
                waiting.waiters.push(waiter);
                None
            }
        };
        answer(refused, &Err(closed()));
        self.wake.notify_one();
    }

    /// Those who wait are told at once that nothing is known.
    pub(super) fn close(&self) {
        let left = {
            let mut waiting = self.waiting.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.waiters)
        };
        answer(left, &Err(closed()));
    }

    /// Makes rounds until the task is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            self.wake.notified().await;
            loop {
                let waiters = std::mem::take(&mut self.waiting.lock().waiters);
                if waiters.is_empty() {
                    break;
                }
                // Told also when this task is dropped in the middle.
                let mut round = Round { waiters, outcome: Err(closed()) };
                round.outcome =
                    self.stored.clone().all().await.map(|()| Reply::Done { revision: 0, unchanged: false });
            }
        }
    }
}

/// Answers when it is dropped.
struct Round {
    waiters: Vec<Waiter>,
    outcome: Result<Reply, Arc<StorageError>>,
}

impl Drop for Round {
    fn drop(&mut self) {
        answer(std::mem::take(&mut self.waiters), &self.outcome);
    }
}

fn closed() -> Arc<StorageError> {
    Arc::new(StorageError::Unavailable("the node stops".to_owned()))
}

#[cfg(test)]
#[path = "certainty_test.rs"]
mod certainty_test;
