//! The registry of held leases and the one task a backend that keeps them alive.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use session::lease::LEASES_AT_ONCE;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::{Alive, LeaseBackend, LeaseError, LeaseRef};

/// Keepalives in one TTL when all goes well.
const BEATS_PER_TTL: u32 = 4;
/// A lease counts as lost this part of its TTL before the backend can have expired it.
const MARGIN_PART: u32 = 5;
const MARGIN_MAX: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Longest wait for one keepalive of a batch.
const BUDGET_MAX: Duration = Duration::from_millis(1_500);

/// ```text
///              keepalive late            local deadline, or the backend says gone
///   Held ─────────────────────▶ AtRisk ───────────────────────────────────────────▶ Lost (for ever)
///    ▲                            │
///    └──────── keepalive ─────────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Held,
    /// A keepalive that was due had no answer.
    AtRisk,
    /// Nothing may be done under it any more.
    Lost,
}

/// One held lease, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseView {
    pub backend: String,
    pub lease: LeaseRef,
    pub standing: Standing,
    /// What each guard is for.
    pub holders: Vec<String>,
    pub ttl: Duration,
    /// Since the last keepalive that succeeded was sent.
    pub since_kept: Duration,
    /// Until this process takes it for lost.
    pub remaining: Duration,
    /// Keepalives without an answer since.
    pub failures: u32,
}

/// Totals over the leases that this process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HoldStat {
    pub held: u64,
    pub at_risk: u64,
    /// Lost since the start, each once.
    pub lost: u64,
    /// Since the last keepalive that succeeded was sent: the longest of all.
    pub lag: Duration,
}

/// All leases that this process holds. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct LeaseManager {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    backends: Mutex<BTreeMap<(String, u64), Arc<Held>>>,
    lost: Arc<AtomicU64>,
}

/// The leases of one backend.
#[derive(Debug)]
struct Held {
    backend: Arc<dyn LeaseBackend>,
    state: Mutex<State>,
    changed: Notify,
    jitter: RandomState,
    /// Of the manager: leases that were lost.
    lost: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    leases: BTreeMap<LeaseRef, Entry>,
    next_holder: u64,
    running: bool,
}

#[derive(Debug)]
struct Entry {
    ttl: Duration,
    /// When the last keepalive that succeeded was sent.
    kept: Instant,
    next: Instant,
    failures: u32,
    standing: watch::Sender<Standing>,
    holders: BTreeMap<u64, String>,
}

impl Entry {
    /// When this process takes it for lost: before the backend can have expired it (R-04).
    fn deadline(&self) -> Instant {
        self.kept + self.ttl - margin(self.ttl)
    }
}

fn margin(ttl: Duration) -> Duration {
    (ttl / MARGIN_PART).min(MARGIN_MAX)
}

/// One contribution of keepalive. Dropping it stops the contribution; it never revokes and never deletes.
#[derive(Debug)]
pub struct LeaseGuard {
    held: Arc<Held>,
    lease: LeaseRef,
    holder: u64,
    standing: watch::Receiver<Standing>,
}

/// A lease that runs down without this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArmedLease {
    pub lease: LeaseRef,
    pub ttl: Duration,
}

impl LeaseManager {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Grants a lease and holds it.
    ///
    /// # Errors
    /// Those of the backend.
    pub async fn grant(
        &self,
        backend: &Arc<dyn LeaseBackend>,
        ttl: Duration,
        label: &str,
    ) -> Result<LeaseGuard, LeaseError> {
        let sent = Instant::now();
        let lease = backend.grant(ttl).await?;
        Ok(self.register(backend, lease, ttl, sent, label))
    }

    /// Holds a lease that somebody else granted, after one keepalive proved that it is there.
    ///
    /// # Errors
    /// [`LeaseError::Gone`], or it could not be proved.
    pub async fn hold(
        &self,
        backend: &Arc<dyn LeaseBackend>,
        lease: LeaseRef,
        label: &str,
    ) -> Result<LeaseGuard, LeaseError> {
        if lease.incarnation != backend.incarnation() {
            return Err(LeaseError::Incarnation(backend.uid().to_owned()));
        }
        let sent = Instant::now();
        match backend.keepalive(vec![lease]).await.first() {
            Some(Alive::Left(ttl)) => Ok(self.register(backend, lease, *ttl, sent, label)),
            Some(Alive::Gone) => Err(LeaseError::Gone),
            Some(Alive::Unknown) | None => Err(LeaseError::Unavailable {
                backend: backend.uid().to_owned(),
                reason: "the probe had no answer".to_owned(),
            }),
        }
    }

    /// Every held lease.
    #[must_use]
    pub fn view(&self) -> Vec<LeaseView> {
        let now = Instant::now();
        let mut all = Vec::new();
        for held in self.inner.backends.lock().values() {
            for (lease, entry) in &held.state.lock().leases {
                all.push(LeaseView {
                    backend: held.backend.uid().to_owned(),
                    lease: *lease,
                    standing: *entry.standing.borrow(),
                    holders: entry.holders.values().cloned().collect(),
                    ttl: entry.ttl,
                    since_kept: now - entry.kept,
                    remaining: entry.deadline().saturating_duration_since(now),
                    failures: entry.failures,
                });
            }
        }
        all
    }

    /// Totals, for metrics.
    #[must_use]
    pub fn stat(&self) -> HoldStat {
        let now = Instant::now();
        let mut stat = HoldStat::default();
        for held in self.inner.backends.lock().values() {
            for entry in held.state.lock().leases.values() {
                match *entry.standing.borrow() {
                    Standing::Held => stat.held += 1,
                    Standing::AtRisk => stat.at_risk += 1,
                    // Counted when it was lost.
                    Standing::Lost => {}
                }
                stat.lag = stat.lag.max(now - entry.kept);
            }
        }
        // Last: what became lost before a lock was taken is in it.
        stat.lost = self.inner.lost.load(Ordering::Relaxed);
        stat
    }

    fn register(
        &self,
        backend: &Arc<dyn LeaseBackend>,
        lease: LeaseRef,
        ttl: Duration,
        sent: Instant,
        label: &str,
    ) -> LeaseGuard {
        let held = {
            let mut backends = self.inner.backends.lock();
            // Those that hold nothing any more go.
            backends.retain(|_, held| Arc::strong_count(held) > 1 || !held.state.lock().leases.is_empty());
            let new = || {
                let state = Mutex::new(State::default());
                let (changed, jitter) = (Notify::new(), RandomState::new());
                let lost = Arc::clone(&self.inner.lost);
                Arc::new(Held { backend: Arc::clone(backend), state, changed, jitter, lost })
            };
            let key = (backend.uid().to_owned(), backend.incarnation());
            Arc::clone(backends.entry(key).or_insert_with(new))
        };
        held.add(lease, ttl, sent, label)
    }
}

impl Held {
    fn add(self: Arc<Self>, lease: LeaseRef, ttl: Duration, sent: Instant, label: &str) -> LeaseGuard {
        let mut state = self.state.lock();
        state.next_holder += 1;
        let holder = state.next_holder;
        let next = sent + self.jittered(ttl / BEATS_PER_TTL, holder);
        let entry = state.leases.entry(lease).or_insert_with(|| Entry {
            ttl,
            kept: sent,
            next,
            failures: 0,
            standing: watch::Sender::new(Standing::Held),
            holders: BTreeMap::new(),
        });
        entry.holders.insert(holder, label.to_owned());
        let standing = entry.standing.subscribe();
        let start = !std::mem::replace(&mut state.running, true);
        drop(state);
        if start {
            tokio::spawn(Arc::clone(&self).run());
        }
        self.changed.notify_one();
        LeaseGuard { held: self, lease, holder, standing }
    }

    /// 80 to 100 per cent of `duration`, so that leases granted together are not kept together.
    fn jittered(&self, duration: Duration, of: u64) -> Duration {
        let part = u32::try_from(self.jitter.hash_one(of) % 200).unwrap_or(0);
        duration * (800 + part) / 1_000
    }

    async fn run(self: Arc<Self>) {
        loop {
            let now = Instant::now();
            let (due, wake) = {
                let mut state = self.state.lock();
                self.lost.fetch_add(state.lapse(now), Ordering::Relaxed);
                if state.leases.is_empty() {
                    state.running = false;
                    return;
                }
                state.due(now)
            };
            if due.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep_until(wake) => {}
                    () = self.changed.notified() => {}
                }
                continue;
            }
            let sent = Instant::now();
            // Within the margin, so that a backend that hangs delays no verdict beyond it.
            let budget =
                due.iter().map(|(_, ttl)| margin(*ttl) / 2).min().unwrap_or(BUDGET_MAX).min(BUDGET_MAX);
            let leases: Vec<LeaseRef> = due.iter().map(|(lease, _)| *lease).collect();
            let answers = self.ask(&leases, budget).await;
            let mut state = self.state.lock();
            for (lease, answer) in leases.into_iter().zip(answers) {
                let jitter = self.jitter.hash_one((lease, sent.elapsed()));
                let lost = state.answered(lease, answer, sent, jitter);
                self.lost.fetch_add(u64::from(lost), Ordering::Relaxed);
            }
        }
    }
}

impl Held {
    /// One keepalive of each. Without an answer within `budget` they are at risk; it is waited for all the same, as long as that costs no other
    /// lease its time: a store that is busy answers late, and a late answer is one.
    async fn ask(&self, leases: &[LeaseRef], budget: Duration) -> Vec<Alive> {
        let call = self.backend.keepalive(leases.to_vec());
        tokio::pin!(call);
        if let Ok(answers) = tokio::time::timeout(budget, &mut call).await {
            return answers;
        }
        self.state.lock().late(leases);
        loop {
            let until = self.state.lock().patience(Instant::now());
            tokio::select! {
                answers = &mut call => return answers,
                () = tokio::time::sleep_until(until) => return vec![Alive::Unknown; leases.len()],
                // Another lease may have less time.
                () = self.changed.notified() => {}
            }
        }
    }
}

impl State {
    /// These have no answer in time.
    fn late(&self, leases: &[LeaseRef]) {
        for entry in leases.iter().filter_map(|lease| self.leases.get(lease)) {
            set(&entry.standing, Standing::AtRisk);
        }
    }

    /// Half of what is left until the first of all leases counts as lost: there is time for another try.
    fn patience(&self, now: Instant) -> Instant {
        let first = self.leases.values().map(Entry::deadline).min().unwrap_or(now);
        now + first.saturating_duration_since(now) / 2
    }

    /// Takes what had no keepalive for too long for lost; how many those are.
    fn lapse(&mut self, now: Instant) -> u64 {
        let before = self.leases.len();
        for entry in self.leases.values_mut().filter(|entry| now >= entry.deadline()) {
            set(&entry.standing, Standing::Lost);
        }
        // A lost lease is never kept again: its guards know.
        self.leases.retain(|_, entry| *entry.standing.borrow() != Standing::Lost);
        (before - self.leases.len()) as u64
    }

    /// What is to be kept now, or when to look again.
    fn due(&self, now: Instant) -> (Vec<(LeaseRef, Duration)>, Instant) {
        let due = self.leases.iter().filter(|(_, entry)| entry.next <= now);
        let due: Vec<_> = due.map(|(lease, entry)| (*lease, entry.ttl)).take(LEASES_AT_ONCE).collect();
        let wake = self.leases.values().map(|entry| entry.next.min(entry.deadline())).min();
        (due, wake.unwrap_or(now))
    }

    /// Whether the lease was lost with it.
    fn answered(&mut self, lease: LeaseRef, answer: Alive, sent: Instant, jitter: u64) -> bool {
        let Some(entry) = self.leases.get_mut(&lease) else { return false };
        let spread = |duration: Duration| duration * (800 + u32::try_from(jitter % 200).unwrap_or(0)) / 1_000;
        match answer {
            Alive::Left(left) => {
                // The backend knows the TTL, not the caller (H-19).
                (entry.ttl, entry.kept, entry.failures) = (left, sent, 0);
                entry.next = sent + spread(left / BEATS_PER_TTL);
                set(&entry.standing, Standing::Held);
            }
            Alive::Gone => {
                set(&entry.standing, Standing::Lost);
                self.leases.remove(&lease);
                return true;
            }
            Alive::Unknown => {
                entry.failures += 1;
                let retry = RETRY_MIN * 2_u32.saturating_pow(entry.failures.min(10) - 1);
                let most = RETRY_MAX.min(entry.ttl / BEATS_PER_TTL);
                entry.next = Instant::now() + spread(retry.min(most));
                set(&entry.standing, Standing::AtRisk);
            }
        }
        false
    }
}

fn set(standing: &watch::Sender<Standing>, now: Standing) {
    standing.send_if_modified(|standing| {
        let changed = *standing != now && *standing != Standing::Lost;
        if changed {
            *standing = now;
        }
        changed
    });
}

impl LeaseGuard {
    #[must_use]
    pub fn lease(&self) -> LeaseRef {
        self.lease
    }

    #[must_use]
    pub fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    /// Until when it counts as held by this process's clock, unless it is kept again; `None`: it is lost.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        let state = self.held.state.lock();
        let entry = state.leases.get(&self.lease)?;
        (*entry.standing.borrow() != Standing::Lost).then(|| entry.deadline())
    }

    /// Returns once nothing may be done under the lease any more; before the backend can have expired it.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut standing = self.standing.clone();
        async move {
            // The sender goes with the last guard, or after the lease was lost.
            if standing.wait_for(|now| *now == Standing::Lost).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Another contribution to the same lease.
    #[must_use]
    pub fn share(&self, label: &str) -> Self {
        let mut state = self.held.state.lock();
        state.next_holder += 1;
        let holder = state.next_holder;
        if let Some(entry) = state.leases.get_mut(&self.lease) {
            entry.holders.insert(holder, label.to_owned());
        }
        drop(state);
        let (held, standing) = (Arc::clone(&self.held), self.standing.clone());
        Self { held, lease: self.lease, holder, standing }
    }

    /// The contribution becomes somebody else's, without a gap.
    #[must_use]
    pub fn hand_over(self, to: &str) -> Self {
        self.share(to)
    }

    /// Stops contributing; the lease runs down within `ttl`.
    ///
    /// # Errors
    /// Those of the backend, with the guard, which goes on contributing.
    pub async fn arm(self, ttl: Duration) -> Result<ArmedLease, (Self, LeaseError)> {
        match self.held.backend.arm(self.lease, ttl).await {
            Ok(lease) => Ok(ArmedLease { lease, ttl }),
            Err(error) => Err((self, error)),
        }
    }

    /// Ends the lease now, for everybody.
    ///
    /// # Errors
    /// Those of the backend; the lease then runs down by itself.
    pub async fn revoke(self) -> Result<(), LeaseError> {
        let (held, lease) = (Arc::clone(&self.held), self.lease);
        drop(self);
        held.backend.revoke(lease).await?;
        // Other guards learn it at once; it is no lost lease, somebody wanted it.
        if let Some(entry) = held.state.lock().leases.remove(&lease) {
            set(&entry.standing, Standing::Lost);
        }
        held.changed.notify_one();
        Ok(())
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let mut state = self.held.state.lock();
        if let Some(entry) = state.leases.get_mut(&self.lease) {
            entry.holders.remove(&self.holder);
            if entry.holders.is_empty() {
                state.leases.remove(&self.lease);
            }
        }
        drop(state);
        self.held.changed.notify_one();
    }
}
