//! Promises of the configuration: precedence, exact errors, safe defaults, an example file that is true.

use std::io::Write as _;

use super::*;

fn load(text: &str) -> Result<Loaded, ConfigError> {
    load_with(text, &[], &[])
}

fn load_with(
    text: &str,
    environment: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<Loaded, ConfigError> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("written");
    Config::load(&Sources {
        file: Some(file.path().to_owned()),
        environment: environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        flags: flags.iter().map(|(k, v)| ("--set".to_owned(), (*k).to_owned(), (*v).to_owned())).collect(),
    })
}

/// (line, message) of each problem.
fn problems(text: &str) -> Vec<(usize, String)> {
    let error = load(text).expect_err("must be refused");
    let line = |origin: &Origin| if let Origin::File { line, .. } = origin { *line } else { 0 };
    error.problems.iter().map(|problem| (line(&problem.origin), problem.message.clone())).collect()
}

fn check_problem(text: &str, line: usize, parts: &[&str]) {
    let found = problems(text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, line, "{found:?}");
    for part in parts {
        assert!(found[0].1.contains(part), "{part:?} not in {:?}", found[0].1);
    }
}

/// Issue 5 §6: a bridge to this very broker is an endless loop, two that take one session from each other lose what was on its way.
#[test]
fn bridges_that_cannot_work_are_refused() {
    let topics = "topics = [{ filter = \"a/#\", direction = \"both\" }]\n";
    for address in ["127.0.0.1:1883", "localhost:1883"] {
        let text = format!("[bridge.a]\naddress = \"{address}\"\n{topics}");
        check_problem(&text, 2, &["bridge.a.address", "a listener of this broker"]);
    }
    let bridge = |name: &str, address: &str, client_id: &str| {
        format!("[bridge.{name}]\naddress = \"{address}\"\nclient_id = \"{client_id}\"\n{topics}")
    };
    let same = bridge("a", "there:1883", "x") + &bridge("b", "there:1883", "x");
    check_problem(&same, 7, &["bridge.b.client_id", "bridge.a"]);
    for (address, client_id) in [("there:1884", "x"), ("there:1883", "y")] {
        let other = bridge("a", "there:1883", "x") + &bridge("b", address, client_id);
        assert!(load(&other).is_ok());
    }
}

#[test]
fn no_source_gives_the_documented_defaults() {
    let loaded = Config::load(&Sources::default()).expect("defaults are valid");
    assert_eq!(loaded.config.node.data_dir, PathBuf::from("./exactmq-data"));
    assert_eq!(loaded.config.listeners["mqtt"].address.to_string(), "127.0.0.1:1883");
    assert_eq!(loaded.config.admin.address.0.expect("on").to_string(), "127.0.0.1:9883");
    assert!(loaded.config.anonymous() && loaded.config.node.workers() >= 1);
    assert!(loaded.origins.is_empty() && loaded.warnings.is_empty());
}

#[test]
fn the_example_file_is_the_defaults() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/exactmq.example.toml");
    if std::env::var_os("UPDATE_EXAMPLE").is_some() {
        std::fs::write(path, Config::example()).expect("written");
    }
    let text = std::fs::read_to_string(path).expect("the example file exists");
    assert_eq!(text, Config::example(), "run this test with UPDATE_EXAMPLE=1 to rewrite the file");
    let defaults = Config::load(&Sources::default()).expect("defaults are valid");
    assert_eq!(load(&text).expect("the example is valid").config, defaults.config);
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file() {
    let text = "[session]\nreceive_maximum = 10\ninflight_max = 10\nexpiry_max_s = 10\n";
    let environment =
        [("EXACTMQ_SESSION_RECEIVE_MAXIMUM", "20"), ("EXACTMQ_SESSION_INFLIGHT_MAX", "20"), ("PATH", "/")];
    let loaded = load_with(text, &environment, &[("session.receive_maximum", "30")]).expect("valid");
    let session = &loaded.config.session;
    assert_eq!((session.receive_maximum, session.inflight_max, session.expiry_max_s), (30, 20, 10));
    assert_eq!(
        loaded.origins["session.inflight_max"],
        Origin::Environment("EXACTMQ_SESSION_INFLIGHT_MAX".into())
    );
}

#[test]
fn every_key_can_come_from_the_environment_and_from_a_flag() {
    let defaults = Config::load(&Sources::default()).expect("valid").config;
    for (key, value) in defaults.values() {
        let Some(value) = value else { continue };
        let value = value.trim_matches('"').to_owned();
        let variable = format!("EXACTMQ_{}", key.to_uppercase().replace('.', "_"));
        let loaded = load_with("", &[(&variable, &value)], &[]).unwrap_or_else(|e| panic!("{variable}: {e}"));
        assert!(loaded.origins.contains_key(&key), "{variable} did not set {key}");
        let loaded = load_with("", &[], &[(&key, &value)]).unwrap_or_else(|e| panic!("--set {key}: {e}"));
        assert_eq!(loaded.config, defaults, "{key}");
    }
}

#[test]
fn an_unknown_key_names_the_nearest_known_one_and_its_line() {
    check_problem(
        "[session]\n\nrecieve_maximum = 1\n",
        3,
        &["session.recieve_maximum", "did you mean session.receive_maximum?"],
    );
    check_problem(
        "[listener.x]\naddress = \"127.0.0.1:1\"\nmax_connection = 1\n",
        3,
        &["did you mean listener.x.max_connections?"],
    );
    check_problem("[sesion]\nreceive_maximum = 1\n", 1, &["[sesion]", "did you mean [session]?"]);
    check_problem("[limits]\nreceive_maximum = 1\n", 2, &["did you mean session.receive_maximum?"]);
    check_problem("[queue]\nx = 1\n", 2, &["queue.x is not a known key"]);
    let error = load_with("", &[("EXACTMQ_SESSION_RECEIVE_MAX", "1")], &[]).expect_err("unknown");
    assert!(error.to_string().contains("environment EXACTMQ_SESSION_RECEIVE_MAX: "), "{error}");
    let error = load_with("", &[], &[("session.recieve_maximum", "1")]).expect_err("unknown");
    assert!(error.to_string().starts_with("--set: session.recieve_maximum"), "{error}");
}

#[test]
fn variables_of_container_platforms_are_no_error() {
    let loaded = load_with("", &[("EXACTMQ_SERVICE_HOST", "10.0.0.1"), ("EXACTMQ_PORT_1883_TCP", "x")], &[]);
    assert_eq!(loaded.expect("ignored").warnings.len(), 2);
}

#[test]
fn a_wrong_type_or_range_says_the_line_and_what_is_allowed() {
    check_problem(
        "[session]\nreceive_maximum = 0\n",
        2,
        &["session.receive_maximum is the number 0", "1 to 65535"],
    );
    check_problem("[session]\nreceive_maximum = 65536\n", 2, &["1 to 65535"]);
    check_problem("[session]\nreceive_maximum = -1\n", 2, &["1 to 65535"]);
    check_problem("[session]\nreceive_maximum = \"7\"\n", 2, &["\"7\"", "1 to 65535"]);
    check_problem("[session]\nreceive_maximum = 1.5\n", 2, &["the number 1.5", "1 to 65535"]);
    check_problem("[session]\non_quota = \"drop\"\n", 2, &["\"drop_new\"", "\"drop_old\"", "\"end\""]);
    check_problem("[session]\nqueue_qos0_offline = 1\n", 2, &["true or false"]);
    check_problem("[admin]\naddress = \"9883\"\n", 2, &["\"off\"", "ADDRESS:PORT"]);
    check_problem(
        "[node]\nid = 99999999999999999999999999999999999999999999\n",
        2,
        &["node.id", "out of range"],
    );
    check_problem("[listener.a]\naddress = 1\n", 2, &["listener.a.address", "ADDRESS:PORT"]);
    check_problem("[listener.a]\nprotocol = \"tcp\"\n", 2, &["listener.a.address is missing"]);
    check_problem("[listener.\"A b\"]\naddress = \"127.0.0.1:1\"\n", 2, &["listener name \"A b\""]);
    check_problem("[listener]\naddress = \"127.0.0.1:1\"\n", 2, &["listener.NAME.address"]);
    check_problem("node = 1\n", 1, &["write [node]"]);
    check_problem("[node]\nid = 1\nid = 2\n", 3, &["not valid TOML"]);
    check_problem("[node\n", 1, &["not valid TOML"]);
}

#[test]
fn all_faults_are_reported_at_once() {
    let found = problems("[session]\nreceive_maximum = 0\n[log]\nlevel = \"loud\"\ncolour = true\n");
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 4, 5]);
}

#[test]
fn a_missing_or_binary_file_is_an_error() {
    let missing = Sources { file: Some("/nonexistent/x.toml".into()), ..Sources::default() };
    let error = Config::load(&missing).expect_err("missing");
    assert!(error.to_string().contains("cannot read the configuration file"), "{error}");
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&[0xff, 0xfe, 0x00]).expect("written");
    assert!(Config::load(&Sources { file: Some(file.path().to_owned()), ..Sources::default() }).is_err());
}

/// DESIGN §11 "Safe by default".
#[test]
fn a_reachable_listener_without_authenticator_is_refused() {
    let open = "[listener.mqtt]\naddress = \"0.0.0.0:1883\"\n";
    check_problem(open, 2, &["reachable from outside", "auth.anonymous = true"]);
    check_problem("[listener.mqtt]\naddress = \"[::]:1883\"\n", 2, &["reachable"]);
    check_problem(&format!("{open}[auth]\nanonymous = false\n"), 2, &["reachable"]);
    load(&format!("{open}[auth]\nanonymous = true\n")).expect("written down");
    let guarded = load(&format!("{open}[auth]\npassword_file = \"users\"\n")).expect("guarded");
    assert!(!guarded.config.anonymous());
    for local in ["127.0.0.1:1883", "127.8.0.1:0", "[::1]:1883", "localhost:1883", "[::ffff:127.0.0.1]:1883"]
    {
        load(&format!("[listener.mqtt]\naddress = \"{local}\"\n")).expect("loopback");
    }
    let optional = "[listener.t]\nprotocol = \"tls\"\naddress = \"0.0.0.0:8883\"\ntls_cert = \"c\"\ntls_key = \"k\"\ntls_client_ca = \"a\"\ntls_client_auth = \"optional\"\n";
    assert!(problems(optional)[0].1.contains("reachable"));
    load(&optional.replace("optional", "required")).expect("certificates are an authenticator");
}

#[test]
fn tls_keys_must_fit_the_protocol() {
    let address = "address = \"127.0.0.1:8883\"\n";
    assert_eq!(problems(&format!("[listener.t]\nprotocol = \"tls\"\n{address}")).len(), 2);
    check_problem(&format!("[listener.t]\n{address}tls_cert = \"c\"\n"), 3, &["not tls or wss"]);
    check_problem(
        &format!("[listener.t]\n{address}tls_client_auth = \"required\"\n"),
        3,
        &["not tls or wss"],
    );
    let no_ca = "[listener.t]\nprotocol = \"wss\"\naddress = \"127.0.0.1:1\"\ntls_cert = \"c\"\ntls_key = \"k\"\ntls_client_auth = \"required\"\n";
    check_problem(no_ca, 6, &["tls_client_ca is missing"]);
}

#[test]
fn one_address_belongs_to_one_listener() {
    let text = "[listener.a]\naddress = \"127.0.0.1:7\"\n[listener.b]\naddress = \"127.0.0.1:7\"\n";
    check_problem(text, 4, &["listener.a.address already takes"]);
    load("[listener.a]\naddress = \"127.0.0.1:0\"\n[listener.b]\naddress = \"127.0.0.1:0\"\n")
        .expect("free ports");
    check_problem("[admin]\naddress = \"127.0.0.1:1883\"\n", 2, &["listener.mqtt.address already takes"]);
}

#[test]
fn a_reload_says_what_changed_and_what_waits() {
    let before = load("").expect("valid").config;
    let after = load(
        "[listener.mqtt]\naddress = \"127.0.0.1:1884\"\n[log]\nlevel = \"debug\"\n[session]\nreceive_maximum = 7\n[acl]\nfile = \"rules\"\n",
    );
    let after = after.expect("valid").config;
    let reload = before.reload(&after);
    assert_eq!(reload.changed, ["acl.file", "log.level"]);
    assert_eq!(reload.needs_restart, ["listener.mqtt.address", "session.receive_maximum"]);
    let merged = before.reloaded(&after);
    assert_eq!((merged.log.level, merged.session.receive_maximum), (LogLevel::Debug, 100));
    assert_eq!(before.reload(&before), Reload::default());
    let more = load("[listener.x]\naddress = \"127.0.0.1:0\"\n").expect("valid").config;
    assert!(before.reload(&more).needs_restart.contains(&"listener.x.address".to_owned()));
}

#[test]
fn check_config_shows_every_value_with_its_origin() {
    let report =
        load_with("[log]\nlevel = \"warn\"\n", &[("EXACTMQ_NODE_ID", "3")], &[]).expect("valid").report();
    assert!(report.contains("node.id = 3  # environment EXACTMQ_NODE_ID\n"), "{report}");
    assert!(
        report.contains(":2\n") && report.contains("session.receive_maximum = 100  # default\n"),
        "{report}"
    );
    assert!(report.contains("# auth.password_file is not set\n"), "{report}");
}

/// DESIGN §8, §11: no peer port without something that tells peers from strangers; a secret is never shown.
#[test]
fn a_peer_port_needs_a_secret_or_certificates() {
    let port = "[cluster]\npeer = \"127.0.0.1:7883\"\n";
    check_problem(port, 2, &["peers cannot be told from strangers", "cluster.secret_file"]);
    let secret = format!("{port}secret = \"0123456789abcdef\"\n");
    check_problem(&secret, 2, &["without TLS", "cluster.trusted_network = true"]);
    let loaded = load(&format!("{secret}trusted_network = true\n")).expect("a trusted network");
    assert!(!loaded.report().contains("0123456789abcdef"), "shown");
    assert!(!format!("{:?}", loaded.config).contains("0123456789abcdef"), "shown");
    check_problem(
        &format!("{port}secret = \"short\"\nsecret_file = \"s\"\ntrusted_network = true\n"),
        3,
        &["16 to 1024"],
    );
    assert!(!problems(&format!("{port}secret = \"short\"\n"))[0].1.contains("short"), "shown");
    load(&format!("{port}tls_cert = \"c\"\ntls_key = \"k\"\ntls_ca = \"a\"\n")).expect("certificates");
    check_problem(
        &format!("{port}secret_file = \"s\"\ntls_cert = \"c\"\ntls_key = \"k\"\n"),
        0,
        &["cluster.tls_ca is missing"],
    );
    check_problem("[cluster]\nadvertise = \"a:1\"\n", 2, &["cluster.peer is off"]);
    check_problem("[cluster]\nadvertise = \"a:0\"\n", 2, &["HOST:PORT"]);
    let open = "[cluster]\npeer = \"0.0.0.0:7883\"\nsecret_file = \"s\"\ntrusted_network = true\n";
    check_problem(open, 2, &["cluster.advertise"]);
    load(&format!("{open}advertise = \"node-1:7883\"\n")).expect("dialable");
    check_problem(&open.replace("0.0.0.0:7883", "127.0.0.1:1883"), 2, &["already takes"]);
}

/// P10: topics are not separated by namespace, so nothing may look as if they were.
#[test]
fn p10_two_namespaces_are_refused() {
    let two = "[listener.a]\naddress = \"127.0.0.1:1\"\n[listener.b]\naddress = \"127.0.0.1:2\"\nnamespace = \"other\"\n";
    check_problem(two, 5, &["listener.b.namespace", "not separated", "the same one"]);
    let first = "[listener.a]\naddress = \"127.0.0.1:1\"\nnamespace = \"other\"\n[listener.b]\naddress = \"127.0.0.1:2\"\n";
    check_problem(first, 3, &["listener.a.namespace", "not separated"]);
    load(&two.replace("[listener.b]", "namespace = \"other\"\n[listener.b]")).expect("one namespace");
}

/// P8: who is let in by what a proxy says is said at the start, and is off unless it is written down.
#[test]
fn a_certificate_behind_a_proxy_is_a_choice() {
    assert!(!Listener::default().proxy_certificate_user);
    let text = "[listener.mqtt]\nproxy_certificate_user = true\n";
    check_problem(text, 2, &["proxy_certificate_user", "proxy_protocol is not"]);
    let text = "[listener.mqtt]\nproxy_protocol = true\nproxy_certificate_user = true\n";
    let warnings = load(text).expect("a choice").warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].message.contains("only the proxy"), "{warnings:?}");
}

/// P10: what does not fit together about leases in etcd is refused, each with what is missing.
#[test]
fn leases_in_etcd_need_a_place_and_a_way_in() {
    let etcd = "[queue]\nleases = \"etcd\"\n";
    check_problem(etcd, 2, &["queue.etcd_endpoints says not where"]);
    let with =
        |more: &str| format!("{etcd}etcd_endpoints = [\"https://a:2379\", \"https://b:2379/\"]\n{more}");
    check_problem(&with(""), 3, &["queue.etcd_tls_ca is missing"]);
    let secure = with("etcd_tls_ca = \"ca\"\n");
    let loaded = load(&secure).expect("valid").config.queue;
    assert_eq!(loaded.etcd_endpoints.expect("set").0[1], "https://b:2379", "without the slash");
    check_problem(&format!("{secure}etcd_tls_cert = \"c\"\n"), 5, &["queue.etcd_tls_key is missing"]);
    check_problem(&format!("{secure}etcd_user = \"u\"\n"), 5, &["queue.etcd_password_file is missing"]);
    check_problem(
        &format!("{secure}etcd_ttl_s = 91\n"),
        5,
        &["queue.etcd_ttl_s is the number 91", "5 to 90"],
    );
    check_problem(&format!("{secure}etcd_namespace = \"a/\"\n"), 5, &["queue.etcd_namespace", "at its end"]);
    let plain = format!("{etcd}etcd_endpoints = [\"http://a:2379\"]\n");
    check_problem(&format!("{plain}etcd_tls_ca = \"ca\"\n"), 4, &["has http URLs"]);
    for wrong in [
        "[]",
        "[\"a:2379\"]",
        "[\"http://u:p@a:2379\"]",
        "[\"http://a\"]",
        "[\"http://a:1/x\"]",
        "\"http://a:1\"",
    ] {
        check_problem(
            &format!("{etcd}etcd_endpoints = {wrong}\n"),
            3,
            &["queue.etcd_endpoints", "URLs without a path"],
        );
    }
    let mixed = format!("{etcd}etcd_endpoints = [\"http://a:1\", \"https://b:1\"]\n");
    check_problem(&mixed, 3, &["http and https"]);
    let loaded = load_with(etcd, &[("EXACTMQ_QUEUE_ETCD_ENDPOINTS", "http://a:1, http://b:2")], &[]);
    assert_eq!(
        &*loaded.expect("valid").config.queue.etcd_endpoints.expect("set").0,
        ["http://a:1", "http://b:2"]
    );
}

/// What is set for etcd and not used is told, and none of it is changed by SIGHUP.
#[test]
fn settings_of_etcd_that_are_not_used_are_told() {
    let loaded = load("[queue]\netcd_endpoints = [\"http://a:1\"]\n").expect("valid");
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].message.contains("queue.leases is \"embedded\""), "{:?}", loaded.warnings);
    let before = Config::load(&Sources::default()).expect("valid").config;
    let reload = before.reload(&loaded.config);
    assert_eq!((reload.changed, reload.needs_restart), (Vec::new(), vec!["queue.etcd_endpoints".to_owned()]));
}

/// Issue 5 §2: the token of the admin API does not cross a network in the open unless that is written down.
#[test]
fn an_admin_api_for_others_needs_tls() {
    let open = "[admin]\naddress = \"0.0.0.0:9883\"\n";
    check_problem(open, 2, &["admin.tls_cert", "admin.plain = true"]);
    let plain = load(&format!("{open}plain = true\n")).expect("written down");
    assert!(plain.warnings.iter().any(|warning| warning.message.contains("plain http")));
    let secure = format!("{open}tls_cert = \"c\"\ntls_key = \"k\"\n");
    assert!(load(&secure).expect("TLS").warnings.is_empty());
    check_problem(&format!("{open}tls_cert = \"c\"\n"), 3, &["admin.tls_key is missing"]);
    check_problem("[admin]\ntls_key = \"k\"\n", 2, &["admin.tls_cert is missing"]);
    check_problem("[admin]\ntls_client_ca = \"a\"\n", 2, &["speaks no TLS"]);
}

/// A renewed certificate takes a reload; that there is one at all, a restart.
#[test]
fn an_admin_api_speaks_tls_for_as_long_as_it_runs() {
    let of = |text: &str| load(text).expect("valid").config;
    let (plain, tls) = (of(""), of("[admin]\ntls_cert = \"c\"\ntls_key = \"k\"\n"));
    let other = of("[admin]\ntls_cert = \"other\"\ntls_key = \"k\"\ntokens_file = \"t\"\n");
    assert_eq!(plain.reload(&tls).needs_restart, ["admin.tls_cert", "admin.tls_key"]);
    assert!(!plain.reloaded(&tls).admin.is_secure() && tls.reloaded(&plain).admin.is_secure());
    assert_eq!(tls.reload(&other).changed, ["admin.tls_cert", "admin.tokens_file"]);
    assert_eq!(tls.reloaded(&other).admin, other.admin);
}
