//! openraft's way to the other nodes of a group, on [`Peers`].

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{
    Fatal, NetworkError, PayloadTooLarge, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, Snapshot, SnapshotMeta};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::message::{Answer, Chunk, Envelope, Request, decode, encode};
use super::snapshot::SnapshotData;
use super::{LogId, Types, Vote};
use crate::StorageError;
use crate::peers::{PeerAddress, PeerError, Peers};

/// Bytes of one part of a snapshot.
const CHUNK_BYTES: usize = 1 << 20;
/// Parts that are ready while one is under way.
const CHUNKS_AHEAD: usize = 2;
/// How long one part may take: the last one includes the installation.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);

/// How long entries may be on their way: the largest entry over a link of 10 Mbit/s.
const ENTRIES_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes the clients of one group.
#[derive(Debug, Clone)]
pub(super) struct Network {
    pub(super) group: u16,
    /// `None`: this node is alone.
    pub(super) peers: Option<Arc<dyn Peers>>,
}

/// The way to one node.
#[derive(Debug)]
pub(super) struct Client {
    network: Network,
    to: PeerAddress,
    under_way: Option<UnderWay>,
}

/// Entries on their way. openraft gives up after a heartbeat's time and sends the same again: one entry may take longer over a slow link, and
/// would never arrive. So the call goes on, and who sends the same again waits for it.
#[derive(Debug)]
struct UnderWay {
    vote: Vote,
    prev: Option<LogId>,
    last: LogId,
    call: JoinHandle<Result<Answer, PeerError>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.call.abort();
    }
}

impl Network {
    /// Calls the same group of another node.
    pub(super) async fn call(
        &self,
        to: &PeerAddress,
        request: Request,
        timeout: Duration,
    ) -> Result<Answer, PeerError> {
        let Some(peers) = &self.peers else {
            let reason = "this node has no peer port".to_owned();
            return Err(PeerError::Unreachable { node_id: to.node_id, reason });
        };
        let request = encode(&Envelope { group: self.group, request });
        let answer = peers.call(to, request, timeout).await?;
        decode(&answer).map_err(|error| PeerError::Unknown { node_id: to.node_id, reason: error.to_string() })
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Client {
        let to = PeerAddress { node_id: target, address: node.addr.clone() };
        Client { network: self.clone(), to, under_way: None }
    }
}

type Rpc<T> = Result<T, RPCError<u64, BasicNode, RaftError<u64>>>;

impl RaftNetwork<Types> for Client {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<u64>> {
        let entries = rpc.entries.len() as u64;
        let answer = match rpc.entries.last().map(|entry| entry.log_id) {
            None => self.network.call(&self.to, Request::Append(rpc), option.hard_ttl()).await,
            Some(last) => {
                let (sent, answer) = self.send_entries(rpc, last).await;
                if sent < last && matches!(answer, Ok(Answer::Append(AppendEntriesResponse::Success))) {
                    // The log grew since they were sent.
                    return Ok(AppendEntriesResponse::PartialSuccess(Some(sent)));
                }
                answer
            }
        };
        match answer {
            Ok(Answer::Append(answer)) => Ok(answer),
            Err(PeerError::TooLarge { .. }) if entries > 1 => {
                Err(RPCError::PayloadTooLarge(PayloadTooLarge::new_entries_hint(entries / 2)))
            }
            other => Err(failed(other)),
        }
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, option: RPCOption) -> Rpc<VoteResponse<u64>> {
        match self.network.call(&self.to, Request::Vote(rpc), option.hard_ttl()).await {
            Ok(Answer::Vote(answer)) => Ok(answer),
            other => Err(failed(other)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        let (parts, mut ready) = mpsc::channel(CHUNKS_AHEAD);
        let Snapshot { meta, snapshot } = snapshot;
        tracing::info!(to = self.to.node_id, group = self.network.group, "sending a snapshot");
        let export = tokio::task::spawn_blocking(move || export(&snapshot, &parts));
        tokio::select! {
            sent = self.send(vote, &meta, &mut ready) => match sent {
                Ok(answer) => Ok(answer),
                Err(error) => {
                    drop(ready);
                    // What stopped the reading of the rows says more than that a part is missing.
                    let reason = match export.await { Ok(Err(own)) => own.to_string(), _ => error };
                    Err(StreamingError::Network(NetworkError::new(&io::Error::other(reason))))
                }
            },
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }
}

impl Client {
    /// Sends entries, unless those from the same place on are under way; what was sent and the answer. Its caller may stop waiting.
    async fn send_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        last: LogId,
    ) -> (LogId, Result<Answer, PeerError>) {
        let same = self.under_way.as_ref();
        let same = same.is_some_and(|sent| sent.vote == rpc.vote && sent.prev == rpc.prev_log_id);
        if !same {
            let (vote, prev) = (rpc.vote, rpc.prev_log_id);
            let (network, to) = (self.network.clone(), self.to.clone());
            let call = async move { network.call(&to, Request::Append(rpc), ENTRIES_TIMEOUT).await };
            self.under_way = Some(UnderWay { vote, prev, last, call: tokio::spawn(call) });
        }
        let node_id = self.to.node_id;
        let unknown = |reason: String| Err(PeerError::Unknown { node_id, reason });
        let Some(sent) = &mut self.under_way else { return (last, unknown("nothing was sent".to_owned())) };
        let last = sent.last;
        let answer = (&mut sent.call).await.unwrap_or_else(|error| unknown(error.to_string()));
        self.under_way = None;
        (last, answer)
    }

    async fn send(
        &self,
        vote: Vote,
        meta: &SnapshotMeta<u64, BasicNode>,
        ready: &mut mpsc::Receiver<Part>,
    ) -> Result<SnapshotResponse<u64>, String> {
        let mut offset = 0;
        while let Some(Part { bytes, last }) = ready.recv().await {
            let len = bytes.len() as u64;
            let chunk = Chunk { vote, meta: meta.clone(), offset, bytes, last };
            let request = Request::Snapshot(Box::new(chunk));
            match self.network.call(&self.to, request, CHUNK_TIMEOUT).await {
                Ok(Answer::Snapshot(None)) if !last => offset += len,
                Ok(Answer::Snapshot(Some(answer))) => return Ok(answer),
                Ok(Answer::Failed(reason)) => return Err(reason),
                Ok(other) => return Err(format!("unexpected answer {other:?}")),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("the snapshot could not be read".to_owned())
    }
}

/// A part of the snapshot file.
struct Part {
    bytes: Vec<u8>,
    last: bool,
}

/// Cuts what is written into parts; blocks while enough of them wait.
struct Cutter<'a> {
    parts: &'a mpsc::Sender<Part>,
    buffer: Vec<u8>,
}

impl Cutter<'_> {
    fn cut(&mut self, last: bool) -> io::Result<()> {
        let bytes = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the other node takes no more");
        self.parts.blocking_send(Part { bytes, last }).map_err(gone)
    }
}

impl io::Write for Cutter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() >= CHUNK_BYTES {
            self.cut(false)?;
        }
        let room = CHUNK_BYTES - self.buffer.len();
        let taken = room.min(bytes.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn export(snapshot: &SnapshotData, parts: &mpsc::Sender<Part>) -> Result<(), StorageError> {
    let mut cutter = Cutter { parts, buffer: Vec::with_capacity(CHUNK_BYTES) };
    snapshot.export(&mut cutter)?;
    cutter.cut(true).map_err(StorageError::io("snapshot".as_ref()))
}

fn failed(answer: Result<Answer, PeerError>) -> RPCError<u64, BasicNode, RaftError<u64>> {
    match answer {
        // openraft waits before it tries such a node again.
        Err(error @ PeerError::Unreachable { .. }) => RPCError::Unreachable(Unreachable::new(&error)),
        Err(error) => RPCError::Network(NetworkError::new(&error)),
        Ok(Answer::Failed(reason)) => RPCError::Network(NetworkError::new(&io::Error::other(reason))),
        Ok(other) => {
            let error = io::Error::other(format!("unexpected answer {other:?}"));
            RPCError::Network(NetworkError::new(&error))
        }
    }
}

/// Bytes of a received part are appended to this file.
pub(super) fn append_part(path: &std::path::Path, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
    use std::io::{Seek, Write};
    let io = StorageError::io(path);
    let mut file = std::fs::OpenOptions::new().append(true).open(path).map_err(&io)?;
    let at = file.seek(io::SeekFrom::End(0)).map_err(&io)?;
    if at != offset {
        return Err(StorageError::damaged(path, at, format!("the next part begins at {offset}")));
    }
    file.write_all(bytes).map_err(&io)
}
