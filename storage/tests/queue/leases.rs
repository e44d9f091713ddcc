//! R-04..R-07 on every backend.

crate::on_every_backend!(cases:
    a_lease_lives_as_long_as_it_is_kept,
    a_guard_only_contributes,
    a_guard_that_revokes_ends_the_lease_for_all,
    checklist_15_a_revoked_lease_is_told_at_once,
    a_ttl_below_the_least_is_refused,
    an_armed_lease_runs_down,
);

mod cases {
    use std::time::{Duration, Instant};

    use storage::lease::{Alive, LeaseError, LeaseManager, LeaseRef, Standing};

    use crate::bench::{Bench, PATIENCE};

    async fn until_gone(bench: &Bench, lease: LeaseRef) -> Duration {
        let (start, backend) = (Instant::now(), bench.backend());
        while backend.probe(vec![lease]).await != [Alive::Gone] {
            assert!(start.elapsed() < PATIENCE, "the lease never ends");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        start.elapsed()
    }

    /// Kept, it outlives its TTL several times; the guard says so; dropped, it ends by itself, and no id of its is kept alive by anybody.
    pub(super) async fn a_lease_lives_as_long_as_it_is_kept(bench: &Bench) {
        let manager = LeaseManager::new();
        let backend = bench.backend();
        let guard = manager.grant(&backend, bench.ttl, "test").await.unwrap();
        let lease = guard.lease();
        tokio::time::sleep(bench.ttl * 3).await;
        assert_eq!(guard.standing(), Standing::Held);
        assert!(matches!(backend.probe(vec![lease]).await[..], [Alive::Left(_)]));
        let stat = manager.stat();
        assert_eq!((stat.held, stat.at_risk, stat.lost), (1, 0, 0));
        assert!(stat.lag < bench.ttl, "its last keepalive was {:?} ago", stat.lag);
        let view = manager.view();
        assert_eq!(
            (view.len(), view[0].lease, view[0].holders.as_slice()),
            (1, lease, &["test".to_owned()][..])
        );
        drop(guard);
        assert!(manager.view().is_empty());
        until_gone(bench, lease).await;
        assert!(matches!(manager.hold(&backend, lease, "late").await, Err(LeaseError::Gone)));
        let foreign = LeaseRef { incarnation: lease.incarnation ^ 2, ..lease };
        assert!(matches!(manager.hold(&backend, foreign, "other").await, Err(LeaseError::Incarnation(_))));
    }

    /// One guard's drop leaves the others' contribution; a hand-over has no gap.
    pub(super) async fn a_guard_only_contributes(bench: &Bench) {
        let manager = LeaseManager::new();
        let backend = bench.backend();
        let first = manager.grant(&backend, bench.ttl, "first").await.unwrap();
        let second = manager.hold(&backend, first.lease(), "second").await.unwrap();
        drop(first);
        let third = second.hand_over("third");
        tokio::time::sleep(bench.ttl * 2).await;
        assert_eq!(third.standing(), Standing::Held);
        assert_eq!(manager.view()[0].holders, ["third"]);
        assert!(matches!(backend.probe(vec![third.lease()]).await[..], [Alive::Left(_)]));
    }

    /// Lease spec 4: who ends a lease on purpose ends it for every guard, at once; nothing is counted as lost.
    pub(super) async fn a_guard_that_revokes_ends_the_lease_for_all(bench: &Bench) {
        let manager = LeaseManager::new();
        let backend = bench.backend();
        let first = manager.grant(&backend, bench.ttl * 30, "first").await.unwrap();
        let (second, lease) = (first.share("second"), first.lease());
        first.revoke().await.unwrap();
        tokio::time::timeout(PATIENCE, second.lost()).await.unwrap();
        assert!(manager.view().is_empty(), "nothing is kept any more");
        assert_eq!((manager.stat().held, manager.stat().lost), (0, 0));
        assert_eq!(backend.probe(vec![lease]).await, [Alive::Gone]);
    }

    /// Checklist 15 (H-15, H-18): a definitive answer fires `lost` and ends the keepalives.
    pub(super) async fn checklist_15_a_revoked_lease_is_told_at_once(bench: &Bench) {
        let manager = LeaseManager::new();
        let backend = bench.backend();
        let guard = manager.grant(&backend, bench.ttl, "test").await.unwrap();
        backend.revoke(guard.lease()).await.unwrap();
        backend.revoke(guard.lease()).await.unwrap();
        tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
        assert_eq!(guard.standing(), Standing::Lost);
        assert!(manager.view().is_empty(), "nothing is kept any more");
        assert_eq!((manager.stat().held, manager.stat().lost), (0, 1));
    }

    pub(super) async fn a_ttl_below_the_least_is_refused(bench: &Bench) {
        let least = bench.ttl - Duration::from_millis(1_000);
        assert!(matches!(bench.backend().grant(least).await, Err(LeaseError::Ttl { .. })));
    }

    /// Checklist 24: a lease that runs down has the TTL that it was given last, and no guard.
    pub(super) async fn an_armed_lease_runs_down(bench: &Bench) {
        let manager = LeaseManager::new();
        let backend = bench.backend();
        let guard = manager.grant(&backend, Duration::from_secs(600), "test").await.unwrap();
        let armed = guard.arm(bench.ttl).await.map_err(|(_, error)| error).unwrap();
        assert!(manager.view().is_empty());
        let after = until_gone(bench, armed.lease).await;
        assert!(after >= bench.ttl / 2, "it ended after {after:?}");
        assert!(matches!(backend.set_ttl(armed.lease, Duration::from_secs(5)).await, Err(LeaseError::Gone)));
    }
}

/// a store that is busy with large records answers keepalives late, again and again. A late answer is one: nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_answers_keep_a_lease() {
    use std::sync::Arc;
    use std::time::Duration;

    use storage::lease::{Alive, LeaseBackend, LeaseError, LeaseFuture, LeaseManager, LeaseRef, Standing};

    #[derive(Debug)]
    struct Late(Arc<dyn LeaseBackend>);

    impl LeaseBackend for Late {
        fn uid(&self) -> &str {
            "late"
        }
        fn incarnation(&self) -> u64 {
            self.0.incarnation()
        }
        fn grant(&self, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
            self.0.grant(ttl)
        }
        fn keepalive(&self, leases: Vec<LeaseRef>) -> LeaseFuture<'_, Vec<Alive>> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(1_100)).await;
                self.0.keepalive(leases).await
            })
        }
        fn probe(&self, leases: Vec<LeaseRef>) -> LeaseFuture<'_, Vec<Alive>> {
            self.0.probe(leases)
        }
        fn set_ttl(&self, lease: LeaseRef, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
            self.0.set_ttl(lease, ttl)
        }
        fn arm(&self, lease: LeaseRef, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
            self.0.arm(lease, ttl)
        }
        fn revoke(&self, lease: LeaseRef) -> LeaseFuture<'_, Result<(), LeaseError>> {
            self.0.revoke(lease)
        }
    }

    let bench = crate::bench::Bench::memory();
    let backend: Arc<dyn LeaseBackend> = Arc::new(Late(bench.backend()));
    let manager = LeaseManager::new();
    let guard = manager.grant(&backend, Duration::from_secs(5), "test").await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_ne!(guard.standing(), Standing::Lost, "{:?}", manager.view());
    }
    bench.end().await;
}
