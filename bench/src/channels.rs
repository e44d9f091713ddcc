//! `bench queues`: channels of the queue layer, producers and consumers in one process with its store on disk (write-ahead log, fsync).
//! The figures of R-21 and the shapes of lease spec §12.2, so that another system's run can be put beside them.

mod recovery;
mod shape;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use session::id::Boot;
use session::lifecycle::{Command, Reply};
use session::time::Millis;
use storage::queue::{ChannelStore, EmbeddedStore, QueueOptions, QueueStore};
use storage::{Clock, EngineKind, Formation, GroupId, Options, Store};

use shape::{SHAPES, Shape};

/// The wall clock, never backwards.
#[derive(Debug, Default)]
struct WallClock(AtomicU64);

impl Clock for WallClock {
    fn now(&self) -> Millis {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let wall = u64::try_from(wall).unwrap_or(u64::MAX);
        Millis(self.0.fetch_max(wall, Ordering::Relaxed).max(wall))
    }

    fn observe(&self, seen: Millis) {
        self.0.fetch_max(seen.0, Ordering::Relaxed);
    }
}

/// What one run measured.
pub(crate) struct Measured {
    pub(crate) consumed: u64,
    pub(crate) failed: u64,
    pub(crate) took: Duration,
    /// Nanoseconds of appends, and from before an append until the consumer has the record.
    pub(crate) append: Histogram<u64>,
    pub(crate) through: Histogram<u64>,
}

/// A store as a node has it, and its channels.
struct Place {
    store: Store,
    queues: QueueStore,
}

impl Place {
    async fn open(data_dir: &Path) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(WallClock::default());
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
            let start = Command::BootStart { lease_until: Millis::NEVER };
            if let Reply::Conflict(conflict) = store.call(GroupId(group), start).await? {
                bail!("{conflict}");
            }
        }
        let channels: Arc<dyn ChannelStore> = Arc::new(EmbeddedStore::new(store.clone(), clock));
        let queues = QueueStore::open(channels, QueueOptions::default());
        Ok(Self { store, queues })
    }

    async fn close(self) -> Result<()> {
        self.queues.close().await?;
        self.store.close().await?;
        Ok(())
    }
}

/// Names of the shapes.
pub(crate) fn list() {
    for shape in SHAPES {
        println!("{}", shape.name);
    }
    println!("{}", recovery::NAME);
}

/// Runs the shapes whose name contains `only`, each for `seconds`.
pub(crate) fn run(only: &str, seconds: f64) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("| shape | messages/s | MB/s | append p50, p99, p99.9 | end to end p50, p99, p99.9 | failed |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for shape in SHAPES.iter().filter(|shape| shape.name.contains(only)) {
        let dir = tempfile::tempdir()?;
        let measured = runtime.block_on(async {
            let place = Place::open(dir.path()).await?;
            let measured = shape::measure(shape, &place.queues, Duration::from_secs_f64(seconds)).await;
            place.close().await?;
            measured
        });
        println!("{}", row(shape, &measured.with_context(|| shape.name)?));
    }
    if recovery::NAME.contains(only) {
        let dir = tempfile::tempdir()?;
        println!("\n{}", runtime.block_on(recovery::measure(dir.path()))?);
    }
    Ok(())
}

/// The process that [`run`] kills.
pub(crate) fn fill(dir: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(recovery::fill(dir))
}

fn row(shape: &Shape, measured: &Measured) -> String {
    let rate = measured.consumed as f64 / measured.took.as_secs_f64();
    let megabytes = rate * shape.payload as f64 / 1e6;
    format!(
        "| {} | {rate:.0} | {megabytes:.2} | {} | {} | {} |",
        shape.name,
        quantiles(&measured.append),
        quantiles(&measured.through),
        measured.failed
    )
}

fn quantiles(nanoseconds: &Histogram<u64>) -> String {
    let at = |quantile: f64| {
        let micros = nanoseconds.value_at_quantile(quantile) as f64 / 1e3;
        if micros >= 1_000.0 { format!("{:.2} ms", micros / 1e3) } else { format!("{micros:.0} us") }
    };
    if nanoseconds.is_empty() { "–".to_owned() } else { [0.5, 0.99, 0.999].map(at).join(", ") }
}

/// Nanoseconds since `began`.
fn nanos(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
