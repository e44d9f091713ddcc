//! The example as users run it: one process with the store, others that produce and consume; Ctrl-C.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Beside the test itself: `target/<profile>/deps/demo-…` and `target/<profile>/examples/queue_demo`.
fn program() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    deps.parent().and_then(Path::parent).unwrap().join("examples/queue_demo")
}

struct Running(Child);

impl Running {
    fn start(role: &str, dir: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.args(["--role", role, "--data-dir"]).arg(dir).args(more);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("the example is built"))
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success());
    }

    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stdout.take().unwrap()).lines().map_while(Result::ok)
    }

    fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ctrl-C ends a consumer that waits with 130 and a clean close; the store too. Records that a killed consumer had come to the next one.
#[test]
fn processes_share_a_store_and_end_on_ctrl_c() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Running::start("store", dir.path(), &[]);
    let mut lines = store.lines();
    assert!(lines.next().unwrap().starts_with("serving "));
    let mut producer = Running::start("producer", dir.path(), &["--count", "200", "--capacity", "1000"]);
    assert_eq!(producer.end(), Some(0));
    let slow = ["--print", "--capacity", "1000", "--work-ms", "50"];
    let mut killed = Running::start("consumer", dir.path(), &slow);
    assert!(killed.lines().next().unwrap().ends_with("-0-0"));
    killed.signal("-KILL");
    killed.end();
    let mut next = Running::start("consumer", dir.path(), &["--print", "--capacity", "1000"]);
    // The killed one had acknowledged nothing: all come, in their order.
    let mut lines_of_next = next.lines();
    let seen: Vec<String> = lines_of_next.by_ref().take(200).collect();
    assert_eq!(seen.len(), 200);
    assert!(seen[0].contains("-0-0"), "{}", seen[0]);
    next.signal("-INT");
    assert_eq!(next.end(), Some(130));
    store.signal("-INT");
    assert_eq!(store.end(), Some(130));
}

/// All in one process: what was produced is consumed, nothing fails.
#[test]
fn one_process_produces_and_consumes() {
    let dir = tempfile::tempdir().unwrap();
    let more = ["--producers", "8", "--consumers", "2", "--count", "50", "--size", "64"];
    let mut both = Running::start("both", dir.path(), &more);
    let lines: Vec<String> = both.lines().collect();
    for stage in ["put: n 400 ", "put_append: n ", "get: n ", "ack: n "] {
        assert!(lines.iter().any(|line| line.starts_with(stage)), "no {stage:?} in {lines:?}");
    }
    let last = lines.last().unwrap();
    assert!(last.starts_with("produced 400 ") && last.contains("consumed 400 "), "{last}");
    assert_eq!(both.end(), Some(0));
}
