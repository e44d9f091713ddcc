//! Backup of nodes that serve clients, and what clients find at the restored node (DESIGN §11 `backup`, `restore`).

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tests::cluster::{connect_when_served, durable, status, succeeds};
use tests::{Client, Cluster, Node, Options, Place, eventually};

const PATIENCE: Duration = Duration::from_secs(20);

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

fn exactmq(arguments: &[&str]) -> Output {
    Command::new(tests::node::binary()).args(arguments).output().expect("it runs")
}

fn restore(file: &str, dir: &str, attest: &str) -> Output {
    exactmq(&["restore", file, "--data-dir", dir, "--attest", attest])
}

/// A node on a directory that is there.
fn start(dir: &str) -> Node {
    Node::start_at(Place { dir: Some(dir.into()), ..Place::default() }, &[])
}

/// Publishes with QoS 1, one after the other, until it is told to stop; how many were acknowledged.
fn publish_until(
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    mut client: Client,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            let number = done.load(Ordering::SeqCst);
            assert_eq!(client.publish("b/t", number.to_string(), 1, false), 0);
            done.store(number + 1, Ordering::SeqCst);
        }
    })
}

/// Issue "Backup under load, restore on an empty machine, clients resume with Session Present 1": everything that was acknowledged before the
/// backup began is there, in order and once.
#[test]
fn clients_resume_at_the_restored_node() {
    let files = Files::new();
    let node = Node::start();
    let (mut away, present) = Client::connect_present(node.mqtt, &durable("away"));
    assert!(!present);
    assert_eq!(away.subscribe("b/#", 1), 1);
    away.disconnect();
    let (mut online, _) = Client::connect_present(node.mqtt, &durable("online"));
    assert_eq!(online.subscribe("other", 1), 1);
    let (mut keeper, _) = Client::connect_present(node.mqtt, &Options::v5("keeper"));
    assert_eq!(keeper.publish("r/kept", "kept", 1, true), 0x10, "nobody subscribes");
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (publisher, _) = Client::connect_present(node.mqtt, &Options::v5("publisher"));
    let publishing = publish_until(Arc::clone(&stop), Arc::clone(&done), publisher);
    eventually("the load runs", PATIENCE, || (done.load(Ordering::SeqCst) > 200).then_some(()));
    let before = done.load(Ordering::SeqCst);
    let file = files.path("b.exactmq");
    succeeds(&node.cli(&["backup", &file]));
    stop.store(true, Ordering::SeqCst);
    publishing.join().expect("it published");
    let dir = files.path("restored");
    succeeds(&restore(&file, &dir, "the test stopped it"));
    drop(node);
    let restored = start(&dir);
    let (mut away, present) = Client::connect_present(restored.mqtt, &durable("away"));
    assert!(present, "Session Present");
    for number in 0..before {
        let publish = away.receive_publish();
        assert_eq!(String::from_utf8_lossy(&publish.payload), number.to_string());
        away.settle(&publish);
    }
    let (mut online, present) = Client::connect_present(restored.mqtt, &durable("online"));
    assert!(present, "the one that was connected too");
    let (mut other, _) = Client::connect_present(restored.mqtt, &Options::v5("x"));
    assert_eq!(other.publish("other", "again", 1, false), 0);
    assert_eq!(String::from_utf8_lossy(&online.receive_publish().payload), "again");
    assert_eq!(other.subscribe("r/#", 1), 1);
    assert_eq!(String::from_utf8_lossy(&other.receive_publish().payload), "kept");
    let audit = restored.admin_get("/v1/audit");
    assert!(!audit.contains("\"backup\""), "the audit log is of the node, not of the backup: {audit}");
}

/// DESIGN §7: the restored directory has no receipt of the node it was made from, which may still run: both do, each in a cluster of its own.
#[test]
fn the_original_may_still_run() {
    let files = Files::new();
    let node = Node::start();
    let (mut client, _) = Client::connect_present(node.mqtt, &durable("c"));
    assert_eq!(client.subscribe("t", 1), 1);
    let file = files.path("b.exactmq");
    succeeds(&node.cli(&["backup", &file]));
    assert!(node.admin_get("/v1/audit").contains("\"backup\""));
    let dir = files.path("restored");
    succeeds(&restore(&file, &dir, "a copy for tests"));
    assert!(!Path::new(&dir).join("mqtt/retired-owners").exists(), "no receipt, no marker");
    let copy = start(&dir);
    let (_at_copy, present) = Client::connect_present(copy.mqtt, &durable("c"));
    assert!(present);
    assert!(client.is_alive());
    let boots = copy.admin_get("/v1/nodes");
    assert!(boots.contains("\"attested\""), "{boots}");
}

/// A backup of one node of a cluster has everything that any node acknowledged; others join what was restored from it.
#[test]
fn a_cluster_is_restored_from_one_node() {
    let files = Files::new();
    let cluster = Cluster::of_three();
    let mut kept = Vec::new();
    for id in 1..=3 {
        let (mut client, _) = connect_when_served(cluster.node(id), &durable(&format!("c{id}")));
        assert_eq!(client.subscribe("c/#", 1), 1);
        kept.push(client);
    }
    kept.into_iter().for_each(Client::disconnect);
    let (mut publisher, _) = connect_when_served(cluster.node(1), &Options::v5("p"));
    for number in 0..20 {
        assert_eq!(publisher.publish("c/t", number.to_string(), 1, false), 0);
    }
    let file = files.path("b.exactmq");
    succeeds(&cluster.node(2).cli(&["backup", &file]));
    let dir = files.path("restored");
    succeeds(&restore(&file, &dir, "the cluster was switched off"));
    drop(cluster);
    let restored = start(&dir);
    for id in 1..=3 {
        let (mut client, present) = Client::connect_present(restored.mqtt, &durable(&format!("c{id}")));
        assert!(present);
        for number in 0..20 {
            let publish = client.receive_publish();
            assert_eq!(String::from_utf8_lossy(&publish.payload), number.to_string());
            client.settle(&publish);
        }
    }
    assert!(status(&restored)["groups"].as_array().is_some_and(|groups| groups.len() == 4));
}

/// Bad input: what is there stays, what is no backup is refused, and the exit code says so.
#[test]
fn mistakes_are_refused_and_change_nothing() {
    let files = Files::new();
    let node = Node::start();
    let file = files.path("b.exactmq");
    std::fs::write(&file, "precious").expect("a file");
    assert_eq!(node.cli(&["backup", &file]).status.code(), Some(1));
    assert_eq!(std::fs::read(&file).expect("the file"), b"precious");
    let dir = files.path("restored");
    let refused = restore(&file, &dir, "x");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not a backup"), "{refused:?}");
    assert!(!Path::new(&dir).exists());
    let whole = files.path("whole.exactmq");
    succeeds(&node.cli(&["backup", &whole]));
    // Nobody may forget to say what becomes of the old cluster.
    let usage = |arguments: &[&str]| {
        let output = exactmq(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    };
    usage(&["restore", &whole]);
    usage(&["restore", &whole, "--attest", " "]);
    let occupied = restore(&whole, &node.dir().display().to_string(), "x");
    assert_eq!(occupied.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&occupied.stderr).contains("not empty"), "{occupied:?}");
    let check = exactmq(&["restore", &whole, "--check", "--json"]);
    succeeds(&check);
    let said: serde_json::Value = serde_json::from_slice(&check.stdout).expect("JSON");
    assert_eq!((said["node_id"].as_u64(), said["groups"].as_u64()), (Some(1), Some(4)));
    let (head, body) = node.admin_ask("GET", "/v1/backup", "").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 405"), "{head} {body}");
}
