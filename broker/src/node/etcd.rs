//! What the configuration says about etcd, read and made ready before anything is opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use session::id::Boot;
use session::time::Millis;
use storage::boot::Recovered;
use storage::lease::{EtcdOptions, EtcdTls, NodeClaim, Password};

use crate::config::{Config, LeaseHome};
use crate::usecase::hold::NodeHold;

/// What is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error(
        "\"etcd\" is not compiled into this exactmq; build it with `cargo build --release --locked -p broker --features etcd` (Debian \
         packages protobuf-compiler and libprotobuf-dev), or set queue.leases = \"embedded\""
    )]
    NotBuilt,
    #[error("{}: {source}", path.display())]
    File { key: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{}: no PEM block of it begins", path.display())]
    Pem { key: &'static str, path: PathBuf },
    #[error("{}: it is empty; write the password into it", path.display())]
    NoPassword { path: PathBuf },
}

impl EtcdError {
    /// The key of the configuration that it is about.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::NotBuilt => "queue.leases",
            Self::File { key, .. } | Self::Pem { key, .. } => key,
            Self::NoPassword { .. } => "queue.etcd_password_file",
        }
    }
}

/// Reads the files and puts the keys of this cluster below the namespace.
///
/// # Errors
/// See [`EtcdError`].
pub(crate) fn etcd_options(config: &Config, cluster_id: [u8; 16]) -> Result<EtcdOptions, EtcdError> {
    use std::fmt::Write as _;
    if !EtcdOptions::is_built() {
        return Err(EtcdError::NotBuilt);
    }
    let queue = &config.queue;
    let tls = match &queue.etcd_tls_ca {
        Some(authority) => Some(EtcdTls {
            authority: pem("queue.etcd_tls_ca", authority)?,
            identity: match (&queue.etcd_tls_cert, &queue.etcd_tls_key) {
                (Some(certificate), Some(key)) => {
                    Some((pem("queue.etcd_tls_cert", certificate)?, pem("queue.etcd_tls_key", key)?))
                }
                _ => None,
            },
            server_name: None,
        }),
        None => None,
    };
    let user = match (&queue.etcd_user, &queue.etcd_password_file) {
        (Some(user), Some(path)) => Some((user.to_string(), password(path)?)),
        _ => None,
    };
    let mut namespace = format!("{}/", queue.etcd_namespace);
    for byte in cluster_id {
        // Writing to a String cannot fail.
        let _ = write!(namespace, "{byte:02x}");
    }
    let endpoints = queue.etcd_endpoints.as_ref().map_or_else(Vec::new, |urls| urls.0.to_vec());
    Ok(EtcdOptions { endpoints, namespace, user, tls })
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, EtcdError> {
    std::fs::read(path).map_err(|source| EtcdError::File { key, path: path.to_owned(), source })
}

fn pem(key: &'static str, path: &Path) -> Result<Vec<u8>, EtcdError> {
    let bytes = read(key, path)?;
    let begins = bytes.windows(11).any(|window| window == b"-----BEGIN ");
    if begins { Ok(bytes) } else { Err(EtcdError::Pem { key, path: path.to_owned() }) }
}

fn password(path: &Path) -> Result<Password, EtcdError> {
    let bytes = read("queue.etcd_password_file", path)?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    if text.is_empty() { Err(EtcdError::NoPassword { path: path.to_owned() }) } else { Ok(Password(text)) }
}

/// The lease of this boot in etcd; `None`: the configuration wants none.
///
/// # Errors
/// See [`EtcdError`].
pub(super) fn hold(
    config: &Config,
    boot: &Boot,
    cluster_id: [u8; 16],
    recovered: &Recovered,
    now: Millis,
) -> Result<Option<Arc<NodeHold>>, EtcdError> {
    if config.queue.leases == LeaseHome::Embedded {
        return Ok(None);
    }
    let options = etcd_options(config, cluster_id)?;
    let listeners = config.listeners.iter().map(|(name, listener)| {
        let advertised = listener.advertise.as_ref().map(|place| place.0.to_string());
        (name.to_string(), advertised.unwrap_or_else(|| listener.address.to_string()))
    });
    let mut addresses: BTreeMap<String, String> = listeners.collect();
    let advertised = config.cluster.advertise.as_ref().map(|place| place.0.to_string());
    let peer = advertised.or_else(|| config.cluster.peer.0.map(|address| address.to_string()));
    addresses.extend(peer.map(|peer| ("peer".to_owned(), peer)));
    let claim = NodeClaim {
        node_id: boot.node_id,
        boot_id: boot.boot_id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: now.0,
        addresses,
    };
    let graceful = recovered.graceful.iter().map(|found| found.boot.boot_id.clone());
    let ended = recovered.crashed.iter().cloned().chain(graceful).collect();
    let ttl = Duration::from_secs(u64::from(config.queue.etcd_ttl_s));
    Ok(Some(Arc::new(NodeHold::new(options, ttl, claim, ended))))
}
