//! Messages of shared subscriptions that wait for a disconnected member while another one is there: they leave its inbox in two steps, so that
//! a crash in between loses none (MQTT 5 §4.8.2).
//!
//! ```text
//! waiting ──Unbind──▶ given up: no delivery to this session any more ──the inbox of another member has it, Rebound──▶ settled
//! ```

use super::Group;
use super::inbox::OfShares;
use crate::id::Key;
use crate::lifecycle::reply::{Conflict, Reply};
use crate::lifecycle::row::{SessionRow, SessionState};

/// Messages that one Unbind may give up.
const UNBIND_MAX: u32 = 4_096;

/// A lifetime with messages of shared subscriptions in its inbox.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    pub row: &'a SessionRow,
    /// Messages that are for its session.
    pub bound: u64,
    /// Messages that are for other members.
    pub unbound: u64,
}

impl Group {
    /// Lifetimes with messages of shared subscriptions, ascending, from the first one behind `after`.
    pub fn sharing(&self, after: u64) -> impl Iterator<Item = Waiting<'_>> {
        self.sharing.range(after.saturating_add(1)..).filter_map(|lifetime| {
            let life = self.lifetimes.get(lifetime)?;
            let OfShares { bound, unbound } = *life.children.as_deref()?.inbox.log.tally();
            Some(Waiting { row: self.session_by_lifetime(*lifetime)?, bound, unbound })
        })
    }

    pub(super) fn unbind(&mut self, key: &Key, revision: u64, limit: u32) -> Result<Reply, Conflict> {
        let row = &self.sessions.get(key).ok_or(Conflict::Missing)?.row;
        if row.revision != revision {
            return Err(Conflict::Fenced);
        }
        if !matches!(row.state, SessionState::Offline { .. }) {
            return Err(Conflict::Illegal);
        }
        let lifetime = row.lifetime;
        let life = self.lifetimes.get_mut(&lifetime).ok_or(Conflict::Missing)?;
        let children = life.children.as_deref_mut().ok_or(Conflict::Illegal)?;
        let inbox = &mut children.inbox;
        let leaving: Vec<u64> = inbox
            .log
            .unsettled(inbox.log.base())
            .filter(|(offset, entry)| !entry.unbound() && inbox.may_leave(*offset, *entry))
            .map(|(offset, _)| offset)
            .take(limit.clamp(1, UNBIND_MAX) as usize)
            .collect();
        let given_up = leaving.iter().filter(|offset| inbox.unbind(**offset)).count();
        if given_up > 0 {
            children.touch(lifetime, &mut self.dirty.lifetimes);
        }
        Ok(Reply::Done { revision, unchanged: given_up == 0 })
    }

    pub(super) fn rebound(&mut self, lifetime: u64, offsets: &[u64]) -> Result<Reply, Conflict> {
        let mut changed = false;
        for offset in offsets {
            let life = self.lifetimes.get(&lifetime).ok_or(Conflict::Missing)?;
            let inbox = life.children.as_deref().map(|children| &children.inbox);
            if inbox.and_then(|inbox| inbox.log.entry(*offset)).is_some_and(|entry| entry.unbound()) {
                changed |= self.settle(lifetime, *offset);
            }
        }
        Ok(Reply::Done { revision: 0, unchanged: !changed })
    }
}
