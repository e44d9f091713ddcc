//! Bridges to another broker, real processes on both sides: a mosquitto, a second node (issue 5 §6).

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tests::cluster::{durable, serves, succeeds};
use tests::wire::{self, property};
use tests::{Client, Cluster, Mosquitto, Node, Options, eventually};

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: &str =
    r##"[{ filter = "#", direction = "both", qos = 2, local_prefix = "here/", remote_prefix = "there/" }]"##;

/// Settings of a bridge `b` that comes back soon.
fn bridge(remote: SocketAddr, topics: &str, more: &[&str]) -> Vec<String> {
    let mut settings = vec![
        format!("bridge.b.address={remote}"),
        format!("bridge.b.topics={topics}"),
        "bridge.b.reconnect_min_ms=50".to_owned(),
        "bridge.b.reconnect_max_ms=500".to_owned(),
        "session.keep_alive_max_s=0".to_owned(),
    ];
    settings.extend(more.iter().map(ToString::to_string));
    settings
}

fn start(settings: &[String]) -> Node {
    Node::start_with(&settings.iter().map(String::as_str).collect::<Vec<_>>())
}

fn view(node: &Node) -> Option<Value> {
    let (head, body) = node.admin_ask("GET", "/v1/bridges", "").ok()?;
    let page: Value = head.starts_with("HTTP/1.1 200").then(|| serde_json::from_str(&body).ok())??;
    page["bridges"].as_array()?.first().cloned()
}

/// Waits until the bridge is in this state, and says what it is like then.
fn until(node: &Node, state: &str) -> Value {
    eventually(&format!("the bridge is {state}"), PATIENCE, || {
        view(node).filter(|view| view["state"] == state)
    })
}

/// A subscriber with a session that lasts, to `filter` with QoS 2.
fn subscriber(address: SocketAddr, name: &str, filter: &str) -> Client {
    let (mut client, present) = Client::connect_present(address, &durable(name));
    if !present {
        assert_eq!(client.subscribe(filter, 2), 2);
    }
    client
}

fn publisher(address: SocketAddr, name: &str) -> Client {
    Client::connect(address, &Options::v5(name))
}

/// Publishes to one broker with every QoS, and what a subscriber at the other one gets.
fn cross(from: SocketAddr, to: SocketAddr, (here, there): (&str, &str), name: &str) {
    let mut subscriber = subscriber(to, &format!("{name}-sub"), &format!("{there}x/#"));
    let mut publisher = publisher(from, &format!("{name}-pub"));
    for qos in 0..=2 {
        publisher.publish(&format!("{here}x/{qos}"), format!("{name} {qos}"), qos, false);
    }
    for qos in 0..=2 {
        let got = subscriber.take_message();
        assert_eq!((got.topic, got.qos), (format!("{there}x/{qos}"), qos));
        assert_eq!(got.payload, format!("{name} {qos}").into_bytes());
    }
    subscriber.expect_nothing();
}

/// Issue 5 §6: both directions, every QoS, prefixes both ways, and no echo of anything, with mosquitto in both versions and a second node.
#[test]
fn messages_cross_both_ways_and_none_comes_back() {
    let anonymous = "allow_anonymous true";
    for (version, own) in [("5", false), ("3.1.1", false), ("5", true)] {
        let (node, mosquitto);
        let remote = if own {
            node = Node::start();
            node.mqtt
        } else {
            mosquitto = Mosquitto::start(anonymous);
            mosquitto.address
        };
        let local = start(&bridge(remote, BOTH, &[&format!("bridge.b.version={version}")]));
        until(&local, "connected");
        let mut witness = subscriber(local.mqtt, "witness", "here/x/#");
        let mut far_witness = subscriber(remote, "far-witness", "there/x/#");
        cross(local.mqtt, remote, ("here/", "there/"), "out");
        cross(remote, local.mqtt, ("there/", "here/"), "in");
        for witness in [&mut witness, &mut far_witness] {
            let seen: Vec<Vec<u8>> = (0..6).map(|_| witness.take_message().payload).collect();
            assert_eq!(seen.len(), 6, "version {version}");
            witness.expect_nothing();
        }
        assert!(node_counts(&local, "out") >= 3.0 && node_counts(&local, "in") >= 3.0);
    }
}

fn node_counts(node: &Node, direction: &str) -> f64 {
    let series = format!("exactmq_bridge_messages_total{{direction=\"{direction}\"}}");
    eventually("the messages are counted", PATIENCE, || {
        Some(node.metric(&series)).filter(|count| *count >= 3.0)
    })
}

/// Issue 5 §6: what MQTT 5 says beside the payload goes along, and so does RETAIN, to who subscribes later.
#[test]
fn properties_and_retain_go_along() {
    let mosquitto = Mosquitto::start("allow_anonymous true");
    let local = start(&bridge(mosquitto.address, BOTH, &[]));
    until(&local, "connected");
    let mut properties = vec![0x03];
    wire::string("text/plain", &mut properties);
    properties.push(0x08);
    wire::string("answers/here", &mut properties);
    properties.push(0x09);
    wire::string("42", &mut properties);
    properties.extend_from_slice(&[0x02, 0, 0, 0x0E, 0x10, 0x26]);
    wire::string("unit", &mut properties);
    wire::string("°C", &mut properties);
    for (from, to, here, there) in [
        (local.mqtt, mosquitto.address, "here/", "there/"),
        (mosquitto.address, local.mqtt, "there/", "here/"),
    ] {
        let mut live = subscriber(to, &format!("live-{there}"), &format!("{there}p/#"));
        let mut publisher = publisher(from, "publisher");
        let id = publisher.packet_id();
        let bytes = publisher.publish_bytes(&format!("{here}p/a"), b"21", 0b11, id, &properties);
        publisher.send(&bytes);
        assert_eq!(publisher.receive_kind(4).packet_id(), id);
        let got = live.take_message();
        assert_eq!(got.payload, b"21");
        for wanted in [0x03, 0x08, 0x09, 0x26] {
            assert_eq!(property(&got.properties, wanted), property(&properties, wanted), "{wanted:#x}");
        }
        let expiry = property(&got.properties, 0x02).expect("an expiry");
        let left = u32::from_be_bytes(expiry.try_into().expect("four bytes"));
        assert!((3_000..=3_600).contains(&left), "{left}");
        let mut later = Client::connect(to, &Options::v5("later"));
        later.subscribe(&format!("{there}p/a"), 1);
        assert!(later.take_message().retain, "{there}");
    }
}

/// Issue 5 §6: while the other broker is away, messages wait in the inbox of the bridge, where operators see them, and arrive in order.
#[test]
fn a_backlog_waits_and_arrives_in_order() {
    let mut mosquitto = Mosquitto::start("allow_anonymous true");
    let topics = r#"[{ filter = "log/#", direction = "out", qos = 1 }]"#;
    let local = start(&bridge(mosquitto.address, topics, &[]));
    until(&local, "connected");
    let far = subscriber(mosquitto.address, "far", "log/#");
    drop(far);
    mosquitto.stop();
    let away = until(&local, "waiting");
    assert!(away["error"].as_str().is_some_and(|error| !error.is_empty()), "{away}");
    let mut publisher = publisher(local.mqtt, "publisher");
    for number in 0..300 {
        publisher.publish("log/a", number.to_string(), 1, false);
    }
    let session: Value =
        serde_json::from_str(&local.admin_get("/v1/sessions/bridge%2Fb")).expect("the session of the bridge");
    assert_eq!((&session["user"], &session["inbox"]["messages"]), (&"bridge/b".into(), &300.into()));
    let channels = local.admin_get("/v1/channels?kind=inbox&name=bridge");
    assert!(channels.contains("bridge/b"), "{channels}");
    mosquitto.restart();
    let mut far = subscriber(mosquitto.address, "far", "log/#");
    for number in 0..300 {
        assert_eq!(far.take_message().payload, number.to_string().into_bytes());
    }
    far.expect_nothing();
}

/// P5, issue 5 §6: what waits at the other broker comes when this one is back, in order and once, also when it is more than either window:
/// the PUBREL that empty a window of QoS 2 come behind more messages. A 3.1.1 broker without a window of its own sends all at once.
#[test]
fn a_backlog_of_qos_2_is_larger_than_the_window() {
    let topics = r#"[{ filter = "orders/#", direction = "in", qos = 2 }]"#;
    let mosquitto = Mosquitto::start("allow_anonymous true\nmax_inflight_messages 0");
    let own = Node::start();
    for (remote, version) in [(mosquitto.address, "5"), (mosquitto.address, "3.1.1"), (own.mqtt, "5")] {
        let (version, client_id) =
            (format!("bridge.b.version={version}"), format!("bridge.b.client_id=plant-{version}"));
        let mut local = start(&bridge(remote, topics, &[&version, &client_id]));
        until(&local, "connected");
        drop(subscriber(local.mqtt, "reader", "orders/#"));
        local.stop();
        let mut publisher = publisher(remote, "publisher");
        for number in 0..450 {
            publisher.publish("orders/a", number.to_string(), 2, false);
        }
        local.restart();
        let mut reader = subscriber(local.mqtt, "reader", "orders/#");
        for number in 0..450 {
            assert_eq!(reader.take_message().payload, number.to_string().into_bytes(), "{version}");
        }
        reader.expect_nothing();
    }
}

/// Issue 5 §6: over TLS, to a broker that shows a certificate of the authority that the bridge was told of, for the name that it was told; to no other.
#[test]
fn a_bridge_over_tls_speaks_to_nobody_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(["broker.example".to_owned()]).expect("a certificate");
    std::fs::write(path("server.pem"), made.cert.pem()).expect("written");
    std::fs::write(path("server.key"), made.signing_key.serialize_pem()).expect("written");
    let other = rcgen::generate_simple_self_signed(["broker.example".to_owned()]).expect("a certificate");
    std::fs::write(path("other.pem"), other.cert.pem()).expect("written");
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let secured = socket.local_addr().expect("bound");
    drop(socket);
    let remote = start(&[
        "listener.tls.protocol=tls".to_owned(),
        format!("listener.tls.address={secured}"),
        format!("listener.tls.tls_cert={}", path("server.pem")),
        format!("listener.tls.tls_key={}", path("server.key")),
    ]);
    for (ca, name, is_trusted) in [
        ("server.pem", "broker.example", true),
        ("other.pem", "broker.example", false),
        ("server.pem", "elsewhere.example", false),
    ] {
        let (ca, name) =
            (format!("bridge.b.tls_ca={}", path(ca)), format!("bridge.b.tls_server_name={name}"));
        let local = start(&bridge(secured, BOTH, &["bridge.b.protocol=tls", &ca, &name]));
        if is_trusted {
            until(&local, "connected");
            cross(local.mqtt, remote.mqtt, ("here/", "there/"), "out");
            cross(remote.mqtt, local.mqtt, ("there/", "here/"), "in");
        } else {
            let view = until(&local, "waiting");
            assert!(view["error"].as_str().is_some_and(|error| error.contains("certificate")), "{view}");
        }
    }
}

/// P4, P5, issue 5 §6: SIGKILL of either node, again and again while QoS 1 and 2 cross both ways: nothing acknowledged is lost, and with
/// QoS 2 nothing comes twice, in order.
#[test]
fn no_crash_loses_or_doubles_what_was_acknowledged() {
    let mut remote = Node::start();
    let mut local = start(&bridge(remote.mqtt, BOTH, &[]));
    until(&local, "connected");
    for (address, name, filter) in [(remote.mqtt, "far", "there/out/#"), (local.mqtt, "near", "here/in/#")] {
        drop(subscriber(address, name, filter));
    }
    let mut sent = 0;
    for round in 0..6 {
        for (address, topic) in [(local.mqtt, "here/out"), (remote.mqtt, "there/in")] {
            let mut publisher = publisher(address, "publisher");
            for number in sent..sent + 40 {
                publisher.publish(&format!("{topic}/1"), number.to_string(), 1, false);
                publisher.publish(&format!("{topic}/2"), number.to_string(), 2, false);
            }
        }
        sent += 40;
        let victim = if round % 2 == 0 { &mut remote } else { &mut local };
        victim.kill();
        victim.restart();
    }
    for (address, name, topic) in [(remote.mqtt, "far", "there/out"), (local.mqtt, "near", "here/in")] {
        let mut subscriber = subscriber(address, name, "none");
        let (mut once, mut twice) = (Vec::new(), std::collections::BTreeSet::new());
        while once.len() < sent || twice.len() < sent {
            let got = subscriber.take_message();
            let number: usize = String::from_utf8(got.payload).expect("a number").parse().expect("a number");
            if got.topic == format!("{topic}/2") {
                once.push(number);
            } else {
                twice.insert(number);
            }
        }
        assert_eq!(once, (0..sent).collect::<Vec<_>>(), "{topic}");
        assert_eq!(twice, (0..sent).collect(), "{topic}");
    }
}

/// P5: a broker that lost its session begins with the packet ids anew; no message passes for one of before.
#[test]
fn a_lost_session_loses_no_message() {
    let (remote, local);
    remote = Node::start();
    local = start(&bridge(remote.mqtt, BOTH, &["bridge.b.client_id=far-end"]));
    until(&local, "connected");
    let mut far = subscriber(remote.mqtt, "far", "there/out");
    let mut near = subscriber(local.mqtt, "near", "here/in");
    let mut out = publisher(local.mqtt, "publisher");
    let mut back = publisher(remote.mqtt, "publisher");
    for (node, session) in [(&remote, "far-end"), (&local, "bridge/b"), (&remote, "far-end")] {
        out.publish("here/out", "before", 2, false);
        back.publish("there/in", "before", 2, false);
        assert_eq!(near.take_message().payload, b"before");
        assert_eq!(far.take_message().payload, b"before");
        succeeds(&node.cli(&["session", "end", session, "--reason", "explicit"]));
        // Its subscriptions are gone with it: what is published before they are back is nobody's.
        eventually("messages cross again", PATIENCE, || {
            out.publish("here/out", "after", 2, false);
            back.publish("there/in", "after", 2, false);
            let crossed = |client: &mut Client| {
                let packet = client.try_receive_kind(3, Duration::from_millis(300))?;
                let publish = packet.publish(true);
                client.settle(&publish);
                (publish.payload == b"after").then_some(publish)
            };
            (crossed(&mut near).is_some() && crossed(&mut far).is_some()).then_some(())
        });
        for (client, publisher, topic) in
            [(&mut near, &mut back, "there/in"), (&mut far, &mut out, "here/out")]
        {
            publisher.publish(topic, "fence", 2, false);
            while client.take_message().payload != b"fence" {}
        }
    }
}

/// Issue 5 §6: a password that is wrong is seen, and one that is right is taken with a reload; so are other topics, and the end of a bridge.
#[test]
fn a_reload_changes_a_bridge_and_ends_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let mosquitto = Mosquitto::start("");
    let passwords = mosquitto.dir().join("passwd");
    std::fs::write(&passwords, "").expect("a file");
    let made = std::process::Command::new("mosquitto_passwd")
        .arg("-b")
        .arg(&passwords)
        .args(["ann", "right"])
        .output();
    succeeds(&made.expect("mosquitto_passwd is installed"));
    let mut mosquitto = mosquitto;
    mosquitto.stop();
    mosquitto.configure(&format!("allow_anonymous false\npassword_file {}", passwords.display()));
    mosquitto.restart();
    std::fs::write(path("password"), "wrong\n").expect("a file");
    let config = |topic: &str| {
        format!(
            "[bridge.b]\naddress = \"{}\"\nusername = \"ann\"\npassword_file = \"{}\"\nreconnect_min_ms = 50\nreconnect_max_ms = 500\n\
             topics = [{{ filter = \"{topic}\", direction = \"out\" }}]\n",
            mosquitto.address,
            path("password").display()
        )
    };
    std::fs::write(path("exactmq.toml"), config("first")).expect("a file");
    let node = Node::start_with(&[&format!("--config={}", path("exactmq.toml").display())]);
    let refused = until(&node, "waiting");
    let error = refused["error"].as_str().expect("an error");
    assert!(error.contains("NotAuthorized") || error.contains("BadUserName"), "{error}");
    let listed = node.cli(&["bridge", "list"]);
    succeeds(&listed);
    let text = String::from_utf8(listed.stdout).expect("text");
    assert!(text.contains("waiting") && text.contains(error), "{text}");
    std::fs::write(path("password"), "right\n").expect("a file");
    node.reload();
    until(&node, "connected");
    let mut far = Client::connect(mosquitto.address, &Options::v5("far").login("ann", "right"));
    far.subscribe("#", 1);
    let mut publisher = publisher(node.mqtt, "publisher");
    publisher.publish("first", "1", 1, false);
    assert_eq!(far.take_message().topic, "first");
    std::fs::write(path("exactmq.toml"), config("second")).expect("a file");
    node.reload();
    eventually("the other topic crosses", PATIENCE, || {
        publisher.publish("second", "2", 1, false);
        far.try_receive_kind(3, Duration::from_millis(200)).map(|packet| {
            let got = packet.publish(true);
            far.settle(&got);
            assert_eq!(got.topic, "second");
        })
    });
    publisher.publish("first", "no more", 1, false);
    publisher.publish("second", "fence", 1, false);
    while far.take_message().payload != b"fence" {}
    std::fs::write(path("exactmq.toml"), "").expect("a file");
    node.reload();
    eventually("there is no bridge", PATIENCE, || view(&node).is_none().then_some(()));
}

/// DESIGN §11: the user of a bridge is nobody's who comes over the network, whatever file names it; and rules of its user narrow it.
#[test]
fn nobody_else_is_a_bridge_and_its_rules_hold() {
    let dir = tempfile::tempdir().expect("a directory");
    let (passwords, acl) = (dir.path().join("passwd"), dir.path().join("acl"));
    for user in ["ann", "b"] {
        tests::users::add_user(&passwords, user, "secret");
    }
    // As a file from elsewhere may have it; `user add` refuses.
    let lines = std::fs::read_to_string(&passwords).expect("a file").replace("\nb:", "\nbridge/b:");
    assert!(lines.contains("bridge/b:"));
    std::fs::write(&passwords, lines).expect("a file");
    std::fs::write(&acl, "user ann\ntopic readwrite #\n\nuser bridge/b\ntopic deny here/secret/#\n")
        .expect("a file");
    let remote = Node::start();
    let settings =
        [format!("auth.password_file={}", passwords.display()), format!("acl.file={}", acl.display())];
    let local = start(&bridge(remote.mqtt, BOTH, &[&settings[0], &settings[1]]));
    let up = until(&local, "connected");
    assert_eq!(up["error"], Value::Null, "{up}");
    let (_, refused) = Client::try_connect(local.mqtt, &Options::v5("bridge/b").login("bridge/b", "secret"));
    assert_eq!(refused.reason(), 0x87);
    let (_, refused) = Client::try_connect(local.mqtt, &Options::v5("bridge/later").login("ann", "secret"));
    assert_eq!(refused.reason(), 0x85, "who had its session would keep a later bridge out");
    let (_, refused) = Client::try_connect(local.mqtt, &Options::v3("bridge/later").login("ann", "secret"));
    assert_eq!(refused.reason(), 2);
    for command in ["add", "remove"] {
        let passwords = passwords.display().to_string();
        let said = local.cli(&["user", command, "bridge/b", "--file", &passwords]);
        assert_eq!(said.status.code(), Some(1), "{said:?}");
    }
    let mut far = subscriber(remote.mqtt, "far", "there/#");
    let mut ann = Client::connect(local.mqtt, &Options::v5("ann").login("ann", "secret"));
    ann.publish("here/secret/a", "no", 1, false);
    ann.publish("here/open", "yes", 1, false);
    assert_eq!(far.take_message().topic, "there/open");
    let mut back = publisher(remote.mqtt, "publisher");
    ann.subscribe("here/#", 1);
    back.publish("there/secret/b", "no", 1, false);
    back.publish("there/open", "yes", 1, false);
    assert_eq!(ann.take_message().topic, "here/open");
}

/// Issue 5 §6: the state of a bridge is on `$SYS` as mosquitto has it, and among the events.
#[test]
fn its_state_is_on_sys() {
    let mut remote = Node::start();
    let local = start(&bridge(remote.mqtt, BOTH, &[]));
    until(&local, "connected");
    let mut client = publisher(local.mqtt, "watch");
    client.subscribe("$SYS/broker/connection/b/state", 0);
    assert_eq!(client.take_message().payload, b"1");
    remote.kill();
    assert_eq!(client.take_message().payload, b"0");
    assert!(local.metric("exactmq_bridges{state=\"connected\"}") < 0.5);
}

/// Issue 5 §6: in a cluster one node runs the bridge; when it stops another one does, and nothing is lost on the way.
#[test]
fn another_node_takes_a_bridge_over() {
    let remote = Node::start();
    let settings = bridge(remote.mqtt, BOTH, &["bridge.b.client_id=the-cluster"]);
    let mut cluster = Cluster::of_three_with(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    let connected = |cluster: &Cluster, without: Option<usize>| {
        eventually("one node runs the bridge", PATIENCE, || {
            let runs = |id: &usize| view(cluster.node(*id)).is_some_and(|view| view["state"] == "connected");
            let ids: Vec<usize> = (1..=3).filter(|id| Some(*id) != without).filter(runs).collect();
            (ids.len() == 1).then(|| ids[0])
        })
    };
    let first = connected(&cluster, None);
    let mut far = subscriber(remote.mqtt, "far", "there/#");
    let other = first % 3 + 1;
    let mut publisher = publisher(cluster.node(other).mqtt, "publisher");
    publisher.publish("here/a", "0", 2, false);
    assert_eq!(far.take_message().payload, b"0");
    cluster.node_mut(first).stop();
    for number in 1..=20 {
        publisher.publish("here/a", number.to_string(), 2, false);
    }
    let second = connected(&cluster, Some(first));
    assert_ne!(first, second);
    assert!(serves(cluster.node(second)));
    for number in 1..=20 {
        assert_eq!(far.take_message().payload, number.to_string().into_bytes());
    }
}
