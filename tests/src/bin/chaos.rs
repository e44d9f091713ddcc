//! `make chaos`: faults by a seed on three nodes in network namespaces, for a chosen time.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tests::chaos::{Fault, Plan, missing, run};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() -> ExitCode {
    if let Some(why) = missing() {
        eprintln!("chaos cannot run here: {why}");
        return ExitCode::from(2);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let only = std::env::var("EXACTMQ_CHAOS_FAULTS").unwrap_or_default();
    let plan = Plan {
        seed: number("EXACTMQ_SEED", now),
        time: Duration::from_secs(number("EXACTMQ_CHAOS_SECONDS", 600)),
        rounds_max: u32::MAX,
        faults: 4,
        rate: u32::try_from(number("EXACTMQ_CHAOS_RATE", 100)).unwrap_or(100),
        only: only.split(',').filter_map(Fault::named).collect(),
    };
    ExitCode::from(u8::from(!run(&plan).violations.is_empty()))
}
