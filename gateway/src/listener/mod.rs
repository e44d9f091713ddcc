//! Listeners: TCP, TLS, WebSocket, PROXY protocol v2; each accepted socket goes to the worker with the fewest connections.

mod acceptor;
mod door;
mod proxy;
mod share;
mod tls;
mod turns;
pub(crate) mod websocket;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;
use tokio::net::TcpStream;

use crate::connection::Limits;
use crate::driver::{Raw, Transport};
use crate::service::Peer;
use share::Shares;

pub(crate) use acceptor::{Listening, place};
pub use door::{Door, Turned};
pub(crate) use share::Share;
pub use share::network;
pub use tls::{ClientCertificates, Tls, TlsError, TlsSettings};

/// One listener.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// Name in the configuration; comes back in [`Peer::listener`].
    pub name: Arc<str>,
    /// Port 0: the system chooses.
    pub address: SocketAddr,
    pub limits: Limits,
    /// Open sockets of this listener; more are closed at once.
    pub connections_max: usize,
    /// Of them from one address, or from one IPv6 /64; 0: any number. With `proxy_protocol` it is the address in the header.
    pub connections_per_address_max: usize,
    /// Sockets taken a second, with a burst of one second; 0: any number. More wait unread, in turn by address, and are closed when they
    /// waited for the connect timeout, or too many wait.
    pub connect_rate_max: u32,
    /// Sockets whose descriptor number is not below this are closed at once: the rest of what the process may open is for files.
    pub descriptors_max: u64,
    pub tls: Option<Tls>,
    /// MQTT over WebSocket, subprotocol `mqtt`, on the paths `/mqtt` and `/` (§6).
    pub websocket: bool,
    /// Each connection starts with a PROXY protocol v2 header; only for listeners that nothing but the proxy reaches.
    pub proxy_protocol: bool,
    /// The common name of a client certificate that the proxy says it verified becomes [`Peer::certificate_cn`]: whoever reaches the
    /// listener can say so.
    pub proxy_certificate: bool,
}

/// Why a listener could not be opened.
#[derive(Debug, Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {source}")]
    Bind {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the gateway has stopped listening")]
    Stopped,
}

/// A listener as its connections see it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: Arc<str>,
    pub(crate) limits: Limits,
    connections_max: usize,
    connect_rate_max: u32,
    descriptors_max: u64,
    open: AtomicUsize,
    shares: Option<Arc<Shares>>,
    pub(crate) door: Arc<Door>,
    tls: Option<Tls>,
    websocket: bool,
    proxy_protocol: bool,
    proxy_certificate: bool,
    /// Its connections are those of a bridge of this process.
    pub(crate) bridge: Option<Arc<str>>,
}

/// Layers below MQTT on their way up.
pub(crate) type Opening = Pin<Box<dyn Future<Output = io::Result<Opened>>>>;

/// A connection on which MQTT can begin.
pub(crate) struct Opened {
    pub(crate) transport: Transport,
    origin: Origin,
}

/// What the layers below found out about the client.
#[derive(Debug, Default)]
struct Origin {
    address: Option<SocketAddr>,
    certificate_cn: Option<Arc<str>>,
    secure: bool,
    share: Option<Share>,
}

impl Opened {
    /// The place among the connections of its address that it got on its way up.
    pub(crate) fn take_share(&mut self) -> Option<Share> {
        self.origin.share.take()
    }

    pub(crate) fn describe(&self, peer: &mut Peer) {
        if let Some(address) = self.origin.address {
            peer.address = address;
        }
        peer.certificate_cn.clone_from(&self.origin.certificate_cn);
        peer.secure = self.origin.secure;
    }
}

impl Endpoint {
    fn new(config: ListenerConfig, door: Arc<Door>) -> Self {
        Self {
            name: config.name,
            limits: config.limits,
            connections_max: config.connections_max,
            connect_rate_max: config.connect_rate_max,
            descriptors_max: config.descriptors_max,
            open: AtomicUsize::new(0),
            shares: Shares::new(config.connections_per_address_max),
            door,
            tls: config.tls,
            websocket: config.websocket,
            proxy_protocol: config.proxy_protocol,
            proxy_certificate: config.proxy_certificate,
            bridge: None,
        }
    }

    /// Where a bridge of this process comes in, which no socket is bound to.
    pub(crate) fn of_bridge(bridge: Arc<str>, limits: Limits) -> Self {
        Self {
            name: "bridge".into(),
            limits,
            connections_max: usize::MAX,
            connect_rate_max: 0,
            descriptors_max: u64::MAX,
            open: AtomicUsize::new(0),
            shares: None,
            door: Arc::default(),
            tls: None,
            websocket: false,
            proxy_protocol: false,
            proxy_certificate: false,
            bridge: Some(bridge),
        }
    }

    /// Sockets taken a second at most; 0: any number.
    fn accept_rate_max(&self) -> u32 {
        match (self.connect_rate_max, self.door.accept_rate_max()) {
            (0, other) | (other, 0) => other,
            (own, other) => own.min(other),
        }
    }

    /// The socket itself when MQTT begins with its first byte, else the work to get there.
    pub(crate) fn open(self: &Arc<Self>, stream: TcpStream) -> Result<TcpStream, Opening> {
        if self.tls.is_none() && !self.websocket && !self.proxy_protocol {
            return Ok(stream);
        }
        Err(Box::pin(Arc::clone(self).open_layers(stream)))
    }

    async fn open_layers(self: Arc<Self>, mut stream: TcpStream) -> io::Result<Opened> {
        let mut origin = Origin::default();
        if self.proxy_protocol {
            proxy::read_header(&mut stream, &mut origin, self.proxy_certificate).await?;
            if let (Some(shares), Some(address)) = (&self.shares, origin.address) {
                origin.share = shares.enter(address.ip());
                if origin.share.is_none() {
                    self.door.turn_away(Turned::Address);
                    return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "its address has its share"));
                }
            }
        }
        let raw = match &self.tls {
            None => Raw::Tcp(stream),
            Some(tls) => {
                let stream = tls.accept(stream).await?;
                origin.secure = true;
                if let Some(certificate) = stream.get_ref().1.peer_certificates().and_then(<[_]>::first) {
                    origin.certificate_cn = tls::common_name(certificate).map(Into::into);
                }
                Raw::Tls(Box::new(stream))
            }
        };
        let transport = if self.websocket {
            Transport::WebSocket(Box::new(websocket::accept(raw, &self.limits).await?))
        } else {
            match raw {
                Raw::Tcp(stream) => Transport::Tcp(stream),
                Raw::Tls(stream) => Transport::Tls(stream),
            }
        };
        Ok(Opened { transport, origin })
    }
}

/// Counts an open socket at its listener and its worker for as long as it lives.
pub(crate) struct CountGuard {
    endpoint: Arc<Endpoint>,
    workers: Arc<[AtomicUsize]>,
    worker: usize,
    /// Its place among the connections of its address, where that is bounded.
    share: Option<Share>,
}

impl CountGuard {
    /// Keeps a place among the connections of an address too.
    pub(crate) fn keep(&mut self, share: Option<Share>) {
        if share.is_some() {
            self.share = share;
        }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.endpoint.open.fetch_sub(1, Ordering::Relaxed);
        self.workers[self.worker].fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for CountGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountGuard").field("worker", &self.worker).finish_non_exhaustive()
    }
}
