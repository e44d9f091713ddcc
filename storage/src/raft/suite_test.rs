//! openraft's own test suite for a log store and a state machine, on ours.

use std::sync::Arc;

use openraft::testing::{StoreBuilder, Suite};
use session::time::Millis;
use tempfile::TempDir;
use tokio::sync::Notify;

use super::machine::StateMachine;
use super::*;
use crate::engine;
use crate::store::{EngineKind, Failure};
use crate::wal::{OsDisk, Wal, WalOptions};

#[derive(Debug)]
struct ZeroClock;

impl Clock for ZeroClock {
    fn now(&self) -> Millis {
        Millis(0)
    }

    fn observe(&self, _seen: Millis) {}
}

struct Builder(EngineKind);

impl StoreBuilder<Types, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), RaftError> {
        let dir = tempfile::tempdir().unwrap();
        let (log, machine) = build(dir.path(), self.0);
        Ok((dir, log, machine))
    }
}

fn build(dir: &std::path::Path, kind: EngineKind) -> (LogStore, StateMachine) {
    let disk = Arc::new(OsDisk::new(dir.join("wal")).unwrap());
    let options = WalOptions { segment_bytes: 64 << 10, directory: [0; 16] };
    let (wal, mut found) = Wal::open(disk, options).unwrap();
    let meter = Arc::new(Meter::new(1 << 30));
    let recovered = found.remove(&0).unwrap_or_default();
    let log = LogStore::new(0, Arc::new(wal), recovered, Arc::clone(&meter)).unwrap();
    let engine = engine::open(kind, &dir.join("state"), 1, 1 << 20).unwrap().remove(0);
    let options = MachineOptions {
        group: 0,
        groups: 1,
        resident_bytes_max: 1 << 20,
        inbox_messages_max: 100,
        inbox_bytes_max: 1 << 20,
        incoming_dir: dir.join("state"),
    };
    let failure = Arc::new(Failure::new());
    let machine =
        Machine::open(options, engine, Arc::new(ZeroClock), meter, failure, Arc::new(Notify::new())).unwrap();
    (log, StateMachine(Arc::new(machine)))
}

#[test]
fn openraft_suite_passes_on_memory() {
    Suite::test_all(Builder(EngineKind::Memory)).unwrap();
}

#[test]
fn openraft_suite_passes_on_redb() {
    Suite::test_all(Builder(EngineKind::Redb)).unwrap();
}
