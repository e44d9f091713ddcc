//! What a list looks at under one lock.

use std::collections::BTreeMap;

use session::id::{Boot, Owner};
use session::lifecycle::{
    Batch, Command, Connect, Outcome, Reply, SessionRef, SubscriptionOptions, SubscriptionRow,
};
use session::message::QoS;
use session::time::Millis;

use super::*;

/// A group with these sessions, each with so many shared subscriptions.
fn group(sessions: &[(&str, usize)]) -> Group {
    let mut rows = Group::new(1_000, 1 << 20);
    let boot = Boot { node_id: 1, boot_id: "00112233445566778899aabbccddeeff".into() };
    let mut index = 0;
    let mut apply = |command| {
        index += 1;
        let batch = Batch { boot: boot.clone(), at: Millis(1_000 + index), commands: vec![command] };
        let mut outcome = Outcome::default();
        rows.apply(index, 0, &batch, &mut outcome);
        outcome.replies.pop().expect("one reply a command")
    };
    apply(Command::BootStart { lease_until: Millis(1_000_000) });
    for (connection_id, (client_id, shares)) in (1..).zip(sessions) {
        let owner = Owner {
            key: Key { namespace: "main".into(), client_id: (*client_id).into() },
            session_generation: 1,
            owner_generation: 1,
            node_id: 1,
            boot_id: boot.boot_id.clone(),
            connection_id,
        };
        let connect =
            Connect { owner, uid: None, previous: None, clean_start: false, expiry_sec: 300, will: None };
        let reply = apply(Command::Connect(Box::new(connect)));
        let Reply::Row { row, .. } = reply else { panic!("a session, not {reply:?}") };
        let session = SessionRef { lifetime: row.lifetime, owner_generation: row.owner.owner_generation };
        let options = SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            identifier: 0,
        };
        let of = |at: usize| SubscriptionRow { filter: format!("$share/g/{at:05}").into(), options };
        apply(Command::Subscribe { session, filters: (0..*shares).map(of).collect() });
    }
    rows
}

/// P9: a session with many shared subscriptions holds the lock of its group no longer than many sessions do, and each of them is seen once.
#[test]
fn p9_the_work_under_one_lock_is_bounded() {
    let many = WORK_AT_ONCE * 3 + 7;
    let mut sessions = vec![("a", 3), ("b", many), ("c", 0), ("d", WORK_AT_ONCE), ("e", 1)];
    let names: Vec<String> = (0..WORK_AT_ONCE + 5).map(|at| format!("f{at:05}")).collect();
    sessions.extend(names.iter().map(|name| (name.as_str(), 1)));
    let rows = group(&sessions);
    let (mut place, mut shares) = (Place::default(), Shares::default());
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut locks = 0;
    loop {
        let mut under_lock = 0;
        let more = walk(&rows, &mut place, &mut |rows, row, work| {
            under_lock += 1;
            shares.walk(rows, row, work, |filter| {
                under_lock += 1;
                *seen.entry((row.owner.key.client_id.to_string(), filter.to_string())).or_default() += 1;
            })
        });
        locks += 1;
        assert!(under_lock <= WORK_AT_ONCE + 1, "{under_lock} under one lock");
        if !more {
            break;
        }
    }
    assert_eq!(seen.len(), 3 + many + WORK_AT_ONCE + 1 + names.len());
    assert!(seen.values().all(|times| *times == 1));
    assert!(locks >= 6, "{locks}");
}

/// A page begins at its session, and ends when it is full.
#[test]
fn a_walk_goes_on_where_it_was() {
    let rows = group(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
    let key = |client_id: &str| Key { namespace: "main".into(), client_id: client_id.into() };
    let walked = |place: &mut Place, enough: &str| {
        let mut seen = Vec::new();
        let more = walk(&rows, place, &mut |_, row, _| {
            seen.push(row.owner.key.client_id.to_string());
            if *row.owner.key.client_id == *enough { Seen::Enough } else { Seen::All }
        });
        assert!(!more);
        seen.join("")
    };
    assert_eq!(walked(&mut Place::default(), "c"), "abc");
    assert_eq!(walked(&mut Place::at(&key("b")), "z"), "bcd");
    assert_eq!(walked(&mut Place::at(&key("bb")), "z"), "cd", "one that is gone");
}
