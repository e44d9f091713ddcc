//! Gauges that are sampled rather than counted: owners, rows, queues, subscriptions (owner spec §13); and the log of where the time of
//! queued messages goes, which `broker/MONITOR.md` tells how to read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use storage::{GroupStatus, Role};

use crate::events::{Event, EventKind};
use crate::metrics::{DropReason, Metrics, RaftState, StageLabel, SweepEvent, WillEvent};
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
    let mut seen = Seen::default();
    loop {
        metrics.set_owners(&shared.owners.snapshot());
        metrics.set_store(&shared.stored());
        metrics.set_queues(&shared.queued());
        metrics.set_fsyncs(&shared.store.fsync_times());
        metrics.set_subscriptions(shared.router.len() as u64);
        metrics.set_watch(&shared.slow, &shared.events);
        if let Some(door) = shared.door.get() {
            metrics.set_turned(&door.turned());
        }
        let groups = shared.store.status();
        seen.tell(&shared, &groups);
        for status in groups {
            let group = usize::from(status.group.0);
            metrics.set_raft_state(group, raft_state(status.role));
            metrics.set_raft_log_index(group, status.last_index);
        }
        taken = count(&shared, &deadlines, metrics, taken);
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Drops that mean that something does not keep up.
const OVERLOADED: [DropReason; 4] =
    [DropReason::OutboxFull, DropReason::MailboxFull, DropReason::ForwardQueueFull, DropReason::InboxQuota];

/// What those who watch were told last.
#[derive(Debug, Default)]
struct Seen {
    reachable: BTreeSet<u64>,
    leaders: BTreeMap<u16, Option<u64>>,
    drops: [u64; DropReason::COUNT],
}

impl Seen {
    /// Tells what changed since the look before.
    fn tell(&mut self, shared: &Shared, groups: &[GroupStatus]) {
        let events = &shared.events;
        events.turn();
        let reachable: BTreeSet<u64> = shared.peers.reachable().into_iter().collect();
        for node_id in reachable.difference(&self.reachable) {
            events.push(Event::new(EventKind::NodeUp).node(*node_id));
        }
        for node_id in self.reachable.difference(&reachable) {
            events.push(Event::new(EventKind::NodeDown).node(*node_id));
        }
        self.reachable = reachable;
        for group in groups {
            let (id, leader) = (group.group.0, group.leader);
            if self.leaders.insert(id, leader) != Some(leader) {
                events.push(Event::new(EventKind::Leader).node(leader).detail(id.to_string()));
            }
        }
        let drops = shared.metrics.drops();
        for reason in OVERLOADED {
            let more = drops[reason as usize].wrapping_sub(self.drops[reason as usize]);
            if more > 0 {
                let event = Event { count: Some(more), ..Event::new(EventKind::Overload) };
                events.push(event.detail(reason.word()));
            }
        }
        self.drops = drops;
    }
}

/// Between two lines of the latency log.
const LATENCY_INTERVAL: Duration = Duration::from_secs(30);

/// Logs until the task is dropped; a window in which nothing passed is not told.
pub(super) async fn log_latency_forever(shared: Arc<Shared>) {
    let mut last = shared.metrics.stages();
    loop {
        tokio::time::sleep(LATENCY_INTERVAL).await;
        let now = shared.metrics.stages();
        let window: [_; StageLabel::COUNT] = std::array::from_fn(|at| now[at].since(&last[at]));
        last = now;
        if window.iter().all(|stage| stage.count() == 0) {
            continue;
        }
        let stored = shared.stored();
        let [append, read, wait, client, settle] = window;
        tracing::info!(
            %append, %read, %wait, %client, %settle,
            inbox_messages = stored.inbox_messages, inbox_bytes = stored.inbox_bytes,
            "inboxes, latency of the last 30 s"
        );
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
