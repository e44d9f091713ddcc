//! Who is who: the four identities that must never be merged (owner spec §1.2), and their validity rules.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits;

/// Session key: one ClientID inside one broker namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    pub namespace: Arc<str>,
    pub client_id: Arc<str>,
}

/// One immutable execution incarnation of a session, compared field by field (DESIGN §3).
///
/// A connection id is issued by the owner registry of (`node_id`, `boot_id`) and is never reused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    pub key: Key,
    /// One lifetime of subscriptions, inbox and exchanges; at least 1.
    pub session_generation: u64,
    /// Grows by exactly one with every committed CONNECT; at least 1.
    pub owner_generation: u64,
    pub node_id: u64,
    pub boot_id: Arc<str>,
    pub connection_id: u64,
}

/// One start of one node, as the cluster knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Boot {
    pub node_id: u64,
    /// 16 random bytes as 32 lowercase hex characters.
    pub boot_id: Arc<str>,
}

/// What an identity string may not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum IdentityError {
    #[error("is empty")]
    Empty,
    #[error("has {len} bytes, more than the {limit} allowed")]
    TooLong { len: usize, limit: usize },
    #[error("contains the character U+0000")]
    Nul,
    #[error("consists of white space only")]
    Blank,
    #[error("is zero")]
    Zero,
}

/// Whether `value` is a valid identity of at most `limit` bytes (owner spec §1.1).
///
/// # Errors
/// The first rule that it breaks. Values are never trimmed, only rejected.
pub fn check_identity(value: &str, limit: usize) -> Result<(), IdentityError> {
    if value.is_empty() {
        return Err(IdentityError::Empty);
    }
    if value.len() > limit {
        return Err(IdentityError::TooLong { len: value.len(), limit });
    }
    if value.contains('\0') {
        return Err(IdentityError::Nul);
    }
    if value.trim().is_empty() {
        return Err(IdentityError::Blank);
    }
    Ok(())
}

impl Key {
    /// A key whose parts were checked.
    ///
    /// # Errors
    /// When the namespace or the ClientID is not a valid identity of at most 1,024 bytes.
    pub fn new(namespace: Arc<str>, client_id: Arc<str>) -> Result<Self, IdentityError> {
        check_identity(&namespace, limits::NAMESPACE_BYTES_MAX)?;
        check_identity(&client_id, limits::CLIENT_ID_BYTES_MAX)?;
        Ok(Self { namespace, client_id })
    }
}

impl Owner {
    /// Checks every field (owner spec §1.3).
    ///
    /// # Errors
    /// The first rule that a field breaks.
    pub fn check(&self) -> Result<(), IdentityError> {
        check_identity(&self.key.namespace, limits::NAMESPACE_BYTES_MAX)?;
        check_identity(&self.key.client_id, limits::CLIENT_ID_BYTES_MAX)?;
        check_identity(&self.boot_id, limits::BOOT_ID_BYTES_MAX)?;
        let numbers = [self.session_generation, self.owner_generation, self.node_id, self.connection_id];
        if numbers.contains(&0) { Err(IdentityError::Zero) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner {
            key: Key { namespace: Arc::from("main"), client_id: Arc::from("c") },
            session_generation: 1,
            owner_generation: 1,
            node_id: 1,
            boot_id: Arc::from("b"),
            connection_id: 1,
        }
    }

    /// Owner spec §1.1: rejected, never trimmed.
    #[test]
    fn an_identity_is_not_empty_blank_too_long_or_with_nul() {
        assert_eq!(check_identity("", 4), Err(IdentityError::Empty));
        assert_eq!(check_identity("abcd", 4), Ok(()));
        assert_eq!(check_identity("abcde", 4), Err(IdentityError::TooLong { len: 5, limit: 4 }));
        assert_eq!(check_identity("üüü", 4), Err(IdentityError::TooLong { len: 6, limit: 4 }));
        assert_eq!(check_identity("a\0", 4), Err(IdentityError::Nul));
        assert_eq!(check_identity(" \u{a0}", 4), Err(IdentityError::Blank));
        assert_eq!(check_identity(" a ", 4), Ok(()));
    }

    /// Owner spec §1.3: each field of an owner.
    #[test]
    fn an_owner_is_checked_field_by_field() {
        assert_eq!(owner().check(), Ok(()));
        let refused = |change: fn(&mut Owner)| {
            let mut owner = owner();
            change(&mut owner);
            assert!(owner.check().is_err(), "{owner:?}");
        };
        refused(|owner| owner.key.namespace = Arc::from(""));
        refused(|owner| owner.key.client_id = "c".repeat(1_025).into());
        refused(|owner| owner.session_generation = 0);
        refused(|owner| owner.owner_generation = 0);
        refused(|owner| owner.node_id = 0);
        refused(|owner| owner.boot_id = "b".repeat(129).into());
        refused(|owner| owner.connection_id = 0);
    }
}
