//! How peers know each other: the cluster secret, mutual TLS, or both; never neither.

use thiserror::Error;

use super::hello::Method;
use super::secret::{Secret, SecretError};
use super::tls::{Tls, TlsError, TlsSettings};

/// What the configuration says.
#[derive(Clone, Default)]
pub struct SecuritySettings {
    /// The cluster secret, 16 to 1,024 bytes.
    pub secret: Option<Vec<u8>>,
    pub tls: Option<TlsSettings>,
    /// Without TLS: that the network between the nodes is trusted. The secret then keeps strangers out, but who can change packets
    /// on their way can change anything.
    pub trusted_network: bool,
}

/// How the peers of this node are authenticated. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Security {
    pub(super) secret: Option<Secret>,
    pub(super) tls: Option<Tls>,
}

/// Why the peer port stays closed.
#[derive(Debug, Error)]
pub enum SecurityError {
    #[error(
        "neither a cluster secret nor certificates are configured, so peers cannot be told from strangers"
    )]
    Missing,
    #[error(
        "a cluster secret without TLS protects only on a trusted network, and the network is not declared to be one"
    )]
    Plain,
    #[error("{0}")]
    Secret(#[from] SecretError),
    #[error("{0}")]
    Tls(#[from] TlsError),
}

impl Security {
    /// # Errors
    /// There is nothing to authenticate with, or it cannot be used (DESIGN §8: the peer port stays closed).
    pub fn new(settings: &SecuritySettings) -> Result<Self, SecurityError> {
        let secret = settings.secret.as_deref().map(Secret::new).transpose()?;
        let tls = settings.tls.as_ref().map(Tls::new).transpose()?;
        match (&secret, &tls) {
            (None, None) => Err(SecurityError::Missing),
            (Some(_), None) if !settings.trusted_network => Err(SecurityError::Plain),
            _ => Ok(Self { secret, tls }),
        }
    }

    pub(super) fn method(&self) -> Method {
        if self.secret.is_some() { Method::Secret } else { Method::Certificate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN §8: no secret and no certificate, no peer port.
    #[test]
    fn without_a_secret_or_a_certificate_there_is_no_security() {
        assert!(matches!(Security::new(&SecuritySettings::default()), Err(SecurityError::Missing)));
        let trusted = SecuritySettings { trusted_network: true, ..SecuritySettings::default() };
        assert!(matches!(Security::new(&trusted), Err(SecurityError::Missing)));
        let secret = SecuritySettings { secret: Some(vec![1; 32]), ..SecuritySettings::default() };
        assert!(matches!(Security::new(&secret), Err(SecurityError::Plain)));
        assert!(Security::new(&SecuritySettings { trusted_network: true, ..secret }).is_ok());
        let short = SecuritySettings { secret: Some(vec![]), ..trusted };
        assert!(matches!(Security::new(&short), Err(SecurityError::Secret(SecretError(0)))));
    }
}
