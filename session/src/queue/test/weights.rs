//! Checklist 11 (H-11): weights of producers act under saturation.

use super::*;

fn shares(kind: Kind, capacity: u64, rounds: u32) -> Vec<f64> {
    let mut world = World::default();
    let producers: Vec<_> = (1..=4)
        .map(|weight| world.bind_spec("q", kind, Role::Producer, weight, spec(capacity)).member)
        .collect();
    let consumers: Vec<_> = match kind {
        Kind::Mpmc => {
            (0..2).map(|_| world.bind_spec("q", kind, CONSUMER, 1, spec(capacity)).member).collect()
        }
        _ => vec![world.bind_spec("q", kind, CONSUMER, 1, spec(capacity)).member],
    };
    let mut seed = 7_u64;
    let mut delivered = vec![0_u32; producers.len()];
    for round in 0..rounds {
        // Everybody tries whenever it may, the lightest first: without weights it would get most.
        for (at, producer) in producers.iter().enumerate() {
            while matches!(world.put(*producer, &[at as u8]), QueueReply::Appended { .. }) {}
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for consumer in &consumers {
            let take = 1 + (seed >> 60) as usize % 3;
            for (owned, offset, payload, _) in world.readable(*consumer).into_iter().take(take) {
                world.ack(*consumer, owned, offset);
                // What came in before there was any contention does not count.
                if round > rounds / 5 {
                    delivered[usize::from(payload[0])] += 1;
                }
            }
        }
    }
    let total = f64::from(delivered.iter().sum::<u32>());
    delivered.into_iter().map(|count| f64::from(count) / total).collect()
}

/// Weights 1:2:3:4 give 10, 20, 30 and 40 per cent within 5 per cent of each, on every kind of channel.
#[test]
fn checklist_11_weights_act_under_saturation() {
    for kind in [Kind::Mpsc, Kind::Mpmc] {
        for (share, expected) in shares(kind, 40, 3_000).into_iter().zip([0.1, 0.2, 0.3, 0.4]) {
            assert!((share / expected - 1.0).abs() < 0.05, "{kind:?}: {share} instead of {expected}");
        }
    }
}

/// Weights cost nothing without contention: one producer alone may fill everything.
#[test]
fn a_lonely_producer_may_use_the_whole_capacity() {
    let mut world = World::default();
    let light = world.bind_spec("q", Kind::Mpsc, Role::Producer, 1, spec(40)).member;
    world.bind_spec("q", Kind::Mpsc, Role::Producer, 100, spec(40));
    for _ in 0..40 {
        assert!(matches!(world.put(light, b"x"), QueueReply::Appended { .. }));
    }
}

/// The end of somebody who waits frees the others from its share.
#[test]
fn who_waits_and_dies_holds_nobody_back() {
    let mut world = World::default();
    let light = world.bind_spec("q", Kind::Mpsc, Role::Producer, 1, spec(10)).member;
    let heavy = world.bind_spec("q", Kind::Mpsc, Role::Producer, 9, spec(10)).member;
    let consumer = world.bind_spec("q", Kind::Mpsc, CONSUMER, 1, spec(10)).member;
    while matches!(world.put(light, b"x"), QueueReply::Appended { .. }) {}
    assert_eq!(world.put(heavy, b"x"), QueueReply::Refused(Refusal::Full));
    world.consume(consumer);
    assert!(matches!(world.put(light, b"x"), QueueReply::Appended { .. }));
    assert_eq!(world.put(light, b"x"), QueueReply::Refused(Refusal::Full), "its share is one");
    world.space.take_wakes();
    world.leave(heavy);
    assert!(world.space.take_wakes().contains(&light));
    assert!(matches!(world.put(light, b"x"), QueueReply::Appended { .. }));
}
