//! Live subscribers on other nodes (DESIGN §1 P7): other nodes are told what this one has subscribers of, and are sent the messages
//! for theirs.
//!
//! [`Announced`](crate::route::Announced) is what this node has subscribers of; an announcer for each other node tells it (service
//! 130). [`tables`] is what the others told; it becomes part of the routing index ([`crate::route::Remote`]). A worker that finds
//! another node in a plan leaves the message in that node's queue ([`queue`]), which sends it in batches (service 140); the
//! receiver gives them to its workers as if a client had published them there, to connections only.
//!
//! Stored subscriptions are known to every node from its own state; the announcers tell how far that has to be followed before a
//! SUBACK, and [`certainty`] what a node does that was not told.
//!
//! A node that is not heard of for a second holds up nobody: messages pass it by, and are acknowledged. If it was only stopped or cut off,
//! its connections without an inbox are still there when it is back. It is told ([`withheld`]), and closes them, so that their clients know
//! of the gap.
//!
//! Order: a publisher's messages go through one queue, in batches of which one is under way at a time, to one worker.
//! Nothing here is done while the node is alone.

mod announcer;
mod certainty;
mod queue;
mod receiver;
mod tables;
mod wire;
mod withheld;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use ownerrpc::link::{Call, Refusal, RefusalKind, Service, Services, services};
use parking_lot::{Mutex, RwLock};
use session::time::Tick;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use certainty::{FollowFuture, StoredRoutes};
pub use queue::{Forward, ForwardedShare, QUEUE_BYTES_MAX, Waiter};
pub use tables::FILTERS_PER_NODE_MAX;

use crate::clock::NodeClock;
use crate::cluster::PeerCalls;
use crate::metrics::{ControlRecorder, Metrics};
use crate::route::{Announced, Router};
use crate::worker::Workers;
use announcer::{Announcer, Belief, Confirmations};
use certainty::Certainty;
use queue::Queue;
use receiver::Receiver;
use tables::{RoutesService, Tables};
use withheld::{NOTHING, Withheld};

/// How often it is looked at who can be reached and whose table is good.
const LOOK: Duration = Duration::from_millis(100);

/// A node that joins is linked before it is a member, under an id of its own choice: it may not speak for any node here.
fn stranger(call: &Call) -> Option<Refusal> {
    let text = "only members of the cluster may call this";
    (call.peer.cluster_id == [0; 16]).then(|| Refusal::new(RefusalKind::NotAdmitted, text))
}

/// What this node tells and sends the others, and hears from them.
#[derive(Debug)]
pub struct Forwarding {
    router: Arc<Router>,
    clock: Arc<NodeClock>,
    workers: Arc<Workers>,
    recorder: ControlRecorder,
    withheld: Arc<Withheld>,
    tables: Arc<Tables>,
    receiver: Arc<Receiver>,
    certainty: Arc<Certainty>,
    confirmations: Arc<Confirmations>,
    queues: RwLock<HashMap<u64, Arc<Queue>>>,
    running: Mutex<Running>,
    /// There is no other node.
    alone: AtomicBool,
}

#[derive(Debug, Default)]
struct Running {
    look: Option<[JoinHandle<()>; 2]>,
    /// What runs for each other node.
    nodes: HashMap<u64, [JoinHandle<()>; 2]>,
}

impl Forwarding {
    /// Does nothing until [`Self::start`].
    #[must_use]
    pub fn new(
        router: Arc<Router>,
        workers: Arc<Workers>,
        (clock, stored): (Arc<NodeClock>, Arc<dyn StoredRoutes>),
        metrics: &Arc<Metrics>,
    ) -> Self {
        let withheld = Arc::new(Withheld::new(clock.clone()));
        let tables = Tables::new(router.clone(), clock.clone(), withheld.clone(), stored.is_alone());
        Self {
            tables: Arc::new(tables),
            certainty: Arc::new(Certainty::new(stored)),
            receiver: Arc::new(Receiver::new(workers.clone())),
            workers,
            withheld,
            confirmations: Arc::default(),
            queues: RwLock::default(),
            running: Mutex::default(),
            alone: AtomicBool::new(true),
            recorder: metrics.control(),
            router,
            clock,
        }
    }

    /// Adds services 130 and 140 to what the peer port answers. The port may be open before [`Self::start`].
    #[must_use]
    pub fn serve(&self, services: Services) -> Services {
        let routes: Arc<dyn Service> =
            Arc::new(RoutesService { tables: self.tables.clone(), stored: self.certainty.stored.clone() });
        services.with(services::ROUTES, routes).with(services::FORWARD, self.receiver.clone())
    }

    /// Begins to tell the other nodes and to send to them, those included that come later. Must be called on the control runtime,
    /// before clients are let in; a second call does nothing.
    pub fn start(self: &Arc<Self>, peers: Arc<dyn PeerCalls>) {
        let mut running = self.running.lock();
        if running.look.is_some() {
            return;
        }
        let announced = self.router.announce();
        self.look_around(&mut running, &peers, &announced);
        let this = Arc::downgrade(self);
        let look = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let Some(this) = this.upgrade() else { return };
                this.look_around(&mut this.running.lock(), &peers, &announced);
            }
        });
        running.look = Some([look, tokio::spawn(self.certainty.clone().run())]);
    }

    /// Returns once every other node has told what it has subscribers of, or after `within`. Until then one that can be reached gets
    /// every message, which is not as cheap, and none for its members of shares. To be called before clients are let in.
    pub async fn settled(&self, within: Duration) {
        let deadline = Instant::now() + within;
        let are_known = || {
            let nodes: Vec<u64> = self.queues.read().keys().copied().collect();
            self.tables.are_known(&nodes)
        };
        while !are_known() && Instant::now() < deadline {
            tokio::time::sleep(LOOK / 10).await;
        }
        self.tables.let_in();
    }

    /// Tells and sends nothing any more. Those who wait are told at once.
    pub fn stop(&self) {
        let mut running = self.running.lock();
        if let Some(tasks) = running.look.take() {
            tasks.iter().for_each(JoinHandle::abort);
        }
        self.certainty.close();
        for (_, tasks) in running.nodes.drain() {
            tasks.iter().for_each(JoinHandle::abort);
        }
        for (_, queue) in self.queues.write().drain() {
            queue.close();
        }
        self.tables.close();
    }

    /// Whether there is no other node in the cluster, as far as it is known here.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    /// Whether what this node believes of others is to be looked at before anything is routed; cheap.
    #[must_use]
    pub fn is_overdue(&self, now: Tick) -> bool {
        self.tables.is_overdue(now)
    }

    /// Looks at it.
    pub fn look_again(&self) {
        self.tables.look_again();
    }

    /// Whether the routing here has every stored subscription that was acknowledged, on any node, before now; cheap. Asked before a
    /// message of QoS 1 or 2 is routed.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.tables.is_certain()
    }

    /// Completes `waiter` once that was so at a moment after the call; with an error when no majority says so within seconds.
    pub fn ascertain(&self, waiter: Waiter) {
        self.certainty.wait(waiter);
    }

    /// The same for who waits by itself.
    ///
    /// # Errors
    /// No majority says so.
    pub async fn certain(&self) -> Result<(), Arc<storage::StorageError>> {
        if self.is_certain() {
            return Ok(());
        }
        self.certainty.stored.clone().all().await
    }

    /// Whether every other node knows of all subscriptions through `number` ([`Router::announced`]), or needs not. `has_share`: one of
    /// them is shared.
    #[must_use]
    pub fn is_confirmed(&self, number: u64, has_share: bool) -> bool {
        self.confirmations.is_confirmed(number, has_share)
    }

    /// Completes `waiter` once that is so: after 5 s at the latest, since a node that does not answer for so long is known to have nothing
    /// left to go by but its own subscribers; after 9 s for a shared subscription.
    pub fn confirm(&self, number: u64, has_share: bool, waiter: Waiter) {
        self.confirmations.wait(number, has_share, waiter.port, waiter.token);
    }

    /// Sends messages to a node. Those that find its queue full, or no such node, are dropped, and counted by the caller; those who
    /// wait for them are told at once.
    pub fn send(&self, node: u64, forwards: Vec<Forward>) -> u64 {
        let queue = self.queues.read().get(&node).cloned();
        match queue {
            Some(queue) => queue.push(forwards),
            None => {
                let closed = Queue::new(node, self.withheld.clone());
                closed.close();
                closed.push(forwards)
            }
        }
    }

    /// Returns when every other node has what was sent to it before the call, QoS 0 included, or is found not to get it.
    pub async fn drained(&self) {
        let queues: Vec<Arc<Queue>> = self.queues.read().values().cloned().collect();
        for queue in queues {
            queue.drained().await;
        }
    }

    fn look_around(&self, running: &mut Running, peers: &Arc<dyn PeerCalls>, announced: &Arc<Announced>) {
        let nodes = peers.nodes();
        if self.alone.swap(nodes.is_empty(), Ordering::AcqRel) != nodes.is_empty() {
            self.router.set_alone(nodes.is_empty());
        }
        let gone: Vec<u64> = running.nodes.keys().copied().filter(|node| !nodes.contains(node)).collect();
        for node in gone {
            if let Some(tasks) = running.nodes.remove(&node) {
                tasks.iter().for_each(JoinHandle::abort);
            }
            if let Some(queue) = self.queues.write().remove(&node) {
                queue.close();
            }
        }
        for node in nodes {
            running.nodes.entry(node).or_insert_with(|| self.run_for(node, peers, announced));
        }
        self.tables.set_peers(peers.nodes(), &peers.reachable());
    }

    fn run_for(
        &self,
        node: u64,
        peers: &Arc<dyn PeerCalls>,
        announced: &Arc<Announced>,
    ) -> [JoinHandle<()>; 2] {
        let queue = Arc::new(Queue::new(node, self.withheld.clone()));
        self.queues.write().insert(node, queue.clone());
        let announcer = Announcer {
            node,
            peers: peers.clone(),
            clock: self.clock.clone(),
            announced: announced.clone(),
            confirmations: self.confirmations.clone(),
            rounds: 0,
            telling_since: None,
            format: wire::ROUTES_NEWEST,
            missed: self.workers.clone(),
            withheld: NOTHING,
        };
        self.confirmations.set(node, Some(Belief::Doubted(0)));
        [tokio::spawn(announcer.run()), tokio::spawn(queue.run(peers.clone(), self.recorder.clone()))]
    }
}
