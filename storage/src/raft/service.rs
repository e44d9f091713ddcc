//! Requests of other nodes to the groups of this one.

use std::time::Duration;

use openraft::Snapshot;
use openraft::error::{CheckIsLeaderError, RaftError};

use super::RaftGroup;
use super::forward::Written;
use super::intake::ENTRY_COMMANDS_MAX;
use super::message::{Answer, Chunk, Request};
use super::network::append_part;
use super::proposed::Proposed;
use super::snapshot::SnapshotData;

/// How long the leader tries before it tells the other node that it knows nothing.
pub(super) const LEADER_TIMEOUT: Duration = Duration::from_secs(4);

/// Why there is no answer when a leader cannot reach a majority.
pub(super) const NO_QUORUM: &str = "no quorum answered in time";

/// A snapshot of which parts arrived.
#[derive(Default)]
pub(super) struct Incoming {
    snapshot_id: String,
    data: Option<Box<SnapshotData>>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("snapshot_id", &self.snapshot_id).finish_non_exhaustive()
    }
}

impl RaftGroup {
    /// Carries out a request of another node.
    pub(super) async fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Append(rpc) => match self.raft.append_entries(rpc).await {
                Ok(answer) => Answer::Append(answer),
                Err(error) => Answer::Failed(error.to_string()),
            },
            Request::Vote(rpc) => match self.raft.vote(rpc).await {
                Ok(answer) => Answer::Vote(answer),
                Err(error) => Answer::Failed(error.to_string()),
            },
            Request::Snapshot(chunk) => self.take_chunk(*chunk).await,
            Request::Propose { serial, batch } => {
                if !self.leads() {
                    return Answer::NotLeader;
                }
                if batch.commands.len() > ENTRY_COMMANDS_MAX {
                    let reason = format!(
                        "a batch has {} commands, {ENTRY_COMMANDS_MAX} is the most",
                        batch.commands.len()
                    );
                    return Answer::Refused(reason);
                }
                let proposed = Proposed::new(serial, batch, Vec::new());
                match self.settle(&proposed).await {
                    Ok(Written::Over) => Answer::Proposed,
                    Ok(Written::NotLeader) => Answer::NotLeader,
                    Err(reason) => Answer::Failed(reason),
                }
            }
            Request::ReadIndex => self.read_index().await,
            Request::Change(change) => self.change(change, Self::step_deadline()).await,
            Request::Elect(last) => self.elect(last).await,
        }
    }

    /// Writes as the leader and waits until it is applied here.
    async fn settle(&self, proposed: &Proposed) -> Result<Written, String> {
        match tokio::time::timeout(LEADER_TIMEOUT, self.write(proposed)).await {
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(written)) => proposed.failure().map_or(Ok(written), |error| Err(error.to_string())),
            Err(_) => Err(NO_QUORUM.to_owned()),
        }
    }

    /// Confirms the leadership with a quorum; reads behind the entry named see every acknowledged write.
    pub(super) async fn read_index(&self) -> Answer {
        match tokio::time::timeout(LEADER_TIMEOUT, self.raft.get_read_log_id()).await {
            Ok(Ok((read_at, _))) => Answer::ReadIndex(read_at),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_)))) => Answer::NotLeader,
            Ok(Err(error)) => Answer::Failed(error.to_string()),
            Err(_) => Answer::Failed(NO_QUORUM.to_owned()),
        }
    }

    async fn take_chunk(&self, chunk: Chunk) -> Answer {
        // One at a time: parts of another snapshot begin anew.
        let mut incoming = self.incoming.lock().await;
        if chunk.offset == 0 {
            // Its file goes with it, and has the name of the next one.
            drop(std::mem::take(&mut *incoming));
            let Ok(data) = self.raft.begin_receiving_snapshot().await else {
                return Answer::Failed("the group is stopping".to_owned());
            };
            *incoming = Incoming { snapshot_id: chunk.meta.snapshot_id.clone(), data: Some(data) };
        }
        let known = incoming.snapshot_id == chunk.meta.snapshot_id;
        let path =
            incoming.data.as_ref().filter(|_| known).and_then(|data| data.path()).map(ToOwned::to_owned);
        let Some(path) = path else {
            return Answer::Failed("a part of a snapshot whose beginning is not here".to_owned());
        };
        let Chunk { vote, meta, offset, bytes, last } = chunk;
        let written = tokio::task::spawn_blocking(move || append_part(&path, offset, &bytes)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Answer::Failed(error.to_string()),
            Err(error) => return Answer::Failed(error.to_string()),
        }
        if !last {
            return Answer::Snapshot(None);
        }
        let Some(snapshot) = std::mem::take(&mut *incoming).data else {
            return Answer::Failed("the snapshot was taken already".to_owned());
        };
        match self.raft.install_full_snapshot(vote, Snapshot { meta, snapshot }).await {
            Ok(answer) => Answer::Snapshot(Some(answer)),
            Err(error) => Answer::Failed(error.to_string()),
        }
    }
}
