//! What every part of one running node shares; made once by `node`, handed around as `Arc<Shared>`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use gateway::codec::ReasonCode;
use session::id::Key;
use session::lifecycle::{EndReason, SessionRow};
use session::time::Tick;

use crate::auth::Authority;
use crate::clock::NodeClock;
use crate::metrics::Metrics;
use crate::owners::Owners;
use crate::route::Router;
use crate::usecase::authority::StoreAuthority;
use crate::usecase::connect::ConnectCase;
use crate::usecase::disconnect::{Disconnects, IntentClaim, LifetimeOver};
use crate::usecase::end::{Call, EndCase, EndError};
use crate::usecase::isolation::LocalIsolation;
use crate::usecase::queue::ConnectQueue;
use crate::usecase::reclaim::{self, Retention};
use crate::usecase::{ConnectError, ConnectInput, Connected, EndInput};
use crate::worker::{self, Workers};

/// How often and at which distance an End is tried again when the end of the connection was recorded at the same time.
const END_ATTEMPTS: usize = 3;
const END_PAUSE: Duration = Duration::from_millis(10);

/// The node. Fields are immutable handles; each guards its own state.
#[derive(Debug)]
pub struct Shared {
    pub boot: session::id::Boot,
    pub clock: Arc<NodeClock>,
    pub store: storage::Store,
    pub owners: Arc<Owners>,
    pub router: Arc<Router>,
    pub auth: Arc<Authority>,
    pub metrics: Arc<Metrics>,
    /// The data plane, from any thread.
    pub workers: Arc<Workers>,
    /// What the configuration says about sessions.
    pub options: Arc<worker::Options>,
    pub disconnects: Arc<Disconnects>,
    pub connects: ConnectQueue,
    pub isolation: LocalIsolation,
    /// `owner.lease` in milliseconds.
    pub lease_ms: u64,
    pub retention: Retention,
}

/// Takes ended lifetimes out of the routing.
#[derive(Debug)]
pub struct ForgetLifetimes {
    pub store: storage::Store,
    pub router: Arc<Router>,
}

impl LifetimeOver for ForgetLifetimes {
    fn lifetime_over(&self, key: &Key, lifetime: u64) {
        self.router.forget_inbox(self.store.group_of(key), lifetime);
    }
}

impl LifetimeOver for Shared {
    fn lifetime_over(&self, key: &Key, lifetime: u64) {
        self.router.forget_inbox(self.store.group_of(key), lifetime);
    }
}

impl Shared {
    /// The CONNECT use case for an authenticated CONNECT; `recheck` authorises it a second time after the isolation.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(
        &self,
        input: &ConnectInput,
        recheck: &impl Fn() -> bool,
    ) -> Result<Connected, ConnectError> {
        let authority = StoreAuthority(self.store.clone());
        let case = ConnectCase {
            boot: &self.boot,
            clock: &self.clock,
            owners: &self.owners,
            disconnects: &self.disconnects,
            queue: &self.connects,
            authority: &authority,
            isolation: &self.isolation,
            over: self,
            lease_ms: self.lease_ms,
        };
        case.run(input, recheck).await
    }

    /// The End use case (owner spec §8): ends exactly `input.owner`, tells its client why, and, with `release`, frees the ClientID.
    ///
    /// # Errors
    /// See [`EndError`]; repeating the call is always safe.
    pub async fn end(&self, input: &EndInput, deadline: Tick) -> Result<SessionRow, EndError> {
        let authority = StoreAuthority(self.store.clone());
        let case = EndCase { authority: &authority, isolation: &self.isolation, clock: &*self.clock };
        let cancelled = AtomicBool::new(false);
        let call = Call { deadline, cancelled: &cancelled };
        let mut attempts = 0;
        let row = loop {
            let claim = self.claim_end(input);
            let sent_through =
                || claim.as_ref().and_then(IntentClaim::held).map_or(0, |closed| closed.sent_through);
            match case.run(&call, input, &sent_through).await {
                Ok(row) => {
                    if let Some(claim) = claim {
                        claim.replace();
                    }
                    break row;
                }
                // The end of the connection itself was recorded in between; the owner is still the same.
                Err(EndError::Conflict | EndError::Clock) if attempts < END_ATTEMPTS => {
                    attempts += 1;
                    drop(claim);
                    tokio::time::sleep(END_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        };
        if row.durable {
            self.lifetime_over(&row.owner.key, row.lifetime);
        }
        if input.release {
            reclaim::release(&self.store, &input.owner.key, self.retention)
                .await
                .map_err(|_| EndError::Unavailable)?;
        }
        Ok(row)
    }

    /// Takes over what becomes of the connection's end, and leaves the notice for its client, when `input` names the current owner.
    fn claim_end(&self, input: &EndInput) -> Option<IntentClaim> {
        let owner = &input.owner;
        let group = self.store.group_of(&owner.key);
        let current =
            self.store.read(group, |rows| rows.session(&owner.key).is_some_and(|row| row.owner == *owner));
        if !current || owner.node_id != self.boot.node_id || owner.boot_id != self.boot.boot_id {
            return None;
        }
        let notice = match input.reason {
            EndReason::Quota => ReasonCode::QuotaExceeded,
            _ => ReasonCode::AdministrativeAction,
        };
        self.owners.notice(owner, notice);
        self.disconnects.claim(owner)
    }
}
