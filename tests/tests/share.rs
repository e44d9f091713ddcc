//! Members of shared subscriptions that end: what they leave goes to another member, unless it may not (MQTT 5 §4.8.2; scenarios 33, 85).

use std::time::Duration;

use tests::client::PATIENCE;
use tests::{Client, Node, Options};

const FILTER: &str = "$share/g/s/#";

fn durable(id: &str) -> Options {
    Options::v5(id).resume().expiry(600)
}

fn member(node: &Node, options: &Options) -> Client {
    let mut client = Client::connect(node.mqtt, options);
    assert_eq!(client.subscribe(FILTER, 2), 2);
    client
}

/// Publishes `count` numbered messages, all acknowledged.
fn publish(node: &Node, count: usize, qos: u8) {
    let mut publisher = Client::connect(node.mqtt, &Options::v5("publisher"));
    for number in 0..count {
        assert_eq!(publisher.publish("s/x", number.to_string(), qos, false), 0);
    }
    publisher.disconnect();
}

/// The next messages are these numbers, for the first time, and nothing follows.
fn gets(heir: &mut Client, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let got = heir.take_message();
        assert_eq!((got.payload, got.dup), (number.to_string().into_bytes(), false));
    }
    assert_eq!(heir.poll(Duration::from_millis(300)), Ok(None));
}

/// How a member without a durable session ends.
const ENDS: [fn(&Node, Client); 4] = [
    |_, client| client.reset(),
    |_, client| client.disconnect(),
    |node, mut client| {
        assert!(node.cli(&["session", "end", "leaver"]).status.success());
        client.until_closed(PATIENCE);
    },
    |node, mut client| {
        // Its session ends with the takeover too: the next one with this ClientID begins anew.
        let next = Client::connect(node.mqtt, &Options::v5("leaver"));
        client.until_closed(PATIENCE);
        next.disconnect();
    },
];

/// Scenarios 33 and 85: a member whose session ends with its connection leaves what it did not acknowledge, in flight or waiting for its
/// window, to a member without and to one with a durable session.
#[test]
fn unacknowledged_qos_1_messages_go_to_another_member() {
    let node = Node::start();
    for end in ENDS {
        for heir in [Options::v5("heir"), durable("heir")] {
            let mut leaver = member(&node, &Options::v5("leaver").receive_maximum(2));
            publish(&node, 6, 1);
            let sent = [leaver.receive_publish(), leaver.receive_publish()];
            assert_eq!([sent[0].payload.as_slice(), &sent[1].payload], [b"0", b"1"]);
            let mut heir = member(&node, &heir);
            end(&node, leaver);
            gets(&mut heir, 0..6);
            assert_eq!(heir.unsubscribe(FILTER), 0);
            heir.disconnect();
        }
    }
}

/// [MQTT-4.8.2-5]: a QoS 2 message that was sent is for nobody else; one that was not, is.
#[test]
fn sent_qos_2_messages_go_to_nobody_else() {
    let node = Node::start();
    for heir in [Options::v5("heir"), durable("heir")] {
        let mut leaver = member(&node, &Options::v5("leaver").receive_maximum(2));
        publish(&node, 6, 2);
        let first = leaver.receive_publish();
        leaver.receive_publish();
        leaver.ack(5, first.packet_id);
        assert_eq!(leaver.receive().kind(), 6);
        let mut heir = member(&node, &heir);
        leaver.reset();
        gets(&mut heir, 2..6);
        assert_eq!(heir.unsubscribe(FILTER), 0);
        heir.disconnect();
    }
}

/// [MQTT-4.8.2-6]: what a member refuses or acknowledges is done with.
#[test]
fn acknowledged_and_refused_messages_are_done_with() {
    let node = Node::start();
    for options in [Options::v5("leaver"), durable("leaver")] {
        let mut leaver = member(&node, &options);
        publish(&node, 3, 1);
        let sent: Vec<_> = (0..3).map(|_| leaver.receive_publish()).collect();
        leaver.ack(4, sent[0].packet_id);
        let id = sent[1].packet_id.to_be_bytes();
        leaver.send(&[0x40, 3, id[0], id[1], 0x97]);
        let mut heir = member(&node, &Options::v5("heir"));
        // DISCONNECT with a Session Expiry Interval of 0: a durable session ends too.
        leaver.send(if options.clean { &[0xE0, 0] } else { &[0xE0, 7, 0, 5, 0x11, 0, 0, 0, 0] });
        leaver.until_closed(PATIENCE);
        gets(&mut heir, 2..3);
        heir.disconnect();
    }
}

/// Scenario 33, [MQTT-4.8.2-4]: on a takeover, and while a durable member is away, its messages stay with its session.
#[test]
fn a_takeover_and_an_absence_leave_nothing() {
    let node = Node::start();
    let mut first = member(&node, &durable("stayer"));
    publish(&node, 2, 1);
    publish(&node, 2, 2);
    let sent: Vec<_> = (0..4).map(|_| first.receive_publish()).collect();
    let mut other = member(&node, &Options::v5("other"));
    let (second, present) = Client::connect_present(node.mqtt, &durable("stayer"));
    assert!(present);
    first.until_closed(PATIENCE);
    second.reset();
    other.expect_nothing();
    assert_eq!(other.poll(Duration::from_millis(300)), Ok(None));
    let (mut third, present) = Client::connect_present(node.mqtt, &durable("stayer"));
    assert!(present);
    for before in sent {
        let again = third.take_message();
        assert_eq!((again.packet_id, again.payload), (before.packet_id, before.payload));
    }
    other.expect_nothing();
}

/// How a durable member ends.
const DURABLE_ENDS: [fn(&Node, Client); 4] = [
    |node, mut client| {
        assert!(node.cli(&["session", "end", "leaver"]).status.success());
        client.until_closed(PATIENCE);
    },
    |node, mut client| {
        assert!(node.cli(&["session", "end", "leaver", "--release"]).status.success());
        client.until_closed(PATIENCE);
    },
    |node, client| {
        client.reset();
        let next = Client::connect(node.mqtt, &Options::v5("leaver"));
        next.disconnect();
    },
    |_, mut client| {
        // A Session Expiry Interval of one second from now on.
        client.send(&[0xE0, 7, 0, 5, 0x11, 0, 0, 0, 1]);
        client.until_closed(PATIENCE);
    },
];

/// Scenarios 33 and 85: a durable member that ends (an operator's End, a Clean Start, its expiry) leaves what it did not acknowledge and
/// what it never sent; [MQTT-4.8.2-5]: no QoS 2 message that it sent.
#[test]
fn an_ended_durable_member_leaves_its_inbox() {
    let node = Node::start();
    for end in DURABLE_ENDS {
        for heir in [Options::v5("heir"), durable("heir")] {
            let mut leaver = member(&node, &durable("leaver").receive_maximum(2));
            assert_eq!(leaver.subscribe("s/x", 1), 1);
            publish(&node, 1, 2);
            let both: Vec<_> = (0..2).map(|_| leaver.receive_publish()).collect();
            let mut publisher = Client::connect(node.mqtt, &Options::v5("publisher"));
            assert_eq!(leaver.unsubscribe("s/x"), 0);
            for number in 0..5 {
                assert_eq!(publisher.publish("s/x", number.to_string(), 1 + number % 2, false), 0);
            }
            assert_eq!(both.len(), 2, "the window is full: the rest was never sent");
            let mut heir = member(&node, &heir);
            end(&node, leaver);
            for number in 0..5 {
                let got = heir.receive_publish();
                assert_eq!((got.payload.clone(), got.qos), (number.to_string().into_bytes(), 1 + number % 2));
                heir.settle(&got);
            }
            assert_eq!(heir.poll(Duration::from_millis(300)), Ok(None));
            assert_eq!(heir.unsubscribe(FILTER), 0);
            heir.disconnect();
        }
    }
}

/// Scenario 85: a durable member whose session expires while the broker is down leaves its inbox to a durable member all the same.
#[test]
fn an_expiry_while_the_broker_is_down_leaves_the_inbox() {
    let mut node = Node::start();
    let mut leaver = member(&node, &Options::v5("leaver").resume().expiry(1));
    let mut heir = Client::connect(node.mqtt, &durable("heir"));
    publish(&node, 20, 1);
    leaver.receive_publish();
    assert_eq!(heir.subscribe(FILTER, 1), 1);
    heir.disconnect();
    leaver.reset();
    node.kill();
    std::thread::sleep(Duration::from_millis(1_200));
    node.restart();
    let (mut heir, present) = Client::connect_present(node.mqtt, &durable("heir"));
    assert!(present);
    gets(&mut heir, 0..20);
}

/// Scenario 85: what the last member leaves waits for nobody: it is gone with the subscription, or still meets a member that joins while it
/// is being cleared away, each message once at most; and the broker works on.
#[test]
fn what_the_last_member_leaves_waits_for_nobody() {
    let node = Node::start();
    for options in [Options::v5("leaver"), durable("leaver")] {
        let mut leaver = member(&node, &options);
        publish(&node, 3, 1);
        leaver.receive_publish();
        assert!(node.cli(&["session", "end", "leaver"]).status.success());
        leaver.until_closed(PATIENCE);
        let mut next = member(&node, &Options::v5("next"));
        let mut publisher = Client::connect(node.mqtt, &Options::v5("publisher"));
        assert_eq!(publisher.publish("s/x", "fresh", 1, false), 0);
        publisher.disconnect();
        let mut left = vec![b"0".to_vec(), b"1".to_vec(), b"2".to_vec()];
        loop {
            let got = next.take_message().payload;
            if got == b"fresh" {
                break;
            }
            let at = left.iter().position(|known| *known == got);
            left.remove(at.unwrap_or_else(|| panic!("{got:?} was not left, or comes twice")));
        }
        next.disconnect();
    }
}

/// The payloads of the next `count` messages, acknowledged; each comes once.
fn takes(client: &mut Client, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| client.take_message()).map(|got| got.payload).collect()
}

/// DESIGN §9, MQTT 5 §4.8.2: what members that are away were not sent goes to one that is there, after the grace, and each of it once: none
/// is stranded, and they do not get it when they come back.
#[test]
fn nothing_waits_for_the_absent_while_others_are_there() {
    let node = Node::start_with(&["session.share_grace_ms=100"]);
    for qos in [1, 2] {
        for absent in ["away-1", "away-2"] {
            member(&node, &durable(absent)).reset();
        }
        publish(&node, 40, qos);
        let mut present = member(&node, &durable("present"));
        let mut got = takes(&mut present, 40);
        got.sort_unstable();
        let mut all: Vec<Vec<u8>> = (0..40).map(|number: usize| number.to_string().into_bytes()).collect();
        all.sort_unstable();
        assert_eq!(got, all);
        assert_eq!(present.poll(Duration::from_millis(300)), Ok(None));
        for absent in ["away-1", "away-2"] {
            let (mut back, resumed) = Client::connect_present(node.mqtt, &durable(absent));
            assert!(resumed);
            assert_eq!(back.poll(Duration::from_millis(200)), Ok(None));
            assert_eq!(back.unsubscribe(FILTER), 0);
        }
        assert_eq!(present.unsubscribe(FILTER), 0);
    }
}

/// [MQTT-4.8.2-4], [MQTT-4.8.2-5]: of what an absent member was sent, QoS 1 goes to another member, QoS 2 waits for it; with the grace for
/// ever, all of it waits.
#[test]
fn what_an_absent_member_was_sent_with_qos_2_waits_for_it() {
    for (grace, goes) in [("100", 2), ("4294967295", 0)] {
        let node = Node::start_with(&[&format!("session.share_grace_ms={grace}")]);
        let mut absent = member(&node, &durable("absent"));
        publish(&node, 2, 1);
        publish(&node, 2, 2);
        for _ in 0..4 {
            absent.receive_publish();
        }
        absent.reset();
        let mut present = member(&node, &durable("present"));
        takes(&mut present, goes);
        assert_eq!(present.poll(Duration::from_millis(600)), Ok(None));
        let (mut back, _) = Client::connect_present(node.mqtt, &durable("absent"));
        assert_eq!(takes(&mut back, 4 - goes).len(), 4 - goes);
        assert_eq!(back.poll(Duration::from_millis(300)), Ok(None));
    }
}

/// P4: what an absent member gave up and nobody has yet survives a kill -9, and a member that comes then gets it.
#[test]
fn p4_what_was_given_up_survives_a_crash() {
    let mut node = Node::start_with(&["session.share_grace_ms=0"]);
    member(&node, &durable("absent")).reset();
    publish(&node, 500, 1);
    let mut present = member(&node, &durable("present").receive_maximum(1));
    present.receive_publish();
    node.kill();
    node.restart();
    let (mut present, _) = Client::connect_present(node.mqtt, &durable("present"));
    let mut got: Vec<Vec<u8>> = Vec::new();
    while got.iter().collect::<std::collections::HashSet<_>>().len() < 500 {
        got.push(present.take_message().payload);
    }
}
