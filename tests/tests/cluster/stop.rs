//! Nodes that stop in order (DESIGN §6, §7): their clients are told where to go and are served there at once, while the node is away; nothing
//! that was acknowledged is lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Cluster, durable, signal};
use tests::wait::eventually;
use tests::{Client, Options, Packet, wire};

const SHUTTING_DOWN: u8 = 0x8B;
const DISCONNECT: u8 = 14;
const SERVER_REFERENCE: u8 = 0x1C;
const SUBSCRIBERS: usize = 6;

/// Publishes QoS 1 to `load` until it is told to stop; what was acknowledged.
struct Load {
    running: Arc<AtomicBool>,
    thread: JoinHandle<Vec<String>>,
}

impl Load {
    fn on(address: std::net::SocketAddr, round: usize) -> Self {
        let running = Arc::new(AtomicBool::new(true));
        let goes_on = running.clone();
        let thread = std::thread::spawn(move || {
            let mut publisher = Client::connect(address, &Options::v5("load"));
            let mut acknowledged = Vec::new();
            while goes_on.load(Ordering::SeqCst) {
                let text = format!("{round} {}", acknowledged.len());
                assert_eq!(publisher.publish("load", &text, 1, false), 0, "{text}");
                acknowledged.push(text);
                std::thread::sleep(Duration::from_millis(3));
            }
            acknowledged
        });
        Self { running, thread }
    }

    fn stop(self) -> Vec<String> {
        self.running.store(false, Ordering::SeqCst);
        self.thread.join().expect("the publisher was served all the time")
    }
}

/// One durable subscriber of `load`, and what it got.
struct Subscriber {
    client: Client,
    id: String,
    got: HashSet<String>,
}

impl Subscriber {
    fn take(&mut self, packet: &Packet) {
        if packet.kind() == 3 {
            let publish = packet.publish(true);
            self.got.insert(String::from_utf8(publish.payload.clone()).expect("text"));
        }
    }

    /// Reads what the old node still says, and moves to another one at once.
    fn move_to(&mut self, address: std::net::SocketAddr, others: &[String]) {
        let said = self.client.until_closed(Duration::from_secs(10));
        let last = said.iter().find(|packet| packet.kind() == DISCONNECT).expect("DISCONNECT");
        assert_eq!(last.body[0], SHUTTING_DOWN);
        assert_eq!(last.body[2], SERVER_REFERENCE, "{last:02x?}");
        let reference = String::from_utf8_lossy(&last.body[5..]).into_owned();
        assert!(others.contains(&reference), "{reference}");
        said.iter().for_each(|packet| self.take(packet));
        let (client, connack) = Client::try_connect(address, &durable(&self.id));
        assert_eq!(
            (connack.reason(), connack.body[0] & 1),
            (0, 1),
            "{} is served at once and resumed",
            self.id
        );
        self.client = client;
    }

    fn read_through(&mut self, last: &str) {
        while !self.got.contains(last) {
            let publish = self.client.receive_publish();
            self.client.settle(&publish);
            self.got.insert(String::from_utf8(publish.payload).expect("text"));
        }
    }
}

/// Issue 3, deliverable 6; P2, P4, P5: a rolling restart under load. The clients of each node that stops go on elsewhere at once, with their
/// sessions and everything that was acknowledged; publishers on other nodes notice nothing.
#[test]
fn a_rolling_restart_is_not_noticed() {
    let mut cluster = Cluster::of_three();
    let reference = |id: usize| format!("node-{id}.example:1883");
    let mut subscribers: Vec<Subscriber> = (0..SUBSCRIBERS)
        .map(|number| {
            let id = format!("sub{number}");
            let mut client = Client::connect(cluster.node(2).mqtt, &durable(&id));
            assert_eq!(client.subscribe("load", 1), 1);
            Subscriber { client, id, got: HashSet::new() }
        })
        .collect();
    let mut held = Client::connect(cluster.node(2).mqtt, &durable("held"));
    held.subscribe("other", 1);
    for (round, id) in [2, 3, 1].into_iter().enumerate() {
        let (next, third) = (id % 3 + 1, (id + 1) % 3 + 1);
        let load = Load::on(cluster.node(third).mqtt, round);
        std::thread::sleep(Duration::from_millis(200));
        signal(cluster.node(id), "-TERM");
        let others = [reference(next), reference(third)];
        for subscriber in &mut subscribers {
            subscriber.move_to(cluster.node(next).mqtt, &others);
        }
        cluster.node_mut(id).await_exit();
        // It is away: whose connection ended with it is taken over by nobody's leave.
        let (client, connack) = Client::try_connect(cluster.node(third).mqtt, &durable("held"));
        assert_eq!((connack.reason(), connack.body[0] & 1), (0, 1), "round {round}");
        client.disconnect();
        let acknowledged = load.stop();
        for subscriber in &mut subscribers {
            subscriber.read_through(acknowledged.last().expect("some"));
            assert!(acknowledged.iter().all(|text| subscriber.got.contains(text)), "{}", subscriber.id);
        }
        cluster.node_mut(id).restart();
        cluster.settle();
        let (client, connack) = Client::try_connect(cluster.node(next).mqtt, &durable("held"));
        assert_eq!((connack.reason(), connack.body[0] & 1), (0, 1), "round {round}");
        held = client;
    }
    drop(held);
}

/// P5, P6, DESIGN §7: a node that is asked to stop while changes of its clients are under way, and no majority says what became of them, gives
/// no proof that their owners stopped: they may still take effect.
#[test]
fn p5_no_receipt_while_changes_may_still_take_effect() {
    let mut cluster = Cluster::of_three_with(&["node.stop_timeout_ms=4000"]);
    let mut clients: Vec<Client> =
        (0..6).map(|at| Client::connect(cluster.node(1).mqtt, &durable(&format!("c{at}")))).collect();
    for other in [2, 3] {
        signal(cluster.node(other), "-STOP");
    }
    for client in &mut clients {
        let mut body = vec![0, 1, 0];
        wire::string("late", &mut body);
        body.push(1);
        client.send(&wire::packet(0x82, &body));
        client.send(&wire::packet(0xC0, &[]));
        client.receive_kind(13);
    }
    signal(cluster.node(1), "-TERM");
    eventually("the end of node 1", Duration::from_secs(30), || {
        (!cluster.node_mut(1).is_running()).then_some(())
    });
    let receipts = cluster.node(1).dir().join("mqtt").join("retired-owners");
    let kinds: HashSet<String> = std::fs::read_dir(receipts)
        .expect("a node keeps its receipts")
        .map(|entry| entry.expect("an entry").path().extension().unwrap_or_default().to_string_lossy().into())
        .collect();
    assert!(kinds.contains("started") && !kinds.contains("receipt"), "{kinds:?}");
    for other in [2, 3] {
        signal(cluster.node(other), "-CONT");
    }
}
