//! What may happen next: CONNECT, the owner and its Will, leases, processes, retirements, End.

use super::{
    AT, Action, Breakage, CONNECTS, Operator, Ownership, Power, Row, Stage, State, Will, bit, index, number,
};

impl Ownership {
    /// CONNECT up to its activation.
    pub(super) fn connect_steps(&self, state: &State, at: usize, each: &mut dyn FnMut(Action, State)) {
        let connect = &state.connects[at];
        let node = state.node_of(at);
        match connect.stage {
            Stage::Idle if node.power == Power::Up && node.lease && (at == 0 || state.owner.is_some()) => {
                let mut next = *state;
                let one = &mut next.connects[at];
                one.boot = node.boot;
                one.saw = state.owner;
                one.stage = if state.owner.is_some() { Stage::Isolating } else { Stage::Proved };
                if let Some(owner) = state.owner {
                    next.asked |= bit(owner);
                }
                each(Action::Begin(at), next);
            }
            Stage::Isolating
                if state.works(at) && connect.saw.is_some_and(|saw| state.is_proved(saw, self)) =>
            {
                let mut next = *state;
                next.connects[at].stage = Stage::Proved;
                each(Action::Proved(at), next);
            }
            Stage::Proved if state.works(at) => {
                let mut next = *state;
                let one = &mut next.connects[at];
                if state.owner == connect.saw || self.has(Breakage::CommitWithoutCompare) {
                    one.stage = Stage::Pending;
                    one.socket = true;
                    one.proposed = true;
                } else {
                    one.stage = Stage::Over;
                }
                each(Action::Propose(at), next);
            }
            Stage::Pending if state.works(at) => {
                if connect.committed {
                    let mut next = *state;
                    if node.lease {
                        next.connects[at].stage = Stage::Active;
                    } else {
                        next.fence(at);
                    }
                    each(Action::Activate(at), next);
                }
                let mut next = *state;
                next.fence(at);
                each(Action::GiveUp(at), next);
            }
            _ => {}
        }
        if connect.proposed {
            self.commit_step(state, at, each);
        }
    }

    /// A proposal is committed, at once or long after its node gave it up.
    fn commit_step(&self, state: &State, at: usize, each: &mut dyn FnMut(Action, State)) {
        let mut next = *state;
        next.connects[at].proposed = false;
        let same = state.owner == state.connects[at].saw || self.has(Breakage::CommitWithoutCompare);
        if same && !state.is_retired(at) {
            if let Some(before) = state.owner {
                next.resolve_will(index(before));
            }
            next.owner = Some(number(at));
            next.row = Row::Active;
            next.connects[at].committed = true;
            next.connects[at].will = Will::Armed;
        }
        each(Action::Commit(at), next);
    }

    /// What happens to an owner on its node.
    pub(super) fn owner_steps(&self, state: &State, at: usize, each: &mut dyn FnMut(Action, State)) {
        let connect = &state.connects[at];
        let owner = number(at);
        if state.asked & bit(owner) != 0 {
            self.asked_step(state, owner, each);
        }
        if !state.works(at) {
            return;
        }
        if connect.stage == Stage::Closing && connect.socket {
            let mut next = *state;
            next.connects[at].socket = false;
            next.settle(at);
            each(Action::SocketCloses(at), next);
        }
        if connect.operation {
            let mut next = *state;
            next.connects[at].operation = false;
            next.settle(at);
            each(Action::OperationEnds(at), next);
        } else if connect.stage == Stage::Active && state.node_of(at).lease {
            let mut next = *state;
            next.connects[at].operation = true;
            each(Action::OperationBegins(at), next);
        }
        if connect.stage == Stage::Active {
            let mut next = *state;
            next.connects[at].socket = false;
            next.fence(at);
            each(Action::ClientGone(at), next);
        }
        let ours = state.owner == Some(owner) && state.row == Row::Active;
        if connect.stage == Stage::Over && ours && !state.is_retired(at) {
            let mut next = *state;
            next.close_row(at);
            each(Action::DisconnectCommits(at), next);
        }
    }

    /// A request to stop exactly `owner` reaches its node.
    fn asked_step(&self, state: &State, owner: u8, each: &mut dyn FnMut(Action, State)) {
        let at = index(owner);
        let node = state.node_of(at);
        if node.power != Power::Up {
            return;
        }
        let mut next = *state;
        if node.boot != state.connects[at].boot {
            // Only a receipt proves something of an earlier boot.
            if node.receipts & bit(state.connects[at].boot) != 0 {
                next.answers |= bit(owner);
            }
        } else if self.has(Breakage::FollowSuccessor) {
            let current = state.owner.filter(|current| AT[index(*current)] == AT[at]).unwrap_or(owner);
            next.touched |= state.asked & bit(current) == 0;
            next.fence(index(current));
            if next.connects[index(current)].stage == Stage::Over {
                next.answers |= bit(owner);
            }
        } else {
            next.fence(at);
            if next.connects[at].stage == Stage::Over || self.has(Breakage::TakeoverWithoutDrain) {
                next.answers |= bit(owner);
            }
        }
        if next != *state {
            each(Action::Asked(owner), next);
        }
    }

    pub(super) fn will_steps(&self, state: &State, at: usize, each: &mut dyn FnMut(Action, State)) {
        let connect = &state.connects[at];
        let stale = self.has(Breakage::WillFromStaleOwner)
            && connect.will == Will::Armed
            && state.node_of(at).power == Power::Stopped;
        if connect.will == Will::Ready || stale || connect.will == Will::Appended {
            // An executor that crashed is followed by another one: the stamp tells that it was appended.
            let again = connect.will == Will::Appended;
            if !again || (self.has(Breakage::WillWithoutStamp) && connect.fired < 2) {
                let mut next = *state;
                next.connects[at].will = Will::Appended;
                next.connects[at].fired += 1;
                each(Action::WillAppended(at), next);
            }
        }
    }

    pub(super) fn lease_steps(&self, state: &State, at: usize, each: &mut dyn FnMut(Action, State)) {
        let node = &state.nodes[at];
        if node.lease {
            let mut next = *state;
            next.nodes[at].lease = false;
            each(Action::LeaseEnds(at), next);
        }
        // What was captured later ends later.
        if !node.lease && node.renewing == Some(true) {
            let mut next = *state;
            next.nodes[at].renewing = Some(false);
            each(Action::LeaseEnds(at), next);
        }
        let live = node.power == Power::Up && node.retired & bit(node.boot) == 0;
        if live && node.renewing.is_none() && state.renewals < self.renewals_max {
            let mut next = *state;
            next.renewals += 1;
            next.nodes[at].renewing = Some(true);
            next.nodes[at].lease_over = false;
            each(Action::RenewalCommits(at), next);
        }
        if let (Some(runs), Power::Up) = (node.renewing, node.power) {
            let mut next = *state;
            next.nodes[at].renewing = None;
            // An owner whose deadline passed is fenced before the lease moves.
            if !node.lease {
                (0..CONNECTS)
                    .filter(|one| AT[*one] == at && state.works(*one))
                    .for_each(|one| next.fence(one));
            }
            next.nodes[at].lease |= runs || self.has(Breakage::LeaseFromCommit);
            next.nodes[at].outlives = self.has(Breakage::LeaseFromCommit);
            each(Action::RenewalInstalled(at), next);
        }
        // The one assumption about time: the local end comes before the committed end plus drift.
        let local_over = (!node.lease || node.power == Power::Down) && node.renewing != Some(true);
        if !node.lease_over && (local_over || node.outlives) {
            let mut next = *state;
            next.nodes[at].lease_over = true;
            each(Action::CommittedLeaseEnds(at), next);
        }
        if !node.lease && node.power == Power::Up {
            let mut next = *state;
            (0..CONNECTS).filter(|one| AT[*one] == at && state.works(*one)).for_each(|one| next.fence(one));
            if next != *state {
                each(Action::Sweep(at), next);
            }
        }
    }

    pub(super) fn process_steps(&self, state: &State, at: usize, each: &mut dyn FnMut(Action, State)) {
        let node = &state.nodes[at];
        match node.power {
            Power::Up | Power::Stopped => {
                if state.crashes < self.crashes_max {
                    let mut next = *state;
                    next.crashes += 1;
                    next.nodes[at].power = Power::Down;
                    next.nodes[at].renewing = None;
                    next.nodes[at].lease = false;
                    for one in (0..CONNECTS).filter(|one| AT[*one] == at) {
                        let connect = &mut next.connects[one];
                        if !matches!(connect.stage, Stage::Idle | Stage::Over) && connect.boot == node.boot {
                            connect.stage = Stage::Dead;
                            connect.socket = false;
                            connect.operation = false;
                        }
                    }
                    each(Action::Crash(at), next);
                }
                let mut next = *state;
                if node.power == Power::Stopped {
                    next.nodes[at].power = Power::Up;
                    each(Action::Continue(at), next);
                } else if state.stops < self.stops_max {
                    next.stops += 1;
                    next.nodes[at].power = Power::Stopped;
                    each(Action::Stop(at), next);
                }
            }
            Power::Down => {
                let mut next = *state;
                let one = &mut next.nodes[at];
                one.receipts |= bit(one.boot);
                one.power = Power::Up;
                one.boot += 1;
                one.lease = true;
                one.lease_over = false;
                one.outlives = false;
                each(Action::Restart(at), next);
            }
        }
    }

    pub(super) fn retire_steps(&self, state: &State, at: usize, each: &mut dyn FnMut(Action, State)) {
        let node = &state.nodes[at];
        for boot in 0..=node.boot {
            let copied =
                self.has(Breakage::CopiedDirectory) && boot == node.boot && node.power != Power::Down;
            if node.retired & bit(boot) == 0 && (node.receipts & bit(boot) != 0 || copied) {
                let mut next = *state;
                next.retire(at, boot);
                each(Action::RetireByReceipt(at), next);
            }
        }
        // An operator says that the node is off, rightly or not, as early as he likes: only the lease end counts.
        let over = node.lease_over || self.has(Breakage::AttestWithoutWait);
        if over && node.retired & bit(node.boot) == 0 {
            let mut next = *state;
            next.retire(at, node.boot);
            each(Action::AttestedRetirement(at), next);
        }
    }

    pub(super) fn end_steps(&self, state: &State, each: &mut dyn FnMut(Action, State)) {
        let mut next = *state;
        match state.operator {
            Operator::Idle => {
                let Some(owner) = state.owner else { return };
                next.asked |= bit(owner);
                next.operator = Operator::Isolating(owner);
                each(Action::EndBegins, next);
            }
            Operator::Isolating(owner) => {
                if state.is_proved(owner, self) || self.has(Breakage::EndWithoutProof) {
                    next.operator = Operator::Proved(owner);
                    each(Action::EndProved, next);
                }
            }
            Operator::Proved(owner) => {
                next.operator = Operator::Refused;
                if state.owner == Some(owner) {
                    next.row = Row::Ended;
                    next.resolve_will(index(owner));
                    next.operator = Operator::Returned(owner);
                }
                each(Action::EndCommits, next);
            }
            Operator::Returned(_) | Operator::Refused => {}
        }
    }
}
