//! What the configuration says about sessions, in the form that the hot path reads.

use std::sync::Arc;

use hashbrown::HashMap;

use super::pace::Rates;
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
    /// Longest Will Delay Interval granted, seconds.
    pub will_delay_max_sec: u32,
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
    /// Each listener, by its name.
    pub listeners: HashMap<Arc<str>, Entrance>,
}

/// A listener as its sessions see it.
#[derive(Debug, Clone)]
pub struct Entrance {
    pub namespace: Arc<str>,
    pub protocol: ProtocolLabel,
    /// What one connection may publish.
    pub rates: Rates,
}

impl Options {
    /// How sessions come in through `listener`.
    pub(super) fn listener(&self, listener: &str) -> Entrance {
        let unknown = || Entrance {
            namespace: Arc::clone(&self.namespace),
            protocol: ProtocolLabel::Tcp,
            rates: Rates::default(),
        };
        self.listeners.get(listener).map_or_else(unknown, Clone::clone)
    }
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Self {
        Self {
            receive_maximum: config.session.receive_maximum,
            inflight_max: config.session.inflight_max,
            operations_max: config.owner.operations,
            expiry_max_sec: config.session.expiry_max_s,
            will_delay_max_sec: config.session.will_delay_max_s,
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
                    let entrance = Entrance {
                        namespace: Arc::clone(&listener.namespace),
                        protocol: listener.protocol.into(),
                        rates: Rates {
                            messages_per_sec: u64::from(listener.publish_rate_max),
                            bytes_per_sec: listener.publish_bytes_rate_max,
                        },
                    };
                    (Arc::clone(name), entrance)
                })
                .collect(),
        }
    }
}
