//! TLS with rustls on ring: server certificate, client certificates, and the name in them.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Protocols offered by ALPN: MQTT, and HTTP for the WebSocket upgrade.
const ALPN: [&[u8]; 2] = [b"mqtt", b"http/1.1"];

/// Whether clients show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    #[default]
    NotAsked,
    Optional,
    Required,
}

/// What a TLS listener needs, as PEM.
#[derive(Clone)]
pub struct TlsSettings {
    /// Server certificate and its chain, leaf first.
    pub certificates_pem: Vec<u8>,
    pub private_key_pem: Vec<u8>,
    pub client_certificates: ClientCertificates,
    /// Authorities of client certificates; needed unless `NotAsked`.
    pub client_authorities_pem: Vec<u8>,
}

/// Why TLS settings cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("certificate: {0}")]
    Certificate(rustls_pki_types::pem::Error),
    #[error("certificate: the file holds none")]
    NoCertificate,
    #[error("private key: {0}")]
    PrivateKey(rustls_pki_types::pem::Error),
    #[error("client authorities: {0}")]
    Authorities(rustls_pki_types::pem::Error),
    #[error("client authorities: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("{0}")]
    Config(#[from] rustls::Error),
}

/// The TLS side of a listener; clones share it, so that certificates can be replaced while it runs.
#[derive(Debug, Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl Tls {
    /// Checks the settings.
    ///
    /// # Errors
    /// What is wrong with certificate, key or authorities.
    pub fn new(settings: &TlsSettings) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(RwLock::new(server_config(settings)?))))
    }

    /// Replaces certificates for connections from now on.
    ///
    /// # Errors
    /// As [`Tls::new`]; the old settings stay then.
    pub fn reload(&self, settings: &TlsSettings) -> Result<(), TlsError> {
        let config = server_config(settings)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Takes over what another one was made of, for connections from now on.
    pub fn adopt(&self, other: &Self) {
        let config = Arc::clone(&other.0.read().unwrap_or_else(PoisonError::into_inner));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// For the next connection, with what is in force now.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.acceptor().accept(stream).await
    }
}

fn server_config(settings: &TlsSettings) -> Result<Arc<ServerConfig>, TlsError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&settings.certificates_pem)
        .collect::<Result<_, _>>()
        .map_err(TlsError::Certificate)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(&settings.private_key_pem).map_err(TlsError::PrivateKey)?;
    // Given explicitly: the default of the process may be another one.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = if settings.client_certificates == ClientCertificates::NotAsked {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&settings.client_authorities_pem) {
            roots.add(authority.map_err(TlsError::Authorities)?)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = match settings.client_certificates {
            ClientCertificates::Optional => verifier.allow_unauthenticated(),
            _ => verifier,
        };
        builder.with_client_cert_verifier(verifier.build()?)
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
    Ok(Arc::new(config))
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// `[0] EXPLICIT`: the version of a certificate.
const VERSION: u8 = 0xA0;
const UTF8_STRING: u8 = 0x0C;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The first common name in the subject of a certificate (RFC 5280 §4.1). rustls has verified it; here nothing is
/// trusted again, and whatever is not as expected has no name.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (to_be_signed, _) = expect(certificate, SEQUENCE)?;
    let mut rest = to_be_signed;
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    // Serial number, signature algorithm, issuer, validity.
    for _ in 0..4 {
        rest = element(rest)?.2;
    }
    let (mut names, _) = expect(rest, SEQUENCE)?;
    while !names.is_empty() {
        let (mut attributes, following) = expect(names, SET)?;
        names = following;
        while !attributes.is_empty() {
            let (attribute, following) = expect(attributes, SEQUENCE)?;
            attributes = following;
            let (kind, value) = expect(attribute, OBJECT_IDENTIFIER)?;
            if kind != COMMON_NAME {
                continue;
            }
            let (tag, text, _) = element(value)?;
            let is_text = matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING);
            return is_text.then(|| std::str::from_utf8(text).ok().map(str::to_owned)).flatten();
        }
    }
    None
}

/// Content of the element at the front, which must have this tag, and what follows it.
fn expect(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(der)?;
    (found == tag).then_some((content, rest))
}

/// Tag, content and rest of the DER element at the front.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let digits = usize::from(first & 0x7F);
        if digits == 0 || digits > 4 || digits > rest.len() {
            return None;
        }
        let (digits, rest) = rest.split_at(digits);
        (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
    };
    (len <= rest.len()).then(|| (tag, &rest[..len], &rest[len..]))
}
