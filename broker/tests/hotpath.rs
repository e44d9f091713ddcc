//! The hot path on a whole node: order, windows, bounds and rights from PUBLISH to delivery, over real sockets and two workers.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails the test")]

mod hotpath_support;

use std::collections::BTreeSet;
use std::time::Duration;

use gateway::link::LinkId;
use hotpath_support::{Client, Got, gone_member, gone_member_at, payload, start};
use session::id::Key;
use session::lifecycle::{Command, Reply, SessionRef};
use storage::{Done, Proposal};

/// Enough for any window.
const WIDE: u16 = 1_000;

/// [MQTT-4.6.0-2], P4: pipelined QoS 1 publishes to a durable, an offline and no subscriber are acknowledged in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_4_6_0_2_pubacks_keep_the_order_of_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    let (mut durable, _) = Client::connect(&node, "durable", 300, WIDE).await;
    durable.subscribe("d/#", 1).await;
    let (mut publisher, _) = Client::connect(&node, "publisher", 0, WIDE).await;
    for packet_id in 1..=90 {
        let topic = if packet_id % 3 == 0 { "nobody" } else { "d/1" };
        publisher.publish(topic, &packet_id.to_string(), 1, packet_id % 7 == 0, packet_id);
    }
    publisher.flush().await;
    for packet_id in 1..=90 {
        let reason = if packet_id % 3 == 0 { 0x10 } else { 0 };
        assert_eq!(publisher.next().await, Some(Got::Ack(0x40, packet_id, reason)));
    }
    for packet_id in (1..=90).filter(|id| id % 3 != 0) {
        assert_eq!(payload(&durable.message().await), packet_id.to_string());
    }
}

/// P5, [MQTT-3.3.4-9], scenario 72: a backlog far beyond what is held in memory comes in order within a window of three, and again
/// with DUP and the same packet ids after the connection was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_backlog_is_delivered_in_order_within_the_window() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    let (mut subscriber, _) = Client::connect(&node, "s", 300, 3).await;
    subscriber.subscribe("b", 1).await;
    drop(subscriber);
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    for batch in 0..10 {
        for packet_id in 1..=100 {
            publisher.publish("b", &(batch * 100 + packet_id - 1).to_string(), 1, false, packet_id);
        }
        publisher.flush().await;
        for _ in 0..100 {
            publisher.next().await.unwrap();
        }
    }
    let (mut subscriber, present) = Client::connect(&node, "s", 300, 3).await;
    assert!(present);
    let first: Vec<_> =
        [subscriber.message().await, subscriber.message().await, subscriber.message().await].into();
    assert!(subscriber.is_quiet().await, "the window is three");
    drop(subscriber);

    let (mut subscriber, _) = Client::connect(&node, "s", 300, 3).await;
    for number in 0..1_000 {
        let Got::Publish { payload, dup, packet_id, .. } = subscriber.message().await else { unreachable!() };
        assert_eq!(payload, number.to_string());
        assert_eq!(dup, number < 3, "DUP of message {number}");
        if let Some(Got::Publish { packet_id: before, .. }) = first.get(number) {
            assert_eq!(packet_id, *before);
        }
        subscriber.ack(0x40, packet_id);
        subscriber.flush().await;
    }
    assert!(subscriber.is_quiet().await);
}

/// [MQTT-4.3.3-10], [MQTT-4.4.0-1]: QoS 2 both ways between durable sessions; a repeated PUBLISH is acknowledged, not repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_4_3_3_10_exactly_once_between_durable_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    let (mut subscriber, _) = Client::connect(&node, "s", 300, WIDE).await;
    subscriber.subscribe("q", 2).await;
    let (mut publisher, _) = Client::connect(&node, "p", 300, WIDE).await;
    publisher.publish("q", "once", 2, false, 7);
    publisher.publish("q", "once", 2, false, 7);
    publisher.flush().await;
    assert_eq!(publisher.next().await, Some(Got::Ack(0x50, 7, 0)));
    assert_eq!(publisher.next().await, Some(Got::Ack(0x50, 7, 0)));
    drop(publisher);

    let (mut publisher, present) = Client::connect(&node, "p", 300, WIDE).await;
    assert!(present);
    publisher.publish("q", "once", 2, false, 7);
    publisher.flush().await;
    assert_eq!(publisher.next().await, Some(Got::Ack(0x50, 7, 0)));
    publisher.ack(0x62, 7);
    publisher.ack(0x62, 8);
    publisher.flush().await;
    let mut comps = [publisher.next().await.unwrap(), publisher.next().await.unwrap()];
    comps.sort_by_key(|got| format!("{got:?}"));
    assert_eq!(comps, [Got::Ack(0x70, 7, 0), Got::Ack(0x70, 8, 0x92)]);

    let Got::Publish { packet_id, qos: 2, .. } = subscriber.message().await else { panic!("QoS 2") };
    subscriber.ack(0x50, packet_id);
    subscriber.flush().await;
    assert_eq!(subscriber.next().await, Some(Got::Ack(0x62, packet_id, 0)));
    drop(subscriber);
    let (mut subscriber, _) = Client::connect(&node, "s", 300, WIDE).await;
    assert_eq!(subscriber.next().await, Some(Got::Ack(0x62, packet_id, 0)), "PUBREL is owed, PUBLISH is not");
    subscriber.ack(0x70, packet_id);
    subscriber.flush().await;
    assert!(subscriber.is_quiet().await);
}

/// P7: who reads a retained value after its PUBACK gets that one, whoever stored it and wherever it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_retained_value_is_the_acknowledged_one() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    let (mut reader, _) = Client::connect(&node, "r", 0, WIDE).await;
    for round in 1..=50 {
        publisher.publish("v/1", &round.to_string(), 1, true, round);
        publisher.flush().await;
        assert!(matches!(publisher.next().await, Some(Got::Ack(0x40, _, _))));
        reader.subscribe("v/+", 0).await;
        assert_eq!(payload(&reader.message().await), round.to_string());
        let mut body = vec![0, 10, 0, 0, 3];
        body.extend_from_slice(b"v/+");
        reader.raw(0xA2, &body);
        reader.flush().await;
        assert_eq!(reader.next().await, Some(Got::Granted(0)));
    }
}

/// P9: a set of retained messages larger than the outbox reaches a slow reader completely, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_large_retained_set_is_sent_as_it_is_read() {
    const COUNT: u16 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[("session.outbox_bytes_max", "65536")]).await;
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    let body = "x".repeat(500);
    for number in 0..COUNT {
        publisher.publish(&format!("set/{number}"), &body, 1, true, number % 100 + 1);
        if number % 100 == 99 {
            publisher.flush().await;
            for _ in 0..100 {
                publisher.next().await.unwrap();
            }
        }
    }
    for (client_id, expiry_sec, qos) in [("transient", 0, 0), ("window", 0, 1), ("durable", 300, 1)] {
        let (mut reader, _) = Client::connect(&node, client_id, expiry_sec, 20).await;
        reader.subscribe("set/#", qos).await;
        let mut topics = BTreeSet::new();
        while topics.len() < usize::from(COUNT) {
            let Got::Publish { topic, packet_id, retain, .. } = reader.message().await else {
                unreachable!()
            };
            assert!(retain);
            assert!(topics.insert(topic), "each topic once");
            if packet_id != 0 {
                reader.ack(0x40, packet_id);
                reader.flush().await;
            }
        }
        assert!(reader.is_quiet().await);
    }
}

/// Scenario 89, P9: a subscriber that does not read costs a bounded outbox; another one gets everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_stuck_subscriber_costs_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[("session.outbox_bytes_max", "65536")]).await;
    let (mut stuck, _) = Client::connect(&node, "stuck", 0, WIDE).await;
    stuck.subscribe("flood", 0).await;
    let (mut healthy, _) = Client::connect(&node, "healthy", 0, WIDE).await;
    healthy.subscribe("flood", 0).await;
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    let body = "x".repeat(10_000);
    for number in 0..2_000 {
        publisher.publish("flood", &format!("{number} {body}"), 0, false, 0);
        publisher.flush().await;
        let got = healthy.message().await;
        assert!(payload(&got).starts_with(&format!("{number} ")));
    }
    let dropped: u64 = node.shared().workers.totals().dropped.iter().sum();
    assert!(dropped > 0, "20 MB cannot wait for the stuck one");
}

/// Scenario 30: a rule that is taken back acts on live and stored subscriptions at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_30_a_revoked_rule_stops_deliveries() {
    let dir = tempfile::tempdir().unwrap();
    let acl = dir.path().join("acl");
    std::fs::write(&acl, "topic readwrite #\n").unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let settings = [("acl.file", acl.to_str().unwrap()), ("auth.anonymous", "true")];
    let node = start(&data, &settings).await;
    let (mut live, _) = Client::connect(&node, "live", 0, WIDE).await;
    let (mut stored, _) = Client::connect(&node, "stored", 300, WIDE).await;
    for client in [&mut live, &mut stored] {
        assert_eq!(client.subscribe("#", 1).await, 1);
    }
    drop(stored);
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    let mut publish = async |topic: &str| {
        publisher.publish(topic, "x", 1, false, 1);
        publisher.flush().await;
        publisher.next().await.unwrap()
    };
    publish("secret").await;
    live.message().await;

    std::fs::write(&acl, "topic readwrite open\ntopic write secret\n").unwrap();
    let config = broker::config::Config::load(&broker::config::Sources {
        file: None,
        environment: Vec::new(),
        flags: settings.map(|(key, value)| ("--set".into(), key.into(), value.into())).to_vec(),
    });
    node.shared().auth.reload(&config.unwrap().config).unwrap();
    publish("secret").await;
    publish("open").await;
    let Got::Publish { topic, .. } = live.message().await else { unreachable!() };
    assert_eq!(topic, "open");
    let (mut stored, present) = Client::connect(&node, "stored", 300, WIDE).await;
    assert!(present);
    let Got::Publish { topic, .. } = stored.message().await else { unreachable!() };
    assert_eq!(topic, "open", "what was queued before the revocation is not delivered either");
    assert_eq!(publish("other").await, Got::Ack(0x40, 1, 0x87));
}

/// §4.8.2: members on both workers take turns, a message goes to one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_subscriptions_deliver_each_message_once_across_workers() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    let mut members = Vec::new();
    for number in 0..4 {
        let (mut member, _) = Client::connect(&node, &format!("m{number}"), 0, WIDE).await;
        member.subscribe("$share/g/work", 0).await;
        members.push(member);
    }
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    for number in 0..80 {
        publisher.publish("work", &number.to_string(), 0, false, 0);
    }
    publisher.flush().await;
    let mut seen = BTreeSet::new();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while seen.len() < 80 {
        assert!(tokio::time::Instant::now() < deadline, "all messages in time");
        for member in &mut members {
            if let Ok(Some(got)) = tokio::time::timeout(Duration::from_millis(20), member.next()).await {
                assert!(seen.insert(payload(&got).to_owned()), "each message once");
            }
        }
    }
    for member in &mut members {
        assert!(member.is_quiet().await);
    }
}

/// Makes these the rules of the running node.
fn reload_acl(node: &broker::node::Node, acl: &std::path::Path, rules: &str) {
    std::fs::write(acl, rules).unwrap();
    let settings = [("acl.file", acl.to_str().unwrap()), ("auth.anonymous", "true")];
    let config = broker::config::Config::load(&broker::config::Sources {
        file: None,
        environment: Vec::new(),
        flags: settings.map(|(key, value)| ("--set".into(), key.into(), value.into())).to_vec(),
    });
    node.shared().auth.reload(&config.unwrap().config).unwrap();
}

/// [MQTT-4.3.3-8]: a resumed exchange that is refused frees its id, and the next message under it is no duplicate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_4_3_3_8_a_refused_resumed_exchange_frees_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let (acl, data) = (dir.path().join("acl"), dir.path().join("data"));
    std::fs::write(&acl, "topic readwrite #\n").unwrap();
    std::fs::create_dir(&data).unwrap();
    let node = start(&data, &[("acl.file", acl.to_str().unwrap()), ("auth.anonymous", "true")]).await;
    let (mut subscriber, _) = Client::connect(&node, "s", 300, WIDE).await;
    subscriber.subscribe("q", 1).await;
    let (mut publisher, _) = Client::connect(&node, "p", 300, WIDE).await;
    publisher.publish("q", "first", 2, false, 7);
    publisher.flush().await;
    assert_eq!(publisher.next().await, Some(Got::Ack(0x50, 7, 0)));
    drop(publisher);

    reload_acl(&node, &acl, "topic read #\n");
    let (mut publisher, _) = Client::connect(&node, "p", 300, WIDE).await;
    publisher.publish("q", "first", 2, false, 7);
    publisher.flush().await;
    assert_eq!(publisher.next().await, Some(Got::Ack(0x50, 7, 0x87)));
    reload_acl(&node, &acl, "topic readwrite #\n");
    publisher.publish("q", "second", 2, false, 7);
    publisher.flush().await;
    assert_eq!(publisher.next().await, Some(Got::Ack(0x50, 7, 0)));
    assert_eq!(payload(&subscriber.message().await), "first");
    assert_eq!(payload(&subscriber.message().await), "second");
}

/// [MQTT-4.4.0-1]: an exchange of QoS 2 that the client may have begun is finished, also when it may not read the topic any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_4_4_0_1_a_revoked_rule_does_not_break_off_an_exchange() {
    let dir = tempfile::tempdir().unwrap();
    let (acl, data) = (dir.path().join("acl"), dir.path().join("data"));
    std::fs::write(&acl, "topic readwrite #\n").unwrap();
    std::fs::create_dir(&data).unwrap();
    let node = start(&data, &[("acl.file", acl.to_str().unwrap()), ("auth.anonymous", "true")]).await;
    let (mut subscriber, _) = Client::connect(&node, "s", 300, 1).await;
    subscriber.subscribe("q", 2).await;
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    for packet_id in [1, 2] {
        publisher.publish("q", &packet_id.to_string(), 2, false, packet_id);
        publisher.flush().await;
        assert_eq!(publisher.next().await, Some(Got::Ack(0x50, packet_id, 0)));
    }
    let Got::Publish { packet_id: begun, .. } = subscriber.message().await else { unreachable!() };
    drop(subscriber);

    reload_acl(&node, &acl, "topic write #\n");
    let (mut subscriber, _) = Client::connect(&node, "s", 300, 1).await;
    let Got::Publish { packet_id, dup, .. } = subscriber.message().await else { unreachable!() };
    assert_eq!((packet_id, dup), (begun, true));
    subscriber.ack(0x50, packet_id);
    subscriber.flush().await;
    assert_eq!(subscriber.next().await, Some(Got::Ack(0x62, packet_id, 0)));
    subscriber.ack(0x70, packet_id);
    subscriber.flush().await;
    assert!(subscriber.is_quiet().await, "what was not begun is not delivered");
}

/// P9: a message larger than the outbox does not block the inbox behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_message_larger_than_the_outbox_reaches_a_durable_session() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[("session.outbox_bytes_max", "65536")]).await;
    let (mut subscriber, _) = Client::connect(&node, "s", 300, WIDE).await;
    subscriber.subscribe("a", 1).await;
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    let large = "x".repeat(200_000);
    publisher.publish("a", &large, 1, true, 1);
    publisher.publish("a", "small", 1, false, 2);
    publisher.flush().await;
    assert_eq!(payload(&subscriber.message().await), large);
    assert_eq!(payload(&subscriber.message().await), "small");
    let (mut later, _) = Client::connect(&node, "later", 0, WIDE).await;
    later.subscribe("#", 0).await;
    assert_eq!(payload(&later.message().await), large);
}

/// [MQTT-3.3.4-9] is about MQTT 5: a 3.1.1 client was told no Receive Maximum and is slowed down, not closed; a v5 client that
/// exceeds the one it was told is closed with 0x93.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_v5_client_can_exceed_the_receive_maximum() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[("session.receive_maximum", "10")]).await;
    let mut old = Client::connect_v3(&node, "old").await;
    for packet_id in 1..=1_000_u16 {
        let mut body = vec![0, 1, b'r'];
        body.extend_from_slice(&packet_id.to_be_bytes());
        body.push(b'x');
        old.raw(0x33, &body);
    }
    old.flush().await;
    for packet_id in 1..=1_000 {
        assert_eq!(old.next().await, Some(Got::Ack(0x40, packet_id, 0)));
    }

    let (mut new, _) = Client::connect(&node, "new", 0, WIDE).await;
    for packet_id in 1..=100 {
        new.publish("r", "x", 1, true, packet_id);
    }
    new.flush().await;
    let mut last = None;
    while let Some(got) = new.next().await {
        last = Some(got);
    }
    assert_eq!(last, Some(Got::Disconnect(0x93)));
}

/// MQTT 5 §4.8.2, scenario 85: a message that was on its way to a member whose connection was gone goes to another one, on this worker
/// and on others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_85_a_message_for_a_member_that_is_gone_goes_to_another_one() {
    const COUNT: u16 = 40;
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    let (mut member, _) = Client::connect(&node, "member", 0, WIDE).await;
    member.subscribe("$share/g/s/#", 1).await;
    for worker in 0..2 {
        gone_member(&node, worker, None, "$share/g/s/#");
    }
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    for packet_id in 1..=COUNT {
        publisher.publish("s/1", &packet_id.to_string(), 1 + (packet_id % 2) as u8, false, packet_id);
    }
    publisher.flush().await;
    let mut left: BTreeSet<String> = (1..=COUNT).map(|number| number.to_string()).collect();
    while !left.is_empty() {
        assert!(left.remove(payload(&member.message().await)), "each once");
    }
    assert!(member.is_quiet().await);
}

/// P9, MQTT 5 §4.8.2: the search for a member that takes a message ends, and a message of which nobody takes is counted: one whose members
/// are all gone, on whatever worker, and one that an offline session would get with QoS 0 only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_shared_message_that_nobody_takes_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    for (worker, share) in [(0, "$share/a/s/#"), (1, "$share/b/s/#")] {
        (1_000..1_040)
            .for_each(|slot| gone_member_at(&node, LinkId { worker, slot, serial: 1 }, None, share));
    }
    let (mut offline, _) = Client::connect(&node, "offline", 300, WIDE).await;
    offline.subscribe("$share/c/s/#", 0).await;
    drop(offline);
    let subscriber = || {
        let router = &node.shared().router;
        let message = session::message::Message::new("s/1", &[], b"");
        router.route(&message, broker::route::PartyId::default(), false, None).live.len()
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while subscriber() > 2 {
        assert!(tokio::time::Instant::now() < deadline, "its connection is gone");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
    publisher.publish("s/1", "x", 1, false, 1);
    publisher.flush().await;
    assert_eq!(publisher.next().await, Some(Got::Ack(0x40, 1, 0)));
    let unserved = || {
        let page = node.shared().metrics.render();
        let series = "exactmq_messages_dropped_total{reason=\"share_unserved\"} ";
        let line = page.lines().find_map(|line| line.strip_prefix(series)).expect("the series is there");
        line.parse::<u64>().unwrap()
    };
    while unserved() < 3 {
        assert!(tokio::time::Instant::now() < deadline, "{} are counted", unserved());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(publisher.is_quiet().await);
    assert_eq!(unserved(), 3, "each share once");
}

/// MQTT 5 §4.8.2, scenario 85, P5: a message whose durable member had ended when it was applied goes to another one before it is
/// acknowledged, with QoS 2 exactly once, whatever else its group took of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_85_an_inbox_that_ended_leaves_its_message_to_another_member() {
    const COUNT: u16 = 24;
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    let (mut member, _) = Client::connect(&node, "member", 300, WIDE).await;
    member.subscribe("$share/g/s/#", 2).await;
    let mut others = Vec::new();
    for at in 0..4 {
        let (mut other, _) = Client::connect(&node, &format!("other{at}"), 300, WIDE).await;
        other.subscribe("s/#", 2).await;
        others.push(other);
    }
    for qos in [1, 2] {
        let (mut publisher, _) = Client::connect(&node, &format!("p{qos}"), 300, WIDE).await;
        for packet_id in 1..=COUNT {
            let inbox = (packet_id % 4, (1 << 40) + u64::from(packet_id));
            gone_member(&node, 0, Some(inbox), "$share/g/s/#");
            publisher.publish("s/1", &packet_id.to_string(), qos, false, packet_id);
            publisher.flush().await;
            let ack = if qos == 1 { 0x40 } else { 0x50 };
            assert_eq!(publisher.next().await, Some(Got::Ack(ack, packet_id, 0)));
        }
        for client in others.iter_mut().chain([&mut member]) {
            let mut left: BTreeSet<String> = (1..=COUNT).map(|number| number.to_string()).collect();
            while !left.is_empty() {
                let Got::Publish { payload, packet_id, .. } = client.message().await else { unreachable!() };
                assert!(left.remove(&payload), "{payload} once");
                client.ack(if qos == 1 { 0x40 } else { 0x50 }, packet_id);
            }
            client.flush().await;
            assert!(qos == 2 || client.is_quiet().await);
        }
    }
}

/// [MQTT-3.3.5-2]: a 3.1.1 client has no way to be told that its topic is too deep: it is not acknowledged, the connection ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_too_deep_closes_a_3_1_1_connection() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    for first in [0x30, 0x32, 0x34] {
        let mut publisher = Client::connect_v3(&node, "old").await;
        for (depth, expected) in [(256, true), (257, false)] {
            let mut body = vec![0, 0];
            body.resize(2 + depth - 1, b'/');
            body[..2].copy_from_slice(&u16::try_from(depth - 1).unwrap().to_be_bytes());
            if first > 0x30 {
                body.extend_from_slice(&[0, (depth - 250) as u8]);
            }
            publisher.raw(first, &body);
            publisher.flush().await;
            match (first, expected) {
                (0x30, true) => assert!(publisher.is_quiet().await),
                (_, true) => assert!(matches!(publisher.next().await, Some(Got::Ack(_, _, 0)))),
                (_, false) => assert_eq!(publisher.next().await, None, "{first:#x}"),
            }
        }
    }
}

/// SUBSCRIBE or UNSUBSCRIBE with these filters.
fn filters(client: &mut Client, first: u8, packet_id: u16, filters: &[String]) {
    let mut body = packet_id.to_be_bytes().to_vec();
    body.push(0);
    for filter in filters {
        body.extend_from_slice(&u16::try_from(filter.len()).unwrap().to_be_bytes());
        body.extend_from_slice(filter.as_bytes());
        if first == 0x82 {
            body.push(0);
        }
    }
    client.raw(first, &body);
}

fn named(names: std::ops::Range<u32>) -> Vec<String> {
    names.map(|name| format!("f/{name}")).collect()
}

/// P9: `limits.subscriptions_max` holds for a client that does not wait for SUBACK, durable or not; what is given back before counts, and
/// a filter that is named twice counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_the_subscription_limit_holds_for_pipelined_packets() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[("limits.subscriptions_max", "5")]).await;
    for (client_id, expiry_sec) in [("durable", 300), ("transient", 0)] {
        let (mut client, _) = Client::connect(&node, client_id, expiry_sec, WIDE).await;
        filters(&mut client, 0x82, 1, &named(0..4));
        filters(&mut client, 0x82, 2, &named(0..4));
        filters(&mut client, 0x82, 3, &named(4..8));
        filters(&mut client, 0x82, 4, &named(8..12));
        filters(&mut client, 0xA2, 5, &named(0..4));
        filters(&mut client, 0x82, 6, &named(20..24));
        filters(&mut client, 0x82, 7, &named(30..31));
        client.flush().await;
        let mut reasons = Vec::new();
        for _ in 1..=7 {
            let Some(Got::Granted(reason)) = client.next().await else { panic!("SUBACK or UNSUBACK") };
            reasons.push(reason);
        }
        // A packet of which nothing is granted is answered at once.
        reasons.sort_unstable();
        assert_eq!(reasons, [0, 0, 0, 0, 0, 0x97, 0x97], "{client_id}");
        let held = node.shared().router.len();
        assert_eq!(held, 5, "{client_id}");
        filters(&mut client, 0xA2, 8, &[named(4..5), named(20..24)].concat());
        client.flush().await;
        assert_eq!(client.next().await, Some(Got::Granted(0)));
        assert_eq!(node.shared().router.len(), 0, "{client_id}");
    }
}

/// P9: `limits.filters_max` holds for UNSUBSCRIBE too; what is beyond it stays subscribed to, and is said to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_the_filters_of_an_unsubscribe_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[("limits.filters_max", "2")]).await;
    let (mut client, _) = Client::connect(&node, "c", 0, WIDE).await;
    filters(&mut client, 0x82, 1, &named(0..2));
    filters(&mut client, 0x82, 2, &named(2..4));
    filters(&mut client, 0xA2, 3, &named(0..4));
    client.flush().await;
    for _ in 0..3 {
        assert_eq!(client.next().await, Some(Got::Granted(0)));
    }
    assert_eq!(node.shared().router.len(), 2);
    filters(&mut client, 0xA2, 4, &["#/a".to_owned(), "#/b".to_owned(), "f/2".to_owned()]);
    client.flush().await;
    assert_eq!(client.next().await, Some(Got::Granted(0x8F)));

    let mut old = Client::connect_v3(&node, "old").await;
    let mut body = vec![0, 1];
    for filter in named(0..3) {
        body.extend_from_slice(&[0, 3]);
        body.extend_from_slice(filter.as_bytes());
    }
    old.raw(0xA2, &body);
    old.flush().await;
    assert_eq!(old.next().await, None);
}

/// P9, [MQTT-3.8.4-3]: a client that subscribes over and over has retained messages waiting once a filter; they are sent again after the
/// last time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_repeated_subscriptions_queue_one_feed() {
    const ROUNDS: u16 = 500;
    for expiry_sec in [0, 300] {
        let dir = tempfile::tempdir().unwrap();
        let node = start(dir.path(), &[]).await;
        let (mut publisher, _) = Client::connect(&node, "p", 0, WIDE).await;
        publisher.publish("r", "kept", 1, true, 1);
        publisher.flush().await;
        publisher.next().await;
        let (mut client, _) = Client::connect(&node, "c", expiry_sec, WIDE).await;
        let (mut sent, mut granted, mut messages, mut last) = (0, 0, 0, false);
        while granted < ROUNDS || !last {
            if granted % 50 == 0 && granted < ROUNDS && sent == granted {
                for round in granted..granted + 50 {
                    filters(&mut client, 0x82, round + 1, &vec!["+".to_owned(); 1_000]);
                }
                client.flush().await;
                sent += 50;
            }
            match client.next().await {
                Some(Got::Granted(0)) => granted += 1,
                Some(Got::Publish { retain: true, .. }) => {
                    messages += 1;
                    last = granted == ROUNDS;
                }
                other => panic!("{other:?}"),
            }
        }
        // What was under way at the last SUBACK came before what that one asked for, or comes now.
        while !client.is_quiet().await {
            messages += 1;
        }
        assert!(messages <= 2 * ROUNDS, "{messages} messages");
    }
}

/// P5, [MQTT-4.3.3-10]: a received id whose answer was lost (committed, and nobody was told) is not yet a delivered message: its repetition
/// reaches a live subscriber, and no further one does, on whatever connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_a_qos_2_message_reaches_live_subscribers_after_a_lost_reply() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path(), &[]).await;
    let mut live = Vec::new();
    for (client_id, filter) in [("a", "q"), ("b", "q"), ("c", "$share/g/q")] {
        let (mut client, _) = Client::connect(&node, client_id, 0, WIDE).await;
        client.subscribe(filter, 0).await;
        live.push(client);
    }
    let (mut durable, _) = Client::connect(&node, "d", 300, WIDE).await;
    durable.subscribe("q", 1).await;
    let (publisher, _) = Client::connect(&node, "p", 300, WIDE).await;
    receive(&node, "p", 7).await;
    drop(publisher);
    for round in 0..3 {
        let (mut publisher, present) = Client::connect(&node, "p", 300, WIDE).await;
        assert!(present);
        for _ in 0..2 {
            publisher.publish("q", "once", 2, false, 7);
            publisher.flush().await;
            assert_eq!(publisher.next().await, Some(Got::Ack(0x50, 7, 0)));
        }
        for client in live.iter_mut().chain([&mut durable]) {
            if round == 0 {
                assert_eq!(payload(&client.message().await), "once");
            }
            assert!(client.is_quiet().await, "round {round}");
        }
    }
}

/// Commits a received id of a session as its worker does, which never hears of it.
async fn receive(node: &broker::node::Node, client_id: &str, packet_id: u16) {
    let key = Key::new("main".into(), client_id.into()).unwrap();
    let store = &node.shared().store;
    let group = store.group_of(&key);
    let session = store.read(group, |rows| {
        let row = rows.session(&key).unwrap();
        SessionRef { lifetime: row.lifetime, owner_generation: row.owner.owner_generation }
    });
    let (sender, reply) = tokio::sync::oneshot::channel();
    let command = Command::Receive { session, packet_id };
    store.propose(group, vec![Proposal { command, done: Done::Once(sender) }]);
    assert!(matches!(reply.await, Ok(Ok(Reply::Received { routed: false, .. }))));
}
