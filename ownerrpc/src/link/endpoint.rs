//! This node as its links present it: identity, security, bounds, clock. Listener and peers are made from it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use session::id::{IdentityError, check_identity};
use session::limits::BOOT_ID_BYTES_MAX;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::VERSIONS;
use super::clock::Clock;
use super::driver::{Environment, TICKS_TO_NOTICE};
use super::observer::Observer;
use super::options::{Options, OptionsError};
use super::security::Security;
use super::services::Limits;

/// Ticks of an acceptor: a dialer that says nothing for five of them is gone. Dialers ping once a second or more often.
const ACCEPTOR_TICK: Duration = Duration::from_secs(2);

/// Who this node is.
#[derive(Debug, Clone)]
pub struct LocalNode {
    /// Zeros: not yet a member of a cluster. Such a node can dial, and whoever it dials decides; nobody can dial it.
    pub cluster_id: [u8; 16],
    /// Not 0.
    pub node_id: u64,
    /// Valid, at most 128 bytes.
    pub boot_id: Arc<str>,
    /// Versions of the link that this node speaks, lowest and highest; [`VERSIONS`] unless a test says otherwise.
    pub versions: (u16, u16),
}

impl LocalNode {
    /// A node that speaks the versions of this build.
    #[must_use]
    pub fn new(cluster_id: [u8; 16], node_id: u64, boot_id: Arc<str>) -> Self {
        Self { cluster_id, node_id, boot_id, versions: VERSIONS }
    }
}

/// Why there is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EndpointError {
    #[error("node id {0}")]
    NodeId(IdentityError),
    #[error("boot id {0}")]
    BootId(IdentityError),
    #[error("versions {0} to {1} are no range")]
    Versions(u16, u16),
    #[error("{0}")]
    Options(#[from] OptionsError),
    #[error("there is no runtime here that could carry links")]
    NoRuntime,
}

/// What all links of this node share.
#[derive(Debug)]
pub struct Endpoint {
    pub(super) node: LocalNode,
    pub(super) options: Options,
    pub(super) limits: Arc<Limits>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) runtime: Handle,
    security: RwLock<Security>,
    /// Peers that wait before they dial again: one that has just dialled us is back.
    waiting: Mutex<HashMap<u64, Weak<Notify>, RandomState>>,
}

impl Endpoint {
    /// Must be called on the runtime that is to carry the links; calls may come from any.
    ///
    /// # Errors
    /// An identity or an option that is not valid; no runtime.
    pub fn new(
        node: LocalNode,
        security: Security,
        options: Options,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> Result<Arc<Self>, EndpointError> {
        if node.node_id == 0 {
            return Err(EndpointError::NodeId(IdentityError::Zero));
        }
        check_identity(&node.boot_id, BOOT_ID_BYTES_MAX).map_err(EndpointError::BootId)?;
        if node.versions.0 == 0 || node.versions.0 > node.versions.1 {
            return Err(EndpointError::Versions(node.versions.0, node.versions.1));
        }
        options.check()?;
        Ok(Arc::new(Self {
            limits: Arc::new(options.limits.clone()),
            node,
            options,
            clock,
            observer,
            runtime: Handle::try_current().map_err(|_| EndpointError::NoRuntime)?,
            security: RwLock::new(security),
            waiting: Mutex::default(),
        }))
    }

    #[must_use]
    pub fn node(&self) -> &LocalNode {
        &self.node
    }

    /// Replaces secret or certificates for links from now on; those that are up stay.
    pub fn set_security(&self, security: Security) {
        *self.security.write() = security;
    }

    pub(super) fn security(&self) -> Security {
        self.security.read().clone()
    }

    pub(super) fn dialer_environment(&self) -> Environment {
        self.environment(Duration::from_millis(self.options.silence_ms) / TICKS_TO_NOTICE as u32)
    }

    pub(super) fn acceptor_environment(&self) -> Environment {
        self.environment(ACCEPTOR_TICK)
    }

    fn environment(&self, tick: Duration) -> Environment {
        Environment { clock: Arc::clone(&self.clock), limits: Arc::clone(&self.limits), tick }
    }

    pub(super) fn wait_for(&self, node_id: u64, retry: &Arc<Notify>) {
        self.waiting.lock().insert(node_id, Arc::downgrade(retry));
    }

    pub(super) fn forget(&self, node_id: u64, retry: &Arc<Notify>) {
        let mut waiting = self.waiting.lock();
        if waiting.get(&node_id).is_some_and(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(retry))) {
            waiting.remove(&node_id);
        }
    }

    /// `node_id` has proved itself by dialling us.
    pub(super) fn arrived(&self, node_id: u64) {
        let retry = self.waiting.lock().get(&node_id).and_then(Weak::upgrade);
        if let Some(retry) = retry {
            retry.notify_one();
        }
    }
}
