//! The store as the broker sees it.

use std::path::PathBuf;
use std::sync::Arc;

use session::id::{Boot, Key};
use session::lifecycle::{Command, Group, Reply};
use session::message::{Message, QoS};
use session::time::Millis;

use crate::StorageError;
use crate::port::{DeliveryPort, Done};

/// One of the groups, 0 to `groups - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u16);

/// The hybrid logical clock of this node: `max(wall, last seen)`.
pub trait Clock: Send + Sync + std::fmt::Debug {
    fn now(&self) -> Millis;
    /// Time seen in a command or message of another node or of an earlier run.
    fn observe(&self, seen: Millis);
}

/// Which engine keeps the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineKind {
    #[default]
    Redb,
    /// Cargo feature `store-sled`.
    Sled,
    /// Tests only: nothing survives.
    Memory,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub data_dir: PathBuf,
    pub boot: Boot,
    /// Fixed when the data directory is made; default 4.
    pub groups: u16,
    pub engine: EngineKind,
    /// Bytes of one WAL segment; default 64 MiB.
    pub segment_bytes: u64,
    /// WAL bytes after which state is checkpointed and the log purged; default 64 MiB.
    pub checkpoint_bytes: u64,
    /// Message bodies kept in memory per node before they are read back from disk; default 256 MiB.
    pub resident_bytes_max: u64,
    /// Inbox quotas per session.
    pub inbox_messages_max: u64,
    pub inbox_bytes_max: u64,
}

/// A command and who waits for it.
#[derive(Debug)]
pub struct Proposal {
    pub command: Command,
    pub done: Done,
}

/// An inbox entry with its message.
#[derive(Debug, Clone)]
pub struct InboxEntry {
    pub offset: u64,
    pub qos: QoS,
    pub retain: bool,
    /// PUBREC was received: only PUBREL is owed.
    pub received: bool,
    pub maybe_sent: bool,
    pub identifiers: smallvec::SmallVec<[u32; 1]>,
    pub message: Arc<Message>,
}

/// The store of one node. Cheap to clone; safe to use from every thread.
#[derive(Debug, Clone)]
pub struct Store {
    _inner: Arc<()>,
}

impl Store {
    /// Recovers the data directory, starts the groups with this node as voter and waits until each has a leader.
    /// Must be called on the control runtime, whose handle serves all storage tasks.
    ///
    /// # Errors
    /// Damage, a foreign or locked directory, I/O.
    pub async fn open(_options: Options, _clock: Arc<dyn Clock>) -> Result<Self, StorageError> {
        unimplemented!()
    }

    #[must_use]
    pub fn groups(&self) -> u16 {
        unimplemented!()
    }

    /// Group of a session key (slot modulo groups).
    #[must_use]
    pub fn group_of(&self, _key: &Key) -> GroupId {
        unimplemented!()
    }

    /// Group that keeps the retained message of a topic.
    #[must_use]
    pub fn group_of_topic(&self, _topic: &str) -> GroupId {
        unimplemented!()
    }

    /// Hands commands to the group's proposer; everything that waits goes into the next log entry. Never blocks. The order
    /// of one caller's proposals to one group is kept.
    pub fn propose(&self, _group: GroupId, _proposals: Vec<Proposal>) {
        unimplemented!()
    }

    /// Proposes one command and waits for its reply.
    ///
    /// # Errors
    /// When the group is not available; the fate of the command is then unknown.
    pub async fn call(&self, _group: GroupId, _command: Command) -> Result<Reply, Arc<StorageError>> {
        unimplemented!()
    }

    /// Reads the applied state under a short lock. Single node: linearizable, since only this node applies and replies follow `apply`.
    pub fn read<R>(&self, _group: GroupId, _f: impl FnOnce(&Group) -> R) -> R {
        unimplemented!()
    }

    /// Unsettled inbox entries from `from` on, with their messages (read from disk where needed), at most `max` entries and about
    /// `bytes_max` bytes; and the offset to go on from.
    ///
    /// # Errors
    /// I/O, damage.
    pub fn read_inbox(
        &self,
        _group: GroupId,
        _lifetime: u64,
        _from: u64,
        _max: usize,
        _bytes_max: usize,
    ) -> Result<(Vec<InboxEntry>, u64), StorageError> {
        unimplemented!()
    }

    /// Retained messages of all groups that `filter` matches, in topic order per group; stops when `visit` returns false.
    ///
    /// # Errors
    /// I/O, damage.
    pub fn retained(
        &self,
        _filter: &str,
        _visit: &mut dyn FnMut(Arc<Message>) -> bool,
    ) -> Result<(), StorageError> {
        unimplemented!()
    }

    /// From now on every append to the inbox `lifetime` is pushed to `port`. Returns the inbox's end at that moment, so that the caller
    /// reads what is before it and gets pushed what is behind it: no gap, no duplicate.
    pub fn attach(&self, _group: GroupId, _lifetime: u64, _port: Arc<dyn DeliveryPort>, _token: u64) -> u64 {
        unimplemented!()
    }

    /// Stops pushing, unless another token attached since.
    pub fn detach(&self, _group: GroupId, _lifetime: u64, _token: u64) {
        unimplemented!()
    }

    /// Checkpoints, closes the log and stops the groups.
    ///
    /// # Errors
    /// I/O.
    pub async fn close(&self) -> Result<(), StorageError> {
        unimplemented!()
    }
}
