//! Looks at the rows of a group for a list, a bounded amount of work under one lock: the commits of the group wait meanwhile.

use std::sync::Arc;

use session::id::Key;
use session::lifecycle::{Group, SessionRow};

/// What is looked at under one lock: rows, and what they consist of. One row more may come on top, or one that cannot be looked at in parts.
pub(super) const WORK_AT_ONCE: usize = 1_024;

/// What may still be looked at under this lock.
#[derive(Debug)]
pub(super) struct Work(usize);

impl Work {
    pub(super) fn begin() -> Self {
        Self(WORK_AT_ONCE)
    }

    /// So many things were looked at.
    pub(super) fn spend(&mut self, count: u64) {
        self.0 = self.0.saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
    }

    pub(super) fn is_over(&self) -> bool {
        self.0 == 0
    }
}

/// How far a session was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    All,
    /// It is shown again, under the next lock.
    Part,
    /// No more sessions are needed.
    Enough,
}

/// Where a walk over the sessions of a group is.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The session that was looked at last.
    last: Option<Key>,
    /// Not all of it was seen.
    is_part: bool,
}

impl Place {
    /// At this session, which is the first one to be looked at.
    pub(super) fn at(key: &Key) -> Self {
        Self { last: Some(key.clone()), is_part: true }
    }
}

/// Shows sessions in key order to `visit`, as far as the work under one lock goes; whether there are more.
pub(super) fn walk(
    rows: &Group,
    place: &mut Place,
    visit: &mut impl FnMut(&Group, &SessionRow, &mut Work) -> Seen,
) -> bool {
    let Place { last, is_part } = std::mem::take(place);
    let mut work = Work::begin();
    let first = last.as_ref().filter(|_| is_part).and_then(|key| rows.session(key));
    for row in first.into_iter().chain(rows.sessions_after(last.as_ref())) {
        work.spend(1);
        let seen = visit(rows, row, &mut work);
        if seen == Seen::Enough {
            return false;
        }
        if seen == Seen::Part || work.is_over() {
            *place = Place { last: Some(row.owner.key.clone()), is_part: seen == Seen::Part };
            return true;
        }
    }
    false
}

/// The shared subscriptions of the session that is looked at, which may have more of them than fit under one lock.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Lifetime and filter that were looked at last.
    last: Option<(u64, Arc<str>)>,
}

impl Shares {
    pub(super) fn walk(
        &mut self,
        rows: &Group,
        row: &SessionRow,
        work: &mut Work,
        mut visit: impl FnMut(&Arc<str>),
    ) -> Seen {
        let last = self.last.take().filter(|(lifetime, _)| *lifetime == row.lifetime);
        let is_behind = |filter: &Arc<str>| last.as_ref().is_some_and(|(_, last)| filter <= last);
        let rest = rows.shared_subscriptions(row.lifetime).skip_while(|(filter, _)| is_behind(filter));
        for (filter, _) in rest {
            visit(filter);
            work.spend(1);
            if work.is_over() {
                self.last = Some((row.lifetime, Arc::clone(filter)));
                return Seen::Part;
            }
        }
        Seen::All
    }
}

#[cfg(test)]
#[path = "walk_test.rs"]
mod walk_test;
