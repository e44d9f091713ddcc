//! Calls between two nodes on loopback: answers, refusals, order, deadlines, time, back-pressure.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use ownerrpc::link::{CallError, Limits, Options, Peers, RefusalKind};
use support::*;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

fn kind(result: Result<Bytes, CallError>) -> RefusalKind {
    match result {
        Err(CallError::Refused(refusal)) => refusal.kind,
        other => panic!("{other:?}"),
    }
}

/// DESIGN §8: many calls at a time over one connection, each with its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_multiplexed_and_answered() {
    let (one, two) = (Node::new(1), Node::new(2));
    let listener = two.listen().await;
    let peers = Arc::new(Peers::new(Arc::clone(&one.endpoint)));
    peers.set(2, &listener.address().to_string());
    let mut calls = JoinSet::new();
    for number in 0..2_000_u64 {
        let peers = Arc::clone(&peers);
        calls.spawn(async move {
            let payload = Bytes::from(vec![number as u8; (number * 7 % 20_000) as usize]);
            let answer = peers.call(2, ECHO, payload.clone(), soon()).await.unwrap();
            assert_eq!(answer, payload);
        });
    }
    within(calls.join_all()).await;
    assert_eq!(one.recorder.count("up Outbound 2"), 1, "one connection");
    assert_eq!(two.recorder.count("up Inbound 1"), 1);
    let seen = two.recorded.peers.lock()[0].clone();
    assert_eq!((seen.node_id, &*seen.boot_id, seen.version), (1, "boot-1", 1));
    assert_eq!(peers.reachable(), [2]);
    let unknown = peers.call(3, ECHO, Bytes::new(), soon()).await;
    assert!(matches!(unknown, Err(CallError::UnknownNode(3))));
}

/// WIRE.md §2: `call` is invoked in the order of sending, whatever the answers do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_reach_the_service_in_their_order() {
    let (one, two) = (Node::new(1), Node::new(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    up(&peer).await;
    let call = |number: u64| Box::pin(peer.call(ORDER, number.to_be_bytes().to_vec().into(), soon()));
    let mut waiting = Vec::new();
    // A call is queued when it is first polled; where this thread is held up then, it may be answered by the end of that.
    for mut call in (0..500).map(call) {
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await {
            Poll::Ready(answer) => drop(answer.unwrap()),
            Poll::Pending => waiting.push(call),
        }
    }
    for call in waiting {
        within(call).await.unwrap();
    }
    assert_eq!(*two.recorded.seen.lock(), (0..500).collect::<Vec<u64>>());
}

/// WIRE.md §5: what is refused, and by whom.
#[tokio::test]
async fn refusals_are_typed() {
    let (one, two) = (Node::new(1), Node::new(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    let call = |service, payload: Vec<u8>| peer.call(service, Bytes::from(payload), soon());
    assert_eq!(kind(within(call(4_711, vec![])).await), RefusalKind::UnknownService);
    assert_eq!(
        kind(within(call(BIG, vec![0, 1, 0, 1])).await),
        RefusalKind::Failed,
        "65,537 bytes of answer"
    );
    assert_eq!(within(call(BIG, vec![0, 1, 0, 0])).await.unwrap().len(), 65_536);
    let large = within(call(ECHO, vec![0; 65_537])).await;
    assert!(matches!(large, Err(CallError::TooLarge { service: ECHO, bytes: 65_537, limit: 65_536 })));
    assert!(matches!(within(call(4, vec![])).await, Err(CallError::Reserved(4))));
    let late = peer.call(ECHO, Bytes::new(), Instant::now()).await;
    assert!(matches!(late, Err(CallError::Deadline)));
    assert_eq!(within(call(ECHO, vec![1])).await.unwrap(), &[1][..], "none of it harmed the link");
}

/// DESIGN §8: every call has a deadline; it travels, and at its end nobody works for it any more.
#[tokio::test]
async fn a_deadline_ends_a_call_on_both_sides() {
    let (one, two) = (Node::new(1), Node::new(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    up(&peer).await;
    let budget = Duration::from_millis(150);
    let answer = within(peer.call(SLOW, Bytes::new(), Instant::now() + budget)).await;
    assert!(matches!(answer, Err(CallError::Deadline)));
    until("the handler is dropped", || two.recorded.dropped.load(Ordering::SeqCst) == 1).await;
    let told = two.recorded.budgets.lock()[0];
    assert!(told <= budget + Duration::from_millis(1), "{told:?}");
    assert_eq!(echo(&peer, b"after").await.unwrap(), "after");
}

/// DESIGN §5 "Time": each side knows the other's time before it sees what was said then.
#[tokio::test]
async fn time_is_carried_with_calls_and_answers() {
    let (one, two) = (Node::new(1), Node::new(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    up(&peer).await;
    one.clock.0.store(1_000_000, Ordering::SeqCst);
    echo(&peer, b"a").await.unwrap();
    assert_eq!(two.clock.0.load(Ordering::SeqCst), 1_000_000);
    two.clock.0.store(2_000_000, Ordering::SeqCst);
    echo(&peer, b"b").await.unwrap();
    assert_eq!(one.clock.0.load(Ordering::SeqCst), 2_000_000);
}

/// P9: an acceptor that handles as many calls as it may refuses further ones; it does not queue them.
#[tokio::test]
async fn an_acceptor_at_its_limit_says_busy() {
    let (one, two) = (Node::new(1), Node::with(node(2), plain(SECRET), Options { calls_max: 3, ..quick() }));
    let listener = two.listen().await;
    let peer = Arc::new(one.dial(2, listener.address()));
    up(&peer).await;
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let peer = Arc::clone(&peer);
        calls.spawn(async move { peer.call(SLOW, Bytes::new(), soon()).await });
    }
    until("three run", || two.recorded.running.load(Ordering::SeqCst) == 3).await;
    assert_eq!(kind(echo(&peer, b"one too many").await), RefusalKind::Busy);
    two.recorded.release.notify_waiters();
    for answer in within(calls.join_all()).await {
        answer.unwrap();
    }
    assert_eq!(echo(&peer, b"again").await.unwrap(), "again");
}

/// P9: a dialer has a bounded number of calls under way; some more wait, and the rest is refused at once. A caller that goes
/// away makes room.
#[tokio::test]
async fn a_dialer_at_its_limit_waits_and_then_says_busy() {
    let options = Options { calls_max: 2, calls_waiting_max: 1, ..quick() };
    let (one, two) = (Node::with(node(1), plain(SECRET), options), Node::new(2));
    let listener = two.listen().await;
    let peer = Arc::new(one.dial(2, listener.address()));
    up(&peer).await;
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(peer.call(SLOW, Bytes::new(), soon()))).collect();
    for call in &mut calls {
        assert!(is_pending(call).await);
    }
    until("two run", || two.recorded.running.load(Ordering::SeqCst) == 2).await;
    assert!(matches!(echo(&peer, b"").await, Err(CallError::Busy(2))));
    drop(calls.remove(0));
    assert!(is_pending(&mut calls[1]).await);
    until("the third runs", || two.recorded.running.load(Ordering::SeqCst) == 3).await;
    drop(calls);
    assert_eq!(echo(&peer, b"room").await.unwrap(), "room");
}

/// P9 and WIRE.md §6: a peer that never reads holds a bounded number of bytes, and its callers end by their deadlines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_costs_bounded_memory_and_time() {
    let limits = Limits::default().with(ECHO, 1 << 20);
    let options = Options { silence_ms: 5_000, calls_max: 32, calls_waiting_max: 32, limits, ..quick() };
    let one = Node::with(node(1), plain(SECRET), options);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = Arc::new(one.dial(2, listener.local_addr().unwrap()));
    let _never_reads = RawPeer::accept(&listener, 2, 1).await;
    up(&peer).await;
    let deadline = Instant::now() + Duration::from_millis(400);
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let peer = Arc::clone(&peer);
        calls.spawn(async move { peer.call(ECHO, Bytes::from(vec![0; 1 << 20]), deadline).await });
    }
    let answers = within(calls.join_all()).await;
    let busy = answers.iter().filter(|answer| matches!(answer, Err(CallError::Busy(2)))).count();
    let late = answers.iter().filter(|answer| matches!(answer, Err(CallError::Deadline))).count();
    assert_eq!((busy, late), (36, 64), "64 may call or wait");
}

/// P9: a dialer that never reads its answers does not make the acceptor keep more of them than it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dialer_that_never_reads_is_closed_or_waits() {
    let limits = Limits::default().with(BIG, 8 << 20);
    let two = Node::with(node(2), plain(SECRET), Options { calls_max: 16, limits, ..quick() });
    let listener = two.listen().await;
    let mut raw = RawPeer::dial(listener.address(), 1, 2).await;
    // Each is answered with 8 MiB. What does not fit waits with its slot; then there are no slots; then there is no room to
    // say even that, and the link ends.
    let mut sent = 0;
    for id in 1..200_000_u64 {
        sent = id;
        let call = frame(BIG, id, &(8_u32 << 20).to_be_bytes());
        if within(raw.stream.write_all(&call)).await.is_err() {
            break;
        }
    }
    until("the link ends", || two.recorder.count("down Inbound 1") == 1).await;
    assert!(two.recorder.count("does not read") == 1, "{:?}", two.recorder.events.lock());
    let served = two.recorded.peers.lock().len();
    assert!(served < 40, "{served} of {sent} were handled");
}

/// Polls it once.
async fn is_pending<F: Future + Unpin>(work: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *work).poll(cx).is_pending())).await
}
