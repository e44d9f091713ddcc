//! `make sim`: fresh seeds of the simulation for a chosen time, until a promise is broken.
//!
//! `EXACTMQ_SIM_SEED=n` runs exactly that seed, with the mutant that `EXACTMQ_SIM_MUTANT` names, and shows its last steps. `sim reconnect N` lets N clients of one node that dies connect to
//! the others. `sim mutants N` runs every mutant with the seeds 1 to N and says which of them catch it: where seeds for
//! `tests/tests/mutants.rs` come from.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tests::sim::mutant::Mutant;
use tests::sim::{Plan, Report, reconnect, run};

/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(30);
const USAGE: &str = "usage: sim [--seconds N] [--threads N] | sim reconnect CLIENTS | sim mutants SEEDS";

#[derive(Default)]
struct Totals {
    seeds: AtomicU64,
    steps: AtomicU64,
    entries: AtomicU64,
    messages: AtomicU64,
    wills: AtomicU64,
    simulated_ms: AtomicU64,
}

impl Totals {
    fn add(&self, report: &Report) {
        let sums = [
            (&self.seeds, 1),
            (&self.steps, report.steps),
            (&self.entries, report.entries),
            (&self.messages, report.messages),
            (&self.wills, report.wills),
            (&self.simulated_ms, report.simulated_ms),
        ];
        for (sum, value) in sums {
            sum.fetch_add(value, Ordering::Relaxed);
        }
    }

    fn line(&self, first: u64, took: Duration) -> String {
        let of = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        format!(
            "seeds {first} to {}: {} steps, {} log entries, {} acknowledged messages, {} Wills, {} simulated hours in {} s",
            first + of(&self.seeds).saturating_sub(1),
            of(&self.steps),
            of(&self.entries),
            of(&self.messages),
            of(&self.wills),
            of(&self.simulated_ms) as f64 / 3_600_000.0,
            took.as_secs()
        )
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, number] = &arguments[..]
        && matches!(command.as_str(), "reconnect" | "mutants")
    {
        let Ok(number) = number.parse() else { return usage() };
        if command == "mutants" {
            return mutants(number);
        }
        println!("{}", reconnect::run(number).text());
        return ExitCode::SUCCESS;
    }
    let Some((seconds, threads)) = bounds(&arguments) else { return usage() };
    if let Ok(seed) = std::env::var("EXACTMQ_SIM_SEED") {
        let Ok(seed) = seed.parse() else { return usage() };
        let plan = match std::env::var("EXACTMQ_SIM_MUTANT") {
            Ok(name) => match Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name) {
                Some(mutant) => Plan::new(seed).with(mutant),
                None => return usage(),
            },
            Err(_) => Plan::new(seed),
        };
        let report = run(&plan);
        println!("{}\n{} steps, trace {:016x}", report.text(), report.steps, report.hash);
        return if report.violation.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    search(Duration::from_secs(seconds), threads)
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Seeds of one mutant that are shown.
const SHOWN: usize = 8;

/// Fails when a mutant is caught by none of the seeds.
fn mutants(seeds: u64) -> ExitCode {
    let mut missed = false;
    for mutant in Mutant::ALL {
        let mut caught: Vec<(u64, String)> = Vec::new();
        for seed in 1..=seeds {
            let violation = run(&Plan::new(seed).with(mutant)).violation;
            caught.extend(violation.map(|violation| (seed, violation)));
        }
        missed |= caught.is_empty();
        println!("{mutant:?}: caught by {} of {seeds} seeds", caught.len());
        for (seed, violation) in caught.iter().take(SHOWN) {
            println!("    {seed}: {violation}");
        }
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn bounds(arguments: &[String]) -> Option<(u64, u64)> {
    let (mut seconds, mut threads) = (600, 1);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return None };
        match name.as_str() {
            "--seconds" => seconds = value.parse().ok()?,
            "--threads" => threads = value.parse().ok()?,
            _ => return None,
        }
    }
    Some((seconds, threads))
}

fn search(time: Duration, threads: u64) -> ExitCode {
    let began = Instant::now();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = now.as_secs() * 1_000;
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let (totals, broken) = (Totals::default(), Mutex::new(Vec::<Report>::new()));
    println!("fresh seeds from {first} on, for {} s, in {threads} threads", time.as_secs());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && began.elapsed() < time {
                    let report = run(&Plan::new(next.fetch_add(1, Ordering::Relaxed)));
                    totals.add(&report);
                    if report.violation.is_some() {
                        stop.store(true, Ordering::Relaxed);
                        broken.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(report);
                    }
                }
            });
        }
        let mut shown = began;
        while !stop.load(Ordering::Relaxed) && began.elapsed() < time {
            std::thread::sleep(Duration::from_millis(100));
            if shown.elapsed() >= PROGRESS {
                shown = Instant::now();
                println!("{}", totals.line(first, began.elapsed()));
            }
        }
    });
    let broken = broken.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    for report in &broken {
        println!("{}", report.text());
    }
    println!("{}, {} violations", totals.line(first, began.elapsed()), broken.len());
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
