//! What a node asks of the operating system for its process: descriptors, and who may read its files.

use rustix::fs::Mode;
use rustix::process::{Resource, getrlimit, setrlimit, umask};

/// Descriptors that sockets of clients leave for the log, the state, snapshots, peers and the admin port, unless that is more than a
/// quarter of all.
const RESERVED: u64 = 256;

/// Raises the descriptor limit to what the system allows, and keeps what is written from now on to this user: queued payloads are nobody
/// else's.
pub(super) fn prepare() {
    umask(Mode::RWXG | Mode::RWXO);
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the descriptor limit could not be raised");
    }
}

/// Sockets get descriptor numbers below this.
pub(super) fn socket_descriptors_max() -> u64 {
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    all - RESERVED.min(all / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P9: whatever the limit is, files get a part of it.
    #[test]
    fn files_get_a_part() {
        let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(socket_descriptors_max() < all);
        assert!(socket_descriptors_max() >= all / 2);
    }
}
