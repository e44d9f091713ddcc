//! One worker: its connections' `gateway::service::Service`, its mailbox, and the hot path from PUBLISH to outboxes and
//! inboxes.
//!
//! Everything here runs on the worker's own thread. A read batch of one connection is a *turn*: its deliveries to this
//! worker go out at once, what concerns other workers and the store is collected and leaves together when the turn ends
//! ([`batch`]). Work that waits for a commit comes back as a completion ([`commit`]) and goes on where it stopped, also
//! when the connection is gone meanwhile.

mod access;
mod ack;
mod batch;
mod client;
mod commit;
mod connect;
mod fanout;
mod housekeeping;
mod inbox;
mod mail;
mod options;
mod pace;
mod publish;
mod publishes;
mod relief;
mod retained;
mod service;
mod share;
mod stats;
mod subscribe;
mod sys;
mod system;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use gateway::driver::Traffic;
use gateway::link::{LinkId, Links};
use hashbrown::{HashMap, HashSet};
use session::owner::Scope;
use session::time::{Millis, Tick};
use slab::Slab;
use storage::GroupId;

use crate::metrics::{Level, WorkerRecorder};
use crate::route::{Plan, PlanCache, Readers, SnapshotCache};
use crate::shared::Shared;

pub use client::{Event, Session};
pub use mail::{Arrival, Mail, Parcel, Taken, Unserved, Workers};
pub use options::{Entrance, Options};
pub use pace::{Budget, Rates};
pub use stats::{StatsView, WorkerStats};
pub use sys::{SysTopics, Totals};
pub use system::SystemPublisher;

use batch::Batch;
use commit::Pending;
use mail::{Port, Source};

/// The broker as one worker's connections see it.
#[derive(Debug)]
pub struct Worker {
    id: u16,
    shared: Arc<Shared>,
    options: Arc<Options>,
    links: Rc<Links<Event>>,
    /// How commits come back to this worker, by group.
    ports: Box<[Arc<Port>]>,
    /// How appended messages, and what else is waited for, come back.
    port: Arc<Port>,
    routes: RefCell<Routes>,
    /// Commands that were proposed and not answered, by token.
    pending: RefCell<Slab<Pending>>,
    /// Owners of which it will never be known whether a command took effect.
    undecided: RefCell<Vec<Rc<Scope>>>,
    batch: RefCell<Batch>,
    /// A buffer for the next encoding.
    spare: RefCell<Vec<u8>>,
    /// Connections that are being sent retained messages, with the topics whose newer value they have already.
    feeding: RefCell<HashMap<LinkId, HashSet<Box<str>>>>,
    stats: Arc<WorkerStats>,
    /// What the metrics were told last.
    reported: Cell<StatsView>,
    reported_traffic: Cell<Traffic>,
    /// When what connections proved themselves with is over.
    expiries: RefCell<BTreeSet<(Millis, LinkId)>>,
    /// Connections that are not read now because of their pace, and when that is over.
    paced: RefCell<BTreeSet<(Tick, LinkId)>>,
    /// Epoch of the users and rules that the connections were last told of.
    users_checked: Cell<u64>,
    recorder: Option<WorkerRecorder>,
    publisher: SystemPublisher,
    /// How loaded the node is, as of the last tick.
    level: Cell<Level>,
    /// When the `$SYS` topics are due, on the worker that publishes them.
    sys_due: Cell<Tick>,
    /// Time of the turn: read once, used for everything in it.
    now: Cell<Tick>,
    now_ms: Cell<Millis>,
}

#[derive(Debug)]
struct Routes {
    reader: SnapshotCache,
    readers: Readers,
    cache: PlanCache,
}

impl Worker {
    /// The service of the worker that `context` describes; made on its thread.
    #[must_use]
    pub fn new(shared: Arc<Shared>, context: &gateway::driver::WorkerContext<Self>) -> Rc<Self> {
        let id = context.worker;
        let workers = Arc::clone(&shared.workers);
        workers.open(&context.mailboxes);
        Rc::new(Self {
            id,
            options: Arc::clone(&shared.options),
            links: Rc::clone(&context.links),
            ports: (0..shared.store.groups())
                .map(|group| Arc::new(Port::new(id, Source::Group(GroupId(group)), Arc::clone(&workers))))
                .collect(),
            port: Arc::new(Port::new(id, Source::Other, Arc::clone(&workers))),
            routes: RefCell::new(Routes {
                reader: shared.router.reader(),
                readers: shared.router.readers(),
                cache: PlanCache::new(Some(id)),
            }),
            pending: RefCell::new(Slab::new()),
            undecided: RefCell::default(),
            batch: RefCell::new(Batch::new(shared.store.groups(), workers.len())),
            spare: RefCell::default(),
            feeding: RefCell::default(),
            stats: workers.stats(id),
            reported: Cell::default(),
            reported_traffic: Cell::default(),
            expiries: RefCell::default(),
            paced: RefCell::default(),
            users_checked: Cell::new(shared.auth.epoch()),
            recorder: shared.metrics.worker(usize::from(id)),
            publisher: SystemPublisher::new(Arc::clone(&shared)),
            level: Cell::default(),
            sys_due: Cell::new(Tick(0)),
            now: Cell::new(shared.clock.tick()),
            now_ms: Cell::new(shared.clock.millis()),
            shared,
        })
    }

    /// Who gets messages of `topic`.
    fn plan(&self, topic: &str) -> Rc<Plan> {
        let routes = &mut *self.routes.borrow_mut();
        if routes.readers.epoch() != self.shared.auth.epoch() {
            routes.readers = self.shared.router.readers();
        }
        routes.cache.plan(routes.reader.load(), &routes.readers, topic)
    }

    /// Reads the clocks for the turn that begins.
    fn read_clock(&self) {
        self.now.set(self.shared.clock.tick());
        self.now_ms.set(self.shared.clock.millis());
        if self.shared.forwarding.is_overdue(self.now.get()) {
            self.shared.forwarding.look_again();
        }
    }
}
