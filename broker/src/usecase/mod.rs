//! The use cases: connect, disconnect, end, deadlines, Wills, reclamation (owner spec §7 to §9). They decide about ownership and
//! durability; they know nothing of packets.

pub mod authority;
pub mod connect;
pub mod deadlines;
pub mod disconnect;
pub mod end;
pub mod fence;
pub mod heritage;
pub mod hold;
pub mod isolation;
pub mod lease;
pub mod lease_watch;
pub mod queue;
pub mod quota;
pub mod rebind;
pub mod reclaim;
pub mod retire;
pub mod will;

use std::sync::Arc;

use gateway::link::LinkId;
use session::id::{Key, Owner};
use session::lifecycle::{EndReason, SessionRow, WillMode, WillTemplate};
use session::owner::Entry;
use session::time::{Millis, Tick};

use crate::clock::NodeClock;

/// An authenticated CONNECT.
#[derive(Debug, Clone)]
pub struct ConnectInput {
    pub key: Key,
    /// `None`: anonymous.
    pub uid: Option<Arc<str>>,
    pub clean_start: bool,
    /// Already capped by the configuration.
    pub expiry_sec: u32,
    pub will: Option<WillTemplate>,
    pub link: LinkId,
    /// When CONNECT must have been answered.
    pub deadline: Tick,
}

/// A committed and activated owner.
#[derive(Debug)]
pub struct Connected {
    pub entry: Arc<Entry>,
    pub row: SessionRow,
    pub session_present: bool,
    /// Keep it as long as the socket lives and end it with [`disconnect::OwnerGuard::closed`]; dropping it is an abnormal end.
    pub guard: disconnect::OwnerGuard,
}

/// Why CONNECT is refused (owner spec §7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("the ClientID belongs to another user")]
    Binding,
    #[error("an operator denied this user or ClientID")]
    Denied,
    #[error("the permission was withdrawn meanwhile")]
    NotAuthorized,
    #[error("the session changed hands meanwhile")]
    Conflict,
    #[error("the node is at its connection limit")]
    Limit,
    #[error("isolation of the previous owner is not proved")]
    Unproved,
    #[error("the store is not available")]
    Unavailable,
    #[error("not answered in time")]
    Deadline,
    #[error("the node is shutting down")]
    Stopped,
}

/// What ended a connection, as the disconnect use case records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisconnectInput {
    pub normal: bool,
    pub expiry_sec: Option<u32>,
    /// When it was seen, before slow work. Whether it was in time is judged on this monotonic reading alone.
    pub observed: Tick,
    /// The same, as it is recorded.
    pub observed_at: Millis,
    /// Inbox offsets below this were written to the client.
    pub sent_through: u64,
}

impl DisconnectInput {
    /// An end that is seen now and about which the client said nothing more.
    #[must_use]
    pub fn seen_now(clock: &NodeClock, normal: bool) -> Self {
        let (observed, observed_at) = (clock.tick(), clock.millis());
        Self { normal, expiry_sec: None, observed, observed_at, sent_through: 0 }
    }
}

/// An operator's decision (owner spec §8).
#[derive(Debug, Clone)]
pub struct EndInput {
    pub owner: Owner,
    pub reason: EndReason,
    pub will: WillMode,
    pub release: bool,
}
