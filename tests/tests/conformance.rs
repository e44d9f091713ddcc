//! The matrix of normative statements (DESIGN §10) held against the tests that exist, and tests of statements that no other suite defends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tests::client::PATIENCE;
use tests::wire::{packet, string};
use tests::{Client, Node, Options};

/// Rows of a matrix: statement to the cell that names its tests.
fn rows(name: &str) -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(name);
    let text = std::fs::read_to_string(&path).expect("the matrix is there");
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| MQTT-")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [statement, rule, tests] = cells[..] else { panic!("{name}: not three cells: {line}") };
        assert!(!rule.is_empty() && !tests.is_empty(), "{name}: {line}");
        let before = rows.insert(statement.to_owned(), tests.to_owned());
        assert!(before.is_none(), "{name}: {statement} stands there twice");
    }
    rows
}

/// Names of all functions with a test attribute in the workspace.
fn test_functions() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeSet::new();
    for name in ["broker", "session", "storage", "gateway", "tests"] {
        for path in sources(&root.join(name)) {
            let text = std::fs::read_to_string(&path).expect("readable");
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                let declared = line.trim_start_matches("async ").strip_prefix("fn ");
                if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                    is_test = true;
                } else if let Some(declared) = declared
                    && std::mem::take(&mut is_test)
                {
                    let end = declared.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
                    found.insert(declared[..end.unwrap_or(declared.len())].to_owned());
                }
            }
        }
    }
    found
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()) {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// DESIGN §10: every row names tests that exist, or says why there is none.
#[test]
fn every_statement_names_a_test_that_exists() {
    let known = test_functions();
    assert!(known.contains("every_statement_names_a_test_that_exists"));
    for (name, at_least) in [("mqtt5.md", 230), ("mqtt311.md", 125)] {
        let rows = rows(name);
        assert!(rows.len() >= at_least, "{name} has {} rows", rows.len());
        let mut without = 0;
        for (statement, tests) in &rows {
            if let Some(why) = tests.strip_prefix("none:") {
                assert!(why.trim().len() > 10, "{name} {statement}: none needs a reason");
                without += 1;
                continue;
            }
            for test in tests.split(", ") {
                let test = test.trim_matches('`');
                assert!(known.contains(test), "{name} {statement}: there is no test {test}");
            }
        }
        assert!(without * 10 <= rows.len(), "{name}: {without} of {} rows have no test", rows.len());
    }
}

fn both() -> [Options; 2] {
    [Options::v5("a"), Options::v3("b")]
}

fn publisher(node: &Node) -> Client {
    Client::connect(node.mqtt, &Options::v5("publisher"))
}

/// [MQTT-3.12.4-1].
#[test]
fn pings_are_answered() {
    let node = Node::start();
    for options in both() {
        let mut client = Client::connect(node.mqtt, &options);
        client.send(&[0xC0, 0, 0xC0, 0]);
        for _ in 0..2 {
            assert_eq!(client.receive().bytes(), [0xD0, 0]);
        }
    }
}

/// [MQTT-4.7.3-4], [MQTT-1.5.4-3] (3.1.1: [MQTT-1.5.3-3]): letters that look alike, case, a byte order mark and empty levels are all different.
#[test]
fn names_are_compared_byte_by_byte() {
    let node = Node::start();
    let names = ["n/\u{e9}", "n/e\u{301}", "n/E", "n/e", "n/\u{feff}e", "n/e/", "n//e", "N/e"];
    for options in both() {
        for name in names {
            let mut sub = Client::connect(node.mqtt, &options);
            assert_eq!(sub.subscribe(name, 1), 1);
            let mut p = publisher(&node);
            for other in names {
                assert!(p.publish(other, other, 1, false) < 0x80);
            }
            let got = sub.take_message();
            assert_eq!((got.topic.as_str(), got.payload.as_slice()), (name, name.as_bytes()));
            sub.expect_nothing();
        }
    }
}

/// [MQTT-3.10.4-1], -2: only the very same filter is removed, and from then on nothing is queued for it.
#[test]
fn unsubscribe_compares_character_by_character() {
    let node = Node::start();
    for options in [Options::v5("a"), Options::v3("b"), Options::v5("d").resume().expiry(60)] {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("u/x", 1), 1);
        for other in ["u/+", "u/#", "u/X", "u/x/", "#"] {
            let reason = sub.unsubscribe(other);
            assert_eq!(reason, if options.v5 { 0x11 } else { 0 });
        }
        let mut p = publisher(&node);
        assert_eq!(p.publish("u/x", "1", 1, false), 0);
        assert_eq!(sub.take_message().payload, b"1");
        assert_eq!(sub.unsubscribe("u/x"), 0);
        assert!(p.publish("u/x", "2", 1, false) < 0x80);
        sub.expect_nothing();
    }
}

/// [MQTT-3.8.4-5], -6, [MQTT-3.9.3-1], [MQTT-3.10.4-6], [MQTT-3.11.3-1] (3.1.1: [MQTT-3.8.4-4], -5, [MQTT-3.9.3-1], [MQTT-3.10.4-5], -6): a
/// packet with several filters has one answer, with one reason each, in their order.
#[test]
fn several_filters_are_answered_in_order() {
    let node = Node::start();
    for options in both() {
        let mut client = Client::connect(node.mqtt, &options);
        let mut body = vec![0x12, 0x34];
        body.extend((options.v5).then_some(0));
        for (filter, qos) in [("m/1", 2), ("m/#/bad", 1), ("m/0", 0), ("m/2", 1), ("m/1", 1)] {
            string(filter, &mut body);
            body.push(qos);
        }
        client.send(&packet(0x82, &body));
        let suback = client.receive();
        assert_eq!((suback.kind(), suback.packet_id()), (9, 0x1234));
        let refusal = if options.v5 { 0x8F } else { 0x80 };
        assert_eq!(suback.body[suback.body.len() - 5..], [2, refusal, 0, 1, 1]);
        let mut p = publisher(&node);
        for (topic, qos) in [("m/1", 1), ("m/0", 0), ("m/2", 1)] {
            assert_eq!(p.publish(topic, "x", 2, false), 0);
            let got = client.take_message();
            assert_eq!((got.topic.as_str(), got.qos), (topic, qos), "the last option of a filter holds");
        }
        let mut body = vec![0x43, 0x21];
        body.extend((options.v5).then_some(0));
        for filter in ["m/none", "m/1", "m/2", "m/none"] {
            string(filter, &mut body);
        }
        client.send(&packet(0xA2, &body));
        let unsuback = client.receive();
        assert_eq!((unsuback.kind(), unsuback.packet_id()), (11, 0x4321));
        if options.v5 {
            assert_eq!(unsuback.body[3..], [0x11, 0, 0, 0x11]);
        } else {
            assert_eq!(unsuback.body.len(), 2);
        }
        for topic in ["m/1", "m/2", "m/0"] {
            assert!(p.publish(topic, "y", 1, false) < 0x80);
        }
        assert_eq!(client.take_message().topic, "m/0");
        client.expect_nothing();
    }
}

/// [MQTT-3.10.4-3]: what was begun before UNSUBSCRIBE is completed, also over a reconnect.
#[test]
fn begun_exchanges_outlive_the_subscription() {
    let node = Node::start();
    for options in [Options::v5("d").resume().expiry(60), Options::v3("o").resume()] {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("x", 2), 2);
        let mut p = publisher(&node);
        for (payload, qos) in [("one", 1), ("two", 2)] {
            assert_eq!(p.publish("x", payload, qos, false), 0);
        }
        let sent = [sub.receive_publish(), sub.receive_publish()];
        sub.ack(5, sent[1].packet_id);
        assert_eq!(sub.receive().kind(), 6);
        assert_eq!(sub.unsubscribe("x"), 0);
        sub.reset();
        let (mut sub, present) = Client::connect_present(node.mqtt, &options);
        assert!(present);
        assert_eq!(sub.receive_kind(6).packet_id(), sent[1].packet_id);
        sub.ack(7, sent[1].packet_id);
        let again = sub.take_message();
        assert_eq!((again.packet_id, again.dup, again.payload), (sent[0].packet_id, true, b"one".to_vec()));
        sub.expect_nothing();
        sub.disconnect();
    }
}

/// [MQTT-4.3.2-5], [MQTT-4.3.3-12]: a packet id that was acknowledged to its end stands for a new message, whatever DUP says.
#[test]
fn an_acknowledged_id_is_free_for_a_new_message() {
    let node = Node::start();
    let mut sub = Client::connect(node.mqtt, &Options::v5("s"));
    assert_eq!(sub.subscribe("free", 2), 2);
    for options in [Options::v5("a"), Options::v3("b"), Options::v5("d").resume().expiry(60)] {
        let mut p = Client::connect(node.mqtt, &options);
        for (number, flags) in [0x02, 0x02, 0x0A, 0x04, 0x04, 0x0C].into_iter().enumerate() {
            let text = format!("{number}");
            let bytes = p.publish_bytes("free", text.as_bytes(), flags, 7, &[]);
            p.send(&bytes);
            if flags & 2 != 0 {
                assert_eq!((p.receive().kind(), flags & 4), (4, 0));
            } else {
                assert_eq!(p.receive().kind(), 5);
                p.ack(6, 7);
                assert_eq!(p.receive().kind(), 7);
            }
            let got = sub.take_message();
            assert_eq!((got.payload, got.dup), (text.into_bytes(), false));
        }
    }
}

/// [MQTT-4.3.3-7], -13: a QoS 2 exchange that began goes on although its message expired; one that did not begin does not.
#[test]
fn sent_exactly_once_messages_do_not_expire() {
    let node = Node::start();
    let options = Options::v5("d").resume().expiry(60).receive_maximum(2);
    let mut sub = Client::connect(node.mqtt, &options);
    assert_eq!(sub.subscribe("e", 2), 2);
    let mut p = publisher(&node);
    for number in 1..=3_u16 {
        let bytes = p.publish_bytes("e", number.to_string().as_bytes(), 4, number, &[2, 0, 0, 0, 1]);
        p.send(&bytes);
        assert_eq!(p.receive_kind(5).reason(), 0);
        p.ack(6, number);
        p.receive_kind(7);
    }
    let sent = [sub.receive_publish(), sub.receive_publish()];
    sub.ack(5, sent[0].packet_id);
    assert_eq!(sub.receive().kind(), 6);
    sub.reset();
    std::thread::sleep(std::time::Duration::from_millis(1_300));
    let mut sub = Client::connect(node.mqtt, &options);
    let rel = sub.receive();
    assert_eq!((rel.kind(), rel.packet_id()), (6, sent[0].packet_id));
    sub.ack(7, sent[0].packet_id);
    let again = sub.take_message();
    assert_eq!((again.packet_id, again.payload.as_slice()), (sent[1].packet_id, &b"2"[..]));
    sub.expect_nothing();
}

/// [MQTT-4.6.0-4].
#[test]
fn pubrels_keep_the_order_of_the_pubrecs() {
    let node = Node::start();
    for options in [Options::v5("a"), Options::v3("b"), Options::v5("d").resume().expiry(60)] {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("rel", 2), 2);
        let mut p = publisher(&node);
        for number in 0..20 {
            assert_eq!(p.publish("rel", number.to_string(), 2, false), 0);
        }
        let mut ids: Vec<u16> = (0..20).map(|_| sub.receive_publish().packet_id).collect();
        ids.rotate_left(7);
        ids.iter().for_each(|id| sub.ack(5, *id));
        let rels: Vec<u16> = ids.iter().map(|_| sub.receive_kind(6).packet_id()).collect();
        assert_eq!(rels, ids);
    }
}

/// [MQTT-4.8.2-3]: each member gets its share with the QoS that it was granted.
#[test]
fn the_granted_qos_holds_within_a_share() {
    let node = Node::start();
    let mut members: Vec<(Client, u8)> = (0..=2)
        .map(|qos| {
            let mut member = Client::connect(node.mqtt, &Options::v5(&format!("m{qos}")));
            assert_eq!(member.subscribe("$share/g/q", qos), qos);
            (member, qos)
        })
        .collect();
    let mut p = publisher(&node);
    for number in 0..30 {
        assert_eq!(p.publish("q", number.to_string(), 2, false), 0);
    }
    let mut all = 0;
    for (member, qos) in &mut members {
        member.send(&[0xC0, 0]);
        loop {
            let packet = member.receive();
            if packet.kind() == 13 {
                break;
            }
            assert_eq!(packet.publish(true).qos, *qos);
            all += 1;
        }
    }
    assert_eq!(all, 30);
}

/// [MQTT-3.3.1-8] (3.1.1: [MQTT-3.3.1-12]): a message without RETAIN leaves the retained one alone.
#[test]
fn retained_messages_are_not_replaced_by_others() {
    let node = Node::start();
    let mut p = publisher(&node);
    assert!(p.publish("keep", "retained", 1, true) < 0x80);
    for qos in 0..=2 {
        assert!(p.publish("keep", "passing", qos, false) < 0x80);
        assert!(p.publish("keep", "", qos, false) < 0x80);
        assert!(p.publish("other", "passing", qos, false) < 0x80);
    }
    assert!(p.is_alive());
    for options in both() {
        let mut sub = Client::connect(node.mqtt, &options);
        assert_eq!(sub.subscribe("#", 1), 1);
        assert_eq!(sub.take_message().payload, b"retained");
        sub.expect_nothing();
    }
}

/// MQTT 3.1.1 [MQTT-3.3.1-1], [MQTT-4.3.2-1], [MQTT-4.3.3-1], [MQTT-4.4.0-1]: what a 3.1.1 client did not acknowledge comes again with DUP and
/// its id; what it received is only released.
#[test]
fn a_3_1_1_client_gets_its_repetitions_with_dup() {
    let node = Node::start();
    let options = Options::v3("o").resume();
    let mut sub = Client::connect(node.mqtt, &options);
    assert_eq!(sub.subscribe("again", 2), 2);
    let mut p = publisher(&node);
    for (payload, qos) in [("one", 1), ("sent", 2), ("received", 2)] {
        assert_eq!(p.publish("again", payload, qos, false), 0);
    }
    let sent: Vec<_> = (0..3).map(|_| sub.receive_publish()).collect();
    assert!(sent.iter().all(|sent| !sent.dup));
    sub.ack(5, sent[2].packet_id);
    assert_eq!(sub.receive().kind(), 6);
    sub.reset();
    let (mut sub, present) = Client::connect_present(node.mqtt, &options);
    assert!(present);
    assert_eq!(sub.receive_kind(6).packet_id(), sent[2].packet_id);
    sub.ack(7, sent[2].packet_id);
    for before in &sent[..2] {
        let again = sub.take_message();
        assert_eq!((again.packet_id, again.dup, &again.payload), (before.packet_id, true, &before.payload));
    }
    sub.expect_nothing();
    sub.send(&[0xE0, 0]);
    sub.until_closed(PATIENCE);
    let mut sub = Client::connect(node.mqtt, &options);
    sub.expect_nothing();
}

/// [MQTT-3.1.4-6] (3.1.1: [MQTT-3.1.4-5]): of what follows a refused CONNECT in the same bytes nothing happens, and nothing is answered.
#[test]
fn nothing_behind_a_refused_connect_is_processed() {
    let node = Node::start();
    let mut watcher = Client::connect(node.mqtt, &Options::v5("watcher"));
    assert_eq!(watcher.subscribe("#", 1), 1);
    let id = "x".repeat(1_025);
    for options in [Options::v5(&id), Options::v3(&id)] {
        let mut client = Client::open(node.mqtt, options.v5);
        let mut bytes = options.bytes();
        bytes.extend(client.publish_bytes("behind", b"x", 3, 1, &[]));
        bytes.extend([0xC0, 0]);
        client.send(&bytes);
        let answers = client.until_closed(PATIENCE);
        assert_eq!(answers.len(), 1, "{answers:02x?}");
        assert_eq!((answers[0].kind(), answers[0].reason() > 0), (2, true));
    }
    watcher.expect_nothing();
    let mut late = Client::connect(node.mqtt, &Options::v5("late"));
    assert_eq!(late.subscribe("behind", 1), 1);
    late.expect_nothing();
}

/// [MQTT-3.3.2-7]: an alias means nothing on the next connection, also of the same session.
#[test]
fn aliases_end_with_their_connection() {
    let node = Node::start();
    let options = Options::v5("d").resume().expiry(60);
    let mut client = Client::connect(node.mqtt, &options);
    for topic in ["a/b", ""] {
        let id = client.packet_id();
        let bytes = client.publish_bytes(topic, b"x", 2, id, &[0x23, 0, 1]);
        client.send(&bytes);
        assert!(client.receive().reason() < 0x80);
    }
    client.reset();
    let (mut client, present) = Client::connect_present(node.mqtt, &options);
    assert!(present);
    let bytes = client.publish_bytes("", b"x", 2, 9, &[0x23, 0, 1]);
    client.send(&bytes);
    let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
    assert_eq!(last.kind(), 14);
    assert!(matches!(last.reason(), 0x82 | 0x94), "{last:02x?}");
}

/// [MQTT-3.2.2-19], [MQTT-3.14.2-3]: what would not fit with its reason string is sent without it.
#[test]
fn reason_strings_are_left_out_where_they_do_not_fit() {
    let node = Node::start();
    let long = Options::v5(&"x".repeat(1_025));
    let (_, told) = Client::try_connect(node.mqtt, &long);
    assert!(told.bytes().len() > 20, "there is a reason string");
    let (_, bare) = Client::try_connect(node.mqtt, &long.maximum_packet_size(20));
    assert_eq!(bare.bytes(), [0x20, 3, 0, 0x85, 0]);
    for (options, has_text) in [(Options::v5("a"), true), (Options::v5("b").maximum_packet_size(20), false)] {
        let mut client = Client::connect(node.mqtt, &options);
        assert_eq!(client.subscribe("s", 1), 1);
        assert_eq!(publisher(&node).publish("s", "x", 1, false), 0);
        let got = client.receive_publish();
        // PUBCOMP for a QoS 1 message.
        client.ack(7, got.packet_id);
        let last = client.until_closed(PATIENCE).pop().expect("a DISCONNECT");
        assert_eq!((last.kind(), last.reason(), last.bytes().len() > 20), (14, 0x82, has_text));
    }
}
