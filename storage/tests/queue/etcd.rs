//! A real etcd (Debian package `etcd-server`) on loopback, with and without TLS, and what happens when it hangs.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use storage::lease::etcd::{EtcdBackend, EtcdOptions, EtcdTls};
use storage::lease::{Alive, LeaseBackend, LeaseManager, Standing};
use tempfile::TempDir;

use crate::bench::PATIENCE;

pub(crate) struct Etcd {
    child: Child,
    dir: TempDir,
    port: u16,
    tls: bool,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

impl Etcd {
    /// Starts one and waits until it serves.
    pub(crate) async fn start(tls: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        if tls {
            write_certificates(dir.path());
        }
        let (port, peers) = (free_port(), format!("http://127.0.0.1:{}", free_port()));
        let clients = format!("{}://127.0.0.1:{port}", if tls { "https" } else { "http" });
        let file = |name: &str| dir.path().join(name);
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(file("data"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        if tls {
            command.arg("--cert-file").arg(file("server.pem")).arg("--key-file").arg(file("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca.pem"));
        }
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts: install the Debian package etcd-server");
        let this = Self { child, dir, port, tls };
        this.connect().await;
        this
    }

    pub(crate) async fn connect(&self) -> EtcdBackend {
        let options = self.options();
        let start = Instant::now();
        loop {
            match EtcdBackend::connect(&options).await {
                Ok(backend) => return backend,
                Err(error) => {
                    assert!(start.elapsed() < PATIENCE, "etcd does not serve: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn options(&self) -> EtcdOptions {
        let scheme = if self.tls { "https" } else { "http" };
        let read = |name: &str| std::fs::read(self.dir.path().join(name)).unwrap();
        let tls = self.tls.then(|| EtcdTls {
            authority: read("ca.pem"),
            identity: Some((read("client.pem"), read("client.key"))),
            server_name: Some("localhost".to_owned()),
        });
        EtcdOptions {
            endpoints: vec![format!("{scheme}://127.0.0.1:{}", self.port)],
            namespace: "/exactmq/test".to_owned(),
            user: None,
            tls,
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_certificates(dir: &Path) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = parameters.self_signed(&authority_key).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
    let issuer = rcgen::Issuer::new(parameters, authority_key);
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters =
            rcgen::CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        parameters.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = parameters.signed_by(&key, &issuer).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

/// Leases over mutual TLS; who has no certificate gets nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_work_over_mutual_tls() {
    let etcd = Etcd::start(true).await;
    let backend: std::sync::Arc<dyn LeaseBackend> = std::sync::Arc::new(etcd.connect().await);
    let manager = LeaseManager::new();
    let guard = manager.grant(&backend, Duration::from_secs(2), "test").await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(guard.standing(), Standing::Held);
    assert!(matches!(backend.probe(vec![guard.lease()]).await[..], [Alive::Left(_)]));
    let mut options = etcd.options();
    options.tls.as_mut().unwrap().identity = None;
    assert!(EtcdBackend::connect(&options).await.is_err(), "etcd asks for a certificate");
}

/// Checklist 21 and R-04: while etcd hangs, a lease first is at risk, then lost, before etcd can have expired it. A short hang does no harm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_21_a_hanging_etcd_fences_in_time() {
    let etcd = Etcd::start(false).await;
    let backend: std::sync::Arc<dyn LeaseBackend> = std::sync::Arc::new(etcd.connect().await);
    let manager = LeaseManager::new();
    let ttl = Duration::from_secs(6);
    let guard = manager.grant(&backend, ttl, "test").await.unwrap();
    etcd.signal("-STOP");
    tokio::time::sleep(Duration::from_millis(2_800)).await;
    assert_eq!(guard.standing(), Standing::AtRisk);
    etcd.signal("-CONT");
    let start = Instant::now();
    while guard.standing() != Standing::Held {
        assert!(start.elapsed() < PATIENCE, "{:?}", manager.view());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stopped = Instant::now();
    etcd.signal("-STOP");
    tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
    let lost = stopped.elapsed();
    etcd.signal("-CONT");
    // Kept at the latest when it was stopped: etcd cannot have ended it before its TTL.
    assert!(lost < ttl, "lost only after {lost:?}");
    assert_eq!(guard.standing(), Standing::Lost);
    // What is lost stays lost, although etcd may have it still.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(guard.standing(), Standing::Lost);
}
