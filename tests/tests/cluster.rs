//! Three processes are one broker (issue 3): takeover and End from any node, durable subscribers everywhere, nodes that stop, die and come
//! back, a node without a majority.

#[path = "cluster/ends.rs"]
mod ends;
#[path = "cluster/monitor.rs"]
mod monitor;
#[path = "cluster/routes.rs"]
mod routes;
#[path = "cluster/stop.rs"]
mod stop;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tests::cluster::{
    Cluster, SETTLE, connect_when_served, durable, free_port, signal, start_node, status, succeeds,
};
use tests::{Client, Node, Options, Packet, eventually};

const SERVER_UNAVAILABLE: u8 = 0x88;

fn start(id: u64, peer_port: u16) -> Node {
    start_node(id, peer_port, &[])
}

/// The whole answer of `/health/ready`.
fn ready(node: &Node) -> String {
    let mut stream = TcpStream::connect(node.admin).expect("the admin API listens");
    stream.write_all(b"GET /health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn payloads(client: &mut Client, count: usize) -> Vec<String> {
    (0..count)
        .map(|_| {
            let publish = client.receive_publish();
            client.settle(&publish);
            String::from_utf8(publish.payload).expect("text")
        })
        .collect()
}

/// DESIGN §8: a node without the secret is kept out, and a node with sessions is not emptied by a join.
#[test]
fn only_an_empty_node_with_the_secret_joins() {
    let port = free_port();
    let first = start(1, port);
    let seed = format!("127.0.0.1:{port}");
    let second = start(2, free_port());
    let early = second.cli(&["cluster", "join", &seed]);
    assert_eq!(early.status.code(), Some(1), "the first node is no cluster yet");
    succeeds(&first.cli(&["cluster", "init"]));
    succeeds(&first.cli(&["cluster", "init"]));
    let mut client = Client::connect(second.mqtt, &durable("kept"));
    client.subscribe("t", 1);
    let refused = second.cli(&["cluster", "join", &seed]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("sessions"), "{refused:?}");
    assert!(client.is_alive(), "nothing was disturbed");
    // Issue 5 §2: what changes a cluster is on record, whatever came of it.
    for (node, expected) in [
        (&first, vec![("cluster.init", "done"), ("cluster.init", "done")]),
        (&second, vec![("cluster.join", "refused"), ("cluster.join", "refused")]),
    ] {
        let audit: serde_json::Value = serde_json::from_str(&node.admin_get("/v1/audit")).expect("JSON");
        let text = |one: &serde_json::Value, name: &str| one[name].as_str().expect("text").to_owned();
        let found = audit["records"].as_array().expect("a list").iter();
        let found: Vec<_> = found.map(|one| (text(one, "action"), text(one, "result"))).collect();
        let expected: Vec<_> = expected.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
        assert_eq!(found, expected, "{audit}");
    }
    let stranger = Node::start_with(&[
        "node.id=3",
        "cluster.peer=127.0.0.1:0",
        "cluster.secret=another secret of a stranger",
        "cluster.trusted_network=true",
    ]);
    assert_eq!(stranger.cli(&["cluster", "join", &seed]).status.code(), Some(1));
    let same_id = start(1, free_port());
    // It has the id of the seed itself: the link does not even come up.
    let taken = same_id.cli(&["cluster", "join", &seed]);
    assert!(String::from_utf8_lossy(&taken.stderr).contains("node id 1 is taken"), "{taken:?}");
}

/// P1, P2, P4, P5: a takeover from another node closes the old socket, tells its client, and keeps messages, packet ids and DUP; a publish on
/// one node reaches durable subscribers of all, connected or not; End reaches an owner on another node.
#[test]
fn three_nodes_are_one_broker() {
    let cluster = Cluster::of_three();
    let [first, second, third] = [1, 2, 3].map(|id| cluster.node(id).mqtt);
    let refused = cluster.node(2).cli(&["cluster", "init"]);
    assert_eq!(refused.status.code(), Some(1), "it joined, it is not the first: {refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("member of a cluster already"), "{refused:?}");
    // A durable subscriber of node 3, offline and online.
    let mut subscriber = Client::connect(third, &durable("sub"));
    assert_eq!(subscriber.subscribe("news/#", 1), 1);
    let mut publisher = Client::connect(first, &Options::v5("pub"));
    assert_eq!(publisher.publish("news/0", "online", 1, false), 0);
    assert_eq!(payloads(&mut subscriber, 1), ["online"]);
    subscriber.disconnect();
    assert_eq!(publisher.publish("news/1", "offline", 1, false), 0);
    let (mut subscriber, present) = Client::connect_present(third, &durable("sub"));
    assert!(present);
    let publish = loop {
        let publish = subscriber.receive_publish();
        if publish.payload == b"offline" {
            break publish;
        }
        subscriber.settle(&publish);
    };
    // Not acknowledged: the next connection gets it again, from whatever node, with the same packet id and DUP.
    let (mut taken, present) = Client::connect_present(second, &durable("sub"));
    assert!(present, "Session Present");
    let said = subscriber.until_closed(Duration::from_secs(5));
    assert!(said.iter().any(|packet: &Packet| packet.kind() == 14 && packet.body[0] == 0x8E), "{said:02x?}");
    let again = taken.receive_publish();
    assert_eq!((again.packet_id, again.dup), (publish.packet_id, true));
    assert_eq!(again.payload, b"offline");
    taken.settle(&again);
    assert_eq!(publisher.publish("news/2", "after the takeover", 1, false), 0);
    assert_eq!(payloads(&mut taken, 1), ["after the takeover"]);
    // P3: End through node 1 of an owner on node 2.
    succeeds(&cluster.node(1).cli(&["session", "end", "sub", "--reason", "revoked"]));
    taken.until_closed(Duration::from_secs(5));
    let (_, present) = Client::connect_present(third, &durable("sub"));
    assert!(!present, "an ended session is not resumed");
}

/// P7: SUBACK of a subscriber without an inbox is effective on every node: what is published elsewhere after it arrives, in order.
#[test]
fn a_live_subscriber_hears_of_every_node() {
    let cluster = Cluster::of_three();
    let mut subscriber = Client::connect(cluster.node(3).mqtt, &Options::v5("live"));
    let mut publishers =
        [1, 2, 3].map(|id| Client::connect(cluster.node(id).mqtt, &Options::v5(&format!("pub{id}"))));
    assert_eq!(subscriber.subscribe("live/#", 1), 1);
    for (id, publisher) in (1..).zip(&mut publishers) {
        for round in 0..10 {
            let text = format!("{id} {round}");
            assert_eq!(publisher.publish("live/t", &text, 1, false), 0);
            assert_eq!(payloads(&mut subscriber, 1), [text]);
        }
    }
}

/// A join that kill -9 cuts short goes on by itself at the next start.
#[test]
fn a_join_survives_kill_9() {
    let port = free_port();
    let first = start(1, port);
    succeeds(&first.cli(&["cluster", "init"]));
    let mut client = Client::connect(first.mqtt, &durable("sub"));
    assert_eq!(client.subscribe("t", 1), 1);
    client.disconnect();
    let mut second = start(2, free_port());
    let asked = Command::new(tests::node::binary())
        .args(["cluster", "join", &format!("127.0.0.1:{port}"), "--data-dir"])
        .arg(second.dir())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut asked = asked.expect("exactmq runs");
    let mark = second.dir().join("cluster.json");
    eventually("the join is written down", SETTLE, || mark.exists().then_some(()));
    second.kill();
    asked.kill().expect("killed");
    asked.wait().expect("it ends");
    second.restart();
    eventually("a member after all", SETTLE, || (status(&second)["state"] == "member").then_some(()));
    let (_, present) = connect_when_served(&second, &durable("sub"));
    assert!(present, "it holds what the cluster held");
}

/// P2, owner spec §14.1: a node that does not answer proves nothing. CONNECTs for its clients are refused in bounded time, others are served,
/// and when it is back the takeover works.
#[test]
fn a_stopped_node_gives_no_proof() {
    let cluster = Cluster::of_three();
    let owner = cluster.node(2);
    let mut old = Client::connect(owner.mqtt, &durable("held"));
    old.subscribe("t", 1);
    signal(owner, "-STOP");
    let other = cluster.node(3).mqtt;
    let began = Instant::now();
    let (_, connack) = Client::try_connect(other, &durable("held"));
    assert_eq!(connack.reason(), SERVER_UNAVAILABLE);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    // Unrelated clients are served once the groups that the stopped node led have another leader.
    let _ = connect_when_served(cluster.node(1), &Options::v5("unrelated"));
    eventually("refused at once", SETTLE, || {
        let began = Instant::now();
        let (_, connack) = Client::try_connect(other, &durable("held"));
        assert_eq!(connack.reason(), SERVER_UNAVAILABLE, "no proof, no takeover");
        (began.elapsed() < Duration::from_secs(1)).then_some(())
    });
    signal(owner, "-CONT");
    let (_, present) = connect_when_served(cluster.node(3), &durable("held"));
    assert!(present);
    old.until_closed(Duration::from_secs(5));
}

/// P4: kill -9 of a node loses nothing that was acknowledged, on any node; restarted, it proves that its owners stopped.
#[test]
fn a_killed_node_loses_nothing() {
    let mut cluster = Cluster::of_three();
    let mut subscriber = Client::connect(cluster.node(2).mqtt, &durable("sub"));
    assert_eq!(subscriber.subscribe("t", 1), 1);
    let mut publisher = Client::connect(cluster.node(2).mqtt, &Options::v5("pub"));
    for round in 0..20 {
        assert_eq!(publisher.publish("t", round.to_string(), 1, false), 0);
    }
    cluster.node_mut(2).kill();
    let (_, connack) = Client::try_connect(cluster.node(1).mqtt, &durable("sub"));
    assert_eq!(connack.reason(), SERVER_UNAVAILABLE, "its owner is not proved stopped");
    cluster.node_mut(2).restart();
    let (mut again, present) = connect_when_served(cluster.node(1), &durable("sub"));
    assert!(present);
    let expected: Vec<String> = (0..20).map(|round: u32| round.to_string()).collect();
    assert_eq!(payloads(&mut again, 20), expected);
}

/// P2, P10: without a majority a node listens, refuses in bounded time and says why; it recovers by itself.
#[test]
fn a_minority_refuses_and_recovers() {
    let mut cluster = Cluster::of_three();
    let mut before = Client::connect(cluster.node(1).mqtt, &durable("before"));
    before.subscribe("t", 1);
    before.disconnect();
    for id in 1..=3 {
        cluster.node_mut(id).kill();
    }
    // Alone it starts all the same.
    cluster.node_mut(1).restart();
    let alone = cluster.node(1);
    for options in [Options::v5("x"), durable("before")] {
        let began = Instant::now();
        let (_, connack) = Client::try_connect(alone.mqtt, &options);
        assert_eq!(connack.reason(), SERVER_UNAVAILABLE);
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    }
    let (_, connack) = Client::try_connect(alone.mqtt, &Options::v3("x"));
    assert_eq!(connack.reason(), 3);
    assert_eq!(status(alone)["state"], "member");
    let ready = ready(alone);
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("no leader for group"), "{ready}");
    let failed = alone.cli(&["cluster", "remove", "3"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("again goes on"), "{failed:?}");
    cluster.node_mut(2).restart();
    let (_, present) = connect_when_served(cluster.node(1), &durable("before"));
    assert!(present, "nothing was lost");
    cluster.node_mut(3).restart();
    cluster.settle();
}
