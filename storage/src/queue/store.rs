//! A store as a program holds it: the channels, one lease a group for all its endpoints, the endpoints themselves, the keeper.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use session::queue::{Hold, QueueCommand};
use tokio::sync::Notify;

use super::children::{Child, Children};
use super::latency::{Latency, Stage, StageDurations};
use super::{ChannelStore, QueueError, Request, keeper, latency};
use crate::lease::{LeaseBackend, LeaseError, LeaseGuard, LeaseManager, LeaseRef, Standing, TableBackend};

#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// How long endpoints of this process outlive it; at least 1 s (etcd: 2 s). Default 15 s.
    pub lease_ttl: Duration,
    /// Where member leases are; `None`: in the store itself.
    pub leases: Option<Arc<dyn LeaseBackend>>,
    /// This process ends and reclaims what is due. Off where another process has the store.
    pub keeper: bool,
    /// Shown to operators.
    pub label: String,
}

impl Default for QueueOptions {
    fn default() -> Self {
        let lease_ttl = Duration::from_secs(15);
        Self { lease_ttl, leases: None, keeper: true, label: format!("pid {}", std::process::id()) }
    }
}

/// Channels of one process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct QueueStore {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) channels: Arc<dyn ChannelStore>,
    pub(super) tables: Vec<Arc<TableBackend>>,
    foreign: RwLock<Option<Arc<dyn LeaseBackend>>>,
    /// The lease of this process is somebody else's: it is lent, never granted or revoked here.
    lent: bool,
    pub(super) children: Children,
    pub(super) stop: Arc<Notify>,
    pub(super) latency: Latency,
    leases: LeaseManager,
    /// The lease of this process, by group; of another backend there is one for all groups.
    own: Vec<tokio::sync::Mutex<Option<LeaseGuard>>>,
    pub(super) options: QueueOptions,
}

impl Inner {
    /// The backend of member leases, where it is not the store.
    pub(super) fn foreign(&self) -> Option<Arc<dyn LeaseBackend>> {
        self.foreign.read().clone()
    }

    /// Where the lease of this process for members in `group` is.
    fn slot(&self, group: u16) -> usize {
        if self.lent || self.foreign.read().is_some() { 0 } else { usize::from(group) }
    }
}

impl QueueStore {
    /// Must be called on a tokio runtime, which runs the keepalives and the keeper.
    #[must_use]
    pub fn open(channels: Arc<dyn ChannelStore>, options: QueueOptions) -> Self {
        Self::with(channels, options, (LeaseManager::new(), false))
    }

    /// The same for a process that has one lease for more than its channels, held in `leases`: nobody can be bound before it is lent with
    /// [`Self::lend`], nor while it is lost.
    #[must_use]
    pub fn open_lent(channels: Arc<dyn ChannelStore>, options: QueueOptions, leases: LeaseManager) -> Self {
        Self::with(channels, options, (leases, true))
    }

    fn with(
        channels: Arc<dyn ChannelStore>,
        options: QueueOptions,
        (leases, lent): (LeaseManager, bool),
    ) -> Self {
        let groups = channels.groups().max(1);
        let tables = (0..groups).map(|group| Arc::new(TableBackend::new(Arc::clone(&channels), group)));
        let inner = Arc::new(Inner {
            tables: tables.collect(),
            foreign: RwLock::new(options.leases.clone()),
            lent,
            children: Children::default(),
            stop: Arc::new(Notify::new()),
            latency: Latency::default(),
            leases,
            own: (0..groups).map(|_| tokio::sync::Mutex::new(None)).collect(),
            channels,
            options,
        });
        if inner.options.keeper {
            for group in 0..groups {
                tokio::spawn(keeper::run(Arc::downgrade(&inner), group));
            }
        }
        tokio::spawn(latency::log_forever(Arc::downgrade(&inner)));
        Self { inner }
    }

    /// From now on members hang on this lease; those under the one before are over, as its holder knows.
    pub async fn lend(&self, backend: &Arc<dyn LeaseBackend>, lease: LeaseGuard) {
        let (new, before) = (lease.lease(), self.inner.own[0].lock().await.replace(lease));
        *self.inner.foreign.write() = Some(Arc::clone(backend));
        // The same backend says it to whoever looks; another one cannot.
        let Some(old) = before.map(|guard| guard.lease()).filter(|old| old.incarnation != new.incarnation)
        else {
            return;
        };
        let channels = Arc::clone(&self.inner.channels);
        let lease = Hold::Foreign { incarnation: old.incarnation, lease: old.id };
        tokio::spawn(async move {
            for group in 0..channels.groups() {
                let gone = Request::Queue(QueueCommand::LeaseGone { lease });
                if let Err(error) = channels.call(group, gone).await {
                    tracing::warn!(%error, group, "members under a lost lease stay: their group does not answer");
                }
            }
        });
    }

    /// The leases that this process holds, for operators.
    #[must_use]
    pub fn leases(&self) -> &LeaseManager {
        &self.inner.leases
    }

    /// How [`QueueStore::leases`] names the lease of a membership in `group`.
    #[must_use]
    pub fn lease_ref(&self, group: u16, hold: Hold) -> LeaseRef {
        match hold {
            Hold::Own(id) => {
                let table = self.inner.tables.get(usize::from(group));
                LeaseRef { incarnation: table.map_or(0, |table| table.incarnation()), id }
            }
            Hold::Foreign { incarnation, lease } => LeaseRef { incarnation, id: lease },
        }
    }

    /// How long each stage of the calls of its endpoints took since it was opened.
    #[must_use]
    pub fn latency(&self) -> StageDurations {
        self.inner.latency.view()
    }

    pub(super) fn observe(&self, stage: Stage, took: Duration) {
        self.inner.latency.observe(stage, took);
    }

    /// Group of a unique name.
    #[must_use]
    pub fn group_of(&self, unique_id: &str) -> u16 {
        let groups = u32::from(self.inner.channels.groups().max(1));
        u16::try_from(crc32fast::hash(unique_id.as_bytes()) % groups).expect("it is below a u16")
    }

    pub(super) fn channels(&self) -> &Arc<dyn ChannelStore> {
        &self.inner.channels
    }

    pub(super) fn label(&self) -> &str {
        &self.inner.options.label
    }

    pub(super) fn register(&self, child: &Arc<dyn Child>) -> Result<(), QueueError> {
        self.inner.children.register(Arc::downgrade(child))
    }

    /// A contribution to the lease of this process in `group`, and how a membership names it. A lost one is replaced.
    pub(super) async fn member_lease(
        &self,
        group: u16,
        label: &str,
    ) -> Result<(LeaseGuard, Hold), QueueError> {
        let foreign = self.inner.foreign();
        let slot = self.inner.slot(group);
        let mut own = self.inner.own[slot].lock().await;
        let held = match own.take() {
            Some(guard) if guard.standing() != Standing::Lost => guard,
            lost if self.inner.lent => {
                *own = lost;
                let (backend, reason) = ("of the node".to_owned(), "its lease is not held now".to_owned());
                return Err(LeaseError::Unavailable { backend, reason }.into());
            }
            lost => {
                let backend: Arc<dyn LeaseBackend> = match &foreign {
                    Some(backend) => Arc::clone(backend),
                    None => Arc::clone(&self.inner.tables[slot]) as _,
                };
                let fresh =
                    self.inner.leases.grant(&backend, self.inner.options.lease_ttl, "process").await?;
                if let Some(lost) = lost
                    && let Err(error) = lost.revoke().await
                {
                    // Nothing is done under it any more: what it holds need not wait for its end. It will come by itself.
                    tracing::warn!(%error, "a lost lease could not be revoked");
                }
                fresh
            }
        };
        let lease = held.lease();
        let guard = held.share(label);
        *own = Some(held);
        let hold = match &foreign {
            Some(_) => Hold::Foreign { incarnation: lease.incarnation, lease: lease.id },
            None => Hold::Own(lease.id),
        };
        Ok((guard, hold))
    }

    /// The store says that this lease is gone, which its guard may not know yet: the next member gets a new one.
    pub(super) async fn forget_lease(&self, group: u16, lease: Hold) {
        if self.inner.lent {
            // Its owner hears it from the backend.
            return;
        }
        let mut own = self.inner.own[self.inner.slot(group)].lock().await;
        let id = match lease {
            Hold::Own(id) | Hold::Foreign { lease: id, .. } => id,
        };
        drop(own.take_if(|guard| guard.lease().id == id));
    }

    /// Closes every endpoint, then gives the leases of this process back. Repeating it goes on where it failed.
    ///
    /// # Errors
    /// How many endpoints did not close.
    pub async fn close(&self) -> Result<(), QueueError> {
        self.inner.children.close_all().await?;
        self.inner.stop.notify_waiters();
        for own in &self.inner.own {
            let guard = own.lock().await.take().filter(|_| !self.inner.lent);
            if let Some(guard) = guard
                && let Err(error) = guard.revoke().await
            {
                // It runs down by itself.
                tracing::warn!(%error, "a lease could not be revoked");
            }
        }
        Ok(())
    }
}
