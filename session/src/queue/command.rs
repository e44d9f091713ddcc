//! What is asked of a space and what it answers. Serialised in the Raft log and between processes (postcard): append new variants and
//! fields at the end.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::message::Message;

/// Everything that may change a channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum QueueCommand {
    /// Makes the channel if the name is free, and joins it: one step, so that no half-made channel is ever seen.
    Bind(Box<Bind>),
    /// A member goes. `delivered`: per channel, records below the offset were handed to the application; others are as good as new.
    Leave { member: u64, delivered: Vec<(u64, u64)> },
    /// Records of one producer, all or none. `sequence` is 1 for its first append and grows by one; a repetition appends nothing.
    Append { member: u64, sequence: u64, messages: Vec<Message> },
    /// The producer no longer waits for room.
    Withdraw { member: u64 },
    /// Settles every record below `through` and those of `sparse`. Repeating it changes nothing.
    Ack { member: u64, channel: u64, epoch: u64, through: u64, sparse: Vec<u64> },
    /// A group member takes up to `max` records, as its credit allows.
    Claim { member: u64, max: u32 },
    /// A group member settles claimed records. Repeating it changes nothing.
    Settle { member: u64, settles: Vec<(u64, Settle)> },
    /// Nothing is appended any more; what is there can be read. The first reason stays.
    Seal { channel: u64, reason: SealReason },
    /// Seals the channel, frees its name, drops its members; its records wait for `Reclaim`.
    Delete { channel: u64 },
    /// Frees up to `limit` records of a channel whose leases are gone; the channel itself with the last one.
    Reclaim { channel: u64, limit: u32 },
    /// Another backend's lease is gone for certain: its members are.
    LeaseGone { lease: Hold },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    pub target: Target,
    pub role: Role,
    /// The lease of this membership: when it ends, the member is gone.
    pub lease: Hold,
    /// Drawn by the caller: repeating a Bind with the same lease and nonce finds the member it made.
    pub nonce: u64,
    /// 1 to 10,000: share of a producer under contention, share of a consumer in the rotation.
    pub weight: u32,
    /// Shown to operators.
    pub label: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    Named { name: Arc<str>, kind: Kind, spec: Spec },
    Channel(u64),
}

/// Which lease a membership hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Hold {
    /// One of the table of this space.
    Own(u64),
    /// One of another backend, named with its incarnation.
    Foreign { incarnation: u64, lease: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Many producers, one consumer.
    Mpsc,
    /// Many producers, many consumers, each record on the sub-channel of one of them.
    Mpmc,
    /// Many producers, many consumers, each record claimed by one of them when it has credit.
    Group,
}

/// What everybody who binds must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Records that are not settled, at most; for MPMC per sub-channel. At least 1.
    pub messages_max: u64,
    /// Their bytes, at most. At least 1.
    pub bytes_max: u64,
    /// How long the channel outlives its last member, in milliseconds (1 s to 10 years).
    pub ttl_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    Producer,
    /// `credit`: claimed records that are not settled, at most (groups only). At least 1.
    Consumer {
        credit: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Settle {
    /// Done.
    Ack,
    /// Not done: for another member, in its old place.
    Release,
    /// For nobody.
    Discard,
}

/// Why nothing is appended any more. Durable numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum SealReason {
    #[error("no member was left for the channel's whole TTL")]
    Expired,
    #[error("it was deleted")]
    Deleted,
    #[error("it was closed by one of its users")]
    Closed,
    #[error("the session that it belonged to ended")]
    SessionEnded,
}

/// One reply a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueReply {
    Bound(Bound),
    /// Where the first record is. `duplicate`: it was there already.
    Appended {
        channel: u64,
        first: u64,
        duplicate: bool,
    },
    /// Records that were settled by this command.
    Settled {
        records: u64,
    },
    /// Offsets that the member now has, ascending.
    Claimed {
        offsets: Vec<u64>,
    },
    /// The first reason.
    Sealed {
        reason: SealReason,
    },
    /// What was freed; whether nothing is left.
    Reclaimed {
        records: u64,
        bytes: u64,
        done: bool,
    },
    /// Done, or done before.
    Done,
    Refused(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub channel: u64,
    pub member: u64,
    pub kind: Kind,
    pub spec: Spec,
    /// The channel is new.
    pub created: bool,
}

/// What does not fit an existing channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mismatch {
    Kind,
    MessagesMax,
    BytesMax,
    TtlMs,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kind => "kind",
            Self::MessagesMax => "capacity in messages",
            Self::BytesMax => "capacity in bytes",
            Self::TtlMs => "TTL",
        })
    }
}

/// Why a command changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum Refusal {
    #[error("there is no such channel; it may have expired")]
    Missing,
    #[error(
        "the member is gone or does not own that any more: its lease ended, it left, or another one took over"
    )]
    Fenced,
    #[error("the channel is sealed: {0}")]
    Sealed(SealReason),
    /// Room is made by acknowledgements; the producer is woken then.
    #[error("the channel is full")]
    Full,
    #[error("the records are larger than the whole channel may be, or than 256 MiB")]
    TooLarge,
    #[error("{0} at once are too many")]
    TooMany(u64),
    #[error("appends come in order: {expected} is next")]
    OutOfOrder { expected: u64 },
    #[error("the channel exists with another {0}; use the same configuration everywhere")]
    Mismatch(Mismatch),
    #[error("the channel has a consumer already (member {member})")]
    Occupied { member: u64 },
    #[error("the lease is gone: it expired or was revoked")]
    LeaseLost,
    #[error("that is not for this role")]
    WrongRole,
    #[error("that is not for this kind of channel")]
    WrongKind,
    #[error("the capacity, TTL, weight, credit, name or label is outside of its range")]
    Invalid,
    #[error("an offset was never appended")]
    NoSuchRecord,
    #[error("too early: its leases still run")]
    NotDue,
    #[error("a counter is exhausted")]
    Exhausted,
}
