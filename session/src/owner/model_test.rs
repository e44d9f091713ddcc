//! Random interleavings of everything against a simple model (owner spec Appendix C).

use proptest::prelude::*;

use super::fixture::{Socket, at, claim, options};
use super::*;

const OPERATIONS_MAX: u32 = 2;
const CAPACITY: usize = 5;

#[derive(Debug, Clone)]
enum Op {
    Reserve,
    Activate(usize, u64),
    Renew(usize, u64, u64),
    RenewBoot(u64, u64),
    Hold(Option<u64>),
    Begin(usize),
    Check(usize),
    Done(usize),
    MarkUncertain(usize, u64),
    Resolve(usize, u64),
    Fence(usize),
    Quiesce(usize),
    Report(usize, bool),
    Sweep(usize),
    Advance(u64),
    Stop,
}

fn op() -> impl Strategy<Value = Op> {
    let who = 0..4_usize;
    prop_oneof![
        3 => Just(Op::Reserve),
        6 => (who.clone(), 1..2_100_u64).prop_map(|(who, ms)| Op::Activate(who, ms)),
        2 => (who.clone(), 0..6_u64, 0..2_500_u64).prop_map(|(who, revision, ms)| Op::Renew(who, revision, ms)),
        4 => (0..60_u64, 0..2_100_u64).prop_map(|(revision, ms)| Op::RenewBoot(revision, ms)),
        2 => prop::option::weighted(0.8, 0..2_100_u64).prop_map(Op::Hold),
        6 => who.clone().prop_map(Op::Begin),
        2 => who.clone().prop_map(Op::Check),
        4 => who.clone().prop_map(Op::Done),
        1 => (who.clone(), 0..3_u64).prop_map(|(who, token)| Op::MarkUncertain(who, token)),
        2 => (who.clone(), 0..3_u64).prop_map(|(who, token)| Op::Resolve(who, token)),
        1 => who.clone().prop_map(Op::Fence),
        3 => who.clone().prop_map(Op::Quiesce),
        4 => (who, any::<bool>()).prop_map(|(who, closed)| Op::Report(who, closed)),
        2 => (1..4_usize).prop_map(Op::Sweep),
        5 => (0..900_u64).prop_map(Op::Advance),
        1 => Just(Op::Stop),
    ]
}

/// One owner as the model knows it: no stages, no heap, only what happened.
struct Known {
    entry: Arc<Entry>,
    scopes: Vec<Scope>,
    activated: bool,
    fenced: bool,
    revision: u64,
    until: u64,
    closed: bool,
    uncertain: Vec<u64>,
}

impl Known {
    fn deadline(&self, boot_until: u64, hold_until: u64) -> u64 {
        if self.activated { self.until.max(boot_until).min(hold_until) } else { self.until }
    }

    fn is_stopped(&self) -> bool {
        self.closed && self.scopes.is_empty()
    }

    fn is_retired(&self) -> bool {
        self.is_stopped() && self.uncertain.is_empty()
    }
}

struct World {
    registry: Registry,
    now: u64,
    boot_until: u64,
    hold_until: u64,
    boot_revision: u64,
    stopped: bool,
    owners: Vec<Known>,
}

impl World {
    fn new() -> Self {
        let options =
            Options { capacity: CAPACITY, operations_max: OPERATIONS_MAX, lease_max_ms: 2_000, ..options() };
        Self {
            registry: Registry::new(options).expect("valid"),
            now: 0,
            boot_until: 0,
            hold_until: u64::MAX,
            boot_revision: 0,
            stopped: false,
            owners: Vec::new(),
        }
    }

    /// A deadline that passes fences for ever, whoever looks or not.
    fn expire(&mut self) {
        for known in &mut self.owners {
            known.fenced |= self.now >= known.deadline(self.boot_until, self.hold_until);
        }
    }

    fn reserve(&mut self) {
        let held = self.owners.iter().filter(|known| !known.is_retired()).count();
        match self.registry.reserve(at(self.now), claim("c"), Arc::new(Socket::default())) {
            Ok(entry) => {
                assert!(held < CAPACITY && !self.stopped);
                assert_eq!(entry.owner().connection_id, self.owners.len() as u64 + 1, "ids ascend");
                self.owners.push(Known {
                    entry,
                    scopes: Vec::new(),
                    activated: false,
                    fenced: false,
                    revision: 0,
                    until: self.now + 1_000,
                    closed: false,
                    uncertain: Vec::new(),
                });
            }
            Err(OwnerError::Stopped) => assert!(self.stopped),
            Err(error) => assert_eq!((error, held), (OwnerError::Limit, CAPACITY)),
        }
    }

    fn install(&mut self, who: usize, renew: Option<u64>, ms: u64) {
        let (now, stopped, hold_until) = (self.now, self.stopped, self.hold_until);
        let until = now + ms;
        let revision = renew.unwrap_or(1);
        let len = self.owners.len();
        if len == 0 {
            return;
        }
        let known = &mut self.owners[len - 1 - who % len];
        let owner = known.entry.owner();
        let got = match renew {
            None => self.registry.activate(at(now), owner, revision, at(until)),
            Some(_) => self.registry.renew(at(now), owner, revision, at(until)),
        };
        let expected = if stopped {
            Err(OwnerError::Stopped)
        } else if known.fenced || known.closed {
            Err(OwnerError::Fenced)
        } else if revision == 0 || ms == 0 || ms > 2_000 || hold_until <= now {
            Err(OwnerError::Invalid)
        } else if known.activated && (revision, until) == (known.revision, known.until) {
            Ok(())
        } else if known.activated != renew.is_some() || (known.activated && revision <= known.revision) {
            Err(OwnerError::Fenced)
        } else {
            (known.activated, known.revision, known.until) = (true, revision, until);
            Ok(())
        };
        assert_eq!(got, expected);
    }

    fn renew_boot(&mut self, revision: u64, ms: u64) {
        let got = self.registry.renew_boot(at(self.now), revision, at(self.now + ms));
        let expected = if self.stopped {
            Err(OwnerError::Stopped)
        } else if revision <= self.boot_revision || ms == 0 || ms > 2_000 {
            Err(OwnerError::Invalid)
        } else {
            (self.boot_revision, self.boot_until) = (revision, self.now + ms);
            Ok(())
        };
        assert_eq!(got, expected);
    }

    /// `None`: nothing is held any more.
    fn hold(&mut self, ms: Option<u64>) {
        self.hold_until = ms.map_or(self.now, |ms| self.now + ms);
        self.registry.hold(at(self.now), at(self.hold_until));
    }

    fn begin(&mut self, who: usize) {
        let (now, stopped) = (at(self.now), self.stopped);
        let len = self.owners.len();
        if len == 0 {
            return;
        }
        let known = &mut self.owners[len - 1 - who % len];
        match self.registry.begin(now, &known.entry) {
            Ok(scope) => {
                assert!(!stopped && known.activated && !known.fenced, "admission at or behind the end");
                assert!(known.scopes.len() < OPERATIONS_MAX as usize);
                known.scopes.push(scope);
            }
            Err(OwnerError::Stopped) => assert!(stopped),
            Err(OwnerError::Fenced) => assert!(known.fenced || !known.activated),
            Err(error) => {
                assert_eq!((error, known.scopes.len()), (OwnerError::Limit, OPERATIONS_MAX as usize));
            }
        }
    }

    fn quiesce(&mut self, who: usize) {
        let now = at(self.now);
        let len = self.owners.len();
        if len == 0 {
            return;
        }
        let known = &mut self.owners[len - 1 - who % len];
        known.fenced = true;
        match self.registry.quiesce(now, known.entry.owner(), None) {
            Ok(Quiesce::Proved) => assert!(known.is_retired(), "proof while it may act"),
            Ok(Quiesce::Pending) => assert!(!known.is_stopped()),
            Err(error) => {
                assert_eq!(error, OwnerError::Unknown);
                assert!(known.is_stopped() && !known.uncertain.is_empty());
            }
        }
    }

    fn on_owner(&mut self, op: &Op) {
        let now = at(self.now);
        let (Op::Check(who)
        | Op::Done(who)
        | Op::MarkUncertain(who, _)
        | Op::Resolve(who, _)
        | Op::Fence(who)
        | Op::Report(who, _)) = *op
        else {
            return;
        };
        let stopped = self.stopped;
        let len = self.owners.len();
        if len == 0 {
            return;
        }
        let (registry, known) = (&self.registry, &mut self.owners[len - 1 - who % len]);
        match *op {
            Op::Check(_) => {
                if let Some(scope) = known.scopes.first() {
                    let expected = match (stopped, known.fenced) {
                        (true, _) => Err(OwnerError::Stopped),
                        (_, true) => Err(OwnerError::Fenced),
                        _ => Ok(()),
                    };
                    assert_eq!(scope.check(now), expected);
                }
            }
            Op::Done(_) => drop(known.scopes.pop()),
            Op::MarkUncertain(_, token) => {
                if let Some(scope) = known.scopes.first_mut() {
                    assert_eq!(scope.mark_uncertain(token), Ok(()));
                    known.fenced = true;
                    known.uncertain.push(token);
                }
            }
            Op::Resolve(_, token) => {
                registry.resolve(now, known.entry.owner(), token);
                known.uncertain.retain(|&other| other != token);
            }
            Op::Fence(_) => {
                assert_eq!(registry.fence(now, known.entry.owner()), Ok(()));
                known.fenced = true;
            }
            Op::Report(_, closed) => {
                let outcome = if closed { CloseOutcome::Closed } else { CloseOutcome::Failed };
                registry.transport_closed(now, known.entry.owner(), outcome);
                known.closed |= closed;
                known.fenced |= closed;
            }
            _ => {}
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Reserve => self.reserve(),
            Op::Activate(who, ms) => self.install(who, None, ms),
            Op::Renew(who, revision, ms) => self.install(who, Some(revision), ms),
            Op::RenewBoot(revision, ms) => self.renew_boot(revision, ms),
            Op::Hold(ms) => self.hold(ms),
            Op::Begin(who) => self.begin(who),
            Op::Quiesce(who) => self.quiesce(who),
            Op::Sweep(limit) => {
                let visited = self.registry.sweep(at(self.now), limit).expect("a valid limit");
                assert!(visited <= limit);
            }
            Op::Advance(ms) => self.now += ms,
            Op::Stop => {
                self.registry.stop_admission(at(self.now));
                self.stopped = true;
                self.owners.iter_mut().for_each(|known| known.fenced = true);
            }
            Op::Check(_)
            | Op::Done(_)
            | Op::MarkUncertain(..)
            | Op::Resolve(..)
            | Op::Fence(_)
            | Op::Report(..) => {
                self.on_owner(op);
            }
        }
        self.expire();
    }

    /// The invariants of Appendix C.
    fn check(&self) {
        let snapshot = self.registry.snapshot();
        let held: Vec<&Known> = self.owners.iter().filter(|known| !known.is_retired()).collect();
        assert_eq!(snapshot.held, held.len());
        assert_eq!(snapshot.held, snapshot.pending + snapshot.active + snapshot.closing);
        assert_eq!(snapshot.deadlines, snapshot.held, "one record per owner");
        assert_eq!(snapshot.operations, held.iter().map(|known| known.scopes.len()).sum::<usize>());
        assert_eq!(snapshot.uncertain, held.iter().filter(|known| !known.uncertain.is_empty()).count());
        assert!(snapshot.closing <= held.iter().filter(|known| known.fenced).count());
        let next = self.registry.next_deadline();
        for known in held {
            assert!(known.fenced || !known.entry.is_fenced(), "nobody is fenced without a reason");
            if !known.entry.is_fenced() {
                assert!(
                    next <= Some(at(known.deadline(self.boot_until, self.hold_until))),
                    "no record lies behind a deadline"
                );
            }
        }
        assert_eq!(self.registry.retirement().is_ok(), self.stopped && snapshot.held == 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// P1, P2, P10: whatever happens in whatever order, the registry answers as the model.
    #[test]
    fn the_registry_agrees_with_its_model(ops in prop::collection::vec(op(), 1..150)) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.check();
        }
    }
}
