//! Inboxes, acknowledgements, inbound QoS 2 and stamps.

use super::*;
use crate::lifecycle::group::inbox::Reference;
use AckKind::{Received, Settled};

fn publisher(world: &World, client_id: &str, packet_id: u16, sequence: u64) -> Option<Stamp> {
    let row = world.row(client_id);
    Some(Stamp::Publisher { key: row.owner.key.clone(), lifetime: row.lifetime, packet_id, sequence })
}

fn receive(world: &mut World, client_id: &str, packet_id: u16) -> (bool, u64) {
    let session = world.session(client_id);
    match world.apply(Command::Receive { session, packet_id }) {
        Reply::Received { routed, sequence } => (routed, sequence),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_entry_is_small() {
    assert!(size_of::<Reference>() <= 16, "ten million of them must fit in memory");
}

#[test]
fn one_message_for_many_inboxes_is_stored_once_and_freed_with_the_last() {
    let mut world = World::new();
    let (a, _) = world.connect(&dial("a"));
    let (b, _) = world.connect(&dial("b"));
    world.drop_connection("b");
    let reply = world.append(
        "x",
        &[(a.lifetime, QoS::AtLeastOnce), (b.lifetime, QoS::ExactlyOnce), (99, QoS::AtLeastOnce)],
    );
    assert_eq!(reply, Reply::Appended { accepted: 2, over_quota: 0, missing: 1, duplicate: false });
    assert_eq!(world.outcome.appended.len(), 2);
    let stat = world.group.stat();
    assert_eq!((stat.messages_stored, stat.inbox_messages, stat.inbox_bytes), (1, 2, 4));
    world.ack("a", &[(0, Settled)]);
    assert_eq!(world.group.stat().messages_stored, 1);
    world.connect(&dial("b"));
    world.ack("b", &[(0, Settled)]);
    let stat = world.group.stat();
    assert_eq!((stat.messages_stored, stat.messages_resident_bytes, stat.inbox_bytes), (0, 0, 0));
}

#[test]
fn an_append_without_a_live_target_stores_nothing() {
    let mut world = World::new();
    let (transient, _) = world.connect(&Dial { expiry_sec: 0, ..dial("t") });
    let before = dump(&world.group, &world.disk);
    let reply = world.append("x", &[(transient.lifetime, QoS::AtLeastOnce), (77, QoS::AtLeastOnce)]);
    assert_eq!(reply, Reply::Appended { accepted: 0, over_quota: 0, missing: 2, duplicate: false });
    let mut after = dump(&world.group, &world.disk);
    after.insert(vec![1], before[&vec![1_u8]].clone());
    assert_eq!(before, after);
}

#[test]
fn out_of_order_acks_advance_the_base_contiguously() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    for payload in ["a", "b", "c", "d"] {
        world.append(payload, &[(row.lifetime, QoS::AtLeastOnce)]);
    }
    let base = |world: &World| world.group.inbox(row.lifetime).unwrap().base;
    world.ack("c", &[(2, Settled), (1, Settled)]);
    assert_eq!(base(&world), 0);
    assert_eq!(world.payloads("c"), [(0, "a".into()), (3, "d".into())]);
    world.ack("c", &[(0, Settled)]);
    assert_eq!(base(&world), 3);
    assert_eq!(world.ack("c", &[(0, Settled), (2, Settled)]), Reply::Done { revision: 0, unchanged: true });
    world.ack("c", &[(3, Settled)]);
    let stat = world.group.inbox(row.lifetime).unwrap();
    assert_eq!((stat.base, stat.end, stat.messages, stat.bytes), (4, 4, 0, 0));
}

#[test]
fn acks_are_fenced_and_all_or_nothing() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.append("a", &[(row.lifetime, QoS::AtLeastOnce)]);
    let stale = world.session("c");
    world.connect(&dial("c"));
    let settle = |session, offset, kind| Command::Ack { session, acks: vec![Ack { offset, kind }] };
    assert_eq!(refused(&world.apply(settle(stale, 0, Settled))), Conflict::Fenced);
    let live = world.session("c");
    let past_end = Command::Ack {
        session: live,
        acks: vec![Ack { offset: 0, kind: Settled }, Ack { offset: 1, kind: Settled }],
    };
    assert_eq!(refused(&world.apply(past_end)), Conflict::Illegal);
    assert_eq!(refused(&world.apply(settle(live, 0, Received))), Conflict::Illegal, "PUBREC for QoS 1");
    assert_eq!(world.payloads("c").len(), 1);
    world.drop_connection("c");
    assert_eq!(
        refused(&world.apply(settle(live, 0, Settled))),
        Conflict::Fenced,
        "offline acknowledges nothing"
    );
    let unknown = SessionRef { lifetime: 99, owner_generation: 1 };
    assert_eq!(refused(&world.apply(settle(unknown, 0, Settled))), Conflict::Missing);
}

#[test]
fn an_owed_pubrel_survives_a_reconnect_and_a_crash() {
    // Scenario 69, [MQTT-4.4.0-1].
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.append("a", &[(row.lifetime, QoS::ExactlyOnce)]);
    world.append("b", &[(row.lifetime, QoS::AtLeastOnce)]);
    assert_eq!(world.ack("c", &[(0, Received)]), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(world.ack("c", &[(0, Received)]), Reply::Done { revision: 0, unchanged: true });
    let Command::Disconnect(mut close) = world.disconnect_command("c", DisconnectKind::WithWill) else {
        unreachable!()
    };
    close.sent_through = 2;
    world.apply(Command::Disconnect(close));
    world.reload();
    assert!(world.connect(&dial("c")).1);
    world.append("c", &[(row.lifetime, QoS::AtLeastOnce)]);
    let read = world.inbox("c");
    let seen: Vec<_> =
        read.entries.iter().map(|entry| (entry.offset, entry.received, entry.maybe_sent)).collect();
    assert_eq!(
        seen,
        [(0, true, true), (1, false, true), (2, false, false)],
        "DUP only where it may be a resend"
    );
}

#[test]
fn a_takeover_takes_the_inbox_for_sent_unless_the_owner_said_how_far() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    for payload in ["a", "b"] {
        world.append(payload, &[(row.lifetime, QoS::AtLeastOnce)]);
    }
    let sent = |world: &World| world.inbox("c").entries.iter().filter(|entry| entry.maybe_sent).count();
    let session = world.session("c");
    assert_eq!(
        world.apply(Command::Sent { session, through: 1 }),
        Reply::Done { revision: 0, unchanged: false }
    );
    world.connect(&dial("c"));
    assert_eq!(sent(&world), 1);
    world.connect(&dial("c"));
    assert_eq!(sent(&world), 2, "this owner said nothing");
}

#[test]
fn thirty_reconnects_leave_the_inbox_usable() {
    // Scenario 61.
    let mut world = World::new();
    for round in 0..31 {
        let (row, present) = world.connect(&dial("c"));
        assert_eq!(present, round > 0);
        world.append("m", &[(row.lifetime, QoS::ExactlyOnce)]);
        assert_eq!(world.payloads("c").len(), 1, "message {round} arrives");
        world.ack("c", &[(round, Received), (round, Settled)]);
        world.drop_connection("c");
    }
}

/// The quota alone bounds an inbox: it takes what is offered beyond 65,535 messages, offline and with the first one unacknowledged, and
/// keeps it over a restart (P5).
#[test]
fn an_inbox_may_be_longer_than_the_packet_ids() {
    let mut world = World::with_quota(70_000, u64::MAX);
    let (row, _) = world.connect(&dial("c"));
    let append = Append {
        message: message("t", "m"),
        stamp: None,
        targets: vec![target(row.lifetime, QoS::AtLeastOnce); 70_001],
    };
    let reply = world.apply(Command::Append(Box::new(append)));
    assert_eq!(reply, Reply::Appended { accepted: 70_000, over_quota: 1, missing: 0, duplicate: false });
    let session = world.session("c");
    let acks = (1..65_535).map(|offset| Ack { offset, kind: Settled }).collect();
    world.apply(Command::Ack { session, acks });
    world.reload();
    let reply = world.append("late", &[(row.lifetime, QoS::AtLeastOnce)]);
    assert_eq!(reply, Reply::Appended { accepted: 1, over_quota: 0, missing: 0, duplicate: false });
    assert_eq!(world.payloads("c").len(), 70_000 - 65_534 + 1);
}

/// Scenario 72, MQTT 5 §2.2.1: nobody says of more than 65,535 offsets that they were sent, so a resend names each with an id of its own.
#[test]
fn what_counts_as_sent_ends_with_the_packet_ids() {
    let mut world = World::with_quota(u64::MAX, u64::MAX);
    let (row, _) = world.connect(&dial("c"));
    let append = Append {
        message: message("t", "m"),
        stamp: None,
        targets: vec![target(row.lifetime, QoS::ExactlyOnce); 65_600],
    };
    world.apply(Command::Append(Box::new(append)));
    // A takeover that nobody told how far was sent.
    world.connect(&dial("c"));
    let sent = |world: &World| world.inbox("c").entries.iter().filter(|entry| entry.maybe_sent).count();
    assert_eq!(sent(&world), 65_535);
    world.ack("c", &[(0, Settled)]);
    let session = world.session("c");
    world.apply(Command::Sent { session, through: u64::MAX });
    assert_eq!(sent(&world), 65_535, "one offset on");
    world.reload();
    assert_eq!(sent(&world), 65_535);
}

#[test]
fn reading_pages_through_unsettled_entries() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    for payload in ["a", "b", "c", "d", "e"] {
        world.append(payload, &[(row.lifetime, QoS::AtLeastOnce)]);
    }
    world.ack("c", &[(0, Settled), (2, Settled)]);
    let mut pages = Vec::new();
    let mut from = 0;
    loop {
        let mut page = InboxRead::default();
        world.group.read_inbox(row.lifetime, from, 2, &mut page);
        if page.entries.is_empty() {
            break;
        }
        pages.push(page.entries.iter().map(|entry| entry.offset).collect::<Vec<_>>());
        from = page.next;
    }
    assert_eq!(pages, [vec![1, 3], vec![4]]);
    assert_eq!(from, 5);
}

#[test]
fn identifiers_and_retain_travel_with_the_entry() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    let targets = [&[][..], &[7], &[7, 268_435_455, 1]]
        .into_iter()
        .map(|ids| Target {
            retain: ids.len() == 1,
            identifiers: ids.iter().copied().collect(),
            ..target(row.lifetime, QoS::AtLeastOnce)
        })
        .collect();
    world.apply(Command::Append(Box::new(Append { message: message("t", "m"), stamp: None, targets })));
    for _ in 0..2 {
        let read = world.inbox("c");
        let seen: Vec<_> =
            read.entries.iter().map(|entry| (entry.identifiers.to_vec(), entry.retain)).collect();
        assert_eq!(seen, [(vec![], false), (vec![7], true), (vec![7, 268_435_455, 1], false)]);
        world.reload();
    }
}

#[test]
fn receive_is_idempotent_until_release() {
    // Scenarios 67, 71, [MQTT-4.3.3-10].
    let mut world = World::new();
    world.connect(&dial("c"));
    assert_eq!(receive(&mut world, "c", 1), (false, 1));
    assert_eq!(receive(&mut world, "c", 1), (false, 1));
    assert_eq!(receive(&mut world, "c", 2), (false, 2));
    world.drop_connection("c");
    world.reload();
    world.connect(&dial("c"));
    assert_eq!(receive(&mut world, "c", 1), (false, 1), "also after a reconnect and a crash");
    assert_eq!(world.group.received(world.row("c").lifetime), [1, 2]);
    let session = world.session("c");
    let release = Command::Release { session, packet_id: 1 };
    assert_eq!(world.apply(release.clone()), Reply::Released { known: true });
    assert_eq!(world.apply(release), Reply::Released { known: false });
    assert_eq!(receive(&mut world, "c", 1), (false, 3), "a later use has another stamp");
    let zero = Command::Receive { session, packet_id: 0 };
    assert_eq!(refused(&world.apply(zero)), Conflict::Illegal);
}

/// P5, [MQTT-4.3.3-10]: a repetition is told from one whose message reached nobody yet, also after a crash; what is said late of an
/// earlier use of the id says nothing of this one.
#[test]
fn p5_a_received_message_is_routed_once() {
    let mut world = World::new();
    world.connect(&dial("c"));
    assert_eq!(receive(&mut world, "c", 1), (false, 1));
    let routed = |world: &World, sequence| {
        let session = world.session("c");
        Command::Routed { session, packet_id: 1, sequence }
    };
    for unchanged in [false, true] {
        let command = routed(&world, 1);
        assert_eq!(world.apply(command), Reply::Done { revision: 0, unchanged });
    }
    assert_eq!(receive(&mut world, "c", 1), (true, 1));
    world.drop_connection("c");
    world.reload();
    let late = routed(&world, 1);
    world.connect(&dial("c"));
    assert_eq!(receive(&mut world, "c", 1), (true, 1));
    assert_eq!(refused(&world.apply(late)), Conflict::Fenced);
    let session = world.session("c");
    world.apply(Command::Release { session, packet_id: 1 });
    for command in [routed(&world, 1), routed(&world, 2)] {
        assert_eq!(world.apply(command), Reply::Done { revision: 0, unchanged: true });
    }
    assert_eq!(receive(&mut world, "c", 1), (false, 2));
    let command = routed(&world, 1);
    assert_eq!(world.apply(command), Reply::Done { revision: 0, unchanged: true });
    assert_eq!(receive(&mut world, "c", 1), (false, 2));
}

#[test]
fn a_stamped_append_happens_once() {
    // P5, scenario 67.
    let mut world = World::new();
    world.connect(&dial("pub"));
    let (sub, _) = world.connect(&dial("sub"));
    let to = [(sub.lifetime, QoS::ExactlyOnce)];
    let (_, sequence) = receive(&mut world, "pub", 9);
    let stamp = publisher(&world, "pub", 9, sequence);
    let first = world.append_stamped(message("t", "m"), stamp.clone(), &to);
    assert_eq!(first, Reply::Appended { accepted: 1, over_quota: 0, missing: 0, duplicate: false });
    let duplicate = Reply::Appended { accepted: 0, over_quota: 0, missing: 0, duplicate: true };
    assert_eq!(world.append_stamped(message("t", "m"), stamp.clone(), &to), duplicate);
    world.reload();
    assert_eq!(world.append_stamped(message("t", "m"), stamp.clone(), &to), duplicate, "also after a crash");
    let session = world.session("pub");
    world.apply(Command::Release { session, packet_id: 9 });
    let (routed, sequence) = receive(&mut world, "pub", 9);
    assert!(!routed);
    let next = publisher(&world, "pub", 9, sequence);
    assert!(matches!(
        world.append_stamped(message("t", "n"), next, &to),
        Reply::Appended { accepted: 1, duplicate: false, .. }
    ));
    assert_eq!(
        world.append_stamped(message("t", "m"), stamp, &to),
        duplicate,
        "a late copy of the earlier use"
    );
    assert_eq!(world.payloads("sub").len(), 2);
}

#[test]
fn stamps_go_when_no_id_can_be_repeated_any_more() {
    let mut world = World::new();
    let (sub, _) = world.connect(&dial("sub"));
    let stamp =
        |lifetime, packet_id| Some(Stamp::Publisher { key: key("far"), lifetime, packet_id, sequence: 1 });
    let to = [(sub.lifetime, QoS::ExactlyOnce)];
    let duplicate = |reply: Reply| matches!(reply, Reply::Appended { duplicate: true, .. });
    world.append_stamped(message("t", "m"), stamp(1, 1), &to);
    world.at(10_000).append_stamped(message("t", "m"), stamp(2, 1), &to);
    let day = 24 * 3_600_000;
    // A session may be offline for seven days, and repeats the id then.
    world.at(1_000 + 8 * day).apply(Command::Tidy);
    assert!(duplicate(world.append_stamped(message("t", "m"), stamp(2, 1), &to)));
    assert!(!duplicate(world.append_stamped(message("t", "m"), stamp(1, 1), &to)));
    // A repetition counts as life: the publisher may be gone again for as long.
    world.at(1_000 + 15 * day).apply(Command::Tidy);
    assert!(duplicate(world.append_stamped(message("t", "m"), stamp(2, 1), &to)));
}

/// P5: a session that may last longer than the default keeps the stamps of its publisher as long; what was granted is never shortened.
#[test]
fn stamps_outlast_the_longest_session() {
    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    let mut world = World::new();
    let (sub, _) = world.connect(&dial("sub"));
    let to = [(sub.lifetime, QoS::ExactlyOnce)];
    let duplicate = |reply: Reply| matches!(reply, Reply::Appended { duplicate: true, .. });
    let stamp = Some(Stamp::Publisher { key: key("far"), lifetime: 1, packet_id: 1, sequence: 1 });
    for days in [31, 8] {
        assert!(matches!(world.apply(Command::StampRetention { ms: days * DAY_MS }), Reply::Done { .. }));
    }
    world.append_stamped(message("t", "m"), stamp.clone(), &to);
    world.reload();
    assert_eq!(world.group.stamp_retention_ms(), 31 * DAY_MS);
    world.at(9 * DAY_MS).apply(Command::Tidy);
    assert!(duplicate(world.append_stamped(message("t", "m"), stamp, &to)));
}

/// DESIGN §2 step 5: a publisher with many ids in flight costs no other publisher its stamps.
#[test]
fn beyond_their_number_the_lowest_sequences_of_the_largest_origin_go() {
    let mut world = World::new();
    let (sub, _) = world.connect(&dial("sub"));
    let to = [(sub.lifetime, QoS::ExactlyOnce)];
    let stamp = |lifetime, packet_id: u16, sequence| {
        Some(Stamp::Publisher { key: key("far"), lifetime, packet_id, sequence })
    };
    let duplicate = |world: &mut World, stamp| {
        let reply = world.append_stamped(message("t", "m"), stamp, &to);
        matches!(reply, Reply::Appended { duplicate: true, .. })
    };
    world.group.stamps.max = 40;
    assert!(!duplicate(&mut world, stamp(1, 1, 1)));
    // Descending ids: the lowest sequence is not the lowest id.
    for (packet_id, sequence) in (1..=40).rev().zip(1..) {
        assert!(!duplicate(&mut world, stamp(2, packet_id, sequence)));
    }
    assert!(world.group.stamps.total <= 40);
    world.reload();
    assert!(duplicate(&mut world, stamp(1, 1, 1)), "the small origin stays");
    assert!(duplicate(&mut world, stamp(2, 1, 40)), "the latest stays");
    assert!(!duplicate(&mut world, stamp(2, 40, 1)), "the earliest went");
}

#[test]
fn an_end_seals_the_inbox() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.append("a", &[(row.lifetime, QoS::AtLeastOnce)]);
    let session = world.session("c");
    let end = world.end_command("c", EndReason::Revoked, WillMode::Publish);
    world.apply(end);
    let reply = world.append("b", &[(row.lifetime, QoS::AtLeastOnce)]);
    assert_eq!(reply, Reply::Appended { accepted: 0, over_quota: 0, missing: 1, duplicate: false });
    for command in [
        Command::Ack { session, acks: vec![Ack { offset: 0, kind: Settled }] },
        Command::Receive { session, packet_id: 1 },
        Command::Release { session, packet_id: 1 },
        Command::Routed { session, packet_id: 1, sequence: 1 },
        Command::Subscribe { session, filters: vec![] },
        Command::Unsubscribe { session, filters: vec![] },
        Command::Sent { session, through: 1 },
    ] {
        assert_eq!(refused(&world.apply(command)), Conflict::Fenced);
    }
    assert_eq!(world.group.inbox(row.lifetime), None);
    assert_eq!(world.group.stat().inbox_messages, 1, "debt is kept for Reclaim");
}

#[test]
fn subscriptions_are_new_once_and_replaced_after() {
    let mut world = World::new();
    world.connect(&dial("c"));
    assert_eq!(world.subscribe("c", &["a", "b", "a"]), Reply::Subscribed { new: vec![true, true, false] });
    world.drop_connection("c");
    world.connect(&dial("c"));
    assert_eq!(world.subscribe("c", &["b", "$share/g/c"]), Reply::Subscribed { new: vec![false, true] });
    let session = world.session("c");
    let filters = vec!["a".into(), "zzz".into()];
    assert_eq!(
        world.apply(Command::Unsubscribe { session, filters }),
        Reply::Unsubscribed { existed: vec![true, false] }
    );
    world.reload();
    let lifetime = world.row("c").lifetime;
    let filters: Vec<&str> = world.group.subscriptions(lifetime).map(|(filter, _)| &**filter).collect();
    assert_eq!(filters, ["$share/g/c", "b"]);
    let session = world.session("c");
    let filters = vec![SubscriptionRow {
        filter: "b".into(),
        options: SubscriptionOptions {
            qos: QoS::ExactlyOnce,
            no_local: true,
            retain_as_published: true,
            identifier: 5,
        },
    }];
    world.apply(Command::Subscribe { session, filters });
    let options = world.group.subscriptions(lifetime).last().unwrap().1;
    assert_eq!((options.qos, options.identifier), (QoS::ExactlyOnce, 5));
    assert_eq!(world.group.stat().subscriptions, 2);
}

#[test]
fn a_session_that_is_not_durable_stores_nothing() {
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 0, ..dial("c") });
    let session = world.session("c");
    assert_eq!(refused(&world.apply(Command::Receive { session, packet_id: 1 })), Conflict::Illegal);
    assert_eq!(refused(&world.subscribe("c", &["a"])), Conflict::Illegal);
}
