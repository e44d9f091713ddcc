//! What must always hold, looked at from outside: P1 to P8 over all nodes at once, and the invariants of `session` after every entry.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use broker::clock::NodeClock;
use broker::owners::Owners;
use parking_lot::Mutex;
use session::id::{Boot, Key, Owner};
use session::lifecycle::{Command, DisconnectKind, Group, Reply, Stamp, WillKey, WillMode, WillStage};
use session::owner::Quiesce;

use super::connection::ToClient;
use super::duties::will_key;
use super::node::Node;
use super::raft::{Applied, Disk, Rows, difference, rows_of};
use super::world::World;

/// Entries between two comparisons of all rows of all nodes.
const DIGEST_EVERY: u64 = 8;
/// Entries between two checks of a group against itself.
const CHECK_EVERY: u64 = 4;
/// States that are kept for comparison.
const ROWS_KEPT: usize = 64;
/// Groups with more sessions are not checked whole.
const SESSIONS_CHECKED: u64 = 1_000;

#[derive(Debug, Default)]
pub struct Oracle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Hash of the entry that was committed under each index.
    committed: BTreeMap<u64, u64>,
    /// All rows after some entries, for the nodes that are behind.
    digests: BTreeMap<u64, Rows>,
    /// Whom each committed owner replaced.
    previous: BTreeMap<Owner, Option<Owner>>,
    /// In which order owners were accepted, and the last one of each session.
    order: BTreeMap<Owner, u64>,
    last: BTreeMap<Key, u64>,
    /// Owners that somebody wants to be stopped.
    asked: BTreeSet<Owner>,
    ended: BTreeSet<Owner>,
    users: BTreeMap<Key, Arc<str>>,
    wills: BTreeMap<WillKey, Owner>,
    /// Owners whose Will went out.
    fired: BTreeSet<Owner>,
    /// Owners who said goodbye, as recorded.
    normal: BTreeSet<Owner>,
    /// How an operator wanted the Will of an owner to be treated.
    wanted: BTreeMap<Owner, WillMode>,
    published: BTreeSet<WillKey>,
    cancelled: BTreeSet<WillKey>,
    /// Boots that are proved to be over.
    retired: BTreeSet<Arc<str>>,
    pub entries: u64,
}

impl Oracle {
    /// A node applied entries. Called under its locks.
    pub fn applied(&self, world: &World, node: &Node, group: &Group, disk: &Disk, applied: &[Applied]) {
        let mut state = self.0.lock();
        for one in applied {
            let mut hasher = DefaultHasher::new();
            if let Some(entry) = disk.entry(one.index) {
                (entry.term, entry.serial, &entry.batch[..]).hash(&mut hasher);
            }
            let hash = hasher.finish();
            let known = state.committed.get(&one.index).copied();
            match known {
                Some(known) if known != hash => {
                    world.fail(&format!("P4: entry {} was committed, another one took its place", one.index));
                }
                Some(_) => {}
                None => {
                    if state.committed.last_key_value().is_some_and(|(last, _)| *last > one.index) {
                        world
                            .fail(&format!("P4: entry {} was not committed before its successor", one.index));
                    }
                    state.committed.insert(one.index, hash);
                    state.entries += 1;
                    state.first(world, node, one);
                }
            }
        }
        let Some(last) = applied.last() else { return };
        let stat = group.stat();
        if stat.sessions_active + stat.sessions_offline > SESSIONS_CHECKED {
            return;
        }
        if last.index % CHECK_EVERY == 0
            && let Err(violation) = group.check()
        {
            world.fail(&format!("node {}: {violation}", node.at + 1));
        }
        if last.index % DIGEST_EVERY == 0 && group.applied() == last.index {
            let rows = rows_of(group);
            let known = state.digests.entry(last.index).or_insert_with(|| rows.clone());
            if let Some(what) = difference(known, &rows) {
                world.fail(&format!("L1: node {} after entry {}: {what}", node.at + 1, last.index));
            }
            if state.digests.len() > ROWS_KEPT {
                state.digests.pop_first();
            }
        }
    }

    /// A connection got its owner and is about to be told: P2, P8.
    pub fn connected(&self, world: &Arc<World>, owner: &Owner, uid: &Arc<str>) {
        let previous = {
            let mut state = self.0.lock();
            let order = state.order.len() as u64 + 1;
            state.order.insert(owner.clone(), order);
            state.last.insert(owner.key.clone(), order);
            if let Some(bound) = state.users.get(&owner.key).filter(|bound| *bound != uid) {
                world.fail(&format!("P8: {uid} got the session {} of {bound}", owner.key.client_id));
            }
            state.previous.get(owner).cloned().flatten()
        };
        if let Some(previous) = previous
            && let Some(why) = still_runs(world, &previous)
        {
            let (name, generation) = (&owner.key.client_id, owner.owner_generation);
            world.fail(&format!("P2: owner {generation} of {name} is accepted, its predecessor {why}"));
        }
    }

    /// The session belongs to this user from now on, and stays.
    pub fn binds(&self, key: &Key, uid: &Arc<str>) {
        self.0.lock().users.insert(key.clone(), uid.clone());
    }

    /// An owner writes to its client: P1, P3, P6.
    pub fn acts(&self, world: &World, owner: &Owner, packet: &ToClient) {
        let state = self.0.lock();
        let (name, generation) = (&owner.key.client_id, owner.owner_generation);
        if state.order.get(owner) < state.last.get(&owner.key) {
            world.fail(&format!("P1: owner {generation} of {name} writes {packet} after its successor"));
        }
        if state.retired.contains(&owner.boot_id) {
            world.fail(&format!(
                "P1: owner {generation} of {name} writes {packet}, though its boot is retired"
            ));
        }
        if state.ended.contains(owner) {
            world.fail(&format!("P3: owner {generation} of {name} writes {packet} after its End"));
        }
        if state.fired.contains(owner) {
            world.fail(&format!("P6: owner {generation} of {name} writes {packet} after its Will"));
        }
    }

    /// A use case wants this owner to be stopped.
    pub fn asked(&self, owner: &Owner) {
        self.0.lock().asked.insert(owner.clone());
    }

    /// The lease of a boot ran out: all its owners of now stop.
    pub fn lapsed(&self, boot: &Boot) {
        let mut state = self.0.lock();
        let owners: Vec<Owner> =
            state.order.keys().filter(|owner| owner.boot_id == boot.boot_id).cloned().collect();
        state.asked.extend(owners);
    }

    /// The registry asks a socket to close: somebody must have wanted that, or the lease is over (P3: no successor is touched).
    pub fn closes(&self, world: &World, clock: &NodeClock, owner: &Owner, owners: &Owners) {
        if !self.0.lock().asked.contains(owner) && !owners.lapsed_at(clock.tick()) {
            let (name, generation) = (&owner.key.client_id, owner.owner_generation);
            world.fail(&format!("P3: owner {generation} of {name} is closed, and nobody asked for it"));
        }
    }

    /// An operator is about to End this owner.
    pub fn wants_end(&self, owner: &Owner, will: WillMode) {
        self.0.lock().wanted.insert(owner.clone(), will);
    }

    /// End returned.
    pub fn ended(&self, world: &Arc<World>, owner: &Owner) {
        self.0.lock().ended.insert(owner.clone());
        if let Some(why) = still_runs(world, owner) {
            let (name, generation) = (&owner.key.client_id, owner.owner_generation);
            world.fail(&format!("P3: End of owner {generation} of {name} returned, but it {why}"));
        }
    }

    /// Entries that were committed.
    pub fn entries(&self) -> u64 {
        self.0.lock().entries
    }

    /// Wills that were published.
    pub fn wills_published(&self) -> u64 {
        self.0.lock().published.len() as u64
    }
}

impl State {
    /// The first node that applies an entry tells what it did.
    fn first(&mut self, world: &World, node: &Node, one: &Applied) {
        for (command, reply) in one.batch.commands.iter().zip(&one.outcome.replies) {
            match (command, reply) {
                (Command::Connect(connect), Reply::Row { row, unchanged: false, .. }) => {
                    let previous = connect.previous.as_ref().map(|(_, owner)| owner.clone());
                    self.previous.insert(connect.owner.clone(), previous);
                    if row.will_generation != 0 {
                        self.wills.insert(will_key(row), row.owner.clone());
                    }
                }
                (Command::Disconnect(disconnect), Reply::Row { .. })
                    if disconnect.kind == DisconnectKind::Normal =>
                {
                    self.normal.insert(disconnect.owner.clone());
                }
                (Command::Append(append), Reply::Appended { duplicate: false, .. }) => {
                    if let Some(Stamp::Will(will)) = &append.stamp {
                        self.fires(world, will);
                    }
                }
                (Command::End(end), Reply::Row { unchanged: false, .. }) => {
                    let lost = one.outcome.wills.iter().any(|(will, stage)| {
                        *stage == WillStage::Cancelled && self.wills.get(will) == Some(&end.owner)
                    });
                    let wanted = self.wanted.get(&end.owner) == Some(&WillMode::Publish);
                    if lost && wanted && !self.normal.contains(&end.owner) {
                        world.fail(&format!("P6: End of {} lost the Will", end.owner.key.client_id));
                    }
                }
                (
                    Command::BootRetire { boot, .. } | Command::BootRetireSilent { boot, .. },
                    Reply::Done { unchanged: false, .. },
                ) => self.retires(world, boot),
                _ => {}
            }
        }
        for (will, stage) in &one.outcome.wills {
            self.settles(world, will, *stage);
        }
        let kinds: Vec<&str> = one.batch.commands.iter().map(kind).collect();
        crate::step!(
            world,
            "entry {} of {}: {kinds:?} first at node {}",
            one.index,
            one.batch.boot.boot_id,
            node.at + 1
        );
    }

    /// A successor may run from now on: what proves the end of the boot must not be early.
    fn retires(&mut self, world: &World, boot: &Boot) {
        crate::step!(world, "{} is retired", boot.boot_id);
        self.retired.insert(boot.boot_id.clone());
        let lives = |node: &&Arc<Node>| node.boot == *boot && node.owners.lease_until() > node.clock.tick();
        if let Some(node) = world.alive().iter().find(lives) {
            let (boot_id, number) = (&boot.boot_id, node.at + 1);
            world.fail(&format!("P1: {boot_id} is retired while its lease runs at node {number}"));
        }
    }

    fn settles(&mut self, world: &World, will: &WillKey, stage: WillStage) {
        let (session, number) = (will.session_generation, will.will_generation);
        crate::step!(world, "Will {session}/{number} of {} is {stage:?}", will.key.client_id);
        if stage == WillStage::Published && !self.published.insert(will.clone()) {
            world.fail(&format!("P6: a Will of {} was published twice", will.key.client_id));
        }
        if stage == WillStage::Cancelled {
            self.cancelled.insert(will.clone());
        }
    }

    fn fires(&mut self, world: &World, will: &WillKey) {
        let Some(owner) = self.wills.get(will).cloned() else { return };
        if self.normal.contains(&owner) {
            world.fail(&format!("P6: the Will of {} went out after its DISCONNECT", owner.key.client_id));
        }
        if self.cancelled.contains(will) {
            world.fail(&format!("P6: the Will of {} went out, and it was cancelled", owner.key.client_id));
        }
        let serves = |node: &&Arc<Node>| {
            let same = node.boot.boot_id == owner.boot_id && !self.retired.contains(&owner.boot_id);
            same && node.sockets.is_open(&owner) && node.owners.lease_until() > node.clock.tick()
        };
        if world.alive().iter().any(|node| serves(&node)) {
            world
                .fail(&format!("P6: the Will of {} went out while its owner may serve", owner.key.client_id));
        }
        self.fired.insert(owner);
    }
}

/// Why the process of an owner can still act for it; `None`: it cannot, or its boot is retired and lives by its lease at most.
fn still_runs(world: &Arc<World>, owner: &Owner) -> Option<&'static str> {
    let alive = world.alive();
    let process = alive.iter().find(|node| node.boot.boot_id == owner.boot_id)?;
    let retired = |node: &Arc<Node>| {
        node.raft.lock().group.boot(&process.boot).is_some_and(|row| row.retired.is_some())
    };
    if alive.iter().any(retired) {
        return None;
    }
    if process.sockets.is_open(owner) {
        return Some("has an open socket");
    }
    match process.owners.registry().quiesce(process.clock.tick(), owner, None) {
        Ok(Quiesce::Proved) => None,
        _ => Some("has admitted work"),
    }
}

fn kind(command: &Command) -> &'static str {
    match command {
        Command::BootStart { .. } => "BootStart",
        Command::BootRenew { .. } => "BootRenew",
        Command::BootRetire { .. } => "BootRetire",
        Command::BootRetireSilent { .. } => "BootRetireSilent",
        Command::Connect(_) => "Connect",
        Command::Disconnect(_) => "Disconnect",
        Command::End(_) => "End",
        Command::Reconcile { .. } => "Reconcile",
        Command::Subscribe { .. } => "Subscribe",
        Command::Append(_) => "Append",
        Command::Ack { .. } => "Ack",
        Command::Receive { .. } => "Receive",
        Command::Release { .. } => "Release",
        Command::WillClaim { .. } => "WillClaim",
        Command::WillPublished { .. } => "WillPublished",
        Command::Reclaim { .. } => "Reclaim",
        Command::Sent { .. } => "Sent",
        _ => "other",
    }
}
