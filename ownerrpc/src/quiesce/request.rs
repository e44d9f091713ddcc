//! The request: prove that exactly this owner stopped.

use bytes::Bytes;
use session::id::Owner;

use super::{DecodeError, EncodeError, body};

const MAGIC: [u8; 4] = *b"WKMQ";
/// The only operation there is.
const QUIESCE: u8 = 1;

/// Asks the node of `owner` to fence it, close its socket and drain its work (owner spec §4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub owner: Owner,
}

impl Request {
    /// # Errors
    /// The owner is not valid.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        body::encode(MAGIC, QUIESCE, &self.owner)
    }

    /// # Errors
    /// Whatever owner spec §4.2 lists.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        let (operation, owner) = body::decode(MAGIC, frame)?;
        if operation == QUIESCE { Ok(Self { owner }) } else { Err(DecodeError::Operation(operation)) }
    }
}
