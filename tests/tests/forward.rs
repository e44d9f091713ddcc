//! Live subscribers on other nodes (P7, issue 3 deliverable 3): three processes, sessions without inbox.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;
use tests::{Client, Node, Options, eventually};

/// How long the cluster may take to get over a change.
const SETTLE: Duration = Duration::from_secs(30);

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

fn start(id: u64, peer_port: u16) -> Node {
    Node::start_with(&[
        &format!("node.id={id}"),
        &format!("cluster.peer=127.0.0.1:{peer_port}"),
        "cluster.secret=0123456789abcdef0123456789abcdef",
        "cluster.trusted_network=true",
        "node.workers=2",
        "storage.segment_bytes=1048576",
        "node.sys_interval_s=0",
    ])
}

/// Nodes 1 to 3 as one cluster that serves everywhere.
fn cluster() -> Vec<Node> {
    let ports = [free_port(), free_port(), free_port()];
    let nodes: Vec<Node> = (1..=3).zip(ports).map(|(id, port)| start(id, port)).collect();
    let succeeds = |node: &Node, arguments: &[&str]| {
        let output = node.cli(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    succeeds(&nodes[0], &["cluster", "init"]);
    let seed = format!("127.0.0.1:{}", ports[0]);
    for node in &nodes[1..] {
        succeeds(node, &["cluster", "join", &seed]);
    }
    settle(&nodes);
    nodes
}

fn settle(nodes: &[Node]) {
    for node in nodes {
        eventually("three voters, a leader, all reachable, clients served", SETTLE, || {
            let view: Value = serde_json::from_str(&node.admin_get("/v1/cluster")).ok()?;
            let formed = view["groups"].as_array()?.iter().all(|group| {
                group["voters"].as_array().is_some_and(|voters| voters.len() == 3) && group["leader"].is_u64()
            });
            let seen = view["nodes"].as_array()?.iter().all(|node| node["reachable"] == true);
            let serves = Client::try_connect(node.mqtt, &Options::v5("probe")).1.reason() == 0;
            (formed && seen && serves).then_some(())
        });
    }
}

fn connect(node: &Node, client_id: &str) -> Client {
    eventually("CONNECT is taken", SETTLE, || {
        let (client, connack) = Client::try_connect(node.mqtt, &Options::v5(client_id));
        (connack.reason() == 0).then_some(client)
    })
}

fn receives(client: &mut Client, payload: &str) {
    let publish = client.receive_publish();
    client.settle(&publish);
    assert_eq!(String::from_utf8_lossy(&publish.payload), payload);
}

/// P7: a thousand times subscribed on one node and published on another as soon as SUBACK is in; nothing is lost.
#[test]
fn p7_a_suback_holds_on_every_node() {
    let nodes = cluster();
    let mut publisher = connect(&nodes[0], "p");
    let mut subscribers = [connect(&nodes[1], "s2"), connect(&nodes[2], "s3")];
    for round in 0..1_000_usize {
        let topic = format!("r/{round}");
        let subscriber = &mut subscribers[round % 2];
        assert_eq!(subscriber.subscribe(&topic, (round % 3) as u8), (round % 3) as u8);
        publisher.publish(&topic, round.to_string(), (round % 3) as u8, false);
        receives(subscriber, &round.to_string());
    }
}

/// P7: a value that was acknowledged on one node is what a new subscription on another one reads.
#[test]
fn p7_a_retained_value_is_read_on_every_node() {
    let nodes = cluster();
    let mut publisher = connect(&nodes[0], "p");
    let mut readers = [connect(&nodes[1], "r2"), connect(&nodes[2], "r3")];
    for round in 0..200_usize {
        let reader = &mut readers[round % 2];
        publisher.publish("v/1", round.to_string(), 1, true);
        reader.subscribe(if round % 4 < 2 { "v/1" } else { "v/+" }, 1);
        receives(reader, &round.to_string());
        reader.unsubscribe(if round % 4 < 2 { "v/1" } else { "v/+" });
    }
}

/// P7, P9: kill -9 of one node holds up the others for a bounded time; when it is back, both directions work again.
#[test]
fn p7_a_killed_node_is_told_again() {
    let mut nodes = cluster();
    let mut publisher = connect(&nodes[0], "p");
    let mut lost = connect(&nodes[2], "lost");
    lost.subscribe("k/#", 1);
    nodes[2].kill();
    let mut subscriber = connect(&nodes[1], "s");
    subscriber.subscribe("k/1", 1);
    publisher.publish("k/1", "without it", 1, false);
    receives(&mut subscriber, "without it");
    nodes[2].restart();
    settle(&nodes);
    let mut back = connect(&nodes[2], "back");
    back.subscribe("k/2", 1);
    publisher.publish("k/2", "to it", 1, false);
    receives(&mut back, "to it");
    back.publish("k/1", "from it", 1, false);
    receives(&mut subscriber, "from it");
}
