//! CONNECT and takeover, step by step as owner spec §7.1 has it, with the boot lease of DESIGN §4.
//!
//! ```text
//! turn ▶ read 1 ▶ claim ▶ notice ▶ isolate ▶ record or replace the old end ▶ read 2 ▶ authorise again ▶ reserve
//!      ▶ commit ▶ activate
//! ```
//! Anything that fails after the reservation gives the candidate up: it never got the transport, so nothing can act for it.

use std::sync::Arc;
use std::time::Duration;

use gateway::codec::ReasonCode;
use session::id::{Boot, Owner};
use session::lifecycle::{
    Command, Conflict, Connect, Disconnect, DisconnectKind, Reply, SessionRef, SessionRow, SessionState,
};
use session::owner::{Claim, Entry, OwnerError};
use session::time::Tick;

use super::authority::{Authority, PointRead, begins_fresh, next_generations};
use super::disconnect::{Disconnects, IntentClaim, LifetimeOver, OwnerGuard};
use super::isolation::{Isolation, IsolationError};
use super::queue::{ConnectQueue, Entered, Turn};
use super::will::EarlierWills;
use super::{ConnectError, ConnectInput, Connected};
use crate::clock::NodeClock;
use crate::metrics::{ControlRecorder, TakeoverOutcome};
use crate::owners::{LinkTransport, Owners};
use crate::trace::child;

/// Proposals of one CONNECT. Another one follows only a definite refusal with the same previous owner (owner spec §15.15).
const PROPOSALS_MAX: usize = 3;
/// So often a CONNECT of another user looks again whether a connection ended: its client may have seen that before we know of it.
const ENDING_LOOKS_MAX: u32 = 20;
/// The pause between two looks.
const ENDING_PAUSE: Duration = Duration::from_millis(5);
/// Name of the anonymous principal where a name is needed.
const ANONYMOUS: &str = "(anonymous)";

/// What the use case works with.
#[derive(Debug)]
pub struct ConnectCase<'a, A, I> {
    pub boot: &'a Boot,
    pub clock: &'a NodeClock,
    pub owners: &'a Arc<Owners>,
    pub disconnects: &'a Arc<Disconnects>,
    pub queue: &'a ConnectQueue,
    pub authority: &'a A,
    pub isolation: &'a I,
    pub over: &'a dyn LifetimeOver,
    /// Publishes the Wills of earlier connections before this one is answered; `None`: nobody does.
    pub wills: Option<&'a dyn EarlierWills>,
    /// `owner.lease` in milliseconds.
    pub lease_ms: u64,
    /// Is told of takeovers; `None`: nobody is.
    pub takeovers: Option<&'a dyn Takeovers>,
}

/// Who counts, logs and tells takeovers.
pub trait Takeovers: std::fmt::Debug + Sync {
    /// A CONNECT met the active owner `met`, and was answered so after `elapsed_ns`.
    fn took(&self, met: &Owner, outcome: TakeoverOutcome, elapsed_ns: u64);
}

impl Takeovers for ControlRecorder {
    fn took(&self, _met: &Owner, outcome: TakeoverOutcome, elapsed_ns: u64) {
        self.takeover(outcome, elapsed_ns);
    }
}

/// Why one attempt failed.
enum Failed {
    Refused(ConnectError),
    /// The proposal was definitely refused and nothing changed, or its owner was ended at once: the client hears of neither.
    Raced,
}

impl From<ConnectError> for Failed {
    fn from(error: ConnectError) -> Self {
        Self::Refused(error)
    }
}

/// A row whose owner is proved stopped.
#[derive(Default)]
struct Isolated {
    row: Option<SessionRow>,
    /// The end of the old connection that CONNECT replaces.
    claim: Option<IntentClaim>,
    /// What the old connection wrote, for DUP ([MQTT-3.3.1-1]); goes ahead of the Connect.
    sent: Option<Command>,
}

/// A reserved owner that is not handed out yet. Dropping it, also when the caller's future is dropped, gives it up.
struct Candidate<'a> {
    owners: &'a Owners,
    disconnects: &'a Disconnects,
    clock: &'a NodeClock,
    entry: Arc<Entry>,
    transport: Arc<LinkTransport>,
    /// The proposal went out: the row may name this owner.
    proposed: bool,
    given: bool,
}

impl Candidate<'_> {
    fn give(mut self) -> Result<OwnerGuard, ConnectError> {
        let guard = self.disconnects.guard(self.entry.clone()).ok_or(ConnectError::Stopped)?;
        self.given = true;
        Ok(guard)
    }

    /// The proposal was refused: the row cannot name this owner.
    fn refused(mut self) {
        self.proposed = false;
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        if self.given {
            return;
        }
        let owner = self.entry.owner();
        // Fails only for an owner that is not ours, which this one is.
        let _ = self.owners.registry().fence(self.clock.tick(), owner);
        if self.proposed {
            self.disconnects.refused(owner);
        } else {
            self.owners.transport_closed(owner);
        }
    }
}

impl<A: Authority, I: Isolation> ConnectCase<'_, A, I> {
    /// Makes the connection at `input.link` the only owner of its session. `recheck` is the second authorisation: isolation may have been
    /// slow, and permissions may have changed meanwhile.
    ///
    /// # Errors
    /// See [`ConnectError`]; the previous session is untouched unless a commit went through.
    pub async fn run(
        &self,
        input: &ConnectInput,
        recheck: &impl Fn() -> bool,
    ) -> Result<Connected, ConnectError> {
        let began = self.clock.tick();
        let mut met = None;
        let outcome = self.in_turn(input, recheck, &mut met).await;
        if let (Some(takeovers), Some(met)) = (self.takeovers, met) {
            let elapsed_ns = self.clock.tick().0.saturating_sub(began.0);
            takeovers.took(&met, takeover_outcome(outcome.as_ref().err()), elapsed_ns);
        }
        outcome
    }

    async fn in_turn(
        &self,
        input: &ConnectInput,
        recheck: &impl Fn() -> bool,
        met: &mut Option<Owner>,
    ) -> Result<Connected, ConnectError> {
        let _turn = self.turn(input).await?;
        for _ in 0..PROPOSALS_MAX {
            match self.attempt(input, recheck, met).await {
                Ok(connected) => return Ok(connected),
                Err(Failed::Refused(error)) => return Err(error),
                Err(Failed::Raced) => {}
            }
        }
        Err(ConnectError::Conflict)
    }

    /// A client whose time is over is told so; nothing is disturbed for it.
    fn check_deadline(&self, input: &ConnectInput) -> Result<(), ConnectError> {
        if self.clock.tick() >= input.deadline { Err(ConnectError::Deadline) } else { Ok(()) }
    }

    async fn turn(&self, input: &ConnectInput) -> Result<Turn, ConnectError> {
        match self.queue.enter(&input.key) {
            Ok(Entered::Now(turn)) => Ok(turn),
            Ok(Entered::Waiting(receiver)) => {
                let wait = self.clock.until(input.deadline);
                match tokio::time::timeout(wait, receiver).await {
                    Ok(Ok(turn)) => Ok(turn),
                    Ok(Err(_)) => Err(ConnectError::Stopped),
                    Err(_) => Err(ConnectError::Deadline),
                }
            }
            Err(_) => Err(ConnectError::Conflict),
        }
    }

    async fn attempt(
        &self,
        input: &ConnectInput,
        recheck: &impl Fn() -> bool,
        met: &mut Option<Owner>,
    ) -> Result<Connected, Failed> {
        self.check_deadline(input)?;
        let read = child("read owner", self.first_read(input)).await?;
        if let Some(row) = read.row.as_ref().filter(|row| row.state == SessionState::Active) {
            *met = Some(row.owner.clone());
        }
        let Isolated { row: previous, claim, sent } = match read.row {
            None => Isolated::default(),
            Some(row) => child("isolate", self.isolate(input, row)).await?,
        };
        if !recheck() {
            return Err(ConnectError::NotAuthorized.into());
        }
        let connected = self.install(input, previous.as_ref(), sent).await?;
        if let Some(claim) = claim {
            claim.replace();
        }
        if let Some(old) = previous.filter(|old| old.durable && old.lifetime != connected.row.lifetime) {
            self.over.lifetime_over(&input.key, old.lifetime);
        }
        Ok(connected)
    }

    /// The row, or nothing. A session that is over with its connection leaves its ClientID to anybody: where only the record of that is
    /// missing, it is waited for.
    async fn first_read(&self, input: &ConnectInput) -> Result<PointRead, ConnectError> {
        let mut looks = ENDING_LOOKS_MAX;
        loop {
            match self.read(input).await {
                Err(ConnectError::Binding) if self.is_ending(input, &mut looks).await? => {}
                other => return other,
            }
        }
    }

    /// Waits a little where the row of another user is of a connection of this boot that ends or may end with its session; false: it stays.
    async fn is_ending(&self, input: &ConnectInput, looks: &mut u32) -> Result<bool, ConnectError> {
        let read = self.authority.read(&input.key).await.map_err(|_| ConnectError::Unavailable)?;
        let Some(row) = read.row else { return Ok(true) };
        if read.bound_until.is_none_or(|until| until <= self.clock.millis()) {
            return Ok(true);
        }
        let ours = row.owner.node_id == self.boot.node_id && row.owner.boot_id == self.boot.boot_id;
        if !ours || row.durable || row.state != SessionState::Active {
            return Ok(false);
        }
        if let Some(recorded) = self.disconnects.end_of(&row.owner) {
            return Ok(tokio::time::timeout(self.clock.until(input.deadline), recorded).await.is_ok());
        }
        if *looks == 0 {
            return Ok(false);
        }
        *looks -= 1;
        tokio::time::sleep(ENDING_PAUSE).await;
        Ok(true)
    }

    /// A complete read of our own row, or nothing (owner spec §8.3); another user's session is never touched (P8).
    async fn read(&self, input: &ConnectInput) -> Result<PointRead, ConnectError> {
        let read = self.authority.read(&input.key).await.map_err(|_| ConnectError::Unavailable)?;
        if !read.complete {
            return Err(ConnectError::Unavailable);
        }
        if let Some(row) = &read.row {
            if row.owner.key != input.key || row.owner.check().is_err() {
                return Err(ConnectError::Unavailable);
            }
            let bound = read.bound_until.is_some_and(|until| self.clock.millis() < until);
            if row.uid != input.uid && bound {
                return Err(ConnectError::Binding);
            }
            if row.revision == u64::MAX || row.updated_at > self.clock.millis() {
                return Err(ConnectError::Unavailable);
            }
        }
        Ok(read)
    }

    /// Proves that the row's owner stopped and returns the row as it stands then (owner spec §7.1 step 5).
    async fn isolate(&self, input: &ConnectInput, row: SessionRow) -> Result<Isolated, ConnectError> {
        self.check_deadline(input)?;
        let ours = row.owner.node_id == self.boot.node_id && row.owner.boot_id == self.boot.boot_id;
        let mut claim = if ours { self.disconnects.claim(&row.owner) } else { None };
        if ours && row.state == SessionState::Active {
            self.owners.notice(&row.owner, ReasonCode::SessionTakenOver);
        }
        self.isolation.quiesce(&row.owner, input.deadline).await.map_err(refusal)?;
        let mut sent = None;
        // Without the report of the old connection everything may have been written.
        let mut sent_through = u64::MAX;
        if let Some(held) = claim.take() {
            if let Some(end) = held.held() {
                // CONNECT replaces this end in one step; the inbox only has to know what the old connection wrote.
                let session =
                    SessionRef { lifetime: row.lifetime, owner_generation: row.owner.owner_generation };
                sent_through = end.sent_through;
                sent = row.durable.then_some(Command::Sent { session, through: end.sent_through });
                claim = Some(held);
            } else {
                held.record(self.clock, input.deadline).await.map_err(|_| ConnectError::Deadline)?;
            }
        }
        let mut read = self.read(input).await?;
        let Some(after) = &read.row else { return Ok(Isolated { row: None, claim, sent: None }) };
        if after.owner != row.owner {
            return Err(ConnectError::Conflict);
        }
        // An owner of this boot lived by the monotonic clock; the wall clock may have stepped.
        let lapsed = read.lease_until.filter(|until| {
            if ours { self.owners.lapsed_at(self.clock.tick()) } else { *until <= self.clock.millis() }
        });
        if let (SessionState::Active, Some(until)) = (after.state, lapsed) {
            let disconnect = Disconnect {
                owner: row.owner.clone(),
                kind: DisconnectKind::WithWill,
                observed_at: until,
                expiry_sec: None,
                sent_through,
            };
            let command = Command::Disconnect(Box::new(disconnect));
            self.commit(input, None, command).await?;
            // It told what was written, and its owner is fenced now.
            sent = None;
            read = self.read(input).await?;
            if read.row.as_ref().is_some_and(|third| third.owner != row.owner) {
                return Err(ConnectError::Conflict);
            }
        }
        Ok(Isolated { row: read.row, claim, sent })
    }

    /// Reserve, commit, activate (owner spec §7.1 steps 7 to 14).
    async fn install(
        &self,
        input: &ConnectInput,
        previous: Option<&SessionRow>,
        sent: Option<Command>,
    ) -> Result<Connected, Failed> {
        self.check_deadline(input)?;
        let fresh = begins_fresh(previous, input.clean_start, self.clock.millis());
        let (session_generation, owner_generation) =
            next_generations(previous, fresh).ok_or(ConnectError::Unavailable)?;
        let uid = input.uid.clone().unwrap_or_else(|| ANONYMOUS.into());
        let claim = Claim { key: input.key.clone(), uid, session_generation, owner_generation };
        let started = self.clock.tick();
        let (entry, transport) = self.owners.reserve(claim, input.link).map_err(|error| match error {
            OwnerError::Limit => ConnectError::Limit,
            OwnerError::Stopped => ConnectError::Stopped,
            _ => ConnectError::Unavailable,
        })?;
        let mut candidate = Candidate {
            owners: self.owners,
            disconnects: self.disconnects,
            clock: self.clock,
            entry,
            transport,
            proposed: false,
            given: false,
        };
        // Captured before the proposal: commit latency can only shorten the lease. It is never longer than the boot's.
        let until = self.until(started);
        let connect = Connect {
            owner: candidate.entry.owner().clone(),
            uid: input.uid.clone(),
            previous: previous.map(|row| (row.revision, row.owner.clone())),
            clean_start: input.clean_start,
            expiry_sec: input.expiry_sec,
            will: input.will.clone(),
        };
        candidate.proposed = true;
        let commit = self.commit(input, sent, Command::Connect(Box::new(connect)));
        let reply = child("commit", commit).await?;
        let (row, session_present) = match reply {
            Reply::Row { row, session_present, .. } => (*row, session_present),
            Reply::Conflict(conflict) => {
                candidate.refused();
                return Err(conflict_failure(conflict));
            }
            _ => return Err(ConnectError::Unavailable.into()),
        };
        self.check_receipt(input, &candidate.entry, &row, session_present != fresh)?;
        let activate = || self.owners.activate(&candidate.entry, &candidate.transport, row.revision, until);
        child("activate", async { activate() }).await.map_err(|error| match error {
            OwnerError::Stopped => ConnectError::Stopped.into(),
            // An End found the new owner in the row already.
            OwnerError::Fenced => Failed::Raced,
            _ => ConnectError::Deadline.into(),
        })?;
        // Whoever follows presence sees the old connection's Will before anything of its successor.
        if let (Some(wills), true) = (self.wills, previous.is_some()) {
            wills.settle(&input.key, input.deadline).await;
        }
        let entry = candidate.entry.clone();
        Ok(Connected { entry, row, session_present, guard: candidate.give()? })
    }

    /// One proposal, bounded by the deadline.
    async fn commit(
        &self,
        input: &ConnectInput,
        before: Option<Command>,
        command: Command,
    ) -> Result<Reply, ConnectError> {
        let commit = self.authority.commit(&input.key, before, command);
        tokio::time::timeout(self.clock.until(input.deadline), commit)
            .await
            .map_err(|_| ConnectError::Deadline)?
            .map_err(|_| ConnectError::Unavailable)
    }

    fn until(&self, started: Tick) -> Tick {
        let own = started.plus_ms(self.lease_ms);
        match self.owners.lease_until() {
            Tick(0) => own,
            boot => own.min(boot),
        }
    }

    /// A receipt that is not about exactly this proposal proves nothing (owner spec §7.1 step 11).
    fn check_receipt(
        &self,
        input: &ConnectInput,
        entry: &Entry,
        row: &SessionRow,
        as_computed: bool,
    ) -> Result<(), ConnectError> {
        let owner: &Owner = entry.owner();
        let will_matches = input.will.is_some() == (row.will_generation != 0);
        if row.owner == *owner && row.state == SessionState::Active && will_matches && as_computed {
            return Ok(());
        }
        tracing::error!("the receipt of a CONNECT does not match its proposal");
        Err(ConnectError::Unavailable)
    }
}

fn takeover_outcome(error: Option<&ConnectError>) -> TakeoverOutcome {
    match error {
        None => TakeoverOutcome::Done,
        Some(ConnectError::Conflict) => TakeoverOutcome::Conflict,
        Some(ConnectError::Unproved) => TakeoverOutcome::Unproved,
        Some(ConnectError::Deadline) => TakeoverOutcome::Deadline,
        Some(_) => TakeoverOutcome::Failed,
    }
}

fn refusal(error: IsolationError) -> ConnectError {
    match error {
        IsolationError::Deadline => ConnectError::Deadline,
        IsolationError::Unproved
        | IsolationError::Close
        | IsolationError::Cancelled
        | IsolationError::Invalid => ConnectError::Unproved,
    }
}

fn conflict_failure(conflict: Conflict) -> Failed {
    match conflict {
        Conflict::Binding => ConnectError::Binding.into(),
        Conflict::Denied => ConnectError::Denied.into(),
        Conflict::BootRetired => ConnectError::Stopped.into(),
        Conflict::Quota => ConnectError::Limit.into(),
        Conflict::Exhausted => ConnectError::Unavailable.into(),
        Conflict::Fenced
        | Conflict::Missing
        | Conflict::Illegal
        | Conflict::NotDue
        // Told to nobody: who proposed it has given it up.
        | Conflict::Late => Failed::Raced,
    }
}
