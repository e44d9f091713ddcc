//! What this node answers other nodes: the groups of its store, Service 107 over its own registry, and joins.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway::codec::ReasonCode;
use ownerrpc::link::services::{CLUSTER, END, FORWARD, QUIESCE, RAFT};
use ownerrpc::link::{Answer, Call, Refusal, RefusalKind, Service, Services};
use ownerrpc::server::Quiescing;
use ownerrpc::{Quiesce, QuiesceFailure, QuiesceServer};
use session::id::{Boot, Owner};
use storage::{GroupId, Store};
use tokio::time::Instant;

use super::end::OwnEnds;
use super::join::JoinService;
use crate::owners::IsolationError;
use crate::shared::Shared;
use crate::usecase::isolation::{Isolation, LocalIsolation};

/// How long the proof of a takeover waits for the record of what the old connection wrote; without it the successor marks nothing as
/// a repetition.
const RECORD_WAIT_MS: u64 = 1_000;

/// A service that only members of the cluster may call.
struct MembersOnly<S>(S);

impl<S: Service> Service for MembersOnly<S> {
    fn call(&self, call: Call) -> Answer {
        if call.peer.cluster_id == [0; 16] {
            let refusal = Refusal::new(RefusalKind::NotAdmitted, "only members of the cluster may ask this");
            return Box::pin(std::future::ready(Err(refusal)));
        }
        self.0.call(call)
    }
}

/// A service that a boot may call until it is retired: what it still has to say is of owners that are somebody else's now.
struct UntilRetired {
    service: Arc<dyn Service>,
    store: Store,
}

impl Service for UntilRetired {
    fn call(&self, call: Call) -> Answer {
        let boot = Boot { node_id: call.peer.node_id, boot_id: Arc::clone(&call.peer.boot_id) };
        let retired =
            |group| self.store.read(group, |rows| rows.boot(&boot).is_some_and(|row| row.retired.is_some()));
        if (0..self.store.groups()).map(GroupId).any(retired) {
            let refusal = Refusal::new(RefusalKind::NotAdmitted, "this boot was retired");
            return Box::pin(std::future::ready(Err(refusal)));
        }
        self.service.call(call)
    }
}

/// Messages of a retired boot are not taken any more.
pub(crate) fn until_retired(services: Services, store: &Store) -> Services {
    services.behind(FORWARD, |service| Arc::new(UntilRetired { service, store: store.clone() }))
}

/// The groups of the store.
struct Groups(Store);

impl Service for Groups {
    fn call(&self, call: Call) -> Answer {
        let store = self.0.clone();
        Box::pin(async move { Ok::<Bytes, Refusal>(store.serve_peer(&call.payload).await) })
    }
}

/// Proves with what this node itself knows that one of its owners stopped.
struct OwnOwners {
    shared: Arc<Shared>,
    isolation: LocalIsolation,
}

impl Quiesce for OwnOwners {
    fn quiesce<'a>(&'a self, owner: &'a Owner, deadline: Instant) -> Quiescing<'a> {
        Box::pin(async move {
            let clock = &self.shared.clock;
            let left = deadline.saturating_duration_since(Instant::now());
            let until = clock.tick().plus_ms(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
            let ours = owner.node_id == self.shared.boot.node_id && owner.boot_id == self.shared.boot.boot_id;
            let claim =
                if ours { self.shared.claim_if_current(owner, ReasonCode::SessionTakenOver) } else { None };
            self.isolation.quiesce(owner, until).await.map_err(failure)?;
            if let Some(claim) = claim {
                // What it wrote is recorded ahead of the successor, if a majority answers; the proof holds either way.
                let until = until.min(clock.tick().plus_ms(RECORD_WAIT_MS));
                if claim.record(clock, until).await.is_err() {
                    tracing::warn!(
                        "the end of a connection that another node takes over is not recorded yet"
                    );
                }
            }
            Ok(())
        })
    }
}

fn failure(error: IsolationError) -> QuiesceFailure {
    match error {
        IsolationError::Unproved | IsolationError::Invalid => QuiesceFailure::Unproved,
        IsolationError::Close => QuiesceFailure::Close,
        IsolationError::Deadline => QuiesceFailure::Deadline,
        IsolationError::Cancelled => QuiesceFailure::Cancelled,
    }
}

/// Everything that other nodes may call here.
pub(crate) fn services(shared: &Arc<Shared>, join: JoinService) -> Services {
    let isolation = shared.isolation.local.clone();
    let owners = OwnOwners { shared: shared.clone(), isolation };
    Services::default()
        .with(RAFT, Arc::new(MembersOnly(Groups(shared.store.clone()))))
        .with(QUIESCE, Arc::new(MembersOnly(QuiesceServer::new(Arc::new(owners)))))
        .with(CLUSTER, Arc::new(join))
        .with(END, Arc::new(MembersOnly(OwnEnds(shared.clone()))))
}

/// Distance of two looks at something that another node changes.
pub(super) const LOOK: Duration = Duration::from_millis(250);
