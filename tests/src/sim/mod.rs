//! The seeded simulation (DESIGN §13): several nodes in one thread, under one seed. The same seed gives the same trace, so a violation can
//! be replayed.
//!
//! Real parts: owner registry and its shell, CONNECT, disconnect and End, isolation with the bytes of Service 107, rows and their `apply`,
//! stored form and snapshots, QoS windows. Simulated: network, disks, clocks, processes, the replicated log (`raft.rs`), and the tasks that
//! hold a whole store in the broker (`duties.rs`, `connection.rs`). The MQTT codec, TLS and sockets have their own suites.
//!
//! tokio's paused clock is the simulated time: a single-threaded runtime runs whatever is ready in order, and moves its clock when nothing is.

pub mod calls;
pub mod chance;
pub mod client;
pub mod clock;
pub mod connection;
pub mod duties;
pub mod faults;
pub mod mutant;
pub mod node;
pub mod oracle;
pub mod raft;
pub mod reconnect;
pub mod tasks;
pub mod trace;
pub mod weather;
pub mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use session::lifecycle::InboxRead;

use self::calls::ms;
use self::client::{Client, Kind};
use self::mutant::Mutant;
use self::weather::Weather;
use self::world::World;

/// Longest time in which a calm cluster must have caught up.
const CONVERGE_MS: u64 = 60_000;
/// How long clients have to subscribe before things go wrong.
const WARM_UP_MS: u64 = 20_000;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    pub weather: Weather,
    /// Simulated milliseconds under faults.
    pub faults_ms: u64,
    pub mutant: Option<Mutant>,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Report {
    pub seed: u64,
    pub steps: u64,
    pub hash: u64,
    pub entries: u64,
    pub messages: u64,
    pub wills: u64,
    pub simulated_ms: u64,
    pub violation: Option<String>,
    /// The last steps.
    pub tail: Vec<String>,
}

impl Plan {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, nodes: 3, weather: Weather::of(seed), faults_ms: 12_000, mutant: None }
    }

    #[must_use]
    pub fn with(self, mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), ..self }
    }
}

impl Report {
    /// For people: what is broken, and how to see it again.
    #[must_use]
    pub fn text(&self) -> String {
        let what = self.violation.as_deref().unwrap_or("no violation");
        format!(
            "{}\n\nseed {}: {what}\nreplay: EXACTMQ_SIM_SEED={} make sim\n",
            self.tail.join("\n"),
            self.seed,
            self.seed
        )
    }
}

/// Runs one seed.
///
/// # Panics
/// When no runtime can be made.
#[must_use]
pub fn run(plan: &Plan) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads can be made");
    let report = runtime.block_on(run_inside(plan));
    drop(runtime);
    report
}

async fn run_inside(plan: &Plan) -> Report {
    let world = World::new(plan.seed, plan.nodes, plan.weather, plan.mutant);
    (0..plan.nodes).for_each(|at| world.start(at));
    tokio::spawn(faults::elect(world.clone()));
    let subscribers = clients(&world, &["s1", "s2"], Kind::Subscriber);
    let warm =
        until(&world, WARM_UP_MS, || subscribers.iter().all(|client| client.mind.lock().subscribed)).await;
    if !warm && world.trace.violation().is_none() {
        world.fail("nobody could subscribe before anything went wrong");
    }
    tokio::time::sleep(ms(300)).await;
    let mut publishers = clients(&world, &["p1", "p2"], Kind::Publisher { durable: true });
    publishers.extend(clients(&world, &["p3"], Kind::Publisher { durable: false }));
    // Whose ClientID it is, is settled before anybody else tries it.
    until(&world, WARM_UP_MS, || publishers.iter().all(|client| client.has_session())).await;
    let names = ["v1", "v2", "v3"];
    clients(&world, &names, Kind::Volatile);
    clients(&world, &["s1", "p1"], Kind::Intruder);
    tokio::spawn(faults::rage(world.clone()));
    tokio::spawn(faults::operate(world.clone(), names.map(str::to_owned).to_vec()));
    until(&world, plan.faults_ms, || false).await;
    faults::heal(&world);
    world.closing.store(true, Ordering::Relaxed);
    let mut rest = None;
    let converged = until(&world, CONVERGE_MS, || {
        rest = unrest(&world, &publishers, &subscribers);
        rest.is_none()
    })
    .await;
    if world.trace.violation().is_none() {
        delivered(&world, &publishers, &subscribers);
        if converged {
            equal(&world);
        } else {
            world.fail(&format!("a healed cluster does not come to rest: {}", rest.unwrap_or_default()));
        }
    }
    report(plan, &world, &publishers)
}

fn clients(world: &Arc<World>, names: &[&str], kind: Kind) -> Vec<Arc<Client>> {
    let made: Vec<Arc<Client>> = names.iter().map(|name| Client::new(world, name, kind)).collect();
    for client in &made {
        tokio::spawn(client.clone().live());
    }
    made
}

/// Waits until `condition` holds, a promise is broken, or the time is over; whether it holds.
async fn until(world: &World, wait_ms: u64, mut condition: impl FnMut() -> bool) -> bool {
    let end = world.now_ms() + wait_ms;
    while world.now_ms() < end {
        if world.trace.violation().is_some() {
            return false;
        }
        if condition() {
            return true;
        }
        tokio::time::sleep(ms(50)).await;
    }
    false
}

/// What is still under way: publishers are to be answered, inboxes to be empty, nothing due, and all nodes to know the same.
fn unrest(world: &Arc<World>, publishers: &[Arc<Client>], subscribers: &[Arc<Client>]) -> Option<String> {
    let nodes = world.alive();
    let applied: Vec<u64> = nodes.iter().map(|node| node.raft.lock().group.applied()).collect();
    if nodes.len() < world.nodes() || applied.iter().any(|one| *one != applied[0]) {
        return Some(format!("nodes applied {applied:?}"));
    }
    let first = nodes.first()?;
    let raft = first.raft.lock();
    let unread = subscribers.iter().find_map(|client| {
        let name = &client.key.client_id;
        let Some(row) = raft.group.session(&client.key) else {
            return Some(format!("{name} has no session"));
        };
        let mut page = InboxRead::default();
        raft.group.read_inbox(row.lifetime, 0, 1, &mut page);
        let offset = page.entries.first()?.offset;
        Some(format!("{name} ({:?} at node {}) has not settled {offset}", row.state, row.owner.node_id))
    });
    let unanswered = publishers.iter().find(|client| !client.is_idle());
    let unrecorded = nodes.iter().find(|node| node.disconnects.pending() > 0);
    let wills = raft.group.stat().wills_ready;
    unread
        .or_else(|| unanswered.map(|client| format!("{} waits for an answer", client.key.client_id)))
        .or_else(|| unrecorded.map(|node| format!("node {} has ends to record", node.at + 1)))
        .or_else(|| (wills > 0).then(|| format!("{wills} Wills are due")))
}

/// Every acknowledged message arrived at every subscriber (P4, P5).
fn delivered(world: &Arc<World>, publishers: &[Arc<Client>], subscribers: &[Arc<Client>]) {
    for subscriber in subscribers {
        let mind = subscriber.mind.lock();
        for publisher in publishers {
            let name = &*publisher.key.client_id;
            let acked = &publisher.mind.lock().acked;
            let lost = acked.iter().find(|sequence| !mind.got.contains(&(name.to_owned(), **sequence)));
            if let Some(sequence) = lost {
                let who = &subscriber.key.client_id;
                world.fail(&format!("P4: {name} {sequence} was acknowledged and never came to {who}"));
            }
        }
    }
}

/// Equal logs gave equal rows (L1).
fn equal(world: &Arc<World>) {
    let rows: Vec<raft::Rows> =
        world.alive().iter().map(|node| raft::rows_of(&node.raft.lock().group)).collect();
    if let Some(what) = rows.iter().find_map(|one| raft::difference(&rows[0], one)) {
        world.fail(&format!("L1: nodes that applied the same log differ: {what}"));
    }
    for node in world.alive() {
        if let Err(violation) = node.raft.lock().group.check() {
            world.fail(&format!("node {}: {violation}", node.at + 1));
        }
    }
}

fn report(plan: &Plan, world: &Arc<World>, publishers: &[Arc<Client>]) -> Report {
    let (steps, hash) = world.trace.sum();
    let report = Report {
        seed: plan.seed,
        steps,
        hash,
        entries: world.oracle.entries(),
        messages: publishers.iter().map(|client| client.mind.lock().acked.len() as u64).sum(),
        wills: world.oracle.wills_published(),
        simulated_ms: world.now_ms(),
        violation: world.trace.violation(),
        tail: world.trace.tail(),
    };
    // Nodes and world hold each other: the circle ends here.
    for machine in &world.machines {
        let node = machine.process.lock().take();
        if let Some(node) = node {
            node.power.kill();
        }
    }
    report
}
