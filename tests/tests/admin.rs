//! The admin API as it is reached from elsewhere (issue 5 §2): over TLS, with tokens that may do only what they are for.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use tests::client::PATIENCE;
use tests::cluster::succeeds;
use tests::node::binary;
use tests::users::reload;
use tests::{Client, Node, Options, eventually};

/// An authority, the certificate of a node and one of an operator.
struct Files {
    dir: tempfile::TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    authority: CertificateDer<'static>,
}

impl Files {
    fn new() -> Self {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        let files = Self {
            dir: tempfile::tempdir().expect("a directory"),
            authority: certificate.der().clone(),
            issuer: rcgen::Issuer::new(parameters, key),
        };
        std::fs::write(files.path("ca.pem"), certificate.pem()).expect("written");
        files.issue("node");
        files.issue("operator");
        files
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// `NAME.pem` and `NAME.key`, for localhost.
    fn issue(&self, name: &str) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).expect("written");
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("written");
    }

    fn node(&self, extra: &[&str]) -> Node {
        let cert = format!("admin.tls_cert={}", self.path("node.pem"));
        let key = format!("admin.tls_key={}", self.path("node.key"));
        Node::start_with(&[&[&*cert, &key, "node.workers=1"], extra].concat())
    }

    /// A request over TLS, of which the head was sent.
    fn ask(&self, node: &Node, path: &str) -> BufReader<StreamOwned<ClientConnection, TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).expect("an authority");
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
        let socket = TcpStream::connect(node.admin).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE * 2)).expect("a timeout");
        let mut stream = StreamOwned::new(connection, socket);
        let token = std::fs::read_to_string(node.dir().join("admin.token")).expect("the token");
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            token.trim()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        BufReader::new(stream)
    }

    fn get(&self, node: &Node, path: &str) -> String {
        let mut answer = String::new();
        self.ask(node, path).read_to_string(&mut answer).expect("an answer and an orderly end");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        answer
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Everything is there over TLS; commands on this machine find the node without a flag and trust exactly its certificate, also after it was
/// renewed; others name its authority. A broken certificate leaves the one that is in force.
#[test]
fn everything_is_there_over_tls() {
    let files = Files::new();
    let node = files.node(&[]);
    let url = std::fs::read_to_string(node.dir().join("admin.address")).expect("the address");
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    succeeds(&node.cli(&["session", "list"]));
    assert!(files.get(&node, "/metrics").contains("exactmq_connections"));
    assert!(files.get(&node, "/").contains("<html"));
    assert!(files.get(&node, "/v1/nodes").contains("\"node_id\":1"));
    let mut events = files.ask(&node, "/v1/events");
    let _client = Client::connect(node.mqtt, &Options::v5("told").expiry(60));
    let mut line = String::new();
    while !line.contains("\"client_id\":\"told\"") {
        line.clear();
        assert!(events.read_line(&mut line).expect("an event in time") > 0, "the feed ended");
    }

    let token = node.dir().join("admin.token").display().to_string();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let from_elsewhere = |more: &[&str]| {
        let admin = format!("https://localhost:{}", node.admin.port());
        let mut command = Command::new(binary());
        command.args(["node", "list", "--admin", &admin, "--token-file", &token]).args(more);
        command.arg("--data-dir").arg(elsewhere.path()).output().expect("it runs")
    };
    succeeds(&from_elsewhere(&["--ca", &files.path("ca.pem")]));
    succeeds(&from_elsewhere(&["--ca", &files.path("node.pem")]));
    let stranger = from_elsewhere(&[]);
    assert!(
        stranger.status.code() == Some(1) && said(&stranger).contains("--ca FILE"),
        "{}",
        said(&stranger)
    );
    let plain = Command::new(binary())
        .args(["node", "list", "--admin", &format!("http://{}", node.admin), "--token-file", &token])
        .output()
        .expect("it runs");
    assert_ne!(plain.status.code(), Some(0), "plain http was answered");

    files.issue("node");
    node.reload();
    let published = || std::fs::read_to_string(node.dir().join("admin.cert")).expect("a certificate");
    let now = std::fs::read_to_string(files.path("node.pem")).expect("a certificate");
    let body = |pem: &str| pem.lines().filter(|line| !line.starts_with('-')).collect::<String>();
    eventually("the new certificate", PATIENCE, || (body(&published()) == body(&now)).then_some(()));
    succeeds(&node.cli(&["session", "list"]));
    succeeds(&from_elsewhere(&["--ca", &files.path("node.pem")]));
    std::fs::write(files.path("node.key"), "nothing of use").expect("written");
    node.reload();
    // A second reload is begun when the first is over; it is asked for over TLS, too.
    succeeds(&node.cli(&["token", "add", "probe", "--role", "viewer"]));
    succeeds(&from_elsewhere(&["--ca", &files.path("ca.pem")]));
}

/// From other machines nobody without a certificate is let in; on this machine the token is enough. A certificate can be shown.
#[test]
fn certificates_of_callers_are_for_other_machines() {
    let files = Files::new();
    let node = files.node(&[&format!("admin.tls_client_ca={}", files.path("ca.pem"))]);
    succeeds(&node.cli(&["session", "list"]));
    let own = ["--cert", &files.path("operator.pem"), "--key", &files.path("operator.key")];
    succeeds(&node.cli(&[&["session", "list"], &own[..]].concat()));
}

/// An admin API that others can reach speaks TLS, or somebody has written down that it need not.
#[test]
fn plain_http_for_others_is_refused_unless_it_is_written_down() {
    let check = |more: &[&str]| {
        Command::new(binary())
            .args(["check-config", "--admin", "0.0.0.0:9883"])
            .args(more)
            .output()
            .expect("it runs")
    };
    let refused = check(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        said(&refused).contains("admin.tls_cert") && said(&refused).contains("admin.plain"),
        "{}",
        said(&refused)
    );
    succeeds(&check(&["--set", "admin.plain=true"]));
    let files = Files::new();
    let cert = format!("admin.tls_cert={}", files.path("node.pem"));
    let key = format!("admin.tls_key={}", files.path("node.key"));
    succeeds(&check(&["--set", &cert, "--set", &key]));
    assert_eq!(check(&["--set", &cert]).status.code(), Some(2), "a certificate without its key");
    let other = format!("admin.tls_key={}", files.path("operator.key"));
    assert_eq!(check(&["--set", &cert, "--set", &other]).status.code(), Some(2), "the key of another one");
}

/// `exactmq token`: a token is shown once and stands nowhere; it may what its role may, is named in the audit log, and is good for nothing
/// when `token remove` has returned, also where it watches.
#[test]
fn tokens_are_added_and_removed_while_the_node_runs() {
    let node = Node::start_with(&["node.workers=1"]);
    let _client = Client::connect(node.mqtt, &Options::v5("x").expiry(60));
    let add = |name: &str, role: &str| {
        let output = node.cli(&["token", "add", name, "--role", role]);
        succeeds(&output);
        let token = String::from_utf8(output.stdout).expect("text").trim().to_owned();
        assert!(token.len() == 64 && !token.contains('\n'), "{token}");
        token
    };
    let (viewer, operator) = (add("ann", "viewer"), add("bob", "operator"));
    let kept = std::fs::read_to_string(node.dir().join("admin.tokens")).expect("text");
    assert!(!kept.contains(&viewer) && kept.contains("ann:viewer:"), "{kept}");
    let listed = node.cli(&["token", "list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert_eq!(listed["tokens"][1], serde_json::json!({ "name": "bob", "role": "operator" }));
    assert_eq!(node.cli(&["token", "add", "ann", "--role", "admin"]).status.code(), Some(1), "twice");

    let ask = |token: &str, method: &str, path: &str, body: &str| {
        let (head, body) = tests::node::ask(node.admin, token, method, path, body).expect("an answer");
        (head.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).expect("a status"), body)
    };
    let end = |token: &str| ask(token, "POST", "/v1/sessions/x/end", r#"{"reason":"revoked"}"#);
    assert_eq!(ask(&viewer, "GET", "/v1/sessions", "").0, 200);
    let (status, problem) = end(&viewer);
    assert!(status == 403 && problem.contains("\"forbidden\""), "{problem}");
    assert_eq!(end(&operator).0, 200);
    assert_eq!(ask(&operator, "POST", "/v1/reload", "").0, 403);
    let audit: Value = serde_json::from_str(&node.admin_get("/v1/audit?action=session.end")).expect("JSON");
    assert!(
        audit["records"][0]["who"].as_str().is_some_and(|who| who.starts_with("token bob, from ")),
        "{audit}"
    );

    let mut feed = TcpStream::connect(node.admin).expect("connects");
    feed.set_read_timeout(Some(PATIENCE)).expect("set");
    let request = format!(
        "GET /v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {viewer}\r\n\r\n"
    );
    feed.write_all(request.as_bytes()).expect("sent");
    let mut first = [0; 12];
    feed.read_exact(&mut first).expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");
    succeeds(&node.cli(&["token", "remove", "ann"]));
    assert_eq!(ask(&viewer, "GET", "/v1/sessions", "").0, 401);
    let mut rest = Vec::new();
    feed.read_to_end(&mut rest).expect("the feed is over");
    assert_eq!(node.cli(&["token", "remove", "ann"]).status.code(), Some(1));
    assert_eq!(ask(&operator, "GET", "/v1/sessions", "").0, 200);
    // A file with a fault changes nothing, and is named.
    std::fs::write(node.dir().join("admin.tokens"), "nonsense\n").expect("written");
    let (head, body) = node.admin_ask("POST", "/v1/reload", "").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 409") && body.contains("admin.tokens:1"), "{body}");
    assert_eq!(ask(&operator, "GET", "/v1/sessions", "").0, 200);
    std::fs::write(node.dir().join("admin.tokens"), kept).expect("written");
    reload(&node);
    assert_eq!(ask(&viewer, "GET", "/v1/sessions", "").0, 200, "it is back with its line");
}
