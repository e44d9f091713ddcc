//! A checker that cannot fail is no checker: each deliberate breakage of the simulation is caught within a few seeds, and by the promise
//! that it breaks (`tests/mutants/README.md`).

use tests::sim::mutant::Mutant;
use tests::sim::{Plan, run};

/// Seeds that a breakage may need.
const SEEDS: u64 = 60;

/// The promises that a breakage may break first.
fn promises(mutant: Mutant) -> &'static [&'static str] {
    match mutant {
        // An End rests on the same proof as a takeover.
        Mutant::SkipProofAfterLease | Mutant::SkipProofOnError => &["P2", "P3"],
        Mutant::TakeoverWithoutDrain => &["P2", "P3"],
        Mutant::FollowSuccessor => &["P3"],
        Mutant::AckBeforeCommit | Mutant::AckBeforeSync | Mutant::SkipUnsettled => &["P4"],
        Mutant::WillFromStaleOwner | Mutant::WillTwice | Mutant::EndLosesWill => &["P6"],
        Mutant::PacketIdOfConnection
        | Mutant::ResendWithoutDup
        | Mutant::AppendWithoutStamp
        | Mutant::PassLostBatch => &["P5"],
        Mutant::EndWithoutProof => &["P3"],
        Mutant::ApplyReadsClock => &["L1"],
        Mutant::CopiedDirectory
        | Mutant::AttestWithoutWait
        | Mutant::AttestByWallClock
        | Mutant::LeaseFromCommit => &["P1"],
        Mutant::AnyUser => &["P8"],
    }
}

/// Where to begin: a breakage that few runs meet is met soon from here.
fn first(mutant: Mutant) -> u64 {
    match mutant {
        Mutant::AttestByWallClock | Mutant::PassLostBatch => 6,
        Mutant::FollowSuccessor => 17,
        _ => 1,
    }
}

fn caught(mutant: Mutant) {
    let first = first(mutant);
    for seed in first..first + SEEDS {
        if let Some(violation) = run(&Plan::new(seed).with(mutant)).violation {
            println!("{mutant:?}: seed {seed}: {violation}");
            let expected = promises(mutant);
            assert!(
                expected.iter().any(|promise| violation.starts_with(promise)),
                "{mutant:?} was to break one of {expected:?}, not {violation}"
            );
            return;
        }
    }
    panic!("{mutant:?} is not caught within {SEEDS} seeds");
}

macro_rules! caught {
    ($($name:ident: $mutant:ident,)*) => {
        $(#[test]
        fn $name() {
            caught(Mutant::$mutant);
        })*

        #[test]
        fn every_mutant_has_its_test() {
            assert_eq!([$(Mutant::$mutant),*].len(), Mutant::ALL.len());
        }
    };
}

caught! {
    p2_skip_proof_after_lease: SkipProofAfterLease,
    p2_skip_proof_on_error: SkipProofOnError,
    p3_follow_successor: FollowSuccessor,
    p2_takeover_without_drain: TakeoverWithoutDrain,
    p4_ack_before_commit: AckBeforeCommit,
    p6_will_from_stale_owner: WillFromStaleOwner,
    p6_will_twice: WillTwice,
    p5_packet_id_of_connection: PacketIdOfConnection,
    p5_resend_without_dup: ResendWithoutDup,
    p5_append_without_stamp: AppendWithoutStamp,
    p4_skip_unsettled: SkipUnsettled,
    p6_end_loses_will: EndLosesWill,
    p3_end_without_proof: EndWithoutProof,
    l1_apply_reads_clock: ApplyReadsClock,
    p1_copied_directory: CopiedDirectory,
    p1_attest_without_wait: AttestWithoutWait,
    p1_attest_by_wall_clock: AttestByWallClock,
    p5_pass_lost_batch: PassLostBatch,
    p8_any_user: AnyUser,
}
