//! SUBACK means effective on every node (P7, scenario 77), also for sessions with an inbox.

use std::time::Duration;

use tests::cluster::durable;
use tests::{Client, Cluster, Options};

/// P7: what is published on another node right after the SUBACK of a durable session arrives.
#[test]
fn p7_a_durable_suback_is_effective_on_every_node() {
    let cluster = Cluster::of_three();
    let [first, second, third] = cluster.mqtt();
    let mut subscriber = Client::connect(first, &durable("sub"));
    let mut publishers =
        [(second, "p2"), (third, "p3")].map(|(node, name)| Client::connect(node, &Options::v5(name)));
    let mut lost = Vec::new();
    for round in 0..30 {
        for (at, publisher) in publishers.iter_mut().enumerate() {
            let topic = format!("t/{round}/{at}");
            assert_eq!(subscriber.subscribe(&topic, 1), 1);
            assert!(publisher.publish(&topic, "x", 1, false) < 0x80);
            match subscriber.poll(Duration::from_millis(500)).expect("open") {
                Some(packet) => subscriber.settle(&packet.publish(true)),
                None => lost.push(topic),
            }
        }
    }
    assert!(lost.is_empty(), "{} of 60 acknowledged messages never came: {lost:?}", lost.len());
}
