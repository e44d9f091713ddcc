//! openraft's log of one group on the shared write-ahead log, with its last entries kept typed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    AnyError, CommittedLeaderId, Entry, EntryPayload, OptionalSend, RaftLogReader, StorageIOError,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::checkpoint::Meter;
use super::proposed::Proposed;
use super::{LogId, RaftError, Types, Vote, encode_batch};
use crate::StorageError;
use crate::wal::{Kind, Location, Mark, Poison, Record, Recovered, Wal};

/// Encoded bytes of applied entries that stay typed in memory for followers that are a little behind; typed they take two to four times
/// as much. Who is further behind is served from the file.
const CACHE_BYTES_MAX: usize = 64 << 10;
/// Bytes of one read for replication: openraft gives one message a heartbeat's time, and a backlog has to drain over slow links too.
const READ_BYTES_MAX: usize = 512 << 10;

/// What kind of entry a payload holds, behind the leader's node id. Durable numbers.
const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERSHIP: u8 = 2;
const NUMBERED: u8 = 3;
const ENTRY_HEAD_BYTES: usize = 9;

#[derive(Debug, Clone)]
pub(crate) struct LogStore {
    group: u16,
    wal: Arc<Wal>,
    log: Arc<Mutex<Log>>,
    meter: Arc<Meter>,
    /// A held purge was decided.
    decided: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Log {
    entries: BTreeMap<u64, Slot>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    /// What is durable in the engine, and the purge that waits for more of it.
    state: Option<LogId>,
    held: Option<Held>,
    /// First index whose entry may still be typed, and the bytes of all that are.
    cached_from: u64,
    cached_bytes: usize,
}

/// A purge up to a snapshot of another node that is being installed. openraft asks for it at once; made durable before the snapshot is,
/// it would leave neither the entries nor what they did.
#[derive(Debug)]
struct Held {
    upto: LogId,
    /// The log ends below `upto`: an entry written now would have a hole before it after a crash.
    hole: bool,
    failed: bool,
}

#[derive(Debug)]
struct Slot {
    log_id: LogId,
    /// `None` until it is durable; then it can be read back.
    location: Option<Location>,
    /// `None`: only on disk.
    entry: Option<Entry<Types>>,
    bytes: usize,
}

impl LogStore {
    /// Takes what recovery found; `state` is what the engine holds.
    ///
    /// # Errors
    /// Damage: a vote that cannot be decoded, missing entries.
    pub(crate) fn new(
        group: u16,
        wal: Arc<Wal>,
        recovered: Recovered,
        state: Option<LogId>,
        meter: Arc<Meter>,
    ) -> Result<Self, StorageError> {
        let damaged = |what: String| StorageError::damaged(format!("log of group {group}").as_ref(), 0, what);
        let marks = recovered.marks;
        let mut log = Log {
            vote: marks
                .vote
                .as_ref()
                .map(|mark| decode_vote(mark).ok_or("a vote"))
                .transpose()
                .map_err(|what| damaged(format!("{what} cannot be decoded")))?,
            committed: marks.committed.as_ref().and_then(decode_log_id),
            purged: marks.purged.as_ref().and_then(decode_log_id),
            state,
            ..Log::default()
        };
        let mut expected = log.purged.map(|id| id.index + 1);
        for (index, found) in recovered.entries {
            if expected.is_some_and(|expected| expected != index) {
                return Err(damaged(format!("entry {} is missing", expected.unwrap_or_default())));
            }
            expected = Some(index + 1);
            let log_id = log_id(found.term, u64::from_le_bytes(found.head), index);
            let bytes = found.location.len as usize;
            meter.wrote(bytes as u64);
            log.entries.insert(index, Slot { log_id, location: Some(found.location), entry: None, bytes });
        }
        log.cached_from = expected.unwrap_or_default();
        let ends = log.last().map(|id| id.index);
        let this = Self { group, wal, log: Arc::new(Mutex::new(log)), meter, decided: Arc::default() };
        if let Some(state) = state.filter(|state| ends < Some(state.index)) {
            // A crash came between a snapshot and its purge. What is here may be of a leader that lost.
            this.forget_upto(state);
        }
        Ok(this)
    }

    /// The engine holds everything up to `upto`: a purge that waited for that becomes durable.
    pub(super) fn covered(&self, upto: Option<LogId>) {
        let released = {
            let mut log = self.log.lock();
            log.state = log.state.max(upto);
            let state = log.state.map(|id| id.index);
            log.held.take_if(|held| Some(held.upto.index) <= state)
        };
        if let Some(held) = released {
            self.write_purge(&held.upto);
            self.decided.notify_waiters();
        }
    }

    /// The snapshot that a purge waits for was not installed: the group stops.
    pub(super) fn not_covered(&self) {
        if let Some(held) = &mut self.log.lock().held {
            held.failed = true;
        }
        self.decided.notify_waiters();
    }

    /// Returns once an entry may be written: at once, unless a snapshot is being installed.
    async fn no_hole(&self) -> Result<(), std::io::Error> {
        loop {
            // Made before the look: a decision between the look and the wait is not missed.
            let decided = self.decided.notified();
            match &self.log.lock().held {
                Some(Held { failed: true, .. }) => {
                    return Err(std::io::Error::other("a snapshot of another node could not be installed"));
                }
                Some(Held { hole: true, .. }) => {}
                _ => return Ok(()),
            }
            decided.await;
        }
    }

    /// The last entry that was appended, durable or not.
    pub(super) fn last_log_id(&self) -> Option<LogId> {
        self.log.lock().last()
    }

    /// Drops entries up to `upto` from memory, and from disk once the engine holds what they did.
    fn forget_upto(&self, upto: LogId) {
        let durable = {
            let mut log = self.log.lock();
            let hole = log.last().is_none_or(|last| last.index < upto.index);
            let kept = log.entries.split_off(&(upto.index + 1));
            let gone = std::mem::replace(&mut log.entries, kept);
            log.forget(gone.into_values());
            log.cached_from = log.cached_from.max(upto.index + 1);
            log.purged = Some(upto);
            let durable = log.state.is_some_and(|state| state.index >= upto.index);
            if !durable {
                let hole = hole || log.held.as_ref().is_some_and(|held| held.hole);
                log.held = Some(Held { upto, hole, failed: false });
            }
            durable
        };
        if durable {
            self.write_purge(&upto);
        }
    }

    fn write_purge(&self, upto: &LogId) {
        // Not waited for: should it get lost, there is only more log than needed.
        let record = self.record(Kind::Purge, upto, node_bytes(upto));
        self.wal.append(vec![record], Box::new(|_| {}));
    }

    fn record(&self, kind: Kind, log_id: &LogId, payload: Vec<u8>) -> Record {
        Record { group: self.group, kind, index: log_id.index, term: log_id.leader_id.term, payload }
    }

    /// Appends and waits until it is durable.
    async fn write(&self, record: Record) -> Result<(), std::io::Error> {
        let (sender, receiver) = oneshot::channel();
        self.wal.append(
            vec![record],
            Box::new(move |written| drop(sender.send(written.map(drop).map_err(Poison::clone)))),
        );
        match receiver.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(poison)) => Err(poison.to_io()),
            Err(_) => Err(std::io::Error::other("the log's writer is gone")),
        }
    }

    /// Entries of a range up to about `bytes_max`, at least one when there is one.
    fn entries(
        &self,
        range: impl RangeBounds<u64>,
        bytes_max: usize,
    ) -> Result<Vec<Entry<Types>>, StorageError> {
        let mut found = Vec::new();
        let mut bytes = 0;
        {
            let log = self.log.lock();
            for slot in log.entries.range(range).map(|(_, slot)| slot) {
                bytes += slot.bytes;
                if bytes > bytes_max && !found.is_empty() {
                    break;
                }
                found.push((slot.log_id, slot.entry.clone(), slot.location));
            }
        }
        found
            .into_iter()
            .map(|(log_id, entry, location)| match (entry, location) {
                (Some(entry), _) => Ok(entry),
                (None, Some(location)) => decode_entry(log_id, &self.wal.read(location)?),
                (None, None) => Err(StorageError::damaged(
                    "log".as_ref(),
                    0,
                    format!("entry {log_id} is neither in memory nor on disk"),
                )),
            })
            .collect()
    }
}

impl Log {
    fn last(&self) -> Option<LogId> {
        self.entries.last_key_value().map(|(_, slot)| slot.log_id).or(self.purged)
    }

    /// Forgets typed entries below `applied` while they take more than their budget.
    fn trim(&mut self, applied: u64) {
        while self.cached_bytes > CACHE_BYTES_MAX && self.cached_from < applied {
            if let Some(slot) = self.entries.get_mut(&self.cached_from)
                && slot.location.is_some()
                && slot.entry.take().is_some()
            {
                self.cached_bytes -= slot.bytes;
            }
            self.cached_from += 1;
        }
    }

    fn forget(&mut self, gone: impl IntoIterator<Item = Slot>) {
        for slot in gone {
            if slot.entry.is_some() {
                self.cached_bytes -= slot.bytes;
            }
        }
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<Types>>, RaftError> {
        Ok(self.entries(range, usize::MAX).unwrap_or_else(|error| abort(&error)))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry<Types>>, RaftError> {
        Ok(self.entries(start..end, READ_BYTES_MAX).unwrap_or_else(|error| abort(&error)))
    }
}

/// openraft 0.9 goes on after a failed read of the log and may then mislead a follower (its issue 1795): the node must not.
fn abort(error: &StorageError) -> ! {
    tracing::error!(%error, "the log cannot be read; this process stops at once");
    std::process::abort()
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, RaftError> {
        let log = self.log.lock();
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: log.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), RaftError> {
        let mut payload = vote.leader_id.node_id.to_le_bytes().to_vec();
        payload.push(u8::from(vote.committed));
        let record =
            Record { group: self.group, kind: Kind::Vote, index: 0, term: vote.leader_id.term, payload };
        self.write(record).await.map_err(|error| StorageIOError::write_vote(AnyError::new(&error)))?;
        self.log.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, RaftError> {
        Ok(self.log.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), RaftError> {
        let Some(committed) = committed else { return Ok(()) };
        let before = {
            let mut log = self.log.lock();
            let before = log.committed.replace(committed);
            // What was committed before this has been handed to `apply`.
            log.trim(before.map_or(0, |id| id.index));
            before
        };
        if before != Some(committed) {
            self.wal.hint(self.record(Kind::Committed, &committed, node_bytes(&committed)));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, RaftError> {
        Ok(self.log.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), RaftError>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.no_hole().await.map_err(|error| StorageIOError::write_logs(AnyError::new(&error)))?;
        let mut records = Vec::new();
        let mut ids = Vec::new();
        let mut slots = Vec::new();
        for entry in entries {
            let log_id = entry.log_id;
            let payload = encode_entry(&entry);
            self.meter.wrote(payload.len() as u64);
            slots.push(Slot { log_id, location: None, bytes: payload.len(), entry: Some(entry) });
            ids.push(log_id);
            records.push(self.record(Kind::Entry, &log_id, payload));
        }
        {
            let mut log = self.log.lock();
            for slot in slots {
                log.cached_bytes += slot.bytes;
                let before = log.entries.insert(slot.log_id.index, slot);
                log.forget(before);
            }
        }
        let log = Arc::clone(&self.log);
        self.wal.append(
            records,
            Box::new(move |written| match written {
                Ok(locations) => {
                    let mut log = log.lock();
                    for (id, location) in ids.iter().zip(locations) {
                        if let Some(slot) = log.entries.get_mut(&id.index).filter(|slot| slot.log_id == *id) {
                            slot.location = Some(*location);
                        }
                    }
                    drop(log);
                    callback.log_io_completed(Ok(()));
                }
                Err(poison) => callback.log_io_completed(Err(poison.to_io())),
            }),
        );
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), RaftError> {
        {
            let mut log = self.log.lock();
            let gone = log.entries.split_off(&log_id.index);
            log.forget(gone.into_values());
            log.cached_from = log.cached_from.min(log_id.index);
        }
        let record = self.record(Kind::Truncate, &log_id, Vec::new());
        self.write(record).await.map_err(|error| StorageIOError::write_logs(AnyError::new(&error)).into())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), RaftError> {
        self.forget_upto(log_id);
        Ok(())
    }
}

impl Poison {
    fn to_io(&self) -> std::io::Error {
        std::io::Error::other(StorageError::poisoned(&self.0))
    }
}

fn log_id(term: u64, node_id: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, node_id), index)
}

fn node_bytes(log_id: &LogId) -> Vec<u8> {
    log_id.leader_id.node_id.to_le_bytes().to_vec()
}

fn decode_log_id(mark: &Mark) -> Option<LogId> {
    let node_id = u64::from_le_bytes(*mark.payload.first_chunk()?);
    Some(log_id(mark.term, node_id, mark.index))
}

fn decode_vote(mark: &Mark) -> Option<Vote> {
    let node_id = u64::from_le_bytes(*mark.payload.first_chunk()?);
    match mark.payload.get(8..)? {
        [0] => Some(Vote::new(mark.term, node_id)),
        [1] => Some(Vote::new_committed(mark.term, node_id)),
        _ => None,
    }
}

/// `u64le leader's node id | u8 kind | postcard`; a numbered batch has its number, `u64le`, before the postcard.
fn encode_entry(entry: &Entry<Types>) -> Vec<u8> {
    let mut out = node_bytes(&entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => {
            out.push(BLANK);
            out
        }
        EntryPayload::Normal(proposed) => {
            out.push(NUMBERED);
            out.extend_from_slice(&proposed.serial().to_le_bytes());
            encode_batch(proposed.batch(), out)
        }
        EntryPayload::Membership(membership) => {
            out.push(MEMBERSHIP);
            postcard::to_extend(membership, out).expect("a membership is plain data and a Vec grows")
        }
    }
}

fn decode_entry(log_id: LogId, bytes: &[u8]) -> Result<Entry<Types>, StorageError> {
    let damaged = |what: String| StorageError::damaged("log".as_ref(), 0, format!("entry {log_id}: {what}"));
    let (head, rest) =
        bytes.split_at_checked(ENTRY_HEAD_BYTES).ok_or_else(|| damaged("too short".to_owned()))?;
    let payload = match head[8] {
        BLANK => EntryPayload::Blank,
        NORMAL => EntryPayload::Normal(decode_batch(0, rest).map_err(damaged)?),
        NUMBERED => {
            let (serial, rest) = rest.split_first_chunk().ok_or_else(|| damaged("too short".to_owned()))?;
            EntryPayload::Normal(decode_batch(u64::from_le_bytes(*serial), rest).map_err(damaged)?)
        }
        MEMBERSHIP => {
            EntryPayload::Membership(postcard::from_bytes(rest).map_err(|error| damaged(error.to_string()))?)
        }
        other => return Err(damaged(format!("unknown kind {other}"))),
    };
    Ok(Entry { log_id, payload })
}

fn decode_batch(serial: u64, bytes: &[u8]) -> Result<Proposed, String> {
    let batch = postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
    Ok(Proposed::new(serial, batch, Vec::new()))
}
