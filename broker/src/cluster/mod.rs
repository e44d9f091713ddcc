//! This node among others: the peer link, who is a member, and how one becomes it.

pub mod calls;

pub use calls::{CallFuture, NoPeers, NotAnswered, PeerCalls};
