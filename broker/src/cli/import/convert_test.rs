//! What comes out of mosquitto's settings is a configuration that this broker takes, and nothing that protects is lost in silence.

use super::super::source::{Line, Place};
use super::{Imported, convert};
use crate::config::{Config, Sources};

fn lines(text: &str) -> Vec<Line> {
    let line = |(number, line): (usize, &str)| {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let at = Place { file: "m.conf".into(), number: number + 1 };
        Line { at, key: key.to_owned(), value: value.to_owned() }
    };
    text.lines().enumerate().map(line).collect()
}

fn import(text: &str) -> Imported {
    convert(&lines(text)).expect("it is one that mosquitto takes")
}

fn config(imported: &Imported) -> Config {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("exactmq.toml");
    std::fs::write(&file, &imported.toml).expect("a file");
    let sources = Sources { file: Some(file), environment: Vec::new(), flags: Vec::new() };
    Config::load(&sources)
        .map(|loaded| loaded.config)
        .unwrap_or_else(|error| panic!("{error}\n{}", imported.toml))
}

/// Issue "The mosquitto files of a real installation imported": every setting that has a counterpart.
#[test]
fn a_real_installation_is_taken_over() {
    let imported = import(
        "persistence true\npersistence_location /var/lib/mosquitto/\nlog_dest file /var/log/mosquitto.log\nlistener 8883\ncertfile /c/server.pem\n\
         keyfile /c/server.key\ncafile /c/ca.pem\nrequire_certificate true\nuse_identity_as_username true\nlistener 9001 127.0.0.1\n\
         protocol websockets\nallow_anonymous false\npassword_file /etc/mosquitto/passwd\nacl_file /etc/mosquitto/acl\nmax_inflight_messages 0\n\
         max_queued_messages 5000\nmax_keepalive 600\npersistent_client_expiration 14d\nqueue_qos0_messages true\nmessage_size_limit 65536\nmemory_limit 1000000000",
    );
    assert_eq!(imported.notes, []);
    let config = config(&imported);
    let (tls, ws) = (&config.listeners["mqtt"], &config.listeners["mqtt2"]);
    assert_eq!(
        (tls.address.to_string(), ws.address.to_string()),
        ("0.0.0.0:8883".to_owned(), "127.0.0.1:9001".to_owned())
    );
    assert!(tls.protocol.is_secure() && !ws.protocol.is_secure());
    assert_eq!(tls.packet_size_max, 65_536);
    assert_eq!(config.auth.password_file.as_deref(), Some("/etc/mosquitto/passwd".as_ref()));
    assert_eq!(config.acl.file.as_deref(), Some("/etc/mosquitto/acl".as_ref()));
    assert_eq!(config.auth.anonymous, Some(false));
    assert!(config.auth.certificate_user && config.session.queue_qos0_offline);
    let session = &config.session;
    assert_eq!((session.inflight_max, session.inbox_messages_max), (65_534, 5_000));
    assert_eq!((session.keep_alive_max_s, session.expiry_max_s), (600, 14 * 86_400));
    assert_eq!(config.limits.memory_max_bytes, 1_000_000_000);
}

/// Without a listener mosquitto serves this machine, everybody; with one, nobody without a name.
#[test]
fn the_defaults_are_mosquittos() {
    let empty = config(&import(""));
    assert_eq!(empty.listeners["mqtt"].address.to_string(), "127.0.0.1:1883");
    assert_eq!(empty.auth.anonymous, Some(true));
    let served = import("listener 1883\npassword_file p");
    assert!(served.toml.contains("anonymous = false"), "{}", served.toml);
}

/// P10: no listener is opened that mosquitto does not open: settings before the first one are of all, or of a default one that is not there.
#[test]
fn settings_before_the_first_listener_open_none() {
    for first in [
        "max_keepalive 60",
        "message_size_limit 65536",
        "max_inflight_messages 10",
        "max_connections -1",
        "per_listener_settings false",
        "what_is_this 1",
        "allow_anonymous true",
    ] {
        let config = config(&import(&format!("{first}\nlistener 31201 127.0.0.1\nallow_anonymous true")));
        let addresses: Vec<String> =
            config.listeners.values().map(|listener| listener.address.to_string()).collect();
        assert_eq!(addresses, ["127.0.0.1:31201"], "{first}");
    }
    let both =
        config(&import("port 1884\nbind_address 127.0.0.1\nallow_anonymous true\nlistener 1885 127.0.0.1"));
    assert_eq!(both.listeners.len(), 2);
}

/// P10: what keeps somebody out is not left out in silence, and what is no setting of mosquitto's is refused.
#[test]
fn what_protects_is_told() {
    for guard in [
        "plugin /x.so",
        "psk_file p",
        "crlfile c",
        "clientid_prefixes a-",
        "mount_point m/",
        "retain_available false",
        "plugin_load a /x.so",
        "use_username_as_clientid true",
        "accept_protocol_versions 5",
        "allow_zero_length_clientid false",
        "tls_version tlsv1.3",
    ] {
        let imported = import(&format!("listener 1883\n{guard}"));
        assert!(imported.notes.iter().any(|note| note.protects), "{guard}");
        assert!(imported.notes[0].to_string().starts_with("m.conf:2: PROTECTS"), "{}", imported.notes[0]);
    }
    let differ =
        import("per_listener_settings true\nlistener 1\npassword_file a\nlistener 2\npassword_file b");
    assert!(differ.notes[0].protects);
    let bridge = import("connection b\naddress other\ntopic # both\nbridge_psk 01\nlistener 1884");
    assert_eq!(bridge.notes.iter().filter(|note| note.protects).count(), 1);
    for bad in [
        "listener x",
        "max_keepalive many",
        "allow_anonymous perhaps",
        "persistent_client_expiration 3",
        "listener 0 /s",
        "acl_file",
        "password_file",
    ] {
        let error = convert(&lines(bad)).expect_err(bad);
        assert!(error.starts_with("m.conf:1: "), "{error}");
    }
}

/// Issue 5 §6: a `connection` of mosquitto is a bridge here, its `topic` lines mean the same.
#[test]
fn bridges_are_taken_over() {
    let imported = import(
        "connection Site.1\naddress main.example backup.example:8883 [::1]:1884\ntopic sensors/# out 1 here/ there/\ntopic \"\" both 2 a b\n\
         topic news/#\nremote_clientid plant\nremote_username ann\nremote_password secret\ncleansession true\nkeepalive_interval 30\n\
         bridge_protocol_version mqttv50\nbridge_cafile /c/ca.pem\nbridge_certfile /c/c.pem\nbridge_keyfile /c/c.key\nrestart_timeout 2 20\n\
         try_private true\nnotifications true\nlistener 1883 127.0.0.1\nallow_anonymous true",
    );
    assert!(!imported.toml.contains("secret"), "{}", imported.toml);
    let config = config(&imported);
    let bridge = &config.bridges["site-1"];
    let addresses: Vec<&str> = bridge.address.0.iter().map(|address| &*address.0).collect();
    assert_eq!(addresses, ["main.example:1883", "backup.example:8883", "[::1]:1884"]);
    let topics: Vec<_> = bridge
        .topics
        .0
        .iter()
        .map(|topic| (topic.local(), topic.remote(), topic.direction.word(), topic.qos as u8))
        .collect();
    let expected = [
        ("here/sensors/#", "there/sensors/#", "out", 1),
        ("a", "b", "both", 2),
        ("news/#", "news/#", "out", 0),
    ];
    assert_eq!(topics, expected.map(|(a, b, way, qos)| (a.to_owned(), b.to_owned(), way, qos)));
    assert_eq!((bridge.client_id.as_deref(), bridge.username.as_deref()), (Some("plant"), Some("ann")));
    assert_eq!(bridge.password_file.as_deref(), Some("bridge-site-1.password".as_ref()));
    assert!(bridge.clean_start && bridge.protocol.word() == "tls" && bridge.version.word() == "5");
    assert_eq!((bridge.keep_alive_s, bridge.reconnect_min_ms, bridge.reconnect_max_ms), (30, 2_000, 20_000));
    let told = imported.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for what in ["called site-1", "bridge-site-1.password", "$SYS/broker/connection/site-1/state"] {
        assert!(told.contains(what), "{told}");
    }
    assert_eq!(
        convert(&lines("connection b\ntopic #")).err().as_deref(),
        Some("the connection b has no address")
    );
    for bad in ["topic # sideways", "topic # out 3", "topic # out 1 a b c", "address", "keepalive_interval x"]
    {
        assert!(convert(&lines(&format!("connection b\n{bad}"))).is_err(), "{bad}");
    }
}
