//! What the server sends on one connection: packet ids, the client's Receive Maximum, QoS 2 stages. Serves transient
//! exchanges (ids allocated here) and inbox exchanges (ids derived from offsets) side by side: transient ids skip those in use.

use thiserror::Error;

/// Window of outbound QoS > 0 exchanges.
#[derive(Debug, Default)]
pub struct Outbound {
    _private: (),
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

impl Outbound {
    /// `receive_maximum` of the client, at least 1.
    #[must_use]
    pub fn new(_receive_maximum: u16) -> Self {
        unimplemented!()
    }

    /// How many more exchanges may begin now.
    #[must_use]
    pub fn room(&self) -> u16 {
        unimplemented!()
    }

    /// Begins a transient exchange and returns its packet id; `None` when there is no room.
    pub fn begin(&mut self, _exactly_once: bool) -> Option<u16> {
        unimplemented!()
    }

    /// Begins (or resumes, `received`: PUBREL is owed) the exchange of an inbox entry; `None` when there is no room or
    /// the id is in use by a transient exchange (try later).
    pub fn begin_inbox(&mut self, _offset: u64, _exactly_once: bool, _received: bool) -> Option<u16> {
        unimplemented!()
    }

    /// PUBACK.
    ///
    /// # Errors
    /// Unknown id or not a QoS 1 exchange.
    pub fn puback(&mut self, _packet_id: u16) -> Result<Settled, OutboundError> {
        unimplemented!()
    }

    /// PUBREC below 0x80: the exchange waits for PUBREL to be sent, then PUBCOMP. A repeated PUBREC is Ok.
    ///
    /// # Errors
    /// Unknown id or not a QoS 2 exchange.
    pub fn pubrec(&mut self, _packet_id: u16) -> Result<Settled, OutboundError> {
        unimplemented!()
    }

    /// PUBREC of 0x80 or more: the exchange is over.
    ///
    /// # Errors
    /// Unknown id or not a QoS 2 exchange.
    pub fn pubrec_refused(&mut self, _packet_id: u16) -> Result<Settled, OutboundError> {
        unimplemented!()
    }

    /// PUBCOMP.
    ///
    /// # Errors
    /// Unknown id, or PUBREC has not come.
    pub fn pubcomp(&mut self, _packet_id: u16) -> Result<Settled, OutboundError> {
        unimplemented!()
    }

    /// Exchanges in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        unimplemented!()
    }
}
