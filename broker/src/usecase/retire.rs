//! Retirement of a boot that cannot prove its own end: its node is gone (DESIGN §7, owner spec §10, §17.1).
//!
//! ```text
//! known? ▶ (fence agent) ▶ silent? ▶ lease end + drift, a renewal or an answer ends it: alive ▶ one group, if still silent ▶ all groups
//! ```
//! The first group retires it only if its lease was not renewed since it was last seen silent. A boot moves its own deadline when every
//! group took a renewal, so from then on it cannot: should the proof be wrong, the node stopped by itself before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ownerrpc::link::PeerState;
use session::id::Boot;
use session::lifecycle::{Command, Conflict, Reply, RetireProof};
use storage::lease::Alive;
use storage::{GroupId, Store};
use tokio::time::Instant;

use super::fence::FenceAgent;
use super::hold::NodeHold;
use super::lease_watch::{LeaseWatch, Leases};
use crate::clock::NodeClock;
use crate::cluster::Member;
use crate::config::{Config, IsolationMode};
use crate::shared::Shared;
use crate::trace::Tracer;

/// A link is down so long after its peer fell silent, at the latest.
const SILENCE: Duration = Duration::from_secs(2);
/// Distance of two looks while a lease runs out.
const LOOK: Duration = Duration::from_millis(50);
/// Distance of two looks at all leases.
const WATCH: Duration = Duration::from_millis(250);
/// How long all groups together may take to retire a boot.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two attempts at a group that did not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How much longer than it says a lease that nobody keeps may live in etcd.
const ETCD_SLACK: Duration = Duration::from_secs(2);
/// Between two questions to etcd about one boot.
const ETCD_PAUSE: Duration = Duration::from_secs(1);
/// Until an automatic retirement that failed is tried again.
const AUTO_PAUSE: Duration = Duration::from_secs(60);

/// What says that the boot is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetireBy {
    /// An operator, with these words.
    Attest(Arc<str>),
    /// The configured fence agent.
    FenceAgent,
}

/// An operator's decision about one boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetireOrder {
    pub boot: Boot,
    pub by: RetireBy,
    /// Do not wait for the end of its lease.
    pub now: bool,
}

/// A retirement under way, as those see it who wait for it.
#[derive(Debug, Default)]
pub struct RetireProgress {
    left_ms: AtomicU64,
    hurried: AtomicBool,
}

impl RetireProgress {
    /// Milliseconds until the boot's lease and the drift are over, as far as is known.
    #[must_use]
    pub fn left_ms(&self) -> u64 {
        self.left_ms.load(Ordering::Relaxed)
    }

    /// Wait no longer.
    pub fn hurry(&self) {
        self.hurried.store(true, Ordering::Relaxed);
    }

    /// Whether somebody said so.
    #[must_use]
    pub fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::Relaxed)
    }
}

/// What one group says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupRetired {
    Retired,
    /// It was before.
    Already,
    /// The boot owns nothing in it.
    Unknown,
    Failed(String),
}

/// The boot is retired in every group that knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retired {
    /// The proof by which it was, now or before.
    pub proof: RetireProof,
    /// Nothing was left to do.
    pub unchanged: bool,
    pub groups: Vec<(GroupId, GroupRetired)>,
}

/// Why a boot is not (known to be) retired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetireError {
    #[error("{0}")]
    NotFound(String),
    #[error("a node does not retire the boot that it runs as; stop it, or ask another node")]
    Own,
    #[error("the boot lives: {0}; nothing was retired")]
    Alive(String),
    #[error("{0}; nothing is proved and nothing was retired")]
    Unproved(String),
    #[error(
        "no fence agent is configured on this node; set isolation.fence_agent, or attest that the node is off"
    )]
    NoAgent,
    #[error("the groups cannot be asked: {0}")]
    Unavailable(String),
    #[error("not every group retired the boot; its sessions in the others stay as they are: ask again")]
    Partial(Vec<(GroupId, GroupRetired)>),
}

/// Retires boots of other nodes.
#[derive(Debug)]
pub struct Retirer {
    own: Boot,
    store: Store,
    clock: Arc<NodeClock>,
    member: Arc<Member>,
    watch: LeaseWatch,
    /// Asked where leases are in etcd too: only its own word that one is gone counts, its silence proves nothing (ADR 0010).
    hold: Option<Arc<NodeHold>>,
    agent: Option<FenceAgent>,
    drift_ms: u64,
    mode: IsolationMode,
    fence_auto: bool,
    tracer: Tracer,
}

impl Retirer {
    #[must_use]
    pub fn new(shared: &Shared, member: Arc<Member>, config: &Config) -> Self {
        let isolation = &config.isolation;
        let agent = isolation.fence_agent.clone();
        Self {
            own: shared.boot.clone(),
            store: shared.store.clone(),
            clock: shared.clock.clone(),
            member,
            watch: LeaseWatch::new(shared.store.clone(), shared.clock.clone(), shared.lease_ms),
            hold: shared.hold.clone(),
            agent: agent.map(|command| FenceAgent { command, timeout_ms: isolation.fence_timeout_ms }),
            drift_ms: isolation.drift_ms,
            mode: isolation.mode,
            fence_auto: isolation.fence_auto,
            tracer: shared.tracer.clone(),
        }
    }

    /// Retires one boot. Repeating it is always safe. Takes as long as the fence agent and the lease of the boot.
    ///
    /// # Errors
    /// See [`RetireError`].
    pub async fn run(&self, order: &RetireOrder, progress: &RetireProgress) -> Result<Retired, RetireError> {
        let known =
            || vec![("node_id", order.boot.node_id.to_string()), ("boot_id", order.boot.boot_id.to_string())];
        self.tracer.root("retire", known, self.steps(order, progress)).await
    }

    async fn steps(&self, order: &RetireOrder, progress: &RetireProgress) -> Result<Retired, RetireError> {
        let boot = &order.boot;
        if *boot == self.own {
            return Err(RetireError::Own);
        }
        self.newest().await?;
        if let Some(done) = self.standing(boot)? {
            return Ok(done);
        }
        let proof = match &order.by {
            RetireBy::Attest(text) => RetireProof::Attested { text: text.clone() },
            RetireBy::FenceAgent => {
                let proof = self.fence(boot).await?;
                // Renewals from before its end do not speak for its life.
                self.newest().await?;
                proof
            }
        };
        self.check_silent(boot).await?;
        let Some(silent) = self.wait(order, progress).await? else {
            // Somebody else retired it meanwhile.
            return self.standing(boot)?.ok_or_else(|| RetireError::Unavailable("ask again".to_owned()));
        };
        self.commit(&silent, &proof).await
    }

    /// Watches the leases of all boots, and retires without being asked what the configuration says. Runs until the task is dropped.
    pub async fn watch_forever(self: Arc<Self>) {
        let mut not_before = Instant::now();
        loop {
            self.watch.look();
            let acts = self.mode == IsolationMode::Lease || self.fence_auto;
            // One node does it for all.
            if acts && self.store.leads(GroupId(0)) && Instant::now() >= not_before {
                for silent in self.silent_ones() {
                    if let Err(error) = self.retire_unasked(&silent).await {
                        let boot = &silent.boot;
                        tracing::warn!(node_id = boot.node_id, boot = %boot.boot_id, %error, "a silent boot is not retired yet");
                        let pause = match (self.mode, &self.hold) {
                            (IsolationMode::Strict, _) => AUTO_PAUSE,
                            (IsolationMode::Lease, Some(_)) => ETCD_PAUSE,
                            (IsolationMode::Lease, None) => Duration::ZERO,
                        };
                        not_before = not_before.max(Instant::now() + pause);
                    }
                }
            }
            tokio::time::sleep(WATCH).await;
        }
    }

    /// Boots of other nodes whose lease and drift are over and that nobody answers for.
    fn silent_ones(&self) -> Vec<Leases> {
        let now = self.clock.tick();
        let all = self.watch.all().into_iter();
        all.filter(|leases| {
            leases.boot.node_id != self.own.node_id
                && leases.ends.plus_ms(self.drift_ms) <= now
                // A node that runs again retires its earlier boots by itself, and is not to be fenced for them.
                && self.runs_as(leases.boot.node_id).is_none()
        })
        .collect()
    }

    async fn retire_unasked(&self, silent: &Leases) -> Result<(), RetireError> {
        let boot = &silent.boot;
        let proof = match self.mode {
            IsolationMode::Lease => {
                self.check_gone(boot).await?;
                self.commit(silent, &RetireProof::Lease).await?;
                RetireProof::Lease
            }
            IsolationMode::Strict => {
                let order = RetireOrder { boot: boot.clone(), by: RetireBy::FenceAgent, now: false };
                self.run(&order, &RetireProgress::default()).await?.proof
            }
        };
        tracing::warn!(node_id = boot.node_id, boot = %boot.boot_id, %proof, "a silent boot is retired");
        Ok(())
    }

    /// Returns when reads here see every acknowledged write.
    async fn newest(&self) -> Result<(), RetireError> {
        for group in self.groups() {
            let newest = self.store.barrier(group).await;
            newest.map_err(|error| RetireError::Unavailable(error.to_string()))?;
        }
        Ok(())
    }

    fn groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.store.groups()).map(GroupId)
    }

    /// The proof by which a group retired the boot; `None`: it knows no such boot.
    fn proof_in(&self, group: GroupId, boot: &Boot) -> Option<Option<RetireProof>> {
        let retired =
            |row: &session::lifecycle::BootRow| row.retired.as_ref().map(|(_, proof)| proof.clone());
        self.store.read(group, |rows| rows.boot(boot).map(retired))
    }

    /// The boot is retired everywhere already.
    fn standing(&self, boot: &Boot) -> Result<Option<Retired>, RetireError> {
        let mut groups = Vec::new();
        let mut by = None;
        let mut complete = true;
        for group in self.groups() {
            groups.push((
                group,
                match self.proof_in(group, boot) {
                    None => GroupRetired::Unknown,
                    Some(proof) => {
                        complete &= proof.is_some();
                        by = by.or(Some(proof));
                        GroupRetired::Already
                    }
                },
            ));
        }
        let Some(by) = by else { return Err(self.not_found(boot)) };
        Ok(by.filter(|_| complete).map(|proof| Retired { proof, unchanged: true, groups }))
    }

    fn not_found(&self, boot: &Boot) -> RetireError {
        let owner = self.groups().find_map(|group| {
            self.store.read(group, |rows| {
                rows.boots().find(|row| row.boot.boot_id == boot.boot_id).map(|row| row.boot.node_id)
            })
        });
        RetireError::NotFound(match owner {
            Some(node) => format!("boot {} is of node {node}, not of node {}", boot.boot_id, boot.node_id),
            None => format!(
                "node {} has no boot {}; GET /v1/nodes and `exactmq node show {}` list those that are known",
                boot.node_id, boot.boot_id, boot.node_id
            ),
        })
    }

    /// As which boot the node answers on the link to it; `None`: it does not.
    fn runs_as(&self, node_id: u64) -> Option<Arc<str>> {
        match self.member.links.as_ref()?.peers().get(node_id)?.state() {
            PeerState::Up(info) => Some(info.boot_id.clone()),
            PeerState::Starting | PeerState::Down(_) => None,
        }
    }

    fn check_not_answering(&self, boot: &Boot) -> Result<(), RetireError> {
        match self.runs_as(boot.node_id) {
            Some(running) if running == boot.boot_id => {
                let what = format!("node {} answers as that boot; end its sessions or stop it", boot.node_id);
                Err(RetireError::Alive(what))
            }
            _ => Ok(()),
        }
    }

    /// Waits as long as a dead peer may still look alive.
    async fn check_silent(&self, boot: &Boot) -> Result<(), RetireError> {
        let peer = self.member.links.as_ref().and_then(|links| links.peers().get(boot.node_id));
        if let Some(peer) = peer {
            let settled = |state: &PeerState| match state {
                PeerState::Up(info) => info.boot_id != boot.boot_id,
                PeerState::Down(_) => true,
                PeerState::Starting => false,
            };
            // Whichever way it ends, the next look decides.
            let _ = tokio::time::timeout(SILENCE, peer.wait_for(settled)).await;
        }
        self.check_not_answering(boot)
    }

    async fn fence(&self, boot: &Boot) -> Result<RetireProof, RetireError> {
        let agent = self.agent.as_ref().ok_or(RetireError::NoAgent)?;
        if let Some(running) = self.runs_as(boot.node_id).filter(|running| *running != boot.boot_id) {
            let what = format!(
                "node {} runs again as boot {running}, which the fence agent would end; it retires its earlier boots by itself",
                boot.node_id
            );
            return Err(RetireError::Unproved(what));
        }
        let members = self.member.members();
        let address = members.iter().find(|member| member.node_id == boot.node_id);
        let said = agent.run(boot, address.map_or("", |member| &member.address)).await;
        said.map(|said| RetireProof::FenceAgent { text: said.into() }).map_err(RetireError::Unproved)
    }

    /// Waits until the lease of the boot and the drift are over; its leases as they stood all the while. `None`: it is retired.
    async fn wait(
        &self,
        order: &RetireOrder,
        progress: &RetireProgress,
    ) -> Result<Option<Leases>, RetireError> {
        self.watch.look();
        let Some(silent) = self.watch.of(&order.boot) else { return Ok(None) };
        loop {
            self.check_not_answering(&order.boot)?;
            let Some(leases) = self.watch.of(&order.boot) else { return Ok(None) };
            if leases.renewed_since(&silent) {
                return Err(RetireError::Alive("it renewed its lease".to_owned()));
            }
            let until = leases.ends.plus_ms(self.drift_ms);
            let left = self.clock.until(until);
            progress.left_ms.store(u64::try_from(left.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            if order.now || progress.is_hurried() {
                return Ok(Some(silent));
            }
            if left.is_zero() {
                self.wait_for_etcd(&order.boot, progress).await?;
                return Ok(Some(silent));
            }
            tokio::time::sleep(LOOK.min(left)).await;
            self.watch.look();
        }
    }

    /// Time retires a boot only when its lease in etcd is gone too, by etcd's own word.
    async fn check_gone(&self, boot: &Boot) -> Result<(), RetireError> {
        let Some(hold) = &self.hold else { return Ok(()) };
        match hold.boot(boot).await {
            Alive::Gone => Ok(()),
            Alive::Left(_) => Err(RetireError::Alive("its lease in etcd is not over".to_owned())),
            Alive::Unknown => Err(RetireError::Unproved(
                "etcd does not say that the lease of the boot is gone: it does not answer, or has no record of it (its data is not what it \
                 was); when it answers this goes on by itself, otherwise retire the boot with --attest"
                    .to_owned(),
            )),
        }
    }

    /// Somebody says that the boot is gone, and its boot lease is over: a lease in etcd that somebody keeps alive says otherwise. Where etcd
    /// says nothing the word of that somebody stands.
    async fn wait_for_etcd(&self, boot: &Boot, progress: &RetireProgress) -> Result<(), RetireError> {
        let Some(hold) = &self.hold else { return Ok(()) };
        let mut over_at = None;
        while let Alive::Left(left) = hold.boot(boot).await {
            // Nobody kept it since: then it is over by now. etcd counts in whole seconds, and ends a lease within one.
            let over_at = *over_at.get_or_insert_with(|| Instant::now() + left + ETCD_SLACK);
            if Instant::now() > over_at {
                return Err(RetireError::Alive("it keeps its lease in etcd alive".to_owned()));
            }
            progress.left_ms.store(u64::try_from(left.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            if progress.is_hurried() {
                break;
            }
            tokio::time::sleep(ETCD_PAUSE).await;
        }
        Ok(())
    }

    /// Retires in one group if the boot is still silent, then in all.
    async fn commit(&self, silent: &Leases, proof: &RetireProof) -> Result<Retired, RetireError> {
        let boot = &silent.boot;
        let deadline = Instant::now() + COMMIT_TIMEOUT;
        let observed_at = self.clock.millis();
        let broken = self.groups().any(|group| matches!(self.proof_in(group, boot), Some(Some(_))));
        if let (false, Some((group, revision))) = (broken, silent.revisions.first()) {
            let command = Command::BootRetireSilent {
                boot: boot.clone(),
                revision: *revision,
                proof: proof.clone(),
                observed_at,
            };
            match call(self.store.clone(), *group, command, deadline).await {
                Ok(Reply::Done { .. }) => {}
                Ok(Reply::Conflict(Conflict::Fenced)) => {
                    return Err(RetireError::Alive("it renewed its lease".to_owned()));
                }
                Ok(reply) => return Err(RetireError::Unavailable(refusal(&reply))),
                Err(what) => return Err(RetireError::Unavailable(what)),
            }
        }
        let first = silent.revisions.first().filter(|_| !broken).map(|(group, _)| *group);
        let mut calls = Vec::new();
        for group in self.groups() {
            let proof = proof.clone();
            let command = Command::BootRetire { boot: boot.clone(), proof, observed_at };
            calls.push((group, tokio::spawn(call(self.store.clone(), group, command, deadline))));
        }
        let mut groups = Vec::new();
        for (group, called) in calls {
            let said = match called.await {
                Ok(Ok(Reply::Done { .. })) if Some(group) == first => GroupRetired::Retired,
                Ok(Ok(Reply::Done { unchanged: true, .. })) => GroupRetired::Already,
                Ok(Ok(Reply::Done { .. })) => GroupRetired::Retired,
                Ok(Ok(Reply::Conflict(Conflict::Missing))) => GroupRetired::Unknown,
                Ok(Ok(reply)) => GroupRetired::Failed(refusal(&reply)),
                Ok(Err(what)) => GroupRetired::Failed(what),
                Err(_) => GroupRetired::Failed("the call was cut short".to_owned()),
            };
            groups.push((group, said));
        }
        if groups.iter().any(|(_, group)| matches!(group, GroupRetired::Failed(_))) {
            return Err(RetireError::Partial(groups));
        }
        let proof = self.groups().find_map(|group| self.proof_in(group, boot).flatten());
        let proof = proof.ok_or_else(|| RetireError::Unavailable("the boot is gone".to_owned()))?;
        if let Some(hold) = &self.hold {
            // What is left then is one key.
            hold.forget(boot.node_id, std::slice::from_ref(&boot.boot_id)).await;
        }
        let unchanged = groups.iter().all(|(_, group)| *group != GroupRetired::Retired);
        Ok(Retired { proof, unchanged, groups })
    }
}

/// Proposes until it is answered; retirements are idempotent.
async fn call(store: Store, group: GroupId, command: Command, deadline: Instant) -> Result<Reply, String> {
    let mut last = "no answer in time".to_owned();
    loop {
        match tokio::time::timeout_at(deadline, store.call(group, command.clone())).await {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => return Err(last),
        }
        if Instant::now() + RETRY_PAUSE >= deadline {
            return Err(last);
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn refusal(reply: &Reply) -> String {
    match reply {
        Reply::Conflict(conflict) => conflict.to_string(),
        other => format!("unexpected answer {other:?}"),
    }
}
