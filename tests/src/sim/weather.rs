//! What a run is about: all faults over each other, or one combination that few such runs meet, again and again. The seed says which.

use std::sync::Arc;

use super::calls::ms;
use super::faults::{hear_again, leader, silence, start_later};
use super::world::World;

/// What goes wrong in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// All faults, one after the other and over each other.
    Mixed,
    /// Power cuts that tear off what was not synced.
    Power,
    /// Leases that end while their last renewal is under way.
    Leases,
    /// Messages that come late, twice and in another order.
    Late,
}

impl Weather {
    #[must_use]
    pub fn of(seed: u64) -> Self {
        match seed % 8 {
            1 => Self::Power,
            3 => Self::Leases,
            5 => Self::Late,
            _ => Self::Mixed,
        }
    }
}

/// The power goes while the leader's disk is far ahead of the others, and the leader comes back last: what it alone had synced is not in the
/// log that goes on, so nobody may have been told of it (P4).
pub async fn tear_tails(world: &Arc<World>) {
    let Some(ahead) = leader(world) else { return };
    crate::step!(world, "only the disk of node {} is quick", ahead + 1);
    for at in (0..world.nodes()).filter(|at| *at != ahead) {
        *world.machines[at].sync_ms.lock() = (300, 700);
    }
    tokio::time::sleep(ms(world.chance.between(50, 900))).await;
    if world.is_calm() {
        return;
    }
    crate::step!(world, "the power goes");
    for at in 0..world.nodes() {
        *world.machines[at].sync_ms.lock() = (0, 3);
        world.crash(at);
        let pause = if at == ahead { (2_500, 4_000) } else { (20, 200) };
        start_later(world, at, world.chance.between(pause.0, pause.1));
    }
    tokio::time::sleep(ms(world.chance.between(3_000, 5_000))).await;
}

/// A renewal is committed, its node hears of it late and is not heard any more from that commit on, and somebody attests that it is off: its
/// local lease must be over by then, though the reply came more than the drift after the commit (DESIGN §4, §7).
pub async fn outlive_renewal(world: &Arc<World>) {
    let Some(first) = leader(world) else { return };
    let at = (first + 1 + world.chance.index(world.nodes() - 1)) % world.nodes();
    let (Some(helper), Some(node)) = (world.node(first), world.node(at)) else { return };
    crate::step!(world, "node {} hears late", at + 1);
    for other in (0..world.nodes()).filter(|other| *other != at) {
        world.set_link(other, at, |link| link.delay_ms = (700, 1_100));
    }
    let renewed = || helper.raft.lock().group.boot(&node.boot).map(|row| row.revision);
    let (before, end) = (renewed(), world.now_ms() + RENEWAL_MS);
    while renewed() == before && world.now_ms() < end && !world.is_calm() {
        tokio::time::sleep(ms(5)).await;
    }
    if !world.is_calm() {
        silence(&node, &helper, world.chance.happens(500)).await;
    }
    hear_again(world, at);
}

/// What is said to a node and by it comes late, and often twice: a request to stop an owner may come when its successor is there (P3).
pub async fn late_calls(world: &Arc<World>) {
    let at = world.chance.index(world.nodes());
    let most = world.chance.between(200, 1_200);
    crate::step!(world, "what node {} says and hears is late, up to {most} ms, and comes twice", at + 1);
    let set = |delay_ms: (u64, u64), twice_per_mille: u64| {
        for other in (0..world.nodes()).filter(|other| *other != at) {
            for (from, to) in [(at, other), (other, at)] {
                world.set_link(from, to, |link| {
                    link.delay_ms = delay_ms;
                    link.twice_per_mille = twice_per_mille;
                });
            }
        }
    };
    set((0, most), 500);
    tokio::time::sleep(ms(world.chance.between(1_000, 3_000))).await;
    set((0, 3), 0);
}

/// Within this a node that serves renews its lease, also over slow links.
const RENEWAL_MS: u64 = 6_000;
