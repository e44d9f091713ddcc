//! Inboxes and shared subscriptions as operators list them (lease spec R-18: the backlog is exact).

use super::*;

/// Generation, whether sealed, messages and bytes of each inbox of a client.
fn listed(world: &World, client_id: &str) -> Vec<(u64, bool, u64, u64)> {
    let rows = world.group.inboxes(&key(client_id));
    rows.map(|row| (row.session_generation, row.sealed, row.stat.messages, row.stat.bytes)).collect()
}

/// counted before the first acknowledgement and after; what an ended lifetime left is listed beside its successor's until reclaimed.
#[test]
fn r18_every_inbox_is_listed_with_its_exact_backlog() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    let len = message("t", "1").len() as u64;
    assert_eq!(listed(&world, "c"), [(1, false, 0, 0)]);
    for payload in ["1", "2", "3"] {
        world.append(payload, &[(row.lifetime, QoS::AtLeastOnce)]);
    }
    world.ack("c", &[(1, AckKind::Settled)]);
    assert_eq!(listed(&world, "c"), [(1, false, 2, 2 * len)]);
    let (row, _) = world.connect(&Dial { clean_start: true, ..dial("c") });
    world.append("4", &[(row.lifetime, QoS::AtLeastOnce)]);
    assert_eq!(listed(&world, "c"), [(1, true, 2, 2 * len), (2, false, 1, len)]);
    assert_eq!(world.group.stat().inboxes, 2);
    world.reload();
    assert_eq!(listed(&world, "c"), [(1, true, 2, 2 * len), (2, false, 1, len)]);
    let end = world.end_command("c", EndReason::Revoked, WillMode::Publish);
    world.apply(end);
    assert_eq!(listed(&world, "c"), [(1, true, 2, 2 * len), (2, true, 1, len)]);
    let revision = world.row("c").revision;
    let command = Command::Reclaim { key: key("c"), revision, limit: 100, binding_until: Millis(9_000) };
    assert!(matches!(world.apply(command), Reply::Reclaimed { done: true, .. }));
    assert_eq!((listed(&world, "c"), world.group.stat().inboxes), (vec![], 0));
    world.connect(&Dial { expiry_sec: 0, ..dial("transient") });
    assert_eq!(listed(&world, "transient"), []);
}

#[test]
fn shared_subscriptions_are_those_that_begin_with_share() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.subscribe("c", &["$SYS/#", "$share/g/a", "$share/g/b/#", "$shared", "a", "share/x"]);
    let of = |world: &World| -> Vec<String> {
        world.group.shared_subscriptions(row.lifetime).map(|(filter, _)| filter.to_string()).collect()
    };
    assert_eq!(of(&world), ["$share/g/a", "$share/g/b/#"]);
    let end = world.end_command("c", EndReason::Explicit, WillMode::Publish);
    world.apply(end);
    assert!(of(&world).is_empty(), "an ended member is none");
}
