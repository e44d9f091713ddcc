//! Sockets to service and back. A connection is one hand-written future ([`task`]) on one worker thread ([`worker`]): read until
//! `WouldBlock` or 64 KiB, decode all frames, hand the batch to the service, flush once. The driver executes and never
//! decides; the task owns the only handle of its socket, so dropping it is the physical close (owner spec §11).

pub(crate) mod buffers;
mod close;
mod deadlines;
mod gateway;
mod inlet;
mod mailbox;
mod outflow;
mod task;
pub(crate) mod traffic;
mod transport;
mod worker;

pub use gateway::{Gateway, StartError};
pub use inlet::Inlet;
pub use mailbox::Mailbox;
pub use traffic::{Flow, Traffic};
pub use worker::{TICK_PERIOD_MS, WorkerContext};

pub(crate) use mailbox::MailReceiver;
pub(crate) use transport::{Raw, Transport};
pub(crate) use worker::{Incoming, Socket};
