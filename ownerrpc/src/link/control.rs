//! Control frames: what the two ends of a link tell each other besides calls and answers (WIRE.md §4).

use bytes::{BufMut, BytesMut};

use super::frame::{self, Frame, Violation};
use super::refusal::Refusal;

/// Bytes of the payload of a control frame, at most. Hello is the largest.
pub(super) const PAYLOAD_BYTES_MAX: usize = 512;
/// The latest time that may be told: a sum with the longest expiry still fits (owner spec §1.5).
pub const TIME_MS_MAX: u64 = i64::MAX as u64 - u32::MAX as u64 * 1_000 - 60_000;

pub(super) const HANDSHAKE: u16 = 0;
pub(super) const REFUSAL: u16 = 1;
const TIME: u16 = 2;
const BUDGET: u16 = 3;
const PING: u16 = 4;
const PONG: u16 = 5;
const GOODBYE: u16 = 6;

/// A control frame behind the handshake; the request id is beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Control {
    /// The call with this request id is refused.
    Refusal(Refusal),
    /// Hybrid logical time of the sender in milliseconds when it wrote what follows.
    Time(u64),
    /// Milliseconds that the next call, which has the same request id, may take.
    Budget(u32),
    Ping,
    Pong,
    /// The sender leaves on purpose: an acceptor takes no new calls, a dialer makes none.
    Goodbye,
}

impl Control {
    pub(super) fn write(&self, request_id: u64, out: &mut BytesMut) {
        let mut put = |service, payload: &[u8]| {
            out.put_slice(&frame::header(service, request_id, payload.len()));
            out.put_slice(payload);
        };
        match self {
            Self::Refusal(refusal) => put(REFUSAL, &refusal.encode()),
            Self::Time(ms) => put(TIME, &ms.to_be_bytes()),
            Self::Budget(ms) => put(BUDGET, &ms.to_be_bytes()),
            Self::Ping => put(PING, &[]),
            Self::Pong => put(PONG, &[]),
            Self::Goodbye => put(GOODBYE, &[]),
        }
    }

    /// # Errors
    /// Unknown control frames and payloads of a wrong length: versions are negotiated, so nothing is skipped.
    pub(super) fn read(frame: &Frame) -> Result<Self, Violation> {
        let payload = &frame.payload[..];
        let wrong = Violation::Control { service: frame.service, bytes: payload.len() };
        match (frame.service, payload.len()) {
            (REFUSAL, _) => Refusal::decode(payload).map(Self::Refusal).ok_or(wrong),
            (TIME, 8) => {
                let ms = payload.first_chunk().map_or(0, |ms| u64::from_be_bytes(*ms));
                if ms <= TIME_MS_MAX { Ok(Self::Time(ms)) } else { Err(Violation::Time(ms)) }
            }
            (BUDGET, 4) => Ok(Self::Budget(payload.first_chunk().map_or(0, |ms| u32::from_be_bytes(*ms)))),
            (PING, 0) => Ok(Self::Ping),
            (PONG, 0) => Ok(Self::Pong),
            (GOODBYE, 0) => Ok(Self::Goodbye),
            _ => Err(wrong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::refusal::RefusalKind;
    use crate::link::services::Limits;

    /// WIRE.md §4.
    #[test]
    fn control_frames_round_trip() {
        let all = [
            Control::Refusal(Refusal::new(RefusalKind::Busy, "full")),
            Control::Time(TIME_MS_MAX),
            Control::Budget(5_000),
            Control::Ping,
            Control::Pong,
            Control::Goodbye,
        ];
        let mut wire = BytesMut::new();
        for (id, control) in all.iter().enumerate() {
            control.write(id as u64, &mut wire);
        }
        for (id, control) in all.iter().enumerate() {
            let frame = frame::decode(&mut wire, &Limits::default()).expect("legal").expect("complete");
            assert_eq!(frame.request_id, id as u64);
            assert_eq!(Control::read(&frame).as_ref(), Ok(control));
        }
    }

    #[test]
    fn unknown_and_misshapen_control_frames_are_violations() {
        for (service, bytes) in
            [(REFUSAL, 1), (TIME, 7), (BUDGET, 5), (PING, 1), (PONG, 1), (GOODBYE, 1), (7, 0), (99, 3)]
        {
            let frame = Frame { service, request_id: 1, payload: vec![0; bytes].into() };
            assert_eq!(Control::read(&frame), Err(Violation::Control { service, bytes }));
        }
        let frame = Frame { service: TIME, request_id: 0, payload: vec![0xFF; 8].into() };
        assert_eq!(Control::read(&frame), Err(Violation::Time(u64::MAX)));
    }
}
