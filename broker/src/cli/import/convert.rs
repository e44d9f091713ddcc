//! What each setting of mosquitto is here.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use toml::Value;

use super::bridge::Bridge;
use super::source::{Line, Place};

/// Settings that change nothing that a client or an operator relies on, or that are always so here.
const IMMATERIAL: &[&str] = &[
    "auto_id_prefix",
    "autosave_interval",
    "autosave_on_changes",
    "connection_messages",
    "global_max_clients",
    "log_dest",
    "log_facility",
    "log_timestamp",
    "log_timestamp_format",
    "log_type",
    "persistence",
    "persistence_file",
    "persistence_location",
    "pid_file",
    "set_tcp_nodelay",
    "socket_domain",
    "upgrade_outgoing_qos",
    "user",
    "websockets_headers_size",
    "websockets_log_level",
];

/// Settings that keep somebody out, and have no counterpart.
const PROTECTING: &[&str] = &[
    "accept_protocol_versions",
    "acl_plugin",
    "auth_plugin",
    "bind_interface",
    "capath",
    "clientid_prefixes",
    "crlfile",
    "max_qos",
    "mount_point",
    "plugin",
    "plugin_load",
    "plugin_use",
    "global_plugin",
    "psk_file",
    "psk_hint",
    "retain_available",
    "use_subject_as_username",
    "use_username_as_clientid",
    "websockets_origin",
];

/// TLS 1.2 and 1.3 are served, with ciphers that are chosen here.
const TLS: &[&str] =
    &["ciphers", "ciphers_tls1.3", "dhparamfile", "tls_engine", "tls_keyform", "tls_version"];

/// Something that is not taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    at: Place,
    what: String,
    /// Without it somebody may be let in, or to something, who was not before.
    pub(super) protects: bool,
}

impl Note {
    /// Something that leaves nobody in who was not before.
    pub(super) fn new(line: &Line, what: impl Into<String>) -> Self {
        Self { at: line.at.clone(), what: what.into(), protects: false }
    }

    pub(super) fn protecting(line: &Line, what: impl Into<String>) -> Self {
        Self { protects: true, ..Self::new(line, what) }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.protects { "PROTECTS: " } else { "" };
        write!(f, "{}: {kind}{}", self.at, self.what)
    }
}

#[derive(Debug)]
pub(super) struct Imported {
    pub(super) toml: String,
    pub(super) notes: Vec<Note>,
}

pub(super) type Section = BTreeMap<&'static str, Value>;

#[derive(Debug, Default)]
struct Converting {
    listeners: Vec<Listener>,
    /// What stands before the first `listener` is about it.
    default: Listener,
    /// `port` or `bind_address` named it: it is there beside others.
    default_is_named: bool,
    sections: BTreeMap<&'static str, Section>,
    notes: Vec<Note>,
    per_listener: bool,
    anonymous: Option<bool>,
    bridges: Vec<Bridge>,
    /// Settings are about the last one of them.
    in_bridge: bool,
    /// Of all listeners.
    packet_size_max: Option<Value>,
}

/// One listener, under construction.
#[derive(Debug, Default)]
struct Listener {
    address: String,
    port: u16,
    websockets: bool,
    keys: Section,
    /// `use_identity_as_username`.
    identity: bool,
}

/// The configuration, and what is not in it.
///
/// # Errors
/// A value that mosquitto would refuse too, with its line.
pub(super) fn convert(lines: &[Line]) -> Result<Imported, String> {
    let mut converting = Converting::default();
    for line in lines {
        converting.take(line).map_err(|what| format!("{}: {} {what}", line.at, line.key))?;
    }
    converting.finish()
}

pub(super) fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value:?} is not a number in range"))
}

pub(super) fn truth(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("{value:?} is neither true nor false")),
    }
}

/// `0` stands for no limit in mosquitto.
fn limited(value: &str, max: i64) -> Result<Value, String> {
    let limit: i64 = number(value)?;
    Ok(Value::Integer(if limit <= 0 { max } else { limit.min(max) }))
}

/// `2m` and the like in seconds: h, d, w, m, y.
fn span_s(value: &str) -> Result<i64, String> {
    let split = value.len().saturating_sub(1);
    let (count, unit) = value.split_at_checked(split).ok_or("is empty")?;
    let unit: i64 = match unit {
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        "m" => 2_592_000,
        "y" => 31_536_000,
        _ => return Err(format!("{value:?} has none of the units h, d, w, m, y")),
    };
    Ok(number::<i64>(count)?.saturating_mul(unit).clamp(0, i64::from(u32::MAX) - 1))
}

impl Converting {
    fn note(&mut self, line: &Line, what: impl Into<String>, protects: bool) {
        self.notes.push(Note { at: line.at.clone(), what: what.into(), protects });
    }

    fn set(&mut self, section: &'static str, key: &'static str, value: Value) {
        self.sections.entry(section).or_default().insert(key, value);
    }

    /// The listener that settings are about: the last one named, or mosquitto's default one, which may not come to be.
    fn listener(&mut self) -> &mut Listener {
        self.listeners.last_mut().unwrap_or(&mut self.default)
    }

    fn take(&mut self, line: &Line) -> Result<(), String> {
        let (key, value) = (line.key.as_str(), line.value.as_str());
        if key == "connection" {
            let (bridge, notes) = Bridge::new(line)?;
            if self.bridges.iter().any(|known| known.name == bridge.name) {
                return Err(format!("{value:?}: there is a connection {} already", bridge.name));
            }
            self.in_bridge = true;
            self.bridges.push(bridge);
            self.notes.extend(notes);
            return Ok(());
        }
        if key == "listener" || key == "port" {
            self.in_bridge = false;
            return self.begin_listener(key, value);
        }
        if let Some(bridge) = self.bridges.last_mut().filter(|_| self.in_bridge) {
            self.notes.extend(bridge.take(line)?);
            return Ok(());
        }
        if IMMATERIAL.contains(&key) {
            return Ok(());
        }
        let is_guard = match key {
            "tls_version" => value == "tlsv1.3",
            "allow_zero_length_clientid" => !truth(value)?,
            _ => false,
        };
        if is_guard {
            self.note(line, format!("{key} {value}: there is no such setting"), true);
            return Ok(());
        }
        if key == "allow_zero_length_clientid" {
            return Ok(());
        }
        if TLS.contains(&key) {
            self.note(line, format!("{key}: TLS 1.2 and 1.3 are served, with strong ciphers only"), false);
            return Ok(());
        }
        if PROTECTING.contains(&key) {
            self.note(line, format!("{key} {value}: there is no such setting"), true);
            return Ok(());
        }
        if self.take_listener(line)? || self.take_session(key, value)? || self.take_access(line)? {
            return Ok(());
        }
        self.note(line, format!("{key} is not known and not taken over"), false);
        Ok(())
    }

    fn begin_listener(&mut self, key: &str, value: &str) -> Result<(), String> {
        let mut words = value.split_whitespace();
        let port = number(words.next().unwrap_or_default())?;
        if key == "port" {
            self.default.port = port;
            self.default_is_named = true;
            return Ok(());
        }
        if port == 0 {
            return Err("a socket in the file system is not served here".to_owned());
        }
        let address = words.next().unwrap_or("0.0.0.0").to_owned();
        self.listeners.push(Listener { address, port, ..Listener::default() });
        Ok(())
    }

    fn take_listener(&mut self, line: &Line) -> Result<bool, String> {
        let value = line.value.as_str();
        let text = || Value::String(value.to_owned());
        let listener = self.listener();
        match line.key.as_str() {
            "bind_address" => {
                value.clone_into(&mut self.default.address);
                self.default_is_named = true;
            }
            "protocol" => listener.websockets = value == "websockets",
            "certfile" => drop(listener.keys.insert("tls_cert", text())),
            "keyfile" => drop(listener.keys.insert("tls_key", text())),
            "cafile" => drop(listener.keys.insert("tls_client_ca", text())),
            "require_certificate" => {
                let word = if truth(value)? { "required" } else { "none" };
                listener.keys.insert("tls_client_auth", Value::String(word.to_owned()));
            }
            "use_identity_as_username" => listener.identity = truth(value)?,
            "max_connections" => {
                if number::<i64>(value)? > 0 {
                    listener.keys.insert("max_connections", limited(value, 1_000_000)?);
                }
            }
            "max_packet_size" | "message_size_limit" => {
                // The limit of mosquitto's payloads; a packet has a head too.
                let max = limited(value, 268_435_460)?;
                let max = Value::Integer(max.as_integer().unwrap_or_default().max(256));
                self.packet_size_max = Some(max);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take_session(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            "max_inflight_messages" => self.set("session", "inflight_max", limited(value, 65_534)?),
            "max_queued_messages" => {
                self.set("session", "inbox_messages_max", limited(value, 1_000_000_000)?);
            }
            "max_queued_bytes" => self.set("session", "inbox_bytes_max", limited(value, 1_099_511_627_776)?),
            // The node protects itself as it comes near, where mosquitto fails to allocate.
            "memory_limit" => {
                if number::<u64>(value)? > 0 {
                    self.set("limits", "memory_max_bytes", limited(value, 1_099_511_627_776)?);
                }
            }
            "max_keepalive" => self.set("session", "keep_alive_max_s", limited(value, 65_535)?),
            "max_topic_alias" => {
                self.set("session", "topic_alias_maximum", Value::Integer(i64::from(number::<u16>(value)?)));
            }
            "max_topic_alias_broker" => {
                let max = Value::Integer(i64::from(number::<u16>(value)?));
                self.set("session", "topic_alias_out_maximum", max);
            }
            "queue_qos0_messages" => self.set("session", "queue_qos0_offline", Value::Boolean(truth(value)?)),
            "persistent_client_expiration" => {
                self.set("session", "expiry_max_s", Value::Integer(span_s(value)?));
            }
            "sys_interval" => {
                self.set("node", "sys_interval_s", Value::Integer(i64::from(number::<u16>(value)?)));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take_access(&mut self, line: &Line) -> Result<bool, String> {
        let value = line.value.as_str();
        let (section, key) = match line.key.as_str() {
            "allow_anonymous" => {
                let allowed = truth(value)?;
                if self.per_listener && self.anonymous.is_some_and(|before| before != allowed) {
                    let what = "listeners differ in allow_anonymous; here it holds for all of them";
                    self.note(line, what, true);
                }
                // The stricter one.
                self.anonymous = Some(allowed && self.anonymous.unwrap_or(true));
                return Ok(true);
            }
            "per_listener_settings" => {
                self.per_listener = truth(value)?;
                return Ok(true);
            }
            "password_file" => ("auth", "password_file"),
            "acl_file" => ("acl", "file"),
            _ => return Ok(false),
        };
        if value.is_empty() {
            return Err("names no file".to_owned());
        }
        let value = Value::String(value.to_owned());
        let before = self.sections.get(section).and_then(|section| section.get(key));
        if before.is_some_and(|before| *before != value) {
            let what = format!("listeners differ in {}; here one file holds for all of them", line.key);
            self.note(line, what, true);
        } else {
            self.set(section, key, value);
        }
        Ok(true)
    }

    fn finish(mut self) -> Result<Imported, String> {
        let local = self.listeners.is_empty() && !self.default_is_named;
        // Without a listener mosquitto serves this machine only, everybody.
        let anonymous = self.anonymous.unwrap_or(local);
        if self.listeners.is_empty() || self.default_is_named {
            let mut default = std::mem::take(&mut self.default);
            default.port = if default.port == 0 { 1_883 } else { default.port };
            self.listeners.insert(0, default);
        }
        self.set("auth", "anonymous", Value::Boolean(anonymous));
        let identity = self.listeners.iter().any(|listener| listener.identity);
        self.set("auth", "certificate_user", Value::Boolean(identity));
        if self.sections.contains_key("acl") {
            // mosquitto grants a subscription and checks each message; this is as near as it gets.
            self.set("acl", "subscribe", Value::String("overlap".to_owned()));
        }
        let mut toml = "# Made by `exactmq import mosquitto`.\n".to_owned();
        for (number, listener) in self.listeners.iter_mut().enumerate() {
            if let Some(max) = &self.packet_size_max {
                listener.keys.insert("packet_size_max", max.clone());
            }
            listener.write(number, local, &mut toml);
        }
        for (section, keys) in &self.sections {
            write_section(section, keys, &mut toml);
        }
        for bridge in self.bridges {
            let (name, keys) = bridge.finish()?;
            write_section(&format!("bridge.{name}"), &keys, &mut toml);
        }
        Ok(Imported { toml, notes: self.notes })
    }
}

impl Listener {
    fn write(&self, number: usize, local: bool, toml: &mut String) {
        // A first one of this name takes the place of the default one.
        let name = if number == 0 { "mqtt".to_owned() } else { format!("mqtt{}", number + 1) };
        let mut keys = self.keys.clone();
        let secure = keys.contains_key("tls_cert");
        let protocol = match (self.websockets, secure) {
            (false, false) => "tcp",
            (false, true) => "tls",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        keys.insert("protocol", Value::String(protocol.to_owned()));
        let host = match self.address.as_str() {
            "" if local => "127.0.0.1",
            "" => "0.0.0.0",
            "localhost" => "127.0.0.1",
            address => address,
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        keys.insert("address", Value::String(format!("{host}:{}", self.port)));
        if !secure || !keys.contains_key("tls_client_auth") {
            // An authority alone asks nobody for a certificate.
            keys.remove("tls_client_ca");
            keys.remove("tls_client_auth");
        }
        write_section(&format!("listener.{name}"), &keys, toml);
    }
}

fn write_section(name: &str, keys: &Section, toml: &mut String) {
    // Writing to a String cannot fail.
    let _ = writeln!(toml, "\n[{name}]");
    for (key, value) in keys {
        let _ = writeln!(toml, "{key} = {value}");
    }
}

#[cfg(test)]
#[path = "convert_test.rs"]
mod convert_test;
