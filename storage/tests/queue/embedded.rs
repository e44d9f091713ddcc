//! What only a store on disk can promise: restarts, damage, clocks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use storage::lease::{Alive, LeaseBackend, LeaseManager, TableBackend};
use storage::queue::{ChanType, ChannelStore, EmbeddedStore, QueueOptions, QueueStore, Request, Response};
use storage::{Clock, Options, Store};

use crate::bench::{Bench, bind_producer, config, consumer, get, ids, payloads, producer};
use crate::support::{self, TestClock};

pub(crate) async fn reopen(options: &Options, clock: &Arc<TestClock>) -> (Store, Arc<dyn ChannelStore>) {
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    let options = Options { boot: support::fresh_boot(), ..options.clone() };
    let store = Store::open(options, Arc::clone(&clock)).await.unwrap();
    support::start_boot(&store).await;
    let channels = EmbeddedStore::new(store.clone(), clock);
    (store, Arc::new(channels))
}

/// Checklist 6 (H-05, H-06): over a restart no lease id is given out twice, remaining times go on where they were, records and members
/// are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_6_a_restart_keeps_leases_members_and_records() {
    let dir = tempfile::tempdir().unwrap();
    let options = support::options(dir.path());
    let clock = TestClock::at(1_000_000);
    let (store, channels) = reopen(&options, &clock).await;
    support::start_boot(&store).await;
    let queues = QueueStore::open(Arc::clone(&channels), QueueOptions::default());
    let made = producer(&queues, "q", ChanType::Mpsc).await;
    for number in 0..10_u8 {
        made.put_data([number]).await.unwrap();
    }
    let group = made.chan_id().0;
    let backend: Arc<dyn LeaseBackend> = Arc::new(TableBackend::new(Arc::clone(&channels), group));
    let manager = LeaseManager::new();
    let armed = manager.grant(&backend, Duration::from_secs(100), "test").await.unwrap();
    let armed = armed.arm(Duration::from_secs(50)).await.map_err(|(_, error)| error).unwrap().lease;
    let [Alive::Left(before)] = backend.probe(vec![armed]).await[..] else { panic!("it runs") };
    drop((made, queues));
    store.close().await.unwrap();
    drop((store, channels, backend));

    let (store, channels) = reopen(&options, &clock).await;
    let backend: Arc<dyn LeaseBackend> = Arc::new(TableBackend::new(Arc::clone(&channels), group));
    let [Alive::Left(after)] = backend.probe(vec![armed]).await[..] else { panic!("it still runs") };
    assert!(before.abs_diff(after) <= Duration::from_secs(5), "{before:?} before, {after:?} after");
    let next = manager.grant(&backend, Duration::from_secs(100), "test").await.unwrap();
    assert!(next.lease().id > armed.id && next.lease().incarnation == armed.incarnation);
    let queues = QueueStore::open(Arc::clone(&channels), QueueOptions::default());
    let reader = consumer(&queues, "q", ChanType::Mpsc).await;
    let items = get(&reader, 10).await;
    assert_eq!(payloads(&items), (0..10_u8).map(|number| vec![number]).collect::<Vec<_>>());
    queues.close().await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_19_clock_steps_end_no_lease() {
    clock_steps_end_no_lease(Bench::embedded().await).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_19_clock_steps_end_no_lease_of_etcd() {
    clock_steps_end_no_lease(Bench::etcd().await).await;
}

/// Checklist 19 (H-22): the wall clock may step by an hour, there and back: no lease ends.
async fn clock_steps_end_no_lease(bench: Bench) {
    let queues = bench.process();
    let producer = producer(&queues, "q", ChanType::Mpsc).await;
    let (_, _, clock) = bench.store.as_ref().unwrap();
    let hour = 3_600_000;
    for step in [hour, 10 * hour] {
        clock.0.fetch_add(step, Ordering::SeqCst);
        producer.put_data(b"x").await.unwrap();
        tokio::time::sleep(bench.ttl / 2).await;
        clock.0.fetch_sub(step / 2, Ordering::SeqCst);
        tokio::time::sleep(bench.ttl / 2).await;
        producer.put_data(b"x").await.unwrap();
    }
    queues.close().await.unwrap();
    bench.end().await;
}

/// Checklist 5 (H-03): a body that is gone from the disk is skipped and counted; the reader goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_5_a_lost_body_is_skipped_and_counted() {
    use redb::ReadableTable;
    const BODIES: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("bodies");
    let dir = tempfile::tempdir().unwrap();
    let options = support::options(dir.path());
    let clock = TestClock::at(1_000_000);
    let (store, channels) = reopen(&options, &clock).await;
    support::start_boot(&store).await;
    let queues = QueueStore::open(channels, QueueOptions::default());
    let made = producer(&queues, "q", ChanType::Mpsc).await;
    let group = made.chan_id().0;
    for number in 0..4_u8 {
        made.put_data([number]).await.unwrap();
    }
    queues.close().await.unwrap();
    store.close().await.unwrap();
    drop((store, queues, made));
    let database = redb::Database::open(dir.path().join(format!("state/g{group:03}.redb"))).unwrap();
    let change = database.begin_write().unwrap();
    {
        // A row of a file of bodies: its number, its end, and a bit a record that says whether it is gone.
        let mut files = change.open_table(BODIES).unwrap();
        let row = files.get(1).unwrap().expect("body 1 is the first of its file").value()[..12].to_vec();
        files.insert(1, &*[&row[..], &[0b10]].concat()).unwrap();
    }
    change.commit().unwrap();
    drop(database);
    let (store, channels) = reopen(&options, &clock).await;
    let queues = QueueStore::open(channels, QueueOptions::default());
    let reader = consumer(&queues, "q", ChanType::Mpsc).await;
    let items = get(&reader, 3).await;
    assert_eq!(payloads(&items), [[0], [2], [3]]);
    assert_eq!(reader.stat().lost, 1);
    reader.ack(&ids(&items)).await.unwrap();
    queues.close().await.unwrap();
    store.close().await.unwrap();
}

/// DESIGN §9: a backlog larger than memory is read back from disk in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_beyond_memory_is_read_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = support::options(dir.path());
    options.resident_bytes_max = 20_000;
    let clock = TestClock::at(1_000_000);
    let (store, channels) = reopen(&options, &clock).await;
    support::start_boot(&store).await;
    let queues = QueueStore::open(Arc::clone(&channels), QueueOptions::default());
    let config = config(1_000);
    let producer = bind_producer(&queues, "q", ChanType::Mpsc, &config).await.unwrap();
    for number in 0..100_u8 {
        producer.put_data(vec![number; 1_000]).await.unwrap();
    }
    let group = storage::GroupId(producer.chan_id().0);
    support::eventually("bodies leave memory", || {
        store.read(group, |rows| rows.stat().messages_resident_bytes) <= 10_000
    })
    .await;
    let reader = crate::bench::bind_consumer(&queues, "q", ChanType::Mpsc, &config).await.unwrap();
    let items = get(&reader, 100).await;
    assert!(items.iter().enumerate().all(|(at, item)| item.payload == vec![at as u8; 1_000]));
    queues.close().await.unwrap();
    store.close().await.unwrap();
}

/// Checklist 20 (H-23) on disk: channels that came and went leave neither leases, nor members, nor bodies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_20_nothing_is_left_but_counters() {
    let bench = Bench::embedded().await;
    let queues = bench.process();
    let mut channels = Vec::new();
    for number in 0..40_u8 {
        let producer = producer(&queues, &format!("q{number}"), ChanType::Mpmc).await;
        producer.put_data([number]).await.unwrap();
        channels.push(producer.chan_id());
    }
    for (group, channel) in channels {
        let delete = session::queue::QueueCommand::Delete { channel };
        let answer = bench.channels.call(group, Request::Queue(delete)).await.unwrap();
        assert!(matches!(answer, Response::Queue(session::queue::QueueReply::Done)));
    }
    queues.close().await.unwrap();
    let (store, _, _) = bench.store.as_ref().unwrap();
    support::eventually("everything is reclaimed", || {
        (0..store.groups()).all(|group| {
            store.read(storage::GroupId(group), |rows| {
                let stat = rows.space().stat();
                (stat.channels, stat.subs, stat.members, stat.messages) == (0, 0, 0, 0)
                    && rows.space().leases().is_empty()
                    && rows.stat().messages_stored == 0
            })
        })
    })
    .await;
    bench.end().await;
}
