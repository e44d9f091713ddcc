//! The executor of Wills on a real store.

use std::sync::atomic::AtomicUsize;

use session::id::Owner;
use session::lifecycle::{Connect, Disconnect, DisconnectKind, WillTemplate};

use super::*;

/// Counts what it is told to deliver live. Its durable part ends with `WillPublished`, as by a command whose reply never comes.
#[derive(Debug)]
struct Counting {
    store: Store,
    live: AtomicUsize,
}

impl WillPublisher for Counting {
    fn is_permitted(&self, _will: &WillRow) -> bool {
        true
    }

    fn publish(&self, will: &WillKey, _message: &Arc<Message>) -> PublishFuture {
        let (store, will) = (self.store.clone(), will.clone());
        Box::pin(async move {
            let reply = store.call(GroupId(0), Command::WillPublished { will }).await;
            assert!(matches!(reply, Ok(Reply::Done { .. })), "{reply:?}");
            Ok(())
        })
    }

    fn deliver_live(&self, _will: &WillKey, _message: &Arc<Message>) {
        self.live.fetch_add(1, Ordering::SeqCst);
    }
}

/// A store of its own, whose session `c` was lost and left its Will Ready.
async fn store_with_a_will(dir: &std::path::Path, boot: &Boot, clock: &Arc<NodeClock>) -> (Store, WillKey) {
    let options = storage::Options {
        data_dir: dir.to_owned(),
        boot: boot.clone(),
        groups: 1,
        engine: storage::EngineKind::Redb,
        segment_bytes: 256 << 10,
        checkpoint_bytes: 64 << 20,
        resident_bytes_max: 64 << 20,
        peers: None,
        formation: storage::Formation::Alone,
    };
    let store = Store::open(options, clock.clone()).await.expect("a store");
    let key = Key::new("main".into(), "c".into()).expect("a key");
    let owner = Owner {
        key: key.clone(),
        session_generation: 1,
        owner_generation: 1,
        node_id: boot.node_id,
        boot_id: boot.boot_id.clone(),
        connection_id: 1,
    };
    let message = Message::new("will/c", &[], b"gone");
    let connect = Connect {
        owner: owner.clone(),
        uid: None,
        previous: None,
        clean_start: false,
        expiry_sec: 0,
        will: Some(WillTemplate { message, delay_sec: 0, message_expiry_sec: None }),
    };
    let disconnect = Disconnect {
        owner,
        kind: DisconnectKind::WithWill,
        observed_at: clock.millis(),
        expiry_sec: None,
        sent_through: 0,
    };
    for command in [
        Command::BootStart { lease_until: Millis(u64::MAX) },
        Command::Connect(Box::new(connect)),
        Command::Disconnect(Box::new(disconnect)),
    ] {
        let reply = store.call(GroupId(0), command).await.expect("a reply");
        assert!(!matches!(reply, Reply::Conflict(_)), "{reply:?}");
    }
    let ready = store.read(GroupId(0), |rows| {
        rows.wills_of(&key).find(|(_, row)| row.stage == WillStage::Ready).map(|(will, _)| will.clone())
    });
    (store, ready.expect("a Will that is due"))
}

/// P6: a Will whose record was committed and not answered has lost its row; its live subscribers get it all the same, once.
#[tokio::test]
async fn p6_a_will_with_a_lost_record_reaches_live_subscribers() {
    let dir = tempfile::tempdir().expect("a directory");
    let boot = Boot { node_id: 1, boot_id: "00112233445566778899aabbccddeeff".into() };
    let clock = Arc::new(NodeClock::default());
    let (store, will) = store_with_a_will(dir.path(), &boot, &clock).await;
    let publisher = Arc::new(Counting { store: store.clone(), live: AtomicUsize::new(0) });
    let executor = WillExecutor::new(boot, clock, store.clone(), publisher.clone());
    for _ in 0..2 {
        executor.execute(GroupId(0), &mut HashSet::from([will.clone()])).await;
        assert_eq!(publisher.live.load(Ordering::SeqCst), 1);
    }
    assert_eq!(executor.counters.published.load(Ordering::Relaxed), 1);
    store.close().await.expect("closed");
}
