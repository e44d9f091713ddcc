//! The leader of a group hands it to another voter, without the pause of an election that nobody prepared.
//!
//! ```text
//! leader                                             the voter
//! gate closed: proposals wait
//! everything in the log is applied here,
//! and the voter has it                ──Elect──▶     asks for votes
//!   grants its own: with the voter's that is          │
//!   a majority of three                ◀──────────────┘ leads
//! gate open: proposals go to the new leader
//! ```
//! openraft 0.9 has no such transfer. What makes this one work: followers refuse votes while they hear from a leader, but the leader itself
//! does so only for the first moments of its leadership, and its log is no longer than the voter's. Should anything be different, the
//! vote is lost and the group elects as after a crash: slower, and as right.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::ServerState;
use parking_lot::Mutex;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::time::Instant;

use super::message::{Answer, Request};
use super::{ELECTION_MAX_MS, GroupStatus, LogId, Metrics, RaftGroup};
use crate::StorageError;
use crate::peers::PeerAddress;

/// A leader refuses votes for this long after it was elected; a little more, since clocks of tasks are late.
const LEADS_AT_LEAST: Duration = Duration::from_millis(ELECTION_MAX_MS + 300);
/// A voter that is further behind has to catch up first: proposals would wait for it.
const LAG_MAX: u64 = 1_000;
/// How long proposals on their way into the log, and then the voter's last entries, are waited for.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the voter may take to lead.
const ELECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What proposals pass. Closed only while the group is handed over, for two seconds at most.
#[derive(Debug, Default)]
pub(super) struct Gate {
    lock: RwLock<()>,
    /// One at a time: a change of the members, or a hand-over.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// Since when this node leads in which term.
    led: Mutex<Option<(u64, Instant)>>,
    /// This node stops: it does not want the group.
    leaving: AtomicBool,
}

impl Gate {
    /// Held while something is put into the log.
    pub(super) async fn pass(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read().await
    }

    /// Remembers when the leadership began.
    fn observe(&self, now: &Metrics) {
        let mut led = self.led.lock();
        if now.state != ServerState::Leader {
            *led = None;
        } else if led.is_none_or(|(term, _)| term != now.current_term) {
            *led = Some((now.current_term, Instant::now()));
        }
    }

    fn leads_long_enough(&self) -> bool {
        self.led.lock().is_some_and(|(_, since)| since.elapsed() >= LEADS_AT_LEAST)
    }
}

fn not_now(why: &str) -> StorageError {
    StorageError::Unavailable(format!("the group is not handed over: {why}"))
}

impl RaftGroup {
    /// Watches the leadership until the group stops.
    pub(super) async fn run_gate(self) {
        let mut metrics = self.raft.metrics();
        loop {
            self.gate.observe(&metrics.borrow_and_update());
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// See [`crate::Store::hand_over`].
    pub(crate) async fn hand_over(&self, to: u64) -> Result<(), StorageError> {
        let _one = self.gate.turn.try_lock().map_err(|_| not_now("its members change"))?;
        let to = self.heir(to)?;
        let closed = tokio::time::timeout(SETTLE_TIMEOUT, self.gate.lock.write());
        let _closed = closed.await.map_err(|_| not_now("proposals do not get into the log"))?;
        let last = self.settled_with(to.node_id).await?;
        match self.network.call(&to, Request::Elect(last), SETTLE_TIMEOUT).await {
            Ok(Answer::Electing) => {}
            Ok(Answer::Failed(reason)) => return Err(not_now(&reason)),
            Ok(other) => return Err(not_now(&format!("unexpected answer {other:?}"))),
            // It may elect all the same.
            Err(error) => tracing::debug!(%error, "a voter that is to lead did not answer"),
        }
        let mut metrics = self.raft.metrics();
        let leads = metrics.wait_for(|now| now.current_leader == Some(to.node_id));
        match tokio::time::timeout(ELECT_TIMEOUT, leads).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(not_now("the voter does not lead yet")),
        }
    }

    /// The voter `to`, when it could lead at once.
    fn heir(&self, to: u64) -> Result<PeerAddress, StorageError> {
        if !self.gate.leads_long_enough() {
            return Err(not_now("this node does not lead it, or not for long enough"));
        }
        let metrics = self.raft.metrics();
        let now = metrics.borrow();
        let membership = now.membership_config.membership();
        let is_voter = membership.voter_ids().any(|voter| voter == to) && to != now.id;
        let node = membership.get_node(&to).filter(|_| is_voter);
        let node = node.ok_or_else(|| not_now("the node is no voter"))?;
        let last = now.last_log_index.unwrap_or_default();
        if matched(&now, to).map_or(0, |id| id.index) + LAG_MAX < last {
            return Err(not_now("the node is behind"));
        }
        Ok(PeerAddress { node_id: to, address: node.addr.clone() })
    }

    /// Waits until the log is applied here and `to` has it; its last entry.
    async fn settled_with(&self, to: u64) -> Result<LogId, StorageError> {
        let settled = async {
            // openraft may hold proposals that passed the gate and are not in the log yet, and the metrics lag behind the log. It takes
            // what it is asked in order: once it answers this, the log has them all. An heir that misses one loses the vote.
            self.raft.with_raft_state(|_| ()).await.ok()?;
            let last = self.log.last_log_id()?;
            let mut metrics = self.raft.metrics();
            let settled = metrics.wait_for(|now| {
                now.state == ServerState::Leader
                    && now.last_applied == Some(last)
                    && matched(now, to) == Some(last)
            });
            settled.await.ok().map(|_| last)
        };
        let last = tokio::time::timeout(SETTLE_TIMEOUT, settled).await;
        last.ok().flatten().ok_or_else(|| not_now("the node does not catch up"))
    }

    /// The leader wants this node to lead.
    pub(super) async fn elect(&self, last: LogId) -> Answer {
        if self.gate.leaving.load(Ordering::Acquire) {
            return Answer::Failed("this node stops".to_owned());
        }
        let has = self.raft.metrics().borrow().last_log_index;
        if has < Some(last.index) {
            return Answer::Failed("this node is behind".to_owned());
        }
        match self.raft.trigger().elect().await {
            Ok(()) => Answer::Electing,
            Err(error) => Answer::Failed(error.to_string()),
        }
    }

    /// This node does not lead the group from now on, if another voter can.
    pub(crate) fn leave(&self) {
        self.gate.leaving.store(true, Ordering::Release);
    }
}

fn matched(now: &Metrics, node: u64) -> Option<LogId> {
    now.replication.as_ref()?.get(&node).copied().flatten()
}

/// The hand-over that makes the leaders of `groups` more even: from `own`, when it leads at least two more than a voter that is
/// `reachable`. `None`: they are even enough, or another node's turn.
pub(crate) fn next_step(
    own: u64,
    groups: &[GroupStatus],
    reachable: &[u64],
) -> Option<(crate::GroupId, u64)> {
    let led = |node: u64| groups.iter().filter(|group| group.leader == Some(node)).count();
    let of_own = groups.iter().filter(|group| group.leader == Some(own));
    let heirs = of_own.flat_map(|group| {
        let voters = group.voters.iter().copied().filter(|voter| *voter != own && reachable.contains(voter));
        voters.map(|voter| (led(voter), voter, group.group))
    });
    let (count, to, group) = heirs.min()?;
    (count + 2 <= led(own)).then_some((group, to))
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;
    use crate::GroupId;

    fn groups(leaders: &[u64]) -> Vec<GroupStatus> {
        let group = |(at, leader): (u16, &u64)| GroupStatus {
            group: GroupId(at),
            term: 1,
            leader: Some(*leader),
            role: Role::Follower,
            last_index: 1,
            applied_index: 1,
            voters: vec![1, 2, 3],
            nodes: Vec::new(),
        };
        (0..).zip(leaders).map(group).collect()
    }

    /// DESIGN §5: leaders end up even, step by step, whoever begins; then nothing moves any more.
    #[test]
    fn leaders_become_even_and_stay() {
        for start in [[1, 1, 1, 1], [2, 2, 2, 1], [3, 3, 3, 3], [1, 1, 2, 2], [1, 2, 3, 3]] {
            let mut leaders = start;
            let mut steps = 0;
            while let Some((group, to)) =
                (1..=3).find_map(|own| next_step(own, &groups(&leaders), &[1, 2, 3]))
            {
                leaders[usize::from(group.0)] = to;
                steps += 1;
                assert!(steps <= 4, "{start:?}");
            }
            let mut counts = [1, 2, 3].map(|node| leaders.iter().filter(|leader| **leader == node).count());
            counts.sort_unstable();
            assert_eq!(counts, [1, 1, 2], "{start:?}");
        }
    }

    /// A node that cannot be reached gets nothing.
    #[test]
    fn a_node_that_is_away_gets_no_group() {
        assert_eq!(next_step(1, &groups(&[1, 1, 1, 1]), &[]), None);
        assert_eq!(next_step(1, &groups(&[1, 1, 2, 2]), &[2]), None);
        assert_eq!(next_step(1, &groups(&[1, 1, 1, 2]), &[2]), Some((GroupId(0), 2)));
    }
}
