//! The async shell around `session::owner::Registry`: waiting for quiescence, the sweeper, the boot lease.
//!
//! The registry decides; this file waits, drives and measures.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use gateway::codec::ReasonCode;
use gateway::link::{CloseRequest, LinkId};
use hashbrown::HashMap;
use parking_lot::Mutex;
use session::id::Owner;
use session::owner::{
    Claim, CloseOutcome, Entry, Options, OwnerError, Quiesce, Registry, Retirement, Snapshot, Transport,
};
use session::time::{Millis, Tick};

use crate::clock::NodeClock;

/// Visits of one sweeper turn (owner spec §3.3).
const SWEEP_LIMIT: usize = 256;
/// Pause between sweeper turns while nothing is due (owner spec §3.3).
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// Pages that one sweeper turn does before it lets other tasks run.
const SWEEP_PAGES_PER_YIELD: usize = 4;

/// How the owners' shell reaches a connection: the mailboxes of the workers implement it. Never blocks.
pub trait CloseLinks: Send + Sync + std::fmt::Debug {
    /// Ask the connection at `link` to close; does nothing when it is gone.
    fn close(&self, link: LinkId, request: CloseRequest);
}

/// Why a quiescence gives no proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IsolationError {
    #[error("isolation of the owner is not proved")]
    Unproved,
    #[error("the socket of the owner could not be closed")]
    Close,
    #[error("the owner did not stop in time")]
    Deadline,
    #[error("the call was cancelled")]
    Cancelled,
    #[error("malformed owner")]
    Invalid,
}

/// What the sweeper and the lease task did; counters only (owner spec §13).
#[derive(Debug, Default)]
pub struct OwnerCounters {
    pub sweep_turns: AtomicU64,
    pub sweep_visited: AtomicU64,
    pub sweep_failures: AtomicU64,
    pub lease_renewals: AtomicU64,
    pub lease_failures: AtomicU64,
}

/// The way to one connection's socket, with the notice that it writes before it closes.
///
/// Until [`LinkTransport::arm`] the connection is a candidate: nothing is written for its owner, and a close request only marks it.
#[derive(Debug)]
pub struct LinkTransport {
    links: Arc<dyn CloseLinks>,
    link: LinkId,
    armed: AtomicBool,
    closing: AtomicBool,
    notice: Mutex<Option<ReasonCode>>,
}

impl LinkTransport {
    /// A close request from now on reaches the connection; one that came before is passed on at once.
    fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
        if self.closing.load(Ordering::SeqCst) {
            self.post();
        }
    }

    /// Sets the DISCONNECT that a v5 client gets before the close (DESIGN §6 "Notice before fence"). The first one wins.
    fn set_notice(&self, reason: ReasonCode) {
        self.notice.lock().get_or_insert(reason);
    }

    fn post(&self) {
        let notice = *self.notice.lock();
        self.links.close(self.link, CloseRequest { notice, reset: true });
    }
}

impl Transport for LinkTransport {
    fn request_close(&self, _owner: &Owner) {
        self.closing.store(true, Ordering::SeqCst);
        if self.armed.load(Ordering::SeqCst) {
            self.post();
        }
    }
}

/// All owners of this boot.
#[derive(Debug)]
pub struct Owners {
    registry: Arc<Registry>,
    clock: NodeClock,
    links: Arc<dyn CloseLinks>,
    /// Transport of every owner that was reserved and not yet reported closed, by connection id; bounded by the registry.
    transports: Mutex<HashMap<u64, Arc<LinkTransport>, foldhash::fast::RandomState>>,
    /// End of the boot lease on this process's clock; 0 before the first one.
    lease_until: AtomicU64,
    /// The same as it was committed, for what is recorded.
    lease_until_ms: AtomicU64,
    /// End of the lease in etcd, and the same on the hybrid clock; `u64::MAX`: none is needed.
    hold_until: AtomicU64,
    hold_until_ms: AtomicU64,
    pub counters: OwnerCounters,
}

impl Owners {
    /// # Errors
    /// [`OwnerError::Invalid`] when an option is out of its range.
    pub fn new(options: Options, clock: NodeClock, links: Arc<dyn CloseLinks>) -> Result<Self, OwnerError> {
        Ok(Self {
            registry: Arc::new(Registry::new(options)?),
            clock,
            links,
            transports: Mutex::new(HashMap::default()),
            lease_until: AtomicU64::new(0),
            lease_until_ms: AtomicU64::new(0),
            hold_until: AtomicU64::new(u64::MAX),
            hold_until_ms: AtomicU64::new(u64::MAX),
            counters: OwnerCounters::default(),
        })
    }

    /// Admission for the hot path.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// End of the boot lease, and of the one in etcd where that is needed: no owner of this boot executes after it.
    #[must_use]
    pub fn lease_until(&self) -> Tick {
        Tick(self.lease_until.load(Ordering::Acquire).min(self.hold_until.load(Ordering::Acquire)))
    }

    /// End of the boot lease that the groups took, by itself.
    #[must_use]
    pub fn boot_lease_until(&self) -> Tick {
        Tick(self.lease_until.load(Ordering::Acquire))
    }

    /// Whether the boot lease had run out at `tick`. Never asked of the wall clock: it may step.
    #[must_use]
    pub fn lapsed_at(&self, tick: Tick) -> bool {
        let until = self.lease_until();
        until != Tick(0) && tick >= until
    }

    /// The same as it was committed: only for what is recorded.
    #[must_use]
    pub fn lease_until_ms(&self) -> Millis {
        Millis(self.lease_until_ms.load(Ordering::Acquire).min(self.hold_until_ms.load(Ordering::Acquire)))
    }

    /// Reserves a candidate for the connection at `link`.
    ///
    /// # Errors
    /// Invalid, Stopped, Limit.
    pub fn reserve(
        &self,
        claim: Claim,
        link: LinkId,
    ) -> Result<(Arc<Entry>, Arc<LinkTransport>), OwnerError> {
        let transport = Arc::new(LinkTransport {
            links: self.links.clone(),
            link,
            armed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            notice: Mutex::new(None),
        });
        let entry = self.registry.reserve(self.clock.tick(), claim, transport.clone())?;
        self.transports.lock().insert(entry.owner().connection_id, transport.clone());
        Ok((entry, transport))
    }

    /// Activates a committed candidate: from now on its connection may execute and close requests reach it.
    ///
    /// # Errors
    /// Fenced, Invalid, Stopped, Unknown (owner spec §2.4).
    pub fn activate(
        &self,
        entry: &Entry,
        transport: &LinkTransport,
        revision: u64,
        until: Tick,
    ) -> Result<(), OwnerError> {
        self.registry.activate(self.clock.tick(), entry.owner(), revision, until)?;
        transport.arm();
        Ok(())
    }

    /// The socket of `owner` is physically closed, or it never got one (a refused candidate).
    pub fn transport_closed(&self, owner: &Owner) {
        self.transports.lock().remove(&owner.connection_id);
        self.registry.transport_closed(self.clock.tick(), owner, CloseOutcome::Closed);
    }

    /// Tells `owner`'s client why it is about to be closed; best effort, never waited for.
    pub fn notice(&self, owner: &Owner, reason: ReasonCode) {
        if let Some(transport) = self.transports.lock().get(&owner.connection_id) {
            transport.set_notice(reason);
        }
    }

    /// Waits until `owner` is proved stopped: socket closed, admitted work drained, nothing uncertain.
    ///
    /// # Errors
    /// Unproved, Close, Deadline. The owner stays fenced; the sweeper goes on with it.
    pub async fn quiesce(&self, owner: &Owner, deadline: Tick) -> Result<(), IsolationError> {
        let now = self.clock.tick();
        match self.registry.quiesce(now, owner, None) {
            Ok(Quiesce::Proved) => return Ok(()),
            Ok(Quiesce::Pending) => {}
            Err(error) => return Err(isolation_error(error)),
        }
        let proof =
            poll_fn(|context| match self.registry.quiesce(self.clock.tick(), owner, Some(context.waker())) {
                Ok(Quiesce::Proved) => Poll::Ready(Ok(())),
                Ok(Quiesce::Pending) => Poll::Pending,
                Err(error) => Poll::Ready(Err(isolation_error(error))),
            });
        tokio::time::timeout(self.clock.until(deadline), proof).await.unwrap_or(Err(IsolationError::Deadline))
    }

    /// The boot lease was committed on every group: the deadline of all owners moves at once (DESIGN §4 "Boot lease").
    ///
    /// # Errors
    /// Stopped; Invalid when the lease already ran out or the revision does not grow.
    pub fn renew_boot(&self, revision: u64, until: Tick, until_ms: Millis) -> Result<(), OwnerError> {
        self.registry.renew_boot(self.clock.tick(), revision, until)?;
        self.lease_until.store(until.0, Ordering::Release);
        self.lease_until_ms.store(until_ms.0, Ordering::Release);
        Ok(())
    }

    /// The lease in etcd ends at `until`; no owner executes behind that. One that is over fences all owners at once, the sweeper closes
    /// their sockets, and a later one is for the owners to come.
    pub fn hold(&self, until: Tick) {
        let (now, now_ms) = (self.clock.tick(), self.clock.millis());
        let (until, until_ms) = if until > now {
            (until, now_ms.plus_ms(until.ms_since(now)))
        } else {
            // It ended when it was to, or now.
            (
                now.min(Tick(self.hold_until.load(Ordering::Acquire))),
                now_ms.min(Millis(self.hold_until_ms.load(Ordering::Acquire))),
            )
        };
        self.registry.hold(now, until);
        self.hold_until.store(until.0, Ordering::Release);
        self.hold_until_ms.store(until_ms.0, Ordering::Release);
    }

    /// When something that this process's runtime measures ends on the clock of the owners.
    #[must_use]
    pub fn tick_of(&self, until: tokio::time::Instant) -> Tick {
        crate::usecase::hold::tick_of(&self.clock, until)
    }

    /// Counts for metrics.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.registry.snapshot()
    }

    /// The sweeper (owner spec §3.3): turns of 256 visits every 250 ms; they follow at once while full pages are due. Runs until the
    /// task is dropped.
    pub async fn sweep_forever(self: Arc<Self>) {
        loop {
            let mut pages = 0;
            loop {
                self.counters.sweep_turns.fetch_add(1, Ordering::Relaxed);
                let visited = self.registry.sweep(self.clock.tick(), SWEEP_LIMIT).unwrap_or_else(|_| {
                    self.counters.sweep_failures.fetch_add(1, Ordering::Relaxed);
                    0
                });
                self.counters.sweep_visited.fetch_add(visited as u64, Ordering::Relaxed);
                if visited < SWEEP_LIMIT {
                    break;
                }
                pages += 1;
                if pages % SWEEP_PAGES_PER_YIELD == 0 {
                    tokio::task::yield_now().await;
                }
            }
            tokio::time::sleep(SWEEP_INTERVAL).await;
        }
    }

    /// No new owners and no new scopes, for ever.
    pub fn stop_admission(&self) {
        self.registry.stop_admission(self.clock.tick());
    }

    /// This boot was retired: its owners are somebody else's now. Nothing is admitted or written any more, whatever the lease said; the
    /// sweeper closes the sockets.
    pub fn expire(&self) {
        let now = self.clock.tick();
        self.registry.expire(now);
        self.lease_until.fetch_min(now.0, Ordering::AcqRel);
    }

    /// Closes every owner and waits until none is held.
    ///
    /// # Errors
    /// How many are still held at `deadline`; call it again to go on.
    pub async fn close_all(&self, deadline: Tick) -> Result<(), usize> {
        loop {
            let held = self.registry.close_page(self.clock.tick());
            if held == 0 {
                return Ok(());
            }
            if self.clock.tick() >= deadline {
                return Err(held);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The proof that covers every connection of this boot.
    ///
    /// # Errors
    /// Unknown while an owner is held or admission is open.
    pub fn retirement(&self) -> Result<Retirement, OwnerError> {
        self.registry.retirement()
    }
}

fn isolation_error(error: OwnerError) -> IsolationError {
    match error {
        OwnerError::Close => IsolationError::Close,
        OwnerError::Invalid => IsolationError::Invalid,
        OwnerError::Fenced | OwnerError::Unknown | OwnerError::Limit | OwnerError::Stopped => {
            IsolationError::Unproved
        }
    }
}
