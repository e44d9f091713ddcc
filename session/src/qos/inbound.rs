//! What the client sends: Receive Maximum of the server, received QoS 2 ids ([MQTT-4.3.3-10], [MQTT-3.3.4-9]).

use thiserror::Error;

/// Window of inbound QoS > 0 exchanges.
#[derive(Debug, Default)]
pub struct Inbound {
    _private: (),
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
    #[error("the client exceeds the Receive Maximum of the server")]
    ReceiveMaximum,
}

impl Inbound {
    /// `receive_maximum` as advertised in CONNACK; `received`: ids from the resumed session.
    #[must_use]
    pub fn new(_receive_maximum: u16, _received: &[u16]) -> Self {
        unimplemented!()
    }

    /// A QoS 1 PUBLISH arrives; counts against the window until `acked`.
    ///
    /// # Errors
    /// More unacknowledged exchanges than the Receive Maximum.
    pub fn publish_qos1(&mut self) -> Result<(), InboundError> {
        unimplemented!()
    }

    /// Its PUBACK was written.
    pub fn acked(&mut self) {
        unimplemented!()
    }

    /// A QoS 2 PUBLISH arrives.
    ///
    /// # Errors
    /// As [`Self::publish_qos1`].
    pub fn publish_qos2(&mut self, _packet_id: u16) -> Result<Received, InboundError> {
        unimplemented!()
    }

    /// PUBREC with a reason ≥ 0x80 was written: the id is free ([MQTT-4.3.3] table).
    pub fn refused(&mut self, _packet_id: u16) {
        unimplemented!()
    }

    /// PUBREL arrives: whether the id was in use.
    pub fn release(&mut self, _packet_id: u16) -> bool {
        unimplemented!()
    }
}
