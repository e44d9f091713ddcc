//! The replicated lifecycle: rows of sessions, Wills, boots, inboxes and retained messages of one group, and the pure
//! `apply` that changes them (owner spec §5, §6; DESIGN §5, §9).
//!
//! `apply(index, batch)` reads no clock and draws no random number: equal logs give byte-equal rows.

mod command;
mod group;
mod reply;
mod row;

pub use command::{
    Ack, AckKind, Append, Batch, Command, Connect, Disconnect, DisconnectKind, End, QuotaRule, RetireProof,
    SessionRef, Stamp, SubscriptionRow, Target, WillKey, WillMode, WillTemplate,
};
pub use group::{
    Appended, BodyVisitor, Delivery, Due, Group, GroupStat, InboxRead, InboxRow, Inherited, Outcome,
    RetainedVisitor, RowError, RowVisitor, UserStat, Waiting,
};
pub use reply::{Conflict, Reply};
pub use row::{
    BootRow, DenyRow, EndReason, InboxStat, SessionRow, SessionState, Subject, SubscriptionOptions, WillRow,
    WillStage, routing_key, slot_of,
};
