//! The domain of ExactMQ, sans-IO: what a session, its owner, its inbox and its Will are, and every rule
//! that changes them.
//!
//! Nothing here is async, opens a socket or a file, reads a clock or draws a random number: `now` and
//! randomness come in as arguments, effects come out as values. Read [`owner::Registry`] (who executes for a
//! session on this node) and [`lifecycle::Group`] (the replicated rows and their pure `apply`) first;
//! [`invariants`] is the one list of what must always hold.

pub mod id;
pub mod invariants;
pub mod lease;
pub mod lifecycle;
pub mod limits;
mod log;
pub mod message;
pub mod owner;
pub mod qos;
pub mod queue;
pub mod time;
pub mod topic;
