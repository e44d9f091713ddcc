//! Lease-backed queues for programs: MPSC, MPMC and late-binding group channels with producers, consumers and leases (DESIGN §9).
//!
//! ```text
//!  new_or_bind_with_unique_key ─▶ Producer::put_data            Consumer::get_data, ack
//!                                      │                             │
//!  QueueStore (one lease a group, children, keeper) ─ LeaseManager ─ LeaseBackend (table of the store, or etcd)
//!                                      │
//!  ChannelStore: Store (write-ahead log, Raft groups), MemoryStore, or another process that has one
//! ```
//!
//! A consumer commits by [`Consumer::ack`], not by reading. What was read and not acknowledged comes again after a crash.

mod api;
mod children;
mod consumer;
mod embedded;
mod error;
mod keeper;
mod latency;
mod memory;
mod producer;
mod store;
mod wake;

use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use session::lease::{LeaseCommand, LeaseReply};
use session::message::Message;
use session::queue::{Hold, Owned, QueueCommand, QueueReply, Refusal, SealReason};
use session::time::Millis;

use crate::lease::LeaseFuture;

pub use api::{ChanRole, ChanType, ChannelConfig, Endpoint, new_or_bind_with_unique_key};
pub use consumer::{Consumer, ConsumerStat, Item, RecordId};
pub use embedded::EmbeddedStore;
pub use error::QueueError;
pub use latency::{Stage, StageDurations};
pub use memory::MemoryStore;
pub use producer::{Producer, Record};
pub use store::{QueueOptions, QueueStore};
pub(crate) use wake::Wakes;

/// Bytes of records in one answer, about; one larger record comes alone.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// What the queue layer asks of whoever has the channels. Serialised (postcard) between processes: append variants at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// In order, in one group. Whoever has the store lets lease time pass first (`Beat`): only it knows how much did.
    Leases(Vec<LeaseCommand>),
    /// Remaining time of each, without changing anything.
    LeasesLeft(Vec<u64>),
    Queue(QueueCommand),
    /// Logs that a consumer owns.
    Owned {
        member: u64,
    },
    /// Records of an owned log: (member, channel, epoch).
    Read {
        at: (u64, u64, u64),
        from: u64,
        max: u32,
    },
    /// Records that a group member has claimed.
    Claimed {
        member: u64,
        from: u64,
        max: u32,
    },
    /// Answered when the member has something to look at.
    Wait {
        member: u64,
    },
    /// Appends that a producer has done.
    Appends {
        member: u64,
    },
    /// What has to be done when, for the keeper.
    Due,
    /// Answered when that changed.
    DueChanged,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Response {
    Leases(Vec<LeaseReply>),
    LeasesLeft(Vec<Option<u64>>),
    Queue(QueueReply),
    Owned(Result<Vec<Owned>, Refusal>),
    Page(Result<LogPage, Refusal>),
    Woken,
    Appends(Option<u64>),
    Due(Due),
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LogPage {
    pub records: Vec<LogRecord>,
    /// Offset to go on from.
    pub next: u64,
    pub sealed: Option<SealReason>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogRecord {
    pub offset: u64,
    pub redelivered: bool,
    /// `None`: its body is lost (damage); it is skipped and counted, never a dead end (R-09).
    pub message: Option<Arc<Message>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Due {
    /// Whether this process is the one that does it.
    pub ours: bool,
    /// Lease time at the last beat, and now.
    pub clock: u64,
    pub now: u64,
    pub next_deadline: Option<u64>,
    pub reclaimable: Vec<u64>,
    /// Leases of other backends that members hang on.
    pub foreign: Vec<Hold>,
}

/// Nothing is known of the fate of what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store did not answer: {0}")]
pub struct Unavailable(pub String);

/// Whoever has the channels: durable records, exact commands, wake-ups (the `QueueLog` of lease spec 15.5).
pub trait ChannelStore: Send + Sync + Debug {
    /// For messages and metrics.
    fn name(&self) -> &str;
    /// Groups, at least 1; a channel lives in one.
    fn groups(&self) -> u16;
    /// Of this store's leases: another store never has the same (R-07).
    fn incarnation(&self) -> u64;
    /// For the expiry of records.
    fn now(&self) -> Millis;
    /// An answer means that a change is durable.
    fn call(&self, group: u16, request: Request) -> LeaseFuture<'_, Result<Response, Unavailable>>;
}
