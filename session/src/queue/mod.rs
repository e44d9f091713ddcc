//! Channels: lease-backed MPSC, MPMC and late-binding group queues, as one pure state machine (DESIGN §9; lease spec §5, §6, §15).
//!
//! [`Space`] holds the leases and the channels of one group, so that the end of a lease and what follows from it are one step. It reads
//! no clock, draws no random number, and touches message bodies only through [`Bodies`]: equal commands give byte-equal rows.
//!
//! ```text
//!  Bind ─▶ channel (meta, leases, log) ◀─ Append (stamp, admission)      MPSC   one log, one consumer with an epoch
//!            │ members keep it alive         │                           MPMC   sub-channels, each owned by one consumer
//!            ▼                               ▼                           GROUP  one log, records claimed by members
//!  last one gone: leases run down     Ack / Settle free the records
//!            ▼
//!  channel lease ends: sealed, name free ─▶ payload lease ends: reclaimed page by page ─▶ nothing left but counters
//! ```

mod bind;
mod body;
mod channel;
mod command;
mod consume;
mod lapse;
mod load;
mod produce;
mod read;
mod record;
mod rows;
mod share;
mod space;

#[cfg(test)]
mod test;

pub use body::{Bodies, PlainBodies};
pub use command::{
    Bind, Bound, Hold, Kind, Mismatch, QueueCommand, QueueReply, Refusal, Role, SealReason, Settle, Spec,
    Target,
};
pub use read::{ChannelStat, MemberStat, Owned, Page, Record, SpaceStat};
pub use space::Space;

/// First byte of the key of every row of a space.
pub const ROW: u8 = 0;

/// Bytes of a unique name.
pub const NAME_BYTES_MAX: usize = 1_024;
/// Bytes of the label that a member shows to operators.
pub const LABEL_BYTES_MAX: usize = 256;
/// Members of one channel.
pub const MEMBERS_MAX: usize = 4_096;
/// Records of one append, one acknowledgement list, one claim.
pub const RECORDS_AT_ONCE: usize = 1_024;
/// Bytes of one record: its length shares a word with four flags.
pub const RECORD_BYTES_MAX: usize = (1 << 28) - 1;
/// Appends of a producer whose stamps are remembered: it may have that many under way.
pub const STAMPS_KEPT: usize = 64;
/// Largest weight of a member.
pub const WEIGHT_MAX: u32 = 10_000;
/// What the records outlive their channel by, in milliseconds: bytes never go before the metadata that names them (lease spec 15.4).
pub const PAYLOAD_GRACE_MS: u64 = 60_000;
