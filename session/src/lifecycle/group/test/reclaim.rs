//! Reclamation, bindings, due items and housekeeping (owner spec §9, DESIGN §3).

use super::*;
use crate::lifecycle::Due;

fn reclaim(world: &mut World, limit: u32, binding_until: u64) -> Reply {
    let revision = world.row("c").revision;
    world.apply(Command::Reclaim { key: key("c"), revision, limit, binding_until: Millis(binding_until) })
}

fn due(world: &World, now: u64) -> Vec<Due> {
    let mut due = Vec::new();
    world.group.due(Millis(now), 100, &mut due);
    due
}

/// Client `c` with three subscriptions, four messages, one received id and one stamp; then ended.
fn ended_world() -> World {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.subscribe("c", &["a", "b", "c"]);
    for payload in ["1", "2", "3", "4"] {
        world.append(payload, &[(row.lifetime, QoS::AtLeastOnce)]);
    }
    let session = world.session("c");
    world.apply(Command::Receive { session, packet_id: 5 });
    let (sub, _) = world.connect(&dial("sub"));
    let stamp = Stamp::Publisher { key: key("c"), lifetime: row.lifetime, packet_id: 5, sequence: 1 };
    world.append_stamped(message("t", "m"), Some(stamp), &[(sub.lifetime, QoS::AtLeastOnce)]);
    let end = world.end_command("c", EndReason::Explicit, WillMode::Publish);
    world.apply(end);
    world
}

#[test]
fn reclaim_removes_children_in_pages_and_keeps_the_binding() {
    let mut world = ended_world();
    let revision = world.row("c").revision;
    assert_eq!(due(&world, 1_000), [Due::Reclaim { key: key("c"), revision }]);
    assert_eq!(reclaim(&mut world, 4, 50_000), Reply::Reclaimed { removed: 4, done: false });
    assert_eq!(world.row("c").reclaimed_through, 0);
    world.reload();
    assert_eq!(reclaim(&mut world, 4, 50_000), Reply::Reclaimed { removed: 4, done: false });
    assert_eq!(reclaim(&mut world, 4, 50_000), Reply::Reclaimed { removed: 1, done: true });
    assert_eq!((world.row("c").reclaimed_through, world.row("c").revision), (1, revision));
    let stat = world.group.stat();
    assert_eq!((stat.subscriptions, stat.inbox_messages, stat.messages_stored), (0, 1, 1));
    let theft = world.at(49_999).connect_command(&Dial { uid: Some("bob"), ..dial("c") });
    assert_eq!(refused(&world.apply(theft)), Conflict::Binding);
    assert_eq!(due(&world, 49_999), []);
    world.reload();
    assert_eq!(due(&world, 50_000), [Due::Reclaim { key: key("c"), revision }]);
    assert_eq!(reclaim(world.at(50_000), 4, 50_000), Reply::Reclaimed { removed: 0, done: true });
    assert_eq!(world.group.session(&key("c")), None);
}

#[test]
fn a_binding_past_its_retention_can_be_taken_before_the_row_is_gone() {
    let mut world = ended_world();
    reclaim(&mut world, 100, 50_000);
    let (row, present) = world.at(50_000).connect(&Dial { uid: Some("bob"), ..dial("c") });
    assert!(!present);
    assert_eq!(row.uid.as_deref(), Some("bob"));
    world.drop_connection("c");
    let end = world.end_command("c", EndReason::Explicit, WillMode::Publish);
    world.apply(end);
    let theft = world.connect_command(&dial("c"));
    assert_eq!(refused(&world.apply(theft)), Conflict::Binding);
}

#[test]
fn rows_of_anonymous_users_go_with_their_children() {
    let mut world = World::new();
    let (row, _) = world.connect(&Dial { uid: None, expiry_sec: 1, ..dial("c") });
    world.append("1", &[(row.lifetime, QoS::AtLeastOnce)]);
    world.drop_connection("c");
    let revision = world.row("c").revision;
    world.at(2_000).apply(Command::Reconcile { key: key("c"), revision });
    assert!(matches!(world.row("c").state, SessionState::Ended { .. }));
    assert_eq!(reclaim(&mut world, 10, 0), Reply::Reclaimed { removed: 1, done: true });
    assert_eq!(world.group.session(&key("c")), None);
    assert_eq!(world.group.stat(), crate::lifecycle::GroupStat::default());
}

#[test]
fn a_replaced_lifetime_is_reclaimed_beside_its_live_successor() {
    let mut world = World::new();
    let (old, _) = world.connect(&dial("c"));
    world.subscribe("c", &["a"]);
    world.append("1", &[(old.lifetime, QoS::AtLeastOnce)]);
    let (new, _) = world.connect(&Dial { clean_start: true, ..dial("c") });
    world.subscribe("c", &["b"]);
    world.append("2", &[(new.lifetime, QoS::AtLeastOnce)]);
    world.reload();
    assert_eq!(due(&world, 2_000), [Due::Reclaim { key: key("c"), revision: new.revision }]);
    assert_eq!(reclaim(&mut world, 10, 0), Reply::Reclaimed { removed: 2, done: true });
    assert_eq!(world.row("c").reclaimed_through, 1);
    assert_eq!(world.payloads("c"), [(0, "2".to_owned())]);
    assert_eq!(world.group.subscriptions(new.lifetime).count(), 1);
    assert_eq!(due(&world, 2_000), []);
}

#[test]
fn reclaim_is_fenced_by_the_revision() {
    let mut world = ended_world();
    let stale = world.row("c").revision;
    world.connect(&dial("c"));
    let command = Command::Reclaim { key: key("c"), revision: stale, limit: 10, binding_until: Millis(0) };
    assert_eq!(refused(&world.apply(command)), Conflict::Fenced);
    let missing = Command::Reclaim { key: key("x"), revision: 1, limit: 10, binding_until: Millis(0) };
    assert_eq!(refused(&world.apply(missing)), Conflict::Missing);
}

#[test]
fn release_drops_the_binding_of_a_reclaimed_row_only() {
    let mut world = ended_world();
    let release = Command::ReleaseBinding { key: key("c") };
    assert_eq!(refused(&world.apply(release.clone())), Conflict::Illegal);
    reclaim(&mut world, 100, 1_000_000);
    assert!(matches!(world.apply(release.clone()), Reply::Done { .. }));
    assert_eq!(refused(&world.apply(release.clone())), Conflict::Missing);
    world.connect(&Dial { uid: Some("bob"), ..dial("c") });
    assert_eq!(refused(&world.apply(release)), Conflict::Illegal);
}

#[test]
fn due_items_take_turns_between_kinds() {
    let mut world = World::new();
    for client_id in ["s1", "s2", "s3"] {
        world.connect(&Dial { expiry_sec: 1, ..dial(client_id) });
        world.drop_connection(client_id);
    }
    for client_id in ["w1", "w2"] {
        world.connect(&Dial { will: will(0), ..dial(client_id) });
        world.drop_connection(client_id);
    }
    world.connect(&dial("r1"));
    let end = world.end_command("r1", EndReason::Explicit, WillMode::Publish);
    world.apply(end);
    let mut due = Vec::new();
    world.group.due(Millis(5_000), 4, &mut due);
    let kinds: Vec<_> = due
        .iter()
        .map(|due| match due {
            Due::Session { .. } => 's',
            Due::Will(_) => 'w',
            Due::Reclaim { .. } => 'r',
        })
        .collect();
    assert_eq!(kinds, ['s', 'w', 'r', 's']);
    due.clear();
    world.group.due(Millis(5_000), 0, &mut due);
    assert!(due.is_empty());
    world.group.due(Millis(5_000), 100, &mut due);
    assert_eq!(due.len(), 6);
}

#[test]
fn tidy_drops_expired_messages_of_offline_inboxes_only() {
    // Scenario 59, [MQTT-3.3.2-5]; entries that a client may know are kept for QoS 2.
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    let mut short = message("t", "short");
    short.expires_at = Some(Millis(3_000));
    let to = [(row.lifetime, QoS::ExactlyOnce)];
    world.append_stamped(short.clone(), None, &to);
    world.append("long", &to);
    world.append_stamped(short.clone(), None, &to);
    world.at(4_000).apply(Command::Tidy);
    assert_eq!(world.payloads("c").len(), 3, "an active session's consumer decides itself");
    let Command::Disconnect(mut close) = world.disconnect_command("c", DisconnectKind::WithWill) else {
        unreachable!()
    };
    close.sent_through = 1;
    world.apply(Command::Disconnect(close));
    short.expires_at = Some(Millis(9_000));
    world.append_stamped(short, None, &to);
    world.reload();
    assert_eq!(world.apply(Command::Tidy), Reply::Reclaimed { removed: 1, done: true });
    assert_eq!(world.payloads("c").iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 1, 3]);
    world.reload();
    world.at(9_000).apply(Command::Tidy);
    assert_eq!(world.payloads("c").iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), [0, 1]);
}

/// MQTT 5 §4.8.2, [MQTT-4.8.2-5]: an ended lifetime leaves to the other members of a shared subscription what it never sent and the QoS 1
/// messages that were not acknowledged, from disk too; neither a QoS 2 message that its client may know of, nor what came to it alone.
#[test]
fn an_ended_lifetime_leaves_what_it_shared() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.subscribe("c", &["$share/g/t", "t"]);
    let mut append = |payload: &str, qos, shared| {
        let targets = vec![Target { shared, ..target(row.lifetime, qos) }];
        world.apply(Command::Append(Box::new(Append {
            message: message("t", payload),
            stamp: None,
            targets,
        })));
    };
    append("sent 1", QoS::AtLeastOnce, true);
    append("sent 2", QoS::ExactlyOnce, true);
    append("alone", QoS::AtLeastOnce, false);
    append("acknowledged", QoS::AtLeastOnce, true);
    append("unsent 1", QoS::AtLeastOnce, true);
    append("unsent 2", QoS::ExactlyOnce, true);
    world.ack("c", &[(3, AckKind::Settled)]);
    let left = |world: &World, from, max| {
        let mut found = Vec::new();
        let next = world.group.inherited(row.lifetime, from, max, &mut found);
        (found.iter().map(|left| left.offset).collect::<Vec<_>>(), next)
    };
    assert_eq!(left(&world, 0, 100), (vec![], None), "it lives");
    let Command::Disconnect(mut close) = world.disconnect_command("c", DisconnectKind::Normal) else {
        panic!("a Disconnect")
    };
    close.sent_through = 4;
    world.apply(Command::Disconnect(close));
    let end = world.end_command("c", EndReason::Explicit, WillMode::Publish);
    world.apply(end);
    for _ in 0..2 {
        assert_eq!(left(&world, 0, 100), (vec![0, 4, 5], None));
        assert_eq!(left(&world, 0, 1), (vec![0], Some(4)));
        assert_eq!(left(&world, 4, 2), (vec![4, 5], None));
        assert_eq!(world.group.reclaimable(&key("c")), [row.lifetime]);
        let filters: Vec<String> =
            world.group.shared_filters(row.lifetime).map(|(filter, _)| filter.to_string()).collect();
        assert_eq!(filters, ["$share/g/t"]);
        world.reload();
    }
    reclaim(&mut world, 100, 0);
    assert_eq!(left(&world, 0, 100), (vec![], None));
    assert_eq!(world.group.shared_filters(row.lifetime).count(), 0);
}
