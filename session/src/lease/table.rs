//! The table itself: pure, row by row storable, O(log n) a change.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    GRACE_MS, LEASES_AT_ONCE, LeaseCommand, LeaseOutcome, LeaseRefusal, LeaseReply, LeaseState, Protects,
    TTL_MS_MAX, TTL_MS_MIN,
};

/// Lease time that never comes.
const NEVER: u64 = u64::MAX;

/// One lease as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRow {
    pub ttl_ms: u64,
    pub state: LeaseState,
    /// Lease time at which it ends.
    pub deadline: u64,
    pub protects: Protects,
}

/// The counters beside the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseMeta {
    pub clock: u64,
    pub next: u64,
}

/// A lease that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub lease: u64,
    pub protects: Protects,
}

/// Leases by their states, O(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseStat {
    pub held: u64,
    pub armed: u64,
    pub delegated: u64,
}

impl LeaseStat {
    fn of(&mut self, state: LeaseState) -> &mut u64 {
        match state {
            LeaseState::Held => &mut self.held,
            LeaseState::Armed => &mut self.armed,
            LeaseState::Delegated => &mut self.delegated,
        }
    }
}

impl std::ops::Add for LeaseStat {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            held: self.held + other.held,
            armed: self.armed + other.armed,
            delegated: self.delegated + other.delegated,
        }
    }
}

/// All leases of one group.
#[derive(Debug)]
pub struct LeaseTable {
    clock: u64,
    /// Never reused, so that an id names one lease for the life of the store.
    next: u64,
    leases: BTreeMap<u64, LeaseRow>,
    // derived
    deadlines: BTreeSet<(u64, u64)>,
    stat: LeaseStat,
    pub(crate) dirty: BTreeSet<u64>,
    pub(crate) dirty_meta: bool,
    /// The earliest deadline changed since the flag was taken.
    changed: bool,
}

impl Default for LeaseTable {
    fn default() -> Self {
        Self {
            clock: 0,
            next: 1,
            leases: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            stat: LeaseStat::default(),
            dirty: BTreeSet::new(),
            dirty_meta: false,
            changed: false,
        }
    }
}

impl LeaseTable {
    /// Applies one command; what ended is added to `ended`, in order.
    pub fn apply(&mut self, command: &LeaseCommand, ended: &mut Vec<Ended>) -> LeaseReply {
        let outcome = self.execute(command, ended);
        LeaseReply { clock: self.clock, outcome }
    }

    fn execute(
        &mut self,
        command: &LeaseCommand,
        ended: &mut Vec<Ended>,
    ) -> Result<LeaseOutcome, LeaseRefusal> {
        match command {
            LeaseCommand::Beat { from, to } => {
                if *from == self.clock && to > from {
                    self.clock = *to;
                    self.dirty_meta = true;
                }
                Ok(LeaseOutcome::Done)
            }
            LeaseCommand::Grant { ttl_ms } => {
                let lease = self.grant(*ttl_ms, Protects::Members)?;
                Ok(LeaseOutcome::Granted { lease })
            }
            LeaseCommand::Keepalive { leases } => {
                if leases.len() > LEASES_AT_ONCE {
                    return Err(LeaseRefusal::TooMany(leases.len() as u64));
                }
                let left_ms = leases.iter().map(|lease| self.keep(*lease)).collect();
                Ok(LeaseOutcome::Kept { left_ms })
            }
            LeaseCommand::SetTtl { lease, ttl_ms } => {
                self.foreign(*lease)?;
                self.rerun(*lease, check(*ttl_ms)?, LeaseState::Held);
                Ok(LeaseOutcome::Done)
            }
            LeaseCommand::Arm { lease, ttl_ms } => {
                self.foreign(*lease)?;
                self.rerun(*lease, check(*ttl_ms)?, LeaseState::Armed);
                Ok(LeaseOutcome::Done)
            }
            LeaseCommand::Revoke { lease } => {
                self.foreign(*lease)?;
                ended.extend(self.end(*lease));
                Ok(LeaseOutcome::Done)
            }
            LeaseCommand::Expire { limit } => {
                let limit = (*limit as usize).min(LEASES_AT_ONCE);
                let before = ended.len();
                while ended.len() - before < limit
                    && let Some((deadline, lease)) = self.deadlines.first().copied()
                    && deadline <= self.clock
                {
                    ended.extend(self.end(lease));
                }
                let more = self.deadlines.first().is_some_and(|(deadline, _)| *deadline <= self.clock);
                let ended = u32::try_from(ended.len() - before).expect("at most 4,096 end at once");
                Ok(LeaseOutcome::Expired { ended, more })
            }
        }
    }

    /// A new lease that runs.
    ///
    /// # Errors
    /// `Ttl` outside of its range.
    pub(crate) fn grant(&mut self, ttl_ms: u64, protects: Protects) -> Result<u64, LeaseRefusal> {
        let ttl_ms = check(ttl_ms)?;
        let lease = self.next;
        self.next += 1;
        self.dirty_meta = true;
        let row = LeaseRow { ttl_ms, state: LeaseState::Held, deadline: NEVER, protects };
        self.leases.insert(lease, row);
        self.stat.held += 1;
        self.rerun(lease, ttl_ms, LeaseState::Held);
        Ok(lease)
    }

    /// Something that is alive holds it: it has no deadline until [`Self::run_down`].
    pub(crate) fn delegate(&mut self, lease: u64) {
        let Some(row) = self.leases.get(&lease) else { return };
        let ttl_ms = row.ttl_ms;
        self.rerun(lease, ttl_ms, LeaseState::Delegated);
    }

    /// Nothing holds it any more: it has its whole TTL from now on.
    pub(crate) fn run_down(&mut self, lease: u64) {
        let Some(row) = self.leases.get(&lease) else { return };
        let ttl_ms = row.ttl_ms;
        self.rerun(lease, ttl_ms, LeaseState::Armed);
    }

    /// Ends it now.
    pub(crate) fn end(&mut self, lease: u64) -> Option<Ended> {
        let row = self.leases.remove(&lease)?;
        *self.stat.of(row.state) -= 1;
        self.unlist(lease, row.deadline);
        self.dirty.insert(lease);
        Some(Ended { lease, protects: row.protects })
    }

    fn keep(&mut self, lease: u64) -> Option<u64> {
        let row = *self.leases.get(&lease)?;
        if row.protects != Protects::Members {
            return None;
        }
        self.rerun(lease, row.ttl_ms, LeaseState::Held);
        Some(row.ttl_ms)
    }

    /// A lease that callers may change: there, and not a channel's own.
    fn foreign(&self, lease: u64) -> Result<(), LeaseRefusal> {
        match self.leases.get(&lease) {
            None => Err(LeaseRefusal::Gone),
            Some(row) if row.protects != Protects::Members => Err(LeaseRefusal::NotYours),
            Some(_) => Ok(()),
        }
    }

    fn rerun(&mut self, lease: u64, ttl_ms: u64, state: LeaseState) {
        let deadline = match state {
            LeaseState::Delegated => NEVER,
            LeaseState::Held | LeaseState::Armed => {
                self.clock.saturating_add(ttl_ms).saturating_add(GRACE_MS).min(NEVER - 1)
            }
        };
        let Some(row) = self.leases.get_mut(&lease) else { return };
        let old = std::mem::replace(&mut row.deadline, deadline);
        *self.stat.of(row.state) -= 1;
        *self.stat.of(state) += 1;
        (row.ttl_ms, row.state) = (ttl_ms, state);
        self.unlist(lease, old);
        self.list(lease, deadline);
        self.dirty.insert(lease);
    }

    fn list(&mut self, lease: u64, deadline: u64) {
        if deadline != NEVER {
            self.deadlines.insert((deadline, lease));
            self.changed |= self.deadlines.first() == Some(&(deadline, lease));
        }
    }

    fn unlist(&mut self, lease: u64, deadline: u64) {
        if deadline != NEVER {
            self.deadlines.remove(&(deadline, lease));
        }
    }

    // ---- reading ------------------------------------------------------------------------------------------------

    /// Lease time.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Lease time at which the next one ends.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Remaining milliseconds, `u64::MAX` for one that is delegated; `None`: gone.
    #[must_use]
    pub fn left_ms(&self, lease: u64) -> Option<u64> {
        let row = self.leases.get(&lease)?;
        Some(if row.deadline == NEVER { NEVER } else { row.deadline.saturating_sub(self.clock) })
    }

    #[must_use]
    pub fn state(&self, lease: u64) -> Option<LeaseState> {
        self.leases.get(&lease).map(|row| row.state)
    }

    /// Whether it is there and not a channel's own.
    #[must_use]
    pub fn is_bindable(&self, lease: u64) -> bool {
        self.foreign(lease).is_ok()
    }

    /// Totals, O(1).
    #[must_use]
    pub fn stat(&self) -> LeaseStat {
        self.stat
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Whether the earliest deadline came closer since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    // ---- stored form --------------------------------------------------------------------------------------------

    pub(crate) fn meta(&self) -> LeaseMeta {
        LeaseMeta { clock: self.clock, next: self.next }
    }

    pub(crate) fn row(&self, lease: u64) -> Option<&LeaseRow> {
        self.leases.get(&lease)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (u64, &LeaseRow)> {
        self.leases.iter().map(|(lease, row)| (*lease, row))
    }

    pub(crate) fn load_meta(&mut self, meta: LeaseMeta) {
        (self.clock, self.next) = (meta.clock, meta.next);
    }

    /// Whether the totals are those of the rows, for the whole-state check.
    pub(crate) fn is_coherent(&self) -> bool {
        let mut counted = LeaseStat::default();
        self.leases.values().for_each(|row| *counted.of(row.state) += 1);
        counted == self.stat
    }

    /// False: it was never given out.
    pub(crate) fn load(&mut self, lease: u64, row: LeaseRow) -> bool {
        let fits = lease != 0
            && lease < self.next
            && check(row.ttl_ms).is_ok()
            && (row.deadline == NEVER) == (row.state == LeaseState::Delegated);
        if fits {
            if row.deadline != NEVER {
                self.deadlines.insert((row.deadline, lease));
            }
            *self.stat.of(row.state) += 1;
            self.leases.insert(lease, row);
        }
        fits
    }
}

fn check(ttl_ms: u64) -> Result<u64, LeaseRefusal> {
    if (TTL_MS_MIN..=TTL_MS_MAX).contains(&ttl_ms) { Ok(ttl_ms) } else { Err(LeaseRefusal::Ttl(ttl_ms)) }
}
