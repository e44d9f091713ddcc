//! This node among others: the peer link, who is a member, and how one becomes it.

pub mod balance;
pub mod calls;
pub mod end;
pub mod farewell;
pub mod join;
pub mod link;
pub mod mark;
pub mod member;
pub mod services;

pub use calls::{CallFuture, NoPeers, NotAnswered, PeerCalls};
pub use link::{LinkError, Links};
pub use member::{ClusterView, Member};
