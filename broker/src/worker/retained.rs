//! Retained messages for new subscriptions (§3.3.1.3): looked up beside the worker, sent as fast as the client takes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use gateway::link::{LinkId, MessageDelivery};
use hashbrown::HashMap;
use session::lifecycle::{Append, Command, Target};
use session::message::{Message, QoS};
use session::topic::TopicFilter;
use smallvec::SmallVec;
use storage::{GroupId, StorageError, Store};

use super::Worker;
use super::client::{Event, Session};
use super::commit::Op;
use super::inbox::is_expired;
use super::mail::Mail;
use crate::users::UserRoom;

/// Retained messages of one session that are appended to its inbox and not committed yet.
const APPENDS_MAX: u16 = 256;
/// Messages of one page.
const PAGE_MESSAGES_MAX: usize = 16 * 1_024;
/// Bytes of one page, unless one message alone is larger.
const PAGE_BYTES_MAX: usize = 8 * 1_024 * 1_024;
/// Topics that are remembered as superseded during one feed; beyond it an old value may follow a new one.
const SUPERSEDED_MAX: usize = 4_096;
/// Messages of one step; then other connections get their turn.
const STEP_MAX: usize = 4_096;

/// Subscriptions of one session whose retained messages are being sent.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// The one that is being served.
    current: Option<Wanted>,
    /// Those behind it, in the order in which they are served.
    waiting: BTreeMap<u64, Wanted>,
    /// Place of each filter in `waiting`: a filter that is subscribed to again meanwhile is served once, as it was asked last, so that
    /// there are never more than subscriptions (P9).
    places: HashMap<Arc<str>, u64, foldhash::fast::RandomState>,
    /// Place of the next one.
    next_place: u64,
    /// A lookup is under way, for the current one unless that was forgotten meanwhile.
    loading: bool,
    /// What was found for the current one and is not sent yet.
    found: std::vec::IntoIter<Arc<Message>>,
    /// Where its next page begins, when there is one.
    next_page: Option<Place>,
    /// Its next message, which found no room.
    stuck: Option<Arc<Message>>,
    /// Appends to the session's own inbox under way.
    appends: u16,
}

/// A place in the order in which the store lists retained messages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    group: GroupId,
    topic: String,
}

/// A page of retained messages.
#[derive(Debug, Default)]
pub struct RetainedPage {
    messages: Vec<Arc<Message>>,
    bytes: usize,
    /// Topic of the last one, when there may be more behind it.
    next: Option<Place>,
}

/// One subscription that wants retained messages.
#[derive(Debug)]
pub(super) struct Wanted {
    pub filter: TopicFilter,
    pub qos: QoS,
    pub identifier: u32,
}

impl Worker {
    /// Sends the retained messages of new subscriptions, after those that are being sent already.
    pub(super) fn feed(&self, session: &mut Session, wanted: impl IntoIterator<Item = Wanted>) {
        let mut wanted = wanted.into_iter().peekable();
        if wanted.peek().is_none() {
            return;
        }
        self.feeding.borrow_mut().entry(session.post.link.id()).or_default();
        let feed = session.feed.get_or_insert_default();
        wanted.for_each(|wanted| feed.want(wanted));
        self.go_on_feeding(session);
    }

    /// A page of retained messages was found.
    pub(super) fn feed_found(&self, session: &mut Session, found: Result<RetainedPage, Arc<StorageError>>) {
        let Some(feed) = &mut session.feed else { return };
        feed.loading = false;
        match found {
            // Unsubscribed meanwhile.
            Ok(_) if feed.current.is_none() => {}
            Ok(page) => feed.take(page),
            Err(error) => {
                tracing::error!(%error, "retained messages cannot be read");
                session.failed = true;
            }
        }
    }

    /// An append of a retained message to the session's own inbox is committed.
    pub(super) fn feed_appended(&self, session: &mut Session) {
        if let Some(feed) = &mut session.feed {
            feed.appends = feed.appends.saturating_sub(1);
        }
    }

    /// Whether a step of the feed may propose appends.
    pub(super) fn feed_needs_scope(session: &Session) -> bool {
        session.feed.is_some() && session.durable.is_some()
    }

    /// Sends what the client takes; goes on when the outbox is empty again.
    pub(super) fn go_on_feeding(&self, session: &mut Session) {
        for _ in 0..STEP_MAX {
            if session.failed {
                return;
            }
            let Some(feed) = session.feed.as_deref_mut() else { return };
            if feed.loading {
                return;
            }
            let Some(message) = feed.stuck.take().or_else(|| feed.found.next()) else {
                if !self.load_next(session) {
                    return;
                }
                continue;
            };
            if !self.feed_one(session, &message) {
                if let Some(feed) = &mut session.feed {
                    feed.stuck = Some(message);
                }
                return;
            }
        }
        session.post.link.push_event(Event::Wake);
    }

    /// Looks up the next page, or the next subscription's first one; whether there is something to send already.
    fn load_next(&self, session: &mut Session) -> bool {
        let link = session.post.link.id();
        let Some(feed) = session.feed.as_deref_mut() else { return false };
        let after = feed.next_page.take();
        if after.is_none() {
            feed.current = feed.next();
        }
        let Some(wanted) = &feed.current else {
            if feed.appends == 0 {
                self.end_feed(session);
            }
            return false;
        };
        let filter = wanted.filter.pattern();
        if filter.starts_with("$SYS") {
            feed.take(self.shared.workers.sys().matching(filter));
            return true;
        }
        if !self.shared.forwarding.is_alone() {
            feed.loading = true;
            let filter = filter.to_owned();
            self.load_behind_barrier(link, filter, after);
            return false;
        }
        if after.is_none() && self.has_no_retained() {
            return true;
        }
        if !filter.contains(['+', '#']) {
            // One topic: found at once.
            match page(&self.shared.store, filter, None) {
                Ok(page) => feed.take(page),
                Err(error) => {
                    tracing::error!(%error, "a retained message cannot be read");
                    session.failed = true;
                }
            }
            return true;
        }
        feed.loading = true;
        let (store, port, filter) = (self.shared.store.clone(), Arc::clone(&self.port), filter.to_owned());
        // A large set may take long, and bodies may have to be read from disk: not on a worker.
        self.shared.workers.spawn_blocking(move || {
            let found = page(&store, &filter, after.as_ref()).map_err(Arc::new);
            port.send(Mail::Retained { link, found });
        });
        false
    }

    /// Looks up a page once this node has everything that was acknowledged, on any node, before (P7).
    fn load_behind_barrier(&self, link: LinkId, filter: String, after: Option<Place>) {
        let (store, port) = (self.shared.store.clone(), Arc::clone(&self.port));
        self.shared.workers.spawn(async move {
            let passed = match after {
                None => barrier(&store, &filter).await,
                Some(_) => Ok(()),
            };
            if let Err(error) = passed {
                return port.send(Mail::Retained { link, found: Err(error) });
            }
            drop(tokio::task::spawn_blocking(move || {
                let found = page(&store, &filter, after.as_ref()).map_err(Arc::new);
                port.send(Mail::Retained { link, found });
            }));
        });
    }

    fn has_no_retained(&self) -> bool {
        let store = &self.shared.store;
        (0..store.groups()).all(|group| store.read(GroupId(group), |rows| rows.stat().retained == 0))
    }

    /// Sends one message; false: no room now.
    fn feed_one(&self, session: &mut Session, message: &Arc<Message>) -> bool {
        let client_id = &session.subscriber.key.client_id;
        if is_expired(message, self.now_ms.get())
            || !session.access.may_read(&self.shared.auth, client_id, message.topic())
            || self.is_superseded(session.post.link.id(), message.topic())
        {
            return true;
        }
        let Some(wanted) = session.feed.as_ref().and_then(|feed| feed.current.as_ref()) else { return true };
        let qos = message.qos.min(wanted.qos);
        let mut identifiers = SmallVec::new();
        if wanted.identifier != 0 {
            identifiers.push(wanted.identifier);
        }
        match session.durable.as_ref().map(|durable| (durable.group, durable.session.lifetime)) {
            Some((group, lifetime)) if qos > QoS::AtMostOnce => {
                let Some(feed) = session.feed.as_mut().filter(|feed| feed.appends < APPENDS_MAX) else {
                    return false;
                };
                let mut targets = vec![Target { lifetime, qos, retain: true, identifiers, shared: false }];
                let mut room = UserRoom::of(&self.shared, message.len());
                if !self.keep_within(&mut room, group, &mut targets) {
                    return true;
                }
                feed.appends += 1;
                let append = Append { message: Message::clone(message), stamp: None, targets };
                if self.propose(session, group, Command::Feed(Box::new(append)), Op::Fed) {
                    return true;
                }
                self.feed_appended(session);
                session.post.link.push_event(Event::Wake);
                false
            }
            durable => {
                if durable.is_some() && !self.is_current(session, message) {
                    return true;
                }
                let pushed = session.post.link.push_message(MessageDelivery {
                    message: Arc::clone(message),
                    qos,
                    retain: true,
                    dup: false,
                    identifiers,
                    offset: None,
                    share: None,
                });
                if pushed {
                    self.stats.sent(qos, 1, message.payload().len());
                }
                pushed
            }
        }
    }

    /// Whether a retained message is still the value of its topic. A newer one is routed after it was stored, so it reaches the session
    /// by itself, and the old one must not follow it (P7).
    pub(super) fn is_current(&self, session: &mut Session, found: &Arc<Message>) -> bool {
        if found.topic().starts_with("$SYS") {
            return true;
        }
        let mut current = false;
        let looked_up = self.shared.store.retained(found.topic(), &mut |message| {
            current = Arc::ptr_eq(&message, found) || message == *found;
            false
        });
        if let Err(error) = looked_up {
            tracing::error!(%error, "a retained message cannot be read");
            session.failed = true;
        }
        current
    }

    /// A retained value was delivered as it was published: an older one that a lookup found must not follow it (P7).
    pub(super) fn supersede(&self, link: LinkId, topic: &str) {
        let mut feeding = self.feeding.borrow_mut();
        if let Some(superseded) = feeding.get_mut(&link)
            && superseded.len() < SUPERSEDED_MAX
        {
            superseded.insert(topic.into());
        }
    }

    fn is_superseded(&self, link: LinkId, topic: &str) -> bool {
        let feeding = self.feeding.borrow();
        feeding.get(&link).is_some_and(|superseded| superseded.contains(topic))
    }

    /// The connection is gone, or everything is sent.
    pub(super) fn end_feed(&self, session: &mut Session) {
        if session.feed.take().is_some() {
            self.feeding.borrow_mut().remove(&session.post.link.id());
        }
    }
}

impl Feed {
    fn want(&mut self, wanted: Wanted) {
        let place = *self.places.entry(Arc::clone(&wanted.filter.full)).or_insert(self.next_place);
        self.next_place = self.next_place.max(place + 1);
        self.waiting.insert(place, wanted);
    }

    /// The next one to be served.
    fn next(&mut self) -> Option<Wanted> {
        let (_, wanted) = self.waiting.pop_first()?;
        self.places.remove(&wanted.filter.full);
        Some(wanted)
    }

    /// Nothing more is sent for `filter`.
    pub(super) fn forget(&mut self, filter: &TopicFilter) {
        if let Some(place) = self.places.remove(&filter.full) {
            self.waiting.remove(&place);
        }
        if self.current.as_ref().is_some_and(|current| current.filter == *filter) {
            self.current = None;
            self.take(RetainedPage::default());
            self.stuck = None;
        }
    }

    fn take(&mut self, page: RetainedPage) {
        self.next_page = page.next;
        self.found = page.messages.into_iter();
    }
}

impl RetainedPage {
    /// Adds one; false when the page is full now.
    fn push(&mut self, message: Arc<Message>) -> bool {
        self.bytes += message.len();
        self.messages.push(message);
        self.messages.len() < PAGE_MESSAGES_MAX && self.bytes < PAGE_BYTES_MAX
    }
}

impl FromIterator<Arc<Message>> for RetainedPage {
    fn from_iter<I: IntoIterator<Item = Arc<Message>>>(messages: I) -> Self {
        Self { messages: messages.into_iter().collect(), bytes: 0, next: None }
    }
}

/// Waits for the groups that may hold retained messages of `filter`.
async fn barrier(store: &Store, filter: &str) -> Result<(), Arc<StorageError>> {
    if !filter.contains(['+', '#']) {
        return store.barrier(store.group_of_topic(filter)).await;
    }
    let mut groups = tokio::task::JoinSet::new();
    for group in (0..store.groups()).map(GroupId) {
        let store = store.clone();
        groups.spawn(async move { store.barrier(group).await });
    }
    let lost = |_| Arc::new(StorageError::Unavailable("the control runtime stops".to_owned()));
    while let Some(passed) = groups.join_next().await {
        passed.map_err(lost)??;
    }
    Ok(())
}

/// The retained messages that `filter` matches, behind `after`.
fn page(store: &Store, filter: &str, after: Option<&Place>) -> Result<RetainedPage, StorageError> {
    let mut page = RetainedPage::default();
    let mut full = None;
    let after = after.map(|after| (after.group, after.topic.as_str()));
    store.retained_from(filter, after, PAGE_MESSAGES_MAX, &mut |message| {
        if page.push(Arc::clone(&message)) {
            return true;
        }
        full = Some(message);
        false
    })?;
    page.next =
        full.map(|last| Place { group: store.group_of_topic(last.topic()), topic: last.topic().to_owned() });
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(filter: &str, identifier: u32) -> Wanted {
        let filter = TopicFilter::parse(filter).expect("a filter");
        Wanted { filter, qos: QoS::AtMostOnce, identifier }
    }

    fn served(feed: &mut Feed) -> Vec<(String, u32)> {
        std::iter::from_fn(|| feed.next())
            .map(|wanted| (wanted.filter.full.to_string(), wanted.identifier))
            .collect()
    }

    /// P9: a filter waits once however often it is subscribed to, [MQTT-3.8.4-3]: as it was asked last.
    #[test]
    fn p9_a_filter_waits_once() {
        let mut feed = Feed::default();
        for round in 0..1_000 {
            feed.want(wanted("a", round));
            feed.want(wanted("b", round));
        }
        assert_eq!(feed.waiting.len(), 2);
        assert_eq!(served(&mut feed), [("a".to_owned(), 999), ("b".to_owned(), 999)]);
        feed.want(wanted("a", 7));
        assert_eq!(served(&mut feed), [("a".to_owned(), 7)]);
    }

    /// [MQTT-3.10.4-2]: what an UNSUBSCRIBE names is not sent any more, whether it waits or is being sent.
    #[test]
    fn mqtt_3_10_4_2_a_filter_is_forgotten() {
        let mut feed = Feed::default();
        ["a", "b", "c"].into_iter().for_each(|filter| feed.want(wanted(filter, 0)));
        feed.current = feed.next();
        feed.take([Arc::new(Message::new("a", &[], b"x"))].into_iter().collect());
        feed.stuck = feed.found.next();
        for filter in ["a", "b", "d"] {
            feed.forget(&TopicFilter::parse(filter).expect("a filter"));
        }
        assert!(feed.current.is_none() && feed.stuck.is_none() && feed.found.next().is_none());
        assert_eq!(served(&mut feed), [("c".to_owned(), 0)]);
        assert!(feed.places.is_empty());
    }
}
