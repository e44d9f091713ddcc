//! kill -9 at any moment loses nothing that was acknowledged (P4, P5, P6, P7; scenarios 41, 49, 50).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tests::client::PATIENCE;
use tests::{Client, Node, Options};

const SUBSCRIBERS: usize = 3;

fn rounds() -> u32 {
    std::env::var("EXACTMQ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20)
}

/// A publisher's memory, which outlives its connections as a real client's store does.
struct Sender {
    qos: u8,
    /// Messages that were acknowledged: PUBACK or PUBREC came.
    acknowledged: Vec<String>,
    /// The QoS 2 exchange that a crash interrupted; it is resumed first ([MQTT-4.4.0-1]).
    open: Option<(u16, String, Stage)>,
    /// Values that a reader of the retained topic may see: the last acknowledged one, and any later one.
    retained: Vec<String>,
    next_id: u16,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Published,
    Received,
}

/// The list: kill -9 at a random moment of a QoS 1 and QoS 2 load towards offline and online durable sessions. Every
/// acknowledged message arrives, no QoS 2 message twice, retained values are acknowledged ones.
#[test]
fn acknowledged_messages_survive_kill_9() {
    // A quick machine takes more than the 10,000 messages that an inbox holds otherwise.
    let mut node = Node::start_with(&["session.inbox_messages_max=1000000"]);
    let mut offline: Vec<String> = (0..SUBSCRIBERS).map(|n| format!("offline{n}")).collect();
    offline.push("online".into());
    for id in &offline {
        let mut client = Client::connect(node.mqtt, &durable(id));
        assert_eq!(client.subscribe("load/1/#", 1), 1);
        assert_eq!(client.subscribe("load/2/#", 2), 2);
        client.disconnect();
    }
    let mut receivers: BTreeMap<String, Receiver> =
        offline.iter().map(|id| (id.clone(), Receiver::default())).collect();
    let mut senders: Vec<Sender> = [1, 2].map(Sender::new).into();
    for round in 0..rounds() {
        let stop = Arc::new(AtomicBool::new(false));
        let address = node.mqtt;
        let load: Vec<_> = std::mem::take(&mut senders)
            .into_iter()
            .map(|sender| sender.spawn(address, round, Arc::clone(&stop)))
            .collect();
        let online = receivers.remove("online").unwrap_or_default();
        let reader = spawn_reader(address, online, Arc::clone(&stop));
        let delay = u64::from(rand::random::<u16>() % 400) + 20;
        std::thread::sleep(Duration::from_millis(delay));
        node.kill();
        stop.store(true, Ordering::Release);
        senders = load.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        receivers.insert("online".into(), reader.join().expect("no panic"));
        node.restart();
        check_retained(node.mqtt, &senders[0].retained);
    }
    let acknowledged: Vec<&String> = senders.iter().flat_map(|sender| &sender.acknowledged).collect();
    for (id, receiver) in &mut receivers {
        drain(node.mqtt, id, receiver);
        for message in &acknowledged {
            assert!(receiver.got.contains_key(*message), "{id} lacks {message}, which was acknowledged");
        }
        for (message, times) in receiver.got.iter().filter(|(message, _)| message.starts_with("2:")) {
            assert_eq!(*times, 1, "{id} got the QoS 2 message {message} {times} times");
        }
    }
    assert!(!acknowledged.is_empty());
}

fn durable(id: &str) -> Options {
    Options::v5(id).resume().expiry(3_600)
}

impl Sender {
    fn new(qos: u8) -> Self {
        Self { qos, acknowledged: Vec::new(), open: None, retained: Vec::new(), next_id: 0 }
    }

    fn spawn(
        mut self,
        address: SocketAddr,
        round: u32,
        stop: Arc<AtomicBool>,
    ) -> std::thread::JoinHandle<Self> {
        std::thread::spawn(move || {
            let id = format!("load{}", self.qos);
            if let Some(mut client) = connect_unless(address, &durable(&id), &stop) {
                self.run(&mut client, round);
            }
            self
        })
    }

    /// Publishes until the socket breaks.
    fn run(&mut self, client: &mut Client, round: u32) {
        let mut number = 0;
        if !self.resume(client) {
            return;
        }
        loop {
            let text = format!("{}:{round}:{number}", self.qos);
            let done = if self.qos == 1 {
                self.exchange1(client, &text) && (number % 8 != 0 || self.retain(client, &text))
            } else {
                self.open = Some((self.id(), text, Stage::Published));
                self.exchange2(client, false)
            };
            if !done {
                return;
            }
            number += 1;
        }
    }

    fn resume(&mut self, client: &mut Client) -> bool {
        self.open.is_none() || self.exchange2(client, true)
    }

    fn exchange1(&mut self, client: &mut Client, text: &str) -> bool {
        let id = self.id();
        let bytes = client.publish_bytes("load/1/x", text.as_bytes(), 2, id, &[]);
        client.send(&bytes);
        let done = answer(client, 4, id);
        if done {
            self.acknowledged.push(text.to_owned());
        }
        done
    }

    fn retain(&mut self, client: &mut Client, text: &str) -> bool {
        let id = self.id();
        let bytes = client.publish_bytes("kept", text.as_bytes(), 3, id, &[]);
        client.send(&bytes);
        let done = answer(client, 4, id);
        if done {
            self.retained.clear();
        }
        self.retained.push(text.to_owned());
        done
    }

    /// Goes on with the open QoS 2 exchange to its end.
    fn exchange2(&mut self, client: &mut Client, again: bool) -> bool {
        let Some((id, text, mut stage)) = self.open.clone() else { return true };
        if stage == Stage::Published {
            let flags = if again { 0x0C } else { 0x04 };
            let bytes = client.publish_bytes("load/2/x", text.as_bytes(), flags, id, &[]);
            client.send(&bytes);
            if !answer(client, 5, id) {
                return false;
            }
            self.acknowledged.push(text.clone());
            stage = Stage::Received;
            self.open = Some((id, text, stage));
        }
        client.ack(6, id);
        let done = answer(client, 7, id);
        if done {
            self.open = None;
        }
        done
    }

    fn id(&mut self) -> u16 {
        self.next_id = if self.next_id == u16::MAX { 1 } else { self.next_id + 1 };
        self.next_id
    }
}

/// Waits for an acknowledgement; false when the socket broke first.
fn answer(client: &mut Client, kind: u8, id: u16) -> bool {
    match client.poll(PATIENCE) {
        Ok(Some(packet)) => {
            assert_eq!((packet.kind(), packet.packet_id()), (kind, id), "{packet:02x?}");
            // PUBREL of an exchange that had completed before the crash is answered 0x92: it is over all the same.
            assert!(packet.reason() < 0x80 || kind == 7, "{packet:02x?}");
            true
        }
        Ok(None) => panic!("no acknowledgement"),
        Err(()) => false,
    }
}

fn connect_unless(address: SocketAddr, options: &Options, stop: &AtomicBool) -> Option<Client> {
    while !stop.load(Ordering::Acquire) {
        let Ok(stream) = std::net::TcpStream::connect(address) else { continue };
        drop(stream);
        let mut client = Client::open(address, true);
        client.send(&options.bytes());
        if let Ok(Some(connack)) = client.poll(PATIENCE)
            && connack.reason() == 0
        {
            return Some(client);
        }
    }
    None
}

/// A subscriber's memory, which outlives its connections as a real client's store does: messages by how often they were
/// delivered, and QoS 2 messages that are received but not released (method A of §4.3.3).
#[derive(Default)]
struct Receiver {
    got: BTreeMap<String, u32>,
    held: BTreeMap<u16, String>,
}

fn spawn_reader(
    address: SocketAddr,
    mut receiver: Receiver,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<Receiver> {
    std::thread::spawn(move || {
        if let Some(mut client) = connect_unless(address, &durable("online"), &stop) {
            receiver.read_until_quiet(&mut client, PATIENCE);
        }
        receiver
    })
}

fn drain(address: SocketAddr, id: &str, receiver: &mut Receiver) {
    let (mut client, present) = Client::connect_present(address, &durable(id));
    assert!(present, "{id} lost its session");
    receiver.read_until_quiet(&mut client, Duration::from_secs(2));
}

impl Receiver {
    /// Receives and acknowledges until the socket closes or nothing comes for `quiet`.
    fn read_until_quiet(&mut self, client: &mut Client, quiet: Duration) {
        while let Ok(Some(packet)) = client.poll(quiet) {
            match packet.kind() {
                3 => {
                    let publish = packet.publish(true);
                    let text = String::from_utf8(publish.payload).expect("text");
                    if publish.qos == 1 {
                        *self.got.entry(text).or_default() += 1;
                        client.ack(4, publish.packet_id);
                    } else {
                        self.held.insert(publish.packet_id, text);
                        client.ack(5, publish.packet_id);
                    }
                }
                6 => {
                    if let Some(text) = self.held.remove(&packet.packet_id()) {
                        *self.got.entry(text).or_default() += 1;
                    }
                    client.ack(7, packet.packet_id());
                }
                other => panic!("packet type {other}"),
            }
        }
    }
}

/// P7: the retained value is the last acknowledged one, or one whose acknowledgement the crash swallowed.
fn check_retained(address: SocketAddr, allowed: &[String]) {
    let mut client = Client::connect(address, &Options::v5("retained-reader"));
    assert_eq!(client.subscribe("kept", 1), 1);
    if allowed.is_empty() {
        return;
    }
    let text = String::from_utf8(client.take_message().payload).expect("text");
    assert!(allowed.contains(&text), "retained is {text}, allowed {allowed:?}");
}

/// Scenario 41 (P6): a delayed, retained Will whose delay spans a kill -9 and a restart fires once, at its time.
#[test]
fn a_delayed_will_survives_kill_9_and_fires_once_at_its_time() {
    let mut node = Node::start();
    let options = Options::v5("w").expiry(300).will("will/topic", "gone", 1, true, 4);
    Client::connect(node.mqtt, &options).reset();
    let dropped = Instant::now();
    std::thread::sleep(Duration::from_millis(800));
    node.kill();
    node.restart();
    let mut watcher = Client::connect(node.mqtt, &Options::v5("watcher"));
    assert_eq!(watcher.subscribe("will/#", 1), 1);
    let will = watcher.take_message();
    let after = dropped.elapsed();
    assert_eq!((will.payload.as_slice(), will.topic.as_str()), (&b"gone"[..], "will/topic"));
    assert!(after >= Duration::from_millis(3_900), "fired early: after {after:?}");
    assert!(after < Duration::from_secs(8), "fired late: after {after:?}");
    assert_eq!(watcher.poll(Duration::from_secs(2)), Ok(None));
    let mut late = Client::connect(node.mqtt, &Options::v5("late"));
    assert_eq!(late.subscribe("will/topic", 1), 1);
    assert!(late.take_message().retain);
}

/// P6: the Will of a client that was connected when the broker was killed fires once after the restart.
#[test]
fn the_will_of_a_client_connected_at_the_crash_fires_once() {
    let mut node = Node::start();
    let mut watcher = Client::connect(node.mqtt, &durable("watcher"));
    assert_eq!(watcher.subscribe("will/#", 2), 2);
    let _client = Client::connect(node.mqtt, &Options::v5("w").will("will/topic", "gone", 2, false, 0));
    node.kill();
    node.restart();
    let (mut watcher, present) = Client::connect_present(node.mqtt, &durable("watcher"));
    assert!(present);
    assert_eq!(watcher.take_message().payload, b"gone");
    node.kill();
    node.restart();
    let mut watcher = Client::connect(node.mqtt, &durable("watcher"));
    // PUBREL may come again when its PUBCOMP was not yet on disk; the Will itself may not.
    while let Ok(Some(packet)) = watcher.poll(Duration::from_secs(2)) {
        assert_eq!(packet.kind(), 6, "the Will fired twice");
        watcher.ack(7, packet.packet_id());
    }
}

/// Scenario 50: after a restart, messages published before the subscriber comes back are there, and Session Present is 1.
#[test]
fn messages_published_between_restart_and_reconnect_arrive() {
    let mut node = Node::start();
    let mut client = Client::connect(node.mqtt, &durable("x"));
    assert_eq!(client.subscribe("t/+", 1), 1);
    client.reset();
    node.kill();
    node.restart();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("t/1", "kept", 1, false), 0);
    let (mut client, present) = Client::connect_present(node.mqtt, &durable("x"));
    assert!(present);
    assert_eq!(client.take_message().payload, b"kept");
}

/// Owner spec §10, bug 15.3: after a graceful stop, and after kill -9, a session is taken over at once, not refused.
#[test]
fn sessions_are_takeable_after_every_kind_of_restart() {
    let mut node = Node::start();
    for graceful in [true, false, true] {
        let mut client = Client::connect(node.mqtt, &durable("x"));
        assert_eq!(client.subscribe("t", 1), 1);
        if graceful {
            node.stop()
        } else {
            node.kill()
        }
        node.restart();
        let (_, present) = Client::connect_present(node.mqtt, &durable("x"));
        assert!(present, "graceful: {graceful}");
    }
}
