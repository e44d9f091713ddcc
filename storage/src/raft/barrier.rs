//! Linearizable reads: a read here must see every write that was acknowledged anywhere before it began.
//!
//! Everybody who asks while a round is under way shares the next one.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::RaftGroup;
use super::forward::{Leader, RETRY_PAUSE, await_leader, no_leader};
use super::message::{Answer, Request};
use super::service::NO_QUORUM;
use crate::StorageError;

/// How long one round may take.
const ROUND_TIMEOUT: Duration = Duration::from_secs(3);

type Answered = Result<(), Arc<StorageError>>;

/// Who waits for the next round.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    readers: Vec<oneshot::Sender<Answered>>,
    closed: bool,
}

impl Barrier {
    /// No round is made any more.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        waiting.readers.clear();
        drop(waiting);
        self.wake.notify_one();
    }
}

impl RaftGroup {
    /// See [`crate::Store::barrier`].
    pub(crate) async fn barrier(&self) -> Answered {
        if self.machine.is_alone() {
            // Only this node applies, and replies follow `apply`.
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.barrier.waiting.lock();
            if !waiting.closed {
                waiting.readers.push(sender);
            }
        }
        self.barrier.wake.notify_one();
        let gone = |_| Arc::new(StorageError::Unavailable("the group stopped".to_owned()));
        receiver.await.map_err(gone)?
    }

    /// Makes rounds until the barrier is closed.
    pub(super) async fn run_barrier(self) {
        loop {
            self.barrier.wake.notified().await;
            let readers = {
                let mut waiting = self.barrier.waiting.lock();
                if waiting.closed {
                    return;
                }
                std::mem::take(&mut waiting.readers)
            };
            if readers.is_empty() {
                continue;
            }
            let answered = self.round().await;
            for reader in readers {
                // A reader that is gone needs no answer.
                drop(reader.send(answered.clone()));
            }
        }
    }

    async fn round(&self) -> Answered {
        let deadline = Instant::now() + ROUND_TIMEOUT;
        loop {
            let answer = match await_leader(&self.raft, deadline).await {
                Leader::Nobody => return Err(Arc::new(no_leader())),
                Leader::Here => Ok(tokio::time::timeout_at(deadline, self.read_index()).await),
                Leader::There(leader) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.network.call(&leader, Request::ReadIndex, left).await.map(Ok)
                }
            };
            let reason = match answer {
                Ok(Ok(Answer::ReadIndex(read_at))) => {
                    return self.applied_through(read_at.map_or(0, |id| id.index), deadline).await;
                }
                // A read changes nothing: it is tried again whatever the reason.
                Ok(Ok(Answer::NotLeader)) => "the leader is changing".to_owned(),
                Ok(Ok(Answer::Failed(reason))) => reason,
                Ok(Ok(other)) => format!("unexpected answer {other:?}"),
                Ok(Err(_)) => NO_QUORUM.to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() + RETRY_PAUSE >= deadline {
                return Err(Arc::new(StorageError::Unavailable(reason)));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// See [`crate::Store::applied_through`].
    pub(crate) async fn follow(&self, index: u64) -> Answered {
        self.applied_through(index, Instant::now() + ROUND_TIMEOUT).await
    }

    async fn applied_through(&self, index: u64, deadline: Instant) -> Answered {
        let mut metrics = self.raft.metrics();
        let applied = metrics.wait_for(|now| now.last_applied.map_or(0, |id| id.index) >= index);
        match tokio::time::timeout_at(deadline, applied).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => {
                let reason = "this node is behind the others".to_owned();
                Err(Arc::new(StorageError::Unavailable(reason)))
            }
        }
    }
}
