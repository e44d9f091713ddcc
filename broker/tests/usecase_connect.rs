//! CONNECT, takeover and disconnect (owner spec §7, §8.5 last bullets) on the real registry and the real rows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use broker::usecase::ConnectError;
use gateway::codec::ReasonCode;
use session::id::Owner;
use session::lifecycle::{Append, Command, Connect, SessionState, Target, WillStage};
use session::message::{Message, QoS};

use support::bench::{Bench, CommitFault, eventually};
use support::rows::{LEASE_MS, will};

/// Owner spec §7.1 step 12: activation follows the commit; owner spec §8.5.
#[tokio::test]
async fn p1_a_new_client_is_active_only_after_its_commit() {
    let bench = Bench::new();
    let input = bench.input("c", 3_600, None);
    let (entry, row, session_present) = bench.accept(&input).await.unwrap();
    assert!(!session_present);
    assert_eq!(bench.active_at_commit.load(Ordering::SeqCst), 0);
    assert_eq!(bench.owners.snapshot().active, 1);
    assert_eq!(row.owner, *entry.owner());
    assert_eq!((row.owner.session_generation, row.owner.owner_generation), (1, 1));
    assert!(bench.owners.registry().begin(bench.rows.clock.tick(), &entry).is_ok());
}

/// P2, scenario 14: a takeover waits for the old owner's admitted work and its socket; the old v5 client is told 0x8E.
#[tokio::test]
async fn p2_takeover_waits_for_the_scope_of_the_old_owner() {
    let bench = Bench::new();
    let first = bench.input("c", 3_600, None);
    let (old, _, _) = bench.accept(&first).await.unwrap();
    let scope = bench.owners.registry().begin(bench.rows.clock.tick(), &old).unwrap();
    let second = bench.input("c", 3_600, None);
    let taking_over = tokio::spawn({
        let (bench, second) = (bench.clone(), second.clone());
        async move { bench.accept(&second).await }
    });
    eventually("the old socket is closed", || !bench.is_open(first.link)).await;
    assert_eq!(bench.notices(first.link).first(), Some(&Some(ReasonCode::SessionTakenOver)));
    assert!(bench.owners.registry().begin(bench.rows.clock.tick(), &old).is_err(), "admission is closed");
    assert!(!taking_over.is_finished(), "the old owner still executes");
    assert_eq!(bench.rows.row("c").unwrap().owner, *old.owner());
    drop(scope);
    let (new, row, session_present) = taking_over.await.unwrap().unwrap();
    assert!(session_present);
    assert_eq!(row.owner.owner_generation, 2);
    assert!(bench.owners.registry().begin(bench.rows.clock.tick(), &new).is_ok());
}

/// P2: without proof CONNECT is refused in bounded time and the row is untouched.
#[tokio::test]
async fn p2_an_owner_on_another_node_is_not_taken_over_without_proof() {
    let bench = Bench::new();
    let (mut row, _) = bench.rows.connect("c", 3_600, None);
    for (node_id, boot_id) in [(2, bench.rows.boot.boot_id.clone()), (1, "an earlier boot".into())] {
        let owner = Owner { node_id, boot_id, ..row.owner.clone() };
        let isolation = &bench.isolation;
        let proof = broker::usecase::isolation::Isolation::quiesce(isolation, &owner, bench.deadline()).await;
        assert_eq!(proof, Err(broker::owners::IsolationError::Unproved));
    }
    // An id that this registry never issued proves nothing either.
    row.owner.connection_id = 999;
    let proof =
        broker::usecase::isolation::Isolation::quiesce(&bench.isolation, &row.owner, bench.deadline()).await;
    assert_eq!(proof, Err(broker::owners::IsolationError::Unproved));
    let before = bench.rows.row("c");
    let input = bench.input("c", 3_600, None);
    assert_eq!(bench.accept(&input).await.unwrap_err(), ConnectError::Unproved);
    assert_eq!(bench.rows.row("c"), before);
    assert_eq!(bench.owners.snapshot().held, 0);
    assert_eq!(bench.proposals.load(Ordering::SeqCst), 0);
}

/// P2: an old socket that does not close is not waited for beyond the deadline, and nothing is taken over.
#[tokio::test]
async fn p2_a_socket_that_does_not_close_refuses_the_takeover_in_bounded_time() {
    let bench = Bench::new();
    let first = bench.input("c", 3_600, None);
    let (old, _, _) = bench.accept(&first).await.unwrap();
    bench.sockets.stuck.store(true, Ordering::SeqCst);
    let mut second = bench.input("c", 3_600, None);
    second.deadline = bench.rows.clock.tick().plus_ms(50);
    assert_eq!(bench.accept(&second).await.unwrap_err(), ConnectError::Deadline);
    assert_eq!(bench.rows.row("c").unwrap().owner, *old.owner());
    // Scenario 6: after the old socket is gone, the next CONNECT succeeds.
    bench.sockets.stuck.store(false, Ordering::SeqCst);
    let (_, _, session_present) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    assert!(session_present);
}

/// DESIGN §11: takeovers and isolations are counted by outcome; a CONNECT that met no active owner is not a takeover.
#[tokio::test]
async fn metrics_tell_takeovers_and_isolations_by_outcome() {
    let bench = Bench::new();
    let count = |family: &str, outcome: &str| {
        let name = format!("exactmq_{family}_seconds_count{{outcome=\"{outcome}\"}} ");
        let page = bench.metrics.render();
        page.lines().find_map(|line| line.strip_prefix(&*name)?.parse::<u64>().ok()).unwrap()
    };
    bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    assert_eq!((count("takeover", "done"), count("isolation", "proved")), (0, 0));
    bench.sockets.stuck.store(true, Ordering::SeqCst);
    let mut late = bench.input("c", 3_600, None);
    late.deadline = bench.rows.clock.tick().plus_ms(50);
    assert_eq!(bench.accept(&late).await.unwrap_err(), ConnectError::Deadline);
    assert_eq!((count("takeover", "deadline"), count("isolation", "deadline")), (1, 1));
    bench.sockets.stuck.store(false, Ordering::SeqCst);
    bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    assert_eq!(count("takeover", "done"), 1);
    assert_eq!((count("isolation", "proved"), count("isolation", "deadline")), (1, 1));
}

/// P8, scenario 12: another user's CONNECT neither reads nor disturbs the session, also with clean start.
#[tokio::test]
async fn p8_another_user_does_not_disturb_the_live_owner() {
    let bench = Bench::new();
    let first = bench.input("c", 3_600, None);
    let (old, _, _) = bench.accept(&first).await.unwrap();
    let mut theft = bench.input("c", 3_600, None);
    theft.uid = Some("somebody else".into());
    theft.clean_start = true;
    assert_eq!(bench.accept(&theft).await.unwrap_err(), ConnectError::Binding);
    theft.uid = None;
    assert_eq!(bench.accept(&theft).await.unwrap_err(), ConnectError::Binding);
    assert!(bench.is_open(first.link) && !old.is_fenced());
}

/// A session that ends with its connection leaves no binding: another user who connects right after its end is not refused because
/// the record of that end is still under way.
#[tokio::test]
async fn p8_another_user_waits_for_the_end_of_a_session_that_is_over() {
    let bench = Bench::new();
    let first = bench.input("c", 0, None);
    let (old, _, _) = bench.accept(&first).await.unwrap();
    let scope = bench.owners.registry().begin(bench.rows.clock.tick(), &old).unwrap();
    bench.eof(first.link, false);
    let mut next = bench.input("c", 0, None);
    next.uid = Some("somebody else".into());
    let connecting = tokio::spawn({
        let (bench, next) = (bench.clone(), next.clone());
        async move { bench.accept(&next).await }
    });
    tokio::task::yield_now().await;
    drop(scope);
    let (_, row, session_present) = connecting.await.unwrap().unwrap();
    assert!(!session_present);
    assert_eq!(row.uid.as_deref(), Some("somebody else"));
    let mut theft = bench.input("c", 0, None);
    theft.uid = None;
    assert_eq!(bench.accept(&theft).await.unwrap_err(), ConnectError::Binding, "a live one is left alone");
    assert!(bench.is_open(next.link));
}

/// An End that meets a CONNECT between its commit and its activation ends that owner; the client gets the next one and hears nothing of
/// it, least of all that its time was over.
#[tokio::test]
async fn a_connect_that_races_with_an_end_is_tried_again() {
    let bench = Bench::new();
    bench.set_fault(CommitFault::EndedAtOnce);
    let (entry, row, _) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    assert_eq!((row.owner.owner_generation, bench.proposals.load(Ordering::SeqCst)), (2, 2));
    assert!(!entry.is_fenced());
    assert_eq!(bench.owners.snapshot().active, 1);
}

/// Owner spec §7.1 step 6: permissions that were withdrawn while the old owner drained refuse the CONNECT before anything is reserved.
#[tokio::test]
async fn the_second_authorisation_comes_before_the_reservation() {
    let bench = Bench::new();
    let input = bench.input("c", 3_600, None);
    let asked = AtomicBool::new(false);
    let denied = bench
        .connect(&input, &|| {
            asked.store(true, Ordering::SeqCst);
            false
        })
        .await;
    assert_eq!(denied.unwrap_err(), ConnectError::NotAuthorized);
    assert!(asked.load(Ordering::SeqCst));
    assert_eq!(bench.proposals.load(Ordering::SeqCst), 0);
    assert_eq!(bench.owners.snapshot().held, 0);
}

/// Owner spec §8.5: candidate failures give the candidate up, hold no owner, and propose exactly once.
#[tokio::test]
async fn p1_failed_candidates_hold_nothing() {
    let faults = [
        (CommitFault::LostReply, ConnectError::Unavailable, true),
        (CommitFault::SlowMs(LEASE_MS + 1_000), ConnectError::Deadline, true),
        (CommitFault::Malformed, ConnectError::Unavailable, true),
        (CommitFault::Conflict, ConnectError::Unavailable, false),
    ];
    for (fault, expected, committed) in faults {
        let bench = Bench::new();
        bench.set_fault(fault);
        let input = bench.input("c", 3_600, Some(will(0)));
        assert_eq!(bench.accept(&input).await.unwrap_err(), expected, "{fault:?}");
        assert_eq!(bench.proposals.load(Ordering::SeqCst), 1, "{fault:?}");
        assert_eq!(bench.owners.snapshot().held, 0, "{fault:?}");
        assert_eq!(bench.disconnects.pending(), 0, "{fault:?}");
        let row = bench.rows.row("c");
        assert_eq!(row.is_some(), committed, "{fault:?}");
        if let Some(row) = row {
            assert!(matches!(row.state, SessionState::Offline { .. }), "{fault:?}");
            assert_eq!(
                bench.rows.last_will("c"),
                None,
                "{fault:?}: the Will of a refused CONNECT never appears"
            );
            let until = bench.rows.clock.tick().plus_ms(LEASE_MS);
            bench.owners.renew_boot(2, until, bench.rows.clock.millis().plus_ms(LEASE_MS)).unwrap();
            let (_, row, _) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
            assert_eq!(row.owner.owner_generation, 2, "{fault:?}");
        }
    }
}

/// Appendix C: dropping the future of a CONNECT is not completion: the candidate is fenced and its commit, if any, is undone.
#[tokio::test]
async fn p1_a_dropped_connect_leaves_no_owner() {
    let bench = Bench::new();
    bench.set_fault(CommitFault::Hangs);
    let mut input = bench.input("c", 3_600, None);
    {
        let connecting = bench.accept(&input);
        let waited = tokio::time::timeout(std::time::Duration::from_millis(30), connecting).await;
        assert!(waited.is_err(), "the commit hangs");
    }
    assert_eq!(bench.owners.snapshot().held, 0);
    input.link = bench.link();
    assert!(bench.accept(&input).await.is_ok());
}

/// Owner spec §7.1 step 9: commit latency within the lease does not move the deadline.
#[tokio::test]
async fn commit_latency_never_extends_a_lease() {
    let bench = Bench::new();
    bench.set_fault(CommitFault::SlowMs(2_000));
    let (entry, _, _) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    bench.rows.time.advance_ms(LEASE_MS - 2_001);
    assert!(bench.owners.registry().begin(bench.rows.clock.tick(), &entry).is_ok());
    bench.rows.time.advance_ms(1);
    assert!(bench.owners.registry().begin(bench.rows.clock.tick(), &entry).is_err());
}

/// Scenario 3: of 100 CONNECTs with one ClientID exactly one stays; every loser that was accepted is closed.
#[tokio::test]
async fn p1_of_many_connects_with_one_client_id_one_stays() {
    for round in 0..20 {
        let bench = Bench::new();
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let bench = bench.clone();
                let input = bench.input("c", if round % 2 == 0 { 0 } else { 3_600 }, None);
                tokio::spawn(
                    async move { bench.accept(&input).await.map(|(entry, _, _)| (entry, input.link)) },
                )
            })
            .collect();
        let mut accepted = Vec::new();
        for task in tasks {
            accepted.push(task.await.unwrap().unwrap());
        }
        eventually("one owner is left", || bench.owners.snapshot().held == 1).await;
        let alive: Vec<_> = accepted.iter().filter(|(entry, _)| !entry.is_fenced()).collect();
        assert_eq!(alive.len(), 1);
        assert!(bench.is_open(alive[0].1));
        assert_eq!(bench.sockets.guards.lock().unwrap().len(), 1);
        assert_eq!(bench.rows.row("c").unwrap().owner, *alive[0].0.owner());
        assert!(bench.owners.registry().begin(bench.rows.clock.tick(), &alive[0].0).is_ok());
    }
}

/// Owner spec §7.8, scenario 42: DISCONNECT 0x00 followed at once by a new CONNECT cancels the Will.
#[tokio::test]
async fn p6_a_normal_disconnect_survives_the_race_with_a_takeover() {
    for scope_open in [false, true] {
        let bench = Bench::new();
        let first = bench.input("c", 3_600, Some(will(0)));
        let (old, _, _) = bench.accept(&first).await.unwrap();
        let scope = scope_open.then(|| bench.owners.registry().begin(bench.rows.clock.tick(), &old).unwrap());
        let second = bench.input("c", 3_600, None);
        let taking_over = tokio::spawn({
            let (bench, second) = (bench.clone(), second.clone());
            async move { bench.accept(&second).await }
        });
        bench.eof(first.link, true);
        drop(scope);
        taking_over.await.unwrap().unwrap();
        assert_eq!(bench.rows.last_will("c"), None, "the Will was cancelled by DISCONNECT");
    }
}

/// P6: a takeover of a session that ends with its connection, or whose Will has no delay, makes the Will ready, once.
#[tokio::test]
async fn p6_a_takeover_resolves_the_will_of_the_old_connection() {
    for (expiry_sec, delay_sec, fires) in [(0, 30, true), (3_600, 0, true), (3_600, 30, false)] {
        let bench = Bench::new();
        bench.accept(&bench.input("c", expiry_sec, Some(will(delay_sec)))).await.unwrap();
        bench.accept(&bench.input("c", expiry_sec, None)).await.unwrap();
        let stage = bench.rows.last_will("c").map(|will| will.stage);
        assert_eq!(stage, fires.then_some(WillStage::Ready), "expiry {expiry_sec}, delay {delay_sec}");
    }
}

/// Owner spec §7.4: an abnormal end is recorded with the time at which it was seen, and only when its owner has drained.
#[tokio::test]
async fn p3_an_end_is_recorded_after_the_owner_drained_with_the_time_it_was_seen() {
    let bench = Bench::new();
    let input = bench.input("c", 60, Some(will(5)));
    let (entry, _, _) = bench.accept(&input).await.unwrap();
    let scope = bench.owners.registry().begin(bench.rows.clock.tick(), &entry).unwrap();
    let seen = bench.rows.clock.millis();
    bench.eof(input.link, false);
    bench.rows.time.advance_ms(3_000);
    assert_eq!(bench.rows.row("c").unwrap().state, SessionState::Active, "admitted work still runs");
    drop(scope);
    eventually("the end is recorded", || bench.disconnects.pending() == 0).await;
    let offline_expires_at = seen.plus_ms(60_000);
    assert_eq!(bench.rows.row("c").unwrap().state, SessionState::Offline { offline_expires_at });
    assert_eq!(bench.rows.last_will("c").unwrap().due_at, Some(seen.plus_ms(5_000)));
}

/// Owner spec §7.4: what is seen after the boot lease ran out is recorded as abnormal, at the lease end.
#[tokio::test]
async fn p6_an_end_after_the_lease_is_abnormal_and_counts_from_the_lease_end() {
    let bench = Bench::new();
    let input = bench.input("c", 3_600, Some(will(5)));
    bench.accept(&input).await.unwrap();
    let lease_end = bench.owners.lease_until_ms();
    bench.rows.time.advance_ms(LEASE_MS + 1_000);
    bench.eof(input.link, true);
    eventually("the end is recorded", || bench.disconnects.pending() == 0).await;
    let will = bench.rows.last_will("c").unwrap();
    assert_eq!((will.stage, will.disconnected_at), (WillStage::Waiting, Some(lease_end)));
}

/// A durable lifetime that is replaced leaves the routing.
#[tokio::test]
async fn a_replaced_lifetime_is_reported_as_over() {
    let bench = Bench::new();
    let (_, row, _) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    let mut clean = bench.input("c", 3_600, None);
    clean.clean_start = true;
    let (_, _, session_present) = bench.accept(&clean).await.unwrap();
    assert!(!session_present);
    assert_eq!(*bench.over.0.lock().unwrap(), [row.lifetime]);
}

/// A CONNECT whose row was changed under it, with the owner that was proved stopped, is proposed again instead of refused.
#[tokio::test]
async fn a_definite_refusal_is_tried_again_from_a_fresh_read() {
    let bench = Bench::new();
    let (entry, row, _) = bench.accept(&bench.input("c", 3_600, Some(will(0)))).await.unwrap();
    let stale = Connect {
        owner: Owner { owner_generation: 2, connection_id: 77, ..entry.owner().clone() },
        uid: row.uid.clone(),
        previous: Some((row.revision + 9, row.owner.clone())),
        clean_start: false,
        expiry_sec: 60,
        will: None,
    };
    let refused = bench.rows.apply(Command::Connect(Box::new(stale)));
    assert!(matches!(refused, session::lifecycle::Reply::Conflict(_)));
    let (_, row, session_present) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    assert!(session_present);
    assert_eq!(row.owner.owner_generation, 2);
}

/// P3, owner spec §8.5: with an open scope End closes the socket and admits nothing more, but returns only when the scope is done.
#[tokio::test]
async fn p3_end_waits_for_admitted_work() {
    use broker::usecase::EndInput;
    use broker::usecase::end::{Call, EndCase};
    use session::lifecycle::{EndReason, WillMode};

    let bench = Bench::new();
    let input = bench.input("c", 3_600, Some(will(30)));
    let (entry, row, _) = bench.accept(&input).await.unwrap();
    let scope = bench.owners.registry().begin(bench.rows.clock.tick(), &entry).unwrap();
    let claim = bench.disconnects.claim(&row.owner);
    let ending = tokio::spawn({
        let (bench, owner) = (bench.clone(), row.owner.clone());
        async move {
            let own = Some((&bench.rows.boot, bench.owners.lease_until()));
            let clock = &bench.rows.clock;
            let case = EndCase { authority: &*bench, isolation: &bench.isolation, clock, own };
            let cancelled = AtomicBool::new(false);
            let call = Call { deadline: bench.deadline(), cancelled: &cancelled };
            let input =
                EndInput { owner, reason: EndReason::Revoked, will: WillMode::Publish, release: false };
            case.run(&call, &input, &|| 0).await
        }
    });
    eventually("the socket is closed", || !bench.is_open(input.link)).await;
    assert!(bench.owners.registry().begin(bench.rows.clock.tick(), &entry).is_err());
    assert!(!ending.is_finished());
    assert_eq!(bench.rows.row("c").unwrap(), row, "nothing is recorded while work is admitted");
    drop(scope);
    let ended = ending.await.unwrap().unwrap();
    assert_eq!(ended.state, SessionState::Ended { reason: EndReason::Revoked });
    if let Some(claim) = claim {
        claim.replace();
    }
    assert_eq!(bench.disconnects.pending(), 0);
    let (_, next, session_present) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    assert!(!session_present);
    assert_eq!(next.owner.session_generation, row.owner.session_generation + 1);
}

/// [MQTT-3.3.1-1]: a takeover after the boot lease ran out keeps what the old connection told about its inbox, and takes everything for
/// written when it told nothing.
#[tokio::test]
async fn mqtt_3_3_1_1_a_lapsed_lease_does_not_lose_what_was_written() {
    for (is_told, expected) in [(true, vec![true, false]), (false, vec![true, true])] {
        let bench = Bench::new();
        let first = bench.input("c", 3_600, None);
        let (_, row, _) = bench.accept(&first).await.unwrap();
        for _ in 0..2 {
            let target = Target {
                lifetime: row.lifetime,
                qos: QoS::AtLeastOnce,
                retain: false,
                identifiers: [].into_iter().collect(),
                shared: false,
            };
            let message = Message::new("a", &[], b"x");
            let append = Append { message, stamp: None, targets: vec![target] };
            bench.rows.apply(Command::Append(Box::new(append)));
        }
        bench.sockets.sent_through.store(1, Ordering::SeqCst);
        let claim = (!is_told).then(|| bench.disconnects.claim(&row.owner).unwrap());
        bench.rows.time.advance_ms(LEASE_MS + 1);
        let until = bench.rows.clock.tick().plus_ms(LEASE_MS);
        bench.owners.renew_boot(2, until, bench.rows.clock.millis().plus_ms(LEASE_MS)).unwrap();
        let (_, after, session_present) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
        assert!(session_present);
        assert_eq!(bench.rows.maybe_sent(after.lifetime), expected, "told: {is_told}");
        drop(claim);
    }
}

/// Scenario "stepped clock": whether a DISCONNECT came in time is judged by the monotonic clock; a wall clock that steps ahead of the lease
/// makes no Will of it.
#[tokio::test]
async fn p6_a_forward_step_of_the_wall_clock_makes_no_disconnect_late() {
    let bench = Bench::new();
    let input = bench.input("c", 3_600, Some(will(0)));
    bench.accept(&input).await.unwrap();
    bench.rows.time.set_wall(bench.rows.clock.millis().0 + 10 * LEASE_MS);
    bench.eof(input.link, true);
    assert_eq!(bench.disconnects.pending(), 0);
    assert_eq!(bench.rows.last_will("c"), None, "cancelled by the DISCONNECT");
    assert!(matches!(bench.rows.row("c").unwrap().state, SessionState::Offline { .. }));
}

/// The same for a takeover: the old owner of this boot is not closed as lapsed, its end is replaced in one step.
#[tokio::test]
async fn p6_a_forward_step_of_the_wall_clock_makes_no_owner_of_this_boot_lapsed() {
    let bench = Bench::new();
    let (_, before, _) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    bench.rows.time.set_wall(bench.rows.clock.millis().0 + 10 * LEASE_MS);
    let (_, after, session_present) = bench.accept(&bench.input("c", 3_600, None)).await.unwrap();
    assert!(session_present);
    assert_eq!(after.revision, before.revision + 1, "only the Connect was committed");
}

/// A disconnect after the lease end of the monotonic clock is late, wherever the wall clock stands.
#[tokio::test]
async fn p6_a_disconnect_after_the_lease_is_recorded_at_the_lease_end() {
    let bench = Bench::new();
    let input = bench.input("c", 3_600, Some(will(60)));
    let (_, row, _) = bench.accept(&input).await.unwrap();
    let lease_until = bench.rows.read(&row.owner.key).lease_until.unwrap();
    bench.rows.time.advance_ms(LEASE_MS + 5_000);
    bench.eof(input.link, true);
    eventually("the end is recorded", || bench.disconnects.pending() == 0).await;
    let will = bench.rows.last_will("c").unwrap();
    assert_eq!((will.stage, will.disconnected_at), (WillStage::Waiting, Some(lease_until)));
}

/// Owner spec §7.1: a CONNECT whose time is over disturbs nobody and proposes nothing.
#[tokio::test]
async fn a_connect_after_its_deadline_has_no_effect() {
    let bench = Bench::new();
    let first = bench.input("c", 3_600, None);
    let (old, row, _) = bench.accept(&first).await.unwrap();
    let mut late = bench.input("c", 3_600, None);
    late.deadline = bench.rows.clock.tick();
    assert_eq!(bench.accept(&late).await.unwrap_err(), ConnectError::Deadline);
    assert!(bench.is_open(first.link) && !old.is_fenced());
    assert_eq!(bench.notices(first.link), []);
    assert_eq!(bench.rows.row("c").unwrap(), row);
    assert_eq!(bench.proposals.load(Ordering::SeqCst), 1);
}

/// The same when time passes before the reservation.
#[tokio::test]
async fn a_connect_that_is_late_before_its_reservation_proposes_nothing() {
    let bench = Bench::new();
    let input = bench.input("c", 3_600, None);
    let late = bench
        .connect(&input, &|| {
            bench.rows.time.advance_ms(6_000);
            true
        })
        .await;
    assert_eq!(late.unwrap_err(), ConnectError::Deadline);
    assert_eq!(bench.proposals.load(Ordering::SeqCst), 0);
    assert_eq!(bench.owners.snapshot().held, 0);
}

/// [MQTT-3.14.2-2]: an expiry that the rows refuse is ignored; the end itself is recorded, and the DISCONNECT cancels the Will.
#[tokio::test]
async fn an_illegal_expiry_of_a_disconnect_does_not_lose_its_end() {
    use broker::usecase::DisconnectInput;

    let bench = Bench::new();
    let input = bench.input("c", 0, Some(will(0)));
    bench.accept(&input).await.unwrap();
    let guard = bench.sockets.guards.lock().unwrap().remove(&input.link).unwrap();
    let seen = DisconnectInput::seen_now(&bench.rows.clock, true);
    guard.closed(DisconnectInput { expiry_sec: Some(60), ..seen });
    assert_eq!(bench.disconnects.pending(), 0);
    assert_eq!(bench.rows.last_will("c"), None);
    assert!(bench.rows.row("c").is_none_or(|row| matches!(row.state, SessionState::Ended { .. })));
}

/// [MQTT-3.1.2-8]: a connection that never got its CONNACK leaves no Will.
#[tokio::test]
async fn a_connect_that_was_never_answered_fires_no_will() {
    let bench = Bench::new();
    let input = bench.input("c", 3_600, Some(will(0)));
    bench.accept(&input).await.unwrap();
    bench.sockets.guards.lock().unwrap().remove(&input.link).unwrap().refused();
    assert_eq!(bench.disconnects.pending(), 0);
    assert_eq!(bench.rows.last_will("c"), None);
    assert!(matches!(bench.rows.row("c").unwrap().state, SessionState::Offline { .. }));
}
