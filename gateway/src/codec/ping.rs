//! PINGREQ and PINGRESP (§3.12, §3.13): two bytes each.

use super::{Error, Frame, Kind, PacketType};

pub(super) fn check(frame: Frame<'_>) -> Result<(), Error> {
    if frame.body.is_empty() { Ok(()) } else { Err(Kind::TrailingBytes.into()) }
}

pub(super) fn write(packet_type: PacketType, out: &mut Vec<u8>) {
    out.extend_from_slice(&[packet_type.first_byte(), 0]);
}
