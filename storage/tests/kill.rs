//! P4 against kill -9: a child process writes and prints what was acknowledged; it is killed; everything printed is there.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use storage::Store;
use support::{Session, TestClock, open, options};

const CHILD_DIR: &str = "EXACTMQ_STORE_CHILD_DIR";
const ROUNDS: u64 = 6;
/// Small, so that segments, checkpoints and evictions happen within a round.
const SEGMENT_BYTES: u64 = 64 << 10;

fn child_options(dir: &Path) -> storage::Options {
    let mut options = options(dir);
    options.segment_bytes = SEGMENT_BYTES;
    options.checkpoint_bytes = 100_000;
    options.resident_bytes_max = 50_000;
    options
}

/// Not a test by itself: the process that is killed.
#[test]
#[ignore = "the child process of kill_9_loses_nothing_acknowledged"]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(child_options(Path::new(&dir))).await;
        let session = Session::connect(&store, "c1").await;
        for offset in 0u64.. {
            store.call(session.group, session.append(&payload(offset))).await.unwrap();
            println!("acknowledged {offset}");
        }
    });
}

fn payload(offset: u64) -> Vec<u8> {
    offset.to_le_bytes().repeat(40)
}

#[test]
fn kill_9_loses_nothing_acknowledged() {
    for round in 0..ROUNDS {
        let dir = tempfile::tempdir().unwrap();
        let acknowledged = write_and_kill(dir.path(), 50 + round * 150);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(child_options(dir.path()), TestClock::at(0)).await.unwrap();
            let key = session::id::Key::new("main".into(), "c1".into()).unwrap();
            let group = store.group_of(&key);
            let row = store.read(group, |group| group.session(&key).cloned()).unwrap();
            let inbox = Session { group, row }.inbox(&store);
            assert!(inbox.len() as u64 >= acknowledged, "round {round}: {} of {acknowledged}", inbox.len());
            for ((offset, found), expected) in inbox.into_iter().zip(0..) {
                assert_eq!((offset, found), (expected, payload(expected)));
            }
            store.close().await.unwrap();
        });
    }
}

/// Number of acknowledged appends when the child was killed.
fn write_and_kill(dir: &Path, after: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = 0;
    let mut killed = false;
    // What was in the pipe when the child died was acknowledged too.
    for line in lines {
        let Ok(line) = line else { break };
        let Some(offset) = line.split("acknowledged ").nth(1) else { continue };
        acknowledged = offset.trim().parse::<u64>().unwrap() + 1;
        if acknowledged >= after && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child ended by itself after {acknowledged}");
    acknowledged
}
