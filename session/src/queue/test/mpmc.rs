//! MPMC channels: sub-channels, rotation, adoption, hand-over.

use super::*;

/// Records spread over the consumers in turn; each consumer reads only its own (lease spec 1.3).
#[test]
fn producers_rotate_over_ready_sub_channels() {
    let mut world = World::default();
    let (producer, _) = world.bind("q", Kind::Mpmc, Role::Producer);
    let consumers: Vec<_> = (0..3).map(|_| world.bind("q", Kind::Mpmc, CONSUMER).0.member).collect();
    for number in 0..9_u8 {
        world.put(producer.member, &[number]);
    }
    let mut all = Vec::new();
    for consumer in consumers {
        let mine = world.consume(consumer);
        assert_eq!(mine.len(), 3);
        all.extend(mine);
    }
    all.sort();
    assert_eq!(all, (0..9_u8).map(|number| vec![number]).collect::<Vec<_>>());
}

/// Without a consumer records wait on one sub-channel, and the first consumer gets it.
#[test]
fn records_wait_for_the_first_consumer() {
    let mut world = World::default();
    let (producer, _) = world.bind("q", Kind::Mpmc, Role::Producer);
    for number in 0..5_u8 {
        assert!(matches!(world.put(producer.member, &[number]), QueueReply::Appended { .. }));
    }
    assert_eq!(world.space.stat().subs, 1);
    let (consumer, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    assert_eq!(world.consume(consumer.member).len(), 5);
    assert_eq!(world.space.stat().subs, 1);
}

/// Checklist 9 (H-09, R-13): the backlog of a dead consumer is adopted at once by one that lives; its sub-channel goes when it is empty.
#[test]
fn checklist_9_orphans_are_adopted_without_a_new_member() {
    let mut world = World::default();
    let (producer, _) = world.bind("q", Kind::Mpmc, Role::Producer);
    let (dead, lease) = world.bind("q", Kind::Mpmc, CONSUMER);
    let (live, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    for number in 0..10_u8 {
        world.put(producer.member, &[number]);
    }
    let zombie = world.space.owned(dead.member).expect("it consumes")[0];
    world.lease_command(&LeaseCommand::Revoke { lease });
    assert!(world.space.take_wakes().contains(&live.member));
    assert_eq!(world.space.owned(live.member).expect("it consumes").len(), 2);
    assert_eq!(world.ack(dead.member, zombie, zombie.base), QueueReply::Refused(Refusal::Fenced));
    // What is appended now goes to its own sub-channel, so the adopted one drains.
    world.put(producer.member, &[10]);
    assert_eq!(world.consume(live.member).len(), 11);
    assert_eq!(world.space.owned(live.member).expect("it consumes").len(), 1);
    assert_eq!(world.space.stat().subs, 1);
}

/// Hand-over: at every step each sub-channel has at most one owner, and what the old one acknowledges late is refused.
#[test]
fn a_hand_over_has_no_window_for_two_consumers() {
    let mut world = World::default();
    let (producer, _) = world.bind("q", Kind::Mpmc, Role::Producer);
    let (first, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    for number in 0..6_u8 {
        world.put(producer.member, &[number]);
    }
    let before = world.space.owned(first.member).expect("it consumes")[0];
    let delivered = vec![(before.channel, 2)];
    world.queue(&QueueCommand::Leave { member: first.member, delivered });
    // Nobody is there: producers go on all the same.
    assert!(matches!(world.put(producer.member, &[6]), QueueReply::Appended { .. }));
    let (second, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    let after = world.space.owned(second.member).expect("it consumes")[0];
    assert_eq!(after.channel, before.channel);
    assert!(after.epoch > before.epoch);
    assert_eq!(world.ack(first.member, before, 0), QueueReply::Refused(Refusal::Fenced));
    let marked: Vec<_> = world.readable(second.member).into_iter().map(|(.., before)| before).collect();
    assert_eq!(marked, [true, true, false, false, false, false, false]);
    let (third, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    let one = world.space.owned(second.member).expect("it consumes");
    let two = world.space.owned(third.member).expect("it consumes");
    assert!(one.iter().all(|owned| two.iter().all(|other| other.channel != owned.channel)));
}

/// Checklist 13 (H-13): a full sub-channel is passed over; only when all are full the producer waits.
#[test]
fn checklist_13_a_full_sub_channel_does_not_slow_the_others() {
    let mut world = World::default();
    let (producer, _) = world.bind("q", Kind::Mpmc, Role::Producer);
    let (slow, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    let (fast, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    let mut taken = 0;
    for number in 0..100_u8 {
        assert!(matches!(world.put(producer.member, &[number]), QueueReply::Appended { .. }));
        taken += world.consume(fast.member).len();
    }
    assert_eq!((taken, world.readable(slow.member).len()), (90, 10));
    for _ in 0..10 {
        world.put(producer.member, b"x");
    }
    assert_eq!(world.put(producer.member, b"x"), QueueReply::Refused(Refusal::Full));
    world.space.take_wakes();
    let (owned, offset, ..) = world.readable(slow.member)[0].clone();
    world.ack(slow.member, owned, offset);
    assert_eq!(world.space.take_wakes(), [producer.member]);
    assert!(matches!(world.put(producer.member, b"x"), QueueReply::Appended { .. }));
}

/// H-24: many crashes and rejoins leave no sub-channel behind.
#[test]
fn rejoining_consumers_leave_no_sub_channels_behind() {
    let mut world = World::default();
    let (producer, _) = world.bind("q", Kind::Mpmc, Role::Producer);
    let (stays, _) = world.bind("q", Kind::Mpmc, CONSUMER);
    for round in 0..50_u8 {
        let (comes, lease) = world.bind("q", Kind::Mpmc, CONSUMER);
        for _ in 0..4 {
            world.put(producer.member, &[round]);
        }
        if round % 2 == 0 {
            world.leave(comes.member);
        } else {
            world.lease_command(&LeaseCommand::Revoke { lease });
        }
        assert_eq!(world.consume(stays.member).len(), 4);
    }
    assert_eq!(world.space.stat().subs, 1);
}

/// Weights of consumers act in the rotation: 1:2:3.
#[test]
fn weights_of_consumers_act_in_the_rotation() {
    let mut world = World::default();
    let producer = world.bind_spec("q", Kind::Mpmc, Role::Producer, 1, spec(1_000));
    let consumers: Vec<_> = (1..=3)
        .map(|weight| world.bind_spec("q", Kind::Mpmc, CONSUMER, weight, spec(1_000)).member)
        .collect();
    for _ in 0..600 {
        world.put(producer.member, b"x");
    }
    let shares: Vec<_> = consumers.iter().map(|consumer| world.readable(*consumer).len()).collect();
    assert_eq!(shares, [100, 200, 300]);
}
