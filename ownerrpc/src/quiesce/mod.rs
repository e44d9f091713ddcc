//! The codec of Service 107, owner quiescence, byte for byte owner spec §4.
//!
//! Request and answer carry the whole owner; only magic and the sixth byte differ. Decoding is strict: whatever owner spec §4.2
//! lists is refused with an error that names the field, and nothing else is taken.

mod body;
mod error;
mod request;
mod response;

pub use error::{DecodeError, EncodeError, Field};
pub use request::Request;
pub use response::{Response, Status};

/// Number of the service on the peer link.
pub const SERVICE: u16 = 107;
/// Bytes of a request or response that are looked at, at most (owner spec §4.1).
pub const FRAME_BYTES_MAX: usize = 2_304;
/// Bytes of the largest legal request or response: three strings at their limits (owner spec §4.1).
pub const FRAME_BYTES_LEGAL_MAX: usize = 2_220;

/// The only format there is.
const FORMAT: u8 = 1;
/// Magic, format, and operation or status.
const HEAD_BYTES: usize = 6;
