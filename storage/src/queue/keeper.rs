//! What somebody has to do in time: let lease time pass, end what is due, reclaim what ended, and tell the channels of leases of other
//! backends that are gone. The process that leads a group does it; another one that wakes at the same moment changes nothing.

use std::sync::{Arc, Weak};
use std::time::Duration;

use session::lease::{LEASES_AT_ONCE, LeaseCommand};
use session::queue::{Hold, QueueCommand, RECORDS_AT_ONCE};

use tokio::sync::watch;
use tokio::time::Instant;

use super::store::Inner;
use super::{Due, Request, Response};
use crate::lease::{Alive, LeaseBackend, LeaseRef};

/// Lease time is brought forward at least so often while leases run: a restart forgets no more than that.
const BEAT: Duration = Duration::from_secs(5);
/// Between two looks, at least.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Between two tries at a store that does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// Channels of which a page is freed at once: many small ones share a log entry, large ones do not hold up the group.
const RECLAIMS_AT_ONCE: usize = 64;

/// Leases of another backend that are asked for together, and how long that may take.
const PROBES_AT_ONCE: usize = 64;
const PROBE_BUDGET: Duration = Duration::from_millis(1_500);

/// Runs until the store is closed or dropped.
pub(super) async fn run(store: Weak<Inner>, group: u16) {
    let mut foreign = Foreign::default();
    loop {
        let Some(inner) = store.upgrade() else { return };
        foreign.follow(inner.foreign());
        let (channels, stop) = (Arc::clone(&inner.channels), Arc::clone(&inner.stop));
        let stopped = stop.notified();
        tokio::pin!(stopped);
        // Heard from here on, so that no stop comes between the look and the wait.
        stopped.as_mut().enable();
        if !inner.children.is_open() {
            return;
        }
        let pause = turn(&inner, group, &mut foreign).await;
        drop(inner);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = channels.call(group, Request::DueChanged) => {}
            () = foreign.told() => {}
            () = stopped => return,
        }
    }
}

/// Does what is due and says when to look again.
async fn turn(store: &Inner, group: u16, foreign: &mut Foreign) -> Duration {
    let Ok(Response::Due(due)) = store.channels.call(group, Request::Due).await else { return RETRY };
    if !due.ours {
        return BEAT;
    }
    if !due.reclaimable.is_empty() {
        return if reclaim(store, group, &due.reclaimable).await { Duration::ZERO } else { RETRY };
    }
    foreign.look(store, group, &due).await;
    lease_time(store, group, &due).await
}

/// A page of each, several in one log entry. False: the store did not answer.
async fn reclaim(store: &Inner, group: u16, channels: &[u64]) -> bool {
    let limit = u32::try_from(RECORDS_AT_ONCE).unwrap_or(u32::MAX);
    let mut calls = tokio::task::JoinSet::new();
    for channel in channels.iter().take(RECLAIMS_AT_ONCE) {
        let (store, reclaim) =
            (Arc::clone(&store.channels), QueueCommand::Reclaim { channel: *channel, limit });
        calls.spawn(async move { store.call(group, Request::Queue(reclaim)).await.is_ok() });
    }
    let mut answered = true;
    while let Some(call) = calls.join_next().await {
        answered &= call.unwrap_or(false);
    }
    answered
}

async fn lease_time(store: &Inner, group: u16, due: &Due) -> Duration {
    let Some(deadline) = due.next_deadline else { return BEAT };
    let left = Duration::from_millis(deadline.saturating_sub(due.now));
    let stale = Duration::from_millis(due.now.saturating_sub(due.clock));
    if !left.is_zero() && stale < BEAT {
        return left.min(BEAT - stale).max(PAUSE_MIN);
    }
    let limit = u32::try_from(LEASES_AT_ONCE).unwrap_or(u32::MAX);
    match store.channels.call(group, Request::Leases(vec![LeaseCommand::Expire { limit }])).await {
        Ok(_) => left.clamp(PAUSE_MIN, BEAT),
        Err(_unavailable) => RETRY,
    }
}

/// Members whose lease another backend has: only its own word that one is gone counts.
#[derive(Default)]
struct Foreign {
    backend: Option<Arc<dyn LeaseBackend>>,
    /// The last look, at all of those that the store named.
    looked: Option<Instant>,
    /// The backend's hints that there is something to see.
    news: Option<watch::Receiver<u64>>,
}

impl Foreign {
    /// The backend may come late, and be another one later.
    fn follow(&mut self, backend: Option<Arc<dyn LeaseBackend>>) {
        let same = match (&self.backend, &backend) {
            (Some(known), Some(now)) => Arc::ptr_eq(known, now),
            (None, None) => true,
            _ => false,
        };
        if !same {
            let news = backend.as_ref().and_then(|backend| backend.news());
            *self = Self { backend, looked: None, news };
        }
    }

    async fn told(&mut self) {
        let told = match &mut self.news {
            Some(news) => news.changed().await.is_ok(),
            None => std::future::pending().await,
        };
        if told {
            self.looked = None;
        } else {
            self.news = None;
        }
    }

    /// Once a beat, and when there are news. A backend that hangs holds up what else is due by one budget.
    async fn look(&mut self, store: &Inner, group: u16, due: &Due) {
        let Some(backend) = self.backend.clone() else { return };
        if self.looked.is_some_and(|looked| looked.elapsed() < BEAT) {
            return;
        }
        self.looked = Some(Instant::now());
        let ours = |hold: &Hold| match hold {
            Hold::Foreign { incarnation, lease } if *incarnation == backend.incarnation() => {
                Some(LeaseRef { incarnation: *incarnation, id: *lease })
            }
            _ => None,
        };
        let leases: Vec<LeaseRef> = due.foreign.iter().filter_map(ours).collect();
        for some in leases.chunks(PROBES_AT_ONCE) {
            let answers = tokio::time::timeout(PROBE_BUDGET, backend.probe(some.to_vec())).await;
            let Ok(answers) = answers else { return };
            for (lease, answer) in some.iter().zip(&answers) {
                if *answer == Alive::Gone {
                    tell(store, group, *lease).await;
                }
            }
            if answers.contains(&Alive::Unknown) {
                // It cannot be asked now.
                return;
            }
        }
    }
}

async fn tell(store: &Inner, group: u16, lease: LeaseRef) {
    let lease = Hold::Foreign { incarnation: lease.incarnation, lease: lease.id };
    let gone = QueueCommand::LeaseGone { lease };
    if let Err(error) = store.channels.call(group, Request::Queue(gone)).await {
        tracing::warn!(%error, "a lost lease could not be told to its channels yet");
    }
}
