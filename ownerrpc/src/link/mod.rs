//! The peer link: authenticated calls between two nodes over one TCP connection per direction (DESIGN §8). `WIRE.md` describes
//! every byte.
//!
//! An [`Endpoint`] is this node; [`Listener`] is its peer port, [`Peers`] are the nodes that it calls. A node calls over the
//! connection that it dialled and answers over those that it accepted.
//!
//! What the link promises: a call is answered, refused or given up by its deadline; a peer that is dead, stopped or cut off is
//! noticed within `silence_ms`, all its calls fail then, and later ones fail at once until it is back; every queue is bounded,
//! and a caller waits instead of queueing more; nothing is retried, because only the caller knows what a retry means.

mod calls;
mod clock;
mod control;
mod driver;
mod endpoint;
mod error;
pub mod frame;
mod handshake;
pub mod hello;
mod inbound;
mod listener;
mod observer;
mod options;
mod outbox;
mod peer;
mod peers;
mod refusal;
mod secret;
mod security;
mod service;
pub mod services;
mod stream;
mod tls;

pub use clock::Clock;
pub use control::TIME_MS_MAX;
pub use endpoint::{Endpoint, EndpointError, LocalNode};
pub use error::{CallError, HandshakeError, LinkDown};
pub use frame::Violation;
pub use listener::Listener;
pub use observer::{Direction, Observer, PeerInfo, Unobserved};
pub use options::{CALL_MS_MAX, Options, OptionsError};
pub use peer::{Peer, PeerState};
pub use peers::{Caller, Calling, Peers};
pub use refusal::{Refusal, RefusalKind};
pub use secret::{Secret, SecretError};
pub use security::{Security, SecurityError, SecuritySettings};
pub use service::{Answer, Call, Service, Services};
pub use services::Limits;
pub use tls::{TlsError, TlsSettings};

/// Versions of the link that this build speaks, lowest and highest (WIRE.md §3).
pub const VERSIONS: (u16, u16) = (1, 1);
