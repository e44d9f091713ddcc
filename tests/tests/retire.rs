//! A node that is lost (DESIGN §7; owner spec §10, §17.1 to 3): its boot is retired with a proof, its clients go on elsewhere, its Wills
//! come once, and should it run after all, it does nothing for them any more.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::cluster::{
    Cluster, SETTLE, connect_when_served, durable, free_port, signal, start_node, status, succeeds,
};
use tests::{Client, Node, Options, eventually};

const SERVER_UNAVAILABLE: u8 = 0x88;
/// Short, so that a test takes seconds; long enough for a busy machine.
const LEASE: &str = "owner.lease_ms=5000";
const DRIFT: &str = "isolation.drift_ms=300";

fn json(output: &Output) -> Value {
    succeeds(output);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The newest boot of a node, as `node` knows it.
fn boot_of(node: &Node, id: usize) -> Value {
    json(&node.cli(&["node", "show", &id.to_string(), "--json"]))["boots"][0].clone()
}

fn boot_id(node: &Node, id: usize) -> String {
    boot_of(node, id)["boot_id"].as_str().expect("text").to_owned()
}

fn retire(node: &Node, id: usize, boot: &str, proof: &[&str]) -> Output {
    node.cli(&[&["node", "retire", &id.to_string(), "--boot", boot], proof].concat())
}

fn attest(node: &Node, id: usize, boot: &str) -> Output {
    retire(node, id, boot, &["--attest", "ended by this test"])
}

fn exit_code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

/// Waits until the survivors lead every group.
fn led_by_others(cluster: &Cluster, lost: usize) {
    for node in (1..=3).filter(|id| *id != lost).map(|id| cluster.node(id)) {
        eventually("leaders among the survivors", SETTLE, || {
            let view = status(node);
            let led = view["groups"].as_array()?.iter().all(|group| {
                group["leader"].as_u64().is_some_and(|leader| leader != u64::try_from(lost).unwrap_or(0))
            });
            led.then_some(())
        });
    }
}

fn watcher(node: &Node) -> Client {
    let mut watcher = Client::connect(node.mqtt, &durable("watcher"));
    assert_eq!(watcher.subscribe("will/#", 1), 1);
    watcher
}

/// The topics of the next `count` Wills, each once, and then no more for a while.
fn wills(watcher: &mut Client, count: usize, began: Instant) -> BTreeSet<String> {
    let mut topics = BTreeSet::new();
    while topics.len() < count {
        let will = watcher.take_message();
        assert!(topics.insert(will.topic.clone()), "{} came twice", will.topic);
    }
    eprintln!("last of {count} Wills {:?} after the retirement", began.elapsed());
    assert_eq!(watcher.poll(Duration::from_millis(1_000)), Ok(None), "a Will came twice");
    topics
}

/// What a node had when it was lost.
struct Lost {
    sub: Client,
    /// Held so that nobody else closes them.
    _others: Vec<Client>,
    watcher: Client,
}

/// Clients of node 2: a durable subscriber with twenty messages in flight, two with Wills, one of them with a delay.
fn clients_of_2(cluster: &Cluster) -> Lost {
    let watcher = watcher(cluster.node(1));
    let mut sub = Client::connect(cluster.node(2).mqtt, &durable("sub").receive_maximum(5));
    assert_eq!(sub.subscribe("q/#", 1), 1);
    let mut others = vec![
        Client::connect(cluster.node(2).mqtt, &durable("prompt").will("will/prompt", "gone", 1, false, 0)),
        Client::connect(cluster.node(2).mqtt, &durable("delayed").will("will/delayed", "gone", 1, false, 2)),
    ];
    let mut publisher = Client::connect(cluster.node(3).mqtt, &Options::v5("pub"));
    for round in 0..20 {
        assert_eq!(publisher.publish("q/t", round.to_string(), 1, false), 0);
    }
    // Five are on their way and not acknowledged.
    for round in 0..5 {
        assert_eq!(sub.receive_publish().payload, round.to_string().as_bytes());
    }
    others.push(publisher);
    Lost { sub, _others: others, watcher }
}

/// All messages that the lost node's subscriber did not acknowledge, with Session Present, on another node.
fn goes_on(node: &Node, began: Instant) {
    let (mut sub, present) = Client::connect_present(node.mqtt, &durable("sub"));
    eprintln!("CONNACK {:?} after the retirement", began.elapsed());
    assert!(present, "Session Present");
    for round in 0..20 {
        let message = sub.take_message();
        assert_eq!(message.payload, round.to_string().as_bytes());
        assert!(message.dup || round >= 5, "what was sent before carries DUP");
    }
    sub.expect_nothing();
}

fn refused(node: &Node, options: &Options) {
    let (_, connack) = Client::try_connect(node.mqtt, options);
    assert_eq!(connack.reason(), SERVER_UNAVAILABLE, "nothing is proved");
}

/// P2, P4, P5, P6: kill -9 of a node that never comes back. Nothing happens to its sessions until an operator attests it; then they go on
/// elsewhere with everything, their Wills come once. What lives is not retired, and the node may come back as a new boot.
#[test]
fn a_dead_node_is_retired_by_attestation() {
    let mut cluster = Cluster::of_three_with(&[LEASE, DRIFT]);
    let boot = boot_id(cluster.node(1), 2);
    let mut lost = clients_of_2(&cluster);
    let survivor = cluster.node(1);
    // P10: living boots, unknown ones, and those of another node.
    let alive = attest(survivor, 2, &boot);
    assert_eq!(exit_code(&alive), 4, "{alive:?}");
    assert!(String::from_utf8_lossy(&alive.stderr).contains("alive"), "{alive:?}");
    assert_eq!(
        exit_code(&retire(survivor, 2, &boot, &["--attest", "x", "--now"])),
        4,
        "--now does not change that"
    );
    assert_eq!(exit_code(&attest(survivor, 1, &boot_id(survivor, 1))), 1, "its own");
    assert_eq!(exit_code(&attest(survivor, 2, &"0".repeat(32))), 1);
    assert_eq!(exit_code(&attest(survivor, 3, &boot)), 1, "of another node");
    assert_eq!(exit_code(&retire(survivor, 2, &boot, &["--fence-agent"])), 1, "none is configured");
    assert!(lost.sub.is_alive(), "nothing was disturbed");

    cluster.node_mut(2).kill();
    led_by_others(&cluster, 2);
    refused(cluster.node(3), &durable("sub"));
    lost.watcher.expect_nothing();
    let done = json(&retire(cluster.node(1), 2, &boot, &["--attest", "pulled its plug", "--json"]));
    let began = Instant::now();
    assert_eq!((&done["retired_by"], &done["unchanged"]), (&"attested".into(), &false.into()), "{done}");
    let groups = done["groups"].as_array().expect("groups");
    assert!(!groups.is_empty() && groups.iter().all(|group| group["outcome"] == "retired"), "{done}");
    goes_on(cluster.node(3), began);
    let topics = wills(&mut lost.watcher, 2, began);
    assert_eq!(topics, ["will/delayed", "will/prompt"].map(str::to_owned).into());

    // Again, and through another node: nothing is left to do.
    let again = json(&retire(cluster.node(3), 2, &boot, &["--attest", "again", "--json"]));
    assert_eq!(again["unchanged"], true, "{again}");
    let row = boot_of(cluster.node(3), 2);
    assert_eq!(row["retired_because"], "pulled its plug", "the first proof stands: {row}");
    let audit: Value =
        serde_json::from_str(&cluster.node(1).admin_get("/v1/audit?action=node.retire")).expect("JSON");
    let records = audit["records"].as_array().expect("records");
    let results: Vec<&str> = records.iter().filter_map(|record| record["result"].as_str()).collect();
    let expected = ["retired", "no_fence_agent", "not_found", "not_found", "own_boot", "alive", "alive"];
    assert_eq!(results, expected, "{audit}");
    assert_eq!(records[0]["reason"], "attested: pulled its plug");

    cluster.node_mut(2).restart();
    cluster.settle();
    let (_, present) = connect_when_served(cluster.node(2), &durable("prompt"));
    assert!(present);
}

/// DESIGN §7: a fence agent that fails proves nothing; one that succeeds has proved that nothing of the node runs.
#[test]
fn a_fence_agent_proves_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("fence.sh");
    let agent = format!("isolation.fence_agent=[\"/bin/sh\", {:?}]", script.to_str().expect("text"));
    let cluster = Cluster::of_three_with(&[LEASE, DRIFT, &agent]);
    let boot = boot_id(cluster.node(1), 2);
    let mut lost = clients_of_2(&cluster);
    // Unreachable, and yet not dead: nothing but the agent makes it so.
    signal(cluster.node(2), "-STOP");
    led_by_others(&cluster, 2);
    std::fs::write(&script, "echo no power switch >&2; exit 3\n").expect("written");
    let failed = retire(cluster.node(1), 2, &boot, &["--fence-agent"]);
    assert_eq!(exit_code(&failed), 4, "{failed:?}");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("no power switch"), "{failed:?}");
    refused(cluster.node(3), &durable("sub"));
    lost.watcher.expect_nothing();
    let kill = format!("kill -9 {} && echo off $EXACTMQ_FENCE_NODE_ID", cluster.node(2).pid());
    std::fs::write(&script, kill).expect("written");
    let done = json(&retire(cluster.node(3), 2, &boot, &["--fence-agent", "--json"]));
    let began = Instant::now();
    assert_eq!(done["retired_by"], "fence_agent");
    assert_eq!(boot_of(cluster.node(1), 2)["retired_because"], "exit 0: off 2");
    goes_on(cluster.node(1), began);
    wills(&mut lost.watcher, 2, began);
}

/// `isolation.fence_auto`: a node that cannot be reached and whose lease is over is fenced without being asked.
#[test]
fn a_silent_node_is_fenced_unasked() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("fence.sh");
    std::fs::write(&script, "exit 1\n").expect("written");
    let agent = format!("isolation.fence_agent=[\"/bin/sh\", {:?}]", script.to_str().expect("text"));
    let mut cluster = Cluster::of_three_with(&[LEASE, DRIFT, &agent, "isolation.fence_auto=true"]);
    let mut lost = clients_of_2(&cluster);
    std::fs::write(&script, format!("kill -9 {} && echo off", cluster.node(2).pid())).expect("written");
    signal(cluster.node(2), "-STOP");
    let began = Instant::now();
    eventually("its boot is retired", SETTLE, || {
        (boot_of(cluster.node(1), 2)["retired_by"] == "fence_agent").then_some(())
    });
    eprintln!("fenced and retired {:?} after the stop", began.elapsed());
    led_by_others(&cluster, 2);
    goes_on(cluster.node(3), began);
    wills(&mut lost.watcher, 2, began);
    cluster.node_mut(2).kill();
}

/// A node that was taken out of the cluster for good proves nothing either; its boot is retired as any other.
#[test]
fn a_removed_node_is_retired() {
    let mut cluster = Cluster::of_three_with(&[LEASE, DRIFT]);
    let boot = boot_id(cluster.node(1), 2);
    let mut lost = clients_of_2(&cluster);
    cluster.node_mut(2).kill();
    led_by_others(&cluster, 2);
    succeeds(&cluster.node(1).cli(&["cluster", "remove", "2"]));
    refused(cluster.node(3), &durable("sub"));
    succeeds(&attest(cluster.node(3), 2, &boot));
    let began = Instant::now();
    goes_on(cluster.node(3), began);
    wills(&mut lost.watcher, 2, began);
}

/// Connections of a node that is stopped while bytes of both directions wait in its sockets.
struct Zombie {
    consumer: Client,
    publisher: Client,
    live: Client,
}

impl Zombie {
    fn of_2(cluster: &Cluster) -> Self {
        let node = cluster.node(2);
        let mut consumer = Client::connect(node.mqtt, &durable("consumer"));
        assert_eq!(consumer.subscribe("z/#", 1), 1);
        let publisher = Client::connect(node.mqtt, &durable("publisher"));
        let mut live = Client::connect(node.mqtt, &Options::v5("live"));
        assert_eq!(live.subscribe("z/#", 0), 0);
        signal(node, "-STOP");
        let mut zombie = Self { consumer, publisher, live };
        // They wait in the sockets of the stopped process.
        let publish = zombie.publisher.publish_bytes("z/t", b"from the grave", 2, 9, &[]);
        zombie.publisher.send(&publish);
        zombie.consumer.send(&[0xC0, 0]);
        zombie
    }

    /// P1: awake again, it delivers nothing, acknowledges nothing, and closes all.
    fn does_nothing(self) {
        for (who, mut client) in
            [("consumer", self.consumer), ("publisher", self.publisher), ("live", self.live)]
        {
            let said = client.until_closed(SETTLE);
            let silent = said.iter().all(|packet| packet.kind() == 14);
            assert!(silent, "{who} of a retired boot was sent {said:02x?}");
        }
    }
}

/// The retired node is awake: its old connections hear nothing more, and by itself it serves again, as another boot.
fn comes_back_as_another(cluster: &Cluster, zombie: Zombie, mut consumer: Client) {
    let old = boot_id(cluster.node(1), 2);
    let mut publisher = Client::connect(cluster.node(1).mqtt, &Options::v5("elsewhere"));
    assert_eq!(publisher.publish("z/t", "while it was away", 1, false), 0);
    assert_eq!(consumer.take_message().payload, b"while it was away");
    signal(cluster.node(2), "-CONT");
    zombie.does_nothing();
    assert_eq!(publisher.publish("z/t", "after it woke", 1, false), 0);
    assert_eq!(consumer.take_message().payload, b"after it woke");
    eventually("another boot of node 2", SETTLE, || (boot_id(cluster.node(1), 2) != old).then_some(()));
    eventually("its listener", SETTLE, || TcpStream::connect(cluster.node(2).mqtt).ok());
    let (mut again, present) = connect_when_served(cluster.node(2), &durable("publisher"));
    assert!(present);
    assert_eq!(again.publish("z/t", "from the new boot", 1, false), 0);
    assert_eq!(consumer.take_message().payload, b"from the new boot");
    consumer.expect_nothing();
}

/// P1: the operator was wrong, the node only slept. By the time its boot is retired its lease is over, and it can do nothing any more
/// for those who are served elsewhere, whatever waits in its sockets, inboxes and timers.
#[test]
fn p1_a_retired_node_that_wakes_does_nothing() {
    let cluster = Cluster::of_three_with(&[LEASE, DRIFT]);
    let boot = boot_id(cluster.node(1), 2);
    let zombie = Zombie::of_2(&cluster);
    led_by_others(&cluster, 2);
    succeeds(&attest(cluster.node(3), 2, &boot));
    let (consumer, present) = Client::connect_present(cluster.node(3).mqtt, &durable("consumer"));
    assert!(present);
    comes_back_as_another(&cluster, zombie, consumer);
}

/// DESIGN §7, opt-in lease mode: nobody is asked; a silent node is retired when its lease and the drift are over, and does nothing when
/// it wakes.
#[test]
fn p1_in_lease_mode_the_end_of_the_lease_retires_a_silent_node() {
    let cluster = Cluster::of_three_with(&[LEASE, DRIFT, "isolation.mode=lease"]);
    let mut watcher = watcher(cluster.node(1));
    let _willed =
        Client::connect(cluster.node(2).mqtt, &durable("willed").will("will/prompt", "gone", 1, false, 0));
    let zombie = Zombie::of_2(&cluster);
    let stopped = Instant::now();
    refused(cluster.node(3), &durable("consumer"));
    let (consumer, present) = connect_when_served(cluster.node(3), &durable("consumer"));
    assert!(present);
    let after = stopped.elapsed();
    eprintln!("taken over {after:?} after the stop");
    eventually("the lease retired it in every group", SETTLE, || {
        (boot_of(cluster.node(1), 2)["retired_by"] == "lease").then_some(())
    });
    wills(&mut watcher, 1, stopped);
    comes_back_as_another(&cluster, zombie, consumer);
}

/// P2, P10: a removal of a node that runs proves nothing, and says what frees its sessions: that command does. The removed node says so of
/// itself, in its status, its readiness and its log. Stopped in order first, it leaves nothing behind.
#[test]
fn a_removal_says_what_it_leaves_behind() {
    let mut cluster = Cluster::of_three_with(&[LEASE, DRIFT]);
    let boot = boot_id(cluster.node(1), 2);
    assert_eq!(boot_of(cluster.node(1), 2)["current"], true, "of a node that is not asked");
    let _lost = clients_of_2(&cluster);
    cluster.node_mut(3).stop();
    led_by_others(&cluster, 3);
    let removed = json(&cluster.node(1).cli(&["cluster", "remove", "3", "--json"]));
    assert_eq!(removed, serde_json::json!({ "removed": 3, "unretired": [], "note": null }));

    let removed = cluster.node(1).cli(&["cluster", "remove", "2"]);
    succeeds(&removed);
    let said = String::from_utf8_lossy(&removed.stdout);
    assert!(
        said.contains(&format!("exactmq node retire 2 --boot {boot} --attest "))
            && said.contains("SIGTERM")
            && said.contains("0x88"),
        "{said}"
    );
    eventually("it knows that it was removed", SETTLE, || {
        (status(cluster.node(2))["state"] == "removed").then_some(())
    });
    let (head, body) = cluster.node(2).admin_ask("GET", "/health/ready", "").expect("an answer");
    assert!(head.contains("503") && body.contains("removed from its cluster"), "{head} {body}");
    cluster.node_mut(2).kill();
    refused(cluster.node(1), &durable("sub"));
    succeeds(&attest(cluster.node(1), 2, &boot));
    goes_on(cluster.node(1), Instant::now());
}

/// A node alone has nobody to retire, and says so.
#[test]
fn a_node_alone_retires_nobody() {
    let node = start_node(1, free_port(), &[]);
    assert_eq!(exit_code(&attest(&node, 1, &boot_id(&node, 1))), 1);
    assert_eq!(exit_code(&attest(&node, 2, "b")), 1);
}
