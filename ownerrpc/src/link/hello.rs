//! The first message of either side: who it is, whom it wants, and which versions it speaks (WIRE.md §3).

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use session::id::check_identity;
use session::limits::BOOT_ID_BYTES_MAX;
use thiserror::Error;

use super::error::HandshakeError;

pub const NONCE_BYTES: usize = 32;
/// A cluster id that stands for "of no cluster yet".
pub const NO_CLUSTER: [u8; 16] = [0; 16];
/// Bytes of what later versions may append to a hello.
const TAIL_BYTES_MAX: usize = 256;
const MAGIC: [u8; 4] = *b"XMQP";
/// Layout of the hello itself; it stays the same in all versions of the link, so that they can negotiate.
const FORMAT: u8 = 1;
const FIXED_BYTES: usize = 4 + 1 + 1 + 2 + 2 + 16 + 8 + 8 + NONCE_BYTES + 2;

/// How the two sides prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Method {
    /// Both prove that they know the cluster secret.
    Secret = 1,
    /// The certificates of mutual TLS are proof enough.
    Certificate = 2,
}

/// One side's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub method: Method,
    /// Versions of the link that it speaks, lowest and highest.
    pub versions: (u16, u16),
    pub cluster_id: [u8; 16],
    pub from: u64,
    /// The node that it wants; 0: whoever is there (only a dialer may say that).
    pub to: u64,
    pub nonce: [u8; NONCE_BYTES],
    pub boot_id: Arc<str>,
}

/// What is wrong with a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HelloError {
    #[error("it has {0} bytes")]
    Length(usize),
    #[error("the magic number is wrong: this is no node of ExactMQ")]
    Magic,
    #[error("its layout {0} is unknown")]
    Format(u8),
    #[error("authentication method {0} is unknown")]
    Method(u8),
    #[error("versions {0} to {1} are no range")]
    Versions(u16, u16),
    #[error("its node id is 0")]
    NodeId,
    #[error("its boot id is not valid")]
    BootId,
}

impl Hello {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FIXED_BYTES + self.boot_id.len());
        out.put_slice(&MAGIC);
        out.put_u8(FORMAT);
        out.put_u8(self.method as u8);
        out.put_u16(self.versions.0);
        out.put_u16(self.versions.1);
        out.put_slice(&self.cluster_id);
        out.put_u64(self.from);
        out.put_u64(self.to);
        out.put_slice(&self.nonce);
        out.put_u16(u16::try_from(self.boot_id.len()).expect("a boot id has at most 128 bytes"));
        out.put_slice(self.boot_id.as_bytes());
        out.freeze()
    }

    /// # Errors
    /// The first rule that it breaks. What follows the boot id belongs to later versions: it is not looked at here, but proofs
    /// cover it.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let length = HelloError::Length(bytes.len());
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>().ok_or(length)?;
        if fixed[..4] != MAGIC {
            return Err(HelloError::Magic);
        }
        if fixed[4] != FORMAT {
            return Err(HelloError::Format(fixed[4]));
        }
        let method = match fixed[5] {
            1 => Method::Secret,
            2 => Method::Certificate,
            other => return Err(HelloError::Method(other)),
        };
        let versions = (u16::from_be_bytes(array(fixed, 6)), u16::from_be_bytes(array(fixed, 8)));
        if versions.0 == 0 || versions.0 > versions.1 {
            return Err(HelloError::Versions(versions.0, versions.1));
        }
        let from = u64::from_be_bytes(array(fixed, 26));
        if from == 0 {
            return Err(HelloError::NodeId);
        }
        let boot_bytes = usize::from(u16::from_be_bytes(array(fixed, 74)));
        let (boot_id, tail) = rest.split_at_checked(boot_bytes).ok_or(length)?;
        let boot_id = std::str::from_utf8(boot_id).map_err(|_| HelloError::BootId)?;
        check_identity(boot_id, BOOT_ID_BYTES_MAX).map_err(|_| HelloError::BootId)?;
        if tail.len() > TAIL_BYTES_MAX {
            return Err(length);
        }
        Ok(Self {
            method,
            versions,
            cluster_id: array(fixed, 10),
            from,
            to: u64::from_be_bytes(array(fixed, 34)),
            nonce: array(fixed, 42),
            boot_id: Arc::from(boot_id),
        })
    }
}

/// The version that both speak, or why the two are no peers. Both sides come to the same conclusion from the same two hellos.
pub(super) fn agree(dialer: &Hello, acceptor: &Hello, mine: &Hello) -> Result<u16, HandshakeError> {
    let theirs = if std::ptr::eq(mine, dialer) { acceptor } else { dialer };
    if dialer.method != acceptor.method {
        return Err(HandshakeError::Method);
    }
    let joins = dialer.cluster_id == NO_CLUSTER && acceptor.cluster_id != NO_CLUSTER;
    let same = dialer.cluster_id == acceptor.cluster_id && dialer.cluster_id != NO_CLUSTER;
    if !joins && !same {
        return Err(HandshakeError::Cluster);
    }
    if dialer.from == acceptor.from {
        return Err(HandshakeError::Node { wanted: dialer.to, found: acceptor.from });
    }
    if dialer.to != 0 && dialer.to != acceptor.from {
        return Err(HandshakeError::Node { wanted: dialer.to, found: acceptor.from });
    }
    if acceptor.to != dialer.from {
        return Err(HandshakeError::Node { wanted: acceptor.to, found: dialer.from });
    }
    let version = dialer.versions.1.min(acceptor.versions.1);
    if version < dialer.versions.0.max(acceptor.versions.0) {
        return Err(HandshakeError::Version { ours: mine.versions, theirs: theirs.versions });
    }
    Ok(version)
}

fn array<const N: usize>(bytes: &[u8; FIXED_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello() -> Hello {
        Hello {
            method: Method::Secret,
            versions: (1, 2),
            cluster_id: [7; 16],
            from: 1,
            to: 2,
            nonce: [9; 32],
            boot_id: Arc::from("b1"),
        }
    }

    fn reply() -> Hello {
        Hello { from: 2, to: 1, nonce: [8; 32], boot_id: Arc::from("b2"), ..hello() }
    }

    fn outcome(dialer: &Hello, acceptor: &Hello) -> Result<u16, String> {
        let seen = agree(dialer, acceptor, dialer).map_err(|error| error.to_string());
        assert_eq!(seen.is_ok(), agree(dialer, acceptor, acceptor).is_ok(), "both conclude the same");
        seen
    }

    /// WIRE.md §3: the layout that all versions share.
    #[test]
    fn a_hello_is_these_bytes() {
        let mut expected = b"XMQP\x01\x01\x00\x01\x00\x02".to_vec();
        expected.extend_from_slice(&[7; 16]);
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        expected.extend_from_slice(&[9; 32]);
        expected.extend_from_slice(&[0, 2, b'b', b'1']);
        assert_eq!(&hello().encode()[..], &expected[..]);
        assert_eq!(Hello::decode(&expected), Ok(hello()));
        expected.extend_from_slice(&[1; TAIL_BYTES_MAX]);
        assert_eq!(Hello::decode(&expected), Ok(hello()), "later versions may append");
        expected.push(1);
        assert_eq!(Hello::decode(&expected), Err(HelloError::Length(expected.len())));
    }

    #[test]
    fn a_misshapen_hello_is_refused_with_its_reason() {
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = hello().encode().to_vec();
            bytes[at..at + to.len()].copy_from_slice(to);
            Hello::decode(&bytes)
        };
        let bytes = hello().encode();
        for len in 0..bytes.len() {
            assert_eq!(Hello::decode(&bytes[..len]), Err(HelloError::Length(len)));
        }
        assert_eq!(changed(0, b"MQTT"), Err(HelloError::Magic));
        assert_eq!(changed(4, &[2]), Err(HelloError::Format(2)));
        assert_eq!(changed(5, &[3]), Err(HelloError::Method(3)));
        assert_eq!(changed(6, &[0, 0]), Err(HelloError::Versions(0, 2)));
        assert_eq!(changed(6, &[0, 3]), Err(HelloError::Versions(3, 2)));
        assert_eq!(changed(26, &[0; 8]), Err(HelloError::NodeId));
        assert_eq!(changed(75, &[0]), Err(HelloError::BootId));
        assert_eq!(changed(76, &[0xFF]), Err(HelloError::BootId));
    }

    /// DESIGN §8: nodes of adjacent versions interoperate, the highest common one is used.
    #[test]
    fn the_highest_common_version_is_used() {
        let with = |dialer, acceptor| {
            outcome(&Hello { versions: dialer, ..hello() }, &Hello { versions: acceptor, ..reply() })
        };
        assert_eq!(with((1, 1), (1, 2)), Ok(1));
        assert_eq!(with((1, 2), (1, 1)), Ok(1));
        assert_eq!(with((1, 3), (2, 4)), Ok(3));
        assert_eq!(with((2, 2), (2, 2)), Ok(2));
        assert!(with((1, 1), (2, 3)).is_err_and(|why| why.contains("1..1") && why.contains("2..3")));
        assert!(with((3, 4), (1, 2)).is_err());
    }

    #[test]
    fn only_nodes_that_mean_each_other_agree() {
        assert_eq!(outcome(&hello(), &reply()), Ok(2));
        assert_eq!(outcome(&Hello { to: 0, ..hello() }, &reply()), Ok(2));
        assert!(outcome(&Hello { to: 3, ..hello() }, &reply()).is_err());
        assert!(outcome(&hello(), &Hello { to: 3, ..reply() }).is_err());
        assert!(outcome(&hello(), &Hello { to: 0, ..reply() }).is_err());
        assert!(outcome(&hello(), &Hello { cluster_id: [6; 16], ..reply() }).is_err());
        assert!(outcome(&hello(), &Hello { method: Method::Certificate, ..reply() }).is_err());
        // A node that linked to itself would be its own evidence.
        assert!(outcome(&Hello { to: 1, ..hello() }, &Hello { from: 1, to: 1, ..reply() }).is_err());
        assert!(outcome(&Hello { to: 0, ..hello() }, &Hello { from: 1, to: 1, ..reply() }).is_err());
        // One that joins has no cluster yet; one that is joined has.
        assert_eq!(outcome(&Hello { cluster_id: NO_CLUSTER, ..hello() }, &reply()), Ok(2));
        assert!(outcome(&hello(), &Hello { cluster_id: NO_CLUSTER, ..reply() }).is_err());
        let strangers =
            (Hello { cluster_id: NO_CLUSTER, ..hello() }, Hello { cluster_id: NO_CLUSTER, ..reply() });
        assert!(outcome(&strangers.0, &strangers.1).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_hello_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Hello::decode(&bytes);
            let mut shaped = hello().encode().to_vec();
            for (at, byte) in bytes.iter().enumerate().take(shaped.len()).filter(|(at, _)| at % 7 == 5) {
                shaped[at] = *byte;
            }
            if let Ok(read) = Hello::decode(&shaped) {
                prop_assert_eq!(Hello::decode(&read.encode()), Ok(read));
            }
        }
    }
}
