//! Promises of the command line: flags that fit together, an HTTP client that believes nothing, names that cannot steer a terminal.

use clap::CommandFactory as _;
use serde_json::json;

use super::http::{encode, parse_answer, parse_url, query};
use super::output::{table, time, visible};
use super::session::{parse_tuple, tuple};
use super::*;

fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once(&"exactmq").chain(arguments))
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

/// DESIGN §11.
#[test]
fn commands_and_flags_are_as_promised() {
    for line in [
        "",
        "--mqtt 127.0.0.1:0 --data-dir d",
        "serve --config f --data-dir d --mqtt a --admin off --node-id 2 --set a=b --set c=d=e",
        "session list --json --state active --user u --node 1 --prefix p --limit 5 --admin http://h:1 --token-file t",
        "session show a/b --namespace n --data-dir d",
        "session end x --namespace n --reason source_lost --owner 1:2:3:b:4 --will suppress --release",
        "queue channels --json --kind inbox --state open --name a --min-messages 1 --sort messages:desc,name --limit 5",
        "queue members --json --channel queue/0/1 --kind share --role consumer --status offline --name a --node 1 --sort name",
        "node list --json",
        "node show 1",
        "user add u --file f --password-file p --admin http://h:1 --token-file t",
        "user remove u --config c --data-dir d",
        "token add ann --role operator --file f",
        "token list --config f --json",
        "token remove ann --data-dir d --admin https://h --ca f",
        "session list --admin https://h --cert c --key k",
        "check-config --config f --json",
        "version --json",
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        parse(&arguments).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for line in [
        "--set a",
        "session end x --reason expired",
        "session list --cert c",
        "token add ann",
        "token add ann --role root",
        "session",
        "frobnicate",
        "node show x",
        "queue",
        "queue channels --limit 0",
        "queue channels --min-messages many",
        "session end x --will no",
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        assert!(parse(&arguments).expect_err(line).use_stderr(), "{line}");
    }
}

#[test]
fn a_named_flag_is_the_last_word_over_set() {
    let cli =
        parse(&["--mqtt", "127.0.0.1:7", "--set", "listener.mqtt.address=127.0.0.1:8", "--set", "node.id=9"]);
    let loaded = Config::load(&Sources { environment: Vec::new(), ..cli.expect("valid").serve.sources() });
    let config = loaded.expect("valid").config;
    assert_eq!((config.listeners["mqtt"].address.port(), config.node.id), (7, 9));
}

#[test]
fn answers_are_taken_whole_or_not_at_all() {
    let ok = |raw: &str| parse_answer(raw.as_bytes());
    assert_eq!(ok("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), Some((200, b"{}".to_vec())));
    assert_eq!(ok("HTTP/1.1 503 No\r\ncontent-LENGTH:2\r\n\r\n{}trailing"), Some((503, b"{}".to_vec())));
    assert_eq!(ok("HTTP/1.0 200 OK\r\n\r\nto the end"), Some((200, b"to the end".to_vec())));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        ok(&format!("{chunked}2;x=y\r\nab\r\nA\r\n0123456789\r\n0\r\n\r\n")),
        Some((200, b"ab0123456789".to_vec()))
    );
    for cut in [
        "",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 OK\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n\r\n",
        &format!("{chunked}5\r\nab"),
        &format!("{chunked}2\r\nabX"),
        &format!("{chunked}ffffffffffffffff\r\nab\r\n"),
        &format!("{chunked}2\r\nab\r\n"),
    ] {
        assert_eq!(ok(cut), None, "{cut:?}");
    }
}

#[test]
fn urls_name_a_host() {
    for (url, expected) in [
        ("http://127.0.0.1:9883", "127.0.0.1:9883"),
        ("http://localhost/", "localhost:9883"),
        ("[::1]:7", "[::1]:7"),
        ("http://[::1]", "[::1]:9883"),
        ("host:1", "host:1"),
        ("https://h", "h:9883"),
        ("https://[::1]:7/", "[::1]:7"),
    ] {
        let found = parse_url(url).expect(url);
        assert_eq!((found.authority.as_str(), found.secure), (expected, url.starts_with("https")), "{url}");
    }
    for url in [
        "ftp://h",
        "http://",
        "https://h/path",
        "http://h/path",
        "http://u@h",
        "h:99999",
        "h:x",
        "a b",
        "h\r\nX: y",
    ] {
        assert_eq!(parse_url(url).expect_err(url).exit_code(), 2, "{url}");
    }
}

#[test]
fn names_are_encoded_for_the_path() {
    assert_eq!(encode("a/b c+ü%"), "a%2Fb%20c%2B%C3%BC%25");
    assert_eq!(
        (encode(".").as_str(), encode("..").as_str(), encode("a.b").as_str()),
        ("%2E", "%2E%2E", "a.b")
    );
    assert_eq!(query(&[("a", Some("1&2".into())), ("b", None), ("c", Some(String::new()))]), "?a=1%262&c=");
    assert_eq!(query(&[("b", None)]), "");
}

#[test]
fn an_owner_is_printed_and_read_back() {
    let owner = json!({
        "namespace": "main", "client_id": "c", "session_generation": 1, "owner_generation": 2, "node_id": 3,
        "boot_id": "a:b", "connection_id": 4,
    });
    assert_eq!(tuple(&owner), "1:2:3:a:b:4");
    assert_eq!(parse_tuple("1:2:3:a:b:4", "main", "c"), Ok(owner));
    for text in ["", "1:2:3:4", "0:2:3:b:4", "1:2:3::4", "1:2:3:b:0", "a:2:3:b:4", "1:2:3:b:x"] {
        assert_eq!(parse_tuple(text, "main", "c").expect_err(text).exit_code(), 2, "{text}");
    }
}

/// DESIGN §11: 3 fenced, 4 isolation unproved, else 1.
#[test]
fn problems_become_exit_codes() {
    let of = |body: &str| CliError::from_answer(503, body.as_bytes());
    assert_eq!(of(r#"{"code":"unproved","detail":"x"}"#).exit_code(), 4);
    assert_eq!(of(r#"{"code":"close","detail":"x"}"#).exit_code(), 1);
    let fenced = of(
        r#"{"code":"fenced","detail":"other","current":{"session_generation":1,"owner_generation":2,"node_id":3,"boot_id":"b","connection_id":4}}"#,
    );
    assert_eq!(fenced.exit_code(), 3);
    assert!(fenced.to_string().contains("current owner: 1:2:3:b:4"), "{fenced}");
    assert_eq!(of("<html>").exit_code(), 1);
}

#[test]
fn output_cannot_steer_the_terminal() {
    assert_eq!(visible("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    let text = table(&["ID", "X"], &[vec!["a\u{7}".into(), "1".into()], vec!["äöü".into(), "2".into()]]);
    assert_eq!(text, "ID      X\na\\u{7}  1\näöü     2\n");
}

#[test]
fn times_are_utc() {
    let at = |ms: u64| time(&json!({ "at": ms }), "at");
    assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
    assert_eq!(at(951_782_399_999), "2000-02-28T23:59:59.999Z");
    assert_eq!(at(951_782_400_000), "2000-02-29T00:00:00.000Z");
    assert_eq!(at(1_796_000_000_123), "2026-11-30T00:53:20.123Z");
    assert_eq!(time(&json!({ "at": null }), "at"), "-");
    assert_eq!(at(u64::MAX), u64::MAX.to_string());
}

/// A command that an answer names is complete: pasted as it is, it finds the node that gave the answer.
#[test]
fn a_command_that_is_named_finds_the_same_node() {
    for (given, expected) in [
        ("", ""),
        ("--data-dir d1", " --data-dir d1"),
        ("--admin http://[::1]:9 --token-file t", " --admin 'http://[::1]:9' --token-file t"),
        ("--data-dir it's", " --data-dir 'it'\\''s'"),
    ] {
        let mut arguments = vec!["cluster", "remove", "2"];
        arguments.extend(given.split_whitespace());
        let Some(Command::Cluster(command)) = parse(&arguments).expect(given).command else {
            panic!("{given}: another command");
        };
        let cluster::Command::Remove { remote, .. } = command else { panic!("{given}: another command") };
        assert_eq!(remote.flags(), expected);
    }
}
