//! Three nodes in network namespaces of their own, a load whose history is checked, and a menu of faults drawn by a seed (DESIGN §13).
//!
//! A round makes new clients, lets faults come and go while they work, heals everything, waits until the cluster and the load have come to
//! rest, and holds the history against P1 to P8. The same seed draws the same faults; what the clients meet depends on the machine.

mod crew;
mod disk;
mod fault;
mod net;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::cluster::{Cluster, is_settled, serves};
use crate::history::{Violation, What};
use crate::load::{Field, account};
use crate::node::Place;

use crew::Crew;
use disk::Disk;
pub use fault::Fault;
use net::Net;

/// What every file, link and namespace of a run begins with; the process id follows.
const NAME: &str = "exactmq-chaos";
/// Shorter than the default, so that faults outlive it.
const LEASE_MS: u32 = 3_000;
/// How long the cluster and the load may take to come to rest when everything is healed.
const REST: Duration = Duration::from_secs(90);
/// A CONNECT to an untroubled node has its answer by then: 5 s, and as much again for a machine that runs everything at once.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    /// No round begins later.
    pub time: Duration,
    pub rounds_max: u32,
    /// Faults in a round.
    pub faults: u32,
    /// Messages a second of each publisher.
    pub rate: u32,
    /// Only these faults, when there are any.
    pub only: Vec<Fault>,
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Outcome {
    pub rounds: u32,
    pub faults: u32,
    pub operations: u64,
    pub violations: Vec<String>,
}

/// The cluster under test and what it stands on.
#[derive(Debug)]
pub struct World {
    cluster: Cluster,
    net: Net,
    disks: Vec<Disk>,
    /// A file for each node from which it learns how far its clock is off; none where there is no libfaketime.
    clocks: Option<[PathBuf; 3]>,
    root: PathBuf,
    keep: bool,
}

/// Why nothing can be run here, if so.
#[must_use]
pub fn missing() -> Option<String> {
    if !succeeds("id", &["-u"]) || output("id", &["-u"]).trim() != "0" {
        return Some("it needs root".into());
    }
    for tool in ["ip", "tc", "iptables", "nsenter", "mkfs.ext4", "mount", "fsfreeze", "fallocate"] {
        if !succeeds("which", &[tool]) {
            return Some(format!("there is no {tool}"));
        }
    }
    let probe = format!("{NAME}-{}-probe", std::process::id());
    let able = succeeds("ip", &["netns", "add", &probe]);
    succeeds("ip", &["netns", "del", &probe]);
    (!able).then(|| "network namespaces cannot be made".into())
}

/// Runs the plan; says what happens on standard output.
///
/// # Panics
/// When namespaces, disks or nodes cannot be made.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    sweep();
    println!("seed {}: at most {:?}, {} faults a round", plan.seed, plan.time, plan.faults);
    let mut outcome = Outcome::default();
    let began = Instant::now();
    let mut world = World::new();
    println!("three nodes in namespaces after {:.1?}", began.elapsed());
    let menu = world.menu(&plan.only);
    println!("menu: {menu:?}");
    while outcome.rounds < plan.rounds_max && began.elapsed() < plan.time {
        let seed = plan.seed.wrapping_add(u64::from(outcome.rounds));
        let before = outcome.violations.len();
        world.round(plan, &menu, seed, &mut outcome);
        outcome.rounds += 1;
        if outcome.violations.len() > before {
            world.keep = true;
            println!("logs and data of the nodes are kept in {}", world.root.display());
            break;
        }
    }
    println!(
        "seed {}: {} rounds, {} faults, {} operations, {} violations in {:.0?}",
        plan.seed,
        outcome.rounds,
        outcome.faults,
        outcome.operations,
        outcome.violations.len(),
        began.elapsed()
    );
    outcome
}

impl World {
    fn new() -> Self {
        let root = std::env::temp_dir().join(format!("{NAME}-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a directory");
        let net = Net::new();
        let disks: Vec<Disk> = (1..=3).map(|id| Disk::new(&root.join(format!("node{id}")))).collect();
        let clocks = Path::new(FAKETIME).is_file().then(|| {
            [1, 2, 3].map(|id| {
                let path = root.join(format!("clock{id}"));
                fs::write(&path, "+0").expect("the file of the clock");
                path
            })
        });
        let places = [0, 1, 2].map(|at: usize| {
            let mut environment = Vec::new();
            if let Some(clocks) = &clocks {
                let file = clocks[at].display().to_string();
                for (name, value) in [
                    ("LD_PRELOAD", FAKETIME),
                    ("FAKETIME_TIMESTAMP_FILE", &file),
                    ("FAKETIME_CACHE_DURATION", "1"),
                    ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
                    ("DONT_FAKE_MONOTONIC", "1"),
                    ("NO_FAKE_STAT", "1"),
                ] {
                    environment.push((name.to_owned(), value.to_owned()));
                }
            }
            Place {
                prefix: net.prefix(at),
                environment,
                dir: Some(disks[at].dir().to_owned()),
                ip: Some(net.address(at)),
            }
        });
        let peers = [0, 1, 2].map(|at| (net.address(at), 7_000).into());
        let lease = format!("owner.lease_ms={LEASE_MS}");
        let cluster = Cluster::at(places, peers, &["auth.anonymous=true", "admin.plain=true", &lease]);
        Self { cluster, net, disks, clocks, root, keep: false }
    }

    /// What can be done to nodes here; says what cannot.
    fn menu(&self, only: &[Fault]) -> Vec<Fault> {
        let able = |fault: &Fault| match fault {
            Fault::ClockStep if self.clocks.is_none() => {
                println!("no clock steps: there is no {FAKETIME}");
                false
            }
            _ => only.is_empty() || only.contains(fault),
        };
        Fault::ALL.into_iter().filter(able).collect()
    }

    fn round(&mut self, plan: &Plan, menu: &[Fault], seed: u64, outcome: &mut Outcome) {
        let mut random = StdRng::seed_from_u64(seed);
        let began = Instant::now();
        let field = Field::new(&self.cluster.mqtt(), Duration::from_secs(3), CONNECT_LIMIT);
        let tokens = [1, 2, 3].map(|id| {
            let path = self.cluster.node(id).dir().join("admin.token");
            let admin = self.cluster.node(id).admin;
            (admin, fs::read_to_string(path).unwrap_or_default().trim().to_owned())
        });
        let crew = Crew::start(&field, plan.rate, seed, tokens);
        if !crew.all_subscribed {
            outcome.violations.push("not everybody could subscribe before the first fault".into());
        }
        let mut said = Vec::new();
        for _ in 0..plan.faults {
            let fault = menu[random.random_range(0..menu.len())];
            said.push(self.strike(fault, &field, &mut random, &mut outcome.violations));
            outcome.faults += 1;
            std::thread::sleep(Duration::from_millis(random.random_range(300..2_500)));
        }
        let healed = Instant::now();
        self.revive(&field, &mut outcome.violations);
        let mut settled = false;
        while !settled && healed.elapsed() < REST {
            settled = self.cluster.nodes.iter().all(|node| is_settled(node) && serves(node));
            self.revive(&field, &mut outcome.violations);
        }
        let settled_after = healed.elapsed();
        let (history, found) = crew.drain(&field, REST);
        field.over.store(true, Ordering::Release);
        crew.join();
        outcome.operations += history.events.len() as u64;
        println!(
            "round {} (seed {seed}): {said:?}; {} entries, settled after {settled_after:.1?}, {} violations, {:.1?}",
            outcome.rounds,
            history.events.len(),
            found.len(),
            began.elapsed()
        );
        if !settled {
            outcome.violations.push(format!("the cluster did not settle within {REST:?}"));
        }
        if !found.is_empty() {
            println!("{}", account(&history, &found, 6));
            outcome.violations.extend(found.iter().map(Violation::to_string));
        }
    }

    /// Starts nodes that ended by themselves again.
    fn revive(&mut self, field: &Field, violations: &mut Vec<String>) {
        for at in 0..3 {
            if !self.cluster.nodes[at].is_running() {
                let node = u8::try_from(at + 1).expect("a few nodes");
                println!("node {node} ended by itself; it is started again");
                field.recorder.note_node(What::Halted { node });
                field.recorder.note_node(What::Revived { node });
                if let Err(refusal) = self.cluster.nodes[at].try_restart() {
                    let text = format!("node {node} does not start: {} {}", refusal.status, refusal.said);
                    println!("{text}");
                    violations.push(text);
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
    }

    fn ip(&self, at: usize) -> IpAddr {
        self.net.address(at)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for disk in &mut self.disks {
            disk.thaw();
        }
        for node in &mut self.cluster.nodes {
            node.kill();
        }
        for disk in &mut self.disks {
            disk.unmount(self.keep);
        }
        if !self.keep {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// Removes what runs left behind that were killed: their processes, namespaces, links and disks.
pub fn sweep() {
    let dead = |name: &str| {
        let id = name.strip_prefix(NAME)?.strip_prefix('-')?.split('-').next()?;
        (!Path::new("/proc").join(id).exists()).then(|| id.to_owned())
    };
    for line in output("ip", &["netns", "list"]).lines() {
        let Some(name) = line.split_whitespace().next() else { continue };
        if let Some(id) = dead(name) {
            for pid in output("ip", &["netns", "pids", name]).split_whitespace() {
                succeeds("kill", &["-CONT", pid]);
                succeeds("kill", &["-9", pid]);
            }
            succeeds("ip", &["netns", "del", name]);
            succeeds("ip", &["link", "del", &net::bridge(&id)]);
        }
    }
    let temporary = std::env::temp_dir();
    for entry in fs::read_dir(&temporary).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if dead(&name).is_some() {
            for id in 1..=3 {
                let mount = entry.path().join(format!("node{id}/data"));
                let mount = mount.to_string_lossy();
                succeeds("fsfreeze", &["-u", &mount]);
                succeeds("umount", &["-l", &mount]);
            }
            // What was kept for somebody to look at stays.
            if !entry.path().join("kept").exists() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// # Panics
/// When the command fails.
fn must(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("the program is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}
