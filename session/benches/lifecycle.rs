//! The replicated `apply`: appends, fan-out, acknowledgements, CONNECT and disconnect (aims: 1 M appends a second to one
//! inbox, 5 M references a second in a fan-out, 200 k connects with their disconnects a second).

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use session::id::{Boot, Key, Owner};
use session::lifecycle::{
    Ack, AckKind, Append, Batch, Command, Connect, Disconnect, DisconnectKind, Group, Outcome, Reply,
    SessionRef, Target,
};
use session::message::{Message, QoS};
use session::time::Millis;

/// Commands of one log entry, as group commit yields them under load.
const BATCH: u64 = 256;

struct Bench {
    group: Group,
    boot: Boot,
    index: u64,
    outcome: Outcome,
}

impl Bench {
    fn new() -> Self {
        let boot = Boot { node_id: 1, boot_id: "0123456789abcdef0123456789abcdef".into() };
        let mut bench =
            Self { group: Group::new(u64::MAX, u64::MAX), boot, index: 0, outcome: Outcome::default() };
        bench.apply(vec![Command::BootStart { lease_until: Millis(u64::MAX) }]);
        bench
    }

    /// Time that `apply` takes; making the batch is the proposer's work.
    fn apply(&mut self, commands: Vec<Command>) -> Duration {
        let batch = Batch { boot: self.boot.clone(), at: Millis(1_000), commands };
        self.index += 1;
        self.outcome = Outcome::default();
        let started = Instant::now();
        self.group.apply(self.index, 0, &batch, &mut self.outcome);
        started.elapsed()
    }

    fn owner(&self, number: u64, connection_id: u64) -> Owner {
        Owner {
            key: Key { namespace: "main".into(), client_id: format!("client-{number}").into() },
            session_generation: 1,
            owner_generation: 1,
            node_id: 1,
            boot_id: self.boot.boot_id.clone(),
            connection_id,
        }
    }

    fn connect(&self, number: u64, expiry_sec: u32) -> Command {
        Command::Connect(Box::new(Connect {
            owner: self.owner(number, number + 1),
            uid: Some("device".into()),
            previous: None,
            clean_start: false,
            expiry_sec,
            will: None,
        }))
    }

    fn durable(&mut self, number: u64) -> SessionRef {
        self.apply(vec![self.connect(number, 3_600)]);
        match self.outcome.replies.first() {
            Some(Reply::Row { row, .. }) => SessionRef { lifetime: row.lifetime, owner_generation: 1 },
            other => panic!("{other:?}"),
        }
    }
}

fn message() -> Message {
    Message::new("building/7/floor/3/temperature", &[], &[b'x'; 64])
}

fn append_to(targets: &[Target]) -> Command {
    Command::Append(Box::new(Append { message: message(), stamp: None, targets: targets.to_vec() }))
}

fn target(lifetime: u64) -> Target {
    Target {
        lifetime,
        qos: QoS::AtLeastOnce,
        retain: false,
        identifiers: smallvec::SmallVec::new(),
        shared: false,
    }
}

fn append_and_ack(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply");
    group.throughput(Throughput::Elements(BATCH));
    let mut bench = Bench::new();
    let sessions: Vec<SessionRef> = (0..1_000).map(|number| bench.durable(number)).collect();
    let mut turn = 0_usize;
    let mut offsets = vec![0_u64; sessions.len()];
    group.bench_function("append, one target, then ack", |b| {
        b.iter_custom(|rounds| {
            (0..rounds)
                .map(|_| {
                    let mut acks = Vec::new();
                    let appends = (0..BATCH)
                        .map(|_| {
                            turn = (turn + 1) % sessions.len();
                            let ack = Ack { offset: offsets[turn], kind: AckKind::Settled };
                            acks.push(Command::Ack { session: sessions[turn], acks: vec![ack] });
                            offsets[turn] += 1;
                            append_to(&[target(sessions[turn].lifetime)])
                        })
                        .collect();
                    bench.apply(appends) + bench.apply(acks)
                })
                .sum()
        });
    });
    group.finish();
}

fn fan_out(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply");
    group.throughput(Throughput::Elements(1_000));
    let mut bench = Bench::new();
    let sessions: Vec<SessionRef> = (0..1_000).map(|number| bench.durable(number)).collect();
    let targets: Vec<Target> = sessions.iter().map(|session| target(session.lifetime)).collect();
    let mut offset = 0;
    group.bench_function("append, 1,000 targets", |b| {
        b.iter_custom(|rounds| {
            (0..rounds)
                .map(|_| {
                    let spent = bench.apply(vec![append_to(&targets)]);
                    let ack = Ack { offset, kind: AckKind::Settled };
                    offset += 1;
                    let acks = sessions
                        .iter()
                        .map(|session| Command::Ack { session: *session, acks: vec![ack] })
                        .collect();
                    bench.apply(acks);
                    spent
                })
                .sum()
        });
    });
    group.finish();
}

fn connect_and_disconnect(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply");
    group.throughput(Throughput::Elements(BATCH));
    for (name, expiry_sec) in [("transient", 0), ("durable", 3_600)] {
        let mut bench = Bench::new();
        for number in 0..100_000 {
            bench.durable(1_000_000 + number);
        }
        let mut next = 0;
        group.bench_function(format!("connect + disconnect, {name}, among 100,000"), |b| {
            b.iter_custom(|rounds| {
                (0..rounds)
                    .map(|_| {
                        let numbers = next..next + BATCH;
                        next = (next + BATCH) % (400 * BATCH);
                        let connects =
                            numbers.clone().map(|number| reconnect(&bench, number, expiry_sec)).collect();
                        let spent = bench.apply(connects);
                        let closes = bench.outcome.replies.iter().map(close).collect();
                        spent + bench.apply(closes)
                    })
                    .sum()
            });
        });
    }
    group.finish();
}

fn reconnect(bench: &Bench, number: u64, expiry_sec: u32) -> Command {
    let Command::Connect(mut connect) = bench.connect(number, expiry_sec) else { unreachable!() };
    if let Some(row) = bench.group.session(&connect.owner.key) {
        connect.previous = Some((row.revision, row.owner.clone()));
        connect.owner.owner_generation = row.owner.owner_generation + 1;
    }
    Command::Connect(connect)
}

fn close(reply: &Reply) -> Command {
    let Reply::Row { row, .. } = reply else { panic!("{reply:?}") };
    Command::Disconnect(Box::new(Disconnect {
        owner: row.owner.clone(),
        kind: DisconnectKind::Normal,
        observed_at: Millis(1_000),
        expiry_sec: None,
        sent_through: 0,
    }))
}

criterion_group!(benches, append_and_ack, fan_out, connect_and_disconnect);
criterion_main!(benches);
