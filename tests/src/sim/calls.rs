//! Service 107 over the simulated network: the real client and the real bytes on both sides, and the answering side of
//! `broker::cluster::services` for one node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use broker::owners::IsolationError;
use broker::usecase::isolation::{Isolation, IsolationFuture};
use bytes::Bytes;
use ownerrpc::link::{CallError, Caller, Calling};
use ownerrpc::quiesce::{Request, Response, SERVICE, Status};
use parking_lot::Mutex;
use session::id::Owner;
use session::time::Tick;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::mutant::Mutant;
use super::node::Node;
use super::raft::Msg;
use super::world::World;

/// How long the proof of a takeover waits for the record of the old connection's end.
const RECORD_WAIT_MS: u64 = 400;

/// Calls of one node that wait for their answer.
#[derive(Debug)]
pub struct Calls {
    world: Arc<World>,
    at: usize,
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<Bytes>>>,
}

/// The calling side, as the client of `ownerrpc` wants it.
pub struct Asks(pub Arc<Calls>);

impl Calls {
    pub fn new(world: Arc<World>, at: usize) -> Self {
        Self { world, at, next: AtomicU64::new(1), waiting: Mutex::default() }
    }

    pub fn answered(&self, id: u64, bytes: Bytes) {
        if let Some(asker) = self.waiting.lock().remove(&id) {
            let _ = asker.send(bytes);
        }
    }
}

impl Caller for Asks {
    fn call(&self, node_id: u64, service: u16, payload: Bytes, deadline: Instant) -> Calling<'_> {
        Box::pin(async move {
            let calls = &self.0;
            let to = usize::try_from(node_id.saturating_sub(1)).unwrap_or(usize::MAX);
            if service != SERVICE || to >= calls.world.nodes() {
                return Err(CallError::UnknownNode(node_id));
            }
            let id = calls.next.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = oneshot::channel();
            calls.waiting.lock().insert(id, sender);
            let left = deadline.saturating_duration_since(Instant::now());
            let wait_ms = u64::try_from(left.as_millis()).unwrap_or(0);
            calls.world.send(calls.at, to, Msg::Call { id, bytes: payload, wait_ms });
            let answer = tokio::time::timeout_at(deadline, receiver).await;
            calls.waiting.lock().remove(&id);
            match answer {
                Ok(Ok(bytes)) => Ok(bytes),
                Ok(Err(_)) | Err(_) => Err(CallError::Deadline),
            }
        })
    }
}

impl Node {
    /// Another node asks this one to prove that one of its owners stopped.
    pub fn called(self: Arc<Self>, from: usize, id: u64, bytes: Bytes, wait_ms: u64) {
        let node = self.clone();
        self.power.spawn(async move {
            let Ok(Request { owner }) = Request::decode(&bytes) else { return };
            let until = node.clock.tick().plus_ms(wait_ms.saturating_sub(20));
            let status = match node.stop_owner(&owner, until).await {
                Ok(()) => Status::Quiesced,
                Err(IsolationError::Close) => Status::Close,
                Err(IsolationError::Deadline) => Status::Deadline,
                Err(IsolationError::Cancelled) => Status::Cancelled,
                Err(IsolationError::Unproved | IsolationError::Invalid) => Status::Unproved,
            };
            let response = Response { status, owner };
            if let (Ok(bytes), false) = (response.encode(), node.power.is_dead()) {
                node.world.send(node.at, from, Msg::Answer { id, bytes });
            }
        });
    }

    async fn stop_owner(&self, owner: &Owner, until: Tick) -> Result<(), IsolationError> {
        let current = self.raft.lock().group.session(&owner.key).map(|row| row.owner.clone());
        if self.world.has(Mutant::FollowSuccessor)
            && let Some(current) = current.as_ref().filter(|current| self.is_mine(current))
        {
            return self.owners.quiesce(current, until).await;
        }
        if self.world.has(Mutant::TakeoverWithoutDrain) && self.is_mine(owner) {
            let _ = self.owners.registry().fence(self.clock.tick(), owner);
            return Ok(());
        }
        let claim = if self.is_mine(owner) && current.as_ref() == Some(owner) {
            self.disconnects.claim(owner)
        } else {
            None
        };
        self.isolation.local.quiesce(owner, until).await?;
        if let Some(claim) = claim {
            let until = until.min(self.clock.tick().plus_ms(RECORD_WAIT_MS));
            let _ = claim.record(&self.clock, until).await;
        }
        Ok(())
    }

    pub fn is_mine(&self, owner: &Owner) -> bool {
        owner.node_id == self.boot.node_id && owner.boot_id == self.boot.boot_id
    }
}

/// The isolation of the node, noted by the oracle, and the mutants of it.
pub struct Proves<'a>(pub &'a Node);

impl Isolation for Proves<'_> {
    fn quiesce<'a>(&'a self, owner: &'a Owner, deadline: Tick) -> IsolationFuture<'a> {
        Box::pin(async move {
            let node = self.0;
            node.world.oracle.asked(owner);
            if node.world.has(Mutant::SkipProofAfterLease) && node.lapsed(owner) {
                return Ok(());
            }
            let early = node.clock.tick().plus_ms(200);
            let deadline =
                if node.world.has(Mutant::SkipProofOnError) { deadline.min(early) } else { deadline };
            let proof = node.isolation.quiesce(owner, deadline).await;
            if proof.is_err() && node.world.has(Mutant::SkipProofOnError) {
                return Ok(());
            }
            crate::step!(
                node.world,
                "node {} proof {} of {}: {proof:?}",
                node.at + 1,
                owner.owner_generation,
                owner.key.client_id
            );
            proof
        })
    }
}

impl Node {
    /// Whether the committed lease of the owner's boot is over on the clock of this node.
    fn lapsed(&self, owner: &Owner) -> bool {
        let boot = session::id::Boot { node_id: owner.node_id, boot_id: owner.boot_id.clone() };
        let until = self.raft.lock().group.boot(&boot).map(|row| row.lease_until);
        until.is_some_and(|until| until <= self.clock.millis())
    }
}

/// A wait that both clocks of a node agree on.
#[must_use]
pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
