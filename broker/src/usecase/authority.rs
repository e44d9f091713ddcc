//! The authority: complete point reads of a session row and single proposals, with every failure named. A seam, so that the use cases
//! can be tested against faults that a healthy store never shows (owner spec §8.3, §8.4).

use std::future::Future;

use session::id::{Boot, Key, Owner};
use session::lifecycle::{Command, Reply, SessionRow, SessionState};
use session::time::Millis;
use storage::{Done, Proposal, Store};
use tokio::sync::oneshot;

/// Reply of a point read. A partial one is no evidence (owner spec §8.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointRead {
    /// Everything asked for is in it.
    pub complete: bool,
    pub row: Option<SessionRow>,
    /// Committed lease end of the boot that owns the row; `None` when the group does not know that boot.
    pub lease_until: Option<Millis>,
    /// Until when the ClientID belongs to the user of the row; `None`: it does not.
    pub bound_until: Option<Millis>,
}

/// The authority gave no answer; the fate of a proposal is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store is not available")]
pub struct Unavailable;

/// Reads and writes of one session.
pub trait Authority: Send + Sync {
    /// A linearizable read of one row.
    fn read(&self, key: &Key) -> impl Future<Output = Result<PointRead, Unavailable>> + Send;

    /// Proposes one command and waits for its reply; `before` goes ahead of it in the same proposal. Never retried here.
    fn commit(
        &self,
        key: &Key,
        before: Option<Command>,
        command: Command,
    ) -> impl Future<Output = Result<Reply, Unavailable>> + Send;
}

/// The store of this node.
#[derive(Debug, Clone)]
pub struct StoreAuthority(pub Store);

impl Authority for StoreAuthority {
    async fn read(&self, key: &Key) -> Result<PointRead, Unavailable> {
        let group = self.0.group_of(key);
        self.0.barrier(group).await.map_err(|error| {
            tracing::debug!(%error, "a read is not known to be the newest");
            Unavailable
        })?;
        Ok(self.0.read(group, |group| {
            let row = group.session(key);
            let lease_until = row.and_then(|row| {
                let owner = &row.owner;
                let boot = Boot { node_id: owner.node_id, boot_id: owner.boot_id.clone() };
                group.boot(&boot).map(|boot| boot.lease_until)
            });
            let bound_until = group.bound_until(key);
            PointRead { complete: true, row: row.cloned(), lease_until, bound_until }
        }))
    }

    async fn commit(
        &self,
        key: &Key,
        before: Option<Command>,
        command: Command,
    ) -> Result<Reply, Unavailable> {
        let (sender, receiver) = oneshot::channel();
        let before = before.map(|command| Proposal { command, done: Done::Nobody });
        let last = Proposal { command, done: Done::Once(sender) };
        self.0.propose(self.0.group_of(key), before.into_iter().chain([last]).collect());
        match receiver.await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a proposal has no answer");
                Err(Unavailable)
            }
            Err(_) => Err(Unavailable),
        }
    }
}

/// Whether a CONNECT at `at` begins a new lifetime (owner spec §5.4 event 2).
#[must_use]
pub fn begins_fresh(row: Option<&SessionRow>, clean_start: bool, at: Millis) -> bool {
    let Some(row) = row else { return true };
    clean_start
        || match row.state {
            SessionState::Ended { .. } => true,
            SessionState::Offline { offline_expires_at } => offline_expires_at <= at,
            SessionState::Active => row.expiry_sec == 0 || !row.durable,
        }
}

/// The generations that a CONNECT over `row` gets; `None` when a counter is exhausted.
#[must_use]
pub fn next_generations(row: Option<&SessionRow>, fresh: bool) -> Option<(u64, u64)> {
    let Some(Owner { session_generation, owner_generation, .. }) = row.map(|row| &row.owner) else {
        return Some((1, 1));
    };
    Some((session_generation.checked_add(u64::from(fresh))?, owner_generation.checked_add(1)?))
}
