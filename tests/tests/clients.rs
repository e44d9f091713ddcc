//! Unmodified clients of others: mosquitto's and Eclipse Paho, over TCP, TLS and WebSocket.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::{Node, eventually};

/// The list: `mosquitto_sub -q 2 -t 'a/#'` and `mosquitto_pub -q 2` exchange messages, on both versions.
#[test]
fn mosquitto_clients_exchange_messages() {
    let node = Node::start();
    for version in ["mqttv311", "mqttv5"] {
        for qos in ["0", "1", "2"] {
            let topic = format!("a/{version}/{qos}");
            let mut sub = mosquitto("stdbuf", node.mqtt)
                .args(["-V", version, "-q", qos, "-t", "a/#", "-C", "3", "-W", "20", "-d", "-F", "got %t %p"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("mosquitto_sub is installed");
            let mut lines = BufReader::new(sub.stdout.take().expect("piped")).lines();
            let subscribed =
                lines.by_ref().map_while(Result::ok).any(|line| line.contains("received SUBACK"));
            assert!(subscribed, "{version} QoS {qos}");
            for number in ["1", "2", "3"] {
                let status = mosquitto("mosquitto_pub", node.mqtt)
                    .args(["-V", version, "-q", qos, "-t", &topic, "-m", number])
                    .status();
                assert!(status.expect("mosquitto_pub is installed").success());
            }
            let got: Vec<String> =
                lines.map_while(Result::ok).filter(|line| line.starts_with("got ")).collect();
            assert_eq!(got, ["1", "2", "3"].map(|number| format!("got {topic} {number}")));
            assert!(sub.wait().expect("it ends").success());
        }
    }
}

/// A persistent session of mosquitto_sub (`-c -i`) gets what was published while it was away.
#[test]
fn mosquitto_sub_resumes_its_session() {
    let node = Node::start();
    let sub = |extra: &[&str]| {
        let mut command = mosquitto("mosquitto_sub", node.mqtt);
        command.args(["-V", "mqttv311", "-c", "-i", "keeper", "-q", "1", "-t", "k/#"]).args(extra);
        command.output().expect("mosquitto_sub is installed")
    };
    assert!(sub(&["-E"]).status.success());
    for number in 0..5 {
        let message = number.to_string();
        let status =
            mosquitto("mosquitto_pub", node.mqtt).args(["-q", "1", "-t", "k/x", "-m", &message]).status();
        assert!(status.expect("mosquitto_pub is installed").success());
    }
    let output = sub(&["-C", "5", "-W", "20"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n1\n2\n3\n4\n");
}

#[test]
fn paho_speaks_3_1_1_and_5_over_tcp() {
    let node = Node::start();
    for version in ["311", "5"] {
        paho(version, "tcp", node.mqtt, None);
    }
}

#[test]
fn paho_speaks_3_1_1_and_5_over_tls_and_websockets() {
    let certificates = Certificates::new();
    let ports = [free_port(), free_port(), free_port()];
    let mut settings = Vec::new();
    for (name, port) in [("tls", ports[0]), ("ws", ports[1]), ("wss", ports[2])] {
        settings.push(format!("listener.{name}.protocol={name}"));
        settings.push(format!("listener.{name}.address=127.0.0.1:{port}"));
        if name != "ws" {
            settings.push(format!("listener.{name}.tls_cert={}", certificates.path("server.pem")));
            settings.push(format!("listener.{name}.tls_key={}", certificates.path("server.key")));
        }
    }
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let _node = Node::start_with(&settings);
    for (name, port) in [("tls", ports[0]), ("ws", ports[1]), ("wss", ports[2])] {
        for version in ["311", "5"] {
            paho(version, name, ([127, 0, 0, 1], port).into(), Some(&certificates.path("ca.pem")));
        }
    }
}

fn mosquitto(program: &str, address: SocketAddr) -> Command {
    let mut command = Command::new(program);
    if program == "stdbuf" {
        // Line by line, or SUBACK would be seen when everything is over.
        command.args(["-oL", "mosquitto_sub"]);
    }
    command.args(["-h", "127.0.0.1", "-p", &address.port().to_string()]);
    command
}

fn paho(version: &str, transport: &str, address: SocketAddr, ca: Option<&str>) {
    let python = std::env::var("EXACTMQ_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/paho_roundtrip.py");
    let host = if ca.is_some() { "localhost" } else { "127.0.0.1" };
    let mut child = Command::new(python)
        .args([script, version, transport, host, &address.port().to_string()])
        .args(ca)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python starts");
    eventually("the script ends", Duration::from_secs(60), || child.try_wait().expect("waits"));
    let output = child.wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{version} over {transport}: {text}");
}

fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("bound").port()
}

/// A certificate authority and a server certificate for `localhost`.
struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut ca = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        ca.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        ca.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
        let ca_key = rcgen::KeyPair::generate().expect("a key");
        let ca_certificate = ca.self_signed(&ca_key).expect("a certificate");
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let key = rcgen::KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut server = rcgen::CertificateParams::new(names).expect("parameters");
        server.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
        server.use_authority_key_identifier_extension = true;
        let certificate = server.signed_by(&key, &issuer).expect("a certificate");
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).expect("written");
        write("ca.pem", ca_certificate.pem());
        write("server.pem", certificate.pem());
        write("server.key", key.serialize_pem());
        Self { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}
