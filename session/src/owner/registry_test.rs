//! The registry's promises one by one: owner spec Appendix A, boot lease, sweeper, uncertainty (P1, P2, P3, P9, P10).

use super::fixture::{Caller, Socket, active, at, claim, closed, options, pending};
use super::*;

fn registry(change: impl FnOnce(&mut Options)) -> Registry {
    let mut options = options();
    change(&mut options);
    Registry::new(options).expect("valid options")
}

/// Owner spec §2.1: each bound.
#[test]
fn options_are_checked() {
    let refused = |change: fn(&mut Options)| {
        let mut options = options();
        change(&mut options);
        assert_eq!(Registry::new(options).err(), Some(OwnerError::Invalid));
    };
    refused(|options| options.node_id = 0);
    refused(|options| options.boot_id = Arc::from(" "));
    refused(|options| options.boot_id = "b".repeat(129).into());
    refused(|options| options.capacity = 0);
    refused(|options| options.capacity = 1_000_001);
    refused(|options| options.operations_max = 0);
    refused(|options| options.operations_max = 1_025);
    refused(|options| options.pending_timeout_ms = 0);
    refused(|options| options.lease_max_ms = 60_001);
    refused(|options| options.close_retry_ms = 0);
}

#[test]
fn claims_are_checked() {
    let registry = registry(|_| {});
    let refused = |change: fn(&mut Claim)| {
        let mut claim = claim("c");
        change(&mut claim);
        let reserved = registry.reserve(at(0), claim, Arc::new(Socket::default()));
        assert_eq!(reserved.err(), Some(OwnerError::Invalid));
    };
    refused(|claim| claim.key.client_id = Arc::from(""));
    refused(|claim| claim.key.namespace = Arc::from("a\0"));
    refused(|claim| claim.uid = Arc::from(""));
    refused(|claim| claim.session_generation = 0);
    refused(|claim| claim.owner_generation = 0);
    assert_eq!(registry.snapshot(), Snapshot::default());
}

/// Appendix A.1: admission and leases of one owner.
#[test]
fn a1_admission_and_leases() {
    let registry = registry(|options| options.operations_max = 1);
    let (entry, _socket) = pending(&registry, at(0));
    let owner = entry.owner();
    assert_eq!(registry.begin(at(0), &entry).err(), Some(OwnerError::Fenced));
    assert_eq!(registry.activate(at(0), owner, 0, at(500)), Err(OwnerError::Invalid));
    assert_eq!(registry.activate(at(0), owner, 1, at(0)), Err(OwnerError::Invalid));
    assert_eq!(registry.activate(at(0), owner, 1, at(60_001)), Err(OwnerError::Invalid));
    assert_eq!(registry.renew(at(0), owner, 1, at(500)), Err(OwnerError::Fenced));
    assert_eq!(registry.activate(at(0), owner, 1, at(500)), Ok(()));
    assert_eq!(registry.activate(at(1), owner, 1, at(500)), Ok(()), "the exact retry changes nothing");
    assert_eq!(registry.activate(at(1), owner, 1, at(501)), Err(OwnerError::Fenced));
    let scope = registry.begin(at(1), &entry).expect("an active owner admits");
    assert_eq!(registry.begin(at(1), &entry).err(), Some(OwnerError::Limit));
    scope.done();
    assert_eq!(registry.snapshot().operations, 0);
    assert_eq!(registry.renew(at(1), owner, 1, at(600)), Err(OwnerError::Fenced));
    assert_eq!(registry.renew(at(1), owner, 2, at(600)), Ok(()));
    assert!(registry.begin(at(599), &entry).is_ok());
    assert_eq!(registry.begin(at(600), &entry).err(), Some(OwnerError::Fenced));
    assert_eq!(registry.renew(at(599), owner, 3, at(900)), Err(OwnerError::Fenced), "a fence is for ever");
    assert!(entry.is_fenced());
    closed(&registry, at(600), &entry);
    assert_eq!(registry.quiesce(at(600), owner, None), Ok(Quiesce::Proved));
    assert_eq!(registry.quiesce(at(600), owner, None), Ok(Quiesce::Proved));
    assert_eq!(registry.activate(at(600), owner, 4, at(900)), Err(OwnerError::Fenced));
}

/// Appendix A.1, owner spec §2.3: an owner that differs in one field is not ours.
#[test]
fn a1_every_field_of_the_owner_counts() {
    let registry = registry(|_| {});
    let (entry, socket) = active(&registry, at(0), at(500));
    let differs = |change: fn(&mut Owner), expected: OwnerError| {
        let mut owner = entry.owner().clone();
        change(&mut owner);
        assert_eq!(registry.quiesce(at(1), &owner, None), Err(expected), "{owner:?}");
        assert_eq!(registry.fence(at(1), &owner), Err(expected));
        assert_eq!(registry.renew(at(1), &owner, 2, at(600)), Err(expected));
        registry.transport_closed(at(1), &owner, CloseOutcome::Closed);
    };
    differs(|owner| owner.key.client_id = Arc::from("d"), OwnerError::Unknown);
    differs(|owner| owner.key.namespace = Arc::from("other"), OwnerError::Unknown);
    differs(|owner| owner.session_generation = 2, OwnerError::Unknown);
    differs(|owner| owner.owner_generation = 2, OwnerError::Unknown);
    differs(|owner| owner.node_id = 8, OwnerError::Unknown);
    differs(|owner| owner.boot_id = Arc::from("other"), OwnerError::Unknown);
    differs(|owner| owner.connection_id = 2, OwnerError::Unknown);
    differs(|owner| owner.connection_id = 0, OwnerError::Invalid);
    differs(|owner| owner.key.client_id = Arc::from(""), OwnerError::Invalid);
    assert!(registry.begin(at(1), &entry).is_ok(), "none of them touched the owner");
    assert_eq!(socket.requests(), 0);
}

/// An entry admits in its own registry only.
#[test]
fn an_entry_of_another_registry_is_unknown() {
    let (mine, other) = (registry(|_| {}), registry(|_| {}));
    let (entry, _) = active(&mine, at(0), at(500));
    assert_eq!(other.begin(at(1), &entry).err(), Some(OwnerError::Unknown));
}

/// Appendix A.2, P2: concurrent callers share one attempt and wait for the scope; the next owner is another one.
#[test]
fn a2_callers_share_one_attempt_and_wait_for_the_scope() {
    let registry = registry(|_| {});
    let (entry, socket) = active(&registry, at(0), at(500));
    let scope = registry.begin(at(1), &entry).expect("active");
    let (first, first_waker) = Caller::new();
    let (second, second_waker) = Caller::new();
    assert_eq!(registry.quiesce(at(2), entry.owner(), Some(&first_waker)), Ok(Quiesce::Pending));
    assert_eq!(registry.quiesce(at(2), entry.owner(), Some(&second_waker)), Ok(Quiesce::Pending));
    assert_eq!(registry.quiesce(at(2), entry.owner(), Some(&second_waker)), Ok(Quiesce::Pending));
    assert_eq!(socket.requests(), 1);
    assert_eq!(scope.check(at(2)), Err(OwnerError::Fenced));
    closed(&registry, at(3), &entry);
    assert_eq!(registry.quiesce(at(3), entry.owner(), Some(&first_waker)), Ok(Quiesce::Pending));
    let (next, next_socket) = active(&registry, at(3), at(500));
    assert!(next.owner().connection_id > entry.owner().connection_id);
    scope.done();
    assert_eq!((first.wakes(), second.wakes()), (1, 1));
    assert_eq!(registry.quiesce(at(4), entry.owner(), Some(&first_waker)), Ok(Quiesce::Proved));
    assert_eq!(registry.quiesce(at(4), entry.owner(), Some(&second_waker)), Ok(Quiesce::Proved));
    assert!(registry.begin(at(4), &next).is_ok(), "the successor was not touched (P3)");
    assert_eq!(next_socket.requests(), 0);
    assert_eq!(registry.close_page(at(5)), 1);
    closed(&registry, at(5), &next);
    assert_eq!(registry.close_page(at(5)), 0);
}

/// Appendix A.3: a failed attempt keeps the fence and the capacity; who waited learns of it once; the next attempt may
/// succeed.
#[test]
fn a3_a_failed_close_keeps_the_owner() {
    let registry = registry(|options| options.capacity = 1);
    let (entry, socket) = active(&registry, at(0), at(500));
    let (caller, waker) = Caller::new();
    assert_eq!(registry.quiesce(at(1), entry.owner(), Some(&waker)), Ok(Quiesce::Pending));
    registry.transport_closed(at(2), entry.owner(), CloseOutcome::Failed);
    assert_eq!(caller.wakes(), 1);
    assert_eq!(registry.quiesce(at(2), entry.owner(), Some(&waker)), Err(OwnerError::Close));
    let reserved = registry.reserve(at(2), claim("d"), Arc::new(Socket::default()));
    assert_eq!(reserved.err(), Some(OwnerError::Limit));
    assert_eq!(registry.begin(at(2), &entry).err(), Some(OwnerError::Fenced));
    assert_eq!(registry.snapshot(), Snapshot { held: 1, closing: 1, deadlines: 1, ..Snapshot::default() });
    assert_eq!(registry.quiesce(at(2), entry.owner(), Some(&waker)), Ok(Quiesce::Pending));
    assert_eq!(socket.requests(), 2);
    closed(&registry, at(3), &entry);
    assert_eq!(registry.quiesce(at(3), entry.owner(), Some(&waker)), Ok(Quiesce::Proved));
    assert_eq!(registry.snapshot(), Snapshot::default());
}

/// Appendix A.3: a transport that panics costs an attempt, nothing else.
#[test]
fn a3_a_panic_of_the_transport_is_a_failed_attempt() {
    let registry = registry(|_| {});
    let socket = Arc::new(Socket { panics: true, ..Socket::default() });
    let entry = registry.reserve(at(0), claim("c"), socket).expect("room");
    let (caller, waker) = Caller::new();
    assert_eq!(registry.quiesce(at(0), entry.owner(), Some(&waker)), Ok(Quiesce::Pending));
    assert_eq!(caller.wakes(), 1);
    assert_eq!(registry.quiesce(at(0), entry.owner(), Some(&waker)), Err(OwnerError::Close));
    assert_eq!(registry.snapshot().closing, 1);
}

/// Appendix A.3 (a callback that never returns): an attempt whose outcome is not reported is repeated when its retry is
/// due, and not before.
#[test]
fn a3_a_lost_attempt_is_repeated() {
    let registry = registry(|_| {});
    let (entry, socket) = active(&registry, at(0), at(500));
    assert_eq!(registry.quiesce(at(0), entry.owner(), None), Ok(Quiesce::Pending));
    assert_eq!(registry.sweep(at(249), 256), Ok(0));
    assert_eq!(registry.quiesce(at(249), entry.owner(), None), Ok(Quiesce::Pending));
    assert_eq!(socket.requests(), 1);
    assert_eq!(registry.sweep(at(250), 256), Ok(1));
    assert_eq!(socket.requests(), 2);
}

/// Appendix A.4: one record per owner, fixed by renewals; the sweeper takes who is due, and nobody else.
#[test]
fn a4_one_record_per_owner() {
    let registry = registry(|_| {});
    let (renewed, renewed_socket) = active(&registry, at(0), at(3_000));
    let (orphan, orphan_socket) = pending(&registry, at(0));
    for revision in 2..101 {
        assert_eq!(registry.renew(at(0), renewed.owner(), revision, at(3_000 + revision)), Ok(()));
    }
    assert_eq!(registry.snapshot().deadlines, 2);
    assert_eq!(registry.next_deadline(), Some(at(1_000)));
    assert_eq!(registry.sweep(at(1_500), 1), Ok(1));
    assert_eq!((orphan_socket.requests(), renewed_socket.requests()), (1, 0));
    closed(&registry, at(1_500), &orphan);
    assert!(registry.begin(at(1_500), &renewed).is_ok());
    assert_eq!(registry.sweep(at(3_500), 1), Ok(1));
    closed(&registry, at(3_500), &renewed);
    assert_eq!(registry.snapshot(), Snapshot::default());
    assert_eq!(registry.sweep(at(3_500), 257), Err(OwnerError::Invalid));
    assert_eq!(registry.sweep(at(3_500), 0), Err(OwnerError::Invalid));
    assert_eq!(registry.close_page(at(3_500)), 0);
    let reserved = registry.reserve(at(3_500), claim("c"), Arc::new(Socket::default()));
    assert_eq!(reserved.err(), Some(OwnerError::Stopped));
}

/// Appendix A.5: a caller that goes away ends no operation; neither does closing.
#[test]
fn a5_only_done_ends_an_operation() {
    let registry = registry(|_| {});
    let (entry, _) = active(&registry, at(0), at(500));
    let scope = registry.begin(at(1), &entry).expect("active");
    let (_, waker) = Caller::new();
    assert_eq!(registry.quiesce(at(1), entry.owner(), Some(&waker)), Ok(Quiesce::Pending));
    drop(waker);
    closed(&registry, at(2), &entry);
    assert_eq!(registry.close_page(at(2)), 1);
    assert_eq!(registry.begin(at(2), &entry).err(), Some(OwnerError::Stopped));
    assert_eq!(scope.check(at(2)), Err(OwnerError::Stopped));
    assert_eq!(registry.retirement(), Err(OwnerError::Unknown));
    scope.done();
    assert_eq!(registry.close_page(at(2)), 0);
}

/// Appendix A.6: the user is pinned; the lease end is seen by `check` without a sweep.
#[test]
fn a6_check_sees_the_lease_end() {
    let registry = registry(|_| {});
    let (entry, _) = active(&registry, at(0), at(500));
    let scope = registry.begin(at(1), &entry).expect("active");
    assert_eq!(scope.entry().uid(), "alice");
    assert_eq!(scope.check(at(499)), Ok(()));
    assert_eq!(scope.check(at(500)), Err(OwnerError::Fenced));
    assert_eq!(scope.check(at(499)), Err(OwnerError::Fenced));
    assert_eq!((registry.snapshot().operations, registry.snapshot().closing), (1, 1));
}

/// Appendix A.7: what is uncertain is never proved; DESIGN §4: until a resolver proves it done or impossible.
#[test]
fn a7_uncertain_effects_pin_the_owner_until_resolved() {
    let registry = registry(|options| options.capacity = 1);
    let (entry, socket) = active(&registry, at(0), at(500));
    let mut scope = registry.begin(at(1), &entry).expect("active");
    scope.mark_uncertain(41).expect("held");
    scope.mark_uncertain(42).expect("held");
    assert_eq!(registry.begin(at(1), &entry).err(), Some(OwnerError::Fenced));
    let callers = [Caller::new(), Caller::new()];
    for (_, waker) in &callers {
        assert_eq!(registry.quiesce(at(1), entry.owner(), Some(waker)), Ok(Quiesce::Pending));
    }
    closed(&registry, at(2), &entry);
    scope.done();
    for (caller, waker) in &callers {
        assert_eq!(caller.wakes(), 1);
        assert_eq!(registry.quiesce(at(2), entry.owner(), Some(waker)), Err(OwnerError::Unknown));
    }
    let counts = Snapshot { held: 1, closing: 1, deadlines: 1, uncertain: 1, ..Snapshot::default() };
    assert_eq!(registry.snapshot(), counts);
    let reserved = registry.reserve(at(2), claim("d"), Arc::new(Socket::default()));
    assert_eq!(reserved.err(), Some(OwnerError::Limit));
    assert_eq!(registry.sweep(at(1_000), 256), Ok(1));
    assert_eq!((registry.snapshot(), socket.requests()), (counts, 1));
    assert_eq!(registry.close_page(at(60_000)), 1);
    assert_eq!(registry.retirement(), Err(OwnerError::Unknown));
    registry.resolve(at(60_000), entry.owner(), 41);
    registry.resolve(at(60_000), entry.owner(), 40);
    assert_eq!(registry.quiesce(at(60_000), entry.owner(), None), Err(OwnerError::Unknown));
    registry.resolve(at(60_000), entry.owner(), 42);
    assert_eq!(registry.quiesce(at(60_000), entry.owner(), None), Ok(Quiesce::Proved));
    assert_eq!(registry.snapshot(), Snapshot::default());
    assert!(registry.retirement().is_ok());
}

/// An uncertain owner is due for the sweeper at once.
#[test]
fn an_uncertain_owner_is_closed_without_waiting_for_its_lease() {
    let registry = registry(|_| {});
    let (entry, socket) = active(&registry, at(0), at(30_000));
    let mut scope = registry.begin(at(1), &entry).expect("active");
    scope.mark_uncertain(1).expect("held");
    assert_eq!(registry.sweep(at(1), 256), Ok(1));
    assert_eq!(socket.requests(), 1);
}

/// P9: a flood of uncertain effects is bounded and fails closed.
#[test]
fn too_many_uncertain_effects_cannot_be_resolved() {
    let registry = registry(|_| {});
    let (entry, _) = active(&registry, at(0), at(500));
    let mut scope = registry.begin(at(1), &entry).expect("active");
    for token in 0..2_000 {
        scope.mark_uncertain(token).expect("held");
    }
    scope.done();
    closed(&registry, at(1), &entry);
    for token in 0..2_000 {
        registry.resolve(at(1), entry.owner(), token);
    }
    assert_eq!(registry.quiesce(at(1), entry.owner(), None), Err(OwnerError::Unknown));
    assert_eq!(registry.snapshot().uncertain, 1);
}

/// P2: a peer that closed first is fenced by the report, and proved without any attempt.
#[test]
fn a_socket_closed_by_the_peer_needs_no_attempt() {
    let registry = registry(|_| {});
    for (entry, socket) in [active(&registry, at(0), at(500)), pending(&registry, at(0))] {
        closed(&registry, at(1), &entry);
        assert!(entry.is_fenced());
        assert_eq!(registry.quiesce(at(1), entry.owner(), None), Ok(Quiesce::Proved));
        assert_eq!(socket.requests(), 0);
    }
}

/// P1: a fence alone proves nothing.
#[test]
fn a_fence_is_no_proof() {
    let registry = registry(|_| {});
    let (entry, socket) = active(&registry, at(0), at(500));
    assert_eq!(registry.fence(at(1), entry.owner()), Ok(()));
    assert_eq!((registry.snapshot().closing, socket.requests()), (1, 0));
    assert_eq!(registry.quiesce(at(1), entry.owner(), None), Ok(Quiesce::Pending));
    closed(&registry, at(1), &entry);
    assert_eq!(registry.fence(at(2), entry.owner()), Ok(()), "retired is Ok");
}

/// A late report of failure does not undo a close; a late report of a close ends a failed attempt.
#[test]
fn reports_may_come_late() {
    let registry = registry(|_| {});
    let (entry, _) = active(&registry, at(0), at(500));
    let scope = registry.begin(at(1), &entry).expect("active");
    registry.quiesce(at(1), entry.owner(), None).expect("ours");
    registry.transport_closed(at(2), entry.owner(), CloseOutcome::Failed);
    closed(&registry, at(3), &entry);
    registry.transport_closed(at(4), entry.owner(), CloseOutcome::Failed);
    scope.done();
    assert_eq!(registry.quiesce(at(5), entry.owner(), None), Ok(Quiesce::Proved));
}

/// DESIGN §4, boot lease: one renewal moves every active owner, pending ones not.
#[test]
fn the_boot_lease_moves_all_active_owners() {
    let registry = registry(|_| {});
    let owners = [active(&registry, at(0), at(500)), active(&registry, at(0), at(600))];
    let (orphan, _) = pending(&registry, at(0));
    assert_eq!(registry.renew_boot(at(0), 1, at(0)), Err(OwnerError::Invalid));
    assert_eq!(registry.renew_boot(at(0), 1, at(60_001)), Err(OwnerError::Invalid));
    assert_eq!(registry.renew_boot(at(0), 1, at(30_000)), Ok(()));
    assert_eq!(registry.renew_boot(at(0), 1, at(40_000)), Err(OwnerError::Invalid));
    assert_eq!(registry.sweep(at(20_000), 256), Ok(1));
    assert!(orphan.is_fenced());
    for (entry, _) in &owners {
        assert_eq!(entry.deadline(), at(30_000));
        assert!(registry.begin(at(29_999), entry).is_ok());
    }
    assert_eq!(registry.renew_boot(at(29_999), 2, at(59_000)), Ok(()));
    let (late, _) = active(&registry, at(30_000), at(30_500));
    assert_eq!(late.deadline(), at(59_000));
    for (entry, _) in &owners {
        assert!(registry.begin(at(58_999), entry).is_ok());
        assert_eq!(registry.begin(at(59_000), entry).err(), Some(OwnerError::Fenced));
    }
}

/// P1: a boot lease that is renewed too late revives nobody, looked at or not; owners to come are served again.
#[test]
fn a_late_boot_lease_revives_nobody() {
    let registry = registry(|_| {});
    let (own, _) = active(&registry, at(0), at(50_000));
    let (expired, _) = active(&registry, at(0), at(500));
    registry.renew_boot(at(0), 1, at(1_000)).expect("ahead");
    assert_eq!(registry.renew_boot(at(1_000), 2, at(31_000)), Ok(()));
    assert!(expired.is_fenced());
    assert_eq!(registry.begin(at(1_000), &expired).err(), Some(OwnerError::Fenced));
    assert!(registry.begin(at(1_000), &own).is_ok(), "its own lease lasts");
    let (next, _) = active(&registry, at(1_000), at(1_500));
    assert!(registry.begin(at(30_999), &next).is_ok());
}

/// A shorter boot lease is obeyed, by admission and by the sweeper.
#[test]
fn a_shorter_boot_lease_is_obeyed() {
    let registry = registry(|_| {});
    let (entry, _) = active(&registry, at(0), at(500));
    registry.renew_boot(at(0), 1, at(30_000)).expect("ahead");
    assert_eq!(registry.sweep(at(1_000), 256), Ok(0));
    assert_eq!(registry.next_deadline(), Some(at(30_000)), "the record was corrected when it surfaced");
    registry.renew_boot(at(1_000), 2, at(5_000)).expect("ahead");
    assert_eq!(registry.next_deadline(), Some(at(5_000)));
    assert_eq!(registry.begin(at(5_000), &entry).err(), Some(OwnerError::Fenced));
}

/// P1: nobody executes behind the end of what the boot holds elsewhere, neither under the boot lease nor under a lease of his own.
#[test]
fn nobody_executes_behind_what_the_boot_holds() {
    let registry = registry(|_| {});
    registry.renew_boot(at(0), 1, at(30_000)).expect("ahead");
    let (entry, _) = active(&registry, at(0), at(20_000));
    registry.hold(at(0), at(12_000));
    assert_eq!(registry.next_deadline(), Some(at(12_000)), "the sweeper looks in time");
    registry.hold(at(3_000), at(15_000));
    let scope = registry.begin(at(14_999), &entry).expect("held");
    assert!(entry.may_write(at(14_999)) && !entry.may_write(at(15_000)));
    assert_eq!(scope.check(at(15_000)), Err(OwnerError::Fenced));
}

/// P1: what is held again serves the owners to come; those of before are over, looked at or not, and so is everybody when it is lost early.
#[test]
fn what_is_held_again_revives_nobody() {
    let registry = registry(|_| {});
    registry.renew_boot(at(0), 1, at(30_000)).expect("ahead");
    let (old, _) = active(&registry, at(0), at(20_000));
    registry.hold(at(0), at(1_000));
    registry.hold(at(1_000), at(9_000));
    assert!(old.is_fenced());
    let (lost, socket) = active(&registry, at(1_000), at(20_000));
    registry.hold(at(2_000), at(2_000));
    assert!(lost.is_fenced() && !lost.may_write(at(2_000)));
    assert_eq!(registry.sweep(at(2_000), 256), Ok(2));
    assert_eq!(socket.requests(), 1);
    let (early, _) = pending(&registry, at(2_000));
    assert_eq!(registry.activate(at(2_001), early.owner(), 1, at(9_000)), Err(OwnerError::Invalid));
    registry.hold(at(2_002), at(9_000));
    assert_eq!(registry.activate(at(2_003), early.owner(), 1, at(9_000)), Ok(()), "it never executed before");
    assert!(registry.begin(at(8_999), &early).is_ok());
}

/// DESIGN §4, sweeper: who fails or is uncertain backs off alone, 250 ms doubling to 10 s, and stops nobody's turn.
#[test]
fn a_failing_owner_backs_off_alone() {
    let registry = registry(|_| {});
    let (failing, socket) = pending(&registry, at(0));
    let mut due = 1_000;
    for pause in [250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
        assert_eq!(registry.sweep(at(due - 1), 256), Ok(0));
        assert_eq!(registry.sweep(at(due), 256), Ok(1));
        registry.transport_closed(at(due), failing.owner(), CloseOutcome::Failed);
        due += pause;
    }
    assert_eq!(socket.requests(), 8);
    let others: Vec<_> = (0..5).map(|_| pending(&registry, at(due - 1_000))).collect();
    assert_eq!(registry.sweep(at(due), 256), Ok(6));
    assert!(others.iter().all(|(_, socket)| socket.requests() == 1));
}

/// Scenario 17.8 of the owner spec: a thousand uncertain and failing owners do not delay a healthy one.
#[test]
fn the_sweeper_has_no_head_of_line_blocking() {
    let registry = registry(|options| options.capacity = 2_000);
    for _ in 0..500 {
        let (entry, _) = active(&registry, at(0), at(500));
        registry.begin(at(0), &entry).expect("active").mark_uncertain(1).expect("held");
        let _never_closed = active(&registry, at(0), at(500));
    }
    let (healthy, socket) = active(&registry, at(0), at(501));
    let mut pages = 0;
    while registry.sweep(at(501), 256) == Ok(256) {
        pages += 1;
    }
    assert_eq!((pages, socket.requests()), (3, 1));
    closed(&registry, at(501), &healthy);
    assert_eq!(registry.quiesce(at(501), healthy.owner(), None), Ok(Quiesce::Proved));
    assert_eq!(registry.snapshot().deadlines, 1_000);
}

/// Owner spec §2.4 `Retirement`: stopped and empty, and it covers every id issued.
#[test]
fn a_retirement_covers_every_id() {
    let registry = registry(|_| {});
    assert_eq!(registry.retirement(), Err(OwnerError::Unknown));
    let owners = [active(&registry, at(0), at(500)), pending(&registry, at(0))];
    registry.stop_admission(at(1));
    assert!(owners.iter().all(|(entry, _)| entry.is_fenced()));
    assert_eq!(registry.renew_boot(at(1), 1, at(500)), Err(OwnerError::Stopped));
    assert_eq!(registry.activate(at(1), owners[1].0.owner(), 1, at(500)), Err(OwnerError::Stopped));
    assert_eq!(registry.close_page(at(1)), 2);
    assert_eq!(registry.retirement(), Err(OwnerError::Unknown));
    for (entry, socket) in &owners {
        assert_eq!(socket.requests(), 1);
        closed(&registry, at(1), entry);
    }
    let expected = Retirement { node_id: 7, boot_id: options().boot_id, connection_id_max: 2 };
    assert_eq!(registry.retirement(), Ok(expected));
}

/// P9: who may wait for one owner is bounded; the dead among them leave at the sweeper's visit.
#[test]
fn waiters_are_bounded() {
    let registry = registry(|_| {});
    let (entry, _) = active(&registry, at(0), at(500));
    let callers: Vec<_> = (0..256).map(|_| Caller::new()).collect();
    for (_, waker) in &callers {
        assert_eq!(registry.quiesce(at(0), entry.owner(), Some(waker)), Ok(Quiesce::Pending));
    }
    let (_, waker) = Caller::new();
    assert_eq!(registry.quiesce(at(0), entry.owner(), Some(&waker)), Err(OwnerError::Limit));
    assert_eq!(registry.sweep(at(250), 256), Ok(1));
    assert!(callers.iter().all(|(caller, _)| caller.wakes() == 1));
    assert_eq!(registry.quiesce(at(250), entry.owner(), Some(&waker)), Ok(Quiesce::Pending));
}

/// A scope may outlive its registry, and a registry that is dropped frees its entries.
#[test]
fn a_dropped_registry_leaves_no_circle() {
    let registry = registry(|_| {});
    let (entry, socket) = active(&registry, at(0), at(500));
    let mut scope = registry.begin(at(0), &entry).expect("active");
    drop(registry);
    assert_eq!(scope.mark_uncertain(1), Err(OwnerError::Fenced));
    drop(scope);
    assert_eq!(Arc::strong_count(&entry), 1);
    assert_eq!(Arc::strong_count(&socket), 1);
}

/// P1, DESIGN §7: the socket writer asks before each write. Behind the lease end nothing leaves, also for an owner that was fenced before
/// and for one that the sweeper has not visited; a renewal of the boot counts.
#[test]
fn p1_nothing_is_written_behind_the_lease_end() {
    let registry = registry(|_| {});
    let (entry, _socket) = active(&registry, at(0), at(500));
    assert!(entry.may_write(at(499)) && !entry.may_write(at(500)));
    registry.renew_boot(at(400), 1, at(900)).expect("in time");
    registry.fence(at(450), entry.owner()).expect("ours");
    assert!(entry.may_write(at(899)), "a fenced owner may still say why it closes");
    assert!(!entry.may_write(at(900)));
}

/// P1: a boot that learns that it was retired writes nothing more, whatever its lease said, and never again.
#[test]
fn p1_a_retired_boot_writes_nothing_more() {
    let registry = registry(|_| {});
    registry.renew_boot(at(0), 1, at(30_000)).expect("in time");
    let (entry, _socket) = active(&registry, at(0), at(20_000));
    registry.expire(at(100));
    assert!(!entry.may_write(at(100)));
    assert_eq!(registry.begin(at(100), &entry).err(), Some(OwnerError::Stopped));
    assert_eq!(registry.renew_boot(at(101), 2, at(30_000)), Err(OwnerError::Stopped));
    assert!(!entry.may_write(at(101)));
    assert_eq!(registry.sweep(at(101), 16), Ok(1), "its socket is asked to close at once");
}
