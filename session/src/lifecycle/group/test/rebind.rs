//! Messages of shared subscriptions that wait for a disconnected member (MQTT 5 §4.8.2).

use super::*;

/// Appends one message to the inbox of `client_id`.
fn append(world: &mut World, client_id: &str, payload: &str, qos: QoS, shared: bool) {
    let lifetime = world.row(client_id).lifetime;
    let targets = vec![Target { shared, ..target(lifetime, qos) }];
    world.apply(Command::Append(Box::new(Append { message: message("t", payload), stamp: None, targets })));
}

fn close(world: &mut World, client_id: &'static str, sent_through: u64) {
    let Command::Disconnect(mut close) = world.disconnect_command(client_id, DisconnectKind::Normal) else {
        panic!("a Disconnect")
    };
    close.sent_through = sent_through;
    world.apply(Command::Disconnect(close));
}

fn unbind(world: &mut World, client_id: &'static str, limit: u32) -> Reply {
    let revision = world.row(client_id).revision;
    world.apply(Command::Unbind { key: key(client_id), revision, limit })
}

fn given_up(world: &World, lifetime: u64) -> Vec<u64> {
    let mut found = Vec::new();
    assert_eq!(world.group.unbound(lifetime, 0, 100, &mut found), None);
    found.iter().map(|one| one.offset).collect()
}

fn own(world: &World, client_id: &str) -> Vec<u64> {
    world.payloads(client_id).iter().map(|(offset, _)| *offset).collect()
}

/// [MQTT-4.8.2-4], [MQTT-4.8.2-5]: a session that is away gives up what it was not sent and what it did not acknowledge with QoS 1, and
/// nothing else; a restart changes nothing of it, and it does not get it when it comes back.
#[test]
fn who_is_away_gives_up_what_others_may_have() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.subscribe("c", &["$share/g/t", "t"]);
    append(&mut world, "c", "sent 1", QoS::AtLeastOnce, true);
    append(&mut world, "c", "sent 2", QoS::ExactlyOnce, true);
    append(&mut world, "c", "alone", QoS::AtLeastOnce, false);
    append(&mut world, "c", "unsent 1", QoS::AtLeastOnce, true);
    append(&mut world, "c", "unsent 2", QoS::ExactlyOnce, true);
    assert_eq!(unbind(&mut world, "c", 100), Reply::Conflict(Conflict::Illegal), "it is connected");
    close(&mut world, "c", 3);
    let waiting: Vec<_> = world.group.sharing(0).map(|one| (one.bound, one.unbound)).collect();
    assert_eq!(waiting, [(4, 0)]);
    assert!(matches!(unbind(&mut world, "c", 1), Reply::Done { unchanged: false, .. }));
    assert_eq!(given_up(&world, row.lifetime), [0]);
    assert!(matches!(unbind(&mut world, "c", 100), Reply::Done { unchanged: false, .. }));
    assert!(matches!(unbind(&mut world, "c", 100), Reply::Done { unchanged: true, .. }));
    for _ in 0..2 {
        assert_eq!(given_up(&world, row.lifetime), [0, 3, 4]);
        assert_eq!(own(&world, "c"), [1, 2]);
        world.reload();
    }
    world.connect(&dial("c"));
    assert_eq!(own(&world, "c"), [1, 2]);
    let rebound = Command::Rebound { lifetime: row.lifetime, offsets: vec![0, 1, 3, 9] };
    assert!(matches!(world.apply(rebound.clone()), Reply::Done { unchanged: false, .. }));
    assert!(matches!(world.apply(rebound), Reply::Done { unchanged: true, .. }));
    assert_eq!(
        (given_up(&world, row.lifetime), own(&world, "c")),
        (vec![4], vec![1, 2]),
        "only what was given up goes"
    );
    assert_eq!(world.group.stat().inbox_messages, 3);
}

/// [MQTT-4.8.2-5]: what a session gave up before it ended goes to others with the rest, although its client was sent later messages since.
#[test]
fn what_was_given_up_outlives_its_session() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.subscribe("c", &["$share/g/t"]);
    append(&mut world, "c", "unsent", QoS::ExactlyOnce, true);
    close(&mut world, "c", 0);
    unbind(&mut world, "c", 100);
    world.connect(&dial("c"));
    append(&mut world, "c", "sent", QoS::ExactlyOnce, true);
    close(&mut world, "c", 2);
    let end = world.end_command("c", EndReason::Explicit, WillMode::Publish);
    world.apply(end);
    let mut left = Vec::new();
    world.group.inherited(row.lifetime, 0, 100, &mut left);
    assert_eq!(left.iter().map(|one| one.offset).collect::<Vec<_>>(), [0]);
    assert_eq!(world.group.sharing(0).count(), 0);
}

/// P9: who asks at an old revision changes nothing.
#[test]
fn who_came_back_gives_up_nothing() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    append(&mut world, "c", "x", QoS::AtLeastOnce, true);
    close(&mut world, "c", 0);
    let revision = world.row("c").revision;
    world.connect(&dial("c"));
    close(&mut world, "c", 0);
    let late = Command::Unbind { key: key("c"), revision, limit: 10 };
    assert_eq!(world.apply(late), Reply::Conflict(Conflict::Fenced));
    assert!(given_up(&world, row.lifetime).is_empty());
    let missing = Command::Unbind { key: key("nobody"), revision: 1, limit: 10 };
    assert_eq!(world.apply(missing), Reply::Conflict(Conflict::Missing));
}
