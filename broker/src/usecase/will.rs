//! The Will executor: claim, publish, record (owner spec §6.4, folded into three batched commits because there is no hook between them).
//!
//! A Will fires once, also over crashes: its durable deliveries carry the Will's key as de-duplication stamp, and live deliveries follow
//! only after `WillPublished` is committed, so a crash in between repeats nothing that a client has seen.
//!
//! ```text
//! Ready ──claim──▶ Executing ──appends and retain committed──▶ Published ──▶ live deliveries
//!                     └── permission gone ──▶ Rejected
//! ```

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use session::id::{Boot, Key};
use session::lifecycle::{Command, Conflict, Reply, WillKey, WillRow, WillStage};
use session::message::Message;
use session::time::{Millis, Tick};
use storage::{Done, GroupId, Proposal, Store};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::clock::NodeClock;

/// Wills of one group in execution at a time.
pub const EXECUTING_MAX: usize = 1_024;
/// Lease of an executor (owner spec §6.3).
const EXECUTOR_LEASE_MS: u64 = 10_000;
/// How often a Will that another node may have in execution is looked at.
const ELSEWHERE_LOOK: Duration = Duration::from_millis(25);
/// Pause before a publication that failed is tried again under the same lease; doubles.
const RETRY_MS: u64 = 250;

/// The durable part failed or has no answer; it is tried again under the executor's lease, and then when that ran out.
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
    fn deliver_live(&self, will: &WillKey, message: &Arc<Message>);
}

/// What CONNECT needs to know of the Wills of earlier connections.
pub trait EarlierWills: Send + Sync + std::fmt::Debug {
    /// Returns when no Will of `key` that is due is left unpublished, or at `deadline`.
    fn settle<'a>(&'a self, key: &'a Key, deadline: Tick) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

impl EarlierWills for Arc<WillExecutor> {
    fn settle<'a>(&'a self, key: &'a Key, deadline: Tick) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let group = self.store.group_of(key);
            let (wills, executing) = self.unpublished(group, key);
            if wills.is_empty() && !executing {
                return;
            }
            let news = self.waiting.lock().entry(key.clone()).or_default().clone();
            let published = self.wait_published(group, key, &news);
            if tokio::time::timeout(self.clock.until(deadline), published).await.is_err() {
                tracing::warn!("an earlier Will is not published yet; its successor does not wait longer");
            }
            let mut waiting = self.waiting.lock();
            // The map's and this one: nobody else waits.
            if Arc::strong_count(&news) <= 2 {
                waiting.remove(key);
            }
        })
    }
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
    executing: Mutex<BTreeSet<WillKey>>,
    /// Connections that wait until the earlier Wills of their session are published; bounded by the connections.
    waiting: Mutex<HashMap<Key, Arc<Notify>, foldhash::fast::RandomState>>,
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
            executing: Mutex::new(BTreeSet::new()),
            waiting: Mutex::new(HashMap::default()),
            counters: WillCounters::default(),
        })
    }

    /// Takes up the due Wills of a group that are not in execution yet, as one batch beside others; returns how many.
    pub fn start(self: &Arc<Self>, group: GroupId, due: impl Iterator<Item = WillKey>) -> usize {
        self.take_up(group, due, EXECUTING_MAX)
    }

    fn take_up(
        self: &Arc<Self>,
        group: GroupId,
        due: impl Iterator<Item = WillKey>,
        executing_max: usize,
    ) -> usize {
        let mut keys = HashSet::new();
        {
            let mut executing = self.executing.lock();
            for key in due {
                if executing.len() >= executing_max {
                    break;
                }
                if executing.insert(key.clone()) {
                    keys.insert(key);
                }
            }
        }
        let started = keys.len();
        if started > 0 {
            let executor = self.clone();
            tokio::spawn(async move {
                let mut left = keys;
                executor.execute(group, &mut left).await;
                for key in left {
                    executor.finish(&key);
                }
            });
        }
        started
    }

    /// Nothing more is done for this Will here and now.
    fn finish(&self, will: &WillKey) {
        self.executing.lock().remove(will);
        if let Some(waiting) = self.waiting.lock().get(&will.key) {
            waiting.notify_waiters();
        }
    }

    /// Wills of `key` that are to be published, and whether one of them is in execution here.
    fn unpublished(&self, group: GroupId, key: &Key) -> (Vec<WillKey>, bool) {
        // Asked first: a Will leaves the execution after its row is gone.
        let executing = {
            let first = WillKey { key: key.clone(), session_generation: 0, will_generation: 0 };
            self.executing.lock().range(first..).next().is_some_and(|will| will.key == *key)
        };
        let wills = self.store.read(group, |rows| {
            let due = |row: &WillRow| matches!(row.stage, WillStage::Ready | WillStage::Executing);
            rows.wills_of(key).filter(|(_, row)| due(row)).map(|(will, _)| will.clone()).collect()
        });
        (wills, executing)
    }

    async fn wait_published(self: &Arc<Self>, group: GroupId, key: &Key, news: &Notify) {
        let mut taken_up = false;
        loop {
            let mut finished = std::pin::pin!(news.notified());
            finished.as_mut().enable();
            let (wills, executing) = self.unpublished(group, key);
            if wills.is_empty() && !executing {
                return;
            }
            // Once; what fails is taken up again when it is due.
            if !std::mem::replace(&mut taken_up, true) {
                self.take_up(group, wills.into_iter(), usize::MAX);
            }
            // Another node may be the one that publishes it.
            let _ = tokio::time::timeout(ELSEWHERE_LOOK, finished).await;
        }
    }

    /// `left`: the Wills that are not finished.
    async fn execute(&self, group: GroupId, left: &mut HashSet<WillKey>) {
        let keys: Vec<WillKey> = left.iter().cloned().collect();
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
        let (permitted, rejected): (Vec<_>, Vec<_>) =
            claimed.into_iter().partition(|(_, row)| self.publisher.is_permitted(row));
        self.counters.rejected.fetch_add(rejected.len() as u64, Ordering::Relaxed);
        let mut publishing = JoinSet::new();
        for (key, row) in permitted {
            let message = Arc::new(self.stamped(&row));
            let (publisher, clock) = (self.publisher.clone(), self.clock.clone());
            publishing.spawn(async move {
                publish_within(&*publisher, &clock, lease_until, &key, &message)
                    .await
                    .map(|()| (key, message))
            });
        }
        let rejects = rejected.into_iter().map(|(will, _)| Command::WillReject { will });
        propose_all(&self.store, group, rejects).await;
        // What is finished is recorded together, and does not wait for what is slow: its executor's lease runs.
        while let Some(first) = publishing.join_next().await {
            let mut finished = vec![first];
            finished.extend(std::iter::from_fn(|| publishing.try_join_next()));
            let count = finished.len();
            let published: Vec<_> = finished.into_iter().filter_map(|one| one.ok()?.ok()).collect();
            self.counters.failed.fetch_add((count - published.len()) as u64, Ordering::Relaxed);
            self.record(group, &published, lease_until).await;
            for (key, _) in published {
                left.remove(&key);
                self.finish(&key);
            }
        }
    }

    /// Commits that these were published; live deliveries follow. A commit without an answer is tried again while the executor's lease
    /// runs: nobody else may publish the Will before, so one that is gone by then was recorded by an earlier attempt.
    async fn record(&self, group: GroupId, published: &[(WillKey, Arc<Message>)], lease_until: Millis) {
        let mut left: Vec<&(WillKey, Arc<Message>)> = published.iter().collect();
        let mut pause_ms = RETRY_MS;
        loop {
            let records = left.iter().map(|(key, _)| Command::WillPublished { will: key.clone() });
            let replies = propose_all(&self.store, group, records).await;
            let holds = self.clock.millis() < lease_until;
            let mut unanswered = Vec::new();
            for (will, reply) in left.into_iter().zip(&replies) {
                match reply {
                    Some(Reply::Done { .. }) => self.deliver_live(will),
                    Some(Reply::Conflict(Conflict::Missing)) if holds => self.deliver_live(will),
                    None if holds => unanswered.push(will),
                    _ => {}
                }
            }
            if unanswered.is_empty() {
                return;
            }
            left = unanswered;
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            pause_ms *= 2;
        }
    }

    fn deliver_live(&self, (will, message): &(WillKey, Arc<Message>)) {
        self.counters.published.fetch_add(1, Ordering::Relaxed);
        self.publisher.deliver_live(will, message);
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

/// Publishes a Will, again while its executor's lease runs; a repetition stores nothing twice, its stamp is the same.
async fn publish_within(
    publisher: &dyn WillPublisher,
    clock: &NodeClock,
    lease_until: Millis,
    key: &WillKey,
    message: &Arc<Message>,
) -> Result<(), NotPublished> {
    let mut pause_ms = RETRY_MS;
    loop {
        let outcome = publisher.publish(key, message).await;
        if outcome.is_ok() || clock.millis().plus_ms(pause_ms) >= lease_until {
            return outcome;
        }
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        pause_ms *= 2;
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

#[cfg(test)]
#[path = "will_test.rs"]
mod will_test;
