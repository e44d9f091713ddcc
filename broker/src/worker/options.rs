//! What the configuration says about sessions, in the form that the hot path reads.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::config::Config;
use crate::metrics::ProtocolLabel;

/// Limits and switches of the data plane.
#[derive(Debug, Clone)]
pub struct Options {
    /// Receive Maximum of the server.
    pub receive_maximum: u16,
    /// Exchanges towards one client at most, whatever it allows.
    pub inflight_max: u16,
    /// Open scopes of one owner; when they are used up, its socket is not read.
    pub operations_max: u32,
    /// Longest Session Expiry Interval granted, seconds; `u32::MAX`: no cap.
    pub expiry_max_sec: u32,
    /// Longest keep alive, seconds; 0: no cap.
    pub keep_alive_max_sec: u16,
    /// Subscriptions of one session.
    pub subscriptions_max: usize,
    /// Filters in one SUBSCRIBE or UNSUBSCRIBE.
    pub filters_max: usize,
    /// Bytes of one retained payload.
    pub retained_bytes_max: usize,
    /// Whether QoS 0 messages for offline durable sessions are kept.
    pub queue_qos0_offline: bool,
    /// How long a CONNECT may take.
    pub connect_timeout_ms: u64,
    /// Seconds between publications of `$SYS` topics; 0: none.
    pub sys_interval_sec: u32,
    /// Namespace of all sessions.
    pub namespace: Arc<str>,
    /// Namespace and protocol of each listener, by its name.
    pub listeners: HashMap<Arc<str>, (Arc<str>, ProtocolLabel)>,
}

impl Options {
    /// Namespace of the sessions that come in through `listener`, and what it speaks.
    pub(super) fn listener(&self, listener: &str) -> (Arc<str>, ProtocolLabel) {
        self.listeners
            .get(listener)
            .map_or_else(|| (self.namespace.clone(), ProtocolLabel::Tcp), Clone::clone)
    }
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Self {
        Self {
            receive_maximum: config.session.receive_maximum,
            inflight_max: config.session.inflight_max,
            operations_max: config.owner.operations,
            expiry_max_sec: config.session.expiry_max_s,
            keep_alive_max_sec: config.session.keep_alive_max_s,
            subscriptions_max: config.limits.subscriptions_max,
            filters_max: config.limits.filters_max,
            retained_bytes_max: config.limits.retained_bytes_max,
            queue_qos0_offline: config.session.queue_qos0_offline,
            connect_timeout_ms: config.owner.connect_timeout_ms,
            sys_interval_sec: config.node.sys_interval_s,
            namespace: config.namespace(),
            listeners: config
                .listeners
                .iter()
                .map(|(name, listener)| {
                    let (namespace, protocol) = (Arc::clone(&listener.namespace), listener.protocol.into());
                    (Arc::clone(name), (namespace, protocol))
                })
                .collect(),
        }
    }
}
