//! P7 on three processes: what SUBACK and UNSUBACK of a durable session say holds on every node, at once.

use super::{Cluster, SETTLE, connect_when_served, durable, eventually, payloads, signal, status};
use std::time::Duration;
use tests::{Client, Options};

const NO_MATCHING_SUBSCRIBERS: u8 = 0x10;
/// QoS 1 PUBLISH is answered by PUBACK.
const PUBACK: u8 = 4;

/// P7: a durable subscription is effective on every node when SUBACK comes, and over when UNSUBACK comes: connected or not, every time.
#[test]
fn p7_a_durable_suback_is_effective_on_every_node() {
    let cluster = Cluster::of_three();
    let mut others =
        [2, 3].map(|id| Client::connect(cluster.node(id).mqtt, &Options::v5(&format!("pub{id}"))));
    others.iter_mut().for_each(knows_all);
    let mut subscriber = Client::connect(cluster.node(1).mqtt, &durable("sub"));
    let mut known = 0;
    for round in 0..40 {
        let topic = format!("online/{round}");
        assert_eq!(subscriber.subscribe(&topic, 1), 1);
        for (id, other) in (2..).zip(&mut others) {
            assert_eq!(other.publish(&topic, format!("{id}"), 1, false), 0, "node {id}, round {round}");
        }
        let mut got = payloads(&mut subscriber, 2);
        got.sort();
        assert_eq!(got, ["2", "3"], "round {round}");
        subscriber.unsubscribe(&topic);
        for (id, other) in (2..).zip(&mut others) {
            // A node that heard nothing of another one for a moment says 0: it asks that one. Nobody gets the message either way, as
            // the next round shows.
            let reason = other.publish(&topic, "late", 1, false);
            assert!([0, NO_MATCHING_SUBSCRIBERS].contains(&reason), "node {id}, round {round}: {reason}");
            known += usize::from(reason == NO_MATCHING_SUBSCRIBERS);
        }
    }
    assert!(known > 40, "both nodes know that nobody subscribes, {known} of 80 times");
    for round in 0..20 {
        let topic = format!("offline/{round}");
        assert_eq!(subscriber.subscribe(&topic, 1), 1);
        subscriber.disconnect();
        for (id, other) in (2..).zip(&mut others) {
            assert_eq!(other.publish(&topic, format!("{id}"), 1, false), 0, "node {id}, round {round}");
        }
        let (again, present) = Client::connect_present(cluster.node(1).mqtt, &durable("sub"));
        assert!(present);
        subscriber = again;
        let mut got = payloads(&mut subscriber, 2);
        got.sort();
        assert_eq!(got, ["2", "3"], "round {round}");
    }
}

/// Returns once the client's node knows what every other has: until then it sends everything, and says so.
fn knows_all(publisher: &mut Client) {
    eventually("the routes of all nodes are known", Duration::from_secs(20), || {
        (publisher.publish("warm/up", "x", 1, false) == NO_MATCHING_SUBSCRIBERS).then_some(())
    });
}

/// P7: a node that stood still while a subscription was made learns of it before it acknowledges a publish.
#[test]
fn p7_a_node_that_wakes_publishes_to_what_it_missed() {
    let cluster = Cluster::of_three();
    let mut publisher = Client::connect(cluster.node(3).mqtt, &Options::v5("pub"));
    knows_all(&mut publisher);
    for round in 0..2 {
        let topic = format!("missed/{round}");
        let client = format!("sub{round}");
        signal(cluster.node(3), "-STOP");
        // Groups that it led get another leader first.
        let (mut subscriber, _) = connect_when_served(cluster.node(1), &durable(&client));
        assert_eq!(subscriber.subscribe(&topic, 1), 1);
        subscriber.disconnect();
        let id = publisher.packet_id();
        let bytes = publisher.publish_bytes(&topic, b"woken", 2, id, &[]);
        publisher.send(&bytes);
        signal(cluster.node(3), "-CONT");
        let puback = publisher.receive_kind(PUBACK);
        assert_eq!(puback.reason(), 0, "round {round}: it has a subscriber");
        let (mut subscriber, present) = connect_when_served(cluster.node(2), &durable(&client));
        assert!(present);
        assert_eq!(payloads(&mut subscriber, 1), ["woken"]);
        subscriber.disconnect();
        cluster.settle();
    }
}

/// DESIGN §5: leaders spread over the nodes by themselves, also after a node was away.
#[test]
fn leaders_are_spread_evenly() {
    let mut cluster = Cluster::of_three();
    let spread = |cluster: &Cluster| {
        eventually("every node leads a group", SETTLE, || {
            let view = status(cluster.node(1));
            let leaders: Vec<u64> =
                view["groups"].as_array()?.iter().filter_map(|group| group["leader"].as_u64()).collect();
            (1..=3).all(|node| leaders.contains(&node)).then_some(())
        });
    };
    spread(&cluster);
    cluster.node_mut(2).kill();
    std::thread::sleep(Duration::from_millis(10));
    cluster.node_mut(2).restart();
    cluster.settle();
    spread(&cluster);
}

/// P4, P7, MQTT 5 §4.8.2: what waits for members of a share that are away, put there from every node, goes to one that connects to another
/// node, once.
#[test]
fn what_waits_for_absent_members_goes_to_one_on_another_node() {
    let cluster = Cluster::of_three_with(&["session.share_grace_ms=100"]);
    let member = |node: usize, id: &str| {
        let mut client = Client::connect(cluster.node(node).mqtt, &durable(id));
        assert_eq!(client.subscribe("$share/g/s", 1), 1);
        client
    };
    member(1, "away-1").reset();
    member(2, "away-2").reset();
    for id in [1, 2, 3] {
        let mut publisher = Client::connect(cluster.node(id).mqtt, &Options::v5(&format!("pub{id}")));
        for number in 0..20 {
            assert_eq!(publisher.publish("s", format!("{id}:{number:02}"), 1, false), 0);
        }
    }
    let mut present = member(3, "present");
    let mut got = payloads(&mut present, 60);
    got.sort();
    let all: Vec<String> =
        (1..=3).flat_map(|id| (0..20).map(move |number| format!("{id}:{number:02}"))).collect();
    assert_eq!(got, all);
    assert_eq!(present.poll(Duration::from_millis(500)), Ok(None));
}
