//! Three real nodes that are one cluster.

use std::net::{SocketAddr, TcpListener};
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::client::{Client, Options};
use crate::node::{Node, Place};
use crate::wait::eventually;

/// How long a cluster may take to get over a change.
pub const SETTLE: Duration = Duration::from_secs(30);

/// A port that was free a moment ago: a node keeps it over restarts, and others are told of it. Below those that the system gives to
/// connections, so that none of them takes it while its node is down.
///
/// # Panics
/// Never: some port is free.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + u16::try_from(number % 20_000).expect("below 20,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Nodes 1 to 3.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// The first is made one, the others join it.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn of_three() -> Self {
        Self::of_three_with(&[])
    }

    /// The same with further settings for every node.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn of_three_with(settings: &[&str]) -> Self {
        let peers = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        Self::at([(); 3].map(|()| Place::default()), peers, settings)
    }

    /// The same at these places, with these addresses of their peer ports.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn at(places: [Place; 3], peers: [SocketAddr; 3], settings: &[&str]) -> Self {
        let start = |(id, (place, peer))| start_node_at(place, id, peer, settings);
        let cluster = Self { nodes: (1..=3).zip(places.into_iter().zip(peers)).map(start).collect() };
        succeeds(&cluster.node(1).cli(&["cluster", "init"]));
        for id in [2, 3] {
            succeeds(&cluster.node(id).cli(&["cluster", "join", &peers[0].to_string()]));
        }
        cluster.settle();
        cluster
    }

    /// Where the nodes serve MQTT.
    #[must_use]
    pub fn mqtt(&self) -> [SocketAddr; 3] {
        [1, 2, 3].map(|id| self.node(id).mqtt)
    }

    #[must_use]
    pub fn node(&self, id: usize) -> &Node {
        &self.nodes[id - 1]
    }

    pub fn node_mut(&mut self, id: usize) -> &mut Node {
        &mut self.nodes[id - 1]
    }

    /// Waits until all nodes see the same three voters of every group, a leader of each, and each other.
    ///
    /// # Panics
    /// When they do not.
    pub fn settle(&self) {
        for node in &self.nodes {
            eventually("three voters, a leader, all reachable", SETTLE, || {
                (is_settled(node) && serves(node)).then_some(())
            });
        }
    }
}

/// Whether a node answers, and sees three voters and a leader of every group and both others.
#[must_use]
pub fn is_settled(node: &Node) -> bool {
    let Ok((head, body)) = node.admin_ask("GET", "/v1/cluster", "") else { return false };
    let Ok(view) = serde_json::from_str::<Value>(&body) else { return false };
    let formed = |group: &Value| {
        group["voters"].as_array().is_some_and(|voters| voters.len() == 3) && group["leader"].is_u64()
    };
    let formed = view["groups"].as_array().is_some_and(|groups| groups.iter().all(formed));
    let seen =
        view["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(|node| node["reachable"] == true));
    head.starts_with("HTTP/1.1 200") && formed && seen
}

/// A node that may form a cluster; it is none yet.
#[must_use]
pub fn start_node(id: u64, peer_port: u16, settings: &[&str]) -> Node {
    start_node_at(Place::default(), id, ([127, 0, 0, 1], peer_port).into(), settings)
}

/// The same at a place of its own.
#[must_use]
pub fn start_node_at(place: Place, id: u64, peer: SocketAddr, settings: &[&str]) -> Node {
    let advertise = format!("listener.mqtt.advertise=node-{id}.example:1883");
    let (id, peer) = (format!("node.id={id}"), format!("cluster.peer={peer}"));
    let own = [
        &*id,
        &*peer,
        &*advertise,
        "cluster.secret=0123456789abcdef0123456789abcdef",
        "cluster.trusted_network=true",
        "node.workers=1",
        "storage.segment_bytes=1048576",
        "node.sys_interval_s=0",
    ];
    Node::start_at(place, &[&own, settings].concat())
}

/// What the node says of its cluster.
///
/// # Panics
/// When it does not answer.
#[must_use]
pub fn status(node: &Node) -> Value {
    serde_json::from_str(&node.admin_get("/v1/cluster")).expect("JSON")
}

/// Whether a new client is served.
#[must_use]
pub fn serves(node: &Node) -> bool {
    let (_, connack) = Client::try_connect(node.mqtt, &Options::v5("probe"));
    connack.reason() == 0
}

/// # Panics
/// When the command failed.
pub fn succeeds(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

/// Sends a signal, `-STOP` for example.
///
/// # Panics
/// When there is no `kill`, or no process.
pub fn signal(node: &Node, signal: &str) {
    node.signal(signal);
}

/// A session that lasts.
#[must_use]
pub fn durable(client_id: &str) -> Options {
    Options::v5(client_id).expiry(300).resume()
}

/// CONNECT until it is taken.
///
/// # Panics
/// When it is not.
#[must_use]
pub fn connect_when_served(node: &Node, options: &Options) -> (Client, bool) {
    eventually("CONNECT is taken", SETTLE, || {
        let (client, connack) = Client::try_connect(node.mqtt, options);
        (connack.reason() == 0).then(|| (client, connack.body[0] & 1 != 0))
    })
}
