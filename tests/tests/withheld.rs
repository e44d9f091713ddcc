//! Messages that a node was not given while it stood still (P7): its connections that may have missed some are closed, the others are not.

use std::time::{Duration, Instant};

use tests::cluster::{connect_when_served, durable};
use tests::{Client, Cluster, Node, Options, eventually};

/// Longer than the others wait for a node, shorter than the lease of its owners (30 s).
const STOPPED: Duration = Duration::from_secs(4);
/// How long a client may be left in the dark once the nodes speak again.
const TOLD: Duration = Duration::from_secs(5);
/// The connection is closed, and none of the other reasons is true.
const UNSPECIFIED: u8 = 0x80;

struct Clients {
    /// Sessions without an inbox with subscriptions: to what is published, and to something else.
    live: [Client; 3],
    durable: Client,
    /// Without an inbox and without a subscription.
    idle: Client,
    publisher: Client,
}

fn clients(cluster: &Cluster) -> Clients {
    let connect = |node: usize, options: &Options| connect_when_served(cluster.node(node), options).0;
    let mut live = [
        connect(2, &Options::v5("live5")),
        connect(2, &Options::v3("live3")),
        connect(2, &Options::v5("other")),
    ];
    for (client, filter) in live.iter_mut().zip(["w/#", "w/#", "other"]) {
        assert_eq!(client.subscribe(filter, 2), 2);
    }
    let mut kept = connect(2, &durable("kept"));
    assert_eq!(kept.subscribe("w/#", 2), 2);
    let mut clients = Clients {
        live,
        durable: kept,
        idle: connect(2, &Options::v5("idle")),
        publisher: connect(1, &Options::v5("p")),
    };
    clients.publish("before", 1);
    for client in &mut clients.live[..2] {
        receives(client, "before");
    }
    receives(&mut clients.durable, "before");
    // A node that stops with a command of a session under way may lose it, and then closes that session's connection.
    for id in 1..=3 {
        eventually("the message has left the inbox", TOLD, || {
            (cluster.node(id).metric("exactmq_inbox_messages") == 0.0).then_some(())
        });
    }
    assert!(clients.durable.is_alive());
    clients
}

impl Clients {
    fn publish(&mut self, payload: &str, qos: u8) {
        let reason = self.publisher.publish("w/t", payload, qos, false);
        assert_eq!(reason, 0, "{payload} is acknowledged");
    }
}

fn receives(client: &mut Client, payload: &str) {
    let publish = client.receive_publish();
    client.settle(&publish);
    assert_eq!(String::from_utf8_lossy(&publish.payload), payload);
}

/// How often the node was told that messages may have passed it by.
fn told(node: &Node) -> usize {
    let log = std::fs::read_to_string(node.log()).expect("a log");
    log.lines().filter(|line| line.contains("may have kept messages from this one")).count()
}

/// P7: what was acknowledged while a node stood still reaches its subscribers, or their connections are closed, soon and without a further
/// message. Durable ones get everything and stay, as do those that subscribe to nothing.
#[test]
fn p7_a_node_that_stood_still_closes_what_may_have_missed_messages() {
    let cluster = Cluster::of_three();
    let mut clients = clients(&cluster);
    let before = told(cluster.node(2));
    cluster.node(2).signal("-STOP");
    let stopped = Instant::now();
    for (payload, qos) in [("one", 1), ("two", 2)] {
        clients.publish(payload, qos);
    }
    let acknowledged = stopped.elapsed();
    std::thread::sleep(STOPPED.saturating_sub(stopped.elapsed()));
    cluster.node(2).signal("-CONT");
    let runs = Instant::now();
    let Clients { live, mut durable, mut idle, mut publisher } = clients;
    for (mut client, is_v5) in live.into_iter().zip([true, false, true]) {
        let said = client.until_closed(TOLD);
        let reason = said.iter().find(|packet| packet.kind() == 14).map(|packet| packet.reason());
        assert_eq!(reason, is_v5.then_some(UNSPECIFIED), "{said:02x?}");
    }
    println!("acknowledged after {acknowledged:?}, closed {:?} after it ran again", runs.elapsed());
    receives(&mut durable, "one");
    receives(&mut durable, "two");
    assert!(idle.is_alive() && durable.is_alive() && publisher.is_alive());
    eventually("both other nodes have told", TOLD, || (told(cluster.node(2)) == before + 2).then_some(()));
    // Once is enough: who comes back stays, and misses nothing.
    let (mut back, _) = connect_when_served(cluster.node(2), &Options::v5("live5"));
    assert_eq!(back.subscribe("w/#", 2), 2);
    for payload in ["after", "later"] {
        assert_eq!(publisher.publish("w/t", payload, 1, false), 0);
        receives(&mut back, payload);
        receives(&mut durable, payload);
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(back.is_alive() && idle.is_alive() && durable.is_alive());
    assert_eq!(told(cluster.node(2)), before + 2);
}

/// P7: a node that stood still for a moment closes nobody, and its subscribers get everything.
#[test]
fn p7_a_short_stop_costs_nothing() {
    let cluster = Cluster::of_three();
    let mut clients = clients(&cluster);
    let before = told(cluster.node(2));
    for round in 0..3_u16 {
        cluster.node(2).signal("-STOP");
        // Acknowledged only when the stopped node has it.
        let sent =
            clients.publisher.publish_bytes("w/t", format!("round {round}").as_bytes(), 2, 100 + round, &[]);
        clients.publisher.send(&sent);
        std::thread::sleep(Duration::from_millis(300));
        cluster.node(2).signal("-CONT");
        clients.publisher.receive_kind(4);
        for client in &mut clients.live[..2] {
            receives(client, &format!("round {round}"));
        }
        receives(&mut clients.durable, &format!("round {round}"));
    }
    std::thread::sleep(Duration::from_secs(2));
    let Clients { live: [mut first, mut second, mut third], mut durable, mut idle, .. } = clients;
    assert_eq!(told(cluster.node(2)), before);
    assert!([&mut first, &mut second, &mut third, &mut durable, &mut idle].into_iter().all(Client::is_alive));
}
