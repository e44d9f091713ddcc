//! Queues from the command line: one process has the store, any number of others produce and consume.
//!
//! ```text
//! queue_demo --role store --data-dir DIR          has the channels: write-ahead log, fsync; serves DIR/queue.sock
//! queue_demo --role producer --data-dir DIR       in other terminals
//! queue_demo --role consumer --data-dir DIR
//! queue_demo --role both --data-dir DIR --producers 80 --consumers 8 --seconds 90      all in one process
//! ```
//! Ctrl-C closes endpoints, then their store, and exits with 130. A consumer that is killed loses nothing: what it did not acknowledge
//! comes to the next one, after its lease ended.

#[path = "queue_demo/link.rs"]
mod link;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use session::id::Boot;
use session::lifecycle::{Command, Reply};
use session::time::Millis;
use storage::queue::{
    ChanRole, ChanType, ChannelConfig, ChannelStore, EmbeddedStore, QueueError, QueueOptions, QueueStore,
    Stage, StageDurations, new_or_bind_with_unique_key,
};
use storage::{Clock, EngineKind, Formation, GroupId, Options, Store};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Store,
    Producer,
    Consumer,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Type {
    Mpsc,
    Mpmc,
    Group,
}

/// Producers and consumers of one channel.
#[derive(Debug, Clone, Parser)]
struct Args {
    #[arg(long)]
    role: Role,
    /// Where the store is, or will be.
    #[arg(long, default_value = "./queue-data")]
    data_dir: PathBuf,
    /// The name that everybody knows the channel by.
    #[arg(long, default_value = "demo")]
    name: String,
    #[arg(long = "type", default_value = "mpmc")]
    of: Type,
    /// Records that are not acknowledged, at most (MPMC: per consumer).
    #[arg(long, default_value_t = 40)]
    capacity: u64,
    /// Seconds that the channel outlives its last member.
    #[arg(long, default_value_t = 90)]
    ttl: u64,
    /// Producers of this process.
    #[arg(long, default_value_t = 1)]
    producers: u32,
    /// Consumers of this process (MPSC: one).
    #[arg(long, default_value_t = 1)]
    consumers: u32,
    /// Bytes of a record.
    #[arg(long, default_value_t = 256)]
    size: usize,
    /// Records that each producer appends; 0: no end.
    #[arg(long, default_value_t = 0)]
    count: u64,
    /// Ends after so long; 0: no end.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Milliseconds that a consumer works on a record.
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
    /// Records that a consumer takes and acknowledges together.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Records that a consumer reads ahead.
    #[arg(long, default_value_t = 64)]
    prefetch: usize,
    /// Seconds that members outlive a process that dies.
    #[arg(long, default_value_t = 15)]
    lease: u64,
    /// Prints every record that is consumed.
    #[arg(long)]
    print: bool,
    /// Prints every record that was appended or acknowledged, once that is certain.
    #[arg(long)]
    report: bool,
}

/// The wall clock, never backwards.
#[derive(Debug, Default)]
struct SystemClock(AtomicU64);

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let wall = u64::try_from(wall).unwrap_or(u64::MAX);
        Millis(self.0.fetch_max(wall, Ordering::Relaxed).max(wall))
    }

    fn observe(&self, seen: Millis) {
        self.0.fetch_max(seen.0, Ordering::Relaxed);
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Default)]
struct Totals {
    produced: AtomicU64,
    consumed: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let interrupted = tokio::spawn(async { tokio::signal::ctrl_c().await.is_ok() });
    match run(args, interrupted).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("queue_demo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args, interrupted: tokio::task::JoinHandle<bool>) -> Result<ExitCode, Failure> {
    let own = match args.role {
        Role::Store | Role::Both => Some(open(&args.data_dir).await?),
        Role::Producer | Role::Consumer => None,
    };
    let channels: Arc<dyn ChannelStore> = match &own {
        Some((_, channels)) => Arc::clone(channels),
        None => Arc::new(link::RemoteStore::connect(&socket(&args.data_dir)).await?),
    };
    let lease_ttl = Duration::from_secs(args.lease);
    let options = QueueOptions { keeper: own.is_some(), lease_ttl, ..QueueOptions::default() };
    let queues = QueueStore::open(Arc::clone(&channels), options);
    let ended = match args.role {
        Role::Store => {
            let socket = socket(&args.data_dir);
            let listener = link::listen(&socket)?;
            println!("serving {}", socket.display());
            tokio::select! {
                served = link::serve(listener, channels) => served.map(|()| false)?,
                interrupted = interrupted => interrupted?,
            }
        }
        _ => work(&args, &queues, interrupted).await?,
    };
    queues.close().await?;
    if let Some((store, _)) = own {
        store.close().await?;
    }
    Ok(if ended { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

fn socket(data_dir: &Path) -> PathBuf {
    data_dir.join("queue.sock")
}

/// The store of this process: the real one, alone.
async fn open(data_dir: &Path) -> Result<(Store, Arc<dyn ChannelStore>), Failure> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let boot_id = format!("{:016x}{:016x}", clock.now().0, std::process::id());
    let options = Options {
        data_dir: data_dir.to_owned(),
        boot: Boot { node_id: 1, boot_id: boot_id.into() },
        groups: 4,
        engine: EngineKind::Redb,
        segment_bytes: 64 << 20,
        checkpoint_bytes: 64 << 20,
        resident_bytes_max: 256 << 20,
        peers: None,
        formation: Formation::Alone,
    };
    let store = Store::open(options, Arc::clone(&clock)).await?;
    for group in 0..store.groups() {
        let reply = store.call(GroupId(group), Command::BootStart { lease_until: Millis::NEVER }).await?;
        if let Reply::Conflict(conflict) = reply {
            return Err(conflict.into());
        }
    }
    let channels = EmbeddedStore::new(store.clone(), clock);
    Ok((store, Arc::new(channels)))
}

/// Produces and consumes until it is told to stop or everything is done. True: it was interrupted.
async fn work(
    args: &Args,
    queues: &QueueStore,
    interrupted: tokio::task::JoinHandle<bool>,
) -> Result<bool, Failure> {
    let totals = Arc::new(Totals::default());
    let mut producers = tokio::task::JoinSet::new();
    let mut consumers = tokio::task::JoinSet::new();
    if args.role != Role::Producer {
        for _ in 0..args.consumers {
            consumers.spawn(consume(args.clone(), queues.clone(), Arc::clone(&totals)));
        }
    }
    if args.role != Role::Consumer {
        for number in 0..args.producers {
            producers.spawn(produce(args.clone(), queues.clone(), Arc::clone(&totals), number));
        }
    }
    let start = Instant::now();
    let limit = async {
        match args.seconds {
            0 => std::future::pending().await,
            seconds => tokio::time::sleep(Duration::from_secs(seconds)).await,
        }
    };
    let done = async {
        while producers.join_next().await.is_some() {}
        if args.role == Role::Producer {
            return;
        }
        // Consumers end when what all producers of this process appended is consumed; alone they have no end.
        let all = totals.produced.load(Ordering::Relaxed);
        while args.role == Role::Consumer || totals.consumed.load(Ordering::Relaxed) < all {
            if consumers.is_empty() {
                return;
            }
            tokio::select! {
                _ = consumers.join_next() => {}
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
            }
        }
    };
    let ended = tokio::select! {
        interrupted = interrupted => interrupted?,
        () = limit => false,
        () = done => false,
    };
    totals.stop.store(true, Ordering::Relaxed);
    let took = start.elapsed();
    queues.close().await?;
    report(&totals, took, &queues.latency());
    if totals.failed.load(Ordering::Relaxed) > 0 {
        return Err("some operations failed".into());
    }
    Ok(ended)
}

fn report(totals: &Totals, took: Duration, stages: &StageDurations) {
    for (stage, durations) in
        Stage::ALL.into_iter().zip(stages).filter(|(_, durations)| durations.count() > 0)
    {
        println!("{}: {durations}", stage.word());
    }
    let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / took.as_secs_f64().max(0.001);
    println!(
        "produced {} ({:.0}/s), consumed {} ({:.0}/s), failed {} in {:.1} s",
        totals.produced.load(Ordering::Relaxed),
        rate(&totals.produced),
        totals.consumed.load(Ordering::Relaxed),
        rate(&totals.consumed),
        totals.failed.load(Ordering::Relaxed),
        took.as_secs_f64(),
    );
}

fn config(args: &Args) -> (ChannelConfig, ChanType) {
    let of = match args.of {
        Type::Mpsc => ChanType::Mpsc,
        Type::Mpmc => ChanType::Mpmc,
        Type::Group => ChanType::Group,
    };
    (ChannelConfig::new(args.capacity, Duration::from_secs(args.ttl)), of)
}

async fn produce(args: Args, queues: QueueStore, totals: Arc<Totals>, number: u32) {
    if let Err(error) = produce_all(&args, &queues, &totals, number).await
        && error != QueueError::ProducerClosed
    {
        eprintln!("producer {number}: {error} (code {})", error.code());
        totals.failed.fetch_add(1, Ordering::Relaxed);
    }
}

async fn produce_all(
    args: &Args,
    queues: &QueueStore,
    totals: &Totals,
    number: u32,
) -> Result<(), QueueError> {
    let (config, of) = config(args);
    let bound = new_or_bind_with_unique_key(queues, &config, &args.name, of, ChanRole::Producer).await?;
    let producer = bound.producer()?;
    let mut sequence = 0_u64;
    while (args.count == 0 || sequence < args.count) && !totals.stop.load(Ordering::Relaxed) {
        let name = format!("{}-{number}-{sequence}", std::process::id());
        let mut record = format!("{name} ").into_bytes();
        record.resize(args.size.max(record.len()), b'.');
        producer.put_data(record).await?;
        if args.report {
            println!("appended {name}");
        }
        sequence += 1;
        totals.produced.fetch_add(1, Ordering::Relaxed);
    }
    producer.close().await
}

async fn consume(args: Args, queues: QueueStore, totals: Arc<Totals>) {
    match consume_all(&args, &queues, &totals).await {
        Ok(()) | Err(QueueError::ChannelClosed(_)) => {}
        Err(error) => {
            eprintln!("consumer: {error} (code {})", error.code());
            totals.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn consume_all(args: &Args, queues: &QueueStore, totals: &Totals) -> Result<(), QueueError> {
    let (config, of) = config(args);
    let bound = new_or_bind_with_unique_key(queues, &config, &args.name, of, ChanRole::Consumer).await?;
    let consumer = bound.consumer()?;
    loop {
        let items = match consumer.get_data(args.batch, Some(Duration::from_secs(1)), args.prefetch).await {
            Ok(items) => items,
            Err(QueueError::NoNewMessage) => continue,
            Err(error) => return Err(error),
        };
        for item in &items {
            if args.print {
                let mark = if item.redelivered { " (again)" } else { "" };
                println!("{}{mark}", name(&item.payload));
            }
            if args.work_ms > 0 {
                tokio::time::sleep(Duration::from_millis(args.work_ms)).await;
            }
        }
        let ids: Vec<_> = items.iter().map(|item| item.id).collect();
        match consumer.ack(&ids).await {
            Ok(()) if args.report => {
                items.iter().for_each(|item| println!("acknowledged {}", name(&item.payload)));
            }
            // Another one has them now: they come again there.
            Ok(()) | Err(QueueError::Fenced) => {}
            Err(error) => return Err(error),
        }
        totals.consumed.fetch_add(items.len() as u64, Ordering::Relaxed);
    }
}

/// What a producer called the record.
fn name(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).split(' ').next().unwrap_or_default().to_owned()
}
