//! All clients of one node lose it at once and connect to the others: how long that takes in simulated time, and how many log entries it
//! costs (DESIGN §5: "mass connect costs one log entry per batch, not per client").

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::calls::ms;
use super::connection::{Hello, ToClient, accept};
use super::faults;
use super::weather::Weather;
use super::world::{World, key};

const SEED: u64 = 1;
/// Pause of a client between two attempts.
const AGAIN_MS: u64 = 100;

/// What it took.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    pub clients: u64,
    pub connected: u64,
    /// Of those, how many found their session.
    pub resumed: u64,
    /// From the death of the node to the last CONNACK, its restart and the retirement of its boot included.
    pub simulated_ms: u64,
    pub entries: u64,
}

impl Report {
    #[must_use]
    pub fn text(&self) -> String {
        format!(
            "{} of {} clients connected to the other nodes, {} with their session, in {} simulated ms, with {} log entries",
            self.connected, self.clients, self.resumed, self.simulated_ms, self.entries
        )
    }
}

/// # Panics
/// When no runtime can be made.
#[must_use]
pub fn run(clients: u64) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads can be made");
    let report = runtime.block_on(run_inside(clients));
    drop(runtime);
    report
}

async fn run_inside(clients: u64) -> Report {
    let world = World::new(SEED, 3, Weather::Mixed, None);
    (0..3).for_each(|at| world.start(at));
    tokio::spawn(faults::elect(world.clone()));
    let (connected, resumed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut lines = Vec::new();
    for number in 0..clients {
        let first = tokio::spawn(dial(world.clone(), number, vec![0], connected.clone(), resumed.clone()));
        lines.push(first);
    }
    while connected.load(Ordering::Relaxed) < clients {
        tokio::time::sleep(ms(50)).await;
    }
    connected.store(0, Ordering::Relaxed);
    resumed.store(0, Ordering::Relaxed);
    let (before, began) = (world.oracle.entries(), world.now_ms());
    world.crash(0);
    world.start(0);
    for number in 0..clients {
        let at = vec![1, 2];
        tokio::spawn(dial(world.clone(), number, at, connected.clone(), resumed.clone()));
    }
    while connected.load(Ordering::Relaxed) < clients && world.now_ms() - began < 600_000 {
        tokio::time::sleep(ms(10)).await;
    }
    let report = Report {
        clients,
        connected: connected.load(Ordering::Relaxed),
        resumed: resumed.load(Ordering::Relaxed),
        simulated_ms: world.now_ms() - began,
        entries: world.oracle.entries() - before,
    };
    for machine in &world.machines {
        let node = machine.process.lock().take();
        if let Some(node) = node {
            node.power.kill();
        }
    }
    report
}

/// Connects until it is accepted, then stays.
async fn dial(
    world: Arc<World>,
    number: u64,
    nodes: Vec<usize>,
    connected: Arc<AtomicU64>,
    resumed: Arc<AtomicU64>,
) {
    let key = key(&format!("c{number}"));
    loop {
        let at = *world.chance.pick(&nodes);
        if let Some(node) = world.node(at).filter(|node| !node.power.is_dead()) {
            let (server, from_client) = mpsc::unbounded_channel();
            let (client, mut from_server) = mpsc::unbounded_channel();
            let hello = Hello {
                key: key.clone(),
                uid: "u".into(),
                clean_start: false,
                expiry_sec: 3_600,
                will: None,
                receive_maximum: 20,
            };
            accept(&node, hello, from_client, client);
            if let Some(ToClient::ConnAck { session_present, .. }) = from_server.recv().await {
                connected.fetch_add(1, Ordering::Relaxed);
                resumed.fetch_add(u64::from(session_present), Ordering::Relaxed);
                while from_server.recv().await.is_some() {}
                drop(server);
                return;
            }
        }
        tokio::time::sleep(ms(world.chance.between(AGAIN_MS / 2, AGAIN_MS))).await;
    }
}
