//! CONNECT, disconnect and `End`: owner spec §5.4 and the cases of its Appendix B.

use super::*;
use DisconnectKind::{Normal, WithWill};

fn ended(reason: EndReason) -> SessionState {
    SessionState::Ended { reason }
}

fn offline(at: u64) -> SessionState {
    SessionState::Offline { offline_expires_at: Millis(at) }
}

#[test]
fn initial_connect_is_applied_then_unchanged() {
    let mut world = World::new();
    let command = world.connect_command(&Dial { will: will(5), ..dial("c") });
    let Reply::Row { row, unchanged: false, session_present: false } = world.apply(command.clone()) else {
        panic!("the first CONNECT is applied")
    };
    assert_eq!((row.owner.session_generation, row.owner.owner_generation, row.revision), (1, 1, 1));
    assert_eq!((row.state, row.durable, row.will_generation), (SessionState::Active, true, 1));
    let retry = world.apply(command);
    assert_eq!(retry, Reply::Row { row, unchanged: true, session_present: false });
    assert_eq!(world.group.stat().wills_armed, 1);
}

#[test]
fn a_retry_after_any_other_lifecycle_event_conflicts() {
    let mut world = World::new();
    let first = world.connect_command(&dial("c"));
    world.apply(first.clone());
    world.drop_connection("c");
    assert_eq!(refused(&world.apply(first)), Conflict::Fenced);
}

#[test]
fn leases_acks_and_subscriptions_leave_the_retry_of_connect_alone() {
    let mut world = World::new();
    let command = world.connect_command(&dial("c"));
    world.apply(command.clone());
    let revision = world.row("c").revision;
    world.apply(Command::BootRenew { revision: 1, lease_until: Millis(2_000_000) });
    world.subscribe("c", &["a/#"]);
    let lifetime = world.row("c").lifetime;
    world.append("x", &[(lifetime, QoS::AtLeastOnce)]);
    world.ack("c", &[(0, AckKind::Settled)]);
    assert_eq!(world.row("c").revision, revision);
    assert!(matches!(world.apply(command), Reply::Row { unchanged: true, .. }));
}

#[test]
fn every_changed_fence_field_conflicts() {
    let mut world = World::new();
    world.connect(&dial("c"));
    let good = world.connect_command(&dial("c"));
    let Command::Connect(good) = good else { unreachable!() };
    let changes: [fn(&mut Connect); 11] = [
        |c| c.previous = None,
        |c| c.previous.as_mut().unwrap().0 += 1,
        |c| c.previous.as_mut().unwrap().1.session_generation += 1,
        |c| c.previous.as_mut().unwrap().1.owner_generation += 1,
        |c| c.previous.as_mut().unwrap().1.node_id += 1,
        |c| c.previous.as_mut().unwrap().1.boot_id = "other".into(),
        |c| c.previous.as_mut().unwrap().1.connection_id += 1,
        |c| c.previous.as_mut().unwrap().1.key.client_id = "d".into(),
        |c| c.owner.session_generation += 1,
        |c| c.owner.owner_generation += 1,
        |c| c.owner.owner_generation -= 1,
    ];
    let before = dump(&world.group, &world.disk);
    for change in changes {
        let mut connect = good.clone();
        change(&mut connect);
        assert_eq!(refused(&world.apply(Command::Connect(connect))), Conflict::Fenced);
    }
    let mut foreign = good.clone();
    foreign.owner.boot_id = "boot-b".into();
    assert_eq!(refused(&world.apply(Command::Connect(foreign))), Conflict::Illegal);
    assert_eq!(without_meta(before), without_meta(dump(&world.group, &world.disk)));
    assert!(matches!(world.apply(Command::Connect(good)), Reply::Row { session_present: true, .. }));
}

fn without_meta(mut rows: Rows) -> Rows {
    rows.remove(&vec![1_u8]);
    rows
}

#[test]
fn close_at_2000_decides_will_and_state() {
    for (kind, expiry, state, stage) in [
        (Normal, 20, offline(22_000), None),
        (WithWill, 20, offline(22_000), Some((WillStage::Waiting, Some(Millis(7_000))))),
        (WithWill, 2, offline(4_000), Some((WillStage::Waiting, Some(Millis(4_000))))),
        (WithWill, 0, ended(EndReason::Expired), Some((WillStage::Ready, Some(Millis(2_000))))),
        (Normal, 0, ended(EndReason::Expired), None),
    ] {
        let mut world = World::new();
        world.connect(&Dial { expiry_sec: expiry, will: will(5), ..dial("c") });
        let command = world.at(2_000).disconnect_command("c", kind);
        let row = row_of(world.apply(command.clone()));
        assert_eq!(row.state, state, "{kind:?} {expiry}");
        assert_eq!(world.will_of("c"), stage, "{kind:?} {expiry}");
        assert_eq!(row.will_generation != 0, stage.is_some_and(|(stage, _)| stage == WillStage::Waiting));
        if world.group.session(&key("c")).is_some() {
            assert_eq!(
                world.apply(command),
                Reply::Row { row: Box::new(row), unchanged: true, session_present: false }
            );
        }
    }
}

#[test]
fn close_cannot_raise_a_zero_expiry() {
    // Scenario 58, MQTT 5 §3.14.2.2.2.
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 0, ..dial("c") });
    let Command::Disconnect(mut command) = world.disconnect_command("c", Normal) else { unreachable!() };
    command.expiry_sec = Some(10);
    assert_eq!(refused(&world.apply(Command::Disconnect(command))), Conflict::Illegal);
    assert_eq!(world.row("c").state, SessionState::Active);
}

#[test]
fn close_may_change_or_zero_the_expiry() {
    let mut world = World::new();
    world.connect(&dial("c"));
    let Command::Disconnect(mut command) = world.at(2_000).disconnect_command("c", Normal) else {
        unreachable!()
    };
    command.expiry_sec = Some(5);
    assert_eq!(row_of(world.apply(Command::Disconnect(command))).state, offline(7_000));
    world.connect(&dial("c"));
    let Command::Disconnect(mut command) = world.disconnect_command("c", Normal) else { unreachable!() };
    command.expiry_sec = Some(0);
    assert_eq!(row_of(world.apply(Command::Disconnect(command))).state, ended(EndReason::Expired));
    let (row, present) = world.connect(&dial("c"));
    assert!(!present);
    assert_eq!(row.owner.session_generation, 2);
}

#[test]
fn an_expiry_of_never_stays_resumable() {
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: u32::MAX, ..dial("c") });
    assert_eq!(world.drop_connection("c").state, SessionState::Offline { offline_expires_at: Millis::NEVER });
    assert_eq!(world.group.next_due(), None);
    assert!(world.at(u64::MAX / 2).connect(&dial("c")).1);
}

#[test]
fn resume_keeps_the_lifetime_and_expired_resume_does_not() {
    // Scenario 55: a session may not be resumed after its granted expiry.
    let mut world = World::new();
    let (first, _) = world.connect(&Dial { expiry_sec: 3, ..dial("c") });
    world.at(2_000).drop_connection("c");
    let (resumed, present) = world.at(4_999).connect(&Dial { expiry_sec: 3, ..dial("c") });
    assert!(present);
    assert_eq!((resumed.lifetime, resumed.owner.session_generation), (first.lifetime, 1));
    world.at(5_000).drop_connection("c");
    let (late, present) = world.at(8_000).connect(&Dial { expiry_sec: 3, ..dial("c") });
    assert!(!present);
    assert_eq!((late.lifetime, late.owner.session_generation), (first.lifetime + 1, 2));
}

#[test]
fn zero_expiry_takeover_is_fresh() {
    // Scenario 56: the expiry of the CONNECT decides, 0 ends with the connection.
    let mut world = World::new();
    let (first, _) = world.connect(&Dial { expiry_sec: 0, ..dial("c") });
    assert!(!first.durable);
    let (second, present) = world.connect(&Dial { expiry_sec: 30, ..dial("c") });
    assert!(!present && second.durable);
    assert_eq!(second.owner.session_generation, 2);
    assert_eq!(world.outcome.ended, vec![first.lifetime]);
    let (third, present) = world.connect(&Dial { expiry_sec: 0, ..dial("c") });
    assert!(present && third.durable, "the resumed lifetime keeps its inbox");
    let (fourth, present) = world.connect(&dial("c"));
    assert!(!present, "an active session of expiry 0 is not resumed");
    assert_ne!(fourth.lifetime, third.lifetime);
}

#[test]
fn clean_start_begins_a_generation_with_an_empty_inbox() {
    let mut world = World::new();
    let (first, _) = world.connect(&dial("c"));
    world.subscribe("c", &["a", "b"]);
    world.append("x", &[(first.lifetime, QoS::AtLeastOnce)]);
    let (second, present) = world.connect(&Dial { clean_start: true, ..dial("c") });
    assert!(!present);
    assert!(world.payloads("c").is_empty());
    assert_eq!(world.group.subscriptions(second.lifetime).count(), 0);
    assert_eq!(world.group.subscriptions(first.lifetime).count(), 0);
    let reply = world.append("y", &[(first.lifetime, QoS::AtLeastOnce), (second.lifetime, QoS::AtLeastOnce)]);
    assert_eq!(reply, Reply::Appended { accepted: 1, over_quota: 0, missing: 1, duplicate: false });
}

#[test]
fn late_close_by_the_old_owner_conflicts() {
    let mut world = World::new();
    world.connect(&Dial { will: will(5), ..dial("c") });
    let late = world.disconnect_command("c", WithWill);
    world.connect(&Dial { will: will(5), ..dial("c") });
    assert_eq!(refused(&world.apply(late)), Conflict::Fenced);
    assert_eq!(world.row("c").state, SessionState::Active);
}

#[test]
fn another_user_is_refused_also_with_clean_start() {
    // P8, scenario 12.
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.append("secret", &[(row.lifetime, QoS::AtLeastOnce)]);
    for uid in [Some("bob"), None] {
        for clean_start in [false, true] {
            let theft = world.connect_command(&Dial { uid, clean_start, ..dial("c") });
            assert_eq!(refused(&world.apply(theft)), Conflict::Binding);
        }
    }
    world.drop_connection("c");
    let theft = world.connect_command(&Dial { uid: Some("bob"), clean_start: true, ..dial("c") });
    assert_eq!(refused(&world.apply(theft)), Conflict::Binding);
    let end = world.end_command("c", EndReason::Revoked, WillMode::Publish);
    world.apply(end);
    let theft = world.connect_command(&Dial { uid: Some("bob"), ..dial("c") });
    assert_eq!(refused(&world.apply(theft)), Conflict::Binding);
    assert!(world.connect(&dial("c")).0.owner.session_generation == 2);
}

#[test]
fn anonymous_is_a_principal_of_its_own() {
    let mut world = World::new();
    world.connect(&Dial { uid: None, ..dial("c") });
    let theft = world.connect_command(&dial("c"));
    assert_eq!(refused(&world.apply(theft)), Conflict::Binding);
    assert!(world.connect(&Dial { uid: None, ..dial("c") }).1);
}

#[test]
fn rows_of_sessions_that_never_were_durable_go_with_the_connection() {
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 0, ..dial("c") });
    let row = world.drop_connection("c");
    assert_eq!(row.state, ended(EndReason::Expired));
    assert_eq!(world.group.session(&key("c")), None);
    assert_eq!(world.group.session_by_lifetime(row.lifetime), None);
    let (next, present) = world.connect(&Dial { uid: Some("bob"), expiry_sec: 0, ..dial("c") });
    assert!(!present);
    assert!(next.lifetime > row.lifetime && next.revision > row.revision, "numbers are never reused");
}

#[test]
fn a_pending_will_keeps_the_row_of_a_transient_session() {
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 0, will: will(30), ..dial("c") });
    world.drop_connection("c");
    assert_eq!(world.row("c").state, ended(EndReason::Expired));
    let due = world.group.last_will(&key("c")).map(|will| crate::lifecycle::WillKey {
        key: will.key.clone(),
        session_generation: will.session_generation,
        will_generation: will.will_generation,
    });
    let will = due.unwrap();
    world.apply(Command::WillClaim { will: will.clone(), lease_until: Millis(50_000) });
    assert!(world.group.session(&key("c")).is_some());
    world.apply(Command::WillPublished { will });
    assert_eq!(world.group.session(&key("c")), None);
}

#[test]
fn end_writes_the_first_reason_and_a_second_end_changes_nothing() {
    // P3, owner spec §8.2 step 6.
    let mut world = World::new();
    world.connect(&Dial { will: will(5), ..dial("c") });
    let end = world.at(3_000).end_command("c", EndReason::Revoked, WillMode::Publish);
    let row = row_of(world.apply(end.clone()));
    assert_eq!((row.state, row.revision), (ended(EndReason::Revoked), 2));
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(3_000)))));
    for again in [end, world.end_command("c", EndReason::Quota, WillMode::Suppress)] {
        let reply = world.at(4_000).apply(again);
        assert_eq!(reply, Reply::Row { row: Box::new(row.clone()), unchanged: true, session_present: false });
    }
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(3_000)))));
    let (next, present) = world.connect(&dial("c"));
    assert!(!present);
    assert_eq!(next.owner.session_generation, 2);
}

#[test]
fn end_touches_no_successor_and_no_stale_revision() {
    let mut world = World::new();
    world.connect(&dial("c"));
    let old = world.end_command("c", EndReason::Explicit, WillMode::Publish);
    world.connect(&dial("c"));
    assert_eq!(refused(&world.apply(old)), Conflict::Fenced);
    let Command::End(mut stale) = world.end_command("c", EndReason::Explicit, WillMode::Publish) else {
        unreachable!()
    };
    stale.revision -= 1;
    assert_eq!(refused(&world.apply(Command::End(stale))), Conflict::Fenced);
    assert_eq!(world.row("c").state, SessionState::Active);
    let missing = world.end_command("c", EndReason::Explicit, WillMode::Publish);
    let Command::End(mut missing) = missing else { unreachable!() };
    missing.owner.key = key("nobody");
    assert_eq!(refused(&world.apply(Command::End(missing))), Conflict::Missing);
}

#[test]
fn end_of_a_transient_session_is_remembered_for_its_retry() {
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 0, ..dial("c") });
    let end = world.end_command("c", EndReason::Explicit, WillMode::Publish);
    let row = row_of(world.apply(end.clone()));
    assert!(matches!(world.apply(end), Reply::Row { unchanged: true, .. }));
    let reclaim =
        Command::Reclaim { key: key("c"), revision: row.revision, limit: 64, binding_until: Millis(0) };
    assert_eq!(world.apply(reclaim.clone()), Reply::Reclaimed { removed: 0, done: true });
    assert!(world.group.session(&key("c")).is_some());
    assert_eq!(world.group.next_due(), Some(Millis(61_000)));
    assert_eq!(world.at(61_000).apply(reclaim), Reply::Reclaimed { removed: 0, done: true });
    assert_eq!(world.group.session(&key("c")), None);
}

#[test]
fn expired_and_clean_start_are_no_operators_reasons() {
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 5, will: will(5), ..dial("c") });
    for reason in [EndReason::Expired, EndReason::CleanStart] {
        let end = world.end_command("c", reason, WillMode::Publish);
        assert_eq!(refused(&world.apply(end)), Conflict::Illegal);
    }
    world.at(2_000).drop_connection("c");
    let early = world.at(3_000).end_command("c", EndReason::Expired, WillMode::Publish);
    assert_eq!(refused(&world.apply(early)), Conflict::NotDue);
    let due = world.at(7_000).end_command("c", EndReason::Expired, WillMode::Publish);
    assert_eq!(row_of(world.apply(due)).state, ended(EndReason::Expired));
}

#[test]
fn time_stamped_behind_the_row_never_runs_it_backwards() {
    // DESIGN §5: a clock that is behind another node's never refuses a client.
    let mut world = World::new();
    world.at(10_000).connect(&dial("c"));
    let row = world.at(9_000).drop_connection("c");
    assert_eq!((row.updated_at, row.state), (Millis(10_000), offline(70_000)));
    let (row, present) = world.at(8_000).connect(&dial("c"));
    assert!(present);
    assert_eq!(row.updated_at, Millis(10_000));
}

#[test]
fn an_observation_before_the_commit_sets_the_clock_of_the_session() {
    // Owner spec idea 3: slow isolation cannot change the outcome.
    let mut world = World::new();
    world.connect(&Dial { will: will(5), ..dial("c") });
    let close = world.at(2_000).disconnect_command("c", WithWill);
    let row = row_of(world.at(22_000).apply(close));
    assert_eq!(row.state, offline(62_000));
    assert_eq!(world.will_of("c"), Some((WillStage::Waiting, Some(Millis(7_000)))));
}

#[test]
fn exhausted_counters_refuse() {
    let mut world = World::new();
    world.connect(&dial("c"));
    for field in 0..2 {
        let mut rows = dump(&world.group, &world.disk);
        let mut group = load(&rows);
        let row = &mut group.sessions.get_mut(&key("c")).unwrap().row;
        if field == 0 {
            row.revision = u64::MAX;
        } else {
            row.owner.owner_generation = u64::MAX;
        }
        rows.clear();
        let mut world = World { group, ..World::new() };
        world.index = 10;
        let row = world.row("c").clone();
        let mut owner = row.owner.clone();
        owner.owner_generation = owner.owner_generation.wrapping_add(1).max(1);
        owner.connection_id += 1;
        let connect = Connect {
            owner,
            uid: row.uid,
            previous: Some((row.revision, row.owner)),
            clean_start: false,
            expiry_sec: 60,
            will: None,
        };
        let batch = Batch {
            boot: world.boot.clone(),
            at: Millis(2_000),
            commands: vec![Command::Connect(Box::new(connect))],
        };
        let mut outcome = Outcome::default();
        world.group.apply(11, 0, &batch, &mut outcome);
        assert_eq!(outcome.replies, vec![Reply::Conflict(Conflict::Exhausted)]);
    }
}

#[test]
fn routing_key_has_the_published_value() {
    // Owner spec §5.1, vector main/client.
    let key = key("client");
    assert_eq!(
        crate::lifecycle::routing_key(&key),
        "mqtt-session-v1:6e3e05e0d514696cc0c5e541354a90a1bda7d57e41a7b93516f052fa7c8c7878"
    );
    assert_eq!(crate::lifecycle::slot_of(&key), 0x6e);
}
