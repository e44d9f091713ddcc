//! `End`: an operator's decision that a session is over (owner spec §8). It returns only when the old owner is proved stopped and the
//! row is Ended; it never touches a successor.
//!
//! Every step is guarded: a dependency that panics, answers partially or answers something else is an error of its own kind, and no
//! text of it gets out.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use session::id::{Boot, Owner};
use session::lifecycle::{
    Command, Disconnect, DisconnectKind, End, EndReason, Reply, SessionRow, SessionState,
};
use session::time::{Millis, Tick};

use super::EndInput;
use super::authority::{Authority, PointRead};
use super::isolation::{Isolation, IsolationError};
use crate::clock::NodeClock;

/// Why End gives no confirmation. What it may have committed is stated by owner spec §8.4; repeating the call is always safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum EndError {
    #[error("the owner or the reason is not one that End takes")]
    Invalid,
    #[error("the call was cancelled")]
    Cancelled,
    #[error("not finished in time; repeat the call")]
    Deadline,
    #[error("the owner changed: somebody else owns the session now, or nobody does")]
    Fenced,
    #[error("the store gave an answer that cannot be evidence")]
    Evidence,
    #[error("the clock of this node is behind the session; wait or correct it")]
    Clock,
    #[error("isolation of the owner is not proved")]
    Unproved,
    #[error("the socket of the owner could not be closed")]
    Close,
    #[error("the session changed meanwhile; repeat the call")]
    Conflict,
    #[error("the store is not available; repeat the call")]
    Unavailable,
    #[error("an internal dependency failed")]
    LifecycleCallback,
}

/// One observation of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    pub tick: Tick,
    pub at: Millis,
}

/// A clock that may be found broken.
pub trait Moments: Send + Sync {
    /// `None`: the reading is not monotonic and cannot be used.
    fn now(&self) -> Option<Moment>;
}

impl Moments for NodeClock {
    fn now(&self) -> Option<Moment> {
        Some(Moment { tick: self.tick(), at: self.millis() })
    }
}

/// The bounds of one call.
#[derive(Debug)]
pub struct Call<'a> {
    pub deadline: Tick,
    pub cancelled: &'a AtomicBool,
}

impl Call<'_> {
    fn check(&self, now: Tick) -> Result<(), EndError> {
        if self.cancelled.load(Ordering::Acquire) {
            Err(EndError::Cancelled)
        } else if now >= self.deadline {
            Err(EndError::Deadline)
        } else {
            Ok(())
        }
    }
}

/// What the use case works with.
#[derive(Debug)]
pub struct EndCase<'a, A, I, M> {
    pub authority: &'a A,
    pub isolation: &'a I,
    pub clock: &'a M,
    /// This boot and the end of its lease; owners of it lived by the monotonic clock, whatever the wall clock says.
    pub own: Option<(&'a Boot, Tick)>,
}

impl<A: Authority, I: Isolation, M: Moments> EndCase<'_, A, I, M> {
    /// Ends exactly `input.owner`. `sent_through` is asked after the isolation of an owner whose end is not recorded: below which inbox
    /// offset the closed connection had written; `u64::MAX` when nobody knows.
    ///
    /// # Errors
    /// See [`EndError`].
    pub async fn run(
        &self,
        call: &Call<'_>,
        input: &EndInput,
        sent_through: &(dyn Fn() -> u64 + Sync),
    ) -> Result<SessionRow, EndError> {
        guarded(self.steps(call, input, sent_through)).await.unwrap_or(Err(EndError::LifecycleCallback))
    }

    async fn steps(
        &self,
        call: &Call<'_>,
        input: &EndInput,
        sent_through: &(dyn Fn() -> u64 + Sync),
    ) -> Result<SessionRow, EndError> {
        validate(input)?;
        let observed = self.now()?;
        call.check(observed.tick)?;
        let first = self.read(call, &input.owner).await?;
        if observed.at < first.updated_at {
            return Err(EndError::Clock);
        }
        // Also when the row is Offline or Ended already: the socket may still live (owner spec §8.2 step 3).
        self.isolation.quiesce(&input.owner, call.deadline).await.map_err(end_error)?;
        let (mut row, lease_until) = self.read_with_lease(call, &input.owner).await?;
        if row.uid != first.uid {
            return Err(EndError::Evidence);
        }
        self.check_clock(observed, &row)?;
        if let (SessionState::Active, Some(until)) =
            (row.state, lease_until.filter(|until| self.lapsed(&row.owner, *until, observed)))
        {
            row = self.close_lapsed(call, observed, &row, until, sent_through()).await?;
        }
        call.check(self.now()?.tick)?;
        if matches!(row.state, SessionState::Ended { .. }) {
            return Ok(row);
        }
        // What a connection that has ended wrote is recorded: End adds nothing.
        let written = if row.state == SessionState::Active { sent_through() } else { 0 };
        self.commit_end(call, input, &row, observed, written).await
    }

    /// Whether the lease of `owner` had run out at `observed`.
    fn lapsed(&self, owner: &Owner, until: Millis, observed: Moment) -> bool {
        match self.own {
            Some((boot, lease)) if boot.node_id == owner.node_id && boot.boot_id == owner.boot_id => {
                lease != Tick(0) && observed.tick >= lease
            }
            _ => until <= observed.at,
        }
    }

    /// One proposal, bounded by the deadline of the call.
    async fn commit(&self, call: &Call<'_>, owner: &Owner, command: Command) -> Result<Reply, EndError> {
        let left = Duration::from_nanos(call.deadline.0.saturating_sub(self.now()?.tick.0));
        tokio::time::timeout(left, self.authority.commit(&owner.key, None, command))
            .await
            .map_err(|_| EndError::Deadline)?
            .map_err(|_| EndError::Unavailable)
    }

    async fn commit_end(
        &self,
        call: &Call<'_>,
        input: &EndInput,
        row: &SessionRow,
        observed: Moment,
        sent_through: u64,
    ) -> Result<SessionRow, EndError> {
        let end = End {
            owner: input.owner.clone(),
            revision: row.revision,
            reason: input.reason,
            observed_at: observed.at.max(row.updated_at),
            will: input.will,
            sent_through,
        };
        let expected = row.revision + 1;
        let reply = self.commit(call, &input.owner, Command::End(Box::new(end))).await?;
        call.check(self.now()?.tick)?;
        match reply {
            Reply::Row { row, .. } => {
                let ended = matches!(row.state, SessionState::Ended { .. });
                let exact = row.owner == input.owner && row.revision == expected && row.will_generation == 0;
                if ended && exact { Ok(*row) } else { Err(EndError::Evidence) }
            }
            Reply::Conflict(_) => Err(EndError::Conflict),
            _ => Err(EndError::Evidence),
        }
    }

    /// The owner's lease ran out before End was called: that end is recorded first, at its own time (owner spec §8.2 step 5).
    async fn close_lapsed(
        &self,
        call: &Call<'_>,
        observed: Moment,
        row: &SessionRow,
        until: Millis,
        sent_through: u64,
    ) -> Result<SessionRow, EndError> {
        if until < row.updated_at {
            return Err(EndError::Clock);
        }
        call.check(self.now()?.tick)?;
        let disconnect = Disconnect {
            owner: row.owner.clone(),
            kind: DisconnectKind::WithWill,
            observed_at: until,
            expiry_sec: None,
            sent_through,
        };
        self.commit(call, &row.owner, Command::Disconnect(Box::new(disconnect))).await?;
        let third = self.read(call, &row.owner).await?;
        let moved = third.revision == row.revision + 1 && third.state != SessionState::Active;
        if third.uid != row.uid || !moved {
            return Err(EndError::Conflict);
        }
        self.check_clock(observed, &third)?;
        Ok(third)
    }

    async fn read(&self, call: &Call<'_>, owner: &Owner) -> Result<SessionRow, EndError> {
        Ok(self.read_with_lease(call, owner).await?.0)
    }

    /// The ending read (owner spec §8.3).
    async fn read_with_lease(
        &self,
        call: &Call<'_>,
        owner: &Owner,
    ) -> Result<(SessionRow, Option<Millis>), EndError> {
        call.check(self.now()?.tick)?;
        let read = self.authority.read(&owner.key).await.map_err(|_| EndError::Unavailable)?;
        call.check(self.now()?.tick)?;
        let PointRead { complete: true, row, lease_until, .. } = read else { return Err(EndError::Evidence) };
        let row = row.ok_or(EndError::Fenced)?;
        let ended = matches!(row.state, SessionState::Ended { .. });
        if row.owner.check().is_err()
            || (!ended && row.revision == u64::MAX)
            || (ended && row.will_generation != 0)
        {
            return Err(EndError::Evidence);
        }
        if row.owner != *owner {
            return Err(EndError::Fenced);
        }
        Ok((row, lease_until))
    }

    fn now(&self) -> Result<Moment, EndError> {
        self.clock.now().ok_or(EndError::Clock)
    }

    fn check_clock(&self, observed: Moment, row: &SessionRow) -> Result<(), EndError> {
        let now = self.now()?;
        if now.tick < observed.tick || now.at < observed.at || now.at < row.updated_at {
            return Err(EndError::Clock);
        }
        Ok(())
    }
}

fn validate(input: &EndInput) -> Result<(), EndError> {
    input.owner.check().map_err(|_| EndError::Invalid)?;
    match input.reason {
        EndReason::Revoked | EndReason::SourceLost | EndReason::Quota | EndReason::Explicit => Ok(()),
        EndReason::Expired | EndReason::CleanStart => Err(EndError::Invalid),
    }
}

fn end_error(error: IsolationError) -> EndError {
    match error {
        IsolationError::Unproved => EndError::Unproved,
        IsolationError::Close => EndError::Close,
        IsolationError::Deadline => EndError::Deadline,
        IsolationError::Cancelled => EndError::Cancelled,
        IsolationError::Invalid => EndError::Invalid,
    }
}

/// Runs `future`; `None` when it panicked. What it panicked with stays inside.
async fn guarded<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
        Err(_) => Poll::Ready(None),
    })
    .await
}
