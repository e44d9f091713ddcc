//! Certificates that are replaced while the broker runs (DESIGN §11: SIGHUP), seen by real TLS handshakes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tests::client::PATIENCE;
use tests::{Client, Node, Options, eventually};

const OPEN: &str = "topic readwrite #\n";

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// An authority and the files of a listener.
struct Files {
    dir: tempfile::TempDir,
    authority: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        let files = Self {
            dir: tempfile::tempdir().expect("a directory"),
            authority: certificate.der().clone(),
            issuer: Issuer::new(parameters, key),
        };
        files.write("ca.pem", &certificate.pem());
        files
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        // At once: the broker reads the old or the new one.
        std::fs::write(self.path("new"), text).expect("written");
        std::fs::rename(self.path("new"), self.path(name)).expect("renamed");
    }

    fn signed(&self, name: &str) -> (CertificateDer<'static>, KeyPair, String) {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.der().clone(), key, certificate.pem())
    }

    /// Replaces certificate and key of the server; the certificate.
    fn renew(&self) -> CertificateDer<'static> {
        let (certificate, key, pem) = self.signed("localhost");
        self.write("server.pem", &pem);
        self.write("server.key", &key.serialize_pem());
        certificate
    }

    fn client(&self, own: Option<(CertificateDer<'static>, KeyPair)>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
                builder.with_client_auth_cert(vec![certificate], key).expect("a certificate")
            }
        }
    }
}

/// A node with a TLS listener whose files are in `files`.
fn start(files: &Files, extra: &[&str]) -> (Node, SocketAddr) {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("bound");
    drop(socket);
    let mut settings = vec![
        "listener.tls.protocol=tls".to_owned(),
        format!("listener.tls.address={address}"),
        format!("listener.tls.tls_cert={}", files.path("server.pem")),
        format!("listener.tls.tls_key={}", files.path("server.key")),
    ];
    settings.extend(extra.iter().map(ToString::to_string));
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    (Node::start_with(&settings), address)
}

/// A handshake and a CONNECT; the connection and the certificate that the server showed.
fn connect(
    address: SocketAddr,
    config: ClientConfig,
    id: &str,
) -> Result<(Tls, CertificateDer<'static>), String> {
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut stream = StreamOwned::new(client, socket);
    let sent = stream.write_all(&Options::v5(id).bytes()).and_then(|()| stream.flush());
    sent.map_err(|error| error.to_string())?;
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).map_err(|error| error.to_string())?;
    assert_eq!((connack[0], connack[3]), (0x20, 0), "CONNACK with success");
    let shown = stream.conn.peer_certificates().expect("a chain")[0].clone().into_owned();
    Ok((stream, shown))
}

fn is_alive(stream: &mut Tls) -> bool {
    let mut rest = [0; 64];
    // Whatever of CONNACK was left comes first.
    if stream.write_all(&[0xC0, 0]).is_err() {
        return false;
    }
    loop {
        match stream.read(&mut rest) {
            Ok(0) | Err(_) => return false,
            Ok(len) if rest[..len].ends_with(&[0xD0, 0]) => return true,
            Ok(_) => {}
        }
    }
}

/// DESIGN §11: after SIGHUP a new handshake shows the new certificate, an open connection goes on; a broken file leaves the old ones, also
/// when only one of the two fits, and the next good ones are taken again.
#[test]
fn a_reload_replaces_the_certificate_for_new_handshakes() {
    let files = Files::new();
    let first = files.renew();
    files.write("acl", OPEN);
    let (node, address) = start(&files, &[&format!("acl.file={}", files.path("acl"))]);
    let (mut old, shown) = connect(address, files.client(None), "old").expect("a handshake");
    assert_eq!(shown, first);

    let second = files.renew();
    let (_, shown) = connect(address, files.client(None), "before").expect("a handshake");
    assert_eq!(shown, first, "files alone change nothing");
    node.reload();
    let shows = |expected: &CertificateDer<'_>| {
        eventually("the other certificate", PATIENCE, || {
            let (_, shown) = connect(address, files.client(None), "new").expect("a handshake");
            (shown == *expected).then_some(())
        });
    };
    shows(&second);
    assert!(is_alive(&mut old), "an open connection is not disturbed");

    let other_key = KeyPair::generate().expect("a key");
    for (name, text) in
        [("server.pem", "nothing of use"), ("server.key", &other_key.serialize_pem()), ("server.key", "")]
    {
        files.renew();
        files.write(name, text);
        // The second reload begins when the first one is through.
        for (rules, expected) in [("topic write #\n", 0x87), (OPEN, 1)] {
            let mut probe = Client::connect(node.mqtt, &Options::v5("probe"));
            files.write("acl", rules);
            node.reload();
            eventually("the rules", PATIENCE, || (probe.subscribe("t", 1) == expected).then_some(()));
        }
        shows(&second);
    }
    let third = files.renew();
    node.reload();
    shows(&third);
    assert!(is_alive(&mut old));
}

/// Authorities of client certificates are replaced too: who was let in by the old one only is refused from then on.
#[test]
fn a_reload_replaces_the_authorities_of_clients() {
    let files = Files::new();
    files.renew();
    let ca = format!("listener.tls.tls_client_ca={}", files.path("ca.pem"));
    let (node, address) = start(&files, &[&ca, "listener.tls.tls_client_auth=required"]);
    let own = || {
        let (certificate, key, _) = files.signed("client");
        Some((certificate, key))
    };
    assert!(connect(address, files.client(own()), "c").is_ok());
    assert!(connect(address, files.client(None), "c").is_err(), "a certificate is required");
    let others = Files::new();
    std::fs::copy(others.path("ca.pem"), files.path("ca.pem")).expect("copied");
    node.reload();
    eventually("the other authority", PATIENCE, || connect(address, files.client(own()), "c").err());
    let (certificate, key, _) = others.signed("client");
    assert!(connect(address, files.client(Some((certificate, key))), "c").is_ok());
}
