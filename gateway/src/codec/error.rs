//! What is wrong with a packet, and what to answer.

use thiserror::Error;

use super::ReasonCode;

/// A packet that breaks a rule. MQTT 5: answer with `reason` and close; 3.1.1: close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{kind} (reason {reason:?})")]
pub struct Error {
    pub kind: Kind,
    pub reason: ReasonCode,
}

/// The rule that was broken. One variant a rule; tests name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Kind {
    #[error("reserved packet type")]
    PacketType,
    // … completed by the codec
}
