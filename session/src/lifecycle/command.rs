//! Commands: everything that may change a group. Their serialised form is an on-disk format (postcard): append new
//! variants at the end, never reorder.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::row::{DenyRow, EndReason, Subject, SubscriptionOptions};
use crate::id::{Boot, Key, Owner};
use crate::message::{Message, QoS};
use crate::time::Millis;

/// One log entry: commands that were proposed together. Each command is all-or-nothing by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Who proposes; commands of a retired boot are refused.
    pub boot: Boot,
    /// Hybrid logical time of the proposal.
    pub at: Millis,
    pub commands: Vec<Command>,
}

/// Exactly one lifetime under exactly one owner: the fence of everything that a connection changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionRef {
    pub lifetime: u64,
    pub owner_generation: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// A boot begins: from now on its commands are accepted.
    BootStart {
        lease_until: Millis,
    },
    /// The boot of this batch renews its lease; `revision` is the expected one.
    BootRenew {
        revision: u64,
        lease_until: Millis,
    },
    /// A boot is proved stopped: its Active sessions are disconnected (with Will) at
    /// `min(lease end, observed_at)`, its further commands are refused.
    BootRetire {
        boot: Boot,
        proof: RetireProof,
        observed_at: Millis,
    },
    Connect(Box<Connect>),
    Disconnect(Box<Disconnect>),
    End(Box<End>),
    /// A Waiting Will is due, or an Offline session expired (owner spec §7.5). A no-op when `at` of the batch is too early.
    Reconcile {
        key: Key,
        revision: u64,
    },
    /// SUBSCRIBE of a durable session; replaces options of filters that are there.
    Subscribe {
        session: SessionRef,
        filters: Vec<SubscriptionRow>,
    },
    Unsubscribe {
        session: SessionRef,
        filters: Vec<Arc<str>>,
    },
    /// One message, stored once, for many inboxes of this group.
    Append(Box<Append>),
    /// Acknowledgements of the consumer of an inbox, in the order received.
    Ack {
        session: SessionRef,
        acks: Vec<Ack>,
    },
    /// Inbound QoS 2: the packet id is received (before PUBREC); answered with whether its message was routed. Idempotent.
    Receive {
        session: SessionRef,
        packet_id: u16,
    },
    /// Inbound QoS 2: PUBREL; the id is free again. Idempotent.
    Release {
        session: SessionRef,
        packet_id: u16,
    },
    /// Store or, with an empty payload, remove the retained message of its topic. With a stamp, once: a repetition does not
    /// replace a newer value.
    Retain {
        message: Message,
        stamp: Option<Stamp>,
    },
    /// Claim a Ready Will (or one whose executor's lease ran out) for the boot of this batch.
    WillClaim {
        will: WillKey,
        lease_until: Millis,
    },
    /// All durable effects of an Executing Will of this boot are committed.
    WillPublished {
        will: WillKey,
    },
    /// The Will may not be published (permission gone, topic refused).
    WillReject {
        will: WillKey,
    },
    /// Remove up to `limit` children of ended lifetimes of `key`, then, when none is left and `binding_until` passed, the row.
    Reclaim {
        key: Key,
        revision: u64,
        limit: u32,
        binding_until: Millis,
    },
    /// Drop the binding of an ended, reclaimed key to its user (`session end --release`).
    ReleaseBinding {
        key: Key,
    },
    /// Housekeeping: drop expired messages, outdated stamps; bounded work.
    Tidy,
    /// The consumer wrote everything below `through` to its client, exactly. Proposed ahead of the Connect of a takeover, so that only
    /// what was written is resent with DUP=1; without it, the whole inbox is taken for written.
    Sent {
        session: SessionRef,
        through: u64,
    },
    /// New inbox quotas per session; proposed when the configured ones differ from the stored ones.
    Quotas {
        messages: u64,
        bytes: u64,
    },
    /// What gives way when an inbox is full; proposed when the configured rule differs from the stored one.
    QuotaRule(QuotaRule),
    /// A retained message for the one inbox of a new subscription; answered with its offset, so that the consumer can pass over it
    /// when a newer value came meanwhile.
    Feed(Box<Append>),
    /// How many retained messages this group holds at most; one that replaces another always fits. Idempotent.
    RetainedQuota(u64),
    /// `row.subject` may not connect until `row.until`; replaces an earlier decision about it. Commits before the End of what lives, so
    /// that nobody slips back in between.
    Deny(Box<DenyRow>),
    /// The subject may connect again. Idempotent.
    Allow(Subject),
    /// `BootRetire` of a boot that has not renewed its lease since `revision`, else Fenced: it lives. Where nothing but its silence says
    /// that it stopped, one group is asked so first; a boot renews in all groups or in none.
    BootRetireSilent {
        boot: Boot,
        revision: u64,
        proof: RetireProof,
        observed_at: Millis,
    },
    /// Leases of the queue layer.
    Lease(crate::lease::LeaseCommand),
    /// Channels of the queue layer.
    Queue(crate::queue::QueueCommand),
    /// Inbound QoS 2: the message that was received under `sequence` was handed to connections; a repetition goes to inboxes only, which
    /// know its stamp. Idempotent; says nothing of a later use of the id.
    Routed {
        session: SessionRef,
        packet_id: u16,
        sequence: u64,
    },
    /// How long the stamps of a publisher that is silent are kept, at least: longer than a received id can be repeated. Never shortened.
    StampRetention {
        ms: u64,
    },
    /// An Offline session at this revision gives up to `limit` messages of its shared subscriptions up to other members: it does not get
    /// them any more. They stay in its inbox until `Rebound`.
    Unbind {
        key: Key,
        revision: u64,
        limit: u32,
    },
    /// Other members have what this lifetime gave up. Idempotent.
    Rebound {
        lifetime: u64,
        offsets: Vec<u64>,
    },
}

/// What gives way when an inbox has no room for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum QuotaRule {
    /// The new message.
    #[default]
    DropNew,
    /// The oldest messages, until the new one fits. A QoS 2 message that its client may know of is kept: its packet id must not come
    /// back for another message ([MQTT-4.3.3-10]). When nothing may give way, the new message does.
    DropOld,
    /// The new message; the session is reported, for its End.
    End,
}

/// CONNECT after isolation of the previous owner (owner spec §7.1 step 10, §5.4 event 2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Connect {
    /// The proposed new owner; `session_generation` and `owner_generation` must come out as `apply` computes them.
    pub owner: Owner,
    pub uid: Option<Arc<str>>,
    /// Revision and owner of the row that was read; `None` when there was no row.
    pub previous: Option<(u64, Owner)>,
    pub clean_start: bool,
    pub expiry_sec: u32,
    pub will: Option<WillTemplate>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WillTemplate {
    pub message: Message,
    pub delay_sec: u32,
    pub message_expiry_sec: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DisconnectKind {
    /// DISCONNECT 0x00: the Will is cancelled.
    Normal,
    /// Everything else: the Will becomes Waiting or Ready.
    WithWill,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Disconnect {
    pub owner: Owner,
    pub kind: DisconnectKind,
    /// When the connection was seen to end, captured before slow work.
    pub observed_at: Millis,
    /// Session Expiry Interval of DISCONNECT; may not raise 0.
    pub expiry_sec: Option<u32>,
    /// Offsets below this were written to the client: a resend of them carries DUP=1.
    pub sent_through: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WillMode {
    Publish,
    /// An operator said that the Will of a revoked client must not appear.
    Suppress,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub owner: Owner,
    /// Revision that was read after isolation.
    pub revision: u64,
    pub reason: EndReason,
    pub observed_at: Millis,
    pub will: WillMode,
    pub sent_through: u64,
}

/// Proof by which a boot was retired (DESIGN §7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RetireProof {
    GracefulReceipt,
    CrashReceipt,
    /// An operator's word, at most `limits::RETIRE_TEXT_BYTES_MAX` bytes.
    Attested {
        text: Arc<str>,
    },
    /// A fence agent succeeded; what it said, as bounded.
    FenceAgent {
        text: Arc<str>,
    },
    /// Its lease and the drift allowed passed, and it stops by itself at the lease end: only where `isolation.mode = "lease"`.
    Lease,
}

impl RetireProof {
    /// The word for it in the admin API.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::GracefulReceipt => "graceful_receipt",
            Self::CrashReceipt => "crash_receipt",
            Self::Attested { .. } => "attested",
            Self::FenceAgent { .. } => "fence_agent",
            Self::Lease => "lease",
        }
    }

    /// What the operator or the agent said.
    #[must_use]
    pub fn text(&self) -> Option<&Arc<str>> {
        match self {
            Self::Attested { text } | Self::FenceAgent { text } => Some(text),
            Self::GracefulReceipt | Self::CrashReceipt | Self::Lease => None,
        }
    }
}

impl std::fmt::Display for RetireProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionRow {
    /// Filter as the client wrote it, `$share/` included.
    pub filter: Arc<str>,
    pub options: SubscriptionOptions,
}

/// De-duplication stamp of an append or of a retained value (DESIGN §2 step 5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stamp {
    /// QoS 2 of a durable publisher: its lifetime (unique with its slot), packet id and the use count of that id.
    Publisher { key: Key, lifetime: u64, packet_id: u16, sequence: u64 },
    /// A Will: fires once.
    Will(WillKey),
}

/// One message for some inboxes of this group. Unknown or ended lifetimes are skipped and counted in the reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Append {
    pub message: Message,
    pub stamp: Option<Stamp>,
    pub targets: Vec<Target>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub lifetime: u64,
    /// QoS of the delivery: min(published, granted).
    pub qos: QoS,
    /// RETAIN flag of the delivery (retain as published, or a retained message sent at SUBSCRIBE).
    pub retain: bool,
    pub identifiers: smallvec::SmallVec<[u32; 1]>,
    /// It came through a shared subscription: another member gets it when this lifetime ends before it was sent, or, with QoS 1,
    /// acknowledged (MQTT 5 §4.8.2).
    pub shared: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AckKind {
    /// PUBACK, PUBCOMP, PUBREC ≥ 0x80, expired or too large for the client: the entry is settled.
    Settled,
    /// PUBREC: PUBREL is owed from now on.
    Received,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    pub offset: u64,
    pub kind: AckKind,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WillKey {
    pub key: Key,
    pub session_generation: u64,
    pub will_generation: u64,
}
