//! Measures the store by itself: appends per second, latency, entries and fsyncs for 1, 64 and 1,024 writers, and the time of a start
//! with a million queued messages.
//!
//! `cargo run --release -p storage --example store_bench -- DIR [SECONDS] [BACKLOG]`

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use session::id::{Boot, Key, Owner};
use session::lifecycle::{Append, Command, Connect, Reply, Target};
use session::message::{Message, QoS};
use session::time::Millis;
use storage::{Clock, CompletionPort, Done, EngineKind, GroupId, Options, Proposal, StorageError, Store};

const BOOT: &str = "00112233445566778899aabbccddeeff";
const PAYLOAD_BYTES: usize = 64;
/// Sessions that messages are queued for.
const SESSIONS: usize = 64;

#[derive(Debug)]
struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Millis {
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Millis(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    }

    fn observe(&self, _seen: Millis) {}
}

/// Proposes the next command of a writer when the one before is committed.
#[derive(Debug)]
struct Writers {
    store: Store,
    targets: Vec<(GroupId, u64)>,
    started: Vec<parking_lot::Mutex<Instant>>,
    latencies_us: parking_lot::Mutex<Vec<u32>>,
    committed: AtomicU64,
    until: Instant,
}

/// The port that the store knows; it proposes in turn, so it needs itself.
#[derive(Debug)]
struct Port(std::sync::Weak<Writers>);

impl CompletionPort for Port {
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        let Some(writers) = self.0.upgrade() else { return };
        let now = Instant::now();
        writers.committed.fetch_add(batch.len() as u64, Ordering::Relaxed);
        {
            let mut latencies = writers.latencies_us.lock();
            for (token, reply) in &batch {
                if let Err(error) = reply {
                    eprintln!("{error}");
                }
                let started = writers.started[usize::try_from(*token).unwrap_or(0)].lock();
                latencies.push(u32::try_from((now - *started).as_micros()).unwrap_or(u32::MAX));
            }
        }
        if now < writers.until {
            writers.propose(batch.into_iter().map(|(token, _)| token));
        }
    }
}

impl Writers {
    fn propose(self: &Arc<Self>, tokens: impl Iterator<Item = u64>) {
        let port: Arc<dyn CompletionPort> = Arc::new(Port(Arc::downgrade(self)));
        let mut by_group: Vec<Vec<Proposal>> = (0..self.store.groups()).map(|_| Vec::new()).collect();
        for token in tokens {
            let writer = usize::try_from(token).unwrap_or(0);
            let (group, lifetime) = self.targets[writer % self.targets.len()];
            *self.started[writer].lock() = Instant::now();
            let done = Done::Port { port: Arc::clone(&port), token };
            by_group[usize::from(group.0)].push(Proposal { command: append(lifetime), done });
        }
        for (group, proposals) in (0..).zip(by_group) {
            if !proposals.is_empty() {
                self.store.propose(GroupId(group), proposals);
            }
        }
    }
}

fn append(lifetime: u64) -> Command {
    let mut message = Message::new("bench/topic", &[], &[b'x'; PAYLOAD_BYTES]);
    message.qos = QoS::AtLeastOnce;
    let target = Target {
        lifetime,
        qos: QoS::AtLeastOnce,
        retain: false,
        identifiers: smallvec::SmallVec::new(),
        shared: false,
    };
    Command::Append(Box::new(Append { message, stamp: None, targets: vec![target] }))
}

fn options(dir: &Path) -> Options {
    Options {
        data_dir: dir.to_owned(),
        boot: Boot { node_id: 1, boot_id: BOOT.into() },
        groups: 4,
        engine: EngineKind::Redb,
        segment_bytes: 64 << 20,
        checkpoint_bytes: 64 << 20,
        resident_bytes_max: 256 << 20,
        peers: None,
        formation: storage::Formation::Alone,
    }
}

async fn sessions(store: &Store) -> Result<Vec<(GroupId, u64)>, Arc<StorageError>> {
    for group in 0..store.groups() {
        store.call(GroupId(group), Command::BootStart { lease_until: Millis(u64::MAX) }).await?;
    }
    let mut targets = Vec::new();
    for number in 0..SESSIONS {
        let key = Key { namespace: "main".into(), client_id: format!("bench-{number}").into() };
        let group = store.group_of(&key);
        let owner = Owner {
            key,
            session_generation: 1,
            owner_generation: 1,
            node_id: 1,
            boot_id: BOOT.into(),
            connection_id: number as u64 + 1,
        };
        let connect = Connect {
            owner,
            uid: None,
            previous: None,
            clean_start: false,
            expiry_sec: u32::MAX,
            will: None,
        };
        if let Reply::Row { row, .. } = store.call(group, Command::Connect(Box::new(connect))).await? {
            targets.push((group, row.lifetime));
        }
    }
    Ok(targets)
}

async fn measure(store: &Store, targets: &[(GroupId, u64)], writers: usize, seconds: u64) {
    let now = Instant::now();
    let all = Arc::new(Writers {
        store: store.clone(),
        targets: targets.to_vec(),
        started: (0..writers).map(|_| parking_lot::Mutex::new(now)).collect(),
        latencies_us: parking_lot::Mutex::default(),
        committed: AtomicU64::new(0),
        until: now + Duration::from_secs(seconds),
    });
    let (fsyncs, entries, cpu) = (store.fsyncs(), applied(store), cpu_us());
    all.propose(0..writers as u64);
    tokio::time::sleep(Duration::from_secs(seconds) + Duration::from_millis(300)).await;
    let mut latencies = std::mem::take(&mut *all.latencies_us.lock());
    latencies.sort_unstable();
    let quantile = |q: f64| latencies.get((latencies.len() as f64 * q) as usize).copied().unwrap_or(0);
    let committed = all.committed.load(Ordering::Relaxed);
    println!(
        "{writers:>5} writers: {:>9.0}/s  p50 {:>6} us  p99 {:>6} us  {:>6} entries  {:>6} fsyncs  {:>5.2} us CPU/commit",
        committed as f64 / seconds as f64,
        quantile(0.5),
        quantile(0.99),
        applied(store) - entries,
        store.fsyncs() - fsyncs,
        (cpu_us() - cpu) as f64 / committed.max(1) as f64,
    );
}

fn applied(store: &Store) -> u64 {
    (0..store.groups()).map(|group| store.read(GroupId(group), session::lifecycle::Group::applied)).sum()
}

/// Processor time of this process in microseconds.
fn cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: u64 = stat
        .rsplit(')')
        .next()
        .map(|rest| {
            rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
        })
        .unwrap_or(0);
    ticks * 10_000
}

async fn backlog(dir: &Path, messages: usize) -> Result<(), Arc<StorageError>> {
    let store = Store::open(options(dir), Arc::new(WallClock)).await?;
    let targets = sessions(&store).await?;
    for page in 0..messages / 1_000 {
        let (group, lifetime) = targets[page % targets.len()];
        let proposals = (0..999).map(|_| Proposal { command: append(lifetime), done: Done::Nobody });
        store.propose(group, proposals.collect());
        store.call(group, append(lifetime)).await?;
    }
    drop(store);
    for how in ["after a kill", "after a close"] {
        let started = Instant::now();
        let store = Store::open(options(dir), Arc::new(WallClock)).await?;
        let queued: u64 = (0..store.groups())
            .map(|group| store.read(GroupId(group), |group| group.stat().inbox_messages))
            .sum();
        println!("start {how}: {queued} queued messages in {} ms", started.elapsed().as_millis());
        store.close().await?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: store_bench DIR [SECONDS] [BACKLOG]")?);
    let seconds = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let messages = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = Store::open(options(&dir.join("load")), Arc::new(WallClock)).await?;
        let targets = sessions(&store).await?;
        for writers in [1, 64, 1_024] {
            measure(&store, &targets, writers, seconds).await;
        }
        store.close().await?;
        backlog(&dir.join("backlog"), messages).await?;
        Ok(())
    })
}
