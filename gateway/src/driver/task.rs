//! One connection: the future that owns its socket, from accept to the physical close.

use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use session::time::Tick;

use super::buffers::{self, HEADROOM, Scratch};
use super::close::Finish;
use super::traffic;
use super::worker::Worker;
use super::{Incoming, Socket, Transport};
use crate::codec::{Auth, ConnAck, Packet, ReasonCode, Version};
use crate::connection::{Answer, ClientLimits, Fault, Input, Machine, Output};
use crate::link::{Link, Shape};
use crate::listener::{CountGuard, Endpoint, Opening, Turned};
use crate::service::{
    Accepted, AuthRequest, AuthStep, ConnectRequest, LocalFuture, Peer, Refused, Service, connack,
};

/// Unsent output above which the socket is not read: a client that sends but does not read costs this much.
pub(super) const OUTPUT_READ_STOP: usize = 64 * 1024;
/// Rounds of one poll before other connections get their turn.
const ROUNDS_MAX: u32 = 4;

/// What the task waits for.
/// ```text
/// Opening ─TLS, WebSocket, PROXY─▶ Greeting ─CONNECT─▶ Connecting ─accepted─▶ Running ─▶ Closed
///                                       │                 ▲
///                                       └──▶ Authenticating ─┘
/// ```
/// Every stage may go to Closed; Connecting only when its future has ended.
pub(super) enum Stage<S: Service> {
    Opening(Opening),
    Greeting,
    Authenticating(Box<Exchange>),
    Connecting(LocalFuture<Result<Accepted<S::Session>, Refused>>),
    Running,
    Closed,
}

/// An enhanced authentication under way, before CONNACK or again later.
pub(super) struct Exchange {
    peer: Peer,
    method: Box<str>,
    /// The CONNECT that waits for the outcome; `None`: re-authentication.
    connect: Option<ConnectRequest>,
    step: Step,
}

enum Step {
    /// The service works on it.
    Service(LocalFuture<Result<AuthStep, Refused>>),
    /// The client's AUTH is awaited; this is what the service left for it.
    Client(Box<dyn Any>),
    /// Connected and nothing under way.
    Rest,
}

/// One connection and its socket.
pub(super) struct Connection<S: Service> {
    pub(super) worker: Rc<Worker<S>>,
    pub(super) link: Rc<Link<S::Event>>,
    pub(super) endpoint: Arc<Endpoint>,
    /// `None` before the layers below MQTT are open, and after the physical close.
    pub(super) transport: Option<Transport>,
    pub(super) stage: Stage<S>,
    pub(super) machine: Machine,
    pub(super) session: Option<S::Session>,
    pub(super) out: Output,
    /// The incomplete packet at the end of the last read; allocated only while there is one.
    pub(super) inbuf: Vec<u8>,
    /// `inbuf` may hold complete packets (they followed a CONNECT, or the service held them back).
    buffered: bool,
    /// The peer will send nothing more.
    eof: bool,
    /// The socket does not take bytes now.
    pub(super) blocked: bool,
    peer: Option<Box<Peer>>,
    /// For clients that authenticate again.
    reauthentication: Option<Box<Exchange>>,
    count: CountGuard,
}

/// What came of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// The socket is empty and will wake the task.
    Drained,
    /// There may be more.
    More,
    /// Not read: the output is full. The flush decides what is next.
    OutputFull,
    /// Not read: the service or the stage does not want more; the link will wake the task.
    Paused,
}

/// The socket where MQTT begins with its first byte, else what has to be done first.
fn open<S: Service>(socket: Socket, endpoint: &Arc<Endpoint>) -> io::Result<(Option<Transport>, Stage<S>)> {
    match socket {
        Socket::Local(socket) => {
            socket.set_nonblocking(true)?;
            let stream = tokio::net::UnixStream::from_std(socket)?;
            Ok((Some(Transport::Local(stream)), Stage::Greeting))
        }
        Socket::Tcp(socket) => {
            socket.set_nonblocking(true)?;
            let stream = tokio::net::TcpStream::from_std(socket)?;
            Ok(match endpoint.open(stream) {
                Ok(stream) => (Some(Transport::Tcp(stream)), Stage::Greeting),
                Err(opening) => (None, Stage::Opening(opening)),
            })
        }
    }
}

impl<S: Service> Connection<S> {
    /// Takes an accepted socket over.
    pub(super) fn new(worker: Rc<Worker<S>>, incoming: Incoming) -> io::Result<Self> {
        let Incoming { socket, address, endpoint, count } = incoming;
        let (transport, stage) = open(socket, &endpoint)?;
        let link = worker.insert().ok_or_else(|| io::Error::other("no free slot"))?;
        worker.arm(&link, worker.service.now().plus_ms(endpoint.limits.connect_timeout_ms));
        let peer = Box::new(Peer {
            address,
            listener: Arc::clone(&endpoint.name),
            certificate_cn: None,
            secure: false,
            bridge: endpoint.bridge.clone(),
        });
        Ok(Self {
            machine: Machine::new(&endpoint.limits),
            worker,
            link,
            transport,
            stage,
            session: None,
            out: Output::new(ClientLimits {
                version: Version::V5,
                maximum_packet_size: u32::MAX,
                topic_alias_maximum: 0,
                problem_information: false,
            }),
            inbuf: Vec::new(),
            buffered: false,
            eof: false,
            blocked: false,
            peer: Some(peer),
            reauthentication: None,
            count,
            endpoint,
        })
    }

    /// Everything that can be done now. Ok: the wakers are set.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<(), Finish> {
        for _ in 0..ROUNDS_MAX {
            self.check_requests()?;
            if self.advance(cx)? {
                continue;
            }
            self.events()?;
            if self.blocked {
                self.flush(cx)?;
            }
            let read = self.read(cx)?;
            self.pour(cx)?;
            let again = match read {
                Read::More => true,
                Read::OutputFull => self.out.pending() < OUTPUT_READ_STOP,
                Read::Drained | Read::Paused => false,
            };
            if !again && self.link.set_idle(self.blocked) {
                return Ok(());
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Requests of others and the clock.
    fn check_requests(&mut self) -> Result<(), Finish> {
        if let Some(request) = self.link.close_request()
            && !matches!(self.stage, Stage::Connecting(_))
        {
            return Err(Finish::requested(request));
        }
        if self.link.take_due() {
            let now = self.worker.service.now();
            if self.link.deadline() > now {
                self.worker.arm(&self.link, self.link.deadline());
            } else if self.machine.is_connected() {
                self.keep_alive_over(now)?;
            } else if !matches!(self.stage, Stage::Connecting(_)) {
                self.endpoint.door.turn_away(Turned::Silent);
                // No complete CONNECT in time; there may be no version to answer in.
                return Err(Finish::silent());
            }
        }
        Ok(())
    }

    /// [MQTT-3.1.2-22]. A client that is not read because of the service cannot show that it lives.
    fn keep_alive_over(&mut self, now: Tick) -> Result<(), Finish> {
        let paused = self.session.as_ref().is_some_and(|session| !self.worker.service.may_read(session));
        if !paused {
            return Err(Finish::with(ReasonCode::KeepAliveTimeout));
        }
        self.arm_keep_alive(now);
        Ok(())
    }

    fn arm_keep_alive(&self, now: Tick) {
        let at = self.machine.keep_alive_ms().map_or(Tick(u64::MAX), |ms| now.plus_ms(ms));
        self.worker.arm(&self.link, at);
    }

    /// A complete packet came, or a slow reader took bytes: the deadline moves, its heap entry stays.
    pub(super) fn renew_keep_alive(&self, now: Tick) {
        if self.machine.is_connected()
            && let Some(ms) = self.machine.keep_alive_ms()
        {
            self.link.set_deadline(now.plus_ms(ms));
        }
    }

    /// Polls the future of the stage; true when the stage changed.
    fn advance(&mut self, cx: &mut Context<'_>) -> Result<bool, Finish> {
        match &mut self.stage {
            Stage::Opening(opening) => match opening.as_mut().poll(cx) {
                Poll::Pending => Ok(false),
                Poll::Ready(Ok(mut opened)) => {
                    self.count.keep(opened.take_share());
                    if let Some(peer) = &mut self.peer {
                        opened.describe(peer);
                    }
                    self.transport = Some(opened.transport);
                    self.stage = Stage::Greeting;
                    Ok(true)
                }
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, listener = %self.endpoint.name, "connection not opened");
                    Err(Finish::silent())
                }
            },
            Stage::Connecting(future) => match future.as_mut().poll(cx) {
                Poll::Pending => Ok(false),
                Poll::Ready(Ok(accepted)) => self.accepted(accepted).map(|()| true),
                Poll::Ready(Err(refused)) => Err(self.refused(&refused)),
            },
            Stage::Authenticating(exchange) => match exchange.poll(cx) {
                Poll::Pending => Ok(false),
                Poll::Ready(Ok(step)) => self.authenticated(step).map(|()| true),
                Poll::Ready(Err(refused)) => Err(self.refused(&refused)),
            },
            Stage::Running => self.advance_reauthentication(cx),
            Stage::Greeting | Stage::Closed => Ok(false),
        }
    }

    fn accepted(&mut self, accepted: Accepted<S::Session>) -> Result<(), Finish> {
        let limits = &self.endpoint.limits;
        let closing = self.link.close_request();
        if closing.is_none() {
            let connack = connack(&accepted, limits);
            self.out.packet(&Packet::ConnAck(Box::new(connack)));
        }
        let keep_alive_sec = accepted.server_keep_alive_sec;
        let session = self.session.insert(accepted.session);
        self.stage = Stage::Running;
        if let Some(request) = closing {
            return Err(Finish::requested(request));
        }
        if self.out.failure().is_some() {
            // [MQTT-3.2.0-1]: without a CONNACK no other packet may be sent.
            return Err(Finish::silent());
        }
        self.machine.accept(keep_alive_sec);
        let client = self.out.client_limits();
        let shape = Shape {
            version: client.version,
            maximum_packet_size: client.maximum_packet_size,
            wants_messages: client.topic_alias_maximum > 0,
        };
        self.link.open(shape, limits.outbox_bytes_max);
        if let Some(Transport::WebSocket(socket)) = &mut self.transport {
            socket.set_packet_size_max(limits.packet_size_max);
        }
        self.worker.service.connected(session, &mut self.out);
        self.arm_keep_alive(self.worker.service.now());
        self.check_output()
    }

    fn refused(&mut self, refused: &Refused) -> Finish {
        let version = self.machine.version();
        let mut connack = ConnAck::new(refused.reason, false);
        connack.reason_string = refused.text.as_deref();
        connack.server_reference = refused.server_reference.as_deref();
        self.refuse(version, connack);
        Finish::silent()
    }

    /// CONNACK with a failure; a 3.1.1 client is told only what has a return code ([MQTT-3.2.2-6]).
    fn refuse(&mut self, version: Version, mut connack: ConnAck<'_>) {
        if self.out.version() != version {
            self.out = Output::new(ClientLimits { version, ..self.out.client_limits() });
        }
        if version == Version::V311 {
            if connack.reason == ReasonCode::BadAuthenticationMethod {
                connack.reason = ReasonCode::NotAuthorized;
            }
            if connack.reason.return_code().is_none() {
                return;
            }
        }
        self.out.packet(&Packet::ConnAck(Box::new(connack)));
    }

    /// Completions that were left in the link.
    fn events(&mut self) -> Result<(), Finish> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let mut events = self.link.take_events();
        if events.is_empty() {
            self.link.recycle_events(events);
            return Ok(());
        }
        let outcome = self.worker.service.events(session, &mut events, &mut self.out);
        self.link.recycle_events(events);
        outcome.map_err(Finish::because)?;
        self.check_output()
    }

    /// Reads until the socket is empty or the read buffer full, and handles the complete packets.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<Read, Finish> {
        if let Some(reason_not_to) = self.reading_is_paused() {
            return Ok(reason_not_to);
        }
        if std::mem::take(&mut self.buffered) {
            let data = std::mem::take(&mut self.inbuf);
            let (used, outcome) = self.frames(&data);
            self.keep_rest(&data[used..]);
            buffers::give(data);
            return outcome.map(|()| Read::More);
        }
        if self.eof {
            return Err(Finish::gone());
        }
        let Some(transport) = &mut self.transport else { return Ok(Read::Paused) };
        let mut scratch = Scratch::take();
        let (mut filled, mut read) = (HEADROOM, Read::More);
        // Before CONNECT is accepted smaller limits hold, also in the layers below: nothing is read ahead of it.
        let read_ahead = self.machine.is_connected();
        while filled < scratch.bytes().len() {
            match transport.poll_read(cx, &mut scratch.bytes()[filled..]) {
                Poll::Pending => {
                    read = Read::Drained;
                    break;
                }
                Poll::Ready(Ok(0) | Err(_)) => {
                    self.eof = true;
                    break;
                }
                Poll::Ready(Ok(n)) => {
                    filled += n;
                    if !read_ahead {
                        break;
                    }
                }
            }
        }
        if filled > HEADROOM {
            self.consume(&mut scratch, filled)?;
            // CONNECT or AUTH was read: the future that it started was not polled yet. Or packets were held back: the service is to know
            // that they wait.
            if self.buffered
                || !matches!(self.stage, Stage::Running | Stage::Greeting)
                || self.reauthenticates()
            {
                read = Read::More;
            }
        }
        Ok(read)
    }

    fn reading_is_paused(&self) -> Option<Read> {
        if self.out.pending() >= OUTPUT_READ_STOP {
            return Some(Read::OutputFull);
        }
        let wanted = match &self.stage {
            Stage::Greeting => true,
            Stage::Authenticating(exchange) => exchange.waits_for_client(),
            Stage::Running => {
                !self.reauthenticates()
                    && self.session.as_ref().is_some_and(|session| self.worker.service.may_read(session))
            }
            Stage::Opening(_) | Stage::Connecting(_) | Stage::Closed => false,
        };
        (!wanted).then_some(Read::Paused)
    }

    fn reauthenticates(&self) -> bool {
        self.reauthentication.as_ref().is_some_and(|exchange| matches!(exchange.step, Step::Service(_)))
    }

    /// Handles what was read to `scratch[HEADROOM..filled]` behind the rest of the turn before.
    fn consume(&mut self, scratch: &mut Scratch, filled: usize) -> Result<(), Finish> {
        let rest = self.inbuf.len();
        if rest <= HEADROOM {
            let start = HEADROOM - rest;
            scratch.bytes()[start..HEADROOM].copy_from_slice(&self.inbuf);
            self.inbuf.clear();
            let data = &scratch.bytes()[start..filled];
            let (used, outcome) = self.frames(data);
            self.keep_rest(&data[used..]);
            outcome
        } else {
            // A big packet on its way: it grows in its own buffer, and only its header is looked at again.
            self.inbuf.extend_from_slice(&scratch.bytes()[HEADROOM..filled]);
            let data = std::mem::take(&mut self.inbuf);
            let (used, outcome) = self.frames(&data);
            if used == 0 {
                self.inbuf = data;
            } else {
                self.keep_rest(&data[used..]);
            }
            outcome
        }
    }

    fn keep_rest(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            buffers::give(std::mem::take(&mut self.inbuf));
            self.buffered = false;
            return;
        }
        if self.inbuf.capacity() == 0 {
            self.inbuf = buffers::take();
        }
        self.inbuf.extend_from_slice(rest);
    }

    /// Handles all complete packets at the start of `data`; how many bytes they were, also when the connection ends: what follows may
    /// be a DISCONNECT.
    fn frames(&mut self, data: &[u8]) -> (usize, Result<(), Finish>) {
        let now = self.worker.service.now();
        let (mut in_turn, mut used) = (false, 0);
        let mut outcome = self.frames_in_turn(now, data, &mut in_turn, &mut used);
        if in_turn && let Some(session) = &mut self.session {
            self.worker.service.turn_end(session, &mut self.out);
        }
        if outcome.is_ok() {
            outcome = self.check_output();
        }
        if outcome.is_ok() && used > 0 {
            self.renew_keep_alive(now);
        }
        (used, outcome)
    }

    /// `used`: bytes of the frames that were handled; a frame that ends the connection is not among them.
    fn frames_in_turn(
        &mut self,
        now: Tick,
        data: &[u8],
        in_turn: &mut bool,
        used: &mut usize,
    ) -> Result<(), Finish> {
        loop {
            let rest = &data[*used..];
            let frame = match self.machine.frame(rest) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(fault) => return Err(self.fault(fault)),
            };
            let len = frame.len;
            traffic::received(frame.packet_type, len);
            let input = match self.machine.handle_frame(now, frame) {
                Ok(input) => input,
                Err(fault) => return Err(self.fault(fault)),
            };
            match input {
                Input::Packet(packet) => {
                    let Some(session) = &mut self.session else { return Err(Finish::silent()) };
                    let service = &self.worker.service;
                    if !*in_turn {
                        service.turn_begin(session).map_err(Finish::because)?;
                        *in_turn = true;
                    }
                    service.packet(session, &packet, &mut self.out).map_err(Finish::because)?;
                    if service.holds_back(session) {
                        *used += len;
                        self.buffered = data.len() > *used;
                        return Ok(());
                    }
                }
                Input::Ping => self.out.ping_response(),
                Input::Disconnect => return Err(Finish::gone()),
                Input::Connect(connect) => {
                    let client = ClientLimits::new(&connect, &self.endpoint.limits);
                    let request = self.request(client, &rest[..len], now);
                    self.begin_connect(request);
                    *used += len;
                    self.buffered = data.len() > *used;
                    return Ok(());
                }
                Input::Auth(auth) => {
                    let (reason, data_of_client) = (auth.reason, owned_data(&auth));
                    self.answer_auth(reason, data_of_client)?;
                    *used += len;
                    self.buffered = data.len() > *used;
                    return Ok(());
                }
            }
            *used += len;
        }
    }

    fn fault(&mut self, fault: Fault) -> Finish {
        match fault.answer {
            Answer::Nothing => Finish::silent(),
            Answer::ConnAck(version) => {
                self.refuse(version, ConnAck::new(fault.reason, false));
                Finish::silent()
            }
            Answer::Disconnect => Finish::fault(fault.reason),
        }
    }

    /// Whether everything that is owed to the client could be written for it.
    pub(super) fn check_output(&self) -> Result<(), Finish> {
        self.out.failure().map_or(Ok(()), |reason| Err(Finish::with(reason)))
    }
}

/// CONNECT and enhanced authentication.
impl<S: Service> Connection<S> {
    fn request(&mut self, client: ClientLimits, frame: &[u8], now: Tick) -> ConnectRequest {
        self.out = Output::new(client);
        let peer = match self.peer.take() {
            Some(peer) => *peer,
            None => unreachable!("a connection has one CONNECT"),
        };
        ConnectRequest {
            peer,
            frame: bytes::Bytes::copy_from_slice(frame),
            version: client.version,
            received_at: now,
            authenticated: None,
        }
    }

    fn begin_connect(&mut self, request: ConnectRequest) {
        let service = &self.worker.service;
        let Some(method) = self.machine.authentication_method().map(Box::<str>::from) else {
            self.stage = Stage::Connecting(service.connect(Rc::clone(&self.link), request));
            return;
        };
        let data = request.packet().authentication_data.unwrap_or_default().into();
        let peer = request.peer.clone();
        let step = service.authenticate(
            Rc::clone(&self.link),
            AuthRequest { peer: peer.clone(), method: method.clone(), data, state: None, again: false },
        );
        let exchange = Exchange { peer, method, connect: Some(request), step: Step::Service(step) };
        self.stage = Stage::Authenticating(Box::new(exchange));
    }

    /// AUTH of the client, with the right method.
    fn answer_auth(&mut self, reason: ReasonCode, data: Box<[u8]>) -> Result<(), Finish> {
        let again = matches!(self.stage, Stage::Running);
        let exchange = match &mut self.stage {
            Stage::Authenticating(exchange) => Some(exchange),
            Stage::Running => self.reauthentication.as_mut(),
            _ => None,
        };
        let Some(exchange) = exchange else { return Err(Finish::fault(ReasonCode::ProtocolError)) };
        let state = match (std::mem::replace(&mut exchange.step, Step::Rest), reason) {
            (Step::Client(state), ReasonCode::ContinueAuthentication) => Some(state),
            (Step::Rest, ReasonCode::Reauthenticate) => None,
            _ => return Err(Finish::fault(ReasonCode::ProtocolError)),
        };
        let request =
            AuthRequest { peer: exchange.peer.clone(), method: exchange.method.clone(), data, state, again };
        exchange.step = Step::Service(self.worker.service.authenticate(Rc::clone(&self.link), request));
        Ok(())
    }

    /// A step of the authentication before CONNACK ended.
    fn authenticated(&mut self, step: AuthStep) -> Result<(), Finish> {
        let Stage::Authenticating(exchange) = &mut self.stage else { return Ok(()) };
        match step {
            AuthStep::Continue { data, state } => {
                exchange.step = Step::Client(state);
                self.out.auth(ReasonCode::ContinueAuthentication, &exchange.method, Some(&data));
                self.check_output()
            }
            AuthStep::Complete(authenticated) => {
                let Some(mut request) = exchange.connect.take() else { return Err(Finish::silent()) };
                request.authenticated = Some(authenticated);
                let connecting = self.worker.service.connect(Rc::clone(&self.link), request);
                let connecting = Stage::Connecting(connecting);
                if let Stage::Authenticating(mut exchange) = std::mem::replace(&mut self.stage, connecting) {
                    exchange.step = Step::Rest;
                    self.reauthentication = Some(exchange);
                }
                Ok(())
            }
        }
    }

    fn advance_reauthentication(&mut self, cx: &mut Context<'_>) -> Result<bool, Finish> {
        let Some(exchange) = &mut self.reauthentication else { return Ok(false) };
        let Poll::Ready(step) = exchange.poll(cx) else { return Ok(false) };
        match step {
            Err(refused) => Err(Finish::with(refused.reason)),
            Ok(AuthStep::Continue { data, state }) => {
                exchange.step = Step::Client(state);
                self.out.auth(ReasonCode::ContinueAuthentication, &exchange.method, Some(&data));
                Ok(true)
            }
            Ok(AuthStep::Complete(authenticated)) => {
                exchange.step = Step::Rest;
                let data = authenticated.data.clone();
                if let Some(session) = &mut self.session {
                    let outcome = self.worker.service.reauthenticated(session, authenticated);
                    outcome.map_err(Finish::because)?;
                }
                self.out.auth(ReasonCode::Success, &exchange.method, data.as_deref());
                Ok(true)
            }
        }
    }
}

impl Exchange {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<AuthStep, Refused>> {
        let Step::Service(future) = &mut self.step else { return Poll::Pending };
        let step = std::task::ready!(future.as_mut().poll(cx));
        self.step = Step::Rest;
        Poll::Ready(step)
    }

    fn waits_for_client(&self) -> bool {
        matches!(self.step, Step::Client(_))
    }
}

fn owned_data(auth: &Auth<'_>) -> Box<[u8]> {
    auth.data.unwrap_or_default().into()
}

/// Nothing is pinned in place: the boxed futures are pinned in their boxes.
impl<S: Service> Unpin for Connection<S> {}

impl<S: Service> Future for Connection<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.link.set_busy(cx.waker());
        match this.turn(cx) {
            Ok(()) => Poll::Pending,
            Err(finish) => {
                this.close(cx, finish);
                Poll::Ready(())
            }
        }
    }
}

impl<S: Service> Drop for Connection<S> {
    /// A panic in the service, or the end of the worker: the socket is closed and the session hears of it all the same.
    fn drop(&mut self) {
        self.close_physically();
    }
}
