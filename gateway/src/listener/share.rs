//! How many connections one address has at a listener: nobody may take all of them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;

/// Connections by address, for a listener that bounds them. Bounded by the connections of the listener.
pub(super) struct Shares {
    per_address_max: usize,
    counts: Mutex<std::collections::HashMap<IpAddr, usize, RandomState>>,
}

/// One connection of an address, for as long as it lives.
pub(crate) struct Share {
    shares: Arc<Shares>,
    of: IpAddr,
}

impl Shares {
    /// `None`: an address may have any number.
    pub(super) fn new(per_address_max: usize) -> Option<Arc<Self>> {
        (per_address_max > 0).then(|| Arc::new(Self { per_address_max, counts: Mutex::default() }))
    }

    /// A connection of `address`; `None`: it has as many as it may.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Share> {
        let of = network(address);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(of).or_insert(0);
        if *count >= self.per_address_max {
            return None;
        }
        *count += 1;
        Some(Share { shares: Arc::clone(self), of })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.shares.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.of);
            }
        }
    }
}

impl fmt::Debug for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shares").field("per_address_max", &self.per_address_max).finish_non_exhaustive()
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("of", &self.of).finish_non_exhaustive()
    }
}

/// What one party has of addresses: who has one IPv6 address has its whole /64.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P9: an address has its share and no more, a closed connection gives its place back, and nothing is left of who is gone.
    #[test]
    fn p9_an_address_has_its_share() {
        let shares = Shares::new(2).expect("bounded");
        let one: IpAddr = "192.0.2.1".parse().expect("an address");
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().expect("an address");
        let other: IpAddr = "2001:db8::1".parse().expect("an address");
        let beside: IpAddr = "2001:db8::ffff:1".parse().expect("an address");
        let first = shares.enter(one).expect("there is room");
        let second = shares.enter(mapped).expect("there is room");
        assert!(shares.enter(one).is_none());
        let third = shares.enter(other).expect("another address");
        let fourth = shares.enter(beside).expect("there is room");
        assert!(shares.enter(other).is_none(), "the same /64");
        drop(first);
        let again = shares.enter(one).expect("a place came back");
        drop((again, second, third, fourth));
        assert!(shares.counts.lock().expect("not poisoned").is_empty());
        assert!(Shares::new(0).is_none());
    }
}
