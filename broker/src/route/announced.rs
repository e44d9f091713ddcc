//! The filters of this node for which other nodes have to send their messages here, each once however many subscribers it has, and
//! the numbered log of their changes (DESIGN §1 P7).
//!
//! The log also says which entries of the groups changed stored subscriptions: other nodes find those in their own state, and confirm
//! that their routing follows it that far.
//!
//! Counted are all subscriptions of sessions without inbox, and those of connected sessions with one, shared ones apart: every node
//! knows the members of a share that have inboxes, and reaches them through those.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use storage::GroupId;
use tokio::sync::watch;

/// Changes that are kept for peers that lag behind; one that lags further is told everything anew.
const LOG_MAX: usize = 65_536;

/// One change that other nodes have to know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteChange {
    /// Of the set; the whole filter, `$share/` included.
    Filter { filter: Arc<str>, added: bool },
    /// Stored subscriptions changed with this entry of the group, or one before it.
    Stored { group: GroupId, index: u64 },
}

/// What changed since a peer was told last.
#[derive(Debug, PartialEq, Eq)]
pub enum Since {
    Changes(Vec<RouteChange>),
    /// The log does not reach so far back.
    Forgotten,
}

/// The set. Changed under the router's writer lock.
#[derive(Debug)]
pub struct Announced {
    state: Mutex<State>,
    /// Number of the last change.
    number: AtomicU64,
    changed: watch::Sender<u64>,
    is_active: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    counts: HashMap<Arc<str>, u32>,
    /// The last one has the number `number`.
    log: VecDeque<RouteChange>,
    number: u64,
}

impl Default for Announced {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            number: AtomicU64::new(0),
            changed: watch::Sender::new(0),
            is_active: AtomicBool::new(false),
        }
    }
}

impl Announced {
    /// Keeps the log from now on; before that nobody reads it.
    pub(super) fn activate(&self) {
        self.is_active.store(true, Ordering::SeqCst);
    }

    /// Whether other nodes are told.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::SeqCst)
    }

    /// Number of the last change, from 0. Whoever changed the set reads a number that is not below that of the change.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Tells of changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// At most `max` changes that follow `number`.
    #[must_use]
    pub fn since(&self, number: u64, max: usize) -> Since {
        let state = self.state.lock();
        let behind = usize::try_from(state.number.saturating_sub(number)).unwrap_or(usize::MAX);
        if number > state.number || behind > state.log.len() {
            return Since::Forgotten;
        }
        let from = state.log.len() - behind;
        Since::Changes(state.log.range(from..).take(max).cloned().collect())
    }

    /// The whole set, and the number of the last change in it.
    #[must_use]
    pub fn all(&self) -> (u64, Vec<Arc<str>>) {
        let state = self.state.lock();
        (state.number, state.counts.keys().cloned().collect())
    }

    /// One more subscriber of `filter`.
    pub(super) fn hold(&self, filter: &Arc<str>) {
        let mut state = self.state.lock();
        let count = state.counts.entry(Arc::clone(filter)).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.note(&mut state, filter, true);
        }
    }

    /// One less.
    pub(super) fn release(&self, filter: &Arc<str>) {
        let mut state = self.state.lock();
        let Some(count) = state.counts.get_mut(filter) else { return };
        *count -= 1;
        if *count == 0 {
            state.counts.remove(filter);
            self.note(&mut state, filter, false);
        }
    }

    /// Stored subscriptions changed with entry `index` of `group`, or before it. The number of the change, or of the last one where
    /// nobody is told.
    pub fn stored(&self, group: GroupId, index: u64) -> u64 {
        if !self.is_active() {
            return self.number();
        }
        let mut state = self.state.lock();
        self.log(&mut state, RouteChange::Stored { group, index });
        state.number
    }

    fn note(&self, state: &mut State, filter: &Arc<str>, added: bool) {
        self.log(state, RouteChange::Filter { filter: Arc::clone(filter), added });
    }

    fn log(&self, state: &mut State, change: RouteChange) {
        state.number += 1;
        self.number.store(state.number, Ordering::Release);
        if !self.is_active.load(Ordering::SeqCst) {
            return;
        }
        if state.log.len() == LOG_MAX {
            state.log.pop_front();
        }
        state.log.push_back(change);
        self.changed.send_replace(state.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(filter: &str, added: bool) -> RouteChange {
        RouteChange::Filter { filter: filter.into(), added }
    }

    /// P7: only the first subscriber of a filter and the last one are told.
    #[test]
    fn p7_a_filter_is_announced_once() {
        let announced = Announced::default();
        announced.hold(&"before".into());
        announced.activate();
        assert_eq!(announced.since(0, 9), Since::Forgotten, "nothing was logged before");
        let start = announced.number();
        for _ in 0..3 {
            announced.hold(&"a".into());
        }
        announced.release(&"a".into());
        announced.release(&"a".into());
        announced.hold(&"b".into());
        announced.release(&"a".into());
        announced.release(&"never".into());
        let changes = vec![change("a", true), change("b", true), change("a", false)];
        assert_eq!(announced.since(start, 9), Since::Changes(changes.clone()));
        assert_eq!(announced.since(start + 1, 1), Since::Changes(changes[1..2].to_vec()));
        assert_eq!(announced.since(announced.number(), 9), Since::Changes(Vec::new()));
        assert_eq!(announced.since(announced.number() + 1, 9), Since::Forgotten);
        let (number, mut all) = announced.all();
        all.sort();
        assert_eq!((number, all), (announced.number(), vec!["b".into(), "before".into()]));
    }

    /// P9: the log is bounded; who lags further behind is told so.
    #[test]
    fn p9_the_log_of_changes_is_bounded() {
        let announced = Announced::default();
        announced.activate();
        for number in 0..=LOG_MAX {
            announced.hold(&format!("{number}").into());
        }
        assert_eq!(announced.since(0, 1), Since::Forgotten);
        assert_eq!(announced.since(1, 1), Since::Changes(vec![change("1", true)]));
        assert_eq!(announced.state.lock().log.len(), LOG_MAX);
    }
}
