//! Reclamation of ended lifetimes (owner spec §9): a page of children at a time, then, when the binding of the ClientID to its user is no
//! longer kept, the row.
//!
//! It deletes nothing of a live lifetime: storage refuses that, and an older lifetime's reclamation never touches its successor.

use std::time::Duration;

use session::id::Key;
use session::lifecycle::{Command, Conflict, Reply, SessionRow};
use session::time::Millis;
use storage::Store;

/// Children removed by one command.
pub const PAGE: u32 = 256;
/// How often and at which distance a release is tried while the Will of the session is published.
const RELEASE_ATTEMPTS: usize = 100;
const RELEASE_PAUSE: Duration = Duration::from_millis(20);
/// Pages of one reclamation on request; the deadline task goes on with the rest.
const PAGES_MAX: usize = 4_096;

/// How long the binding of a ClientID to its user outlives the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// `session.binding_retention` in milliseconds.
    pub binding_ms: u64,
}

impl Retention {
    /// Until when the row stays. Sessions of anonymous clients and sessions that never were durable bind nothing (DESIGN §3).
    #[must_use]
    pub fn binding_until(&self, row: &SessionRow) -> Millis {
        if row.uid.is_none() || !row.durable {
            row.updated_at
        } else {
            row.updated_at.plus_ms(self.binding_ms)
        }
    }

    /// The next page of a row's reclamation.
    #[must_use]
    pub fn command(&self, row: &SessionRow) -> Command {
        Command::Reclaim {
            key: row.owner.key.clone(),
            revision: row.revision,
            limit: PAGE,
            binding_until: self.binding_until(row),
        }
    }
}

/// Reclaims an ended session at once and drops its binding (`session end --release`).
///
/// # Errors
/// False when something stayed: it changed meanwhile, or the store is not available. The deadline task goes on.
pub async fn release(store: &Store, key: &Key, retention: Retention) -> Result<(), NotReleased> {
    let group = store.group_of(key);
    for _ in 0..PAGES_MAX {
        let Some(row) = store.read(group, |rows| rows.session(key).cloned()) else { return Ok(()) };
        let reply = store.call(group, retention.command(&row)).await.map_err(|_| NotReleased)?;
        match reply {
            Reply::Reclaimed { done: false, .. } => {}
            Reply::Reclaimed { done: true, .. } => break,
            _ => return Err(NotReleased),
        }
    }
    // Its Will may still be on its way out; that takes as long as a publication.
    for _ in 0..RELEASE_ATTEMPTS {
        match store.call(group, Command::ReleaseBinding { key: key.clone() }).await {
            Ok(Reply::Conflict(Conflict::Illegal)) => tokio::time::sleep(RELEASE_PAUSE).await,
            Ok(Reply::Done { .. } | Reply::Conflict(Conflict::Missing)) => return Ok(()),
            Ok(_) | Err(_) => return Err(NotReleased),
        }
    }
    Err(NotReleased)
}

/// The session ended, but its ClientID is still bound to its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended, but its ClientID is still bound to its user; repeat the call")]
pub struct NotReleased;
