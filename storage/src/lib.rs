//! Durability: one write-ahead log for all openraft groups of a node, the groups themselves, the state store behind
//! `trait Engine`, message bodies, and the files that prove how a boot ended.
//!
//! The broker sees [`Store`]: propose commands, read state, attach consumers. openraft's types never leave the module `raft`.
//! `storage/FORMAT.md` describes every byte on disk.

pub mod backup;
pub mod boot;
pub mod error;
pub mod identity;
pub mod join;
pub mod lease;
pub mod peers;
pub mod port;
pub mod queue;
pub mod restore;
pub mod store;

mod durations;
mod engine;
mod raft;
mod wal;

pub use durations::{DURATION_BUCKETS_NS, Durations};
pub use error::StorageError;
pub use identity::Identity;
pub use peers::{PeerAddress, PeerError, PeerFuture, Peers};
pub use port::{CompletionPort, DeliveryPort, Done, EventPort, Pushed};
pub use raft::{GroupStatus, Role};
pub use store::{
    Clock, EngineKind, Formation, GroupId, Heirloom, Heritage, InboxEntry, Options, Proposal, Store,
};
