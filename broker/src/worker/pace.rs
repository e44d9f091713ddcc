//! How fast a client may publish. Who has used up what it may is not read until it may go on: nothing of it is dropped, and nobody is
//! disconnected for it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use session::time::Tick;

use super::Worker;
use super::client::Session;
use crate::metrics::PauseReason;
use crate::users::UserUse;

const SECOND_NS: u64 = 1_000_000_000;

/// What may be published; 0: any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    pub messages_per_sec: u64,
    /// Of topics and payloads.
    pub bytes_per_sec: u64,
}

/// Two buckets that hold one second of their rate. A message that is there is taken; what it costs more than there is left is waited for
/// afterwards. Any thread may spend.
#[derive(Debug)]
pub struct Budget {
    rates: Rates,
    /// When each bucket is full, nanoseconds of [`Tick`].
    messages_full_at: AtomicU64,
    bytes_full_at: AtomicU64,
}

impl Budget {
    /// `None`: there is no limit.
    #[must_use]
    pub fn new(rates: Rates) -> Option<Self> {
        (rates != Rates::default()).then(|| Self {
            rates,
            messages_full_at: AtomicU64::new(0),
            bytes_full_at: AtomicU64::new(0),
        })
    }

    /// A message of so many bytes was taken.
    pub fn spend(&self, now: Tick, bytes: usize) {
        let Rates { messages_per_sec, bytes_per_sec } = self.rates;
        if let Some(cost_ns) = SECOND_NS.checked_div(messages_per_sec) {
            take(&self.messages_full_at, now, cost_ns);
        }
        if let Some(cost_ns) = (bytes as u64).saturating_mul(SECOND_NS).checked_div(bytes_per_sec) {
            take(&self.bytes_full_at, now, cost_ns);
        }
    }

    /// When the next message may be taken; it may be in the past.
    #[must_use]
    pub fn open_at(&self) -> Tick {
        let messages = self.messages_full_at.load(Ordering::Relaxed);
        let full_at = messages.max(self.bytes_full_at.load(Ordering::Relaxed));
        // A bucket that is empty now is full in a second.
        Tick((full_at + 1).saturating_sub(SECOND_NS))
    }

    /// Whether nothing is left to be waited for.
    #[must_use]
    pub fn is_full(&self, now: Tick) -> bool {
        let messages = self.messages_full_at.load(Ordering::Relaxed);
        messages.max(self.bytes_full_at.load(Ordering::Relaxed)) <= now.0
    }
}

fn take(full_at: &AtomicU64, now: Tick, cost_ns: u64) {
    let later = |at: u64| Some(at.max(now.0).saturating_add(cost_ns).min(u64::MAX - 1));
    // Cannot fail: there is always a next value.
    let _ = full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
}

/// What a connection is held to.
#[derive(Debug, Default)]
pub(super) struct Pace {
    own: Option<Budget>,
    user: Option<Arc<UserUse>>,
    /// Not before this: the node is overloaded.
    relief: Cell<Tick>,
    /// When the worker wakes it, once it is not read.
    armed: Cell<Tick>,
}

impl Pace {
    /// `None`: nothing holds it back.
    pub(super) fn new(rates: Rates, user: Option<&Arc<UserUse>>) -> Option<Box<Self>> {
        let own = Budget::new(rates);
        let user = user.filter(|user| user.budget.is_some()).cloned();
        (own.is_some() || user.is_some()).then(|| Box::new(Self { own, user, ..Self::default() }))
    }

    fn user_budget(&self) -> Option<&Budget> {
        self.user.as_ref()?.budget.as_ref()
    }

    pub(super) fn spend(&self, now: Tick, bytes: usize) {
        for budget in [self.own.as_ref(), self.user_budget()].into_iter().flatten() {
            budget.spend(now, bytes);
        }
    }

    /// Reads nothing more before then.
    pub(super) fn relieve(&self, until: Tick) {
        self.relief.set(self.relief.get().max(until));
    }

    /// Until when it is not read, and why; `None`: it is.
    fn pause(&self, now: Tick) -> Option<(Tick, PauseReason)> {
        let open_at = |budget: Option<&Budget>| budget.map_or(Tick(0), Budget::open_at);
        let pauses = [
            (open_at(self.own.as_ref()), PauseReason::ConnectionRate),
            (open_at(self.user_budget()), PauseReason::UserRate),
            (self.relief.get(), PauseReason::Overload),
        ];
        pauses.into_iter().max_by_key(|(until, _)| *until).filter(|(until, _)| *until > now)
    }
}

impl Worker {
    /// Whether the packets of a connection that were read and not handled wait.
    pub(super) fn holds_back_paced(&self, session: &Session) -> bool {
        session.pace.as_ref().is_some_and(|pace| pace.pause(self.now.get()).is_some())
    }

    /// Whether a connection is not read because of its pace; it is woken when it may go on.
    pub(super) fn is_paced(&self, session: &Session) -> bool {
        let Some(pace) = &session.pace else { return false };
        let now = self.now.get();
        let Some((until, why)) = pace.pause(now) else { return false };
        if pace.armed.get() <= now {
            pace.armed.set(until);
            self.paced.borrow_mut().insert((until, session.post.link.id()));
            if let Some(recorder) = &self.recorder {
                recorder.pause(why);
            }
        }
        true
    }

    /// Wakes the connections that may be read again.
    pub(super) fn wake_paced(&self) {
        let mut paced = self.paced.borrow_mut();
        while let Some((_, link)) = paced.first().copied().filter(|(until, _)| *until <= self.now.get()) {
            paced.pop_first();
            let _ = self.links.with(link, gateway::link::Link::wake);
        }
    }

    /// The connection is gone.
    pub(super) fn forget_pace(&self, session: &Session) {
        if let Some(pace) = &session.pace {
            self.paced.borrow_mut().remove(&(pace.armed.get(), session.post.link.id()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Tick = Tick(7_000_000_000);

    fn taken(budget: &Budget, now: Tick, bytes: usize) -> usize {
        (0..10_000)
            .take_while(|_| {
                let is_open = budget.open_at() <= now;
                if is_open {
                    budget.spend(now, bytes);
                }
                is_open
            })
            .count()
    }

    /// Issue 5 §3, P9: a burst of one second, then the rate; a message is taken as soon as a part of it is paid for, the rest is waited for;
    /// what is not used is not saved up beyond the burst.
    #[test]
    fn p9_a_budget_keeps_its_rate() {
        let budget = Budget::new(Rates { messages_per_sec: 10, bytes_per_sec: 0 }).expect("bounded");
        assert_eq!(taken(&budget, START, 1), 10);
        assert_eq!(taken(&budget, START.plus_ms(50), 1), 1);
        assert_eq!(taken(&budget, START.plus_ms(99), 1), 0);
        assert_eq!(taken(&budget, START.plus_ms(300), 1), 2);
        assert_eq!(taken(&budget, START.plus_ms(60_000), 1), 10);
        assert!(!budget.is_full(START.plus_ms(60_000)));
        assert!(budget.is_full(START.plus_ms(61_000)));
    }

    /// Issue 5 §3, P9: bytes are paid for, also those of a message that is larger than the bucket; the stricter of two limits holds.
    #[test]
    fn p9_a_message_larger_than_the_bucket_is_taken_and_paid_for() {
        let budget = Budget::new(Rates { messages_per_sec: 0, bytes_per_sec: 1_000 }).expect("bounded");
        assert_eq!(taken(&budget, START, 5_000), 1);
        assert_eq!(budget.open_at(), Tick(START.plus_ms(4_000).0 + 1));
        let budget = Budget::new(Rates { messages_per_sec: 5, bytes_per_sec: 1_000 }).expect("bounded");
        assert_eq!(taken(&budget, START, 100), 5);
        assert_eq!(taken(&budget, START.plus_ms(10_000), 500), 2);
        assert!(Budget::new(Rates::default()).is_none());
    }

    /// Issue 5 §3: the latest of all reasons holds, and relief is no debt.
    #[test]
    fn a_connection_waits_for_the_last_of_its_reasons() {
        let pace = Pace::new(Rates { messages_per_sec: 1, bytes_per_sec: 0 }, None).expect("bounded");
        assert_eq!(pace.pause(START), None);
        pace.spend(START, 1);
        assert_eq!(pace.pause(START), Some((Tick(START.0 + 1), PauseReason::ConnectionRate)));
        pace.relieve(START.plus_ms(500));
        assert_eq!(pace.pause(START), Some((START.plus_ms(500), PauseReason::Overload)));
        assert_eq!(pace.pause(START.plus_ms(500)), None);
        assert!(Pace::new(Rates::default(), None).is_none());
    }
}
