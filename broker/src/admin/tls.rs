//! The TLS side of the admin API: its certificate, who of other machines must have one, and the file that lets commands on this machine
//! trust exactly this node.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway::listener::{ClientCertificates, Tls, TlsSettings};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio_rustls::TlsAcceptor;

use crate::config::Admin;

/// File in the data directory that holds the certificate which the admin API shows.
pub const CERTIFICATE_FILE: &str = "admin.cert";

/// What the admin API shows, and asks for.
#[derive(Debug, Clone)]
pub struct AdminTls {
    /// For calls from other machines.
    others: Tls,
    /// For calls from this one: nobody here is asked for a certificate. The token is asked for either way.
    own: Tls,
    leaf: CertificateDer<'static>,
}

impl AdminTls {
    /// Reads the files that the configuration names; `None`: it speaks plain http.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn read(admin: &Admin) -> Result<Option<Self>, String> {
        let (Some(certificates), Some(key)) = (&admin.tls_cert, &admin.tls_key) else { return Ok(None) };
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let own = TlsSettings {
            certificates_pem: read(certificates)?,
            private_key_pem: read(key)?,
            client_certificates: ClientCertificates::NotAsked,
            client_authorities_pem: Vec::new(),
        };
        let others = match &admin.tls_client_ca {
            None => own.clone(),
            Some(path) => TlsSettings {
                client_certificates: ClientCertificates::Required,
                client_authorities_pem: read(path)?,
                ..own.clone()
            },
        };
        let leaf =
            CertificateDer::from_pem_slice(&own.certificates_pem).map_err(|error| error.to_string())?;
        let make = |settings: &TlsSettings| Tls::new(settings).map_err(|error| error.to_string());
        Ok(Some(Self { others: make(&others)?, own: make(&own)?, leaf }))
    }

    /// Takes over what another one was made of, for connections from now on.
    pub(super) fn adopt(&mut self, new: &Self) {
        self.others.adopt(&new.others);
        self.own.adopt(&new.own);
        self.leaf = new.leaf.clone();
    }

    pub(super) fn acceptor(&self, peer: SocketAddr, local: Option<SocketAddr>) -> TlsAcceptor {
        let (peer, local) = (peer.ip().to_canonical(), local.map(|local| local.ip().to_canonical()));
        let is_own = peer.is_loopback() || Some(peer) == local;
        if is_own { self.own.acceptor() } else { self.others.acceptor() }
    }

    /// Writes [`CERTIFICATE_FILE`], whole or not at all.
    pub(super) fn publish(&self, data_dir: &Path) -> io::Result<()> {
        let temporary = data_dir.join(format!("{CERTIFICATE_FILE}.tmp"));
        let text = STANDARD.encode(&self.leaf);
        let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
        for line in text.as_bytes().chunks(64) {
            pem.extend(line.iter().map(|byte| char::from(*byte)));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
        std::fs::write(&temporary, pem)?;
        std::fs::rename(&temporary, data_dir.join(CERTIFICATE_FILE))
    }
}
