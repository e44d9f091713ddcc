//! What each user has on this node, held against the limits of a user: live connections, sessions that are being made, what it publishes.
//!
//! What is replicated (sessions, subscriptions, inboxes) is read from the store and not counted twice here: only what is on its way there
//! is. So the limits are exact on one node. In a cluster every node sees what is committed, and its own share of what is under way.

mod room;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;
use session::id::Key;
use session::time::Tick;

use crate::config::Limits;
use crate::worker::{Budget, Rates};

pub use room::UserRoom;

/// Limits of one user; 0: any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UserLimits {
    /// Clients of this node that are connected.
    pub connections_max: u64,
    pub sessions_max: u64,
    pub subscriptions_max: u64,
    /// On this node.
    pub rates: Rates,
    pub inbox_messages_max: u64,
    pub inbox_bytes_max: u64,
}

/// The users that have somebody here.
#[derive(Debug)]
pub struct Users {
    limits: UserLimits,
    users: Mutex<HashMap<Uid, Here>>,
}

/// `None`: everybody who is anonymous, together.
type Uid = Option<Arc<str>>;

#[derive(Debug)]
struct Here {
    used: Arc<UserUse>,
    /// Connections by client, those that connect among them: a client that takes its own session over is one.
    clients: HashMap<Key, usize>,
    /// Clients without a session whose CONNECT is under way.
    joining: HashMap<Key, usize>,
}

/// What a user uses, for those who count without looking it up.
#[derive(Debug)]
pub struct UserUse {
    /// What it may publish on this node.
    pub budget: Option<Budget>,
    /// Subscriptions that are on their way to the routing.
    subscribing: AtomicU64,
}

/// A connection among those of its user, for as long as it lives.
#[derive(Debug)]
pub struct Seat {
    users: Arc<Users>,
    uid: Uid,
    key: Key,
    used: Arc<UserUse>,
}

/// A session that is being made.
#[derive(Debug)]
pub struct Joining<'a> {
    seat: &'a Seat,
}

impl From<&Limits> for UserLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            connections_max: u64::from(limits.user_connections_max),
            sessions_max: limits.user_sessions_max,
            subscriptions_max: limits.user_subscriptions_max,
            rates: Rates {
                messages_per_sec: u64::from(limits.user_publish_rate_max),
                bytes_per_sec: limits.user_publish_bytes_rate_max,
            },
            inbox_messages_max: limits.user_inbox_messages_max,
            inbox_bytes_max: limits.user_inbox_bytes_max,
        }
    }
}

impl Users {
    #[must_use]
    pub fn new(limits: UserLimits) -> Arc<Self> {
        Arc::new(Self { limits, users: Mutex::default() })
    }

    #[must_use]
    pub fn limits(&self) -> &UserLimits {
        &self.limits
    }

    /// A connection of this client; `Ok(None)`: users are not limited. A client that is connected already is let in: the connection that it
    /// takes over ends first.
    ///
    /// # Errors
    /// The user has as many connections as it may.
    pub fn enter(
        self: &Arc<Self>,
        uid: Option<&Arc<str>>,
        key: &Key,
        now: Tick,
    ) -> Result<Option<Seat>, Full> {
        if self.limits == UserLimits::default() {
            return Ok(None);
        }
        let uid = uid.cloned();
        let mut users = self.users.lock();
        if users.len() >= SWEEP_AT && users.len() == users.capacity() {
            // Before the table grows: those that are gone and owe nothing.
            users.retain(|_, here| !here.is_over(now));
        }
        let here = users.entry(uid.clone()).or_insert_with(|| Here::new(self.limits.rates));
        let max = self.limits.connections_max;
        let clients = here.clients.len() as u64;
        match here.clients.entry(key.clone()) {
            Entry::Occupied(mut count) => *count.get_mut() += 1,
            Entry::Vacant(_) if max > 0 && clients >= max => return Err(Full),
            Entry::Vacant(place) => {
                place.insert(1);
            }
        }
        let used = Arc::clone(&here.used);
        Ok(Some(Seat { users: Arc::clone(self), uid, key: key.clone(), used }))
    }

    fn leave(&self, uid: &Uid, key: &Key) {
        let mut users = self.users.lock();
        let Some(here) = users.get_mut(uid) else { return };
        release(&mut here.clients, key);
        // One that owes stays: connecting again would be a way around its rate.
        if here.clients.is_empty() && here.used.budget.is_none() {
            users.remove(uid);
        }
    }
}

/// A user has as much as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// Users that are kept before anybody looks who is gone.
const SWEEP_AT: usize = 1_024;

impl Here {
    fn new(rates: Rates) -> Self {
        let used = UserUse { budget: Budget::new(rates), subscribing: AtomicU64::new(0) };
        Self { used: Arc::new(used), clients: HashMap::new(), joining: HashMap::new() }
    }

    fn is_over(&self, now: Tick) -> bool {
        self.clients.is_empty() && self.used.budget.as_ref().is_none_or(|budget| budget.is_full(now))
    }
}

fn release(counts: &mut HashMap<Key, usize>, key: &Key) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Seat {
    #[must_use]
    pub fn used(&self) -> &Arc<UserUse> {
        &self.used
    }

    #[must_use]
    pub fn limits(&self) -> &UserLimits {
        &self.users.limits
    }

    /// Makes a session for the client, if it has none. `stored`: how many the user has in the store; `has`: whether the client has one of
    /// them there.
    ///
    /// # Errors
    /// The user has as many as it may.
    pub fn join(
        &self,
        stored: impl Fn() -> u64,
        has: impl Fn(&Key) -> bool,
    ) -> Result<Option<Joining<'_>>, Full> {
        let max = self.users.limits.sessions_max;
        if max == 0 || has(&self.key) {
            return Ok(None);
        }
        let mut users = self.users.users.lock();
        let Some(here) = users.get_mut(&self.uid) else { return Ok(None) };
        // One whose commit is there already is counted by the store.
        let under_way = here.joining.keys().filter(|key| **key != self.key && !has(key)).count() as u64;
        if stored() + under_way >= max {
            return Err(Full);
        }
        *here.joining.entry(self.key.clone()).or_insert(0) += 1;
        Ok(Some(Joining { seat: self }))
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        if let Some(here) = self.seat.users.users.lock().get_mut(&self.seat.uid) {
            release(&mut here.joining, &self.seat.key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.users.leave(&self.uid, &self.key);
    }
}

/// A subscription that is not counted yet, for as long as it is on its way.
#[derive(Debug)]
pub struct Reserved(Arc<UserUse>);

impl UserUse {
    /// One more subscription beside the `counted` ones; `None`: the user has `max`.
    pub fn reserve(used: &Arc<Self>, counted: u64, max: u64) -> Option<Reserved> {
        let fits = |under_way: u64| (counted + under_way < max).then_some(under_way + 1);
        let taken = used.subscribing.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.ok().map(|_| Reserved(Arc::clone(used)))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.subscribing.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    fn key(client_id: &str) -> Key {
        Key { namespace: "main".into(), client_id: client_id.into() }
    }

    fn users(limits: UserLimits) -> Arc<Users> {
        Users::new(limits)
    }

    /// Issue 5 §3, P9: connections of a user are counted by client, so that a takeover needs no place, and each place comes back.
    #[test]
    fn p9_a_user_has_its_connections() {
        let users = users(UserLimits { connections_max: 2, ..UserLimits::default() });
        let ann: Arc<str> = "ann".into();
        let enter = |uid: Option<&Arc<str>>, name: &str| users.enter(uid, &key(name), Tick(0));
        let first = enter(Some(&ann), "a").expect("room").expect("limited");
        let second = enter(Some(&ann), "b").expect("room").expect("limited");
        assert_eq!(enter(Some(&ann), "c").err(), Some(Full));
        let takeover = enter(Some(&ann), "b").expect("the same client").expect("limited");
        drop(second);
        assert_eq!(enter(Some(&ann), "c").err(), Some(Full), "its successor is there");
        let other = enter(None, "c").expect("another user").expect("limited");
        drop(takeover);
        let third = enter(Some(&ann), "c").expect("a place came back").expect("limited");
        drop((first, third, other));
        assert!(users.users.lock().is_empty(), "nothing is left of who is gone");
    }

    /// Issue 5 §3: sessions are those in the store and those on their way there, each once; one that exists needs no place.
    #[test]
    fn p9_a_user_has_its_sessions() {
        let users = users(UserLimits { sessions_max: 2, ..UserLimits::default() });
        let ann: Arc<str> = "ann".into();
        let stored: RefCell<BTreeSet<String>> = RefCell::default();
        let count = || stored.borrow().len() as u64;
        let has = |key: &Key| stored.borrow().contains(&*key.client_id);
        let seat = |name: &str| users.enter(Some(&ann), &key(name), Tick(0)).expect("room").expect("limited");
        let (a, b, c) = (seat("a"), seat("b"), seat("c"));
        let joining = a.join(count, has).expect("room").expect("it is new");
        stored.borrow_mut().insert("a".to_owned());
        let second = b.join(count, has).expect("the first is counted once").expect("it is new");
        drop(joining);
        assert_eq!(c.join(count, has).err(), Some(Full));
        assert!(a.join(count, has).expect("it has one").is_none());
        drop(second);
        assert!(c.join(count, has).is_ok(), "that CONNECT failed");
    }

    /// Issue 5 §3: connecting again is no way around the rate of a user.
    #[test]
    fn a_user_keeps_its_debt() {
        let rates = Rates { messages_per_sec: 1, bytes_per_sec: 0 };
        let users = users(UserLimits { rates, ..UserLimits::default() });
        let ann: Arc<str> = "ann".into();
        let seat = users.enter(Some(&ann), &key("a"), Tick(0)).expect("room").expect("limited");
        seat.used().budget.as_ref().expect("a rate").spend(Tick(0), 1);
        drop(seat);
        let seat = users.enter(Some(&ann), &key("a"), Tick(0)).expect("room").expect("limited");
        assert!(seat.used().budget.as_ref().expect("a rate").open_at() > Tick(0));
        assert!(
            Users::new(UserLimits::default())
                .enter(Some(&ann), &key("a"), Tick(0))
                .is_ok_and(|seat| seat.is_none())
        );
    }

    /// Issue 5 §3, P9: a subscription counts from the moment that it is taken until it is counted.
    #[test]
    fn p9_what_is_under_way_is_reserved() {
        let used = Here::new(Rates::default()).used;
        let first = UserUse::reserve(&used, 8, 10).expect("room");
        let second = UserUse::reserve(&used, 8, 10).expect("room");
        assert!(UserUse::reserve(&used, 8, 10).is_none());
        drop(first);
        assert!(UserUse::reserve(&used, 9, 10).is_none(), "it is counted now, and the second is on its way");
        drop(second);
        assert!(UserUse::reserve(&used, 9, 10).is_some());
    }
}
