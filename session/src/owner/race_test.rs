//! The registry under threads: admission against fences, proofs and lease ends.

use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::{Duration, Instant};

use super::fixture::{at, claim, options};
use super::*;

/// A socket that another thread closes some time after it was asked.
#[derive(Default)]
struct Door {
    asked: AtomicBool,
    closed: AtomicBool,
}

impl Transport for Door {
    fn request_close(&self, _owner: &Owner) {
        self.asked.store(true, Ordering::SeqCst);
    }
}

/// Spins until `done`; fails when that takes too long.
fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < end, "what was waited for does not happen");
        thread::yield_now();
    }
}

/// P1, P2: never proved while a scope is open or the socket is not reported closed; nothing is admitted behind the proof.
#[test]
fn no_proof_while_anything_runs() {
    for round in 0..300 {
        let registry = Registry::new(options()).expect("valid");
        let door = Arc::new(Door::default());
        let entry = registry.reserve(at(0), claim("c"), Arc::<Door>::clone(&door)).expect("room");
        registry.activate(at(0), entry.owner(), 1, at(1_000)).expect("fresh");
        let inside = AtomicUsize::new(0);
        let proved = AtomicBool::new(false);
        let ready = AtomicUsize::new(0);
        thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    ready.fetch_add(1, Ordering::SeqCst);
                    loop {
                        let known = proved.load(Ordering::SeqCst);
                        match registry.begin(at(1), &entry) {
                            Ok(scope) => {
                                assert!(!known, "admitted behind the proof");
                                inside.fetch_add(1, Ordering::SeqCst);
                                std::hint::spin_loop();
                                inside.fetch_sub(1, Ordering::SeqCst);
                                scope.done();
                            }
                            Err(OwnerError::Limit) => {}
                            Err(error) => {
                                assert_eq!(error, OwnerError::Fenced);
                                return;
                            }
                        }
                    }
                });
            }
            threads.spawn(|| {
                until(|| door.asked.load(Ordering::SeqCst));
                door.closed.store(true, Ordering::SeqCst);
                registry.transport_closed(at(1), entry.owner(), CloseOutcome::Closed);
            });
            until(|| ready.load(Ordering::SeqCst) == 2);
            for _ in 0..round {
                std::hint::spin_loop();
            }
            until(|| registry.quiesce(at(1), entry.owner(), None) == Ok(Quiesce::Proved));
            assert_eq!(inside.load(Ordering::SeqCst), 0, "proved while a scope is open");
            assert!(door.closed.load(Ordering::SeqCst), "proved while the socket is open");
            proved.store(true, Ordering::SeqCst);
        });
        assert_eq!(registry.snapshot(), Snapshot::default());
    }
}

/// P1: however a renewal of the boot lease races with its end, who was refused once is never admitted again, and
/// nothing is admitted at or behind the end that holds.
#[test]
fn a_renewal_that_races_with_the_end_revives_nobody() {
    for round in 0..200_u64 {
        let registry = Registry::new(options()).expect("valid");
        let owners: Vec<Arc<Entry>> = (0..3)
            .map(|_| {
                let entry = registry.reserve(at(0), claim("c"), Arc::new(Door::default())).expect("room");
                registry.activate(at(0), entry.owner(), 1, at(5)).expect("fresh");
                entry
            })
            .collect();
        let refused: Vec<AtomicBool> = owners.iter().map(|_| AtomicBool::new(false)).collect();
        let (clock, longest, over) = (AtomicU64::new(0), AtomicU64::new(5), AtomicBool::new(false));
        thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        for (entry, refused) in owners.iter().zip(&refused) {
                            let known = refused.load(Ordering::SeqCst);
                            let now = clock.load(Ordering::SeqCst);
                            match registry.begin(at(now), entry) {
                                Ok(_scope) => {
                                    assert!(!known, "revived");
                                    assert!(now < longest.load(Ordering::SeqCst));
                                }
                                Err(OwnerError::Fenced) => refused.store(true, Ordering::SeqCst),
                                Err(error) => assert_eq!(error, OwnerError::Limit),
                            }
                        }
                    }
                });
            }
            // Renewals come one tick before the end at first, at the end or behind it later.
            let mut revision = 0;
            for step in 1..200_u64 {
                clock.store(step, Ordering::SeqCst);
                if step % 5 == (4 + (step + round) / 60) % 5 {
                    revision += 1;
                    longest.fetch_max(step + 5, Ordering::SeqCst);
                    registry.renew_boot(at(step), revision, at(step + 5)).expect("ahead");
                }
                std::hint::spin_loop();
            }
            over.store(true, Ordering::SeqCst);
        });
        for (entry, refused) in owners.iter().zip(refused) {
            assert!(!refused.into_inner() || entry.is_fenced());
        }
        assert_eq!(registry.snapshot().operations, 0);
    }
}

/// P3, P9: callers, sweeper, reports and admissions all at once: each owner is retired once, no count is lost.
#[test]
fn everything_at_once_adds_up() {
    let registry = Registry::new(Options { capacity: 4_000, ..options() }).expect("valid");
    let doors: Vec<(Arc<Entry>, Arc<Door>)> = (0..2_000)
        .map(|_| {
            let door = Arc::new(Door::default());
            let entry = registry.reserve(at(0), claim("c"), Arc::<Door>::clone(&door)).expect("room");
            registry.activate(at(0), entry.owner(), 1, at(10)).expect("fresh");
            (entry, door)
        })
        .collect();
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                for (entry, _) in &doors {
                    drop(registry.begin(at(1), entry));
                }
            }
        });
        threads.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                for (entry, door) in &doors {
                    if door.asked.swap(false, Ordering::SeqCst) {
                        registry.transport_closed(at(20), entry.owner(), CloseOutcome::Closed);
                    }
                }
            }
        });
        threads.spawn(|| {
            for (entry, _) in doors.iter().step_by(2) {
                registry.quiesce(at(1), entry.owner(), None).expect("ours");
            }
        });
        until(|| {
            registry.sweep(at(20), 256).expect("a valid limit");
            registry.snapshot().held == 0
        });
        over.store(true, Ordering::SeqCst);
    });
    assert_eq!(registry.snapshot(), Snapshot::default());
}
