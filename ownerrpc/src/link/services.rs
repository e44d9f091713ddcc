//! Service numbers of the peer link, and how large a frame of each may be.

/// Numbers below this one belong to the link itself.
pub const CONTROL_END: u16 = 100;

/// Owner quiescence (owner spec §4).
pub const QUIESCE: u16 = crate::quiesce::SERVICE;
/// Raft: append, vote, and what else its groups say to each other.
pub const RAFT: u16 = 120;
/// Raft: a piece of a snapshot.
pub const SNAPSHOT: u16 = 121;
/// Routes: which filters have live subscribers on which node.
pub const ROUTES: u16 = 130;
/// Forwards: messages for live subscribers on another node.
pub const FORWARD: u16 = 140;
/// Cluster: join, membership, and what operators ask of another node.
pub const CLUSTER: u16 = 150;
/// End: an operator's decision about an owner, carried out by its node.
pub const END: u16 = 160;

/// Bytes of a payload whose service has no limit of its own.
const PAYLOAD_BYTES_DEFAULT: usize = 64 << 10;
const MIB: usize = 1 << 20;

/// Bytes of a payload by service, request and answer alike. The receiver closes the link when a frame is larger; the sender
/// refuses to send one.
#[derive(Debug, Clone)]
pub struct Limits {
    services: Vec<(u16, usize)>,
    largest: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let services = vec![
            (QUIESCE, crate::quiesce::FRAME_BYTES_MAX),
            (RAFT, 8 * MIB),
            (SNAPSHOT, 2 * MIB),
            (ROUTES, MIB),
            (FORWARD, 8 * MIB),
            (CLUSTER, MIB),
        ];
        let largest = 8 * MIB;
        Self { services, largest }
    }
}

impl Limits {
    /// Sets the limit of one service; all nodes of a cluster must agree on it.
    #[must_use]
    pub fn with(mut self, service: u16, payload_bytes_max: usize) -> Self {
        self.services.retain(|(other, _)| *other != service);
        self.services.push((service, payload_bytes_max));
        self.largest = self.services.iter().map(|(_, max)| *max).fold(PAYLOAD_BYTES_DEFAULT, usize::max);
        self
    }

    /// Bytes that a payload of `service` may have.
    #[must_use]
    pub fn payload_bytes_max(&self, service: u16) -> usize {
        if service < CONTROL_END {
            return super::control::PAYLOAD_BYTES_MAX;
        }
        let found = self.services.iter().find(|(other, _)| *other == service);
        found.map_or(PAYLOAD_BYTES_DEFAULT, |(_, max)| *max)
    }

    /// Bytes of the largest payload of any service.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_a_service_replaces_its_default() {
        let limits = Limits::default().with(RAFT, 100).with(9_999, 7);
        assert_eq!(limits.payload_bytes_max(RAFT), 100);
        assert_eq!(limits.payload_bytes_max(9_999), 7);
        assert_eq!(limits.payload_bytes_max(QUIESCE), 2_304);
        assert_eq!(limits.payload_bytes_max(9_998), PAYLOAD_BYTES_DEFAULT);
        assert_eq!(limits.largest(), 8 * MIB);
    }
}
