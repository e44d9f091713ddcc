//! What becomes of messages that are passed on, in front of a store that answers as a test wants.

use session::lifecycle::{Append, Command, Target};
use session::message::Message;

use super::super::super::share::Place;
use super::*;
use crate::route::Left;

const GROUP: GroupId = GroupId(3);
const LIFETIME: u64 = 7;

/// Remembers what it is asked for.
#[derive(Debug, Default)]
struct Store {
    proposed: Mutex<Vec<(Append, Done)>>,
    undecided: Mutex<Vec<Done>>,
    passed_over: Mutex<Vec<SharedMessage>>,
    dropped: Mutex<Vec<(DropReason, u64)>>,
}

#[derive(Debug)]
struct Asked(Arc<Store>);

impl Ways for Asked {
    fn propose(&self, group: GroupId, proposals: Vec<Proposal>) {
        assert_eq!(group, GROUP);
        for Proposal { command, done } in proposals {
            let Command::Append(append) = command else { panic!("an append, not {command:?}") };
            self.0.proposed.lock().push((*append, done));
        }
    }

    fn decide(&self, group: GroupId, done: Done) {
        assert_eq!(group, GROUP);
        self.0.undecided.lock().push(done);
    }

    fn pass_over(&self, _passed_on: Arc<PassedOn>, messages: Vec<SharedMessage>) {
        self.0.passed_over.lock().extend(messages);
    }

    fn dropped(&self, why: DropReason, count: u64) {
        if count > 0 {
            self.0.dropped.lock().push((why, count));
        }
    }
}

impl Store {
    fn start() -> (Arc<Self>, Arc<PassedOn>) {
        let store = Arc::<Self>::default();
        (store.clone(), PassedOn::new(Box::new(Asked(store)), &"boot".into()))
    }

    /// Answers the append that was proposed last.
    fn answer(&self, reply: Result<Reply, Arc<StorageError>>) -> Append {
        let (append, done) = self.proposed.lock().pop().expect("an append is under way");
        answer(done, reply);
        append
    }

    fn decide(&self, is_sure: bool) {
        let done = self.undecided.lock().pop().expect("it is asked what became of the append");
        answer(done, if is_sure { Ok(Reply::Done { revision: 0, unchanged: true }) } else { lost() });
    }
}

fn answer(done: Done, reply: Result<Reply, Arc<StorageError>>) {
    let Done::Port { port, token } = done else { panic!("a port waits, not {done:?}") };
    port.complete(vec![(token, reply)]);
}

fn lost() -> Result<Reply, Arc<StorageError>> {
    Err(Arc::new(StorageError::Unavailable("its leader is gone".to_owned())))
}

fn appended(over_quota: u32, missing: u32) -> Result<Reply, Arc<StorageError>> {
    Ok(Reply::Appended { accepted: 1 - over_quota - missing, over_quota, missing, duplicate: false })
}

fn message(payload: usize, stamp: Option<Stamp>, place: Place) -> SharedMessage {
    let mut message = Message::new("s", &[], &vec![0; payload]);
    message.qos = QoS::ExactlyOnce;
    SharedMessage { message: Arc::new(message), stamp, left: Left::of(&"$share/g/s".into()), place }
}

fn give(passed_on: &Arc<PassedOn>, qos: QoS, payload: usize, stamp: Option<Stamp>) {
    let target = Target {
        lifetime: LIFETIME,
        qos,
        retain: false,
        identifiers: smallvec::SmallVec::new(),
        shared: true,
    };
    let target = SharedTarget { group: GROUP, target, filter: "$share/g/s".into() };
    passed_on.give(message(payload, stamp, Place::Inbox(GROUP, LIFETIME)), target);
}

/// P5, MQTT 5 §4.8.2: an append that is lost is made again, to the same inbox and, with QoS 2, under the same stamp, and not before it
/// is sure what became of the first one.
#[test]
fn p5_a_lost_append_is_made_again() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (store, passed_on) = Store::start();
        give(&passed_on, qos, 1, None);
        let first = store.answer(lost());
        assert_eq!(first.stamp.is_some(), qos == QoS::ExactlyOnce, "QoS 1 may come twice");
        assert!(store.proposed.lock().is_empty(), "what was lost may still take effect");
        store.decide(true);
        assert_eq!(store.answer(appended(0, 0)), first);
        assert!(store.proposed.lock().is_empty() && store.undecided.lock().is_empty());
        assert!(store.dropped.lock().is_empty() && store.passed_over.lock().is_empty());
        assert!(passed_on.state.lock().messages.is_empty());
        assert_eq!(passed_on.state.lock().lost_bytes, 0);
    }
}

/// P5: stamps that are made here differ, also where a slot is used again; that of the publisher stays what it was.
#[test]
fn p5_each_message_has_a_stamp_of_its_own() {
    let (store, passed_on) = Store::start();
    let (other_store, other) = Store::start();
    let mut stamps = Vec::new();
    for _ in 0..3 {
        give(&passed_on, QoS::ExactlyOnce, 1, None);
        stamps.push(store.answer(appended(0, 0)).stamp.expect("QoS 2 has one"));
        give(&other, QoS::ExactlyOnce, 1, None);
        stamps.push(other_store.answer(appended(0, 0)).stamp.expect("QoS 2 has one"));
    }
    assert!(stamps.iter().enumerate().all(|(at, stamp)| !stamps[..at].contains(stamp)), "{stamps:?}");
    let key = Key { namespace: "main".into(), client_id: "p".into() };
    let own = Stamp::Publisher { key, lifetime: 9, packet_id: 7, sequence: 5 };
    give(&passed_on, QoS::ExactlyOnce, 1, Some(own.clone()));
    let stamp = store.answer(appended(0, 0)).stamp;
    assert_eq!(stamp, Some(crate::route::share_stamp(&own, "$share/g/s")));
}

/// P9: it is not made again for ever; a message that is given up, or that the group of its inbox took down with it, is counted.
#[test]
fn p9_a_message_that_is_given_up_is_counted() {
    let (store, passed_on) = Store::start();
    give(&passed_on, QoS::AtLeastOnce, 1, None);
    for _ in 1..ATTEMPTS_MAX {
        store.answer(lost());
        store.decide(true);
    }
    assert!(store.dropped.lock().is_empty());
    store.answer(lost());
    assert_eq!(std::mem::take(&mut *store.dropped.lock()), [(DropReason::AppendLost, 1)]);
    assert!(store.undecided.lock().is_empty());

    give(&passed_on, QoS::AtLeastOnce, 1, None);
    store.answer(lost());
    store.decide(false);
    assert_eq!(std::mem::take(&mut *store.dropped.lock()), [(DropReason::AppendLost, 1)]);
    give(&passed_on, QoS::AtLeastOnce, 1, None);
    store.answer(Ok(Reply::Conflict(session::lifecycle::Conflict::Illegal)));
    assert_eq!(std::mem::take(&mut *store.dropped.lock()), [(DropReason::AppendLost, 1)]);
    give(&passed_on, QoS::AtLeastOnce, 1, None);
    store.answer(appended(1, 0));
    assert_eq!(std::mem::take(&mut *store.dropped.lock()), [(DropReason::InboxQuota, 1)]);
    assert!(store.proposed.lock().is_empty() && passed_on.state.lock().messages.is_empty());
    assert_eq!(passed_on.state.lock().lost_bytes, 0);
}

/// P9: what waits while a group has no leader is bounded by its bytes, and all messages by their number.
#[test]
fn p9_what_waits_for_a_lost_append_is_bounded() {
    let (store, passed_on) = Store::start();
    for _ in 0..3 {
        give(&passed_on, QoS::AtLeastOnce, LOST_BYTES_MAX / 2 - 16, None);
        store.answer(lost());
    }
    assert_eq!(std::mem::take(&mut *store.dropped.lock()), [(DropReason::AppendLost, 1)]);
    store.decide(true);
    give(&passed_on, QoS::AtLeastOnce, LOST_BYTES_MAX / 2 - 16, None);
    store.answer(lost());
    assert!(store.dropped.lock().is_empty(), "there is room again");

    let (store, passed_on) = Store::start();
    (0..MESSAGES_MAX).for_each(|_| give(&passed_on, QoS::AtLeastOnce, 1, None));
    give(&passed_on, QoS::AtLeastOnce, 1, None);
    assert!(passed_on.waiter(message(1, None, Place::Node(2))).is_none());
    assert_eq!(*store.dropped.lock(), [(DropReason::MailboxFull, 1); 2]);
}

/// MQTT 5 §4.8.2: a member, or a node, that is not there leaves the message to the next one.
#[test]
fn mqtt_4_8_2_a_member_that_is_not_there_is_passed_over() {
    let (store, passed_on) = Store::start();
    give(&passed_on, QoS::AtLeastOnce, 1, None);
    store.answer(appended(0, 1));
    let Waiter { port, token } =
        passed_on.waiter(message(1, None, Place::Node(2))).expect("there is room for it");
    port.complete(vec![(token, appended(0, 1))]);
    let Waiter { port, token } =
        passed_on.waiter(message(1, None, Place::Node(3))).expect("there is room for it");
    port.complete(vec![(token, Ok(Reply::Done { revision: 0, unchanged: false }))]);
    let places: Vec<Place> = store.passed_over.lock().iter().map(|message| message.place).collect();
    assert!(matches!(places[..], [Place::Inbox(GROUP, LIFETIME), Place::Node(2)]), "{places:?}");
    assert!(store.dropped.lock().is_empty() && passed_on.state.lock().messages.is_empty());
}
