//! The log: to stderr, as text or JSON, with a level that SIGHUP can change.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Log, LogFormat, LogLevel};

/// The process has one log, so it has one level.
static LEVEL: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging. A second call changes nothing but the level.
pub fn init(log: &Log) {
    let (filter, handle) = reload::Layer::new(filter(log.level));
    let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let layer = match log.format {
        LogFormat::Text => text.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => text.json().boxed(),
    };
    if tracing_subscriber::registry().with(filter).with(layer).try_init().is_ok() {
        let _ = LEVEL.set(handle);
    } else {
        set_level(log.level);
    }
}

/// Changes the level of the running log.
pub fn set_level(level: LogLevel) {
    if let Some(handle) = LEVEL.get() {
        // Fails only when the subscriber is gone, and with it the log.
        let _ = handle.reload(filter(level));
    }
}

/// The Raft library speaks louder than an operator wants to hear it: a node that is away is an error to it with every message. Links that
/// come and go, and failures of a group, are logged by us.
fn filter(level: LogLevel) -> Targets {
    let quieter = match level {
        LogLevel::Error | LogLevel::Warn | LogLevel::Info => LevelFilter::OFF,
        LogLevel::Debug => LevelFilter::INFO,
        LogLevel::Trace => LevelFilter::DEBUG,
    };
    Targets::new().with_default(level_filter(level)).with_target("openraft", quieter)
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
