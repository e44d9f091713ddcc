//! Nothing that a client or an operator proves itself with stands anywhere that a broker writes: log, metrics, audit, data directory, answers.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::json;
use tests::hook::{Hook, Reply};
use tests::scram::{Scram, connect};
use tests::users::{add_scram_user, add_user, user_at};
use tests::{Client, Node, Options};

const PASSWORD: &str = "Passw0rdOfTheFile";
const WRONG: &str = "WrongPassw0rdTyped";
const SCRAM: &str = "Passw0rdOfScram";
const OF_HOOK: &str = "Passw0rdOfTheHook";
const KEY: &str = "SigningKeyOfTokens-0123456789abcdef";
const CLUSTER: &str = "SecretOfTheCluster-0123456789";
const NEW: &str = "Passw0rdThatIsNew";

fn token(user: &str, exp: u64) -> String {
    let text = [json!({ "alg": "HS256" }), json!({ "sub": user, "exp": exp })]
        .map(|part| URL_SAFE_NO_PAD.encode(part.to_string()))
        .join(".");
    let sign = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes()), text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(sign))
}

/// Every way in, right and wrong, at the loudest level of the log: then everything that was written is searched.
#[test]
fn no_secret_is_written_anywhere() {
    let files = tempfile::tempdir().expect("a directory");
    let path = |name: &str| files.path().join(name);
    add_user(&path("passwords"), "alice", PASSWORD);
    add_scram_user(&path("verifiers"), "sam", SCRAM);
    std::fs::write(path("key"), KEY).expect("written");
    let hook = Hook::start(|question| match question["username"].as_str() {
        Some("holly") => Reply::Json(json!({ "result": "allow" })),
        Some("down") => Reply::Status(500),
        _ => Reply::Json(json!({ "result": "deny" })),
    });
    let setting = |key: &str, name: &str| format!("{key}={}", path(name).display());
    let settings = [
        setting("auth.password_file", "passwords"),
        setting("auth.scram_file", "verifiers"),
        setting("auth.jwt_secret_file", "key"),
        format!("auth.http_url={}", hook.url()),
        "auth.http_cache_s=60".to_owned(),
        "log.level=trace".to_owned(),
        "storage.segment_bytes=1048576".to_owned(),
        format!("cluster.secret={CLUSTER}"),
    ];
    let mut node = Node::start_with(&settings.each_ref().map(String::as_str));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let (good, old) = (token("tom", now + 600), token("tom", now - 600));
    let other = if good.ends_with('A') { "E" } else { "A" };
    let forged = format!("{}{other}", &good[..good.len() - 1]);
    let logins = [
        ("alice", PASSWORD, 0),
        ("alice", WRONG, 0x86),
        ("holly", OF_HOOK, 0),
        ("mallory", OF_HOOK, 0x86),
        ("down", OF_HOOK, 0x88),
        ("tom", &good, 0),
        ("tom", &old, 0x86),
        ("tom", &forged, 0x86),
    ];
    for (user, password, reason) in logins {
        let options = Options::v5(user).login(user, password);
        assert_eq!(Client::try_connect(node.mqtt, &options).1.reason(), reason, "{user}");
    }
    for (password, reason) in [(SCRAM, 0), (WRONG, 0x87)] {
        assert_eq!(connect(node.mqtt, Options::v5("s"), Scram::new("sam", password)).1.reason(), reason);
    }
    let file = path("passwords").display().to_string();
    let mut said = user_at(&node, &["add", "alice", "--file", &file], NEW);
    assert!(said.status.success());
    let admin = std::fs::read_to_string(node.dir().join("admin.token")).expect("the token").trim().to_owned();
    let wrong_admin =
        tests::node::ask(node.admin, "WrongAdminToken", "GET", "/v1/sessions", "").expect("an answer");
    let mut written = vec![
        ("metrics".to_owned(), node.admin_get("/metrics").into_bytes()),
        ("audit".to_owned(), node.admin_get("/v1/audit").into_bytes()),
        ("sessions".to_owned(), node.admin_get("/v1/sessions").into_bytes()),
        ("a refusal".to_owned(), format!("{wrong_admin:?}").into_bytes()),
        ("user add".to_owned(), [said.stdout, std::mem::take(&mut said.stderr)].concat()),
    ];
    node.stop();
    written.push(("log".to_owned(), std::fs::read(node.log()).expect("the log")));
    collect(node.dir(), &mut written);
    written.retain(|(name, _)| !name.ends_with("admin.token"));
    assert!(
        written.len() > 8 && written.iter().any(|(_, bytes)| bytes.len() > 10_000),
        "nothing was looked at"
    );
    let parts = |token: &str| token.rsplit('.').next().expect("a signature").to_owned();
    let secrets =
        [PASSWORD, WRONG, SCRAM, OF_HOOK, KEY, CLUSTER, NEW, &admin, "WrongAdminToken"].map(str::to_owned);
    let tokens = [good, old, forged].map(|token| parts(&token));
    secrets.iter().chain(&tokens).for_each(|secret| assert_is_nowhere(secret, &written));
}

/// In no form that a careless line would write.
fn assert_is_nowhere(secret: &str, written: &[(String, Vec<u8>)]) {
    for form in [secret.to_owned(), STANDARD.encode(secret), format!("{:?}", secret.as_bytes())] {
        for (name, bytes) in written {
            let found = bytes.windows(form.len()).any(|window| window == form.as_bytes());
            assert!(!found, "{name} has {form}");
        }
    }
}

fn collect(directory: &Path, written: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, written);
        } else if let Ok(bytes) = std::fs::read(&path) {
            written.push((path.display().to_string(), bytes));
        }
    }
}
