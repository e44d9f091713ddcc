//! A mosquitto installation taken over by `exactmq import mosquitto`: its files as they are, the same things allowed and denied by both brokers.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tests::cluster::{free_port, succeeds};
use tests::{Client, Node, Options, eventually};

const PATIENCE: Duration = Duration::from_secs(10);
const SECRET: &str = "open sesame";

const ACL: &str = "
# those who give no name
topic read news/#
topic write inbox/+
pattern readwrite own/%u/#
pattern write device/%c/state

user root
topic readwrite #

user ann
topic readwrite ann/#
topic deny ann/secret/#
topic read shared/+/value
topic write shared/ann/value

user bob
topic bob/only
topic read stairs/+/door/#
topic write a//b
";

/// Who does what, and whether it gets through. `true`: publishes; `false`: subscribes to the filter and gets the topic.
#[rustfmt::skip]
const TABLE: &[(&str, bool, &str, &str, bool)] = &[
    ("ann", true, "ann/x", "", true), ("ann", true, "ann", "", true), ("ann", true, "ann/secret/x", "", false),
    ("ann", true, "ann/secret", "", false), ("ann", true, "bob/only", "", false), ("ann", true, "news/x", "", false),
    ("ann", true, "inbox/x", "", false), ("ann", true, "inbox/x/y", "", false), ("ann", true, "inbox", "", false),
    ("ann", true, "own/ann/x", "", true), ("ann", true, "own/bob/x", "", false), ("ann", true, "own/ann", "", true),
    ("ann", true, "shared/ann/value", "", true), ("ann", true, "shared/bob/value", "", false),
    ("ann", true, "device/ann/state", "", true), ("ann", true, "device/other/state", "", false), ("ann", true, "ANN/x", "", false),
    ("bob", true, "bob/only", "", true), ("bob", true, "bob/only/x", "", false), ("bob", true, "a//b", "", true), ("bob", true, "a/b", "", false),
    ("bob", true, "stairs/1/door/x", "", false),
    ("ann", false, "news/today", "news/#", false), ("ann", false, "news/today", "#", false), ("ann", false, "news", "news/#", false),
    ("ann", false, "inbox/x", "inbox/#", false), ("ann", false, "ann/x", "ann/+", true), ("ann", false, "ann/secret/x", "ann/#", false),
    ("ann", false, "ann/secret/x", "#", false), ("ann", false, "shared/7/value", "shared/+/value", true), ("ann", false, "shared/7/value", "shared/#", true),
    ("ann", false, "shared/7/other", "shared/#", false), ("ann", false, "own/ann/deep/er", "own/+/#", true), ("ann", false, "own/bob/x", "own/+/#", false),
    ("bob", false, "bob/only", "bob/only", true), ("bob", false, "stairs/1/door/x", "stairs/#", true), ("bob", false, "stairs/1/door", "stairs/#", true),
    ("bob", false, "stairs/door", "stairs/#", false), ("bob", false, "ann/x", "ann/#", false), ("bob", false, "device/bob/state", "device/#", false),
];

struct Mosquitto(Child);

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_mosquitto(conf: &Path, address: SocketAddr) -> Mosquitto {
    let mut command = Command::new("/usr/sbin/mosquitto");
    command.arg("-c").arg(conf).stdout(Stdio::null()).stderr(Stdio::null());
    let child = Mosquitto(command.spawn().expect("mosquitto is installed"));
    eventually("mosquitto serves", PATIENCE, || TcpStream::connect(address).ok());
    child
}

fn mosquitto_files(dir: &Path, port: u16) -> std::path::PathBuf {
    let (conf, passwords, acl) = (dir.join("mosquitto.conf"), dir.join("passwd"), dir.join("acl"));
    std::fs::write(&acl, ACL).expect("a file");
    std::fs::write(&passwords, "").expect("a file");
    for user in ["root", "ann", "bob"] {
        let made = Command::new("mosquitto_passwd").arg("-b").arg(&passwords).args([user, SECRET]).output();
        succeeds(&made.expect("mosquitto_passwd is installed"));
    }
    let text = format!(
        "persistence false\nlog_dest none\nuser root\nlistener {port} 127.0.0.1\nallow_anonymous false\npassword_file {}\nacl_file {}\n\
         max_queued_messages 500\npersistent_client_expiration 2w\n",
        passwords.display(),
        acl.display()
    );
    std::fs::write(&conf, text).expect("a file");
    conf
}

fn connect(address: SocketAddr, user: &str) -> Client {
    // The ClientID is the name: patterns with %c and %u.
    Client::connect(address, &Options::v5(user).login(user, SECRET))
}

/// Whether it gets through, by what arrives before a message of the same publisher that does.
fn gets_through(
    address: SocketAddr,
    (user, publishes, topic, filter, _): (&str, bool, &str, &str, bool),
) -> bool {
    let mut root = connect(address, "root");
    let mut client = connect(address, user);
    let fence = if user == "ann" { "ann/fence" } else { "bob/only" };
    let (publisher, subscriber) = if publishes { (&mut client, &mut root) } else { (&mut root, &mut client) };
    // It may be refused at once, or be granted and get nothing: the same to the user.
    let _ = subscriber.subscribe(if publishes { "#" } else { filter }, 0);
    let _ = subscriber.subscribe(fence, 0);
    let _ = publisher.publish(topic, "it", 1, false);
    let _ = publisher.publish(fence, "fence", 1, false);
    subscriber.receive_publish().payload == b"it"
}

/// Issue "The mosquitto files of a real installation imported: behaviour equal in a table of 40 allowed and denied operations tried against both".
#[test]
fn both_brokers_allow_and_deny_the_same() {
    assert_eq!(TABLE.len(), 40);
    let dir = tempfile::tempdir().expect("a directory");
    let port = free_port();
    let conf = mosquitto_files(dir.path(), port);
    let theirs: SocketAddr = ([127, 0, 0, 1], port).into();
    let _mosquitto = start_mosquitto(&conf, theirs);
    let ours = dir.path().join("exactmq.toml");
    let imported = Command::new(tests::node::binary())
        .args(["import", "mosquitto"])
        .arg(&conf)
        .arg("--out")
        .arg(&ours)
        .output();
    let imported = imported.expect("it runs");
    succeeds(&imported);
    assert!(imported.stderr.is_empty(), "{imported:?}");
    let node = Node::start_with(&[&format!("--config={}", ours.display())]);
    let mut wrong = Vec::new();
    for row in TABLE {
        let (mosquitto, exactmq) = (gets_through(theirs, *row), gets_through(node.mqtt, *row));
        if (mosquitto, exactmq) != (row.4, row.4) {
            wrong.push(format!("{row:?}: mosquitto {mosquitto}, exactmq {exactmq}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for login in
        [Options::v3("x").login("ann", "wrong"), Options::v3("x").login("eve", SECRET), Options::v3("x")]
    {
        let refused = |address| Client::try_connect(address, &login).1.reason();
        assert_eq!(refused(node.mqtt) != 0, refused(theirs) != 0);
        assert_ne!(refused(node.mqtt), 0);
    }
}

/// P10: what protects is not left out in silence: nothing is written, the line is named.
#[test]
fn a_guard_that_has_no_counterpart_stops_the_import() {
    let dir = tempfile::tempdir().expect("a directory");
    let (conf, out) = (dir.path().join("m.conf"), dir.path().join("out.toml"));
    std::fs::write(&conf, "listener 1883\nplugin /usr/lib/auth.so\n").expect("a file");
    let run = |more: &[&str]| {
        let mut command = Command::new(tests::node::binary());
        command
            .args(["import", "mosquitto"])
            .arg(&conf)
            .arg("--out")
            .arg(&out)
            .args(more)
            .output()
            .expect("it runs")
    };
    let refused = run(&[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("m.conf:2: PROTECTS: plugin"), "{refused:?}");
    assert!(!out.exists());
    succeeds(&run(&["--leave-out"]));
    assert!(out.exists());
    assert_eq!(run(&["--leave-out"]).status.code(), Some(1), "nothing is overwritten");
    std::fs::remove_file(&conf).expect("it is there");
    assert_eq!(run(&[]).status.code(), Some(1));
}
