//! Attacks on a node, and what it does when too much is asked of it (issue 5 §3; P9): other clients get every message, in order; memory is
//! bounded; what is dropped and refused is counted.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tests::client::PATIENCE;
use tests::users::reload;
use tests::{Client, Node, Options, eventually};

/// Two clients that have nothing to do with an attack.
struct Bystanders {
    publisher: Client,
    subscriber: Client,
    next: u32,
}

impl Bystanders {
    fn at(node: &Node) -> Self {
        let mut subscriber = Client::connect(node.mqtt, &Options::v5("good-sub").resume().expiry(600));
        assert_eq!(subscriber.subscribe("good", 1), 1);
        Self { publisher: Client::connect(node.mqtt, &Options::v3("good-pub")), subscriber, next: 0 }
    }

    /// One message goes all the way; each comes once and in order.
    fn exchange(&mut self) {
        let number = self.next.to_string();
        assert_eq!(self.publisher.publish("good", &number, 1, false), 0);
        assert_eq!(self.subscriber.take_message().payload, number.as_bytes());
        self.next += 1;
    }
}

/// Threads that are told to end when this is dropped, also by a failed assertion: a scope waits for them.
struct Attack<'a>(&'a AtomicBool);

impl Drop for Attack<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn turned_away(node: &Node, reason: &str) -> f64 {
    node.metric(&format!("exactmq_sockets_turned_away_total{{reason=\"{reason}\"}}"))
}

/// Issue 5 §3: ten thousand sockets that never finish their CONNECT cost a few hundred bytes each and are gone after the connect timeout;
/// meanwhile others are served, and new ones are let in.
#[test]
fn a_slow_loris_is_gone_after_the_connect_timeout() {
    const SOCKETS: usize = 10_000;
    let node = Node::start_with(&["listener.mqtt.connect_timeout_ms=10000"]);
    let mut good = Bystanders::at(&node);
    good.exchange();
    let before = node.resident_bytes();
    let connect = Options::v5("loris").bytes();
    let mut sockets: Vec<Client> = Vec::with_capacity(SOCKETS);
    for number in 0..SOCKETS {
        let mut socket = Client::open(node.mqtt, true);
        // Nothing, half a header, or all of it but the last byte.
        socket.send(&connect[..[0, 1, connect.len() - 1][number % 3]]);
        sockets.push(socket);
        if number % 500 == 0 {
            good.exchange();
        }
    }
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for {SOCKETS} sockets");
    let mut late = Client::connect(node.mqtt, &Options::v5("late"));
    assert!(late.is_alive());
    for (number, socket) in sockets.iter_mut().enumerate() {
        assert!(
            socket.until_closed(Duration::from_secs(60)).is_empty(),
            "nobody is told anything before its CONNECT"
        );
        if number % 500 == 0 {
            good.exchange();
        }
    }
    eventually("all are counted", PATIENCE, || {
        (turned_away(&node, "silent") >= SOCKETS as f64).then_some(())
    });
    assert!(late.is_alive());
    assert_eq!(node.metric("exactmq_owner_work{state=\"held\"}"), 3.0, "none of them ever was an owner");
}

/// Issue 5 §3: clients that connect as fast as they can, most of them never waiting for an answer, hold up nobody who is connected.
#[test]
fn a_flood_of_connects_leaves_others_alone() {
    let node = Node::start();
    let mut good = Bystanders::at(&node);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _attack = Attack(&over);
        for thread in 0..2 {
            let (over, to) = (&over, node.mqtt);
            scope.spawn(move || {
                let mut number = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    number += 1;
                    let Ok(mut socket) = TcpStream::connect_timeout(&to, PATIENCE) else { continue };
                    let _ = socket.write_all(&Options::v5(&format!("f{thread}-{}", number % 64)).bytes());
                    // No socket of the attacker waits to be forgotten, or it would run out of ports before the broker has trouble.
                    let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
                }
            });
        }
        for _ in 0..500 {
            good.exchange();
        }
    });
    eventually("the flood is over and forgotten", Duration::from_secs(30), || {
        (node.metric("exactmq_owner_work{state=\"held\"}") == 2.0).then_some(())
    });
}

/// Issue 5 §3: with a connect rate a flood of connects is turned away before it costs anything, from one address in turn with others.
#[test]
fn a_flood_of_connects_waits_for_its_turn() {
    let node =
        Node::start_with(&["listener.mqtt.connect_rate_max=50", "listener.mqtt.connect_timeout_ms=2000"]);
    let mut good = Bystanders::at(&node);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _attack = Attack(&over);
        let (over, to) = (&over, node.mqtt);
        scope.spawn(move || {
            let mut held = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let Ok(mut socket) = TcpStream::connect_timeout(&to, PATIENCE) else { continue };
                let _ = socket.write_all(&Options::v5("f").bytes());
                let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
                held.push(socket);
                if held.len() == 4_000 {
                    held.clear();
                }
            }
        });
        for _ in 0..300 {
            good.exchange();
        }
        eventually("the flood is turned away", Duration::from_secs(30), || {
            good.exchange();
            (turned_away(&node, "rate") >= 100.0).then_some(())
        });
    });
}

/// Issue 5 §3: a publisher that floods subscribers which never read: what cannot wait is dropped and counted, memory is bounded, and the
/// messages of others arrive.
#[test]
fn a_flood_of_messages_at_deaf_subscribers_leaves_others_alone() {
    let node = Node::start_with(&["session.inbox_messages_max=1000", "session.inbox_bytes_max=1048576"]);
    let mut good = Bystanders::at(&node);
    let deaf: Vec<Client> = [
        (Options::v5("deaf"), 0),
        (Options::v3("deaf-old"), 0),
        (Options::v5("deaf-durable").resume().expiry(600), 1),
        (Options::v5("deaf-qos1"), 1),
    ]
    .iter()
    .map(|(options, qos)| {
        let mut client = Client::connect(node.mqtt, options);
        assert_eq!(client.subscribe("flood/#", *qos), *qos);
        client
    })
    .collect();
    let before = node.resident_bytes();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _attack = Attack(&over);
        for (name, qos) in [("flood-0", 0), ("flood-1", 1)] {
            let (over, to) = (&over, node.mqtt);
            scope.spawn(move || {
                let mut publisher = Client::connect(to, &Options::v5(name));
                let batch: Vec<u8> = (1..=50)
                    .flat_map(|id| publisher.publish_bytes("flood/x", &[b'z'; 1_024], qos << 1, id, &[]))
                    .collect();
                while !over.load(Ordering::Relaxed) {
                    publisher.send(&batch);
                    for _ in 0..if qos == 1 { 50 } else { 0 } {
                        assert_eq!(publisher.receive().kind(), 4);
                    }
                }
            });
        }
        for _ in 0..500 {
            good.exchange();
        }
    });
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 96 << 20, "{grown} bytes");
    for reason in ["outbox_full", "inbox_quota"] {
        let series = format!("exactmq_messages_dropped_total{{reason=\"{reason}\"}}");
        eventually(&series, PATIENCE, || (node.metric(&series) > 0.0).then_some(()));
    }
    drop(deaf);
}

fn level(node: &Node) -> &'static str {
    let levels = ["normal", "busy", "overloaded", "critical"];
    let series = levels.map(|level| format!("exactmq_overload_level{{level=\"{level}\"}}"));
    let values = node.metrics(&series.each_ref().map(String::as_str));
    assert_eq!(values.iter().sum::<f64>(), 1.0, "{values:?}");
    let at = values.iter().position(|value| *value == 1.0);
    at.map(|at| levels[at]).expect("one of them is the level")
}

/// Issue 5 §3: a node that runs out of memory says so and takes nothing new: no connection, no durable subscription, no QoS 0 for slow
/// subscribers. Who is connected keeps QoS 1 and 2, and when it is over everything is as before.
#[test]
fn an_overloaded_node_keeps_what_it_promised_and_takes_nothing_new() {
    let config = tempfile::NamedTempFile::new().expect("a file");
    let limit = |bytes: u64| {
        std::fs::write(config.path(), format!("[limits]\nmemory_max_bytes = {bytes}\n")).expect("written");
    };
    limit(0);
    let node = Node::start_with(&[&format!("--config={}", config.path().display())]);
    let mut good = Bystanders::at(&node);
    let mut watcher = Client::connect(node.mqtt, &Options::v5("watcher"));
    assert_eq!(watcher.subscribe("$SYS/broker/overload/level", 0), 0);
    let mut flooder = Client::connect(node.mqtt, &Options::v5("flooder"));
    let mut deaf = Client::connect(node.mqtt, &Options::v5("deaf"));
    assert_eq!(deaf.subscribe("large", 0), 0);
    assert_eq!(level(&node), "normal");
    assert!(node.admin_ask("GET", "/health/ready", "").expect("an answer").0.starts_with("HTTP/1.1 200"));

    limit(1);
    reload(&node);
    eventually("the node is critical", PATIENCE, || (level(&node) == "critical").then_some(()));
    let (head, body) = node.admin_ask("GET", "/health/ready", "").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 503") && body.contains("load"), "{head}\n{body}");
    let mut refused = Client::try_connect(node.mqtt, &Options::v5("new"));
    assert_eq!(refused.1.reason(), 0x89);
    assert!(refused.0.until_closed(PATIENCE).is_empty());
    assert_eq!(Client::try_connect(node.mqtt, &Options::v3("new")).1.reason(), 3);
    // The workers look at the level a few times a second.
    let mut tries = 0;
    eventually("no durable subscription is taken", PATIENCE, || {
        tries += 1;
        (good.subscriber.subscribe(&format!("more/{tries}"), 1) == 0x97).then_some(())
    });
    assert_eq!(good.subscriber.subscribe("good", 1), 1, "what it has it may change");
    assert_eq!(watcher.subscribe("more", 1), 1, "what ends with its connection is no burden");
    for _ in 0..20 {
        good.exchange();
    }
    // Much at once is read in parts: all of it, in order, with pauses.
    let batch: Vec<u8> =
        (1..=90).flat_map(|id| flooder.publish_bytes("f", &[b'z'; 1_024], 2, id, &[])).collect();
    flooder.send(&batch);
    for id in 1..=90 {
        assert_eq!(flooder.receive_kind(4).packet_id(), id);
    }
    let paused = "exactmq_publishers_paused_total{reason=\"overload\"}";
    eventually("the pauses are counted", PATIENCE, || (node.metric(paused) >= 1.0).then_some(()));
    // What the system takes for it is full after some megabytes; what waits here then is a sixteenth of what it would be.
    let dropped = "exactmq_messages_dropped_total{reason=\"overload\"}";
    let large = flooder.publish_bytes("large", &vec![b'z'; 900 << 10], 0, 0, &[]);
    eventually("QoS 0 for a slow subscriber is dropped", Duration::from_secs(60), || {
        flooder.send(&large);
        (node.metric(dropped) >= 1.0).then_some(())
    });
    let refusals = "exactmq_connects_total{outcome=\"overload\"}";
    eventually("the refusals are counted", PATIENCE, || (node.metric(refusals) >= 2.0).then_some(()));

    limit(0);
    reload(&node);
    eventually("the node is as before", Duration::from_secs(60), || (level(&node) == "normal").then_some(()));
    let mut new = Client::connect(node.mqtt, &Options::v5("new"));
    assert!(new.is_alive());
    good.exchange();
}
