//! How commits reach those who wait: one call per port and batch, so that a worker is woken once.

use std::sync::Arc;

use session::lifecycle::{Reply, WillKey, WillStage};
use session::message::{Message, QoS};

use crate::{GroupId, StorageError};

/// Takes replies of committed commands. Called on a storage thread: must not block.
pub trait CompletionPort: Send + Sync + std::fmt::Debug {
    /// Tokens as given in [`Done::Port`], in commit order. An error means that the fate of the command is unknown.
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>);

    /// Whether an error was told that its proposer has not taken in yet: what it proposes meanwhile, in ignorance of what was lost before, is
    /// refused. Asked within `Store::propose`.
    fn is_behind(&self) -> bool {
        false
    }
}

/// Takes messages appended to attached inboxes. Called on a storage thread in commit order: must not block.
pub trait DeliveryPort: Send + Sync + std::fmt::Debug {
    fn deliver(&self, batch: Vec<Pushed>);
}

/// Learns what committed commands did besides their replies. Called on a storage thread in commit order: must not block.
pub trait EventPort: Send + Sync + std::fmt::Debug {
    /// Lifetimes that ended or were replaced, in order: nothing is routed to them any more, and their consumers are detached.
    /// Wills that changed their stage, in order.
    fn changed(&self, group: GroupId, ended: Vec<u64>, wills: Vec<(WillKey, WillStage)>);

    /// Lifetimes whose inbox had no room, under the rule that such a session ends.
    fn over_quota(&self, _group: GroupId, _lifetimes: Vec<u64>) {}

    /// Lifetimes whose stored subscriptions changed, on whatever node.
    fn subscribed(&self, _group: GroupId, _lifetimes: Vec<u64>) {}

    /// A snapshot of another node took the place of the whole state: nothing is known of what changed.
    fn replaced(&self, _group: GroupId) {}
}

/// One appended message for an attached consumer.
#[derive(Debug, Clone)]
pub struct Pushed {
    /// As given at attach.
    pub token: u64,
    pub offset: u64,
    pub message: Arc<Message>,
    pub qos: QoS,
    pub retain: bool,
    pub identifiers: smallvec::SmallVec<[u32; 1]>,
}

/// Who waits for a command.
#[derive(Debug)]
pub enum Done {
    Nobody,
    Once(tokio::sync::oneshot::Sender<Result<Reply, Arc<StorageError>>>),
    Port { port: Arc<dyn CompletionPort>, token: u64 },
}

impl Done {
    pub(crate) fn is_behind(&self) -> bool {
        matches!(self, Self::Port { port, .. } if port.is_behind())
    }
}
