//! The owner registry: what admission, a whole life, an idle owner and a mass expiry cost (PERF: begin + done ≤ 50 ns,
//! 100,000 expiries < 5 s).

use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use session::id::{Key, Owner};
use session::owner::{Claim, CloseOutcome, Entry, Options, Quiesce, Registry, Transport};
use session::time::Tick;

mod measure;

const OWNERS: usize = 100_000;
const LEASE_MS: u64 = 30_000;

/// A socket that closes at once: the "shell" behind the channel reports it.
struct Instantly(mpsc::Sender<Owner>);

impl Transport for Instantly {
    fn request_close(&self, owner: &Owner) {
        self.0.send(owner.clone()).expect("the benchmark holds the receiver");
    }
}

fn registry() -> Registry {
    Registry::new(Options {
        node_id: 1,
        boot_id: Arc::from("0123456789abcdef0123456789abcdef"),
        capacity: OWNERS,
        operations_max: 64,
        pending_timeout_ms: 5_000,
        lease_max_ms: 60_000,
        close_retry_ms: 250,
    })
    .expect("valid options")
}

fn active(
    registry: &Registry,
    now: Tick,
    number: usize,
    transport: &Arc<dyn Transport>,
    namespace: &Arc<str>,
) -> Arc<Entry> {
    let claim = Claim {
        key: Key { namespace: Arc::clone(namespace), client_id: Arc::from(format!("client-{number:08}")) },
        uid: Arc::from(format!("user-{number:06}")),
        session_generation: 1,
        owner_generation: 1,
    };
    let entry = registry.reserve(now, claim, Arc::clone(transport)).expect("room");
    registry.activate(now, entry.owner(), 1, now.plus_ms(LEASE_MS)).expect("fresh");
    entry
}

struct World {
    registry: Registry,
    asked: mpsc::Receiver<Owner>,
    entries: Vec<Arc<Entry>>,
}

fn world(owners: usize) -> World {
    let (sender, asked) = mpsc::channel();
    let transport: Arc<dyn Transport> = Arc::new(Instantly(sender));
    let namespace: Arc<str> = Arc::from("main");
    let registry = registry();
    let entries =
        (0..owners).map(|number| active(&registry, Tick(0), number, &transport, &namespace)).collect();
    World { registry, asked, entries }
}

fn admission(c: &mut Criterion) {
    // First of all: nothing freed before is used again.
    drop(measure::bytes_each("100,000 owners with their strings", OWNERS, || world(OWNERS)));
    let world = world(1);
    let entry = &world.entries[0];
    let now = Tick(1);
    measure::best("begin + done", || world.registry.begin(black_box(now), entry).expect("active").done());
    c.bench_function("begin + done", |b| {
        b.iter(|| world.registry.begin(black_box(now), entry).expect("active").done());
    });
    c.bench_function("begin + check + done", |b| {
        b.iter(|| {
            let scope = world.registry.begin(black_box(now), entry).expect("active");
            scope.check(black_box(now)).expect("active");
            scope.done();
        });
    });
    c.bench_function("snapshot", |b| b.iter(|| world.registry.snapshot()));
}

fn life(c: &mut Criterion) {
    let (sender, asked) = mpsc::channel();
    let transport: Arc<dyn Transport> = Arc::new(Instantly(sender));
    let namespace: Arc<str> = Arc::from("main");
    let registry = registry();
    let now = Tick(1);
    c.bench_function("reserve + activate + quiesce + close", |b| {
        b.iter(|| {
            let entry = active(&registry, now, 1, &transport, &namespace);
            assert_eq!(registry.quiesce(now, entry.owner(), None), Ok(Quiesce::Pending));
            let owner = asked.recv().expect("it was asked");
            registry.transport_closed(now, &owner, CloseOutcome::Closed);
            assert_eq!(registry.quiesce(now, entry.owner(), None), Ok(Quiesce::Proved));
        });
    });
}

fn expiry(c: &mut Criterion) {
    let mut group = c.benchmark_group("100k owners");
    group.sample_size(10);
    group.bench_function("expiry sweep, closes instant", |b| {
        b.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                let World { registry, asked, entries } = world(OWNERS);
                drop(entries);
                let now = Tick(0).plus_ms(LEASE_MS);
                let start = Instant::now();
                while registry.sweep(now, 256).expect("a valid limit") > 0 {
                    for owner in asked.try_iter() {
                        registry.transport_closed(now, &owner, CloseOutcome::Closed);
                    }
                }
                spent += start.elapsed();
                assert_eq!(registry.snapshot().held, 0);
            }
            spent
        });
    });
    // What 100,000 idle owners cost in one lease period: their records surface once.
    let world = world(OWNERS);
    let (mut revision, mut now) = (0, Tick(0));
    group.bench_function("one idle lease period", |b| {
        b.iter(|| {
            for _ in 0..3 {
                revision += 1;
                now = now.plus_ms(LEASE_MS / 3);
                world.registry.renew_boot(now, revision, now.plus_ms(LEASE_MS)).expect("ahead");
                assert_eq!(world.registry.sweep(now, 256), Ok(0));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, admission, life, expiry);
criterion_main!(benches);
