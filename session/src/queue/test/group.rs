//! Late-binding groups: a record is somebody's only once it is claimed (lease spec 15.8).

use super::*;

fn group() -> (World, u64, [(u64, u64); 2]) {
    let mut world = World::default();
    let (producer, _) = world.bind("g", Kind::Group, Role::Producer);
    let one = world.bind("g", Kind::Group, CONSUMER);
    let two = world.bind("g", Kind::Group, CONSUMER);
    (world, producer.member, [(one.0.member, one.1), (two.0.member, two.1)])
}

fn claim(world: &mut World, member: u64, max: u32) -> Vec<u64> {
    match world.queue(&QueueCommand::Claim { member, max }) {
        QueueReply::Claimed { offsets } => offsets,
        other => panic!("{other:?}"),
    }
}

fn settle(world: &mut World, member: u64, settles: &[(u64, Settle)]) -> QueueReply {
    world.queue(&QueueCommand::Settle { member, settles: settles.to_vec() })
}

/// Each record has one taker; credit bounds what is in flight; settling is idempotent and fenced.
#[test]
fn claims_are_exclusive_and_bounded_by_credit() {
    let (mut world, producer, [(one, _), (two, _)]) = group();
    for number in 0..8_u8 {
        world.put(producer, &[number]);
    }
    assert_eq!(claim(&mut world, one, 100), [0, 1, 2, 3, 4]);
    assert_eq!(claim(&mut world, one, 100), [] as [u64; 0]);
    assert_eq!(claim(&mut world, two, 2), [5, 6]);
    assert_eq!(settle(&mut world, two, &[(0, Settle::Ack)]), QueueReply::Refused(Refusal::Fenced));
    assert_eq!(settle(&mut world, one, &[(0, Settle::Ack)]), QueueReply::Settled { records: 1 });
    assert_eq!(settle(&mut world, one, &[(0, Settle::Ack)]), QueueReply::Settled { records: 0 });
    assert_eq!(settle(&mut world, one, &[(9, Settle::Ack)]), QueueReply::Refused(Refusal::NoSuchRecord));
    assert_eq!(claim(&mut world, one, 100), [7]);
    let mut page = Page::default();
    world.space.claimed(one, 0, 10, &world.bodies, &mut page).expect("it is a member");
    assert_eq!(page.records.iter().map(|record| record.offset).collect::<Vec<_>>(), [1, 2, 3, 4, 7]);
}

/// A released record keeps its place and is marked; a discarded one is for nobody.
#[test]
fn released_records_keep_their_place() {
    let (mut world, producer, [(one, _), (two, _)]) = group();
    for number in 0..4_u8 {
        world.put(producer, &[number]);
    }
    assert_eq!(claim(&mut world, one, 3), [0, 1, 2]);
    settle(&mut world, one, &[(1, Settle::Release), (2, Settle::Discard)]);
    assert!(world.space.take_wakes().contains(&two));
    assert_eq!(claim(&mut world, two, 10), [1, 3]);
    let mut page = Page::default();
    world.space.claimed(two, 0, 10, &world.bodies, &mut page).expect("it is a member");
    assert_eq!(page.records.iter().map(|record| record.redelivered).collect::<Vec<_>>(), [true, false]);
    assert_eq!(world.space.channel_stat(1).map(|stat| (stat.messages, stat.discarded)), Some((3, 1)));
}

/// Checklist 26 ([MQTT-4.8.2-5]): a QoS 2 record whose taker dies is given to nobody else; QoS 1 ones are.
#[test]
fn checklist_26_qos_2_of_a_dead_member_is_for_nobody_else() {
    let (mut world, producer, [(one, lease), (two, _)]) = group();
    let mut exactly_once = message(b"2");
    exactly_once.qos = QoS::ExactlyOnce;
    let messages = vec![message(b"1"), exactly_once.clone(), message(b"1"), exactly_once];
    world.queue(&QueueCommand::Append { member: producer, sequence: 1, messages });
    assert_eq!(claim(&mut world, one, 3), [0, 1, 2]);
    world.lease_command(&LeaseCommand::Revoke { lease });
    // The fourth was never anybody's.
    assert_eq!(claim(&mut world, two, 10), [0, 2, 3]);
    assert_eq!(world.space.channel_stat(1).map(|stat| stat.discarded), Some(1));
    assert_eq!(settle(&mut world, one, &[(0, Settle::Ack)]), QueueReply::Refused(Refusal::Fenced));
}

/// Checklist 9 for groups: the others get everything without a new member.
#[test]
fn checklist_9_claims_of_a_dead_member_go_to_the_others() {
    let (mut world, producer, [(one, lease), (two, _)]) = group();
    for number in 0..5_u8 {
        world.put(producer, &[number]);
    }
    claim(&mut world, one, 5);
    assert!(!world.space.may_claim(two));
    world.lease_command(&LeaseCommand::Revoke { lease });
    assert!(world.space.may_claim(two));
    assert_eq!(claim(&mut world, two, 5), [0, 1, 2, 3, 4]);
}
