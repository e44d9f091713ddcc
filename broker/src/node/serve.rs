//! The process around a node: its runtimes, its signals, its exit.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::{Node, ReloadCall, ServeError, Stopped, process};
use crate::admin::{ReloadDone, ReloadError, Tokens};
use crate::config::Config;
use crate::usecase::lease::LeaseError;

/// Gives the configuration as it is now, for SIGHUP; the error is already worded for the log.
pub type ReadConfig = dyn Fn() -> Result<Config, String> + Send + Sync;

/// The one place where the runtime of the control plane is made. Workers have their own, one a thread (`gateway::driver::Gateway`).
///
/// # Errors
/// The operating system refuses threads.
fn control_runtime(threads: u16) -> Result<tokio::runtime::Runtime, ServeError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::from(threads.max(1)))
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)
}

/// Runs a node until SIGTERM or SIGINT, or until it fails. A second signal, or a stop that takes too long, ends it at once: the
/// next start then treats this boot as crashed, which loses nothing.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(config: Config, read_config: &ReadConfig) -> Result<Stopped, ServeError> {
    process::prepare();
    let runtime = control_runtime(config.node.control_threads)?;
    let outcome = runtime.block_on(run(config, read_config));
    runtime.shutdown_timeout(Duration::from_millis(200));
    outcome
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Stop,
    Reload,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, ServeError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(ServeError::Signals)?,
            interrupt: signal(SignalKind::interrupt()).map_err(ServeError::Signals)?,
            hangup: signal(SignalKind::hangup()).map_err(ServeError::Signals)?,
        })
    }

    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.terminate.recv() => Wish::Stop,
            _ = self.interrupt.recv() => Wish::Stop,
            _ = self.hangup.recv() => Wish::Reload,
        }
    }

    async fn stop(&mut self) {
        while self.next().await != Wish::Stop {}
    }
}

async fn run(mut config: Config, read_config: &ReadConfig) -> Result<Stopped, ServeError> {
    let mut signals = Signals::new()?;
    loop {
        match run_once(&mut config, &mut signals, read_config).await? {
            Ended::Stopped(stopped) => return Ok(stopped),
            Ended::Restart => tracing::info!("starting anew"),
        }
    }
}

/// How one run of a node ended.
enum Ended {
    Stopped(Stopped),
    /// It is to be started again, on the same ports.
    Restart,
}

async fn run_once(
    config: &mut Config,
    signals: &mut Signals,
    read_config: &ReadConfig,
) -> Result<Ended, ServeError> {
    let timeout = Duration::from_millis(config.node.stop_timeout_ms);
    let mut node = tokio::select! {
        node = Node::start(config) => node?,
        () = signals.stop() => return Ok(Ended::Stopped(Stopped::Unproved)),
    };
    let restart_wanted = node.restart_wanted();
    let mut restart = false;
    let mut reloads = node.take_reloads();
    announce(&node);
    let failure = loop {
        tokio::select! {
            wish = signals.next() => match wish {
                Wish::Stop => break None,
                // What came of it is in the log.
                Wish::Reload => drop(reload(config, &node, read_config)),
            },
            Some(call) = next_call(&mut reloads) => {
                // Whoever asked may be gone.
                let _ = call.send(reload(config, &node, read_config));
            }
            () = restart_wanted.notified() => {
                restart = true;
                keep_ports(config, &node);
                // The call that asked for it is still being answered.
                tokio::time::sleep(RESTART_BREATH).await;
                break None;
            }
            error = node.failed() => break Some(error),
        }
    };
    if let Some(error) = &failure {
        tracing::error!(%error, "the node stops");
    } else {
        tracing::info!("stopping");
    }
    // Retired by the others while it did not answer, it may come back as a new boot only, when nothing of this one is left.
    let retired = matches!(failure, Some(ServeError::Lease(LeaseError::Retired)));
    if retired {
        keep_ports(config, &node);
    }
    let (stopped, in_time) = tokio::select! {
        stopped = tokio::time::timeout(timeout, node.stop(timeout)) => (stopped.unwrap_or(Stopped::Unproved), true),
        () = signals.stop() => (Stopped::Unproved, false),
    };
    match failure {
        Some(_) if retired && in_time && stopped == Stopped::Graceful => Ok(Ended::Restart),
        Some(error) => Err(error),
        None if restart => Ok(Ended::Restart),
        None => Ok(Ended::Stopped(stopped)),
    }
}

async fn next_call(calls: &mut Option<mpsc::Receiver<ReloadCall>>) -> Option<ReloadCall> {
    calls.as_mut()?.recv().await
}

/// Time for the answer to the operator who asked for a restart.
const RESTART_BREATH: Duration = Duration::from_millis(100);

/// Ports that the system chose stay what they are.
fn keep_ports(config: &mut Config, node: &Node) {
    for bound in node.listeners() {
        if let Some(listener) = config.listeners.get_mut(&bound.name) {
            listener.address = bound.address;
        }
    }
    if let (Some(address), Some(bound)) = (&mut config.cluster.peer.0, node.peer_address()) {
        *address = bound;
    }
    if let (Some(address), Some(bound)) = (&mut config.admin.address.0, node.admin_address()) {
        *address = bound;
    }
}

/// One line a listener, for people and for scripts that wait for it.
fn announce(node: &Node) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    for bound in node.listeners() {
        // Nobody may be reading.
        let _ = writeln!(out, "listening {} {} {}", bound.name, bound.protocol, bound.address);
    }
    let _ = out.flush();
}

/// Applies what can be changed while the node runs. A configuration, or a file of users or rules, with a fault changes nothing; a
/// certificate or key with a fault leaves its listener with the old ones, and does not hold up the rest: a rule may be about to be revoked.
fn reload(config: &mut Config, node: &Node, read_config: &ReadConfig) -> Result<ReloadDone, ReloadError> {
    let new = match read_config() {
        Ok(new) => new,
        Err(error) => {
            tracing::error!(%error, "the configuration is not reloaded; the running one stays");
            return Err(ReloadError::Faulty(error));
        }
    };
    let difference = config.reload(&new);
    let merged = config.reloaded(&new);
    let tokens = match node.admin_address().map(|_| Tokens::read(&merged)).transpose() {
        Ok(tokens) => tokens,
        Err(error) => {
            tracing::error!(%error, "the tokens of the admin API are not reloaded; the running configuration stays");
            return Err(ReloadError::Faulty(error.to_string()));
        }
    };
    let mut files = match node.shared().auth.reload(&merged) {
        Ok(files) => files,
        Err(error) => {
            tracing::error!(%error, "users and rules are not reloaded; the running configuration stays");
            return Err(ReloadError::Faulty(error.to_string()));
        }
    };
    files.extend(tokens.into_iter().flat_map(|tokens| node.adopt_tokens(tokens)));
    let mut failed = Vec::new();
    for error in node.reload_tls(&merged).into_iter().chain(node.reload_admin_tls(&merged).err()) {
        tracing::error!(%error, "its certificate and key are not reloaded; the running ones stay");
        failed.push(error.to_string());
    }
    let (bridges, faults) = node.reload_bridges(&merged);
    for error in faults {
        tracing::error!(%error, "the bridge goes on as it is");
        failed.push(error.to_string());
    }
    node.shared().slow.set(merged.log.slow_ms);
    node.shared().load.set_memory_max_bytes(merged.limits.memory_max_bytes);
    let mut changed = difference.changed;
    changed.extend(bridges);
    changed.extend(files.into_iter().map(|key| format!("the content of {key}")));
    // Under the louder of the two levels: a lower one must not hide what it came with.
    let level = merged.log.level;
    let louder = level > config.log.level;
    if louder {
        crate::cli::logging::set_level(level);
    }
    tracing::info!(?changed, needs_restart = ?difference.needs_restart, "configuration reloaded");
    if !difference.needs_restart.is_empty() {
        tracing::warn!(keys = ?difference.needs_restart, "these settings wait for a restart");
    }
    if !louder {
        crate::cli::logging::set_level(level);
    }
    *config = merged;
    Ok(ReloadDone { changed, needs_restart: difference.needs_restart, failed })
}
