//! Nodes on loopback, and a peer of our own making that speaks WIRE.md byte by byte and keeps to it only as far as a test wants.

#![allow(dead_code, reason = "each suite uses a part")]

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ownerrpc::link::{
    Answer, Call, CallError, Clock, Direction, Endpoint, HandshakeError, LinkDown, Listener, LocalNode,
    Observer, Options, Peer, PeerInfo, PeerState, Refusal, RefusalKind, Security, SecuritySettings, Service,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

pub(crate) const SECRET: [u8; 32] = [7; 32];
pub(crate) const CLUSTER: [u8; 16] = [1; 16];
/// Bound of every wait: much longer than anything takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
pub(crate) const ECHO: u16 = 1_000;
pub(crate) const SLOW: u16 = 1_001;
pub(crate) const ORDER: u16 = 1_002;
pub(crate) const BIG: u16 = 1_003;

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(LIMIT, work).await.expect("done within the limit")
}

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn soon() -> Instant {
    Instant::now() + LIMIT
}

/// A clock that stands still until it is told of a later time.
#[derive(Debug, Default)]
pub(crate) struct TestClock(pub(crate) AtomicU64);

impl Clock for TestClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn observe(&self, ms: u64) {
        self.0.fetch_max(ms, Ordering::SeqCst);
    }
}

/// Remembers what happened to the links of a node.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) events: Mutex<Vec<String>>,
    pub(crate) refuses: Mutex<Vec<u64>>,
    /// Whether nodes that join are let in.
    pub(crate) joiners: AtomicBool,
}

impl Recorder {
    fn note(&self, event: String) {
        self.events.lock().push(event);
    }

    pub(crate) fn count(&self, part: &str) -> usize {
        self.events.lock().iter().filter(|event| event.contains(part)).count()
    }
}

impl Observer for Recorder {
    fn admits(&self, peer: &PeerInfo) -> bool {
        (peer.cluster_id != [0; 16] || self.joiners.load(Ordering::SeqCst))
            && !self.refuses.lock().contains(&peer.node_id)
    }

    fn up(&self, direction: Direction, peer: &PeerInfo) {
        self.note(format!("up {direction:?} {}", peer.node_id));
    }

    fn down(&self, direction: Direction, peer: &PeerInfo, why: &LinkDown) {
        self.note(format!("down {direction:?} {}: {why}", peer.node_id));
    }

    fn refused(&self, _address: SocketAddr, why: &HandshakeError) {
        self.note(format!("refused: {why}"));
    }

    fn unreachable(&self, node_id: u64, why: &LinkDown) {
        self.note(format!("unreachable {node_id}: {why}"));
    }
}

/// Answers the services of these tests and counts.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) running: AtomicU64,
    pub(crate) running_max: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) seen: Mutex<Vec<u64>>,
    pub(crate) peers: Mutex<Vec<Arc<PeerInfo>>>,
    pub(crate) budgets: Mutex<Vec<Duration>>,
    pub(crate) release: tokio::sync::Notify,
}

pub(crate) struct TestService(pub(crate) Arc<Recorded>);

struct Running(Arc<Recorded>, bool);

impl Running {
    fn new(recorded: &Arc<Recorded>) -> Self {
        let now = recorded.running.fetch_add(1, Ordering::SeqCst) + 1;
        recorded.running_max.fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(recorded), false)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        if !self.1 {
            self.0.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Service for TestService {
    fn call(&self, call: Call) -> Answer {
        let recorded = Arc::clone(&self.0);
        recorded.peers.lock().push(Arc::clone(&call.peer));
        recorded.budgets.lock().push(call.deadline.saturating_duration_since(Instant::now()));
        match call.service {
            ECHO => Box::pin(std::future::ready(Ok(call.payload))),
            SLOW => {
                let running = Running::new(&recorded);
                Box::pin(async move {
                    // Whole, not only the part that is used below.
                    let mut running = running;
                    recorded.release.notified().await;
                    running.1 = true;
                    Ok(call.payload)
                })
            }
            ORDER => {
                let number = call.payload.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
                recorded.seen.lock().push(number);
                Box::pin(async move {
                    tokio::task::yield_now().await;
                    Ok(call.payload)
                })
            }
            BIG => {
                let bytes = call.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                Box::pin(std::future::ready(Ok(Bytes::from(vec![1; bytes as usize]))))
            }
            _ => Box::pin(std::future::ready(Err(Refusal::new(RefusalKind::UnknownService, "")))),
        }
    }
}

pub(crate) fn plain(secret: [u8; 32]) -> Security {
    let settings = SecuritySettings {
        secret: Some(secret.to_vec()),
        trusted_network: true,
        ..SecuritySettings::default()
    };
    Security::new(&settings).expect("a secret on a trusted network")
}

/// Options that tests are quick with.
pub(crate) fn quick() -> Options {
    Options { backoff_min_ms: 5, backoff_max_ms: 50, ..Options::default() }
}

/// One node: an endpoint and what was heard of it.
pub(crate) struct Node {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) recorded: Arc<Recorded>,
}

impl Node {
    pub(crate) fn new(node_id: u64) -> Self {
        Self::with(node(node_id), plain(SECRET), quick())
    }

    pub(crate) fn with(node: LocalNode, security: Security, options: Options) -> Self {
        let clock = Arc::new(TestClock::default());
        let recorder = Arc::new(Recorder::default());
        let endpoint = Endpoint::new(
            node,
            security,
            options,
            Arc::<TestClock>::clone(&clock),
            Arc::<Recorder>::clone(&recorder),
        )
        .expect("legal");
        Self { endpoint, clock, recorder, recorded: Arc::default() }
    }

    pub(crate) async fn listen(&self) -> Listener {
        self.listen_at("127.0.0.1:0".parse().expect("an address")).await
    }

    pub(crate) async fn listen_at(&self, address: SocketAddr) -> Listener {
        let service = Arc::new(TestService(Arc::clone(&self.recorded)));
        let deadline = Instant::now() + LIMIT;
        loop {
            let service = Arc::<TestService>::clone(&service);
            match Listener::bind(Arc::clone(&self.endpoint), address, service).await {
                Ok(listener) => return listener,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn dial(&self, node_id: u64, address: SocketAddr) -> Peer {
        Peer::start(Arc::clone(&self.endpoint), node_id, &address.to_string())
    }
}

pub(crate) fn node(node_id: u64) -> LocalNode {
    LocalNode::new(CLUSTER, node_id, Arc::from(format!("boot-{node_id}")))
}

pub(crate) async fn up(peer: &Peer) -> Arc<PeerInfo> {
    match within(peer.wait_for(|state| matches!(state, PeerState::Up(_)))).await {
        PeerState::Up(info) => info,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn down(peer: &Peer) -> Arc<LinkDown> {
    match within(peer.wait_for(|state| matches!(state, PeerState::Down(_)))).await {
        PeerState::Down(why) => why,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn echo(peer: &Peer, payload: &'static [u8]) -> Result<Bytes, CallError> {
    within(peer.call(ECHO, Bytes::from_static(payload), soon())).await
}

/// A peer of our own making, written from WIRE.md alone.
pub(crate) struct RawPeer {
    pub(crate) stream: TcpStream,
}

/// `u32 length | u16 service | u64 request id | payload`.
pub(crate) fn frame(service: u16, request_id: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(10 + payload.len()).expect("short").to_be_bytes().to_vec();
    out.extend_from_slice(&service.to_be_bytes());
    out.extend_from_slice(&request_id.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

fn hello(from: u64, to: u64) -> Vec<u8> {
    let mut out = b"XMQP\x01\x01\x00\x01\x00\x01".to_vec();
    out.extend_from_slice(&CLUSTER);
    out.extend_from_slice(&from.to_be_bytes());
    out.extend_from_slice(&to.to_be_bytes());
    out.extend_from_slice(&[5; 32]);
    out.extend_from_slice(b"\x00\x03raw");
    out
}

fn proof(role: &str, dialer: &[u8], acceptor: &[u8]) -> Vec<u8> {
    let mut covered = format!("exactmq peer link: {role}\0").into_bytes();
    for part in [dialer, acceptor, &[]] {
        covered.extend_from_slice(&u32::try_from(part.len()).expect("short").to_be_bytes());
        covered.extend_from_slice(part);
    }
    covered.extend_from_slice(&1_u16.to_be_bytes());
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &SECRET);
    ring::hmac::sign(&key, &covered).as_ref().to_vec()
}

impl RawPeer {
    /// Dials a listener as node `from`.
    pub(crate) async fn dial(address: SocketAddr, from: u64, to: u64) -> Self {
        let stream = within(TcpStream::connect(address)).await.expect("connected");
        let mut peer = Self { stream };
        let mine = hello(from, to);
        peer.send(&frame(0, 1, &mine)).await;
        let (_, _, theirs) = peer.receive().await.expect("a hello");
        peer.send(&frame(0, 3, &proof("dialer", &mine, &theirs))).await;
        let answer = peer.receive().await.expect("a proof");
        assert_eq!(answer, (0, 4, proof("acceptor", &mine, &theirs)));
        peer
    }

    /// Lets a dialer in as node `from`.
    pub(crate) async fn accept(listener: &TcpListener, from: u64, to: u64) -> Self {
        let (stream, _) = within(listener.accept()).await.expect("accepted");
        let mut peer = Self { stream };
        let (_, _, theirs) = peer.receive().await.expect("a hello");
        let mine = hello(from, to);
        peer.send(&frame(0, 2, &mine)).await;
        let answer = peer.receive().await.expect("a proof");
        assert_eq!(answer, (0, 3, proof("dialer", &theirs, &mine)));
        peer.send(&frame(0, 4, &proof("acceptor", &theirs, &mine))).await;
        peer
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.expect("sent");
    }

    /// The next frame: service, request id, payload. None when the connection ended.
    pub(crate) async fn receive(&mut self) -> Option<(u16, u64, Vec<u8>)> {
        within(self.receive_whenever()).await
    }

    async fn receive_whenever(&mut self) -> Option<(u16, u64, Vec<u8>)> {
        let length = self.stream.read_u32().await.ok()?;
        let service = self.stream.read_u16().await.ok()?;
        let request_id = self.stream.read_u64().await.ok()?;
        let mut payload = vec![0; length as usize - 10];
        self.stream.read_exact(&mut payload).await.ok()?;
        Some((service, request_id, payload))
    }

    /// The next frame that is no time, ping or pong.
    pub(crate) async fn receive_answer(&mut self) -> Option<(u16, u64, Vec<u8>)> {
        loop {
            match self.receive().await {
                Some((2 | 4 | 5, ..)) => {}
                other => return other,
            }
        }
    }

    /// Waits until the other side has closed the connection.
    pub(crate) async fn closed(&mut self) {
        while self.receive().await.is_some() {}
    }
}
