//! What lies below MQTT: TLS, WebSocket, both, and the PROXY protocol.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod driver_support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use driver_support::*;
use gateway::codec::{ReasonCode, Version};
use gateway::link::CloseRequest;
use gateway::listener::{ClientCertificates, ListenerConfig, Tls, TlsSettings};
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

/// An authority with a server and a client certificate.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn tls(&self, client_certificates: ClientCertificates) -> Tls {
        let (certificate, key) = self.issue("localhost");
        Tls::new(&TlsSettings {
            certificates_pem: certificate.pem().into(),
            private_key_pem: key.serialize_pem().into(),
            client_certificates,
            client_authorities_pem: self.certificate.pem().into(),
        })
        .unwrap()
    }

    fn connect(&self, bench: &Bench, client_name: Option<&str>) -> TlsClient {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let builder =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
        let mut config = match client_name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let (certificate, key) = self.issue(name);
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"mqtt".to_vec()];
        let server = ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), server).unwrap();
        rustls::StreamOwned::new(connection, bench.client().stream)
    }
}

type TlsClient = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

fn with_tls(authority: &Authority, client_certificates: ClientCertificates) -> Bench {
    Bench::with(1, ListenerConfig { tls: Some(authority.tls(client_certificates)), ..config() })
}

/// DESIGN §10: MQTT over TLS, also with packets larger than a record, and a notice before the close.
#[test]
fn tls_carries_packets_and_the_notice() {
    let authority = Authority::new();
    let bench = with_tls(&authority, ClientCertificates::NotAsked);
    let mut client = Client { stream: authority.connect(&bench, None) };
    client.send(&connect(Version::V5, "tls", |_| ()));
    client.expect_connack();
    assert_eq!(client.stream.conn.alpn_protocol(), Some(&b"mqtt"[..]));
    client.send(&publish("big", 7, &vec![1; 200_000]));
    client.expect(&[0x40, 2, 0, 7]);
    let peer = bench.log.peers.lock().unwrap()[0].clone();
    assert!(peer.secure && peer.certificate_cn.is_none());
    bench.request_close("tls", CloseRequest { notice: Some(ReasonCode::SessionTakenOver), reset: false });
    client.expect_disconnect(0x8E);
    bench.wait_closed("tls");
}

/// Client certificates: the name of a verified one is handed on; where required, nobody comes in without.
#[test]
fn client_certificates_are_verified_and_named() {
    let authority = Authority::new();
    for required in [ClientCertificates::Optional, ClientCertificates::Required] {
        let bench = with_tls(&authority, required);
        let mut client = Client { stream: authority.connect(&bench, Some("device-17")) };
        client.send(&connect(Version::V5, "named", |_| ()));
        client.expect_connack();
        assert_eq!(bench.log.peers.lock().unwrap()[0].certificate_cn.as_deref(), Some("device-17"));
        let mut stranger = Client { stream: Authority::new().connect_unverified(&authority, &bench) };
        assert!(!try_connect(&mut stranger), "signed by somebody else");
        let mut nameless = Client { stream: authority.connect(&bench, None) };
        assert_eq!(try_connect(&mut nameless), required == ClientCertificates::Optional);
    }
}

impl Authority {
    /// A client that trusts `other`'s server but shows a certificate of this authority.
    fn connect_unverified(&self, other: &Self, bench: &Bench) -> TlsClient {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(other.certificate.der().clone()).unwrap();
        let (certificate, key) = self.issue("device-17");
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![certificate.der().clone()], key)
                .unwrap();
        let server = ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), server).unwrap();
        rustls::StreamOwned::new(connection, bench.client().stream)
    }
}

fn try_connect(client: &mut Client<TlsClient>) -> bool {
    if client.stream.write_all(&connect(Version::V5, "maybe", |_| ())).is_err() {
        return false;
    }
    let mut byte = [0];
    matches!(client.stream.read(&mut byte), Ok(1))
}

/// P9: a TLS handshake that never comes is closed in bounded time, and a plain CONNECT on a TLS port at once.
#[test]
fn tls_handshakes_are_bounded() {
    let authority = Authority::new();
    let bench = with_tls(&authority, ClientCertificates::NotAsked);
    let mut silent = bench.client();
    eventually("it is accepted", || bench.gateway().connections() == [1]);
    bench.on_worker(|_| ());
    bench.advance_ms(11_000);
    silent.expect_end();
    let mut plain = bench.client();
    plain.send(&connect(Version::V5, "plain", |_| ()));
    let mut rest = Vec::new();
    let _ = plain.stream.read_to_end(&mut rest);
    assert_ne!(rest.first(), Some(&0x20));
}

fn with_websocket(tls: Option<Tls>) -> Bench {
    Bench::with(1, ListenerConfig { websocket: true, tls, ..config() })
}

fn open_websocket<T: Read + Write>(
    stream: T,
    path: &str,
    subprotocol: Option<&'static str>,
) -> Result<WebSocket<T>, Option<u16>> {
    let mut request = format!("ws://localhost{path}").into_client_request().unwrap();
    if let Some(subprotocol) = subprotocol {
        request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static(subprotocol));
    }
    match tungstenite::client::client(request, stream) {
        Ok((socket, response)) => {
            assert_eq!(response.headers()["Sec-WebSocket-Protocol"], "mqtt");
            Ok(socket)
        }
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            Err(Some(response.status().as_u16()))
        }
        Err(_) => Err(None),
    }
}

/// The bytes of a WebSocket's messages, one message a write.
struct Messages<T: Read + Write> {
    socket: WebSocket<T>,
    unread: Vec<u8>,
}

impl<T: Read + Write> Read for Messages<T> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.unread.is_empty() {
            match self.socket.read() {
                Ok(Message::Binary(bytes)) => self.unread = bytes.to_vec(),
                Ok(Message::Close(_)) => return Ok(0),
                Ok(Message::Text(_)) => panic!("[MQTT-6.0.0-1]: binary frames only"),
                Ok(_) => {}
                Err(tungstenite::Error::Io(error)) => return Err(error),
                Err(_) => return Ok(0),
            }
        }
        let n = self.unread.len().min(into.len());
        into[..n].copy_from_slice(&self.unread[..n]);
        self.unread.drain(..n);
        Ok(n)
    }
}

impl<T: Read + Write> Write for Messages<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.socket.send(Message::Binary(bytes.to_vec().into())).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// [MQTT-6.0.0-2]: packets span frames and share them, over plain and over secure WebSocket.
#[test]
fn websocket_frames_are_one_byte_stream() {
    fn exercise<T: Read + Write>(bench: &Bench, stream: T) {
        let socket = open_websocket(stream, "/mqtt", Some("mqttv3.1, mqtt")).unwrap();
        let mut client = Client { stream: Messages { socket, unread: Vec::new() } };
        let connect = connect(Version::V5, "ws", |_| ());
        client.send(&connect[..7]);
        client.send(&[&connect[7..], PINGREQ].concat());
        // Not waiting for CONNACK: the larger limit holds for what follows the CONNECT.
        client.send(&[PINGREQ, &publish("big", 7, &vec![1; 200_000])[..]].concat());
        client.expect_connack();
        client.expect(PINGRESP);
        client.expect(PINGRESP);
        client.expect(&[0x40, 2, 0, 7]);
        client.stream.socket.send(Message::Ping(b"here?".as_slice().into())).unwrap();
        assert_eq!(client.stream.socket.read().unwrap(), Message::Pong(b"here?".as_slice().into()));
        bench.on_worker(|toy| {
            let big = template("out", &vec![0; 100_000], session::message::QoS::AtMostOnce);
            assert!(toy.links.borrow()["ws"].push_bytes(&big));
        });
        assert_eq!(client.packet().unwrap().len(), 100_000 + 4 + 2 + 3 + 1);
        bench.request_close("ws", CloseRequest { notice: Some(ReasonCode::SessionTakenOver), reset: false });
        client.expect_disconnect(0x8E);
        bench.wait_closed("ws");
    }
    let bench = with_websocket(None);
    exercise(&bench, bench.client().stream);
    let authority = Authority::new();
    let bench = with_websocket(Some(authority.tls(ClientCertificates::NotAsked)));
    exercise(&bench, authority.connect(&bench, None));
}

/// [MQTT-6.0.0-1]: a text frame ends the connection.
#[test]
fn websocket_text_frame_ends_the_connection() {
    let bench = with_websocket(None);
    let mut socket = open_websocket(bench.client().stream, "/", Some("mqtt")).unwrap();
    socket.send(Message::Binary(connect(Version::V5, "text", |_| ()).into())).unwrap();
    assert!(matches!(socket.read().unwrap(), Message::Binary(_)));
    socket.send(Message::Text("hello".into())).unwrap();
    bench.wait_closed("text");
}

/// [MQTT-6.0.0-3]: the subprotocol is `mqtt`; other paths and protocols are refused over HTTP.
#[test]
fn websocket_needs_path_and_subprotocol() {
    let bench = with_websocket(None);
    assert_eq!(open_websocket(bench.client().stream, "/other", Some("mqtt")).err(), Some(Some(404)));
    assert_eq!(open_websocket(bench.client().stream, "/mqtt", Some("chat")).err(), Some(Some(400)));
    assert_eq!(open_websocket(bench.client().stream, "/mqtt", None).err(), Some(Some(400)));
}

/// P10, RFC 6455 §4.2: what is no upgrade to WebSocket is told why, over plain and over secure sockets.
#[test]
fn what_is_no_websocket_upgrade_is_answered() {
    fn answer(mut stream: impl Read + Write, request: &str) -> String {
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A TLS stream that is not said goodbye to ends with an error.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    const VERSION: &str = "Sec-WebSocket-Version: 13\r\n";
    let bench = with_websocket(None);
    for (request, status, header) in [
        (format!("POST /mqtt HTTP/1.1\r\n{UPGRADE}{KEY}{VERSION}\r\n"), "405", "Allow: GET"),
        (format!("GET /mqtt HTTP/1.1\r\n{KEY}{VERSION}\r\n"), "426", "Upgrade: websocket"),
        (format!("GET /mqtt HTTP/1.1\r\n{UPGRADE}{KEY}\r\n"), "426", "Sec-WebSocket-Version: 13"),
        (format!("GET /mqtt HTTP/1.1\r\n{UPGRADE}{VERSION}\r\n"), "400", "Sec-WebSocket-Key"),
        ("nonsense\r\n\r\n".to_owned(), "400", "Connection: close"),
    ] {
        let answer = answer(bench.client().stream, &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(answer.contains(header), "{request}: {answer}");
    }
    eventually("they are gone", || bench.gateway().connections() == [0]);
    let authority = Authority::new();
    let bench = with_websocket(Some(authority.tls(ClientCertificates::NotAsked)));
    let answer = answer(authority.connect(&bench, None), "GET / HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
}

/// P9: before CONNECT a WebSocket message is bounded by the CONNECT size, not by the packet size.
#[test]
fn websocket_messages_before_connect_are_bounded() {
    let bench = with_websocket(None);
    let mut socket = open_websocket(bench.client().stream, "/mqtt", Some("mqtt")).unwrap();
    let _ = socket.send(Message::Binary(vec![0x10; 900_000].into()));
    assert!(!matches!(socket.read(), Ok(Message::Binary(_))));
    eventually("it is gone", || bench.gateway().connections() == [0]);
}

/// P9: a client that sends pings for ever and never reads the answers costs bounded memory: it is not read any more.
#[test]
fn websocket_pings_that_are_not_read_stop_the_reading() {
    let bench = with_websocket(None);
    let socket = open_websocket(bench.client().stream, "/mqtt", Some("mqtt")).unwrap();
    let mut stream = socket.into_inner();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let ping: Vec<u8> = [&[0x89, 0x80 | 125, 1, 2, 3, 4][..], &[7; 125]].concat();
    let pings = ping.repeat(1_000);
    let mut taken = 0;
    // The buffers of both sockets are far below this.
    while taken < 256 << 20 {
        match stream.write(&pings) {
            Ok(n) => taken += n,
            Err(error) => {
                assert!(matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ));
                return;
            }
        }
    }
    panic!("{taken} bytes of pings were read though no answer was");
}

fn proxy_header(command: u8, addresses: &[u8], tlvs: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    let family = if addresses.is_empty() { 0 } else { 0x11 };
    header.extend([0x20 | command, family]);
    header.extend(u16::try_from(addresses.len() + tlvs.len()).unwrap().to_be_bytes());
    header.extend(addresses);
    header.extend(tlvs);
    header
}

/// PROXY protocol v2: the client's address and certificate name are those that the proxy tells; LOCAL keeps the proxy's.
#[test]
fn proxy_header_names_the_client() {
    let settings = ListenerConfig { proxy_protocol: true, proxy_certificate: true, ..config() };
    let bench = Bench::with(1, settings);
    let addresses = [203, 0, 113, 9, 192, 0, 2, 1, 0x30, 0x39, 0x07, 0x5B];
    let tlvs = b"\x20\x00\x10\x07\x00\x00\x00\x00\x22\x00\x08device-1";
    let mut client = bench.client();
    let header = proxy_header(1, &addresses, tlvs);
    client.send(&header[..9]);
    client.send(&[&header[9..], &connect(Version::V5, "proxied", |_| ())[..]].concat());
    client.expect_connack();
    let peer = bench.log.peers.lock().unwrap()[0].clone();
    assert_eq!(peer.address, "203.0.113.9:12345".parse().unwrap());
    assert_eq!((peer.secure, peer.certificate_cn.as_deref()), (true, Some("device-1")));
    let mut client = bench.client();
    client.send(&[proxy_header(0, &[], &[]), connect(Version::V5, "local", |_| ())].concat());
    client.expect_connack();
    assert!(bench.log.peers.lock().unwrap()[1].address.ip().is_loopback());
}

/// P8: a header names a certificate only where that is asked for, and only one that the proxy says it verified.
#[test]
fn a_proxy_header_names_no_certificate_unasked_or_unverified() {
    const VERIFIED: &[u8] = b"\x20\x00\x0D\x07\x00\x00\x00\x00\x22\x00\x05admin";
    const REFUSED: &[u8] = b"\x20\x00\x0D\x07\x00\x00\x00\x01\x22\x00\x05admin";
    const WITHOUT: &[u8] = b"\x20\x00\x0D\x01\x00\x00\x00\x00\x22\x00\x05admin";
    const PLAIN: &[u8] = b"\x20\x00\x0D\x06\x00\x00\x00\x00\x22\x00\x05admin";
    let addresses = [203, 0, 113, 9, 192, 0, 2, 1, 0x30, 0x39, 0x07, 0x5B];
    for (proxy_certificate, tlvs) in [(false, VERIFIED), (true, REFUSED), (true, WITHOUT), (true, PLAIN)] {
        let bench = Bench::with(1, ListenerConfig { proxy_protocol: true, proxy_certificate, ..config() });
        let mut client = bench.client();
        client.send(&[proxy_header(1, &addresses, tlvs), connect(Version::V5, "forged", |_| ())].concat());
        client.expect_connack();
        assert_eq!(bench.log.peers.lock().unwrap()[0].certificate_cn, None);
    }
}

/// P9, P10: no header, version 1, an absurd length, or silence: closed, never served.
#[test]
fn without_a_proxy_header_nobody_is_served() {
    let bench = Bench::with(1, ListenerConfig { proxy_protocol: true, ..config() });
    let mut huge = proxy_header(1, &[], &[]);
    huge[14..16].copy_from_slice(&[0xFF, 0xFF]);
    let connect = connect(Version::V5, "direct-direct", |_| ());
    for bytes in [&connect[..], b"PROXY TCP4 203.0.113.9 192.0.2.1 12345 1883\r\n", &huge] {
        let mut client = bench.client();
        client.send(bytes);
        client.expect_end();
    }
    let mut silent = bench.client();
    eventually("it is accepted", || bench.gateway().connections() == [1]);
    bench.on_worker(|_| ());
    bench.advance_ms(11_000);
    silent.expect_end();
    assert!(bench.log.peers.lock().unwrap().is_empty());
}
