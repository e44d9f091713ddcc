//! What can go wrong for a user of a channel, with the codes that such users know (lease spec 8.5).

use session::queue::{Mismatch, Refusal, SealReason};
use thiserror::Error;

use super::Unavailable;
use crate::lease::LeaseError;

/// A failure of a producer, a consumer or a bind. [`QueueError::code`] is stable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QueueError {
    #[error("there is no such channel; it may have expired")]
    ChannelNotFound,
    /// The normal end of a consumer's loop.
    #[error("the channel is closed: {0}")]
    ChannelClosed(String),
    /// The normal end of a producer's loop.
    #[error("the producer is closed")]
    ProducerClosed,
    /// Nobody made room in time; nothing was appended.
    #[error("the channel is full: nothing was acknowledged in time")]
    MessageBufferFull,
    #[error("the records are larger than the channel may be, or than 256 MiB")]
    MessageTooLarge,
    /// Not an error of the channel: nothing came in time.
    #[error("no new message")]
    NoNewMessage,
    #[error("the lease of this endpoint is lost; bind again")]
    LeaseLost,
    /// Another one took over: nothing was changed.
    #[error("another consumer has these records now")]
    Fenced,
    #[error("the channel has a consumer already (member {0})")]
    Occupied(u64),
    #[error("the channel exists with another {0}; use the same configuration everywhere")]
    Mismatch(Mismatch),
    #[error("the configuration is not valid: {0}")]
    InvalidConfiguration(String),
    #[error("{0} of the endpoints of this store did not close; close it again")]
    ResourceCleanup(usize),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// Whether it was done is not known; it is safe to repeat.
    #[error("{0}")]
    Unavailable(String),
    #[error("internal: {0}")]
    Internal(String),
}

impl QueueError {
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::ChannelNotFound => 12_000,
            Self::ChannelClosed(_) => 12_001,
            Self::ProducerClosed => 12_003,
            Self::MessageBufferFull => 12_005,
            Self::Fenced => 12_007,
            Self::MessageTooLarge => 12_009,
            Self::NoNewMessage => 12_011,
            Self::LeaseLost => 12_014,
            Self::Mismatch(_) | Self::InvalidConfiguration(_) => 13_001,
            Self::ResourceCleanup(_) => 13_002,
            Self::Lease(_) => 13_003,
            Self::Internal(_) => 13_005,
            Self::Occupied(_) => 20_009,
            Self::Unavailable(_) => 7_000,
        }
    }

    pub(super) fn sealed(reason: SealReason) -> Self {
        Self::ChannelClosed(reason.to_string())
    }
}

impl From<Unavailable> for QueueError {
    fn from(error: Unavailable) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<Refusal> for QueueError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Missing => Self::ChannelNotFound,
            Refusal::Fenced => Self::Fenced,
            Refusal::Sealed(reason) => Self::sealed(reason),
            Refusal::Full => Self::MessageBufferFull,
            Refusal::TooLarge => Self::MessageTooLarge,
            Refusal::Mismatch(what) => Self::Mismatch(what),
            Refusal::Occupied { member } => Self::Occupied(member),
            Refusal::LeaseLost => Self::LeaseLost,
            Refusal::Invalid | Refusal::WrongRole | Refusal::WrongKind | Refusal::TooMany(_) => {
                Self::InvalidConfiguration(refusal.to_string())
            }
            Refusal::OutOfOrder { .. } | Refusal::NoSuchRecord | Refusal::NotDue | Refusal::Exhausted => {
                Self::Internal(refusal.to_string())
            }
        }
    }
}
