//! MQTT 5 properties (§2.2.2): tables of what is allowed where, checked in one pass, kept as borrowed wire bytes.

/// User properties (and, in forwarded ones, the others) as validated wire bytes: iterate to read, copy to forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UserProperties<'a> {
    /// Property bytes without length prefix; entries other than user properties are skipped on iteration.
    pub raw: &'a [u8],
}

impl<'a> UserProperties<'a> {
    /// No property.
    pub const EMPTY: Self = UserProperties { raw: &[] };

    /// Name and value of each, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        std::iter::empty()
    }
}

/// Property bytes of a PUBLISH that a server forwards (everything but Message Expiry Interval, Topic Alias and Subscription
/// Identifier), without length prefix. Borrowed when they are contiguous, else collected in `scratch`.
#[must_use]
pub fn forwarded_properties<'a>(_raw: &'a [u8], _scratch: &'a mut Vec<u8>) -> &'a [u8] {
    unimplemented!()
}
