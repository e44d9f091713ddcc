//! What the client sends: Receive Maximum of the server, received QoS 2 ids ([MQTT-4.3.3-10], [MQTT-3.3.4-9]).

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use thiserror::Error;

/// A table that has grown past this is given back when it runs empty.
const KEPT_IDS_MAX: usize = 64;

/// Window of inbound QoS > 0 exchanges.
///
/// Only exchanges whose PUBLISH came on this connection count against the Receive Maximum (§4.9: the quota starts
/// anew with each connection). An idle window allocates nothing.
#[derive(Debug)]
pub struct Inbound {
    receive_maximum: u16,
    /// QoS 1 exchanges whose PUBACK was not written.
    qos1: u16,
    /// QoS 2 exchanges of `ids` that count. Invariant: `qos1 + qos2 ≤ receive_maximum`.
    qos2: u16,
    /// QoS 2 ids that were received and not released.
    ids: HashMap<u16, Origin, FixedState>,
}

/// Where the PUBLISH of a QoS 2 id came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// An earlier connection of the session; it does not count.
    Resumed,
    /// This connection.
    Counted,
}

/// What to do with an inbound QoS 2 PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Route it.
    New,
    /// Seen before: answer PUBREC, do not route again.
    Duplicate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InboundError {
    /// DISCONNECT 0x93.
    #[error("the client exceeds the Receive Maximum of the server")]
    ReceiveMaximum,
}

impl Inbound {
    /// `receive_maximum` as advertised in CONNACK; `received`: ids from the resumed session.
    #[must_use]
    pub fn new(receive_maximum: u16, received: &[u16]) -> Self {
        let mut ids = HashMap::with_hasher(FixedState::default());
        ids.extend(received.iter().map(|&id| (id, Origin::Resumed)));
        Self { receive_maximum, qos1: 0, qos2: 0, ids }
    }

    /// A QoS 1 PUBLISH arrives; counts against the window until `acked`.
    ///
    /// # Errors
    /// More unacknowledged exchanges than the Receive Maximum.
    pub fn publish_qos1(&mut self) -> Result<(), InboundError> {
        self.check_room()?;
        self.qos1 += 1;
        Ok(())
    }

    /// Its PUBACK was written.
    pub fn acked(&mut self) {
        debug_assert!(self.qos1 > 0, "one PUBACK for each QoS 1 PUBLISH");
        self.qos1 = self.qos1.saturating_sub(1);
    }

    /// A QoS 2 PUBLISH arrives. Any number of duplicates of one id counts once.
    ///
    /// # Errors
    /// As [`Self::publish_qos1`].
    pub fn publish_qos2(&mut self, packet_id: u16) -> Result<Received, InboundError> {
        let room = self.check_room();
        match self.ids.entry(packet_id) {
            Entry::Occupied(mut entry) => {
                if *entry.get() == Origin::Resumed {
                    room?;
                    entry.insert(Origin::Counted);
                    self.qos2 += 1;
                }
                Ok(Received::Duplicate)
            }
            Entry::Vacant(entry) => {
                room?;
                entry.insert(Origin::Counted);
                self.qos2 += 1;
                Ok(Received::New)
            }
        }
    }

    /// PUBREC with a reason ≥ 0x80 was written: the id is free ([MQTT-4.3.3] table).
    pub fn refused(&mut self, packet_id: u16) {
        self.release(packet_id);
    }

    /// PUBREL arrives: whether the id was in use.
    pub fn release(&mut self, packet_id: u16) -> bool {
        let origin = self.ids.remove(&packet_id);
        if origin == Some(Origin::Counted) {
            self.qos2 -= 1;
        }
        if self.ids.is_empty() && self.ids.capacity() > KEPT_IDS_MAX {
            self.ids.shrink_to_fit();
        }
        origin.is_some()
    }

    /// Exchanges of this connection that count against the Receive Maximum.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        usize::from(self.qos1) + usize::from(self.qos2)
    }

    fn check_room(&self) -> Result<(), InboundError> {
        if self.in_flight() < usize::from(self.receive_maximum) {
            Ok(())
        } else {
            Err(InboundError::ReceiveMaximum)
        }
    }
}

/// A window with the Receive Maximum that holds when none is advertised (MQTT 5 §3.2.2.3.3).
impl Default for Inbound {
    fn default() -> Self {
        Self::new(u16::MAX, &[])
    }
}

#[cfg(test)]
#[path = "inbound_test.rs"]
mod tests;
