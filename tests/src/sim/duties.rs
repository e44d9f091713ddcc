//! What a node does by itself: its boot lease, the retirement of its earlier boots, and, where it leads, what becomes due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use session::id::Boot;
use session::lifecycle::{
    Append, Command, Conflict, Due, Reply, RetireProof, SessionRow, SessionState, Stamp, Target, WillKey,
    WillRow, WillStage,
};
use session::message::{Message, QoS};
use session::time::{Millis, Tick};
use session::topic::filter_matches;

use super::calls::ms;
use super::mutant::Mutant;
use super::node::Node;
use super::world::LEASE_MS;

/// Lease of the executor of a Will.
const EXECUTOR_LEASE_MS: u64 = 3_000;
/// How often a leader looks for what is due.
const LOOK_MS: u64 = 50;
/// Due items of one look.
const PAGE: usize = 64;
/// How long an ended row that was never reclaimed keeps its user.
const BINDING_MS: u64 = 5_000;

impl Node {
    /// The boot lease, as `broker::usecase::lease` has it, and what follows from having none any more.
    pub async fn serve_boot(self: Arc<Self>) {
        while !self.start_boot().await {
            tokio::time::sleep(ms(100)).await;
        }
        self.serves.store(true, Ordering::Relaxed);
        let node = self.clone();
        self.power.spawn(async move { node.retire_earlier().await });
        loop {
            tokio::time::sleep(ms(LEASE_MS / 3)).await;
            loop {
                match self.renew().await {
                    Ok(()) => break,
                    Err(Some(Conflict::BootRetired)) => return self.start_anew(),
                    Err(_) => tokio::time::sleep(ms(150)).await,
                }
            }
        }
    }

    async fn start_boot(&self) -> bool {
        let lease_until = self.clock.millis().plus_ms(LEASE_MS);
        let started = self.call(Command::BootStart { lease_until }).await;
        // The lease is the one of the renewal: a start that was committed without an answer has an older one.
        matches!(started, Some(Reply::Done { .. })) && self.renew().await.is_ok()
    }

    async fn renew(&self) -> Result<(), Option<Conflict>> {
        let until = self.clock.tick().plus_ms(LEASE_MS);
        let lease_until = self.clock.millis().plus_ms(LEASE_MS);
        let revision = self.raft.lock().group.boot(&self.boot).map_or(0, |row| row.revision);
        match self.call(Command::BootRenew { revision, lease_until }).await {
            Some(Reply::Done { revision, .. }) => {
                if self.owners.lapsed_at(self.clock.tick()) {
                    // The registry fences them before the lease moves; the sweeper closes them later.
                    self.world.oracle.lapsed(&self.boot);
                }
                let late = self.clock.tick().plus_ms(LEASE_MS);
                let until = if self.world.has(Mutant::LeaseFromCommit) { late } else { until };
                self.owners.renew_boot(revision, until, lease_until).map_err(|_| None)
            }
            Some(Reply::Conflict(conflict)) => Err(Some(conflict)),
            _ => Err(None),
        }
    }

    /// This boot is retired: nothing of it is accepted any more.
    fn start_anew(&self) {
        let (world, at, boot) = (self.world.clone(), self.at, self.boot.clone());
        crate::step!(world, "node {} learns that its boot is retired", at + 1);
        tokio::spawn(async move {
            tokio::time::sleep(ms(20)).await;
            let same = world.node(at).is_some_and(|node| node.boot == boot && !node.power.is_dead());
            if same {
                world.crash(at);
                world.start(at);
            }
        });
    }

    /// Earlier boots of this node with a receipt are retired by commit (DESIGN §7).
    async fn retire_earlier(self: Arc<Self>) {
        loop {
            let receipts: Vec<Arc<str>> = self.disk().receipts.keys().cloned().collect();
            let open = receipts.into_iter().find_map(|boot_id| {
                let boot = Boot { node_id: self.boot.node_id, boot_id };
                let raft = self.raft.lock();
                raft.group.boot(&boot).filter(|row| row.retired.is_none()).map(|row| row.boot.clone())
            });
            let Some(boot) = open else {
                tokio::time::sleep(ms(500)).await;
                continue;
            };
            let observed_at = self.clock.millis();
            let retire = Command::BootRetire { boot, proof: RetireProof::CrashReceipt, observed_at };
            if self.call(retire).await.is_none() {
                tokio::time::sleep(ms(100)).await;
            }
        }
    }

    /// Expiry, Wills, reclamation: the leader of the group does it for all.
    pub async fn duties(self: Arc<Self>) {
        let executing = Arc::new(parking_lot::Mutex::new(BTreeSet::<WillKey>::new()));
        loop {
            tokio::time::sleep(ms(LOOK_MS)).await;
            let now = self.clock.millis();
            let mut due = Vec::new();
            {
                let raft = self.raft.lock();
                if !raft.leads() {
                    continue;
                }
                raft.group.due(now, PAGE, &mut due);
            }
            for item in due {
                match item {
                    Due::Session { key, revision } => drop(self.ask(Command::Reconcile { key, revision })),
                    Due::Reclaim { key, revision } => {
                        let binding_until = now.plus_ms(BINDING_MS);
                        drop(self.ask(Command::Reclaim { key, revision, limit: 64, binding_until }));
                    }
                    Due::Will(will) => {
                        if executing.lock().insert(will.clone()) {
                            let (node, executing) = (self.clone(), executing.clone());
                            self.power.spawn(async move {
                                node.execute_will(&will).await;
                                executing.lock().remove(&will);
                            });
                        }
                    }
                }
            }
            if self.world.has(Mutant::WillFromStaleOwner) {
                self.publish_of_silent_nodes();
            }
        }
    }

    /// Claim, publish, record (`broker::usecase::will`).
    async fn execute_will(&self, will: &WillKey) {
        let lease_until = self.clock.millis().plus_ms(EXECUTOR_LEASE_MS);
        let until = self.clock.tick().plus_ms(EXECUTOR_LEASE_MS);
        let claim = Command::WillClaim { will: will.clone(), lease_until };
        if !matches!(self.call(claim).await, Some(Reply::Done { unchanged: false, .. })) {
            return;
        }
        let Some(row) = self.claimed(will) else { return };
        let stamp = (!self.world.has(Mutant::WillTwice)).then(|| Stamp::Will(will.clone()));
        let mut published = self.append(&row.message, stamp.clone()).await;
        while !published && self.clock.tick() < until {
            tokio::time::sleep(ms(100)).await;
            published = self.append(&row.message, stamp.clone()).await;
        }
        if self.world.has(Mutant::WillTwice) {
            self.append(&row.message, stamp).await;
        }
        if published {
            self.call(Command::WillPublished { will: will.clone() }).await;
        }
    }

    fn claimed(&self, will: &WillKey) -> Option<WillRow> {
        let raft = self.raft.lock();
        let row = raft.group.will(will).filter(|row| row.stage == WillStage::Executing)?;
        let mine = |(boot, lease): &(Boot, Millis)| *boot == self.boot && *lease > self.clock.millis();
        row.executor.as_ref().is_some_and(mine).then(|| row.clone())
    }

    /// Into the inboxes of all who subscribed, or none did.
    async fn append(&self, message: &Message, stamp: Option<Stamp>) -> bool {
        let targets = self.route(message);
        let append = Append { message: message.clone(), stamp, targets };
        matches!(self.call(Command::Append(Box::new(append))).await, Some(Reply::Appended { .. }))
    }

    /// Inboxes whose stored subscription matches, as this node knows them.
    pub fn route(&self, message: &Message) -> Vec<Target> {
        let raft = self.raft.lock();
        let mut targets = Vec::new();
        for row in raft.group.sessions_after(None).filter(|row| row.durable) {
            let granted = raft
                .group
                .subscriptions(row.lifetime)
                .filter(|(filter, _)| filter_matches(filter, message.topic()))
                .map(|(_, options)| options.qos)
                .max();
            if let Some(granted) = granted {
                targets.push(Target {
                    lifetime: row.lifetime,
                    qos: granted.min(message.qos),
                    retain: false,
                    identifiers: smallvec::SmallVec::new(),
                    shared: false,
                });
            }
        }
        targets
    }

    /// The mutant: the node of a connection that ended counts the delay of its Will, whoever continued the session meanwhile.
    pub fn publish_by_own_timer(self: &Arc<Self>, session: &SessionRow) {
        if session.will_generation == 0 || !self.world.has(Mutant::WillByOwnTimer) {
            return;
        }
        let will = will_key(session);
        let Some(row) = self.raft.lock().group.will(&will).cloned() else { return };
        let node = self.clone();
        self.power.spawn(async move {
            tokio::time::sleep(ms(u64::from(row.delay_sec) * 1_000)).await;
            node.append(&row.message, Some(Stamp::Will(will))).await;
        });
    }

    /// The mutant: whoever does not answer is dead, and its Wills are published.
    fn publish_of_silent_nodes(&self) {
        let silent: Vec<(WillKey, Message)> = {
            let raft = self.raft.lock();
            let group = &raft.group;
            group
                .sessions_after(None)
                .filter(|row| row.state == SessionState::Active && row.will_generation != 0)
                .filter(|row| {
                    let at = usize::try_from(row.owner.node_id - 1).unwrap_or(0);
                    at != self.at && !self.world.talk(self.at, at)
                })
                .filter_map(|row| {
                    let will = will_key(row);
                    let message = group.will(&will)?.message.clone();
                    Some((will, message))
                })
                .collect()
        };
        for (will, message) in silent {
            let targets = self.route(&message);
            let append = Append { message, stamp: Some(Stamp::Will(will)), targets };
            drop(self.ask(Command::Append(Box::new(append))));
        }
    }

    /// An operator retires the boot of another node (DESIGN §7): attested, after its lease end and the drift. The wait is counted on the
    /// monotonic clock of this node from the moment at which the lease was seen: a wall clock may step. A renewal begins it anew.
    /// True: retired.
    pub async fn retire_attested(&self, boot: &Boot) -> bool {
        let by_wall = self.world.has(Mutant::AttestByWallClock);
        let seen = |node: &Self| {
            let raft = node.raft.lock();
            raft.group.boot(boot).map(|row| (row.revision, row.lease_until, row.retired.is_some()))
        };
        for _ in 0..3 {
            if !self.barrier().await {
                continue;
            }
            let Some((revision, lease_until, retired)) = seen(self) else { return false };
            if retired {
                return true;
            }
            if !self.world.has(Mutant::AttestWithoutWait) {
                let until: Tick = self.clock.tick().plus_ms(LEASE_MS + super::world::DRIFT_MS);
                let over = |node: &Self| {
                    if by_wall {
                        node.clock.wall() >= lease_until.plus_ms(super::world::DRIFT_MS)
                    } else {
                        node.clock.tick() >= until
                    }
                };
                while !over(self) {
                    tokio::time::sleep(ms(50)).await;
                    if self.world.is_calm() {
                        return false;
                    }
                }
                if !self.barrier().await || seen(self).is_none_or(|now| now.0 != revision) {
                    continue;
                }
            }
            let proof = RetireProof::Attested { text: "an operator says that it is off".into() };
            let observed_at = self.clock.millis();
            // Compared with the lease that was waited for: one that was renewed meanwhile lives.
            let retire = Command::BootRetireSilent { boot: boot.clone(), revision, proof, observed_at };
            return matches!(self.call(retire).await, Some(Reply::Done { .. }));
        }
        false
    }
}

/// Key of the Will that a row refers to.
pub fn will_key(row: &SessionRow) -> WillKey {
    WillKey {
        key: row.owner.key.clone(),
        session_generation: row.owner.session_generation,
        will_generation: row.will_generation,
    }
}

/// QoS of a number.
#[must_use]
pub fn qos(number: u64) -> QoS {
    u8::try_from(number).ok().and_then(QoS::from_u8).unwrap_or_default()
}
