//! What watches a broker (DESIGN §11): the feed of events, the log of slow operations, and that alerts, the Grafana dashboard and the
//! metrics of a running node speak of the same series.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::{Client, Node, Options, eventually};

const PATIENCE: Duration = Duration::from_secs(20);

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// A reader of `/v1/events`.
struct Watcher {
    lines: BufReader<TcpStream>,
}

/// One event of the stream.
#[derive(Debug)]
struct Told {
    id: String,
    kind: String,
    data: Value,
}

impl Watcher {
    fn open(node: &Node, last_id: Option<&str>) -> Self {
        let token = std::fs::read_to_string(node.dir().join("admin.token")).expect("the token");
        let mut stream = TcpStream::connect(node.admin).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let last = last_id.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let token = token.trim();
        let request =
            format!("GET /v1/events HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\n{last}\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut watcher = Self { lines: BufReader::new(stream) };
        let head = watcher.line().expect("an answer");
        assert!(head.contains("200"), "{head}");
        watcher
    }

    /// `None`: the stream ended.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).expect("a line in time");
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event; what is no field of one (headers, sizes of chunks, comments) is passed over. `None`: the stream ended.
    fn next(&mut self) -> Option<Told> {
        let (mut id, mut kind) = (String::new(), String::new());
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                Some(("id", text)) => text.clone_into(&mut id),
                Some(("event", text)) => text.clone_into(&mut kind),
                Some(("data", text)) => {
                    let data = serde_json::from_str(text).expect("JSON");
                    return Some(Told { id, kind, data });
                }
                _ => {}
            }
        }
    }

    /// The next event of this kind about this client.
    fn about(&mut self, kind: &str, client_id: &str) -> Told {
        loop {
            let told = self.next().expect("the feed goes on");
            if told.kind == kind && told.data["client_id"] == client_id {
                return told;
            }
        }
    }
}

/// A connect, a takeover, an End and a disconnect are told as they happen; who comes back goes on behind what it has, and is told when that
/// cannot be; a stop of the node ends the stream.
#[test]
fn events_are_told_and_resumed() {
    let mut node = Node::start_with(&["node.workers=1"]);
    let mut watcher = Watcher::open(&node, None);
    let hello = watcher.next().expect("hello");
    assert_eq!((hello.kind.as_str(), &hello.data["missed"]), ("hello", &Value::from(0)));
    let _first = Client::connect(node.mqtt, &Options::v5("told").expiry(60));
    let connect = watcher.about("connect", "told");
    assert_eq!((connect.data["detail"].as_str(), connect.data["node_id"].as_u64()), (Some("new"), Some(1)));
    let _second = Client::connect(node.mqtt, &Options::v5("told").expiry(60).resume());
    let takeover = watcher.about("takeover", "told");
    assert_eq!(takeover.data["detail"], "done");
    drop(watcher);
    let ended = node.cli(&["session", "end", "told", "--reason", "revoked"]);
    assert!(ended.status.success(), "{ended:?}");
    let mut watcher = Watcher::open(&node, Some(&takeover.id));
    let hello = watcher.next().expect("hello");
    assert_eq!(hello.data["missed"], 0);
    let end = watcher.about("end", "told");
    assert_eq!(end.data["detail"], "revoked");
    assert!(end.data["seq"].as_u64() > takeover.data["seq"].as_u64());
    let mut other = Watcher::open(&node, Some("0123.1"));
    assert_eq!(other.next().expect("hello").data["missed"], Value::Null, "of another boot");
    node.stop();
    while other.next().is_some() {}
}

/// `log.slow_ms`: what is slow is counted and logged with what it was, a few lines a second.
#[test]
fn slow_operations_are_counted_and_logged() {
    let node = Node::start_with(&["node.workers=1", "log.slow_ms=1"]);
    let mut client = Client::connect(node.mqtt, &Options::v5("slow").expiry(60));
    assert_eq!(client.subscribe("slow/#", 1), 1);
    let mut publisher = Client::connect(node.mqtt, &Options::v5("publisher"));
    let began = Instant::now();
    // An fsync takes a millisecond now and then on every disk.
    eventually("a commit of a millisecond", Duration::from_secs(60), || {
        for _ in 0..50 {
            assert_eq!(publisher.publish("slow/x", "x", 1, false), 0);
        }
        let metrics = node.admin_get("/metrics");
        let line =
            metrics.lines().find(|line| line.contains("exactmq_slow_operations_total{operation=\"commit\"}"));
        line?.rsplit(' ').next()?.parse::<usize>().ok().filter(|count| *count > 0)
    });
    let log = eventually("a line of the log", PATIENCE, || {
        let log = std::fs::read_to_string(node.log()).expect("the log");
        log.contains("slow operation").then_some(log)
    });
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("slow operation")).collect();
    let commit = lines.iter().find(|line| line.contains("operation=\"commit\"")).expect("a commit");
    for field in ["took_ms=", "command=\"", "worker=0", "suppressed="] {
        assert!(commit.contains(field), "{field} is not in {commit}");
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).expect("few") + 2;
    assert!(lines.len() <= seconds * 5 * 3, "{} lines in {seconds} s about three kinds", lines.len());
}

/// Every word that looks like one of our series.
fn series_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    words.filter(|word| word.starts_with("exactmq_")).map(ToOwned::to_owned).collect()
}

/// Alerts and dashboard ask for nothing that a running node does not have, and for labels with values that it has.
#[test]
fn alerts_and_dashboard_speak_of_what_a_node_has() {
    let node = Node::start_with(&["node.workers=1"]);
    let metrics = node.admin_get("/metrics");
    let lines: Vec<&str> = metrics.lines().filter(|line| !line.starts_with('#')).collect();
    let mut known: BTreeSet<&str> = lines.iter().filter_map(|line| line.split(['{', ' ']).next()).collect();
    // Descriptions name a histogram without its suffix.
    known.extend(metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()));
    for path in ["prometheus/exactmq.rules.yml", "prometheus/exactmq.test.yml", "grafana/exactmq.json"] {
        let text = std::fs::read_to_string(deploy(path)).expect("there");
        let named = series_in(&text);
        assert!(named.len() > 3, "{path}: {named:?}");
        for name in named {
            assert!(known.contains(name.as_str()), "{path}: there is no series {name}");
        }
        // `label="word"` and `label=~"one|other"` of closed sets.
        let text = text.replace("\\\"", "\"");
        for label in ["reason", "outcome", "state", "standing", "direction"] {
            for operator in ["=\"", "=~\""] {
                for part in text.split(&format!("{label}{operator}")).skip(1) {
                    let words = part.split('"').next().unwrap_or_default();
                    for word in words.split('|').filter(|word| !word.contains('$')) {
                        let pair = format!("{label}=\"{word}\"");
                        assert!(
                            lines.iter().any(|line| line.contains(&pair)),
                            "{path}: no series has {pair}"
                        );
                    }
                }
            }
        }
    }
}

fn promtool(arguments: &[&str], folder: &Path) {
    let python = std::env::var("EXACTMQ_PYTHON").unwrap_or_else(|_| "python3".into());
    let beside = Path::new(&python).with_file_name("promtool");
    let program = if beside.is_file() { beside } else { "promtool".into() };
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.expect("promtool is installed: tests/setup.sh installs it");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
}

/// Prometheus takes the rules, they fire when they should, and it understands every expression of the dashboard.
#[test]
fn prometheus_takes_the_rules_and_the_expressions() {
    let folder = deploy("prometheus");
    promtool(&["check", "rules", "exactmq.rules.yml"], &folder);
    promtool(&["test", "rules", "exactmq.test.yml"], &folder);
    let text = std::fs::read_to_string(deploy("grafana/exactmq.json")).expect("there");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut ids = BTreeSet::new();
    let mut rules = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "an id is there twice");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("text").replace("$__rate_interval", "5m");
            rules.push(serde_json::json!({ "record": format!("panel:{}", rules.len()), "expr": expression }));
        }
    }
    assert!(rules.len() > 20, "{}", rules.len());
    let temporary = tempfile::tempdir().expect("a directory");
    // JSON is YAML.
    let file = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    std::fs::write(temporary.path().join("panels.yml"), file.to_string()).expect("written");
    promtool(&["check", "rules", "panels.yml"], temporary.path());
}
