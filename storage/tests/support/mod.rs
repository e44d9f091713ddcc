//! A store in a temporary directory, and commands as a broker would propose them.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of these tests' tools")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use session::id::{Boot, Key, Owner};
use session::lifecycle::{Ack, AckKind, Append, Command, Connect, Reply, SessionRef, SessionRow, Target};
use session::message::{Message, QoS};
use session::time::Millis;
use storage::{Clock, DeliveryPort, EngineKind, GroupId, Options, Pushed, StorageError, Store};

#[derive(Debug)]
pub(crate) struct TestClock(pub(crate) AtomicU64);

impl TestClock {
    pub(crate) fn at(ms: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(ms)))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Millis {
        Millis(self.0.load(Ordering::SeqCst))
    }

    fn observe(&self, seen: Millis) {
        self.0.fetch_max(seen.0, Ordering::SeqCst);
    }
}

pub(crate) fn options(dir: &Path) -> Options {
    Options {
        data_dir: dir.to_owned(),
        boot: Boot { node_id: 1, boot_id: "00112233445566778899aabbccddeeff".into() },
        groups: 2,
        engine: EngineKind::Redb,
        segment_bytes: 256 << 10,
        checkpoint_bytes: 64 << 20,
        resident_bytes_max: 64 << 20,
        peers: None,
        formation: storage::Formation::Alone,
    }
}

pub(crate) async fn open(options: Options) -> Store {
    let store = Store::open(options, TestClock::at(1_000)).await.unwrap();
    start_boot(&store).await;
    store
}

pub(crate) async fn start_boot(store: &Store) {
    for group in 0..store.groups() {
        let start = Command::BootStart { lease_until: Millis(1 << 40) };
        assert!(matches!(store.call(GroupId(group), start).await, Ok(Reply::Done { .. })));
    }
}

/// A durable session that is connected.
pub(crate) struct Session {
    pub(crate) group: GroupId,
    pub(crate) row: SessionRow,
}

impl Session {
    pub(crate) async fn connect(store: &Store, client: &str) -> Self {
        let key = Key::new("main".into(), client.into()).unwrap();
        let owner = Owner {
            key: key.clone(),
            session_generation: 1,
            owner_generation: 1,
            node_id: 1,
            boot_id: "00112233445566778899aabbccddeeff".into(),
            connection_id: 1,
        };
        let connect = Connect {
            owner,
            uid: None,
            previous: None,
            clean_start: false,
            expiry_sec: u32::MAX,
            will: None,
        };
        let group = store.group_of(&key);
        match store.call(group, Command::Connect(Box::new(connect))).await.unwrap() {
            Reply::Row { row, .. } => Self { group, row: *row },
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn reference(&self) -> SessionRef {
        SessionRef { lifetime: self.row.lifetime, owner_generation: self.row.owner.owner_generation }
    }

    pub(crate) fn append(&self, payload: &[u8]) -> Command {
        append(&[self.row.lifetime], payload)
    }

    pub(crate) fn settle(&self, offsets: impl IntoIterator<Item = u64>) -> Command {
        let acks = offsets.into_iter().map(|offset| Ack { offset, kind: AckKind::Settled }).collect();
        Command::Ack { session: self.reference(), acks }
    }

    /// Payloads of all unsettled entries by offset.
    pub(crate) fn inbox(&self, store: &Store) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        let mut from = 0;
        loop {
            let (entries, next) =
                store.read_inbox(self.group, self.row.lifetime, from, 100, 1 << 20).unwrap();
            if entries.is_empty() {
                return all;
            }
            all.extend(entries.iter().map(|entry| (entry.offset, entry.message.payload().to_vec())));
            from = next;
        }
    }
}

pub(crate) fn append(lifetimes: &[u64], payload: &[u8]) -> Command {
    let target = |lifetime: &u64| Target {
        lifetime: *lifetime,
        qos: QoS::AtLeastOnce,
        retain: false,
        identifiers: Default::default(),
        shared: false,
    };
    Command::Append(Box::new(Append {
        message: message("t/1", payload),
        stamp: None,
        targets: lifetimes.iter().map(target).collect(),
    }))
}

pub(crate) fn message(topic: &str, payload: &[u8]) -> Message {
    let mut message = Message::new(topic, &[], payload);
    message.qos = QoS::AtLeastOnce;
    message
}

/// Collects what it is told.
#[derive(Debug, Default)]
pub(crate) struct Inbox(pub(crate) Mutex<Vec<Pushed>>);

impl DeliveryPort for Inbox {
    fn deliver(&self, batch: Vec<Pushed>) {
        self.0.lock().extend(batch);
    }
}

/// Waits for a condition with a deadline.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn refused(result: Result<Store, StorageError>) -> StorageError {
    match result {
        Ok(_) => panic!("the store opened"),
        Err(error) => error,
    }
}

/// Bytes of all files below a directory, by extension.
pub(crate) fn files(dir: &Path, extension: &str) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = (std::fs::read_dir(dir).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    found.sort();
    found
}
