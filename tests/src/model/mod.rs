//! The ownership protocol as a model that is explored exhaustively (DESIGN §13): one session, a few nodes with boots, a few CONNECTs, one End,
//! crash and restart, SIGSTOP, retirement by receipt and by an attestation that may be wrong.
//!
//! It abstracts from the code: a row is its owner and its state; a registry is a stage, a socket and one admitted operation per owner; the
//! replicated log is an atomic compare-and-set whose reply may be lost and whose proposal may come late; the network keeps every request and
//! every answer for ever, so that each may be late, lost (never taken) or doubled; time is what may pass between any two steps, bound only by
//! the one assumption that the design makes: the local end of a lease comes before its committed end plus drift. The simulation (`sim`) runs
//! the real registry and rows under the same faults, but not in all orders.
//!
//! States that no later step tells apart are one (`State::forget`): what an owner saw once it stopped, answers about a retired boot. Within its
//! bounds (two nodes, three CONNECTs, the faults of `Ownership`) a search looks at every reachable state.

mod explore;
mod ownership;

pub use explore::{Found, Model, explore};
pub use ownership::{Action, Breakage, Ownership, State};
