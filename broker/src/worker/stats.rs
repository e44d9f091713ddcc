//! Counters of one worker. Only its own thread writes them, so counting is a load and a store; anybody may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a delivery was dropped (P9: drops are counted by reason).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drop {
    /// The outbox of the subscriber is full: it reads too slowly.
    OutboxFull,
    /// Message Expiry Interval passed ([MQTT-3.3.2-5]).
    Expired,
    /// Larger than the client's Maximum Packet Size ([MQTT-3.1.2-25]).
    TooLarge,
    /// The inbox of a session is at its quota.
    InboxQuota,
    /// Too much is on its way to another worker.
    WorkerBusy,
    /// The publisher may not publish to the topic.
    NotAuthorized,
    /// The node's limit of retained messages.
    RetainedQuota,
}

impl Drop {
    /// Every reason, in the order of [`StatsView::dropped`].
    pub const ALL: [Self; 7] = [
        Self::OutboxFull,
        Self::Expired,
        Self::TooLarge,
        Self::InboxQuota,
        Self::WorkerBusy,
        Self::NotAuthorized,
        Self::RetainedQuota,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutboxFull => "outbox_full",
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
            Self::InboxQuota => "inbox_quota",
            Self::WorkerBusy => "worker_busy",
            Self::NotAuthorized => "not_authorized",
            Self::RetainedQuota => "retained_quota",
        }
    }
}

/// Counters of one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerStats {
    received: [AtomicU64; 3],
    received_bytes: AtomicU64,
    sent: [AtomicU64; 3],
    sent_bytes: AtomicU64,
    dropped: [AtomicU64; Drop::ALL.len()],
}

/// The counters of one or more workers at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatsView {
    /// PUBLISH packets received, by QoS.
    pub received: [u64; 3],
    /// Payload bytes in them.
    pub received_bytes: u64,
    /// Deliveries handed to connections, by QoS.
    pub sent: [u64; 3],
    /// Payload bytes in them.
    pub sent_bytes: u64,
    /// Deliveries dropped, in the order of [`Drop::ALL`].
    pub dropped: [u64; Drop::ALL.len()],
}

impl WorkerStats {
    pub(super) fn received(&self, qos: session::message::QoS, payload: usize) {
        add(&self.received[qos as usize], 1);
        add(&self.received_bytes, payload as u64);
    }

    pub(super) fn sent(&self, qos: session::message::QoS, payload: usize) {
        add(&self.sent[qos as usize], 1);
        add(&self.sent_bytes, payload as u64);
    }

    pub(super) fn dropped(&self, why: Drop, count: u64) {
        add(&self.dropped[why as usize], count);
    }

    /// What they stand at.
    #[must_use]
    pub fn view(&self) -> StatsView {
        StatsView {
            received: std::array::from_fn(|qos| self.received[qos].load(Ordering::Relaxed)),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent: std::array::from_fn(|qos| self.sent[qos].load(Ordering::Relaxed)),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            dropped: std::array::from_fn(|why| self.dropped[why].load(Ordering::Relaxed)),
        }
    }
}

impl StatsView {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            received: std::array::from_fn(|at| self.received[at] + other.received[at]),
            received_bytes: self.received_bytes + other.received_bytes,
            sent: std::array::from_fn(|at| self.sent[at] + other.sent[at]),
            sent_bytes: self.sent_bytes + other.sent_bytes,
            dropped: std::array::from_fn(|at| self.dropped[at] + other.dropped[at]),
        }
    }
}

/// One writer: no atomic addition needed.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}
