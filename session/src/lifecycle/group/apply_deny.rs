//! Denials: users and ClientIDs that may not connect. They stand in the log beside CONNECT, so that the two are ordered: a CONNECT
//! that commits after a denial is refused, one before it is there for the End that follows.

use std::sync::Arc;

use super::rows::RowId;
use super::{Group, RowError, done, load};
use crate::id::{Key, check_identity};
use crate::lifecycle::reply::{Conflict, Reply};
use crate::lifecycle::row::{DenyRow, Subject};
use crate::limits;
use crate::time::Millis;

impl Group {
    pub(super) fn deny(&mut self, row: &DenyRow) -> Result<Reply, Conflict> {
        if !is_valid(row) {
            return Err(Conflict::Illegal);
        }
        if self.denied.get(&row.subject).is_some_and(|known| known == row) {
            return Ok(Reply::Done { revision: 0, unchanged: true });
        }
        if self.denied.len() >= limits::DENIED_MAX && !self.denied.contains_key(&row.subject) {
            return Err(Conflict::Quota);
        }
        self.denied.insert(row.subject.clone(), row.clone());
        self.dirty.rows.insert(RowId::Denied(row.subject.clone()));
        Ok(done())
    }

    pub(super) fn allow(&mut self, subject: &Subject) -> Reply {
        let unchanged = self.denied.remove(subject).is_none();
        if !unchanged {
            self.dirty.rows.insert(RowId::Denied(subject.clone()));
        }
        Reply::Done { revision: 0, unchanged }
    }

    /// Whether a CONNECT of `user` with this key is refused at `now`.
    #[must_use]
    pub fn denies(&self, key: &Key, user: Option<&Arc<str>>, now: Millis) -> bool {
        if self.denied.is_empty() {
            return false;
        }
        let holds = |subject: &Subject| self.denied.get(subject).is_some_and(|row| row.until > now);
        holds(&Subject::Client(key.clone())) || user.is_some_and(|user| holds(&Subject::User(user.clone())))
    }

    /// What is decided about exactly this subject, over or not.
    #[must_use]
    pub fn denial(&self, subject: &Subject) -> Option<&DenyRow> {
        self.denied.get(subject)
    }

    /// Denials in order, from the first behind `after`; those that are over by the time of the last batch included.
    pub fn denied_after(&self, after: Option<&Subject>) -> impl Iterator<Item = &DenyRow> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, |subject| Excluded(subject.clone()));
        self.denied.range((from, Unbounded)).map(|(_, row)| row)
    }

    /// Forgets up to `max` denials that are over.
    pub(super) fn tidy_denied(&mut self, max: u64) -> u64 {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let over: Vec<Subject> = self
            .denied
            .values()
            .filter(|row| row.until <= self.clock)
            .map(|row| row.subject.clone())
            .take(max)
            .collect();
        for subject in &over {
            self.allow(subject);
        }
        over.len() as u64
    }

    pub(super) fn load_denied(&mut self, key: &[u8], row: DenyRow) -> Result<(), RowError> {
        if !is_valid(&row) {
            return Err(load::corrupt(key, "it names no user or ClientID that can be"));
        }
        self.denied.insert(row.subject.clone(), row);
        Ok(())
    }
}

fn is_valid(row: &DenyRow) -> bool {
    let named = match &row.subject {
        Subject::User(user) => check_identity(user, limits::UID_BYTES_MAX),
        Subject::Client(key) => check_identity(&key.namespace, limits::NAMESPACE_BYTES_MAX)
            .and_then(|()| check_identity(&key.client_id, limits::CLIENT_ID_BYTES_MAX)),
    };
    named.is_ok() && row.reason.len() <= limits::DENY_REASON_BYTES_MAX
}
