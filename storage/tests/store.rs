//! The store's promises over a restart, a checkpoint, an eviction and an attached consumer.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use session::lifecycle::{Command, Conflict, Reply};
use session::time::Millis;
use storage::{
    Clock, CompletionPort, Done, GroupId, PeerAddress, PeerError, PeerFuture, Peers, Proposal, StorageError,
    Store,
};
use support::{Inbox, Session, TestClock, append, eventually, message, open, options, refused};

/// P4: what was acknowledged is there after a restart without close, and after one with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_is_the_same_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(dir.path())).await;
    let session = Session::connect(&store, "c1").await;
    for number in 0..50u8 {
        store.call(session.group, session.append(&[number; 20])).await.unwrap();
    }
    store.call(session.group, session.settle(0..10)).await.unwrap();
    let before = session.inbox(&store);
    let stat = store.read(session.group, |group| (group.stat(), group.applied()));
    store.close().await.unwrap();
    drop(store);
    for _ in 0..2 {
        let store = Store::open(options(dir.path()), TestClock::at(0)).await.unwrap();
        assert_eq!(session.inbox(&store), before);
        let now = store.read(session.group, |group| (group.stat(), group.applied()));
        assert_eq!(now.0.inbox_messages, stat.0.inbox_messages);
        assert_eq!(now.1, stat.1);
        let row = store.read(session.group, |group| group.session(&session.row.owner.key).cloned());
        assert_eq!(row.as_ref(), Some(&session.row));
        store.close().await.unwrap();
    }
    assert_eq!(before.len(), 40);
}

/// The hybrid clock goes on from the latest time in the log (DESIGN §5, Time).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_never_goes_back_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    for (clock, checkpoint) in [(5_000, false), (0, true), (0, false)] {
        let clock = TestClock::at(clock);
        let store = Store::open(options(dir.path()), Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
        support::start_boot(&store).await;
        assert!(clock.now() >= Millis(5_000), "{:?}", clock.now());
        if checkpoint {
            store.checkpoint().await.unwrap();
        }
        store.close().await.unwrap();
    }
}

/// Bodies over the budget leave memory, and come back from disk byte for byte (DESIGN §9: backlogs live on disk).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_bodies_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.resident_bytes_max = 20_000;
    let store = open(options.clone()).await;
    let session = Session::connect(&store, "c1").await;
    for number in 0..100u8 {
        store.call(session.group, session.append(&[number; 1_000])).await.unwrap();
    }
    let topic_group = store.group_of_topic("r/1");
    store
        .call(topic_group, Command::Retain { message: message("r/1", &[7; 30_000]), stamp: None })
        .await
        .unwrap();
    eventually("bodies leave memory", || {
        (0..store.groups())
            .all(|group| store.read(GroupId(group), |group| group.stat().messages_resident_bytes) <= 10_000)
    })
    .await;
    let check = |store: &Store| {
        let inbox = session.inbox(store);
        assert_eq!(inbox.len(), 100);
        for (offset, payload) in inbox {
            assert_eq!(payload, [offset as u8; 1_000]);
        }
        let mut retained = Vec::new();
        store
            .retained("r/#", &mut |message| {
                retained.push(message.payload().to_vec());
                true
            })
            .unwrap();
        assert_eq!(retained, [vec![7; 30_000]]);
    };
    check(&store);
    store.close().await.unwrap();
    let store = Store::open(options, TestClock::at(0)).await.unwrap();
    check(&store);
    // A page is bounded in bytes, and says where to go on.
    let (page, next) = store.read_inbox(session.group, session.row.lifetime, 0, 100, 2_500).unwrap();
    assert_eq!((page.len(), next), (2, page[1].offset + 1));
    store.close().await.unwrap();
}

/// P9: the disk has its space back soon after a deep backlog was drained, without a restart and without more work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_backlog_gives_the_disk_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    (options.groups, options.resident_bytes_max, options.checkpoint_bytes) = (1, 1 << 20, 32 << 20);
    let store = open(options).await;
    let session = Session::connect(&store, "c1").await;
    let body = vec![7; 500_000];
    for _ in 0..300 {
        store.call(session.group, session.append(&body)).await.unwrap();
    }
    store.checkpoint().await.unwrap();
    let taken = || -> u64 {
        let files = std::fs::read_dir(dir.path().join("state")).unwrap().map(|entry| entry.unwrap());
        files.map(|file| file.metadata().map_or(0, |file| file.len())).sum()
    };
    let full = taken();
    assert!(full > 150_000_000);
    for from in (0..300).step_by(50) {
        store.call(session.group, session.settle(from..from + 50)).await.unwrap();
    }
    eventually("the disk has its space back", || taken() < full / 4).await;
    store.call(session.group, session.append(b"more")).await.unwrap();
    assert_eq!(session.inbox(&store).len(), 1);
    store.close().await.unwrap();
}

/// The log goes when state is checkpointed: disk use is bounded by the backlog, not by history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_deletes_log_segments() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.segment_bytes = 64 << 10;
    let store = open(options.clone()).await;
    let session = Session::connect(&store, "c1").await;
    for number in 0..200u64 {
        store.call(session.group, session.append(&[1; 2_000])).await.unwrap();
        store.call(session.group, session.settle([number])).await.unwrap();
    }
    let wal = dir.path().join("wal");
    assert!(support::files(&wal, "wal").len() >= 5);
    store.checkpoint().await.unwrap();
    // The purge is a record like any other: the next write carries it.
    store.call(session.group, session.append(b"last")).await.unwrap();
    eventually("old segments go", || support::files(&wal, "wal").len() <= 2).await;
    store.close().await.unwrap();
    let store = Store::open(options, TestClock::at(0)).await.unwrap();
    assert_eq!(session.inbox(&store), [(200, b"last".to_vec())]);
    store.close().await.unwrap();
}

/// A node with a peer port, whom nobody answers.
#[derive(Debug)]
struct Nobody;

impl Peers for Nobody {
    fn call(&self, to: &PeerAddress, _request: bytes::Bytes, _timeout: std::time::Duration) -> PeerFuture {
        let node_id = to.node_id;
        Box::pin(async move { Err(PeerError::Unreachable { node_id, reason: "nobody is there".to_owned() }) })
    }
}

/// P9: a group with few entries does not pin the log of all groups: what its followers may still want is bounded by bytes, not by number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_group_does_not_pin_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.segment_bytes = 64 << 10;
    options.peers = Some(Arc::new(Nobody));
    let store = open(options).await;
    let session = Session::connect(&store, "c1").await;
    let wal = dir.path().join("wal");
    for round in 0..3u64 {
        for number in 0..50 {
            store.call(session.group, session.append(&[1; 2_000])).await.unwrap();
            store.call(session.group, session.settle([round * 50 + number])).await.unwrap();
        }
        store.checkpoint().await.unwrap();
    }
    // The last round, and one before it for who is a little behind: 2 x 100 KB in segments of 64 KiB.
    for group in 0..store.groups() {
        store.call(GroupId(group), Command::Tidy).await.unwrap();
    }
    eventually("old segments go", || support::files(&wal, "wal").len() <= 4).await;
    store.close().await.unwrap();
}

/// DESIGN §2: `apply` reads nothing but the log. A new group has no quotas until a command brings some, and a replay after a crash meets
/// each command under the quotas that it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_come_from_the_log_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(dir.path())).await;
    let session = Session::connect(&store, "c1").await;
    assert_eq!(store.read(session.group, session::lifecycle::Group::quotas), (u64::MAX, u64::MAX));
    for number in 0..5u8 {
        store.call(session.group, session.append(&[number])).await.unwrap();
    }
    store.call(session.group, Command::Quotas { messages: 2, bytes: 1 << 20 }).await.unwrap();
    let before = session.inbox(&store);
    assert_eq!(before.len(), 5);
    drop(store);
    let store = Store::open(options(dir.path()), TestClock::at(0)).await.unwrap();
    assert_eq!(session.inbox(&store), before);
    assert_eq!(store.read(session.group, session::lifecycle::Group::quotas), (2, 1 << 20));
    store.close().await.unwrap();
}

/// [`Store::attach`]: what is below the returned end is read, what is behind it is pushed: no gap, no duplicate, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attach_has_no_gap_and_no_duplicate() {
    const MESSAGES: u64 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(dir.path())).await;
    let session = Session::connect(&store, "c1").await;
    let publisher = tokio::spawn({
        let (store, group) = (store.clone(), session.group);
        let lifetime = session.row.lifetime;
        async move {
            for number in 0..MESSAGES {
                let command = append(&[lifetime], &number.to_le_bytes());
                if number % 10 == 9 {
                    store.call(group, command).await.unwrap();
                } else {
                    store.propose(group, vec![Proposal { command, done: Done::Nobody }]);
                }
            }
        }
    });
    let lifetime = session.row.lifetime;
    let mut seen = Vec::new();
    for token in 0..20 {
        let port = Arc::new(Inbox::default());
        let end = store.attach(session.group, lifetime, Arc::clone(&port) as _, token);
        let from = seen.len() as u64;
        let below = session.inbox(&store).into_iter().map(|(offset, _)| offset);
        seen.extend(below.filter(|offset| (from..end).contains(offset)));
        tokio::task::yield_now().await;
        store.detach(session.group, lifetime, token + 1);
        store.detach(session.group, lifetime, token);
        // Pushes of entries applied before the detach may still be on their way; the next round reads them.
        seen.truncate(end as usize);
    }
    let port = Arc::new(Inbox::default());
    let end = store.attach(session.group, lifetime, Arc::clone(&port) as _, 99);
    let from = seen.len() as u64;
    seen.extend(
        session.inbox(&store).into_iter().map(|(offset, _)| offset).filter(|o| (from..end).contains(o)),
    );
    publisher.await.unwrap();
    eventually("everything is pushed", || port.0.lock().len() as u64 + end >= MESSAGES).await;
    for pushed in port.0.lock().iter() {
        assert_eq!(pushed.token, 99);
        assert_eq!(pushed.message.payload(), pushed.offset.to_le_bytes());
        seen.push(pushed.offset);
    }
    assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>());
    store.close().await.unwrap();
}

#[derive(Debug, Default)]
struct Completions(parking_lot::Mutex<Vec<(u64, bool)>>);

impl CompletionPort for Completions {
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        self.0.lock().extend(batch.into_iter().map(|(token, reply)| (token, reply.is_ok())));
    }
}

/// Replies come to the port in the order of one caller, one per command; after close they are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_keep_the_callers_order() {
    const COMMANDS: u64 = 10_000;
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(dir.path())).await;
    let session = Session::connect(&store, "c1").await;
    let port = Arc::new(Completions::default());
    let proposal = |token| Proposal {
        command: session.append(b"x"),
        done: Done::Port { port: Arc::clone(&port) as _, token },
    };
    for token in (0..COMMANDS).step_by(10) {
        store.propose(session.group, (token..token + 10).map(proposal).collect());
    }
    eventually("all are answered", || port.0.lock().len() as u64 == COMMANDS).await;
    assert!(port.0.lock().iter().zip(0..).all(|(found, token)| *found == (token, true)));
    store.close().await.unwrap();
    store.propose(session.group, vec![proposal(7)]);
    assert_eq!(port.0.lock().last(), Some(&(7, false)));
    let error = store.call(session.group, Command::Tidy).await.unwrap_err();
    assert!(matches!(*error, StorageError::Unavailable(_)));
}

/// A command of a boot that was not started is refused by `apply`, and the reply says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicts_are_replies() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path()), TestClock::at(0)).await.unwrap();
    let reply = store.call(GroupId(0), Command::Tidy).await.unwrap();
    assert_eq!(reply, Reply::Conflict(Conflict::BootRetired));
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_opened_once_by_its_node_with_its_groups() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path()), TestClock::at(0)).await.unwrap();
    let again = Store::open(options(dir.path()), TestClock::at(0)).await;
    assert!(matches!(refused(again), StorageError::Locked(_)));
    store.close().await.unwrap();
    let mut other = options(dir.path());
    other.boot.node_id = 2;
    let foreign = Store::open(other, TestClock::at(0)).await;
    assert!(matches!(refused(foreign), StorageError::Foreign { .. }));
    let mut groups = options(dir.path());
    groups.groups = 4;
    let fewer = refused(Store::open(groups, TestClock::at(0)).await);
    assert!(matches!(fewer, StorageError::Foreign { .. }), "{fewer}");
    Store::open(options(dir.path()), TestClock::at(0)).await.unwrap().close().await.unwrap();
}

/// A node at rest writes nothing: no log entry, no fsync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_at_rest() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(dir.path())).await;
    let fsyncs = store.fsyncs();
    // Several heartbeats and election timeouts.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert_eq!(store.fsyncs(), fsyncs);
    store.close().await.unwrap();
}

/// A damaged log stops the start with the file and the offset; nothing is cut silently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_refuses_to_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(dir.path())).await;
    let session = Session::connect(&store, "c1").await;
    for _ in 0..20 {
        store.call(session.group, session.append(&[1; 100])).await.unwrap();
    }
    drop(store);
    let segment = support::files(&dir.path().join("wal"), "wal").remove(0);
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[400] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let error = refused(Store::open(options(dir.path()), TestClock::at(0)).await);
    match error {
        StorageError::Damaged { path, .. } => assert_eq!(path, segment),
        other => panic!("{other:?}"),
    }
}

/// DESIGN §9: a page of retained messages starts where the one before it ended, over all groups, bodies in memory or on disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retained_messages_are_read_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.resident_bytes_max = 0;
    let store = open(options).await;
    for number in 0..50u8 {
        let topic = format!("r/{number}");
        let message = message(&topic, &[number]);
        store.call(store.group_of_topic(&topic), Command::Retain { message, stamp: None }).await.unwrap();
        if number == 25 {
            store.checkpoint().await.unwrap();
        }
    }
    let mut whole = Vec::new();
    let mut all = |message: Arc<session::message::Message>| {
        whole.push(message.topic().to_owned());
        true
    };
    store.retained("r/+", &mut all).unwrap();
    assert_eq!(whole.len(), 50);
    for max in [1, 7, 50, 100] {
        let mut found: Vec<String> = Vec::new();
        loop {
            let last = found.last().cloned();
            let after = last.as_deref().map(|topic| (store.group_of_topic(topic), topic));
            let before = found.len();
            let mut page = |message: Arc<session::message::Message>| {
                found.push(message.topic().to_owned());
                true
            };
            store.retained_from("r/+", after, max, &mut page).unwrap();
            assert!(found.len() <= before + max);
            if found.len() == before {
                break;
            }
        }
        assert_eq!(found, whole, "pages of {max}");
    }
    store.close().await.unwrap();
}
