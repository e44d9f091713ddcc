//! Reclamation of ended lifetimes (owner spec §9): a page of children at a time, then, when the binding of the ClientID to its user is no
//! longer kept, the row.
//!
//! It deletes nothing of a live lifetime: storage refuses that, and an older lifetime's reclamation never touches its successor.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use session::id::Key;
use session::lifecycle::{Command, Conflict, Reply, SessionRow};
use session::time::Millis;
use storage::{GroupId, Store};

use super::disconnect::LifetimeOver;
use super::heritage::{Heirs, hand_on_all};
use super::will::propose_all;

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

/// Reclaims, after what ended lifetimes leave to others is handed on.
#[derive(Debug)]
pub struct Reclaimer {
    store: Store,
    retention: Retention,
    heirs: Arc<dyn Heirs>,
    over: Arc<dyn LifetimeOver>,
    /// By group: one at a time, with the lifetimes whose heritage is handed on and whose reclamation did not come through, so that nothing is
    /// handed on twice. Bounded by the ended lifetimes.
    turns: Box<[tokio::sync::Mutex<HashSet<u64>>]>,
}

impl Reclaimer {
    #[must_use]
    pub fn new(
        store: Store,
        retention: Retention,
        heirs: Arc<dyn Heirs>,
        over: Arc<dyn LifetimeOver>,
    ) -> Self {
        let turns = (0..store.groups()).map(|_| tokio::sync::Mutex::default()).collect();
        Self { store, retention, heirs, over, turns }
    }

    /// One page of the reclamation of each key; the answers, in the order of the keys. `None`: not now.
    pub async fn reclaim(&self, group: GroupId, mut keys: Vec<Key>) -> Vec<Option<Reply>> {
        let asked = keys.len();
        let mut handed = self.turns[usize::from(group.0)].lock().await;
        for key in self.hand_on(group, &keys, &mut handed).await {
            keys.retain(|other| *other != key);
        }
        let commands: Vec<Command> = self.store.read(group, |rows| {
            let rows = keys.iter().filter_map(|key| rows.session(key));
            rows.map(|row| self.retention.command(row)).collect()
        });
        let mut replies = propose_all(&self.store, group, commands.into_iter()).await;
        replies.resize(asked, None);
        if !handed.is_empty() {
            self.store.read(group, |rows| {
                handed.retain(|lifetime| rows.shared_filters(*lifetime).next().is_some());
            });
        }
        replies
    }

    /// Hands on what ended lifetimes of these keys leave; the keys whose heritage has to wait.
    async fn hand_on(&self, group: GroupId, keys: &[Key], handed: &mut HashSet<u64>) -> Vec<Key> {
        let leaving: Vec<(Key, u64)> = self.store.read(group, |rows| {
            let lifetimes = keys
                .iter()
                .flat_map(|key| rows.reclaimable(key).iter().map(move |lifetime| (key.clone(), *lifetime)));
            let leaves =
                |lifetime| !handed.contains(&lifetime) && rows.shared_filters(lifetime).next().is_some();
            lifetimes.filter(|(_, lifetime)| leaves(*lifetime)).collect()
        });
        let mut waiting = Vec::new();
        for (key, lifetime) in leaving {
            // It must not be chosen again.
            self.over.lifetime_over(&key, lifetime);
            match hand_on_all(&self.store, &*self.heirs, group, &key, lifetime).await {
                Ok(()) => {
                    handed.insert(lifetime);
                }
                Err(_) => waiting.push(key),
            }
        }
        waiting
    }

    /// Reclaims an ended session at once and drops its binding (`session end --release`).
    ///
    /// # Errors
    /// When something stayed: it changed meanwhile, or the store is not available. The deadline task goes on.
    pub async fn release(&self, key: &Key) -> Result<(), NotReleased> {
        let group = self.store.group_of(key);
        for _ in 0..PAGES_MAX {
            if self.store.read(group, |rows| rows.session(key).is_none()) {
                return Ok(());
            }
            match self.reclaim(group, vec![key.clone()]).await.pop().flatten() {
                Some(Reply::Reclaimed { done: false, .. }) => {}
                Some(Reply::Reclaimed { done: true, .. }) => break,
                _ => return Err(NotReleased),
            }
        }
        // Its Will may still be on its way out; that takes as long as a publication.
        for _ in 0..RELEASE_ATTEMPTS {
            match self.store.call(group, Command::ReleaseBinding { key: key.clone() }).await {
                Ok(Reply::Conflict(Conflict::Illegal)) => tokio::time::sleep(RELEASE_PAUSE).await,
                Ok(Reply::Done { .. } | Reply::Conflict(Conflict::Missing)) => return Ok(()),
                Ok(_) | Err(_) => return Err(NotReleased),
            }
        }
        Err(NotReleased)
    }
}

/// The session ended, but its ClientID is still bound to its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended, but its ClientID is still bound to its user; repeat the call")]
pub struct NotReleased;
