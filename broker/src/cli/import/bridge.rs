//! `connection` sections: what each setting of a bridge of mosquitto is here.

use std::collections::BTreeMap;

use toml::Value;

use super::convert::{Note, Section, number, truth};
use super::source::Line;

/// What is always so here, or changes nothing that anybody relies on.
const IMMATERIAL: &[&str] = &[
    "bridge_attempt_unsubscribe",
    "bridge_bind_address",
    "bridge_max_topic_alias",
    "bridge_outgoing_retain",
    "bridge_receive_maximum",
    "bridge_reload_type",
    "bridge_tcp_keepalive",
    "bridge_tcp_user_timeout",
    "bridge_tls_version",
    "idle_timeout",
    "local_cleansession",
    "local_clientid",
    "local_password",
    "local_username",
    "round_robin",
    "threshold",
    "try_private",
];
/// Settings that say how the other broker is known to be the right one.
const PROTECTING: &[&str] =
    &["bridge_capath", "bridge_psk", "bridge_identity", "bridge_require_ocsp", "bridge_alpn"];
const PORT: &str = "1883";
const NAME_BYTES_MAX: usize = 64;

/// A bridge under construction.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) name: String,
    keys: Section,
    topics: Vec<Value>,
}

impl Bridge {
    /// As `connection NAME` begins it.
    ///
    /// # Errors
    /// There is no name.
    pub(super) fn new(line: &Line) -> Result<(Self, Vec<Note>), String> {
        let allowed =
            |c: char| if c.is_ascii_alphanumeric() || c == '_' { c.to_ascii_lowercase() } else { '-' };
        let name: String = line.value.trim().chars().map(allowed).take(NAME_BYTES_MAX).collect();
        if name.is_empty() {
            return Err("names no bridge".to_owned());
        }
        // What mosquitto speaks unless it is told otherwise.
        let keys = BTreeMap::from([("version", Value::String("3.1.1".to_owned()))]);
        let mut notes = Vec::new();
        if name != line.value.trim() {
            notes.push(Note::new(line, format!("the bridge is called {name} here")));
        }
        Ok((Self { name, keys, topics: Vec::new() }, notes))
    }

    /// One setting of it; what is not taken over.
    ///
    /// # Errors
    /// A value that mosquitto would refuse too.
    pub(super) fn take(&mut self, line: &Line) -> Result<Option<Note>, String> {
        let value = line.value.as_str();
        let text = || Value::String(value.to_owned());
        match line.key.as_str() {
            "address" | "addresses" => self.set("address", addresses(value)?),
            "topic" => self.topics.push(topic(value)?),
            "remote_clientid" | "clientid" => self.set("client_id", text()),
            "remote_username" | "username" => self.set("username", text()),
            "remote_password" | "password" => {
                let file = format!("bridge-{}.password", self.name);
                let note = format!(
                    "{}: write it into the file {file}, or name another one with password_file",
                    line.key
                );
                self.set("password_file", Value::String(file));
                return Ok(Some(Note::new(line, note)));
            }
            "cleansession" => self.set("clean_start", Value::Boolean(truth(value)?)),
            "keepalive_interval" => {
                self.set("keep_alive_s", Value::Integer(number::<i64>(value)?.clamp(5, 65_535)));
            }
            "bridge_session_expiry_interval" => {
                self.set("session_expiry_s", Value::Integer(i64::from(number::<u32>(value)?)));
            }
            "bridge_protocol_version" => match value {
                "mqttv50" => self.set("version", Value::String("5".to_owned())),
                "mqttv311" => {}
                _ => return Ok(Some(Note::new(line, format!("{value} is not spoken; 3.1.1 is")))),
            },
            "bridge_cafile" => {
                self.set("protocol", Value::String("tls".to_owned()));
                self.set("tls_ca", text());
            }
            "bridge_certfile" => self.set("tls_cert", text()),
            "bridge_keyfile" => self.set("tls_key", text()),
            "bridge_insecure" if truth(value)? => {
                let what = "bridge_insecure: the name in the certificate is always looked at; tls_server_name says which one it is";
                return Ok(Some(Note::new(line, what)));
            }
            "bridge_insecure" => {}
            "restart_timeout" => self.take_pauses(value)?,
            "notifications" | "notifications_local_only" | "notification_topic" => {
                let what = format!(
                    "{}: $SYS/broker/connection/{}/state says it, on this broker",
                    line.key, self.name
                );
                return Ok(Some(Note::new(line, what)));
            }
            "start_type" if value != "automatic" => {
                return Ok(Some(Note::new(line, format!("start_type {value}: bridges always run"))));
            }
            "start_type" => {}
            key if PROTECTING.contains(&key) => {
                return Ok(Some(Note::protecting(line, format!("{key}: there is no such setting"))));
            }
            key if IMMATERIAL.contains(&key) => {}
            key => return Ok(Some(Note::new(line, format!("{key} is not known and not taken over")))),
        }
        Ok(None)
    }

    fn set(&mut self, key: &'static str, value: Value) {
        self.keys.insert(key, value);
    }

    /// `base`, or `base cap`, in seconds.
    fn take_pauses(&mut self, value: &str) -> Result<(), String> {
        let mut words = value.split_whitespace();
        let base: i64 = number(words.next().unwrap_or_default())?;
        let cap: i64 = words.next().map_or(Ok(base), number)?;
        let (base, cap) = (base.clamp(1, 600), cap.clamp(1, 3_600));
        self.set("reconnect_min_ms", Value::Integer(base * 1_000));
        self.set("reconnect_max_ms", Value::Integer(cap.max(base) * 1_000));
        Ok(())
    }

    /// Its keys; an error says what mosquitto would miss too.
    pub(super) fn finish(mut self) -> Result<(String, Section), String> {
        if !self.keys.contains_key("address") {
            return Err(format!("the connection {} has no address", self.name));
        }
        if self.topics.is_empty() {
            return Err(format!("the connection {} has no topic", self.name));
        }
        self.keys.insert("topics", Value::Array(self.topics));
        Ok((self.name, self.keys))
    }
}

fn addresses(value: &str) -> Result<Value, String> {
    let one = |word: &str| {
        let has_port = word.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        });
        let bare = word.contains(':') && !word.starts_with('[') && !has_port;
        let host = if bare { format!("[{word}]") } else { word.to_owned() };
        Value::String(if has_port { host } else { format!("{host}:{PORT}") })
    };
    let all: Vec<Value> = value.split_whitespace().map(one).collect();
    if all.is_empty() { Err("names no address".to_owned()) } else { Ok(Value::Array(all)) }
}

/// `pattern [[[out|in|both] qos] local-prefix remote-prefix]`; `""` is an empty word.
fn topic(value: &str) -> Result<Value, String> {
    let words: Vec<&str> =
        value.split_whitespace().map(|word| if word == "\"\"" { "" } else { word }).collect();
    let &[pattern, ..] = &*words else { return Err("has no pattern".to_owned()) };
    if words.len() > 5 {
        return Err(format!("{value:?} has more than five words"));
    }
    let direction = words.get(1).copied().unwrap_or("out");
    if !matches!(direction, "out" | "in" | "both") {
        return Err(format!("the direction {direction:?} is not out, in or both"));
    }
    let qos: u8 = words.get(2).map_or(Ok(0), |word| number(word))?;
    if qos > 2 {
        return Err(format!("the QoS {qos} is not 0, 1 or 2"));
    }
    let prefix = |at: usize| Value::String(words.get(at).copied().unwrap_or_default().to_owned());
    let table = [
        ("filter", Value::String(pattern.to_owned())),
        ("direction", Value::String(direction.to_owned())),
        ("qos", Value::Integer(i64::from(qos))),
        ("local_prefix", prefix(3)),
        ("remote_prefix", prefix(4)),
    ];
    Ok(Value::Table(table.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
}
