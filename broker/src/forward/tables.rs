//! What other nodes told of their subscriptions, and how far that can be trusted (service 130, the receiving side).
//!
//! ```text
//! Unknown ──Begin──▶ Loading ──Finish──▶ Valid ──lease over, Begin, a change that does not fit──▶ Unknown or Loading
//! any ──another boot, node out of reach──▶ Unknown, table dropped
//! ```
//! A node that can be reached and whose table is not valid gets every message (`Router::send_everything`). So a node that told
//! its subscribers "effective" was either heard, or gets everything, or cannot be reached (P7).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use ownerrpc::link::{Answer, Call, Refusal, RefusalKind, Service};
use parking_lot::Mutex;
use session::time::{Millis, Tick};
use session::topic::TopicFilter;

use super::wire::{DONE, NOT_REACHED, RouteCall, TELL_ALL};
use crate::clock::NodeClock;
use crate::route::Router;

/// How long a table is good after it was confirmed, unless its node says less.
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// Filters of one node; a node that has more gets every message instead.
pub const FILTERS_PER_NODE_MAX: usize = 4 << 20;
/// A node that was reached not longer ago than this still gets messages, which wait in its queue: a link that is broken and comes back
/// costs no subscriber that stayed.
const LINGER_MS: u64 = 1_000;
/// Filters that are taken out of the index under one lock.
const DROP_PAGE: usize = 4_096;

/// The tables of all other nodes.
#[derive(Debug)]
pub(super) struct Tables {
    router: Arc<Router>,
    clock: Arc<NodeClock>,
    known: Mutex<Known>,
    /// When the first table that is believed stops to be good, in ticks; `u64::MAX`: none is.
    good_until: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    tables: HashMap<u64, Table>,
    /// When each node was reached last.
    reached: HashMap<u64, Tick>,
    /// Nodes that can be reached, or could be until just now; ascending.
    reachable: Vec<u64>,
    /// Nodes that get everything now, ascending.
    everything: Vec<u64>,
}

#[derive(Debug)]
struct Table {
    boot: Arc<str>,
    filters: HashSet<Arc<str>>,
    /// Number of the last change in it.
    through: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Unknown,
    /// Everything is being told; `fresh` is what came so far.
    Loading {
        round: u64,
        fresh: HashSet<Arc<str>>,
    },
    /// By both clocks: the one of this node, which stands still for nobody, and the one that nodes share.
    Valid {
        until: Tick,
        until_ms: Millis,
    },
}

impl Table {
    fn new(boot: Arc<str>) -> Self {
        Self { boot, filters: HashSet::new(), through: 0, state: State::Unknown }
    }

    fn is_valid(&self, now: Tick, now_ms: Millis) -> bool {
        matches!(self.state, State::Valid { until, until_ms } if now < until && now_ms < until_ms)
    }

    fn confirm(&mut self, now: Tick, until_ms: Millis) {
        let lease_ms = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
        self.state = State::Valid { until: now.plus_ms(lease_ms), until_ms };
    }

    /// When it stops to be good.
    fn until(&self) -> Option<Tick> {
        match self.state {
            State::Valid { until, .. } => Some(until),
            State::Unknown | State::Loading { .. } => None,
        }
    }
}

impl Tables {
    pub(super) fn new(router: Arc<Router>, clock: Arc<NodeClock>) -> Self {
        Self { router, clock, known: Mutex::default(), good_until: AtomicU64::new(u64::MAX) }
    }

    /// These nodes can be reached now: the tables of those that cannot be for longer than a broken link takes are dropped, since they get
    /// nothing and tell everything when they are back.
    pub(super) fn set_reachable(&self, reachable: &[u64]) {
        let known = &mut *self.known.lock();
        let now = self.clock.tick();
        known.reached.extend(reachable.iter().map(|node| (*node, now)));
        known.reached.retain(|_, at| now.ms_since(*at) < LINGER_MS);
        let mut reachable: Vec<u64> = known.reached.keys().copied().collect();
        reachable.sort_unstable();
        let gone: Vec<u64> = known.tables.keys().copied().filter(|node| !reachable.contains(node)).collect();
        for node in gone {
            if let Some(table) = known.tables.remove(&node) {
                self.drop_filters(node, &table.filters);
            }
        }
        known.reachable = reachable;
        self.settle(known);
    }

    /// No node gets anything any more.
    pub(super) fn close(&self) {
        self.known.lock().reached.clear();
        self.set_reachable(&[]);
    }

    /// Whether the tables of these nodes are known.
    pub(super) fn are_known(&self, nodes: &[u64]) -> bool {
        let known = self.known.lock();
        let (now, now_ms) = (self.clock.tick(), self.clock.millis());
        nodes.iter().all(|node| known.tables.get(node).is_some_and(|table| table.is_valid(now, now_ms)))
    }

    /// Whether a table that is believed was good until now only. A worker asks once a turn, since all threads of a process may have stood
    /// still for longer than a lease.
    pub(super) fn is_overdue(&self, now: Tick) -> bool {
        now.0 >= self.good_until.load(Ordering::Relaxed)
    }

    /// Looks at the tables again.
    pub(super) fn look_again(&self) {
        self.settle(&mut self.known.lock());
    }

    /// Tells the index which nodes get everything.
    fn settle(&self, known: &mut Known) {
        let (now, now_ms) = (self.clock.tick(), self.clock.millis());
        let is_valid = |node: &u64| known.tables.get(node).is_some_and(|table| table.is_valid(now, now_ms));
        let good = known.tables.values().filter(|table| table.is_valid(now, now_ms));
        let good_until = good.filter_map(Table::until).min().map_or(u64::MAX, |until| until.0);
        let everything: Vec<u64> = known.reachable.iter().copied().filter(|node| !is_valid(node)).collect();
        if everything != known.everything {
            self.router.send_everything(&everything);
            known.everything = everything;
        }
        self.good_until.store(good_until, Ordering::Relaxed);
    }

    fn drop_filters<'a>(&self, node: u64, filters: impl IntoIterator<Item = &'a Arc<str>>) {
        let mut filters = filters.into_iter().filter_map(|filter| TopicFilter::parse(filter).ok()).peekable();
        while filters.peek().is_some() {
            let page: Vec<TopicFilter> = filters.by_ref().take(DROP_PAGE).collect();
            self.router.change_remote(node, page.iter().map(|filter| (filter, false)));
        }
    }

    /// Does what a node says; what it is answered.
    pub(super) fn take(&self, node: u64, boot: &Arc<str>, call: RouteCall<'_>) -> u8 {
        let known = &mut *self.known.lock();
        if !known.reachable.contains(&node) {
            // It gets nothing from here yet: what it says would be dropped before it mattered, and must not free its subscribers.
            return NOT_REACHED;
        }
        let table = known.tables.entry(node).or_insert_with(|| Table::new(boot.clone()));
        if table.boot != *boot {
            let dead = std::mem::replace(table, Table::new(boot.clone()));
            self.drop_filters(node, &dead.filters);
        }
        let answer = match call {
            RouteCall::Delta { base, through, until, changes } => {
                self.change(node, table, base, through, until, &changes)
            }
            RouteCall::Begin { round } => {
                table.state = State::Loading { round, fresh: HashSet::new() };
                DONE
            }
            RouteCall::Chunk { round, filters } => self.load(node, table, round, &filters),
            RouteCall::Finish { round, through, until } => self.finish(node, table, round, (through, until)),
        };
        self.settle(known);
        answer
    }

    fn change(
        &self,
        node: u64,
        table: &mut Table,
        base: u64,
        through: u64,
        until: Millis,
        changes: &[(&str, bool)],
    ) -> u8 {
        let is_valid = table.is_valid(self.clock.tick(), self.clock.millis());
        // A change that came before comes again with those behind it: the last word on each filter counts.
        if !is_valid || !(base..=through).contains(&table.through) {
            table.state = State::Unknown;
            return TELL_ALL;
        }
        let parsed: Vec<(TopicFilter, bool)> = changes
            .iter()
            .filter_map(|(filter, added)| Some((TopicFilter::parse(filter).ok()?, *added)))
            .collect();
        for (filter, added) in &parsed {
            if *added {
                table.filters.insert(Arc::clone(&filter.full));
            } else {
                table.filters.remove(&filter.full);
            }
        }
        // A confirmation without a change makes no new version of the index.
        if !parsed.is_empty() {
            self.router.change_remote(node, parsed.iter().map(|(filter, added)| (filter, *added)));
        }
        if parsed.len() < changes.len() || table.filters.len() > FILTERS_PER_NODE_MAX {
            table.state = State::Unknown;
            return TELL_ALL;
        }
        table.through = through;
        table.confirm(self.clock.tick(), until);
        DONE
    }

    fn load(&self, node: u64, table: &mut Table, round: u64, filters: &[&str]) -> u8 {
        let State::Loading { round: loading, fresh } = &mut table.state else { return TELL_ALL };
        if *loading != round || fresh.len() + filters.len() > FILTERS_PER_NODE_MAX {
            table.state = State::Unknown;
            return TELL_ALL;
        }
        let parsed: Vec<TopicFilter> =
            filters.iter().filter_map(|filter| TopicFilter::parse(filter).ok()).collect();
        fresh.extend(parsed.iter().map(|filter| Arc::clone(&filter.full)));
        let is_new = |filter: &&TopicFilter| table.filters.insert(Arc::clone(&filter.full));
        let new: Vec<&TopicFilter> = parsed.iter().filter(is_new).collect();
        self.router.change_remote(node, new.into_iter().map(|filter| (filter, true)));
        DONE
    }

    fn finish(&self, node: u64, table: &mut Table, round: u64, (through, until): (u64, Millis)) -> u8 {
        match std::mem::replace(&mut table.state, State::Unknown) {
            State::Loading { round: loading, fresh } if loading == round => {
                self.drop_filters(node, table.filters.difference(&fresh));
                table.filters = fresh;
                table.through = through;
                table.confirm(self.clock.tick(), until);
                DONE
            }
            _ => TELL_ALL,
        }
    }
}

/// Service 130.
#[derive(Debug)]
pub(super) struct RoutesService(pub Arc<Tables>);

impl Service for RoutesService {
    /// Done before it returns: a node's calls have to be done in its order. Their size is bounded by the caller's pages.
    fn call(&self, call: Call) -> Answer {
        if let Some(refusal) = super::stranger(&call) {
            return Box::pin(std::future::ready(Err(refusal)));
        }
        let answer = match RouteCall::read(&call.payload) {
            Ok(read) => {
                let answer = self.0.take(call.peer.node_id, &call.peer.boot_id, read);
                Ok(Bytes::copy_from_slice(&[answer]))
            }
            Err(error) => Err(Refusal::new(RefusalKind::Malformed, error.0)),
        };
        Box::pin(std::future::ready(answer))
    }
}

#[cfg(test)]
#[path = "tables_test.rs"]
mod tables_test;
