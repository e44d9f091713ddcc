//! The short form of `make chaos`: one round of two faults with a fixed seed, where namespaces can be made.

use std::time::Duration;

use tests::chaos::{Fault, Plan, missing, run};

/// P1 to P8 under kill -9 and a partition, with the histories of all clients.
#[test]
fn a_round_of_chaos_breaks_no_promise() {
    if let Some(why) = missing() {
        println!("SKIPPED: the namespaced suite cannot run here: {why}");
        eprintln!("SKIPPED: the namespaced suite cannot run here: {why}");
        return;
    }
    let plan = Plan {
        seed: 1,
        time: Duration::from_secs(60),
        rounds_max: 1,
        faults: 2,
        rate: 30,
        only: vec![Fault::Kill, Fault::Partition],
    };
    let outcome = run(&plan);
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    assert_eq!((outcome.rounds, outcome.faults), (1, 2));
}
