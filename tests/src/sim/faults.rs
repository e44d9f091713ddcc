//! What goes wrong, and the operator: crashes, stops, partitions, slow disks, stepping clocks, leader changes, retirements right and
//! mistaken, Ends. And the elections of the abstract log.

use std::sync::Arc;

use broker::clock::TimeSource as _;
use broker::usecase::EndInput;
use session::lifecycle::{EndReason, WillMode};

use super::calls::ms;
use super::mutant::Mutant;
use super::node::Node;
use super::weather::{Weather, late_calls, outlive_renewal, tear_tails};
use super::world::{DRIFT_MS, LEASE_MS, World, key};

const HOUR_MS: i64 = 3_600_000;

/// Holds elections while the run lasts.
pub async fn elect(world: Arc<World>) {
    let mut headless = 0;
    loop {
        tokio::time::sleep(ms(40)).await;
        headless = if leader(&world).is_some() { 0 } else { headless + 1 };
        if headless >= 2 {
            elect_one(&world);
        }
    }
}

fn reach(world: &World, at: usize) -> Vec<usize> {
    (0..world.nodes()).filter(|other| world.talk(at, *other)).collect()
}

/// The node that leads in the newest term and reaches a majority.
pub fn leader(world: &Arc<World>) -> Option<usize> {
    let terms = world.alive().iter().map(|node| node.disk().term).max().unwrap_or(0);
    let leads = |node: &&Arc<Node>| {
        let leads = node.raft.lock().leads() && node.disk().term == terms;
        leads && reach(world, node.at).len() > world.nodes() / 2
    };
    world.alive().iter().find(leads).map(|node| node.at)
}

/// A candidate whose log is as new as that of each in a majority that it reaches wins their votes.
pub fn elect_one(world: &Arc<World>) {
    let mut candidates: Vec<usize> = (0..world.nodes()).collect();
    let shift = world.chance.index(world.nodes());
    candidates.rotate_left(shift);
    let newest = |at: usize| {
        let disk = world.machines[at].disk.lock();
        (disk.term_at(disk.last()).unwrap_or(0), disk.last())
    };
    for at in candidates {
        let voters: Vec<usize> =
            reach(world, at).into_iter().filter(|voter| newest(*voter) <= newest(at)).collect();
        if voters.len() <= world.nodes() / 2 {
            continue;
        }
        let Some(node) = world.node(at) else { continue };
        let term = 1 + voters.iter().map(|voter| world.machines[*voter].disk.lock().term).max().unwrap_or(0);
        crate::step!(world, "node {} leads in term {term}", at + 1);
        for voter in voters.iter().filter(|voter| **voter != at) {
            if let Some(other) = world.node(*voter) {
                let mut disk = other.disk();
                other.raft.lock().follow(&mut disk, term, Some(at));
            }
        }
        let out = {
            let mut disk = node.disk();
            node.raft.lock().win(&mut disk, term)
        };
        node.act(out);
        return;
    }
}

/// Breaks things until the run is calm.
pub async fn rage(world: Arc<World>) {
    while !world.is_calm() {
        tokio::time::sleep(ms(world.chance.between(50, 1_200))).await;
        if world.is_calm() {
            return;
        }
        match world.weather {
            Weather::Mixed => break_something(&world),
            Weather::Power => tear_tails(&world).await,
            Weather::Leases => outlive_renewal(&world).await,
            Weather::Late => late_calls(&world).await,
        }
    }
}

/// One fault of all, over those that last.
fn break_something(world: &Arc<World>) {
    let at = world.chance.index(world.nodes());
    match world.chance.below(16) {
        0 | 1 => crash(world, at),
        2..=4 => stop(world, at),
        5 => cut_off(world, at, true, true),
        6 => {
            let outgoing = world.chance.happens(500);
            cut_off(world, at, outgoing, !outgoing);
        }
        7 => slow_links(world, at),
        8 => slow_disk(world, at),
        9 => step_clock(world, at),
        10 => {
            crate::step!(world, "the leader is deposed");
            elect_one(world);
        }
        11 => copy_directory(world, at),
        12 | 13 => outlive(world, at),
        14 if world.chance.happens(500) => power_cut(world),
        _ => retire(world, at),
    }
}

/// All nodes at once: what a majority has not synced is gone.
fn power_cut(world: &Arc<World>) {
    crate::step!(world, "the power goes");
    (0..world.nodes()).for_each(|at| crash(world, at));
}

fn crash(world: &Arc<World>, at: usize) {
    world.crash(at);
    start_later(world, at, world.chance.between(20, 4_000));
}

/// Starts the process of a machine again, unless something else does before.
pub fn start_later(world: &Arc<World>, at: usize, pause_ms: u64) {
    let world = world.clone();
    tokio::spawn(async move {
        tokio::time::sleep(ms(pause_ms)).await;
        if !world.is_calm() && world.node(at).is_none_or(|node| node.power.is_dead()) {
            world.start(at);
        }
    });
}

/// SIGSTOP, and SIGCONT later, maybe long after the lease.
fn stop(world: &Arc<World>, at: usize) {
    let Some(node) = world.node(at).filter(|node| node.power.runs()) else { return };
    let pause = world.chance.between(50, if world.chance.happens(300) { 9_000 } else { 1_500 });
    crate::step!(world, "node {} is stopped for {pause} ms", at + 1);
    node.power.freeze();
    let world = world.clone();
    tokio::spawn(async move {
        tokio::time::sleep(ms(pause)).await;
        crate::step!(world, "node {} goes on", node.at + 1);
        node.power.thaw();
    });
}

/// A partition, symmetric or one-way.
fn cut_off(world: &Arc<World>, at: usize, outgoing: bool, incoming: bool) {
    let pause = world.chance.between(100, if world.chance.happens(300) { 8_000 } else { 1_500 });
    crate::step!(
        world,
        "node {} is cut off for {pause} ms, outgoing {outgoing}, incoming {incoming}",
        at + 1
    );
    let set = move |world: &World, cut: bool| {
        for other in (0..world.nodes()).filter(|other| *other != at) {
            if outgoing {
                world.set_link(at, other, |link| link.cut = cut);
            }
            if incoming {
                world.set_link(other, at, |link| link.cut = cut);
            }
        }
    };
    set(world, true);
    let world = world.clone();
    tokio::spawn(async move {
        tokio::time::sleep(ms(pause)).await;
        crate::step!(world, "node {} is linked again", at + 1);
        set(&world, false);
    });
}

fn slow_links(world: &Arc<World>, at: usize) {
    let most = world.chance.between(5, 900);
    let (loss, twice) = (world.chance.below(200), world.chance.below(200));
    crate::step!(world, "links of node {} are slow: up to {most} ms, {loss} lost, {twice} twice", at + 1);
    for other in 0..world.nodes() {
        for (from, to) in [(at, other), (other, at)] {
            world.set_link(from, to, |link| {
                link.delay_ms = (0, most);
                link.loss_per_mille = loss;
                link.twice_per_mille = twice;
            });
        }
    }
    let (world, pause) = (world.clone(), ms(world.chance.between(200, 3_000)));
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        for other in 0..world.nodes() {
            for (from, to) in [(at, other), (other, at)] {
                world.set_link(from, to, |link| {
                    link.delay_ms = (0, 3);
                    link.loss_per_mille = 0;
                    link.twice_per_mille = 0;
                });
            }
        }
    });
}

fn slow_disk(world: &Arc<World>, at: usize) {
    let most = world.chance.between(20, 700);
    crate::step!(world, "the disk of node {} is slow: up to {most} ms", at + 1);
    *world.machines[at].sync_ms.lock() = (most / 4, most);
    let (world, pause) = (world.clone(), ms(world.chance.between(200, 4_000)));
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        *world.machines[at].sync_ms.lock() = (0, 3);
    });
}

fn step_clock(world: &Arc<World>, at: usize) {
    let step = *world.chance.pick(&[HOUR_MS, -HOUR_MS, 700, -700]);
    crate::step!(world, "the wall clock of node {} steps by {step} ms", at + 1);
    if let Some(node) = world.node(at).filter(|node| !node.power.is_dead()) {
        node.time.step_wall(step);
    }
}

/// The mutant: a second host with a copy of the directory mints the receipt of a boot that lives.
fn copy_directory(world: &Arc<World>, at: usize) {
    if !world.has(Mutant::CopiedDirectory) {
        return;
    }
    let Some(node) = world.node(at).filter(|node| !node.power.is_dead()) else { return };
    let Some(helper) = helper(world, at) else { return };
    let (boot, observed_at) = (node.boot.clone(), helper.clock.millis());
    let proof = session::lifecycle::RetireProof::CrashReceipt;
    crate::step!(world, "a copy of the directory of node {} proves its end", at + 1);
    drop(helper.ask(session::lifecycle::Command::BootRetire { boot, proof, observed_at }));
}

fn helper(world: &Arc<World>, not: usize) -> Option<Arc<Node>> {
    (0..world.nodes()).filter(|at| *at != not).filter_map(|at| world.node(at)).find(|node| node.power.runs())
}

/// An operator attests that a node is off. Now and then that is not true.
fn retire(world: &Arc<World>, at: usize) {
    let Some(node) = world.node(at) else { return };
    let off = node.power.is_dead();
    if !off && !world.chance.happens(700) {
        return;
    }
    let Some(helper) = helper(world, at) else { return };
    crate::step!(world, "node {} is attested to be off by node {}; truly: {off}", at + 1, helper.at + 1);
    let (boot, power) = (node.boot.clone(), helper.power.clone());
    power.spawn(async move {
        let retired = helper.retire_attested(&boot).await;
        crate::step!(helper.world, "attestation of {} at node {}: {retired}", boot.boot_id, helper.at + 1);
    });
}

/// The worst for a lease: its renewals are committed and heard of late, then it is not renewed any more, and somebody attests that the node
/// is off, on a clock that steps.
fn outlive(world: &Arc<World>, at: usize) {
    let Some(node) = world.node(at).filter(|node| node.power.runs()) else { return };
    let Some(helper) = helper(world, at) else { return };
    crate::step!(world, "node {} hears late", at + 1);
    for other in (0..world.nodes()).filter(|other| *other != at) {
        world.set_link(other, at, |link| link.delay_ms = (800, 1_200));
    }
    let (pause, steps) = (world.chance.between(1_200, 3_500), world.chance.happens(500));
    let world = world.clone();
    tokio::spawn(async move {
        tokio::time::sleep(ms(pause)).await;
        if !world.is_calm() {
            silence(&node, &helper, steps).await;
        }
        hear_again(&world, at);
    });
}

/// `node` is not heard any more, and `helper` attests that it is off, on a wall clock that may step. Until well after the lease.
pub async fn silence(node: &Arc<Node>, helper: &Arc<Node>, steps: bool) {
    let (world, at) = (&node.world, node.at);
    crate::step!(world, "node {} is not heard any more, and attested to be off", at + 1);
    for other in (0..world.nodes()).filter(|other| *other != at) {
        world.set_link(at, other, |link| link.cut = true);
    }
    let (boot, attesting) = (node.boot.clone(), helper.clone());
    helper.power.spawn(async move {
        let retired = attesting.retire_attested(&boot).await;
        crate::step!(attesting.world, "attestation of {}: {retired}", boot.boot_id);
    });
    tokio::time::sleep(ms(200)).await;
    if steps {
        helper.time.step_wall(HOUR_MS);
    }
    tokio::time::sleep(ms(LEASE_MS + 2 * DRIFT_MS)).await;
}

pub fn hear_again(world: &World, at: usize) {
    for other in (0..world.nodes()).filter(|other| *other != at) {
        world.set_link(at, other, |link| link.cut = false);
        world.set_link(other, at, |link| link.delay_ms = (0, 3));
    }
}

/// Ends sessions of volatile clients now and then.
pub async fn operate(world: Arc<World>, names: Vec<String>) {
    while !world.is_closing() {
        tokio::time::sleep(ms(world.chance.between(100, 1_500))).await;
        let name: &String = world.chance.pick(&names);
        let key = key(name);
        let at = world.chance.index(world.nodes());
        let Some(node) = world.node(at).filter(|node| node.power.runs()) else { continue };
        let owner = node.raft.lock().group.session(&key).map(|row| row.owner.clone());
        let Some(owner) = owner else { continue };
        let will = WillMode::Publish;
        world.oracle.wants_end(&owner, will);
        crate::step!(
            world,
            "End of owner {} of {} by node {}",
            owner.owner_generation,
            key.client_id,
            at + 1
        );
        let power = node.power.clone();
        power.spawn(async move {
            let input = EndInput { owner: owner.clone(), reason: EndReason::Revoked, will, release: false };
            let outcome = node.end(&input).await;
            crate::step!(
                node.world,
                "End of owner {} of {}: {:?}",
                owner.owner_generation,
                owner.key.client_id,
                outcome.as_ref().err()
            );
            if outcome.is_ok() {
                node.world.oracle.ended(&node.world, &owner);
            }
        });
    }
}

/// Everything works again.
pub fn heal(world: &Arc<World>) {
    crate::step!(world, "everything is healed");
    world.calm.store(true, std::sync::atomic::Ordering::Relaxed);
    world.calm_links();
    for at in 0..world.nodes() {
        *world.machines[at].sync_ms.lock() = (0, 3);
        match world.node(at).filter(|node| !node.power.is_dead()) {
            Some(node) => node.power.thaw(),
            None => world.start(at),
        }
    }
    // Hybrid time may be an hour ahead of every wall clock: that hour passes now.
    let ahead = world.alive().iter().map(|node| node.clock.millis()).max().unwrap_or_default();
    for node in world.alive() {
        node.time.raise_wall(ahead);
        debug_assert!(node.time.wall() >= ahead);
    }
}
