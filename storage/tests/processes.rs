//! kill -9 of each of them: a consumer with a full window, a producer in the middle of an append, the process that has the store. Nothing that
//! was reported is lost, nothing acknowledged comes again, nobody is wedged (`storage/QUEUES.md`, "When a process dies").

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(90);
/// A dead process's records come sooner than that.
const QUIET: Duration = Duration::from_secs(10);
/// Members of a dead process are there for so long, and a second or two.
const LEASE: &[&str] = &["--lease", "2"];

/// Beside the test itself: `target/<profile>/deps/processes-…` and `target/<profile>/examples/queue_demo`.
fn program() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    deps.parent().and_then(Path::parent).unwrap().join("examples/queue_demo")
}

/// A process of the example, and what it prints.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(role: &str, dir: &Path, more: &[&[&str]]) -> Self {
        let mut command = Command::new(program());
        command.args(["--role", role, "--data-dir"]).arg(dir).args(LEASE).args(more.concat());
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = spawned.expect("the example is built");
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    fn store(dir: &Path) -> Self {
        let store = Self::start("store", dir, &[]);
        assert!(store.line().starts_with("serving "));
        store
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says nothing, or ended")
    }

    /// SIGKILL, and what it had printed.
    fn kill(&mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.rest()
    }

    /// Everything that it still prints until it ends.
    fn rest(&mut self) -> Vec<String> {
        let (mut rest, start) = (Vec::new(), Instant::now());
        loop {
            match self.lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => assert!(start.elapsed() < PATIENCE, "it does not end"),
            }
        }
    }

    fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn told(lines: &[String], what: &str) -> Vec<String> {
    lines.iter().filter_map(|line| line.strip_prefix(what).map(str::to_owned)).collect()
}

/// What `consumer` prints until all of `missing` were there, but for at most `uncertain`, whose acknowledgement may have been done and not
/// reported any more: names of records, which of them were marked as seen before, and which did not come.
fn until_all(
    consumer: &Running,
    mut missing: BTreeSet<String>,
    uncertain: usize,
) -> (Vec<String>, Vec<String>, BTreeSet<String>) {
    let (mut seen, mut again) = (Vec::new(), Vec::new());
    while !missing.is_empty() {
        let patience = if missing.len() > uncertain { PATIENCE } else { QUIET };
        let line = match consumer.lines.recv_timeout(patience) {
            Ok(line) => line,
            Err(_) if missing.len() <= uncertain => break,
            Err(error) => panic!("{error}; {} did not come: {missing:?}", missing.len()),
        };
        let name = line.trim_end_matches(" (again)").to_owned();
        missing.remove(&name);
        if name != line {
            again.push(name.clone());
        }
        seen.push(name);
    }
    (seen, again, missing)
}

/// Checklist 1: a consumer dies with its window full while producers wait for room. What it acknowledged does not come again, everything else
/// comes to the next one, at most the window of it marked, and the producers end.
fn a_consumer_dies_with_a_full_window(of: &str) {
    const WINDOW: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let _store = Running::store(dir.path());
    let channel: &[&str] = &["--type", of, "--capacity", "20"];
    // Two producers with 60 records each into a channel of 20.
    let mut producer = Running::start(
        "producer",
        dir.path(),
        &[channel, &["--producers", "2", "--count", "60", "--report"]],
    );
    let slow: &[&str] = &["--report", "--print", "--work-ms", "10", "--batch", "5", "--prefetch", "15"];
    let mut consumer = Running::start("consumer", dir.path(), &[channel, slow]);
    let mut lines = Vec::new();
    while told(&lines, "acknowledged ").len() < 20 {
        lines.push(consumer.line());
    }
    lines.extend(consumer.kill());
    let acknowledged: BTreeSet<String> = told(&lines, "acknowledged ").into_iter().collect();
    let missing = |appended: &[String]| {
        let appended = told(appended, "appended ").into_iter();
        appended.filter(|name| !acknowledged.contains(name)).collect::<BTreeSet<String>>()
    };
    // An MPSC channel has room for the next consumer when the lease of the dead one ended.
    let start = Instant::now();
    let (next, first) = loop {
        let next = Running::start("consumer", dir.path(), &[channel, &["--print"]]);
        match next.lines.recv_timeout(Duration::from_secs(20)) {
            Ok(line) if !line.contains(':') && !line.starts_with("produced") => break (next, line),
            _ => assert!(start.elapsed() < PATIENCE, "no consumer comes in"),
        }
    };
    let mut appended = Vec::new();
    while told(&appended, "appended ").len() < 120 {
        appended.push(producer.line());
    }
    assert_eq!(producer.end(), Some(0));
    let mut missing = missing(&appended);
    missing.remove(first.trim_end_matches(" (again)"));
    let (mut seen, mut again, gone) = until_all(&next, missing, 5);
    // A batch of it may have been acknowledged without a word more; what it never took was not.
    assert!(
        gone.iter().all(|name| lines.iter().any(|line| line.trim_end_matches(" (again)") == name)),
        "{gone:?}"
    );
    seen.push(first.trim_end_matches(" (again)").to_owned());
    if first.ends_with(" (again)") {
        again.push(first);
    }
    assert!(seen.iter().all(|name| !acknowledged.contains(name)), "acknowledged and there again");
    assert_eq!(seen.len(), seen.iter().collect::<BTreeSet<_>>().len(), "each once");
    assert!(again.len() <= WINDOW, "{again:?}");
}

#[test]
fn checklist_1_a_consumer_of_an_mpsc_channel_dies_with_a_full_window() {
    a_consumer_dies_with_a_full_window("mpsc");
}

#[test]
fn checklist_1_a_consumer_of_an_mpmc_channel_dies_with_a_full_window() {
    a_consumer_dies_with_a_full_window("mpmc");
}

#[test]
fn checklist_1_a_consumer_of_a_group_dies_with_a_full_window() {
    a_consumer_dies_with_a_full_window("group");
}

/// Checklist 4 (H-03, H-04): a producer dies in the middle of an append of 300 KB, at another moment each round. What it reported is there, once and
/// in order; of what it did not, at most the last one, whole; the next producer is not held up by its end.
#[test]
fn checklist_4_a_producer_dies_in_the_middle_of_an_append() {
    const ROUNDS: usize = 6;
    let dir = tempfile::tempdir().unwrap();
    let _store = Running::store(dir.path());
    let channel: &[&str] = &["--type", "mpsc", "--capacity", "10000", "--size", "300000"];
    let mut lives: Vec<Vec<String>> = Vec::new();
    for round in 0..ROUNDS {
        let mut producer = Running::start("producer", dir.path(), &[channel, &["--report"]]);
        let mut lines: Vec<String> = (0..=round * 2).map(|_| producer.line()).collect();
        // Another part of an append each time.
        std::thread::sleep(Duration::from_micros(700 * round as u64));
        lines.extend(producer.kill());
        lives.push(told(&lines, "appended "));
    }
    let mut last = Running::start("producer", dir.path(), &[channel, &["--report", "--count", "3"]]);
    assert_eq!(last.end(), Some(0), "nobody is in its way");
    let last = told(&last.rest(), "appended ");
    lives.push(last.clone());
    let consumer = Running::start("consumer", dir.path(), &[channel, &["--print"]]);
    let (seen, ..) = until_all(&consumer, last.into_iter().collect(), 0);
    for reported in lives {
        let process = reported[0].split('-').next().unwrap().to_owned() + "-";
        let found: Vec<&String> = seen.iter().filter(|name| name.starts_with(&process)).collect();
        let expected: Vec<String> = (0..found.len()).map(|number| format!("{process}0-{number}")).collect();
        assert_eq!(found, expected.iter().collect::<Vec<_>>(), "each once, in order, no hole");
        let more = found.len() - reported.len();
        assert!(more <= 1, "{more} that were not reported");
    }
}

/// Checklist 4, 6: the process that has the store dies while producers append and a consumer acknowledges: both end by themselves, and after its
/// restart everything that was reported is true.
#[test]
fn checklist_6_the_process_that_has_the_store_dies() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Running::store(dir.path());
    let channel: &[&str] = &["--type", "mpmc", "--capacity", "100000"];
    let mut producer = Running::start("producer", dir.path(), &[channel, &["--report", "--producers", "4"]]);
    let slow: &[&str] = &["--report", "--work-ms", "1", "--batch", "10"];
    let mut consumer = Running::start("consumer", dir.path(), &[channel, slow]);
    let mut acknowledged: Vec<String> = (0..100).map(|_| consumer.line()).collect();
    store.kill();
    // Their lease cannot be kept: they end within it.
    let start = Instant::now();
    assert_eq!((producer.end(), consumer.end()), (Some(1), Some(1)));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let appended: BTreeSet<String> = told(&producer.rest(), "appended ").into_iter().collect();
    acknowledged.extend(consumer.rest());
    let acknowledged: BTreeSet<String> = told(&acknowledged, "acknowledged ").into_iter().collect();
    let _store = Running::store(dir.path());
    let next = Running::start("consumer", dir.path(), &[channel, &["--print"]]);
    let (seen, ..) = until_all(&next, appended.difference(&acknowledged).cloned().collect(), 10);
    assert!(seen.iter().all(|name| !acknowledged.contains(name)), "acknowledged and there again");
    assert_eq!(seen.len(), seen.iter().collect::<BTreeSet<_>>().len(), "each once");
}
