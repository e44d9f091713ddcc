//! Channels in groups over three nodes: members on any node, order when a producer moves, what is left of a node that was cut off.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/net.rs"]
mod net;
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use net::{Net, three};
use storage::lease::{LeaseBackend, LeaseRef, TableBackend};
use storage::queue::{
    ChanRole, ChanType, ChannelConfig, ChannelStore, Consumer, EmbeddedStore, Endpoint, Producer, QueueError,
    QueueOptions, QueueStore, new_or_bind_with_unique_key,
};
use support::TestClock;

const PATIENCE: Duration = Duration::from_secs(60);

/// As a broker's node has them: each keeps what it leads.
fn nodes(stores: &[storage::Store; 3]) -> [(Arc<dyn ChannelStore>, QueueStore); 3] {
    std::array::from_fn(|at| {
        let channels = EmbeddedStore::new(stores[at].clone(), TestClock::at(1_000));
        let channels: Arc<dyn ChannelStore> = Arc::new(channels);
        let queues = QueueStore::open(Arc::clone(&channels), QueueOptions::default());
        (channels, queues)
    })
}

/// Binds as soon as somebody leads.
async fn bind(queues: &QueueStore, role: ChanRole) -> Endpoint {
    let config = ChannelConfig::new(1_000, Duration::from_secs(60));
    let start = Instant::now();
    loop {
        match new_or_bind_with_unique_key(queues, &config, "q", ChanType::Mpsc, role).await {
            Ok(bound) => return bound,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn producer(queues: &QueueStore) -> Producer {
    bind(queues, ChanRole::Producer).await.producer().unwrap()
}

/// The next record is this one, and done with.
async fn expect(reader: &Consumer, number: u8) {
    let items = reader.get_data(1, Some(PATIENCE), 0).await.unwrap();
    assert_eq!(items[0].payload[..], [number]);
    let start = Instant::now();
    while let Err(error) = reader.ack(&[items[0].id]).await {
        // Leaders change.
        assert!(matches!(error, QueueError::Unavailable(_)) && start.elapsed() < PATIENCE, "{error}");
    }
}

/// Checklist 27 (lease spec 15.2): a publisher that goes from node to node is read in its order: when it leaves in order, and when its old node is
/// cut off in the middle of an append. The new node ends the old one's lease before it goes on; what comes late is refused, not put behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_27_a_producer_that_moves_between_nodes_keeps_its_order() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let nodes = nodes(&stores);
    let reader = bind(&nodes[2].1, ChanRole::Consumer).await.consumer().unwrap();
    let mut sent = 0;
    for round in 0..9 {
        let here = producer(&nodes[round % 3].1).await;
        for _ in 0..5 {
            here.put_data([sent]).await.unwrap();
            sent += 1;
        }
        here.close().await.unwrap();
    }
    for number in 0..sent {
        expect(&reader, number).await;
    }

    let old = producer(&nodes[0].1).await;
    old.put_data([sent]).await.unwrap();
    let group = old.chan_id().0;
    let lease = nodes[0].1.leases().view();
    let lease = lease.iter().find(|view| view.backend.ends_with(&format!("/{group}"))).unwrap().lease;
    net.isolate(1);
    // The old node does not know what becomes of it, and goes on trying.
    let late = tokio::spawn(async move { old.put_data([sent + 1]).await });
    let backend = TableBackend::new(Arc::clone(&nodes[1].0), group);
    // These directories were never made one cluster by name.
    let lease = LeaseRef { incarnation: backend.incarnation(), ..lease };
    let start = Instant::now();
    while let Err(error) = backend.revoke(lease).await {
        assert!(start.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let new = producer(&nodes[1].1).await;
    for number in sent + 1..sent + 4 {
        new.put_data([number]).await.unwrap();
    }
    net.heal();
    let late = tokio::time::timeout(PATIENCE, late).await.unwrap().unwrap();
    assert_eq!(late, Err(QueueError::LeaseLost));
    new.put_data([sent + 4]).await.unwrap();
    for number in sent..sent + 5 {
        expect(&reader, number).await;
    }
    assert_eq!(reader.get_data(1, Some(Duration::from_millis(300)), 0).await, Err(QueueError::NoNewMessage));
    for (_, queues) in &nodes {
        queues.close().await.unwrap();
    }
    for store in stores {
        store.close().await.unwrap();
    }
}
