//! One group's state: rows in memory, message bodies in memory until they are on disk and over budget.
//!
//! This file holds the state and the dispatch of commands; each `apply_*` file holds one family of them. Every change of a
//! row goes through [`state`], [`will`] or [`retained`], which keep indexes, counters and the list of changed rows in step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use thiserror::Error;

pub use self::apply_rebind::Waiting;
use self::deadlines::Deadlines;
pub use self::inboxes::InboxRow;
use self::messages::Messages;
use self::rows::RowId;
use self::sessions::Sessions;
use self::stamps::Stamps;
use self::state::Lifetime;
pub use self::users::UserStat;
use self::users::Users;
use super::command::{Batch, Command, QuotaRule, WillKey};
use super::reply::{Conflict, Reply};
use super::row::{BootRow, DenyRow, InboxStat, SessionRow, Subject, WillRow, WillStage};
use crate::id::{Boot, Key};
use crate::message::{Message, QoS};
use crate::queue::Space;
use crate::time::Millis;

mod apply_append;
mod apply_boot;
mod apply_connect;
mod apply_deny;
mod apply_disconnect;
mod apply_queue;
mod apply_rebind;
mod apply_reclaim;
mod apply_subscribe;
mod check;
mod deadlines;
mod digest;
mod inbox;
mod inboxes;
mod load;
mod messages;
mod read;
mod retained;
mod rows;
mod sessions;
mod slots;
mod stamps;
mod state;
mod users;
mod will;

#[cfg(test)]
mod test;

/// State of one group.
///
/// Memory holds every row; message bodies may be on disk only. The fields below `// derived` follow from the others and
/// have no rows.
#[derive(Debug)]
pub struct Group {
    quota_messages: u64,
    quota_bytes: u64,
    quota_rule: QuotaRule,
    quota_retained: u64,
    /// Index of the last applied entry.
    applied: u64,
    /// Highest time seen in a batch: time never runs backwards inside a group.
    clock: Millis,
    /// Number of the next lifetime; never reused.
    next_lifetime: u64,
    /// Highest revision of any removed row: a new row starts above it, so that Will keys and digests never repeat.
    revision_floor: u64,
    boots: BTreeMap<Boot, BootState>,
    sessions: Sessions,
    wills: BTreeMap<WillKey, WillSlot>,
    lifetimes: HashMap<u64, Lifetime, FixedState>,
    messages: Messages,
    retained: BTreeMap<Arc<str>, u64>,
    stamps: Stamps,
    denied: BTreeMap<Subject, DenyRow>,
    /// Leases and channels of the queue layer.
    space: Space,
    // derived
    retained_expiry: BTreeSet<(Millis, Arc<str>)>,
    /// Inboxes of Offline sessions with messages that expire.
    expiring: BTreeSet<(Millis, u64)>,
    /// Lifetimes that did not end, with messages of shared subscriptions in their inboxes.
    sharing: BTreeSet<u64>,
    deadlines: Deadlines,
    users: Users,
    stat: GroupStat,
    namespaces: Vec<Arc<str>>,
    dirty: Dirty,
    events_ended: Vec<u64>,
    events_wills: Vec<(WillKey, WillStage)>,
    events_over_quota: Vec<u64>,
    events_subscribed: Vec<u64>,
}

/// A boot and how many rows name it as their last owner's.
#[derive(Debug)]
struct BootState {
    row: BootRow,
    sessions: u64,
}

#[derive(Debug)]
struct WillSlot {
    row: Box<WillRow>,
    /// The row is on disk.
    stored: bool,
}

/// What changed since the last drain.
#[derive(Debug, Default)]
struct Dirty {
    rows: HashSet<RowId, FixedState>,
    /// Lifetimes whose row or inbox changed.
    lifetimes: Vec<u64>,
    /// Lifetimes that were removed while on disk, with their stored chunks.
    dropped: Vec<(u64, std::ops::Range<u64>)>,
    meta: bool,
}

/// What one batch did, besides changing rows.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One reply a command.
    pub replies: Vec<Reply>,
    /// Every append, in order, for the shell that wakes attached consumers.
    pub appended: Vec<Appended>,
    /// Lifetimes that ended or were replaced, in order: nothing is routed to them any more.
    pub ended: Vec<u64>,
    /// Wills that changed their stage, in order.
    pub wills: Vec<(WillKey, WillStage)>,
    /// Lifetimes whose inbox had no room for a message under [`QuotaRule::End`].
    pub over_quota: Vec<u64>,
    /// Lifetimes whose stored subscriptions changed, in order.
    pub subscribed: Vec<u64>,
    /// Due times were added: the deadline worker should look again.
    pub deadlines_changed: bool,
    /// Members of channels that have something to look at, ascending.
    pub wakes: Vec<u64>,
    /// A lease ends earlier than any did, or a channel waits for its reclamation: the keeper of the queue layer looks again.
    pub leases_changed: bool,
}

/// A message that an ended lifetime leaves to the other members of a shared subscription.
#[derive(Debug, Clone)]
pub struct Inherited {
    pub offset: u64,
    pub identifiers: SmallVec<[u32; 1]>,
    /// `None`: on disk; fetch it by `message_id`.
    pub message: Option<Arc<Message>>,
    pub message_id: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    pub lifetime: u64,
    pub offset: u64,
}

/// One inbox entry as a consumer reads it.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub offset: u64,
    pub qos: QoS,
    pub retain: bool,
    /// PUBREC was received: only PUBREL is owed, `message` is not sent again.
    pub received: bool,
    /// It may have been written to a client before (DUP=1).
    pub maybe_sent: bool,
    pub identifiers: SmallVec<[u32; 1]>,
    /// `None`: on disk; fetch it by `message_id`.
    pub message: Option<Arc<Message>>,
    pub message_id: u64,
    /// Bytes of the message.
    pub len: u64,
}

/// A page of an inbox.
#[derive(Debug, Default)]
pub struct InboxRead {
    pub entries: Vec<Delivery>,
    /// Offset to go on from.
    pub next: u64,
    pub stat: InboxStat,
}

/// What is due at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// Propose `Reconcile`: a Waiting Will is due or an Offline session expired.
    Session { key: Key, revision: u64 },
    /// A Ready Will, or an Executing one whose lease ran out, waits for an executor.
    Will(WillKey),
    /// Ended lifetimes with children to remove, or a row whose binding retention passed.
    Reclaim { key: Key, revision: u64 },
}

/// Totals, O(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupStat {
    pub sessions_active: u64,
    pub sessions_offline: u64,
    pub sessions_ended: u64,
    pub subscriptions: u64,
    /// Lifetimes with an inbox, those that wait for their reclamation among them.
    pub inboxes: u64,
    pub inbox_messages: u64,
    pub inbox_bytes: u64,
    pub messages_stored: u64,
    /// Bytes of their bodies, in memory or not.
    pub messages_bytes: u64,
    pub messages_resident_bytes: u64,
    pub retained: u64,
    pub wills_armed: u64,
    pub wills_waiting: u64,
    pub wills_ready: u64,
}

impl std::ops::Add for GroupStat {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            sessions_active: self.sessions_active + other.sessions_active,
            sessions_offline: self.sessions_offline + other.sessions_offline,
            sessions_ended: self.sessions_ended + other.sessions_ended,
            subscriptions: self.subscriptions + other.subscriptions,
            inboxes: self.inboxes + other.inboxes,
            inbox_messages: self.inbox_messages + other.inbox_messages,
            inbox_bytes: self.inbox_bytes + other.inbox_bytes,
            messages_stored: self.messages_stored + other.messages_stored,
            messages_bytes: self.messages_bytes + other.messages_bytes,
            messages_resident_bytes: self.messages_resident_bytes + other.messages_resident_bytes,
            retained: self.retained + other.retained,
            wills_armed: self.wills_armed + other.wills_armed,
            wills_waiting: self.wills_waiting + other.wills_waiting,
            wills_ready: self.wills_ready + other.wills_ready,
        }
    }
}

impl std::iter::Sum for GroupStat {
    fn sum<I: Iterator<Item = Self>>(stats: I) -> Self {
        stats.fold(Self::default(), std::ops::Add::add)
    }
}

/// Takes a row: its key, and its value or `None`.
pub type RowVisitor<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;
/// Sees bodies of messages by their ids; `None`: the body is gone.
pub type BodyVisitor<'a> = dyn FnMut(u64, Option<&Arc<Message>>) + 'a;

/// Takes a retained message: its topic, the message unless it is only on disk, its id. False stops the visit.
pub type RetainedVisitor<'a> = dyn FnMut(&str, Option<&Arc<Message>>, u64) -> bool + 'a;

/// A stored row cannot be what we wrote.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RowError {
    #[error("row {key} cannot be decoded: {what}")]
    Corrupt { key: String, what: String },
    #[error("rows contradict each other: {0}")]
    Incoherent(String),
}

impl Group {
    /// An empty group with these inbox quotas per session (messages, bytes). Stored rows bring their own quotas along.
    #[must_use]
    pub fn new(quota_messages: u64, quota_bytes: u64) -> Self {
        Self {
            quota_messages,
            quota_bytes,
            quota_rule: QuotaRule::default(),
            quota_retained: u64::MAX,
            applied: 0,
            clock: Millis(0),
            next_lifetime: 1,
            revision_floor: 0,
            boots: BTreeMap::new(),
            sessions: Sessions::new(),
            wills: BTreeMap::new(),
            lifetimes: HashMap::with_hasher(FixedState::default()),
            messages: Messages::new(),
            retained: BTreeMap::new(),
            stamps: Stamps::new(),
            denied: BTreeMap::new(),
            space: Space::default(),
            retained_expiry: BTreeSet::new(),
            expiring: BTreeSet::new(),
            sharing: BTreeSet::new(),
            deadlines: Deadlines::default(),
            users: Users::default(),
            stat: GroupStat::default(),
            namespaces: Vec::new(),
            dirty: Dirty { meta: true, ..Dirty::default() },
            events_ended: Vec::new(),
            events_wills: Vec::new(),
            events_over_quota: Vec::new(),
            events_subscribed: Vec::new(),
        }
    }

    /// Applies one log entry and adds what it did to `outcome`. Pure: equal logs give equal rows. `serial`: the number of the batch within
    /// its boot; batches with a number are applied in its order or not at all. 0: it has none.
    ///
    /// # Panics
    /// When `index` does not grow, or when an invariant is broken: the state can then not be trusted.
    pub fn apply(&mut self, index: u64, serial: u64, batch: &Batch, outcome: &mut Outcome) {
        self.skip(index);
        self.clock = self.clock.max(batch.at);
        if self.is_late(&batch.boot, serial) {
            outcome.replies.extend(batch.commands.iter().map(|_| Reply::Conflict(Conflict::Late)));
            return;
        }
        let mut accepted = self.boot_is_live(&batch.boot);
        outcome.replies.reserve(batch.commands.len());
        for command in &batch.commands {
            let result = match command {
                Command::BootStart { lease_until } => {
                    let result = self.boot_start(&batch.boot, *lease_until);
                    accepted = self.boot_is_live(&batch.boot);
                    result
                }
                _ if !accepted => Err(Conflict::BootRetired),
                command => self.execute(command, &batch.boot, &mut outcome.appended),
            };
            outcome.replies.push(result.unwrap_or_else(Reply::Conflict));
        }
        self.pass_serial(&batch.boot, serial);
        outcome.ended.append(&mut self.events_ended);
        outcome.wills.append(&mut self.events_wills);
        outcome.over_quota.append(&mut self.events_over_quota);
        outcome.subscribed.append(&mut self.events_subscribed);
        outcome.deadlines_changed |= std::mem::take(&mut self.deadlines.changed);
        outcome.wakes.append(&mut self.space.take_wakes());
        outcome.leases_changed |= self.space.take_due_changed();
    }

    /// Notes a log entry without commands (a leader's blank, a membership change).
    ///
    /// # Panics
    /// When `index` does not grow.
    pub fn skip(&mut self, index: u64) {
        assert!(
            index > self.applied,
            "log entries are applied once and in order: {index} after {}",
            self.applied
        );
        self.applied = index;
        self.dirty.meta = true;
    }

    /// Forgets bodies that are on disk (drained before), oldest first, until at most `budget_bytes` are resident.
    pub fn evict(&mut self, budget_bytes: u64) {
        self.messages.evict(budget_bytes);
    }

    fn execute(
        &mut self,
        command: &Command,
        boot: &Boot,
        appended: &mut Vec<Appended>,
    ) -> Result<Reply, Conflict> {
        match command {
            Command::BootStart { lease_until } => self.boot_start(boot, *lease_until),
            Command::BootRenew { revision, lease_until } => self.boot_renew(boot, *revision, *lease_until),
            Command::BootRetire { boot: retired, proof, observed_at } => {
                self.boot_retire(boot, retired, None, (proof, *observed_at), digest::digest(command))
            }
            Command::BootRetireSilent { boot: retired, revision, proof, observed_at } => {
                let silent_since = Some(*revision);
                self.boot_retire(boot, retired, silent_since, (proof, *observed_at), digest::digest(command))
            }
            Command::Connect(connect) => self.connect(boot, connect, digest::digest(command)),
            Command::Disconnect(disconnect) => self.disconnect(disconnect, digest::digest(command)),
            Command::End(end) => self.end(end, digest::digest(command)),
            Command::Reconcile { key, revision } => self.reconcile(key, *revision, digest::digest(command)),
            Command::Subscribe { session, filters } => self.subscribe(*session, filters),
            Command::Unsubscribe { session, filters } => self.unsubscribe(*session, filters),
            Command::Append(append) => self.append(append, appended),
            Command::Ack { session, acks } => self.ack(*session, acks),
            Command::Receive { session, packet_id } => self.receive(*session, *packet_id),
            Command::Release { session, packet_id } => self.release(*session, *packet_id),
            Command::Retain { message, stamp } => self.retain(message, stamp.as_ref()),
            Command::WillClaim { will, lease_until } => self.will_claim(will, boot, *lease_until),
            Command::WillPublished { will } => self.will_finish(will, boot, WillStage::Published),
            Command::WillReject { will } => self.will_finish(will, boot, WillStage::Rejected),
            Command::Reclaim { key, revision, limit, binding_until } => {
                self.reclaim(key, *revision, *limit, *binding_until)
            }
            Command::ReleaseBinding { key } => self.release_binding(key),
            Command::Tidy => Ok(self.tidy()),
            Command::Sent { session, through } => self.sent(*session, *through),
            Command::Quotas { messages, bytes } => Ok(self.set_quotas(*messages, *bytes)),
            Command::QuotaRule(rule) => {
                let unchanged = std::mem::replace(&mut self.quota_rule, *rule) == *rule;
                Ok(Reply::Done { revision: 0, unchanged })
            }
            Command::RetainedQuota(retained) => {
                let unchanged = std::mem::replace(&mut self.quota_retained, *retained) == *retained;
                Ok(Reply::Done { revision: 0, unchanged })
            }
            Command::Feed(append) => self.feed(append, appended),
            Command::Deny(row) => self.deny(row),
            Command::Allow(subject) => Ok(self.allow(subject)),
            Command::Lease(command) => Ok(self.lease(command)),
            Command::Queue(command) => Ok(self.queue(command)),
            Command::Routed { session, packet_id, sequence } => self.routed(*session, *packet_id, *sequence),
            Command::Unbind { key, revision, limit } => self.unbind(key, *revision, *limit),
            Command::Rebound { lifetime, offsets } => self.rebound(*lifetime, offsets),
            Command::StampRetention { ms } => {
                let unchanged = self.stamps.retention_ms >= *ms;
                self.stamps.retention_ms = self.stamps.retention_ms.max(*ms);
                Ok(Reply::Done { revision: 0, unchanged })
            }
        }
    }

    fn set_quotas(&mut self, messages: u64, bytes: u64) -> Reply {
        let unchanged = (self.quota_messages, self.quota_bytes) == (messages, bytes);
        (self.quota_messages, self.quota_bytes) = (messages, bytes);
        Reply::Done { revision: 0, unchanged }
    }
}

/// Key of the Will that a row refers to.
fn will_key(row: &SessionRow) -> WillKey {
    WillKey {
        key: row.owner.key.clone(),
        session_generation: row.owner.session_generation,
        will_generation: row.will_generation,
    }
}

/// The answer of a command that is outside of any revision.
fn done() -> Reply {
    Reply::Done { revision: 0, unchanged: false }
}
