//! `bench compare`: ExactMQ and mosquitto in turn on one machine, broker on core 0, load on core 1, ratios of medians.
//! `bench run NAME`: one scenario against ExactMQ alone, as a quick check or under a profiler.
//! `bench queues`: channels of the queue layer, without a broker.

mod channels;
mod engine;
mod process;
mod report;
mod scenario;
mod table;
mod wire;

use std::process::Command;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Load generator and side-by-side comparison for ExactMQ")]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// The whole table, ExactMQ beside mosquitto.
    Compare {
        /// Runs of each scenario and broker; the table shows medians.
        #[arg(long, default_value_t = 3)]
        runs: usize,
        /// Seconds that each flow is measured.
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
        /// Only scenarios whose name contains this.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// One broker, no table: each scenario whose name contains NAME.
    Run {
        name: String,
        /// Use mosquitto instead of ExactMQ.
        #[arg(long)]
        mosquitto: bool,
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
    },
    /// Channels of the queue layer in this process, on both cores: rates and latencies by shape.
    Queues {
        /// Only shapes whose name contains this.
        #[arg(default_value = "")]
        only: String,
        /// Seconds that each shape is measured; those with a fixed number of messages take as long as it takes.
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
    },
    /// The process that is killed by the recovery shape of `queues`.
    #[command(hide = true)]
    Fill { dir: std::path::PathBuf },
    /// The process that attacks the broker in the scenario `flood`.
    #[command(hide = true)]
    Attack { attack: scenario::flood::Attack, to: std::net::SocketAddr },
    /// Names of the scenarios and their targets.
    List,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if matches!(arguments.action, Action::List) {
        table::list();
        channels::list();
        return Ok(());
    }
    if let Action::Queues { only, seconds } = &arguments.action {
        return channels::run(only, *seconds);
    }
    if let Action::Fill { dir } = &arguments.action {
        return channels::fill(dir);
    }
    if let Action::Attack { attack, to } = arguments.action {
        return scenario::flood::attack(attack, to);
    }
    prepare()?;
    match arguments.action {
        Action::Compare { runs, seconds, only } => table::compare(runs, seconds, &only),
        Action::Run { name, mosquitto, seconds } => {
            let kind = if mosquitto { process::Kind::Mosquitto } else { process::Kind::ExactMq };
            table::run(kind, &name, seconds)
        }
        Action::List | Action::Queues { .. } | Action::Fill { .. } | Action::Attack { .. } => Ok(()),
    }
}

/// Pins this process to core 1 and raises its descriptor limit, with the system's own tools.
fn prepare() -> Result<()> {
    let own = std::process::id().to_string();
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        Command::new("taskset").args(["-cp", "1", &own]).output().context("taskset (Debian: util-linux)")?;
    }
    let limit = Command::new("prlimit")
        .args(["--pid", &own, "--nofile", "--output", "HARD", "--noheadings"])
        .output();
    let limit = String::from_utf8(limit.context("prlimit (Debian: util-linux)")?.stdout)?;
    let nofile = format!("--nofile={0}:{0}", limit.trim());
    Command::new("prlimit").args(["--pid", &own, &nofile]).status().context("prlimit")?;
    Ok(())
}
