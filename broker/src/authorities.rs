//! TLS towards another service: it is trusted when an authority of a file vouches for it, and nothing else is.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore, crypto};

/// A client that trusts the authorities in `pem`.
///
/// # Errors
/// What is wrong with the file, to stand behind its name.
pub(crate) fn trusting(pem: &[u8]) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| format!("is no PEM: {error}"))?;
        roots.add(certificate).map_err(|error| format!("has a certificate that is no authority: {error}"))?;
    }
    if roots.is_empty() {
        return Err("has no certificate".to_owned());
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots))
}
