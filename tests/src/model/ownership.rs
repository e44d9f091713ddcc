//! States and steps of the ownership protocol.

use std::hash::{Hash, Hasher};

use super::explore::Model;

mod steps;

const NODES: usize = 2;
/// CONNECTs of the one session.
const CONNECTS: usize = 3;
/// Node of each CONNECT.
const AT: [usize; CONNECTS] = [0, 1, 0];

/// Whether a promise is broken in a state.
type Breaks = fn(&State) -> bool;

/// What is deliberately wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// A lease that ended is taken for a proof.
    SkipProofAfterLease,
    /// Whoever owns the session now is stopped, not the owner that was named.
    FollowSuccessor,
    /// The answer comes with the fence: socket and work go on.
    TakeoverWithoutDrain,
    /// An attestation takes effect before the lease end.
    AttestWithoutWait,
    /// A receipt is minted while the boot lives.
    CopiedDirectory,
    /// The Will of a node that does not answer goes out.
    WillFromStaleOwner,
    /// The append of a Will has no stamp.
    WillWithoutStamp,
    /// The second read of a takeover is left out, and the commit does not compare.
    CommitWithoutCompare,
    /// End commits without a proof.
    EndWithoutProof,
    /// A lease is counted from its commit.
    LeaseFromCommit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// Waits for the proof that the owner it read stopped.
    Isolating,
    Proved,
    /// Reserved and proposed.
    Pending,
    Active,
    /// Fenced: the socket closes and the admitted work drains.
    Closing,
    /// Proved stopped, or never anything.
    Over,
    /// Its process is gone.
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Connect {
    stage: Stage,
    boot: u8,
    /// Owner that it read.
    saw: Option<u8>,
    socket: bool,
    operation: bool,
    /// Its proposal is under way.
    proposed: bool,
    committed: bool,
    will: Will,
    /// How often its Will went out.
    fired: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Will {
    None,
    Armed,
    Ready,
    /// Appended; whether that is recorded makes no difference to a stamped append.
    Appended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Power {
    Up,
    Stopped,
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    power: Power,
    boot: u8,
    /// The local lease runs.
    lease: bool,
    /// A renewal is committed and not installed; whether the lease that it captured still runs.
    renewing: Option<bool>,
    /// The local lease ends after the committed one: only where it is counted wrongly.
    outlives: bool,
    /// The committed lease plus drift is over.
    lease_over: bool,
    /// Boots that were retired by commit, and those with a receipt: one bit each.
    retired: u8,
    receipts: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Row {
    None,
    Active,
    Offline,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operator {
    Idle,
    Isolating(u8),
    Proved(u8),
    Returned(u8),
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    connects: [Connect; CONNECTS],
    nodes: [Node; NODES],
    owner: Option<u8>,
    row: Row,
    /// Requests and proofs on their way, one bit an owner; they stay.
    asked: u8,
    answers: u8,
    operator: Operator,
    crashes: u8,
    stops: u8,
    renewals: u8,
    /// An owner was stopped that nobody had named.
    touched: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Begin(usize),
    Asked(u8),
    SocketCloses(usize),
    OperationBegins(usize),
    OperationEnds(usize),
    Proved(usize),
    Propose(usize),
    Commit(usize),
    Activate(usize),
    GiveUp(usize),
    ClientGone(usize),
    DisconnectCommits(usize),
    LeaseEnds(usize),
    RenewalCommits(usize),
    RenewalInstalled(usize),
    CommittedLeaseEnds(usize),
    Sweep(usize),
    Stop(usize),
    Continue(usize),
    Crash(usize),
    Restart(usize),
    RetireByReceipt(usize),
    AttestedRetirement(usize),
    EndBegins,
    EndProved,
    EndCommits,
    WillAppended(usize),
}

/// The protocol, right or broken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ownership {
    pub breakage: Option<Breakage>,
    /// The one promise that is looked at; all of them without it.
    pub only: Option<&'static str>,
    /// With the End of an operator.
    pub with_end: bool,
    pub crashes_max: u8,
    pub stops_max: u8,
    pub renewals_max: u8,
}

impl Ownership {
    fn has(&self, breakage: Breakage) -> bool {
        self.breakage == Some(breakage)
    }
}

fn bit(number: u8) -> u8 {
    1 << number
}

fn index(owner: u8) -> usize {
    usize::from(owner)
}

fn number(at: usize) -> u8 {
    u8::try_from(at).unwrap_or(u8::MAX)
}

/// Of what tells most states apart, in a few words: the derived one costs more than the steps. Equality looks at everything.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut word = u128::from(self.asked) << 3 | u128::from(self.answers);
        for connect in &self.connects {
            let flags = u128::from(connect.socket) << 2
                | u128::from(connect.operation) << 1
                | u128::from(connect.proposed);
            let saw = connect.saw.map_or(3, u128::from);
            word = word << 3 | connect.stage as u128;
            word = word << 6 | u128::from(connect.boot) << 5 | saw << 3 | flags;
            word = word << 3 | connect.will as u128;
        }
        for node in &self.nodes {
            let renewing = node.renewing.map_or(2, u128::from);
            word = word << 4 | (node.power as u128) << 2 | renewing;
            word = word << 4
                | u128::from(node.lease) << 3
                | u128::from(node.lease_over) << 2
                | u128::from(node.retired);
            word = word << 3 | u128::from(node.receipts) << 1 | u128::from(node.boot);
        }
        word = word << 4 | self.owner.map_or(3, u128::from) << 2 | self.row as u128;
        word = word << 6
            | u128::from(self.crashes) << 4
            | u128::from(self.stops) << 2
            | u128::from(self.renewals);
        let (operator, owner) = match self.operator {
            Operator::Idle => (0, 0),
            Operator::Refused => (1, 0),
            Operator::Isolating(owner) => (2, owner),
            Operator::Proved(owner) => (3, owner),
            Operator::Returned(owner) => (4, owner),
        };
        hasher.write_u128(word << 5 | operator << 2 | u128::from(owner));
    }
}

impl State {
    fn node_of(&self, connect: usize) -> &Node {
        &self.nodes[AT[connect]]
    }

    /// The process of a CONNECT is there and runs.
    fn works(&self, connect: usize) -> bool {
        let node = self.node_of(connect);
        node.power == Power::Up && node.boot == self.connects[connect].boot
    }

    fn is_retired(&self, connect: usize) -> bool {
        self.node_of(connect).retired & bit(self.connects[connect].boot) != 0
    }

    /// It executes, or will once its process goes on.
    fn is_able(&self, at: usize) -> bool {
        let connect = &self.connects[at];
        let node = self.node_of(at);
        let lives = connect.stage != Stage::Dead && node.power != Power::Down && node.boot == connect.boot;
        // Admitted work looks at the lease before each effect.
        lives && node.lease && (connect.stage == Stage::Active || connect.operation)
    }

    /// Leaves out what no later step looks at: two states that differ in that only are one.
    fn forget(mut self, model: &Ownership) -> Self {
        for at in 0..CONNECTS {
            let retired = self.is_retired(at);
            let connect = &mut self.connects[at];
            if connect.stage != Stage::Pending {
                connect.committed = false;
            }
            let is_behind = matches!(connect.stage, Stage::Closing | Stage::Over | Stage::Dead);
            if is_behind && !connect.proposed {
                connect.saw = None;
            }
            // Its retirement proves as much as an answer.
            if retired {
                self.answers &= !bit(number(at));
            }
        }
        for at in 0..CONNECTS {
            let stopped = matches!(self.connects[at].stage, Stage::Over | Stage::Dead);
            if stopped && !self.is_of_interest(at) {
                self.collect(at, model);
            }
        }
        self
    }

    /// Whether anybody asks for a proof about this owner, or may yet.
    fn is_of_interest(&self, at: usize) -> bool {
        let owner = Some(number(at));
        let seen = self.connects.iter().any(|connect| connect.saw == owner);
        let named = match self.operator {
            Operator::Isolating(one) | Operator::Proved(one) | Operator::Returned(one) => Some(one) == owner,
            Operator::Idle | Operator::Refused => false,
        };
        self.connects[at].proposed || self.owner == owner || seen || named
    }

    fn collect(&mut self, at: usize, model: &Ownership) {
        let connect = &mut self.connects[at];
        connect.stage = Stage::Over;
        connect.boot = 0;
        // A Will that went out and can go out again, and a request that may stop somebody else, are to be kept.
        if connect.will == Will::Appended && !model.has(Breakage::WillWithoutStamp) {
            connect.will = Will::None;
            connect.fired = 0;
        }
        self.answers &= !bit(number(at));
        if !model.has(Breakage::FollowSuccessor) {
            self.asked &= !bit(number(at));
        }
    }

    fn two_execute(&self) -> bool {
        (0..CONNECTS).filter(|at| self.is_able(*at)).count() > 1
    }

    fn is_taken_unproved(&self) -> bool {
        let active = self.connects.iter().filter(|connect| connect.stage == Stage::Active);
        active.filter_map(|connect| connect.saw).map(index).any(|saw| {
            let stopped = matches!(self.connects[saw].stage, Stage::Over | Stage::Dead);
            !stopped && !self.is_retired(saw)
        })
    }

    fn is_end_not_final(&self) -> bool {
        let Operator::Returned(owner) = self.operator else { return false };
        let still_its = self.owner == Some(owner);
        self.is_able(index(owner)) || (still_its && self.row != Row::Ended)
    }

    fn fence(&mut self, at: usize) {
        let connect = &mut self.connects[at];
        if matches!(connect.stage, Stage::Active | Stage::Pending) {
            connect.stage = Stage::Closing;
        }
        self.settle(at);
    }

    fn settle(&mut self, at: usize) {
        let connect = &mut self.connects[at];
        if connect.stage == Stage::Closing && !connect.socket && !connect.operation {
            connect.stage = Stage::Over;
        }
    }

    /// The end of the connection of the owner is recorded.
    fn close_row(&mut self, at: usize) {
        if self.owner == Some(number(at)) && self.row == Row::Active {
            self.row = Row::Offline;
            self.resolve_will(at);
        }
    }

    fn resolve_will(&mut self, at: usize) {
        if self.connects[at].will == Will::Armed {
            self.connects[at].will = Will::Ready;
        }
    }

    fn retire(&mut self, node: usize, boot: u8) {
        self.nodes[node].retired |= bit(boot);
        let on_it = |at: &usize| AT[*at] == node;
        for at in (0..CONNECTS).filter(on_it) {
            if self.connects[at].boot == boot {
                self.close_row(at);
            }
        }
    }

    /// What a CONNECT or an End may take for a proof that `owner` stopped.
    fn is_proved(&self, owner: u8, model: &Ownership) -> bool {
        let skipped = model.has(Breakage::SkipProofAfterLease) && self.node_of(index(owner)).lease_over;
        self.answers & bit(owner) != 0 || self.is_retired(index(owner)) || skipped
    }
}

impl Model for Ownership {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        let connect = Connect {
            stage: Stage::Idle,
            boot: 0,
            saw: None,
            socket: false,
            operation: false,
            proposed: false,
            committed: false,
            will: Will::None,
            fired: 0,
        };
        let node = Node {
            power: Power::Up,
            boot: 0,
            lease: true,
            renewing: None,
            outlives: false,
            lease_over: false,
            retired: 0,
            receipts: 0,
        };
        State {
            connects: [connect; CONNECTS],
            nodes: [node; NODES],
            owner: None,
            row: Row::None,
            asked: 0,
            answers: 0,
            operator: Operator::Idle,
            crashes: 0,
            stops: 0,
            renewals: 0,
            touched: false,
        }
    }

    fn next(&self, state: &State, each: &mut dyn FnMut(Action, State)) {
        let each: &mut dyn FnMut(Action, State) = &mut |action, next| each(action, next.forget(self));
        for at in 0..CONNECTS {
            self.connect_steps(state, at, each);
            self.owner_steps(state, at, each);
            self.will_steps(state, at, each);
        }
        for node in 0..NODES {
            self.lease_steps(state, node, each);
            self.process_steps(state, node, each);
            self.retire_steps(state, node, each);
        }
        if self.with_end {
            self.end_steps(state, each);
        }
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let promises: [(&'static str, Breaks); 6] = [
            ("P1", State::two_execute),
            ("P2", State::is_taken_unproved),
            ("P3", State::is_end_not_final),
            ("P3: a successor was touched", |state| state.touched),
            ("P6: twice", |state| state.connects.iter().any(|connect| connect.fired > 1)),
            ("P6: while its owner may serve", |state| {
                (0..CONNECTS).any(|at| state.connects[at].fired > 0 && state.is_able(at))
            }),
        ];
        let asked = |promise: &str| self.only.is_none_or(|only| promise.starts_with(only));
        promises
            .into_iter()
            .find(|(promise, broken)| asked(promise) && broken(state))
            .map(|(promise, _)| promise)
    }
}
