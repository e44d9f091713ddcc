//! R-04..R-07, H-17, H-20, H-22: what the lease table promises.

use proptest::prelude::*;

use super::*;

fn apply(table: &mut LeaseTable, command: LeaseCommand) -> Result<LeaseOutcome, LeaseRefusal> {
    table.apply(&command, &mut Vec::new()).outcome
}

fn grant(table: &mut LeaseTable, ttl_ms: u64) -> u64 {
    match apply(table, LeaseCommand::Grant { ttl_ms }) {
        Ok(LeaseOutcome::Granted { lease }) => lease,
        other => panic!("{other:?}"),
    }
}

fn beat(table: &mut LeaseTable, by: u64) {
    let from = table.clock();
    assert!(apply(table, LeaseCommand::Beat { from, to: from + by }).is_ok());
}

fn expire(table: &mut LeaseTable) -> Vec<u64> {
    let mut ended = Vec::new();
    let reply = table.apply(&LeaseCommand::Expire { limit: 100 }, &mut ended);
    assert!(matches!(reply.outcome, Ok(LeaseOutcome::Expired { .. })));
    ended.iter().map(|ended| ended.lease).collect()
}

/// A lease ends one TTL and the grace after the last keepalive, not before.
#[test]
fn a_lease_runs_its_ttl_from_the_last_keepalive() {
    let mut table = LeaseTable::default();
    let lease = grant(&mut table, 10_000);
    beat(&mut table, 9_000);
    let kept = apply(&mut table, LeaseCommand::Keepalive { leases: vec![lease, 99] });
    assert_eq!(kept, Ok(LeaseOutcome::Kept { left_ms: vec![Some(10_000), None] }));
    beat(&mut table, 10_000 + GRACE_MS - 1);
    assert!(expire(&mut table).is_empty());
    beat(&mut table, 1);
    assert_eq!(expire(&mut table), [lease]);
    // H-20: what expired stays gone, whatever comes late.
    let kept = apply(&mut table, LeaseCommand::Keepalive { leases: vec![lease] });
    assert_eq!(kept, Ok(LeaseOutcome::Kept { left_ms: vec![None] }));
    assert_eq!(apply(&mut table, LeaseCommand::SetTtl { lease, ttl_ms: 5_000 }), Err(LeaseRefusal::Gone));
}

/// Two proposers that measured the same span count it once: lease time is never ahead of what passed.
#[test]
fn a_span_of_time_is_counted_once() {
    let mut table = LeaseTable::default();
    for _ in 0..2 {
        assert!(apply(&mut table, LeaseCommand::Beat { from: 0, to: 700 }).is_ok());
    }
    assert!(apply(&mut table, LeaseCommand::Beat { from: 0, to: 900 }).is_ok());
    assert!(apply(&mut table, LeaseCommand::Beat { from: 700, to: 600 }).is_ok());
    assert_eq!(table.clock(), 700);
}

/// Lease spec 15.4: an armed lease runs down; a keepalive that comes in time holds it again.
#[test]
fn an_armed_lease_runs_down_and_can_be_held_again() {
    let mut table = LeaseTable::default();
    let lease = grant(&mut table, 2_000);
    assert_eq!(apply(&mut table, LeaseCommand::Arm { lease, ttl_ms: 60_000 }), Ok(LeaseOutcome::Done));
    assert_eq!(table.state(lease), Some(LeaseState::Armed));
    beat(&mut table, 59_000);
    assert!(expire(&mut table).is_empty());
    assert!(apply(&mut table, LeaseCommand::Keepalive { leases: vec![lease] }).is_ok());
    assert_eq!(table.state(lease), Some(LeaseState::Held));
    beat(&mut table, 59_000);
    assert!(expire(&mut table).is_empty());
}

/// H-33: a lease that is delegated has no deadline, and its whole TTL once nothing holds it.
#[test]
fn a_delegated_lease_never_ends_by_itself() {
    let mut table = LeaseTable::default();
    let lease = table.grant(1_000, Protects::Channel(7)).expect("the TTL is allowed");
    table.delegate(lease);
    beat(&mut table, 1 << 40);
    assert!(expire(&mut table).is_empty());
    assert_eq!(table.next_deadline(), None);
    table.run_down(lease);
    beat(&mut table, 1_000 + GRACE_MS);
    let mut ended = Vec::new();
    table.apply(&LeaseCommand::Expire { limit: 1 }, &mut ended);
    assert_eq!(ended, [Ended { lease, protects: Protects::Channel(7) }]);
}

/// H-06, R-07: an id is never given out twice, also over a restart.
#[test]
fn ids_are_never_reused_over_a_restart() {
    let mut table = LeaseTable::default();
    let first = grant(&mut table, 1_000);
    assert!(apply(&mut table, LeaseCommand::Revoke { lease: first }).is_ok());
    let mut loaded = LeaseTable::default();
    loaded.load_meta(table.meta());
    assert!(grant(&mut loaded, 1_000) > first);
}

/// P10: a channel's own leases are not for callers; TTLs and batches have bounds.
#[test]
fn what_is_not_allowed_is_refused_by_type() {
    let mut table = LeaseTable::default();
    for ttl_ms in [0, TTL_MS_MIN - 1, TTL_MS_MAX + 1, u64::MAX] {
        assert_eq!(apply(&mut table, LeaseCommand::Grant { ttl_ms }), Err(LeaseRefusal::Ttl(ttl_ms)));
    }
    let own = table.grant(1_000, Protects::Payload(1)).expect("the TTL is allowed");
    for command in [
        LeaseCommand::Revoke { lease: own },
        LeaseCommand::Arm { lease: own, ttl_ms: 1_000 },
        LeaseCommand::SetTtl { lease: own, ttl_ms: 1_000 },
    ] {
        assert_eq!(apply(&mut table, command), Err(LeaseRefusal::NotYours));
    }
    let leases = vec![1; LEASES_AT_ONCE + 1];
    assert!(matches!(apply(&mut table, LeaseCommand::Keepalive { leases }), Err(LeaseRefusal::TooMany(_))));
}

/// Checklist 17 (H-20): expiry racing keepalive, both ways a hair apart: no lease is kept and then dead, none is immortal. 10^5 races
/// here, since builds with debug assertions run it; ten times as many show nothing else.
#[test]
fn checklist_17_expiry_and_keepalive_never_disagree() {
    let mut table = LeaseTable::default();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..100_000 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let lease = grant(&mut table, 1_000);
        beat(&mut table, 1_000 + GRACE_MS - 1 + (seed & 1));
        let keep = LeaseCommand::Keepalive { leases: vec![lease] };
        if seed & 2 == 0 {
            let kept = apply(&mut table, keep) == Ok(LeaseOutcome::Kept { left_ms: vec![Some(1_000)] });
            assert!(kept, "it was not expired yet, so it is kept");
            assert!(expire(&mut table).is_empty(), "kept and then dead");
            beat(&mut table, 1_000 + GRACE_MS);
            assert_eq!(expire(&mut table), [lease], "immortal");
        } else {
            let ended = expire(&mut table).len();
            assert_eq!(ended as u64, seed & 1);
            let kept = apply(&mut table, keep);
            assert_eq!(kept, Ok(LeaseOutcome::Kept { left_ms: vec![(ended == 0).then_some(1_000)] }));
            beat(&mut table, 1_000 + GRACE_MS);
            assert_eq!(expire(&mut table).len(), 1 - ended);
        }
    }
    assert!(table.is_empty());
}

fn command() -> impl Strategy<Value = LeaseCommand> {
    let lease = 1_u64..6;
    let ttl_ms = 1_000_u64..5_000;
    prop_oneof![
        (0_u64..20_000, 0_u64..3_000)
            .prop_map(|(from, by)| LeaseCommand::Beat { from: from / 100 * 100, to: from / 100 * 100 + by }),
        ttl_ms.clone().prop_map(|ttl_ms| LeaseCommand::Grant { ttl_ms }),
        proptest::collection::vec(1_u64..6, 0..3).prop_map(|leases| LeaseCommand::Keepalive { leases }),
        (lease.clone(), ttl_ms.clone()).prop_map(|(lease, ttl_ms)| LeaseCommand::SetTtl { lease, ttl_ms }),
        (lease.clone(), ttl_ms).prop_map(|(lease, ttl_ms)| LeaseCommand::Arm { lease, ttl_ms }),
        lease.prop_map(|lease| LeaseCommand::Revoke { lease }),
        Just(LeaseCommand::Expire { limit: 2 }),
    ]
}

proptest! {
    /// A table that was stored and loaded behaves as the one that was not.
    #[test]
    fn a_loaded_table_behaves_alike(before in proptest::collection::vec(command(), 0..40), after in proptest::collection::vec(command(), 0..40)) {
        let mut table = LeaseTable::default();
        for command in &before {
            table.apply(command, &mut Vec::new());
        }
        let mut loaded = LeaseTable::default();
        loaded.load_meta(table.meta());
        for (lease, row) in table.rows() {
            prop_assert!(loaded.load(lease, *row));
        }
        for command in &after {
            let (mut one, mut two) = (Vec::new(), Vec::new());
            prop_assert_eq!(table.apply(command, &mut one), loaded.apply(command, &mut two));
            prop_assert_eq!(one, two);
            prop_assert_eq!(table.next_deadline(), loaded.next_deadline());
        }
    }
}

/// Lease spec 15.10: the totals by state follow every change.
#[test]
fn the_totals_are_those_of_the_rows() {
    let mut table = LeaseTable::default();
    let stat = |held, armed, delegated| LeaseStat { held, armed, delegated };
    let leases = [grant(&mut table, 5_000), grant(&mut table, 5_000), grant(&mut table, 5_000)];
    assert_eq!(table.stat(), stat(3, 0, 0));
    assert!(apply(&mut table, LeaseCommand::Arm { lease: leases[0], ttl_ms: 2_000 }).is_ok());
    table.delegate(leases[1]);
    assert_eq!(table.stat(), stat(1, 1, 1));
    beat(&mut table, 2_000 + GRACE_MS);
    assert_eq!((expire(&mut table), table.stat()), (vec![leases[0]], stat(1, 0, 1)));
    assert!(apply(&mut table, LeaseCommand::Revoke { lease: leases[2] }).is_ok());
    assert_eq!(table.stat(), stat(0, 0, 1));
    assert!(table.is_coherent());
}
