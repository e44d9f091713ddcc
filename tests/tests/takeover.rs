//! One executor per session (P1, P2, P8): takeover on one node, as clients see it.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use tests::client::PATIENCE;
use tests::{Client, Node, Options, Packet};

const TAKEN_OVER: u8 = 0x8E;

/// Scenario 14, [MQTT-3.1.4-3]: the v5 loser reads DISCONNECT 0x8E, then EOF.
#[test]
fn a_v5_loser_is_told_session_taken_over() {
    let node = Node::start();
    let mut first = Client::connect(node.mqtt, &Options::v5("x"));
    let mut second = Client::connect(node.mqtt, &Options::v5("x"));
    let last = first.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, TAKEN_OVER));
    assert!(second.is_alive());
}

/// Scenario 14, [MQTT-3.1.4-2]: a 3.1.1 loser is just closed, also by a v5 successor.
#[test]
fn a_v3_loser_is_closed_without_a_word() {
    let node = Node::start();
    let mut first = Client::connect(node.mqtt, &Options::v3("x"));
    let mut second = Client::connect(node.mqtt, &Options::v5("x"));
    assert_eq!(first.until_closed(PATIENCE), []);
    assert!(second.is_alive());
}

/// Scenario 3 (P1): many sockets CONNECT with one ClientID at the same instant; exactly one stays open and works, every loser is closed, and a
/// v5 loser that had been accepted got 0x8E.
#[test]
fn of_fifty_simultaneous_connects_exactly_one_survives() {
    let node = Node::start();
    let rounds = std::env::var("EXACTMQ_TAKEOVER_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    for round in 0..rounds {
        let barrier = Arc::new(Barrier::new(50));
        let threads: Vec<_> = (0..50)
            .map(|_| {
                let (barrier, address) = (Arc::clone(&barrier), node.mqtt);
                std::thread::spawn(move || contend(address, &barrier))
            })
            .collect();
        let outcomes: Vec<Outcome> =
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        let mut survivors = 0;
        for mut outcome in outcomes {
            match settle(&mut outcome) {
                Fate::Open => survivors += 1,
                Fate::TakenOver => assert!(outcome.accepted, "0x8E only to who was accepted"),
                Fate::Refused => {
                    assert!(!outcome.accepted, "round {round}: accepted, then closed without 0x8E")
                }
            }
        }
        assert_eq!(survivors, 1, "round {round}");
    }
}

struct Outcome {
    client: Client,
    accepted: bool,
    closed: bool,
    last: Option<Packet>,
}

enum Fate {
    Open,
    TakenOver,
    Refused,
}

fn contend(address: SocketAddr, barrier: &Barrier) -> Outcome {
    let mut client = Client::open(address, true);
    barrier.wait();
    client.send(&Options::v5("x").bytes());
    let (accepted, closed, last) = match client.poll(PATIENCE) {
        Ok(Some(packet)) => (packet.kind() == 2 && packet.reason() == 0, false, Some(packet)),
        Ok(None) => panic!("no answer to CONNECT"),
        Err(()) => (false, true, None),
    };
    Outcome { client, accepted, closed, last }
}

/// A PINGREQ tells who is alive: only the owner answers.
fn settle(outcome: &mut Outcome) -> Fate {
    if outcome.closed || !outcome.accepted {
        return Fate::Refused;
    }
    outcome.client.send(&[0xC0, 0]);
    loop {
        match outcome.client.poll(PATIENCE) {
            Ok(Some(packet)) if packet.kind() == 13 => return Fate::Open,
            Ok(Some(packet)) => outcome.last = Some(packet),
            Ok(None) => panic!("neither PINGRESP nor close"),
            Err(()) => break,
        }
    }
    match &outcome.last {
        Some(packet) if packet.kind() == 14 && packet.reason() == TAKEN_OVER => Fate::TakenOver,
        _ => Fate::Refused,
    }
}

/// Scenario 6 and the list: an old client that never reads, its socket full, delays the successor by less than a second.
#[test]
fn a_client_that_never_reads_does_not_delay_its_successor() {
    let node = Node::start();
    let mut deaf = Client::connect(node.mqtt, &Options::v5("x").resume().expiry(300));
    assert_eq!(deaf.subscribe("flood", 0), 0);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let payload = vec![b'z'; 60_000];
    for _ in 0..400 {
        publisher.publish("flood", &payload, 0, false);
    }
    assert!(publisher.is_alive());
    let started = Instant::now();
    let (mut next, present) = Client::connect_present(node.mqtt, &Options::v5("x").resume().expiry(300));
    let took = started.elapsed();
    assert!(present);
    assert!(next.is_alive());
    assert!(took < Duration::from_secs(1), "CONNACK after {took:?}");
}

/// Scenario 10, 69 ([MQTT-4.4.0-1]): unacknowledged messages are resent to the successor with DUP=1 and the same packet ids, in order.
#[test]
fn unacknowledged_messages_move_to_the_successor_with_their_ids() {
    let node = Node::start();
    let options = Options::v5("x").resume().expiry(300);
    let mut first = Client::connect(node.mqtt, &options);
    assert_eq!(first.subscribe("t", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    for number in 0..10 {
        assert_eq!(publisher.publish("t", format!("{number}"), 1, false), 0);
    }
    let before: Vec<_> = (0..10).map(|_| first.receive_publish()).collect();
    let (mut second, present) = Client::connect_present(node.mqtt, &options);
    assert!(present);
    first.until_closed(PATIENCE);
    for sent in before {
        let again = second.take_message();
        assert!(!sent.dup && again.dup);
        assert_eq!((again.packet_id, again.payload), (sent.packet_id, sent.payload));
    }
    second.expect_nothing();
}

/// Scenario 9: the session flips between sockets while a publisher runs; every acknowledged number arrives, in order of first arrival.
#[test]
fn nothing_acknowledged_is_lost_while_the_session_flips() {
    let node = Node::start();
    let options = Options::v5("x").resume().expiry(300);
    let mut holder = Client::connect(node.mqtt, &options);
    assert_eq!(holder.subscribe("n", 1), 1);
    let address = node.mqtt;
    let publisher = std::thread::spawn(move || {
        let mut client = Client::connect(address, &Options::v5("p"));
        (0..3_000_u32).take_while(|number| client.publish("n", number.to_string(), 1, false) == 0).count()
    });
    let mut seen: Vec<u32> = Vec::new();
    let mut flips = 0;
    while !publisher.is_finished() {
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            take_numbers(&mut holder, &mut seen);
        }
        holder = Client::connect(address, &options);
        flips += 1;
    }
    let acknowledged = publisher.join().expect("no panic");
    let end = Instant::now() + PATIENCE;
    while seen.iter().max().is_none_or(|last| (*last as usize) < acknowledged - 1) && Instant::now() < end {
        take_numbers(&mut holder, &mut seen);
    }
    let mut first_arrivals = Vec::new();
    for number in seen {
        if !first_arrivals.contains(&number) {
            first_arrivals.push(number);
        }
    }
    let expected: Vec<u32> = (0..u32::try_from(acknowledged).expect("small")).collect();
    assert!(flips > 3);
    assert_eq!(first_arrivals, expected);
}

fn take_numbers(client: &mut Client, seen: &mut Vec<u32>) {
    if let Ok(Some(packet)) = client.poll(Duration::from_millis(5))
        && packet.kind() == 3
    {
        let publish = packet.publish(true);
        seen.push(String::from_utf8(publish.payload).expect("text").parse().expect("a number"));
        client.ack(4, publish.packet_id);
    }
}

/// Scenario 7: eight threads reconnect with one id, subscribe to many overlapping filters and reset, under a flood; the broker lives and
/// the session works afterwards.
#[test]
fn a_storm_of_resets_and_overlapping_filters_harms_nobody() {
    let node = Node::start();
    let address = node.mqtt;
    let end = Instant::now() + Duration::from_secs(5);
    let mut threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                while Instant::now() < end {
                    storm_round(address)
                }
            })
        })
        .collect();
    threads.push(std::thread::spawn(move || {
        let mut client = Client::connect(address, &Options::v5("flood"));
        while Instant::now() < end {
            client.publish("a/b/c", "x", 1, false);
        }
    }));
    for thread in threads {
        thread.join().expect("no panic");
    }
    let mut client = Client::connect(address, &Options::v5("x").resume().expiry(3_600));
    assert!(client.is_alive());
    let mut other = Client::connect(address, &Options::v5("y"));
    assert_eq!(other.subscribe("after", 1), 1);
    assert_eq!(other.publish("after", "1", 1, false), 0);
    assert_eq!(other.take_message().payload, b"1");
}

fn storm_round(address: SocketAddr) {
    let mut client = Client::open(address, true);
    client.send(&Options::v5("x").resume().expiry(3_600).bytes());
    let Ok(Some(connack)) = client.poll(PATIENCE) else { return };
    if connack.kind() != 2 || connack.reason() != 0 {
        return;
    }
    for number in 0..200_u16 {
        let mut body = (number + 1).to_be_bytes().to_vec();
        body.push(0);
        tests::wire::string(["a/#", "a/+/c", "+/b/#", "#"][usize::from(number) % 4], &mut body);
        body.push(1);
        client.send(&tests::wire::packet(0x82, &body));
    }
    client.reset();
}

/// Scenario 16: two clients that take each other over for ever stay bounded, and others are served.
#[test]
fn two_flapping_clients_harm_nobody() {
    let node = Node::start();
    let address = node.mqtt;
    let end = Instant::now() + Duration::from_secs(4);
    let flap = move || {
        let mut connects = 0;
        while Instant::now() < end {
            let mut client = Client::open(address, true);
            client.send(&Options::v5("x").bytes());
            while let Ok(Some(_)) = client.poll(Duration::from_millis(200)) {}
            connects += 1;
        }
        connects
    };
    let threads = [std::thread::spawn(flap), std::thread::spawn(flap)];
    let mut other = Client::connect(address, &Options::v5("y"));
    while Instant::now() < end {
        assert!(other.is_alive());
        std::thread::sleep(Duration::from_millis(50));
    }
    let connects: u32 = threads.map(|thread| thread.join().expect("no panic")).iter().sum();
    assert!(connects > 2);
    assert!(Client::connect(address, &Options::v5("x")).is_alive());
}

/// Scenario 12 (P8): another user neither reads nor destroys a session, with Clean Start 0 or 1.
#[test]
fn a_session_belongs_to_its_user() {
    let passwords = tempfile::NamedTempFile::new().expect("a file");
    for user in ["alice", "bob"] {
        let status = std::process::Command::new("mosquitto_passwd")
            .args(["-b", passwords.path().to_str().expect("UTF-8"), user, "secret"])
            .status()
            .expect("mosquitto_passwd is installed");
        assert!(status.success());
    }
    let file = format!("auth.password_file={}", passwords.path().display());
    let node = Node::start_with(&[&file]);
    let alice = Options::v5("x").resume().expiry(3_600).login("alice", "secret");
    let mut owner = Client::connect(node.mqtt, &alice);
    assert_eq!(owner.subscribe("secret", 1), 1);
    owner.reset();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p").login("alice", "secret"));
    assert_eq!(publisher.publish("secret", "for alice", 1, false), 0);
    for options in [Options::v5("x").resume().expiry(60), Options::v5("x")] {
        let (_, connack) = Client::try_connect(node.mqtt, &options.login("bob", "secret"));
        assert_eq!(connack.reason(), 0x87);
    }
    let (_, connack) = Client::try_connect(node.mqtt, &Options::v3("x").login("bob", "secret"));
    assert_eq!(connack.reason(), 5);
    let (mut owner, present) = Client::connect_present(node.mqtt, &alice);
    assert!(present);
    assert_eq!(owner.take_message().payload, b"for alice");
}

/// Auth before effects (owner spec §7.1 step 2): a wrong password does not disturb the live owner.
#[test]
fn a_bad_password_does_not_disturb_the_live_owner() {
    let passwords = tempfile::NamedTempFile::new().expect("a file");
    let path = passwords.path().to_str().expect("UTF-8").to_owned();
    let status =
        std::process::Command::new("mosquitto_passwd").args(["-b", &path, "alice", "secret"]).status();
    assert!(status.expect("mosquitto_passwd is installed").success());
    let node = Node::start_with(&[&format!("auth.password_file={path}")]);
    let mut owner = Client::connect(node.mqtt, &Options::v5("x").login("alice", "secret"));
    let (_, connack) = Client::try_connect(node.mqtt, &Options::v5("x").login("alice", "wrong"));
    assert!(matches!(connack.reason(), 0x86 | 0x87), "{connack:02x?}");
    assert!(owner.is_alive());
}
