//! What other nodes told of their subscriptions, and how far that can be trusted (service 130, the receiving side).
//!
//! ```text
//! Unknown ──Begin──▶ Loading ──Finish──▶ Valid ──lease over, Begin, a change that does not fit──▶ Unknown or Loading
//! any ──another boot, node out of reach──▶ Unknown, table dropped
//! ```
//! A node that can be reached and whose table is not valid gets every message (`Router::send_everything`). So a node that told
//! its subscribers "effective" was either heard, or gets everything, or cannot be reached (P7).
//!
//! A table also vouches for stored subscriptions: it becomes valid, or takes a change of them, only when the routing here follows what was
//! committed by then. While the table of one member is missing, this node asks a majority before it routes to inboxes
//! ([`super::certainty`]): that member may have told a subscriber "effective" that this node was not told of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use ownerrpc::link::{Answer, Call, Refusal, RefusalKind, Service};
use parking_lot::Mutex;
use session::time::{Millis, Tick};
use session::topic::TopicFilter;

use super::certainty::StoredRoutes;
use super::wire::{self, DONE, NOT_REACHED, RouteCall, TELL_ALL};
use super::withheld::{NOTHING, Withheld};
use crate::clock::NodeClock;
use crate::route::Router;

/// How long a table is good after it was confirmed, unless its node says less.
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// Filters of one node; a node that has more gets every message instead.
pub const FILTERS_PER_NODE_MAX: usize = 4 << 20;
/// A node that was reached not longer ago than this still gets messages, which wait in its queue: a link that is broken and comes back
/// costs no subscriber that stayed.
const LINGER_MS: u64 = 1_000;
/// How long a node is remembered that spoke up before this one knew it for a member.
const STRANGER_MS: u64 = 5_000;
/// As many as can hold a link to this node.
const STRANGERS_MAX: usize = 64;
/// Filters that are taken out of the index under one lock.
const DROP_PAGE: usize = 4_096;

/// The tables of all other nodes.
#[derive(Debug)]
pub(super) struct Tables {
    router: Arc<Router>,
    clock: Arc<NodeClock>,
    withheld: Arc<Withheld>,
    known: Mutex<Known>,
    /// When the first table that is believed stops to be good, in ticks; `u64::MAX`: none is.
    good_until: AtomicU64,
    /// Until when the tables of all members are good, in ticks: 0 when one is not; `u64::MAX`: there is no other member.
    certain_until: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    tables: HashMap<u64, Table>,
    /// All other members, as last told.
    nodes: Vec<u64>,
    /// Who spoke up and is no member as far as it is known here: it may be one for itself already, until then.
    strangers: HashMap<u64, Tick>,
    /// When each node was reached last.
    reached: HashMap<u64, Tick>,
    /// Nodes that can be reached, or could be until just now; ascending.
    reachable: Vec<u64>,
    /// Members that cannot be reached.
    away: HashMap<u64, Away>,
    /// Nodes that get everything now, ascending.
    everything: Vec<u64>,
}

#[derive(Debug)]
enum Away {
    /// Not reached since it is known, so far: until it is, or has waited for this one for longer than [`LINGER_MS`], it tells nobody
    /// "effective".
    Awaited(Tick),
    /// Messages pass it by, which is noted.
    Noted,
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
    /// `is_alone`: there is no other member, as far as it is known before the first look.
    pub(super) fn new(
        router: Arc<Router>,
        clock: Arc<NodeClock>,
        withheld: Arc<Withheld>,
        is_alone: bool,
    ) -> Self {
        let certain_until = AtomicU64::new(if is_alone { u64::MAX } else { 0 });
        let good_until = AtomicU64::new(u64::MAX);
        Self { router, clock, withheld, known: Mutex::default(), good_until, certain_until }
    }

    /// These are the other members now, and those of them that can be reached.
    pub(super) fn set_peers(&self, nodes: Vec<u64>, reachable: &[u64]) {
        {
            let known = &mut *self.known.lock();
            // One that is no member any more has no queue here that anything could wait in.
            known.reached.retain(|node, _| nodes.contains(node));
            known.away.retain(|node, _| nodes.contains(node));
            // If it comes back it is told that it was left out.
            let gone = known.nodes.iter().filter(|node| !nodes.contains(node));
            gone.for_each(|node| self.withheld.note(*node));
            known.nodes = nodes;
        }
        self.set_reachable(reachable);
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
        for &node in &known.nodes {
            if reachable.contains(&node) {
                known.away.remove(&node);
                continue;
            }
            let was_reached = known.reachable.contains(&node);
            let away = known.away.entry(node).or_insert(Away::Awaited(now));
            let is_over =
                matches!(away, Away::Awaited(since) if was_reached || now.ms_since(*since) >= LINGER_MS);
            if is_over {
                *away = Away::Noted;
                self.withheld.note(node);
            }
        }
        known.reachable = reachable;
        self.settle(known);
    }

    /// Clients are let in: what they publish passes those by that cannot be reached, which may have been members of the cluster, and told
    /// subscribers "effective", for long.
    pub(super) fn let_in(&self) {
        let known = &mut *self.known.lock();
        for (node, away) in &mut known.away {
            if let Away::Awaited(_) = away {
                *away = Away::Noted;
                self.withheld.note(*node);
            }
        }
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

    /// Whether the routing here has every stored subscription that was acknowledged on any node before now.
    pub(super) fn is_certain(&self) -> bool {
        let until = self.certain_until.load(Ordering::Relaxed);
        until == u64::MAX || self.clock.tick().0 < until
    }

    /// The routing could not follow what a node told: its table is not believed any more. What the node is answered.
    pub(super) fn distrust(&self, node: u64) -> (u8, u64) {
        let known = &mut *self.known.lock();
        if let Some(table) = known.tables.get_mut(&node) {
            table.state = State::Unknown;
        }
        self.settle(known);
        // The same as for what is taken.
        if known.reachable.contains(&node) {
            (TELL_ALL, self.withheld.mark(node))
        } else {
            (NOT_REACHED, NOTHING)
        }
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
        known.strangers.retain(|_, until| now < *until);
        let of_all = known.nodes.iter().map(|node| match known.tables.get(node) {
            Some(table) if table.is_valid(now, now_ms) => table.until().map_or(0, |until| until.0),
            _ => 0,
        });
        let certain_until = of_all.min().unwrap_or(u64::MAX);
        let certain_until = if known.strangers.is_empty() { certain_until } else { 0 };
        let everything: Vec<u64> = known.reachable.iter().copied().filter(|node| !is_valid(node)).collect();
        if everything != known.everything {
            self.router.send_everything(&everything);
            known.everything = everything;
        }
        self.good_until.store(good_until, Ordering::Relaxed);
        self.certain_until.store(certain_until, Ordering::Relaxed);
    }

    fn drop_filters<'a>(&self, node: u64, filters: impl IntoIterator<Item = &'a Arc<str>>) {
        let mut filters = filters.into_iter().filter_map(|filter| TopicFilter::parse(filter).ok()).peekable();
        while filters.peek().is_some() {
            let page: Vec<TopicFilter> = filters.by_ref().take(DROP_PAGE).collect();
            self.router.change_remote(node, page.iter().map(|filter| (filter, false)));
        }
    }

    /// Does what a node says; what it is answered, and its mark as of then.
    pub(super) fn take(&self, node: u64, boot: &Arc<str>, call: RouteCall<'_>) -> (u8, u64) {
        let known = &mut *self.known.lock();
        if !known.reachable.contains(&node) {
            // It gets nothing from here yet: what it says would be dropped before it mattered, and must not free its subscribers.
            if !known.nodes.contains(&node) && known.strangers.len() < STRANGERS_MAX {
                known.strangers.insert(node, self.clock.tick().plus_ms(STRANGER_MS));
                self.settle(known);
            }
            return (NOT_REACHED, NOTHING);
        }
        let table = known.tables.entry(node).or_insert_with(|| Table::new(boot.clone()));
        if table.boot != *boot {
            let dead = std::mem::replace(table, Table::new(boot.clone()));
            self.drop_filters(node, &dead.filters);
        }
        let answer = match call {
            RouteCall::Delta { base, through, until, changes, .. } => {
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
        // Under the lock: when it gets out of reach after that, it is told so once it is back.
        (answer, self.withheld.mark(node))
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
#[derive(Debug, Clone)]
pub(super) struct RoutesService {
    pub tables: Arc<Tables>,
    pub stored: Arc<dyn StoredRoutes>,
}

impl Service for RoutesService {
    /// A node makes its calls one after the other. Their size is bounded by the caller's pages.
    fn call(&self, call: Call) -> Answer {
        if let Some(refusal) = super::stranger(&call) {
            return Box::pin(std::future::ready(Err(refusal)));
        }
        let malformed = |error: wire::Malformed| Refusal::new(RefusalKind::Malformed, error.0);
        let first = match RouteCall::read(&call.payload) {
            Err(error) => return Box::pin(std::future::ready(Err(malformed(error)))),
            Ok(RouteCall::Delta { stored, .. }) if !stored.is_empty() => self.stored.clone().through(stored),
            // After it was sent its node waits for this one; before that it did not.
            Ok(RouteCall::Finish { .. }) => self.stored.clone().all(),
            Ok(read) => {
                let (answer, withheld) = self.tables.take(call.peer.node_id, &call.peer.boot_id, read);
                return Box::pin(std::future::ready(Ok(wire::told(call.payload[0], answer, withheld))));
            }
        };
        let tables = Arc::clone(&self.tables);
        Box::pin(async move {
            let (node, boot) = (call.peer.node_id, &call.peer.boot_id);
            let (answer, withheld) = match first.await {
                Ok(()) => tables.take(node, boot, RouteCall::read(&call.payload).map_err(malformed)?),
                Err(error) => {
                    tracing::debug!(%error, node, "stored subscriptions are not followed yet");
                    tables.distrust(node)
                }
            };
            Ok(wire::told(call.payload[0], answer, withheld))
        })
    }
}

#[cfg(test)]
#[path = "tables_test.rs"]
mod tables_test;
