//! When state is checkpointed and the log purged: after so many bytes of log, when too many bodies are resident, every ten minutes
//! if anything changed, and at close.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::{RaftGroup, unavailable};
use crate::StorageError;

/// The longest that a change waits for its checkpoint.
const INTERVAL: Duration = Duration::from_secs(600);
/// The log may grow to this many times `checkpoint_bytes` before proposals wait for the checkpoint.
const BEHIND_MAX: u64 = 8;
/// openraft ignores a trigger while a snapshot is being built: it is repeated this often.
const TRIGGER_AGAIN: Duration = Duration::from_secs(1);

/// Counts log bytes since the last checkpoint, for all groups.
#[derive(Debug)]
pub(crate) struct Meter {
    checkpoint_bytes: u64,
    bytes: AtomicU64,
    due: Notify,
    relieved: Notify,
    stopped: AtomicBool,
}

impl Meter {
    pub(crate) fn new(checkpoint_bytes: u64) -> Self {
        Self {
            checkpoint_bytes: checkpoint_bytes.max(1),
            bytes: AtomicU64::new(0),
            due: Notify::new(),
            relieved: Notify::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Log bytes were written.
    pub(crate) fn wrote(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before < self.checkpoint_bytes && before + bytes >= self.checkpoint_bytes {
            self.due.notify_one();
        }
    }

    /// A checkpoint is due for another reason.
    pub(crate) fn due_now(&self) {
        self.due.notify_one();
    }

    /// Returns once the log is not too far ahead of the checkpoint.
    pub(crate) async fn relieved(&self) {
        loop {
            // Made before the look: a relief between the look and the wait is not missed.
            let relieved = self.relieved.notified();
            if !self.is_behind() || self.stopped.load(Ordering::Relaxed) {
                return;
            }
            // Nobody waits for a checkpoint that nobody makes.
            self.due.notify_one();
            relieved.await;
        }
    }

    fn is_behind(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.checkpoint_bytes.saturating_mul(BEHIND_MAX)
    }

    fn checkpointed(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before.saturating_sub(bytes) >= self.checkpoint_bytes {
            // What was written meanwhile is above the threshold already: no later write crosses it.
            self.due.notify_one();
        }
        self.relieved.notify_waiters();
    }

    /// Whether a checkpoint was asked for since the last look.
    #[cfg(test)]
    pub(super) async fn is_due(&self) -> bool {
        tokio::select! {
            biased;
            () = self.due.notified() => true,
            () = std::future::ready(()) => false,
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.relieved.notify_waiters();
    }
}

/// The task that checkpoints the groups of a node, one after the other.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    groups: Vec<RaftGroup>,
    meter: Arc<Meter>,
    /// One round at a time, with how far the last one came in each group.
    round: tokio::sync::Mutex<Vec<Option<u64>>>,
    stop: Notify,
}

impl Checkpointer {
    pub(crate) fn start(groups: Vec<RaftGroup>, meter: Arc<Meter>) -> Arc<Self> {
        let this =
            Arc::new(Self { groups, meter, round: tokio::sync::Mutex::default(), stop: Notify::new() });
        tokio::spawn({
            let this = Arc::clone(&this);
            async move { this.run().await }
        });
        this
    }

    async fn run(&self) {
        loop {
            tokio::select! {
                () = self.stop.notified() => return,
                () = self.meter.due.notified() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
            if let Err(error) = self.checkpoint().await {
                tracing::error!(%error, "checkpoint failed");
                self.meter.stop();
                return;
            }
        }
    }

    /// Makes the state of every group durable in its engine and purges the log up to there.
    pub(crate) async fn checkpoint(&self) -> Result<(), StorageError> {
        let mut last = self.round.lock().await;
        last.resize(self.groups.len(), None);
        let bytes = self.meter.bytes.load(Ordering::Relaxed);
        for (group, last) in self.groups.iter().zip(last.iter_mut()) {
            let reached = group.machine.applied().map(|id| id.index);
            group.checkpoint().await?;
            let machine = Arc::clone(&group.machine);
            let given_back = tokio::task::spawn_blocking(move || machine.give_back()).await;
            given_back.map_err(|error| unavailable(&error))??;
            // Entries are kept for followers by number, too few to matter in a busy group. In a quiet one they would pin the segments of
            // all groups: what an earlier round covered goes, however few they are.
            if let Some(last) = std::mem::replace(last, reached) {
                group.raft.trigger().purge_log(last).await.map_err(|error| unavailable(&error))?;
            }
        }
        self.meter.checkpointed(bytes);
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.stop.notify_one();
        self.meter.stop();
    }
}

impl RaftGroup {
    async fn checkpoint(&self) -> Result<(), StorageError> {
        let Some(target) = self.machine.applied() else { return Ok(()) };
        let mut metrics = self.raft.metrics();
        loop {
            if metrics.borrow().snapshot >= Some(target) {
                // Bodies may be over budget although nothing new was applied.
                self.machine.evict();
                return Ok(());
            }
            self.raft.trigger().snapshot().await.map_err(|error| unavailable(&error))?;
            let done = metrics.wait_for(|now| now.snapshot >= Some(target) || now.running_state.is_err());
            match tokio::time::timeout(TRIGGER_AGAIN, done).await {
                Ok(now) => {
                    now.map_err(|error| unavailable(&error))?
                        .running_state
                        .clone()
                        .map_err(|error| unavailable(&error))?;
                }
                Err(_elapsed) => tracing::debug!("a checkpoint takes long"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN §9: more log than the threshold during a checkpoint asks for the next one; no later write crosses the threshold.
    #[tokio::test]
    async fn log_written_during_a_checkpoint_is_not_forgotten() {
        let meter = Meter::new(10);
        meter.wrote(10);
        assert!(meter.is_due().await);
        meter.wrote(100);
        assert!(!meter.is_due().await);
        meter.checkpointed(10);
        assert!(meter.is_due().await);
        meter.checkpointed(100);
        assert!(!meter.is_due().await);
        meter.wrote(10);
        assert!(meter.is_due().await);
    }

    /// Who waits for relief asks for the checkpoint, and goes on with it or with the end.
    #[tokio::test]
    async fn proposers_that_wait_ask_for_the_checkpoint() {
        let meter = Arc::new(Meter::new(10));
        for stop in [false, true] {
            meter.wrote(1_000);
            while meter.is_due().await {}
            let waiting = tokio::spawn({
                let meter = Arc::clone(&meter);
                async move { meter.relieved().await }
            });
            meter.due.notified().await;
            if stop {
                meter.stop();
            } else {
                meter.checkpointed(1_000);
            }
            waiting.await.expect("it is relieved");
        }
    }
}
