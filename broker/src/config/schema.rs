//! The one table of configuration keys.

use super::value::{Raw, Setting, allowed_in, read_in};
use super::{Bridge, Config, EngineKind, Listener};

/// Whether SIGHUP applies a changed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Apply {
    Live,
    Restart,
}

/// One key of `T`.
pub(super) struct Key<T> {
    /// `section.key`, or only `key` for a listener or a bridge.
    pub(super) name: &'static str,
    pub(super) apply: Apply,
    /// What it means, with its unit.
    pub(super) doc: &'static str,
    pub(super) allowed: fn() -> String,
    /// Err: what is wrong and what is allowed.
    pub(super) set: fn(&mut T, &Raw) -> Result<(), String>,
    pub(super) show: fn(&T) -> Option<String>,
    pub(super) copy: fn(from: &T, to: &mut T),
}

macro_rules! key {
    ($apply:ident, $($field:ident).+ in $low:literal ..= $high:expr, $doc:literal) => {
        Key {
            name: dotted!($($field).+),
            apply: Apply::$apply,
            doc: $doc,
            allowed: || allowed_in(&($low as i128..=$high as i128)),
            set: |target, raw| {
                target.$($field).+ = read_in(raw, &($low..=$high))?;
                Ok(())
            },
            show: |target| target.$($field).+.show(),
            copy: |from, to| to.$($field).+.clone_from(&from.$($field).+),
        }
    };
    ($apply:ident, $($field:ident).+ : $kind:ty, $doc:literal) => {
        Key {
            name: dotted!($($field).+),
            apply: Apply::$apply,
            doc: $doc,
            allowed: <$kind as Setting>::allowed,
            set: |target, raw| {
                target.$($field).+ = <$kind as Setting>::read(raw)?;
                Ok(())
            },
            show: |target| target.$($field).+.show(),
            copy: |from, to| to.$($field).+.clone_from(&from.$($field).+),
        }
    };
}
macro_rules! dotted {
    ($only:ident) => {
        stringify!($only)
    };
    ($section:ident . $name:ident) => {
        concat!(stringify!($section), ".", stringify!($name))
    };
}

/// Sections that a file may have; [`TABLES`] have one table of each name.
pub(super) const SECTIONS: [&str; 14] = [
    "node",
    "listener",
    "session",
    "owner",
    "isolation",
    "cluster",
    "storage",
    "queue",
    "auth",
    "acl",
    "limits",
    "admin",
    "log",
    "bridge",
];

/// Sections of things with a name of their own.
pub(super) const TABLES: [&str; 2] = ["listener", "bridge"];

type Optional<T> = Option<T>;
type Path = std::path::PathBuf;
type Name = std::sync::Arc<str>;
type Address = std::net::SocketAddr;

/// Every key outside `[listener.*]`, in the order of the example file.
pub(super) static KEYS: &[Key<Config>] = &[
    key!(Restart, node.id in 1..=u64::MAX, "Identity of this node in its cluster; never give it to another node."),
    key!(Restart, node.workers in 0..=1_024, "Data-plane threads; 0: one per core."),
    key!(Restart, node.control_threads in 1..=64, "Threads for log, storage and admin work."),
    key!(Restart, node.data_dir: Path, "Directory of everything that must survive a restart; made when missing."),
    key!(Restart, node.sys_interval_s in 0..=86_400, "Seconds between publications of the $SYS topics; 0: none."),
    key!(Restart, node.stop_timeout_ms in 100..=600_000, "Milliseconds a graceful stop may take."),
    key!(Restart, session.expiry_max_s in 0..=u32::MAX, "Longest Session Expiry Interval granted, in seconds; 4294967295: no cap."),
    key!(Restart, session.binding_retention_s in 0..=31_536_000, "Seconds for which the ClientID of an ended durable session stays reserved for its user."),
    key!(Restart, session.receive_maximum in 1..=65_535, "QoS 1 and 2 messages a client may have unacknowledged towards the broker."),
    key!(Restart, session.topic_alias_maximum in 0..=65_535, "Topic aliases a client may set."),
    key!(Restart, session.topic_alias_out_maximum in 0..=65_535, "Topic aliases the broker sets towards a client that allows them."),
    key!(Restart, session.inbox_messages_max in 1..=1_000_000_000, "Messages queued for one durable session."),
    key!(Restart, session.inbox_bytes_max in 1_024..=1_099_511_627_776, "Bytes queued for one durable session."),
    key!(Restart, session.on_quota: super::OnQuota, "What gives way when an inbox is full: the new message, the oldest ones (a QoS 2 message that its client may know of is kept), or the session, which ends with reason quota."),
    key!(Restart, session.queue_qos0_offline: bool, "Queue QoS 0 messages for durable sessions that are offline."),
    key!(Restart, session.share_grace_ms in 0..=4_294_967_295, "Milliseconds for which what a disconnected member of a shared subscription was not sent, or did not acknowledge with QoS 1, waits for it before connected members with a session that lasts get it; 4294967295: for ever."),
    key!(Restart, session.share_pick: super::SharePick, "Which connected member of a shared subscription gets the next message: of some that are next in turn the one with the least in flight, the next one in turn, or the same one for all messages of a publisher while members neither come nor go. Members on the publisher's node come first in any case."),
    key!(Restart, session.outbox_bytes_max in 16_384..=1_073_741_824, "Bytes waiting to be written to one client; QoS 0 beyond it is dropped and counted."),
    key!(Restart, session.inflight_max in 1..=65_534, "QoS 1 and 2 messages sent to one client and not acknowledged, whatever more the client allows."),
    key!(Restart, session.will_delay_max_s in 0..=u32::MAX, "Longest Will Delay Interval granted, in seconds; 4294967295: no cap."),
    key!(Restart, session.keep_alive_max_s in 0..=65_535, "Longest keep alive in seconds, also for clients that ask for none; 0: no cap."),
    key!(Restart, owner.lease_ms in 1_000..=60_000, "Milliseconds for which this node may execute without renewing its lease."),
    key!(Restart, owner.operations in 1..=1_024, "Batches of one client that may wait for a commit; then its socket is not read."),
    key!(Restart, owner.connect_timeout_ms in 100..=60_000, "Milliseconds within which a CONNECT is answered."),
    key!(Restart, owner.capacity in 1..=1_000_000, "Connections of the node: connecting, active and closing ones."),
    key!(Restart, owner.close_retry_ms in 10..=60_000, "Milliseconds before closing a socket is tried again."),
    key!(Restart, isolation.mode: super::IsolationMode, "What proves that the owner of a session stopped; strict: nothing but evidence, never time; lease: also the end of its node's lease and the drift. Give all nodes the same."),
    key!(Restart, isolation.drift_ms in 0..=60_000, "Milliseconds by which the clocks of two nodes may run apart during one lease; a boot is retired so long after its lease end."),
    key!(Restart, isolation.fence_agent: Optional<super::CommandLine>, "Program that powers a node off, with its arguments; it finds the node in EXACTMQ_FENCE_NODE_ID, EXACTMQ_FENCE_BOOT_ID and EXACTMQ_FENCE_ADDRESS. Exit 0 is proof that nothing of it runs."),
    key!(Restart, isolation.fence_timeout_ms in 100..=600_000, "Milliseconds that the fence agent may take."),
    key!(Restart, isolation.fence_auto: bool, "Run the fence agent without being asked for a node that cannot be reached and whose lease and drift are over, one that is down for maintenance too."),
    key!(Restart, cluster.groups in 1..=256, "Replication groups; fixed when the data directory is made."),
    key!(Restart, cluster.peer: super::AdminAddress, "Where other nodes of the cluster are let in. Needs a secret or certificates."),
    key!(Restart, cluster.advertise: Optional<super::HostPort>, "Where other nodes dial this one; unset: the address of the peer port."),
    key!(Restart, cluster.secret_file: Optional<Path>, "File with the secret that all nodes share, 16 to 1024 bytes; blanks and line ends around it do not count."),
    key!(Restart, cluster.secret: Optional<super::ClusterSecret>, "The same written down here; a file that only the broker can read is better."),
    key!(Restart, cluster.trusted_network: bool, "Strangers can neither read nor change what nodes send each other: a secret is enough, without TLS."),
    key!(Restart, cluster.tls_cert: Optional<Path>, "PEM file with the certificate chain of this node, for both sides of a link."),
    key!(Restart, cluster.tls_key: Optional<Path>, "PEM file with its private key."),
    key!(Restart, cluster.tls_ca: Optional<Path>, "PEM file with the authorities that sign the nodes of this cluster and nothing else."),
    key!(Restart, storage.engine: EngineKind, "State store; sled needs a build with the feature store-sled, memory keeps nothing."),
    key!(Restart, storage.segment_bytes in 1_048_576..=4_294_967_296, "Bytes of one segment of the write-ahead log."),
    key!(Restart, storage.checkpoint_bytes in 1_048_576..=1_099_511_627_776, "Bytes of log after which the state is checkpointed and the log purged."),
    key!(Restart, storage.resident_bytes_max in 1_048_576..=1_099_511_627_776, "Bytes of queued message bodies kept in memory; the rest is on disk only."),
    key!(Restart, queue.leases: super::LeaseHome, "Where the lease of this node and all its sessions and channel members is: embedded, in the groups of the node; etcd, also in an etcd cluster, by a build with the feature etcd. Give all nodes the same."),
    key!(Restart, queue.etcd_endpoints: Optional<super::Urls>, "Client URLs of all members of the etcd cluster, version 3.4 or newer."),
    key!(Restart, queue.etcd_namespace: Name, "What every key in etcd begins with. Nodes of one cluster share it."),
    key!(Restart, queue.etcd_ttl_s in 5..=90, "Seconds for which the lease of a node outlives its last keepalive; the node stops serving a fifth of it earlier, 5 s at most."),
    key!(Restart, queue.etcd_tls_ca: Optional<Path>, "PEM file with the authorities that sign etcd's certificates; needed with https URLs."),
    key!(Restart, queue.etcd_tls_cert: Optional<Path>, "PEM file with the certificate of this node for etcd, where etcd asks for one."),
    key!(Restart, queue.etcd_tls_key: Optional<Path>, "PEM file with its private key."),
    key!(Restart, queue.etcd_user: Optional<Name>, "User name, where etcd asks for one."),
    key!(Restart, queue.etcd_password_file: Optional<Path>, "File with the password of that user; blanks and line ends around it do not count."),
    key!(Live, auth.anonymous: Optional<bool>, "Let clients in that give no credentials. Unset: only while no authenticator is configured, and only on loopback."),
    key!(Live, auth.password_file: Optional<Path>, "Users and hashed passwords, in the format of mosquitto_passwd."),
    key!(Live, auth.certificate_user: bool, "A verified client certificate logs its common name in, without a password."),
    key!(Live, auth.cache_s in 0..=86_400, "Seconds for which a password that was right is not hashed again; 0: always hash."),
    key!(Live, auth.cache_entries_max in 0..=10_000_000, "Passwords remembered at most (as keyed digests)."),
    key!(Restart, auth.hash_threads in 1..=256, "Threads that check passwords."),
    key!(Restart, auth.hash_queue_max in 1..=1_000_000, "Clients that may wait for a password check, served in turn by source address; at the limit one of the address that has most waiting is told that the server is busy."),
    key!(Live, auth.jwt_secret_file: Optional<Path>, "File with the secret of HS256 tokens, at least 32 bytes; blanks and line ends around it do not count. Unset, like the two below: tokens are not taken."),
    key!(Live, auth.jwt_public_key_file: Optional<Path>, "PEM file with public keys of RS256 (RSA, 2048 to 8192 bits) and ES256 (P-256) tokens."),
    key!(Live, auth.jwt_jwks_file: Optional<Path>, "JSON Web Key Set with keys for HS256, RS256 and ES256; a token that names a key id is held against that key."),
    key!(Live, auth.jwt_issuer: Optional<Name>, "What iss of a token must be."),
    key!(Live, auth.jwt_audience: Optional<Name>, "What aud of a token must be or contain. Unset: tokens with an aud are refused."),
    key!(Live, auth.jwt_user_claim: Name, "Claim that names the user."),
    key!(Live, auth.jwt_leeway_s in 0..=600, "Seconds by which the clocks of this node and of who signs tokens may differ: exp counts so much later, nbf so much earlier."),
    key!(Live, auth.jwt_lifetime_max_s in 0..=4_294_967_295, "Seconds from now on after which exp of a token may not lie; one that asks for more is refused. 0: any exp is taken."),
    key!(Live, auth.scram_file: Optional<Path>, "Users and verifiers for SCRAM-SHA-256 (MQTT 5 enhanced authentication); exactmq user add --scram writes it."),
    key!(Live, auth.http_url: Optional<super::HookUrl>, "Service that is asked by POST who a client is that no file and no token decides about: README \"Who decides\". Plain http on loopback only."),
    key!(Live, auth.http_ca_file: Optional<Path>, "PEM file with the authorities that sign the certificates of the services behind https URLs, also that of acl.http_url."),
    key!(Live, auth.http_timeout_ms in 50..=30_000, "Milliseconds that a service may take, waiting for its turn included; then the client is refused (0x88)."),
    key!(Live, auth.http_cache_s in 0..=86_400, "Seconds for which an answer of a service is not asked for again; 0: always ask."),
    key!(Live, auth.http_in_flight_max in 1..=10_000, "Questions that a service is asked at a time; eight times as many may wait."),
    key!(Live, acl.file: Optional<Path>, "Access rules, in the format of mosquitto's acl_file. Unset: everything is allowed."),
    key!(Live, acl.http_url: Optional<super::HookUrl>, "Service that is asked by POST, once a CONNECT, what a client may do: its rules join those of acl.file. Uses auth.http_*."),
    key!(Live, acl.subscribe: super::SubscribeRule, "Grant a SUBSCRIBE when a read rule covers its filter, or already when one overlaps it. Deliveries are checked either way."),
    key!(Restart, limits.subscriptions_max in 1..=1_000_000, "Subscriptions of one session."),
    key!(Restart, limits.filters_max in 1..=65_535, "Topic filters in one SUBSCRIBE or UNSUBSCRIBE."),
    key!(Restart, limits.retained_messages_max in 0..=1_000_000_000, "Retained messages of the node, spread evenly over cluster.groups (rounded up): a new topic whose group is full is refused, with 0x97 for MQTT 5; from a 3.1.1 client, with QoS 0 and from a Will the message is delivered and not retained. A value can always be replaced."),
    key!(Restart, limits.retained_bytes_max in 0..=268_435_455, "Bytes of the payload of one retained message."),
    key!(Restart, limits.user_connections_max in 0..=1_000_000, "Clients of one user that may be connected to this node; one more is refused (0x97, MQTT 3.1.1: 3). Anonymous clients together are one user, in all user_ limits. 0: any number."),
    key!(Restart, limits.user_sessions_max in 0..=1_000_000_000, "Sessions of one user, connected or kept, on all nodes; a CONNECT for one more is refused (0x97, MQTT 3.1.1: 3). 0: any number."),
    key!(Restart, limits.user_subscriptions_max in 0..=1_000_000_000, "Subscriptions of one user: of its durable sessions, and of its other clients on this node; one more is refused (0x97, MQTT 3.1.1: 0x80). 0: any number."),
    key!(Restart, limits.user_publish_rate_max in 0..=1_000_000_000, "Messages a second that the clients of one user may publish on this node together, with a burst of one second: above it they are not read until they may go on. 0: any number."),
    key!(Restart, limits.user_publish_bytes_rate_max in 0..=1_099_511_627_776, "The same in bytes of topics and payloads. 0: any number."),
    key!(Restart, limits.user_inbox_messages_max in 0..=1_000_000_000, "Messages queued for all durable sessions of one user together; what is above it is dropped and counted as user_quota. 0: any number."),
    key!(Restart, limits.user_inbox_bytes_max in 0..=1_099_511_627_776, "The same in bytes. 0: any number."),
    key!(Live, limits.memory_max_bytes in 0..=1_099_511_627_776, "Memory that this process may use: the node protects itself as it comes near (operations guide, Overload). 0: what its control group or the machine has."),
    key!(Restart, admin.address: super::AdminAddress, "Where the admin API listens."),
    key!(Restart, admin.plain: bool, "Let other machines call an admin API without TLS: whoever can listen on the way then has the token."),
    key!(Live, admin.tls_cert: Optional<Path>, "PEM file with the certificate chain of the admin API; with it and admin.tls_key it speaks https. A reload takes new files; from http to https it takes a restart."),
    key!(Live, admin.tls_key: Optional<Path>, "PEM file with its private key."),
    key!(Live, admin.tls_client_ca: Optional<Path>, "PEM file with the authorities that sign the certificates of callers: from other machines nobody without one is let in, token or not."),
    key!(Restart, admin.token_file: Optional<Path>, "Bearer token of the admin API; unset: admin.token in the data directory, written at the first start."),
    key!(Live, admin.tokens_file: Optional<Path>, "Further tokens, each with a name and a role; exactmq token add writes it. Unset: admin.tokens in the data directory, when it is there."),
    key!(Restart, admin.metrics_token: bool, "Ask for the token on /metrics too. No series names a client, a user or a topic."),
    key!(Restart, admin.audit_bytes_max in 65_536..=1_099_511_627_776, "Bytes of audit.jsonl before it becomes audit.1.jsonl, replacing the one before."),
    key!(Live, log.level: super::LogLevel, "How much is logged."),
    key!(Restart, log.format: super::LogFormat, "One line of text or one JSON object an event."),
    key!(Live, log.slow_ms in 0..=600_000, "Commits, takeovers and calls of the admin API that take at least so many milliseconds are logged, a few a second, and counted; 0: none."),
    key!(Restart, log.otlp_endpoint: Optional<super::HookUrl>, "Where spans of CONNECT, End, retirement and calls of the admin API are sent, in OTLP/HTTP, for example \"http://127.0.0.1:4318/v1/traces\"; plain http, by a build with the feature otel. They name ClientIDs."),
    key!(Restart, log.otlp_sample_ratio: super::Ratio, "Share of them that is sent."),
];

/// Every key of a `[listener.NAME]`.
pub(super) static LISTENER_KEYS: &[Key<Listener>] = &[
    key!(Restart, protocol: super::Protocol, "MQTT over TCP, TLS, WebSocket or WebSocket over TLS."),
    key!(Restart, address: Address, "Where to listen. Anything but loopback needs an authenticator or auth.anonymous = true."),
    key!(Restart, advertise: Optional<super::HostPort>, "Where clients reach this listener. Nodes that stop tell their MQTT 5 clients the address of another node's listener of the same name."),
    key!(Restart, namespace: Name, "Part of the name of every session: ClientIDs of different namespaces never meet. Topics and retained messages are not separated, so all listeners, of all nodes, must have the same one."),
    key!(Restart, max_connections in 1..=1_000_000, "Connections of this listener."),
    key!(Restart, connections_per_address_max in 0..=1_000_000, "Of them from one address, or one IPv6 /64 (behind proxy_protocol: the client's); more are closed at once. 0: any number."),
    key!(Restart, connect_rate_max in 0..=1_000_000, "Sockets let in a second, with a burst of one second. More wait, unread and in turn by address; who waited for connect_timeout_ms, or is one too many of 1,024, is closed. 0: any number."),
    key!(Restart, publish_rate_max in 0..=1_000_000_000, "Messages a second that one connection may publish, with a burst of one second: above it the connection is not read until it may go on; nothing is dropped. 0: any number."),
    key!(Restart, publish_bytes_rate_max in 0..=1_099_511_627_776, "The same in bytes of topics and payloads. 0: any number."),
    key!(Restart, proxy_protocol: bool, "Every connection must begin with a PROXY protocol v2 header, which names the client's address."),
    key!(Restart, proxy_certificate_user: bool, "The PROXY header also names the client certificate that the proxy verified, which logs in without a password (auth.certificate_user). Whoever reaches the listener past the proxy can be anybody."),
    key!(Live, tls_cert: Optional<Path>, "PEM file with the certificate chain (tls and wss)."),
    key!(Live, tls_key: Optional<Path>, "PEM file with the private key (tls and wss)."),
    key!(Live, tls_client_ca: Optional<Path>, "PEM file with the authorities that sign client certificates."),
    key!(Live, tls_client_auth: super::ClientAuth, "Whether a client must show a certificate."),
    key!(Restart, packet_size_max in 256..=268_435_460, "Bytes of the largest packet taken from a client."),
    key!(Restart, connect_packet_size_max in 256..=268_435_460, "Bytes of the largest CONNECT, the only packet taken before a client is known."),
    key!(Restart, connect_timeout_ms in 100..=60_000, "Milliseconds from the accepted socket to a complete CONNECT."),
];

/// Every key of a `[bridge.NAME]`. All of them change with SIGHUP: a bridge that differs begins anew.
pub(super) static BRIDGE_KEYS: &[Key<Bridge>] = &[
    key!(Live, address: super::Addresses, "Where the other broker is, HOST:PORT; of several, the next one is tried when one fails."),
    key!(Live, protocol: super::BridgeProtocol, "MQTT over TCP or TLS."),
    key!(Live, tls_ca: Optional<Path>, "PEM file with the authorities that sign the certificate of the other broker (tls)."),
    key!(Live, tls_cert: Optional<Path>, "PEM file with the certificate of this broker, where the other one asks for one."),
    key!(Live, tls_key: Optional<Path>, "PEM file with its private key."),
    key!(Live, tls_server_name: Optional<Name>, "Name that the certificate must be for; unset: the host of the address."),
    key!(Live, version: super::MqttVersion, "MQTT that the other broker is spoken to; \"3.1.1\" asks for mosquitto's bridge protocol first."),
    key!(Live, client_id: Optional<Name>, "ClientID at the other broker, the same from all nodes; unset: exactmq-, a part of the identity of this cluster, and the name of the bridge."),
    key!(Live, username: Optional<Name>, "User at the other broker."),
    key!(Live, password_file: Optional<Path>, "File with the password of that user; blanks and line ends around it do not count. Read at every start and reload."),
    key!(Live, clean_start: bool, "Nothing waits while the brokers do not reach each other, on either side. False: both sides keep a session."),
    key!(Live, session_expiry_s in 0..=u32::MAX, "Seconds for which the other broker (MQTT 5) is asked to keep the session; 4294967295: for ever. Here session.expiry_max_s holds."),
    key!(Live, keep_alive_s in 5..=65_535, "Keep alive towards the other broker, in seconds."),
    key!(Live, inflight_max in 1..=65_534, "QoS 1 and 2 messages under way each direction, at most what the two brokers allow."),
    key!(Live, connect_timeout_ms in 100..=60_000, "Milliseconds from dialling to the answer to CONNECT."),
    key!(Live, reconnect_min_ms in 10..=600_000, "Milliseconds of the first pause between two attempts; it doubles, and a random part of up to a half is left out."),
    key!(Live, reconnect_max_ms in 10..=3_600_000, "Milliseconds of the longest one."),
    key!(Live, topics: super::Topics, "What is exchanged, as mosquitto's topic lines say it: local_prefix and filter name it here, remote_prefix and filter at the other broker. Defaults: direction out, qos 1, prefixes empty; an empty filter stands for the one topic that the prefixes name."),
];

impl Setting for EngineKind {
    fn allowed() -> String {
        "\"redb\", \"sled\", \"memory\"".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Text(text) | Raw::Loose(text) => match text.trim() {
                "redb" => Some(Self::Redb),
                "sled" => Some(Self::Sled),
                "memory" => Some(Self::Memory),
                _ => None,
            },
            _ => None,
        }
    }
    fn show(&self) -> Option<String> {
        let word = match self {
            Self::Redb => "redb",
            Self::Sled => "sled",
            Self::Memory => "memory",
        };
        Some(format!("\"{word}\""))
    }
}
