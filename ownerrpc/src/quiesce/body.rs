//! What request and response share: the head, and the owner behind it.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use session::id::{IdentityError, Key, Owner, check_identity};
use session::limits::{BOOT_ID_BYTES_MAX, CLIENT_ID_BYTES_MAX, NAMESPACE_BYTES_MAX};

use super::{DecodeError, EncodeError, FORMAT, FRAME_BYTES_MAX, Field, HEAD_BYTES};

/// Bytes of the owner beside its strings: three length prefixes and four integers.
const OWNER_BYTES_FIXED: usize = 3 * 2 + 4 * 8;

pub(super) fn encode(magic: [u8; 4], code: u8, owner: &Owner) -> Result<Bytes, EncodeError> {
    check(owner)?;
    let strings = [&owner.key.namespace, &owner.key.client_id, &owner.boot_id];
    let len = HEAD_BYTES + OWNER_BYTES_FIXED + strings.iter().map(|string| string.len()).sum::<usize>();
    let mut out = BytesMut::with_capacity(len);
    out.put_slice(&magic);
    out.put_u8(FORMAT);
    out.put_u8(code);
    put_string(&mut out, &owner.key.namespace);
    put_string(&mut out, &owner.key.client_id);
    out.put_u64(owner.session_generation);
    out.put_u64(owner.owner_generation);
    out.put_u64(owner.node_id);
    put_string(&mut out, &owner.boot_id);
    out.put_u64(owner.connection_id);
    debug_assert_eq!(out.len(), len);
    Ok(out.freeze())
}

/// The byte behind the format, and the owner.
pub(super) fn decode(magic: [u8; 4], frame: &[u8]) -> Result<(u8, Owner), DecodeError> {
    if frame.len() > FRAME_BYTES_MAX {
        return Err(DecodeError::Long(frame.len()));
    }
    let Some((head, mut rest)) = frame.split_first_chunk::<HEAD_BYTES>() else {
        return Err(DecodeError::Short(frame.len()));
    };
    let [m0, m1, m2, m3, format, code] = *head;
    if [m0, m1, m2, m3] != magic {
        return Err(DecodeError::Magic([m0, m1, m2, m3]));
    }
    if format != FORMAT {
        return Err(DecodeError::Format(format));
    }
    let rest = &mut rest;
    let owner = Owner {
        key: Key {
            namespace: string(rest, Field::Namespace, NAMESPACE_BYTES_MAX)?,
            client_id: string(rest, Field::ClientId, CLIENT_ID_BYTES_MAX)?,
        },
        session_generation: integer(rest, Field::SessionGeneration)?,
        owner_generation: integer(rest, Field::OwnerGeneration)?,
        node_id: integer(rest, Field::NodeId)?,
        boot_id: string(rest, Field::BootId, BOOT_ID_BYTES_MAX)?,
        connection_id: integer(rest, Field::ConnectionId)?,
    };
    if !rest.is_empty() {
        return Err(DecodeError::Trailing(rest.len()));
    }
    check(&owner)?;
    Ok((code, owner))
}

/// `Owner::check`, naming the field.
fn check(owner: &Owner) -> Result<(), EncodeError> {
    let strings = [
        (Field::Namespace, &owner.key.namespace, NAMESPACE_BYTES_MAX),
        (Field::ClientId, &owner.key.client_id, CLIENT_ID_BYTES_MAX),
        (Field::BootId, &owner.boot_id, BOOT_ID_BYTES_MAX),
    ];
    for (field, value, limit) in strings {
        check_identity(value, limit).map_err(|source| EncodeError { field, source })?;
    }
    let integers = [
        (Field::SessionGeneration, owner.session_generation),
        (Field::OwnerGeneration, owner.owner_generation),
        (Field::NodeId, owner.node_id),
        (Field::ConnectionId, owner.connection_id),
    ];
    match integers.iter().find(|(_, value)| *value == 0) {
        Some(&(field, _)) => Err(EncodeError { field, source: IdentityError::Zero }),
        None => Ok(()),
    }
}

fn put_string(out: &mut BytesMut, value: &str) {
    out.put_u16(u16::try_from(value.len()).expect("an identity has at most 1,024 bytes"));
    out.put_slice(value.as_bytes());
}

fn string(rest: &mut &[u8], field: Field, limit: usize) -> Result<Arc<str>, DecodeError> {
    let (prefix, tail) = rest.split_first_chunk::<2>().ok_or(DecodeError::Truncated(field))?;
    let bytes = usize::from(u16::from_be_bytes(*prefix));
    if bytes > limit {
        return Err(DecodeError::Prefix { field, bytes, limit });
    }
    let (value, tail) = tail.split_at_checked(bytes).ok_or(DecodeError::Truncated(field))?;
    *rest = tail;
    std::str::from_utf8(value).map(Arc::from).map_err(|_| DecodeError::Utf8(field))
}

fn integer(rest: &mut &[u8], field: Field) -> Result<u64, DecodeError> {
    let (value, tail) = rest.split_first_chunk::<8>().ok_or(DecodeError::Truncated(field))?;
    *rest = tail;
    Ok(u64::from_be_bytes(*value))
}
