//! MPSC channels: one atomic append, one fenced consumer.

use super::*;

fn pair() -> (World, Bound, Bound, u64) {
    let mut world = World::default();
    let (producer, _) = world.bind("q", Kind::Mpsc, Role::Producer);
    let (consumer, lease) = world.bind("q", Kind::Mpsc, CONSUMER);
    assert!(producer.created && !consumer.created);
    assert_eq!(producer.channel, consumer.channel);
    (world, producer, consumer, lease)
}

/// FIFO per producer; the commit point is the acknowledgement.
#[test]
fn records_stay_until_they_are_acknowledged_in_order() {
    let (mut world, producer, consumer, _) = pair();
    for number in 0..5_u8 {
        assert!(matches!(
            world.put(producer.member, &[number]),
            QueueReply::Appended { duplicate: false, .. }
        ));
    }
    assert_eq!(world.readable(consumer.member).len(), 5);
    let payloads: Vec<_> = world.readable(consumer.member).into_iter().map(|(_, _, p, _)| p).collect();
    assert_eq!(payloads, [[0], [1], [2], [3], [4]]);
    let owned = world.space.owned(consumer.member).expect("it consumes")[0];
    let ack = QueueCommand::Ack {
        member: consumer.member,
        channel: owned.channel,
        epoch: owned.epoch,
        through: 2,
        sparse: vec![3],
    };
    assert_eq!(world.queue(&ack), QueueReply::Settled { records: 3 });
    assert_eq!(world.queue(&ack), QueueReply::Settled { records: 0 });
    let left: Vec<_> = world.readable(consumer.member).into_iter().map(|(_, offset, ..)| offset).collect();
    assert_eq!(left, [2, 4]);
    let wrong = QueueCommand::Ack {
        member: consumer.member,
        channel: owned.channel,
        epoch: owned.epoch,
        through: 6,
        sparse: Vec::new(),
    };
    assert_eq!(world.queue(&wrong), QueueReply::Refused(Refusal::NoSuchRecord));
}

/// Checklist 4 (H-03, H-04): a repeated append is the one that was done; a skipped one is refused, so there is no hole.
#[test]
fn checklist_4_a_retry_appends_nothing_and_a_gap_is_refused() {
    let (mut world, producer, consumer, _) = pair();
    let first = world.append(producer.member, 1, &[b"a", b"b"]);
    assert_eq!(first, QueueReply::Appended { channel: producer.channel, first: 0, duplicate: false });
    let again = world.append(producer.member, 1, &[b"a", b"b"]);
    assert_eq!(again, QueueReply::Appended { channel: producer.channel, first: 0, duplicate: true });
    let gap = world.append(producer.member, 3, &[b"d"]);
    assert_eq!(gap, QueueReply::Refused(Refusal::OutOfOrder { expected: 2 }));
    assert!(matches!(world.append(producer.member, 2, &[b"c"]), QueueReply::Appended { first: 2, .. }));
    assert_eq!(world.consume(consumer.member), [b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
    // Also after the records are gone.
    let late = world.append(producer.member, 1, &[b"a", b"b"]);
    assert_eq!(late, QueueReply::Appended { channel: producer.channel, first: 0, duplicate: true });
    assert!(world.readable(consumer.member).is_empty());
}

/// Checklist 12 (H-13): capacity in messages and in bytes is never exceeded, and nothing larger than it waits for ever.
#[test]
fn checklist_12_capacity_is_exact_in_messages_and_bytes() {
    let mut world = World::default();
    let spec = Spec { messages_max: 10, bytes_max: 100, ttl_ms: TTL_MS };
    let producers: Vec<_> =
        (0..64).map(|_| world.bind_spec("q", Kind::Mpsc, Role::Producer, 1, spec)).collect();
    let mut taken = 0;
    for producer in &producers {
        match world.put(producer.member, b"x") {
            QueueReply::Appended { .. } => taken += 1,
            other => assert_eq!(other, QueueReply::Refused(Refusal::Full)),
        }
        assert!(world.space.stat().messages <= 10);
    }
    assert_eq!((taken, world.space.stat().messages), (10, 10));
    let mut world = World::default();
    let producer = world.bind_spec("q", Kind::Mpsc, Role::Producer, 1, spec);
    assert!(matches!(world.put(producer.member, &[0; 60]), QueueReply::Appended { .. }));
    assert_eq!(world.put(producer.member, &[0; 41]), QueueReply::Refused(Refusal::Full));
    assert!(matches!(world.put(producer.member, &[0; 40]), QueueReply::Appended { .. }));
    assert_eq!(world.put(producer.member, &[0; 101]), QueueReply::Refused(Refusal::TooLarge));
    assert_eq!(
        world.append(producer.member, 3, &[b"x".as_slice(); 11]),
        QueueReply::Refused(Refusal::TooLarge)
    );
}

/// Back-pressure wakes who waits, as many as there is room for.
#[test]
fn an_acknowledgement_wakes_waiting_producers() {
    let (mut world, producer, consumer, _) = pair();
    let (other, _) = world.bind("q", Kind::Mpsc, Role::Producer);
    for _ in 0..10 {
        world.put(producer.member, b"x");
    }
    world.space.take_wakes();
    assert_eq!(world.put(producer.member, b"y"), QueueReply::Refused(Refusal::Full));
    assert_eq!(world.put(other.member, b"y"), QueueReply::Refused(Refusal::Full));
    assert!(world.space.take_wakes().is_empty());
    let (owned, offset, ..) = world.readable(consumer.member)[0].clone();
    world.ack(consumer.member, owned, offset);
    // One place: for the one that holds nothing yet.
    assert_eq!(world.space.take_wakes(), [other.member]);
    // It gives up: the place is for the next one.
    assert_eq!(world.queue(&QueueCommand::Withdraw { member: other.member }), QueueReply::Done);
    assert_eq!(world.space.take_wakes(), [producer.member]);
    assert!(matches!(world.put(producer.member, b"y"), QueueReply::Appended { .. }));
    assert_eq!(world.space.take_wakes(), [consumer.member]);
}

/// Checklist 7 (H-07): whatever a consumer does after another one took over is refused.
#[test]
fn checklist_7_a_zombie_consumer_is_fenced() {
    let (mut world, producer, zombie, _) = pair();
    world.put(producer.member, b"a");
    let owned = world.space.owned(zombie.member).expect("it consumes")[0];
    let lease = world.grant();
    let second = world.try_bind("q", Kind::Mpsc, CONSUMER, 1, lease);
    assert_eq!(second, QueueReply::Refused(Refusal::Occupied { member: zombie.member }));
    world.pass(after_ttl());
    let (next, _) = world.bind("q", Kind::Mpsc, CONSUMER);
    assert_eq!(world.ack(zombie.member, owned, 0), QueueReply::Refused(Refusal::Fenced));
    let mut page = Page::default();
    let at = (zombie.member, owned.channel, owned.epoch);
    assert_eq!(world.space.read(at, 0, 1, &world.bodies, &mut page), Err(Refusal::Fenced));
    // Not even under the member id of the new one, with its own epoch.
    assert_eq!(world.ack(next.member, owned, 0), QueueReply::Refused(Refusal::Fenced));
    assert_eq!(world.consume(next.member), [b"a"]);
}

/// Checklist 1 and 2 (H-01): a crash redelivers what was not acknowledged, marked; a clean close marks only what was handed out.
#[test]
fn checklist_1_and_2_nothing_is_lost_by_a_crash_or_a_close() {
    for crash in [true, false] {
        let (mut world, producer, consumer, lease) = pair();
        for number in 0..4_u8 {
            world.put(producer.member, &[number]);
        }
        let owned = world.space.owned(consumer.member).expect("it consumes")[0];
        world.ack(consumer.member, owned, 0);
        if crash {
            world.lease_command(&LeaseCommand::Revoke { lease });
        } else {
            let delivered = vec![(owned.channel, 2)];
            world.queue(&QueueCommand::Leave { member: consumer.member, delivered });
        }
        let (next, _) = world.bind("q", Kind::Mpsc, CONSUMER);
        let seen: Vec<_> =
            world.readable(next.member).into_iter().map(|(_, offset, _, before)| (offset, before)).collect();
        assert_eq!(seen, [(1, true), (2, crash), (3, crash)]);
    }
}

/// Checklist 8 (H-08): a consumer that crashed and one that comes never make a producer fail.
#[test]
fn checklist_8_producers_do_not_notice_a_rebind() {
    let (mut world, producer, _, _) = pair();
    let lease = world.grant();
    for number in 0..5_u8 {
        assert!(matches!(world.put(producer.member, &[number]), QueueReply::Appended { .. }));
        let refused = world.try_bind("q", Kind::Mpsc, CONSUMER, 1, lease);
        assert!(matches!(refused, QueueReply::Refused(Refusal::Occupied { .. })));
    }
}

/// Checklist 16 (H-19): a configuration that differs is an error that names what differs.
#[test]
fn checklist_16_a_mismatch_is_typed() {
    let mut world = World::default();
    world.bind("q", Kind::Mpsc, Role::Producer);
    let lease = world.grant();
    for (spec, kind, expected) in [
        (spec(11), Kind::Mpsc, Mismatch::MessagesMax),
        (Spec { bytes_max: 1, ..spec(10) }, Kind::Mpsc, Mismatch::BytesMax),
        (Spec { ttl_ms: TTL_MS + 1, ..spec(10) }, Kind::Mpsc, Mismatch::TtlMs),
        (spec(10), Kind::Mpmc, Mismatch::Kind),
    ] {
        let target = Target::Named { name: "q".into(), kind, spec };
        let bind = Bind {
            target,
            role: Role::Producer,
            lease: Hold::Own(lease),
            nonce: 7,
            weight: 1,
            label: "".into(),
        };
        let reply = world.queue(&QueueCommand::Bind(Box::new(bind)));
        assert_eq!(reply, QueueReply::Refused(Refusal::Mismatch(expected)));
    }
    assert_eq!(world.space.stat().members, 1);
}

/// A Bind whose reply was lost is repeated without a second member; a bad one leaves nothing behind.
#[test]
fn a_bind_is_idempotent_and_leaves_nothing_when_it_is_refused() {
    let mut world = World::default();
    let lease = world.grant();
    let target = Target::Named { name: "q".into(), kind: Kind::Mpmc, spec: spec(10) };
    let bind =
        Bind { target, role: CONSUMER, lease: Hold::Own(lease), nonce: 3, weight: 1, label: "l".into() };
    let first = world.queue(&QueueCommand::Bind(Box::new(bind.clone())));
    assert!(matches!(first, QueueReply::Bound(Bound { created: true, .. })));
    assert_eq!(world.queue(&QueueCommand::Bind(Box::new(bind.clone()))), first);
    assert_eq!((world.space.stat().members, world.space.stat().subs), (1, 1));
    let before = dump(&world.space, &world.bodies);
    let gone = Bind { lease: Hold::Own(99), nonce: 4, ..bind.clone() };
    let reply = world.queue(&QueueCommand::Bind(Box::new(gone)));
    assert_eq!(reply, QueueReply::Refused(Refusal::LeaseLost));
    for bad in [
        Bind { weight: 0, ..bind.clone() },
        Bind { role: Role::Consumer { credit: 0 }, ..bind.clone() },
        Bind { label: "x".repeat(LABEL_BYTES_MAX + 1).into(), ..bind.clone() },
        Bind {
            target: Target::Named { name: "".into(), kind: Kind::Mpsc, spec: spec(10) },
            nonce: 9,
            ..bind.clone()
        },
        Bind {
            target: Target::Named { name: "new".into(), kind: Kind::Mpsc, spec: spec(0) },
            nonce: 9,
            ..bind
        },
    ] {
        let reply = world.queue(&QueueCommand::Bind(Box::new(bad)));
        assert_eq!(reply, QueueReply::Refused(Refusal::Invalid));
    }
    assert_eq!(dump(&world.space, &world.bodies), before);
}

/// A sealed channel takes nothing more and is read to its end; the first reason stays.
#[test]
fn a_sealed_channel_is_read_to_its_end() {
    let (mut world, producer, consumer, _) = pair();
    world.put(producer.member, b"a");
    let seal = |reason| QueueCommand::Seal { channel: producer.channel, reason };
    for reason in [SealReason::Closed, SealReason::SessionEnded] {
        assert_eq!(world.queue(&seal(reason)), QueueReply::Sealed { reason: SealReason::Closed });
    }
    assert_eq!(world.put(producer.member, b"b"), QueueReply::Refused(Refusal::Sealed(SealReason::Closed)));
    let lease = world.grant();
    let late = world.try_bind("q", Kind::Mpsc, Role::Producer, 1, lease);
    assert_eq!(late, QueueReply::Refused(Refusal::Sealed(SealReason::Closed)));
    let owned = world.space.owned(consumer.member).expect("it consumes")[0];
    let mut page = Page::default();
    let at = (consumer.member, owned.channel, owned.epoch);
    world.space.read(at, 0, 10, &world.bodies, &mut page).expect("it owns the log");
    assert_eq!((page.records.len(), page.sealed), (1, Some(SealReason::Closed)));
}

/// Checklist 18 (H-21, H-24): what passed through leaves nothing: rows and memory are those of the backlog.
#[test]
fn checklist_18_rows_do_not_grow_with_history() {
    let (mut world, producer, consumer, _) = pair();
    let mut rows = BTreeMap::new();
    let mut sizes = Vec::new();
    for round in 0..20_000_u32 {
        world.put(producer.member, &round.to_be_bytes());
        let (owned, offset, ..) = world.readable(consumer.member)[0].clone();
        world.ack(consumer.member, owned, offset);
        if round % 5_000 == 4_999 {
            drain(&mut world.space, &world.bodies, &mut rows);
            sizes.push((rows.len(), world.bodies.len()));
        }
    }
    assert!(sizes.windows(2).all(|pair| pair[0] == pair[1]), "{sizes:?}");
    assert_eq!(rows, dump(&world.space, &world.bodies));
}
