//! What the stores of two nodes say to each other: `u8 version | postcard`. `storage/FORMAT.md` lists the versions.

use std::collections::BTreeSet;

use bytes::Bytes;
use openraft::SnapshotMeta;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};
use session::lifecycle::Batch;

use super::{LogId, Types, Vote};

/// The version of every request and answer. Nodes of another version are refused by name.
const VERSION: u8 = 2;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Envelope {
    pub(super) group: u16,
    pub(super) request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(Box<Chunk>),
    /// To the leader: put this batch into the log.
    Propose {
        serial: u64,
        batch: Batch,
    },
    /// To the leader: which entry must be applied before a read sees every acknowledged write.
    ReadIndex,
    /// To the leader: one step of a membership change.
    Change(Change),
    /// From the leader: ask for votes now; the last entry of its log.
    Elect(LogId),
}

/// A part of a snapshot file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Chunk {
    pub(super) vote: Vote,
    pub(super) meta: SnapshotMeta<u64, openraft::BasicNode>,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) last: bool,
}

/// One step of a membership change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Change {
    /// The node receives the log, and votes for nothing.
    Learner { node_id: u64, address: String },
    /// Exactly these vote; nodes that did before stay learners. Refused while one that did not vote before is not up to date.
    Voters(BTreeSet<u64>),
    /// The node, which does not vote any more, receives nothing any more.
    Forget(u64),
    /// Where the node is dialled from now on.
    Address { node_id: u64, address: String },
    /// The node does not vote any more; learners that keep up take its place.
    Without(u64),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Append(AppendEntriesResponse<u64>),
    Vote(VoteResponse<u64>),
    /// Taken; `Some` after the last chunk.
    Snapshot(Option<SnapshotResponse<u64>>),
    /// Committed and applied on the leader.
    Proposed,
    ReadIndex(Option<LogId>),
    Changed,
    /// Nothing was done: this node does not lead the group.
    NotLeader,
    /// Nothing is known of what was done.
    Failed(String),
    /// It asks for votes.
    Electing,
    /// Nothing was done, and asking again at once changes nothing.
    Refused(String),
}

/// What cannot be read was sent by another version, or damaged.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error(
        "the other node speaks version {0} of the storage protocol, this one {VERSION}; upgrade the older one"
    )]
    Version(u8),
    #[error("a storage message cannot be decoded: {0}")]
    Damaged(String),
}

pub(super) fn encode<T: Serialize>(message: &T) -> Bytes {
    let out = postcard::to_extend(message, vec![VERSION]).expect("a message is plain data and a Vec grows");
    Bytes::from(out)
}

pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, MessageError> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => {
            let (message, rest) =
                postcard::take_from_bytes(rest).map_err(|error| MessageError::Damaged(error.to_string()))?;
            if rest.is_empty() {
                Ok(message)
            } else {
                Err(MessageError::Damaged(format!("{} bytes too many", rest.len())))
            }
        }
        Some((&version, _)) => Err(MessageError::Version(version)),
        None => Err(MessageError::Damaged("it is empty".to_owned())),
    }
}
