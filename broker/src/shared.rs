//! What every part of one running node shares; made once by `node`, handed around as `Arc<Shared>`.

use std::sync::Arc;

use session::id::Key;

use crate::clock::NodeClock;
use crate::owners::{CloseLinks, Owners};
use crate::route::Router;
use crate::usecase::authority::StoreAuthority;
use crate::usecase::connect::ConnectCase;
use crate::usecase::disconnect::{Disconnects, LifetimeOver};
use crate::usecase::isolation::LocalIsolation;
use crate::usecase::queue::ConnectQueue;
use crate::usecase::{ConnectError, ConnectInput, Connected};

/// The node. Fields are immutable handles; each guards its own state.
#[derive(Debug)]
pub struct Shared {
    pub boot: session::id::Boot,
    pub clock: Arc<NodeClock>,
    pub store: storage::Store,
    pub owners: Arc<Owners>,
    pub router: Arc<Router>,
    /// How to reach a connection from another thread.
    pub links: Arc<dyn CloseLinks>,
    pub disconnects: Arc<Disconnects>,
    pub connects: ConnectQueue,
    pub isolation: LocalIsolation,
    /// `owner.lease` in milliseconds.
    pub lease_ms: u64,
    // configuration, authentication, metrics and worker mailboxes are added by their owners
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
        recheck: &(dyn Fn() -> bool + Sync),
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
}
