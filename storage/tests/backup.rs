//! A backup of a store that runs, and what becomes of it elsewhere (DESIGN §7, §11 `backup`, `restore`).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;
use std::sync::Arc;

use session::lifecycle::{Command, Reply, RetireProof, SessionState};
use session::time::Millis;
use storage::backup::About;
use storage::boot::{Boots, Proof};
use storage::restore::{RestoreOptions, Restored, check, restore};
use storage::{EngineKind, StorageError, Store};
use support::{Session, TestClock, message, open, options};

const NOW: Millis = Millis(50_000);

fn about() -> About {
    About { version: "1.2.3".to_owned(), at: NOW }
}

fn back_up(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.backup(&about(), &mut bytes).unwrap();
    bytes
}

fn restore_options(dir: &Path) -> RestoreOptions {
    let proof = RetireProof::Attested { text: "the machine burnt".into() };
    RestoreOptions { data_dir: dir.to_owned(), node_id: 1, engine: EngineKind::Redb, at: NOW, proof }
}

fn restore_bytes(bytes: &[u8], at: &Path) -> Result<Restored, StorageError> {
    let file = at.with_extension("backup");
    std::fs::write(&file, bytes).unwrap();
    restore(&file, &restore_options(at))
}

/// What was acknowledged before is there, under a new cluster; the old owners are retired by the operator's word, and by nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(&dir.path().join("old"))).await;
    let sessions = [Session::connect(&store, "c1").await, Session::connect(&store, "c2").await];
    for number in 0..30u8 {
        store.call(sessions[0].group, sessions[0].append(&[number; 2_000])).await.unwrap();
    }
    store.call(sessions[0].group, sessions[0].settle(0..10)).await.unwrap();
    let topic_group = store.group_of_topic("r/1");
    let retain = Command::Retain { message: message("r/1", b"kept"), stamp: None };
    store.call(topic_group, retain).await.unwrap();
    let inbox = sessions[0].inbox(&store);
    let bytes = back_up(&store);
    // Not in the backup any more.
    store.call(sessions[0].group, sessions[0].append(b"later")).await.unwrap();

    let new = dir.path().join("new");
    let restored = restore_bytes(&bytes, &new).unwrap();
    assert_eq!(restored.manifest.cluster_id, store.identity().cluster_id);
    assert_ne!(restored.cluster_id, store.identity().cluster_id, "nodes of both never mix");
    assert_eq!((restored.manifest.version.as_str(), restored.manifest.at), ("1.2.3", NOW));
    assert_eq!((restored.sessions, restored.boots_retired, restored.retained), (2, 1, 1));

    let options = options(&new);
    let clock = TestClock::at(0);
    let after = Store::open(options.clone(), clock).await.unwrap();
    support::start_boot(&after).await;
    assert_eq!(sessions[0].inbox(&after), inbox);
    for session in &sessions {
        let found =
            after.read(session.group, |group| group.session(&session.row.owner.key).cloned()).unwrap();
        assert!(matches!(found.state, SessionState::Offline { .. }), "{found:?}");
        assert_eq!(found.lifetime, session.row.lifetime);
        let boot = store.boot();
        let retired = after.read(session.group, |group| group.boot(boot).unwrap().retired.clone());
        let text = retired.unwrap().1.text().cloned();
        assert_eq!(text.as_deref(), Some("the machine burnt"));
        // The old owner has no say here.
        let late = after.call(session.group, session.settle(10..12)).await.unwrap();
        assert!(matches!(late, Reply::Conflict(_)), "{late:?}");
    }
    let lifetimes: Vec<u64> = sessions.iter().map(|session| session.row.lifetime).collect();
    let fresh = Session::connect(&after, "c3").await;
    assert!(!lifetimes.contains(&fresh.row.lifetime) || sessions.iter().all(|old| old.group != fresh.group));
    // The state outlives its first checkpoint and a start.
    after.checkpoint().await.unwrap();
    after.close().await.unwrap();
    let again = Store::open(support::options(&new), TestClock::at(0)).await.unwrap();
    assert!(sessions[0].inbox(&again).len() >= inbox.len());
    again.close().await.unwrap();
    store.close().await.unwrap();
}

/// DESIGN §7: a restored directory proves nothing about boots of the original, which may still run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_directory_mints_no_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    let (boots, _) = Boots::recover(&old, 1, "first").unwrap();
    let mut options = options(&old);
    options.boot = boots.current().clone();
    let store = open(options).await;
    let session = Session::connect(&store, "c1").await;
    let bytes = back_up(&store);
    let new = dir.path().join("new");
    restore_bytes(&bytes, &new).unwrap();
    let (restored, recovered) = Boots::recover(&new, 1, "second").unwrap();
    assert!(recovered.graceful.is_empty() && recovered.crashed.is_empty());
    assert_eq!(restored.lookup(&session.row.owner).unwrap(), Proof::Unknown);
    store.close().await.unwrap();
}

/// A group that was restored gives its state to a node that joins: a log that begins at 0 would leave it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_go_on_behind_the_backup() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(&dir.path().join("old"))).await;
    let session = Session::connect(&store, "c1").await;
    let bytes = back_up(&store);
    let applied = store.applied(session.group);
    let new = dir.path().join("new");
    restore_bytes(&bytes, &new).unwrap();
    let after = Store::open(options(&new), TestClock::at(0)).await.unwrap();
    assert!(after.applied(session.group) > applied + 1);
    assert!(after.leads(session.group) && after.is_alone());
    after.close().await.unwrap();
    store.close().await.unwrap();
}

/// Bad input: cut anywhere, a bit flipped anywhere, something else; the directory is not made, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_backup_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(&dir.path().join("old"))).await;
    let session = Session::connect(&store, "c1").await;
    store.call(session.group, session.append(&[7; 500])).await.unwrap();
    let bytes = back_up(&store);
    let new = dir.path().join("new");
    let refused = |bytes: &[u8], what: &str| {
        let error = restore_bytes(bytes, &new).expect_err(what);
        assert!(matches!(error, StorageError::Backup { .. }), "{what}: {error}");
        assert!(!new.exists() && !dir.path().join("new.restoring").exists(), "{what}");
        assert!(check(&new.with_extension("backup")).is_err(), "{what}");
    };
    let step = (bytes.len() / 60).max(1);
    for at in (0..bytes.len()).step_by(step) {
        refused(&bytes[..at], &format!("cut at {at}"));
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        refused(&flipped, &format!("bit at {at}"));
    }
    refused(&[&bytes[..], b"x"].concat(), "more behind it");
    refused(b"something else", "no backup");
    std::fs::write(new.with_extension("backup"), &bytes).unwrap();
    assert_eq!(check(&new.with_extension("backup")).unwrap().groups, 2);
    store.close().await.unwrap();
}

/// Nothing that is there is overwritten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_with_something_in_it_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(&dir.path().join("old"))).await;
    let bytes = back_up(&store);
    for name in ["precious", "restoring/precious"] {
        let full = dir.path().join("full");
        std::fs::create_dir_all(full.join(name).parent().unwrap()).unwrap();
        std::fs::write(full.join(name), b"x").unwrap();
        let error = restore_bytes(&bytes, &full).unwrap_err();
        assert!(matches!(error, StorageError::Target { .. }), "{error}");
        assert!(full.join(name).exists());
        std::fs::remove_dir_all(&full).unwrap();
    }
    // A volume of its own: it is no other directory afterwards, and closed to others as before.
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let (empty, link) = (dir.path().join("empty"), dir.path().join("link"));
    std::fs::create_dir_all(empty.join("lost+found")).unwrap();
    std::fs::set_permissions(&empty, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&empty, &link).unwrap();
    let before = std::fs::metadata(&empty).unwrap();
    restore_bytes(&bytes, &link).unwrap();
    let after = std::fs::metadata(&empty).unwrap();
    assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
    assert!(!empty.join("restoring").exists());
    let restored = Store::open(options(&empty), TestClock::at(0)).await.unwrap();
    restored.close().await.unwrap();
    store.close().await.unwrap();
}

/// P4: while clients are served, the backup has everything that was acknowledged before it began, and whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(options(&dir.path().join("old"))).await;
    let session = Arc::new(Session::connect(&store, "c1").await);
    let stop = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let writer = tokio::spawn({
        let (store, session, stop) = (store.clone(), Arc::clone(&session), Arc::clone(&stop));
        async move {
            let mut number = 0_u64;
            while stop.load(std::sync::atomic::Ordering::SeqCst) < u64::MAX {
                store.call(session.group, session.append(&number.to_be_bytes())).await.unwrap();
                number += 1;
                stop.fetch_max(number.min(u64::MAX - 1), std::sync::atomic::Ordering::SeqCst);
            }
        }
    });
    let (mut before, mut backups) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        support::eventually("more was written", || {
            stop.load(std::sync::atomic::Ordering::SeqCst) > before.last().map_or(20, |last| last + 20)
        })
        .await;
        before.push(stop.load(std::sync::atomic::Ordering::SeqCst));
        let store = store.clone();
        backups.push(tokio::task::spawn_blocking(move || back_up(&store)).await.unwrap());
    }
    stop.store(u64::MAX, std::sync::atomic::Ordering::SeqCst);
    writer.await.unwrap();
    for (number, (bytes, before)) in backups.iter().zip(before).enumerate() {
        let new = dir.path().join(format!("new{number}"));
        restore_bytes(bytes, &new).unwrap();
        let after = Store::open(options(&new), TestClock::at(0)).await.unwrap();
        let held = after.read(session.group, |group| group.inbox(session.row.lifetime).unwrap().end);
        assert!(held >= before, "{held} of {before}");
        assert_eq!(session.inbox(&after).len() as u64, held);
        after.close().await.unwrap();
    }
    store.close().await.unwrap();
}
