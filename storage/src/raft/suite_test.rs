//! openraft's own test suite for a log store and a state machine, on ours.

use std::sync::Arc;

use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite, blank_ent, membership_ent};
use openraft::{Entry, EntryPayload, RaftLogReader, RaftSnapshotBuilder};
use session::lifecycle::{Command, Reply};
use session::message::Message;
use session::time::Millis;
use tempfile::TempDir;
use tokio::sync::Notify;

use super::machine::StateMachine;
use super::*;
use crate::engine;
use crate::store::{EngineKind, Failure};
use crate::wal::{Disk, OsDisk, SimDisk, Wal, WalOptions};

#[derive(Debug)]
struct ZeroClock;

impl Clock for ZeroClock {
    fn now(&self) -> Millis {
        Millis(0)
    }

    fn observe(&self, _seen: Millis) {}
}

fn boot(boot_id: &str) -> Boot {
    Boot { node_id: 1, boot_id: boot_id.into() }
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
    build_on(Arc::new(OsDisk::new(dir.join("wal")).unwrap()), dir, kind)
}

fn build_on(disk: Arc<dyn Disk>, dir: &std::path::Path, kind: EngineKind) -> (LogStore, StateMachine) {
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
    let machine = Machine::open(
        options,
        engine,
        Arc::new(ZeroClock),
        meter,
        failure,
        Arc::new(Notify::new()),
        boot("b"),
    )
    .unwrap();
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

fn retain(term: u64, index: u64, topic: &str) -> Entry<Types> {
    let boot = boot("b");
    let mut message = Message::new(topic, &[], topic.as_bytes());
    message.retain = true;
    let commands =
        vec![Command::BootStart { lease_until: Millis(9) }, Command::Retain { message, stamp: None }];
    let batch = Batch { boot, at: Millis(index), commands };
    Entry { payload: EntryPayload::Normal(Proposed::new(1, batch, Vec::new())), ..blank_ent(term, 1, index) }
}

fn retained(machine: &StateMachine) -> Vec<String> {
    let mut topics = Vec::new();
    machine
        .0
        .retained_from("#", None, &mut usize::MAX.clone(), &mut |message| {
            topics.push(String::from_utf8(message.payload().to_vec()).unwrap());
            true
        })
        .unwrap();
    topics
}

/// A lagging node catches up by a snapshot that was exported, sent and verified (DESIGN §5).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_exported_received_and_installed() {
    for kind in [EngineKind::Redb, EngineKind::Memory] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_log, mut leader) = build(from.path(), kind);
        let topics: Vec<_> = (0..500).map(|n| format!("t/{n:03}")).collect();
        let entries = topics.iter().zip(2..).map(|(topic, index)| retain(1, index, topic));
        leader.apply([membership_ent(1, 1, 1, vec![[1].into()])]).await.unwrap();
        leader.apply(entries.collect::<Vec<_>>()).await.unwrap();
        let snapshot = leader.get_snapshot_builder().await.build_snapshot().await.unwrap();
        // What is applied meanwhile is not in it.
        leader.apply([retain(1, 600, "late")]).await.unwrap();
        leader.get_snapshot_builder().await.build_snapshot().await.unwrap();
        let mut bytes = Vec::new();
        snapshot.snapshot.export(&mut bytes).unwrap();

        let (log, mut follower) = build(to.path(), kind);
        follower.apply([retain(1, 2, "gone")]).await.unwrap();
        let mut flipped = bytes.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for damaged in [&flipped[..], &bytes[..bytes.len() - 1], &bytes[..20], &[]] {
            let received = follower.begin_receiving_snapshot().await.unwrap();
            std::fs::write(received.path().unwrap(), damaged).unwrap();
            assert!(follower.install_snapshot(&snapshot.meta, received).await.is_err());
            assert_eq!(retained(&follower), ["gone"], "a damaged snapshot changes nothing");
        }
        let received = follower.begin_receiving_snapshot().await.unwrap();
        let path = received.path().unwrap().to_owned();
        std::fs::write(&path, &bytes).unwrap();
        follower.install_snapshot(&snapshot.meta, received).await.unwrap();
        assert!(!path.exists(), "the received file goes");
        assert_eq!(retained(&follower), topics);
        let (applied, membership) = follower.applied_state().await.unwrap();
        assert_eq!((applied, membership), (snapshot.meta.last_log_id, snapshot.meta.last_membership.clone()));
        if kind == EngineKind::Redb {
            drop((log, follower));
            let (_log, mut follower) = build(to.path(), kind);
            assert_eq!(retained(&follower), topics);
            assert_eq!(follower.applied_state().await.unwrap().0, snapshot.meta.last_log_id);
        }
    }
}

/// Entries that left the cache are read back from the log, typed as they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_come_back_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let written: Vec<_> = (1..20).map(|index| retain(3, index, "t")).collect();
    {
        let (mut log, _machine) = build(dir.path(), EngineKind::Memory);
        let vote = Vote::new_committed(3, 1);
        log.save_vote(&vote).await.unwrap();
        openraft::storage::RaftLogStorageExt::blocking_append(&mut log, written.clone()).await.unwrap();
        log.save_committed(Some(written[9].log_id)).await.unwrap();
        log.purge(written[2].log_id).await.unwrap();
        log.truncate(written[15].log_id).await.unwrap();
    }
    let (mut log, _machine) = build(dir.path(), EngineKind::Memory);
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(3, 1)));
    assert_eq!(log.read_committed().await.unwrap(), Some(written[9].log_id));
    let state = log.get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, Some(written[2].log_id));
    assert_eq!(state.last_log_id, Some(written[14].log_id));
    let read = log.try_get_log_entries(0..100).await.unwrap();
    assert_eq!(read, written[3..15]);
}

/// A batch answers who waits exactly once, with replies or with the reason why nothing is known.
#[tokio::test]
async fn waiters_are_answered_once() {
    let (sender, mut receiver) = tokio::sync::oneshot::channel();
    let boot = boot("b");
    let batch = Batch { boot, at: Millis(0), commands: vec![Command::Tidy] };
    let proposed = Proposed::new(1, batch, vec![crate::Done::Once(sender)]);
    proposed.applied(vec![Reply::Released { known: true }]);
    proposed.lost(&Arc::new(StorageError::Unavailable("late".to_owned())));
    assert_eq!(receiver.try_recv().unwrap().unwrap(), Reply::Released { known: true });
}

/// DESIGN §5: a failed fsync poisons the store. What was proposed is of unknown fate, later proposals are refused, the node is told to
/// stop, and after the restart everything acknowledged is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fsync_refuses_everything_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::default();
    let start = Start { boot: boot("b"), peers: None, formation: Formation::Alone };
    let failure = Arc::new(Failure::new());
    let call = async |group: &RaftGroup, command: Command| {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        group.intake.submit(vec![crate::Proposal { command, done: crate::Done::Once(sender) }]);
        receiver.await.unwrap()
    };
    let retain =
        |topic: &str| Command::Retain { message: Message::new(topic, &[], topic.as_bytes()), stamp: None };
    {
        let (log, machine) = build_on(Arc::new(disk.clone()), dir.path(), EngineKind::Memory);
        let group = RaftGroup::start(log, machine.0, &start, Arc::new(ZeroClock)).await.unwrap();
        group.watch(Arc::clone(&failure));
        call(&group, Command::BootStart { lease_until: Millis(9) }).await.unwrap();
        call(&group, retain("kept")).await.unwrap();
        disk.fail_sync_after(0);
        assert!(call(&group, retain("unknown")).await.is_err());
        assert!(call(&group, retain("refused")).await.is_err());
        let error = failure.wait().await;
        assert!(matches!(*error, StorageError::Poisoned(_)), "{error}");
    }
    let disk = disk.after_cut(|| false);
    let (log, machine) = build_on(Arc::new(disk), dir.path(), EngineKind::Memory);
    let group = RaftGroup::start(log, machine.0, &start, Arc::new(ZeroClock)).await.unwrap();
    assert_eq!(retained(&StateMachine(Arc::clone(&group.machine))), ["kept"]);
}

/// DESIGN §9: bodies that came during a checkpoint and are over the budget already ask for the next one.
#[tokio::test]
async fn bodies_that_cannot_be_evicted_yet_ask_for_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, mut machine) = build(dir.path(), EngineKind::Memory);
    let boot = boot("b");
    let message = Message::new("large", &[], &vec![1; 2 << 20]);
    let commands =
        vec![Command::BootStart { lease_until: Millis(9) }, Command::Retain { message, stamp: None }];
    let batch = Proposed::new(1, Batch { boot, at: Millis(0), commands }, Vec::new());
    let entry = Entry { log_id: blank_ent::<Types>(1, 1, 1).log_id, payload: EntryPayload::Normal(batch) };
    machine.apply([entry]).await.unwrap();
    let meter = Arc::clone(machine.0.meter());
    assert!(meter.is_due().await, "the budget was crossed");
    machine.0.evict();
    assert!(meter.is_due().await, "it is over the budget still");
    machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
    assert_eq!(machine.0.read(|group| group.stat().messages_resident_bytes), 0);
    assert!(!meter.is_due().await);
}
