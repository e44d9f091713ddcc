//! The configuration of one node: typed, complete and checked before anything is opened.
//!
//! One table ([`schema`]) names every key with its range, its documentation and whether SIGHUP can change it. From that table come
//! the parser, the environment variables, `--set`, `check-config`, the reload report and `exactmq.example.toml`, so they
//! cannot drift apart. A key is taken from the first of: flag, environment, file, default.

mod bridge;
mod check;
mod document;
mod error;
mod hook;
mod load;
mod reload;
mod schema;
mod value;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

pub use bridge::{Addresses, Bridge, BridgeProtocol, BridgeTopic, MqttVersion, TopicDirection, Topics};
pub use error::{ConfigError, Origin, Problem};
pub use hook::HookUrl;
pub use load::{Loaded, Sources};
pub use reload::Reload;
pub use storage::EngineKind;

use value::choice;

/// Everything a node is told. Units stand last in a name; ranges and meanings are in `exactmq.example.toml`.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub node: Node,
    /// By name; never empty after [`Config::load`].
    pub listeners: BTreeMap<Arc<str>, Listener>,
    pub session: Session,
    pub owner: Owner,
    pub isolation: Isolation,
    pub cluster: Cluster,
    pub storage: Storage,
    pub queue: Queue,
    pub auth: Auth,
    pub acl: Acl,
    pub limits: Limits,
    pub admin: Admin,
    pub log: Log,
    /// By name.
    pub bridges: BTreeMap<Arc<str>, Bridge>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Identity of the node in its cluster, at least 1.
    pub id: u64,
    /// Data-plane threads; 0: one per core. Read it through [`Node::workers`].
    pub workers: u16,
    /// Threads of the control runtime (log, storage, admin).
    pub control_threads: u16,
    pub data_dir: PathBuf,
    /// Seconds between publications of `$SYS` topics; 0: none.
    pub sys_interval_s: u32,
    /// How long a graceful stop may take before the process ends anyway.
    pub stop_timeout_ms: u64,
}

impl Node {
    /// Data-plane threads to run, at least 1.
    #[must_use]
    pub fn workers(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => usize::from(workers),
        }
    }
}

choice! {
    /// What a listener speaks.
    Protocol { Tcp = "tcp", Tls = "tls", Ws = "ws", Wss = "wss" }
}

impl Protocol {
    /// Whether it is encrypted.
    #[must_use]
    pub const fn is_secure(self) -> bool {
        matches!(self, Self::Tls | Self::Wss)
    }

    #[must_use]
    pub const fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

choice! {
    /// Whether a client must show a certificate.
    ClientAuth { None = "none", Optional = "optional", Required = "required" }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    pub protocol: Protocol,
    pub address: SocketAddr,
    pub advertise: Option<HostPort>,
    pub namespace: Arc<str>,
    pub max_connections: u32,
    pub connections_per_address_max: u32,
    /// Sockets taken a second; 0: any number.
    pub connect_rate_max: u32,
    /// Messages and bytes a second that one connection may publish; 0: any number.
    pub publish_rate_max: u32,
    pub publish_bytes_rate_max: u64,
    /// Expect a PROXY protocol v2 header before anything else; connections without one are closed.
    pub proxy_protocol: bool,
    /// A certificate that the proxy says it verified logs its common name in, as one that this node verified does.
    pub proxy_certificate_user: bool,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_client_ca: Option<PathBuf>,
    pub tls_client_auth: ClientAuth,
    pub packet_size_max: u32,
    pub connect_packet_size_max: u32,
    pub connect_timeout_ms: u64,
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            protocol: Protocol::Tcp,
            address: (Ipv4Addr::LOCALHOST, 1883).into(),
            advertise: None,
            namespace: "main".into(),
            max_connections: 100_000,
            connections_per_address_max: 0,
            connect_rate_max: 0,
            publish_rate_max: 0,
            publish_bytes_rate_max: 0,
            proxy_protocol: false,
            proxy_certificate_user: false,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            tls_client_auth: ClientAuth::None,
            packet_size_max: 1 << 20,
            connect_packet_size_max: 256 << 10,
            connect_timeout_ms: 5_000,
        }
    }
}

choice! {
    /// What happens to a message that an inbox has no room for.
    OnQuota {
        /// The message is dropped and counted.
        DropNew = "drop_new",
        /// The oldest messages are dropped and counted, until it fits.
        DropOld = "drop_old",
        /// The message is dropped and counted, and the session ends with reason quota.
        End = "end",
    }
}

choice! {
    /// Which connected member of a shared subscription gets the next message.
    SharePick {
        /// Of the next ones in turn the one with the least in flight.
        LeastInFlight = "least_in_flight",
        /// The next one in turn.
        RoundRobin = "round_robin",
        /// The same one for all messages of a publisher, as long as members neither come nor go.
        Sticky = "sticky",
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Longest Session Expiry Interval granted, seconds; `u32::MAX`: whatever the client asks.
    pub expiry_max_s: u32,
    /// How long an ended session stays bound to its user, seconds.
    pub binding_retention_s: u32,
    pub receive_maximum: u16,
    pub topic_alias_maximum: u16,
    pub topic_alias_out_maximum: u16,
    pub inbox_messages_max: u64,
    pub inbox_bytes_max: u64,
    pub on_quota: OnQuota,
    pub queue_qos0_offline: bool,
    /// How long messages of a shared subscription wait for a disconnected member; `u32::MAX`: for ever.
    pub share_grace_ms: u64,
    /// Who of the connected members of a shared subscription gets the next message.
    pub share_pick: SharePick,
    pub outbox_bytes_max: usize,
    pub inflight_max: u16,
    /// Longest Will Delay Interval granted, seconds; `u32::MAX`: whatever the client asks.
    pub will_delay_max_s: u32,
    /// Longest keep alive, seconds; 0: no cap. Above 0 it is also what a client that asked for none gets.
    pub keep_alive_max_s: u16,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Owner {
    pub lease_ms: u64,
    pub operations: u32,
    pub connect_timeout_ms: u64,
    pub capacity: usize,
    pub close_retry_ms: u64,
}

choice! {
    /// What may prove that a lost owner stopped.
    IsolationMode {
        /// Evidence only.
        Strict = "strict",
        /// Also the end of its boot's lease and the drift: every node stops by itself at its lease end.
        Lease = "lease",
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Isolation {
    pub mode: IsolationMode,
    /// How far the clocks of two nodes may run apart during one lease.
    pub drift_ms: u64,
    /// Powers a node off; exit 0 is the proof.
    pub fence_agent: Option<CommandLine>,
    pub fence_timeout_ms: u64,
    /// The fence agent is run without being asked.
    pub fence_auto: bool,
}

/// A program and its arguments; no shell reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine(pub Arc<[String]>);

#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Replication groups; fixed when the data directory is made.
    pub groups: u16,
    /// The peer port.
    pub peer: AdminAddress,
    /// Where other nodes dial this one; `None`: the address of the peer port.
    pub advertise: Option<HostPort>,
    pub secret_file: Option<PathBuf>,
    pub secret: Option<ClusterSecret>,
    /// Only nodes can reach or listen to the network between them: a secret alone then protects, without TLS.
    pub trusted_network: bool,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub tls_ca: Option<PathBuf>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            groups: 4,
            peer: AdminAddress(None),
            advertise: None,
            secret_file: None,
            secret: None,
            trusted_network: false,
            tls_cert: None,
            tls_key: None,
            tls_ca: None,
        }
    }
}

/// `host:port`, as other nodes dial it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort(pub Arc<str>);

impl HostPort {
    /// `None`: it is not `HOST:PORT`.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        value::Setting::parse(&value::Raw::Text(text.to_owned()))
    }
}

/// The cluster secret. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret(pub Arc<str>);

impl std::fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterSecret(..)")
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Storage {
    pub engine: EngineKind,
    pub segment_bytes: u64,
    pub checkpoint_bytes: u64,
    pub resident_bytes_max: u64,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            engine: EngineKind::Redb,
            segment_bytes: 64 << 20,
            checkpoint_bytes: 64 << 20,
            resident_bytes_max: 192 << 20,
        }
    }
}

choice! {
    /// Where the lease of the node, and with it those of its sessions and channel members, is decided.
    LeaseHome {
        /// In the groups of the node itself.
        Embedded = "embedded",
        /// Also in an etcd cluster.
        Etcd = "etcd",
    }
}

/// URLs of the members of a cluster of something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Urls(pub Arc<[String]>);

#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    pub leases: LeaseHome,
    pub etcd_endpoints: Option<Urls>,
    /// Before every key.
    pub etcd_namespace: Arc<str>,
    /// How long the lease of a node outlives its last keepalive.
    pub etcd_ttl_s: u32,
    pub etcd_tls_ca: Option<PathBuf>,
    pub etcd_tls_cert: Option<PathBuf>,
    pub etcd_tls_key: Option<PathBuf>,
    pub etcd_user: Option<Arc<str>>,
    pub etcd_password_file: Option<PathBuf>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            leases: LeaseHome::Embedded,
            etcd_endpoints: None,
            etcd_namespace: "exactmq".into(),
            etcd_ttl_s: 15,
            etcd_tls_ca: None,
            etcd_tls_cert: None,
            etcd_tls_key: None,
            etcd_user: None,
            etcd_password_file: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Auth {
    /// As written; read it through [`Config::anonymous`].
    pub anonymous: Option<bool>,
    pub password_file: Option<PathBuf>,
    /// The common name of a verified client certificate is the user.
    pub certificate_user: bool,
    pub cache_s: u32,
    pub cache_entries_max: usize,
    pub hash_threads: u16,
    pub hash_queue_max: usize,
    /// The key of HS256.
    pub jwt_secret_file: Option<PathBuf>,
    /// Keys of RS256 and ES256, in PEM.
    pub jwt_public_key_file: Option<PathBuf>,
    /// Keys of all kinds, as a JSON Web Key Set.
    pub jwt_jwks_file: Option<PathBuf>,
    pub jwt_issuer: Option<Arc<str>>,
    pub jwt_audience: Option<Arc<str>>,
    pub jwt_user_claim: Arc<str>,
    pub jwt_leeway_s: u32,
    /// How far away the end of a token may be; 0: as far as it says.
    pub jwt_lifetime_max_s: u32,
    /// Verifiers for SCRAM-SHA-256.
    pub scram_file: Option<PathBuf>,
    /// Who is asked about clients that nothing above knows.
    pub http_url: Option<HookUrl>,
    pub http_ca_file: Option<PathBuf>,
    pub http_timeout_ms: u32,
    pub http_cache_s: u32,
    pub http_in_flight_max: u16,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            anonymous: None,
            password_file: None,
            certificate_user: true,
            cache_s: 300,
            cache_entries_max: 10_000,
            hash_threads: 2,
            hash_queue_max: 4_096,
            jwt_secret_file: None,
            jwt_public_key_file: None,
            jwt_jwks_file: None,
            jwt_issuer: None,
            jwt_audience: None,
            jwt_user_claim: "sub".into(),
            jwt_leeway_s: 30,
            jwt_lifetime_max_s: 0,
            scram_file: None,
            http_url: None,
            http_ca_file: None,
            http_timeout_ms: 2_000,
            http_cache_s: 0,
            http_in_flight_max: 64,
        }
    }
}

impl Auth {
    /// Whether tokens are taken.
    #[must_use]
    pub fn has_tokens(&self) -> bool {
        [&self.jwt_secret_file, &self.jwt_public_key_file, &self.jwt_jwks_file]
            .into_iter()
            .any(Option::is_some)
    }

    /// Whether somebody is asked to prove who it is by more than its certificate.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.password_file.is_some()
            || self.scram_file.is_some()
            || self.http_url.is_some()
            || self.has_tokens()
    }
}

choice! {
    /// When a SUBSCRIBE is granted under an ACL.
    SubscribeRule {
        /// A read rule covers the whole filter.
        Cover = "cover",
        /// A read rule covers part of the filter: only that part is delivered, as mosquitto does.
        Overlap = "overlap",
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Acl {
    pub file: Option<PathBuf>,
    /// Who is asked for the rules of a client.
    pub http_url: Option<HookUrl>,
    pub subscribe: SubscribeRule,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Subscriptions of one session.
    pub subscriptions_max: usize,
    /// Topic filters in one SUBSCRIBE or UNSUBSCRIBE.
    pub filters_max: usize,
    /// Retained messages of the node.
    pub retained_messages_max: u64,
    /// Bytes of one retained message's payload.
    pub retained_bytes_max: usize,
    /// Of each user; 0: any number.
    pub user_connections_max: u32,
    pub user_sessions_max: u64,
    pub user_subscriptions_max: u64,
    pub user_publish_rate_max: u32,
    pub user_publish_bytes_rate_max: u64,
    pub user_inbox_messages_max: u64,
    pub user_inbox_bytes_max: u64,
    /// Memory of the process, against which its load is measured; 0: what its control group or the machine has.
    pub memory_max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            subscriptions_max: 10_000,
            filters_max: 1_000,
            retained_messages_max: 1_000_000,
            retained_bytes_max: 1 << 20,
            user_connections_max: 0,
            user_sessions_max: 0,
            user_subscriptions_max: 0,
            user_publish_rate_max: 0,
            user_publish_bytes_rate_max: 0,
            user_inbox_messages_max: 0,
            user_inbox_bytes_max: 0,
            memory_max_bytes: 0,
        }
    }
}

/// Where a port that a node need not have listens: the admin API, peers. `None` is written "off".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminAddress(pub Option<SocketAddr>);

#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    pub address: AdminAddress,
    /// Who may come from elsewhere without TLS: anybody who listens on the way has the token.
    pub plain: bool,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// Authorities of client certificates, for calls from other machines.
    pub tls_client_ca: Option<PathBuf>,
    /// Default: `admin.token` in the data directory.
    pub token_file: Option<PathBuf>,
    /// Default: `admin.tokens` in the data directory, when it is there.
    pub tokens_file: Option<PathBuf>,
    pub metrics_token: bool,
    pub audit_bytes_max: u64,
}

impl Admin {
    /// Whether the admin API speaks https.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.tls_cert.is_some()
    }
}

choice! {
    /// How much is logged.
    LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" }
}

choice! {
    /// One line of text, or one JSON object, per event.
    LogFormat { Text = "text", Json = "json" }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    pub level: LogLevel,
    pub format: LogFormat,
    /// What takes at least so long is slow; 0: nothing is.
    pub slow_ms: u64,
    /// Where spans are sent.
    pub otlp_endpoint: Option<HookUrl>,
    pub otlp_sample_ratio: Ratio,
}

/// From 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio(pub f64);

impl Default for Config {
    /// All defaults, without the default listener: [`Config::load`] adds it when no other is configured.
    fn default() -> Self {
        Self {
            node: Node {
                id: 1,
                workers: 0,
                control_threads: 2,
                data_dir: PathBuf::from("./exactmq-data"),
                sys_interval_s: 10,
                stop_timeout_ms: 10_000,
            },
            listeners: BTreeMap::new(),
            session: Session {
                expiry_max_s: 604_800,
                binding_retention_s: 86_400,
                receive_maximum: 100,
                topic_alias_maximum: 16,
                topic_alias_out_maximum: 16,
                inbox_messages_max: 10_000,
                inbox_bytes_max: 64 << 20,
                on_quota: OnQuota::DropNew,
                queue_qos0_offline: false,
                share_grace_ms: 2_000,
                share_pick: SharePick::LeastInFlight,
                outbox_bytes_max: 1 << 20,
                inflight_max: 100,
                will_delay_max_s: u32::MAX,
                keep_alive_max_s: 0,
            },
            owner: Owner {
                lease_ms: 30_000,
                operations: 64,
                connect_timeout_ms: 5_000,
                capacity: 100_000,
                close_retry_ms: 250,
            },
            isolation: Isolation {
                mode: IsolationMode::Strict,
                drift_ms: 5_000,
                fence_agent: None,
                fence_timeout_ms: 30_000,
                fence_auto: false,
            },
            cluster: Cluster::default(),
            storage: Storage::default(),
            queue: Queue::default(),
            auth: Auth::default(),
            acl: Acl { file: None, http_url: None, subscribe: SubscribeRule::Cover },
            limits: Limits::default(),
            admin: Admin {
                address: AdminAddress(Some((Ipv4Addr::LOCALHOST, 9883).into())),
                plain: false,
                tls_cert: None,
                tls_key: None,
                tls_client_ca: None,
                token_file: None,
                tokens_file: None,
                metrics_token: false,
                audit_bytes_max: 64 << 20,
            },
            log: Log {
                level: LogLevel::Info,
                format: LogFormat::Text,
                slow_ms: 1_000,
                otlp_endpoint: None,
                otlp_sample_ratio: Ratio(1.0),
            },
            bridges: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Whether clients without credentials are let in: as written, else only while no authenticator is configured.
    #[must_use]
    pub fn anonymous(&self) -> bool {
        self.auth.anonymous.unwrap_or(!self.auth.is_configured())
    }

    /// The namespace of all sessions: that of every listener.
    #[must_use]
    pub fn namespace(&self) -> Arc<str> {
        let mut listeners = self.listeners.values();
        listeners.next().map_or_else(|| Listener::default().namespace, |listener| listener.namespace.clone())
    }

    /// The file with the bearer token of the admin API.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.admin.token_file.clone().unwrap_or_else(|| self.node.data_dir.join("admin.token"))
    }

    /// The file with the further tokens of the admin API; it may be missing where it was not named.
    #[must_use]
    pub fn tokens_file(&self) -> PathBuf {
        self.admin.tokens_file.clone().unwrap_or_else(|| self.node.data_dir.join("admin.tokens"))
    }
}

#[cfg(test)]
mod config_test;
