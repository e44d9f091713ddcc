//! Peers that know the secret and break the rules: their link ends, others are not touched.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use ownerrpc::link::{CallError, LinkDown, Violation};
use proptest::prelude::*;
use support::*;
use tokio::net::TcpListener;

/// Each of these, sent by a dialer, closes its link (WIRE.md §1, §4).
#[tokio::test]
async fn a_dialer_that_breaks_the_rules_is_closed() {
    let two = Node::new(2);
    let listener = two.listen().await;
    let one = Node::new(1);
    let bystander = one.dial(2, listener.address());
    up(&bystander).await;
    let twice = [frame(ECHO, 5, b""), frame(ECHO, 5, b"")].concat();
    let backwards = [frame(ECHO, 5, b""), frame(ECHO, 4, b"")].concat();
    let budget = |id| frame(3, id, &[0, 0, 0, 9]);
    let budgets = [budget(1), budget(1)].concat();
    let foreign_budget = [budget(1), frame(ECHO, 2, b"")].concat();
    let cases: [(&str, Vec<u8>); 12] = [
        ("oversized", vec![0xFF; 4]),
        ("shorter than its header", vec![0, 0, 0, 9]),
        ("of service 107 has 2305 bytes", frame(107, 1, &[0; 2_305])[..14].to_vec()),
        ("ids ascend", twice),
        ("ids ascend", backwards),
        ("the budget of request 1", budgets),
        ("the budget of request 1", foreign_budget),
        ("a frame of service 5 cannot come", frame(5, 0, b"")),
        ("a frame of service 1 cannot come", frame(1, 1, &[0, 1])),
        ("time 18446744073709551615 ms", frame(2, 0, &[0xFF; 8])),
        ("a control frame 77", frame(77, 0, b"")),
        ("a control frame 0", frame(0, 1, b"")),
    ];
    for (number, (why, bytes)) in cases.into_iter().enumerate() {
        let why = if why == "oversized" { "more than the 8388608 that any service may have" } else { why };
        let from = 10 + number as u64;
        let mut raw = RawPeer::dial(listener.address(), from, 2).await;
        raw.send(&bytes).await;
        within(raw.closed()).await;
        let down = format!("down Inbound {from}: the peer broke the rules of the link");
        until(why, || {
            two.recorder.events.lock().iter().any(|event| event.starts_with(&down) && event.contains(why))
        })
        .await;
    }
    assert_eq!(echo(&bystander, b"untouched").await.unwrap(), "untouched");
    assert_eq!(two.recorder.count("down Inbound 1:"), 0);
}

/// The same for an acceptor: its calls fail with the reason.
#[tokio::test]
async fn an_acceptor_that_breaks_the_rules_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = Node::new(1);
    let peer = Arc::new(one.dial(2, listener.local_addr().unwrap()));
    let cases: [(Vec<u8>, Violation); 5] = [
        (frame(ECHO, 99, b""), Violation::Unasked(99)),
        (frame(ECHO + 1, 1, b""), Violation::Service { id: 1, asked: ECHO, answered: ECHO + 1 }),
        (frame(4, 0, b""), Violation::Direction(4)),
        (frame(3, 1, &[0; 4]), Violation::Direction(3)),
        (frame(1, 1, &[0]), Violation::Control { service: 1, bytes: 1 }),
    ];
    for (answer, expected) in cases {
        let mut raw = RawPeer::accept(&listener, 2, 1).await;
        up(&peer).await;
        let call = {
            let peer = Arc::clone(&peer);
            tokio::spawn(async move { peer.call(ECHO, Bytes::new(), soon()).await })
        };
        let (service, id, budget) = raw.receive_answer().await.unwrap();
        assert_eq!((service, id, budget.len()), (3, 1, 4), "the budget comes first");
        assert_eq!(raw.receive_answer().await, Some((ECHO, 1, vec![])));
        raw.send(&answer).await;
        match within(call).await.unwrap() {
            Err(CallError::Lost { why, .. }) => {
                assert!(matches!(&*why, LinkDown::Violation(found) if *found == expected), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// An answer that comes after its caller gave up is not a violation.
#[tokio::test]
async fn a_late_answer_is_ignored() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = Node::new(1);
    let peer = Arc::new(one.dial(2, listener.local_addr().unwrap()));
    let mut raw = RawPeer::accept(&listener, 2, 1).await;
    up(&peer).await;
    let given_up = {
        let peer = Arc::clone(&peer);
        tokio::spawn(async move { peer.call(ECHO, Bytes::from_static(b"1"), soon()).await })
    };
    while raw.receive_answer().await != Some((ECHO, 1, b"1".to_vec())) {}
    given_up.abort();
    let _ = given_up.await;
    raw.send(&[frame(ECHO, 1, b"late"), frame(1, 1, &[0, 5])].concat()).await;
    let call = {
        let peer = Arc::clone(&peer);
        tokio::spawn(async move { peer.call(ECHO, Bytes::from_static(b"2"), soon()).await })
    };
    while raw.receive_answer().await != Some((ECHO, 2, b"2".to_vec())) {}
    raw.send(&frame(ECHO, 2, b"in time")).await;
    assert_eq!(within(call).await.unwrap().unwrap(), "in time");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever bytes a peer sends, the port lives on.
    #[test]
    fn garbage_behind_the_handshake_harms_nobody(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let two = Node::new(2);
            let listener = two.listen().await;
            let mut raw = RawPeer::dial(listener.address(), 9, 2).await;
            raw.send(&bytes).await;
            drop(raw);
            until("its link ends", || two.recorder.count("down Inbound 9") == 1).await;
            let one = Node::new(1);
            let peer = one.dial(2, listener.address());
            assert_eq!(echo(&peer, b"alive").await.unwrap(), "alive");
        });
    }
}
