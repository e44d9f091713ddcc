//! A checker that cannot fail is no checker: each deliberate breakage of the simulation is caught, by the promise that it breaks. The seeds
//! are fixed; `tests/mutants/README.md` names them, and how to find others when a change of the simulation has made them other runs.

use tests::sim::mutant::Mutant;
use tests::sim::{Plan, run};

const README: &str = include_str!("../mutants/README.md");

/// The promises that a breakage may break first.
fn promises(mutant: Mutant) -> &'static [&'static str] {
    match mutant {
        // An End rests on the same proof as a takeover.
        Mutant::SkipProofAfterLease | Mutant::SkipProofOnError | Mutant::TakeoverWithoutDrain => {
            &["P2", "P3"]
        }
        Mutant::FollowSuccessor | Mutant::EndWithoutProof => &["P3"],
        Mutant::AckBeforeCommit | Mutant::AckBeforeSync | Mutant::SkipUnsettled => &["P4"],
        Mutant::PacketIdOfConnection
        | Mutant::ResendWithoutDup
        | Mutant::AppendWithoutStamp
        | Mutant::PassLostBatch
        | Mutant::ApplyLate => &["P5"],
        Mutant::WillFromStaleOwner | Mutant::WillByOwnTimer | Mutant::WillTwice | Mutant::EndLosesWill => {
            &["P6"]
        }
        Mutant::CopiedDirectory
        | Mutant::AttestWithoutWait
        | Mutant::AttestByWallClock
        | Mutant::LeaseFromCommit => &["P1"],
        Mutant::AnyUser => &["P8"],
        Mutant::ApplyReadsClock => &["L1"],
    }
}

fn is_caught(mutant: Mutant, seed: u64) {
    let report = run(&Plan::new(seed).with(mutant));
    let violation =
        report.violation.clone().unwrap_or_else(|| panic!("{mutant:?} is not caught by seed {seed}"));
    let expected = promises(mutant);
    let meant = expected.iter().any(|promise| violation.starts_with(promise));
    assert!(meant, "{mutant:?} was to break one of {expected:?}\n{}", report.text());
}

macro_rules! caught {
    ($($name:ident: $mutant:ident by $seed:literal,)*) => {
        $(#[test]
        fn $name() {
            is_caught(Mutant::$mutant, $seed);
        })*

        const CAUGHT: &[(Mutant, u64)] = &[$((Mutant::$mutant, $seed)),*];
    };
}

caught! {
    p1_copied_directory: CopiedDirectory by 8,
    p1_attest_without_wait: AttestWithoutWait by 3,
    p1_attest_by_wall_clock: AttestByWallClock by 3,
    p1_lease_from_commit: LeaseFromCommit by 3,
    p2_skip_proof_after_lease: SkipProofAfterLease by 16,
    p2_skip_proof_on_error: SkipProofOnError by 2,
    p2_takeover_without_drain: TakeoverWithoutDrain by 1,
    p3_follow_successor: FollowSuccessor by 53,
    p3_end_without_proof: EndWithoutProof by 1,
    p4_ack_before_commit: AckBeforeCommit by 1,
    p4_ack_before_sync: AckBeforeSync by 1,
    p4_skip_unsettled: SkipUnsettled by 1,
    p5_packet_id_of_connection: PacketIdOfConnection by 1,
    p5_resend_without_dup: ResendWithoutDup by 1,
    p5_append_without_stamp: AppendWithoutStamp by 1,
    p5_pass_lost_batch: PassLostBatch by 24,
    p5_apply_late: ApplyLate by 77,
    p6_will_from_stale_owner: WillFromStaleOwner by 2,
    p6_will_by_own_timer: WillByOwnTimer by 5,
    p6_will_twice: WillTwice by 1,
    p6_end_loses_will: EndLosesWill by 1,
    p8_any_user: AnyUser by 1,
    l1_apply_reads_clock: ApplyReadsClock by 1,
}

#[test]
fn every_mutant_is_caught_and_listed() {
    for mutant in Mutant::ALL {
        let (_, seed) =
            CAUGHT.iter().find(|(caught, _)| *caught == mutant).expect("each mutant has its test");
        let row = README.lines().find(|line| line.contains(&format!("| `{mutant:?}` |")));
        let row = row.unwrap_or_else(|| panic!("{mutant:?} has no row in tests/mutants/README.md"));
        assert!(row.contains(&format!("seed {seed}:")), "{mutant:?} is caught by seed {seed}, not: {row}");
    }
}

/// What a seed says about a mutant, it says because of the mutant.
#[test]
fn the_same_seeds_break_nothing_without_their_mutants() {
    let seeds: std::collections::BTreeSet<u64> = CAUGHT.iter().map(|(_, seed)| *seed).collect();
    for seed in seeds {
        let report = run(&Plan::new(seed));
        assert!(report.violation.is_none(), "{}", report.text());
    }
}
