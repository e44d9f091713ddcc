//! Simulated clients, and what each of them may expect: acknowledged messages arrive, in order, QoS 2 once, with the same packet id and
//! DUP when they are sent again, and a durable session is never forgotten.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use session::id::Key;
use session::lifecycle::WillTemplate;
use session::message::{Message, QoS};
use tokio::sync::{Notify, mpsc, oneshot};

use super::calls::ms;
use super::connection::{Hello, ToClient, ToServer, accept};
use super::duties::qos;
use super::world::{World, key};

/// Unanswered publishes of one client.
const WINDOW: usize = 8;

/// What a client is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Durable, never gives its session up: must get everything.
    Subscriber,
    /// Publishes QoS 0 to 2; durable: repeats what was not answered.
    Publisher { durable: bool },
    /// Comes and goes with all kinds of expiry, Wills, Clean Start; is ended by operators.
    Volatile,
    /// Tries the ClientIDs of others.
    Intruder,
}

#[derive(Debug)]
struct Outgoing {
    packet_id: u16,
    sequence: u64,
    message: Message,
    received: bool,
}

/// What the client remembers over its connections.
#[derive(Debug, Default)]
pub struct Mind {
    /// The newest connection that got CONNACK; what comes over older ones is not looked at.
    current: u64,
    pub subscribed: bool,
    had_session: bool,
    /// QoS 2 ids that were received and not released.
    held: BTreeSet<u16>,
    /// What came under each packet id.
    ids: BTreeMap<u16, String>,
    /// Highest sequence that came of each publisher and QoS.
    highest: BTreeMap<(String, u8), u64>,
    pub got: BTreeSet<(String, u64)>,
    once: BTreeSet<(String, u64)>,
    wills: BTreeMap<String, u16>,
    outgoing: VecDeque<Outgoing>,
    next_id: u16,
    next_sequence: u64,
    /// Acknowledged by a server.
    pub acked: BTreeSet<u64>,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    pub world: Arc<World>,
    pub kind: Kind,
    pub key: Key,
    uid: Arc<str>,
    pub mind: Mutex<Mind>,
    connections: std::sync::atomic::AtomicU64,
}

/// One connection of it.
struct Line {
    number: u64,
    server: mpsc::UnboundedSender<ToServer>,
    stop: Arc<Notify>,
}

impl Client {
    pub fn new(world: &Arc<World>, name: &str, kind: Kind) -> Arc<Self> {
        let key = key(name);
        let uid: Arc<str> = match kind {
            Kind::Intruder => "mallory".into(),
            _ => format!("user of {name}").into(),
        };
        if matches!(kind, Kind::Subscriber | Kind::Publisher { durable: true }) {
            world.oracle.binds(&key, &uid);
        }
        let mind = Mutex::new(Mind { next_id: 1, next_sequence: 1, ..Mind::default() });
        Arc::new(Self {
            world: world.clone(),
            kind,
            key,
            uid,
            mind,
            connections: std::sync::atomic::AtomicU64::new(0),
        })
    }

    /// Connects again and again until the run closes.
    pub async fn live(self: Arc<Self>) {
        loop {
            let world = &self.world;
            let closing = world.is_closing();
            if closing && (matches!(self.kind, Kind::Volatile | Kind::Intruder) || self.is_done()) {
                return;
            }
            let at = world.chance.index(world.nodes());
            let Some(line) = self.connect(at).await else {
                tokio::time::sleep(ms(world.chance.between(10, 150))).await;
                continue;
            };
            self.stay(&line).await;
            // How it ends: with DISCONNECT, without, or by a second connection while the first one lives.
            match world.chance.below(4) {
                _ if self.kind == Kind::Intruder => line.stop.notify_one(),
                0 => {
                    let _ = line.server.send(ToServer::Disconnect);
                }
                1 => line.stop.notify_one(),
                _ => {}
            }
            let pause = if self.kind == Kind::Volatile {
                world.chance.between(0, 2_500)
            } else {
                world.chance.below(80)
            };
            tokio::time::sleep(ms(pause)).await;
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.kind, Kind::Publisher { .. }) && self.mind.lock().outgoing.is_empty()
    }

    /// Nothing of it is under way.
    pub fn is_idle(&self) -> bool {
        self.mind.lock().outgoing.is_empty()
    }

    /// A CONNECT of it was accepted.
    pub fn has_session(&self) -> bool {
        self.mind.lock().had_session
    }

    fn hello(&self) -> Hello {
        let chance = &self.world.chance;
        let (expiry_sec, clean_start) = match self.kind {
            Kind::Subscriber | Kind::Publisher { durable: true } => (u32::MAX, false),
            Kind::Publisher { durable: false } => (0, false),
            Kind::Intruder => (*chance.pick(&[0, 60]), chance.happens(300)),
            Kind::Volatile => (*chance.pick(&[0, 0, 1, 5, 60, u32::MAX]), chance.happens(200)),
        };
        let will = (self.kind == Kind::Volatile && chance.happens(800)).then(|| {
            let delay_sec = *chance.pick(&[0, 0, 1, 4]);
            let text = format!("{} {}", self.key.client_id, chance.draw());
            let topic = format!("will/{}", self.key.client_id);
            let mut message = Message::new(&topic, &[], text.as_bytes());
            message.qos = QoS::AtLeastOnce;
            WillTemplate { message, delay_sec, message_expiry_sec: None }
        });
        let receive_maximum = *chance.pick(&[1, 4, 20]);
        Hello { key: self.key.clone(), uid: self.uid.clone(), clean_start, expiry_sec, will, receive_maximum }
    }

    async fn connect(self: &Arc<Self>, at: usize) -> Option<Line> {
        let node = self.world.node(at).filter(|node| !node.power.is_dead())?;
        let number = self.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let (server, from_client) = mpsc::unbounded_channel();
        let (client, from_server) = mpsc::unbounded_channel();
        crate::step!(self.world, "{} dials node {} for its connection {number}", self.key.client_id, at + 1);
        accept(&node, self.hello(), from_client, client);
        let (connected, answer) = oneshot::channel();
        let stop = Arc::new(Notify::new());
        let line = Line { number, server: server.clone(), stop: stop.clone() };
        tokio::spawn(self.clone().read(number, server, from_server, connected, stop.clone()));
        let wait = ms(self.world.chance.between(300, 4_000));
        match tokio::time::timeout(wait, answer).await {
            Ok(Ok(())) => Some(line),
            Ok(Err(_)) => None,
            Err(_) => {
                stop.notify_one();
                None
            }
        }
    }

    /// What the client does while it is connected.
    async fn stay(&self, line: &Line) {
        let world = &self.world;
        let longest = if world.chance.happens(300) { 4_000 } else { 600 };
        let mut left = world.chance.between(20, longest);
        loop {
            if line.server.is_closed() {
                return;
            }
            let closing = world.is_closing();
            if closing
                && (!matches!(self.kind, Kind::Subscriber) && self.is_done() || self.kind == Kind::Volatile)
            {
                return;
            }
            let pause = world.chance.between(5, 60);
            tokio::time::sleep(ms(pause)).await;
            if matches!(self.kind, Kind::Publisher { .. }) && !closing {
                self.publish(line);
            }
            left = left.saturating_sub(pause);
            if left == 0 && !closing {
                return;
            }
        }
    }

    fn publish(&self, line: &Line) {
        let mut mind = self.mind.lock();
        if mind.outgoing.len() >= WINDOW || mind.current != line.number {
            return;
        }
        let sequence = mind.next_sequence;
        mind.next_sequence += 1;
        let name = &self.key.client_id;
        let mut message = Message::new(&format!("t/{name}"), &[], format!("{name} {sequence}").as_bytes());
        message.qos = qos(self.world.chance.below(3));
        let mut packet_id = 0;
        if message.qos != QoS::AtMostOnce {
            packet_id = mind.next_id;
            mind.next_id = packet_id.checked_add(1).unwrap_or(1);
            let message = message.clone();
            mind.outgoing.push_back(Outgoing { packet_id, sequence, message, received: false });
        }
        drop(mind);
        let _ = line.server.send(ToServer::Publish { packet_id, dup: false, message });
    }

    /// Reads one connection until it ends.
    async fn read(
        self: Arc<Self>,
        number: u64,
        server: mpsc::UnboundedSender<ToServer>,
        mut from_server: mpsc::UnboundedReceiver<ToClient>,
        connected: oneshot::Sender<()>,
        stop: Arc<Notify>,
    ) {
        let mut connected = Some(connected);
        loop {
            let packet = tokio::select! {
                biased;
                () = stop.notified() => return,
                packet = from_server.recv() => packet,
            };
            let Some(packet) = packet else { return };
            if self.world.chance.happens(100) {
                tokio::time::sleep(ms(self.world.chance.below(8))).await;
            }
            match packet {
                ToClient::Refused(_) => return,
                ToClient::ConnAck { session_present, .. } => {
                    self.accepted(number, session_present, &server);
                    if let Some(connected) = connected.take() {
                        let _ = connected.send(());
                    }
                }
                packet => {
                    if self.mind.lock().current != number {
                        continue;
                    }
                    if let Some(answer) = self.packet(packet) {
                        // A socket that is closed meanwhile takes no answer.
                        let _ = server.send(answer);
                    }
                }
            }
        }
    }

    fn accepted(&self, number: u64, session_present: bool, server: &mpsc::UnboundedSender<ToServer>) {
        let mut mind = self.mind.lock();
        if number < mind.current {
            return;
        }
        mind.current = number;
        let durable = matches!(self.kind, Kind::Subscriber | Kind::Publisher { durable: true });
        if durable && mind.had_session && !session_present {
            self.world.fail(&format!("P4: the session of {} is gone", self.key.client_id));
        }
        mind.had_session = true;
        if !session_present {
            mind.outgoing.clear();
        }
        for out in &mind.outgoing {
            let packet = if out.received {
                ToServer::PubRel(out.packet_id)
            } else {
                ToServer::Publish { packet_id: out.packet_id, dup: true, message: out.message.clone() }
            };
            let _ = server.send(packet);
        }
        if self.kind == Kind::Subscriber && !mind.subscribed {
            let _ = server.send(ToServer::Subscribe { filters: vec!["t/#".into(), "will/#".into()] });
        }
    }

    /// Takes one packet and says what is to be answered.
    fn packet(&self, packet: ToClient) -> Option<ToServer> {
        let mut mind = self.mind.lock();
        match packet {
            ToClient::SubAck => {
                mind.subscribed = true;
                None
            }
            ToClient::PubAck(packet_id) => {
                if let Some(at) = mind.outgoing.iter().position(|out| out.packet_id == packet_id) {
                    let acked = mind.outgoing.remove(at).map_or(0, |out| out.sequence);
                    mind.acked.insert(acked);
                }
                None
            }
            ToClient::PubRec(packet_id) => {
                if let Some(at) = mind.outgoing.iter().position(|out| out.packet_id == packet_id) {
                    mind.outgoing[at].received = true;
                    let acked = mind.outgoing[at].sequence;
                    mind.acked.insert(acked);
                }
                Some(ToServer::PubRel(packet_id))
            }
            ToClient::PubComp(packet_id) => {
                mind.outgoing.retain(|out| out.packet_id != packet_id);
                None
            }
            ToClient::PubRel(packet_id) => {
                mind.held.remove(&packet_id);
                Some(ToServer::PubComp(packet_id))
            }
            ToClient::Publish { packet_id, dup, qos, message } => {
                self.receive(&mut mind, packet_id, dup, qos, &message)
            }
            ToClient::ConnAck { .. } | ToClient::Refused(_) => None,
        }
    }

    fn receive(
        &self,
        mind: &mut Mind,
        packet_id: u16,
        dup: bool,
        qos: QoS,
        message: &Message,
    ) -> Option<ToServer> {
        let fail = |what: String| self.world.fail(&format!("{what} at {}", self.key.client_id));
        let text = String::from_utf8_lossy(message.payload()).into_owned();
        if qos != QoS::AtMostOnce {
            match mind.ids.get(&packet_id) {
                Some(known) if *known != text => {
                    fail(format!("P5: packet id {packet_id} was of {known:?}, now of {text:?}"));
                }
                Some(_) if !dup => fail(format!("P5: {text:?} came again without DUP [MQTT-3.3.1-1]")),
                Some(_) => {}
                None => {
                    mind.ids.insert(packet_id, text.clone());
                }
            }
        }
        if message.topic().starts_with("will/") {
            let first = *mind.wills.entry(text.clone()).or_insert(packet_id);
            if first != packet_id {
                fail(format!("P6: the Will {text:?} came twice"));
            }
            return Some(ToServer::PubAck(packet_id));
        }
        let (name, sequence) = text.split_once(' ')?;
        let tag = (name.to_owned(), sequence.parse::<u64>().ok()?);
        match qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce => {
                self.first(mind, &tag, qos);
                Some(ToServer::PubAck(packet_id))
            }
            QoS::ExactlyOnce => {
                if mind.held.insert(packet_id) {
                    if !mind.once.insert(tag.clone()) {
                        fail(format!("P5: the QoS 2 message {text:?} came twice"));
                    }
                    self.first(mind, &tag, qos);
                }
                Some(ToServer::PubRec(packet_id))
            }
        }
    }

    /// The first time that a message comes it is in its order ([MQTT-4.6.0-6]).
    fn first(&self, mind: &mut Mind, tag: &(String, u64), qos: QoS) {
        if !mind.got.insert(tag.clone()) {
            return;
        }
        let highest = mind.highest.entry((tag.0.clone(), qos as u8)).or_default();
        if tag.1 < *highest {
            let what =
                format!("P5: {} {} came first after {} at {}", tag.0, tag.1, highest, self.key.client_id);
            self.world.fail(&what);
        }
        *highest = (*highest).max(tag.1);
    }
}
