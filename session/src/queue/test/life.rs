//! Channels come and go: attach, expiry, deletion, reclamation.

use super::*;

fn reclaim_all(world: &mut World) -> (u64, u64) {
    let (mut records, mut bytes) = (0, 0);
    loop {
        let next = world.space.reclaimable().next();
        let Some(channel) = next else { break };
        match world.queue(&QueueCommand::Reclaim { channel, limit: 256 }) {
            QueueReply::Reclaimed { records: r, bytes: b, .. } => {
                records += r;
                bytes += b;
            }
            other => panic!("{other:?}"),
        }
    }
    (records, bytes)
}

/// Checklist 10 (H-10, H-33): whoever is alive keeps the channel alive, the creator is nothing special, the id stays.
#[test]
fn checklist_10_a_living_member_keeps_the_channel_alive() {
    for kind in [Kind::Mpsc, Kind::Mpmc, Kind::Group] {
        let mut world = World::default();
        let (creator, _) = world.bind("q", kind, Role::Producer);
        // An idle producer, attached only.
        let (idle, lease) = world.bind("q", kind, Role::Producer);
        world.leave(creator.member);
        for _ in 0..20 {
            world.pass(TTL_MS / 2);
            world.keep(lease);
        }
        let (late, _) = world.bind("q", kind, CONSUMER);
        assert_eq!((late.channel, late.created), (creator.channel, false));
        assert!(matches!(world.put(idle.member, b"x"), QueueReply::Appended { .. }));
    }
}

/// The channel outlives its last member for its TTL: somebody who comes in time finds the records.
#[test]
fn a_channel_waits_for_its_whole_ttl() {
    let mut world = World::default();
    let (producer, _) = world.bind("q", Kind::Mpmc, Role::Producer);
    world.put(producer.member, b"kept");
    world.leave(producer.member);
    world.pass(TTL_MS);
    let (consumer, lease) = world.bind("q", Kind::Mpmc, CONSUMER);
    assert_eq!(consumer.channel, producer.channel);
    assert_eq!(world.readable(consumer.member).len(), 1);
    world.lease_command(&LeaseCommand::Revoke { lease });
    world.pass(after_ttl());
    // Metadata first: the name is free, the records wait for their own lease (lease spec 15.4).
    assert_eq!(world.space.named("q"), None);
    assert_eq!((world.space.stat().messages, world.space.reclaimable().count()), (1, 0));
    let reply = world.queue(&QueueCommand::Reclaim { channel: consumer.channel, limit: 1 });
    assert_eq!(reply, QueueReply::Refused(Refusal::NotDue));
    let (next, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    assert!(next.created && next.channel != consumer.channel);
    world.pass(PAYLOAD_GRACE_MS);
    assert_eq!(reclaim_all(&mut world), (1, 4));
}

/// Deleting frees exactly what was there, page by page, and drops the members.
#[test]
fn a_deleted_channel_gives_everything_back() {
    let mut world = World::default();
    let spec = Spec { messages_max: 10_000, ..spec(10) };
    let producer = world.bind_spec("q", Kind::Mpmc, Role::Producer, 1, spec);
    let consumers: Vec<_> = (0..3).map(|_| world.bind_spec("q", Kind::Mpmc, CONSUMER, 1, spec)).collect();
    for _ in 0..1_000 {
        world.put(producer.member, &[0; 10]);
    }
    assert_eq!(world.queue(&QueueCommand::Delete { channel: producer.channel }), QueueReply::Done);
    assert_eq!(world.put(producer.member, b"x"), QueueReply::Refused(Refusal::Fenced));
    assert_eq!(world.space.owned(consumers[0].member), Err(Refusal::Fenced));
    assert_eq!(reclaim_all(&mut world), (1_000, 10_000));
    assert_eq!(world.space.stat(), SpaceStat::default());
}

/// Checklist 20 (H-23): channels that come and go leave no row but the counters.
#[test]
fn checklist_20_nothing_is_left_of_expired_channels_but_counters() {
    let mut world = World::default();
    let mut rows = BTreeMap::new();
    for round in 0..300 {
        let kind = [Kind::Mpsc, Kind::Mpmc, Kind::Group][round % 3];
        let (producer, _) = world.bind(&format!("q{round}"), kind, Role::Producer);
        let (consumer, _) = world.bind(&format!("q{round}"), kind, CONSUMER);
        world.put(producer.member, b"left behind");
        if kind == Kind::Group {
            world.queue(&QueueCommand::Claim { member: consumer.member, max: 1 });
        }
        if round % 10 == 0 {
            drain(&mut world.space, &world.bodies, &mut rows);
        }
    }
    world.pass(after_ttl());
    world.pass(after_ttl() + PAYLOAD_GRACE_MS);
    reclaim_all(&mut world);
    drain(&mut world.space, &world.bodies, &mut rows);
    assert_eq!(rows.keys().map(Vec::as_slice).collect::<Vec<_>>(), [&[ROW, 1][..]]);
    assert!(world.bodies.is_empty() && world.space.leases().is_empty());
}

/// Checklist 15 on this layer: whichever lease ends, its holder is told by type, and only it.
#[test]
fn checklist_15_a_lost_member_lease_fences_its_member_only() {
    let mut world = World::default();
    let (lost, lease) = world.bind("q", Kind::Mpsc, Role::Producer);
    let (other, _) = world.bind("q", Kind::Mpsc, Role::Producer);
    world.lease_command(&LeaseCommand::Revoke { lease });
    assert!(world.space.take_wakes().contains(&lost.member));
    assert_eq!(world.put(lost.member, b"x"), QueueReply::Refused(Refusal::Fenced));
    assert!(matches!(world.put(other.member, b"x"), QueueReply::Appended { .. }));
    // A lease of another backend, said to be gone by whoever watches that.
    let foreign = Hold::Foreign { incarnation: 9, lease: 1 };
    let target = Target::Channel(other.channel);
    let bind = Bind { target, role: Role::Producer, lease: foreign, nonce: 1, weight: 1, label: "".into() };
    let QueueReply::Bound(bound) = world.queue(&QueueCommand::Bind(Box::new(bind))) else {
        panic!("a foreign lease is taken at its word")
    };
    // the same id of another incarnation is another lease.
    world.queue(&QueueCommand::LeaseGone { lease: Hold::Foreign { incarnation: 8, lease: 1 } });
    assert!(matches!(world.put(bound.member, b"x"), QueueReply::Appended { .. }));
    world.queue(&QueueCommand::LeaseGone { lease: foreign });
    assert_eq!(world.put(bound.member, b"x"), QueueReply::Refused(Refusal::Fenced));
}
