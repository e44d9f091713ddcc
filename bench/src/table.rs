//! The table: which scenarios there are, their targets, and the run that fills it.

use anyhow::Result;

use crate::process::{Broker, Kind};
use crate::report::{Figures, cell, median, ratio};
use crate::scenario::flow::{self, Shape};
use crate::scenario::{connect, flood, queue, topics};

/// What one run of a scenario measured, part by part.
type Parts = Vec<(&'static str, Figures)>;

/// One row and how it is measured.
struct Scenario {
    name: &'static str,
    target: &'static str,
    /// mosquitto has nothing to compare (it acknowledges before anything is on disk).
    durable_only: bool,
    /// 1, or the nodes of a cluster.
    nodes: usize,
    settings: &'static [&'static str],
    measure: fn(&mut Broker, f64) -> Result<Parts>,
}

const NO_SETTINGS: &[&str] = &[];
/// What an operator sets who expects attacks.
const RATES: &[&str] = &["listener.mqtt.connect_rate_max=200", "listener.mqtt.publish_rate_max=1000"];
const DEEP_INBOX: &[&str] = &["session.inbox_messages_max=10000000", "session.inbox_bytes_max=100000000000"];

fn one(figures: Figures) -> Result<Parts> {
    Ok(vec![("", figures)])
}

/// So many messages of 1 KiB.
fn backlog(broker: &mut Broker, total: usize) -> Result<Parts> {
    let backlog = queue::backlog(broker, total, 1_024)?;
    Ok(vec![
        ("enqueue", backlog.enqueue),
        ("resident", backlog.resident),
        ("on disk", backlog.disk),
        ("drain", backlog.drain),
        ("resident after", backlog.resident_after),
        ("on disk after", backlog.disk_after),
    ])
}

macro_rules! flow {
    ($name:literal, $target:literal, $shape:expr) => {
        Scenario {
            name: $name,
            target: $target,
            durable_only: false,
            nodes: 1,
            settings: NO_SETTINGS,
            measure: |broker, seconds| one(flow::run(broker, $shape, seconds)?),
        }
    };
}

macro_rules! durable {
    ($name:literal, $target:literal, $shape:expr) => {
        Scenario {
            name: $name,
            target: $target,
            durable_only: true,
            nodes: 1,
            settings: DEEP_INBOX,
            measure: |broker, seconds| one(flow::run(broker, $shape, seconds)?),
        }
    };
}

macro_rules! cluster {
    ($name:literal, $target:literal, $shape:expr) => {
        Scenario { nodes: 3, ..durable!($name, $target, $shape) }
    };
}

macro_rules! other {
    ($name:literal, $target:literal, $settings:expr, $durable_only:expr, $measure:expr) => {
        Scenario {
            name: $name,
            target: $target,
            durable_only: $durable_only,
            nodes: 1,
            settings: $settings,
            measure: $measure,
        }
    };
}

const SCENARIOS: &[Scenario] = &[
    flow!("fan-in q0 64B", "0.70 us", Shape::new(4, 1, false, 0, 64, 100)),
    flow!("fan-in q0 1KiB", "1.0 us", Shape::new(4, 1, false, 0, 1_024, 100)),
    flow!("fan-in q1 64B", "0.95 us", Shape::new(4, 1, false, 1, 64, 100)),
    flow!("fan-in q2 64B", "1.8 us", Shape::new(4, 1, false, 2, 64, 100)),
    flow!("pairs q0 64B w10", "1.6 us", Shape::new(50, 1, true, 0, 64, 10)),
    flow!("pairs q1 64B w10", "2.0 us", Shape::new(50, 1, true, 1, 64, 10)),
    flow!("pairs q1 1KiB w10", "2.2 us", Shape::new(50, 1, true, 1, 1_024, 10)),
    flow!("pairs q1 64B w1", "12 us", Shape::new(50, 1, true, 1, 64, 1)),
    flow!("fan-out q0 64B", "0.73 us", Shape::new(1, 1_000, false, 0, 64, 10)),
    flow!("fan-out q0 1KiB", "1.1 us", Shape::new(1, 1_000, false, 0, 1_024, 10)),
    flow!("fan-out q1 64B", "1.2 us", Shape::new(1, 1_000, false, 1, 64, 10)),
    flow!(
        "fixed 20k/s pairs q1",
        "best peer in CPU and p99",
        Shape { rate: Some(20_000), ..Shape::new(50, 1, true, 1, 64, u64::MAX) }
    ),
    other!("connect 15000", "45 us, 2,048 B", NO_SETTINGS, false, |broker, _| one(connect::connect(
        broker, 15_000, false
    )?)),
    other!("connect+subscribe 15000", "60 us", NO_SETTINGS, false, |broker, _| one(connect::connect(
        broker, 15_000, true
    )?)),
    other!("idle 15000, CPU per s", "5000 us", NO_SETTINGS, false, |broker, _| one(connect::idle(
        broker, 15_000
    )?)),
    other!("idle 100000 durable", "5000 us; 10 log entries/s", NO_SETTINGS, true, |broker, _| {
        one(connect::idle_durable(broker, 100_000, 15_000)?)
    }),
    other!("churn clean", "15 k/s", NO_SETTINGS, false, |broker, seconds| one(connect::churn(
        broker, false, seconds
    )?)),
    other!("churn takeover", "10 k/s", NO_SETTINGS, false, |broker, seconds| one(connect::churn(
        broker, true, seconds
    )?)),
    other!("offline 100x1000", "150 k/s, 100 B; drain 400 k/s", DEEP_INBOX, false, |broker, _| {
        let phases = queue::offline(broker, 100, 1_000, false)?;
        Ok(vec![("enqueue", phases.enqueue), ("drain", phases.drain)])
    }),
    other!("filters 100000", "7 us, 400 B", NO_SETTINGS, false, |broker, seconds| one(topics::filters(
        broker, seconds
    )?)),
    other!("retained 100000", "100 k/s, 400 B; 550 k/s", NO_SETTINGS, false, |broker, _| {
        let (stored, sent) = topics::retained(broker, 100_000)?;
        Ok(vec![("store", stored), ("send to #", sent)])
    }),
    durable!(
        "durable q1 1000 pubs, absent",
        "150 k/s, 5 us",
        Shape { durable: true, absent: true, ..Shape::new(1_000, 1, true, 1, 64, 20) }
    ),
    durable!(
        "durable q1 64 pubs w1, absent",
        "p50 1 ms, p99 10 ms",
        Shape { durable: true, absent: true, ..Shape::new(64, 1, true, 1, 64, 1) }
    ),
    durable!(
        "durable q1 pairs w10, present",
        "–",
        Shape { durable: true, ..Shape::new(50, 1, true, 1, 64, 10) }
    ),
    durable!(
        "durable fan-out 1000, absent",
        "1 k/s (1 M references/s)",
        Shape { durable: true, absent: true, ..Shape::new(1, 1_000, false, 1, 64, 100) }
    ),
    cluster!(
        "cluster durable q1 1000 pubs, absent",
        "60 k/s",
        Shape { durable: true, absent: true, ..Shape::new(1_000, 1, true, 1, 64, 20) }
    ),
    cluster!(
        "cluster durable q1 64 pubs w1, absent",
        "p50 and p99",
        Shape { durable: true, absent: true, ..Shape::new(64, 1, true, 1, 64, 1) }
    ),
    other!("restart, 1 M queued", "5 s", DEEP_INBOX, true, |broker, _| {
        let phases = queue::offline(broker, 100, 10_000, true)?;
        let restart = phases.restart.unwrap_or_default();
        Ok(vec![("enqueue", phases.enqueue), ("restart", restart), ("drain", phases.drain)])
    }),
    other!("backlog 10 M of 1 KiB", "1 GiB resident", DEEP_INBOX, true, |broker, _| backlog(
        broker, 10_000_000
    )),
    other!("flood", "p99 within 3x of quiet", NO_SETTINGS, false, |broker, seconds| flood::run(
        broker, seconds
    )),
    other!("flood, rates", "p99 within 3x of quiet", RATES, true, |broker, seconds| flood::run(
        broker, seconds
    )),
    // Small enough for a profiler, and to see what a change does.
    other!("backlog 1 M of 1 KiB", "–", DEEP_INBOX, true, |broker, _| backlog(broker, 1_000_000)),
];

/// Prints names and targets.
pub(crate) fn list() {
    for scenario in SCENARIOS {
        println!("{:<32} {}", scenario.name, scenario.target);
    }
}

/// Fills the table: for each scenario ExactMQ and mosquitto in turn, `runs` times.
pub(crate) fn compare(runs: usize, seconds: f64, only: &str) -> Result<()> {
    println!("Medians of {runs} runs of {seconds} s; broker on core 0, load on core 1, brokers in turn.");
    println!("Ratio: mosquitto against ExactMQ; above 1 ExactMQ is cheaper, faster or smaller.\n");
    println!("| scenario | target | ExactMQ | mosquitto | ratio |\n| --- | --- | --- | --- | --- |");
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(only)) {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for _ in 0..runs {
            ours.push(once(Kind::ExactMq, scenario, seconds)?);
            if !scenario.durable_only {
                theirs.push(once(Kind::Mosquitto, scenario, seconds)?);
            }
        }
        for (index, (part, _)) in ours[0].iter().enumerate() {
            let pick = |all: &[Vec<(&str, Figures)>]| {
                median(&all.iter().map(|run| run[index].1.clone()).collect::<Vec<_>>())
            };
            let (mine, peer) = (pick(&ours), pick(&theirs));
            let name = format!("{} {part}", scenario.name);
            println!(
                "| {} | {} | {} | {} | {} |",
                name.trim(),
                scenario.target,
                cell(&mine),
                cell(&peer),
                ratio(&mine, &peer)
            );
        }
    }
    Ok(())
}

/// Runs scenarios against one broker and prints their figures.
pub(crate) fn run(kind: Kind, name: &str, seconds: f64) -> Result<()> {
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(name)) {
        for (part, figures) in once(kind, scenario, seconds)? {
            println!("{:<32} {:<9} {}", scenario.name, part, cell(&figures));
        }
    }
    Ok(())
}

fn once(kind: Kind, scenario: &Scenario, seconds: f64) -> Result<Parts> {
    let dir = tempfile::tempdir()?;
    let mut broker = match scenario.nodes {
        1 => Broker::start(kind, dir.path(), scenario.settings)?,
        nodes => Broker::start_cluster(nodes, dir.path(), scenario.settings)?,
    };
    (scenario.measure)(&mut broker, seconds)
}
