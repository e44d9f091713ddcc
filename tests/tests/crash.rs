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

/// What a publisher was promised: numbers whose exchange completed, and those whose fate it does not know.
#[derive(Default)]
struct Promises {
    acknowledged: Vec<String>,
    retained: Option<String>,
    retained_unknown: Vec<String>,
}

/// The list: kill -9 at a random moment of a QoS 1 and QoS 2 load towards offline and online durable sessions. Every
/// acknowledged message arrives, no QoS 2 message twice, retained values are acknowledged ones.
#[test]
fn acknowledged_messages_survive_kill_9() {
    let mut node = Node::start();
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
    let mut acknowledged: Vec<String> = Vec::new();
    let mut retained: Vec<String> = Vec::new();
    for round in 0..rounds() {
        let stop = Arc::new(AtomicBool::new(false));
        let address = node.mqtt;
        let load: Vec<_> =
            [1, 2].map(|qos| spawn_load(address, round, qos, Arc::clone(&stop))).into_iter().collect();
        let online = receivers.remove("online").unwrap_or_default();
        let reader = spawn_reader(address, online, Arc::clone(&stop));
        let delay = u64::from(rand::random::<u16>() % 400) + 20;
        std::thread::sleep(Duration::from_millis(delay));
        node.kill();
        stop.store(true, Ordering::Release);
        for thread in load {
            let mut promises = thread.join().expect("no panic");
            acknowledged.append(&mut promises.acknowledged);
            if let Some(value) = promises.retained {
                retained = vec![value];
            }
            retained.append(&mut promises.retained_unknown);
        }
        receivers.insert("online".into(), reader.join().expect("no panic"));
        node.restart();
        check_retained(node.mqtt, &retained);
    }
    for (id, receiver) in &mut receivers {
        drain(node.mqtt, id, receiver);
        for message in &acknowledged {
            assert!(receiver.got.contains_key(message), "{id} lacks {message}, which was acknowledged");
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

fn spawn_load(
    address: SocketAddr,
    round: u32,
    qos: u8,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<Promises> {
    std::thread::spawn(move || {
        let mut promises = Promises::default();
        let Some(mut client) = connect_unless(address, &durable(&format!("load{qos}")), &stop) else {
            return promises;
        };
        for number in 0.. {
            let text = format!("{qos}:{round}:{number}");
            if !exchange(&mut client, &format!("load/{qos}/x"), &text, qos, false) {
                break;
            }
            promises.acknowledged.push(text.clone());
            if qos == 1 && number % 8 == 0 {
                if exchange(&mut client, "kept", &text, 1, true) {
                    promises.retained = Some(text);
                } else {
                    promises.retained_unknown.push(text);
                    break;
                }
            }
        }
        promises
    })
}

/// One exchange; false when the socket broke before it was complete. QoS 2 counts once PUBREC came (P4).
fn exchange(client: &mut Client, topic: &str, text: &str, qos: u8, retain: bool) -> bool {
    let id = client.packet_id();
    let bytes = client.publish_bytes(topic, text.as_bytes(), qos << 1 | u8::from(retain), id, &[]);
    client.send(&bytes);
    let wanted: &[u8] = if qos == 1 { &[4] } else { &[5, 7] };
    for kind in wanted {
        match client.poll(PATIENCE) {
            Ok(Some(packet)) => {
                assert_eq!((packet.kind(), packet.packet_id()), (*kind, id), "{packet:02x?}");
                assert!(packet.reason() < 0x80, "{packet:02x?}");
            }
            Ok(None) => panic!("no acknowledgement"),
            // The message was accepted with PUBREC: that is the promise, even if PUBCOMP is missing.
            Err(()) => return *kind == 7,
        }
        if *kind == 5 {
            client.ack(6, id);
        }
    }
    true
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
    assert_eq!(watcher.subscribe("will/#", 1), 1);
    let _client = Client::connect(node.mqtt, &Options::v5("w").will("will/topic", "gone", 1, false, 0));
    node.kill();
    node.restart();
    let (mut watcher, present) = Client::connect_present(node.mqtt, &durable("watcher"));
    assert!(present);
    assert_eq!(watcher.take_message().payload, b"gone");
    node.kill();
    node.restart();
    let mut watcher = Client::connect(node.mqtt, &durable("watcher"));
    assert_eq!(watcher.poll(Duration::from_secs(2)), Ok(None));
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
