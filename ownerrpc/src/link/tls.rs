//! Mutual TLS between nodes: rustls with ring, version 1.3 only, one authority that signs all nodes.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

const ALPN: &[u8] = b"exactmq-peer";
/// Name that dialers send; which certificate a node may have is decided by its chain and [`TlsSettings::node_name`].
const SNI: &str = "exactmq-peer";
/// Stands for the node id in [`TlsSettings::node_name`].
const NODE: &str = "{node}";

/// What mutual TLS needs, as PEM.
#[derive(Clone)]
pub struct TlsSettings {
    /// Certificate of this node and its chain, leaf first. It must be good for clients and servers.
    pub certificates_pem: Vec<u8>,
    pub private_key_pem: Vec<u8>,
    /// The authorities that sign nodes and nothing else.
    pub authorities_pem: Vec<u8>,
    /// The DNS name in a node's certificate, with `{node}` in place of its id, such as `node-{node}.mq.example`. It binds a
    /// certificate to its node. None: every certificate of the authorities may speak for every node.
    pub node_name: Option<String>,
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
    #[error("authorities: {0}")]
    Authorities(rustls_pki_types::pem::Error),
    #[error("authorities: the file holds none")]
    NoAuthority,
    #[error("authorities: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("the node name `{0}` must be a DNS name with `{NODE}` in it")]
    NodeName(String),
    #[error("{0}")]
    Config(#[from] rustls::Error),
}

/// Both sides of mutual TLS. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    node_name: Option<Arc<str>>,
}

impl Tls {
    pub(super) fn new(settings: &TlsSettings) -> Result<Self, TlsError> {
        if let Some(pattern) = &settings.node_name {
            let named = ServerName::try_from(pattern.replace(NODE, "1"));
            if !pattern.contains(NODE) || !matches!(named, Ok(ServerName::DnsName(_))) {
                return Err(TlsError::NodeName(pattern.clone()));
            }
        }
        // Given explicitly: the default of the process may be another one.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&settings.authorities_pem) {
            roots.add(authority.map_err(TlsError::Authorities)?)?;
        }
        if roots.is_empty() {
            return Err(TlsError::NoAuthority);
        }
        let roots = Arc::new(roots);
        Ok(Self {
            client: client_config(settings, &provider, Arc::clone(&roots))?,
            server: server_config(settings, &provider, roots)?,
            node_name: settings.node_name.as_deref().map(Arc::from),
        })
    }

    pub(super) async fn dial(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(SNI).map_err(io::Error::other)?;
        Ok(TlsConnector::from(Arc::clone(&self.client)).connect(name, stream).await?.into())
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        Ok(TlsAcceptor::from(Arc::clone(&self.server)).accept(stream).await?.into())
    }

    /// Whether the certificate of the other side is that of this node, where names are asked for.
    pub(super) fn check_node(
        &self,
        stream: &TlsStream<TcpStream>,
        node_id: u64,
    ) -> Result<(), rustls::Error> {
        let Some(pattern) = &self.node_name else { return Ok(()) };
        let none = rustls::Error::NoCertificatesPresented;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).ok_or(none)?;
        let name = ServerName::try_from(pattern.replace(NODE, &node_id.to_string()))
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        verify_server_name(&ParsedCertificate::try_from(certificate)?, &name)
    }
}

/// Secret of this TLS session that both ends can compute and nobody between them (RFC 8446 §7.5).
pub(super) fn exporter(stream: &TlsStream<TcpStream>) -> Result<[u8; 32], rustls::Error> {
    let label = b"EXPORTER-exactmq-peer-link";
    match stream {
        TlsStream::Client(stream) => stream.get_ref().1.export_keying_material([0; 32], label, None),
        TlsStream::Server(stream) => stream.get_ref().1.export_keying_material([0; 32], label, None),
    }
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn chain(settings: &TlsSettings) -> Result<Chain, TlsError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&settings.certificates_pem)
        .collect::<Result<_, _>>()
        .map_err(TlsError::Certificate)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(&settings.private_key_pem).map_err(TlsError::PrivateKey)?;
    Ok((chain, key))
}

fn client_config(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let (chain, key) = chain(settings)?;
    let verifier = Arc::new(ChainVerifier { roots, provider: Arc::clone(provider) });
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Every link is verified anew: an authority that was replaced counts from the next link on.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn server_config(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let (chain, key) = chain(settings)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build()?;
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Holds the acceptor's certificate against the authorities of the cluster. Which node it may be is known only after its hello:
/// [`Tls::check_node`].
#[derive(Debug)]
struct ChainVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ChainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
