//! Recording that a connection ended: the intent first, then the proof that its owner stopped, then the durable disconnect (owner spec
//! §7.4, §7.7, §7.8).
//!
//! No task per client: intents are proposed as soon as their owner is proved stopped, from the thread that saw it, and the store puts
//! all that wait into one log entry. One task looks after those that have to wait or to be tried again.
//!
//! ```text
//! (open) ──closed──▶ Draining ──proved──▶ Proposed ──reply──▶ (recorded)
//!    │                  │                    │  ▲
//!  claim: a takeover    └─claimed─▶ Held ────┤  └── Backoff ◀─ no answer
//!  or End decides          │                 │
//!                          └─ replaced ──────┘
//! ```

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use session::id::{Key, Owner};
use session::lifecycle::{Command, Conflict, Disconnect, DisconnectKind, Reply, SessionRow, SessionState};
use session::owner::{Entry, Quiesce};
use session::time::Tick;
use storage::{CompletionPort, Done, Proposal, StorageError, Store};
use tokio::sync::{Notify, oneshot};

use super::DisconnectInput;
use crate::clock::NodeClock;
use crate::owners::Owners;

/// First pause before a proposal without an answer is tried again; doubles up to [`RETRY_MAX_MS`].
const RETRY_MS: u64 = 250;
const RETRY_MAX_MS: u64 = 10_000;
/// How often intents that wait for a time or for a proof are looked at.
const PATROL: Duration = Duration::from_millis(250);

/// Where disconnects go; the store, or a fake.
pub trait Proposer: Send + Sync + std::fmt::Debug {
    /// Never blocks; the order of one caller's proposals for one key is kept.
    fn propose(&self, key: &Key, command: Command, done: Done);
}

impl Proposer for Store {
    fn propose(&self, key: &Key, command: Command, done: Done) {
        Self::propose(self, self.group_of(key), vec![Proposal { command, done }]);
    }
}

/// What has to hear that a durable lifetime is over.
pub trait LifetimeOver: Send + Sync + std::fmt::Debug {
    /// The lifetime expired, ended or was replaced: nothing is routed to it any more.
    fn lifetime_over(&self, key: &Key, lifetime: u64);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The owner is claimed by a takeover or an End; its connection is not closed yet.
    Open,
    /// The socket is closed; admitted work still drains.
    Draining,
    /// Proved stopped; who claimed it decides.
    Held,
    Proposed,
    Backoff {
        until: Tick,
    },
}

#[derive(Debug)]
struct Intent {
    owner: Owner,
    /// `None` only in [`Stage::Open`]. The first one is kept (owner spec §7.7).
    input: Option<DisconnectInput>,
    stage: Stage,
    claimed: bool,
    /// CONNECT was never accepted: its Will must not appear ([MQTT-3.1.2-8]), whatever the lease says.
    refused: bool,
    attempts: u32,
    /// Told when the drain of the owner makes progress; one for all times that it is asked.
    waker: Option<Waker>,
    waiters: Vec<oneshot::Sender<()>>,
}

/// All ends of connections of this boot that are not recorded yet. Bounded by the owners that can be held: a closed owner's place is
/// free again, but a new owner needs a commit too. Connection ids are given out here, so nothing has to be hashed against an attacker,
/// and equal runs propose in an equal order.
#[derive(Debug)]
pub struct Disconnects {
    me: Weak<Self>,
    clock: NodeClock,
    owners: Arc<Owners>,
    proposer: Arc<dyn Proposer>,
    over: Arc<dyn LifetimeOver>,
    intents: Mutex<HashMap<u64, Intent, FixedState>>,
    /// Owners whose drain made progress, for the patrol.
    woken: Mutex<HashSet<u64, FixedState>>,
    wake: Notify,
}

/// The committed ownership of one connection. It lives with the connection's session; exactly one end is recorded for it.
#[derive(Debug)]
pub struct OwnerGuard {
    disconnects: Arc<Disconnects>,
    entry: Arc<Entry>,
    ended: bool,
}

/// The right to decide what becomes of an owner's disconnect: a takeover or an End holds it from before the isolation.
#[derive(Debug)]
pub struct IntentClaim {
    disconnects: Arc<Disconnects>,
    connection_id: u64,
    settled: bool,
}

impl Intent {
    fn open(owner: &Owner) -> Self {
        Self {
            owner: owner.clone(),
            input: None,
            stage: Stage::Open,
            claimed: false,
            refused: false,
            attempts: 0,
            waker: None,
            waiters: Vec::new(),
        }
    }
}

#[derive(Debug)]
struct DrainWaker {
    disconnects: Weak<Disconnects>,
    connection_id: u64,
}

impl Wake for DrainWaker {
    fn wake(self: Arc<Self>) {
        if let Some(disconnects) = self.disconnects.upgrade() {
            disconnects.woken.lock().insert(self.connection_id);
            disconnects.wake.notify_one();
        }
    }
}

impl Disconnects {
    #[must_use]
    pub fn new(
        clock: NodeClock,
        owners: Arc<Owners>,
        proposer: Arc<dyn Proposer>,
        over: Arc<dyn LifetimeOver>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            clock,
            owners,
            proposer,
            over,
            intents: Mutex::new(HashMap::default()),
            woken: Mutex::new(HashSet::default()),
            wake: Notify::new(),
        })
    }

    /// Guards a committed owner.
    pub(super) fn guard(&self, entry: Arc<Entry>) -> Option<OwnerGuard> {
        Some(OwnerGuard { disconnects: self.me.upgrade()?, entry, ended: false })
    }

    /// The socket of `owner` is physically closed. The intent is stored before the registry hears of the close: a takeover that gets
    /// its proof through it finds the intent (owner spec §7.8).
    pub fn closed(&self, owner: &Owner, input: DisconnectInput) {
        self.end(owner, input, false);
    }

    /// A candidate whose proposal went out is given up: if it was committed, that is undone without a Will.
    pub(super) fn refused(&self, owner: &Owner) {
        self.end(owner, DisconnectInput::seen_now(&self.clock, true), true);
    }

    fn end(&self, owner: &Owner, input: DisconnectInput, refused: bool) {
        {
            let mut intents = self.intents.lock();
            let intent = intents.entry(owner.connection_id).or_insert_with(|| Intent::open(owner));
            if intent.stage == Stage::Open {
                intent.input = Some(input);
                intent.refused = refused;
                intent.stage = Stage::Draining;
            }
        }
        self.owners.transport_closed(owner);
        self.advance(owner.connection_id);
    }

    /// Claims the disconnect of `owner`: from now on an abnormal end of it is held until the claim is settled.
    #[must_use]
    pub fn claim(&self, owner: &Owner) -> Option<IntentClaim> {
        let mut intents = self.intents.lock();
        let intent = intents.entry(owner.connection_id).or_insert_with(|| Intent::open(owner));
        if intent.claimed {
            return None;
        }
        intent.claimed = true;
        Some(IntentClaim {
            disconnects: self.me.upgrade()?,
            connection_id: owner.connection_id,
            settled: false,
        })
    }

    /// Resolves when the end of `owner` is recorded; `None`: its connection is not known to be closed.
    pub(super) fn end_of(&self, owner: &Owner) -> Option<oneshot::Receiver<()>> {
        let mut intents = self.intents.lock();
        let intent = intents.get_mut(&owner.connection_id).filter(|intent| intent.stage != Stage::Open)?;
        let (sender, receiver) = oneshot::channel();
        intent.waiters.push(sender);
        Some(receiver)
    }

    /// Returns once no DISCONNECT of `owner` waits to be recorded. It cancels the Will ([MQTT-3.14.4-3]), so whoever goes on with the
    /// session, a successor or an End, must come behind it, on whatever node. An abnormal end is not waited for: who claims it decides.
    ///
    /// # Errors
    /// Not recorded at `deadline`.
    pub async fn goodbye_recorded(&self, owner: &Owner, deadline: Tick) -> Result<(), Late> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut intents = self.intents.lock();
            let waits = |intent: &&mut Intent| intent.owner == *owner && self.is_normal(intent);
            let Some(intent) = intents.get_mut(&owner.connection_id).filter(waits) else { return Ok(()) };
            intent.waiters.retain(|waiter| !waiter.is_closed());
            intent.waiters.push(sender);
        }
        self.advance(owner.connection_id);
        // Without a sender it was replaced.
        tokio::time::timeout(self.clock.until(deadline), receiver).await.map(drop).map_err(|_| Late)
    }

    /// Ends that are not recorded yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.intents.lock().values().filter(|intent| intent.stage != Stage::Open).count()
    }

    /// Waits until every end is recorded.
    ///
    /// # Errors
    /// How many are not, at `deadline`.
    pub async fn drain(&self, deadline: Tick) -> Result<(), usize> {
        loop {
            match self.pending() {
                0 => return Ok(()),
                left if self.clock.tick() >= deadline => return Err(left),
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Looks after intents that wait: for a drain, or for the next attempt. Runs until the task is dropped.
    pub async fn run_forever(self: Arc<Self>) {
        loop {
            let _ = tokio::time::timeout(PATROL, self.wake.notified()).await;
            for connection_id in std::mem::take(&mut *self.woken.lock()) {
                self.advance(connection_id);
            }
            let now = self.clock.tick();
            let waiting: Vec<u64> = self
                .intents
                .lock()
                .iter()
                .filter(|(_, intent)| match intent.stage {
                    Stage::Draining => true,
                    Stage::Backoff { until } => until <= now,
                    Stage::Open | Stage::Held | Stage::Proposed => false,
                })
                .map(|(id, _)| *id)
                .collect();
            for connection_id in waiting {
                self.advance(connection_id);
            }
        }
    }

    /// Takes an intent as far as it goes now.
    fn advance(&self, connection_id: u64) {
        let (stage, owner) = {
            let intents = self.intents.lock();
            let Some(intent) = intents.get(&connection_id) else { return };
            (intent.stage, intent.owner.clone())
        };
        match stage {
            Stage::Draining if self.is_stopped(&owner) => self.proved(connection_id),
            Stage::Backoff { .. } => self.propose(connection_id),
            Stage::Open | Stage::Draining | Stage::Held | Stage::Proposed => {}
        }
    }

    fn is_stopped(&self, owner: &Owner) -> bool {
        let now = self.clock.tick();
        if matches!(self.owners.registry().quiesce(now, owner, None), Ok(Quiesce::Proved)) {
            return true;
        }
        let waker = {
            let mut intents = self.intents.lock();
            let Some(intent) = intents.get_mut(&owner.connection_id) else { return false };
            let waker = || DrainWaker { disconnects: self.me.clone(), connection_id: owner.connection_id };
            intent.waker.get_or_insert_with(|| Waker::from(Arc::new(waker()))).clone()
        };
        // An uncertain owner answers with an error: the patrol asks again.
        matches!(self.owners.registry().quiesce(now, owner, Some(&waker)), Ok(Quiesce::Proved))
    }

    /// The owner is proved stopped: propose, unless a takeover or an End decides about an abnormal end.
    fn proved(&self, connection_id: u64) {
        {
            let mut intents = self.intents.lock();
            let Some(intent) = intents.get_mut(&connection_id) else { return };
            if intent.stage != Stage::Draining {
                return;
            }
            // A DISCONNECT that the client sent before the takeover is recorded in any case: it cancels the Will.
            if intent.claimed && intent.input.is_some_and(|input| !input.normal) {
                intent.stage = Stage::Held;
                return;
            }
        }
        self.propose(connection_id);
    }

    fn propose(&self, connection_id: u64) {
        let command = {
            let mut intents = self.intents.lock();
            let Some(intent) = intents.get_mut(&connection_id) else { return };
            let (Some(input), false) = (intent.input, intent.stage == Stage::Proposed) else { return };
            intent.stage = Stage::Proposed;
            intent.attempts += 1;
            self.command(intent.owner.clone(), input, intent.refused)
        };
        let Some(me) = self.me.upgrade() else { return };
        let key = command.owner.key.clone();
        let done = Done::Port { port: me, token: connection_id };
        self.proposer.propose(&key, Command::Disconnect(Box::new(command)), done);
    }

    /// Whether the end is recorded as one without a Will.
    fn is_normal(&self, intent: &Intent) -> bool {
        intent.input.is_some_and(|input| input.normal && !self.is_late(input, intent.refused))
    }

    /// Whether the end was seen after the boot lease ran out. One that was refused never served.
    fn is_late(&self, input: DisconnectInput, refused: bool) -> bool {
        !refused && self.owners.lapsed_at(input.observed)
    }

    /// An end that was seen after the boot lease ran out is recorded as abnormal, at the lease end (owner spec §7.4).
    fn command(&self, owner: Owner, input: DisconnectInput, refused: bool) -> Disconnect {
        let late = self.is_late(input, refused);
        let lease_until = self.owners.lease_until_ms();
        let kind = if input.normal && !late { DisconnectKind::Normal } else { DisconnectKind::WithWill };
        Disconnect {
            owner,
            kind,
            observed_at: if late { lease_until } else { input.observed_at },
            expiry_sec: if late { None } else { input.expiry_sec },
            sent_through: input.sent_through,
        }
    }

    fn recorded(&self, connection_id: u64) {
        if let Some(intent) = self.intents.lock().remove(&connection_id) {
            for waiter in intent.waiters {
                // A waiter that left its wait does not need the news.
                let _ = waiter.send(());
            }
        }
    }

    fn retry_later(&self, connection_id: u64) {
        let mut intents = self.intents.lock();
        if let Some(intent) = intents.get_mut(&connection_id) {
            let pause = RETRY_MS.saturating_mul(1 << intent.attempts.min(6)).min(RETRY_MAX_MS);
            intent.stage = Stage::Backoff { until: self.clock.tick().plus_ms(pause) };
        }
    }

    /// The end is recorded without the Session Expiry Interval of its DISCONNECT when that is what was refused.
    fn drop_override(&self, connection_id: u64) {
        let dropped = {
            let mut intents = self.intents.lock();
            let Some(intent) = intents.get_mut(&connection_id) else { return };
            let dropped = intent.input.as_mut().and_then(|input| input.expiry_sec.take());
            if dropped.is_some() {
                intent.stage = Stage::Backoff { until: self.clock.tick() };
            }
            dropped
        };
        match dropped {
            Some(expiry_sec) => {
                tracing::warn!(expiry_sec, "the session expiry of a DISCONNECT is illegal; it is ignored");
                self.advance(connection_id);
            }
            None => {
                tracing::warn!("a disconnect was refused as illegal; it is tried again");
                self.retry_later(connection_id);
            }
        }
    }

    fn row_recorded(&self, row: &SessionRow) {
        if row.durable && matches!(row.state, SessionState::Ended { .. }) {
            self.over.lifetime_over(&row.owner.key, row.lifetime);
        }
    }
}

impl CompletionPort for Disconnects {
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        for (connection_id, result) in batch {
            match result {
                Ok(Reply::Row { row, .. }) => {
                    self.row_recorded(&row);
                    self.recorded(connection_id);
                }
                // Someone else recorded it, or a successor replaced the owner: nothing is left to do for this one.
                Ok(Reply::Conflict(Conflict::Fenced | Conflict::Missing | Conflict::BootRetired)) => {
                    self.recorded(connection_id);
                }
                Ok(Reply::Conflict(Conflict::Illegal)) => self.drop_override(connection_id),
                Ok(reply) => {
                    tracing::warn!(?reply, "a disconnect was answered unexpectedly; it is tried again");
                    self.retry_later(connection_id);
                }
                Err(error) => {
                    tracing::debug!(%error, "a disconnect is not recorded yet");
                    self.retry_later(connection_id);
                }
            }
        }
    }
}

impl OwnerGuard {
    /// The owner.
    #[must_use]
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The socket is physically closed; call it from `Service::closed`, with what the client said last.
    pub fn closed(mut self, input: DisconnectInput) {
        self.ended = true;
        self.disconnects.closed(self.entry.owner(), input);
    }

    /// The same for a connection that never got its CONNACK: it was not accepted, and its Will must not appear ([MQTT-3.1.2-8]).
    pub fn refused(mut self) {
        self.ended = true;
        self.disconnects.refused(self.entry.owner());
    }
}

impl Drop for OwnerGuard {
    fn drop(&mut self) {
        if !self.ended {
            let input = DisconnectInput::seen_now(&self.disconnects.clock, false);
            self.disconnects.closed(self.entry.owner(), input);
        }
    }
}

impl IntentClaim {
    /// What the closed connection reported, when nothing of it is proposed: the claimer may replace it. To be called with the proof in
    /// hand.
    #[must_use]
    pub fn held(&self) -> Option<DisconnectInput> {
        self.disconnects.advance(self.connection_id);
        let intents = self.disconnects.intents.lock();
        intents
            .get(&self.connection_id)
            .filter(|intent| intent.stage == Stage::Held)
            .and_then(|intent| intent.input)
    }

    /// The claimer's own commit takes the place of a held disconnect.
    pub fn replace(mut self) {
        self.settled = true;
        let mut intents = self.disconnects.intents.lock();
        if let Some(intent) = intents.get_mut(&self.connection_id) {
            intent.claimed = false;
            if matches!(intent.stage, Stage::Open | Stage::Held) {
                intents.remove(&self.connection_id);
            }
        }
    }

    /// Has the disconnect recorded, when there is one, and waits for it. To be called with the proof in hand.
    ///
    /// # Errors
    /// Not recorded in time; it goes on by itself.
    pub async fn record(mut self, clock: &NodeClock, deadline: Tick) -> Result<(), Late> {
        self.settled = true;
        let (sender, receiver) = oneshot::channel();
        {
            let mut intents = self.disconnects.intents.lock();
            let Some(intent) = intents.get_mut(&self.connection_id) else { return Ok(()) };
            intent.claimed = false;
            if intent.input.is_none() {
                intents.remove(&self.connection_id);
                return Ok(());
            }
            intent.waiters.push(sender);
            if intent.stage == Stage::Held {
                intent.stage = Stage::Draining;
            }
        }
        self.disconnects.advance(self.connection_id);
        match tokio::time::timeout(clock.until(deadline), receiver).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Late),
        }
    }
}

/// Not recorded in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the end of the previous connection is not recorded yet")]
pub struct Late;

impl Drop for IntentClaim {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        {
            let mut intents = self.disconnects.intents.lock();
            let Some(intent) = intents.get_mut(&self.connection_id) else { return };
            intent.claimed = false;
            match intent.stage {
                Stage::Open => {
                    intents.remove(&self.connection_id);
                    return;
                }
                Stage::Held => intent.stage = Stage::Draining,
                Stage::Draining | Stage::Proposed | Stage::Backoff { .. } => return,
            }
        }
        self.disconnects.advance(self.connection_id);
    }
}
