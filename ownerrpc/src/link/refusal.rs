//! Why a call was not answered, as the peer that refused it says.

use std::borrow::Cow;
use std::fmt;

use bytes::{BufMut, BytesMut};

/// Bytes of a reason; a longer one is cut.
const TEXT_BYTES_MAX: usize = 256;

/// The reasons that have a number (WIRE.md §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// Nobody answers this service there.
    UnknownService,
    /// As many calls or bytes as may be handled at a time are being handled; nothing was done.
    Busy,
    /// The time that the caller gave was over.
    Deadline,
    /// The request could not be understood; nothing was done.
    Malformed,
    /// The service failed.
    Failed,
    /// The node is leaving; nothing was done.
    Stopping,
    /// The proof of the cluster secret is wrong.
    Proof,
    /// The node is no member of the cluster.
    NotAdmitted,
    /// A number that this version does not know.
    Other(u16),
}

/// A refused call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub kind: RefusalKind,
    /// For people; at most 256 bytes travel.
    pub text: Cow<'static, str>,
}

impl RefusalKind {
    fn code(self) -> u16 {
        match self {
            Self::UnknownService => 1,
            Self::Busy => 2,
            Self::Deadline => 3,
            Self::Malformed => 4,
            Self::Failed => 5,
            Self::Stopping => 6,
            Self::Proof => 20,
            Self::NotAdmitted => 21,
            Self::Other(code) => code,
        }
    }

    fn from_code(code: u16) -> Self {
        let known = [
            Self::UnknownService,
            Self::Busy,
            Self::Deadline,
            Self::Malformed,
            Self::Failed,
            Self::Stopping,
            Self::Proof,
            Self::NotAdmitted,
        ];
        known.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Other(code))
    }
}

impl Refusal {
    #[must_use]
    pub fn new(kind: RefusalKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(super) fn encode(&self) -> BytesMut {
        let mut end = self.text.len().min(TEXT_BYTES_MAX);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let mut out = BytesMut::with_capacity(2 + end);
        out.put_u16(self.kind.code());
        out.put_slice(&self.text.as_bytes()[..end]);
        out
    }

    /// None when it is too short or its text is not UTF-8.
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (code, text) = payload.split_first_chunk::<2>()?;
        let text = std::str::from_utf8(text).ok()?;
        Some(Self::new(RefusalKind::from_code(u16::from_be_bytes(*code)), text.to_owned()))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RefusalKind::UnknownService => "unknown service",
            RefusalKind::Busy => "busy",
            RefusalKind::Deadline => "deadline",
            RefusalKind::Malformed => "malformed request",
            RefusalKind::Failed => "failed",
            RefusalKind::Stopping => "stopping",
            RefusalKind::Proof => "wrong cluster secret",
            RefusalKind::NotAdmitted => "not admitted",
            RefusalKind::Other(code) => return write!(f, "refused with code {code}: {}", self.text),
        };
        if self.text.is_empty() { f.write_str(kind) } else { write!(f, "{kind}: {}", self.text) }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    /// WIRE.md §5.
    #[test]
    fn refusals_round_trip_and_long_reasons_are_cut_between_characters() {
        for code in 0..40 {
            let refusal = Refusal::new(RefusalKind::from_code(code), "why");
            assert_eq!(refusal.kind.code(), code);
            assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
        }
        let long = Refusal::new(RefusalKind::Failed, "ü".repeat(200));
        let read = Refusal::decode(&long.encode()).expect("legal");
        assert_eq!(read.text, "ü".repeat(128));
        let odd = Refusal::new(RefusalKind::Failed, format!("a{}", "ü".repeat(200)));
        assert_eq!(Refusal::decode(&odd.encode()).expect("legal").text.len(), 255);
        assert_eq!(Refusal::decode(&[0]), None);
        assert_eq!(Refusal::decode(&[0, 1, 0xFF]), None);
    }
}
