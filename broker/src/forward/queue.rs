//! Messages on their way to one other node: a bounded queue that leaves in batches, one at a time, so that their order stays and a
//! batch that met a broken link can be sent again under its number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use session::id::Key;
use session::lifecycle::Reply;
use session::message::{Message, QoS};
use smallvec::SmallVec;
use storage::{CompletionPort, StorageError};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::wire;
use crate::cluster::{NotAnswered, PeerCalls};
use crate::metrics::{ControlRecorder, DropReason};
use ownerrpc::link::services;

/// Bytes of messages that wait for one node; QoS 0 may use half of them.
pub const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Bytes of one batch, unless one message alone is larger.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Bytes of one request, as all nodes of a cluster agree (WIRE.md §6).
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// Bytes that a waiting message is taken to need beside its body.
const OVERHEAD: usize = 256;
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// A node that cannot be reached for so long is lost, and its live subscribers with it.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// A node that is reached and does not take a batch for so long does not get it.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// Between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// One message for live subscribers of another node.
#[derive(Debug)]
pub struct Forward {
    pub message: Arc<Message>,
    /// Who published it, for No Local; `None`: nobody.
    pub publisher: Option<Key>,
    /// To every matching subscriber that is connected there.
    pub everyone: bool,
    /// To one member there of each of these shares (whole filters).
    pub shares: SmallVec<[Arc<str>; 1]>,
    /// Who is told when the node's subscribers have it, or the node is lost.
    pub done: Option<Waiter>,
}

/// Who waits: the reply is always `Done`, since a node that is lost has no live subscribers.
#[derive(Debug)]
pub struct Waiter {
    pub port: Arc<dyn CompletionPort>,
    pub token: u64,
}

/// Replies by token, as a port takes them.
type Replies = Vec<(u64, Result<Reply, Arc<StorageError>>)>;

/// The queue to one node.
#[derive(Debug)]
pub(super) struct Queue {
    node: u64,
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    forwards: VecDeque<Forward>,
    bytes: usize,
    closed: bool,
}

/// Attempts at one node.
#[derive(Debug, Default)]
struct Fate {
    number: u64,
    /// Since when it cannot be reached.
    unreachable_since: Option<Instant>,
}

impl Queue {
    pub(super) fn new(node: u64) -> Self {
        Self { node, waiting: Mutex::default(), wake: Notify::new() }
    }

    /// Takes messages; those that find no room are dropped. How many, and who waited for them.
    pub(super) fn push(&self, forwards: Vec<Forward>) -> u64 {
        let mut refused = Vec::new();
        {
            let mut waiting = self.waiting.lock();
            for forward in forwards {
                let room = match forward.message.qos {
                    QoS::AtMostOnce => QUEUE_BYTES_MAX / 2,
                    QoS::AtLeastOnce | QoS::ExactlyOnce => QUEUE_BYTES_MAX,
                };
                let bytes = weight(&forward);
                // One that is too large for the room alone still goes when nothing waits.
                if waiting.closed || (waiting.bytes > 0 && waiting.bytes + bytes > room) {
                    refused.push(forward);
                } else {
                    waiting.bytes += bytes;
                    waiting.forwards.push_back(forward);
                }
            }
        }
        self.wake.notify_one();
        let count = refused.len() as u64;
        complete(refused);
        count
    }

    /// The node is no member any more.
    pub(super) fn close(&self) {
        let left = {
            let mut waiting = self.waiting.lock();
            waiting.closed = true;
            waiting.bytes = 0;
            std::mem::take(&mut waiting.forwards)
        };
        complete(left);
    }

    fn take(&self) -> Vec<Forward> {
        let mut waiting = self.waiting.lock();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(forward) = waiting.forwards.front() {
            bytes += wire::forward_bytes(forward);
            if !batch.is_empty() && bytes > BATCH_BYTES_MAX {
                break;
            }
            let Some(forward) = waiting.forwards.pop_front() else { break };
            waiting.bytes = waiting.bytes.saturating_sub(weight(&forward));
            batch.push(forward);
        }
        batch
    }

    /// Sends what waits until the task is dropped.
    pub(super) async fn run(self: Arc<Self>, peers: Arc<dyn PeerCalls>, recorder: ControlRecorder) {
        let mut fate = Fate::default();
        loop {
            self.wake.notified().await;
            loop {
                let batch = self.take();
                if batch.is_empty() {
                    break;
                }
                // Told also when this task is dropped in the middle.
                let batch = Taken(batch);
                if wire::forward_bytes(&batch.0[0]) > wire::batch_room(REQUEST_BYTES_MAX) {
                    recorder.dropped(DropReason::ForwardTooLarge, batch.0.len() as u64);
                    continue;
                }
                fate.number += 1;
                let payload = wire::batch(fate.number, &batch.0);
                if !self.deliver(&*peers, &mut fate, payload).await {
                    recorder.dropped(DropReason::ForwardLost, batch.0.len() as u64);
                }
            }
        }
    }

    /// Whether the node took the batch.
    async fn deliver(&self, peers: &dyn PeerCalls, fate: &mut Fate, payload: bytes::Bytes) -> bool {
        let (began, mut refused) = (Instant::now(), false);
        loop {
            let deadline = Instant::now() + ATTEMPT;
            match peers.call(self.node, services::FORWARD, payload.clone(), deadline).await {
                Ok(_) => {
                    fate.unreachable_since = None;
                    return true;
                }
                Err(NotAnswered::Unreachable { .. }) => {
                    let since = *fate.unreachable_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= LOST_AFTER {
                        return false;
                    }
                }
                // Perhaps it was taken: the number tells the node when it comes again.
                Err(error @ NotAnswered::Unknown { .. }) => {
                    tracing::debug!(%error, "messages for another node are sent again");
                    fate.unreachable_since = None;
                }
                Err(error @ NotAnswered::Refused { .. }) => {
                    tracing::debug!(%error, "messages for another node are sent again");
                    refused = true;
                }
            }
            if began.elapsed() >= if refused { LOST_AFTER } else { GIVE_UP_AFTER } {
                tracing::warn!(node = self.node, "a node takes no messages; those that waited are dropped");
                return false;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// A batch whose waiters are told when it is dropped.
struct Taken(Vec<Forward>);

impl Drop for Taken {
    fn drop(&mut self) {
        complete(std::mem::take(&mut self.0));
    }
}

fn weight(forward: &Forward) -> usize {
    forward.message.len() + OVERHEAD
}

fn complete(forwards: impl IntoIterator<Item = Forward>) {
    let waiters = forwards.into_iter().filter_map(|forward| forward.done);
    answer(waiters, &Ok(Reply::Done { revision: 0, unchanged: false }));
}

/// Tells those who wait, each port once.
pub(super) fn answer(waiters: impl IntoIterator<Item = Waiter>, reply: &Result<Reply, Arc<StorageError>>) {
    let mut ports: Vec<(Arc<dyn CompletionPort>, Replies)> = Vec::new();
    for Waiter { port, token } in waiters {
        let done = (token, reply.clone());
        let address = |port: &Arc<dyn CompletionPort>| Arc::as_ptr(port).cast::<()>();
        match ports.iter_mut().find(|(other, _)| address(other) == address(&port)) {
            Some((_, batch)) => batch.push(done),
            None => ports.push((port, vec![done])),
        }
    }
    for (port, batch) in ports {
        port.complete(batch);
    }
}

#[cfg(test)]
#[path = "queue_test.rs"]
mod queue_test;
