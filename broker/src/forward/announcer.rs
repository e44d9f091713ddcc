//! Tells one other node of this node's subscriptions, and who waits for it (service 130, the calling side).
//!
//! ```text
//!          everything told, Finish about to leave                     a call failed
//! Free ───────────────────────────────────────────▶ Counted ──────────────────────────▶ Doubted
//!  ▲                                                   │ the node has no table               │
//!  └───────────────────────────────────────────────────┴── Begin was answered, lease over ───┘
//! ```
//! A SUBACK waits for the nodes that are Counted or Doubted: those may hold a table that is valid and does not have the subscription.
//! One of a shared subscription waits for a node that sends everything too: that names no share of which it was not told, since another
//! member may have the message. It does not wait for longer than [`SHARES_WAIT`] for a node that does not come to know everything, be it
//! that there is much to tell.
//! One that is Free cannot be reached, or sends everything here and asks a majority before it routes to inboxes. A node begins as
//! Doubted: it may hold what an earlier boot told it. The state changes before a call leaves that may make a table
//! valid, because its answer can be lost.
//!
//! One that answers that it cannot call here has no table, and sends everything from the moment that it can. It is waited for as one that
//! is silent, since it may take messages meanwhile that it can give to nobody here: once, until it is Free, and not for each SUBACK.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use ownerrpc::link::services;
use parking_lot::Mutex;
use session::lifecycle::Reply;
use storage::CompletionPort;
use tokio::time::Instant;

use super::tables::LEASE;
use super::wire;
use super::withheld::{Missed, NOTHING};
use crate::clock::NodeClock;
use crate::cluster::{NotAnswered, PeerCalls};
use crate::route::{Announced, RouteChange, Since};

/// How long one call may take.
const CALL: Duration = Duration::from_secs(1);
/// A table is confirmed so often when nothing changes.
const BEAT: Duration = Duration::from_millis(750);
/// What a lease may last longer at the other node than it was reckoned here: it looks at its clock ten times a second.
const LEASE_SLACK: Duration = Duration::from_millis(500);
/// Between two attempts, and two looks at a node that cannot be reached.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a shared subscription waits for a node that is being told everything.
const SHARES_WAIT: Duration = Duration::from_secs(4);
/// How often what changed while everything was told is told too, as long as it is more than one call takes, before the table is about to
/// become valid: from then on subscriptions wait for it.
const CATCH_UPS_MAX: u32 = 16;
/// Changes after which that ends: what changed since the beginning must still be in the log.
const CATCH_UP_CHANGES_MAX: u64 = 32_768;
/// Changes in one call.
const CHANGES_MAX: usize = 8_192;
/// Bytes of filters in one call, unless one alone is larger: the other node takes them in without a pause.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// What another node may believe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Belief {
    /// Its table has this change and all before it.
    Counted(u64),
    /// The same; it is not known whether it heard the last call.
    Doubted(u64),
    /// It sends everything, but for the shares that it does not know: Free to all other subscriptions.
    Everything,
}

/// Who waits for which change. Bounded by the open scopes of the sessions.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The nodes that are not Free.
    beliefs: HashMap<u64, Belief>,
    waiting: Waiting,
    /// Those with shared subscriptions.
    sharing: Waiting,
    serial: u64,
}

/// By number, and in order.
type Waiting = BTreeMap<(u64, u64), (Arc<dyn CompletionPort>, u64)>;

impl State {
    /// Every node that counts has this change.
    fn floor(&self, has_share: bool) -> u64 {
        let through = |belief: &Belief| match belief {
            Belief::Counted(through) | Belief::Doubted(through) => *through,
            Belief::Everything if has_share => 0,
            Belief::Everything => u64::MAX,
        };
        self.beliefs.values().map(through).min().unwrap_or(u64::MAX)
    }

    /// Takes out those who have waited for long enough.
    fn take_confirmed(&mut self, has_share: bool) -> Waiting {
        let floor = self.floor(has_share);
        let waiting = if has_share { &mut self.sharing } else { &mut self.waiting };
        let rest = match floor.checked_add(1) {
            Some(next) => waiting.split_off(&(next, 0)),
            None => BTreeMap::new(),
        };
        std::mem::replace(waiting, rest)
    }
}

impl Confirmations {
    /// Whether every node knows of the change with this number, as far as it counts. `has_share`: it is one of a shared subscription.
    pub(super) fn is_confirmed(&self, number: u64, has_share: bool) -> bool {
        number <= self.state.lock().floor(has_share)
    }

    /// Tells `port` once every node that counts knows of the change; the reply is always `Done`.
    pub(super) fn wait(&self, number: u64, has_share: bool, port: Arc<dyn CompletionPort>, token: u64) {
        {
            let mut state = self.state.lock();
            state.serial += 1;
            let key = (number, state.serial);
            let waiting = if has_share { &mut state.sharing } else { &mut state.waiting };
            waiting.insert(key, (port, token));
        }
        self.settle();
    }

    pub(super) fn set(&self, node: u64, belief: Option<Belief>) {
        {
            let mut state = self.state.lock();
            match belief {
                Some(belief) => state.beliefs.insert(node, belief),
                None => state.beliefs.remove(&node),
            };
        }
        self.settle();
    }

    /// Shared subscriptions do not wait for this node any longer, unless it may have a table.
    fn release_shares(&self, node: u64) {
        {
            let mut state = self.state.lock();
            if state.beliefs.get(&node) != Some(&Belief::Everything) {
                return;
            }
            state.beliefs.remove(&node);
        }
        self.settle();
    }

    fn settle(&self) {
        let confirmed = {
            let mut state = self.state.lock();
            [state.take_confirmed(false), state.take_confirmed(true)]
        };
        for (port, token) in confirmed.into_iter().flat_map(Waiting::into_values) {
            port.complete(vec![(token, Ok(Reply::Done { revision: 0, unchanged: false }))]);
        }
    }
}

/// Tells one node.
#[derive(Debug)]
pub(super) struct Announcer {
    pub node: u64,
    pub peers: Arc<dyn PeerCalls>,
    pub clock: Arc<NodeClock>,
    pub announced: Arc<Announced>,
    pub confirmations: Arc<Confirmations>,
    /// Times that everything was told.
    pub rounds: u64,
    /// Since when it has no table, but is being told everything.
    pub telling_since: Option<Instant>,
    /// What the node reads.
    pub format: u8,
    pub missed: Arc<dyn Missed>,
    /// The mark that the node told last. The first one it tells counts too: a connection that is there by then and was told "effective" was
    /// so because the node could not be asked.
    pub withheld: u64,
}

/// What the other node is known to hold.
enum Held {
    Nothing,
    /// The table with this change and all before it.
    Through(u64),
    /// It may hold that table; not any more from then on.
    Perhaps(Instant),
}

/// The node has no table that the call could be applied to.
struct TellAll;

/// No answer: what the node did is not known. Or it does not reach this node, and did nothing.
struct NoAnswer;

type Told = Result<Result<(), TellAll>, NoAnswer>;

/// What changed while everything was told: the last word on each filter. A subscription that was confirmed meanwhile may have been made,
/// given up and made again, and must not be missing for a moment once the table is valid.
struct Late {
    /// Number of the last change.
    through: u64,
    added: Vec<Arc<str>>,
    /// Filters that are gone, and stored changes.
    rest: Vec<RouteChange>,
}

impl Late {
    /// `changes` follow the number `base`.
    fn of(base: u64, changes: Vec<RouteChange>) -> Self {
        let through = base + changes.len() as u64;
        let (mut last, mut rest) = (HashMap::new(), Vec::new());
        for change in changes {
            match change {
                RouteChange::Filter { filter, added } => {
                    last.insert(filter, added);
                }
                stored @ RouteChange::Stored { .. } => rest.push(stored),
            }
        }
        let mut filters = Vec::new();
        for (filter, added) in last {
            if added {
                filters.push(filter);
            } else {
                rest.push(RouteChange::Filter { filter, added });
            }
        }
        Self { through, added: filters, rest }
    }
}

impl Announcer {
    /// Tells until the task is dropped.
    pub(super) async fn run(mut self) {
        let mut changes = self.announced.watch();
        // An earlier boot of this node may have told it.
        let mut held = self.doubt(0);
        loop {
            held = match held {
                Held::Through(through) => {
                    changes.mark_unchanged();
                    if through >= self.announced.number() {
                        // Ends with a change, or with the time for a confirmation.
                        let _ = tokio::time::timeout(BEAT, changes.changed()).await;
                    }
                    self.tell_changes(through).await
                }
                Held::Perhaps(until) if Instant::now() >= until => self.give_up(),
                other => match self.tell_all().await {
                    Ok(Ok(through)) => Held::Through(through),
                    Ok(Err(TellAll)) => {
                        tokio::time::sleep(PAUSE).await;
                        self.free()
                    }
                    Err(Some(held)) => {
                        tokio::time::sleep(PAUSE).await;
                        held
                    }
                    Err(None) => {
                        tokio::time::sleep(PAUSE).await;
                        self.still(other)
                    }
                },
            };
        }
    }

    /// The node has no table. It sends everything, unless it does not come to know everything for long.
    fn free(&mut self) -> Held {
        let since = *self.telling_since.get_or_insert_with(Instant::now);
        let is_telling = since.elapsed() < SHARES_WAIT;
        self.confirmations.set(self.node, is_telling.then_some(Belief::Everything));
        Held::Nothing
    }

    /// Begin was not answered.
    fn still(&mut self, held: Held) -> Held {
        match held {
            Held::Nothing if self.telling_since.is_none() => Held::Nothing,
            Held::Nothing if self.peers.reachable().contains(&self.node) => self.free(),
            Held::Nothing => self.give_up(),
            held => held,
        }
    }

    /// It cannot be reached, or is not known to send anything.
    fn give_up(&mut self) -> Held {
        self.telling_since = None;
        self.confirmations.set(self.node, None);
        Held::Nothing
    }

    /// A call that may have made a table valid has no answer.
    fn doubt(&self, through: u64) -> Held {
        self.confirmations.set(self.node, Some(Belief::Doubted(through)));
        Held::Perhaps(Instant::now() + LEASE + LEASE_SLACK)
    }

    /// Sends what changed, or a confirmation that nothing did.
    async fn tell_changes(&mut self, base: u64) -> Held {
        let Since::Changes(mut changes) = self.announced.since(base, CHANGES_MAX) else {
            // It is behind by more than is logged. Its table is valid until Begin is answered.
            return self.doubt(base);
        };
        changes.truncate(page(&changes, wire::change_bytes));
        let through = base + changes.len() as u64;
        let payload = wire::delta(self.format, (base, through), self.until(), &changes);
        match self.call(payload).await {
            Ok(Ok(())) => {
                self.confirmations.set(self.node, Some(Belief::Counted(through)));
                Held::Through(through)
            }
            Ok(Err(TellAll)) => self.free(),
            Err(NoAnswer) => self.doubt(base),
        }
    }

    /// Sends everything; the number that the node is known to have then. Without an answer: what it holds now, if that changed.
    async fn tell_all(&mut self) -> Result<Result<u64, TellAll>, Option<Held>> {
        if !self.peers.reachable().contains(&self.node) {
            return Err(None);
        }
        let (through, filters) = self.announced.all();
        self.rounds += 1;
        let round = self.rounds;
        match self.begin(round).await {
            Ok(Ok(())) => {}
            Ok(Err(TellAll)) => return Ok(Err(TellAll)),
            Err(NoAnswer) => return Err(None),
        }
        // From here on it sends everything.
        self.free();
        let told = match self.tell_table(round, through, filters).await {
            Ok(Ok(told)) => told,
            Ok(Err(TellAll)) => return Ok(Err(TellAll)),
            Err(NoAnswer) => return Err(Some(self.free())),
        };
        self.confirmations.set(self.node, Some(Belief::Counted(through)));
        // Until just now a subscription was confirmed because the node sends everything: it is in the table before that is valid. A stored
        // one was committed before it was confirmed, hence before Finish leaves: the node follows every group past it before it takes
        // Finish, and asks a majority till then.
        let Since::Changes(late) = self.announced.since(through, usize::MAX) else { return Ok(Err(TellAll)) };
        let last = Late::of(told, behind(&late, told - through)).added;
        let late = Late::of(through, late);
        match self.tell_filters(round, &last).await {
            Ok(Ok(())) => {}
            Ok(Err(TellAll)) => return Ok(Err(TellAll)),
            Err(NoAnswer) => return Err(Some(self.free())),
        }
        match self.call(wire::finish(self.format, round, through, self.until())).await {
            Ok(Ok(())) => self.telling_since = None,
            Ok(Err(TellAll)) => return Ok(Err(TellAll)),
            Err(NoAnswer) => return Err(Some(self.doubt(through))),
        }
        match self.tell_rest(through, &late).await {
            Ok(Ok(())) => {
                self.confirmations.set(self.node, Some(Belief::Counted(late.through)));
                Ok(Ok(late.through))
            }
            Ok(Err(TellAll)) => Ok(Err(TellAll)),
            Err(NoAnswer) => Err(Some(self.doubt(through))),
        }
    }

    /// Sends the table as it was at change `through`, then what was added meanwhile, until that is little; through which change it was told.
    async fn tell_table(
        &mut self,
        round: u64,
        through: u64,
        filters: Vec<Arc<str>>,
    ) -> Result<Result<u64, TellAll>, NoAnswer> {
        let mut told = through;
        let mut next = Late { through, added: filters, rest: Vec::new() };
        for _ in 0..=CATCH_UPS_MAX {
            match self.tell_filters(round, &next.added).await {
                Ok(Ok(())) => {}
                Ok(Err(TellAll)) => return Ok(Err(TellAll)),
                Err(NoAnswer) => return Err(NoAnswer),
            }
            told = next.through;
            let Since::Changes(late) = self.announced.since(told, usize::MAX) else {
                return Ok(Err(TellAll));
            };
            next = Late::of(told, late);
            let is_little = page(&next.added, |filter| wire::filter_bytes(filter)) == next.added.len();
            if is_little || told - through >= CATCH_UP_CHANGES_MAX {
                break;
            }
        }
        Ok(Ok(told))
    }

    /// Sends what everything and its additions left out, in pages; the last one brings the table past all of it.
    async fn tell_rest(&mut self, base: u64, late: &Late) -> Told {
        let mut rest = &late.rest[..];
        let mut is_told = late.through == base;
        while !is_told {
            let (changes, behind) = rest.split_at(page(rest, wire::change_bytes));
            (rest, is_told) = (behind, behind.is_empty());
            let through = if is_told { late.through } else { base };
            match self.call(wire::delta(self.format, (base, through), self.until(), changes)).await {
                Ok(Ok(())) => {}
                not_done => return not_done,
            }
        }
        Ok(Ok(()))
    }

    /// Sends a part of everything, in pages. However many there are, nobody waits for longer than [`SHARES_WAIT`], and one call, because
    /// of them.
    async fn tell_filters(&mut self, round: u64, filters: &[Arc<str>]) -> Told {
        let mut rest = filters;
        while !rest.is_empty() {
            let (filters, behind) = rest.split_at(page(rest, |filter| wire::filter_bytes(filter)));
            rest = behind;
            match self.call(wire::chunk(self.format, round, filters)).await {
                Ok(Ok(())) => {}
                not_done => return not_done,
            }
            if self.telling_since.is_some_and(|since| since.elapsed() >= SHARES_WAIT) {
                self.confirmations.release_shares(self.node);
            }
        }
        Ok(Ok(()))
    }

    /// In the newest format that the node reads: one of a version before refuses what it does not know.
    async fn begin(&mut self, round: u64) -> Told {
        self.format = wire::ROUTES_NEWEST;
        loop {
            match self.ask(wire::begin(self.format, round)).await {
                Err(NotAnswered::Refused { malformed: true, .. }) if self.format > wire::ROUTES_OLD => {
                    self.format -= 1;
                }
                answer => return self.told(answer),
            }
        }
    }

    fn until(&self) -> session::time::Millis {
        self.clock.millis().plus_ms(u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX))
    }

    async fn call(&mut self, payload: bytes::Bytes) -> Told {
        let answer = self.ask(payload).await;
        self.told(answer)
    }

    /// Sees to what the node withheld before anybody is told that it knows a subscription: who is subscribed by then only misses nothing.
    fn told(&mut self, answer: Result<bytes::Bytes, NotAnswered>) -> Told {
        let answer = answer.inspect_err(|error| {
            tracing::debug!(%error, "a node could not be told of subscriptions");
        });
        let Ok(Ok((answer, withheld))) = answer.as_deref().map(wire::read_told) else { return Err(NoAnswer) };
        if let Some(mark) = withheld
            && std::mem::replace(&mut self.withheld, mark) != mark
            && mark != NOTHING
        {
            self.missed.missed(self.node);
        }
        match answer {
            wire::DONE => Ok(Ok(())),
            wire::TELL_ALL => Ok(Err(TellAll)),
            _ => Err(NoAnswer),
        }
    }

    async fn ask(&self, payload: bytes::Bytes) -> Result<bytes::Bytes, NotAnswered> {
        self.peers.call(self.node, services::ROUTES, payload, Instant::now() + CALL).await
    }
}

/// Those of `changes` that follow the first `count`.
fn behind(changes: &[RouteChange], count: u64) -> Vec<RouteChange> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    changes.get(count..).unwrap_or_default().to_vec()
}

/// How many of these go into one call: at least one, if there is any.
fn page<T>(items: &[T], bytes_of: impl Fn(&T) -> usize) -> usize {
    let mut bytes = 0;
    let fits = |item: &&T| {
        bytes += bytes_of(item);
        bytes <= PAGE_BYTES_MAX
    };
    items.iter().take_while(fits).count().max(1).min(items.len())
}

impl Drop for Announcer {
    /// The node is no member any more, or this one stops: nobody waits for it.
    fn drop(&mut self) {
        self.confirmations.set(self.node, None);
    }
}

#[cfg(test)]
#[path = "announcer_test.rs"]
mod announcer_test;
