//! What every part of one running node shares; made once by `node`, handed around as `Arc<Shared>`.

use std::sync::Arc;

use crate::clock::NodeClock;
use crate::owners::Owners;
use crate::route::Router;

/// The node. Fields are immutable handles; each guards its own state.
#[derive(Debug)]
pub struct Shared {
    pub boot: session::id::Boot,
    pub clock: Arc<NodeClock>,
    pub store: storage::Store,
    pub owners: Owners,
    pub router: Router,
    // configuration, authentication, metrics and worker mailboxes are added by their owners
}
