//! `[bridge.NAME]`: what this broker exchanges with another one.

use std::path::PathBuf;
use std::sync::Arc;

use session::message::QoS;
use session::topic::TopicFilter;

use super::HostPort;
use super::value::{Raw, Setting, choice, quote};

/// Addresses of one other broker.
const ADDRESSES_MAX: usize = 16;
/// Topics of one bridge: they go into one SUBSCRIBE.
const TOPICS_MAX: usize = 256;

choice! {
    /// What carries MQTT to the other broker.
    BridgeProtocol { Tcp = "tcp", Tls = "tls" }
}

choice! {
    /// Which MQTT the other broker is spoken to.
    MqttVersion { V5 = "5", V311 = "3.1.1" }
}

choice! {
    /// Which way messages of a topic go, seen from this broker.
    TopicDirection { Out = "out", In = "in", Both = "both" }
}

impl TopicDirection {
    #[must_use]
    pub const fn is_out(self) -> bool {
        matches!(self, Self::Out | Self::Both)
    }

    #[must_use]
    pub const fn is_in(self) -> bool {
        matches!(self, Self::In | Self::Both)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Bridge {
    pub address: Addresses,
    pub protocol: BridgeProtocol,
    pub tls_ca: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_server_name: Option<Arc<str>>,
    pub version: MqttVersion,
    pub client_id: Option<Arc<str>>,
    pub username: Option<Arc<str>>,
    pub password_file: Option<PathBuf>,
    pub clean_start: bool,
    pub session_expiry_s: u32,
    pub keep_alive_s: u16,
    pub inflight_max: u16,
    pub connect_timeout_ms: u64,
    pub reconnect_min_ms: u64,
    pub reconnect_max_ms: u64,
    pub topics: Topics,
}

impl Default for Bridge {
    fn default() -> Self {
        Self {
            address: Addresses(Arc::from([])),
            protocol: BridgeProtocol::Tcp,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            tls_server_name: None,
            version: MqttVersion::V5,
            client_id: None,
            username: None,
            password_file: None,
            clean_start: false,
            session_expiry_s: u32::MAX,
            keep_alive_s: 60,
            inflight_max: 100,
            connect_timeout_ms: 10_000,
            reconnect_min_ms: 1_000,
            reconnect_max_ms: 30_000,
            topics: Topics(Arc::from([])),
        }
    }
}

/// Where the other broker is; tried in turn. Empty: not said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses(pub Arc<[HostPort]>);

impl Setting for Addresses {
    fn allowed() -> String {
        format!(
            "HOST:PORT, or 1 to {ADDRESSES_MAX} of them, for example [\"a.example:1883\", \"b.example:1883\"]"
        )
    }
    fn parse(raw: &Raw) -> Option<Self> {
        let texts: Vec<String> = match raw {
            Raw::Texts(texts) => texts.clone(),
            Raw::Text(text) => vec![text.clone()],
            Raw::Loose(_) => super::value::texts_of(raw, true)?,
            _ => return None,
        };
        let addresses: Vec<HostPort> = texts.iter().map(|text| HostPort::new(text)).collect::<Option<_>>()?;
        (1..=ADDRESSES_MAX).contains(&addresses.len()).then(|| Self(addresses.into()))
    }
    fn show(&self) -> Option<String> {
        let texts: Vec<String> = self.0.iter().map(|address| quote(&address.0)).collect();
        (!texts.is_empty()).then(|| format!("[{}]", texts.join(", ")))
    }
}

/// What goes over a bridge. Empty: not said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topics(pub Arc<[BridgeTopic]>);

/// One `topic` of a bridge, as mosquitto means it: `local_prefix` and `filter` name it here, `remote_prefix` and `filter` there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeTopic {
    /// Empty: the prefixes name one topic.
    pub filter: Arc<str>,
    pub direction: TopicDirection,
    /// The highest one; a message keeps its own when that is lower.
    pub qos: QoS,
    pub local_prefix: Arc<str>,
    pub remote_prefix: Arc<str>,
}

impl BridgeTopic {
    /// What this broker calls it.
    #[must_use]
    pub fn local(&self) -> String {
        format!("{}{}", self.local_prefix, self.filter)
    }

    /// What the other broker calls it.
    #[must_use]
    pub fn remote(&self) -> String {
        format!("{}{}", self.remote_prefix, self.filter)
    }

    /// Why it cannot be exchanged.
    fn fault(&self) -> Option<String> {
        for prefix in [&self.local_prefix, &self.remote_prefix] {
            if prefix.contains(['+', '#', '\0']) {
                return Some(format!("{prefix:?} is a prefix with + or #"));
            }
        }
        for whole in [self.local(), self.remote()] {
            if whole.starts_with("$share/") {
                return Some(format!("{whole:?} is a shared subscription"));
            }
            if let Err(error) = TopicFilter::parse(&whole) {
                return Some(format!("{whole:?} is no topic filter: {error}"));
            }
        }
        None
    }
}

const TOPIC_FORM: &str = "{ filter = \"sensors/#\", direction = \"out\", qos = 1, local_prefix = \"\", remote_prefix = \"site-1/\" }";

impl Topics {
    fn of_tables(tables: &[Vec<(String, Raw)>]) -> Result<Self, String> {
        if !(1..=TOPICS_MAX).contains(&tables.len()) {
            return Err(format!("has {} topics; allowed: 1 to {TOPICS_MAX}", tables.len()));
        }
        let topics = tables.iter().map(|table| topic(table)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(topics.into()))
    }
}

fn topic(table: &[(String, Raw)]) -> Result<BridgeTopic, String> {
    let mut topic = BridgeTopic {
        filter: "".into(),
        direction: TopicDirection::Out,
        qos: QoS::AtLeastOnce,
        local_prefix: "".into(),
        remote_prefix: "".into(),
    };
    for (key, raw) in table {
        let text = || raw.text().map(Arc::from).ok_or_else(|| format!("has a {key} that is no text"));
        match key.as_str() {
            "filter" => topic.filter = text()?,
            "local_prefix" => topic.local_prefix = text()?,
            "remote_prefix" => topic.remote_prefix = text()?,
            "direction" => {
                topic.direction =
                    TopicDirection::read(raw).map_err(|what| format!("has a direction that {what}"))?;
            }
            "qos" => {
                let number = u16::parse(raw).and_then(|number| u8::try_from(number).ok());
                topic.qos = number.and_then(QoS::from_u8).ok_or("has a qos that is not 0, 1 or 2")?;
            }
            _ => {
                return Err(format!(
                    "has the unknown key {key}; allowed: filter, direction, qos, local_prefix, remote_prefix"
                ));
            }
        }
    }
    match topic.fault() {
        None => Ok(topic),
        Some(what) => Err(format!("has a topic that cannot be exchanged: {what}")),
    }
}

impl Setting for Topics {
    fn allowed() -> String {
        format!("1 to {TOPICS_MAX} topics, for example [{TOPIC_FORM}]")
    }
    fn parse(raw: &Raw) -> Option<Self> {
        Self::read(raw).ok()
    }
    fn read(raw: &Raw) -> Result<Self, String> {
        let refuse = || format!("is no list of topics; allowed: {}", Self::allowed());
        match raw {
            Raw::Tables(tables) => Self::of_tables(tables),
            Raw::Loose(text) => {
                let table: toml::Table = format!("it = {text}").parse().map_err(|_| refuse())?;
                let only = table.get("it").filter(|_| table.len() == 1);
                let items = only.and_then(toml::Value::as_array).ok_or_else(refuse)?;
                let tables = items.iter().map(loose_table).collect::<Option<Vec<_>>>();
                Self::of_tables(&tables.ok_or_else(refuse)?)
            }
            _ => Err(refuse()),
        }
    }
    fn show(&self) -> Option<String> {
        let one = |topic: &BridgeTopic| {
            format!(
                "{{ filter = {}, direction = {}, qos = {}, local_prefix = {}, remote_prefix = {} }}",
                quote(&topic.filter),
                quote(topic.direction.word()),
                topic.qos as u8,
                quote(&topic.local_prefix),
                quote(&topic.remote_prefix),
            )
        };
        let topics: Vec<String> = self.0.iter().map(one).collect();
        (!topics.is_empty()).then(|| format!("[{}]", topics.join(", ")))
    }
}

fn loose_table(value: &toml::Value) -> Option<Vec<(String, Raw)>> {
    let pair = |(key, value): (&String, &toml::Value)| {
        let raw = match value {
            toml::Value::String(text) => Raw::Text(text.clone()),
            toml::Value::Integer(number) => Raw::Integer(i128::from(*number)),
            _ => return None,
        };
        Some((key.clone(), raw))
    };
    value.as_table()?.iter().map(pair).collect()
}
