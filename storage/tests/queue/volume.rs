//! Many: what came and went leaves nothing behind, in whatever number and order.
//!
//! `make test` runs few of each; for the figures of a release set `EXACTMQ_QUEUE_CHANNELS` (100000) and `EXACTMQ_QUEUE_MESSAGES` (10000000).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use session::lease::LeaseCommand;
use session::lifecycle::Command;
use session::queue::PAYLOAD_GRACE_MS;
use storage::queue::{ChanType, ChannelConfig, ChannelStore, QueueOptions, QueueStore, Record};
use storage::{GroupId, Options, Store};

use crate::bench::{PATIENCE, bind_consumer, bind_producer, get, ids};
use crate::embedded::reopen;
use crate::support::{self, TestClock};

const KINDS: [ChanType; 3] = [ChanType::Mpsc, ChanType::Mpmc, ChanType::Group];

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Small files, so that checkpoints and purges happen within a test.
fn options(dir: &Path) -> Options {
    Options { checkpoint_bytes: 1 << 20, ..support::options(dir) }
}

fn processes(channels: &Arc<dyn ChannelStore>, keeper: bool) -> QueueStore {
    let options = QueueOptions { lease_ttl: Duration::from_secs(5), keeper, ..QueueOptions::default() };
    QueueStore::open(Arc::clone(channels), options)
}

/// Lease time goes on by so much at once.
async fn pass(store: &Store, ms: u64) {
    for group in (0..store.groups()).map(GroupId) {
        let clock = || store.read(group, |rows| rows.space().leases().clock());
        let to = clock() + ms;
        // The keeper may let it go on between the look and the beat, which then is none.
        while clock() < to {
            let beat = LeaseCommand::Beat { from: clock(), to };
            store.call(group, Command::Lease(beat)).await.unwrap();
        }
    }
}

fn rest(store: &Store) -> String {
    let groups = (0..store.groups()).map(|group| {
        store.read(GroupId(group), |rows| {
            rows.space().check().unwrap();
            format!(
                "{:?}, {:?}, bodies {}",
                rows.space().stat(),
                rows.space().leases().stat(),
                rows.stat().messages_stored
            )
        })
    });
    groups.collect::<Vec<_>>().join("; ")
}

/// Lease time flies meanwhile.
async fn until_nothing_is_left(store: &Store) {
    let empty = |group| {
        store.read(GroupId(group), |rows| {
            rows.space().stat() == session::queue::SpaceStat::default()
                && rows.space().leases().is_empty()
                && rows.stat().messages_stored == 0
        })
    };
    let start = Instant::now();
    while !(0..store.groups()).all(empty) {
        assert!(start.elapsed() < 4 * PATIENCE, "what is left: {}", rest(store));
        pass(store, 3_000).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One channel's life; some of its members leave with a record taken and not acknowledged.
async fn live(queues: &QueueStore, number: usize) {
    let config = ChannelConfig::new(10, Duration::from_secs(1));
    let (name, of) = (format!("channel {number}"), KINDS[number % 3]);
    let producer = bind_producer(queues, &name, of, &config).await.unwrap();
    assert!(producer.created());
    producer.put_data(Record::new([7; 40])).await.unwrap();
    if number % 10 < 3 {
        let consumer = bind_consumer(queues, &name, of, &config).await.unwrap();
        assert_eq!(get(&consumer, 1).await.len(), 1);
        consumer.close().await.unwrap();
    }
    producer.close().await.unwrap();
}

/// Bytes of the log and of the state.
fn bytes_on_disk(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    files
        .map(|file| {
            let kind = file.metadata().unwrap();
            if kind.is_dir() { bytes_on_disk(&file.path()) } else { kind.len() }
        })
        .sum()
}

/// Keys of the rows on disk that are of channels, without the counters, and of files of bodies.
fn keys_left(dir: &Path, groups: u16) -> Vec<Vec<u8>> {
    use redb::{ReadableDatabase, ReadableTable};
    const ROWS: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("rows");
    const BODIES: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("bodies");
    let mut left = Vec::new();
    for group in 0..groups {
        let database = redb::Database::open(dir.join(format!("state/g{group:03}.redb"))).unwrap();
        let read = database.begin_read().unwrap();
        let (rows, bodies) = (read.open_table(ROWS).unwrap(), read.open_table(BODIES).unwrap());
        let keys = rows.iter().unwrap().map(|row| row.unwrap().0.value().to_vec());
        let counters = [session::queue::ROW, 1];
        left.extend(keys.filter(|key| key[0] == session::queue::ROW && key[..] != counters));
        left.extend(bodies.iter().unwrap().map(|row| row.unwrap().0.value().to_be_bytes().to_vec()));
    }
    left
}

/// Checklist 20 (H-23): channels that are created and expire, in quarters: no key, row or body is left but counters, and the disk that they
/// took does not grow with their number (a file of redb doubles when its pages run out, which may be later than in the first quarter).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_20_created_and_expired_channels_leave_nothing() {
    const TASKS: usize = 128;
    const ROUNDS: usize = 4;
    let quarter = number("EXACTMQ_QUEUE_CHANNELS", 5_000) / ROUNDS;
    let dir = tempfile::tempdir().unwrap();
    let (store, channels) = reopen(&options(dir.path()), &TestClock::at(1_000_000)).await;
    let mut disk = Vec::new();
    for round in 0..ROUNDS {
        let began = Instant::now();
        let (queues, keeper) = (processes(&channels, false), processes(&channels, true));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let queues = queues.clone();
            tasks.spawn(async move {
                for at in (task..quarter).step_by(TASKS) {
                    live(&queues, round * quarter + at).await;
                }
            });
        }
        tasks.join_all().await;
        queues.close().await.unwrap();
        let (lived, began) = (began.elapsed(), Instant::now());
        pass(&store, PAYLOAD_GRACE_MS + 3_000).await;
        until_nothing_is_left(&store).await;
        keeper.close().await.unwrap();
        store.checkpoint().await.unwrap();
        disk.push(bytes_on_disk(dir.path()));
        println!(
            "{quarter} channels lived {lived:?}, went in {:?}; {} bytes on disk",
            began.elapsed(),
            disk[round]
        );
    }
    let groups = store.groups();
    store.close().await.unwrap();
    drop((store, channels));
    assert!(disk[ROUNDS - 1] <= 2 * disk[0] + (4 << 20), "{disk:?} bytes on disk");
    assert_eq!(keys_left(dir.path(), groups), Vec::<Vec<u8>>::new());
    // What is left is a state that opens, with names that are free.
    let (store, channels) = reopen(&options(dir.path()), &TestClock::at(2_000_000)).await;
    let queues = processes(&channels, true);
    live(&queues, 0).await;
    queues.close().await.unwrap();
    store.close().await.unwrap();
}

/// Checklist 18 (H-21, H-24): messages that pass through one queue: its rows, its memory and its files are those of what waits, not of what was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_18_a_queue_does_not_grow_with_its_history() {
    const BATCH: usize = 500;
    const STEPS: usize = 4;
    let step = number("EXACTMQ_QUEUE_MESSAGES", 200_000) / STEPS / BATCH * BATCH;
    let dir = tempfile::tempdir().unwrap();
    let (store, channels) = reopen(&options(dir.path()), &TestClock::at(1_000_000)).await;
    let queues = processes(&channels, true);
    let config = ChannelConfig::new(4 * BATCH as u64, Duration::from_secs(60));
    let producer = bind_producer(&queues, "q", ChanType::Mpsc, &config).await.unwrap();
    let reader = bind_consumer(&queues, "q", ChanType::Mpsc, &config).await.unwrap();
    let group = GroupId(producer.chan_id().0);
    let mut sizes = Vec::new();
    for _ in 0..STEPS {
        let producing = async {
            for _ in 0..step / BATCH {
                producer.put_batch(vec![Record::new([1; 16]); BATCH], None).await.unwrap();
            }
        };
        let consuming = async {
            let mut left = step;
            while left > 0 {
                let items = reader.get_data(BATCH, Some(PATIENCE), BATCH).await.unwrap();
                reader.ack(&ids(&items)).await.unwrap();
                left -= items.len();
            }
        };
        tokio::join!(producing, consuming);
        store.checkpoint().await.unwrap();
        let mut rows = Vec::new();
        store.export(group, &mut rows).unwrap();
        let resident = store.read(group, |rows| rows.stat().messages_resident_bytes);
        sizes.push((rows.len(), resident, bytes_on_disk(dir.path())));
    }
    println!("{step} messages a step: bytes of rows, of bodies in memory, on disk: {sizes:?}");
    let (first, last) = (sizes[0], sizes[STEPS - 1]);
    assert!(last.0 <= first.0 + 256, "counters grow by a few bytes, rows do not: {sizes:?}");
    assert_eq!(last.1, 0, "{sizes:?}");
    assert!(last.2 <= first.2 + (6 << 20), "{sizes:?}");
    queues.close().await.unwrap();
    store.close().await.unwrap();
}

/// A member of the storm: it does whatever comes to its mind, and may die of it.
async fn storm(channels: Arc<dyn ChannelStore>, mut seed: u64, until: Instant) {
    let mut next = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    while Instant::now() < until {
        // Dropped with everything it has, or closed.
        let queues = QueueStore::open(
            Arc::clone(&channels),
            QueueOptions { lease_ttl: Duration::from_secs(1), keeper: false, ..QueueOptions::default() },
        );
        let of = KINDS[usize::try_from(next(3)).unwrap()];
        let name = format!("{of:?} {}", next(2));
        let config = ChannelConfig::new(20, Duration::from_secs(1));
        let producer = bind_producer(&queues, &name, of, &config).await.unwrap();
        let consumer = bind_consumer(&queues, &name, of, &config).await;
        for _ in 0..next(20) {
            let record = if next(4) == 0 { Record::new([2; 9]).exclusive() } else { Record::new([1; 5]) };
            let _ = producer.put_data_within(record, Duration::from_millis(next(5))).await;
            let Ok(consumer) = &consumer else { continue };
            let batch = usize::try_from(next(4)).unwrap();
            if let Ok(items) = consumer.get_data(batch, Some(Duration::ZERO), batch).await {
                match next(4) {
                    0 => {}
                    1 if of == ChanType::Group => consumer.release(&ids(&items)).await.unwrap(),
                    _ => consumer.ack(&ids(&items)).await.unwrap_or_default(),
                }
            }
        }
        if next(3) > 0 {
            queues.close().await.unwrap();
        }
    }
}

/// Checklist 14 (H-14): whatever many members did at once, and however they ended, the counters are those of a full recount; so they are after a
/// restart, and in the end nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_14_counters_equal_a_recount_after_a_storm() {
    let dir = tempfile::tempdir().unwrap();
    let clock = TestClock::at(1_000_000);
    let (store, channels) = reopen(&options(dir.path()), &clock).await;
    let keeper = processes(&channels, true);
    let until = Instant::now() + Duration::from_secs(3);
    let mut members = tokio::task::JoinSet::new();
    for seed in 0..12 {
        members.spawn(storm(Arc::clone(&channels), seed, until));
    }
    while !members.is_empty() {
        let _ = tokio::time::timeout(Duration::from_millis(50), members.join_next()).await;
        rest(&store);
    }
    let before = rest(&store);
    keeper.close().await.unwrap();
    store.close().await.unwrap();
    drop((store, channels));
    let (store, channels) = reopen(&options(dir.path()), &clock).await;
    println!("after the storm {before}; after a restart {}", rest(&store));
    let keeper = processes(&channels, true);
    until_nothing_is_left(&store).await;
    keeper.close().await.unwrap();
    store.close().await.unwrap();
}
