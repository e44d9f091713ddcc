//! Quotas and rates: per listener, per address, per user, per session (issue 5 §3; P9). A client that asks for more than it may costs only
//! itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tests::client::PATIENCE;
use tests::users::add_user;
use tests::{Client, Node, Options, eventually};

/// Longer than any wait of a client that is not read here.
const LONG: Duration = Duration::from_secs(30);

/// A client whose address is `from`, an address of this machine; everything in 127/8 is.
fn open_from(from: [u8; 4], to: SocketAddr, options: &Options) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address of this machine");
    socket.connect(&to.into()).expect("the broker listens");
    let mut client = Client::over(socket.into(), options.v5);
    client.send(&options.bytes());
    client
}

/// Receives so many PUBACKs in order, from id 1 on.
fn take_acks(client: &mut Client, count: u16) {
    for id in 1..=count {
        let ack = client.poll(LONG).expect("not closed").expect("in time");
        assert_eq!((ack.kind(), ack.packet_id()), (4, id));
        // Nobody may be there to receive it.
        assert!(ack.reason() < 0x80, "{ack:02x?}");
    }
}

fn numbers(client: &Client, topic: &str, count: u16) -> Vec<u8> {
    (1..=count).flat_map(|id| client.publish_bytes(topic, id.to_string().as_bytes(), 2, id, &[])).collect()
}

/// Issue 5 §3: a connection above its publish rate is read later: nothing is dropped or reordered, nobody is disconnected, and others go on.
#[test]
fn a_publish_rate_holds_back_its_own_connection_alone() {
    let node = Node::start_with(&["listener.mqtt.publish_rate_max=20"]);
    let mut sub = Client::connect(node.mqtt, &Options::v5("sub"));
    assert_eq!(sub.subscribe("q/#", 1), 1);
    for (at, options) in [Options::v5("fast"), Options::v3("old")].iter().enumerate() {
        // Its keep alive would be over long before its messages are read.
        let mut fast = Client::connect(node.mqtt, &options.clone().keep_alive(1));
        let (topic, began) = (format!("q/{at}"), Instant::now());
        let batch = numbers(&fast, &topic, 80);
        fast.send(&batch);
        let mut other = Client::connect(node.mqtt, &Options::v5("other"));
        assert_eq!(other.publish("q/other", "x", 1, false), 0);
        take_acks(&mut fast, 80);
        // Twenty at once, the rest at twenty a second.
        assert!(began.elapsed() >= Duration::from_millis(2_500), "{:?}", began.elapsed());
        assert!(fast.is_alive());
        let mut next = 1;
        while next <= 80 {
            let message = sub.take_message();
            if message.topic == topic {
                assert_eq!(message.payload, next.to_string().as_bytes());
                next += 1;
            }
        }
    }
    let paused = "exactmq_publishers_paused_total{reason=\"connection_rate\"}";
    eventually("the pauses are counted", PATIENCE, || (node.metric(paused) >= 2.0).then_some(()));
}

/// Issue 5 §3, [MQTT-3.1.2-22]: the keep alive does not close a client that the broker does not read; it answers when it reads again.
#[test]
fn a_client_that_is_not_read_is_not_late() {
    let node = Node::start_with(&["listener.mqtt.publish_bytes_rate_max=1000"]);
    let mut client = Client::connect(node.mqtt, &Options::v5("c").keep_alive(1));
    let began = Instant::now();
    let bytes = [client.publish_bytes("t", &[b'x'; 5_000], 2, 1, &[]), vec![0xC0, 0]].concat();
    client.send(&bytes);
    take_acks(&mut client, 1);
    // The ping stands behind 5,000 bytes, of which 1,000 a second are let through.
    let pong = client.poll(LONG).expect("not closed").expect("in time");
    assert_eq!(pong.kind(), 13);
    assert!(began.elapsed() >= Duration::from_millis(3_500), "{:?}", began.elapsed());
    // One that is read and says nothing is late all the same.
    assert!(client.until_closed(PATIENCE).iter().all(|packet| packet.kind() == 14));
}

/// Issue 5 §3: sockets above the connect rate wait for their turn; who waits too long is closed.
#[test]
fn a_connect_rate_lets_clients_in_by_turns() {
    let node =
        Node::start_with(&["listener.mqtt.connect_rate_max=5", "listener.mqtt.connect_timeout_ms=30000"]);
    let began = Instant::now();
    let mut clients: Vec<Client> = (0..20)
        .map(|n| {
            let mut client = Client::open(node.mqtt, true);
            client.send(&Options::v5(&format!("c{n}")).bytes());
            client
        })
        .collect();
    for client in &mut clients {
        assert_eq!(client.poll(LONG).expect("not closed").expect("in time").reason(), 0);
    }
    assert!(began.elapsed() >= Duration::from_millis(2_500), "{:?}", began.elapsed());

    let node =
        Node::start_with(&["listener.mqtt.connect_rate_max=1", "listener.mqtt.connect_timeout_ms=1000"]);
    let mut clients: Vec<Client> = (0..20).map(|_| Client::open(node.mqtt, true)).collect();
    for client in &mut clients {
        assert!(client.until_closed(LONG).is_empty());
    }
    let waited = "exactmq_sockets_turned_away_total{reason=\"rate\"}";
    eventually("those that waited too long are counted", PATIENCE, || {
        (node.metric(waited) >= 10.0).then_some(())
    });
}

/// Issue 5 §3: one address that floods a listener with a rate waits for itself: the next one's turn comes at once.
#[test]
fn an_address_does_not_shut_out_another_one() {
    let node =
        Node::start_with(&["listener.mqtt.connect_rate_max=10", "listener.mqtt.connect_timeout_ms=60000"]);
    let mut flood: Vec<Client> =
        (0..600).map(|n| open_from([127, 0, 0, 9], node.mqtt, &Options::v5(&format!("f{n}")))).collect();
    let mut good = open_from([127, 0, 0, 1], node.mqtt, &Options::v5("good"));
    assert_eq!(good.poll(LONG).expect("not closed").expect("in time").reason(), 0);
    // The last of the flood has its turn a minute after its first.
    let last = flood.last_mut().expect("a flood");
    assert!(matches!(last.poll(Duration::from_millis(1)), Ok(None)));
    assert!(good.is_alive());
}

/// Issue 5 §3: an address has its share of a listener; what is above it is closed at once, and a place that is given back is there again.
#[test]
fn connections_per_address_are_limited() {
    let node = Node::start_with(&["listener.mqtt.connections_per_address_max=2"]);
    let options = |n: usize| Options::v5(&format!("c{n}"));
    let accepted =
        |client: &mut Client| matches!(client.poll(PATIENCE), Ok(Some(connack)) if connack.reason() == 0);
    let mut first: Vec<Client> = (0..2).map(|n| open_from([127, 0, 0, 9], node.mqtt, &options(n))).collect();
    assert!(first.iter_mut().all(accepted));
    let mut third = open_from([127, 0, 0, 9], node.mqtt, &options(2));
    assert!(third.until_closed(PATIENCE).is_empty());
    let mut other = open_from([127, 0, 0, 10], node.mqtt, &options(3));
    assert!(accepted(&mut other));
    first.pop().expect("one").disconnect();
    eventually("a place comes back", PATIENCE, || {
        let mut client = open_from([127, 0, 0, 9], node.mqtt, &options(4));
        accepted(&mut client).then_some(())
    });
    let turned = "exactmq_sockets_turned_away_total{reason=\"address\"}";
    eventually("it is counted", PATIENCE, || (node.metric(turned) >= 1.0).then_some(()));
}

/// A node with the users ann and ben, and clients without a name.
fn with_users(dir: &tempfile::TempDir, settings: &[&str]) -> Node {
    let file = dir.path().join("users");
    for name in ["ann", "ben"] {
        add_user(&file, name, "secret");
    }
    let file = format!("auth.password_file={}", file.display());
    Node::start_with(&[&[file.as_str(), "auth.anonymous=true"], settings].concat())
}

fn of(user: &str, options: Options) -> Options {
    options.login(user, "secret")
}

/// The reason, or return code, with which a CONNECT is refused.
fn refusal(node: &Node, options: &Options) -> u8 {
    Client::try_connect(node.mqtt, options).1.reason()
}

/// Issue 5 §3: the clients of a user are counted, each once; a takeover needs no place; anonymous clients are one user.
#[test]
fn connections_of_a_user_are_limited() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = with_users(&dir, &["limits.user_connections_max=2"]);
    let mut first = Client::connect(node.mqtt, &of("ann", Options::v5("a1")));
    let second = Client::connect(node.mqtt, &of("ann", Options::v3("a2")));
    assert_eq!(refusal(&node, &of("ann", Options::v5("a3"))), 0x97);
    assert_eq!(refusal(&node, &of("ann", Options::v3("a3"))), 3);
    let second = {
        let successor = Client::connect(node.mqtt, &of("ann", Options::v3("a2")));
        drop(second);
        successor
    };
    assert_eq!(refusal(&node, &of("ann", Options::v5("a3"))), 0x97, "the successor has the place");
    let _ben = Client::connect(node.mqtt, &of("ben", Options::v5("b1")));
    let _nobody = [Options::v5("n1"), Options::v5("n2")].map(|options| Client::connect(node.mqtt, &options));
    assert_eq!(refusal(&node, &Options::v5("n3")), 0x97);
    second.disconnect();
    eventually("a place comes back", PATIENCE, || {
        (refusal(&node, &of("ann", Options::v5("a3"))) == 0).then_some(())
    });
    assert!(first.is_alive());
    let refused = "exactmq_connects_total{outcome=\"user_quota\"}";
    eventually("refusals are counted", PATIENCE, || (node.metric(refused) >= 4.0).then_some(()));
}

/// Issue 5 §3: sessions of a user are counted from what is stored, away or not, and after a crash too; one that exists is resumed.
#[test]
fn sessions_of_a_user_are_limited() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = with_users(&dir, &["limits.user_sessions_max=2"]);
    let durable = |id: &str| of("ann", Options::v5(id).resume().expiry(600));
    for id in ["d1", "d2"] {
        Client::connect(node.mqtt, &durable(id)).disconnect();
    }
    assert_eq!(refusal(&node, &durable("d3")), 0x97);
    assert_eq!(
        refusal(&node, &of("ann", Options::v3("x"))),
        3,
        "a session that ends with its connection is one"
    );
    let (client, present) = Client::connect_present(node.mqtt, &durable("d1"));
    assert!(present);
    client.disconnect();
    Client::connect(node.mqtt, &of("ben", Options::v5("b"))).disconnect();
    node.kill();
    node.restart();
    assert_eq!(refusal(&node, &durable("d3")), 0x97, "counted again from what was stored");
    assert!(node.cli(&["session", "end", "d2"]).status.success());
    eventually("a place comes back", PATIENCE, || (refusal(&node, &durable("d3")) == 0).then_some(()));
    assert_eq!(refusal(&node, &durable("d4")), 0x97);
}

/// Issue 5 §3: subscriptions of all sessions of a user are counted together; who has one may change it.
#[test]
fn subscriptions_of_a_user_are_limited() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = with_users(&dir, &["limits.user_subscriptions_max=4"]);
    let mut durable = Client::connect(node.mqtt, &of("ann", Options::v5("d").resume().expiry(600)));
    let mut clean = Client::connect(node.mqtt, &of("ann", Options::v5("c")));
    let mut old = Client::connect(node.mqtt, &of("ann", Options::v3("o")));
    for filter in ["s/1", "$share/g/s/2"] {
        assert_eq!(durable.subscribe(filter, 1), 1);
        assert_eq!(clean.subscribe(filter, 1), 1);
    }
    assert_eq!(durable.subscribe("s/3", 1), 0x97);
    assert_eq!(clean.subscribe("s/3", 1), 0x97);
    assert_eq!(old.subscribe("s/3", 1), 0x80);
    assert_eq!(clean.subscribe("s/1", 0), 0, "it is one that the user has");
    let mut ben = Client::connect(node.mqtt, &of("ben", Options::v5("b")));
    assert_eq!(ben.subscribe("s/3", 1), 1);
    assert_eq!(durable.unsubscribe("s/1"), 0);
    assert_eq!(old.subscribe("s/3", 1), 1);
    clean.disconnect();
    eventually("what ended with its connection is free", PATIENCE, || {
        (durable.subscribe("s/4", 1) == 1).then_some(())
    });
    assert_eq!(durable.subscribe("s/5", 1), 1);
    assert_eq!(durable.subscribe("s/6", 1), 0x97);
}

/// Issue 5 §3: the clients of a user share its publish rate; other users have theirs.
#[test]
fn the_publish_rate_of_a_user_is_shared_by_its_clients() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = with_users(&dir, &["limits.user_publish_rate_max=20"]);
    let mut pair =
        [Options::v5("a1"), Options::v3("a2")].map(|options| Client::connect(node.mqtt, &of("ann", options)));
    let began = Instant::now();
    for client in &mut pair {
        let batch = numbers(client, "t", 40);
        client.send(&batch);
    }
    let mut ben = Client::connect(node.mqtt, &of("ben", Options::v5("b")));
    assert!(ben.publish("t", "x", 1, false) < 0x80);
    for client in &mut pair {
        take_acks(client, 40);
    }
    assert!(began.elapsed() >= Duration::from_millis(2_500), "{:?}", began.elapsed());
    let paused = "exactmq_publishers_paused_total{reason=\"user_rate\"}";
    eventually("the pauses are counted", PATIENCE, || (node.metric(paused) >= 1.0).then_some(()));
}

/// Issue 5 §3: the inboxes of a user hold together what it may have; what was acknowledged before stays, and what is taken makes room. A
/// retained message for a new subscription is one of them; so is it after a crash.
#[test]
fn inboxes_of_a_user_are_limited_together() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = with_users(&dir, &["limits.user_inbox_messages_max=5"]);
    let durable = |user: &str, id: &str| of(user, Options::v5(id).resume().expiry(600));
    for (user, id) in [("ann", "a1"), ("ann", "a2"), ("ben", "b1")] {
        let mut client = Client::connect(node.mqtt, &durable(user, id));
        assert_eq!(client.subscribe("q", 1), 1);
        client.disconnect();
    }
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let publish = |publisher: &mut Client, range: std::ops::Range<usize>| {
        for number in range {
            assert_eq!(publisher.publish("q", number.to_string(), 1, false), 0);
        }
    };
    publish(&mut publisher, 0..3);
    let dropped = "exactmq_messages_dropped_total{reason=\"user_quota\"}";
    eventually("one of ann's six is dropped", PATIENCE, || (node.metric(dropped) == 1.0).then_some(()));
    drop(publisher);
    node.kill();
    node.restart();
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    publish(&mut publisher, 3..8);
    eventually("counted from what is stored", PATIENCE, || (node.metric(dropped) == 13.0).then_some(()));
    let mut got = Vec::new();
    for id in ["a1", "a2"] {
        let mut client = Client::connect(node.mqtt, &durable("ann", id));
        while let Some(packet) = client.poll(Duration::from_millis(300)).expect("not closed") {
            let message = packet.publish(true);
            client.settle(&message);
            got.push((id, message.payload));
        }
        assert!(client.is_alive());
        client.disconnect();
    }
    assert_eq!(got.len(), 5, "{got:?}");
    publish(&mut publisher, 8..9);
    let mut client = Client::connect(node.mqtt, &durable("ann", "a1"));
    assert_eq!(client.take_message().payload, b"8", "there is room again");
    let mut ben = Client::connect(node.mqtt, &durable("ben", "b1"));
    for number in 0..5 {
        assert_eq!(ben.take_message().payload, number.to_string().as_bytes());
    }
}

/// Issue 5 §3: `session.will_delay_max_s` shortens the delay of a Will; `session.expiry_max_s` is told in CONNACK.
#[test]
fn caps_of_a_session_hold_and_are_told() {
    let node = Node::start_with(&["session.will_delay_max_s=0", "session.expiry_max_s=60"]);
    let mut watcher = Client::connect(node.mqtt, &Options::v5("w"));
    assert_eq!(watcher.subscribe("will", 1), 1);
    let options = Options::v5("c").expiry(3_600).will("will", "gone", 1, false, 3_600);
    let (client, connack) = Client::try_connect(node.mqtt, &options);
    let expiry = [&[0x11][..], &60_u32.to_be_bytes()].concat();
    assert!(connack.body.windows(expiry.len()).any(|part| part == expiry), "{connack:02x?}");
    client.reset();
    assert_eq!(watcher.take_message().payload, b"gone");
}
