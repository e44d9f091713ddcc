//! What is due when, in order; kept up to date with every change so that looking costs O(log n).

use std::collections::BTreeSet;

use crate::lifecycle::command::WillKey;
use crate::time::Millis;

/// Three indexes, one a kind, so that many of one kind never hide another.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Offline sessions by the earlier of expiry and due Will; named by their current lifetime.
    pub sessions: BTreeSet<(Millis, u64)>,
    /// Ready Wills by due time, Executing ones by the end of the executor's lease.
    pub wills: BTreeSet<(Millis, WillKey)>,
    /// Rows with something to reclaim; named by their current lifetime.
    pub reclaims: BTreeSet<(Millis, u64)>,
    /// Something was added since the flag was taken.
    pub changed: bool,
}

impl Deadlines {
    /// Moves a record from `old` to `new`; [`Millis::NEVER`] means no record.
    pub(super) fn arm_session(&mut self, lifetime: u64, old: &mut Millis, new: Millis) {
        Self::rearm(&mut self.sessions, &mut self.changed, lifetime, old, new);
    }

    pub(super) fn arm_reclaim(&mut self, lifetime: u64, old: &mut Millis, new: Millis) {
        Self::rearm(&mut self.reclaims, &mut self.changed, lifetime, old, new);
    }

    fn rearm(
        index: &mut BTreeSet<(Millis, u64)>,
        changed: &mut bool,
        lifetime: u64,
        old: &mut Millis,
        new: Millis,
    ) {
        if *old == new {
            return;
        }
        if *old != Millis::NEVER {
            index.remove(&(*old, lifetime));
        }
        if new != Millis::NEVER {
            index.insert((new, lifetime));
            *changed = true;
        }
        *old = new;
    }

    /// The earliest record.
    pub(super) fn next(&self) -> Option<Millis> {
        let sessions = self.sessions.first().map(|(at, _)| *at);
        let wills = self.wills.first().map(|(at, _)| *at);
        let reclaims = self.reclaims.first().map(|(at, _)| *at);
        [sessions, wills, reclaims].into_iter().flatten().min()
    }
}
