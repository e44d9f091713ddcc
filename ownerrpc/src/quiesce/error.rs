//! Why a frame of Service 107 is refused, in either direction.

use std::fmt;

use session::id::IdentityError;
use thiserror::Error;

/// A field of the owner in a frame, in the order of the layout (owner spec §4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Namespace,
    ClientId,
    SessionGeneration,
    OwnerGeneration,
    NodeId,
    BootId,
    ConnectionId,
}

/// What is wrong with received bytes (owner spec §4.2). The peer is told only that they are malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("{0} bytes are fewer than a frame of Service 107 has")]
    Short(usize),
    #[error("{0} bytes are more than a frame of Service 107 may have")]
    Long(usize),
    #[error("the magic number is {0:02x?}")]
    Magic([u8; 4]),
    #[error("format {0} is unknown")]
    Format(u8),
    #[error("operation {0} is unknown")]
    Operation(u8),
    #[error("status {0} is unknown")]
    Status(u8),
    #[error("the frame ends inside the {0}")]
    Truncated(Field),
    #[error("the length prefix of the {field} says {bytes} bytes, more than the {limit} allowed")]
    Prefix { field: Field, bytes: usize, limit: usize },
    #[error("{0} bytes follow the frame")]
    Trailing(usize),
    #[error("the {0} is not UTF-8")]
    Utf8(Field),
    #[error("the {field} {source}")]
    Owner { field: Field, source: IdentityError },
}

/// An owner that cannot be sent because it is not valid (owner spec §1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the {field} {source}")]
pub struct EncodeError {
    pub field: Field,
    pub source: IdentityError,
}

impl From<EncodeError> for DecodeError {
    fn from(error: EncodeError) -> Self {
        Self::Owner { field: error.field, source: error.source }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespace => "namespace",
            Self::ClientId => "client id",
            Self::SessionGeneration => "session generation",
            Self::OwnerGeneration => "owner generation",
            Self::NodeId => "node id",
            Self::BootId => "boot id",
            Self::ConnectionId => "connection id",
        })
    }
}
