//! The rows that the group stores, as readers see them (owner spec §5.1, §6.1).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::id::{Boot, Key, Owner};
use crate::message::{Message, QoS};
use crate::time::Millis;

/// ```text
/// (none) ──Connect──▶ Active ──Disconnect──▶ Offline ──Expire──▶ Ended
///                      ▲  │                    │  ▲                │
///                      │  └──End, expiry 0─────┼──┼───────────────▶│
///                      └────────Connect────────┘  └ (never back) ──┘── Connect: new generation ──▶ Active
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionState {
    Active,
    /// Resumable until `offline_expires_at`.
    Offline {
        offline_expires_at: Millis,
    },
    Ended {
        reason: EndReason,
    },
}

/// Why a lifetime ended; the first reason wins. Durable numbers, not wire codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum EndReason {
    Expired = 1,
    Quota = 2,
    Revoked = 3,
    CleanStart = 4,
    Explicit = 5,
    SourceLost = 6,
}

/// One session: its user, its owner, its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRow {
    /// Key, generations, node, boot and connection of the current or last owner.
    pub owner: Owner,
    /// Authenticated user, bound for the life of the row (P8); `None` is the anonymous principal.
    pub uid: Option<Arc<str>>,
    /// Identity of this lifetime inside its group, never reused; names its inbox in [`super::Target`].
    pub lifetime: u64,
    /// CAS version: exactly +1 with every lifecycle event. Leases, acknowledgements and subscriptions are outside it.
    pub revision: u64,
    pub state: SessionState,
    /// Negotiated Session Expiry Interval in seconds; 0 ends with the connection, `u32::MAX` never expires.
    pub expiry_sec: u32,
    /// Whether this lifetime has an inbox and stored subscriptions (its expiry was above 0 at some CONNECT).
    pub durable: bool,
    /// Generation of the referenced Will (Armed or Waiting), 0: none. It is the revision that installed it.
    pub will_generation: u64,
    pub updated_at: Millis,
    pub connected_at: Millis,
    /// Highest generation whose children were reclaimed.
    pub reclaimed_through: u64,
    /// Digest of the last lifecycle mutation: an exact retry is answered with `unchanged`.
    pub last_digest: [u8; 32],
}

/// Options of one stored subscription (MQTT 5 §3.8.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionOptions {
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// 0: none.
    pub identifier: u32,
}

/// ```text
/// Armed ─▶ Waiting ─▶ Ready ─▶ Executing ─▶ Published
///   │         │                    └──────▶ Rejected
///   └─────────┴─▶ Cancelled
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum WillStage {
    Armed = 1,
    Waiting = 2,
    Ready = 3,
    Executing = 4,
    Published = 5,
    Cancelled = 6,
    Rejected = 7,
}

/// One Will (owner spec §6.1). A row is removed when it reaches a terminal stage: its append stamp outlives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WillRow {
    pub key: Key,
    pub session_generation: u64,
    pub will_generation: u64,
    pub uid: Option<Arc<str>>,
    pub message: Message,
    /// Will Delay Interval in seconds.
    pub delay_sec: u32,
    /// Message Expiry Interval of the Will in seconds, counted from its publication.
    pub message_expiry_sec: Option<u32>,
    pub stage: WillStage,
    pub disconnected_at: Option<Millis>,
    pub due_at: Option<Millis>,
    /// Executor of an Executing Will and the end of its lease.
    pub executor: Option<(Boot, Millis)>,
    pub updated_at: Millis,
}

/// One boot of one node and its lease (DESIGN §4 "Boot lease", §7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRow {
    pub boot: Boot,
    pub revision: u64,
    pub lease_until: Millis,
    /// When it was retired by commit, and by which proof.
    pub retired: Option<(Millis, super::RetireProof)>,
}

/// Whom a denial is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Subject {
    /// Every session of this user, in every namespace. The row is in every group.
    User(Arc<str>),
    /// One ClientID of one namespace. The row is in the group of the key.
    Client(Key),
}

/// Who may not connect, until when, and why (an operator's decision).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenyRow {
    pub subject: Subject,
    pub since: Millis,
    /// [`Millis::NEVER`]: until it is allowed again.
    pub until: Millis,
    /// Words of the operator, at most [`crate::limits::DENY_REASON_BYTES_MAX`] bytes.
    pub reason: Arc<str>,
}

/// Counters of one inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InboxStat {
    /// First offset not acknowledged contiguously.
    pub base: u64,
    /// Next offset to be appended.
    pub end: u64,
    pub messages: u64,
    pub bytes: u64,
}

/// Routing key `mqtt-session-v1:` + hex SHA-256 (owner spec §5.1, vector main/client there).
#[must_use]
pub fn routing_key(key: &Key) -> String {
    use std::fmt::Write;
    let mut text = String::from(ROUTING_PREFIX);
    for byte in routing_digest(key) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Slot (0 to 255) of a session key: the first byte of its SHA-256.
#[must_use]
pub fn slot_of(key: &Key) -> u16 {
    u16::from(routing_digest(key)[0])
}

fn routing_digest(key: &Key) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(ROUTING_PREFIX.as_bytes());
    for part in [&key.namespace, &key.client_id] {
        // Identities have at most 1,024 bytes; a longer one would still route the same everywhere.
        hasher.update((part.len() as u16).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().into()
}

const ROUTING_PREFIX: &str = "mqtt-session-v1:";
