//! What all parts of one run share: simulated time, chance, the trace, the network, the nodes and their disks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use session::id::Key;
use tokio::time::Instant;

use super::chance::Chance;
use super::mutant::Mutant;
use super::node::Node;
use super::oracle::Oracle;
use super::raft::{Disk, Msg};
use super::trace::Trace;
use super::weather::Weather;

/// Lease of a boot: a tenth of the product's, so that a run sees many.
pub const LEASE_MS: u64 = 3_000;
/// `isolation.drift`.
pub const DRIFT_MS: u64 = 500;
/// When CONNECT must be answered.
pub const CONNECT_MS: u64 = 2_000;

/// One direction between two nodes.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    pub cut: bool,
    pub delay_ms: (u64, u64),
    pub loss_per_mille: u64,
    pub twice_per_mille: u64,
}

const CALM: Link = Link { cut: false, delay_ms: (0, 3), loss_per_mille: 0, twice_per_mille: 0 };

/// A machine: its disk outlives the process on it.
#[derive(Debug)]
pub struct Machine {
    pub disk: Mutex<Disk>,
    /// Milliseconds that a sync takes.
    pub sync_ms: Mutex<(u64, u64)>,
    pub wall_offset_ms: Mutex<i64>,
    pub process: Mutex<Option<Arc<Node>>>,
}

#[derive(Debug)]
pub struct World {
    pub chance: Chance,
    pub trace: Trace,
    pub oracle: Oracle,
    pub weather: Weather,
    pub mutant: Option<Mutant>,
    pub origin: Instant,
    pub machines: Vec<Machine>,
    links: Mutex<BTreeMap<(usize, usize), Link>>,
    /// No more faults: the run comes to its end.
    pub calm: AtomicBool,
    /// No more new work.
    pub closing: AtomicBool,
    boots: AtomicU64,
}

impl World {
    pub fn new(seed: u64, nodes: usize, weather: Weather, mutant: Option<Mutant>) -> Arc<Self> {
        let chance = Chance::new(seed);
        let machines = (0..nodes)
            .map(|_| Machine {
                disk: Mutex::default(),
                sync_ms: Mutex::new((0, 3)),
                wall_offset_ms: Mutex::new(i64::try_from(chance.below(400)).unwrap_or(0) - 200),
                process: Mutex::new(None),
            })
            .collect();
        Arc::new(Self {
            chance,
            trace: Trace::default(),
            oracle: Oracle::default(),
            weather,
            mutant,
            origin: Instant::now(),
            machines,
            links: Mutex::default(),
            calm: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            boots: AtomicU64::new(0),
        })
    }

    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn has(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub fn fail(&self, what: &str) {
        self.trace.fail(self.now_ms(), what);
    }

    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub fn nodes(&self) -> usize {
        self.machines.len()
    }

    /// The process on a machine, dead or alive.
    pub fn node(&self, at: usize) -> Option<Arc<Node>> {
        self.machines[at].process.lock().clone()
    }

    /// All processes that are alive, stopped ones too.
    pub fn alive(&self) -> Vec<Arc<Node>> {
        (0..self.nodes()).filter_map(|at| self.node(at)).filter(|node| !node.power.is_dead()).collect()
    }

    /// Starts a process with a new boot on a machine.
    pub fn start(self: &Arc<Self>, at: usize) {
        let number = self.boots.fetch_add(1, Ordering::Relaxed) + 1;
        crate::step!(self, "node {} starts boot {number}", at + 1);
        let node = Node::start(self.clone(), at, number);
        *self.machines[at].process.lock() = Some(node);
    }

    /// kill -9, or the power goes: what was not synced may be torn off.
    pub fn crash(&self, at: usize) {
        let Some(node) = self.node(at).filter(|node| !node.power.is_dead()) else { return };
        let kept = self.chance.below(3);
        crate::step!(self, "node {} crashes", at + 1);
        *self.machines[at].wall_offset_ms.lock() = node.time.wall_offset_ms();
        node.power.kill();
        self.machines[at].disk.lock().crash(kept);
    }

    pub fn link(&self, from: usize, to: usize) -> Link {
        self.links.lock().get(&(from, to)).copied().unwrap_or(CALM)
    }

    pub fn set_link(&self, from: usize, to: usize, change: impl FnOnce(&mut Link)) {
        let mut link = self.link(from, to);
        change(&mut link);
        self.links.lock().insert((from, to), link);
    }

    pub fn calm_links(&self) {
        self.links.lock().clear();
    }

    /// Whether messages pass between two nodes in both directions, and both are at work.
    pub fn talk(&self, one: usize, other: usize) -> bool {
        let works = |at| self.node(at).is_some_and(|node| node.power.runs());
        works(one) && works(other) && !self.link(one, other).cut && !self.link(other, one).cut
    }

    /// Sends a message: it may be late, lost, doubled or overtaken. A proposal goes over a stream and is never doubled.
    pub fn send(self: &Arc<Self>, from: usize, to: usize, message: Msg) {
        let link = if from == to { CALM } else { self.link(from, to) };
        if link.cut || self.chance.happens(link.loss_per_mille) {
            return;
        }
        let once = matches!(message, Msg::Propose { .. });
        if !once && self.chance.happens(link.twice_per_mille) {
            self.deliver(link, from, to, message.clone());
        }
        self.deliver(link, from, to, message);
    }

    fn deliver(self: &Arc<Self>, link: Link, from: usize, to: usize, message: Msg) {
        let (least, most) = link.delay_ms;
        let delay = Duration::from_millis(self.chance.between(least, most));
        let world = self.clone();
        tokio::spawn(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            if from != to && world.link(from, to).cut {
                return;
            }
            if let Some(node) = world.node(to).filter(|node| !node.power.is_dead()) {
                node.arrives(from, message);
            }
        });
    }
}

/// Notes a step of the trace.
#[macro_export]
macro_rules! step {
    ($world:expr, $($what:tt)*) => {
        $world.trace.step($world.now_ms(), format_args!($($what)*))
    };
}

/// Key of a client in the namespace of every run.
///
/// # Panics
/// When the name is not valid.
#[must_use]
pub fn key(client_id: &str) -> Key {
    Key::new("main".into(), client_id.into()).expect("a name of the simulation is valid")
}
