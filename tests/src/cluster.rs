//! Three real processes that are one broker.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::{Client, Node, Options, Place, eventually};

/// How long the cluster may take to get over a change.
pub const SETTLE: Duration = Duration::from_secs(60);

/// Three nodes.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// Nodes 1 to 3 on loopback: the first is made a cluster, the others join it. `settings` are added to those of every node.
    ///
    /// # Panics
    /// When they do not come to serve in time.
    #[must_use]
    pub fn of_three(settings: &[&str]) -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let peers = [(); 3].map(|()| SocketAddr::new(loopback, free_port()));
        Self::at([(); 3].map(|()| Place::default()), peers, settings)
    }

    /// The same at these places, with these addresses of their peer ports.
    ///
    /// # Panics
    /// When they do not come to serve in time.
    #[must_use]
    pub fn at(places: [Place; 3], peers: [SocketAddr; 3], settings: &[&str]) -> Self {
        let start = |(id, (place, peer)): (u64, (Place, SocketAddr))| {
            let own = [
                format!("node.id={id}"),
                format!("cluster.peer={peer}"),
                "cluster.secret=0123456789abcdef0123456789abcdef".into(),
                "cluster.trusted_network=true".into(),
                "node.workers=1".into(),
                "storage.segment_bytes=1048576".into(),
                "node.sys_interval_s=0".into(),
            ];
            let all: Vec<&str> = own.iter().map(String::as_str).chain(settings.iter().copied()).collect();
            Node::start_at(place, &all)
        };
        let cluster = Self { nodes: (1..).zip(places.into_iter().zip(peers)).map(start).collect() };
        succeeds(&cluster.node(1).cli(&["cluster", "init"]));
        for id in [2, 3] {
            succeeds(&cluster.node(id).cli(&["cluster", "join", &peers[0].to_string()]));
        }
        cluster.settle();
        cluster
    }

    /// A node by its id, 1 to 3.
    #[must_use]
    pub fn node(&self, id: usize) -> &Node {
        &self.nodes[id - 1]
    }

    /// The same, to be changed.
    pub fn node_mut(&mut self, id: usize) -> &mut Node {
        &mut self.nodes[id - 1]
    }

    /// Where the nodes serve MQTT.
    #[must_use]
    pub fn mqtt(&self) -> [SocketAddr; 3] {
        [1, 2, 3].map(|id| self.node(id).mqtt)
    }

    /// Waits until all nodes see the same three voters of every group, a leader of each, and each other, and serve.
    ///
    /// # Panics
    /// When they do not within [`SETTLE`].
    pub fn settle(&self) {
        eventually("three voters, leaders, all reachable, all serve", SETTLE, || {
            self.nodes.iter().all(is_settled).then_some(())
        });
    }
}

/// Whether a node sees three voters of every group, a leader of each and both others, and serves a new client.
#[must_use]
pub fn is_settled(node: &Node) -> bool {
    let Some(view) = status(node) else { return false };
    let groups = view["groups"].as_array().is_some_and(|groups| {
        let formed = |group: &Value| {
            let voters = group["voters"].as_array().map_or(0, Vec::len);
            voters == 3 && group["leader"].is_u64()
        };
        groups.iter().all(formed)
    });
    let seen =
        view["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(|node| node["reachable"] == true));
    groups && seen && serves(node.mqtt)
}

/// What a node says of its cluster, when it answers.
#[must_use]
pub fn status(node: &Node) -> Option<Value> {
    let (head, body) = node.admin_ask("GET", "/v1/cluster", "").ok()?;
    head.starts_with("HTTP/1.1 200").then(|| serde_json::from_str(&body).ok())?
}

/// Whether a new client is served within 6 s.
#[must_use]
pub fn serves(mqtt: SocketAddr) -> bool {
    let limit = Duration::from_secs(6);
    let Ok(mut client) = Client::try_open(mqtt, true, limit) else { return false };
    client.send(&Options::v5("probe").bytes());
    matches!(client.poll(limit), Ok(Some(connack)) if connack.kind() == 2 && connack.reason() == 0)
}

/// Asserts that a command did what it was asked.
///
/// # Panics
/// When it did not.
pub fn succeeds(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

/// A port that was free a moment ago: a node keeps it over restarts, and others are told of it. Below those that the system gives to
/// connections, so that none of them takes it while its node is down.
///
/// # Panics
/// Never: it tries until it finds one.
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
