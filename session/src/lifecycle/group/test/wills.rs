//! Wills: the table of owner spec §6.2, exhaustively, and the executor.

use super::*;
use crate::lifecycle::group::will::{Resolution, WillEvent, resolve};
use crate::lifecycle::{RetireProof, WillKey, WillRow};

fn row(stage: WillStage, delay_sec: u32) -> WillRow {
    let waiting = stage == WillStage::Waiting;
    WillRow {
        key: key("c"),
        session_generation: 1,
        will_generation: 1,
        uid: None,
        message: message("will", "gone"),
        delay_sec,
        message_expiry_sec: None,
        stage,
        disconnected_at: waiting.then_some(Millis(2_000)),
        due_at: waiting.then_some(Millis(7_000)),
        executor: None,
        updated_at: Millis(2_000),
    }
}

fn ready(disconnected_at: u64, due_at: u64) -> Result<Resolution, Conflict> {
    Ok(Resolution::Ready { disconnected_at: Millis(disconnected_at), due_at: Millis(due_at) })
}

fn waiting(disconnected_at: u64, due_at: u64) -> Result<Resolution, Conflict> {
    Ok(Resolution::Waiting { disconnected_at: Millis(disconnected_at), due_at: Millis(due_at) })
}

#[test]
fn armed_will_resolution_table() {
    let cancelled = Ok(Resolution::Cancelled);
    let at = Millis(3_000);
    let close = |expires: Option<u64>| WillEvent::Disconnect { at, offline_expires: expires.map(Millis) };
    for (delay, event, expected) in [
        (0, WillEvent::NormalDisconnect, cancelled),
        (5, WillEvent::NormalDisconnect, cancelled),
        (0, WillEvent::Suppress, cancelled),
        (5, WillEvent::Suppress, cancelled),
        (0, close(None), ready(3_000, 3_000)),
        (5, close(None), ready(3_000, 3_000)),
        (0, close(Some(60_000)), ready(3_000, 3_000)),
        (5, close(Some(60_000)), waiting(3_000, 8_000)),
        (5, close(Some(8_000)), waiting(3_000, 8_000)),
        (5, close(Some(4_000)), waiting(3_000, 4_000)),
        (u32::MAX, close(Some(u64::MAX)), waiting(3_000, 3_000 + u64::from(u32::MAX) * 1_000)),
        (0, WillEvent::Resume { at }, ready(3_000, 3_000)),
        (5, WillEvent::Resume { at }, cancelled),
        (0, WillEvent::Fresh { at }, ready(3_000, 3_000)),
        (5, WillEvent::Fresh { at }, ready(3_000, 3_000)),
        (0, WillEvent::End { at }, ready(3_000, 3_000)),
        (5, WillEvent::End { at }, ready(3_000, 3_000)),
        (0, WillEvent::Due { at }, Err(Conflict::Illegal)),
        (5, WillEvent::Due { at }, Err(Conflict::Illegal)),
    ] {
        assert_eq!(resolve(&row(WillStage::Armed, delay), event), expected, "delay {delay}, {event:?}");
    }
}

#[test]
fn waiting_will_resolution_table() {
    let early = Millis(6_999);
    let due = Millis(7_000);
    let late = Millis(9_000);
    for (event, expected) in [
        (WillEvent::NormalDisconnect, Err(Conflict::Illegal)),
        (WillEvent::Disconnect { at: late, offline_expires: None }, Err(Conflict::Illegal)),
        (WillEvent::Disconnect { at: early, offline_expires: Some(late) }, Err(Conflict::Illegal)),
        (WillEvent::Suppress, Ok(Resolution::Cancelled)),
        (WillEvent::Resume { at: early }, Ok(Resolution::Cancelled)),
        (WillEvent::Resume { at: due }, ready(2_000, 7_000)),
        (WillEvent::Resume { at: late }, ready(2_000, 7_000)),
        (WillEvent::Fresh { at: early }, ready(2_000, 6_999)),
        (WillEvent::Fresh { at: late }, ready(2_000, 7_000)),
        (WillEvent::End { at: early }, ready(2_000, 6_999)),
        (WillEvent::End { at: late }, ready(2_000, 7_000)),
        (WillEvent::Due { at: early }, Err(Conflict::NotDue)),
        (WillEvent::Due { at: due }, ready(2_000, 7_000)),
        (WillEvent::Due { at: late }, ready(2_000, 7_000)),
    ] {
        assert_eq!(resolve(&row(WillStage::Waiting, 5), event), expected, "{event:?}");
    }
}

#[test]
fn detached_and_terminal_wills_are_never_resolved_again() {
    for stage in [
        WillStage::Ready,
        WillStage::Executing,
        WillStage::Published,
        WillStage::Cancelled,
        WillStage::Rejected,
    ] {
        for event in [
            WillEvent::NormalDisconnect,
            WillEvent::Resume { at: Millis(3_000) },
            WillEvent::End { at: Millis(3_000) },
            WillEvent::Suppress,
            WillEvent::Due { at: Millis(9_000) },
        ] {
            assert_eq!(resolve(&row(stage, 5), event), Err(Conflict::Illegal));
        }
    }
}

/// A world whose client `c` (expiry 60, Will delay 5) broke off at 2,000.
fn waiting_world() -> World {
    let mut world = World::new();
    world.connect(&Dial { will: will(5), ..dial("c") });
    world.at(2_000).drop_connection("c");
    world
}

fn reconcile(world: &mut World, client_id: &str) -> Reply {
    let revision = world.row(client_id).revision;
    world.apply(Command::Reconcile { key: key(client_id), revision })
}

fn will_key(world: &World, client_id: &str) -> WillKey {
    let will = world.group.last_will(&key(client_id)).expect("a Will is there");
    WillKey {
        key: will.key.clone(),
        session_generation: will.session_generation,
        will_generation: will.will_generation,
    }
}

#[test]
fn resume_in_time_cancels_and_the_new_will_is_the_one_that_counts() {
    // Scenario 38, [MQTT-3.1.3-9].
    let mut world = waiting_world();
    let mut new = will(5);
    new.as_mut().unwrap().message = message("will", "new");
    let (row, present) = world.at(6_000).connect(&Dial { will: new, ..dial("c") });
    assert!(present);
    assert_eq!(
        world.outcome.wills.iter().map(|(_, stage)| *stage).collect::<Vec<_>>(),
        [WillStage::Cancelled, WillStage::Armed]
    );
    world.at(20_000).drop_connection("c");
    assert!(world.group.last_will(&key("c")).unwrap().will_generation == row.revision);
    assert_eq!(world.group.last_will(&key("c")).unwrap().message.payload(), b"new");
    assert!(matches!(reconcile(world.at(25_000), "c"), Reply::Done { unchanged: false, .. }));
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(25_000)))));
}

#[test]
fn resume_after_the_due_time_does_not_cancel() {
    let mut world = waiting_world();
    assert!(world.at(7_000).connect(&dial("c")).1);
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(7_000)))));
    assert_eq!(world.row("c").will_generation, 0);
}

#[test]
fn expired_resume_makes_the_will_ready_and_begins_a_generation() {
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 3, will: will(60), ..dial("c") });
    world.at(2_000).drop_connection("c");
    let (row, present) = world.at(5_000).connect(&dial("c"));
    assert!(!present);
    assert_eq!(row.owner.session_generation, 2);
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(5_000)))));
}

#[test]
fn will_due_is_applied_when_due_and_leaves_the_session_offline() {
    let mut world = waiting_world();
    assert_eq!(refused(&reconcile(world.at(6_000), "c")), Conflict::NotDue);
    assert_eq!(reconcile(world.at(7_000), "c"), Reply::Done { revision: 3, unchanged: false });
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(7_000)))));
    assert!(matches!(world.row("c").state, SessionState::Offline { .. }));
    assert_eq!(world.row("c").will_generation, 0);
    let retry = Command::Reconcile { key: key("c"), revision: 2 };
    assert_eq!(world.apply(retry), Reply::Done { revision: 3, unchanged: true });
    assert_eq!(
        refused(&reconcile(&mut world, "c")),
        Conflict::NotDue,
        "the Will is gone, the expiry not reached"
    );
}

#[test]
fn session_expiry_before_the_delay_fires_the_will() {
    // Scenario 36.
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 5, will: will(60), ..dial("c") });
    world.at(2_000).drop_connection("c");
    assert_eq!(world.group.next_due(), Some(Millis(7_000)));
    reconcile(world.at(7_000), "c");
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(7_000)))));
    assert_eq!(world.row("c").state, SessionState::Ended { reason: EndReason::Expired });
}

#[test]
fn zero_expiry_fires_a_delayed_will_at_once_also_on_takeover() {
    // Scenario 34, MQTT 5 §3.1.3.2.2: whichever comes first.
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 0, will: will(30), ..dial("c") });
    world.at(2_000).drop_connection("c");
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(2_000)))));
    let mut world = World::new();
    world.connect(&Dial { expiry_sec: 0, will: will(30), ..dial("c") });
    assert!(!world.at(2_000).connect(&dial("c")).1);
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(2_000)))));
}

#[test]
fn takeover_and_clean_start() {
    let mut world = World::new();
    world.connect(&Dial { will: will(5), ..dial("c") });
    world.at(2_000).connect(&Dial { will: will(5), ..dial("c") });
    assert_eq!(world.group.stat().wills_armed, 1);
    assert_eq!(world.outcome.wills[0].1, WillStage::Cancelled);
    world.at(3_000).connect(&Dial { will: will(5), clean_start: true, ..dial("c") });
    assert_eq!(world.outcome.wills[0].1, WillStage::Ready);
    let stat = world.group.stat();
    assert_eq!((stat.wills_armed, stat.wills_ready), (1, 1));
    let mut world = World::new();
    world.connect(&Dial { will: will(0), ..dial("c") });
    world.at(2_000).connect(&dial("c"));
    assert_eq!(
        world.will_of("c"),
        Some((WillStage::Ready, Some(Millis(2_000)))),
        "delay 0 is published on takeover"
    );
}

#[test]
fn end_makes_the_will_ready_or_suppresses_it() {
    for (mode, expected) in
        [(WillMode::Publish, Some((WillStage::Ready, Some(Millis(4_000))))), (WillMode::Suppress, None)]
    {
        let mut world = waiting_world();
        let end = world.at(4_000).end_command("c", EndReason::Quota, mode);
        world.apply(end);
        assert_eq!(world.will_of("c"), expected);
        let disconnected = world.group.last_will(&key("c")).and_then(|will| will.disconnected_at);
        assert_eq!(disconnected, expected.map(|_| Millis(2_000)), "the disconnect time stays");
        let mut world = World::new();
        world.connect(&Dial { will: will(5), ..dial("c") });
        let end = world.at(4_000).end_command("c", EndReason::Quota, mode);
        world.apply(end);
        assert_eq!(world.will_of("c"), expected);
    }
}

#[test]
fn end_leaves_a_ready_or_cancelled_will_alone() {
    let mut world = waiting_world();
    reconcile(world.at(7_000), "c");
    let end = world.at(9_000).end_command("c", EndReason::Revoked, WillMode::Suppress);
    world.apply(end);
    assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(7_000)))));
}

#[test]
fn a_missing_referenced_will_is_corruption_and_changes_nothing() {
    let mut world = waiting_world();
    let missing = will_key(&world, "c");
    world.group.wills.remove(&missing);
    let before = world.row("c").clone();
    world.index += 1;
    let command = world.at(3_000).connect_command(&dial("c"));
    let batch = Batch { boot: world.boot.clone(), at: Millis(3_000), commands: vec![command] };
    let mut outcome = Outcome::default();
    world.group.apply(world.index, 0, &batch, &mut outcome);
    assert_eq!(outcome.replies, vec![Reply::Conflict(Conflict::Missing)]);
    assert_eq!(*world.row("c"), before);
    assert!(world.group.check().is_err());
}

fn claim(world: &mut World, will: &WillKey, lease_until: u64) -> Reply {
    world.apply(Command::WillClaim { will: will.clone(), lease_until: Millis(lease_until) })
}

#[test]
fn execution_belongs_to_one_boot_at_a_time() {
    let mut world = waiting_world();
    let armed = will_key(&world, "c");
    assert_eq!(refused(&claim(&mut world, &armed, 20_000)), Conflict::Illegal, "Waiting is not Ready");
    reconcile(world.at(7_000), "c");
    let will = will_key(&world, "c");
    let finish = Command::WillPublished { will: will.clone() };
    assert_eq!(refused(&world.apply(finish.clone())), Conflict::Illegal, "nobody executes it");
    assert_eq!(refused(&claim(&mut world, &will, 7_000)), Conflict::Illegal, "a lease must lie ahead");
    assert_eq!(claim(&mut world, &will, 17_000), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(claim(&mut world, &will, 18_000), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(refused(&claim(&mut world, &will, 10_000)), Conflict::Illegal, "a lease does not shrink");
    let other = boot(2, "boot-b");
    let first = std::mem::replace(&mut world.boot, other);
    world.apply(Command::BootStart { lease_until: Millis(1_000_000) });
    assert_eq!(refused(&claim(world.at(17_999), &will, 28_000)), Conflict::Fenced, "no stealing");
    assert_eq!(refused(&world.apply(finish.clone())), Conflict::Fenced);
    assert_eq!(world.group.next_due(), Some(Millis(18_000)));
    assert_eq!(claim(world.at(18_000), &will, 28_000), Reply::Done { revision: 0, unchanged: false });
    let second = std::mem::replace(&mut world.boot, first);
    assert_eq!(refused(&world.apply(finish.clone())), Conflict::Fenced, "the stale executor");
    world.boot = second;
    assert_eq!(refused(&world.at(28_000).apply(finish.clone())), Conflict::Fenced, "after its lease");
    claim(&mut world, &will, 38_000);
    assert_eq!(world.apply(finish.clone()), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(world.outcome.wills, vec![(will.clone(), WillStage::Published)]);
    for command in [finish, Command::WillReject { will: will.clone() }] {
        assert_eq!(refused(&world.apply(command)), Conflict::Missing, "a terminal Will never moves");
    }
    assert_eq!(refused(&claim(&mut world, &will, 48_000)), Conflict::Missing);
}

#[test]
fn a_retired_executor_is_replaced_at_once() {
    let mut world = waiting_world();
    reconcile(world.at(7_000), "c");
    let will = will_key(&world, "c");
    claim(&mut world, &will, 500_000);
    let executor = std::mem::replace(&mut world.boot, boot(2, "boot-b"));
    world.apply(Command::BootStart { lease_until: Millis(1_000_000) });
    world.apply(Command::BootRetire {
        boot: executor,
        proof: RetireProof::CrashReceipt,
        observed_at: Millis(7_000),
    });
    assert_eq!(claim(&mut world, &will, 20_000), Reply::Done { revision: 0, unchanged: false });
}

#[test]
fn rejection_removes_the_will() {
    let mut world = waiting_world();
    reconcile(world.at(7_000), "c");
    let will = will_key(&world, "c");
    claim(&mut world, &will, 17_000);
    assert_eq!(
        world.apply(Command::WillReject { will: will.clone() }),
        Reply::Done { revision: 0, unchanged: false }
    );
    assert_eq!(world.group.will(&will), None);
    assert!(matches!(world.row("c").state, SessionState::Offline { .. }));
}

#[test]
fn will_due_times_survive_a_crash() {
    // P6, scenario 41: a delayed Will fires at its time although the broker was restarted.
    let mut world = waiting_world();
    world.reload();
    assert_eq!(world.group.next_due(), Some(Millis(7_000)));
    let mut due = Vec::new();
    world.group.due(Millis(7_000), 10, &mut due);
    assert_eq!(due, vec![crate::lifecycle::Due::Session { key: key("c"), revision: 2 }]);
    reconcile(world.at(7_000), "c");
    world.reload();
    due.clear();
    world.group.due(Millis(7_000), 10, &mut due);
    assert_eq!(due, vec![crate::lifecycle::Due::Will(will_key(&world, "c"))]);
}

#[test]
fn a_will_fires_once_into_an_inbox_and_its_key_never_comes_back() {
    // P6: the stamp outlives the Will row, also when the transient session's row was removed and made again.
    let mut world = World::new();
    let (watcher, _) = world.connect(&dial("watcher"));
    let mut keys = Vec::new();
    for round in 0..3 {
        world.connect(&Dial { expiry_sec: 0, will: will(0), ..dial("c") });
        world.drop_connection("c");
        let will = will_key(&world, "c");
        claim(&mut world, &will, 500_000);
        for attempt in 0..2 {
            let stamp = Some(Stamp::Will(will.clone()));
            let reply =
                world.append_stamped(message("will", "gone"), stamp, &[(watcher.lifetime, QoS::AtLeastOnce)]);
            let Reply::Appended { accepted, duplicate, .. } = reply else { panic!("{reply:?}") };
            assert_eq!((accepted, duplicate), (1 - attempt, attempt == 1), "round {round}");
            world.reload();
        }
        world.apply(Command::WillPublished { will: will.clone() });
        assert_eq!(world.group.session(&key("c")), None);
        keys.push(will);
    }
    keys.dedup();
    assert_eq!(keys.len(), 3);
    assert_eq!(world.payloads("watcher").len(), 3);
}
