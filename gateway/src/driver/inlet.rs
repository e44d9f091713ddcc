//! The way in for clients that are part of this process. Each hands over one end of a socket pair that only it has the other end of, so
//! what it is called needs no proof, and nobody who comes over a network can be called so.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::Mailbox;
use super::worker::{Control, Incoming, Socket};
use crate::connection::Limits;
use crate::listener::{Endpoint, place};
use crate::service::Service;

/// Lets clients of this process in. Cheap to clone.
pub struct Inlet<S: Service> {
    controls: Arc<[Mailbox<Control<S>>]>,
    connections: Arc<[AtomicUsize]>,
}

impl<S: Service> Clone for Inlet<S> {
    fn clone(&self) -> Self {
        Self { controls: Arc::clone(&self.controls), connections: Arc::clone(&self.connections) }
    }
}

impl<S: Service> Inlet<S> {
    pub(super) fn new(controls: Arc<[Mailbox<Control<S>>]>, connections: Arc<[AtomicUsize]>) -> Self {
        Self { controls, connections }
    }

    /// Hands one end of a socket pair to the worker with the fewest connections, as that of the bridge with this name; false when the
    /// workers have stopped, and the socket is closed then.
    #[must_use]
    pub fn admit(&self, bridge: &Arc<str>, limits: Limits, socket: UnixStream) -> bool {
        let endpoint = Arc::new(Endpoint::of_bridge(Arc::clone(bridge), limits));
        let Some((worker, count)) = place(&self.connections, &endpoint, None) else { return false };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let incoming = Incoming { socket: Socket::Local(socket), address, endpoint, count };
        self.controls.get(worker).is_some_and(|control| control.push(Control::Accept(incoming)).is_ok())
    }
}

impl<S: Service> std::fmt::Debug for Inlet<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inlet").field("workers", &self.controls.len()).finish()
    }
}
