//! Who waits for what a commit brings: one slot a member, so that a wake-up between a look and a wait is kept.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Slots of the members that are bound in this process, or through it.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    members: Mutex<HashMap<u64, Arc<Notify>>>,
    due: Notify,
}

impl Wakes {
    /// From now on wake-ups of the member are kept for it.
    pub(crate) fn open(&self, member: u64) {
        self.members.lock().entry(member).or_default();
    }

    /// `is_there`: whether the member still is; the slot of one that is gone goes.
    pub(crate) fn wake(&self, woken: &[u64], is_there: impl Fn(u64) -> bool) {
        if woken.is_empty() {
            return;
        }
        let mut members = self.members.lock();
        for member in woken {
            let Some(slot) = members.get(member) else { continue };
            slot.notify_one();
            if !is_there(*member) {
                members.remove(member);
            }
        }
    }

    /// Everything may have changed.
    pub(crate) fn wake_all(&self) {
        for slot in self.members.lock().values() {
            slot.notify_one();
        }
        self.due.notify_one();
    }

    pub(crate) fn wake_keeper(&self) {
        self.due.notify_one();
    }

    /// Returns when the member was woken since the last return, at once when it has no slot: it is gone.
    pub(crate) async fn wait(&self, member: u64) {
        let slot = self.members.lock().get(&member).cloned();
        if let Some(slot) = slot {
            slot.notified().await;
        }
    }

    pub(crate) async fn due_changed(&self) {
        self.due.notified().await;
    }
}
