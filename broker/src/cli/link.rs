//! The way of a command to the admin API: a socket, plain or with TLS, and whom it believes to be the node.
//!
//! Over https the node is who an authority says (`--ca`, or those of this machine), or who shows exactly the certificate that the node on this
//! machine has written to its data directory.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{self, CryptoProvider};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
};

use super::Remote;
use super::error::CliError;
use crate::admin::CERTIFICATE_FILE;

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Where Linux systems keep the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// A socket to the node.
pub(super) enum Link {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Link {
    /// Below TLS, for its timeouts.
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Link {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buf),
            Self::Tls(stream) => stream.read(buf),
        }
    }
}

impl Write for Link {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buf),
            Self::Tls(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// What a link over https believes and shows.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Trust {
    /// As the flags say; without any, the node of the data directory and the authorities of this machine.
    pub(super) fn new(remote: &Remote, authority: &str) -> Result<Self, CliError> {
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| CliError::usage(format!("no certificate can be for the host {host:?}")))?;
        let provider = Arc::new(crypto::ring::default_provider());
        let verifier = Arc::new(Verifier::new(remote, provider.clone())?);
        let failed = |error: rustls::Error| CliError::failed(&error);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match own_certificate(remote)? {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(failed)?,
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), name })
    }

    fn connect(&self, stream: TcpStream) -> io::Result<Link> {
        let connection =
            ClientConnection::new(self.config.clone(), self.name.clone()).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        // Before anything is sent: the token is for nobody but the node.
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Link::Tls(Box::new(stream)))
    }
}

/// Whether a link failed since the node's certificate is not believed.
pub(super) fn is_distrust(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

/// Opens a link to `HOST:PORT`.
pub(super) fn dial(authority: &str, trust: Option<&Trust>) -> io::Result<Link> {
    let mut last = io::Error::other("the host has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
                stream.set_read_timeout(Some(CONNECT_TIMEOUT * 2))?;
                return match trust {
                    None => Ok(Link::Plain(stream)),
                    Some(trust) => trust.connect(stream),
                };
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The certificate that this side shows, where the node asks for one.
fn own_certificate(remote: &Remote) -> Result<Option<Own>, CliError> {
    let (Some(cert), Some(key)) = (&remote.cert, &remote.key) else { return Ok(None) };
    let key_der = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|error| CliError::usage(format!("{}: {error}", key.display())))?;
    Ok(Some((certificates(cert)?, key_der)))
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path).map_err(|error| CliError::usage(format!("{}: {error}", path.display())))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let bytes = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| CliError::usage(format!("{}: {error}", path.display())))?;
    if all.is_empty() {
        return Err(CliError::usage(format!("{} holds no certificate", path.display())));
    }
    Ok(all)
}

/// Takes exactly these certificates, whatever they say of themselves, and those that an authority vouches for.
#[derive(Debug)]
struct Verifier {
    exact: Vec<CertificateDer<'static>>,
    authorities: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(remote: &Remote, provider: Arc<CryptoProvider>) -> Result<Self, CliError> {
        let (exact, authorities) = match &remote.ca {
            // One that vouches for itself alone is no authority, and may be meant all the same.
            Some(path) => (certificates(path)?, certificates(path)?),
            None => {
                let own = remote.data_dir.join(CERTIFICATE_FILE);
                let exact = if own.exists() { certificates(&own)? } else { Vec::new() };
                let system = SYSTEM_AUTHORITIES.into_iter().map(PathBuf::from).find(|path| path.exists());
                (exact, system.map_or_else(|| Ok(Vec::new()), |path| certificates(&path))?)
            }
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities);
        let authorities = if roots.is_empty() {
            None
        } else {
            let built =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
            Some(built.map_err(|error| CliError::failed(&error))?)
        };
        Ok(Self { exact, authorities, provider })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.exact.iter().any(|exact| exact.as_ref() == end_entity.as_ref()) {
            return Ok(ServerCertVerified::assertion());
        }
        match &self.authorities {
            Some(by) => by.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            None => Err(rustls::CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
