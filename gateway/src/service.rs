//! What the gateway needs from the broker. One implementation per worker, on the worker's thread; statically dispatched.
//!
//! Order of calls for one connection:
//! ```text
//! connect ─▶ (auth …) ─▶ accepted ─▶ { turn_begin ─▶ packet* ─▶ turn_end | events | take } * ─▶ closed
//! ```

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use session::time::Tick;

use crate::codec::{ConnAck, Connect, Packet, ReasonCode, Version};
use crate::connection::Output;
use crate::link::{Link, MessageDelivery};

/// How a client came in.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Address of the client (the one that PROXY protocol v2 names, when the listener trusts it).
    pub address: SocketAddr,
    /// Name of the listener in the configuration.
    pub listener: Arc<str>,
    /// Common name of the verified client certificate.
    pub certificate_cn: Option<Arc<str>>,
    pub secure: bool,
}

/// A CONNECT that owns what it says, for the asynchronous use case.
#[derive(Debug, Clone)]
pub struct ConnectRequest {
    pub peer: Peer,
    /// The CONNECT frame; decode it again with [`ConnectRequest::packet`].
    pub frame: bytes::Bytes,
    pub version: Version,
    /// When its last byte was read.
    pub received_at: Tick,
}

impl ConnectRequest {
    /// The decoded CONNECT. It was validated when it was read.
    #[must_use]
    pub fn packet(&self) -> Connect<'_> {
        unimplemented!()
    }
}

/// What the broker grants; the driver builds CONNACK from it and arms keep alive, windows and limits.
#[derive(Debug)]
pub struct Accepted<S> {
    pub session: S,
    pub session_present: bool,
    pub assigned_client_id: Option<Box<str>>,
    /// Effective expiry, when it differs from the requested one.
    pub session_expiry_sec: Option<u32>,
    pub server_keep_alive_sec: Option<u16>,
    pub response_information: Option<Box<str>>,
    /// Method and final data of an enhanced authentication.
    pub authentication: Option<(Box<str>, Box<[u8]>)>,
}

/// Why CONNECT is refused: CONNACK with this reason, then close.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub reason: ReasonCode,
    /// For clients that asked for problem information.
    pub text: Option<Box<str>>,
    pub server_reference: Option<Box<str>>,
}

/// Why a connection is closed by the service: v5 gets DISCONNECT with this reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnecting {
    pub reason: ReasonCode,
    pub text: Option<&'static str>,
}

/// How a connection ended, for the disconnect use case (owner spec §7.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// DISCONNECT 0x00 was received at this time, with this Session Expiry Interval.
    Normal { at: Tick, session_expiry_sec: Option<u32> },
    /// Anything else: EOF, reset, DISCONNECT 0x04, protocol error, keep alive, fence.
    Abnormal { at: Tick, session_expiry_sec: Option<u32> },
}

/// A future on the worker's thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The broker, as one worker's connections see it.
pub trait Service: Sized + 'static {
    /// State of one connected session; owned by its connection's task.
    type Session: 'static;
    /// Completions that the service leaves for itself in the link.
    type Event: 'static;

    /// Monotonic now, read once per turn by the driver.
    fn now(&self) -> Tick;

    /// The whole CONNECT use case: authenticate, isolate the previous owner, reserve, commit, activate. Bounded by 5 s. Enhanced
    /// authentication steps go through `authenticate`.
    fn connect(
        self: &Rc<Self>,
        link: Rc<Link<Self::Event>>,
        request: ConnectRequest,
    ) -> LocalFuture<Result<Accepted<Self::Session>, Refused>>;

    /// CONNACK success was written to the output: deliveries may start (resend first, then new ones).
    fn connected(&self, session: &mut Self::Session, out: &mut Output);

    /// Whether the driver may read more from the socket now (scopes and windows have room). When false, the
    /// service wakes the link when that changes.
    fn may_read(&self, session: &Self::Session) -> bool;

    /// A read batch begins: admits one scope. Err: fenced, the driver closes without answering.
    fn turn_begin(&self, session: &mut Self::Session) -> Result<(), Disconnecting>;

    /// One packet that passed the connection machine (never CONNECT, PINGREQ, DISCONNECT).
    ///
    /// # Errors
    /// Close the connection with this reason.
    fn packet(
        &self,
        session: &mut Self::Session,
        packet: &Packet<'_>,
        out: &mut Output,
    ) -> Result<(), Disconnecting>;

    /// The read batch ends: proposals of the batch go out together; the scope stays open while any of them waits.
    fn turn_end(&self, session: &mut Self::Session, out: &mut Output);

    /// Events that were left in the link.
    ///
    /// # Errors
    /// Close the connection with this reason.
    fn events(
        &self,
        session: &mut Self::Session,
        events: &mut Vec<Self::Event>,
        out: &mut Output,
    ) -> Result<(), Disconnecting>;

    /// Packet id for a transient exchange taken out of the outbox; `None`: no room in the client's window, hold it back.
    fn begin_exchange(&self, session: &mut Self::Session, exactly_once: bool) -> Option<u16>;

    /// A message delivery taken out of the outbox: the service decides about expiry, window and packet id and encodes it. False: no
    /// room in the client's window, hold it back.
    fn deliver(&self, session: &mut Self::Session, delivery: &MessageDelivery, out: &mut Output) -> bool;

    /// The output was flushed to below its low-water mark (a quarter of `outbox_bytes_max`) after it had been above it, or after
    /// the service wrote anything into it: a long transfer (a page of retained messages, an inbox behind its end) goes on here.
    fn drained(&self, _session: &mut Self::Session, _out: &mut Output) {}

    /// The socket is physically closed (the fd is gone). Called exactly once for each accepted session, also when it never got
    /// CONNACK. The service reports the close to the registry and records the disconnect.
    fn closed(self: &Rc<Self>, session: Self::Session, ended: Ended);
}

/// CONNACK of a success, as the driver builds it; here so that tests of both sides agree.
pub fn connack<'a, S>(_accepted: &'a Accepted<S>, _limits: &crate::connection::Limits) -> ConnAck<'a> {
    unimplemented!()
}
