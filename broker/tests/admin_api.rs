//! Promises of the admin API over a real socket (DESIGN §11; scenarios 26 to 28: what End answers is what happened).

mod operator;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker::admin::EndError;
use broker::usecase::retire::{GroupRetired, RetireError};
use operator::{Api, FakeBroker, key, owner, read};
use serde_json::{Value, json};
use session::lifecycle::{EndReason, WillMode};

fn check_problem(answer: &(u16, Value), status: u16, code: &str) {
    assert_eq!(
        (answer.0, &answer.1["code"], &answer.1["status"]),
        (status, &json!(code), &json!(status)),
        "{}",
        answer.1
    );
    assert!(answer.1["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
}

#[test]
fn the_first_start_writes_a_token_that_only_its_owner_can_read() {
    let api = Api::start(&FakeBroker::with(&[]), |_| ());
    let path = api.directory.path().join("admin.token");
    assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    assert!(read(&path).len() == 64 && read(&path) != Api::start(&FakeBroker::with(&[]), |_| ()).token());
    assert_eq!(read(&api.directory.path().join("admin.address")), format!("http://{}", api.address));
}

#[test]
fn every_call_under_v1_needs_the_token() {
    let broker = FakeBroker::with(&["a"]);
    let api = Api::start(&broker, |_| ());
    let token = api.token();
    for (method, path) in [
        ("GET", "/v1/sessions"),
        ("GET", "/v1/sessions/a"),
        ("POST", "/v1/sessions/a/end"),
        ("GET", "/v1/nodes"),
        ("POST", "/v1/nodes/2/retire"),
        ("GET", "/v1/audit"),
    ] {
        for wrong in [None, Some(""), Some("x"), Some(&token[1..]), Some(format!("{token}0").as_str())] {
            let (status, head, body) = api.call(method, path, wrong, r#"{"reason":"revoked"}"#);
            assert_eq!(status, 401, "{path}");
            assert!(
                head.contains("application/problem+json") && head.contains("www-authenticate: bearer"),
                "{head}"
            );
            assert!(body.contains("unauthorized") && !body.contains(&token));
        }
    }
    assert!(broker.ended.lock().expect("not poisoned").is_empty());
    for path in ["/", "/openapi.json", "/health/live", "/health/ready", "/metrics"] {
        assert_eq!(api.call("GET", path, None, "").0, 200, "{path}");
    }
}

#[test]
fn metrics_can_be_put_behind_the_token() {
    let api = Api::start(&FakeBroker::with(&[]), |config| config.admin.metrics_token = true);
    assert_eq!(api.call("GET", "/metrics", None, "").0, 401);
    let (status, head, body) = api.call("GET", "/metrics", Some(&api.token()), "");
    assert!(
        status == 200 && head.contains("text/plain; version=0.0.4") && body.contains("exactmq_owner_work")
    );
}

#[test]
fn readiness_names_the_failing_check() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    assert_eq!(api.json("GET", "/health/ready", "").0, 200);
    *broker.failing.lock().expect("not poisoned") = Some("no leader".to_owned());
    let answer = api.json("GET", "/health/ready", "");
    check_problem(&answer, 503, "not_ready");
    assert_eq!(answer.1["failing"], json!([{ "check": "store", "detail": "no leader" }]));
    assert_eq!(api.json("GET", "/health/live", "").0, 200);
}

#[test]
fn pages_together_are_the_whole_list() {
    let names: Vec<String> = (0..25).map(|n| format!("c{n:02}")).collect();
    let broker = FakeBroker::with(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let api = Api::start(&broker, |_| ());
    let (mut found, mut path) = (Vec::new(), "/v1/sessions?limit=10".to_owned());
    loop {
        let (status, page) = api.json("GET", &path, "");
        assert_eq!(status, 200);
        let of_page = page["sessions"].as_array().expect("a list").iter();
        found.extend(of_page.map(|row| row["client_id"].as_str().expect("text").to_owned()));
        let Some(cursor) = page["cursor"].as_str() else { break };
        path = format!("/v1/sessions?limit=10&cursor={cursor}");
    }
    assert_eq!(found, names);
    let only = |query: &str| {
        api.json("GET", &format!("/v1/sessions?{query}"), "").1["sessions"].as_array().map(Vec::len)
    };
    assert_eq!(only("prefix=c1"), Some(10));
    assert_eq!(
        (only("user=bob"), only("state=ended"), only("node=2"), only("namespace=x")),
        (Some(0), Some(0), Some(0), Some(0))
    );
    assert_eq!(only("user=alice&state=active&node=1&namespace=main&prefix=c24"), Some(1));
}

#[test]
fn a_request_that_is_not_understood_is_refused() {
    let broker = FakeBroker::with(&["a"]);
    let api = Api::start(&broker, |_| ());
    for query in
        ["limit=0", "limit=1001", "limit=x", "state=gone", "node=x", "cursor=!", "cursor=AAAA", "usr=a"]
    {
        check_problem(&api.json("GET", &format!("/v1/sessions?{query}"), ""), 400, "invalid");
    }
    for body in [
        "",
        "{",
        "[]",
        r#"["revoked"]"#,
        r#"["revoked",null,"suppress",true]"#,
        r#"{"reason":"revoked","owner":["main","a",1,1,1,"b",7]}"#,
        "{}",
        r#"{"reason":"expired"}"#,
        r#"{"reason":"clean_start"}"#,
        r#"{"reason":"revoked","will":"maybe"}"#,
        r#"{"reason":"revoked","relase":true}"#,
        r#"{"reason":"revoked","owner":{"client_id":"a"}}"#,
        r#"{"reason":"revoked","owner":{"namespace":"main","client_id":"a","session_generation":0,"owner_generation":1,"node_id":1,"boot_id":"b","connection_id":1}}"#,
        r#"{"reason":"revoked","owner":{"namespace":"main","client_id":"b","session_generation":1,"owner_generation":1,"node_id":1,"boot_id":"b","connection_id":1}}"#,
    ] {
        check_problem(&api.json("POST", "/v1/sessions/a/end", body), 400, "invalid");
    }
    let large = format!("{{\"reason\":\"{}\"}}", "x".repeat(70_000));
    assert_eq!(api.call("POST", "/v1/sessions/a/end", Some(&api.token()), &large).0, 413);
    check_problem(&api.json("GET", "/v1/sessions/%FF", ""), 400, "invalid");
    check_problem(&api.json("GET", "/v1/sessions/%20", ""), 400, "invalid");
    check_problem(&api.json("GET", &format!("/v1/sessions/{}", "x".repeat(1_025)), ""), 400, "invalid");
    check_problem(&api.json("GET", "/v1/nothing", ""), 404, "no_route");
    check_problem(&api.json("DELETE", "/v1/sessions", ""), 405, "no_method");
    assert!(broker.ended.lock().expect("not poisoned").is_empty());
}

/// Every body that has fields is an object with these fields and no others.
#[test]
fn bodies_of_the_cluster_are_read_strictly() {
    let api = Api::start(&FakeBroker::with(&[]), |_| ());
    for (path, body) in [
        ("/v1/cluster/init", r#"{"seed":"a:1"}"#),
        ("/v1/cluster/init", "[]"),
        ("/v1/cluster/init", "{"),
        ("/v1/cluster/join", r#"{"seed":"a:1","x":1}"#),
        ("/v1/cluster/join", r#"["a:1"]"#),
        ("/v1/cluster/join", ""),
        ("/v1/cluster/remove", r#"{"node_id":"x"}"#),
        ("/v1/cluster/remove", "[2]"),
        ("/v1/nodes/2/retire", r#"["b","off",false,true]"#),
    ] {
        check_problem(&api.json("POST", path, body), 400, "invalid");
    }
    for body in ["", "{}"] {
        check_problem(&api.json("POST", "/v1/cluster/init", body), 503, "unavailable");
    }
}

/// Error texts speak of JSON, not of the program's types.
#[test]
fn error_texts_name_no_types_of_the_program() {
    let api = Api::start(&FakeBroker::with(&["a"]), |_| ());
    let answer = api.json("POST", "/v1/sessions/a/end", r#"{"reason":"revoked","will":"maybe"}"#);
    assert_eq!(answer.1["detail"], r#"will "maybe" is not publish or suppress"#);
    let answer = api.json("POST", "/v1/end", r#"{"user":"a","reason":"revoked","will":"maybe"}"#);
    assert_eq!(answer.1["detail"], r#"will "maybe" is not publish or suppress"#);
    for body in [
        "[]",
        "7",
        r#"{"reason":1}"#,
        r#"{"reason":"revoked","owner":1}"#,
        r#"{"reason":"revoked","owner":{"namespace":"main","client_id":"a","session_generation":"x","owner_generation":1,"node_id":1,"boot_id":"b","connection_id":1}}"#,
    ] {
        let answer = api.json("POST", "/v1/sessions/a/end", body);
        check_problem(&answer, 400, "invalid");
        let detail = answer.1["detail"].as_str().expect("text");
        assert!(
            !["struct", "EndRequest", "OwnerView", "u64"].iter().any(|word| detail.contains(word)),
            "{detail}"
        );
    }
}

/// P9: a body that is announced as too large is refused before it is sent.
#[test]
fn a_body_announced_as_too_large_is_refused_at_once() {
    use std::io::{Read as _, Write as _};
    let api = Api::start(&FakeBroker::with(&["a"]), |_| ());
    let mut stream = std::net::TcpStream::connect(api.address).expect("it listens");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a socket");
    let token = api.token();
    write!(stream, "POST /v1/sessions/a/end HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 1000000\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers and closes");
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too_large"), "{answer}");
}

/// P9: connections that send half a request and stop keep nobody out, with or without a token.
#[test]
fn unfinished_requests_keep_nobody_out() {
    use std::io::Write as _;
    let broker = FakeBroker::with(&["a"]);
    let api = Api::start(&broker, |_| ());
    let stuck: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(api.address).expect("it listens");
            stream.write_all(b"GET / HTTP/1.1\r\n").expect("sent");
            stream
        })
        .collect();
    assert_eq!(api.call("GET", "/health/live", None, "").0, 200);
    assert_eq!(api.json("POST", "/v1/sessions/a/end", r#"{"reason":"revoked"}"#).0, 200);
    drop(stuck);
}

#[test]
fn client_ids_with_slashes_and_any_letters_are_reached() {
    let name = "dev/äöü %?#";
    let broker = FakeBroker::with(&[name]);
    let api = Api::start(&broker, |_| ());
    let path = "/v1/sessions/dev%2F%C3%A4%C3%B6%C3%BC%20%25%3F%23";
    let (status, session) = api.json("GET", path, "");
    assert_eq!(
        (status, &session["client_id"], &session["owner"]["connection_id"]),
        (200, &json!(name), &json!(7))
    );
    assert_eq!(session["subscriptions"][0]["filter"], "a/#");
    let (status, answer) = api.json("POST", &format!("{path}/end?namespace=main"), r#"{"reason":"revoked"}"#);
    assert_eq!((status, &answer["revision"], &answer["owner"]["client_id"]), (200, &json!(4), &json!(name)));
    check_problem(&api.json("GET", path, ""), 404, "not_found");
}

/// Scenario 28: whether the Will appears is the operator's explicit choice; it is published by default.
#[test]
fn end_passes_on_exactly_what_was_asked() {
    let broker = FakeBroker::with(&["a", "b"]);
    let api = Api::start(&broker, |_| ());
    assert_eq!(api.json("POST", "/v1/sessions/a/end", r#"{"reason":"quota"}"#).0, 200);
    let exact = serde_json::to_value(broker::admin::OwnerView::from(&owner(&key("b")))).expect("JSON");
    let body =
        json!({ "reason": "source_lost", "owner": exact, "will": "suppress", "release": true }).to_string();
    assert_eq!(api.json("POST", "/v1/sessions/b/end", &body).0, 200);
    let ended = broker.ended.lock().expect("not poisoned");
    let (first, second) = (&ended[0].1, &ended[1].1);
    assert_eq!(
        (first.reason, first.will, first.release, &first.owner),
        (EndReason::Quota, WillMode::Publish, false, &None)
    );
    assert_eq!(
        (second.reason, second.will, second.release),
        (EndReason::SourceLost, WillMode::Suppress, true)
    );
    assert_eq!(second.owner, Some(owner(&key("b"))));
}

#[test]
fn every_way_to_fail_has_its_status_and_code_and_is_on_record() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    let current = Some(Box::new(owner(&key("a"))));
    let table = [
        (EndError::NotFound, 404, "not_found"),
        (EndError::Fenced { current }, 409, "fenced"),
        (EndError::Fenced { current: None }, 409, "fenced"),
        (EndError::Unproved("node 2 does not answer".to_owned()), 503, "unproved"),
        (EndError::Close, 503, "close"),
        (EndError::Deadline, 503, "deadline"),
        (EndError::Invalid("no".to_owned()), 400, "invalid"),
        (EndError::Unavailable("no quorum".to_owned()), 503, "unavailable"),
    ];
    for (error, status, code) in &table {
        *broker.end_error.lock().expect("not poisoned") = Some(error.clone());
        let answer = api.json("POST", "/v1/sessions/a/end", r#"{"reason":"explicit"}"#);
        check_problem(&answer, *status, code);
        if let EndError::Fenced { current: Some(_) } = error {
            assert_eq!(answer.1["current"]["connection_id"], 7);
        }
    }
    let (status, audit) = api.json("GET", "/v1/audit", "");
    let results: Vec<&str> = audit["records"]
        .as_array()
        .expect("a list")
        .iter()
        .rev()
        .filter_map(|record| record["result"].as_str())
        .collect();
    assert_eq!((status, results), (200, table.iter().map(|(_, _, code)| *code).collect()));
}

#[test]
fn who_ended_what_when_and_why_is_on_record_over_restarts() {
    let broker = FakeBroker::with(&["a", "b"]);
    let api = Api::start(&broker, |_| ());
    assert_eq!(api.json("POST", "/v1/sessions/a/end", r#"{"reason":"revoked","release":true}"#).0, 200);
    assert_eq!(api.json("POST", "/v1/sessions/b/end", r#"{"reason":"quota"}"#).0, 200);
    let (status, page) = api.json("GET", "/v1/audit?limit=1", "");
    assert_eq!((status, &page["records"][0]["client_id"]), (200, &json!("b")));
    let (_, page) =
        api.json("GET", &format!("/v1/audit?limit=1&cursor={}", page["cursor"].as_str().expect("more")), "");
    let record = &page["records"][0];
    assert_eq!(
        (&record["client_id"], &record["reason"], &record["result"]),
        (&json!("a"), &json!("revoked"), &json!("ended"))
    );
    assert_eq!(
        (&record["release"], &record["revision"], &record["owner"]["connection_id"]),
        (&json!(true), &json!(4), &json!(7))
    );
    assert!(record["at_ms"].as_u64() > Some(1_600_000_000_000) && page["cursor"].is_null());
    assert!(record["who"].as_str().is_some_and(|who| who.contains("127.0.0.1")));

    let directory = api.directory.path().to_owned();
    let again = Api::start(&Arc::clone(&broker), |config| config.node.data_dir = directory);
    // The same directory, so the same token and the same log.
    let (status, _, body) = again.call("GET", "/v1/audit", Some(&api.token()), "");
    let page: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, page["records"].as_array().map(Vec::len)), (200, Some(2)));
}

#[test]
fn the_document_is_served_as_json() {
    let api = Api::start(&FakeBroker::with(&[]), |_| ());
    let (status, document) = api.json("GET", "/openapi.json", "");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
}

const RETIRE: &str = "/v1/nodes/2/retire";

/// P10: a retirement says which boot and by which one proof; anything else is refused with a reason, and nothing is done.
#[test]
fn a_retirement_that_is_not_understood_is_refused() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    let long = format!(r#"{{"boot":"b","attest":"{}"}}"#, "x".repeat(1_025));
    for body in [
        "",
        "[]",
        "{}",
        r#"{"boot":"b"}"#,
        r#"{"boot":"b","fence_agent":false}"#,
        r#"{"boot":"b","attest":"off","fence_agent":true}"#,
        r#"{"boot":"b","attest":""}"#,
        r#"{"boot":"b","attest":"  "}"#,
        r#"{"boot":"b","attest":"off\nsession.end"}"#,
        r#"{"boot":"b","attest":"\u001b[2J"}"#,
        r#"{"boot":"","attest":"off"}"#,
        r#"{"boot":"b","attest":"off","force":true}"#,
        r#"{"attest":"off"}"#,
        &long,
    ] {
        let answer = api.json("POST", RETIRE, body);
        check_problem(&answer, 400, "invalid");
        assert!(!answer.1["detail"].to_string().contains("RetireRequest"), "{}", answer.1);
    }
    for id in ["0", "x", "-1", "18446744073709551616"] {
        let path = format!("/v1/nodes/{id}/retire");
        check_problem(&api.json("POST", &path, r#"{"boot":"b","attest":"off"}"#), 400, "invalid");
    }
    assert!(broker.retired.lock().expect("not poisoned").is_empty());
}

/// Two calls for one boot wait for one retirement; a repetition is a success that changes nothing; all of them are on record.
#[test]
fn retirements_are_shared_repeatable_and_on_record() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    let body = r#"{"boot":"b7","attest":"powered off by Ann"}"#;
    std::thread::scope(|threads| {
        // Those that meet another proof of below ask again.
        let patient = || loop {
            let answer = api.json("POST", RETIRE, body);
            if answer.0 != 409 {
                break answer;
            }
        };
        let calls = [0, 1].map(|_| threads.spawn(patient));
        // Another proof for the same boot does not join them, whichever call came first.
        let busy = loop {
            let answer = api.json("POST", RETIRE, r#"{"boot":"b7","attest":"pulled the plug","now":true}"#);
            if answer.0 == 409 {
                break answer;
            }
            // It came first: it is over now.
            assert_eq!(answer.0, 200);
            broker.retired.lock().expect("not poisoned").clear();
        };
        check_problem(&busy, 409, "busy");
        broker.lease_over.store(true, Ordering::SeqCst);
        for call in calls {
            let (status, answer) = call.join().expect("answered");
            assert_eq!((status, &answer["retired_by"]), (200, &json!("attested")));
        }
    });
    let (status, answer) = api.json("POST", RETIRE, body);
    assert_eq!((status, &answer["unchanged"], &answer["node_id"]), (200, &json!(true), &json!(2)));
    assert_eq!(answer["groups"], json!([{ "group": 0, "outcome": "already_retired", "detail": null }]));
    let (_, audit) = api.json("GET", "/v1/audit", "");
    let record = &audit["records"][0];
    assert_eq!(
        (&record["action"], &record["node_id"], &record["boot_id"], &record["result"], &record["waited"]),
        (&json!("node.retire"), &json!(2), &json!("b7"), &json!("already_retired"), &json!(true))
    );
    assert_eq!(record["reason"], "attested: powered off by Ann");
    assert!(record["who"].as_str().is_some_and(|who| who.contains("127.0.0.1")));
}

/// `now` hurries a retirement that waits already, and that is on record.
#[test]
fn a_retirement_that_waits_can_be_hurried() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    std::thread::scope(|threads| {
        let patient = threads.spawn(|| api.json("POST", RETIRE, r#"{"boot":"b","fence_agent":true}"#));
        let hurried = api.json("POST", RETIRE, r#"{"boot":"b","fence_agent":true,"now":true}"#);
        assert_eq!((hurried.0, &hurried.1["retired_by"]), (200, &json!("fence_agent")));
        // It may have come behind the hurried one: then it waits for itself.
        broker.lease_over.store(true, Ordering::SeqCst);
        assert_eq!(patient.join().expect("answered").0, 200);
    });
    let (_, audit) = api.json("GET", "/v1/audit", "");
    let of_hurry: Vec<&Value> =
        audit["records"].as_array().expect("a list").iter().filter(|it| it["waited"] == false).collect();
    assert_eq!(of_hurry.len(), 1, "{audit}");
    assert_eq!(of_hurry[0]["detail"], "exit 0: off");
}

#[test]
fn every_way_not_to_retire_has_its_status_and_code_and_is_on_record() {
    let broker = FakeBroker::with(&[]);
    let api = Api::start(&broker, |_| ());
    let failed = GroupRetired::Failed("no quorum".to_owned());
    let groups = vec![(storage::GroupId(0), GroupRetired::Retired), (storage::GroupId(1), failed)];
    let table = [
        (RetireError::NotFound("node 2 has no boot b".to_owned()), 404, "not_found"),
        (RetireError::Own, 409, "own_boot"),
        (RetireError::Alive("it renewed its lease".to_owned()), 409, "alive"),
        (RetireError::NoAgent, 409, "no_fence_agent"),
        (RetireError::Unproved("exit 1".to_owned()), 503, "unproved"),
        (RetireError::Unavailable("no quorum".to_owned()), 503, "unavailable"),
        (RetireError::Partial(groups), 503, "partial"),
    ];
    for (error, status, code) in &table {
        *broker.retire_error.lock().expect("not poisoned") = Some(error.clone());
        let answer = api.json("POST", RETIRE, r#"{"boot":"b","attest":"off"}"#);
        check_problem(&answer, *status, code);
        if let RetireError::Partial(_) = error {
            assert_eq!(answer.1["groups"][1]["detail"], "no quorum");
        }
    }
    let (status, audit) = api.json("GET", "/v1/audit", "");
    let records = audit["records"].as_array().expect("a list").iter().rev();
    let results: Vec<&str> = records.filter_map(|record| record["result"].as_str()).collect();
    assert_eq!((status, results), (200, table.iter().map(|(_, _, code)| *code).collect()));
}
