//! Encoding in two passes over the same code: the first measures and checks, the second writes. So lengths are exact
//! and nothing is written on an error.

use super::primitive::{VARINT_MAX, varint_len};
use super::{Error, Kind, Version};

/// Where fields go.
pub(super) trait Sink {
    /// Bytes as they are.
    fn raw(&mut self, bytes: &[u8]);

    /// Notes an error; the writing pass never sees one.
    fn refuse(&mut self, _kind: Kind) {}

    #[inline]
    fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    #[inline]
    fn u16(&mut self, value: u16) {
        self.raw(&value.to_be_bytes());
    }

    #[inline]
    fn u32(&mut self, value: u32) {
        self.raw(&value.to_be_bytes());
    }

    #[inline]
    fn varint(&mut self, mut value: usize) {
        if value > VARINT_MAX {
            return self.refuse(Kind::TooLong);
        }
        while value >= 0x80 {
            self.u8(low_byte(value) | 0x80);
            value >>= 7;
        }
        self.u8(low_byte(value));
    }

    /// Binary data behind a two-byte length.
    #[inline]
    fn binary(&mut self, bytes: &[u8]) {
        match u16::try_from(bytes.len()) {
            Ok(len) => {
                self.u16(len);
                self.raw(bytes);
            }
            Err(_) => self.refuse(Kind::TooLong),
        }
    }

    #[inline]
    fn string(&mut self, text: &str) {
        self.binary(text.as_bytes());
    }

    /// A packet identifier: never zero.
    #[inline]
    fn packet_id(&mut self, id: u16) {
        if id == 0 {
            self.refuse(Kind::PacketIdZero);
        }
        self.u16(id);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low seven bits are meant")]
#[inline]
pub(super) const fn low_byte(value: usize) -> u8 {
    (value & 0x7F) as u8
}

impl Sink for Vec<u8> {
    #[inline]
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts bytes and keeps the first error.
#[derive(Debug, Default)]
pub(super) struct Measure {
    len: usize,
    error: Option<Kind>,
}

impl Sink for Measure {
    #[inline]
    fn raw(&mut self, bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len());
    }

    fn refuse(&mut self, kind: Kind) {
        self.error.get_or_insert(kind);
    }

    fn string(&mut self, text: &str) {
        if memchr::memchr(0, text.as_bytes()).is_some() {
            self.refuse(Kind::NulCharacter);
        }
        self.binary(text.as_bytes());
    }
}

impl Measure {
    /// Length of what `write` puts into a sink.
    ///
    /// # Errors
    /// The first thing that cannot be encoded.
    pub(super) fn of(write: impl FnOnce(&mut Self)) -> Result<usize, Error> {
        let mut measure = Self::default();
        write(&mut measure);
        match measure.error {
            None => Ok(measure.len),
            Some(kind) => Err(kind.into()),
        }
    }
}

/// A packet that can be encoded.
pub(super) trait Body {
    /// First byte of the packet: type and flags.
    fn first_byte(&self) -> u8;

    /// The properties, without length; not called for 3.1.1.
    fn properties(&self, sink: &mut impl Sink);

    /// Everything behind the fixed header; `properties_len` is the length of [`Self::properties`].
    fn body(&self, version: Version, properties_len: usize, sink: &mut impl Sink);
}

/// Appends the packet to `out`.
///
/// # Errors
/// What the measuring pass refused; `out` is unchanged then.
pub(super) fn write_packet(version: Version, packet: &impl Body, out: &mut Vec<u8>) -> Result<(), Error> {
    let properties_len = match version {
        Version::V311 => 0,
        Version::V5 => Measure::of(|sink| packet.properties(sink))?,
    };
    let len = Measure::of(|sink| packet.body(version, properties_len, sink))?;
    if len > VARINT_MAX {
        return Err(Kind::TooLong.into());
    }
    out.reserve(1 + varint_len(len) + len);
    out.u8(packet.first_byte());
    out.varint(len);
    packet.body(version, properties_len, out);
    Ok(())
}
