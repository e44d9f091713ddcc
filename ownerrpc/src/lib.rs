//! Owner quiescence between nodes (Service 107) and the peer link that carries it.
//!
//! [`quiesce`] is the codec of Service 107, byte for byte owner spec §4; [`QuiesceClient`] asks with it and [`QuiesceServer`]
//! answers with it. [`link`] is what it rides on: authenticated, multiplexed calls between two nodes, each with a deadline, over
//! one TCP connection per direction. `WIRE.md` beside this crate's manifest describes every byte of both.
//!
//! Nothing here knows what a session is allowed to do: an error, a timeout or a lost link is never evidence that an owner
//! stopped, and it is handed on as what it is.

pub mod client;
pub mod link;
pub mod quiesce;
pub mod server;

pub use client::{QuiesceClient, QuiesceError};
pub use server::{Quiesce, QuiesceFailure, QuiesceServer};
