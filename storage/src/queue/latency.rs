//! Where the time of producers and consumers goes: each stage of their calls is counted, and every 30 s what came since is logged in one
//! line. `broker/MONITOR.md` says how to read it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::store::Inner;
use crate::durations::{DurationCounter, Durations};

/// Between two lines.
const INTERVAL: Duration = Duration::from_secs(30);

/// One stage of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// `put_data` that appended, as a whole.
    Put,
    /// In it: waiting for room.
    PutRoom,
    /// In it: from the request to the store until its answer; an append that is durable, or a refusal.
    PutAppend,
    /// `get_data` that handed something out, as a whole.
    Get,
    /// In it: waiting, since there is nothing to read.
    GetWait,
    /// In it: from the request to the store until records are there.
    GetRead,
    /// `ack` or `release`, until it is durable.
    Ack,
}

impl Stage {
    /// In the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Put, Self::PutRoom, Self::PutAppend, Self::Get, Self::GetWait, Self::GetRead, Self::Ack];

    /// As the log names it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutRoom => "put_room",
            Self::PutAppend => "put_append",
            Self::Get => "get",
            Self::GetWait => "get_wait",
            Self::GetRead => "get_read",
            Self::Ack => "ack",
        }
    }
}

/// How long each stage took since the store was opened, in the order of [`Stage::ALL`].
pub type StageDurations = [Durations; Stage::ALL.len()];

#[derive(Debug, Default)]
pub(super) struct Latency {
    stages: [DurationCounter; Stage::ALL.len()],
}

impl Latency {
    pub(super) fn observe(&self, stage: Stage, took: Duration) {
        self.stages[stage as usize].observe(took);
    }

    pub(super) fn view(&self) -> StageDurations {
        std::array::from_fn(|at| self.stages[at].view())
    }
}

/// Logs until the store is closed or dropped.
pub(super) async fn log_forever(store: Weak<Inner>) {
    let mut last = StageDurations::default();
    loop {
        let Some(inner) = store.upgrade() else { return };
        let stop = Arc::clone(&inner.stop);
        let stopped = stop.notified();
        tokio::pin!(stopped);
        // Heard from here on, so that no stop comes between the look and the wait.
        stopped.as_mut().enable();
        if !inner.children.is_open() {
            return;
        }
        drop(inner);
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stopped => return,
        }
        let Some(inner) = store.upgrade() else { return };
        let now = inner.latency.view();
        let window: StageDurations = std::array::from_fn(|at| now[at].since(&last[at]));
        last = now;
        let [put, put_room, put_append, get, get_wait, get_read, ack] = window;
        if window.iter().any(|stage| stage.count() > 0) {
            tracing::info!(
                store = inner.channels.name(), label = inner.options.label,
                %put, %put_room, %put_append, %get, %get_wait, %get_read, %ack,
                "queue endpoints, latency of the last 30 s"
            );
        }
    }
}
