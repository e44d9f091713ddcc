//! The owner registry: which connections of this node may execute, and the proof that one has stopped
//! (owner spec §2, §3, Appendix A, with the changes of DESIGN §4).
//!
//! [`Registry`] is the interface; an [`Entry`] is one owner and carries the atomics of the hot path; the table holds, under
//! the registry's lock, what changes rarely: slots, deadlines, close attempts and counts.

mod after;
mod closing;
mod deadlines;
mod entry;
mod operations;
mod registry;
mod table;

pub use entry::{Entry, Scope};
pub use registry::{
    Claim, CloseOutcome, Options, OwnerError, Quiesce, Registry, Retirement, Snapshot, Transport,
};
