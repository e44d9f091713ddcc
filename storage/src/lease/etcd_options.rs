//! Where the etcd cluster with the leases is, and how to get in: known to every build, used by one with the feature `etcd`.

use std::sync::Arc;

use super::{LeaseError, NodeLeases};

#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port`; all members of the cluster.
    pub endpoints: Vec<String>,
    /// Before every key: two systems on one etcd do not meet.
    pub namespace: String,
    /// Name and password, where etcd asks for them.
    pub user: Option<(String, Password)>,
    pub tls: Option<EtcdTls>,
}

/// Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(..)")
    }
}

/// Certificates in PEM.
#[derive(Clone)]
pub struct EtcdTls {
    pub authority: Vec<u8>,
    /// Certificate and key of this client, where etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificate, where it is not that of the endpoint.
    pub server_name: Option<String>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl EtcdOptions {
    /// Whether this build can keep leases in etcd (cargo feature `etcd`).
    #[must_use]
    pub const fn is_built() -> bool {
        cfg!(feature = "etcd")
    }

    /// Connects and learns which cluster it is.
    ///
    /// # Errors
    /// [`LeaseError::Refused`]: certificates or password do not fit, or the build has no etcd; [`LeaseError::Unavailable`]: nothing answers
    /// within 3 s.
    pub async fn connect(&self) -> Result<Arc<dyn NodeLeases>, LeaseError> {
        #[cfg(feature = "etcd")]
        return Ok(Arc::new(super::etcd::EtcdBackend::connect(self).await?));
        #[cfg(not(feature = "etcd"))]
        Err(LeaseError::Refused {
            backend: "etcd".to_owned(),
            reason: "it is not compiled in; build with --features etcd".to_owned(),
        })
    }
}
