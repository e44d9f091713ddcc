//! The lease table: who still shows signs of life, decided without any clock of the wall (DESIGN §9; lease spec §4, R-04..R-07).
//!
//! **Lease time** is milliseconds of life of the table, not of the world. It advances only by [`LeaseCommand::Beat`], whose proposer
//! measured the span on its monotonic clock. So a step of the wall clock expires nothing, and a store that was down goes on with
//! the remaining times it had. Lease time is never ahead of what passed, hence no lease ends early; it may end late by what passed
//! without a beat.

mod table;

#[cfg(test)]
mod table_test;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use table::{Ended, LeaseStat, LeaseTable};
pub(crate) use table::{LeaseMeta, LeaseRow};

/// Shortest TTL in milliseconds: below it three keepalives do not fit beside a slow fsync.
pub const TTL_MS_MIN: u64 = 1_000;
/// Longest TTL in milliseconds, ten years: longer ones are configuration mistakes.
pub const TTL_MS_MAX: u64 = 10 * 365 * 24 * 3_600 * 1_000;
/// Leases that one keepalive or expiry names at most.
pub const LEASES_AT_ONCE: usize = 4_096;
/// What a lease lives beyond its TTL, in milliseconds: two proposers that beat at the same moment may disagree by their latency, and
/// the table then takes the earlier reading.
pub const GRACE_MS: u64 = 1_000;

/// Everything that may change a lease table. An on-disk format: append variants at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseCommand {
    /// Lease time goes from `from` to `to`; a no-op unless it stands at `from`, so that no span is counted twice.
    Beat { from: u64, to: u64 },
    /// A new lease that runs from now on.
    Grant { ttl_ms: u64 },
    /// Each lease starts its TTL anew; one that is gone stays gone.
    Keepalive { leases: Vec<u64> },
    /// Another TTL from now on; the lease starts anew.
    SetTtl { lease: u64, ttl_ms: u64 },
    /// The lease runs down from now on: nobody contributes any more. A keepalive holds it again.
    Arm { lease: u64, ttl_ms: u64 },
    /// Ends a lease now. What it protected is treated as if it had expired.
    Revoke { lease: u64 },
    /// Ends up to `limit` leases whose time has come.
    Expire { limit: u32 },
}

/// One reply a command, with lease time as it stands now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReply {
    pub clock: u64,
    pub outcome: Result<LeaseOutcome, LeaseRefusal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseOutcome {
    Done,
    Granted {
        lease: u64,
    },
    /// Remaining milliseconds in the order asked for; `None`: gone.
    Kept {
        left_ms: Vec<Option<u64>>,
    },
    /// How many ended; whether more are due.
    Expired {
        ended: u32,
        more: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum LeaseRefusal {
    #[error("the lease is gone: it expired or was revoked")]
    Gone,
    #[error("a TTL of {0} ms is not allowed: it must be 1 s to 10 years")]
    Ttl(u64),
    #[error("{0} leases at once are too many: at most 4,096")]
    TooMany(u64),
    #[error("the lease belongs to a channel: its members keep it")]
    NotYours,
}

/// ```text
///            grant           arm               deadline
///   (none) ─────────▶ Held ───────▶ Armed ─────────────────▶ (gone)
///                     │ ▲ ▲ keepalive │                         ▲
///                     │ │ └───────────┘                         │
///              hold   ▼ │ keepalive      deadline, revoke       │
///                  Delegated   ·····································
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseState {
    /// Somebody contributes keepalive; it ends one TTL after the last one.
    Held,
    /// Nobody contributes; it runs down.
    Armed,
    /// Something else that is alive holds it: no deadline at all.
    Delegated,
}

/// What a lease protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protects {
    /// Whatever refers to it: roles, sessions, anything outside.
    Members,
    /// The metadata of a channel.
    Channel(u64),
    /// The records of a channel.
    Payload(u64),
}
