//! The life of a link: who may link, what breaks it, how fast that is noticed, and how it comes back.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use ownerrpc::link::{
    CallError, Endpoint, EndpointError, HandshakeError, LinkDown, Options, Peer, Peers, RefusalKind,
    Security, SecurityError, SecuritySettings, Unobserved,
};
use support::*;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

fn slow_calls(peer: &Arc<Peer>, count: usize) -> JoinSet<Result<Bytes, CallError>> {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let peer = Arc::clone(peer);
        calls.spawn(async move { peer.call(SLOW, Bytes::new(), soon()).await });
    }
    calls
}

/// DESIGN §8: no secret and no certificate, no peer port.
#[test]
fn nothing_to_authenticate_with_means_no_endpoint() {
    assert!(matches!(Security::new(&SecuritySettings::default()), Err(SecurityError::Missing)));
}

#[test]
fn an_endpoint_needs_a_runtime_and_legal_values() {
    let make = |node, options| {
        let endpoint =
            Endpoint::new(node, plain(SECRET), options, Arc::new(TestClock::default()), Arc::new(Unobserved));
        endpoint.expect_err("refused")
    };
    assert_eq!(make(node(1), quick()), EndpointError::NoRuntime);
    assert!(matches!(make(node(0), quick()), EndpointError::NodeId(_)));
    assert!(matches!(make(node(1), Options { calls_max: 0, ..quick() }), EndpointError::Options(_)));
    let mut odd = node(1);
    odd.versions = (3, 2);
    assert_eq!(make(odd, quick()), EndpointError::Versions(3, 2));
    let mut nameless = node(1);
    nameless.boot_id = Arc::from("");
    assert!(matches!(make(nameless, quick()), EndpointError::BootId(_)));
}

/// DESIGN §8: a wrong secret never becomes a link, and callers are refused at once.
#[tokio::test]
async fn a_wrong_secret_makes_no_link() {
    let (one, two) = (Node::with(node(1), plain([8; 32]), quick()), Node::new(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    let refused = down(&peer).await;
    assert!(
        matches!(&*refused, LinkDown::Handshake(HandshakeError::Refused(refusal)) if refusal.kind == RefusalKind::Proof)
    );
    assert!(matches!(echo(&peer, b"").await, Err(CallError::Unreachable { node_id: 2, .. })));
    until("it is told", || {
        two.recorder.count("refused: the other node does not know the cluster secret") > 0
    })
    .await;
    assert_eq!(two.recorder.count("up"), 0);
    assert!(two.recorded.peers.lock().is_empty());
}

#[tokio::test]
async fn a_node_of_another_cluster_makes_no_link() {
    let mut other = node(1);
    other.cluster_id = [9; 16];
    let (one, two) = (Node::with(other, plain(SECRET), quick()), Node::new(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    assert!(matches!(&*down(&peer).await, LinkDown::Handshake(HandshakeError::Cluster)));
}

/// DESIGN §8: rolling upgrade, in both directions of dialling; too far apart says which versions.
#[tokio::test]
async fn nodes_of_adjacent_versions_are_peers() {
    for (dialer, acceptor, expected) in [
        ((1, 1), (1, 2), Some(1)),
        ((1, 2), (1, 1), Some(1)),
        ((1, 2), (2, 3), Some(2)),
        ((1, 1), (2, 2), None),
    ] {
        let (mut one, mut two) = (node(1), node(2));
        (one.versions, two.versions) = (dialer, acceptor);
        let (one, two) = (Node::with(one, plain(SECRET), quick()), Node::with(two, plain(SECRET), quick()));
        let listener = two.listen().await;
        let peer = one.dial(2, listener.address());
        if let Some(version) = expected {
            assert_eq!(up(&peer).await.version, version);
            echo(&peer, b"a").await.unwrap();
            assert_eq!(two.recorded.peers.lock()[0].version, version);
        } else {
            let why = down(&peer).await;
            assert!(
                matches!(&*why, LinkDown::Handshake(HandshakeError::Version { ours, theirs })
                if (*ours, *theirs) == (dialer, acceptor)),
                "{why}"
            );
        }
    }
}

/// Nodes that were removed are turned away at the door.
#[tokio::test]
async fn a_removed_node_is_not_admitted() {
    let (one, two) = (Node::new(1), Node::new(2));
    two.recorder.refuses.lock().push(1);
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    let why = down(&peer).await;
    assert!(
        matches!(&*why, LinkDown::Handshake(HandshakeError::Refused(refusal)) if refusal.kind == RefusalKind::NotAdmitted)
    );
    // A node that joins has no cluster yet, and this observer admits members only.
    let mut joining = node(3);
    joining.cluster_id = [0; 16];
    let three = Node::with(joining, plain(SECRET), quick());
    let peer = three.dial(0, listener.address());
    down(&peer).await;
    assert_eq!(two.recorder.count("up"), 0);
}

/// DESIGN §6 "circuit breaker": when the peer dies all calls under way fail at once, later ones are refused at once, and when it is
/// back the link is too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_peer_fails_its_calls_and_is_refused_until_it_is_back() {
    let (one, two) = (Node::new(1), Node::new(2));
    let listener = two.listen().await;
    let address = listener.address();
    let peer = Arc::new(one.dial(2, address));
    up(&peer).await;
    let calls = slow_calls(&peer, 50);
    until("all run", || two.recorded.running.load(Ordering::SeqCst) == 50).await;
    drop(listener);
    // Their own deadlines are as far away as the limit of this wait.
    for answer in within(calls.join_all()).await {
        assert!(matches!(answer, Err(CallError::Lost { node_id: 2, .. })), "{answer:?}");
    }
    assert!(matches!(echo(&peer, b"").await, Err(CallError::Unreachable { node_id: 2, .. })));
    until("the handlers are dropped", || two.recorded.running.load(Ordering::SeqCst) == 0).await;
    until("it is tried again", || one.recorder.count("unreachable 2") > 2).await;
    let two = Node::new(2);
    let _listener = two.listen_at(address).await;
    up(&peer).await;
    assert_eq!(echo(&peer, b"back").await.unwrap(), "back");
    assert_eq!((one.recorder.count("up Outbound 2"), one.recorder.count("down Outbound 2")), (2, 1));
}

/// DESIGN §6: a peer that is stopped (its kernel still acknowledges) is noticed by its silence, not by each call's timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_peer_is_noticed_by_its_silence() {
    let one = Node::with(node(1), plain(SECRET), Options { silence_ms: 200, ..quick() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = Arc::new(one.dial(2, listener.local_addr().unwrap()));
    let mut stopped = RawPeer::accept(&listener, 2, 1).await;
    up(&peer).await;
    let calls = slow_calls(&peer, 3);
    for answer in within(calls.join_all()).await {
        match answer {
            Err(CallError::Lost { why, .. }) => assert!(matches!(*why, LinkDown::Silent(200)), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    // It is not dialled into life either: whoever does not answer the handshake is not there.
    assert!(matches!(echo(&peer, b"").await, Err(CallError::Unreachable { node_id: 2, .. })));
    let mut pings = 0;
    while let Some((service, ..)) = stopped.receive().await {
        pings += usize::from(service == 4);
    }
    assert!(pings >= 3, "{pings} pings");
}

/// A peer that answers pings lives, however long it says nothing else.
#[tokio::test]
async fn a_quiet_peer_stays_linked() {
    let one = Node::with(node(1), plain(SECRET), Options { silence_ms: 100, ..quick() });
    let two = Node::new(2);
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    up(&peer).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(one.recorder.count("down"), 0, "{:?}", one.recorder.events.lock());
    assert_eq!(echo(&peer, b"here").await.unwrap(), "here");
}

/// A node that dials us is there: the link to it does not wait out its pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_dials_us_is_dialled_at_once() {
    let patient = Options { backoff_min_ms: 60_000, backoff_max_ms: 60_000, ..quick() };
    let (one, two) = (Node::with(node(1), plain(SECRET), patient), Node::new(2));
    let at_one = one.listen().await;
    let at_two = two.listen().await;
    let address = at_two.address();
    drop(at_two);
    until("the port is closed", || std::net::TcpStream::connect(address).is_err()).await;
    let to_two = one.dial(2, address);
    down(&to_two).await;
    let _at_two = two.listen_at(address).await;
    let to_one = two.dial(1, at_one.address());
    up(&to_one).await;
    up(&to_two).await;
}

/// DESIGN §12: a node that leaves says so: calls under way are answered, new ones refused at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_node_answers_what_is_under_way() {
    let (one, two) = (Node::new(1), Node::new(2));
    let listener = Arc::new(two.listen().await);
    let peer = Arc::new(one.dial(2, listener.address()));
    up(&peer).await;
    let calls = slow_calls(&peer, 5);
    until("all run", || two.recorded.running.load(Ordering::SeqCst) == 5).await;
    let closing = {
        let listener = Arc::clone(&listener);
        tokio::spawn(async move { listener.close(LIMIT).await })
    };
    let why = down(&peer).await;
    assert!(matches!(&*why, LinkDown::Left), "{why}");
    assert!(matches!(echo(&peer, b"").await, Err(CallError::Unreachable { .. })));
    two.recorded.release.notify_waiters();
    for answer in within(calls.join_all()).await {
        answer.unwrap();
    }
    within(closing).await.unwrap();
    until("it is told", || one.recorder.count("down Outbound 2: the peer left") == 1).await;
}

/// A node that stops to call waits for its answers first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_peer_waits_for_its_calls() {
    let (one, two) = (Node::new(1), Node::new(2));
    let listener = two.listen().await;
    let peer = Arc::new(one.dial(2, listener.address()));
    up(&peer).await;
    let calls = slow_calls(&peer, 2);
    until("both run", || two.recorded.running.load(Ordering::SeqCst) == 2).await;
    let closing = {
        let peer = Arc::clone(&peer);
        tokio::spawn(async move { peer.close(LIMIT).await })
    };
    down(&peer).await;
    assert!(matches!(echo(&peer, b"").await, Err(CallError::Unreachable { .. })));
    two.recorded.release.notify_waiters();
    for answer in within(calls.join_all()).await {
        answer.unwrap();
    }
    within(closing).await.unwrap();
    until("both sides know", || {
        one.recorder.count("down Outbound 2") == 1 && two.recorder.count("down Inbound 1: the peer left") == 1
    })
    .await;
}

/// DESIGN §8: one connection per pair and direction; the newer one counts, because the older may be half open.
#[tokio::test]
async fn a_second_link_of_a_node_replaces_its_first() {
    let two = Node::new(2);
    let listener = two.listen().await;
    let mut first = RawPeer::dial(listener.address(), 1, 2).await;
    until("the first is up", || two.recorder.count("up Inbound 1") == 1).await;
    let mut second = RawPeer::dial(listener.address(), 1, 2).await;
    within(first.closed()).await;
    second.send(&frame(ECHO, 1, b"x")).await;
    assert_eq!(second.receive_answer().await, Some((ECHO, 1, b"x".to_vec())));
    let events = two.recorder.events.lock().clone();
    assert_eq!(events, ["up Inbound 1", "down Inbound 1: the peer opened another link", "up Inbound 1"],);
}

/// P9: connections that say nothing hold a bounded number of places for a bounded time.
#[tokio::test]
async fn silent_connections_do_not_keep_the_port_busy() {
    let options = Options { handshakes_max: 2, handshake_ms: 200, ..quick() };
    let two = Node::with(node(2), plain(SECRET), options);
    let listener = two.listen().await;
    let silent: Vec<_> = (0..3).map(|_| std::net::TcpStream::connect(listener.address()).unwrap()).collect();
    until("the third is turned away", || two.recorder.count("2 handshakes are under way") > 0).await;
    let one = Node::new(1);
    let peer = one.dial(2, listener.address());
    up_in_the_end(&peer).await;
    assert_eq!(two.recorder.count("not done within 200 ms"), 2);
    drop(silent);
}

async fn up_in_the_end(peer: &Peer) {
    within(peer.wait_for(|state| matches!(state, ownerrpc::link::PeerState::Up(_)))).await;
}

/// P9: more nodes than a cluster has are refused with a reason.
#[tokio::test]
async fn no_more_nodes_link_than_may() {
    let two = Node::with(node(2), plain(SECRET), Options { peers_max: 1, ..quick() });
    let listener = two.listen().await;
    let (one, three) = (Node::new(1), Node::new(3));
    let first = one.dial(2, listener.address());
    up(&first).await;
    let second = three.dial(2, listener.address());
    let why = down(&second).await;
    assert!(
        matches!(&*why, LinkDown::Handshake(HandshakeError::Refused(refusal)) if refusal.kind == RefusalKind::Busy)
    );
    assert_eq!(echo(&first, b"still").await.unwrap(), "still");
}

/// A cluster that grows, moves and shrinks: peers are dialled where they are, and not when they are no more.
#[tokio::test]
async fn peers_are_set_moved_and_removed() {
    let (one, two) = (Node::new(1), Node::new(2));
    let first = two.listen().await;
    let peers = Peers::new(Arc::clone(&one.endpoint));
    peers.set(0, "127.0.0.1:1");
    peers.set(1, "127.0.0.1:1");
    assert!(peers.all().is_empty(), "neither nobody nor this node is a peer");
    peers.set(2, &first.address().to_string());
    let peer = peers.get(2).unwrap();
    up(&peer).await;
    let call = |payload| peers.call(2, ECHO, Bytes::from_static(payload), soon());
    assert_eq!(within(call(b"first")).await.unwrap(), "first");
    let two = Node::new(2);
    let second = two.listen().await;
    peers.set(2, &second.address().to_string());
    assert_eq!(peers.reachable(), [2], "a link that is up stays");
    drop(first);
    until("it is found at its new place", || two.recorder.count("up Inbound 1") == 1).await;
    up(&peer).await;
    assert_eq!(within(call(b"second")).await.unwrap(), "second");
    drop((peer, peers.remove(2)));
    assert!(matches!(within(call(b"")).await, Err(CallError::UnknownNode(2))));
    until("its link is closed", || two.recorder.count("down Inbound 1") == 1).await;
    peers.set(2, &second.address().to_string());
    up(&peers.get(2).unwrap()).await;
    within(peers.close(LIMIT)).await;
    until("it is told", || two.recorder.count("down Inbound 1: the peer left") == 1).await;
    assert!(peers.all().is_empty());
}

/// A node that joins is let in by those who expect it, and never takes the place of a member with its id.
#[tokio::test]
async fn a_joining_node_is_a_guest() {
    let two = Node::new(2);
    two.recorder.joiners.store(true, Ordering::SeqCst);
    let listener = two.listen().await;
    let member = Node::new(1);
    let of_member = member.dial(2, listener.address());
    up(&of_member).await;
    let mut stranger = node(1);
    stranger.cluster_id = [0; 16];
    let stranger = Node::with(stranger, plain(SECRET), quick());
    let of_stranger = stranger.dial(0, listener.address());
    let found = up(&of_stranger).await;
    assert_eq!((found.node_id, found.cluster_id), (2, CLUSTER));
    assert_eq!(echo(&of_stranger, b"guest").await.unwrap(), "guest");
    assert_eq!(two.recorded.peers.lock()[0].cluster_id, [0; 16], "services can tell");
    assert_eq!(echo(&of_member, b"member").await.unwrap(), "member");
    assert_eq!(two.recorder.count("down"), 0);
}
