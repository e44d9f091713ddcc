//! Equal logs give byte-equal rows (L1), whatever happened to the process in between; damaged rows are typed errors.

use proptest::prelude::*;

use super::model::{run, steps};
use super::*;
use crate::lifecycle::RowError;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// One replica applies the log in one go, one stores its rows now and then, one is killed and loads what it stored.
    #[test]
    fn replicas_agree_byte_for_byte(steps in steps(120), crash in 1_usize..100, every in 1_usize..9) {
        let mut world = World::with_quota(20, 4_000);
        for step in &steps {
            run(&mut world, step);
        }
        let mut plain = Group::new(20, 4_000);
        let mut drained = Group::new(20, 4_000);
        let mut crashed = Group::new(20, 4_000);
        let (mut drained_disk, mut crashed_disk) = (Rows::new(), Rows::new());
        for (at, batch) in world.log.iter().enumerate() {
            let index = at as u64 + 1;
            let (mut one, mut two, mut three) = (Outcome::default(), Outcome::default(), Outcome::default());
            plain.apply(index, batch, &mut one);
            drained.apply(index, batch, &mut two);
            if at % every == 0 {
                drain_into(&mut drained, &mut drained_disk);
            }
            crashed.apply(index, batch, &mut three);
            if at % crash == 0 {
                drain_into(&mut crashed, &mut crashed_disk);
                crashed = load(&crashed_disk);
            }
            prop_assert_eq!(&one.replies, &two.replies);
            prop_assert_eq!(&one.replies, &three.replies);
            prop_assert_eq!(&one.appended, &three.appended);
            prop_assert_eq!(&one.ended, &three.ended);
            prop_assert_eq!(&one.wills, &three.wills);
            prop_assert_eq!(plain.next_due(), crashed.next_due());
        }
        drain_into(&mut drained, &mut drained_disk);
        drain_into(&mut crashed, &mut crashed_disk);
        let expected = dump(&plain, &Rows::new());
        prop_assert_eq!(&dump(&world.group, &world.disk), &expected);
        prop_assert_eq!(&drained_disk, &expected);
        prop_assert_eq!(&crashed_disk, &expected);
        prop_assert_eq!(&dump(&load(&expected), &expected), &expected);
        prop_assert!(load(&expected).check().is_ok());
    }

    /// No damage to a stored row panics, and none is loaded silently as something else than a coherent group.
    #[test]
    fn damaged_rows_are_errors(steps in steps(60), row in any::<prop::sample::Index>(), byte in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut world = World::with_quota(20, 4_000);
        for step in &steps {
            run(&mut world, step);
        }
        let mut rows = dump(&world.group, &world.disk);
        let key = row.get(&rows.keys().cloned().collect::<Vec<_>>()).clone();
        let value = rows.get_mut(&key).unwrap();
        let at = byte.index(value.len());
        value[at] ^= 1 << bit;
        let mut group = Group::new(1, 1);
        let loaded = rows.iter().try_for_each(|(key, value)| group.load(key, value));
        if loaded.and_then(|()| group.finish_load()).is_ok() {
            prop_assert!(group.check().is_ok());
        }
    }
}

#[test]
fn bodies_created_and_settled_between_two_drains_never_reach_the_store() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    let mut disk = Rows::new();
    drain_into(&mut world.group, &mut disk);
    world.append("short-lived", &[(row.lifetime, QoS::AtLeastOnce)]);
    world.ack("c", &[(0, AckKind::Settled)]);
    world.connect(&Dial { expiry_sec: 0, ..dial("t") });
    world.drop_connection("t");
    let mut seen = Vec::new();
    world.group.drain_dirty(&mut |key, _| seen.push(key[0]));
    assert_eq!(seen, [1, 5], "the counters and the lifetime only");
    seen.clear();
    world.group.drain_dirty(&mut |key, _| seen.push(key[0]));
    assert!(seen.is_empty(), "nothing changed since");
}

/// A stored session that is removed, made again and removed between two drains leaves no row behind.
#[test]
fn a_session_removed_twice_between_two_drains_leaves_no_row() {
    let mut world = World::new();
    let mut disk = Rows::new();
    world.connect(&Dial { expiry_sec: 0, ..dial("t") });
    drain_into(&mut world.group, &mut disk);
    for _ in 0..2 {
        world.drop_connection("t");
        assert!(world.group.session(&key("t")).is_none());
        world.connect(&Dial { expiry_sec: 0, ..dial("t") });
    }
    world.drop_connection("t");
    drain_into(&mut world.group, &mut disk);
    assert_eq!(disk, dump(&world.group, &Rows::new()));
}

#[test]
fn bodies_are_evicted_only_once_they_are_on_disk() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    for payload in ["aaaa", "bbbb", "cccc"] {
        world.append(payload, &[(row.lifetime, QoS::AtLeastOnce)]);
    }
    world.group.evict(0);
    assert_eq!(world.group.stat().messages_resident_bytes, 15);
    let mut disk = Rows::new();
    drain_into(&mut world.group, &mut disk);
    world.group.evict(10);
    assert_eq!(world.group.stat().messages_resident_bytes, 10);
    let read = world.inbox("c");
    assert!(read.entries[0].message.is_none() && read.entries[1].message.is_some());
    let body = &disk[&Group::body_key(read.entries[0].message_id)];
    assert_eq!(Group::decode_body(body).unwrap(), message("t", "aaaa"));
    world.group.evict(0);
    let mut on_disk = 0;
    world.group.dump(&mut |key, value| {
        assert_eq!(value.is_none(), *key >= Group::first_body_key()[..]);
        on_disk += u32::from(value.is_none() && disk.contains_key(key));
    });
    assert_eq!(on_disk, 3);
    world.ack("c", &[(0, AckKind::Settled)]);
    drain_into(&mut world.group, &mut disk);
    assert_eq!(disk.range(Group::first_body_key()..).count(), 2);
    assert_eq!(world.group.stat().messages_resident_bytes, 0);
}

#[test]
fn loading_needs_no_bodies() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    let mut expiring = message("t", "aaaa");
    expiring.expires_at = Some(Millis(9_000));
    world.append_stamped(expiring, None, &[(row.lifetime, QoS::AtLeastOnce)]);
    world.apply(Command::Retain { message: message("r", "bbbb"), stamp: None });
    let mut rows = dump(&world.group, &world.disk);
    rows.retain(|key, _| *key < Group::first_body_key());
    let group = load(&rows);
    assert_eq!(group.inbox(row.lifetime), world.group.inbox(row.lifetime));
    assert_eq!(group.stat().messages_stored, 2);
    assert_eq!(group.stat().messages_resident_bytes, 0);
}

#[test]
fn rows_that_contradict_each_other_are_refused() {
    let mut world = World::new();
    let (row, _) = world.connect(&Dial { will: will(5), ..dial("c") });
    world.append("x", &[(row.lifetime, QoS::AtLeastOnce)]);
    let rows = dump(&world.group, &world.disk);
    for missing in [2_u8, 3, 4, 5] {
        let mut damaged = rows.clone();
        damaged.retain(|key, _| key[0] != missing);
        let mut group = Group::new(1, 1);
        let loaded = damaged.iter().try_for_each(|(key, value)| group.load(key, value));
        assert!(loaded.and_then(|()| group.finish_load()).is_err(), "rows of kind {missing} are missing");
    }
    let mut group = Group::new(1, 1);
    for (key, value) in [
        (&b""[..], &b"\x01"[..]),
        (b"\x63", b"\x01"),
        (b"\x03k", b""),
        (b"\x03k", b"\x02"),
        (b"\x03k", b"\x01\x00"),
    ] {
        assert!(matches!(group.load(key, value), Err(RowError::Corrupt { .. })));
    }
}

#[test]
#[should_panic(expected = "applied once and in order")]
fn an_index_is_applied_once() {
    let mut world = World::new();
    let batch = world.log[0].clone();
    world.group.apply(1, &batch, &mut Outcome::default());
}

#[test]
fn a_refused_command_rolls_nothing_else_back() {
    // Each command of a batch is all-or-nothing by itself.
    let mut world = World::new();
    let first = world.connect_command(&dial("c"));
    let second = world.connect_command(&dial("d"));
    let replies = world.apply_all(vec![first, Command::ReleaseBinding { key: key("nobody") }, second]);
    assert!(matches!(replies[0], Reply::Row { .. }));
    assert_eq!(replies[1], Reply::Conflict(Conflict::Missing));
    assert!(matches!(replies[2], Reply::Row { .. }));
}

#[test]
fn install_and_close_in_one_batch_are_both_applied() {
    let mut world = World::new();
    let connect = world.connect_command(&dial("c"));
    let Command::Connect(new) = &connect else { unreachable!() };
    let close = Command::Disconnect(Box::new(Disconnect {
        owner: new.owner.clone(),
        kind: DisconnectKind::WithWill,
        observed_at: Millis(1_000),
        expiry_sec: None,
        sent_through: 0,
    }));
    let replies = world.apply_all(vec![connect, close]);
    assert!(replies.iter().all(|reply| matches!(reply, Reply::Row { unchanged: false, .. })));
}
