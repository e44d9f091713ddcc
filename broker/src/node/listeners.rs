//! MQTT listeners: from configuration to the gateway, and the file that says where they really are.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use gateway::connection::Limits;
use gateway::listener::{ClientCertificates, ListenerConfig, Tls, TlsSettings};
use serde::{Deserialize, Serialize};

use super::{ServeError, process};
use crate::config::{ClientAuth, Config, Listener};

/// Name of the file in the data directory.
pub const LISTENERS_FILE: &str = "listeners.json";

/// One bound listener as `listeners.json` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundListener {
    pub name: Arc<str>,
    pub protocol: String,
    pub address: SocketAddr,
}

/// What the gateway is told about a listener.
///
/// # Errors
/// Certificates or keys that cannot be read or used.
pub(super) fn listener_config(
    name: &Arc<str>,
    listener: &Listener,
    config: &Config,
) -> Result<ListenerConfig, ServeError> {
    let limits = Limits {
        packet_size_max: listener.packet_size_max,
        connect_packet_size_max: listener.connect_packet_size_max,
        receive_maximum: config.session.receive_maximum,
        topic_alias_maximum: config.session.topic_alias_maximum,
        topic_alias_out_maximum: config.session.topic_alias_out_maximum,
        outbox_bytes_max: config.session.outbox_bytes_max,
        connect_timeout_ms: listener.connect_timeout_ms,
    };
    Ok(ListenerConfig {
        name: name.clone(),
        address: listener.address,
        limits,
        connections_max: usize::try_from(listener.max_connections).unwrap_or(usize::MAX),
        connections_per_address_max: usize::try_from(listener.connections_per_address_max)
            .unwrap_or(usize::MAX),
        connect_rate_max: listener.connect_rate_max,
        descriptors_max: process::socket_descriptors_max(),
        tls: if listener.protocol.is_secure() { Some(tls(name, listener)?) } else { None },
        websocket: listener.protocol.is_websocket(),
        proxy_protocol: listener.proxy_protocol,
        proxy_certificate: listener.proxy_certificate_user,
    })
}

/// Reads certificates, key and authorities of a listener.
///
/// # Errors
/// [`ServeError::Tls`]: a file that cannot be read or used.
pub(crate) fn tls(name: &Arc<str>, listener: &Listener) -> Result<Tls, ServeError> {
    let refused = |what: String| ServeError::Tls { listener: name.clone(), what };
    let read = |path: Option<&std::path::PathBuf>, key: &str| {
        let path = path.ok_or_else(|| refused(format!("{key} is missing")))?;
        std::fs::read(path).map_err(|error| refused(format!("cannot read {}: {error}", path.display())))
    };
    let client_certificates = match listener.tls_client_auth {
        ClientAuth::None => ClientCertificates::NotAsked,
        ClientAuth::Optional => ClientCertificates::Optional,
        ClientAuth::Required => ClientCertificates::Required,
    };
    let client_authorities_pem = match listener.tls_client_auth {
        ClientAuth::None => Vec::new(),
        ClientAuth::Optional | ClientAuth::Required => {
            read(listener.tls_client_ca.as_ref(), "tls_client_ca")?
        }
    };
    let settings = TlsSettings {
        certificates_pem: read(listener.tls_cert.as_ref(), "tls_cert")?,
        private_key_pem: read(listener.tls_key.as_ref(), "tls_key")?,
        client_certificates,
        client_authorities_pem,
    };
    Tls::new(&settings).map_err(|error| refused(error.to_string()))
}

/// Writes `content` to a file of the data directory so that readers see it whole or not at all.
///
/// # Errors
/// I/O.
pub(super) fn write_file(data_dir: &Path, name: &str, content: &[u8]) -> Result<(), ServeError> {
    let path = data_dir.join(name);
    let temporary = data_dir.join(format!("{name}.tmp"));
    let io = |source| ServeError::Io { path: path.clone(), source };
    std::fs::write(&temporary, content).map_err(io)?;
    std::fs::rename(&temporary, &path).map_err(io)
}
