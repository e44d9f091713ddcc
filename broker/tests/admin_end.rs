//! Promises of bulk End and of denials over a real socket: one result a session, a record of each, true after a restart (DESIGN §11;
//! scenario 32).

mod operator;

use std::time::{Duration, Instant};

use broker::admin::EndError;
use operator::{Api, FakeBroker, key};
use serde_json::{Value, json};
use session::lifecycle::Subject;

fn ended(api: &Api, job: &Value) -> Value {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let (status, view) = api.json("GET", &format!("/v1/end/{}", job["job"]), "");
        assert_eq!(status, 200, "{view}");
        if view["state"] != "running" {
            return view;
        }
        assert!(Instant::now() < deadline, "the job does not end: {view}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn begin(api: &Api, body: &Value) -> Value {
    let (status, job) = api.json("POST", "/v1/end", &body.to_string());
    assert_eq!(status, 202, "{job}");
    job
}

/// DESIGN §11: `POST /v1/end` is a job with progress and one result a session; every one is in the audit log.
#[test]
fn all_sessions_of_a_user_are_ended_with_a_result_each() {
    let ids: Vec<String> = (0..200).map(|n| format!("c{n:03}")).collect();
    let broker = FakeBroker::with(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let api = Api::start(&broker, |_| ());
    *broker.end_error.lock().expect("not poisoned") = Some(EndError::Unproved("its node is away".to_owned()));
    let job = begin(&api, &json!({ "user": "alice", "reason": "revoked", "deny": true }));
    let view = ended(&api, &job);
    assert_eq!((&view["state"], &view["ended"], &view["failed"]), (&json!("done"), &json!(199), &json!(1)));
    assert!(broker.denied.lock().expect("not poisoned").contains(&Subject::User("alice".into())));
    let failed = api.json("GET", &format!("/v1/end/{}?only=failed", job["job"]), "").1;
    assert_eq!(failed["results"].as_array().map(Vec::len), Some(1));
    assert_eq!(failed["results"][0]["result"], "unproved");
    let mut seen = 0;
    let mut cursor = String::new();
    loop {
        let page = api.json("GET", &format!("/v1/end/{}?limit=70{cursor}", job["job"]), "").1;
        seen += page["results"].as_array().map_or(0, Vec::len);
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, 200);
    let audit = api.json("GET", "/v1/audit?limit=1000", "").1;
    let records = audit["records"].as_array().expect("a list");
    assert_eq!(records.iter().filter(|record| record["action"] == "session.end").count(), 200);
    assert_eq!(records.iter().filter(|record| record["action"] == "deny.add").count(), 1);
    assert_eq!(records.last().map(|record| record["subject"].clone()), Some(json!("user alice")));
}

/// The state of a job survives its node; a job that was cut off says so.
#[test]
fn jobs_are_known_after_a_restart() {
    let broker = FakeBroker::with(&["a", "b", "x"]);
    let api = Api::start(&broker, |_| ());
    let done = begin(&api, &json!({ "client_ids": ["a", "b", "nobody", "a"], "reason": "explicit" }));
    let done = ended(&api, &done);
    assert_eq!((&done["ended"], &done["gone"], &done["failed"]), (&json!(2), &json!(1), &json!(0)));
    let jobs = api.directory.path().join("jobs");
    let text = std::fs::read_to_string(jobs.join("1.jsonl")).expect("a file");
    let cut: Vec<&str> = text.lines().take(2).collect();
    std::fs::write(jobs.join("2.jsonl"), cut.join("\n").replace("\"job\":1", "\"job\":2") + "\n{\"torn")
        .expect("written");
    std::fs::write(jobs.join("notes.txt"), "not a job").expect("written");
    let directory = api.directory.path().to_owned();
    let again = Api::start(&broker, |config| config.node.data_dir.clone_from(&directory));
    let token = |directory: &std::path::Path| directory.join("admin.token");
    std::fs::copy(token(&directory), token(again.directory.path())).expect("copied");
    let list = again.json("GET", "/v1/end", "").1;
    let states: Vec<&Value> =
        list["jobs"].as_array().expect("a list").iter().map(|job| &job["state"]).collect();
    assert_eq!(states, [&json!("interrupted"), &json!("done")]);
    assert_eq!(again.json("GET", "/v1/end/2", "").1["ended"], 1);
    let next = begin(&again, &json!({ "prefix": "x", "reason": "quota", "will": "suppress" }));
    assert_eq!(next["job"], 3);
    assert_eq!(ended(&again, &next)["ended"], 1);
}

/// P10: what cannot be meant is refused before anything is done.
#[test]
fn a_request_that_cannot_be_meant_is_refused() {
    let broker = FakeBroker::with(&["a"]);
    let api = Api::start(&broker, |_| ());
    for body in [
        json!({}),
        json!([]),
        json!({ "reason": "revoked" }),
        json!({ "user": "alice" }),
        json!({ "user": "alice", "reason": "expired" }),
        json!({ "user": "alice", "prefix": "a", "reason": "revoked" }),
        json!({ "user": "", "reason": "revoked" }),
        json!({ "prefix": "a", "reason": "revoked", "deny": true }),
        json!({ "client_ids": [], "reason": "revoked" }),
        json!({ "client_ids": [""], "reason": "revoked" }),
        json!({ "user": "alice", "reason": "revoked", "will": "maybe" }),
        json!({ "user": "alice", "reason": "revoked", "wil": "publish" }),
    ] {
        let (status, problem) = api.json("POST", "/v1/end", &body.to_string());
        assert_eq!((status, &problem["code"]), (400, &json!("invalid")), "{body}: {problem}");
    }
    assert_eq!(api.json("GET", "/v1/end/7", "").0, 404);
    assert_eq!(api.json("GET", "/v1/end/x", "").0, 400);
    assert_eq!(api.json("GET", "/v1/end", "").1["jobs"], json!([]));
    assert!(broker.ended.lock().expect("not poisoned").is_empty());
    for body in [
        json!({}),
        json!({ "user": "a", "client_id": "b" }),
        json!({ "user": "a", "namespace": "main" }),
        json!({ "client_id": "" }),
        json!({ "user": "a", "reason": "x".repeat(257) }),
    ] {
        assert_eq!(api.json("POST", "/v1/denied", &body.to_string()).0, 400, "{body}");
    }
    assert!(broker.denied.lock().expect("not poisoned").is_empty());
}

/// Denials can be listed in pages, added and removed; all of it is recorded.
#[test]
fn denials_are_listed_added_and_removed() {
    let broker = FakeBroker::with(&["a"]);
    let api = Api::start(&broker, |_| ());
    for body in
        [json!({ "user": "alice", "reason": "gone" }), json!({ "client_id": "a/b", "namespace": "n" })]
    {
        assert_eq!(api.json("POST", "/v1/denied", &body.to_string()).0, 200);
    }
    let first = api.json("GET", "/v1/denied?limit=1", "").1;
    assert_eq!(first["denied"][0]["user"], "alice");
    let cursor = first["cursor"].as_str().expect("more");
    let second = api.json("GET", &format!("/v1/denied?limit=1&cursor={cursor}"), "").1;
    assert_eq!((&second["denied"][0]["client_id"], &second["cursor"]), (&json!("a/b"), &Value::Null));
    assert_eq!(api.json("DELETE", "/v1/denied?client_id=a%2Fb&namespace=n", "").0, 200);
    assert_eq!(api.json("DELETE", "/v1/denied?client_id=a%2Fb&namespace=n", "").0, 404);
    assert_eq!(api.json("GET", "/v1/denied?cursor=bogus", "").0, 400);
    // One session: its ClientID is denied first.
    assert_eq!(api.json("POST", "/v1/sessions/a/end", r#"{"reason":"revoked","deny":true}"#).0, 200);
    assert!(broker.denied.lock().expect("not poisoned").contains(&Subject::Client(key("a"))));
    let audit = api.json("GET", "/v1/audit", "").1;
    let actions: Vec<&Value> =
        audit["records"].as_array().expect("a list").iter().map(|one| &one["action"]).collect();
    assert_eq!(actions, ["session.end", "deny.add", "deny.remove", "deny.remove", "deny.add", "deny.add"]);
}
