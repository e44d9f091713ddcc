//! A session as the routing sees it: where its connection is right now, and where its inbox is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use gateway::link::LinkId;
use parking_lot::Mutex;
use session::id::Key;
use session::topic::TopicFilter;
use storage::GroupId;

use crate::auth::{Brought, ClientRules};

/// Identity of a subscriber or of a share group in the index; never reused by one process. 0 is nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PartyId(pub u64);

/// One session that subscribes, connected or not. The handle of a durable session outlives its connections, so that
/// reconnecting does not touch the index.
#[derive(Debug)]
pub struct Subscriber {
    pub key: Key,
    /// The user, whose rights decide what it may be sent; `None`: anonymous.
    pub user: Option<Arc<str>>,
    /// Group and lifetime of its inbox; `None` for a session that ends with its connection.
    pub inbox: Option<(GroupId, u64)>,
    pub(super) id: PartyId,
    /// Worker and slot of the connection, or [`OFFLINE`]. Written last on attach: a reader that sees the new place
    /// sees the new serial too; one that sees an old place with a new serial finds no such link, which is the truth.
    place: AtomicU64,
    serial: AtomicU32,
    /// Exchanges in flight, as its connection last told: a hint for shared subscriptions.
    load: AtomicU32,
    /// A session with an inbox whose filters other nodes are told of, since it is connected here. Changed under the router's writer lock only.
    pub(super) announced: AtomicBool,
    /// Rules that its client came with; `is_known`: it came, since the start.
    rules: ArcSwapOption<ClientRules>,
    is_known: AtomicBool,
    /// Its filters, sorted; changed under the router's writer lock only.
    pub(super) filters: Mutex<Vec<TopicFilter>>,
}

const OFFLINE: u64 = u64::MAX;

impl Subscriber {
    pub(super) fn new(id: PartyId, key: Key, user: Option<Arc<str>>, inbox: Option<(GroupId, u64)>) -> Self {
        Self {
            key,
            user,
            inbox,
            id,
            place: AtomicU64::new(OFFLINE),
            serial: AtomicU32::new(0),
            load: AtomicU32::new(0),
            announced: AtomicBool::new(false),
            rules: ArcSwapOption::const_empty(),
            is_known: AtomicBool::new(false),
            filters: Mutex::new(Vec::new()),
        }
    }

    /// Its identity in the index.
    #[must_use]
    pub fn id(&self) -> PartyId {
        self.id
    }

    /// Rules that its client came with, as far as they are known here.
    #[must_use]
    pub fn brought(&self) -> Brought {
        if self.is_known.load(Ordering::Acquire) {
            Brought::Known(self.rules.load_full())
        } else {
            Brought::Unknown
        }
    }

    /// A client comes with these; whether that is anything new.
    pub(super) fn set_brought(&self, rules: Option<Arc<ClientRules>>) -> bool {
        let is_new = self.brought() != Brought::Known(rules.clone());
        if is_new {
            self.rules.store(rules);
            self.is_known.store(true, Ordering::Release);
        }
        is_new
    }

    /// Its connection, when it has one.
    #[must_use]
    pub fn live(&self) -> Option<LinkId> {
        let place = self.place.load(Ordering::Acquire);
        (place != OFFLINE).then(|| LinkId {
            worker: (place >> 48) as u16,
            slot: place as u32,
            serial: self.serial.load(Ordering::Relaxed),
        })
    }

    /// Whether it has a connection.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.place.load(Ordering::Relaxed) != OFFLINE
    }

    /// Worker of its connection.
    #[must_use]
    pub fn worker(&self) -> Option<u16> {
        let place = self.place.load(Ordering::Relaxed);
        (place != OFFLINE).then_some((place >> 48) as u16)
    }

    /// Tells how many exchanges its connection has in flight.
    pub fn set_load(&self, in_flight: u32) {
        self.load.store(in_flight, Ordering::Relaxed);
    }

    /// How many exchanges its connection has in flight, as it told last.
    #[must_use]
    pub fn load(&self) -> u32 {
        self.load.load(Ordering::Relaxed)
    }

    /// Number of its subscriptions.
    #[must_use]
    pub fn subscription_count(&self) -> usize {
        self.filters.lock().len()
    }

    /// Its filters, in order.
    #[must_use]
    pub fn filters(&self) -> Vec<TopicFilter> {
        self.filters.lock().clone()
    }

    /// Whether it has a subscription with exactly this filter.
    #[must_use]
    pub fn has(&self, filter: &TopicFilter) -> bool {
        self.filters.lock().binary_search(filter).is_ok()
    }

    /// Whether other nodes have to know that it subscribes to `filter`.
    pub(super) fn announces(&self, filter: &TopicFilter) -> bool {
        match self.inbox {
            None => true,
            Some(_) => filter.share().is_none() && self.announced.load(Ordering::Relaxed),
        }
    }

    pub(super) fn set_live(&self, link: LinkId) {
        self.place.store(OFFLINE, Ordering::Release);
        self.serial.store(link.serial, Ordering::Relaxed);
        self.load.store(0, Ordering::Relaxed);
        self.place.store(place(link), Ordering::Release);
    }

    /// Forgets the connection unless another one attached since.
    pub(super) fn clear_live(&self, link: LinkId) {
        if self.live() == Some(link) {
            // Fails when another connection attached in between: it stays.
            let _ = self.place.compare_exchange(place(link), OFFLINE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

fn place(link: LinkId) -> u64 {
    u64::from(link.worker) << 48 | u64::from(link.slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detach_of_an_old_link_leaves_the_new_one() {
        let key = Key { namespace: "main".into(), client_id: "c".into() };
        let subscriber = Subscriber::new(PartyId(1), key, None, None);
        let link = |slot, serial| LinkId { worker: 65_534, slot, serial };
        subscriber.set_live(link(7, 1));
        assert_eq!(subscriber.live(), Some(link(7, 1)));
        subscriber.set_live(link(7, 2));
        subscriber.clear_live(link(7, 1));
        assert_eq!(subscriber.live(), Some(link(7, 2)));
        subscriber.clear_live(link(7, 2));
        assert_eq!(subscriber.live(), None);
    }
}
