//! One group of a backup becomes the first state of a new cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use openraft::{BasicNode, CommittedLeaderId, Membership as Voters};
use session::lifecycle::{GroupStat, RetireProof};
use session::time::Millis;

use super::machine::{Meta, changed_rows, load, load_rows};
use super::snapshot::SnapshotData;
use super::{LogId, Membership};
use crate::StorageError;
use crate::engine::Engine;

/// Fills an empty engine with the group in the snapshot file at `path`, which goes. Its only voter is `node_id`; every boot in it is retired by
/// `proof`. How many those were, and what the group holds now.
pub(crate) fn restore_group(
    engine: &dyn Engine,
    path: PathBuf,
    (groups, node_id): (u16, u64),
    at: Millis,
    proof: &RetireProof,
) -> Result<(u64, GroupStat), StorageError> {
    let (snapshot, found) = verify(path, groups)?;
    // Entries keep their numbers: lifetimes and revisions go on from there. Terms begin anew with the new cluster.
    let index = found.applied.map_or(0, |applied| applied.index) + 1;
    let applied = LogId::new(CommittedLeaderId::new(0, 0), index);
    let voters =
        Voters::new(vec![BTreeSet::from([node_id])], BTreeMap::from([(node_id, BasicNode::default())]));
    let mut meta = found;
    meta.applied = Some(applied);
    meta.membership = Membership::new(Some(applied), voters);
    meta.at = meta.at.max(at);
    engine.replace(&mut |put| snapshot.rows(put), &meta.encode())?;
    let mut group = load(engine)?;
    let retired = group.retire_all(index, meta.at, proof);
    engine.write(&changed_rows(&mut group), &meta.encode())?;
    Ok((retired, group.stat()))
}

/// Reads the snapshot file at `path`, which goes, as a group of a backup.
pub(crate) fn check_group(path: PathBuf, groups: u16) -> Result<(), StorageError> {
    let (snapshot, _) = verify(path, groups)?;
    load_rows(|visit| snapshot.rows(visit)).map(drop)
}

fn verify(path: PathBuf, groups: u16) -> Result<(SnapshotData, Meta), StorageError> {
    let snapshot = SnapshotData::received(path.clone());
    let found = Meta::decode(&snapshot.verify()?)?;
    if found.groups == groups {
        return Ok((snapshot, found));
    }
    let what = format!("the group is one of {}, the backup says {groups}", found.groups);
    Err(StorageError::damaged(&path, 0, what))
}
