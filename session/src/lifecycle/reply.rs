//! What `apply` answers, one reply a command.

use serde::{Deserialize, Serialize};

use super::row::SessionRow;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Applied (or an exact retry of what was applied last: `unchanged`). `revision` is that of the row, 0 for commands that
    /// are outside of any revision (Ack, Retain, Wills, quotas).
    Done {
        revision: u64,
        unchanged: bool,
    },
    /// CONNECT, Disconnect and End answer with the row as it stands now.
    Row {
        row: Box<SessionRow>,
        unchanged: bool,
        session_present: bool,
    },
    /// Append: inboxes that took it, messages (this one or older ones) dropped by quota, unknown inboxes. `duplicate`: the stamp was seen, nothing was appended.
    Appended {
        accepted: u32,
        over_quota: u32,
        missing: u32,
        duplicate: bool,
    },
    /// Feed: where the inbox has it; `None`: it was dropped by quota, or there is no such inbox.
    Fed {
        offset: Option<u64>,
        over_quota: u32,
    },
    /// SUBSCRIBE: per filter, whether it is new (Retain Handling 1).
    Subscribed {
        new: Vec<bool>,
    },
    /// UNSUBSCRIBE: per filter, whether it existed.
    Unsubscribed {
        existed: Vec<bool>,
    },
    /// Receive: whether the message of this id was handed to connections already (a retry).
    Received {
        routed: bool,
        sequence: u64,
    },
    /// Release: whether the id was known (else 0x92).
    Released {
        known: bool,
    },
    /// Reclaim: children removed, and whether nothing is left.
    Reclaimed {
        removed: u32,
        done: bool,
    },
    /// Refused; nothing changed.
    Conflict(Conflict),
    Lease(crate::lease::LeaseReply),
    Queue(crate::queue::QueueReply),
}

/// Why a command changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Conflict {
    #[error("the proposing boot is unknown or retired")]
    BootRetired,
    #[error("the row, its revision or its owner changed")]
    Fenced,
    #[error("no such row")]
    Missing,
    #[error("the ClientID is bound to another user")]
    Binding,
    #[error("the transition is not allowed from this state")]
    Illegal,
    #[error("too early")]
    NotDue,
    #[error("a counter is exhausted")]
    Exhausted,
    #[error("a quota is reached")]
    Quota,
    #[error("an operator denied the user or the ClientID")]
    Denied,
}
