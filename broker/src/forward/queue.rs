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
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::wire;
use super::withheld::Withheld;
use crate::cluster::{NotAnswered, PeerCalls};
use crate::metrics::{ControlRecorder, DropReason};
use crate::worker::Unserved;
use ownerrpc::link::services;

/// Bytes of messages that wait for one node; QoS 0 may use half of them.
pub const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Bytes of one batch, unless one message alone is larger.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Bytes of one request, as all nodes of a cluster agree (WIRE.md §6).
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// Bytes that a waiting message is taken to need beside its body.
const OVERHEAD: usize = 256;
/// Bytes that a share of it is taken to need, with who waits for that.
const SHARE_OVERHEAD: usize = 128;
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// A node that cannot be reached for so long is lost, and its live subscribers with it: if they are still there, it learns of it.
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
    /// To one member there of each of these shares.
    pub shares: SmallVec<[ForwardedShare; 1]>,
    /// Who is told when the node's subscribers have it, or the node is lost: always `Done`, since a node that is lost has no live
    /// subscribers, or closes their connections when it is back ([`Withheld`]).
    pub done: Option<Waiter>,
}

/// A share that another node is to serve.
#[derive(Debug)]
pub struct ForwardedShare {
    /// The whole filter, `$share/` included.
    pub filter: Arc<str>,
    /// Who is told `Done` when a member there has the message, or may have it; `Appended` with one missing when none has.
    pub done: Option<Waiter>,
}

/// Who waits.
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
    withheld: Arc<Withheld>,
    waiting: Mutex<Waiting>,
    wake: Notify,
    /// How many have left, taken by the node or not.
    left: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Waiting {
    forwards: VecDeque<Forward>,
    bytes: usize,
    /// How many ever came.
    came: u64,
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
    pub(super) fn new(node: u64, withheld: Arc<Withheld>) -> Self {
        Self { node, withheld, waiting: Mutex::default(), wake: Notify::new(), left: watch::Sender::new(0) }
    }

    /// Takes messages; those that find no room are refused, and who waited for them is told. How many of those are dropped: one that was
    /// only for members of shares goes on to others.
    pub(super) fn push(&self, forwards: Vec<Forward>) -> u64 {
        let mut refused = Vec::new();
        {
            let mut waiting = self.waiting.lock();
            for forward in forwards {
                let room = match forward.message.qos {
                    QoS::AtMostOnce => QUEUE_BYTES_MAX / 2,
                    QoS::AtLeastOnce | QoS::ExactlyOnce => QUEUE_BYTES_MAX,
                };
                // One that is too large for the room alone still goes when nothing waits.
                if waiting.closed || (waiting.bytes > 0 && waiting.bytes + weight(&forward) > room) {
                    refused.push(forward);
                } else {
                    for part in parts(forward) {
                        waiting.bytes += weight(&part);
                        waiting.came += 1;
                        waiting.forwards.push_back(part);
                    }
                }
            }
        }
        self.wake.notify_one();
        let count = dropped(&refused, &Outcome::Refused);
        // Before those who wait are told that it is done.
        if lost(&refused, &Outcome::Refused).any(is_acknowledged) {
            self.withheld.note(self.node);
        }
        complete(refused, &Outcome::Refused);
        count
    }

    /// Returns when everything that is here now has left: it is in the outboxes of the node, or never gets there.
    pub(super) async fn drained(&self) {
        let came = self.waiting.lock().came;
        let mut left = self.left.subscribe();
        // An error would say that the queue is gone, which it is not.
        let _ = left.wait_for(|left| *left >= came).await;
    }

    /// The node is no member any more.
    pub(super) fn close(&self) {
        let left = {
            let mut waiting = self.waiting.lock();
            waiting.closed = true;
            // What is under way ends with its task.
            self.left.send_replace(u64::MAX);
            waiting.bytes = 0;
            std::mem::take(&mut waiting.forwards)
        };
        complete(left, &Outcome::Refused);
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
                let count = batch.len() as u64;
                let mut batch = UnderWay { forwards: batch, outcome: Outcome::Lost };
                if wire::forward_bytes(&batch.forwards[0]) > wire::batch_room(REQUEST_BYTES_MAX) {
                    // Not noted as withheld: a message above this limit never gets there, and who publishes such may not cost every
                    // subscriber there its connection, time and again (P9).
                    batch.outcome = Outcome::Refused;
                    recorder.dropped(DropReason::ForwardTooLarge, dropped(&batch.forwards, &batch.outcome));
                    self.left.send_modify(|left| *left = left.saturating_add(count));
                    continue;
                }
                fate.number += 1;
                let payload = wire::batch(fate.number, &batch.forwards);
                batch.outcome = self.deliver(&*peers, &mut fate, payload).await;
                if !matches!(batch.outcome, Outcome::Taken(_)) {
                    // Also for members of a share: nobody else may have been there to take it.
                    if batch.forwards.iter().any(is_acknowledged) {
                        self.withheld.note(self.node);
                    }
                    recorder.dropped(DropReason::ForwardLost, dropped(&batch.forwards, &batch.outcome));
                }
                self.left.send_modify(|left| *left = left.saturating_add(count));
            }
        }
    }

    /// Whether the node took the batch.
    async fn deliver(&self, peers: &dyn PeerCalls, fate: &mut Fate, payload: bytes::Bytes) -> Outcome {
        let (began, mut refused) = (Instant::now(), false);
        let mut not_taken = Outcome::Refused;
        loop {
            let deadline = Instant::now() + ATTEMPT;
            match peers.call(self.node, services::FORWARD, payload.clone(), deadline).await {
                Ok(answer) => {
                    fate.unreachable_since = None;
                    return Outcome::Taken(wire::read_unserved(&answer));
                }
                Err(NotAnswered::Unreachable { .. }) => {
                    let since = *fate.unreachable_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= LOST_AFTER {
                        return not_taken;
                    }
                }
                // Perhaps it was taken: the number tells the node when it comes again.
                Err(error @ NotAnswered::Unknown { .. }) => {
                    tracing::debug!(%error, "messages for another node are sent again");
                    fate.unreachable_since = None;
                    not_taken = Outcome::Lost;
                }
                Err(error @ NotAnswered::Refused { .. }) => {
                    tracing::debug!(%error, "messages for another node are sent again");
                    refused = true;
                }
            }
            if began.elapsed() >= if refused { LOST_AFTER } else { GIVE_UP_AFTER } {
                tracing::warn!(node = self.node, "a node takes no messages; those that waited are dropped");
                return not_taken;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// What became of messages.
enum Outcome {
    /// The node has them, but for these shares.
    Taken(Unserved),
    /// It never had them.
    Refused,
    /// It may have them.
    Lost,
}

impl Outcome {
    /// Whether the message at this place is still for another member of the share.
    fn leaves(&self, at: usize, filter: &Arc<str>, qos: QoS) -> bool {
        match self {
            Self::Taken(unserved) => {
                unserved.iter().any(|(message, share)| *message as usize == at && share == filter)
            }
            Self::Refused => true,
            // [MQTT-4.8.2-5]: what may have been sent with QoS 2 is for nobody else.
            Self::Lost => qos == QoS::AtLeastOnce,
        }
    }
}

/// A batch whose waiters are told when it is dropped.
struct UnderWay {
    forwards: Vec<Forward>,
    outcome: Outcome,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        complete(std::mem::take(&mut self.forwards), &self.outcome);
    }
}

fn weight(forward: &Forward) -> usize {
    forward.message.len() + OVERHEAD + forward.shares.len() * SHARE_OVERHEAD
}

/// A message that is for more shares than can be named at once goes several times, the first time to everyone.
fn parts(mut forward: Forward) -> SmallVec<[Forward; 1]> {
    let mut parts = SmallVec::new();
    loop {
        let named = wire::shares_at_once(&forward.shares);
        let rest: SmallVec<_> = forward.shares.drain(named..).collect();
        let is_last = rest.is_empty();
        let (message, publisher) = (Arc::clone(&forward.message), forward.publisher.clone());
        parts.push(forward);
        if is_last {
            return parts;
        }
        forward = Forward { message, publisher, everyone: false, shares: rest, done: None };
    }
}

/// How many messages are lost for somebody who would have got them; what is only for members of shares that others are looked for is not.
fn dropped(forwards: &[Forward], outcome: &Outcome) -> u64 {
    lost(forwards, outcome).count() as u64
}

/// Those messages.
fn lost<'a>(forwards: &'a [Forward], outcome: &Outcome) -> impl Iterator<Item = &'a Forward> {
    let is_lost = move |(at, forward): &(usize, &Forward)| {
        let leaves = |share: &ForwardedShare| {
            share.done.is_some() && outcome.leaves(*at, &share.filter, forward.message.qos)
        };
        forward.everyone || !forward.shares.iter().all(leaves)
    };
    forwards.iter().enumerate().filter(is_lost).map(|(_, forward)| forward)
}

/// Whether its publisher is told that it was taken.
fn is_acknowledged(forward: &Forward) -> bool {
    forward.message.qos != QoS::AtMostOnce
}

fn complete(forwards: impl IntoIterator<Item = Forward>, outcome: &Outcome) {
    let mut told = Vec::new();
    for (at, forward) in forwards.into_iter().enumerate() {
        let done = Reply::Done { revision: 0, unchanged: false };
        let qos = forward.message.qos;
        told.extend(forward.done.map(|waiter| (waiter, Ok(done.clone()))));
        for share in forward.shares {
            let left = outcome.leaves(at, &share.filter, qos);
            let missing = Reply::Appended { accepted: 0, over_quota: 0, missing: 1, duplicate: false };
            let reply = if left { missing } else { done.clone() };
            told.extend(share.done.map(|waiter| (waiter, Ok(reply))));
        }
    }
    tell(told);
}

/// Tells those who wait the same.
pub(super) fn answer(waiters: impl IntoIterator<Item = Waiter>, reply: &Result<Reply, Arc<StorageError>>) {
    tell(waiters.into_iter().map(|waiter| (waiter, reply.clone())));
}

/// Tells those who wait, each port once.
fn tell(told: impl IntoIterator<Item = (Waiter, Result<Reply, Arc<StorageError>>)>) {
    let mut ports: Vec<(Arc<dyn CompletionPort>, Replies)> = Vec::new();
    for (Waiter { port, token }, reply) in told {
        let done = (token, reply);
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
