//! A real etcd (Debian package `etcd-server`) on loopback, with and without TLS, and what happens when it hangs.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use storage::lease::etcd::{EtcdBackend, EtcdOptions, EtcdTls};
use storage::lease::{
    Alive, ClaimError, LeaseBackend, LeaseError, LeaseManager, NodeClaim, NodeLeases, Standing,
};
use storage::queue::{ChanType, QueueError, QueueOptions, QueueStore};
use tempfile::TempDir;

use crate::bench::{Bench, PATIENCE, bind_producer, config, consumer, get, ids, payloads, producer};

pub(crate) struct Etcd {
    child: Option<Child>,
    dir: TempDir,
    port: u16,
    peers: String,
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
        let mut this = Self { child: None, dir, port, peers, tls };
        this.run();
        this.connect().await;
        this
    }

    /// Runs it on the data that it has.
    fn run(&mut self) {
        let (peers, file) = (&self.peers, |name: &str| self.dir.path().join(name));
        let clients = format!("{}://127.0.0.1:{}", if self.tls { "https" } else { "http" }, self.port);
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(file("data"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        if self.tls {
            command.arg("--cert-file").arg(file("server.pem")).arg("--key-file").arg(file("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca.pem"));
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("etcd starts: install the Debian package etcd-server"));
    }

    /// SIGKILL; what it has on disk stays.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Runs it again after a kill.
    pub(crate) async fn restart(&mut self) {
        self.run();
        self.connect().await;
    }

    /// A plain client, as an operator's.
    async fn client(&self) -> etcd_client::Client {
        etcd_client::Client::connect([format!("http://127.0.0.1:{}", self.port)], None).await.unwrap()
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
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A way to etcd that can be cut.
struct Way {
    endpoint: String,
    open: tokio::sync::watch::Sender<bool>,
}

impl Way {
    async fn to(port: u16) -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (open, is_open) = tokio::sync::watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut is_open = is_open.clone();
                tokio::spawn(async move {
                    if !*is_open.borrow() {
                        return;
                    }
                    let mut far = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = is_open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { endpoint, open }
    }

    fn cut(&self) {
        self.open.send_replace(false);
    }

    fn heal(&self) {
        self.open.send_replace(true);
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

/// endpoints that are dead, refusing or silent, do no harm: the one that answers is asked first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_endpoints_one_that_lives_is_enough() {
    let etcd = Etcd::start(false).await;
    // It takes connections and never answers, as a node behind a broken switch.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let live = etcd.options().endpoints.pop().unwrap();
    let refusing = format!("http://127.0.0.1:{}", free_port());
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for endpoints in [
        vec![refusing.clone(), live.clone()],
        vec![live.clone(), refusing.clone()],
        vec![silent.clone(), live.clone(), refusing.clone()],
    ] {
        let options = EtcdOptions { endpoints, ..etcd.options() };
        let backend = EtcdBackend::connect(&options).await.unwrap();
        let backend: std::sync::Arc<dyn LeaseBackend> = std::sync::Arc::new(backend);
        let manager = LeaseManager::new();
        let guard = manager.grant(&backend, Duration::from_secs(3), "test").await.unwrap();
        let lease = guard.lease();
        for _ in 0..20 {
            assert!(matches!(backend.probe(vec![lease]).await[..], [Alive::Left(_)]), "{options:?}");
        }
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(guard.standing(), Standing::Held, "{options:?}");
        guard.revoke().await.unwrap();
        assert_eq!(backend.probe(vec![lease]).await, [Alive::Gone]);
    }
    let dead = EtcdOptions { endpoints: vec![refusing, silent], ..etcd.options() };
    assert!(matches!(EtcdBackend::connect(&dead).await, Err(LeaseError::Unavailable { .. })));
}

/// only the cluster that gave a lease can say that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_of_another_cluster_is_not_believed() {
    let (etcd, other) = (Etcd::start(false).await, Etcd::start(false).await);
    let endpoints = [etcd.options().endpoints, other.options().endpoints].concat();
    let backend = EtcdBackend::connect(&EtcdOptions { endpoints, ..etcd.options() }).await.unwrap();
    let lease = backend.grant(Duration::from_secs(600)).await.unwrap();
    etcd.signal("-STOP");
    // The other one has no such lease, and it is not its to say so.
    for _ in 0..3 {
        assert_eq!(backend.probe(vec![lease]).await, [Alive::Unknown]);
        assert_eq!(backend.keepalive(vec![lease]).await, [Alive::Unknown]);
    }
    etcd.signal("-CONT");
    let start = Instant::now();
    while !matches!(backend.probe(vec![lease]).await[..], [Alive::Left(_)]) {
        assert!(start.elapsed() < PATIENCE, "it is never asked again");
    }
}

/// R-05, lease spec 15.5: that a lease went is heard from the watch, at once; a watch that was cut off while etcd compacted what it missed has
/// news, too, and hears again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_come_at_once_and_also_after_a_compaction() {
    let etcd = Etcd::start(false).await;
    let way = Way::to(etcd.port).await;
    let options = EtcdOptions { endpoints: vec![way.endpoint.clone()], ..etcd.options() };
    let backend = EtcdBackend::connect(&options).await.unwrap();
    let mut news = backend.news().unwrap();
    // The first are that it looks at all.
    tokio::time::timeout(PATIENCE, news.changed()).await.unwrap().unwrap();
    let revoked = backend.grant(Duration::from_secs(600)).await.unwrap();
    let missed = backend.grant(Duration::from_secs(600)).await.unwrap();
    backend.revoke(revoked).await.unwrap();
    tokio::time::timeout(Duration::from_secs(3), news.changed()).await.expect("at once").unwrap();

    way.cut();
    let client = etcd.client().await;
    client.lease_client().revoke(missed.id.cast_signed()).await.unwrap();
    let revision = client.kv_client().get("x", None).await.unwrap().header().unwrap().revision();
    client.kv_client().compact(revision, None).await.unwrap();
    assert!(!news.has_changed().unwrap(), "it is cut off");
    way.heal();
    tokio::time::timeout(PATIENCE, news.changed()).await.unwrap().unwrap();
    assert_eq!(backend.probe(vec![missed]).await, [Alive::Gone]);
    // Leases live through a compaction, and the watch goes on.
    let next = backend.grant(Duration::from_secs(600)).await.unwrap();
    let start = Instant::now();
    loop {
        // A watch that had not begun again yet cannot hear it; it has news when it begins.
        news.mark_unchanged();
        let extra = backend.grant(Duration::from_secs(600)).await.unwrap();
        backend.revoke(extra).await.unwrap();
        if tokio::time::timeout(Duration::from_millis(500), news.changed()).await.is_ok() {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the watch does not hear any more");
    }
    assert!(matches!(backend.probe(vec![next]).await[..], [Alive::Left(_)]));
}

/// Checklist 20 (H-23, R-01): what processes keep in etcd goes with them, closed or dead; whatever is there is below the namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_20_nothing_is_left_in_etcd() {
    let bench = Bench::etcd().await;
    let client = bench.etcd.as_ref().unwrap().client().await;
    let count = async |prefix: &str| {
        let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
        client.kv_client().get(prefix, Some(options)).await.unwrap().count()
    };
    for number in 0..40 {
        let process = bench.process();
        producer(&process, "q", ChanType::Mpsc).await.put_data(b"x").await.unwrap();
        if number % 4 > 0 {
            process.close().await.unwrap();
        }
    }
    assert_eq!(count("/exactmq/test/").await, count("/").await);
    let start = Instant::now();
    // Of the dead ones when their leases end.
    while count("/").await > 0 {
        assert!(start.elapsed() < PATIENCE, "{} keys are left", count("/").await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bench.end().await;
}

/// What became of the members and records of one process while etcd was killed for so long and then run again on its data.
async fn outage(ttl: Duration, down: Duration) -> (Standing, Duration) {
    let mut bench = Bench::etcd().await;
    bench.ttl = ttl;
    let (store, other) = (bench.process(), bench.process());
    let producer = producer(&store, "q", ChanType::Mpsc).await;
    let reader = consumer(&other, "q", ChanType::Mpsc).await;
    let old = store.leases().view()[0].lease;
    let mut sent = 0_u8;
    while sent < 10 {
        producer.put_data([sent]).await.unwrap();
        sent += 1;
    }
    let taken = get(&reader, 4).await;
    reader.ack(&ids(&taken[..2])).await.unwrap();
    bench.etcd.as_mut().unwrap().kill();
    let began = Instant::now();
    // Channels are not in etcd: as long as the lease is held, nobody notices.
    while began.elapsed() < down {
        match producer.put_data([sent]).await {
            Ok(()) => sent += 1,
            Err(error) => {
                assert_eq!(error, QueueError::LeaseLost);
                break;
            }
        }
        // However long the outage is, what comes after it finds room in the channel.
        tokio::time::sleep((down / 60).max(Duration::from_millis(100))).await;
    }
    tokio::time::sleep(down.saturating_sub(began.elapsed())).await;
    if down > ttl {
        let refused = bind_producer(&bench.process(), "q", ChanType::Mpsc, &config(100)).await;
        assert!(matches!(refused, Err(QueueError::Lease(LeaseError::Unavailable { .. }))), "{refused:?}");
        assert_eq!(reader.ack(&ids(&taken[2..3])).await, Ok(()), "nobody else has them yet: it counts");
    }
    bench.etcd.as_mut().unwrap().restart().await;
    let (back, standing) =
        (Instant::now(), store.leases().view().first().map_or(Standing::Lost, |view| view.standing));
    let mut seen = payloads(&taken[..if down > ttl { 3 } else { 2 }]);
    let rest = usize::from(sent) - seen.len();
    if standing == Standing::Lost {
        // Bound anew, as its users do; the old consumer goes with its lease.
        let producer = crate::bench::producer(&store, "q", ChanType::Mpsc).await;
        // etcd would keep it for another TTL, and its members with it.
        assert_eq!(bench.backend().probe(vec![old]).await, [Alive::Gone], "who binds again gives it back");
        let reader = consumer(&other, "q", ChanType::Mpsc).await;
        let took = back.elapsed();
        producer.put_data([sent]).await.unwrap();
        seen.extend(payloads(&get(&reader, rest + 1).await));
        assert_eq!(
            seen,
            (0..=sent).map(|number| vec![number]).collect::<Vec<_>>(),
            "nothing lost, nothing else"
        );
        assert_eq!(producer.put_data([0]).await, Ok(()));
        return (standing, took);
    }
    let start = Instant::now();
    while store.leases().view()[0].standing != Standing::Held {
        assert!(start.elapsed() < PATIENCE, "{:?}", store.leases().view());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    producer.put_data([sent]).await.unwrap();
    // Not handed out again: it has them.
    let more = get(&reader, rest - 2 + 1).await;
    assert_eq!(payloads(&more), (4..=sent).map(|number| vec![number]).collect::<Vec<_>>());
    reader.ack(&ids(&taken)).await.unwrap();
    reader.ack(&ids(&more)).await.unwrap();
    let took = back.elapsed();
    store.close().await.unwrap();
    other.close().await.unwrap();
    bench.end().await;
    (standing, took)
}

/// Checklist 21, the list: etcd killed for 5 s, its data kept, under leases of 15 s: nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_21_etcd_killed_for_5_s_is_not_noticed() {
    let (standing, took) = outage(Duration::from_secs(15), Duration::from_secs(5)).await;
    assert_ne!(standing, Standing::Lost);
    println!("held again and working {took:?} after etcd was back");
}

/// Checklist 21, the list: etcd killed for twice the TTL: every endpoint is told that its lease is lost, nothing acknowledged is lost, a
/// new bind works as soon as etcd is back and has ended the old lease. `EXACTMQ_ETCD_TTL_SECONDS=30` makes it a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_21_etcd_killed_for_twice_the_ttl_loses_leases_and_nothing_else() {
    let seconds = std::env::var("EXACTMQ_ETCD_TTL_SECONDS").ok().and_then(|text| text.parse().ok());
    let ttl = Duration::from_secs(seconds.unwrap_or(3));
    let (standing, took) = outage(ttl, ttl * 2).await;
    assert_eq!(standing, Standing::Lost);
    println!("bound again {took:?} after etcd was back");
    // etcd starts a lease anew when it starts; then a second or two until its end is told.
    assert!(took < ttl + Duration::from_secs(10), "{took:?}");
}

fn claim(boot_id: &str) -> NodeClaim {
    let addresses = [("mqtt".to_owned(), "10.0.0.1:1883".to_owned())].into();
    NodeClaim { node_id: 7, boot_id: boot_id.into(), version: "1".to_owned(), started_ms: 5, addresses }
}

/// ADR 0010: a node id is one boot's while its lease lives. Only what is proved to be over gives way, and repeating a claim is safe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_id_is_claimed_by_one_boot() {
    let etcd = Etcd::start(false).await;
    let backend = etcd.connect().await;
    let ttl = Duration::from_secs(600);
    let first = backend.grant(ttl).await.unwrap();
    backend.claim(&claim("a"), first, &[]).await.unwrap();
    backend.claim(&claim("a"), first, &[]).await.unwrap();
    let second = backend.grant(ttl).await.unwrap();
    let refused = backend.claim(&claim("b"), second, &["c".into()]).await.unwrap_err();
    assert_eq!(refused, ClaimError::Taken(Box::new(claim("a"))));
    assert!(refused.to_string().contains("boot a of it, version 1, at mqtt 10.0.0.1:1883"), "{refused}");
    assert!(matches!(backend.boot(7, "a").await, Alive::Left(_)));
    // Proved to be over: its lease goes with it.
    backend.claim(&claim("b"), second, &["a".into()]).await.unwrap();
    assert_eq!(backend.boot(7, "a").await, Alive::Gone);
    // The same boot under another lease.
    let third = backend.grant(ttl).await.unwrap();
    backend.claim(&claim("b"), third, &[]).await.unwrap();
    assert_eq!(backend.probe(vec![second, third]).await[0], Alive::Gone);
    assert_eq!(backend.claims().await.unwrap(), [claim("b")]);
    // A lease that is gone claims nothing.
    assert!(matches!(
        backend.claim(&claim("c"), first, &["b".into()]).await,
        Err(ClaimError::Lease(LeaseError::Gone))
    ));
}

/// ADR 0010: that a boot is over is a word of the etcd that had its lease, and of no other: not of one without a record of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_etcd_has_no_record_of_is_not_gone() {
    let etcd = Etcd::start(false).await;
    let backend = etcd.connect().await;
    assert_eq!(backend.boot(7, "a").await, Alive::Unknown, "it never was there");
    let lease = backend.grant(Duration::from_secs(600)).await.unwrap();
    backend.claim(&claim("a"), lease, &[]).await.unwrap();
    backend.revoke(lease).await.unwrap();
    assert_eq!(backend.boot(7, "a").await, Alive::Gone);
    assert_eq!(backend.claims().await.unwrap(), []);
    etcd.signal("-STOP");
    assert_eq!(backend.boot(7, "a").await, Alive::Unknown, "silence proves nothing");
    etcd.signal("-CONT");
    let start = Instant::now();
    while backend.forget(7, &["a".into(), "b".into()]).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "it is never asked again");
    }
    assert_eq!(backend.boot(7, "a").await, Alive::Unknown, "its record is dropped");
    assert_eq!(
        etcd.client().await.kv_client().get("/exactmq/test/v1/boot/7/a", None).await.unwrap().count(),
        0
    );
}

/// ADR 0010: channel members of a process may hang on a lease that it has for more than them; while it is lost nobody is bound, and closing
/// the channels does not end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_hang_on_a_lease_that_is_lent() {
    let bench = Bench::etcd().await;
    let backend = bench.backend();
    let leases = LeaseManager::new();
    let options = || QueueOptions { keeper: false, ..QueueOptions::default() };
    let queues = QueueStore::open_lent(bench.channels.clone(), options(), leases.clone());
    let refused = bind_producer(&queues, "q", ChanType::Mpsc, &config(10)).await;
    assert!(matches!(refused, Err(QueueError::Lease(LeaseError::Unavailable { .. }))), "{refused:?}");
    let own = leases.grant(&backend, Duration::from_secs(5), "node").await.unwrap();
    queues.lend(&backend, own.share("queues")).await;
    let producer = bind_producer(&queues, "q", ChanType::Mpsc, &config(10)).await.unwrap();
    producer.put_data(b"x").await.unwrap();
    assert_eq!(leases.view().len(), 1, "one lease for all");
    backend.revoke(own.lease()).await.unwrap();
    tokio::time::timeout(PATIENCE, own.lost()).await.unwrap();
    assert_eq!(producer.put_data(b"y").await, Err(QueueError::LeaseLost));
    let refused = bind_producer(&queues, "q", ChanType::Mpsc, &config(10)).await;
    assert!(matches!(refused, Err(QueueError::Lease(LeaseError::Unavailable { .. }))), "{refused:?}");
    let own = leases.grant(&backend, Duration::from_secs(5), "node").await.unwrap();
    queues.lend(&backend, own.share("queues")).await;
    let producer = bind_producer(&queues, "q", ChanType::Mpsc, &config(10)).await.unwrap();
    producer.put_data(b"z").await.unwrap();
    queues.close().await.unwrap();
    assert!(
        matches!(backend.probe(vec![own.lease()]).await[..], [Alive::Left(_)]),
        "it is not the channels' to end"
    );
    bench.end().await;
}
