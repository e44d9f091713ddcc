//! Producers, consumers, payload and capacity: what is run, and how.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use storage::queue::{
    ChanRole, ChanType, ChannelConfig, Consumer, Producer, QueueError, QueueStore,
    new_or_bind_with_unique_key,
};
use tokio::task::JoinSet;

use super::{Measured, nanos};

/// The latencies of a histogram in nanoseconds: up to 10 minutes, three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are allowed")
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) kind: ChanType,
    /// Each with so many producers and consumers.
    pub(crate) channels: usize,
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    pub(crate) payload: usize,
    pub(crate) capacity: u64,
    /// Records that a consumer takes at once, and reads ahead.
    pub(crate) batch: usize,
    pub(crate) prefetch: usize,
    /// Milliseconds that a consumer works on a record, from and to.
    pub(crate) work_ms: (u64, u64),
    /// Records of each producer; 0: as many as come in the time.
    pub(crate) each: u64,
    /// Producer number n has weight n + 1.
    pub(crate) weighted: bool,
}

impl Shape {
    const fn mpmc(
        name: &'static str,
        producers: usize,
        consumers: usize,
        payload: usize,
        capacity: u64,
    ) -> Self {
        Self {
            name,
            kind: ChanType::Mpmc,
            channels: 1,
            producers,
            consumers,
            payload,
            capacity,
            batch: 64,
            prefetch: 64,
            work_ms: (0, 0),
            each: 0,
            weighted: false,
        }
    }

    const fn channels(name: &'static str, channels: usize) -> Self {
        let one = Self::mpmc(name, 1, 1, 256, 40);
        Self { kind: ChanType::Mpsc, channels, ..one }
    }

    const fn taking(self, batch: usize, prefetch: usize) -> Self {
        Self { batch, prefetch, ..self }
    }
}

/// A shape with a number of records ends after so many times the time that was asked for: 4.8 GB, each written to the log and to the state, may
/// be too much for a disk.
const PATIENCE: u32 = 6;

/// Bytes of a record of the shape "motion predictor": float16 [16,3,224,224].
const TENSOR: usize = 4_816_896;

pub(crate) const SHAPES: &[Shape] = &[
    // The payloads of R-21.
    Shape::mpmc("16x4 64 B c1000", 16, 4, 64, 1_000),
    Shape::mpmc("16x4 256 B c1000", 16, 4, 256, 1_000),
    Shape::mpmc("16x4 1 KiB c1000", 16, 4, 1 << 10, 1_000),
    Shape::mpmc("16x4 16 KiB c1000", 16, 4, 16 << 10, 1_000),
    Shape::mpmc("16x4 1 MiB c40", 16, 4, 1 << 20, 40),
    // Its channels: 64 tasks go round, each record is taken and acknowledged before the next one of its channel.
    Shape::channels("1 channel 256 B", 1),
    Shape::channels("100 channels 256 B", 100),
    Shape::channels("10000 channels 256 B", 10_000),
    Shape::channels("100000 channels 256 B", 100_000),
    // §12.2, in its order.
    Shape { work_ms: (1, 1), ..Shape::mpmc("large scale 80x8 256 B c40 work 1 ms", 80, 8, 256, 40) },
    Shape::mpmc("large scale 80x8 256 B c40", 80, 8, 256, 40),
    Shape { work_ms: (1, 1), ..Shape::mpmc("large scale 160x8 256 B c40 work 1 ms", 160, 8, 256, 40) },
    Shape { work_ms: (1, 1), ..Shape::mpmc("large scale 320x8 256 B c40 work 1 ms", 320, 8, 256, 40) },
    Shape { work_ms: (700, 1_500), ..Shape::mpmc("mq 4x4 16 KiB c40 work 0.7 to 1.5 s", 4, 4, 16 << 10, 40) }
        .taking(1, 5),
    Shape::mpmc("simple 8x1 7 MiB c2048", 8, 1, 7 << 20, 2_048).taking(10, 10),
    Shape::mpmc("simple 8x2 7 MiB c2048", 8, 2, 7 << 20, 2_048).taking(10, 10),
    Shape::mpmc("simple 8x4 7 MiB c2048", 8, 4, 7 << 20, 2_048).taking(10, 10),
    Shape::mpmc("simple 8x8 7 MiB c2048", 8, 8, 7 << 20, 2_048).taking(10, 10),
    Shape { each: 63, ..Shape::mpmc("motion 16x1 63 of 4.8 MB c128", 16, 1, TENSOR, 128) }.taking(256, 0),
    Shape { each: 250, weighted: true, ..Shape::mpmc("weighted 4x4 1000 of 64 B c40", 4, 4, 64, 40) },
];

/// What all tasks share.
#[derive(Debug)]
struct Shared {
    shape: Shape,
    began: Instant,
    stop: AtomicBool,
    produced: AtomicU64,
    consumed: AtomicU64,
    failed: AtomicU64,
    append: Mutex<Histogram<u64>>,
    through: Mutex<Histogram<u64>>,
}

impl Shared {
    fn failed(&self, error: &QueueError) {
        if !matches!(error, QueueError::ProducerClosed | QueueError::ChannelClosed(_)) {
            eprintln!("{}: {error} (code {})", self.shape.name, error.code());
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A record that says when it was sent.
    fn record(&self) -> Vec<u8> {
        let mut record = vec![b'.'; self.shape.payload];
        record[..8].copy_from_slice(&nanos(self.began).to_le_bytes());
        record
    }

    fn took(&self, payload: &[u8], through: &mut Histogram<u64>) {
        if let Some(sent) = payload.first_chunk() {
            through.saturating_record(nanos(self.began).saturating_sub(u64::from_le_bytes(*sent)));
        }
    }
}

/// Runs it for `time`; where producers have a part to do, until it is done, for some times as long at most.
pub(super) async fn measure(shape: &Shape, queues: &QueueStore, time: Duration) -> Result<Measured> {
    let shared = Arc::new(Shared {
        shape: *shape,
        began: Instant::now(),
        stop: AtomicBool::new(false),
        produced: AtomicU64::new(0),
        consumed: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        append: Mutex::new(histogram()),
        through: Mutex::new(histogram()),
    });
    let mut tasks = JoinSet::new();
    if shape.kind == ChanType::Mpsc {
        for lane in lanes(shape, queues).await? {
            tasks.spawn(go_round(Arc::clone(&shared), lane));
        }
    } else {
        for number in 0..shape.consumers.max(shape.producers) {
            if number < shape.consumers {
                let bound = bind(shape, queues, 0, 1, ChanRole::Consumer).await?.consumer()?;
                tasks.spawn(consume(Arc::clone(&shared), bound));
            }
            if number < shape.producers {
                let weight = if shape.weighted { number as u32 + 1 } else { 1 };
                let bound = bind(shape, queues, 0, weight, ChanRole::Producer).await?.producer()?;
                tasks.spawn(produce(Arc::clone(&shared), bound));
            }
        }
    }
    let before = shared.consumed.load(Ordering::Relaxed);
    let began = Instant::now();
    let all = shape.each * shape.producers as u64;
    let done = || all > 0 && shared.consumed.load(Ordering::Relaxed) >= all;
    let limit = if all > 0 { time.saturating_mul(PATIENCE) } else { time };
    while !done() && began.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(5).min(time)).await;
    }
    let (took, consumed) = (began.elapsed(), shared.consumed.load(Ordering::Relaxed) - before);
    if all > 0 && !done() {
        let total = before + consumed;
        println!("<!-- {}: ended after {total} of {all} records, {} s -->", shape.name, limit.as_secs());
    }
    shared.stop.store(true, Ordering::Relaxed);
    // Ends also those who wait for room or for a record.
    queues.close().await?;
    tasks.join_all().await;
    let (append, through) = (shared.append.lock().clone(), shared.through.lock().clone());
    Ok(Measured { consumed, failed: shared.failed.load(Ordering::Relaxed), took, append, through })
}

async fn bind(
    shape: &Shape,
    queues: &QueueStore,
    channel: usize,
    weight: u32,
    role: ChanRole,
) -> Result<storage::queue::Endpoint, QueueError> {
    let bytes = shape.capacity.saturating_mul(shape.payload as u64);
    let config = ChannelConfig {
        weight,
        capacity_bytes: bytes.max(64 << 20),
        ..ChannelConfig::new(shape.capacity, Duration::from_secs(90))
    };
    new_or_bind_with_unique_key(queues, &config, &format!("channel {channel}"), shape.kind, role).await
}

async fn produce(shared: Arc<Shared>, producer: Producer) {
    let (mut append, mut sent) = (histogram(), 0);
    while !shared.stop.load(Ordering::Relaxed) && (shared.shape.each == 0 || sent < shared.shape.each) {
        let asked = Instant::now();
        if let Err(error) = producer.put_data(shared.record()).await {
            shared.failed(&error);
            break;
        }
        append.saturating_record(nanos(asked));
        shared.produced.fetch_add(1, Ordering::Relaxed);
        sent += 1;
    }
    let _ = shared.append.lock().add(&append);
}

async fn consume(shared: Arc<Shared>, consumer: Consumer) {
    let (mut through, shape) = (histogram(), shared.shape);
    let (from, to) = shape.work_ms;
    let mut work = from;
    loop {
        let items = match consumer.get_data(shape.batch, Some(Duration::from_secs(1)), shape.prefetch).await {
            Ok(items) => items,
            Err(QueueError::NoNewMessage) if !shared.stop.load(Ordering::Relaxed) => continue,
            Err(QueueError::NoNewMessage) => break,
            Err(error) => {
                shared.failed(&error);
                break;
            }
        };
        let mut ids = Vec::with_capacity(items.len());
        for item in items {
            shared.took(&item.payload, &mut through);
            if to > 0 {
                tokio::time::sleep(Duration::from_millis(work)).await;
                // All of the range, in steps.
                work = if work + 100 > to { from } else { work + 100 };
            }
            ids.push(item.id);
        }
        if let Err(error) = consumer.ack(&ids).await {
            shared.failed(&error);
            break;
        }
        shared.consumed.fetch_add(ids.len() as u64, Ordering::Relaxed);
    }
    let _ = shared.through.lock().add(&through);
}

type Lane = Vec<(Producer, Consumer)>;

/// The channels, each with a producer and a consumer, dealt out to 64 tasks.
async fn lanes(shape: &Shape, queues: &QueueStore) -> Result<Vec<Lane>> {
    const TASKS: usize = 64;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS.min(shape.channels) {
        let (shape, queues) = (*shape, queues.clone());
        tasks.spawn(async move {
            let mut lane = Lane::new();
            for channel in (task..shape.channels).step_by(TASKS) {
                let producer = bind(&shape, &queues, channel, 1, ChanRole::Producer).await?.producer()?;
                let consumer = bind(&shape, &queues, channel, 1, ChanRole::Consumer).await?.consumer()?;
                lane.push((producer, consumer));
            }
            Ok::<_, QueueError>(lane)
        });
    }
    let began = Instant::now();
    let lanes = tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    println!(
        "<!-- {} channels with two members each in {:.1} s, {} KiB resident -->",
        shape.channels,
        began.elapsed().as_secs_f64(),
        resident_kib()
    );
    Ok(lanes)
}

async fn go_round(shared: Arc<Shared>, lane: Lane) {
    let (mut append, mut through) = (histogram(), histogram());
    for (producer, consumer) in lane.iter().cycle() {
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let asked = Instant::now();
        let once = async {
            producer.put_data(shared.record()).await?;
            append.saturating_record(nanos(asked));
            let items = consumer.get_data(1, None, 0).await?;
            items.iter().for_each(|item| shared.took(&item.payload, &mut through));
            consumer.ack(&items.iter().map(|item| item.id).collect::<Vec<_>>()).await
        };
        match once.await {
            Ok(()) => shared.consumed.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                shared.failed(&error);
                break;
            }
        };
    }
    let _ = shared.append.lock().add(&append);
    let _ = shared.through.lock().add(&through);
}

/// Memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
