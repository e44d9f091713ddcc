//! Cuts packets out of the read buffer; the only place that may wait for more bytes.

use super::{Error, Kind, Version};

/// Packet types by their number (§2.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

/// One complete packet in the read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub packet_type: PacketType,
    /// Low four bits of the first byte.
    pub flags: u8,
    /// Everything behind the fixed header.
    pub body: &'a [u8],
    /// Length of the whole packet, fixed header included.
    pub len: usize,
}

impl PacketType {
    /// The type with this number; `None`: 0 and what does not fit four bits.
    #[must_use]
    #[inline]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Connect,
            2 => Self::ConnAck,
            3 => Self::Publish,
            4 => Self::PubAck,
            5 => Self::PubRec,
            6 => Self::PubRel,
            7 => Self::PubComp,
            8 => Self::Subscribe,
            9 => Self::SubAck,
            10 => Self::Unsubscribe,
            11 => Self::UnsubAck,
            12 => Self::PingReq,
            13 => Self::PingResp,
            14 => Self::Disconnect,
            15 => Self::Auth,
            _ => return None,
        })
    }

    /// First byte of a packet of this type, other than PUBLISH whose flags are free.
    pub(super) const fn first_byte(self) -> u8 {
        (self as u8) << 4 | self.flags()
    }

    /// The flags that [MQTT-2.1.3-1] demands.
    #[inline]
    const fn flags(self) -> u8 {
        match self {
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => 2,
            _ => 0,
        }
    }
}

/// Looks for one complete packet at the start of `buffer`. `Ok(None)`: wait for more bytes. The first byte is judged as
/// soon as it is there (type and flags, for `version`), the size as soon as the remaining length is known; `size_max` counts the whole packet.
///
/// Before the version of a connection is known use [`first_frame`].
///
/// # Errors
/// Reserved type, illegal flags, a length of more than four bytes or not minimal ([MQTT-1.5.5-1]), too large (0x95).
#[inline]
pub fn frame(version: Version, buffer: &[u8], size_max: usize) -> Result<Option<Frame<'_>>, Error> {
    let Some((&first, rest)) = buffer.split_first() else { return Ok(None) };
    let packet_type = judge_first_byte(version, first)?;
    let Some((remaining, header_len)) = remaining_length(rest)? else { return Ok(None) };
    let len = header_len + remaining;
    if len > size_max {
        return Err(Kind::PacketTooLarge.into());
    }
    Ok(buffer.get(header_len..len).map(|body| Frame { packet_type, flags: first & 0x0F, body, len }))
}

/// [`frame`] for the first packet of a connection, whose version is not known yet: it must be CONNECT ([MQTT-3.1.0-1]), of which
/// the first byte is the same in both versions. Decode it with [`super::read_connect`].
///
/// # Errors
/// As [`frame`], and [`Kind::ConnectExpected`] for any other packet, already at its first byte.
pub fn first_frame(buffer: &[u8], size_max: usize) -> Result<Option<Frame<'_>>, Error> {
    let Some(&first) = buffer.first() else { return Ok(None) };
    if judge_first_byte(Version::V5, first)? != PacketType::Connect {
        return Err(Kind::ConnectExpected.into());
    }
    frame(Version::V5, buffer, size_max)
}

#[inline]
fn judge_first_byte(version: Version, first: u8) -> Result<PacketType, Error> {
    let packet_type = PacketType::from_number(first >> 4).ok_or(Kind::PacketType)?;
    match packet_type {
        PacketType::Publish => match first & 0x0E {
            0x06 | 0x0E => Err(Kind::PublishQoS.into()),
            0x08 => Err(Kind::DupWithQoS0.into()),
            _ => Ok(packet_type),
        },
        PacketType::Auth if version == Version::V311 => Err(Kind::PacketType.into()),
        _ if first & 0x0F != packet_type.flags() => Err(Kind::Flags.into()),
        _ => Ok(packet_type),
    }
}

/// Remaining length and length of the fixed header; `None`: not all there yet.
#[inline]
fn remaining_length(bytes: &[u8]) -> Result<Option<(usize, usize)>, Error> {
    let mut value = 0;
    for at in 0..4 {
        let Some(&byte) = bytes.get(at) else { return Ok(None) };
        value |= usize::from(byte & 0x7F) << (7 * at);
        if byte < 0x80 {
            return if byte == 0 && at > 0 {
                Err(Kind::VarintNotMinimal.into())
            } else {
                Ok(Some((value, at + 2)))
            };
        }
    }
    Err(Kind::VarintTooLong.into())
}
