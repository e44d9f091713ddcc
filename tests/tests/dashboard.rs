//! The dashboard in a headless Chromium (DESIGN §11): what an operator sees and does there, with axe-core on every view.
//!
//! The steps are Python (`tests/dashboard`); here are the nodes and sessions that they find. Pictures are left in
//! `target/dashboard-screenshots`, for eyes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::cluster::durable;
use tests::{Client, Cluster, Node, Options, eventually};

/// Longer than the steps take on a busy machine.
const STEPS: Duration = Duration::from_secs(240);

fn token(node: &Node) -> String {
    let token = std::fs::read_to_string(node.dir().join("admin.token")).expect("the token");
    token.trim().to_owned()
}

/// Runs a script of `tests/dashboard` to its end.
fn drive(script: &str, arguments: &[&str]) {
    let python = std::env::var("EXACTMQ_PYTHON").unwrap_or_else(|_| "python3".into());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pictures = folder.join("../target/dashboard-screenshots");
    let mut child = Command::new(python)
        .arg(folder.join("dashboard").join(script))
        .args(arguments)
        .arg(&pictures)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python starts");
    let ended = eventually("the steps end", STEPS, || child.try_wait().expect("waits"));
    let output = child.wait_with_output().expect("its output");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(ended.success(), "{script}: {said}\n{wrong}");
    assert!(said.ends_with("all steps passed\n"), "{script}: {said}");
}

/// A node with what `single.py` expects, and the client that stays connected.
fn one_node() -> (Node, Client) {
    let node = Node::start_with(&["node.workers=1", "node.sys_interval_s=0"]);
    for number in 0..5 {
        let mut reader = Client::connect(node.mqtt, &durable(&format!("reader-{number}")));
        assert_eq!(reader.subscribe(&format!("for/{number}"), 1), 1);
        reader.disconnect();
    }
    let mut publisher = Client::connect(node.mqtt, &Options::v5("publisher"));
    for number in 1..5 {
        for message in 0..number * 10 {
            assert_eq!(publisher.publish(&format!("for/{number}"), message.to_string(), 1, false), 0);
        }
    }
    let mut hostile = Client::connect(node.mqtt, &durable("<img src=x onerror=window.hacked=1>"));
    assert_eq!(hostile.subscribe("x<script>/#", 1), 1);
    (node, hostile)
}

fn drive_one(what: &str) {
    let (node, _hostile) = one_node();
    let (url, port) = (format!("http://{}", node.admin), node.mqtt.port().to_string());
    drive("single.py", &[what, &url, &token(&node), &port]);
}

/// DESIGN §11: every view can be read and used by everybody, dark and light, wide and narrow.
#[test]
fn every_view_is_for_everybody() {
    drive_one("views");
}

/// DESIGN §11, P10: an operator finds a session, ends exactly the owner that is shown, and is told what a refusal means; names of clients
/// are text.
#[test]
fn an_operator_watches_and_ends_sessions() {
    drive_one("steps");
}

/// DESIGN §7, §11: what a dead node holds up is said, with what to do; its boot is retired from there.
#[test]
fn an_operator_retires_the_boot_of_a_dead_node() {
    let mut cluster = Cluster::of_three_with(&["owner.lease_ms=5000", "isolation.drift_ms=300"]);
    let _stranded = Client::connect(cluster.node(3).mqtt, &durable("stranded"));
    // Node 1 looks once a second who is there; its feed tells of no node that it never saw.
    eventually("a look of node 1 that saw the session", Duration::from_secs(30), || {
        (cluster.node(1).metric("exactmq_inboxes") > 0.0).then_some(())
    });
    cluster.node_mut(3).kill();
    let node = cluster.node(1);
    eventually("node 1 misses node 3", Duration::from_secs(30), || {
        let view = tests::cluster::status(node);
        let away = view["nodes"].as_array()?.iter().any(|one| one["reachable"] == false);
        let led =
            view["groups"].as_array()?.iter().all(|group| group["leader"].as_u64().is_some_and(|id| id != 3));
        (away && led).then_some(())
    });
    drive("cluster.py", &[&format!("http://{}", node.admin), &token(node)]);
}
