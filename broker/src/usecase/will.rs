//! The Will executor: claim, publish, record (owner spec §6.4, folded into three batched commits because there is no hook between them).
//!
//! A Will fires once, also over crashes: its durable deliveries carry the Will's key as de-duplication stamp, and live deliveries follow
//! only after `WillPublished` is committed, so a crash in between repeats nothing that a client has seen.
//!
//! ```text
//! Ready ──claim──▶ Executing ──appends and retain committed──▶ Published ──▶ live deliveries
//!                     └── permission gone ──▶ Rejected
//! ```

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashSet;
use parking_lot::Mutex;
use session::id::Boot;
use session::lifecycle::{Command, Reply, WillKey, WillRow, WillStage};
use session::message::Message;
use storage::{Done, GroupId, Proposal, Store};
use tokio::sync::oneshot;

use crate::clock::NodeClock;

/// Wills of one group in execution at a time.
pub const EXECUTING_MAX: usize = 1_024;
/// Lease of an executor (owner spec §6.3).
const EXECUTOR_LEASE_MS: u64 = 10_000;

/// The durable part failed or has no answer; the Will stays claimed and is taken up again when its executor's lease ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the Will could not be published now")]
pub struct NotPublished;

/// The future of one publication.
pub type PublishFuture = Pin<Box<dyn Future<Output = Result<(), NotPublished>> + Send>>;

/// How a Will gets into the routing.
pub trait WillPublisher: Send + Sync + std::fmt::Debug {
    /// Whether the user may publish it now (permissions may have changed since CONNECT).
    fn is_permitted(&self, will: &WillRow) -> bool;

    /// Appends it to the inboxes of its durable subscribers, stamped with its key, and stores it when it is retained; resolves when all of
    /// that is committed.
    fn publish(&self, will: &WillKey, message: &Arc<Message>) -> PublishFuture;

    /// Delivers it to the connected subscribers without an inbox.
    fn deliver_live(&self, message: &Arc<Message>);
}

/// Counters for metrics.
#[derive(Debug, Default)]
pub struct WillCounters {
    pub published: AtomicU64,
    pub rejected: AtomicU64,
    pub failed: AtomicU64,
}

/// The executor of one node.
#[derive(Debug)]
pub struct WillExecutor {
    boot: Boot,
    clock: Arc<NodeClock>,
    store: Store,
    publisher: Arc<dyn WillPublisher>,
    /// Wills in execution here, so that a due page that names them again starts nothing.
    executing: Mutex<HashSet<WillKey, foldhash::fast::RandomState>>,
    pub counters: WillCounters,
}

impl WillExecutor {
    #[must_use]
    pub fn new(
        boot: Boot,
        clock: Arc<NodeClock>,
        store: Store,
        publisher: Arc<dyn WillPublisher>,
    ) -> Arc<Self> {
        Arc::new(Self {
            boot,
            clock,
            store,
            publisher,
            executing: Mutex::new(HashSet::default()),
            counters: WillCounters::default(),
        })
    }

    /// Takes up the due Wills of a group that are not in execution yet, as one batch beside others; returns how many.
    pub fn start(self: &Arc<Self>, group: GroupId, due: impl Iterator<Item = WillKey>) -> usize {
        let mut keys = Vec::new();
        {
            let mut executing = self.executing.lock();
            for key in due {
                if executing.len() >= EXECUTING_MAX {
                    break;
                }
                if executing.insert(key.clone()) {
                    keys.push(key);
                }
            }
        }
        let started = keys.len();
        if started > 0 {
            let executor = self.clone();
            tokio::spawn(async move {
                executor.execute(group, &keys).await;
                let mut executing = executor.executing.lock();
                for key in &keys {
                    executing.remove(key);
                }
            });
        }
        started
    }

    async fn execute(&self, group: GroupId, keys: &[WillKey]) {
        // Captured before the proposal: a late commit can only shorten the lease.
        let lease_until = self.clock.millis().plus_ms(EXECUTOR_LEASE_MS);
        let claims = keys.iter().map(|will| Command::WillClaim { will: will.clone(), lease_until });
        let granted = propose_all(&self.store, group, claims).await;
        let claimed: Vec<(WillKey, WillRow)> = self.store.read(group, |rows| {
            keys.iter()
                .zip(&granted)
                .filter(|(_, reply)| matches!(reply, Some(Reply::Done { unchanged: false, .. })))
                .filter_map(|(key, _)| rows.will(key).map(|row| (key.clone(), row.clone())))
                .filter(|(_, row)| row.stage == WillStage::Executing && self.is_mine(row))
                .collect()
        });
        let (mut publishing, mut rejected) = (Vec::new(), Vec::new());
        for (key, row) in claimed {
            if self.publisher.is_permitted(&row) {
                let message = Arc::new(self.stamped(&row));
                let task = tokio::spawn(self.publisher.publish(&key, &message));
                publishing.push((key, message, task));
            } else {
                rejected.push(Command::WillReject { will: key });
            }
        }
        self.counters.rejected.fetch_add(rejected.len() as u64, Ordering::Relaxed);
        let mut published = Vec::new();
        for (key, message, task) in publishing {
            match task.await {
                Ok(Ok(())) => published.push((key, message)),
                Ok(Err(_)) | Err(_) => {
                    self.counters.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let records = published.iter().map(|(key, _)| Command::WillPublished { will: key.clone() });
        let replies = propose_all(&self.store, group, rejected.into_iter().chain(records)).await;
        let first_record = replies.len() - published.len();
        for ((_, message), reply) in published.iter().zip(&replies[first_record..]) {
            if matches!(reply, Some(Reply::Done { .. })) {
                self.counters.published.fetch_add(1, Ordering::Relaxed);
                self.publisher.deliver_live(message);
            }
        }
    }

    fn is_mine(&self, row: &WillRow) -> bool {
        row.executor.as_ref().is_some_and(|(boot, until)| *boot == self.boot && *until > self.clock.millis())
    }

    /// The message as it is published now: its expiry counts from the publication ([MQTT-3.1.2-8], MQTT 5 §3.1.3.2.4).
    fn stamped(&self, row: &WillRow) -> Message {
        let mut message = row.message.clone();
        message.expires_at =
            row.message_expiry_sec.map(|sec| self.clock.millis().plus_ms(u64::from(sec) * 1_000));
        message
    }
}

/// Proposes commands together and waits for all replies, in their order; `None` where there is no answer.
pub async fn propose_all(
    store: &Store,
    group: GroupId,
    commands: impl Iterator<Item = Command>,
) -> Vec<Option<Reply>> {
    let (proposals, receivers): (Vec<_>, Vec<_>) = commands
        .map(|command| {
            let (sender, receiver) = oneshot::channel();
            (Proposal { command, done: Done::Once(sender) }, receiver)
        })
        .unzip();
    if proposals.is_empty() {
        return Vec::new();
    }
    store.propose(group, proposals);
    let mut replies = Vec::with_capacity(receivers.len());
    for receiver in receivers {
        replies.push(receiver.await.ok().and_then(Result::ok));
    }
    replies
}
