//! What the gateway needs from the broker. One implementation per worker, on the worker's thread; statically dispatched.
//!
//! Order of calls for one connection:
//! ```text
//! (authenticate …) ─▶ connect ─▶ connected ─▶ { turn_begin ─▶ packet* ─▶ turn_end | events | take } * ─▶ closed
//! ```
//! *take*: `begin_exchange` and `deliver` for what waits in the outbox, `drained` when a full outbox became empty.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use session::time::Tick;

use crate::codec::{self, ConnAck, Connect, Packet, ReasonCode, Version};
use crate::connection::{Limits, Output, PACKET_SIZE_PROTOCOL_MAX};
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
    /// Name of the bridge that this is a connection of. Only [`crate::driver::Inlet`] gives it: the client is part of this process.
    pub bridge: Option<Arc<str>>,
}

/// A CONNECT that owns what it says, for the asynchronous use case.
#[derive(Clone)]
pub struct ConnectRequest {
    pub peer: Peer,
    /// The CONNECT frame; decode it again with [`ConnectRequest::packet`].
    pub frame: bytes::Bytes,
    pub version: Version,
    /// When its last byte was read.
    pub received_at: Tick,
    /// Outcome of the enhanced authentication that the CONNECT asked for (MQTT 5 §4.12).
    pub authenticated: Option<Authenticated>,
}

/// The frame has the password in it.
impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("peer", &self.peer)
            .field("version", &self.version)
            .field("received_at", &self.received_at)
            .field("authenticated", &self.authenticated)
            .finish_non_exhaustive()
    }
}

/// One step of an enhanced authentication (MQTT 5 §4.12).
pub struct AuthRequest {
    pub peer: Peer,
    pub method: Box<str>,
    /// Authentication Data of the CONNECT or AUTH; empty when absent.
    pub data: Box<[u8]>,
    /// What the step before left; `None`: the first step of an exchange.
    pub state: Option<Box<dyn Any>>,
    /// A connected client authenticates again (§4.12.1).
    pub again: bool,
}

/// The data proves a password.
impl fmt::Debug for AuthRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthRequest")
            .field("peer", &self.peer)
            .field("method", &self.method)
            .field("again", &self.again)
            .finish_non_exhaustive()
    }
}

/// What follows a step of an enhanced authentication.
#[derive(Debug)]
pub enum AuthStep {
    /// AUTH 0x18 with this data goes to the client; its answer comes with `state`.
    Continue {
        data: Box<[u8]>,
        state: Box<dyn Any>,
    },
    Complete(Authenticated),
}

/// Who proved to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    pub user: Arc<str>,
    pub method: Box<str>,
    /// Authentication Data for the CONNACK or the last AUTH.
    pub data: Option<Box<[u8]>>,
}

impl ConnectRequest {
    /// The decoded CONNECT. It was validated when it was read.
    #[must_use]
    pub fn packet(&self) -> Connect<'_> {
        let connect = codec::first_frame(&self.frame, self.frame.len())
            .and_then(|frame| frame.map(codec::read_connect).transpose());
        match connect {
            Ok(Some(connect)) => connect,
            _ => unreachable!("the same bytes were decoded as CONNECT when they were read"),
        }
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
    /// The client never got a CONNACK (closed before, or too large for it): it was not accepted, and its Will must not appear
    /// ([MQTT-3.1.2-8]).
    Unanswered { at: Tick },
}

/// A future on the worker's thread.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The broker, as one worker's connections see it.
pub trait Service: Sized + 'static {
    /// State of one connected session; owned by its connection's task.
    type Session: 'static;
    /// Completions that the service leaves for itself in the link.
    type Event: 'static;
    /// What other threads (workers, the control plane) send to this worker through its [`crate::driver::Mailbox`].
    type Mail: Send + 'static;

    /// Mail of other threads, everything that waited; leaves `batch` empty.
    fn mail(self: &Rc<Self>, batch: &mut Vec<Self::Mail>);

    /// Called every [`crate::driver::TICK_PERIOD_MS`]; later when the worker is late.
    fn tick(self: &Rc<Self>) {}

    /// Whether nothing that was taken from clients is still under way. A worker that stops waits for it, within its time, once its
    /// connections are gone.
    fn is_settled(&self) -> bool {
        true
    }

    /// Monotonic now, read once per turn by the driver.
    fn now(&self) -> Tick;

    /// The whole CONNECT use case: authenticate, isolate the previous owner, reserve, commit, activate. Bounded by 5 s. Enhanced
    /// authentication steps go through `authenticate`.
    fn connect(
        self: &Rc<Self>,
        link: Rc<Link<Self::Event>>,
        request: ConnectRequest,
    ) -> LocalFuture<Result<Accepted<Self::Session>, Refused>>;

    /// One step of an enhanced authentication: before `connect` for a CONNECT with an Authentication Method, later for
    /// re-authentication. Dropped when the client leaves meanwhile. The default knows no method (0x8C, [MQTT-4.12.0-1]).
    fn authenticate(
        self: &Rc<Self>,
        _link: Rc<Link<Self::Event>>,
        _request: AuthRequest,
    ) -> LocalFuture<Result<AuthStep, Refused>> {
        Box::pin(std::future::ready(Err(Refused {
            reason: ReasonCode::BadAuthenticationMethod,
            text: None,
            server_reference: None,
        })))
    }

    /// A re-authentication succeeded; the service compares the user.
    ///
    /// # Errors
    /// Close the connection with this reason ([MQTT-4.12.1-2]).
    fn reauthenticated(
        &self,
        _session: &mut Self::Session,
        _authenticated: Authenticated,
    ) -> Result<(), Disconnecting> {
        Ok(())
    }

    /// CONNACK success was written to the output: deliveries may start (resend first, then new ones).
    fn connected(&self, session: &mut Self::Session, out: &mut Output);

    /// Whether the driver may read more from the socket now (scopes and windows have room). When false, the
    /// service wakes the link when that changes.
    fn may_read(&self, session: &Self::Session) -> bool;

    /// Whether the packets of this batch that are not handled yet wait until [`Service::may_read`] is true again: asked after each one.
    fn holds_back(&self, _session: &Self::Session) -> bool {
        false
    }

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

    /// The read batch ends, also when one of its packets ended the connection: proposals of the batch go out together; the scope stays open while any of them waits.
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

    /// Whether bytes may go to the client of this session now. Asked before each write to its socket, with the clock as it is then: what
    /// was encoded before the process was stopped must not leave behind the end of its owner's lease (DESIGN §7). When false, the
    /// connection is closed and what waits is dropped.
    fn may_write(&self, _session: &Self::Session) -> bool {
        true
    }

    /// Packet id for a transient exchange taken out of the outbox; `None`: no room in the client's window, hold it back.
    fn begin_exchange(&self, session: &mut Self::Session, exactly_once: bool) -> Option<u16>;

    /// A message delivery taken out of the outbox: the service decides about expiry, window and packet id and encodes it. False: no
    /// room in the client's window, hold it back.
    fn deliver(&self, session: &mut Self::Session, delivery: &MessageDelivery, out: &mut Output) -> bool;

    /// The outbox is empty again after a push into it had been refused.
    fn drained(&self, _session: &mut Self::Session, _out: &mut Output) {}

    /// Where else the clients of a listener are served, for the DISCONNECT 0x8B of a stop (§4.13). `None`: not known.
    fn server_reference(&self, _listener: &str) -> Option<Arc<str>> {
        None
    }

    /// The socket is physically closed (the fd is gone). Called exactly once for each accepted session, also when it never got
    /// CONNACK. The service reports the close to the registry and records the disconnect.
    fn closed(self: &Rc<Self>, session: Self::Session, ended: Ended);
}

/// CONNACK of a success, as the driver builds it; here so that tests of both sides agree.
pub fn connack<'a, S>(accepted: &'a Accepted<S>, limits: &Limits) -> ConnAck<'a> {
    let mut connack = ConnAck::new(ReasonCode::Success, accepted.session_present);
    connack.session_expiry_sec = accepted.session_expiry_sec;
    connack.receive_maximum = limits.receive_maximum;
    connack.maximum_packet_size =
        (limits.packet_size_max < PACKET_SIZE_PROTOCOL_MAX).then_some(limits.packet_size_max);
    connack.assigned_client_id = accepted.assigned_client_id.as_deref();
    connack.topic_alias_maximum = limits.topic_alias_maximum;
    connack.server_keep_alive_sec = accepted.server_keep_alive_sec;
    connack.response_information = accepted.response_information.as_deref();
    if let Some((method, data)) = &accepted.authentication {
        connack.authentication_method = Some(method);
        connack.authentication_data = (!data.is_empty()).then_some(data);
    }
    connack
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client proves itself with is in no text that could get into a log.
    #[test]
    fn no_text_form_has_a_secret_in_it() {
        let secret = "Passw0rd";
        let mut connect = Connect::new(Version::V5, "c", true);
        connect.login = codec::Login { user_name: Some("ann"), password: Some(secret.as_bytes()) };
        let mut frame = Vec::new();
        let packet = Packet::Connect(Box::new(connect));
        codec::write(Version::V5, &packet, &mut frame).expect("well-formed");
        let peer = Peer {
            address: ([127, 0, 0, 1], 1).into(),
            listener: "mqtt".into(),
            certificate_cn: None,
            secure: false,
            bridge: None,
        };
        let request = ConnectRequest {
            peer: peer.clone(),
            frame: frame.into(),
            version: Version::V5,
            received_at: Tick(0),
            authenticated: None,
        };
        let step = AuthRequest {
            peer,
            method: "SCRAM-SHA-256".into(),
            data: secret.as_bytes().into(),
            state: None,
            again: false,
        };
        for text in [format!("{packet:?}"), format!("{request:?}"), format!("{step:?}")] {
            let bytes = format!("{:?}", secret.as_bytes());
            let inner = bytes.trim_matches(['[', ']']);
            assert!(!text.contains(secret) && !text.contains(inner), "{text}");
        }
    }
}
