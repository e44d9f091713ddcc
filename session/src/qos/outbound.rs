//! What the server sends on one connection: packet ids, the client's Receive Maximum, QoS 2 stages. Serves transient
//! exchanges (ids allocated here) and inbox exchanges (ids derived from offsets) side by side: transient ids skip those in use.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use thiserror::Error;

use crate::limits;

/// A table that has grown past this is given back when it runs empty.
const KEPT_EXCHANGES_MAX: usize = 64;

/// Window of outbound QoS > 0 exchanges.
///
/// What counts against the client's Receive Maximum are exchanges whose PUBLISH goes out on this connection: until
/// PUBACK, PUBCOMP or a PUBREC of 0x80 or more (§4.9). An owed PUBREL of an earlier connection is not held back by it.
/// An idle window allocates nothing. Whether a PUBLISH is a resend (DUP) is the caller's knowledge.
#[derive(Debug)]
pub struct Outbound {
    receive_maximum: u16,
    /// The last transient id, 0 at first.
    last_id: u16,
    /// Exchanges that count. Invariant: at most `receive_maximum`.
    counted: u16,
    exchanges: HashMap<u16, Exchange, FixedState>,
}

#[derive(Debug, Clone, Copy)]
struct Exchange {
    settled: Settled,
    stage: Stage,
    counts: bool,
}

/// ```text
/// QoS 1: begin ──▶ Puback ──PUBACK──▶ over
/// QoS 2: begin ──▶ Pubrec ──PUBREC──▶ Pubcomp ──PUBCOMP──▶ over
///                    │                  ▲  └─ PUBREC again: stays
///                    └─PUBREC ≥ 0x80─▶ over        resumed, PUBREL owed ──▶ Pubcomp
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Puback,
    Pubrec,
    Pubcomp,
}

/// What an acknowledgement settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// A message without an inbox: nothing to record.
    Transient,
    /// The inbox entry of this offset.
    Inbox { offset: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OutboundError {
    #[error("no exchange with this packet id")]
    UnknownPacketId,
    #[error("the acknowledgement does not fit the QoS of the exchange")]
    WrongKind,
}

/// Packet id of the inbox entry at `offset`, 1 to 65,535 (DESIGN §9): a resend after any crash has it again.
#[must_use]
pub fn inbox_packet_id(offset: u64) -> u16 {
    u16::try_from(offset % limits::INBOX_SPAN_MAX + 1).expect("a remainder of 65,535 plus 1 fits")
}

impl Outbound {
    /// `receive_maximum` of the client, at least 1.
    #[must_use]
    pub fn new(receive_maximum: u16) -> Self {
        Self {
            receive_maximum,
            last_id: 0,
            counted: 0,
            exchanges: HashMap::with_hasher(FixedState::default()),
        }
    }

    /// How many more exchanges may begin now.
    #[must_use]
    pub fn room(&self) -> u16 {
        self.receive_maximum - self.counted
    }

    /// Begins a transient exchange and returns its packet id; `None` when there is no room.
    ///
    /// Ids ascend, wrap from 65,535 to 1 and skip those in flight ([MQTT-2.2.1-4], 3.1.1: [MQTT-2.3.1-4]); a search
    /// looks at no more ids than are in flight, plus one.
    pub fn begin(&mut self, exactly_once: bool) -> Option<u16> {
        if self.room() == 0 || self.exchanges.len() >= usize::from(u16::MAX) {
            return None;
        }
        let mut id = self.last_id;
        let packet_id = loop {
            id = id.checked_add(1).unwrap_or(1);
            if !self.exchanges.contains_key(&id) {
                break id;
            }
        };
        self.last_id = packet_id;
        self.counted += 1;
        let stage = if exactly_once { Stage::Pubrec } else { Stage::Puback };
        self.exchanges.insert(packet_id, Exchange { settled: Settled::Transient, stage, counts: true });
        Some(packet_id)
    }

    /// Begins (or resumes, `received`: PUBREL is owed) the exchange of an inbox entry; `None` when there is no room or
    /// the id is in use by a transient exchange (try later), or the entry is in flight already.
    ///
    /// A resumed exchange whose PUBREL is owed needs no room: its PUBLISH is not sent again.
    pub fn begin_inbox(&mut self, offset: u64, exactly_once: bool, received: bool) -> Option<u16> {
        debug_assert!(exactly_once || !received, "only a QoS 2 exchange owes a PUBREL");
        if !received && self.room() == 0 {
            return None;
        }
        let packet_id = inbox_packet_id(offset);
        let Entry::Vacant(entry) = self.exchanges.entry(packet_id) else {
            return None;
        };
        let stage = match (received, exactly_once) {
            (true, _) => Stage::Pubcomp,
            (false, true) => Stage::Pubrec,
            (false, false) => Stage::Puback,
        };
        entry.insert(Exchange { settled: Settled::Inbox { offset }, stage, counts: !received });
        self.counted += u16::from(!received);
        Some(packet_id)
    }

    /// PUBACK.
    ///
    /// # Errors
    /// Unknown id or not a QoS 1 exchange.
    pub fn puback(&mut self, packet_id: u16) -> Result<Settled, OutboundError> {
        self.finish(packet_id, Stage::Puback)
    }

    /// PUBREC below 0x80: the exchange waits for PUBREL to be sent, then PUBCOMP. A repeated PUBREC is Ok.
    ///
    /// # Errors
    /// Unknown id or not a QoS 2 exchange.
    pub fn pubrec(&mut self, packet_id: u16) -> Result<Settled, OutboundError> {
        let exchange = self.exchanges.get_mut(&packet_id).ok_or(OutboundError::UnknownPacketId)?;
        if exchange.stage == Stage::Puback {
            return Err(OutboundError::WrongKind);
        }
        exchange.stage = Stage::Pubcomp;
        Ok(exchange.settled)
    }

    /// PUBREC of 0x80 or more: the exchange is over.
    ///
    /// # Errors
    /// Unknown id, not a QoS 2 exchange, or a PUBREC below 0x80 came before.
    pub fn pubrec_refused(&mut self, packet_id: u16) -> Result<Settled, OutboundError> {
        self.finish(packet_id, Stage::Pubrec)
    }

    /// PUBCOMP.
    ///
    /// # Errors
    /// Unknown id, or PUBREC has not come.
    pub fn pubcomp(&mut self, packet_id: u16) -> Result<Settled, OutboundError> {
        self.finish(packet_id, Stage::Pubcomp)
    }

    /// Exchanges in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.exchanges.len()
    }

    /// Ends the exchange when it stands at `stage`.
    fn finish(&mut self, packet_id: u16, stage: Stage) -> Result<Settled, OutboundError> {
        let Entry::Occupied(entry) = self.exchanges.entry(packet_id) else {
            return Err(OutboundError::UnknownPacketId);
        };
        if entry.get().stage != stage {
            return Err(OutboundError::WrongKind);
        }
        let exchange = entry.remove();
        self.counted -= u16::from(exchange.counts);
        if self.exchanges.is_empty() && self.exchanges.capacity() > KEPT_EXCHANGES_MAX {
            self.exchanges.shrink_to_fit();
        }
        Ok(exchange.settled)
    }
}

/// A window with the Receive Maximum that holds when the client sends none (MQTT 5 §3.1.2.11.3).
impl Default for Outbound {
    fn default() -> Self {
        Self::new(u16::MAX)
    }
}

#[cfg(test)]
#[path = "outbound_test.rs"]
mod tests;
