//! What the admin API asks of a running node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use session::id::Key;
use session::lifecycle::{BootRow, Group, RetireProof, SessionRow, SessionState, Subject};
use session::time::Millis;
use storage::backup::About;
use storage::lease::NodeClaim;
use storage::{GroupId, StorageError};
use tokio::sync::{mpsc, oneshot};

use super::monitor::Turns;
use crate::admin::{
    AdminPort, BackupWrite, BootView, ChannelPage, ChannelQuery, Check, DeniedPage, DenyCommand, EndCommand,
    EndDone, EndError, InboxView, MemberPage, MemberQuery, NodeLeaseView, NodeView, PortError, PortFuture,
    ReloadDone, ReloadError, SessionDetail, SessionPage, SessionQuery, SessionSummary, StateWord,
    SubscriptionView, WillView,
};
use crate::bridge::{BridgeView, Bridges};
use crate::cluster::Member;
use crate::cluster::member::REMOVED;
use crate::config::LeaseHome;
use crate::events::Feed;
use crate::metrics::{ControlRecorder, EndOutcome, Level};
use crate::shared::Shared;
use crate::slow::SlowLog;
use crate::trace::Tracer;
use crate::usecase::hold::LeaseState;
use crate::usecase::retire::{RetireError, RetireOrder, RetireProgress, Retired, Retirer};
use crate::usecase::{self, EndInput};

/// Rows of one group that one page looks at, wanted or not.
const SCAN_MAX: usize = 8_192;
/// Subscriptions that one session shows.
const SUBSCRIPTIONS_SHOWN: usize = 1_000;
/// How long an End may take.
const END_TIMEOUT_MS: u64 = 10_000;

/// How long the check of health waits for a majority.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(1);

/// The running node, as operators see it.
#[derive(Debug)]
pub(super) struct Operator {
    pub shared: Arc<Shared>,
    pub member: Arc<Member>,
    pub started_at: Millis,
    pub recorder: ControlRecorder,
    pub retirer: Arc<Retirer>,
    pub lists: Turns,
    pub reload: mpsc::Sender<ReloadCall>,
    pub bridges: Arc<Bridges>,
}

/// Somebody waits to hear what a reload did.
pub type ReloadCall = oneshot::Sender<Result<ReloadDone, ReloadError>>;

/// How long a reload may take.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

impl AdminPort for Operator {
    fn list_sessions(&self, query: SessionQuery) -> PortFuture<'_, Result<SessionPage, PortError>> {
        Box::pin(async move { Ok(self.list(&query)) })
    }

    fn show_session(&self, key: Key) -> PortFuture<'_, Result<Option<SessionDetail>, PortError>> {
        Box::pin(async move {
            let group = self.shared.store.group_of(&key);
            self.newest(group).await?;
            Ok(self.shared.store.read(group, |rows| rows.session(&key).map(|row| detail(rows, row))))
        })
    }

    fn end_session(&self, key: Key, command: EndCommand) -> PortFuture<'_, Result<EndDone, EndError>> {
        Box::pin(async move {
            let done = self.end(&key, command).await;
            self.recorder.end(match &done {
                Ok(_) => EndOutcome::Ended,
                Err(EndError::NotFound) => EndOutcome::NotFound,
                Err(EndError::Fenced { .. }) => EndOutcome::Fenced,
                Err(EndError::Unproved(_)) => EndOutcome::Unproved,
                Err(EndError::Close) => EndOutcome::Close,
                Err(EndError::Deadline) => EndOutcome::Deadline,
                Err(EndError::Invalid(_)) => EndOutcome::Invalid,
                Err(EndError::Unavailable(_)) => EndOutcome::Unavailable,
            });
            done
        })
    }

    fn deny(&self, command: DenyCommand) -> PortFuture<'_, Result<(), PortError>> {
        Box::pin(self.deny_now(command))
    }

    fn allow(&self, subject: Subject) -> PortFuture<'_, Result<bool, PortError>> {
        Box::pin(self.allow_now(subject))
    }

    fn denied(&self, after: Option<Subject>, limit: usize) -> PortFuture<'_, Result<DeniedPage, PortError>> {
        Box::pin(async move { self.denied_page(after.as_ref(), limit).await })
    }

    fn channels(&self, query: ChannelQuery) -> PortFuture<'_, Result<ChannelPage, PortError>> {
        Box::pin(self.channels_page(query))
    }

    fn members(&self, query: MemberQuery) -> PortFuture<'_, Result<MemberPage, PortError>> {
        Box::pin(self.members_page(query))
    }

    fn nodes(&self) -> PortFuture<'_, Result<Vec<NodeView>, PortError>> {
        Box::pin(async move {
            let claims = match &self.shared.hold {
                Some(hold) => hold.claims().await,
                None => None,
            };
            Ok(self.all_nodes(claims.as_deref()))
        })
    }

    fn retire_boot(
        &self,
        order: RetireOrder,
        progress: Arc<RetireProgress>,
    ) -> PortFuture<'_, Result<Retired, RetireError>> {
        Box::pin(async move { self.retirer.run(&order, &progress).await })
    }

    fn backup(&self) -> PortFuture<'_, Result<BackupWrite, PortError>> {
        Box::pin(async move {
            for group in (0..self.shared.store.groups()).map(GroupId) {
                self.newest(group).await?;
            }
            let store = self.shared.store.clone();
            let about =
                About { version: env!("CARGO_PKG_VERSION").to_owned(), at: self.shared.clock.millis() };
            Ok(Box::new(move |out: &mut dyn std::io::Write| store.backup(&about, out)) as BackupWrite)
        })
    }

    fn cluster(&self) -> Option<Arc<Member>> {
        Some(self.member.clone())
    }

    fn events(&self) -> Arc<Feed> {
        self.shared.events.clone()
    }

    fn slow(&self) -> Arc<SlowLog> {
        self.shared.slow.clone()
    }

    fn boot(&self) -> (u64, Arc<str>) {
        (self.shared.boot.node_id, self.shared.boot.boot_id.clone())
    }

    fn tracer(&self) -> Option<Tracer> {
        Some(self.shared.tracer.clone())
    }

    fn bridges(&self) -> Vec<BridgeView> {
        self.bridges.views()
    }

    fn reload(&self) -> PortFuture<'_, Result<ReloadDone, ReloadError>> {
        Box::pin(async move {
            let unavailable = |what: &str| ReloadError::Unavailable(what.to_owned());
            let (call, answer) = oneshot::channel();
            self.reload
                .try_send(call)
                .map_err(|_| unavailable("too many reloads wait, or the node stops"))?;
            match tokio::time::timeout(RELOAD_TIMEOUT, answer).await {
                Ok(Ok(done)) => done,
                Ok(Err(_)) => Err(unavailable("the node stops")),
                Err(_) => Err(unavailable("the reload was not done in time")),
            }
        })
    }

    fn checks(&self) -> PortFuture<'_, Vec<Check>> {
        Box::pin(async move {
            let cluster = self.check_cluster().await;
            vec![self.check_store().await, self.check_lease(), cluster, self.check_load()]
        })
    }
}

impl Operator {
    /// Returns when reads here see every acknowledged write.
    pub(super) async fn newest(&self, group: GroupId) -> Result<(), PortError> {
        let newest = self.shared.store.barrier(group).await;
        newest.map_err(|error| PortError::Unavailable(error.to_string()))
    }

    /// Whether every group has a leader that a majority confirms.
    async fn check_cluster(&self) -> Check {
        if self.member.is_removed() {
            return Check { name: "cluster", result: Err(REMOVED.to_owned()) };
        }
        let store = &self.shared.store;
        let mut result = Ok(());
        for group in store.status() {
            let confirmed = tokio::time::timeout(CONFIRM_TIMEOUT, store.barrier(group.group));
            if group.leader.is_none() || !matches!(confirmed.await, Ok(Ok(()))) {
                let group = group.group.0;
                result = Err(format!(
                    "no leader for group {group} that a majority confirms: more of the nodes are needed; see `exactmq cluster status`"
                ));
                break;
            }
        }
        Check { name: "cluster", result }
    }

    fn list(&self, query: &SessionQuery) -> SessionPage {
        let store = &self.shared.store;
        let mut found: Vec<(Key, SessionSummary)> = Vec::new();
        // Keys up to here were looked at in every group.
        let mut horizon: Option<Key> = None;
        for group in (0..store.groups()).map(GroupId) {
            let stopped_at = store.read(group, |rows| scan(rows, query, &mut found));
            if let Some(key) = stopped_at
                && horizon.as_ref().is_none_or(|earlier| key < *earlier)
            {
                horizon = Some(key);
            }
        }
        if let Some(horizon) = &horizon {
            found.retain(|(key, _)| key <= horizon);
        }
        found.sort_by(|(left, _), (right, _)| left.cmp(right));
        let mut next = horizon;
        if found.len() > query.limit {
            found.truncate(query.limit);
            next = found.last().map(|(key, _)| key.clone());
        }
        SessionPage { sessions: found.into_iter().map(|(_, summary)| summary).collect(), next }
    }

    fn row(&self, key: &Key) -> Option<SessionRow> {
        self.shared.store.read(self.shared.store.group_of(key), |rows| rows.session(key).cloned())
    }

    async fn end(&self, key: &Key, command: EndCommand) -> Result<EndDone, EndError> {
        let newest = self.newest(self.shared.store.group_of(key)).await;
        newest.map_err(|error| EndError::Unavailable(error.to_string()))?;
        let row = self.row(key).ok_or(EndError::NotFound)?;
        let owner = match command.owner {
            Some(owner) if owner.key != *key => {
                return Err(EndError::Invalid("the owner names another session than the path".to_owned()));
            }
            Some(owner) => owner,
            None => row.owner,
        };
        let input = EndInput { owner, reason: command.reason, will: command.will, release: command.release };
        let deadline = self.shared.clock.tick().plus_ms(END_TIMEOUT_MS);
        match self.shared.end(&input, deadline).await {
            Ok(row) => {
                let reason = match row.state {
                    SessionState::Ended { reason } => reason,
                    _ => input.reason,
                };
                Ok(EndDone { owner: input.owner, revision: row.revision, reason })
            }
            Err(error) => Err(self.end_error(error, key)),
        }
    }

    fn end_error(&self, error: usecase::end::EndError, key: &Key) -> EndError {
        use usecase::end::EndError as Cause;
        match error {
            Cause::Fenced | Cause::Conflict => {
                EndError::Fenced { current: self.row(key).map(|row| Box::new(row.owner)) }
            }
            Cause::Unproved => EndError::Unproved(
                "its node cannot be asked; retire that boot with a proof, or wait until it is back"
                    .to_owned(),
            ),
            Cause::Close => EndError::Close,
            Cause::Deadline | Cause::Cancelled => EndError::Deadline,
            Cause::Invalid => EndError::Invalid(error.to_string()),
            Cause::Evidence | Cause::Clock | Cause::Unavailable | Cause::LifecycleCallback => {
                EndError::Unavailable(error.to_string())
            }
        }
    }

    fn all_nodes(&self, claims: Option<&[NodeClaim]>) -> Vec<NodeView> {
        let mut boots: BTreeMap<u64, BTreeMap<Arc<str>, BootRow>> = BTreeMap::new();
        for group in (0..self.shared.store.groups()).map(GroupId) {
            self.shared.store.read(group, |rows| {
                for row in rows.boots() {
                    let known = boots.entry(row.boot.node_id).or_default();
                    let known = known.entry(row.boot.boot_id.clone()).or_insert_with(|| row.clone());
                    known.lease_until = known.lease_until.max(row.lease_until);
                    // Retired is what every group retired: in the others its sessions stay as they are.
                    if row.retired.is_none() {
                        known.retired = None;
                    }
                }
            });
        }
        let local = self.shared.boot.node_id;
        let node = |(node_id, boots): (u64, BTreeMap<Arc<str>, BootRow>)| {
            let mut rows: Vec<BootRow> = boots.into_values().collect();
            rows.sort_by_key(|row| std::cmp::Reverse(row.lease_until));
            let is_local = node_id == local;
            let newest = rows.iter().find(|row| row.retired.is_none()).map(|row| row.boot.clone());
            let current = if is_local { Some(self.shared.boot.clone()) } else { newest };
            let lease = if is_local {
                Some(self.local_lease())
            } else {
                let newest = rows.iter().find(|row| row.retired.is_none());
                newest.map(|row| self.lease_of(row, claims))
            };
            let claim = claims.into_iter().flatten().find(|claim| claim.node_id == node_id && !is_local);
            let view = |row: BootRow| boot_view(current.as_ref() == Some(&row.boot), row);
            NodeView {
                node_id,
                local: is_local,
                version: claim
                    .map(|claim| claim.version.clone())
                    .or_else(|| is_local.then(|| env!("CARGO_PKG_VERSION").to_owned())),
                connections: is_local.then(|| self.shared.owners.snapshot().active as u64),
                started_at_ms: claim
                    .map(|claim| claim.started_ms)
                    .or_else(|| is_local.then_some(self.started_at.0)),
                lease,
                boots: rows.into_iter().map(view).collect(),
            }
        };
        boots.into_iter().map(node).collect()
    }

    /// The lease under which this node serves.
    fn local_lease(&self) -> NodeLeaseView {
        let lease = self.shared.node_lease();
        let detail = (lease.state != LeaseState::Held).then(|| self.lease_trouble());
        let (backend, state) = (lease.home.word().to_owned(), lease.state.word().to_owned());
        NodeLeaseView { backend, state, detail }
    }

    /// What stands in the way of the lease, and what helps.
    fn lease_trouble(&self) -> String {
        let boot = self.shared.owners.boot_lease_until() > self.shared.clock.tick();
        match &self.shared.hold {
            Some(hold) if boot && hold.standing() != LeaseState::Held => {
                format!(
                    "the lease in etcd: {}; the node goes on by itself when etcd answers again; see queue.etcd_endpoints",
                    hold.reason()
                )
            }
            _ => "the boot lease: the store does not take its renewal".to_owned(),
        }
    }

    /// What is known here of the lease of another node, by its newest boot.
    fn lease_of(&self, row: &BootRow, claims: Option<&[NodeClaim]>) -> NodeLeaseView {
        let boot = row.lease_until > self.shared.clock.millis();
        let (home, state) = match (&self.shared.hold, claims) {
            (None, _) => (LeaseHome::Embedded, if boot { "held" } else { "lost" }),
            (Some(_), None) => (LeaseHome::Etcd, "unknown"),
            (Some(_), Some(claims)) => {
                let holds = |claim: &NodeClaim| {
                    claim.node_id == row.boot.node_id && claim.boot_id == row.boot.boot_id
                };
                (LeaseHome::Etcd, if claims.iter().any(holds) { "held" } else { "lost" })
            }
        };
        NodeLeaseView { backend: home.word().to_owned(), state: state.to_owned(), detail: None }
    }

    async fn check_store(&self) -> Check {
        let failed: Option<Arc<StorageError>> = tokio::select! {
            biased;
            error = self.shared.store.failed() => Some(error),
            () = std::future::ready(()) => None,
        };
        let result = failed.map_or(Ok(()), |error| Err(error.to_string()));
        Check { name: "store", result }
    }

    fn check_lease(&self) -> Check {
        let alive = self.shared.clock.tick() < self.shared.owners.lease_until();
        let result = if alive {
            Ok(())
        } else {
            Err(format!("no client is served, because a lease ran out: {}", self.lease_trouble()))
        };
        Check { name: "lease", result }
    }

    /// Who looks for a node to connect to is sent elsewhere; those that are connected are served.
    fn check_load(&self) -> Check {
        let level = self.shared.load.level();
        let result = if level < Level::Overloaded {
            Ok(())
        } else {
            Err(format!("new connections are refused: the node is {}", level.word()))
        };
        Check { name: "load", result }
    }
}

fn boot_view(current: bool, row: BootRow) -> BootView {
    let proof = row.retired.as_ref().map(|(_, proof)| proof);
    let retired_by = proof.map(|proof| proof.word().to_owned());
    let retired_because = proof.and_then(RetireProof::text).cloned();
    BootView {
        current,
        boot_id: row.boot.boot_id,
        lease_until_ms: row.lease_until.0,
        retired_at_ms: row.retired.map(|(at, _)| at.0),
        retired_by,
        retired_because,
    }
}

/// Collects wanted sessions of one group; the last key looked at when there may be more behind it.
fn scan(rows: &Group, query: &SessionQuery, found: &mut Vec<(Key, SessionSummary)>) -> Option<Key> {
    let mut wanted = 0;
    for (seen, row) in rows.sessions_after(query.after.as_ref()).enumerate() {
        let key = &row.owner.key;
        let state = StateWord::from(&row.state);
        if query.wants(key, row.uid.as_deref(), row.owner.node_id, state) {
            found.push((key.clone(), SessionSummary::from(row)));
            wanted += 1;
        }
        if wanted > query.limit || seen + 1 >= SCAN_MAX {
            return Some(key.clone());
        }
    }
    None
}

fn detail(rows: &Group, row: &SessionRow) -> SessionDetail {
    let offline_expires_at_ms = match row.state {
        SessionState::Offline { offline_expires_at } if offline_expires_at != Millis::NEVER => {
            Some(offline_expires_at.0)
        }
        _ => None,
    };
    let subscriptions = rows
        .subscriptions(row.lifetime)
        .take(SUBSCRIPTIONS_SHOWN)
        .map(|(filter, options)| SubscriptionView {
            filter: filter.clone(),
            qos: options.qos as u8,
            no_local: options.no_local,
            retain_as_published: options.retain_as_published,
            identifier: options.identifier,
        })
        .collect();
    SessionDetail {
        summary: SessionSummary::from(row),
        owner: (&row.owner).into(),
        offline_expires_at_ms,
        inbox: rows.inbox(row.lifetime).filter(|_| row.durable).map(InboxView::from),
        will: rows.last_will(&row.owner.key).map(WillView::new),
        subscriptions,
        subscriptions_total: rows.subscriptions(row.lifetime).count() as u64,
    }
}
