//! The node of an owner does not answer (owner spec §14.1, scenarios 1, 18c, 51): nobody takes its session over, in bounded time; others are
//! served; when it is back, packet id, DUP and identity are as before.

use std::time::{Duration, Instant};

use tests::cluster::SETTLE;
use tests::{Client, Cluster, Node, Options, eventually};

/// Shorter than the default, so that a stopped node outlives it within the test.
const LEASE: Duration = Duration::from_secs(2);
const SERVER_UNAVAILABLE: u8 = 0x88;

fn durable(client_id: &str) -> Options {
    Options::v5(client_id).expiry(300).resume()
}

/// A durable client on node 2 that was sent one message of each QoS and acknowledged none.
struct Owner {
    old: Client,
    packet_ids: Vec<u16>,
}

fn owner_with_messages(cluster: &Cluster) -> Owner {
    let mut old = Client::connect(cluster.node(2).mqtt, &durable("held"));
    assert_eq!(old.subscribe("held/#", 2), 2);
    let mut publisher = Client::connect(cluster.node(1).mqtt, &Options::v5("before"));
    let mut packet_ids = Vec::new();
    for qos in [1, 2] {
        assert_eq!(publisher.publish("held/t", format!("qos {qos}"), qos, false), 0);
        let publish = old.receive_publish();
        assert!(!publish.dup);
        packet_ids.push(publish.packet_id);
    }
    publisher.disconnect();
    Owner { old, packet_ids }
}

/// CONNECT through both survivors: refused, at last in under a second each, while strangers are served; none of the candidates acts.
fn nobody_takes_over(survivors: [&Node; 2], after: &str) {
    let candidate = |node: &Node| {
        let began = Instant::now();
        let (mut client, connack) = Client::try_connect(node.mqtt, &durable("held"));
        assert_eq!(connack.reason(), SERVER_UNAVAILABLE, "no proof, no takeover");
        assert!(client.until_closed(Duration::from_secs(5)).is_empty(), "a refused candidate gets nothing");
        began.elapsed()
    };
    let took = eventually("refused in under a second by both, once the node is known dead", SETTLE, || {
        let took = survivors.map(candidate);
        took.iter().all(|time| *time < Duration::from_secs(1)).then_some(took)
    });
    for (number, node) in survivors.into_iter().enumerate() {
        let (mut stranger, _) = eventually("strangers are served", SETTLE, || {
            let (client, connack) =
                Client::try_connect(node.mqtt, &Options::v5(&format!("stranger{number}")));
            (connack.reason() == 0).then_some((client, connack))
        });
        assert!(stranger.is_alive());
    }
    println!("{after}: refused after {took:?}");
}

/// One reconnect and one takeover: the same messages with the same packet ids, DUP, and a whole exchange in the end.
fn nothing_changed(cluster: &Cluster, packet_ids: &[u16]) {
    let (mut first, present) = eventually("the session can be had again", SETTLE, || {
        let (client, connack) = Client::try_connect(cluster.node(1).mqtt, &durable("held"));
        (connack.reason() == 0).then(|| (client, connack.body[0] & 1 != 0))
    });
    assert!(present, "Session Present");
    expect_again(&mut first, packet_ids);
    let (mut second, present) = Client::connect_present(cluster.node(3).mqtt, &durable("held"));
    assert!(present, "Session Present");
    first.until_closed(Duration::from_secs(5));
    for publish in expect_again(&mut second, packet_ids) {
        second.settle(&publish);
    }
    second.expect_nothing();
}

fn expect_again(client: &mut Client, packet_ids: &[u16]) -> Vec<tests::wire::Publish> {
    let again: Vec<_> = packet_ids.iter().map(|_| client.receive_publish()).collect();
    for ((publish, packet_id), qos) in again.iter().zip(packet_ids).zip([1, 2]) {
        assert_eq!((publish.packet_id, publish.dup, publish.qos), (*packet_id, true, qos));
        assert_eq!(publish.payload, format!("qos {qos}").into_bytes());
    }
    again
}

fn cluster() -> Cluster {
    Cluster::of_three_with(&[&format!("owner.lease_ms={}", LEASE.as_millis())])
}

/// P1, P2: a stopped node, also past its lease. When it runs again its own clock tells it that its lease is over: its old connection acts no more.
#[test]
fn p2_nobody_takes_over_from_a_stopped_node() {
    let cluster = cluster();
    let Owner { mut old, packet_ids } = owner_with_messages(&cluster);
    cluster.node(2).signal("-STOP");
    let stopped = Instant::now();
    nobody_takes_over([cluster.node(1), cluster.node(3)], "stopped");
    std::thread::sleep((LEASE * 2).saturating_sub(stopped.elapsed()));
    nobody_takes_over([cluster.node(1), cluster.node(3)], "stopped, past its lease");
    // Waits in the socket of the stopped node: it may not be acted upon when that runs again.
    old.ack(4, packet_ids[0]);
    old.send(&[0xC0, 0]);
    cluster.node(2).signal("-CONT");
    let said = old.until_closed(Duration::from_secs(10));
    assert!(
        said.iter().all(|packet| packet.kind() == 14),
        "past its lease it may only say goodbye: {said:02x?}"
    );
    nothing_changed(&cluster, &packet_ids);
}

/// P2, P4: a killed node proves nothing either. Restarted, it proves that its owners are gone.
#[test]
fn p2_nobody_takes_over_from_a_killed_node() {
    let mut cluster = cluster();
    let Owner { mut old, packet_ids } = owner_with_messages(&cluster);
    cluster.node_mut(2).kill();
    old.until_closed(Duration::from_secs(5));
    let killed = Instant::now();
    nobody_takes_over([cluster.node(1), cluster.node(3)], "killed");
    std::thread::sleep((LEASE * 2).saturating_sub(killed.elapsed()));
    nobody_takes_over([cluster.node(1), cluster.node(3)], "killed, past its lease");
    cluster.node_mut(2).restart();
    nothing_changed(&cluster, &packet_ids);
}
