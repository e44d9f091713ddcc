//! Who may call what (issue 5 §2): every call of the OpenAPI document, with every kind of token; and that what a reload takes away is gone.

mod operator;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use broker::admin::{Role, Tokens, add_token, remove_token};
use broker::config::{AdminAddress, Config};
use operator::{Api, FakeBroker};
use serde_json::{Value, json};

const ROLES: [Role; 3] = [Role::Viewer, Role::Operator, Role::Admin];

/// An API with a token of each role, named `t0` to `t2`.
fn api() -> (Api, [String; 3]) {
    let mut tokens = Vec::new();
    let api = Api::start(&FakeBroker::with(&["a", "b"]), |config| {
        let path = config.tokens_file();
        for (n, role) in ROLES.into_iter().enumerate() {
            tokens.push(add_token(&path, &format!("t{n}"), role).expect("added"));
        }
    });
    (api, tokens.try_into().expect("three"))
}

fn config(api: &Api) -> Config {
    let mut config = Config::default();
    config.node.data_dir = api.directory.path().to_owned();
    config.admin.address = AdminAddress(Some(api.address));
    config
}

/// What a reload does with tokens.
fn reload(api: &Api) -> Vec<&'static str> {
    api.running().adopt(Tokens::read(&config(api)).expect("valid"))
}

/// Status of an answer, whose body may never end.
fn status(api: &Api, method: &str, path: &str, token: Option<&str>) -> (u16, BufReader<TcpStream>) {
    let header = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let mut stream = TcpStream::connect(api.address).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}Content-Length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    answer.read_line(&mut line).expect("an answer");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer)
}

/// Every call has a role in the document; nobody without a token, nor with less than that role, gets anything but 401 and 403; whoever has it
/// does.
#[test]
fn every_call_is_for_its_role_and_above() {
    let (api, tokens) = api();
    let document: Value = serde_json::from_str(&api.call("GET", "/openapi.json", None, "").2).expect("JSON");
    let mut calls = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, call) in methods.as_object().expect("methods") {
            let method = method.to_uppercase();
            let concrete = path.replace("{client_id}", "a").replace("{id}", "2").replace("{job}", "1");
            let what = format!("{method} {concrete}");
            if call.get("security") == Some(&json!([])) {
                let open = concrete.replace("{name}", "app.js");
                assert_eq!(status(&api, &method, &open, None).0, 200, "{what}");
                continue;
            }
            let needs = call["x-role"].as_str().expect("a role");
            assert_eq!(call["security"], json!([{ "token": [needs] }]), "{what}");
            for nobody in [None, Some(""), Some("x"), Some(&tokens[0][1..])] {
                assert_eq!(status(&api, &method, &concrete, nobody).0, 401, "{what}");
            }
            let needs =
                ROLES.iter().position(|role| format!("{role:?}").to_lowercase() == needs).expect("a word");
            for (has, token) in tokens.iter().enumerate() {
                let found = status(&api, &method, &concrete, Some(token)).0;
                assert_eq!(found == 403, has < needs, "{what} as {:?}: {found}", ROLES[has]);
                assert_ne!(found, 401, "{what}");
            }
            calls += 1;
        }
    }
    assert!(calls > 20, "{calls}");
}

/// What is refused says what is needed; the audit log names the token; the first token stays what it was.
#[test]
fn a_refusal_says_what_is_needed_and_the_audit_names_the_token() {
    let (api, tokens) = api();
    let (status, head, body) =
        api.call("POST", "/v1/sessions/a/end", Some(&tokens[0]), r#"{"reason":"revoked"}"#);
    let problem: Value = serde_json::from_str(&body).expect("JSON");
    assert!(status == 403 && head.contains("application/problem+json"), "{head}");
    assert_eq!(
        (&problem["code"], &problem["role"], &problem["needs"]),
        (&json!("forbidden"), &json!("viewer"), &json!("operator"))
    );
    let end = |token: &str, id: &str| {
        api.call("POST", &format!("/v1/sessions/{id}/end"), Some(token), r#"{"reason":"revoked"}"#).0
    };
    assert_eq!((end(&tokens[1], "a"), end(&api.token(), "b")), (200, 200));
    let audit = api.json("GET", "/v1/audit", "").1;
    let who: Vec<&str> = audit["records"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["who"].as_str().expect("text"))
        .collect();
    assert!(
        who.len() == 2 && who[0].starts_with("admin token, from ") && who[1].starts_with("token t1, from "),
        "{who:?}"
    );
    let whoami = |token: &str| {
        serde_json::from_str::<Value>(&api.call("GET", "/v1/whoami", Some(token), "").2).expect("JSON")
    };
    assert_eq!(whoami(&tokens[0]), json!({ "name": "t0", "role": "viewer" }));
    assert_eq!(whoami(&api.token()), json!({ "name": "admin", "role": "admin" }));
}

/// A reload acts at once: on the next call, and on a stream that is open; others go on. A faulty file changes nothing.
#[test]
fn a_reload_takes_tokens_away_also_from_open_streams() {
    let (api, tokens) = api();
    let path = config(&api).tokens_file();
    let open = |token: &str| {
        let (status, answer) = status(&api, "GET", "/v1/events", Some(token));
        assert_eq!(status, 200);
        answer
    };
    let (mut gone, mut stays) = (open(&tokens[0]), open(&tokens[1]));
    remove_token(&path, "t0").expect("removed");
    assert_eq!(api.call("GET", "/v1/nodes", Some(&tokens[0]), "").0, 200, "the file alone changes nothing");
    assert_eq!(reload(&api), ["admin.tokens_file"]);
    assert_eq!(reload(&api), [""; 0]);
    assert_eq!(api.call("GET", "/v1/nodes", Some(&tokens[0]), "").0, 401);
    assert_eq!(api.call("GET", "/v1/nodes", Some(&tokens[1]), "").0, 200);
    // To its end; the other one still has something to come: its next comment.
    let mut line = String::new();
    while gone.read_line(&mut line).expect("an orderly end") > 0 {}
    line.clear();
    while line != ":\n" {
        line.clear();
        assert!(stays.read_line(&mut line).expect("it goes on") > 0, "it was closed too");
    }
    // With another role under the same name and digest.
    let text = std::fs::read_to_string(&path).expect("text");
    std::fs::write(&path, text.replace("t1:operator:", "t1:viewer:")).expect("written");
    reload(&api);
    assert_eq!(api.call("POST", "/v1/denied", Some(&tokens[1]), r#"{"user":"u"}"#).0, 403);
    std::fs::write(&path, "nonsense\n").expect("written");
    assert!(Tokens::read(&config(&api)).expect_err("faulty").to_string().contains("admin.tokens:1: "));
    // The first token is renewed by taking its file away.
    let first = api.token();
    std::fs::remove_file(&path).expect("removed");
    std::fs::remove_file(api.directory.path().join("admin.token")).expect("removed");
    assert_eq!(reload(&api), ["admin.token_file", "admin.tokens_file"]);
    assert_eq!(api.call("GET", "/v1/nodes", Some(&first), "").0, 401);
    assert_eq!(api.call("GET", "/v1/nodes", Some(&api.token()), "").0, 200);
}

/// Issue 5 §4: what is read has an ETag, and is not sent again to who has it.
#[test]
fn what_is_read_has_an_etag() {
    let (api, _) = api();
    let ask = |path: &str, tag: &str| {
        let mut stream = TcpStream::connect(api.address).expect("connected");
        let token = api.token();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n{tag}\r\n"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let etag = head.lines().find_map(|line| line.strip_prefix("etag: ")).map(str::to_owned);
        (head.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()), etag, body.to_owned())
    };
    for path in ["/v1/sessions", "/v1/sessions/a", "/v1/nodes", "/v1/audit", "/v1/denied", "/v1/end"] {
        let (status, etag, body) = ask(path, "");
        let etag = etag.expect(path);
        assert!(status == Some(200) && !body.is_empty(), "{path}");
        for known in [etag.clone(), format!("\"x\", W/{etag}"), "*".to_owned()] {
            let (status, again, body) = ask(path, &format!("If-None-Match: {known}\r\n"));
            assert_eq!(
                (status, again.as_ref(), body.as_str()),
                (Some(304), Some(&etag), ""),
                "{path} {known}"
            );
        }
        assert_eq!(ask(path, "If-None-Match: \"x\"\r\n").0, Some(200), "{path}");
    }
    let before = ask("/v1/sessions", "").1;
    assert_eq!(api.json("POST", "/v1/sessions/a/end", r#"{"reason":"revoked"}"#).0, 200);
    assert_ne!(ask("/v1/sessions", "").1, before);
}
