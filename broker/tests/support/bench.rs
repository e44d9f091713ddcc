//! CONNECT and disconnect on the real owner registry and the real lifecycle rows, with sockets that close when they are asked to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use broker::metrics::Metrics;
use broker::owners::{CloseLinks, Owners};
use broker::usecase::authority::{Authority, PointRead, Unavailable};
use broker::usecase::connect::ConnectCase;
use broker::usecase::disconnect::{Disconnects, LifetimeOver, OwnerGuard, Proposer};
use broker::usecase::isolation::{LocalIsolation, Receipts, Timed};
use broker::usecase::queue::ConnectQueue;
use broker::usecase::{ConnectError, ConnectInput, Connected, DisconnectInput};
use gateway::codec::ReasonCode;
use gateway::link::{CloseRequest, LinkId};
use session::id::{Key, Owner};
use session::lifecycle::{Command, Reply, SessionRow, WillTemplate};
use session::owner::{Entry, Options};
use session::time::Tick;
use storage::Done;

use super::rows::{LEASE_MS, Rows, key};

/// What happens to the next Connect proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CommitFault {
    #[default]
    None,
    /// Committed, reply lost.
    LostReply,
    /// Takes this long.
    SlowMs(u64),
    /// Never answers.
    Hangs,
    /// Answers with somebody else's row.
    Malformed,
    /// Definitely refused.
    Conflict,
    /// Committed, and an End fences the new owner before it is active.
    EndedAtOnce,
}

/// Sockets: links whose connection closes as soon as it is asked to, unless they are stuck.
#[derive(Debug, Default)]
pub struct Sockets {
    pub guards: Mutex<HashMap<LinkId, OwnerGuard>>,
    pub closed: Mutex<Vec<(LinkId, Option<ReasonCode>)>>,
    pub stuck: AtomicBool,
    /// Offset below which a connection that is closed has written its inbox.
    pub sent_through: AtomicU64,
    next: AtomicU32,
}

impl CloseLinks for Sockets {
    fn close(&self, link: LinkId, request: CloseRequest) {
        self.closed.lock().unwrap().push((link, request.notice));
    }
}

pub struct Bench {
    pub rows: Arc<Rows>,
    pub sockets: Arc<Sockets>,
    pub owners: Arc<Owners>,
    pub disconnects: Arc<Disconnects>,
    pub queue: ConnectQueue,
    pub isolation: LocalIsolation,
    pub metrics: Arc<Metrics>,
    pub fault: Mutex<CommitFault>,
    pub proposals: AtomicUsize,
    pub over: Arc<Over>,
    /// Owners that were active while a Connect was being committed.
    pub active_at_commit: AtomicU64,
}

/// Lifetimes reported as over.
#[derive(Debug, Default)]
pub struct Over(pub Mutex<Vec<u64>>);

impl LifetimeOver for Over {
    fn lifetime_over(&self, _key: &Key, lifetime: u64) {
        self.0.lock().unwrap().push(lifetime);
    }
}

/// No boot of this node has a receipt.
#[derive(Debug)]
pub struct NoReceipts;

impl Receipts for NoReceipts {
    fn covers(&self, _owner: &Owner) -> bool {
        false
    }
}

#[derive(Debug)]
struct RowsProposer(Arc<Rows>);

impl Proposer for RowsProposer {
    fn propose(&self, _key: &Key, command: Command, done: Done) {
        let reply = self.0.apply(command);
        match done {
            Done::Port { port, token } => port.complete(vec![(token, Ok(reply))]),
            Done::Once(sender) => drop(sender.send(Ok(reply))),
            Done::Nobody => {}
        }
    }
}

impl Bench {
    pub fn new() -> Arc<Self> {
        let rows = Arc::new(Rows::new());
        let sockets = Arc::new(Sockets::default());
        let options = Options {
            node_id: rows.boot.node_id,
            boot_id: rows.boot.boot_id.clone(),
            capacity: 1_000,
            operations_max: 64,
            pending_timeout_ms: 5_000,
            lease_max_ms: 60_000,
            close_retry_ms: 250,
        };
        let owners = Arc::new(Owners::new(options, rows.clock.clone(), sockets.clone()).unwrap());
        let until = rows.clock.tick().plus_ms(LEASE_MS);
        owners.renew_boot(1, until, rows.clock.millis().plus_ms(LEASE_MS)).unwrap();
        let over = Arc::new(Over::default());
        let proposer = Arc::new(RowsProposer(rows.clone()));
        let disconnects = Disconnects::new(rows.clock.clone(), owners.clone(), proposer, over.clone());
        let isolation = LocalIsolation {
            node_id: rows.boot.node_id,
            boot_id: rows.boot.boot_id.clone(),
            owners: owners.clone(),
            disconnects: disconnects.clone(),
            receipts: Arc::new(NoReceipts),
        };
        let bench = Arc::new(Self {
            rows,
            sockets,
            owners,
            disconnects,
            queue: ConnectQueue::default(),
            isolation,
            metrics: Metrics::new(1, 1),
            fault: Mutex::default(),
            proposals: AtomicUsize::new(0),
            over,
            active_at_commit: AtomicU64::new(0),
        });
        tokio::spawn(bench.disconnects.clone().run_forever());
        tokio::spawn(bench.clone().close_sockets());
        bench
    }

    /// The worker: closes sockets whose close was requested, as `Service::closed` does.
    async fn close_sockets(self: Arc<Self>) {
        loop {
            if !self.sockets.stuck.load(Ordering::SeqCst) {
                let links: Vec<LinkId> =
                    self.sockets.closed.lock().unwrap().iter().map(|(l, _)| *l).collect();
                for link in links {
                    self.eof(link, false);
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// The socket at `link` is closed, after DISCONNECT 0x00 when `normal`.
    pub fn eof(&self, link: LinkId, normal: bool) {
        let guard = self.sockets.guards.lock().unwrap().remove(&link);
        if let Some(guard) = guard {
            let sent_through = self.sockets.sent_through.load(Ordering::SeqCst);
            guard.closed(DisconnectInput {
                sent_through,
                ..DisconnectInput::seen_now(&self.rows.clock, normal)
            });
        }
    }

    pub fn link(&self) -> LinkId {
        LinkId { worker: 0, slot: self.sockets.next.fetch_add(1, Ordering::SeqCst), serial: 1 }
    }

    pub fn input(&self, client_id: &str, expiry_sec: u32, will: Option<WillTemplate>) -> ConnectInput {
        ConnectInput {
            key: key(client_id),
            uid: Some("u".into()),
            clean_start: false,
            expiry_sec,
            will,
            link: self.link(),
            deadline: self.rows.clock.tick().plus_ms(5_000),
        }
    }

    pub async fn connect(
        &self,
        input: &ConnectInput,
        recheck: &impl Fn() -> bool,
    ) -> Result<(Arc<Entry>, SessionRow, bool), ConnectError> {
        let recorder = self.metrics.control();
        let isolation = Timed { isolation: &self.isolation, clock: &self.rows.clock, recorder: &recorder };
        let case = ConnectCase {
            boot: &self.rows.boot,
            clock: &self.rows.clock,
            owners: &self.owners,
            disconnects: &self.disconnects,
            queue: &self.queue,
            authority: self,
            isolation: &isolation,
            over: &*self.over,
            wills: None,
            lease_ms: LEASE_MS,
            takeovers: Some(&recorder),
        };
        let Connected { entry, row, session_present, guard } = case.run(input, recheck).await?;
        self.sockets.guards.lock().unwrap().insert(input.link, guard);
        Ok((entry, row, session_present))
    }

    pub async fn accept(&self, input: &ConnectInput) -> Result<(Arc<Entry>, SessionRow, bool), ConnectError> {
        self.connect(input, &|| true).await
    }

    pub fn set_fault(&self, fault: CommitFault) {
        *self.fault.lock().unwrap() = fault;
    }

    pub fn is_open(&self, link: LinkId) -> bool {
        self.sockets.guards.lock().unwrap().contains_key(&link)
    }

    /// Notices of close requests to `link`.
    pub fn notices(&self, link: LinkId) -> Vec<Option<ReasonCode>> {
        self.sockets.closed.lock().unwrap().iter().filter(|(l, _)| *l == link).map(|(_, n)| *n).collect()
    }

    pub fn deadline(&self) -> Tick {
        self.rows.clock.tick().plus_ms(5_000)
    }
}

impl Authority for Bench {
    async fn read(&self, key: &Key) -> Result<PointRead, Unavailable> {
        Ok(self.rows.read(key))
    }

    async fn commit(
        &self,
        _key: &Key,
        before: Option<Command>,
        command: Command,
    ) -> Result<Reply, Unavailable> {
        if !matches!(command, Command::Connect(_)) {
            return Ok(self.rows.apply(command));
        }
        self.proposals.fetch_add(1, Ordering::SeqCst);
        self.active_at_commit.fetch_max(self.owners.snapshot().active as u64, Ordering::SeqCst);
        let fault = std::mem::take(&mut *self.fault.lock().unwrap());
        match fault {
            CommitFault::Conflict => return Ok(Reply::Conflict(session::lifecycle::Conflict::Exhausted)),
            CommitFault::Hangs => std::future::pending::<()>().await,
            _ => {}
        }
        if let Some(before) = before {
            self.rows.apply(before);
        }
        let mut reply = self.rows.apply(command);
        match (fault, &mut reply) {
            (CommitFault::LostReply, _) => return Err(Unavailable),
            (CommitFault::EndedAtOnce, Reply::Row { row, .. }) => {
                self.owners.registry().fence(self.rows.clock.tick(), &row.owner).unwrap();
            }
            (CommitFault::SlowMs(ms), _) => self.rows.time.advance_ms(ms),
            (CommitFault::Malformed, Reply::Row { row, .. }) => row.owner.connection_id += 1,
            _ => {}
        }
        Ok(reply)
    }
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), wait)
        .await
        .unwrap_or_else(|_| panic!("not reached in time: {what}"));
}
