//! Samples how loaded the node is, and does what each level asks of the listeners; workers and CONNECT look at the level by themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gateway::driver::TICK_PERIOD_MS;

use crate::events::{Event, EventKind};
use crate::metrics::Level;
use crate::overload::{Judge, Signals};
use crate::shared::Shared;

/// Distance of two samples.
const INTERVAL: Duration = Duration::from_millis(500);

/// Sockets a second that each listener takes: at the level busy, and above.
const BUSY_ACCEPT_RATE: u32 = 500;
const OVERLOADED_ACCEPT_RATE: u32 = 100;

/// Samples until the task is dropped.
pub(super) async fn watch_forever(shared: Arc<Shared>) {
    let mut judge = Judge::default();
    let system_bytes = system_memory_bytes();
    loop {
        let signals = sample(&shared, system_bytes);
        let level = judge.sample(&signals);
        act(&shared, level, &signals);
        tokio::time::sleep(INTERVAL).await;
    }
}

fn sample(shared: &Shared, system_bytes: u64) -> Signals {
    let now = shared.clock.tick();
    let mut signals = Signals::default();
    for (worker, pulse) in shared.load.pulses().iter().enumerate() {
        let (lag_ns, commit_ns) = pulse.take(now, TICK_PERIOD_MS);
        shared.metrics.set_worker_lag(worker, lag_ns);
        signals.lag_ms = signals.lag_ms.max(lag_ns / 1_000_000);
        signals.commit_ms = signals.commit_ms.max(commit_ns / 1_000_000);
    }
    let used_bytes = used_memory_bytes().unwrap_or(0);
    let max_bytes = match shared.load.memory_max_bytes() {
        0 => system_bytes,
        bytes => bytes,
    };
    shared.metrics.set_memory(used_bytes, max_bytes);
    signals.memory_permille = used_bytes.saturating_mul(1_000).checked_div(max_bytes).unwrap_or(0);
    signals
}

fn act(shared: &Shared, level: Level, signals: &Signals) {
    shared.metrics.set_level(level);
    if let Some(door) = shared.door.get() {
        door.set_accept_rate_max(match level {
            Level::Normal => 0,
            Level::Busy => BUSY_ACCEPT_RATE,
            Level::Overloaded | Level::Critical => OVERLOADED_ACCEPT_RATE,
        });
    }
    let before = shared.load.set_level(level);
    if before == level {
        return;
    }
    let Signals { lag_ms, commit_ms, memory_permille } = *signals;
    if level > before {
        tracing::warn!(
            level = level.word(),
            lag_ms,
            commit_ms,
            memory_permille,
            "the load of this node has risen"
        );
    } else {
        tracing::info!(
            level = level.word(),
            lag_ms,
            commit_ms,
            memory_permille,
            "the load of this node has fallen"
        );
    }
    let event = Event::new(EventKind::Load).node(shared.boot.node_id);
    shared.events.push(event.detail(level.word()));
}

/// Memory that only this process has: pages of files, which the system takes back when it likes, do not count.
fn used_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    kib_of(&status, "RssAnon:")
}

fn kib_of(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1_024)
}

/// What the process may use: the least of the limits of its control groups, and what the machine has; 0: not known.
fn system_memory_bytes() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| kib_of(&text, "MemTotal:"))
        .unwrap_or(0);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = group_files(&groups).into_iter().filter_map(|file| {
        // Without a limit it says "max", or a number that no machine has.
        std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    });
    limits
        .filter(|limit| *limit > 0)
        .fold(machine, |least, limit| if least == 0 { limit } else { least.min(limit) })
}

/// Files in which limits of memory stand, of the group and those above it.
fn group_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for group in Path::new(group).ancestors() {
            // Inside a container the path may be that of the machine, and its own group the root.
            files.push(Path::new(root).join(group.strip_prefix("/").unwrap_or(group)).join(file));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_groups_are_looked_at() {
        let files = group_files("0::/user.slice/exactmq.service\n5:cpu,memory:/a\n3:cpu:/b\nnonsense\n");
        let expected = [
            "/sys/fs/cgroup/user.slice/exactmq.service/memory.max",
            "/sys/fs/cgroup/user.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
    }

    #[test]
    fn sizes_are_read_in_kib() {
        assert_eq!(kib_of("VmRSS:\t  7 kB\nRssAnon:\t     12 kB\n", "RssAnon:"), Some(12 << 10));
        assert_eq!(kib_of("VmRSS:\t  7 kB\n", "RssAnon:"), None);
        assert!(used_memory_bytes().is_none_or(|bytes| bytes > 0));
    }
}
