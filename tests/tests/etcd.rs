//! Brokers whose leases are in a real etcd (`queue.leases = "etcd"`, ADR 0010): what its absence, its loss and its refusal do, what a node id
//! is worth, and what the broker costs it.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use storage::Identity;
use storage::boot::Boots;
use tests::cluster::{SETTLE, connect_when_served, durable, succeeds};
use tests::{Client, Cluster, Etcd, Node, Options, Place, eventually};

const SERVER_UNAVAILABLE: u8 = 0x88;
const TAKEN_OVER: u8 = 0x8E;
/// The shortest that is allowed: outages outlive it within the test.
const TTL: Duration = Duration::from_secs(5);

/// Settings of a node with its leases in `etcd`, and further ones.
fn settings(etcd: &Etcd, ttl: Duration, more: &[&str]) -> Vec<String> {
    let endpoints = format!("queue.etcd_endpoints={}", etcd.url());
    let ttl = format!("queue.etcd_ttl_s={}", ttl.as_secs());
    let own = ["queue.leases=etcd", &endpoints, &ttl];
    own.iter().chain(more).map(ToString::to_string).collect()
}

fn start(etcd: &Etcd, ttl: Duration) -> Node {
    start_with(&settings(etcd, ttl, &[]))
}

fn start_with(settings: &[String]) -> Node {
    assert!(storage::lease::EtcdOptions::is_built(), "build with --features storage/etcd");
    Node::start_with(&settings.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Backend and state of the lease of every node, as `node` sees them.
fn leases(node: &Node) -> Vec<String> {
    let view: Value = serde_json::from_str(&node.admin_get("/v1/nodes")).expect("JSON");
    let word = |lease: &Value, name: &str| lease[name].as_str().unwrap_or_default().to_owned();
    let lease =
        |node: &Value| format!("{} {}", word(&node["lease"], "backend"), word(&node["lease"], "state"));
    view["nodes"].as_array().expect("nodes").iter().map(lease).collect()
}

fn state_is(node: &Node, state: &str) -> bool {
    node.metric(&format!("exactmq_node_lease{{backend=\"etcd\",state=\"{state}\"}}")) > 0.5
}

/// The boots that hold a claim in etcd, by node.
fn claims(etcd: &Etcd) -> Vec<(u64, String)> {
    let claims = etcd.keys("exactmq/").into_iter().filter(|(key, _)| key.contains("/v1/node/"));
    claims
        .map(|(_, value)| {
            let claim: Value = serde_json::from_str(&value).expect("a claim is JSON");
            (
                claim["node_id"].as_u64().expect("a node"),
                claim["boot_id"].as_str().expect("a boot").to_owned(),
            )
        })
        .collect()
}

/// CONNECT is refused, and health says why.
fn serves_nobody(node: &Node) {
    let (_, connack) = Client::try_connect(node.mqtt, &Options::v5("nobody"));
    assert_eq!(connack.reason(), SERVER_UNAVAILABLE);
    let (_, connack) = Client::try_connect(node.mqtt, &Options::v3("nobody"));
    assert_eq!(connack.reason(), 3);
    let (head, body) = node.admin_ask("GET", "/health/ready", "").expect("it answers");
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert!(body.contains("\"lease\"") && body.contains("the lease in etcd: "), "{body}");
}

/// Numbers from `first` on as long as they are acknowledged: the first that was not.
fn publish_until_closed(client: &mut Client, topic: &str, first: u32) -> u32 {
    let mut number = first;
    loop {
        let id = client.packet_id();
        client.send(&client.publish_bytes(topic, number.to_string().as_bytes(), 2, id, &[]));
        match client.poll(Duration::from_secs(5)) {
            Ok(Some(packet)) if packet.kind() == 4 => number += 1,
            Ok(Some(packet)) => assert_eq!(packet.kind(), 14, "PUBACK or a goodbye: {packet:02x?}"),
            Ok(None) | Err(()) => return number,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The numbers that come, acknowledged one by one, until `last` was there.
fn numbers_through(client: &mut Client, last: u32) -> Vec<u32> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|number| *number < last) {
        let publish = client.take_message();
        seen.push(String::from_utf8(publish.payload.clone()).expect("text").parse().expect("a number"));
    }
    seen
}

/// P4, P5: kill -9 and a stop in order; the node has its lease again at once, although the old one ran on in etcd: its receipts prove that
/// the boot before is over. What a stopped node leaves in etcd is one record until its next start.
#[test]
fn a_restarted_node_has_its_lease_at_once() {
    let etcd = Etcd::start();
    let mut node = start(&etcd, Duration::from_secs(60));
    let mut client = Client::connect(node.mqtt, &durable("c"));
    assert_eq!(client.subscribe("t", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    let mut boots = vec![claims(&etcd)];
    assert_eq!(publisher.publish("t", "1", 1, false), 0);
    node.kill();
    let began = Instant::now();
    node.restart();
    let (mut client, present) = connect_when_served(&node, &durable("c"));
    assert!(present && began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(numbers_through(&mut client, 1), [1]);
    client.disconnect();
    boots.push(claims(&etcd));
    node.stop();
    assert_eq!(claims(&etcd), [], "a stop in order gives the node id back");
    node.restart();
    boots.push(claims(&etcd));
    let (_, present) = connect_when_served(&node, &durable("c"));
    assert!(present);
    assert!(boots.iter().all(|boots| boots.len() == 1 && boots[0].0 == 1), "{boots:?}");
    assert!(boots[0] != boots[1] && boots[1] != boots[2], "{boots:?}");
    assert_eq!(leases(&node), ["etcd held"]);
    let shown = String::from_utf8(node.cli(&["node", "show", "1"]).stdout).expect("text");
    assert!(shown.contains("etcd held") && shown.contains(&boots[2][0].1), "{shown}");
    eventually("records of earlier boots are dropped", SETTLE, || {
        let records = etcd.keys("exactmq/").into_iter().filter(|(key, _)| key.contains("/v1/boot/"));
        (records.count() == 1).then_some(())
    });
}

/// P1, P2, P4: three nodes; a takeover between nodes, a node that dies and comes back. One claim a node, whatever else happens.
#[test]
fn three_nodes_take_over_from_each_other() {
    let etcd = Etcd::start();
    let settings = settings(&etcd, TTL, &[]);
    let mut cluster = Cluster::of_three_with(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    let mut old = Client::connect(cluster.node(2).mqtt, &durable("c"));
    assert_eq!(old.subscribe("t", 1), 1);
    let (mut new, present) = Client::connect_present(cluster.node(1).mqtt, &durable("c"));
    assert!(present);
    let said = old.until_closed(Duration::from_secs(5));
    assert!(said.iter().any(|packet| packet.kind() == 14 && packet.reason() == TAKEN_OVER), "{said:02x?}");
    assert_eq!(leases(cluster.node(3)), ["etcd held"; 3]);
    cluster.node_mut(1).kill();
    new.until_closed(Duration::from_secs(5));
    let (_, connack) = Client::try_connect(cluster.node(2).mqtt, &durable("c"));
    assert_eq!(connack.reason(), SERVER_UNAVAILABLE, "nothing proves that its owner stopped");
    eventually("its lease ends in etcd", SETTLE, || {
        (leases(cluster.node(2))[0] == "etcd lost").then_some(())
    });
    let (_, connack) = Client::try_connect(cluster.node(2).mqtt, &durable("c"));
    assert_eq!(connack.reason(), SERVER_UNAVAILABLE, "neither does a lease, in strict mode");
    cluster.node_mut(1).restart();
    let (mut again, present) = connect_when_served(cluster.node(3), &durable("c"));
    assert!(present);
    let mut publisher = Client::connect(cluster.node(2).mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("t", "7", 1, false), 0);
    assert_eq!(numbers_through(&mut again, 7), [7]);
    eventually("each node has its claim", SETTLE, || {
        let mut nodes: Vec<u64> = claims(&etcd).into_iter().map(|(node, _)| node).collect();
        nodes.sort_unstable();
        (nodes == [1, 2, 3]).then_some(())
    });
}

/// etcd hangs for 5 s under a lease of 15 s, which is the default: the lease shows as at risk, and no client notices.
#[test]
fn a_hang_of_5_s_is_not_noticed() {
    let etcd = Etcd::start();
    let node = start(&etcd, Duration::from_secs(15));
    let mut client = Client::connect(node.mqtt, &Options::v5("c"));
    assert_eq!(client.subscribe("t", 1), 1);
    etcd.signal("-STOP");
    let stopped = Instant::now();
    let mut at_risk = false;
    let mut number = 0_u32;
    // A keepalive is due every 3.75 s at the latest and has 1.5 s for its answer; the lease is not lost before 8.25 s.
    while stopped.elapsed() < Duration::from_secs(5) || !at_risk && stopped.elapsed() < Duration::from_secs(8)
    {
        number += 1;
        assert_eq!(client.publish("t", number.to_string(), 1, false), 0);
        at_risk |= state_is(&node, "at_risk");
        std::thread::sleep(Duration::from_millis(50));
    }
    etcd.signal("-CONT");
    assert!(at_risk, "an operator sees it");
    eventually("held again", SETTLE, || state_is(&node, "held").then_some(()));
    assert_eq!(numbers_through(&mut client, number), (1..=number).collect::<Vec<_>>());
    assert!(client.is_alive());
    assert!(node.metric("exactmq_leases_lost_total") < 0.5);
}

/// P1, P4, P10: etcd is killed for longer than the TTL. Owners are fenced before etcd could have ended the lease, CONNECT is refused with the
/// reason, all is well again by itself when etcd is back, nothing acknowledged is lost.
#[test]
fn an_outage_longer_than_the_ttl_fences_in_time_and_heals() {
    let mut etcd = Etcd::start();
    let node = start(&etcd, TTL);
    let mut reader = Client::connect(node.mqtt, &durable("r"));
    assert_eq!(reader.subscribe("t", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("t", "0", 1, false), 0);
    assert_eq!(numbers_through(&mut reader, 0), [0]);
    etcd.kill();
    let killed = Instant::now();
    let unacknowledged = publish_until_closed(&mut publisher, "t", 1);
    let fenced = killed.elapsed();
    assert!(fenced < TTL, "fenced only after {fenced:?}");
    assert!(unacknowledged > 1, "it went on for a while");
    reader.until_closed(TTL);
    serves_nobody(&node);
    // Sampled once a second.
    eventually("the metric says so", SETTLE, || state_is(&node, "lost").then_some(()));
    std::thread::sleep((TTL + Duration::from_secs(2)).saturating_sub(killed.elapsed()));
    serves_nobody(&node);
    etcd.restart();
    let back = Instant::now();
    let (mut reader, present) = connect_when_served(&node, &durable("r"));
    println!("fenced {fenced:?} after the kill, served {:?} after etcd was back", back.elapsed());
    assert!(present);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("p"));
    assert_eq!(publisher.publish("t", "1000000", 1, false), 0);
    let mut seen = numbers_through(&mut reader, 1_000_000);
    seen.dedup();
    // The last one may have been taken without its acknowledgement.
    seen.retain(|number| *number != unacknowledged);
    let acknowledged: Vec<u32> = (1..unacknowledged).chain([1_000_000]).collect();
    // What the reader was sent live and did not acknowledge comes again.
    assert_eq!(seen, acknowledged);
    assert_eq!(leases(&node), ["etcd held"]);
}

/// P10: a node that starts while etcd is away listens, refuses with the reason, and serves when etcd is there.
#[test]
fn a_start_without_etcd_waits_for_it() {
    let mut etcd = Etcd::start();
    let mut node = start(&etcd, TTL);
    let mut client = Client::connect(node.mqtt, &durable("c"));
    assert_eq!(client.subscribe("t", 1), 1);
    client.disconnect();
    node.stop();
    etcd.kill();
    node.restart();
    serves_nobody(&node);
    etcd.restart();
    let (_, present) = connect_when_served(&node, &durable("c"));
    assert!(present);
}

/// P1, P10: a node id runs once in a cluster. A second node with it, on a directory that was copied and adopted, is refused at its start, and
/// the first one goes on; when that is stopped, the other one may run.
#[test]
fn a_node_id_runs_once() {
    let etcd = Etcd::start();
    let settings = settings(&etcd, TTL, &[]);
    let mut node = start_with(&settings);
    node.stop();
    let copy = tempfile::tempdir().expect("a directory");
    let twin_dir = copy.path().join("data");
    copy_dir(node.dir(), &twin_dir);
    Identity::adopt(&twin_dir).expect("it is adopted");
    Boots::forget_started(&twin_dir).expect("it says nothing of boots elsewhere");
    node.restart();
    let mut client = Client::connect(node.mqtt, &durable("c"));
    assert_eq!(client.subscribe("t", 1), 1);
    let mut twin = Twin::new(twin_dir, &settings);
    let said = twin.refused();
    assert!(said.contains("node id 1 is in use") && said.contains("node.id"), "{said}");
    assert!(client.is_alive());
    node.stop();
    twin.serves();
}

/// A second process of a node; its first start is refused.
struct Twin {
    dir: std::path::PathBuf,
    settings: Vec<String>,
}

impl Twin {
    fn new(dir: std::path::PathBuf, settings: &[String]) -> Self {
        Self { dir, settings: settings.to_vec() }
    }

    fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(tests::node::binary());
        command.args(["serve", "--mqtt", "127.0.0.1:0", "--admin", "off", "--data-dir"]).arg(&self.dir);
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        command
    }

    fn refused(&mut self) -> String {
        let mut command = self.command();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("exactmq runs");
        let end = Instant::now() + SETTLE;
        while child.try_wait().expect("waits").is_none() {
            if Instant::now() > end {
                child.kill().expect("it runs");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().expect("it ended");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
    }

    fn serves(&self) {
        let settings: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        let place = Place { dir: Some(self.dir.clone()), ..Place::default() };
        let twin = Node::start_at(place, &settings);
        let _ = connect_when_served(&twin, &Options::v5("c"));
    }
}

fn copy_dir(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.expect("cp runs").success());
}

/// P10: a password that is wrong, or missing, is refused at start with the reason; with the right one a node serves, and goes on when etcd was
/// restarted and knows no token any more.
#[test]
fn a_wrong_password_is_refused_at_start() {
    let mut etcd = Etcd::start();
    etcd.require_password("right");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("password");
    let with_file = format!("queue.etcd_password_file={}", file.display());
    let with_user = settings(&etcd, TTL, &["queue.etcd_user=root", &with_file]);
    for (password, settings) in [("wrong", &with_user), ("right", &settings(&etcd, TTL, &[]))] {
        std::fs::write(&file, format!("{password}\n")).expect("written");
        let said = Twin::new(dir.path().join("refused"), settings).refused();
        assert!(said.contains("the lease backend etcd/") && said.contains("refuses: "), "{said}");
        assert!(!said.contains("right"), "no password is shown: {said}");
    }
    let node = start_with(&with_user);
    let mut client = Client::connect(node.mqtt, &Options::v5("c"));
    etcd.kill();
    etcd.restart();
    // Longer than the lease lasts without a keepalive.
    let until = Instant::now() + TTL * 2;
    while Instant::now() < until {
        assert!(client.is_alive(), "{}", std::fs::read_to_string(node.log()).unwrap_or_default());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// P10: mutual TLS; an authority that did not sign etcd's certificate, and no certificate of one's own, are refused at start with the reason.
#[test]
fn wrong_certificates_are_refused_at_start() {
    let etcd = Etcd::start_tls();
    let file = |key: &str, name: &str| format!("queue.etcd_tls_{key}={}", etcd.file(name).display());
    let (ca, stranger) = (file("ca", "ca.pem"), file("ca", "stranger.pem"));
    let (cert, key) = (file("cert", "client.pem"), file("key", "client.key"));
    let dir = tempfile::tempdir().expect("a directory");
    for wrong in [&[&*stranger, &cert, &key][..], &[&*ca]] {
        let said = Twin::new(dir.path().join("refused"), &settings(&etcd, TTL, wrong)).refused();
        assert!(said.contains("refuses: ") && said.to_lowercase().contains("certificate"), "{said}");
    }
    let node = start_with(&settings(&etcd, TTL, &[&ca, &cert, &key]));
    let _ = Client::connect(node.mqtt, &Options::v5("c"));
    assert_eq!(leases(&node), ["etcd held"]);
}

/// P1, P4: the data of etcd is wiped, so that another cluster answers. It is not believed; the node stops to serve in time, takes its lease from
/// the new one by itself, and has all its sessions.
#[test]
fn a_wiped_etcd_is_another_one() {
    let mut etcd = Etcd::start();
    let node = start(&etcd, TTL);
    let mut client = Client::connect(node.mqtt, &durable("c"));
    assert_eq!(client.subscribe("t", 1), 1);
    let before = claims(&etcd);
    let wiped = Instant::now();
    etcd.wipe();
    client.until_closed(TTL);
    assert!(wiped.elapsed() < TTL + Duration::from_secs(1), "{:?}", wiped.elapsed());
    let (_, present) = connect_when_served(&node, &durable("c"));
    assert!(present);
    assert_eq!(claims(&etcd), before, "the same boot, with a lease of the new one");
}

/// P1, P2: where time may retire a boot, it does when the boot lease is over and etcd says that its lease is gone; an etcd that lost its data
/// does not say it, and then nobody takes over before the node is back.
#[test]
fn time_retires_a_boot_only_by_the_word_of_etcd() {
    let mut etcd = Etcd::start();
    let more = ["isolation.mode=lease", "owner.lease_ms=2000", "isolation.drift_ms=500"];
    let settings = settings(&etcd, TTL, &more);
    let mut cluster = Cluster::of_three_with(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    let mut old = Client::connect(cluster.node(3).mqtt, &durable("c"));
    assert_eq!(old.subscribe("t", 1), 1);
    cluster.node_mut(3).kill();
    let killed = Instant::now();
    let (client, present) = connect_when_served(cluster.node(1), &durable("c"));
    let took = killed.elapsed();
    assert!(present);
    // Its last keepalive was at most a quarter of the TTL ago.
    assert!(took >= TTL - TTL / 4, "taken over after {took:?}, when its lease in etcd still ran");
    println!("taken over {took:?} after the kill");
    client.disconnect();
    cluster.node_mut(3).restart();
    cluster.settle();
    let old = Client::connect(cluster.node(3).mqtt, &durable("c"));
    cluster.node_mut(3).kill();
    etcd.wipe();
    drop(old);
    eventually("the others serve under leases of the new etcd", SETTLE, || {
        (claims(&etcd).len() == 2).then_some(())
    });
    let _ = connect_when_served(cluster.node(1), &Options::v5("stranger"));
    let until = Instant::now() + TTL * 2;
    while Instant::now() < until {
        let (_, connack) = Client::try_connect(cluster.node(1).mqtt, &durable("c"));
        assert_eq!(connack.reason(), SERVER_UNAVAILABLE, "an etcd without its data proves nothing");
        std::thread::sleep(Duration::from_millis(200));
    }
    cluster.node_mut(3).restart();
    let (_, present) = connect_when_served(cluster.node(1), &durable("c"));
    assert!(present);
}

/// P1: an operator's word waits for the lease in etcd as for the boot lease; it does not stand against somebody who keeps that lease alive.
#[test]
fn an_operators_word_does_not_stand_against_a_lease_that_is_kept() {
    let etcd = Etcd::start();
    let more = ["owner.lease_ms=2000", "isolation.drift_ms=500"];
    let settings = settings(&etcd, TTL, &more);
    let mut cluster = Cluster::of_three_with(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    let old = Client::connect(cluster.node(3).mqtt, &durable("c"));
    let boot = claims(&etcd).into_iter().find(|(node, _)| *node == 3).expect("node 3").1;
    let record =
        etcd.keys("exactmq/").into_iter().find(|(key, _)| key.ends_with(&format!("/v1/boot/3/{boot}")));
    let lease = u64::from_str_radix(&record.expect("a record").1, 16).expect("a lease");
    cluster.node_mut(3).kill();
    drop(old);
    let killed = Instant::now();
    let retire = || {
        cluster.node(1).cli(&["node", "retire", "3", "--boot", &boot, "--attest", "its process was killed"])
    };
    let over = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        // As a node would that the others do not reach.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                etcd.keep_alive(lease);
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        let refused = retire();
        over.store(true, Ordering::Relaxed);
        refused
    });
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(4) && said.contains("keeps its lease in etcd alive"),
        "{refused:?}"
    );
    let kept = Instant::now();
    succeeds(&retire());
    // From the last time that it was kept.
    assert!(kept.elapsed() >= TTL - Duration::from_secs(2), "{:?} of {:?}", kept.elapsed(), killed.elapsed());
    let (_, present) = connect_when_served(cluster.node(1), &durable("c"));
    assert!(present);
    eventually("nothing of the boot is left in etcd", SETTLE, || {
        (!etcd.keys("exactmq/").iter().any(|(key, _)| key.contains(&boot))).then_some(())
    });
}

/// Lease spec 15.4: what a broker costs etcd depends on the nodes, not on the sessions. `EXACTMQ_ETCD_SESSIONS=100000` makes them so many,
/// `EXACTMQ_ETCD_CONNECTED` says how many of them stay connected.
#[test]
fn etcd_is_asked_per_node_and_not_per_session() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let sessions = number("EXACTMQ_ETCD_SESSIONS").unwrap_or(1_000);
    let connected = number("EXACTMQ_ETCD_CONNECTED").unwrap_or(200).min(sessions);
    let etcd = Etcd::start();
    let settings = settings(&etcd, Duration::from_secs(15), &[]);
    let node = start_with(&settings);
    let window = Duration::from_secs(15);
    let rate = || {
        let (before, began) = (etcd.operations(), Instant::now());
        std::thread::sleep(window);
        (etcd.operations() - before) / began.elapsed().as_secs_f64()
    };
    // The watch and the first records are made.
    std::thread::sleep(Duration::from_secs(5));
    let none = rate();
    let clients = fill(node.mqtt, sessions, connected);
    let some = rate();
    println!(
        "{none:.2} operations/s with 0 sessions, {some:.2} with {sessions}, {connected} of them connected"
    );
    // One keepalive every quarter of the TTL, and one look every few seconds at most, whatever the sessions.
    assert!(none < 2.0, "{none} operations/s at rest");
    assert!(some < none + 0.5, "{some} operations/s with {sessions} sessions, {none} with none");
    drop(clients);
}

/// Durable sessions, of which the first stay connected.
fn fill(mqtt: std::net::SocketAddr, sessions: usize, connected: usize) -> Vec<Client> {
    const THREADS: usize = 8;
    let some = |thread: usize| {
        let numbers = (thread..sessions).step_by(THREADS);
        let clients = numbers.filter_map(|number| {
            let client = Client::connect(mqtt, &durable(&format!("c{number}")).keep_alive(0));
            if number < connected {
                return Some(client);
            }
            client.disconnect();
            None
        });
        clients.collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || some(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it connects them")).collect()
    })
}
