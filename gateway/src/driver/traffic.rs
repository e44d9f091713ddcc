//! Packets and bytes of MQTT that the connections of this thread exchanged, by type: a worker is a thread, so counting is an addition to a
//! cell, and nobody else ever sees it but through [`Traffic::of_this_thread`].

use std::cell::Cell;

use crate::codec::PacketType;

/// Types of packets: 1 to 15.
const TYPES: usize = 15;

/// Packets and their bytes by type, in the order of their numbers from CONNECT (1) on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    pub packets: [u64; TYPES],
    pub bytes: [u64; TYPES],
}

/// What a thread counted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Complete packets from clients, also those that ended their connection.
    pub received: Flow,
    /// Packets to clients, counted when they are queued for one.
    pub sent: Flow,
}

struct Cells {
    packets: [Cell<u64>; TYPES],
    bytes: [Cell<u64>; TYPES],
}

thread_local! {
    static RECEIVED: Cells = const { Cells::new() };
    static SENT: Cells = const { Cells::new() };
}

impl Traffic {
    /// What was counted on this thread since it began.
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self { received: RECEIVED.with(Cells::view), sent: SENT.with(Cells::view) }
    }
}

impl Cells {
    const fn new() -> Self {
        Self { packets: [const { Cell::new(0) }; TYPES], bytes: [const { Cell::new(0) }; TYPES] }
    }

    /// `number`: 1 to 15.
    #[inline]
    fn add(&self, number: usize, len: usize) {
        let at = number.wrapping_sub(1) % TYPES;
        let (packets, bytes) = (&self.packets[at], &self.bytes[at]);
        packets.set(packets.get().wrapping_add(1));
        bytes.set(bytes.get().wrapping_add(len as u64));
    }

    fn view(&self) -> Flow {
        Flow {
            packets: std::array::from_fn(|at| self.packets[at].get()),
            bytes: std::array::from_fn(|at| self.bytes[at].get()),
        }
    }
}

/// A packet of `len` bytes came from a client.
#[inline]
pub(crate) fn received(packet_type: PacketType, len: usize) {
    RECEIVED.with(|cells| cells.add(packet_type as usize, len));
}

/// A whole packet was queued for a client.
#[inline]
pub(crate) fn sent(packet: &[u8]) {
    if let Some(first) = packet.first() {
        SENT.with(|cells| cells.add(usize::from(first >> 4), packet.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_by_the_type_in_their_first_byte() {
        let before = Traffic::of_this_thread();
        sent(&[0x32, 5, 0, 1, b'a', 0, 1]);
        sent(&[0xD0, 0]);
        sent(&[]);
        received(PacketType::Connect, 20);
        let after = Traffic::of_this_thread();
        let packets = |at: usize| after.sent.packets[at] - before.sent.packets[at];
        assert_eq!((packets(2), packets(12), packets(0)), (1, 1, 0));
        assert_eq!(after.sent.bytes[2] - before.sent.bytes[2], 7);
        assert_eq!(after.received.packets[0] - before.received.packets[0], 1);
        assert_eq!(after.received.bytes[0] - before.received.bytes[0], 20);
    }
}
