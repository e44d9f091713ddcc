//! Many sessions that end in the same minute (lease spec §16, item 22): each Will fires once, the work of each step is bounded, nothing is left.
//!
//! `make test` arms a few; for the figure of a release set `EXACTMQ_ARMED_SESSIONS=100000`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use session::id::{Key, Owner};
use session::lifecycle::{
    Append, Command, Conflict, Connect, Disconnect, DisconnectKind, Due, Reply, Stamp, SubscriptionOptions,
    SubscriptionRow, Target, WillKey, WillTemplate,
};
use session::message::QoS;
use session::time::Millis;
use storage::{Clock, Done, GroupId, Proposal, Store};
use support::{Session, TestClock, message};

/// Due items of one turn, children of one reclamation: as the broker's.
const PAGE: usize = 1_024;
const RECLAIM: u32 = 256;
const CHILDREN: usize = 3;
const BEGIN_MS: u64 = 1_000_000;

/// Proposes commands together; their replies.
async fn all(store: &Store, group: GroupId, commands: Vec<Command>) -> Vec<Reply> {
    let (proposals, replies): (Vec<_>, Vec<_>) = commands
        .into_iter()
        .map(|command| {
            let (sender, reply) = tokio::sync::oneshot::channel();
            (Proposal { command, done: Done::Once(sender) }, reply)
        })
        .unzip();
    store.propose(group, proposals);
    let mut answers = Vec::with_capacity(replies.len());
    for reply in replies {
        answers.push(reply.await.unwrap().unwrap());
    }
    answers
}

fn owner(store: &Store, number: usize) -> Owner {
    Owner {
        key: Key::new("main".into(), format!("armed {number}").into()).unwrap(),
        session_generation: 1,
        owner_generation: 1,
        node_id: 1,
        boot_id: store.boot().boot_id.clone(),
        connection_id: number as u64 + 10,
    }
}

/// A session with a Will and subscriptions that lost its connection: due 30 to 90 s from now, its Will at most a minute from now.
async fn arm(store: &Store, group: GroupId, numbers: &[usize]) {
    let connect = |number: &usize| {
        let message = message("will", &number.to_be_bytes());
        let will = WillTemplate { message, delay_sec: *number as u32 % 61, message_expiry_sec: None };
        Command::Connect(Box::new(Connect {
            owner: owner(store, *number),
            uid: None,
            previous: None,
            clean_start: false,
            expiry_sec: 30 + *number as u32 % 60,
            will: Some(will),
        }))
    };
    let connected = all(store, group, numbers.iter().map(connect).collect()).await;
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        identifier: 0,
    };
    let filter = |at: usize| SubscriptionRow { filter: format!("filter/{at}").into(), options };
    let subscribe = |reply: &Reply| {
        let Reply::Row { row, .. } = reply else { panic!("{reply:?}") };
        let session = Session { group, row: (**row).clone() }.reference();
        Command::Subscribe { session, filters: (0..CHILDREN).map(filter).collect() }
    };
    all(store, group, connected.iter().map(subscribe).collect()).await;
    let disconnect = |number: &usize| {
        Command::Disconnect(Box::new(Disconnect {
            owner: owner(store, *number),
            kind: DisconnectKind::WithWill,
            observed_at: Millis(BEGIN_MS),
            expiry_sec: None,
            sent_through: 0,
        }))
    };
    for reply in all(store, group, numbers.iter().map(disconnect).collect()).await {
        assert!(matches!(reply, Reply::Row { .. }), "{reply:?}");
    }
}

/// Publishes them as an executor that was interrupted and does each step again; how many there were.
async fn publish(store: &Store, group: GroupId, wills: &[WillKey], watcher: u64, now: Millis) -> usize {
    let claim = |will: &WillKey| Command::WillClaim { will: will.clone(), lease_until: now.plus_ms(10_000) };
    let claimed = all(store, group, wills.iter().map(claim).collect()).await;
    let mut appends = Vec::new();
    let mut records = Vec::new();
    for (will, claimed) in wills.iter().zip(claimed) {
        assert!(matches!(claimed, Reply::Done { unchanged: false, .. }), "{claimed:?}");
        let message = store.read(group, |rows| rows.will(will).unwrap().message.clone());
        let target = Target {
            lifetime: watcher,
            qos: QoS::AtLeastOnce,
            retain: false,
            identifiers: Default::default(),
            shared: false,
        };
        let append = Append { message, stamp: Some(Stamp::Will(will.clone())), targets: vec![target] };
        appends.extend([Command::Append(Box::new(append.clone())), Command::Append(Box::new(append))]);
        records.extend([0; 2].map(|_| Command::WillPublished { will: will.clone() }));
    }
    let appended = all(store, group, appends).await;
    for pair in appended.chunks(2) {
        assert!(matches!(pair[0], Reply::Appended { accepted: 1, duplicate: false, .. }), "{pair:?}");
        assert!(matches!(pair[1], Reply::Appended { duplicate: true, .. }), "{pair:?}");
    }
    for pair in all(store, group, records).await.chunks(2) {
        assert!(matches!(pair[0], Reply::Done { .. }), "{pair:?}");
        assert!(matches!(pair[1], Reply::Conflict(Conflict::Missing)), "it is over: {pair:?}");
    }
    wills.len()
}

/// What is due now, a page at a time; counts pages, reconciled sessions, Wills, reclaimed children.
async fn turn(store: &Store, group: GroupId, watcher: u64, now: Millis, done: &mut [usize; 4]) {
    loop {
        let mut page = Vec::new();
        store.read(group, |rows| rows.due(now, PAGE, &mut page));
        if page.is_empty() {
            return;
        }
        assert!(page.len() <= PAGE, "{} items in one page", page.len());
        done[0] += 1;
        let (mut sessions, mut wills, mut reclaims) = (Vec::new(), Vec::new(), Vec::new());
        for item in page {
            match item {
                Due::Session { key, revision } => sessions.push(Command::Reconcile { key, revision }),
                Due::Will(key) => wills.push(key),
                Due::Reclaim { key, .. } => reclaims.push(key),
            }
        }
        done[1] += sessions.len();
        for reply in all(store, group, sessions).await {
            assert!(!matches!(reply, Reply::Conflict(Conflict::NotDue | Conflict::Illegal)), "{reply:?}");
        }
        done[2] += publish(store, group, &wills, watcher, now).await;
        let reclaims = reclaims.into_iter().filter_map(|key| {
            let revision = store.read(group, |rows| rows.session(&key).map(|row| row.revision))?;
            Some(Command::Reclaim { key, revision, limit: RECLAIM, binding_until: now })
        });
        for reply in all(store, group, reclaims.collect()).await {
            let Reply::Reclaimed { removed, .. } = reply else { panic!("{reply:?}") };
            assert!(removed <= RECLAIM, "{removed} in one step");
            done[3] += removed as usize;
        }
    }
}

/// Checklist 22: sessions with Wills that fall due within a minute: every Will fires once, although its executor does everything twice; each
/// step is a page; no session, Will or subscription is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_22_sessions_that_expire_in_one_minute_fire_each_will_once() {
    let text = std::env::var("EXACTMQ_ARMED_SESSIONS").ok();
    let sessions: usize = text.and_then(|text| text.parse().ok()).unwrap_or(4_000);
    let dir = tempfile::tempdir().unwrap();
    let clock = TestClock::at(BEGIN_MS);
    let store =
        Store::open(support::options(dir.path()), Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
    support::start_boot(&store).await;
    let began = Instant::now();
    let mut watchers = BTreeMap::new();
    for number in 0.. {
        if watchers.len() == usize::from(store.groups()) {
            break;
        }
        let watcher = Session::connect(&store, &format!("watcher {number}")).await;
        watchers.entry(watcher.group.0).or_insert(watcher);
    }
    let mut by_group: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for number in 0..sessions {
        by_group.entry(store.group_of(&owner(&store, number).key).0).or_default().push(number);
    }
    for (group, numbers) in &by_group {
        let quotas = Command::Quotas { messages: 10_000_000, bytes: 1 << 40 };
        store.call(GroupId(*group), quotas).await.unwrap();
        for numbers in numbers.chunks(PAGE) {
            arm(&store, GroupId(*group), numbers).await;
        }
    }
    let (armed, began, mut done) = (began.elapsed(), Instant::now(), [0; 4]);
    for second in 0..=92 {
        let now = Millis(BEGIN_MS + second * 1_000);
        clock.0.store(now.0, Ordering::SeqCst);
        for (group, watcher) in &watchers {
            turn(&store, GroupId(*group), watcher.row.lifetime, now, &mut done).await;
        }
    }
    println!(
        "{sessions} armed in {armed:?}, due in {:?}: {} pages, {} looks at sessions, {} wills, {} children",
        began.elapsed(),
        done[0],
        done[1],
        done[2],
        done[3]
    );
    assert_eq!(done[2], sessions, "each Will once");
    for (group, watcher) in &watchers {
        let mut seen: Vec<usize> = watcher
            .inbox(&store)
            .into_iter()
            .map(|(_, payload)| usize::from_be_bytes(payload.try_into().unwrap()))
            .collect();
        seen.sort_unstable();
        assert_eq!(Some(&seen), by_group.get(group), "group {group}");
        store.read(GroupId(*group), |rows| {
            let left = rows.sessions_after(None).filter(|row| row.owner.key != watcher.row.owner.key);
            assert_eq!(left.filter(|row| row.owner.key.client_id.starts_with("armed")).count(), 0);
        });
    }
    store.close().await.unwrap();
}
