//! What is taken from other nodes, without workers: mail to none is dropped, which counts as taken.

use std::time::Duration;

use bytes::Bytes;
use ownerrpc::link::PeerInfo;
use session::message::Message;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::*;
use crate::forward::Forward;

fn call(boot: &str, cluster_id: [u8; 16], payload: Bytes) -> Call {
    let address = "127.0.0.1:1".parse().expect("an address");
    let peer = PeerInfo { node_id: 2, boot_id: boot.into(), cluster_id, version: 1, address };
    let deadline = Instant::now() + Duration::from_secs(5);
    Call { peer: Arc::new(peer), service: 140, payload, deadline }
}

fn batch(number: u64) -> Bytes {
    let message = Arc::new(Message::new("t", &[], b"x"));
    let forward = Forward { message, publisher: None, everyone: true, shares: SmallVec::new(), done: None };
    wire::batch(number, &[forward])
}

fn last(receiver: &Receiver) -> (String, u64) {
    let last = receiver.last.lock();
    let known = last.get(&2).expect("a batch came");
    (known.boot.to_string(), known.number)
}

/// P5: a batch that comes again is answered and not handed on; another boot counts anew.
#[tokio::test]
async fn p5_a_repeated_batch_is_answered_only() {
    let receiver = Receiver::new(Arc::new(Workers::new(1)));
    let member = [1; 16];
    for (boot, number, then) in [("a", 1, 1), ("a", 2, 2), ("a", 2, 2), ("a", 1, 2), ("b", 1, 1)] {
        assert!(receiver.call(call(boot, member, batch(number))).await.is_ok());
        assert_eq!(last(&receiver), (boot.to_owned(), then));
    }
}

/// P10: who is no member, and what is malformed, is refused.
#[tokio::test]
async fn p10_strangers_and_damage_are_refused() {
    let receiver = Receiver::new(Arc::new(Workers::new(1)));
    let refused = receiver.call(call("a", [0; 16], batch(1))).await.expect_err("no member");
    assert_eq!(refused.kind, RefusalKind::NotAdmitted);
    let refused = receiver.call(call("a", [1; 16], batch(1).slice(..9))).await.expect_err("cut");
    assert_eq!(refused.kind, RefusalKind::Malformed);
    assert!(receiver.last.lock().is_empty());
}
