//! A place with channels, and processes that use them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use storage::lease::{LeaseBackend, LeaseView, TableBackend};
use storage::queue::{
    ChanRole, ChanType, ChannelConfig, ChannelStore, Consumer, EmbeddedStore, Item, MemoryStore, Producer,
    QueueError, QueueOptions, QueueStore, new_or_bind_with_unique_key,
};
use storage::{Clock, Store};
use tempfile::TempDir;

use crate::support::{self, TestClock};

/// How long anything may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Bench {
    pub(crate) channels: Arc<dyn ChannelStore>,
    pub(crate) leases: Option<Arc<dyn LeaseBackend>>,
    /// Shortest TTL that the backend gives.
    pub(crate) ttl: Duration,
    /// Ends what is due, as the process that has the store does.
    keeper: QueueStore,
    pub(crate) store: Option<(Store, TempDir, Arc<TestClock>)>,
    #[cfg(feature = "etcd")]
    pub(crate) etcd: Option<crate::etcd::Etcd>,
}

impl Bench {
    pub(crate) fn memory() -> Self {
        Self::over(Arc::new(MemoryStore::default()), None, Duration::from_secs(1), None)
    }

    pub(crate) async fn embedded() -> Self {
        let (channels, store) = real_store().await;
        Self::over(channels, None, Duration::from_secs(1), Some(store))
    }

    #[cfg(feature = "etcd")]
    pub(crate) async fn etcd() -> Self {
        let etcd = crate::etcd::Etcd::start(false).await;
        let leases: Arc<dyn LeaseBackend> = Arc::new(etcd.connect().await);
        let (channels, store) = real_store().await;
        let mut this = Self::over(channels, Some(leases), Duration::from_secs(2), Some(store));
        this.etcd = Some(etcd);
        this
    }

    fn over(
        channels: Arc<dyn ChannelStore>,
        leases: Option<Arc<dyn LeaseBackend>>,
        ttl: Duration,
        store: Option<(Store, TempDir, Arc<TestClock>)>,
    ) -> Self {
        let options = QueueOptions { leases: leases.clone(), ..QueueOptions::default() };
        let keeper = QueueStore::open(Arc::clone(&channels), options);
        Self {
            channels,
            leases,
            ttl,
            keeper,
            store,
            #[cfg(feature = "etcd")]
            etcd: None,
        }
    }

    /// The backend of member leases, as an operator would use it.
    pub(crate) fn backend(&self) -> Arc<dyn LeaseBackend> {
        match &self.leases {
            Some(leases) => Arc::clone(leases),
            None => Arc::new(TableBackend::new(Arc::clone(&self.channels), 0)),
        }
    }

    /// The backend that a held lease is of; in an embedded store there is one a group.
    pub(crate) fn backend_of(&self, view: &LeaseView) -> Arc<dyn LeaseBackend> {
        match &self.leases {
            Some(leases) => Arc::clone(leases),
            None => {
                let group = view.backend.rsplit('/').next().unwrap().parse().unwrap();
                Arc::new(TableBackend::new(Arc::clone(&self.channels), group))
            }
        }
    }

    /// A process that uses the channels. Dropping it is its crash.
    pub(crate) fn process(&self) -> QueueStore {
        self.process_over(Arc::clone(&self.channels))
    }

    /// The same over another way to the channels.
    pub(crate) fn process_over(&self, channels: Arc<dyn ChannelStore>) -> QueueStore {
        let options = QueueOptions {
            lease_ttl: self.ttl,
            leases: self.leases.clone(),
            keeper: false,
            label: "test".to_owned(),
        };
        QueueStore::open(channels, options)
    }

    pub(crate) async fn end(self) {
        self.keeper.close().await.unwrap();
        if let Some((store, _dir, _)) = self.store {
            store.close().await.unwrap();
        }
    }
}

async fn real_store() -> (Arc<dyn ChannelStore>, (Store, TempDir, Arc<TestClock>)) {
    let dir = tempfile::tempdir().unwrap();
    let clock = TestClock::at(1_000_000);
    let store =
        Store::open(support::options(dir.path()), Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
    support::start_boot(&store).await;
    let channels = EmbeddedStore::new(store.clone(), Arc::clone(&clock) as Arc<dyn Clock>);
    (Arc::new(channels), (store, dir, clock))
}

pub(crate) fn config(capacity: u64) -> ChannelConfig {
    ChannelConfig::new(capacity, Duration::from_secs(60))
}

pub(crate) async fn producer(store: &QueueStore, name: &str, of: ChanType) -> Producer {
    bind_producer(store, name, of, &config(100)).await.unwrap()
}

pub(crate) async fn bind_producer(
    store: &QueueStore,
    name: &str,
    of: ChanType,
    config: &ChannelConfig,
) -> Result<Producer, QueueError> {
    new_or_bind_with_unique_key(store, config, name, of, ChanRole::Producer).await?.producer()
}

pub(crate) async fn bind_consumer(
    store: &QueueStore,
    name: &str,
    of: ChanType,
    config: &ChannelConfig,
) -> Result<Consumer, QueueError> {
    new_or_bind_with_unique_key(store, config, name, of, ChanRole::Consumer).await?.consumer()
}

/// A consumer, as soon as the one before is gone.
pub(crate) async fn consumer(store: &QueueStore, name: &str, of: ChanType) -> Consumer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match bind_consumer(store, name, of, &config(100)).await {
            Err(QueueError::Occupied(_)) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            bound => return bound.unwrap(),
        }
    }
}

/// Exactly `count` records, in the order they came.
pub(crate) async fn get(consumer: &Consumer, count: usize) -> Vec<Item> {
    let mut items = Vec::new();
    while items.len() < count {
        items.extend(consumer.get_data(count - items.len(), Some(PATIENCE), 0).await.unwrap());
    }
    items
}

pub(crate) fn payloads(items: &[Item]) -> Vec<Vec<u8>> {
    items.iter().map(|item| item.payload.to_vec()).collect()
}

pub(crate) fn ids(items: &[Item]) -> Vec<storage::queue::RecordId> {
    items.iter().map(|item| item.id).collect()
}
