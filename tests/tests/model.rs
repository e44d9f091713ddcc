//! The ownership protocol, in every order of its steps: P1, P2, P3 and P6 hold, and each breakage of it is found.
//!
//! The small models end within seconds in every `make test`. `make model` explores more faults at once (`EXACTMQ_MODEL=large`).

use tests::model::{Breakage, Ownership, explore};

/// More states than any of these models has.
const STATES_MAX: usize = 8_000_000;

/// Two nodes, three CONNECTs of one session, and this many faults; every reachable state is looked at.
fn holds(model: &Ownership) {
    let found = explore(model, STATES_MAX);
    println!("{model:?}: {} states, {} steps", found.states, found.steps);
    assert!(found.violation.is_none(), "{:#?}", found.violation);
    assert!(found.states > 10_000, "the model is not trivial: {}", found.states);
}

fn large() -> bool {
    std::env::var("EXACTMQ_MODEL").is_ok_and(|size| size == "large")
}

#[test]
fn p1_p2_p6_hold_with_a_crash_and_a_restart() {
    holds(&Ownership { crashes_max: 1, ..Ownership::default() });
}

/// The attestation may be wrong: the node is only stopped, and goes on later, with a renewal under way.
#[test]
fn p1_p2_p6_hold_with_a_stop_a_renewal_and_a_mistaken_attestation() {
    holds(&Ownership { stops_max: 1, renewals_max: 1, ..Ownership::default() });
}

#[test]
fn p3_holds_with_an_end_beside_takeovers() {
    holds(&Ownership { with_end: true, ..Ownership::default() });
}

/// All faults in one run, and an End beside them.
#[test]
fn p1_p2_p3_p6_hold_with_more_faults() {
    if large() {
        holds(&Ownership { crashes_max: 1, stops_max: 1, renewals_max: 1, ..Ownership::default() });
        holds(&Ownership { with_end: true, crashes_max: 1, stops_max: 1, ..Ownership::default() });
    }
}

/// A model that cannot fail proves nothing: each breakage has a way to break each promise that is beside it.
#[test]
fn every_breakage_is_found() {
    let table: [(Breakage, &[&'static str]); 10] = [
        (Breakage::SkipProofAfterLease, &["P2"]),
        (Breakage::FollowSuccessor, &["P3: a successor was touched"]),
        (Breakage::TakeoverWithoutDrain, &["P1", "P2"]),
        (Breakage::AttestWithoutWait, &["P1", "P6: while its owner may serve"]),
        (Breakage::CopiedDirectory, &["P1", "P6: while its owner may serve"]),
        (Breakage::WillFromStaleOwner, &["P6: while its owner may serve"]),
        (Breakage::WillWithoutStamp, &["P6: twice"]),
        (Breakage::CommitWithoutCompare, &["P1"]),
        (Breakage::EndWithoutProof, &["P3"]),
        (Breakage::LeaseFromCommit, &["P1", "P6: while its owner may serve"]),
    ];
    for (breakage, promises) in table {
        for promise in promises {
            let model = Ownership {
                breakage: Some(breakage),
                only: Some(promise),
                with_end: breakage == Breakage::EndWithoutProof,
                crashes_max: 0,
                stops_max: u8::from(breakage == Breakage::WillFromStaleOwner),
                renewals_max: u8::from(breakage == Breakage::LeaseFromCommit),
            };
            let found = explore(&model, STATES_MAX);
            let (_, way) = found.violation.unwrap_or_else(|| panic!("{breakage:?} does not break {promise}"));
            println!("{breakage:?}: {promise} after {} steps, {} states: {way:?}", way.len(), found.states);
        }
    }
}
