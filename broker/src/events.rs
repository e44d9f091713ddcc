//! What happens on this node, as it happens: a bounded ring of events for those who watch (`GET /v1/events`).
//!
//! Writers never wait for readers: a reader that the ring has gone past is behind, and is let go. A kind of event that comes in a flood is
//! told [`PER_SECOND_MAX`] times a second; the rest of it is counted and told as one `skipped`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use session::id::Key;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::admin::Word as _;
use crate::admin::table::words;

/// Events that are kept.
pub const EVENTS_MAX: usize = 4_096;
/// Those who watch at one time.
pub const READERS_MAX: usize = 32;
/// Events of one kind that are told in one second.
pub const PER_SECOND_MAX: u64 = 100;
/// A connection that takes nothing for so long gives way to a new reader.
const STALL_MIN: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);

words! {
    /// What happened.
    pub EventKind {
        /// A CONNECT was answered with success; `detail`: `new` or `resumed`.
        Connect = "connect",
        /// A connection is closed; `detail`: `normal` or `abnormal`.
        Disconnect = "disconnect",
        /// A CONNECT was refused; `detail` as the outcome in `exactmq_connects_total`.
        Refused = "refused",
        /// A CONNECT met an active owner, on `node_id`; `detail` as the outcome in `exactmq_takeover_seconds`.
        Takeover = "takeover",
        /// A session was ended; `detail` is the reason.
        End = "end",
        /// A boot of `node_id` was retired; `detail` is the proof.
        Retired = "retired",
        /// There is a link to `node_id`.
        NodeUp = "node_up",
        NodeDown = "node_down",
        /// `node_id` leads the group in `detail` now; `null`: nobody that this node knows of.
        Leader = "leader",
        /// The bridge whose user it is changed its state; `detail` is the state, behind it why, where there is a reason.
        Bridge = "bridge",
        /// `count` messages were dropped within a second, for the reason in `detail`: something is slower than what is asked of it.
        Overload = "overload",
        /// The load of this node is at another level, the one in `detail` (`exactmq_overload_level`).
        Load = "load",
        /// `count` events of the kind in `detail` are not told: there were too many.
        Skipped = "skipped",
    }
}

impl EventKind {
    const COUNT: usize = Self::ALL.len();
}

/// One event. `null` where its kind has no such thing to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one with every event of a boot.
    pub seq: u64,
    /// By the wall clock of the node.
    pub at_ms: u64,
    pub kind: EventKind,
    pub namespace: Option<Arc<str>>,
    pub client_id: Option<Arc<str>>,
    /// `null` also for the anonymous user.
    pub user: Option<Arc<str>>,
    /// The node that it is about.
    pub node_id: Option<u64>,
    pub detail: Option<Arc<str>>,
    pub count: Option<u64>,
    pub took_ms: Option<u64>,
}

impl Event {
    /// With nothing to say yet but its kind.
    #[must_use]
    pub fn new(kind: EventKind) -> Self {
        Self {
            seq: 0,
            at_ms: 0,
            kind,
            namespace: None,
            client_id: None,
            user: None,
            node_id: None,
            detail: None,
            count: None,
            took_ms: None,
        }
    }

    /// About a session.
    #[must_use]
    pub fn of(kind: EventKind, key: &Key, user: Option<&Arc<str>>) -> Self {
        let (namespace, client_id) = (Some(Arc::clone(&key.namespace)), Some(Arc::clone(&key.client_id)));
        Self { namespace, client_id, user: user.cloned(), ..Self::new(kind) }
    }

    #[must_use]
    pub fn detail(mut self, detail: impl Into<Arc<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    #[must_use]
    pub fn node(mut self, node_id: impl Into<Option<u64>>) -> Self {
        self.node_id = node_id.into();
        self
    }

    #[must_use]
    pub fn took_ns(mut self, took_ns: u64) -> Self {
        self.took_ms = Some(took_ns / 1_000_000);
        self
    }
}

/// The events of one boot.
#[derive(Debug)]
pub struct Feed {
    ring: Mutex<Ring>,
    /// Changes with every event; true: there are no more.
    news: watch::Sender<bool>,
    readers: Mutex<Slots>,
    dropped: AtomicU64,
}

/// Those who watch, oldest first.
#[derive(Debug, Default)]
struct Slots {
    next: u64,
    open: BTreeMap<u64, Slot>,
}

#[derive(Debug)]
struct Slot {
    /// Whose it is, as far as one keeps others out.
    owner: Arc<str>,
    /// Since when its connection takes nothing of what is there for it.
    stalled_since: Option<Instant>,
    /// Told when it has to leave.
    leave: Arc<Notify>,
    leaving: bool,
}

impl Slots {
    /// Makes room for one of `owner` where somebody may be let go for it: whose connection stalls longest, else the oldest of those who
    /// have more than two readers more than `owner` has. False: there is nobody such.
    fn make_room(&mut self, owner: &str, now: Instant) -> bool {
        let stalls = |slot: &Slot| slot.stalled_since.filter(|since| now.duration_since(*since) >= STALL_MIN);
        let stalled = self.open.iter().filter(|(_, slot)| !slot.leaving);
        let stalled = stalled.filter_map(|(id, slot)| Some((stalls(slot)?, *id))).min().map(|(_, id)| id);
        let id = stalled.or_else(|| {
            let mut counts: HashMap<&str, usize> = HashMap::new();
            for slot in self.open.values().filter(|slot| !slot.leaving) {
                *counts.entry(&slot.owner).or_default() += 1;
            }
            let own = counts.get(owner).copied().unwrap_or_default();
            let (greedy, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
            let is_its = |slot: &Slot| *slot.owner == *greedy && !slot.leaving;
            (count > own + 2).then(|| self.open.iter().find(|(_, slot)| is_its(slot)).map(|(id, _)| *id))?
        });
        let Some(slot) = id.and_then(|id| self.open.get_mut(&id)) else { return false };
        slot.leaving = true;
        slot.leave.notify_one();
        true
    }

    /// Those that are not on their way out.
    fn staying(&self) -> usize {
        self.open.values().filter(|slot| !slot.leaving).count()
    }
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    /// `seq` of the next event.
    next: u64,
    windows: [Window; EventKind::COUNT],
}

/// How much of a kind was told since when.
#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    told: u64,
    skipped: u64,
}

impl Default for Feed {
    fn default() -> Self {
        let window = Window { began: Instant::now(), told: 0, skipped: 0 };
        let ring = Ring { events: VecDeque::new(), next: 1, windows: [window; EventKind::COUNT] };
        Self {
            ring: Mutex::new(ring),
            news: watch::Sender::new(false),
            readers: Mutex::default(),
            dropped: AtomicU64::new(0),
        }
    }
}

impl Ring {
    /// Begins a new second for `kind`, and tells what the one before left out.
    fn turn(&mut self, kind: EventKind, now: Instant) {
        let window = &mut self.windows[kind as usize];
        if now.saturating_duration_since(window.began) < SECOND {
            return;
        }
        let skipped = window.skipped;
        *window = Window { began: now, told: 0, skipped: 0 };
        if skipped > 0 {
            let count = Some(skipped);
            self.add(Event { count, ..Event::new(EventKind::Skipped).detail(kind.word()) });
        }
    }

    fn add(&mut self, mut event: Event) {
        event.seq = self.next;
        event.at_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        self.next += 1;
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Arc::new(event));
    }

    fn oldest(&self) -> u64 {
        self.next - self.events.len() as u64
    }
}

impl Feed {
    /// Tells an event, unless there were too many of its kind in this second. Cheap, never waits for a reader.
    pub fn push(&self, event: Event) {
        let now = Instant::now();
        {
            let mut ring = self.ring.lock();
            ring.turn(event.kind, now);
            let window = &mut ring.windows[event.kind as usize];
            if window.told >= PER_SECOND_MAX {
                window.skipped += 1;
                return;
            }
            window.told += 1;
            ring.add(event);
        }
        self.tell();
    }

    /// Tells what was left out in seconds that are over. Called about once a second.
    pub fn turn(&self) {
        let now = Instant::now();
        let before = {
            let mut ring = self.ring.lock();
            let before = ring.next;
            for kind in EventKind::ALL {
                ring.turn(*kind, now);
            }
            before != ring.next
        };
        if before {
            self.tell();
        }
    }

    fn tell(&self) {
        // Looked at behind the ring's lock: who comes to watch after this finds the event there.
        if self.news.receiver_count() > 0 {
            self.news.send_modify(|_| ());
        }
    }

    /// There are no more: readers end.
    pub fn close(&self) {
        self.news.send_replace(true);
    }

    /// Those who watch.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.readers.lock().open.len()
    }

    /// Readers that were let go since they were too slow.
    #[must_use]
    pub fn readers_dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Watches from `from` on, for `owner`; `None`: as many as may are watching, and none of them stalls or is one of too many of one owner.
    #[must_use]
    pub fn watch(self: &Arc<Self>, from: From, owner: &Arc<str>) -> Option<Reader> {
        let leave = Arc::new(Notify::new());
        let id = {
            let mut slots = self.readers.lock();
            if slots.staying() >= READERS_MAX && !slots.make_room(owner, Instant::now()) {
                return None;
            }
            let id = slots.next;
            slots.next += 1;
            let owner = Arc::clone(owner);
            slots.open.insert(id, Slot { owner, stalled_since: None, leave: leave.clone(), leaving: false });
            id
        };
        let news = self.news.subscribe();
        let ring = self.ring.lock();
        let (oldest, end) = (ring.oldest(), ring.next);
        drop(ring);
        let (next, missed) = match from {
            From::Last(count) => (end.saturating_sub(count as u64).max(oldest), Some(0)),
            // An id that was never given is none of ours.
            From::After(seq) if seq < end => {
                let next = (seq + 1).max(oldest);
                (next, Some(next - (seq + 1)))
            }
            From::After(_) | From::Elsewhere => (oldest, None),
        };
        Some(Reader { feed: Arc::clone(self), id, leave, news, next, missed })
    }
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// With the last so many events.
    Last(usize),
    /// Behind this one.
    After(u64),
    /// Behind an event of another boot: with everything there is.
    Elsewhere,
}

/// Somebody who watches.
#[derive(Debug)]
pub struct Reader {
    feed: Arc<Feed>,
    id: u64,
    leave: Arc<Notify>,
    news: watch::Receiver<bool>,
    next: u64,
    /// Events between where it wanted to begin and where it does; `None`: unknown.
    pub missed: Option<u64>,
}

/// The ring went past a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind;

impl Reader {
    /// The next events, up to `limit`; none: there are none yet.
    ///
    /// # Errors
    /// It is behind.
    pub fn take(&mut self, limit: usize) -> Result<Vec<Arc<Event>>, Behind> {
        let ring = self.feed.ring.lock();
        let from = self.next.checked_sub(ring.oldest()).ok_or(Behind)?;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(ring.events.len());
        let events: Vec<_> = ring.events.range(from..).take(limit).cloned().collect();
        drop(ring);
        self.next += events.len() as u64;
        Ok(events)
    }

    /// Returns when there may be more; false: there never will be.
    pub async fn more(&mut self) -> bool {
        !*self.news.borrow() && self.news.changed().await.is_ok() && !*self.news.borrow()
    }

    /// Its connection takes nothing, or does again.
    pub fn stalls(&self, stalls: bool) {
        if let Some(slot) = self.feed.readers.lock().open.get_mut(&self.id) {
            slot.stalled_since = stalls.then(Instant::now);
        }
    }

    /// It is let go since it is too slow.
    pub fn is_too_slow(self) {
        self.feed.let_go();
    }

    /// Notified when it has to leave, for somebody else.
    #[must_use]
    pub fn leave(&self) -> Arc<Notify> {
        Arc::clone(&self.leave)
    }
}

impl Feed {
    /// A reader is let go since it is too slow, or since others wait for its place.
    pub fn let_go(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.feed.readers.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(events: u64) -> Arc<Feed> {
        let feed = Arc::new(Feed::default());
        for _ in 0..events {
            feed.ring.lock().add(Event::new(EventKind::NodeUp));
        }
        feed
    }

    fn seqs(events: &[Arc<Event>]) -> Vec<u64> {
        events.iter().map(|event| event.seq).collect()
    }

    /// P9: the ring has a bound; who is behind it learns of that instead of getting a feed with a hole.
    #[test]
    fn a_reader_that_the_ring_went_past_is_behind() {
        let feed = feed(3);
        let mut reader = feed.watch(From::Last(2), &"a".into()).expect("free");
        assert_eq!(seqs(&reader.take(10).expect("there")), [2, 3]);
        for _ in 0..EVENTS_MAX {
            feed.ring.lock().add(Event::new(EventKind::NodeUp));
        }
        assert_eq!(seqs(&reader.take(1).expect("just there")), [4]);
        feed.ring.lock().add(Event::new(EventKind::NodeUp));
        feed.ring.lock().add(Event::new(EventKind::NodeUp));
        assert_eq!(reader.take(1), Err(Behind));
        assert_eq!(feed.ring.lock().events.len(), EVENTS_MAX);
        reader.is_too_slow();
        assert_eq!((feed.readers(), feed.readers_dropped()), (0, 1));
    }

    /// A reader that comes back goes on where it was, and is told what it missed.
    #[test]
    fn a_reader_resumes_behind_what_it_has() {
        let feed = feed(5);
        let watch = |from| {
            let mut reader = feed.watch(from, &"a".into()).expect("free");
            (reader.missed, seqs(&reader.take(10).expect("there")))
        };
        assert_eq!(watch(From::After(3)), (Some(0), vec![4, 5]));
        assert_eq!(watch(From::After(5)), (Some(0), vec![]));
        assert_eq!(watch(From::After(6)), (None, vec![1, 2, 3, 4, 5]), "never given");
        assert_eq!(watch(From::Elsewhere), (None, vec![1, 2, 3, 4, 5]));
        assert_eq!(watch(From::Last(0)), (Some(0), vec![]));
        assert_eq!(watch(From::Last(9)), (Some(0), vec![1, 2, 3, 4, 5]));
        for _ in 0..EVENTS_MAX {
            feed.ring.lock().add(Event::new(EventKind::NodeUp));
        }
        assert_eq!(watch(From::After(3)).0, Some(2), "4 and 5 are gone");
    }

    /// P9: the number of readers is bounded, and one that leaves makes room.
    #[test]
    fn readers_are_bounded() {
        let feed = feed(0);
        let mut readers: Vec<_> =
            (0..READERS_MAX).map(|_| feed.watch(From::Last(0), &"a".into()).expect("free")).collect();
        assert!(feed.watch(From::Last(0), &"a".into()).is_none());
        readers.pop();
        assert!(feed.watch(From::Last(0), &"a".into()).is_some());
        drop(readers);
        assert_eq!(feed.readers(), 0);
    }

    /// P9: whose connection takes nothing does not keep others out, the longest stalled one goes first; nor does one owner with many readers,
    /// while readers of one owner leave each other alone.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stalls_or_is_one_of_many_gives_way() {
        let feed = Arc::new(Feed::default());
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let readers: Vec<_> =
            (0..READERS_MAX).map(|_| feed.watch(From::Last(0), &ann).expect("free")).collect();
        assert!(feed.watch(From::Last(0), &ann).is_none(), "nobody stalls");
        readers[7].stalls(true);
        tokio::time::advance(STALL_MIN / 2).await;
        readers[3].stalls(true);
        assert!(feed.watch(From::Last(0), &ann).is_none(), "not for long enough");
        tokio::time::advance(STALL_MIN / 2).await;
        let _new = feed.watch(From::Last(0), &ann).expect("one stalls");
        readers[7].leave().notified().await;
        tokio::time::advance(STALL_MIN).await;
        readers[3].stalls(false);
        assert!(feed.watch(From::Last(0), &ann).is_none(), "it goes on");
        let _bob = feed.watch(From::Last(0), &bob).expect("ann has too many");
        readers[0].leave().notified().await;
        drop(readers);
        assert_eq!(feed.readers(), 2);
    }

    /// P9: a flood of one kind does not drown the others, and what is left out is counted.
    #[tokio::test(start_paused = true)]
    async fn a_flood_is_cut_and_counted() {
        let feed = Arc::new(Feed::default());
        for _ in 0..PER_SECOND_MAX + 50 {
            feed.push(Event::new(EventKind::Refused).detail("bad_credentials"));
        }
        feed.push(Event::new(EventKind::End).detail("revoked"));
        let mut reader = feed.watch(From::Last(EVENTS_MAX), &"a".into()).expect("free");
        let told = reader.take(EVENTS_MAX).expect("there");
        assert_eq!(told.len() as u64, PER_SECOND_MAX + 1);
        assert_eq!(told.last().map(|event| event.kind), Some(EventKind::End));
        feed.turn();
        assert!(reader.take(10).expect("there").is_empty(), "the second is not over");
        tokio::time::advance(SECOND).await;
        feed.turn();
        let told = reader.take(10).expect("there");
        assert_eq!(told.len(), 1);
        let (kind, count, detail) = (told[0].kind, told[0].count, told[0].detail.as_deref());
        assert_eq!((kind, count, detail), (EventKind::Skipped, Some(50), Some("refused")));
        feed.push(Event::new(EventKind::Refused));
        assert_eq!(reader.take(10).expect("there").len(), 1);
    }

    #[tokio::test]
    async fn a_reader_is_woken_and_ends_with_the_feed() {
        let feed = Arc::new(Feed::default());
        let mut reader = feed.watch(From::Last(0), &"a".into()).expect("free");
        let (seen, was_seen) = tokio::sync::oneshot::channel();
        let waits = tokio::spawn(async move {
            assert!(reader.more().await);
            seen.send(reader.take(1).expect("there")[0].kind).expect("the test waits");
            assert!(!reader.more().await, "the feed is closed");
        });
        feed.push(Event::new(EventKind::NodeDown));
        assert_eq!(was_seen.await, Ok(EventKind::NodeDown));
        feed.close();
        waits.await.expect("it ends");
    }

    /// What is told between two looks is not slept through.
    #[tokio::test]
    async fn an_event_between_take_and_more_wakes() {
        let feed = Arc::new(Feed::default());
        let mut reader = feed.watch(From::Last(0), &"a".into()).expect("free");
        assert!(reader.take(1).expect("there").is_empty());
        feed.push(Event::new(EventKind::NodeDown));
        assert!(tokio::time::timeout(SECOND, reader.more()).await.expect("at once"));
        assert_eq!(reader.take(1).expect("there").len(), 1);
    }
}
