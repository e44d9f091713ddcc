//! What becomes due: expiry of offline sessions, delayed Wills, Wills that wait for an executor, reclamation (owner spec §7.5, §7.6).
//!
//! One task a group, asleep until something is due; due items come from an index, so an idle node with many sessions does nothing. Items
//! of a page go into one proposal; full pages follow each other at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use session::id::Key;
use session::lifecycle::{Command, Due, Group, Reply, SessionState};
use session::time::Millis;
use storage::{GroupId, Store};
use tokio::sync::Notify;

use super::disconnect::LifetimeOver;
use super::reclaim::Reclaimer;
use super::will::{WillExecutor, propose_all};
use crate::clock::NodeClock;

/// Due items of one turn.
const PAGE: usize = 1_024;
/// How often a group is looked at although nothing says that something is due: clocks may jump.
const INTERVAL_MS: u64 = 1_000;
/// Shortest pause between two looks at a group in which nothing is due: a busy store changes due times with every commit.
const BREATH: Duration = Duration::from_millis(5);
/// How often a node that does not lead a group looks whether it does now.
const FOLLOWER_LOOK: Duration = Duration::from_millis(100);
/// How often expired messages and old stamps of a group are looked for.
const TIDY_INTERVAL_MS: u64 = 60_000;
/// Pause after a turn that could do nothing (all in execution, or the store is not available).
const STALLED: Duration = Duration::from_millis(20);

/// Counters for metrics.
#[derive(Debug, Default)]
pub struct DeadlineCounters {
    pub turns: AtomicU64,
    pub reconciled: AtomicU64,
    pub reclaimed: AtomicU64,
    pub wills_started: AtomicU64,
}

/// The deadline tasks of one node.
#[derive(Debug)]
pub struct Deadlines {
    pub clock: Arc<NodeClock>,
    pub store: Store,
    pub wills: Arc<WillExecutor>,
    pub over: Arc<dyn LifetimeOver>,
    pub reclaimer: Arc<Reclaimer>,
    pub counters: DeadlineCounters,
    /// Due times changed.
    pub changed: Notify,
}

impl Deadlines {
    /// Serves one group. Runs until the task is dropped.
    pub async fn run_forever(self: Arc<Self>, group: GroupId) {
        let mut tidy_at = self.clock.tick().plus_ms(TIDY_INTERVAL_MS);
        loop {
            if !self.store.leads(group) {
                // One node does it for all.
                tokio::time::sleep(FOLLOWER_LOOK).await;
                continue;
            }
            if self.clock.tick() >= tidy_at {
                tidy_at = self.clock.tick().plus_ms(TIDY_INTERVAL_MS);
                self.tidy(group).await;
            }
            let changed = self.changed.notified();
            let now = self.clock.millis();
            let next = self.store.read(group, Group::next_due).unwrap_or(Millis::NEVER);
            if next > now {
                let pause = next.0.saturating_sub(now.0).min(INTERVAL_MS);
                // Whether it was a change or the time, the next look decides alike.
                let _ = tokio::time::timeout(Duration::from_millis(pause), changed).await;
                tokio::time::sleep(BREATH).await;
            } else if !self.turn(group, now).await {
                tokio::time::sleep(STALLED).await;
            }
        }
    }

    /// Passes the store's news on to the tasks of all groups. Runs until the task is dropped.
    pub async fn watch_forever(self: Arc<Self>) {
        loop {
            self.store.deadlines_changed().await;
            self.changed.notify_waiters();
            tokio::time::sleep(BREATH).await;
        }
    }

    /// One page; whether anything came of it.
    async fn turn(&self, group: GroupId, now: Millis) -> bool {
        self.counters.turns.fetch_add(1, Ordering::Relaxed);
        let mut page = Vec::new();
        self.store.read(group, |rows| rows.due(now, PAGE, &mut page));
        let (mut sessions, mut wills, mut reclaims) = (Vec::new(), Vec::new(), Vec::new());
        for item in page {
            match item {
                Due::Session { key, revision } => sessions.push((key, revision)),
                Due::Will(key) => wills.push(key),
                Due::Reclaim { key, .. } => reclaims.push(key),
            }
        }
        let started = self.wills.start(group, wills.into_iter());
        self.counters.wills_started.fetch_add(started as u64, Ordering::Relaxed);
        let reconciled = self.reconcile(group, sessions).await;
        let reclaimed = self.reclaim(group, reclaims).await;
        started > 0 || reconciled || reclaimed
    }

    /// Drops what nobody will read any more, a bounded command at a time.
    async fn tidy(&self, group: GroupId) {
        while let Ok(Reply::Reclaimed { done: false, .. }) = self.store.call(group, Command::Tidy).await {}
    }

    async fn reconcile(&self, group: GroupId, sessions: Vec<(Key, u64)>) -> bool {
        let before: Vec<(Key, u64)> = self.store.read(group, |rows| {
            let durable = sessions.iter().filter_map(|(key, _)| rows.session(key).filter(|row| row.durable));
            durable.map(|row| (row.owner.key.clone(), row.lifetime)).collect()
        });
        let commands = sessions.into_iter().map(|(key, revision)| Command::Reconcile { key, revision });
        let replies = propose_all(&self.store, group, commands).await;
        let over: Vec<(Key, u64)> = self.store.read(group, |rows| {
            let gone = |(key, lifetime): &(Key, u64)| match rows.session(key) {
                None => true,
                Some(row) => row.lifetime != *lifetime || matches!(row.state, SessionState::Ended { .. }),
            };
            before.into_iter().filter(gone).collect()
        });
        for (key, lifetime) in over {
            self.over.lifetime_over(&key, lifetime);
        }
        let answered = replies.iter().flatten().count();
        self.counters.reconciled.fetch_add(answered as u64, Ordering::Relaxed);
        answered > 0
    }

    async fn reclaim(&self, group: GroupId, keys: Vec<Key>) -> bool {
        let replies = self.reclaimer.reclaim(group, keys).await;
        let answered = replies.iter().flatten().count();
        self.counters.reclaimed.fetch_add(answered as u64, Ordering::Relaxed);
        answered > 0
    }
}
