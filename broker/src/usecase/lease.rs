//! The boot lease (DESIGN §4): one command per group every third of it keeps all owners of this boot alive; idle sessions cost no write.
//!
//! The local deadline is captured before the proposals and moves only when every group has committed: latency can only shorten it. When it
//! is not renewed, every owner of this boot stops admitting at the deadline by itself, and the sweeper closes their sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use session::id::Boot;
use session::lifecycle::{Command, Conflict, Reply};
use session::time::{Millis, Tick};
use storage::{GroupId, Store};

use crate::clock::NodeClock;
use crate::owners::Owners;

/// Pause after a renewal that failed.
const RETRY: Duration = Duration::from_millis(500);
/// How often it is looked whether this boot was retired; what was committed is applied here too.
const LOOK: Duration = Duration::from_millis(100);

/// Why the lease is over for good, or not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error("the store did not take the boot lease")]
    Unavailable,
    #[error("this boot was retired by commit; restart the node")]
    Retired,
}

/// The lease of this boot.
#[derive(Debug, Clone)]
pub struct BootLease {
    pub boot: Boot,
    pub clock: Arc<NodeClock>,
    pub store: Store,
    pub owners: Arc<Owners>,
    /// `owner.lease` in milliseconds.
    pub lease_ms: u64,
}

impl BootLease {
    /// Announces the boot to every group; from now on its commands are accepted.
    ///
    /// # Errors
    /// A group does not answer, or refuses.
    pub async fn start(&self) -> Result<(), LeaseError> {
        let lease = self.next_lease();
        let (revision, known) =
            self.round(lease, |_, lease_until| Command::BootStart { lease_until }).await?;
        if known {
            // An earlier attempt was committed without an answer: what the groups hold ends earlier than this lease would.
            return self.renew().await;
        }
        self.install(revision, lease)
    }

    /// Renews until the boot is retired. Runs until the task is dropped.
    ///
    /// # Errors
    /// [`LeaseError::Retired`]: nothing of this boot is accepted any more, and its owners stopped admitting and writing.
    pub async fn run_forever(&self) -> Result<(), LeaseError> {
        let pause = Duration::from_millis(self.lease_ms / 3);
        loop {
            self.watch_for(pause).await?;
            while let Err(error) = self.renew().await {
                self.owners.counters.lease_failures.fetch_add(1, Ordering::Relaxed);
                if error == LeaseError::Retired {
                    return Err(error);
                }
                tracing::warn!("the boot lease could not be renewed; connections end at its deadline");
                self.watch_for(RETRY).await?;
            }
            self.owners.counters.lease_renewals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits, and ends early when any group retired this boot.
    async fn watch_for(&self, pause: Duration) -> Result<(), LeaseError> {
        let until = tokio::time::Instant::now() + pause;
        loop {
            let retired = |group| {
                self.store.read(group, |rows| rows.boot(&self.boot).is_some_and(|row| row.retired.is_some()))
            };
            if (0..self.store.groups()).map(GroupId).any(retired) {
                return Err(self.retired());
            }
            let now = tokio::time::Instant::now();
            if now >= until {
                return Ok(());
            }
            tokio::time::sleep(LOOK.min(until - now)).await;
        }
    }

    /// This boot is over: its owners stop at once.
    fn retired(&self) -> LeaseError {
        self.owners.expire();
        LeaseError::Retired
    }

    /// One renewal on every group.
    ///
    /// # Errors
    /// A group does not answer (the old deadline stays), or the boot is retired.
    pub async fn renew(&self) -> Result<(), LeaseError> {
        let lease = self.next_lease();
        let renewal = |revision, lease_until| Command::BootRenew { revision, lease_until };
        let (revision, _) = self.round(lease, renewal).await?;
        self.install(revision, lease)
    }

    /// A lease that begins now, on both clocks.
    fn next_lease(&self) -> (Tick, Millis) {
        (self.clock.tick().plus_ms(self.lease_ms), self.clock.millis().plus_ms(self.lease_ms))
    }

    fn install(&self, revision: u64, (until, until_ms): (Tick, Millis)) -> Result<(), LeaseError> {
        self.owners.renew_boot(revision, until, until_ms).map_err(|_| LeaseError::Unavailable)
    }

    /// The lowest revision that the groups answer with, and whether one of them had the command already.
    async fn round(
        &self,
        (_, until_ms): (Tick, Millis),
        command: impl Fn(u64, Millis) -> Command,
    ) -> Result<(u64, bool), LeaseError> {
        let mut replies = Vec::with_capacity(usize::from(self.store.groups()));
        for group in (0..self.store.groups()).map(GroupId) {
            // Read anew each time: a renewal whose reply was lost moved it.
            let revision = self.store.read(group, |rows| rows.boot(&self.boot).map_or(0, |row| row.revision));
            let store = self.store.clone();
            let command = command(revision, until_ms);
            replies.push(tokio::spawn(async move { store.call(group, command).await }));
        }
        let (mut lowest, mut known) = (u64::MAX, false);
        let mut outcome = Ok(());
        for reply in replies {
            match reply.await {
                Ok(Ok(Reply::Done { revision, unchanged })) => {
                    lowest = lowest.min(revision);
                    known |= unchanged;
                }
                Ok(Ok(Reply::Conflict(Conflict::BootRetired))) => return Err(self.retired()),
                Ok(Ok(_) | Err(_)) | Err(_) => outcome = Err(LeaseError::Unavailable),
            }
        }
        outcome.map(|()| (lowest, known))
    }
}
