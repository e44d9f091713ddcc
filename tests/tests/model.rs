//! The ownership protocol, in every order of its steps: P1, P2, P3 and P6 hold, and each breakage of it is found.

use tests::model::{Breakage, Ownership, explore};

/// More states than any of these models has.
const STATES_MAX: usize = 6_000_000;

#[test]
fn p1_p2_p6_hold_with_crash_restart_stop_and_a_mistaken_attestation() {
    let model = Ownership { crashes_max: 1, stops_max: 1, renewals_max: 1, ..Ownership::default() };
    let found = explore(&model, STATES_MAX);
    println!("{} states, {} steps", found.states, found.steps);
    assert!(found.violation.is_none(), "{:#?}", found.violation);
    assert!(found.states > 10_000, "the model is not trivial: {}", found.states);
}

#[test]
fn p3_holds_with_an_end_beside_takeovers() {
    let model = Ownership { with_end: true, crashes_max: 1, ..Ownership::default() };
    let found = explore(&model, STATES_MAX);
    println!("{} states, {} steps", found.states, found.steps);
    assert!(found.violation.is_none(), "{:#?}", found.violation);
}

/// A model that cannot fail proves nothing: each breakage has a way to break its promise.
#[test]
fn every_breakage_is_found() {
    let table = [
        (Breakage::SkipProofAfterLease, "P2"),
        (Breakage::FollowSuccessor, "P3: a successor was touched"),
        (Breakage::TakeoverWithoutDrain, "P1"),
        (Breakage::AttestWithoutWait, "P1"),
        (Breakage::CopiedDirectory, "P1"),
        (Breakage::WillFromStaleOwner, "P6: while its owner may serve"),
        (Breakage::WillWithoutStamp, "P6: twice"),
        (Breakage::CommitWithoutCompare, "P1"),
        (Breakage::EndWithoutProof, "P3"),
        (Breakage::LeaseFromCommit, "P1"),
    ];
    for (breakage, promise) in table {
        let with_end = breakage == Breakage::EndWithoutProof;
        let model = Ownership {
            breakage: Some(breakage),
            with_end,
            crashes_max: u8::from(!with_end),
            stops_max: u8::from(!with_end),
            renewals_max: u8::from(breakage == Breakage::LeaseFromCommit),
        };
        let found = explore(&model, STATES_MAX);
        let (broken, way) = found.violation.unwrap_or_else(|| panic!("{breakage:?} is not found"));
        println!("{breakage:?}: {broken} after {} steps, {} states", way.len(), found.states);
        assert!(broken.starts_with(&promise[..2]), "{breakage:?} breaks {broken}, not {promise}: {way:?}");
    }
}
