//! `session.on_quota = "end"`: a session whose inbox is full is ended, with reason quota, through the use case of an operator's End (DESIGN
//! §6).

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use parking_lot::Mutex;
use session::lifecycle::{EndReason, SessionState, WillMode};
use storage::GroupId;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::EndInput;
use super::end::EndError;
use crate::shared::Shared;

/// Sessions that are ended side by side.
const ENDING_MAX: usize = 64;
/// How long one End may take; a session that is not ended then is reported again with the next message that finds no room.
const END_TIMEOUT_MS: u64 = 5_000;
/// How often the owner is looked up again when the session changed hands meanwhile, and the pause before.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// Durable lifetimes whose inbox had no room for a message and that are not being ended yet; bounded by the durable sessions.
#[derive(Debug, Default)]
pub struct FullInboxes {
    reported: Mutex<HashSet<(GroupId, u64)>>,
    wake: Notify,
}

impl FullInboxes {
    /// Reports lifetimes; never blocks.
    pub fn report(&self, group: GroupId, lifetimes: Vec<u64>) {
        if lifetimes.is_empty() {
            return;
        }
        self.reported.lock().extend(lifetimes.into_iter().map(|lifetime| (group, lifetime)));
        self.wake.notify_one();
    }

    /// Ends what is reported. Runs until the task is dropped.
    pub async fn end_forever(self: Arc<Self>, shared: Arc<Shared>) {
        loop {
            self.wake.notified().await;
            let reported = std::mem::take(&mut *self.reported.lock());
            let mut ending = JoinSet::new();
            for (group, lifetime) in reported {
                if ending.len() >= ENDING_MAX {
                    // What an End answered is its own business; a panic in one is that of a dependency.
                    let _ = ending.join_next().await;
                }
                ending.spawn(end(shared.clone(), group, lifetime));
            }
            while ending.join_next().await.is_some() {}
        }
    }
}

/// Ends the session whose current lifetime this is.
async fn end(shared: Arc<Shared>, group: GroupId, lifetime: u64) {
    if !shared.store.leads(group) {
        // Every node hears of it; the leader does it.
        return;
    }
    for _ in 0..ATTEMPTS {
        let row = shared.store.read(group, |rows| rows.session_by_lifetime(lifetime).cloned());
        let Some(row) = row.filter(|row| !matches!(row.state, SessionState::Ended { .. })) else { return };
        let client_id = row.owner.key.client_id.clone();
        let input =
            EndInput { owner: row.owner, reason: EndReason::Quota, will: WillMode::Publish, release: false };
        let deadline = shared.clock.tick().plus_ms(END_TIMEOUT_MS);
        match shared.end(&input, deadline).await {
            Ok(_) => {
                tracing::info!(%client_id, "a session was ended: its inbox was full");
                return;
            }
            // Somebody took it over, or its connection ended: the next owner is ended.
            Err(EndError::Fenced | EndError::Conflict) => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                tracing::warn!(%client_id, %error, "a session with a full inbox could not be ended");
                return;
            }
        }
    }
}
