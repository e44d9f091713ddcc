//! Service 107 between two nodes, with a real registry behind it (owner spec §4.3, §4.4, §4.6).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use ownerrpc::link::{CallError, Caller, Calling, Listener, Peers, RefusalKind, Services, services};
use ownerrpc::quiesce::{DecodeError, Request, Response, Status};
use ownerrpc::server::Quiescing;
use ownerrpc::{Quiesce, QuiesceClient, QuiesceError, QuiesceFailure, QuiesceServer};
use session::id::{Key, Owner};
use session::owner::{Claim, CloseOutcome, Entry, Options, OwnerError, Registry, Transport};
use session::time::Tick;
use support::*;
use tokio::time::Instant;

const NOW: Tick = Tick(1_000_000_000);

/// Counts the requests to close; the test closes.
#[derive(Default)]
struct Socket(AtomicUsize);

impl Transport for Socket {
    fn request_close(&self, _owner: &Owner) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Service 107 as a broker answers it from its live registry.
struct Live {
    registry: Arc<Registry>,
    calls: AtomicUsize,
}

impl Quiesce for Live {
    fn quiesce<'a>(&'a self, owner: &'a Owner, _deadline: Instant) -> Quiescing<'a> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(poll_fn(|cx| match self.registry.quiesce(NOW, owner, Some(cx.waker())) {
            Ok(session::owner::Quiesce::Proved) => Poll::Ready(Ok(())),
            Ok(session::owner::Quiesce::Pending) => Poll::Pending,
            Err(OwnerError::Close) => Poll::Ready(Err(QuiesceFailure::Close)),
            Err(_) => Poll::Ready(Err(QuiesceFailure::Unproved)),
        }))
    }
}

/// Always says the same.
struct Fixed(Result<(), QuiesceFailure>);

impl Quiesce for Fixed {
    fn quiesce<'a>(&'a self, _owner: &'a Owner, _deadline: Instant) -> Quiescing<'a> {
        Box::pin(std::future::ready(self.0))
    }
}

/// Node 1 asks node 2.
struct Bench {
    client: QuiesceClient,
    peers: Arc<Peers>,
    _listener: Listener,
    _nodes: (Node, Node),
}

impl Bench {
    async fn new(server: QuiesceServer) -> Self {
        let (one, two) = (Node::new(1), Node::new(2));
        let services = Services::default().with(services::QUIESCE, Arc::new(server));
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(Arc::clone(&two.endpoint), address, Arc::new(services)).await.unwrap();
        let peers = Arc::new(Peers::new(Arc::clone(&one.endpoint)));
        peers.set(2, &listener.address().to_string());
        let client = QuiesceClient::new(Arc::<Peers>::clone(&peers));
        Self { client, peers, _listener: listener, _nodes: (one, two) }
    }

    async fn quiesce(&self, owner: &Owner) -> Result<(), QuiesceError> {
        within(self.client.quiesce(owner, soon())).await
    }
}

fn registry() -> Arc<Registry> {
    let options = Options {
        node_id: 2,
        boot_id: Arc::from("boot-2"),
        capacity: 8,
        operations_max: 4,
        pending_timeout_ms: 60_000,
        lease_max_ms: 60_000,
        close_retry_ms: 60_000,
    };
    Arc::new(Registry::new(options).unwrap())
}

fn active(registry: &Registry) -> (Arc<Entry>, Arc<Socket>) {
    let socket = Arc::new(Socket::default());
    let claim = Claim {
        key: Key { namespace: Arc::from("main"), client_id: Arc::from("c") },
        uid: Arc::from("alice"),
        session_generation: 1,
        owner_generation: 1,
    };
    let entry = registry.reserve(NOW, claim, Arc::<Socket>::clone(&socket)).unwrap();
    registry.activate(NOW, entry.owner(), 1, NOW.plus_ms(60_000)).unwrap();
    (entry, socket)
}

fn owner() -> Owner {
    Owner {
        key: Key { namespace: Arc::from("n"), client_id: Arc::from("c") },
        session_generation: 1,
        owner_generation: 2,
        node_id: 2,
        boot_id: Arc::from("b"),
        connection_id: 4,
    }
}

/// Owner spec §4.6: the receipt comes after the socket is closed and the last admitted scope is released, not before; asking again is
/// Ok; another boot is Unknown.
#[tokio::test]
async fn the_proof_comes_after_the_last_scope() {
    let registry = registry();
    let (entry, socket) = active(&registry);
    let live = Arc::new(Live { registry: Arc::clone(&registry), calls: AtomicUsize::new(0) });
    let bench = Bench::new(QuiesceServer::new(Arc::<Live>::clone(&live))).await;
    let scope = registry.begin(NOW, &entry).unwrap();
    let mut asked = Box::pin(bench.client.quiesce(entry.owner(), soon()));
    assert!(is_pending(&mut asked).await);
    while socket.0.load(Ordering::SeqCst) == 0 {
        assert!(is_pending(&mut asked).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(entry.is_fenced());
    registry.transport_closed(NOW, entry.owner(), CloseOutcome::Closed);
    // An answer would have to be here after this round trip.
    assert!(bench.quiesce(&Owner { boot_id: Arc::from("previous"), ..entry.owner().clone() }).await.is_err());
    assert!(is_pending(&mut asked).await, "a scope is open");
    scope.done();
    within(asked).await.unwrap();
    bench.quiesce(entry.owner()).await.unwrap();
    assert_eq!(socket.0.load(Ordering::SeqCst), 1);
    let previous = Owner { boot_id: Arc::from("previous"), ..entry.owner().clone() };
    assert!(matches!(bench.quiesce(&previous).await, Err(QuiesceError::Unproved)));
    let later = Owner { connection_id: entry.owner().connection_id + 1, ..entry.owner().clone() };
    assert!(matches!(bench.quiesce(&later).await, Err(QuiesceError::Unproved)));
}

/// Owner spec §4.6: each outcome arrives as the same kind.
#[tokio::test]
async fn every_outcome_arrives_as_itself() {
    type Expected = fn(&Result<(), QuiesceError>) -> bool;
    let cases: [(Result<(), QuiesceFailure>, Expected); 5] = [
        (Ok(()), |outcome| outcome.is_ok()),
        (Err(QuiesceFailure::Unproved), |outcome| matches!(outcome, Err(QuiesceError::Unproved))),
        (Err(QuiesceFailure::Close), |outcome| matches!(outcome, Err(QuiesceError::Close))),
        (Err(QuiesceFailure::Cancelled), |outcome| matches!(outcome, Err(QuiesceError::Cancelled))),
        (Err(QuiesceFailure::Deadline), |outcome| matches!(outcome, Err(QuiesceError::Deadline))),
    ];
    for (says, expected) in cases {
        let bench = Bench::new(QuiesceServer::new(Arc::new(Fixed(says)))).await;
        let outcome = bench.quiesce(&owner()).await;
        assert!(expected(&outcome), "{says:?} arrived as {outcome:?}");
    }
}

/// Owner spec §4.3, §4.6: without a registry nothing is proved.
#[tokio::test]
async fn a_node_without_a_port_proves_nothing() {
    let bench = Bench::new(QuiesceServer::without_port()).await;
    assert!(matches!(bench.quiesce(&owner()).await, Err(QuiesceError::Unproved)));
}

/// Owner spec §4.2, §4.6: a malformed request is an error of the transport, opaque, and the port is never called.
#[tokio::test]
async fn malformed_requests_never_reach_the_port() {
    let live = Arc::new(Live { registry: registry(), calls: AtomicUsize::new(0) });
    let bench = Bench::new(QuiesceServer::new(Arc::<Live>::clone(&live))).await;
    let golden = Request { owner: owner() }.encode().unwrap();
    let mut cases: Vec<Vec<u8>> = (0..golden.len()).map(|len| golden[..len].to_vec()).collect();
    cases.push([&golden[..], &[0]].concat());
    cases.push(vec![0; 2_304]);
    cases.push(b"{}".to_vec());
    for at in [4, 5] {
        let mut changed = golden.to_vec();
        changed[at] = 2;
        cases.push(changed);
    }
    for case in cases {
        match within(bench.peers.call(2, services::QUIESCE, Bytes::from(case), soon())).await {
            Err(CallError::Refused(refusal)) => {
                assert_eq!((refusal.kind, &*refusal.text), (RefusalKind::Malformed, ""));
            }
            other => panic!("{other:?}"),
        }
    }
    // 4,096 zeros do not even leave the node.
    let zeros = within(bench.peers.call(2, services::QUIESCE, Bytes::from(vec![0; 4_096]), soon())).await;
    assert!(matches!(zeros, Err(CallError::TooLarge { limit: 2_304, .. })));
    assert_eq!(live.calls.load(Ordering::SeqCst), 0);
}

/// A network in which one node answers as a test says.
struct Canned(Vec<u8>, AtomicUsize);

impl Caller for Canned {
    fn call(&self, node_id: u64, service: u16, _payload: Bytes, _deadline: Instant) -> Calling<'_> {
        assert_eq!((node_id, service), (2, 107), "exactly the owner's node");
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(Ok(Bytes::from(self.0.clone()))))
    }
}

/// Owner spec §4.4, §4.6: an echo that differs in anything is no proof; what is no answer is an error.
#[tokio::test]
async fn only_an_exact_echo_is_a_proof() {
    let answer = |owner: Owner| Response { status: Status::Quiesced, owner }.encode().unwrap().to_vec();
    let ask = async |bytes: Vec<u8>| {
        let network = Arc::new(Canned(bytes, AtomicUsize::new(0)));
        let outcome = QuiesceClient::new(Arc::<Canned>::clone(&network)).quiesce(&owner(), soon()).await;
        assert_eq!(network.1.load(Ordering::SeqCst), 1, "asked once, never again");
        outcome
    };
    ask(answer(owner())).await.unwrap();
    let changes: [fn(&mut Owner); 7] = [
        |owner| owner.key.namespace = Arc::from("other"),
        |owner| owner.key.client_id = Arc::from("other"),
        |owner| owner.session_generation += 1,
        |owner| owner.owner_generation += 1,
        |owner| owner.node_id += 1,
        |owner| owner.boot_id = Arc::from("other"),
        |owner| owner.connection_id += 1,
    ];
    for change in changes {
        let mut foreign = owner();
        change(&mut foreign);
        assert!(matches!(ask(answer(foreign)).await, Err(QuiesceError::Unproved)));
    }
    assert!(matches!(ask(vec![]).await, Err(QuiesceError::Answer(DecodeError::Short(0)))));
    assert!(matches!(ask(vec![1]).await, Err(QuiesceError::Answer(DecodeError::Short(1)))));
    let request = Request { owner: owner() }.encode().unwrap().to_vec();
    assert!(matches!(ask(request).await, Err(QuiesceError::Answer(DecodeError::Magic(_)))));
}

/// Owner spec §4.4: an invalid owner is not asked about; without peers nothing is proved; an unreachable node proves nothing.
#[tokio::test]
async fn what_cannot_be_asked_is_not_proved() {
    let invalid = Owner { connection_id: 0, ..owner() };
    let nobody = QuiesceClient::without_peers();
    assert!(matches!(nobody.quiesce(&invalid, soon()).await, Err(QuiesceError::Invalid(_))));
    assert!(matches!(nobody.quiesce(&owner(), soon()).await, Err(QuiesceError::Unproved)));
    let bench = Bench::new(QuiesceServer::without_port()).await;
    let elsewhere = Owner { node_id: 3, ..owner() };
    let outcome = bench.quiesce(&elsewhere).await;
    assert!(matches!(outcome, Err(QuiesceError::Call(CallError::UnknownNode(3)))));
}

/// Owner spec §4.3: the caller's time bounds the port, and that it passed there is said in time.
#[tokio::test]
async fn the_deadline_of_the_caller_bounds_the_port() {
    let registry = registry();
    let (entry, _socket) = active(&registry);
    let live = Arc::new(Live { registry, calls: AtomicUsize::new(0) });
    let bench = Bench::new(QuiesceServer::new(live)).await;
    // The link is up when this is refused.
    assert!(bench.quiesce(&owner()).await.is_err());
    let deadline = Instant::now() + Duration::from_millis(300);
    let outcome = within(bench.client.quiesce(entry.owner(), deadline)).await;
    assert!(
        matches!(outcome, Err(QuiesceError::Deadline | QuiesceError::Call(CallError::Deadline))),
        "{outcome:?}"
    );
    assert!(entry.is_fenced(), "the fence stays");
}

/// Polls it once.
async fn is_pending<F: Future + Unpin>(work: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *work).poll(cx).is_pending())).await
}
