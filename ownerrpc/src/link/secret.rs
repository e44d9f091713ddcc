//! The cluster secret, and the proofs that both sides know it.

use std::fmt;

use ring::hmac;
use thiserror::Error;

/// Bytes of a proof.
pub(super) const PROOF_BYTES: usize = 32;
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 1_024;

/// What all nodes of a cluster know and nobody else does. It is never sent, stored or shown.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// A secret that is too short or too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the cluster secret has {0} bytes, it must have 16 to 1,024; 32 random bytes are right")]
pub struct SecretError(pub usize);

/// Which side proves. It is part of what is proved, so that no proof can be sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Dialer,
    Acceptor,
}

/// What a proof covers: both hellos whole (cluster, nodes, versions, boots, nonces), the version that came of them, and the TLS
/// session if there is one, so that nobody between the two can pass proofs on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transcript<'a> {
    pub(super) dialer: &'a [u8],
    pub(super) acceptor: &'a [u8],
    pub(super) version: u16,
    pub(super) tls_exporter: Option<&'a [u8]>,
}

impl Secret {
    /// # Errors
    /// Fewer than 16 or more than 1,024 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError(bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    pub(super) fn prove(&self, role: Role, transcript: &Transcript<'_>) -> [u8; PROOF_BYTES] {
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(hmac::sign(&self.0, &transcript.bytes(role)).as_ref());
        proof
    }

    /// In constant time.
    pub(super) fn verify(&self, role: Role, transcript: &Transcript<'_>, proof: &[u8]) -> bool {
        hmac::verify(&self.0, &transcript.bytes(role), proof).is_ok()
    }
}

impl Transcript<'_> {
    /// No two transcripts have the same bytes: every part of variable length has its length in front.
    fn bytes(&self, role: Role) -> Vec<u8> {
        let mut out = match role {
            Role::Dialer => b"exactmq peer link: dialer\0".to_vec(),
            Role::Acceptor => b"exactmq peer link: acceptor\0".to_vec(),
        };
        for part in [self.dialer, self.acceptor, self.tls_exporter.unwrap_or_default()] {
            out.extend_from_slice(&u32::try_from(part.len()).expect("a hello is short").to_be_bytes());
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&self.version.to_be_bytes());
        out
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::link::hello::{Hello, Method};

    const TRANSCRIPT: Transcript<'static> =
        Transcript { dialer: b"hello d", acceptor: b"hello a", version: 1, tls_exporter: None };

    #[test]
    fn a_secret_has_16_to_1024_bytes() {
        assert_eq!(Secret::new(&[1; 15]).err(), Some(SecretError(15)));
        assert!(Secret::new(&[1; 16]).is_ok());
        assert!(Secret::new(&[1; 1_024]).is_ok());
        assert_eq!(Secret::new(&[1; 1_025]).err(), Some(SecretError(1_025)));
        assert_eq!(format!("{:?}", Secret::new(&[1; 16])), "Ok(Secret(..))");
    }

    fn hello(from: u64, to: u64, nonce: u8, boot_id: &str) -> Bytes {
        let hello = Hello {
            method: Method::Secret,
            versions: (1, 1),
            cluster_id: [1; 16],
            from,
            to,
            nonce: [nonce; 32],
            boot_id: Arc::from(boot_id),
        };
        hello.encode()
    }

    /// WIRE.md §3: computed by another implementation of HMAC.
    #[test]
    fn proofs_are_the_golden_bytes() {
        let secret = Secret::new(&[7; 32]).expect("long enough");
        let (dialer, acceptor) = (hello(1, 2, 9, "b1"), hello(2, 1, 8, "b2"));
        let plain = Transcript { dialer: &dialer, acceptor: &acceptor, version: 1, tls_exporter: None };
        let tls = Transcript { tls_exporter: Some(&[5; 32]), ..plain };
        let golden = [
            (Role::Dialer, plain, "094ab03f4a9b387073df9c4268556ae231c078a5bf1487cb073120c1cb97a0f2"),
            (Role::Acceptor, plain, "dc3d8f0308a8a16270244f305c1e0a2994e6f4c92c51128f2ecf6108200d7e9a"),
            (Role::Dialer, tls, "3188c1dc8d74025939090c246f31e12af68726381ad3664461ebb19dfdcf49f2"),
        ];
        for (role, transcript, expected) in golden {
            let proof = secret.prove(role, &transcript);
            let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected, "{role:?}");
        }
    }

    /// DESIGN §8: a proof is of one side, one pair of hellos, one version and one TLS session.
    #[test]
    fn a_proof_fits_nothing_but_its_transcript() {
        let secret = Secret::new(&[1; 32]).expect("long enough");
        let proof = secret.prove(Role::Dialer, &TRANSCRIPT);
        assert!(secret.verify(Role::Dialer, &TRANSCRIPT, &proof));
        assert!(!secret.verify(Role::Acceptor, &TRANSCRIPT, &proof), "sent back");
        assert!(!Secret::new(&[2; 32]).expect("long enough").verify(Role::Dialer, &TRANSCRIPT, &proof));
        let others = [
            Transcript { dialer: b"hello a", acceptor: b"hello d", ..TRANSCRIPT },
            Transcript { dialer: b"hello dh", acceptor: b"ello a", ..TRANSCRIPT },
            Transcript { version: 2, ..TRANSCRIPT },
            Transcript { tls_exporter: Some(&[0; 32]), ..TRANSCRIPT },
        ];
        for other in others {
            assert!(!secret.verify(Role::Dialer, &other, &proof), "{other:?}");
        }
        assert!(!secret.verify(Role::Dialer, &TRANSCRIPT, &proof[..31]));
        assert!(!secret.verify(Role::Dialer, &TRANSCRIPT, &[]));
    }
}
