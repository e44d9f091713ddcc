//! Variable byte integers, strings and binary data (§1.5), bounded by their frame.

use super::{Error, Kind};

/// Largest value of a variable byte integer (§1.5.5).
pub(super) const VARINT_MAX: usize = 268_435_455;

/// Reads fields from the front of a slice; never beyond it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What was not read yet.
    #[inline]
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, Error> {
        let (&value, rest) = self.rest.split_first().ok_or(Kind::Truncated)?;
        self.rest = rest;
        Ok(value)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16, Error> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Kind::Truncated)?;
        self.rest = rest;
        Ok(u16::from_be_bytes(*bytes))
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, Error> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Kind::Truncated)?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    /// A packet identifier: never zero.
    #[inline]
    pub(super) fn packet_id(&mut self) -> Result<u16, Error> {
        match self.u16()? {
            0 => Err(Kind::PacketIdZero.into()),
            id => Ok(id),
        }
    }

    /// A variable byte integer of one to four bytes, the fewest that can hold it.
    #[inline]
    pub(super) fn varint(&mut self) -> Result<u32, Error> {
        match self.rest.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.rest = rest;
                Ok(u32::from(byte))
            }
            _ => self.varint_long(),
        }
    }

    fn varint_long(&mut self) -> Result<u32, Error> {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return if byte == 0 && shift > 0 { Err(Kind::VarintNotMinimal.into()) } else { Ok(value) };
            }
        }
        Err(Kind::VarintTooLong.into())
    }

    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Kind::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Binary data behind a two-byte length (§1.5.6).
    #[inline]
    pub(super) fn binary(&mut self) -> Result<&'a [u8], Error> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// UTF-8 without U+0000 (§1.5.4).
    #[inline]
    pub(super) fn string(&mut self) -> Result<&'a str, Error> {
        let text = self.utf8()?;
        if memchr::memchr(0, text.as_bytes()).is_some() {
            return Err(Kind::NulCharacter.into());
        }
        Ok(text)
    }

    /// A topic name: a string without wildcards (§4.7.1). It may be empty here; `wildcard` is the error for a wildcard.
    #[inline]
    pub(super) fn topic_name(&mut self, wildcard: Kind) -> Result<&'a str, Error> {
        let text = self.utf8()?;
        if memchr::memchr3(0, b'+', b'#', text.as_bytes()).is_some() {
            return Err(topic_error(text, wildcard).into());
        }
        Ok(text)
    }

    #[inline]
    fn utf8(&mut self) -> Result<&'a str, Error> {
        let bytes = self.binary()?;
        simdutf8::basic::from_utf8(bytes).map_err(|_| Kind::Utf8.into())
    }

    /// The packet must be consumed exactly.
    #[inline]
    pub(super) fn end(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(Kind::TrailingBytes.into()) }
    }
}

#[cold]
fn topic_error(text: &str, wildcard: Kind) -> Kind {
    if memchr::memchr(0, text.as_bytes()).is_some() { Kind::NulCharacter } else { wildcard }
}

/// Bytes that a variable byte integer takes.
#[inline]
pub(super) const fn varint_len(value: usize) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}
