//! What a fenced owner carries until it is retired: its close attempts, who waits for it, what is uncertain.

use std::task::Waker;

use super::registry::OwnerError;

/// Callers that may wait for one owner at a time; dead ones leave at the next visit of the sweeper.
const WAITERS_MAX: usize = 256;
/// Uncertain effects that are told apart; an owner with more stays uncertain as long as the process lives.
const UNCERTAIN_MAX: usize = 1_024;
/// Longest pause between two visits of one owner (DESIGN §4).
const RETRY_MS_MAX: u64 = 10_000;

/// ```text
///            request            Closed
/// Open ────────────────▶ Asked ────────▶ Closed
///   ▲                     │  ▲ └─ lost: asked again when its retry is due
///   └───────Failed────────┘  │
///   └────────────────────────┘ retry      Open ──peer closed first──▶ Closed
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Socket {
    Open,
    /// An attempt is under way.
    Asked,
    /// Physically closed, as the shell reported.
    Closed,
}

pub(super) struct Closing {
    pub(super) socket: Socket,
    /// Attempts and fruitless visits so far; they set the pause before the next.
    visits: u32,
    /// Woken at the next change.
    waiters: Vec<Waker>,
    /// Those who waited for the attempt that failed, until they have learnt of it.
    failed: Vec<Waker>,
    /// Tokens of effects that may still act.
    uncertain: Vec<u64>,
    uncertain_for_ever: bool,
}

impl Closing {
    pub(super) fn new() -> Self {
        Self {
            socket: Socket::Open,
            visits: 0,
            waiters: Vec::new(),
            failed: Vec::new(),
            uncertain: Vec::new(),
            uncertain_for_ever: false,
        }
    }

    pub(super) fn is_uncertain(&self) -> bool {
        self.uncertain_for_ever || !self.uncertain.is_empty()
    }

    /// Counts a visit.
    pub(super) fn visit(&mut self) {
        self.visits = self.visits.saturating_add(1);
    }

    /// Pause after the latest visit: `retry_ms`, doubling with each one.
    pub(super) fn pause_ms(&self, retry_ms: u64) -> u64 {
        let doublings = self.visits.saturating_sub(1).min(20);
        (retry_ms << doublings).min(RETRY_MS_MAX.max(retry_ms))
    }

    /// Keeps `waker` for the next change.
    pub(super) fn wait(&mut self, waker: Option<&Waker>) -> Result<(), OwnerError> {
        let Some(waker) = waker else { return Ok(()) };
        if self.waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            return Ok(());
        }
        if self.waiters.len() >= WAITERS_MAX {
            return Err(OwnerError::Limit);
        }
        self.waiters.push(waker.clone());
        Ok(())
    }

    /// Whether `waker` waited for the attempt that failed; it is told once.
    pub(super) fn learns_of_failure(&mut self, waker: Option<&Waker>) -> bool {
        let Some(waker) = waker else { return false };
        match self.failed.iter().position(|waiter| waiter.will_wake(waker)) {
            Some(at) => {
                self.failed.swap_remove(at);
                true
            }
            None => false,
        }
    }

    /// The running attempt failed: those who waited for it are to be woken.
    pub(super) fn fail(&mut self) -> Vec<Waker> {
        self.socket = Socket::Open;
        let waiters = std::mem::take(&mut self.waiters);
        self.failed.clone_from(&waiters);
        waiters
    }

    /// An attempt starts. What it returns is to be woken: it may wait for an attempt that was lost, or be gone.
    pub(super) fn ask(&mut self) -> Vec<Waker> {
        debug_assert_ne!(self.socket, Socket::Closed);
        self.socket = Socket::Asked;
        let mut woken = std::mem::take(&mut self.waiters);
        woken.append(&mut self.failed);
        woken
    }

    pub(super) fn take_waiters(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.waiters)
    }

    /// Returns whether the owner became uncertain by it.
    pub(super) fn mark_uncertain(&mut self, token: u64) -> bool {
        let was = self.is_uncertain();
        if self.uncertain.len() >= UNCERTAIN_MAX {
            self.uncertain_for_ever = true;
        } else if !self.uncertain.contains(&token) {
            self.uncertain.push(token);
        }
        !was
    }

    /// Returns whether nothing is uncertain any more by it.
    pub(super) fn resolve(&mut self, token: u64) -> bool {
        let was = self.is_uncertain();
        self.uncertain.retain(|&other| other != token);
        was && !self.is_uncertain()
    }
}
