//! Gauges that are sampled rather than counted: owners, rows, subscriptions (owner spec §13).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use storage::Role;

use crate::metrics::{Metrics, RaftState, SweepEvent, WillEvent};
use crate::shared::Shared;
use crate::usecase::deadlines::Deadlines;

/// Distance of two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// Counters that were taken over so far.
#[derive(Debug, Default, Clone, Copy)]
struct Taken {
    turns: u64,
    visited: u64,
    failures: u64,
    published: u64,
    rejected: u64,
    retried: u64,
}

/// Samples until the task is dropped.
pub(super) async fn sample_forever(shared: Arc<Shared>, deadlines: Arc<Deadlines>) {
    let metrics = &shared.metrics;
    let mut taken = Taken::default();
    loop {
        metrics.set_owners(&shared.owners.snapshot());
        metrics.set_store(&shared.stored());
        metrics.set_fsyncs(&shared.store.fsync_times());
        metrics.set_subscriptions(shared.router.len() as u64);
        for status in shared.store.status() {
            let group = usize::from(status.group.0);
            metrics.set_raft_state(group, raft_state(status.role));
            metrics.set_raft_log_index(group, status.last_index);
        }
        taken = count(&shared, &deadlines, metrics, taken);
        tokio::time::sleep(INTERVAL).await;
    }
}

fn raft_state(role: Role) -> RaftState {
    match role {
        Role::Leader => RaftState::Leader,
        Role::Follower => RaftState::Follower,
        Role::Candidate => RaftState::Candidate,
        Role::Learner => RaftState::Learner,
        Role::Stopped => RaftState::Down,
    }
}

/// Adds what was counted since the last sample.
fn count(shared: &Shared, deadlines: &Deadlines, metrics: &Arc<Metrics>, before: Taken) -> Taken {
    let recorder = metrics.control();
    let (owners, wills) = (&shared.owners.counters, &deadlines.wills.counters);
    let now = Taken {
        turns: owners.sweep_turns.load(Ordering::Relaxed),
        visited: owners.sweep_visited.load(Ordering::Relaxed),
        failures: owners.sweep_failures.load(Ordering::Relaxed),
        published: wills.published.load(Ordering::Relaxed),
        rejected: wills.rejected.load(Ordering::Relaxed),
        retried: wills.failed.load(Ordering::Relaxed),
    };
    recorder.sweep(SweepEvent::Turns, now.turns - before.turns);
    recorder.sweep(SweepEvent::Visited, now.visited - before.visited);
    recorder.sweep(SweepEvent::Failures, now.failures - before.failures);
    for (event, more) in [
        (WillEvent::Published, now.published - before.published),
        (WillEvent::Rejected, now.rejected - before.rejected),
        (WillEvent::Retried, now.retried - before.retried),
    ] {
        for _ in 0..more {
            recorder.will(event);
        }
    }
    now
}
