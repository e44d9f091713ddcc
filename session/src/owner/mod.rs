//! The owner registry: which connections of this node may execute, and the proof that one has stopped
//! (owner spec §2, §3, Appendix A, with the changes of DESIGN §4).

mod registry;

pub use registry::{
    Claim, CloseOutcome, Entry, Options, OwnerError, Quiesce, Registry, Retirement, Scope, Snapshot,
    Transport,
};
