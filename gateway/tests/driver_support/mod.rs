//! A toy service and a byte-level client, to test the driver over real sockets without the broker.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gateway::codec::{
    self, AckType, Connect, Packet, PublishTemplate, ReasonCode, SubAck, UserProperties, Version,
};
use gateway::connection::{Limits, Output};
use gateway::driver::{Gateway, WorkerContext};
use gateway::link::{CloseRequest, Link, MessageDelivery};
use gateway::listener::ListenerConfig;
use gateway::service::{
    Accepted, AuthRequest, AuthStep, Authenticated, ConnectRequest, Disconnecting, Ended, LocalFuture,
    Refused, Service,
};
use session::message::{Message, QoS};
use session::time::Tick;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the service saw, readable from the test's thread.
#[derive(Default)]
pub struct Log {
    pub published: Mutex<Vec<(String, Vec<u8>)>>,
    pub closed: Mutex<Vec<Closed>>,
    pub peers: Mutex<Vec<gateway::service::Peer>>,
    pub connecting: AtomicUsize,
    pub drained: AtomicUsize,
    pub ticks: AtomicUsize,
    /// How often the service said that a client is not read now.
    pub not_read: AtomicUsize,
    /// Milliseconds that the tests have added to the clock.
    pub clock_ms: AtomicU64,
    /// The client's end of a connection, looked at in `closed`.
    pub witnesses: Mutex<HashMap<String, TcpStream>>,
}

#[derive(Debug, Clone)]
pub struct Closed {
    pub client_id: String,
    pub ended: Ended,
    /// What the client's end showed at that moment.
    pub witnessed: Option<Witnessed>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Witnessed {
    pub bytes: Vec<u8>,
    /// `None`: end of stream; else the error. `WouldBlock` means that the socket was still open.
    pub end: Option<ErrorKind>,
}

pub struct Toy {
    pub context: WorkerContext<Self>,
    pub log: Arc<Log>,
    started: Instant,
    pub links: RefCell<HashMap<String, Rc<Link<()>>>>,
    /// Clients that are not read now.
    pub paused: RefCell<Vec<String>>,
    /// Clients for whom nothing may be written any more.
    pub lapsed: RefCell<Vec<String>>,
    /// CONNECTs of clients whose id starts with `slow` wait until this is true.
    pub released: Cell<bool>,
}

pub struct ToySession {
    client_id: String,
    link: Rc<Link<()>>,
    window: u16,
    next_packet_id: u16,
}

impl Service for Toy {
    type Session = ToySession;
    type Event = ();
    type Mail = String;

    fn mail(self: &Rc<Self>, batch: &mut Vec<String>) {
        for topic in batch.drain(..) {
            self.log.published.lock().unwrap().push((topic, Vec::new()));
        }
    }

    fn tick(self: &Rc<Self>) {
        self.log.ticks.fetch_add(1, Ordering::SeqCst);
    }

    fn now(&self) -> Tick {
        let real = u64::try_from(self.started.elapsed().as_nanos()).unwrap();
        Tick(real).plus_ms(self.log.clock_ms.load(Ordering::SeqCst))
    }

    fn connect(
        self: &Rc<Self>,
        link: Rc<Link<()>>,
        request: ConnectRequest,
    ) -> LocalFuture<Result<Accepted<ToySession>, Refused>> {
        let toy = Rc::clone(self);
        Box::pin(async move {
            let connect = request.packet();
            let client_id = connect.client_id.to_owned();
            toy.log.connecting.fetch_add(1, Ordering::SeqCst);
            while client_id.starts_with("slow") && !toy.released.get() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            toy.log.peers.lock().unwrap().push(request.peer.clone());
            if client_id.starts_with("refuse") {
                let text = Some("wrong password".into());
                return Err(Refused {
                    reason: ReasonCode::BadUserNameOrPassword,
                    text,
                    server_reference: None,
                });
            }
            toy.links.borrow_mut().insert(client_id.clone(), Rc::clone(&link));
            let window = connect.receive_maximum;
            Ok(Accepted {
                session: ToySession { client_id, link, window, next_packet_id: 1 },
                session_present: false,
                assigned_client_id: connect.client_id.is_empty().then(|| "assigned".into()),
                session_expiry_sec: None,
                server_keep_alive_sec: None,
                response_information: None,
                authentication: request
                    .authenticated
                    .as_ref()
                    .map(|auth| (auth.method.clone(), auth.data.clone().unwrap_or_default())),
            })
        })
    }

    fn authenticate(
        self: &Rc<Self>,
        _: Rc<Link<()>>,
        request: AuthRequest,
    ) -> LocalFuture<Result<AuthStep, Refused>> {
        Box::pin(async move {
            if &*request.method != "TOY" {
                let reason = ReasonCode::BadAuthenticationMethod;
                return Err(Refused { reason, text: None, server_reference: None });
            }
            if *request.data == *b"wrong" {
                return Err(Refused {
                    reason: ReasonCode::NotAuthorized,
                    text: None,
                    server_reference: None,
                });
            }
            Ok(match request.state {
                None => AuthStep::Continue { data: b"challenge".as_slice().into(), state: Box::new(7_u8) },
                Some(_) => AuthStep::Complete(Authenticated {
                    user: "toy".into(),
                    method: request.method,
                    data: Some(b"proof".as_slice().into()),
                }),
            })
        })
    }

    fn connected(&self, _: &mut ToySession, _: &mut Output) {}

    fn may_read(&self, session: &ToySession) -> bool {
        let is_paused = self.holds_back(session);
        self.log.not_read.fetch_add(usize::from(is_paused), Ordering::SeqCst);
        !is_paused
    }

    fn holds_back(&self, session: &ToySession) -> bool {
        self.paused.borrow().contains(&session.client_id)
    }

    fn turn_begin(&self, session: &mut ToySession) -> Result<(), Disconnecting> {
        if session.client_id.starts_with("fenced") {
            return Err(Disconnecting { reason: ReasonCode::ServerUnavailable, text: None });
        }
        Ok(())
    }

    fn packet(
        &self,
        session: &mut ToySession,
        packet: &Packet<'_>,
        out: &mut Output,
    ) -> Result<(), Disconnecting> {
        match packet {
            Packet::Publish(publish) => {
                assert_ne!(publish.topic, "panic", "asked for");
                self.log.published.lock().unwrap().push((publish.topic.into(), publish.payload.into()));
                if publish.topic == "enough" {
                    self.paused.borrow_mut().push(session.client_id.clone());
                }
                if publish.qos == QoS::AtLeastOnce {
                    out.ack(AckType::PubAck, publish.packet_id, ReasonCode::Success);
                }
            }
            Packet::Subscribe(subscribe) => out.packet(&Packet::SubAck(SubAck {
                packet_id: subscribe.packet_id,
                reasons: &vec![0; usize::from(subscribe.filters.count)],
                reason_string: Some("granted to you"),
                user_properties: UserProperties::EMPTY,
            })),
            Packet::Ack(_) => session.window += 1,
            _ => {}
        }
        Ok(())
    }

    fn turn_end(&self, _: &mut ToySession, _: &mut Output) {}

    fn events(&self, _: &mut ToySession, events: &mut Vec<()>, _: &mut Output) -> Result<(), Disconnecting> {
        events.clear();
        Ok(())
    }

    fn may_write(&self, session: &ToySession) -> bool {
        !self.lapsed.borrow().contains(&session.client_id)
    }

    fn begin_exchange(&self, session: &mut ToySession, _: bool) -> Option<u16> {
        session.window = session.window.checked_sub(1)?;
        session.next_packet_id += 1;
        Some(session.next_packet_id - 1)
    }

    fn deliver(&self, session: &mut ToySession, delivery: &MessageDelivery, out: &mut Output) -> bool {
        let packet_id = if delivery.qos == QoS::AtMostOnce {
            0
        } else {
            match self.begin_exchange(session, false) {
                Some(packet_id) => packet_id,
                None => return false,
            }
        };
        out.publish(delivery, packet_id, None);
        true
    }

    fn drained(&self, _: &mut ToySession, _: &mut Output) {
        self.log.drained.fetch_add(1, Ordering::SeqCst);
    }

    fn closed(self: &Rc<Self>, session: ToySession, ended: Ended) {
        assert!(self.context.links.get(session.link.id()).is_none());
        self.links.borrow_mut().remove(&session.client_id);
        let witness = self.log.witnesses.lock().unwrap().remove(&session.client_id);
        let closed = Closed {
            client_id: session.client_id,
            ended,
            witnessed: witness.map(|socket| witness_end(&socket)),
        };
        self.log.closed.lock().unwrap().push(closed);
    }
}

/// Reads what is there, without waiting.
fn witness_end(socket: &TcpStream) -> Witnessed {
    let socket = socket2::SockRef::from(socket);
    let mut bytes = Vec::new();
    loop {
        let mut piece = [std::mem::MaybeUninit::new(0_u8); 4096];
        match socket.recv_with_flags(&mut piece, libc::MSG_DONTWAIT) {
            Ok(0) => return Witnessed { bytes, end: None },
            // Only the count matters beyond the first bytes.
            Ok(n) => {
                let mut copy = vec![0; n];
                copy.fill(0xEE);
                bytes.extend_from_slice(&copy);
            }
            Err(error) => return Witnessed { bytes, end: Some(error.kind()) },
        }
    }
}

/// A running gateway with toy services.
pub struct Bench {
    pub gateway: Option<Gateway<Toy>>,
    pub log: Arc<Log>,
    pub address: SocketAddr,
}

pub fn limits() -> Limits {
    Limits {
        packet_size_max: 1024 * 1024,
        connect_packet_size_max: 4096,
        receive_maximum: 100,
        topic_alias_maximum: 4,
        topic_alias_out_maximum: 4,
        outbox_bytes_max: 256 * 1024,
        connect_timeout_ms: 10_000,
    }
}

pub fn config() -> ListenerConfig {
    ListenerConfig {
        name: "test".into(),
        address: "127.0.0.1:0".parse().unwrap(),
        limits: limits(),
        connections_max: 1000,
        connections_per_address_max: 0,
        connect_rate_max: 0,
        descriptors_max: u64::MAX,
        tls: None,
        websocket: false,
        proxy_protocol: false,
        proxy_certificate: false,
    }
}

impl Bench {
    pub fn new() -> Self {
        Self::with(1, config())
    }

    pub fn with(workers: u16, config: ListenerConfig) -> Self {
        let log = Arc::new(Log::default());
        let shared = Arc::clone(&log);
        let gateway = Gateway::start(workers, move |context| {
            Rc::new(Toy {
                context,
                log: Arc::clone(&shared),
                started: Instant::now(),
                links: RefCell::default(),
                paused: RefCell::default(),
                lapsed: RefCell::default(),
                released: Cell::new(false),
            })
        })
        .unwrap();
        let address = gateway.listen(config).unwrap();
        Self { gateway: Some(gateway), log, address }
    }

    pub fn gateway(&self) -> &Gateway<Toy> {
        self.gateway.as_ref().unwrap()
    }

    pub fn client(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream }
    }

    /// A v5 client that is connected.
    pub fn connected(&self, client_id: &str) -> Client<TcpStream> {
        let mut client = self.client();
        client.send(&connect(Version::V5, client_id, |_| ()));
        client.expect_connack();
        client
    }

    /// Runs `f` on the first worker and waits for its result.
    pub fn on_worker<T: Send + 'static>(&self, f: impl FnOnce(&Rc<Toy>) -> T + Send + 'static) -> T {
        let (done, result) = std::sync::mpsc::channel();
        assert!(self.gateway().run(0, move |toy| done.send(f(toy)).unwrap()));
        result.recv_timeout(PATIENCE).unwrap()
    }

    pub fn request_close(&self, client_id: &str, request: CloseRequest) {
        let client_id = client_id.to_owned();
        self.on_worker(move |toy| toy.links.borrow()[&client_id].request_close(request));
    }

    pub fn wait_closed(&self, client_id: &str) -> Closed {
        let find =
            || self.log.closed.lock().unwrap().iter().find(|closed| closed.client_id == client_id).cloned();
        eventually("the session is reported closed", || find().is_some());
        find().unwrap()
    }

    /// Moves the clock of the service; its timer has seen the new time when this returns.
    pub fn advance_ms(&self, ms: u64) {
        self.log.clock_ms.fetch_add(ms, Ordering::SeqCst);
        let seen = self.log.ticks.load(Ordering::SeqCst);
        eventually("the timer runs twice", || self.log.ticks.load(Ordering::SeqCst) >= seen + 2);
    }

    pub fn published(&self) -> Vec<(String, Vec<u8>)> {
        self.log.published.lock().unwrap().clone()
    }

    /// Adds a witness that looks at this client's socket when `closed` is reported.
    pub fn witness(&self, client_id: &str, client: &Client<TcpStream>) {
        let socket = client.stream.try_clone().unwrap();
        self.log.witnesses.lock().unwrap().insert(client_id.into(), socket);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stop(Duration::from_secs(1));
        }
    }
}

pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An MQTT client that knows packets by their bytes.
pub struct Client<T> {
    pub stream: T,
}

impl<T: Read + Write> Client<T> {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }

    /// The next whole packet; `None`: end of stream or reset.
    pub fn packet(&mut self) -> Option<Vec<u8>> {
        let mut packet = vec![0; 1];
        if !self.fill(&mut packet) {
            return None;
        }
        let (mut len, mut shift) = (0, 0);
        loop {
            let mut byte = [0];
            assert!(self.fill(&mut byte), "cut in the length");
            packet.push(byte[0]);
            len |= usize::from(byte[0] & 0x7F) << shift;
            shift += 7;
            if byte[0] < 0x80 {
                break;
            }
        }
        let mut body = vec![0; len];
        if !self.fill(&mut body) {
            return None;
        }
        packet.extend(body);
        Some(packet)
    }

    pub fn expect(&mut self, bytes: &[u8]) {
        assert_eq!(self.packet().as_deref(), Some(bytes));
    }

    pub fn expect_connack(&mut self) {
        let connack = self.packet().expect("CONNACK");
        assert_eq!((connack[0], connack[3]), (0x20, 0), "{connack:?}");
    }

    /// The DISCONNECT reason that comes before the end of the stream.
    pub fn expect_disconnect(&mut self, reason: u8) {
        let packet = self.packet().expect("DISCONNECT");
        assert!(packet == [0xE0, 1, reason] || packet == [0xE0, 2, reason, 0], "{packet:?}");
        self.expect_end();
    }

    pub fn expect_end(&mut self) {
        assert_eq!(self.packet(), None);
    }

    fn fill(&mut self, into: &mut [u8]) -> bool {
        match self.stream.read_exact(into) {
            Ok(()) => true,
            Err(error) if is_end(&error) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
    )
}

pub fn connect(version: Version, client_id: &str, change: impl FnOnce(&mut Connect<'_>)) -> Vec<u8> {
    let mut connect = Connect::new(version, client_id, true);
    change(&mut connect);
    let mut bytes = Vec::new();
    codec::write(version, &Packet::Connect(Box::new(connect)), &mut bytes).unwrap();
    bytes
}

/// A v5 QoS 1 PUBLISH.
pub fn publish(topic: &str, packet_id: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let delivery = codec::Delivery { topic, payload, packet_id, properties: &[], ..plain(QoS::AtLeastOnce) };
    delivery.write(Version::V5, usize::MAX, &mut bytes).unwrap();
    bytes
}

/// A v5 QoS 0 PUBLISH with an alias.
pub fn publish_alias(topic: &str, alias: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let delivery = codec::Delivery { topic, topic_alias: Some(alias), ..plain(QoS::AtMostOnce) };
    delivery.write(Version::V5, usize::MAX, &mut bytes).unwrap();
    bytes
}

fn plain(qos: QoS) -> codec::Delivery<'static> {
    codec::Delivery {
        topic: "",
        properties: &[],
        payload: b"x",
        qos,
        retain: false,
        dup: false,
        packet_id: 0,
        topic_alias: None,
        expiry_sec: None,
        identifiers: &[],
    }
}

pub fn template(topic: &str, payload: &[u8], qos: QoS) -> PublishTemplate {
    PublishTemplate::new(Version::V5, &Message::new(topic, &[], payload), qos, false, &[], None).unwrap()
}

pub fn delivery(topic: &str, qos: QoS) -> MessageDelivery {
    MessageDelivery {
        message: Arc::new(Message::new(topic, &[], b"m")),
        qos,
        retain: false,
        dup: false,
        identifiers: smallvec::smallvec![],
        offset: None,
        share: None,
    }
}

pub const SUBSCRIBE: &[u8] = &[0x82, 7, 0, 9, 0, 0, 1, b'a', 0];
pub const PINGREQ: &[u8] = &[0xC0, 0];
pub const PINGRESP: &[u8] = &[0xD0, 0];
pub const DISCONNECT: &[u8] = &[0xE0, 0];
