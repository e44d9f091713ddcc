//! The queue to another node, against a node that answers as a test wants.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::super::withheld::NOTHING;
use super::*;
use crate::cluster::CallFuture;
use crate::metrics::Metrics;

#[derive(Debug, Default)]
struct Port(Mutex<Vec<u64>>, Mutex<Vec<u64>>);

impl CompletionPort for Port {
    fn complete(&self, batch: Replies) {
        let missing = |reply: &Result<Reply, _>| matches!(reply, Ok(Reply::Appended { missing: 1, .. }));
        self.1.lock().extend(batch.iter().filter(|(_, reply)| missing(reply)).map(|(token, _)| *token));
        self.0.lock().extend(batch.into_iter().map(|(token, _)| token));
    }
}

/// Answers the calls one after the other with these outcomes, then takes everything.
#[derive(Debug, Default)]
struct Node {
    script: Mutex<VecDeque<NotAnswered>>,
    /// What the batches that are taken are answered.
    unserved: Mutex<Unserved>,
    /// Shares that it never serves.
    unknown: Mutex<Vec<Arc<str>>>,
    seen: Mutex<Vec<(u64, Vec<String>)>>,
    /// Shares that a message was for, and times that one was for everyone.
    shares: Mutex<Vec<Arc<str>>>,
    everyone: AtomicUsize,
    calls: AtomicUsize,
}

impl PeerCalls for Node {
    fn nodes(&self) -> Vec<u64> {
        vec![2]
    }

    fn reachable(&self) -> Vec<u64> {
        vec![2]
    }

    fn call(&self, _node: u64, _service: u16, payload: Bytes, _deadline: Instant) -> CallFuture {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let (number, messages, _) = wire::read_batch(&payload).expect("legal");
        let topics = messages.iter().map(|received| received.message.topic().to_owned()).collect();
        self.seen.lock().push((number, topics));
        self.shares.lock().extend(messages.iter().flat_map(|received| received.shares.iter().cloned()));
        let everyone = messages.iter().filter(|received| received.everyone).count();
        self.everyone.fetch_add(everyone, Ordering::SeqCst);
        let mut unserved = self.unserved.lock().clone();
        let named =
            messages.iter().flat_map(|message| message.shares.iter().map(|share| (message.at, share)));
        let unknown = self.unknown.lock();
        unserved.extend(
            named.filter(|(_, share)| unknown.contains(share)).map(|(at, share)| (at, share.clone())),
        );
        let answer = self.script.lock().pop_front().map_or_else(|| Ok(wire::unserved(&unserved)), Err);
        Box::pin(std::future::ready(answer))
    }
}

fn forward(topic: &str, qos: QoS, payload: usize, done: Option<(&Arc<Port>, u64)>) -> Forward {
    let mut message = Message::new(topic, &[], &vec![0; payload]);
    message.qos = qos;
    let done = done.map(|(port, token)| Waiter { port: port.clone(), token });
    let shares = SmallVec::new();
    Forward { message: Arc::new(message), publisher: None, everyone: true, shares, done }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn new_queue() -> Queue {
    Queue::new(2, Arc::new(Withheld::new(Arc::default())))
}

fn start(node: &Arc<Node>) -> (Arc<Queue>, tokio::task::JoinHandle<()>) {
    let queue = Arc::new(new_queue());
    let running = tokio::spawn(queue.clone().run(node.clone(), Metrics::new(1, 1).control()));
    (queue, running)
}

/// P5: a batch whose answer was lost comes again under its number, before anything that follows.
#[tokio::test]
async fn p5_a_batch_without_an_answer_comes_again_under_its_number() {
    let node = Arc::new(Node::default());
    let lost = NotAnswered::Unknown { node_id: 2, reason: String::new() };
    let down = NotAnswered::Unreachable { node_id: 2, reason: String::new() };
    node.script.lock().extend([lost, down]);
    let port = Arc::new(Port::default());
    let (queue, running) = start(&node);
    queue.push(vec![forward("a", QoS::AtLeastOnce, 1, Some((&port, 7)))]);
    until("the first call", || node.calls.load(Ordering::SeqCst) > 0).await;
    queue.push(vec![
        forward("b", QoS::AtLeastOnce, 1, Some((&port, 8))),
        forward("c", QoS::AtMostOnce, 1, None),
        forward("d", QoS::ExactlyOnce, 1, Some((&port, 9))),
    ]);
    until("all are told", || port.0.lock().len() == 3).await;
    running.abort();
    assert_eq!(*port.0.lock(), [7, 8, 9]);
    let seen = node.seen.lock();
    let topics = |at: usize| (seen[at].0, seen[at].1.join(""));
    assert_eq!(seen.len(), 4);
    assert_eq!([topics(0), topics(1), topics(2)], [(1, "a".into()), (1, "a".into()), (1, "a".into())]);
    assert_eq!(topics(3), (2, "bcd".into()));
}

/// P9: what waits for one node is bounded, QoS 0 has half of it, and who waits for a message that is dropped is told.
#[tokio::test]
async fn p9_the_queue_to_a_node_is_bounded() {
    const LARGE: usize = 1 << 20;
    let queue = new_queue();
    let port = Arc::new(Port::default());
    let push = |qos, done| queue.push(vec![forward("t", qos, LARGE, done)]);
    let taken = (0..100).filter(|_| push(QoS::AtMostOnce, None) == 0).count();
    assert!((14..=16).contains(&taken), "{taken} QoS 0 messages");
    let taken = (0..100).filter(|token| push(QoS::AtLeastOnce, Some((&port, *token))) == 0).count();
    assert!((14..=16).contains(&taken), "{taken} more of QoS 1");
    assert_eq!(port.0.lock().len(), 100 - taken);
    queue.close();
    assert_eq!(port.0.lock().len(), 100, "those that waited are told when the node leaves");
    assert_eq!(push(QoS::AtMostOnce, None), 1);
}

/// P9: a node that stays out of reach holds nobody up for long, and those that follow not at all.
#[tokio::test]
async fn p9_a_lost_node_is_given_up() {
    let node = Arc::new(Node::default());
    let down = NotAnswered::Unreachable { node_id: 2, reason: String::new() };
    node.script.lock().extend((0..10_000).map(|_| down.clone()));
    let port = Arc::new(Port::default());
    let (queue, running) = start(&node);
    queue.push(vec![forward("a", QoS::AtLeastOnce, 1, Some((&port, 1)))]);
    until("the publisher is told", || *port.0.lock() == [1]).await;
    let calls = node.calls.load(Ordering::SeqCst);
    queue.push(vec![forward("b", QoS::AtLeastOnce, 1, Some((&port, 2)))]);
    until("the next one is told", || *port.0.lock() == [1, 2]).await;
    assert_eq!(node.calls.load(Ordering::SeqCst), calls + 1, "one attempt");
    running.abort();
}

/// P9: a message that no request has room for is dropped; those behind it go.
#[tokio::test]
async fn p9_a_message_too_large_for_the_link_is_dropped() {
    let node = Arc::new(Node::default());
    let port = Arc::new(Port::default());
    let (queue, running) = start(&node);
    queue.push(vec![forward("large", QoS::AtLeastOnce, REQUEST_BYTES_MAX, Some((&port, 1)))]);
    queue.push(vec![forward("small", QoS::AtLeastOnce, 1, Some((&port, 2)))]);
    until("both are told", || *port.0.lock() == [1, 2]).await;
    running.abort();
    assert_eq!(*node.seen.lock(), [(1, vec!["small".to_owned()])]);
}

/// MQTT 5 §4.8.2, WIRE.md §9: every share of a message reaches the node, however many there are and however long their filters, and each
/// is told what became of it.
#[tokio::test]
async fn mqtt_4_8_2_a_message_is_for_any_number_of_shares() {
    for (count, len) in [(255, 1), (256, 1), (1_000, 1), (300, 60_000)] {
        let node = Arc::new(Node::default());
        let port = Arc::new(Port::default());
        let mut forward = forward("t", QoS::AtLeastOnce, 1, Some((&port, u64::MAX)));
        let filters: Vec<Arc<str>> =
            (0..count).map(|at| format!("$share/{}{at}/t", "g".repeat(len)).into()).collect();
        for (token, filter) in (0..).zip(&filters) {
            let done = Some(Waiter { port: port.clone(), token });
            forward.shares.push(ForwardedShare { filter: filter.clone(), done });
        }
        node.unknown.lock().push(filters[1].clone());
        let (queue, running) = start(&node);
        queue.push(vec![forward]);
        until("all are told", || port.0.lock().len() == count + 1).await;
        running.abort();
        assert_eq!(*node.shares.lock(), filters, "{count} shares");
        assert_eq!(node.everyone.load(Ordering::SeqCst), 1, "once to everyone");
        assert_eq!(*port.1.lock(), [1], "nobody took it for that one");
    }
}

/// P9: a message that goes on to another member of its share is no drop; one that a subscriber misses is, once.
#[tokio::test]
async fn p9_what_others_take_is_not_counted_as_dropped() {
    let queue = new_queue();
    queue.close();
    let port = Arc::new(Port::default());
    let of_share = |everyone, token: Option<u64>| {
        let mut forward = forward("t", QoS::AtLeastOnce, 1, None);
        forward.everyone = everyone;
        let done = token.map(|token| Waiter { port: port.clone(), token });
        forward.shares.push(ForwardedShare { filter: "$share/g/t".into(), done });
        forward
    };
    assert_eq!(queue.push(vec![of_share(false, Some(1)), of_share(true, Some(2)), of_share(false, None)]), 2);
    assert_eq!(*port.1.lock(), [1, 2]);
    let batch = [of_share(false, Some(3)), of_share(true, Some(4))];
    assert_eq!(dropped(&batch, &Outcome::Lost), 1);
    let mut twice = of_share(false, Some(5));
    Arc::make_mut(&mut twice.message).qos = QoS::ExactlyOnce;
    assert_eq!(dropped(&[twice], &Outcome::Lost), 1, "[MQTT-4.8.2-5]: it is for nobody else");
}

/// MQTT 5 §4.8.2, [MQTT-4.8.2-5]: a share that a node did not serve is somebody else's; one that it may have served only with QoS 1.
#[tokio::test]
async fn mqtt_4_8_2_who_waits_for_a_share_is_told_that_nobody_took_it() {
    let node = Arc::new(Node::default());
    let port = Arc::new(Port::default());
    let share = |qos, token: u64| {
        let mut forward = forward("t", qos, 1, None);
        for (filter, token) in [("$share/g/t", token), ("$share/h/t", token + 1)] {
            let done = Some(Waiter { port: port.clone(), token });
            forward.shares.push(ForwardedShare { filter: filter.into(), done });
        }
        vec![forward]
    };
    node.unserved.lock().push((0, "$share/h/t".into()));
    let (queue, running) = start(&node);
    queue.push(share(QoS::ExactlyOnce, 10));
    until("both are told", || port.0.lock().len() == 2).await;
    assert_eq!(*port.1.lock(), [11], "the node says which");
    node.script.lock().push_back(NotAnswered::Unknown { node_id: 2, reason: String::new() });
    let down = NotAnswered::Unreachable { node_id: 2, reason: String::new() };
    node.script.lock().extend((0..10_000).map(|_| down.clone()));
    let mut both = share(QoS::AtLeastOnce, 20);
    both.extend(share(QoS::ExactlyOnce, 30));
    queue.push(both);
    until("all are told", || port.0.lock().len() == 6).await;
    assert_eq!(*port.1.lock(), [11, 20, 21], "QoS 2 may have been sent");
    queue.push(share(QoS::ExactlyOnce, 40));
    until("both are told", || port.0.lock().len() == 8).await;
    assert_eq!(*port.1.lock(), [11, 20, 21, 40, 41], "it never had them");
    queue.close();
    queue.push(share(QoS::ExactlyOnce, 50));
    running.abort();
    assert_eq!(*port.1.lock(), [11, 20, 21, 40, 41, 50, 51]);
}

/// P7: what is acknowledged and does not get to the node is noted, before its publisher is told; QoS 0 is not, nor what others take.
#[tokio::test]
async fn p7_what_is_withheld_is_noted() {
    const LARGE: usize = 1 << 20;
    let queue = new_queue();
    let noted = |queue: &Queue| queue.withheld.mark(2);
    while queue.push(vec![forward("t", QoS::AtMostOnce, LARGE, None)]) == 0 {}
    assert_eq!(noted(&queue), NOTHING);
    while noted(&queue) == NOTHING {
        queue.push(vec![forward("t", QoS::AtLeastOnce, LARGE, None)]);
    }
    let first = noted(&queue);
    let mut of_share = forward("t", QoS::AtLeastOnce, LARGE, None);
    of_share.everyone = false;
    let done = Some(Waiter { port: Arc::new(Port::default()), token: 1 });
    of_share.shares.push(ForwardedShare { filter: "$share/g/t".into(), done });
    assert_eq!(queue.push(vec![of_share]), 0, "another member takes it");
    assert_eq!(noted(&queue), first);

    for (qos, is_noted) in [(QoS::AtMostOnce, false), (QoS::AtLeastOnce, true), (QoS::ExactlyOnce, true)] {
        let node = Arc::new(Node::default());
        let down = NotAnswered::Unreachable { node_id: 2, reason: String::new() };
        node.script.lock().extend((0..10_000).map(|_| down.clone()));
        let port = Arc::new(Port::default());
        let (queue, running) = start(&node);
        queue.push(vec![forward("a", qos, 1, Some((&port, 1)))]);
        until("it is given up", || *port.0.lock() == [1]).await;
        assert_eq!(noted(&queue) != NOTHING, is_noted, "{qos:?}");
        node.script.lock().clear();
        let before = noted(&queue);
        queue.push(vec![forward("b", qos, 1, Some((&port, 2)))]);
        until("the next one is taken", || *port.0.lock() == [1, 2]).await;
        assert_eq!(noted(&queue), before);
        running.abort();
    }
}
