//! What a bridge needs of its configuration, with the files that this names read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::TlsConnector;

use super::topics::TopicMap;
use crate::authorities::trusting;
use crate::config::{Bridge, BridgeProtocol, HostPort};

/// Bytes of a password file, or of one with certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a bridge cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("bridge {bridge}: {}: {what}", path.display())]
pub struct SettingsError {
    bridge: Arc<str>,
    path: PathBuf,
    what: String,
}

/// One bridge, ready to run.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) name: Arc<str>,
    pub(super) config: Bridge,
    pub(super) topics: TopicMap,
    pub(super) password: Option<Arc<[u8]>>,
    pub(super) tls: Option<TlsConnector>,
    /// What the files had in them, to see whether they changed.
    digest: [u8; 32],
}

impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config && self.digest == other.digest
    }
}

impl Settings {
    /// Reads what the configuration names.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub(super) fn read(name: &Arc<str>, config: &Bridge) -> Result<Self, SettingsError> {
        let mut files = Files { bridge: name, digest: ring::digest::Context::new(&ring::digest::SHA256) };
        let password = match &config.password_file {
            None => None,
            Some(path) => {
                let bytes = files.read(path)?;
                let password = bytes.trim_ascii();
                if password.len() > usize::from(u16::MAX) {
                    return Err(files.fault(path, "is longer than a password may be"));
                }
                Some(Arc::from(password))
            }
        };
        let tls = match config.protocol {
            BridgeProtocol::Tcp => None,
            BridgeProtocol::Tls => Some(files.connector(config)?),
        };
        if config.protocol == BridgeProtocol::Tls {
            for address in config.address.0.iter() {
                let path = config.tls_ca.as_deref().unwrap_or(Path::new("tls_ca"));
                server_name(config, address).map_err(|what| files.fault(path, what))?;
            }
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(files.digest.finish().as_ref());
        let topics = TopicMap::new(&config.topics);
        Ok(Self { name: name.clone(), config: config.clone(), topics, password, tls, digest })
    }
}

/// What the certificate of the other broker must be for.
pub(super) fn server_name(config: &Bridge, address: &HostPort) -> Result<ServerName<'static>, String> {
    let host = address.0.rsplit_once(':').map_or(&*address.0, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = config.tls_server_name.as_deref().unwrap_or(host);
    ServerName::try_from(name.to_owned()).map_err(|_| format!("no certificate can be for the host {name:?}"))
}

struct Files<'a> {
    bridge: &'a Arc<str>,
    digest: ring::digest::Context,
}

impl Files<'_> {
    fn fault(&self, path: &Path, what: impl Into<String>) -> SettingsError {
        SettingsError { bridge: self.bridge.clone(), path: path.to_owned(), what: what.into() }
    }

    fn read(&mut self, path: &Path) -> Result<Vec<u8>, SettingsError> {
        let large = std::fs::metadata(path).is_ok_and(|meta| meta.len() > FILE_BYTES_MAX);
        if large {
            return Err(self.fault(path, format!("is larger than {FILE_BYTES_MAX} bytes")));
        }
        let bytes = std::fs::read(path).map_err(|error| self.fault(path, error.to_string()))?;
        self.digest.update(&(bytes.len() as u64).to_be_bytes());
        self.digest.update(&bytes);
        Ok(bytes)
    }

    fn connector(&mut self, config: &Bridge) -> Result<TlsConnector, SettingsError> {
        let ca = config.tls_ca.as_deref().unwrap_or(Path::new("tls_ca"));
        let bytes = self.read(ca)?;
        let builder = trusting(&bytes).map_err(|what| self.fault(ca, what))?;
        let client = match (&config.tls_cert, &config.tls_key) {
            (Some(cert), Some(key)) => {
                let chain = self.read(cert)?;
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
                let chain = chain.map_err(|error| self.fault(cert, format!("is no PEM: {error}")))?;
                let bytes = self.read(key)?;
                let private = PrivateKeyDer::from_pem_slice(&bytes)
                    .map_err(|error| self.fault(key, format!("is no PEM with a private key: {error}")))?;
                let authenticated = builder.with_client_auth_cert(chain, private);
                authenticated.map_err(|error| self.fault(cert, error.to_string()))?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(TlsConnector::from(Arc::new(client)))
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
