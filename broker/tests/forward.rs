//! Live subscribers on other nodes: whole nodes in this process, each with its own store, joined by real peer links on loopback.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails the test")]

mod hotpath_support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use broker::clock::NodeClock;
use broker::cluster::{CallFuture, NotAnswered, PeerCalls};
use broker::node::Node;
use bytes::Bytes;
use hotpath_support::{Client, Got, gone_member, payload, start};
use ownerrpc::link::{
    CallError, Clock, Endpoint, Listener, LocalNode, Options, Peers, RefusalKind, Security, SecuritySettings,
    Services, Unobserved,
};
use session::topic::TopicFilter;
use tokio::time::Instant;

const WIDE: u16 = 1_000;
/// No Local and Retain As Published in the options of a subscription.
const NO_LOCAL: u8 = 4;
const AS_PUBLISHED: u8 = 8;
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct LinkClock(Arc<NodeClock>);

impl Clock for LinkClock {
    fn now_ms(&self) -> u64 {
        self.0.millis().0
    }

    fn observe(&self, ms: u64) {
        storage::Clock::observe(&*self.0, session::time::Millis(ms));
    }
}

#[derive(Debug)]
struct Links(Arc<Peers>);

impl PeerCalls for Links {
    fn nodes(&self) -> Vec<u64> {
        self.0.all().iter().map(|peer| peer.node_id()).collect()
    }

    fn reachable(&self) -> Vec<u64> {
        self.0.reachable()
    }

    fn call(&self, node_id: u64, service: u16, payload: Bytes, deadline: Instant) -> CallFuture {
        let peers = self.0.clone();
        Box::pin(async move {
            peers.call(node_id, service, payload, deadline).await.map_err(|error| {
                let reason = error.to_string();
                match error {
                    CallError::Unreachable { .. } => NotAnswered::Unreachable { node_id, reason },
                    CallError::Refused(refusal) => {
                        let malformed = refusal.kind == RefusalKind::Malformed;
                        NotAnswered::Refused { node_id, malformed, reason }
                    }
                    _ => NotAnswered::Unknown { node_id, reason },
                }
            })
        })
    }
}

/// One node with its peer port.
struct Member {
    node: Node,
    listener: Listener,
    peers: Arc<Peers>,
    _dir: tempfile::TempDir,
}

impl Member {
    async fn new(node_id: u64, at: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = start(dir.path(), &[("node.id", &node_id.to_string())]).await;
        let shared = node.shared();
        let settings = SecuritySettings {
            secret: Some(vec![7; 32]),
            trusted_network: true,
            ..SecuritySettings::default()
        };
        let endpoint = Endpoint::new(
            LocalNode::new([1; 16], node_id, shared.boot.boot_id.clone()),
            Security::new(&settings).unwrap(),
            Options { backoff_min_ms: 5, backoff_max_ms: 50, ..Options::default() },
            Arc::new(LinkClock(shared.clock.clone())),
            Arc::new(Unobserved),
        )
        .unwrap();
        let services = Arc::new(shared.forwarding.serve(Services::default()));
        let deadline = Instant::now() + LIMIT;
        let listener = loop {
            match Listener::bind(endpoint.clone(), at, services.clone()).await {
                Ok(listener) => break listener,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let peers = Arc::new(Peers::new(endpoint));
        Self { node, listener, peers, _dir: dir }
    }

    /// Links it to `others`, until all of them know each other's subscriptions.
    async fn join(&self, others: &[&Self]) {
        for other in others {
            self.peers.set(other.id(), &other.listener.address().to_string());
            other.peers.set(self.id(), &self.listener.address().to_string());
        }
        self.node.shared().forwarding.start(Arc::new(Links(self.peers.clone())));
    }

    fn id(&self) -> u64 {
        self.node.shared().boot.node_id
    }

    async fn settle(&self, count: usize) {
        let deadline = Instant::now() + LIMIT;
        while self.peers.reachable().len() < count {
            assert!(Instant::now() < deadline, "all nodes are reached");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // What is reachable is looked at now and then.
        tokio::time::sleep(Duration::from_millis(150)).await;
        self.node.shared().forwarding.settled(LIMIT).await;
    }

    async fn client(&self, client_id: &str) -> Client {
        Client::connect(&self.node, client_id, 0, WIDE).await.0
    }

    /// As a crash looks to the others: links and port are gone at once.
    async fn kill(self) -> SocketAddr {
        let address = self.listener.address();
        self.node.shared().forwarding.stop();
        drop(self.listener);
        self.peers.close(Duration::ZERO).await;
        self.node.stop(Duration::from_secs(5)).await;
        address
    }
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn cluster(count: u64) -> Vec<Member> {
    let mut members = Vec::new();
    for node_id in 1..=count {
        members.push(Member::new(node_id, anywhere()).await);
    }
    for (at, member) in members.iter().enumerate() {
        let others: Vec<&Member> =
            members.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other).collect();
        member.join(&others).await;
    }
    for member in &members {
        member.settle(members.len() - 1).await;
    }
    members
}

/// P7: a thousand times subscribed here and published there as soon as SUBACK is in; nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_suback_means_effective_on_the_other_node() {
    let members = cluster(2).await;
    let mut publisher = members[0].client("p").await;
    let mut subscriber = members[1].client("s").await;
    for round in 0..1_000 {
        let topic = format!("r/{round}");
        subscriber.subscribe(&topic, 0).await;
        publisher.publish(&topic, &round.to_string(), 0, false, 0);
        publisher.flush().await;
        assert_eq!(payload(&subscriber.message().await), round.to_string());
    }
}

/// [MQTT-4.6.0-6], P5: QoS 0, 1 and 2 of one publisher reach a subscriber on another node in order, each once, and are acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_4_6_0_6_order_is_kept_across_nodes() {
    const COUNT: u16 = 180;
    let members = cluster(2).await;
    let mut subscriber = members[1].client("s").await;
    subscriber.subscribe("o/#", 2).await;
    let mut publisher = members[0].client("p").await;
    for packet_id in 1..=COUNT {
        publisher.publish("o/1", &packet_id.to_string(), (packet_id % 2) as u8, false, packet_id);
    }
    publisher.publish("o/1", "last", 2, false, COUNT + 1);
    publisher.flush().await;
    for packet_id in (1..=COUNT).filter(|packet_id| packet_id % 2 == 1) {
        assert_eq!(publisher.next().await, Some(Got::Ack(0x40, packet_id, 0)));
    }
    assert_eq!(publisher.next().await, Some(Got::Ack(0x50, COUNT + 1, 0)));
    let expected = (1..=COUNT).map(|number| number.to_string()).chain(["last".to_owned()]);
    for (number, expected) in expected.enumerate() {
        let Got::Publish { payload, qos, packet_id, .. } = subscriber.message().await else { unreachable!() };
        assert_eq!(payload, expected, "message {number}");
        if qos == 1 {
            subscriber.ack(0x40, packet_id);
            subscriber.flush().await;
        }
    }
}

/// [MQTT-3.3.1-12], -13, [MQTT-3.8.3-3]: RETAIN goes by the subscription, and No Local by the ClientID; the publisher's own node serves
/// its own, and nothing comes back from another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_3_3_1_13_flags_are_those_of_the_subscription() {
    let members = cluster(2).await;
    let mut publisher = members[0].client("p").await;
    publisher.subscribe("f/#", 1 | NO_LOCAL).await;
    let mut neighbour = members[0].client("n").await;
    neighbour.subscribe("f/#", 0).await;
    let mut plain = members[1].client("plain").await;
    plain.subscribe("f/#", 0).await;
    let mut kept = members[1].client("kept").await;
    kept.subscribe("f/+", 1 | AS_PUBLISHED).await;
    publisher.publish("f/1", "x", 1, true, 7);
    publisher.flush().await;
    assert_eq!(publisher.next().await, Some(Got::Ack(0x40, 7, 0)));
    assert!(matches!(plain.message().await, Got::Publish { qos: 0, retain: false, .. }));
    assert!(matches!(kept.message().await, Got::Publish { qos: 1, retain: true, .. }));
    assert!(matches!(neighbour.message().await, Got::Publish { qos: 0, retain: false, .. }));
    for client in [&mut publisher, &mut plain, &mut kept, &mut neighbour] {
        assert!(client.is_quiet().await, "each once");
    }
}

/// P9, MQTT 5 §3.4.2.1: a topic of more levels than are served is refused, and what others of the same batch published still arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_topic_that_is_too_deep_costs_only_itself() {
    let members = cluster(2).await;
    let mut subscriber = members[1].client("s").await;
    subscriber.subscribe("#", 1).await;
    let mut publisher = members[0].client("p").await;
    let deep = format!("x{}", "/".repeat(300));
    publisher.publish(&deep, "deep", 0, false, 0);
    publisher.publish("ok", "first", 1, false, 1);
    publisher.publish(&deep, "deep", 1, false, 2);
    publisher.publish(&deep, "deep", 2, true, 3);
    publisher.publish(&"/".repeat(255), "second", 1, false, 4);
    publisher.flush().await;
    for expected in [(0x40, 1, 0), (0x40, 2, 0x90), (0x50, 3, 0x90), (0x40, 4, 0)] {
        assert_eq!(publisher.next().await, Some(Got::Ack(expected.0, expected.1, expected.2)));
    }
    for expected in ["first", "second"] {
        assert_eq!(payload(&subscriber.message().await), expected);
    }
    assert!(publisher.is_quiet().await && subscriber.is_quiet().await);
}

/// A durable session that is connected to another node gets QoS 0, once, and no more once it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qos_0_reaches_durable_sessions_where_they_are_connected() {
    let members = cluster(2).await;
    let (mut durable, _) = Client::connect(&members[1].node, "d", 300, WIDE).await;
    durable.subscribe("q/#", 1).await;
    let mut publisher = members[0].client("p").await;
    // Told behind the SUBACK: what is stored does not wait for it.
    let deadline = Instant::now() + LIMIT;
    loop {
        publisher.publish("q/1", "x", 0, false, 0);
        publisher.flush().await;
        assert!(publisher.is_quiet().await);
        if tokio::time::timeout(Duration::from_millis(100), durable.next()).await.is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "QoS 0 arrives");
    }
    assert!(durable.is_quiet().await);
}

/// [MQTT-4.8.2-4]: each message of a share goes to one member of the cluster; one that is connected to the publisher's node goes
/// first, else the nodes that have members take turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_4_8_2_4_one_member_of_the_cluster_gets_a_shared_message() {
    let members = cluster(3).await;
    let mut shared =
        [members[1].client("s1").await, members[1].client("s2").await, members[2].client("s3").await];
    for client in &mut shared {
        client.subscribe("$share/g/s/#", 0).await;
    }
    let mut publisher = members[0].client("p").await;
    for number in 0..8 {
        publisher.publish("s/1", &number.to_string(), 1, false, number + 1);
    }
    publisher.flush().await;
    for packet_id in 1..=8 {
        assert_eq!(publisher.next().await, Some(Got::Ack(0x40, packet_id, 0)));
    }
    let mut counts = [0; 3];
    for (client, count) in shared.iter_mut().zip(&mut counts) {
        while tokio::time::timeout(Duration::from_millis(300), client.next()).await.is_ok() {
            *count += 1;
        }
    }
    assert_eq!((counts[0] + counts[1], counts[2]), (4, 4), "{counts:?}");
    let mut near = members[0].client("near").await;
    near.subscribe("$share/g/s/#", 0).await;
    publisher.publish("s/1", "near", 1, false, 9);
    publisher.flush().await;
    assert_eq!(payload(&near.message().await), "near");
    for client in &mut shared {
        assert!(client.is_quiet().await);
    }
}

/// MQTT 5 §4.8.2, scenario 85: a node that was chosen for a share and has no member any more, or none that is connected, says so, and the
/// message goes to the next one before it is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_85_a_node_without_a_member_leaves_the_message_to_another_one() {
    const COUNT: u16 = 8;
    let members = cluster(3).await;
    let share = "$share/g/s/#";
    let mut member = members[2].client("member").await;
    member.subscribe(share, 1).await;
    let stale = TopicFilter::parse(share).unwrap();
    members[0].node.shared().router.change_remote(2, [(&stale, true)]);
    let mut publisher = members[0].client("p").await;
    for round in 0..2 {
        for number in 1..=COUNT {
            publisher.publish("s/1", &number.to_string(), 1, false, number);
        }
        publisher.flush().await;
        for packet_id in 1..=COUNT {
            assert_eq!(publisher.next().await, Some(Got::Ack(0x40, packet_id, 0)));
        }
        let mut left: BTreeSet<String> = (1..=COUNT).map(|number| number.to_string()).collect();
        while !left.is_empty() {
            assert!(left.remove(payload(&member.message().await)), "round {round}: each once");
        }
        assert!(member.is_quiet().await);
        for worker in 0..2 {
            gone_member(&members[1].node, worker, None, share);
        }
    }
}

/// P7, P9: a node that dies holds up neither subscribers nor publishers for long; when it is back it is told again and sends again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_node_that_comes_back_is_told_again() {
    let mut members = cluster(2).await;
    let second = members.pop().unwrap();
    let first = members.pop().unwrap();
    let mut lost = second.client("lost").await;
    lost.subscribe("k/#", 1).await;
    let mut subscriber = first.client("s").await;
    subscriber.subscribe("k/before", 1).await;
    let address = second.kill().await;
    let mut publisher = first.client("p").await;
    publisher.publish("k/x", "x", 1, false, 1);
    publisher.flush().await;
    assert!(matches!(publisher.next().await, Some(Got::Ack(0x40, 1, _))), "its subscribers died with it");
    subscriber.subscribe("k/after", 1).await;

    let second = Member::new(2, address).await;
    second.join(&[&first]).await;
    second.settle(1).await;
    let mut publisher = second.client("q").await;
    for (packet_id, topic) in [(1, "k/before"), (2, "k/after")] {
        publisher.publish(topic, topic, 1, false, packet_id);
        publisher.flush().await;
        assert_eq!(publisher.next().await, Some(Got::Ack(0x40, packet_id, 0)));
        assert_eq!(payload(&subscriber.message().await), topic);
    }
}
