//! A real etcd (Debian package `etcd-server`) on loopback, for brokers whose leases are there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::free_port;
use crate::wait::eventually;

/// How long it may take to serve.
const START: Duration = Duration::from_secs(30);

/// One that runs, or was killed and has its data.
#[derive(Debug)]
pub struct Etcd {
    child: Option<Child>,
    dir: tempfile::TempDir,
    port: u16,
    peers: u16,
    /// Metrics are served without TLS and password.
    metrics: u16,
    tls: bool,
    /// How often its data was wiped: it is another cluster then.
    wiped: u32,
}

impl Etcd {
    /// # Panics
    /// When it does not serve, or is not installed.
    #[must_use]
    pub fn start() -> Self {
        Self::run_new(false)
    }

    /// The same with certificates on both sides: see [`Self::file`].
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_tls() -> Self {
        Self::run_new(true)
    }

    fn run_new(tls: bool) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        if tls {
            write_certificates(dir.path());
        }
        let (port, peers, metrics) = (free_port(), free_port(), free_port());
        let mut this = Self { child: None, dir, port, peers, metrics, tls, wiped: 0 };
        this.restart();
        this
    }

    /// Runs it on the data that it has.
    ///
    /// # Panics
    /// When it does not serve.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "kill it first");
        let peers = format!("http://127.0.0.1:{}", self.peers);
        let clients = self.url();
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.dir.path().join(format!("data{}", self.wiped)));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        command.args(["--initial-cluster-token", &format!("token{}", self.wiped)]);
        command.args(["--listen-metrics-urls", &format!("http://127.0.0.1:{}", self.metrics)]);
        command.args(["--metrics", "extensive"]);
        if self.tls {
            command.arg("--cert-file").arg(self.file("server.pem"));
            command.arg("--key-file").arg(self.file("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(self.file("ca.pem"));
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("etcd starts: install the Debian package etcd-server"));
        eventually("etcd serves", START, || {
            let (head, body) = self.ask(self.metrics, "GET", "/health", "").ok()?;
            let clients = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            (clients && head.starts_with("HTTP/1.1 200") && body.contains("true")).then_some(())
        });
    }

    /// SIGKILL; its data stays.
    ///
    /// # Panics
    /// When the process cannot be waited for.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().expect("the process ends");
        }
    }

    /// Runs it without its data: it is another cluster at the same place.
    pub fn wipe(&mut self) {
        self.kill();
        self.wiped += 1;
        self.restart();
    }

    /// Sends a signal, `-STOP` for example.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill runs").success());
    }

    /// Where clients reach it.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// One of `ca.pem`, `client.pem`, `client.key`, `stranger.pem` (an authority that nobody knows).
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Asks for the password of user root from now on.
    ///
    /// # Panics
    /// When it refuses.
    pub fn require_password(&self, password: &str) {
        self.call("/v3/auth/user/add", &json!({ "name": "root", "password": password }));
        self.call("/v3/auth/role/add", &json!({ "name": "root" }));
        self.call("/v3/auth/user/grant", &json!({ "user": "root", "role": "root" }));
        self.call("/v3/auth/enable", &json!({}));
    }

    /// All keys and values below a prefix, as texts.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn keys(&self, prefix: &str) -> Vec<(String, String)> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("a prefix") += 1;
        let range = json!({ "key": base64(prefix.as_bytes()), "range_end": base64(&end) });
        let answer = self.call("/v3/kv/range", &range);
        let text = |value: &Value| {
            let bytes = from_base64(value.as_str().unwrap_or_default());
            String::from_utf8(bytes).expect("a text")
        };
        let all = answer["kvs"].as_array().into_iter().flatten();
        all.map(|found| (text(&found["key"]), text(&found["value"]))).collect()
    }

    /// Calls that it handled since it was started, and messages that came to it on streams: all that clients cost it.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn operations(&self) -> f64 {
        let (_, page) = self.ask(self.metrics, "GET", "/metrics", "").expect("etcd answers");
        let counted = |line: &&str| {
            line.starts_with("grpc_server_handled_total{") && line.contains("grpc_type=\"unary\"")
                || line.starts_with("grpc_server_msg_received_total{") && line.contains("stream\"")
        };
        let value = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        page.lines().filter(counted).filter_map(value).sum()
    }

    /// Keeps a lease alive, as its holder would.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn keep_alive(&self, lease: u64) {
        self.call("/v3/lease/keepalive", &json!({ "ID": lease.cast_signed().to_string() }));
    }

    fn call(&self, path: &str, body: &Value) -> Value {
        let (head, answer) = self.ask(self.port, "POST", path, &body.to_string()).expect("etcd answers");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head} {answer}");
        serde_json::from_str(&answer).expect("JSON")
    }

    fn ask(&self, port: u16, method: &str, path: &str, body: &str) -> std::io::Result<(String, String)> {
        let limit = Duration::from_secs(5);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        // HTTP/1.0: the answer ends with the connection and is not cut into chunks.
        let len = body.len();
        let request =
            format!("{method} {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {len}\r\n\r\n{body}");
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).replacen("HTTP/1.0", "HTTP/1.1", 1);
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
        Ok((head.to_owned(), body.to_owned()))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn write_certificates(dir: &std::path::Path) {
    let authority = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).expect("signed");
        std::fs::write(dir.join(name), certificate.pem()).expect("written");
        rcgen::Issuer::new(parameters, key)
    };
    let _ = authority("stranger.pem");
    let issuer = authority("ca.pem");
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut parameters = rcgen::CertificateParams::new(names).expect("parameters");
        parameters.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = parameters.signed_by(&key, &issuer).expect("signed");
        std::fs::write(dir.join(format!("{name}.pem")), certificate.pem()).expect("written");
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).expect("written");
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for some in bytes.chunks(3) {
        let word =
            some.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - some.len()));
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at)) as usize & 63] as char;
            text.push(if at <= some.len() { digit } else { '=' });
        }
    }
    text
}

fn from_base64(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte))
        .map(|at| u32::try_from(at).expect("below 64"))
        .collect();
    let mut bytes = Vec::new();
    for some in digits.chunks(4) {
        let word = some.iter().fold(0_u32, |word, digit| word << 6 | digit) << (6 * (4 - some.len()));
        bytes.extend_from_slice(&word.to_be_bytes()[1..some.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_there_and_back() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(from_base64(coded), plain.as_bytes());
        }
    }
}
