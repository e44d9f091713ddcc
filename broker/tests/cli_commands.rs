//! Promises of the `exactmq` binary: names, exit codes, and that it finds the node by its data directory (DESIGN §11).

mod operator;

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use broker::admin::EndError;
use broker::auth::PasswordFile;
use broker::usecase::retire::RetireError;
use operator::{Api, FakeBroker, key, owner};
use serde_json::{Value, json};

fn exactmq(arguments: &[&str], data_dir: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exactmq"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    if let Some(data_dir) = data_dir {
        command.env("EXACTMQ_NODE_DATA_DIR", data_dir);
    }
    command.output().expect("the binary runs")
}

fn check(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn json_of(output: &Output) -> Value {
    serde_json::from_str(&check(output, 0)).expect("JSON")
}

#[test]
fn sessions_are_listed_shown_and_ended_by_data_directory_alone() {
    let broker = FakeBroker::with(&["a/b", "c"]);
    let api = Api::start(&broker, |_| ());
    let directory = Some(api.directory.path());
    let text = check(&exactmq(&["session", "list"], directory), 0);
    assert!(text.starts_with("NAMESPACE") && text.contains("a/b") && text.lines().count() == 3, "{text}");
    let list = json_of(&exactmq(&["session", "list", "--json", "--limit", "1"], directory));
    assert!(list["sessions"].as_array().is_some_and(|list| list.len() == 1) && list["cursor"].is_string());
    let text = check(&exactmq(&["session", "show", "a/b"], directory), 0);
    assert!(text.contains("1:2:1:00ff00ff00ff00ff00ff00ff00ff00ff:7") && text.contains("a/#"), "{text}");
    let shown = json_of(&exactmq(&["session", "show", "a/b", "--json"], directory));
    assert_eq!(shown["owner"]["connection_id"], 7);
    let tuple = "1:2:1:00ff00ff00ff00ff00ff00ff00ff00ff:7";
    let text =
        check(&exactmq(&["session", "end", "a/b", "--reason", "revoked", "--owner", tuple], directory), 0);
    assert_eq!(text, "ended a/b, revision 4\n");
    assert_eq!(broker.ended.lock().expect("not poisoned")[0].1.owner, Some(owner(&key("a/b"))));
    check(&exactmq(&["session", "show", "a/b"], directory), 1);
    assert!(check(&exactmq(&["node", "list"], directory), 0).contains("0.1.0"));
    assert_eq!(json_of(&exactmq(&["node", "show", "1", "--json"], directory))["node_id"], 1);
    check(&exactmq(&["node", "show", "2"], directory), 1);
}

#[test]
fn address_and_token_can_be_given() {
    let api = Api::start(&FakeBroker::with(&["c"]), |_| ());
    let url = format!("http://{}", api.address);
    let token = api.directory.path().join("admin.token");
    let token = token.to_str().expect("text");
    json_of(&exactmq(&["session", "list", "--json", "--admin", &url, "--token-file", token], None));
    let wrong = api.directory.path().join("wrong.token");
    std::fs::write(&wrong, "0123456789abcdef0123456789abcdef").expect("written");
    let output =
        exactmq(&["session", "list", "--admin", &url, "--token-file", wrong.to_str().expect("text")], None);
    check(&output, 1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("unauthorized"));
}

/// 0 ok, 1 failed, 2 usage, 3 fenced, 4 isolation unproved, 5 unreachable.
#[test]
fn exit_codes_are_as_promised() {
    let broker = FakeBroker::with(&["c"]);
    let api = Api::start(&broker, |_| ());
    let directory = Some(api.directory.path());
    let fenced = EndError::Fenced { current: Some(Box::new(owner(&key("c")))) };
    for (error, code) in [
        (EndError::NotFound, 1),
        (fenced, 3),
        (EndError::Unproved("silent".to_owned()), 4),
        (EndError::Close, 1),
        (EndError::Deadline, 1),
        (EndError::Unavailable("no quorum".to_owned()), 1),
    ] {
        *broker.end_error.lock().expect("not poisoned") = Some(error);
        check(&exactmq(&["session", "end", "c"], directory), code);
    }
    for arguments in [
        &["frobnicate"][..],
        &["session", "end"],
        &["session", "end", "c", "--owner", "x"],
        &["session", "list", "--admin", "ftp://h"],
    ] {
        check(&exactmq(arguments, directory), 2);
    }
    let empty = tempfile::tempdir().expect("a directory");
    check(&exactmq(&["session", "list"], Some(empty.path())), 5);
    // A port that was free a moment ago: nobody listens.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address");
    check(&exactmq(&["node", "list", "--admin", &format!("http://{free}")], directory), 5);
}

#[test]
fn a_configuration_is_checked_before_it_is_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("exactmq.toml");
    let path = file.to_str().expect("text");
    std::fs::write(&file, "[session]\nreceive_maximum = 7\n").expect("written");
    let text = check(&exactmq(&["check-config", "--config", path], None), 0);
    assert!(text.contains(&format!("session.receive_maximum = 7  # {path}:2\n")), "{text}");
    let report = json_of(&exactmq(&["check-config", "--config", path, "--json", "--set", "node.id=5"], None));
    assert_eq!(
        (&report["valid"], &report["keys"]["node.id"]),
        (&json!(true), &json!({ "value": "5", "origin": "--set" }))
    );

    std::fs::write(&file, "[session]\nrecieve_maximum = 7\n").expect("written");
    for arguments in
        [&["check-config", "--config", path][..], &["serve", "--config", path], &["--config", path]]
    {
        let output = exactmq(arguments, Some(directory.path()));
        check(&output, 2);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            stderr.contains(&format!("{path}:2: "))
                && stderr.contains("did you mean session.receive_maximum?"),
            "{stderr}"
        );
    }
    let output = exactmq(&["check-config", "--config", path, "--json"], None);
    let report: Value = serde_json::from_str(&check(&output, 2)).expect("JSON");
    assert_eq!((&report["valid"], report["problems"].as_array().map(Vec::len)), (&json!(false), Some(1)));
}

#[test]
fn users_are_edited_without_showing_the_password() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("passwords");
    let path = file.to_str().expect("text");
    let mut child = Command::new(env!("CARGO_BIN_EXE_exactmq"))
        .args(["user", "add", "alice", "--file", path])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("piped").write_all(b"open sesame\nignored\n").expect("written");
    assert!(child.wait().expect("ends").success());
    assert!(PasswordFile::read(&file).expect("valid").verify("alice", b"open sesame"));
    let config = directory.path().join("exactmq.toml");
    std::fs::write(&config, format!("[auth]\npassword_file = {path:?}\n")).expect("written");
    let config = config.to_str().expect("text");
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "x\n").expect("written");
    let secret = secret.to_str().expect("text");
    check(&exactmq(&["user", "add", "bob", "--config", config, "--password-file", secret], None), 0);
    check(&exactmq(&["user", "add", "bob", "--config", config, "--password", "x"], None), 2);
    assert_eq!(PasswordFile::read(&file).expect("valid").len(), 2);
    check(&exactmq(&["user", "remove", "alice", "--file", path], None), 0);
    check(&exactmq(&["user", "remove", "alice", "--file", path], None), 1);
    check(&exactmq(&["user", "add", "bob"], None), 2);
    check(&exactmq(&["user", "remove", "bob", "--config", &format!("{path}.none")], None), 2);
    check(&exactmq(&["user", "add", "a:b", "--file", path, "--password-file", secret], None), 1);
}

#[test]
fn version_and_help_go_to_stdout() {
    assert!(check(&exactmq(&["version"], None), 0).starts_with("exactmq "));
    assert_eq!(json_of(&exactmq(&["version", "--json"], None))["name"], "exactmq");
    for command in ["serve", "session", "node", "user", "check-config", "version"] {
        assert!(check(&exactmq(&["--help"], None), 0).contains(command), "{command}");
    }
}

/// Faults of the arguments are told from failures, before any node is asked.
#[test]
fn faults_of_the_arguments_are_usage() {
    for arguments in [
        &["session", "list", "--limit", "0"][..],
        &["session", "show", ""],
        &["session", "end", ""],
        &["session", "end", "c", "--owner", "x"],
        &["session", "end", "c", "--owner", "1:2:1:boot:0"],
        &["session", "end", "c", "--owner", "+1:2:1:boot:7"],
        &["session", "end", "c", "--owner", "1:2:1::7"],
    ] {
        let output = exactmq(arguments, None);
        assert!(check(&output, 2).is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

/// What `serve` would refuse, `check-config` names: every file that is not there or not what it should be, and an engine that is not
/// in this build. Each line says who speaks.
#[test]
fn check_config_refuses_what_serve_refuses() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("users"), "alice:nonsense\n").expect("written");
    std::fs::write(path("rules"), "nonsense\n").expect("written");
    std::fs::write(path("pem"), "nonsense\n").expect("written");
    let secure = |cert: &str| {
        format!(
            "[listener.s]\naddress = \"127.0.0.1:0\"\nprotocol = \"tls\"\ntls_cert = \"{}\"\ntls_key = \"{}\"\n",
            path(cert),
            path("pem")
        )
    };
    std::fs::write(path("short"), "x\n").expect("written");
    let peers = |secret: &str| {
        let secret = path(secret);
        format!("[cluster]\npeer = \"127.0.0.1:0\"\ntrusted_network = true\nsecret_file = \"{secret}\"\n")
    };
    let mut faults = vec![
        (format!("[auth]\npassword_file = \"{}\"\n", path("none")), "none"),
        (format!("[auth]\npassword_file = \"{}\"\n", path("users")), "users"),
        (format!("[acl]\nfile = \"{}\"\n", path("none")), "none"),
        (format!("[acl]\nfile = \"{}\"\n", path("rules")), "rules"),
        (secure("none"), "none"),
        (secure("pem"), "listener"),
        (peers("none"), "cluster.secret_file"),
        (peers("short"), "secret"),
    ];
    if !cfg!(feature = "store-sled") {
        faults.push(("[storage]\nengine = \"sled\"\n".to_owned(), "storage.engine"));
    }
    faults.push(("a = [1]\nb = [2]\n[session]\nreceive_maximum = [\n1]\n".to_owned(), "receive_maximum"));
    for (text, named) in faults {
        std::fs::write(path("exactmq.toml"), &text).expect("written");
        for command in ["check-config", "serve"] {
            let data = path("data");
            let output = exactmq(&[command, "--config", &path("exactmq.toml"), "--data-dir", &data], None);
            check(&output, 2);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains(named), "{text}: {stderr}");
            assert!(stderr.lines().all(|line| line.starts_with("exactmq: ")), "{stderr}");
            assert!(!Path::new(&data).exists(), "{command} with {text} made a part of the data directory");
        }
    }
    std::fs::write(path("exactmq.toml"), "").expect("written");
    check(&exactmq(&["check-config", "--config", &path("exactmq.toml")], Some(directory.path())), 0);
}

/// `session end --user` waits for the job and tells what is left; `deny` lists, adds and removes.
#[test]
fn many_sessions_are_ended_and_users_denied() {
    let broker = FakeBroker::with(&["a", "b"]);
    let api = Api::start(&broker, |_| ());
    let directory = Some(api.directory.path());
    *broker.end_error.lock().expect("not poisoned") = Some(EndError::Unproved("its node is away".to_owned()));
    let output = exactmq(&["session", "end", "--user", "alice", "--reason", "revoked", "--deny"], directory);
    let text = check(&output, 4);
    assert!(text.contains("ended 1, gone 0, failed 1") && text.contains("unproved"), "{text}");
    let text = check(&exactmq(&["deny", "list"], directory), 0);
    assert!(text.contains("alice"), "{text}");
    let job = json_of(&exactmq(&["session", "end", "--prefix", "zz", "--json"], directory));
    assert_eq!((&job["state"], &job["ended"]), (&json!("done"), &json!(0)));
    check(&exactmq(&["deny", "remove", "--user", "alice"], directory), 0);
    check(&exactmq(&["deny", "remove", "--user", "alice"], directory), 1);
    check(
        &exactmq(&["deny", "add", "--client-id", "x", "--seconds", "60", "--reason", "noise"], directory),
        0,
    );
    assert_eq!(json_of(&exactmq(&["deny", "list", "--json"], directory))["denied"][0]["client_id"], "x");
    for usage in [
        &["deny", "add"][..],
        &["deny", "add", "--user", "a", "--client-id", "b"],
        &["session", "end"],
        &["session", "end", "a", "--user", "b"],
        &["session", "end", "--prefix", "a", "--deny"],
    ] {
        check(&exactmq(usage, directory), 2);
    }
}

/// `node retire`: one proof and no other, exit 4 for what is not proved, and what is done is told.
#[test]
fn a_boot_is_retired_from_the_command_line() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    broker.lease_over.store(true, Ordering::SeqCst);
    let directory = Some(api.directory.path());
    let retire =
        |more: &[&str]| exactmq(&[&["node", "retire", "2", "--boot", "b"], more].concat(), directory);
    for wrong in [
        &[][..],
        &["--attest", "off", "--fence-agent"],
        &["--attest", " "],
        &["--attest", "off\n"],
        &["--attest"],
    ] {
        check(&retire(wrong), 2);
    }
    check(&exactmq(&["node", "retire", "2", "--attest", "off"], directory), 2);
    for (error, code) in [
        (RetireError::Alive("it answers".to_owned()), 4),
        (RetireError::Unproved("the fence agent failed".to_owned()), 4),
        (RetireError::NotFound("no boot".to_owned()), 1),
        (RetireError::Own, 1),
        (RetireError::Unavailable("no quorum".to_owned()), 1),
    ] {
        *broker.retire_error.lock().expect("not poisoned") = Some(error);
        check(&retire(&["--attest", "off"]), code);
    }
    let text = check(&retire(&["--attest", "powered off by Ann"]), 0);
    assert_eq!(text, "boot b of node 2 is retired (attested)\n  group 0: retired\n");
    let answer = json_of(&retire(&["--fence-agent", "--json"]));
    assert_eq!((&answer["unchanged"], &answer["node_id"]), (&json!(true), &json!(2)));
    // Nothing is said of waiting where there is nothing to wait for.
    *broker.retire_error.lock().expect("not poisoned") = Some(RetireError::NotFound("no boot".to_owned()));
    let refused = retire(&["--attest", "off"]);
    check(&refused, 1);
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "exactmq: not_found: no boot\n");
    let nobody = tempfile::tempdir().expect("a directory");
    check(&exactmq(&["node", "retire", "2", "--boot", "b", "--fence-agent"], Some(nobody.path())), 5);
}

/// Who has to wait for the end of a lease is told so, and how not to.
#[test]
fn a_retirement_that_waits_says_what_for() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    let mut child = Command::new(env!("CARGO_BIN_EXE_exactmq"))
        .args(["node", "retire", "2", "--boot", "b", "--attest", "off"])
        .env_clear()
        .env("EXACTMQ_NODE_DATA_DIR", api.directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut said = String::new();
    let stderr = child.stderr.take().expect("piped");
    std::io::BufReader::new(stderr).read_line(&mut said).expect("a line");
    assert!(
        said.contains("lease") && said.contains("isolation.drift_ms") && said.contains("--now"),
        "{said}"
    );
    broker.lease_over.store(true, Ordering::SeqCst);
    assert!(child.wait().expect("ends").success());
}
