//! A damaged file is never guessed around (P4, P10; scenario 63): the broker starts with everything that was acknowledged, or it refuses
//! and names the file. It never panics, and it never serves less than it promised.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tests::node::Refusal;
use tests::{Client, Node, Options};

const MESSAGES: usize = 40;
/// The smallest that there is: what is damaged is then mostly in use.
const SEGMENT_BYTES: &str = "storage.segment_bytes=1048576";

/// What a file looked like before it was damaged.
type Files = BTreeMap<PathBuf, Vec<u8>>;

#[derive(Debug, Clone, Copy)]
enum Damage {
    /// Cut to so many thousandths of its length.
    Cut(usize),
    /// One bit, at so many thousandths of its length.
    Flip(usize),
    /// 512 bytes of zeros there.
    Zero(usize),
}

const DAMAGES: [Damage; 14] = [
    Damage::Cut(0),
    Damage::Cut(10),
    Damage::Cut(500),
    Damage::Cut(999),
    Damage::Flip(0),
    Damage::Flip(1),
    Damage::Flip(5),
    Damage::Flip(20),
    Damage::Flip(100),
    Damage::Flip(300),
    Damage::Flip(600),
    Damage::Flip(999),
    Damage::Zero(0),
    Damage::Zero(50),
];

/// Scenario 63, after a graceful stop: the state is checkpointed.
#[test]
fn damage_after_a_stop_is_refused_or_harmless() {
    let mut node = filled();
    node.stop();
    check_all(&mut node);
}

/// Scenario 63, after kill -9: the log holds what was acknowledged.
#[test]
fn damage_after_a_crash_is_refused_or_harmless() {
    let mut node = filled();
    node.kill();
    check_all(&mut node);
}

/// A file that is gone, moved by hand or by a backup program: the start makes do without it where nothing of it is needed, or refuses, names it
/// and says what can be done.
#[test]
fn a_missing_file_is_refused_with_advice_or_harmless() {
    let mut node = filled();
    node.stop();
    let files = read_all(node.dir());
    let mut refused = 0;
    let away = node.dir().with_extension("away");
    // Without its receipt the last boot is not proved to be over: its sessions are refused until it is retired, as after a crash elsewhere.
    let is_receipt = |path: &Path| path.extension().is_some_and(|kind| kind == "receipt");
    for path in files.keys().filter(|path| !is_receipt(path)) {
        let case = path.strip_prefix(node.dir()).unwrap_or(path).display().to_string();
        // Moved, since the directory knows its own files.
        std::fs::rename(path, &away).expect("moved");
        match node.try_restart() {
            Ok(()) => check_served(&node, &case),
            Err(Refusal { status, said }) => {
                assert_eq!(status.code(), Some(1), "{case}: {status}\n{said}");
                let name = path.file_name().expect("a file").to_string_lossy();
                assert!(said.contains(&*name), "{case} is not named\n{said}");
                assert!(
                    ["restore", "empty", "original"].iter().any(|way| said.contains(way)),
                    "{case}: {said}"
                );
                refused += 1;
            }
        }
        node.kill();
        std::fs::rename(&away, path).expect("moved back");
        put_back(node.dir(), &files);
    }
    assert!(refused > 0);
    assert!(files.keys().any(|path| path.extension().is_some_and(|kind| kind == "bodies")));
    node.restart();
    check_served(&node, "everything is back");
}

fn durable(id: &str) -> Options {
    Options::v5(id).resume().expiry(3_600)
}

/// A node with queued messages, a retained value and an open QoS 2 exchange, all acknowledged, and a last write that acknowledges nothing
/// of that: what the last write brought cannot be told from what a power cut left of it.
fn filled() -> Node {
    let node = Node::start_with(&[SEGMENT_BYTES, "cluster.groups=1"]);
    let mut sub = Client::connect(node.mqtt, &durable("sub"));
    assert_eq!(sub.subscribe("q/#", 1), 1);
    sub.disconnect();
    let mut publisher = Client::connect(node.mqtt, &durable("pub"));
    for number in 0..MESSAGES {
        assert_eq!(publisher.publish("q/x", message(number), 1, false), 0);
    }
    assert!(publisher.publish("kept", "value", 1, true) < 0x80);
    let bytes = publisher.publish_bytes("q/twice", b"once", 4, 7, &[]);
    publisher.send(&bytes);
    assert_eq!(publisher.receive().kind(), 5);
    let mut last = Client::connect(node.mqtt, &durable("last"));
    assert_eq!(last.subscribe("nothing", 1), 1);
    node
}

fn message(number: usize) -> Vec<u8> {
    format!("{number}:").into_bytes().into_iter().chain(std::iter::repeat_n(b'm', 2_000)).collect()
}

/// Damages each file in each way, starts, checks, and puts everything back.
fn check_all(node: &mut Node) {
    let files = read_all(node.dir());
    assert!(files.len() > 4, "{:?}", files.keys());
    let (mut refused, mut served) = (0, 0);
    for (path, bytes) in files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        for damage in DAMAGES {
            let case = format!("{} {damage:?}", path.strip_prefix(node.dir()).unwrap_or(path).display());
            inflict(path, bytes, damage);
            match node.try_restart() {
                Ok(()) => {
                    check_served(node, &case);
                    served += 1;
                }
                Err(refusal) => {
                    check_refusal(&refusal, path, &case);
                    refused += 1;
                }
            }
            node.kill();
            put_back(node.dir(), &files);
        }
    }
    assert!(refused > 0 && served > 0, "{refused} refused, {served} served");
    node.restart();
    check_served(node, "nothing damaged");
}

/// Everything that was acknowledged is there, once and in order.
fn check_served(node: &Node, case: &str) {
    let (mut sub, present) = Client::connect_present(node.mqtt, &durable("sub"));
    assert!(present, "{case}: the session is gone");
    for number in 0..MESSAGES {
        assert!(sub.take_message().payload == message(number), "{case}: message {number}");
    }
    assert_eq!(sub.take_message().payload, b"once", "{case}");
    sub.expect_nothing();
    let mut reader = Client::connect(node.mqtt, &Options::v5("reader"));
    assert_eq!(reader.subscribe("kept", 1), 1);
    assert_eq!(reader.take_message().payload, b"value", "{case}");
    let (mut publisher, present) = Client::connect_present(node.mqtt, &durable("pub"));
    assert!(present, "{case}: the publisher's session is gone");
    publisher.ack(6, 7);
    assert_eq!(publisher.receive_kind(7).reason(), 0, "{case}: the received id is forgotten");
}

/// A refusal is an error of its own that names the file: no panic of ours, no signal. A build with debug assertions has some of redb's, which
/// look at pages before they are checked.
fn check_refusal(refusal: &Refusal, path: &Path, case: &str) {
    let Refusal { status, said } = refusal;
    // 2: the damaged file is one that the configuration names, the admin token.
    let code = if case.starts_with("admin.token") { 2 } else { 1 };
    assert_eq!(status.code(), Some(code), "{case}: {status}\n{said}");
    let panics = said.lines().filter(|line| line.contains("panicked at"));
    assert!(panics.filter(|line| !line.contains("/redb-")).count() == 0, "{case}: {said}");
    let name = path.file_name().expect("a file").to_string_lossy();
    assert!(said.contains(&*name), "{case}: {name} is not named\n{said}");
}

fn read_all(dir: &Path) -> Files {
    let mut files = Files::new();
    for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            files.extend(read_all(&entry));
        } else {
            files.insert(entry.clone(), std::fs::read(&entry).expect("readable"));
        }
    }
    files
}

/// In place: the directory must stay the one that was made.
fn inflict(path: &Path, bytes: &[u8], damage: Damage) {
    let file = File::options().write(true).open(path).expect("a file");
    let at = |thousandths: usize| (bytes.len() * thousandths / 1_000).min(bytes.len() - 1);
    match damage {
        Damage::Cut(part) => file.set_len(at(part) as u64).expect("cut"),
        Damage::Flip(part) => file.write_all_at(&[bytes[at(part)] ^ 0x10], at(part) as u64).expect("flipped"),
        Damage::Zero(part) => {
            let len = (bytes.len() - at(part)).min(512);
            file.write_all_at(&vec![0; len], at(part) as u64).expect("zeroed");
        }
    }
}

fn put_back(dir: &Path, files: &Files) {
    for path in read_all(dir).keys().filter(|path| !files.contains_key(*path)) {
        std::fs::remove_file(path).expect("removed");
    }
    for (path, bytes) in files {
        let file = File::options().write(true).create(true).truncate(false).open(path).expect("a file");
        file.set_len(bytes.len() as u64).expect("its length");
        file.write_all_at(bytes, 0).expect("its bytes");
    }
}
