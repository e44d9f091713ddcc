//! Frames of the peer link: `u32 length | u16 service | u64 request id | payload`, big-endian.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use super::services::Limits;

/// Bytes in front of a payload.
pub const HEADER_BYTES: usize = LENGTH_BYTES + COUNTED_BYTES;
const LENGTH_BYTES: usize = 4;
/// Bytes that the length counts besides the payload.
const COUNTED_BYTES: usize = 10;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub service: u16,
    pub request_id: u64,
    pub payload: Bytes,
}

/// The peer broke the rules of the link; the link is closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("a frame of length {0} is shorter than its header")]
    Short(usize),
    #[error("a frame of service {service} has {bytes} bytes, more than the {limit} allowed")]
    TooLarge { service: u16, bytes: usize, limit: usize },
    #[error("a frame has {bytes} bytes, more than the {limit} that any service may have")]
    Oversized { bytes: usize, limit: usize },
    #[error("a control frame {service} has a payload of {bytes} bytes")]
    Control { service: u16, bytes: usize },
    #[error("a frame of service {0} cannot come from this side")]
    Direction(u16),
    #[error("request id {id} follows {last}: ids ascend")]
    RequestId { id: u64, last: u64 },
    #[error("answer {0} was never asked for")]
    Unasked(u64),
    #[error("request {id} was for service {asked}, its answer is of service {answered}")]
    Service { id: u64, asked: u16, answered: u16 },
    #[error("time {0} ms is out of range")]
    Time(u64),
    #[error("the budget of request {0} is followed by another request")]
    Budget(u64),
    #[error("more than {0} bytes of control frames wait for a peer that does not read")]
    Congested(usize),
}

/// The header of a frame.
///
/// # Panics
/// When the payload has 4 GiB or more; callers hold it against [`Limits`] first.
#[must_use]
pub fn header(service: u16, request_id: u64, payload_bytes: usize) -> [u8; HEADER_BYTES] {
    let length =
        u32::try_from(COUNTED_BYTES + payload_bytes).expect("payloads are limited to less than 4 GiB");
    let mut out = [0; HEADER_BYTES];
    out[..4].copy_from_slice(&length.to_be_bytes());
    out[4..6].copy_from_slice(&service.to_be_bytes());
    out[6..].copy_from_slice(&request_id.to_be_bytes());
    out
}

/// Takes the frame at the front of `buffer`; None while it is not complete. A frame that is too large is refused as soon as its
/// length, or its length and service, are there.
///
/// # Errors
/// A length that the limits do not allow.
pub fn decode(buffer: &mut BytesMut, limits: &Limits) -> Result<Option<Frame>, Violation> {
    let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    let Some(bytes) = length.checked_sub(COUNTED_BYTES) else { return Err(Violation::Short(length)) };
    if bytes > limits.largest() {
        return Err(Violation::Oversized { bytes, limit: limits.largest() });
    }
    let Some(&[high, low]) = buffer.get(4..6).and_then(|service| service.first_chunk::<2>()) else {
        return Ok(None);
    };
    let service = u16::from_be_bytes([high, low]);
    let limit = limits.payload_bytes_max(service);
    if bytes > limit {
        return Err(Violation::TooLarge { service, bytes, limit });
    }
    if buffer.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    let mut frame = buffer.split_to(LENGTH_BYTES + length);
    frame.advance(LENGTH_BYTES + 2);
    let request_id = frame.get_u64();
    Ok(Some(Frame { service, request_id, payload: frame.freeze() }))
}

/// Bytes that the frame at the front of `buffer` still lacks, when its length is known and within the limits; at most
/// `most`.
pub(super) fn missing(buffer: &[u8], most: usize) -> usize {
    let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return 0 };
    let whole = LENGTH_BYTES + u32::from_be_bytes(*length) as usize;
    whole.saturating_sub(buffer.len()).min(most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(frame: &Frame) -> Vec<u8> {
        let mut out = header(frame.service, frame.request_id, frame.payload.len()).to_vec();
        out.extend_from_slice(&frame.payload);
        out
    }

    /// WIRE.md §1.
    #[test]
    fn a_frame_is_these_bytes() {
        let frame = Frame { service: 107, request_id: 0x0102, payload: Bytes::from_static(b"abc") };
        let bytes = [0, 0, 0, 13, 0, 107, 0, 0, 0, 0, 0, 0, 1, 2, b'a', b'b', b'c'];
        assert_eq!(encode(&frame), bytes);
        let mut buffer = BytesMut::from(&bytes[..]);
        buffer.extend_from_slice(b"rest");
        assert_eq!(decode(&mut buffer, &Limits::default()), Ok(Some(frame)));
        assert_eq!(&buffer[..], b"rest");
    }

    /// WIRE.md §1: refused before the rest has come.
    #[test]
    fn a_wrong_length_is_refused_at_once() {
        let decode = |bytes: &[u8]| decode(&mut BytesMut::from(bytes), &Limits::default());
        assert_eq!(decode(&[0, 0, 0, 9]), Err(Violation::Short(9)));
        assert_eq!(decode(&[0xFF; 4]), Err(Violation::Oversized { bytes: 0xFFFF_FFFF - 10, limit: 8 << 20 }));
        assert_eq!(
            decode(&[0, 0, 9, 11, 0, 107]),
            Err(Violation::TooLarge { service: 107, bytes: 2_305, limit: 2_304 })
        );
        assert_eq!(decode(&[0, 0, 9, 10, 0, 107]), Ok(None));
    }

    proptest! {
        /// However the bytes arrive, the same frames come out.
        #[test]
        fn frames_survive_any_split(
            frames in prop::collection::vec((100..200_u16, any::<u64>(), prop::collection::vec(any::<u8>(), 0..50)), 1..8),
            step in 1..40_usize,
        ) {
            let frames: Vec<Frame> = frames
                .into_iter()
                .map(|(service, request_id, payload)| Frame { service, request_id, payload: payload.into() })
                .collect();
            let wire: Vec<u8> = frames.iter().flat_map(encode).collect();
            let mut buffer = BytesMut::new();
            let mut found = Vec::new();
            for piece in wire.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some(frame) = decode(&mut buffer, &Limits::default()).unwrap() {
                    found.push(frame);
                }
            }
            prop_assert_eq!(found, frames);
            prop_assert!(buffer.is_empty());
        }

        /// Garbage is refused or waits; it never panics.
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = decode(&mut buffer, &Limits::default()) {}
        }
    }
}
