//! Counters of one worker's messages. Only its own thread writes them, so counting is a load and a store; anybody may read:
//! `$SYS` does, and the metrics are told what was added four times a second.

use std::sync::atomic::{AtomicU64, Ordering};

use gateway::driver::Traffic;
use session::message::QoS;

use crate::metrics::{Direction, DropReason, PacketLabel, WorkerRecorder};

/// Counters of one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerStats {
    received: [AtomicU64; 3],
    received_bytes: AtomicU64,
    sent: [AtomicU64; 3],
    sent_bytes: AtomicU64,
    dropped: [AtomicU64; DropReason::COUNT],
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
    /// Deliveries dropped, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::COUNT],
}

impl WorkerStats {
    pub(super) fn received(&self, qos: QoS, payload: usize) {
        add(&self.received[qos as usize], 1);
        add(&self.received_bytes, payload as u64);
    }

    pub(super) fn sent(&self, qos: QoS, count: u64, payload: usize) {
        add(&self.sent[qos as usize], count);
        add(&self.sent_bytes, count * payload as u64);
    }

    pub(super) fn dropped(&self, why: DropReason, count: u64) {
        add(&self.dropped[why as usize], count);
    }

    /// Tells the metrics what was added since `last`.
    pub(super) fn report(&self, recorder: &WorkerRecorder, last: &StatsView) -> StatsView {
        let now = self.view();
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let at = qos as usize;
            recorder.messages(Direction::In, qos.into(), now.received[at] - last.received[at]);
            recorder.messages(Direction::Out, qos.into(), now.sent[at] - last.sent[at]);
        }
        for reason in DropReason::ALL {
            let at = *reason as usize;
            recorder.dropped(*reason, now.dropped[at] - last.dropped[at]);
        }
        now
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

/// Tells the metrics what the connections of this thread exchanged since `last`.
pub(super) fn report_traffic(recorder: &WorkerRecorder, last: &Traffic) -> Traffic {
    let now = Traffic::of_this_thread();
    for (direction, now, last) in
        [(Direction::In, &now.received, &last.received), (Direction::Out, &now.sent, &last.sent)]
    {
        for (at, packet) in PacketLabel::ALL.iter().enumerate() {
            let packets = now.packets[at].wrapping_sub(last.packets[at]);
            if packets > 0 {
                recorder.packets(direction, *packet, packets, now.bytes[at].wrapping_sub(last.bytes[at]));
            }
        }
    }
    now
}
