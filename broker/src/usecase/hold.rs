//! The lease of this node in etcd (`queue.leases = "etcd"`, ADR 0010): one for the node and everything on it, and with it the right to run
//! under its node id.
//!
//! ```text
//!             claim                  local deadline, or etcd says gone
//!   Lost ───────────────▶ Held ─────────────────────────────────────────▶ Lost: owners fenced, queues without a lease
//!    ▲                     │ ▲ keepalive                                    │
//!    └── etcd is away      ▼ │                                              └─▶ claimed again until that works
//!                         AtRisk
//! ```
//! It only narrows what the boot lease of the groups allows: nobody executes without both, and a boot is taken for over by time when both are.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use session::id::Boot;
use session::time::Tick;
use storage::lease::{
    Alive, ClaimError, EtcdOptions, LeaseBackend, LeaseError, LeaseGuard, LeaseManager, NodeClaim,
    NodeLeases, Standing,
};
use storage::queue::QueueStore;
use storage::{GroupId, Store};
use tokio::time::Instant;

use crate::clock::NodeClock;
use crate::config::LeaseHome;
use crate::owners::Owners;

/// How often the deadline of the owners follows the lease. It is that of the last keepalive, so being late only shortens it.
const LOOK: Duration = Duration::from_millis(100);
/// Between two tries to get the lease; doubles.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Between two tries to drop the records of earlier boots.
const FORGET_PAUSE: Duration = Duration::from_secs(5);
/// How long a stop waits for etcd to take the lease back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// How a lease of this node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum LeaseState {
    Held,
    /// A renewal that was due had no answer.
    AtRisk,
    /// Nobody is served.
    #[default]
    Lost,
}

impl LeaseState {
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::AtRisk => "at_risk",
            Self::Lost => "lost",
        }
    }
}

/// The lease under which this node serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLease {
    pub home: LeaseHome,
    pub state: LeaseState,
}

impl Default for NodeLease {
    fn default() -> Self {
        Self { home: LeaseHome::Embedded, state: LeaseState::Lost }
    }
}

/// The lease, wherever it stands.
#[derive(Debug)]
pub struct NodeHold {
    options: EtcdOptions,
    ttl: Duration,
    claim: NodeClaim,
    /// Earlier boots of this node that are proved to be over: what they hold gives way.
    ended: Vec<Arc<str>>,
    leases: LeaseManager,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    backend: Option<Arc<dyn NodeLeases>>,
    guard: Option<LeaseGuard>,
    /// Why it is not held, as far as is known.
    reason: String,
    /// The node gives it back for good.
    released: bool,
}

impl NodeHold {
    #[must_use]
    pub fn new(options: EtcdOptions, ttl: Duration, claim: NodeClaim, ended: Vec<Arc<str>>) -> Self {
        let state = State { reason: "etcd was not reached yet".to_owned(), ..State::default() };
        Self { options, ttl, claim, ended, leases: LeaseManager::new(), state: Mutex::new(state) }
    }

    /// Where the lease is kept alive, together with all others of this process.
    #[must_use]
    pub fn leases(&self) -> &LeaseManager {
        &self.leases
    }

    /// Gets the lease before anything else is opened. Without an answer of etcd the node starts all the same, and serves nobody until it has
    /// it.
    ///
    /// # Errors
    /// Another boot has it, or etcd does not let this node in.
    pub async fn begin(&self) -> Result<(), ClaimError> {
        match self.take().await {
            Ok(()) => Ok(()),
            Err(error @ (ClaimError::Taken(_) | ClaimError::Lease(LeaseError::Refused { .. }))) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "no lease in etcd yet: nobody is served until there is one");
                Ok(())
            }
        }
    }

    /// One try, with a new connection: etcd may have moved, or lost its data and be another one.
    async fn take(&self) -> Result<(), ClaimError> {
        let taken = self.try_take().await;
        if let Err(error) = &taken {
            self.state.lock().reason = error.to_string();
        }
        taken
    }

    async fn try_take(&self) -> Result<(), ClaimError> {
        let backend = self.options.connect().await?;
        // Kept also when the claim fails: it can be asked about others.
        self.state.lock().backend = Some(Arc::clone(&backend));
        let leases = Arc::clone(&backend) as Arc<dyn LeaseBackend>;
        let guard = self.leases.grant(&leases, self.ttl, "node").await?;
        if let Err(error) = backend.claim(&self.claim, guard.lease(), &self.ended).await {
            // It would go by itself.
            let _ = guard.revoke().await;
            return Err(error);
        }
        match self.keep(guard) {
            None => Ok(()),
            Some(guard) => {
                let _ = guard.revoke().await;
                Err(LeaseError::Gone.into())
            }
        }
    }

    /// `Some`: the node stops, and wants it no more.
    fn keep(&self, guard: LeaseGuard) -> Option<LeaseGuard> {
        let mut state = self.state.lock();
        if state.released {
            return Some(guard);
        }
        state.reason.clear();
        state.guard = Some(guard);
        None
    }

    /// Holds the lease, makes `owners` follow it and lends it to `queues`, until another boot has it, or etcd turns this node away before it
    /// ever had it.
    pub async fn run_forever(
        self: Arc<Self>,
        owners: Arc<Owners>,
        queues: QueueStore,
        store: Store,
    ) -> ClaimError {
        let (mut retry, mut was_held) = (RETRY_MIN, false);
        // The same reason every two seconds says nothing new.
        let mut told = String::new();
        loop {
            if let Some((backend, guard)) = self.held() {
                (retry, told, was_held) = (RETRY_MIN, String::new(), true);
                let standing = guard.share("owners");
                queues.lend(&backend, guard).await;
                self.follow(&standing, &owners, &store).await;
                owners.hold(Tick(0));
                self.state.lock().guard = None;
                tracing::warn!(
                    "the lease in etcd is lost: connections end, and nobody is served until there is one again"
                );
            }
            match self.take().await {
                Ok(()) => {
                    tracing::info!("the lease in etcd is held");
                    continue;
                }
                Err(error @ ClaimError::Taken(_)) => return error,
                // As at the start: with TLS 1.3 a connection may be closed before the refusal of its certificate is seen.
                Err(error @ ClaimError::Lease(LeaseError::Refused { .. })) if !was_held => return error,
                Err(error) if error.to_string() == told => {}
                Err(error) => {
                    tracing::warn!(%error, "no lease in etcd");
                    told = error.to_string();
                }
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    /// The backend and a contribution for the queues.
    fn held(&self) -> Option<(Arc<dyn LeaseBackend>, LeaseGuard)> {
        let state = self.state.lock();
        let backend = Arc::clone(state.backend.as_ref()?);
        Some((backend, state.guard.as_ref()?.share("queues")))
    }

    /// Until the lease is lost.
    async fn follow(&self, guard: &LeaseGuard, owners: &Owners, store: &Store) {
        let lost = guard.lost();
        tokio::pin!(lost);
        let mut forget_at = (!self.ended.is_empty()).then(Instant::now);
        let mut known = None;
        while let Some(until) = guard.until() {
            // Only when it was kept: between two clocks the same deadline never is quite the same.
            if known.replace(until) != Some(until) {
                owners.hold(owners.tick_of(until));
            }
            if forget_at.is_some_and(|at| at <= Instant::now()) {
                let forgotten = self.forget_ended(store).await;
                forget_at = (!forgotten).then(|| Instant::now() + FORGET_PAUSE);
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = &mut lost => return,
            }
        }
    }

    /// Drops the records of earlier boots of this node once every group retired them. True: there is nothing left to do.
    async fn forget_ended(&self, store: &Store) -> bool {
        let lives = |group, boot_id: &Arc<str>| {
            let boot = Boot { node_id: self.claim.node_id, boot_id: boot_id.clone() };
            store.read(group, |rows| rows.boot(&boot).is_some_and(|row| row.retired.is_none()))
        };
        let groups = || (0..store.groups()).map(GroupId);
        if self.ended.iter().any(|boot| groups().any(|group| lives(group, boot))) {
            return false;
        }
        self.forget(self.claim.node_id, &self.ended).await
    }

    /// Drops the records of boots that are over for everybody.
    pub async fn forget(&self, node_id: u64, boots: &[Arc<str>]) -> bool {
        let backend = self.state.lock().backend.clone();
        match backend {
            Some(backend) => backend.forget(node_id, boots).await.is_ok(),
            None => false,
        }
    }

    /// What etcd says of the lease of a boot. Its silence, and that it knows nothing, is [`Alive::Unknown`].
    pub async fn boot(&self, boot: &Boot) -> Alive {
        let backend = self.state.lock().backend.clone();
        match backend {
            Some(backend) => backend.boot(boot.node_id, &boot.boot_id).await,
            None => Alive::Unknown,
        }
    }

    /// The nodes that hold a lease; `None`: etcd does not answer.
    pub async fn claims(&self) -> Option<Vec<NodeClaim>> {
        let backend = self.state.lock().backend.clone()?;
        backend.claims().await.ok()
    }

    #[must_use]
    pub fn standing(&self) -> LeaseState {
        match self.state.lock().guard.as_ref().map(LeaseGuard::standing) {
            Some(Standing::Held) => LeaseState::Held,
            Some(Standing::AtRisk) => LeaseState::AtRisk,
            Some(Standing::Lost) | None => LeaseState::Lost,
        }
    }

    /// Why it is not held.
    #[must_use]
    pub fn reason(&self) -> String {
        let state = self.state.lock();
        match &state.guard {
            Some(guard) if guard.standing() == Standing::AtRisk => {
                "etcd does not answer its keepalive".to_owned()
            }
            Some(_) => String::new(),
            None if state.reason.is_empty() => "it was lost".to_owned(),
            None => state.reason.clone(),
        }
    }

    /// Gives the lease back at the end of this boot: the node id is free at once.
    pub async fn release(&self) {
        let guard = {
            let mut state = self.state.lock();
            state.released = true;
            state.guard.take()
        };
        let Some(guard) = guard else { return };
        match tokio::time::timeout(RELEASE_TIMEOUT, guard.revoke()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the lease in etcd ends by itself"),
            Err(_elapsed) => tracing::warn!("etcd does not answer: the lease there ends by itself"),
        }
    }
}

/// When a lease that this process's runtime measures ends on the clock of the node.
pub(crate) fn tick_of(clock: &NodeClock, until: Instant) -> Tick {
    // In this order: what passes between both looks makes it earlier.
    let now = clock.tick();
    let left = until.saturating_duration_since(Instant::now());
    Tick(now.0.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)))
}
