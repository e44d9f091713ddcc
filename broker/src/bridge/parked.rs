//! Messages of QoS 1 and 2 that came faster than the other broker takes them. A sender of MQTT 3.1.1 was told no window, and behind its messages
//! come the PUBREL that make room in ours: so it is always read, and what has no room waits here, unacknowledged.

use std::collections::{HashSet, VecDeque};

use gateway::codec::{Frame, PacketType};

/// Bytes that wait at most.
pub(super) const BYTES_MAX: usize = 32 << 20;

/// A PUBLISH as it came.
#[derive(Debug)]
pub(super) struct Packet {
    id: u16,
    flags: u8,
    body: Box<[u8]>,
}

impl Packet {
    pub(super) fn frame(&self) -> Frame<'_> {
        let Self { flags, body, .. } = self;
        Frame { packet_type: PacketType::Publish, flags: *flags, body, len: body.len() }
    }
}

/// PUBLISH packets in their order.
#[derive(Debug, Default)]
pub(super) struct Parked {
    packets: VecDeque<Packet>,
    ids: HashSet<u16>,
    bytes: usize,
}

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether one with this packet id waits.
    pub(super) fn has(&self, id: u16) -> bool {
        self.ids.contains(&id)
    }

    /// False: that is too much.
    #[must_use]
    pub(super) fn push(&mut self, id: u16, publish: Frame<'_>) -> bool {
        self.bytes += publish.body.len();
        self.ids.insert(id);
        self.packets.push_back(Packet { id, flags: publish.flags, body: publish.body.into() });
        self.bytes <= BYTES_MAX
    }

    /// The one that waited longest.
    pub(super) fn pop(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.ids.remove(&packet.id);
        self.bytes -= packet.body.len();
        Some(packet)
    }
}
