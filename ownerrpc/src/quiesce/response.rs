//! The response: what became of the request, and the owner it is about.

use bytes::Bytes;
use session::id::Owner;

use super::{DecodeError, EncodeError, body};

const MAGIC: [u8; 4] = *b"WKMq";

/// What the owner's node found (owner spec §4.1). Only [`Status::Quiesced`] is a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Quiesced = 1,
    Unproved = 2,
    Close = 3,
    Cancelled = 4,
    Deadline = 5,
}

impl Status {
    pub const ALL: [Self; 5] = [Self::Quiesced, Self::Unproved, Self::Close, Self::Cancelled, Self::Deadline];

    /// The status with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|status| *status as u8 == code)
    }
}

/// Answers a [`super::Request`]; the owner is echoed whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub status: Status,
    pub owner: Owner,
}

impl Response {
    /// # Errors
    /// The owner is not valid.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        body::encode(MAGIC, self.status as u8, &self.owner)
    }

    /// # Errors
    /// Whatever owner spec §4.2 lists.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        let (code, owner) = body::decode(MAGIC, frame)?;
        let status = Status::from_code(code).ok_or(DecodeError::Status(code))?;
        Ok(Self { status, owner })
    }
}
