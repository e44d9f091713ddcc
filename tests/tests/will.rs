//! Wills fire once, at the right time, never after a clean DISCONNECT (P6; MQTT 5 §3.1.2.5, §3.1.3.2).

use std::time::{Duration, Instant};

use tests::client::PATIENCE;
use tests::{Client, Node, Options};

fn watcher(node: &Node) -> Client {
    let mut client = Client::connect(node.mqtt, &Options::v5("watcher"));
    assert_eq!(client.subscribe("will/#", 1), 1);
    client
}

fn quiet(watcher: &mut Client, ms: u64) {
    assert_eq!(watcher.poll(Duration::from_millis(ms)), Ok(None), "a Will that must not come");
}

/// [MQTT-3.1.2-8]: closed without DISCONNECT, so the Will is published, on both versions.
#[test]
fn a_broken_connection_publishes_the_will() {
    let node = Node::start();
    let mut watcher = watcher(&node);
    for options in [Options::v3("w"), Options::v5("w")] {
        Client::connect(node.mqtt, &options.will("will/a", "gone", 1, false, 0)).reset();
        let will = watcher.take_message();
        assert_eq!((will.topic.as_str(), will.payload.as_slice()), ("will/a", &b"gone"[..]));
    }
    quiet(&mut watcher, 500);
}

/// Scenario 42 ([MQTT-3.14.4-3]): DISCONNECT 0x00 discards the Will, in every legal spelling; 0x04 publishes it.
#[test]
fn disconnect_0_discards_and_4_publishes_the_will() {
    let node = Node::start();
    let mut watcher = watcher(&node);
    let spellings: [&[u8]; 3] = [&[0xE0, 0], &[0xE0, 1, 0], &[0xE0, 2, 0, 0]];
    for bytes in spellings {
        let mut client = Client::connect(node.mqtt, &Options::v5("w").will("will/a", "no", 1, false, 0));
        client.send(bytes);
        client.until_closed(PATIENCE);
    }
    quiet(&mut watcher, 500);
    for bytes in [&[0xE0, 1, 4][..], &[0xE0, 2, 4, 0]] {
        let mut client = Client::connect(node.mqtt, &Options::v5("w").will("will/a", "yes", 1, false, 0));
        client.send(bytes);
        client.until_closed(PATIENCE);
        assert_eq!(watcher.take_message().payload, b"yes");
    }
}

/// Scenario 34 (§3.1.3.2.2): with expiry 0 the session ends at once, so the delay does not count; by reset and by takeover.
#[test]
fn without_a_session_the_delay_does_not_count() {
    let node = Node::start();
    let mut watcher = watcher(&node);
    let options = Options::v5("w").will("will/a", "now", 1, false, 30);
    Client::connect(node.mqtt, &options).reset();
    assert_eq!(watcher.take_message().payload, b"now");
    let _first = Client::connect(node.mqtt, &options);
    let _second = Client::connect(node.mqtt, &Options::v5("w").resume());
    assert_eq!(watcher.take_message().payload, b"now");
    quiet(&mut watcher, 500);
}

/// Scenario 36: the session expires before the delay, so the Will comes at the expiry.
#[test]
fn the_will_comes_at_session_expiry_when_that_is_first() {
    let node = Node::start();
    let mut watcher = watcher(&node);
    let options = Options::v5("w").expiry(2).will("will/a", "expired", 1, false, 60);
    Client::connect(node.mqtt, &options).reset();
    let started = Instant::now();
    assert_eq!(watcher.take_message().payload, b"expired");
    let after = started.elapsed();
    assert!(after > Duration::from_millis(1_700) && after < Duration::from_secs(5), "{after:?}");
    quiet(&mut watcher, 500);
}

/// Scenario 38 ([MQTT-3.1.3-9]): the client is back in time with another Will: nothing; when it breaks again: the new one only.
#[test]
fn a_client_that_is_back_in_time_keeps_its_will_silent() {
    let node = Node::start();
    let mut watcher = watcher(&node);
    let with = |text| Options::v5("w").resume().expiry(60).will("will/a", text, 1, false, 2);
    Client::connect(node.mqtt, &with("old")).reset();
    std::thread::sleep(Duration::from_millis(700));
    let (client, present) = Client::connect_present(node.mqtt, &with("new"));
    assert!(present);
    quiet(&mut watcher, 2_500);
    client.reset();
    assert_eq!(watcher.take_message().payload, b"new");
    quiet(&mut watcher, 500);
}

/// §3.1.4: a takeover ends the old connection; its Will with delay 0 is published, once.
#[test]
fn a_takeover_publishes_a_will_without_delay() {
    let node = Node::start();
    let mut watcher = watcher(&node);
    let options = Options::v5("w").resume().expiry(60).will("will/a", "taken", 1, false, 0);
    let mut first = Client::connect(node.mqtt, &options);
    let second = Client::connect(node.mqtt, &options);
    first.until_closed(PATIENCE);
    assert_eq!(watcher.take_message().payload, b"taken");
    quiet(&mut watcher, 300);
    second.disconnect();
    quiet(&mut watcher, 500);
}

/// Scenario 44: a Will to a `$` topic is refused (0x90), one larger than a packet may be is too.
#[test]
fn a_will_that_could_not_be_published_is_refused() {
    let node = Node::start();
    let (_, connack) =
        Client::try_connect(node.mqtt, &Options::v5("w").will("$SYS/broker/x", "x", 0, false, 0));
    assert_eq!(connack.reason(), 0x90);
    let (_, connack) = Client::try_connect(node.mqtt, &Options::v5("w").will("a/#", "x", 0, false, 0));
    assert_eq!(connack.reason(), 0x90);
}

/// Scenario 45: CONNACK does not deny Retain, so a retained Will is accepted and retained.
#[test]
fn a_retained_will_is_retained() {
    let node = Node::start();
    Client::connect(node.mqtt, &Options::v5("w").will("will/kept", "gone", 1, true, 0)).reset();
    let mut watcher = watcher(&node);
    assert_eq!(watcher.take_message().payload, b"gone");
    let mut late = Client::connect(node.mqtt, &Options::v5("late"));
    assert_eq!(late.subscribe("will/kept", 1), 1);
    assert!(late.take_message().retain);
}

/// Scenario 46: a storm of abnormal closes loses no Will and repeats none.
#[test]
fn a_storm_of_broken_connections_fires_every_will_once() {
    const CLIENTS: usize = 500;
    let node = Node::start();
    let mut watcher = watcher(&node);
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|n| {
            let text = n.to_string();
            Client::connect(node.mqtt, &Options::v5(&format!("w{n}")).will("will/s", &text, 1, false, 0))
        })
        .collect();
    clients.into_iter().for_each(Client::reset);
    let mut seen: Vec<usize> = (0..CLIENTS)
        .map(|_| String::from_utf8(watcher.take_message().payload).expect("text").parse().expect("a number"))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..CLIENTS).collect::<Vec<_>>());
    quiet(&mut watcher, 500);
}

/// [MQTT-3.1.2-24]: keep alive ran out, so the server closes (v5: 0x8D) and the Will is published.
#[test]
fn a_silent_client_is_closed_and_its_will_published() {
    let node = Node::start();
    let mut watcher = watcher(&node);
    let options = Options::v5("w").keep_alive(2).will("will/a", "silent", 1, false, 0);
    let started = Instant::now();
    let mut client = Client::connect(node.mqtt, &options);
    let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!((last.kind(), last.reason()), (14, 0x8D));
    let after = started.elapsed();
    assert!(after >= Duration::from_secs(2) && after < Duration::from_secs(5), "closed after {after:?}");
    assert_eq!(watcher.take_message().payload, b"silent");
}

/// §3.1.3.2: the Will's properties reach the subscriber, and its Message Expiry counts from publication.
#[test]
fn will_properties_are_forwarded() {
    let node = Node::start();
    let mut watcher = watcher(&node);
    let mut options = Options::v5("w").will("will/p", "gone", 1, false, 0);
    let will = options.will.as_mut().expect("set");
    will.properties.extend_from_slice(&[0x01, 1, 0x02, 0, 0, 0, 60, 0x03, 0, 4]);
    will.properties.extend_from_slice(b"text");
    for (name, value) in [(b'k', b'v'), (b'a', b'1'), (b'k', b'0')] {
        will.properties.extend_from_slice(&[0x26, 0, 1, name, 0, 1, value]);
    }
    Client::connect(node.mqtt, &options).reset();
    let got = watcher.take_message();
    let property = |id| tests::wire::property(&got.properties, id);
    assert_eq!(property(0x01), Some(vec![1]));
    assert_eq!(property(0x03), Some(b"text".to_vec()));
    let user: Vec<Vec<u8>> = tests::wire::all_properties(&got.properties)
        .into_iter()
        .filter_map(|(id, value)| (id == 0x26).then_some(value))
        .collect();
    assert_eq!(user, [b"\0\x01k\0\x01v", b"\0\x01a\0\x011", b"\0\x01k\0\x010"], "in their order");
    let expiry = property(0x02).expect("Message Expiry Interval");
    assert!((58..=60).contains(&expiry[3]), "{expiry:?}");
}

/// [MQTT-3.8.3-3]: a Will is a message of its own session: No Local keeps it out of its inbox, and out of nobody else's.
#[test]
fn mqtt_3_8_3_3_a_will_does_not_come_back_to_its_session() {
    let node = Node::start();
    let durable = |id| Options::v5(id).resume().expiry(300);
    let mut other = Client::connect(node.mqtt, &durable("other"));
    assert_eq!(other.subscribe("w", 1 | 4), 1);
    for qos in [0, 1] {
        let mut client = Client::connect(node.mqtt, &durable("w").will("w", "gone", qos, false, 0));
        assert_eq!(client.subscribe("w", 1 | 4), 1);
        client.reset();
        assert_eq!(other.take_message().payload, b"gone");
        let mut client = Client::connect(node.mqtt, &durable("w"));
        client.expect_nothing();
        client.disconnect();
    }
}
