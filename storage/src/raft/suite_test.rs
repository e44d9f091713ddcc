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

/// With an engine that lost what the log was purged of.
fn build_unchecked(dir: &std::path::Path, kind: EngineKind) -> (LogStore, StateMachine) {
    build_with(Arc::new(OsDisk::new(dir.join("wal")).unwrap()), dir, kind, false)
}

fn build_on(disk: Arc<dyn Disk>, dir: &std::path::Path, kind: EngineKind) -> (LogStore, StateMachine) {
    build_with(disk, dir, kind, true)
}

fn build_with(
    disk: Arc<dyn Disk>,
    dir: &std::path::Path,
    kind: EngineKind,
    check: bool,
) -> (LogStore, StateMachine) {
    let options = WalOptions { segment_bytes: 64 << 10, directory: [0; 16] };
    let (wal, mut found) = Wal::open(disk, options).unwrap();
    let meter = Arc::new(Meter::new(1 << 30));
    let engine = engine::open(kind, &dir.join("state"), 1, 1 << 20).unwrap().remove(0);
    let options =
        MachineOptions { group: 0, groups: 1, resident_bytes_max: 1 << 20, incoming_dir: dir.join("state") };
    let failure = Arc::new(Failure::new());
    let machine = Machine::open(
        options,
        engine,
        Arc::new(ZeroClock),
        Arc::clone(&meter),
        failure,
        Arc::new(Notify::new()),
        boot("b"),
    )
    .unwrap();
    let recovered = found.remove(&0).unwrap_or_default();
    if check {
        machine.check_reaches(&recovered).unwrap();
    }
    let log = LogStore::new(0, Arc::new(wal), recovered, machine.applied(), meter).unwrap();
    (log.clone(), StateMachine { machine: Arc::new(machine), log })
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
    Entry {
        payload: EntryPayload::Normal(Proposed::new(index, batch, Vec::new())),
        ..blank_ent(term, 1, index)
    }
}

fn retained(machine: &StateMachine) -> Vec<String> {
    retained_in(&machine.machine)
}

fn retained_in(machine: &Machine) -> Vec<String> {
    let mut topics = Vec::new();
    machine
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

/// P4, scenario 49: openraft purges the log up to a snapshot of another node while it is being installed. A crash in between leaves what
/// was there before, also when the leader sent more already; after the installation the log goes on behind the snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_while_a_snapshot_is_installed_leaves_log_and_state_that_fit() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_log, mut leader) = build(from.path(), EngineKind::Redb);
    leader.apply([membership_ent(1, 1, 1, vec![[1].into()]), retain(1, 100, "t")]).await.unwrap();
    let snapshot = leader.get_snapshot_builder().await.build_snapshot().await.unwrap();
    let mut bytes = Vec::new();
    snapshot.snapshot.export(&mut bytes).unwrap();
    let upto = snapshot.meta.last_log_id.unwrap();
    let blocking_append = async |log: &mut LogStore, entries: Vec<Entry<Types>>| {
        openraft::storage::RaftLogStorageExt::blocking_append(log, entries).await.unwrap();
    };
    {
        let (mut log, mut follower) = build(to.path(), EngineKind::Redb);
        follower.apply([retain(1, 1, "old")]).await.unwrap();
        blocking_append(&mut log, (1..4).map(|index| retain(1, index, "old")).collect()).await;
        log.purge(upto).await.unwrap();
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(upto));
        tokio::select! {
            biased;
            () = blocking_append(&mut log, vec![retain(1, 101, "new")]) => panic!("behind a hole"),
            () = std::future::ready(()) => {}
        }
    }
    {
        let (mut log, mut follower) = build(to.path(), EngineKind::Redb);
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(retain(1, 3, "old").log_id));
        log.purge(upto).await.unwrap();
        let received = follower.begin_receiving_snapshot().await.unwrap();
        std::fs::write(received.path().unwrap(), &bytes).unwrap();
        let mut writer = log.clone();
        let (installed, ()) = tokio::join!(
            follower.install_snapshot(&snapshot.meta, received),
            blocking_append(&mut writer, vec![retain(1, 101, "new")])
        );
        installed.unwrap();
    }
    let (mut log, follower) = build(to.path(), EngineKind::Redb);
    let state = log.get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, Some(upto));
    assert_eq!(state.last_log_id, Some(retain(1, 101, "new").log_id));
    assert_eq!(retained(&follower), ["t"]);
}

/// P4: a crash between a snapshot and the purge that follows leaves entries below the state, of a leader that lost even: they are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_below_the_state_are_dropped_at_start() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (mut log, mut machine) = build(dir.path(), EngineKind::Redb);
        let lost: Vec<_> = (1..4).map(|index| retain(3, index, "lost")).collect();
        openraft::storage::RaftLogStorageExt::blocking_append(&mut log, lost).await.unwrap();
        machine.apply([retain(2, 80, "kept")]).await.unwrap();
        machine.machine.cut().unwrap();
    }
    let (mut log, _machine) = build(dir.path(), EngineKind::Redb);
    let state = log.get_log_state().await.unwrap();
    assert_eq!(state.last_purged_log_id, Some(retain(2, 80, "kept").log_id));
    assert_eq!(state.last_log_id, state.last_purged_log_id);
}

/// P9, scenario 22: a change of the voters that was cut between its two commits needs both majorities for ever; the next join finishes it.
#[tokio::test]
async fn a_cut_change_of_the_voters_is_finished_by_the_next_join() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, machine) = build(dir.path(), EngineKind::Memory);
    let joint = membership_ent(0, 0, 0, vec![[1].into(), [1].into()]);
    openraft::storage::RaftLogStorageExt::blocking_append(&mut log, [joint]).await.unwrap();
    let start = Start { boot: boot("b"), peers: None, formation: Formation::Alone };
    let group = RaftGroup::start(log, machine.machine, &start, Arc::new(ZeroClock)).await.unwrap();
    let configs = || group.raft.metrics().borrow().membership_config.membership().get_joint_config().len();
    assert_eq!(configs(), 2);
    group.add(&crate::PeerAddress { node_id: 1, address: String::new() }).await.unwrap();
    assert_eq!(configs(), 1);
    group.shutdown().await;
}

/// P10: a batch of another node is as bounded as one of this node.
#[tokio::test]
async fn a_forwarded_batch_has_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let (log, machine) = build(dir.path(), EngineKind::Memory);
    let start = Start { boot: boot("b"), peers: None, formation: Formation::Alone };
    let group = RaftGroup::start(log, machine.machine, &start, Arc::new(ZeroClock)).await.unwrap();
    for (commands, taken) in [(4_096, true), (4_097, false)] {
        let batch = Batch { boot: boot("b"), at: Millis(0), commands: vec![Command::Tidy; commands] };
        let answer = group.answer(message::Request::Propose { serial: 1, batch }).await;
        assert_eq!(matches!(answer, message::Answer::Proposed), taken, "{answer:?}");
        assert_eq!(matches!(answer, message::Answer::Refused(_)), !taken, "{answer:?}");
    }
    group.shutdown().await;
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
        // The memory engine keeps nothing: as if it did.
        log.covered(Some(written[2].log_id));
        log.purge(written[2].log_id).await.unwrap();
        log.truncate(written[15].log_id).await.unwrap();
    }
    let (mut log, _machine) = build_unchecked(dir.path(), EngineKind::Memory);
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
        let group = RaftGroup::start(log, machine.machine, &start, Arc::new(ZeroClock)).await.unwrap();
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
    let group = RaftGroup::start(log, machine.machine, &start, Arc::new(ZeroClock)).await.unwrap();
    assert_eq!(retained_in(&group.machine), ["kept"]);
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
    let meter = Arc::clone(machine.machine.meter());
    assert!(meter.is_due().await, "the budget was crossed");
    machine.machine.evict();
    assert!(meter.is_due().await, "it is over the budget still");
    machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
    assert_eq!(machine.machine.read(|group| group.stat().messages_resident_bytes), 0);
    assert!(!meter.is_due().await);
}
