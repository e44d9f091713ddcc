//! `$SYS` topics, named as mosquitto names them, and those of the queues (`broker/MONITOR.md`): figures of this node, kept in memory only, for whoever subscribes to
//! `$SYS/#`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use session::message::Message;
use session::topic;

use super::retained::RetainedPage;
use super::system::SystemPublisher;
use crate::metrics::Level;
use crate::shared::Queued;

/// Figures of the node at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub uptime_sec: u64,
    pub clients_connected: u64,
    /// Durable sessions without a connection.
    pub clients_disconnected: u64,
    pub clients_expired: u64,
    pub subscriptions: u64,
    pub retained: u64,
    /// Messages in inboxes.
    pub stored: u64,
    pub stored_bytes: u64,
    /// Inboxes of durable sessions.
    pub inboxes: u64,
    pub queued: Queued,
    pub publish_received: u64,
    pub publish_sent: u64,
    pub publish_dropped: u64,
    pub publish_bytes_received: u64,
    pub publish_bytes_sent: u64,
    /// How loaded the node is.
    pub level: Level,
}

/// The current `$SYS` messages.
#[derive(Debug, Default)]
pub struct SysTopics {
    topics: RwLock<BTreeMap<Arc<str>, Arc<Message>>>,
    load: RwLock<Load>,
}

/// Moving averages per minute over 1, 5 and 15 minutes, as mosquitto computes them.
#[derive(Debug, Default)]
struct Load {
    last: Option<Totals>,
    received: [f64; 3],
    sent: [f64; 3],
}

const MINUTES: [(f64, &str); 3] = [(1.0, "1min"), (5.0, "5min"), (15.0, "15min")];

impl SysTopics {
    /// What a subscriber of `filter` gets at first.
    pub(super) fn matching(&self, filter: &str) -> RetainedPage {
        let topics = self.topics.read();
        let mut found = Vec::new();
        topic::scan(&topics, filter, |_, message| {
            found.push(Arc::clone(message));
            true
        });
        found.into_iter().collect()
    }

    /// Takes new figures and sends those that changed.
    pub fn update(&self, totals: &Totals, interval: Duration, publisher: &SystemPublisher) {
        let mut figures = figures(totals);
        self.load.write().update(totals, interval, &mut figures);
        for (name, value) in figures {
            self.set(&name, &value, publisher);
        }
    }

    /// Takes one figure and sends it if it changed.
    pub fn set(&self, name: &str, value: &str, publisher: &SystemPublisher) {
        let topic = format!("$SYS/broker/{name}");
        let unchanged =
            self.topics.read().get(topic.as_str()).is_some_and(|old| old.payload() == value.as_bytes());
        if unchanged {
            return;
        }
        let mut message = Message::new(&topic, &[], value.as_bytes());
        message.retain = true;
        let message = Arc::new(message);
        self.topics.write().insert(topic.into(), Arc::clone(&message));
        publisher.publish_live(&message);
    }
}

impl Load {
    fn update(&mut self, totals: &Totals, interval: Duration, figures: &mut Vec<(String, String)>) {
        let minutes = interval.as_secs_f64() / 60.0;
        let last = self.last.replace(*totals).unwrap_or(*totals);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / minutes.max(f64::EPSILON);
        let received = rate(totals.publish_received, last.publish_received);
        let sent = rate(totals.publish_sent, last.publish_sent);
        for (at, (span, name)) in MINUTES.iter().enumerate() {
            let weight = (-minutes / span).exp();
            self.received[at] = received + weight * (self.received[at] - received);
            self.sent[at] = sent + weight * (self.sent[at] - sent);
            figures.push((format!("load/publish/received/{name}"), format!("{:.2}", self.received[at])));
            figures.push((format!("load/publish/sent/{name}"), format!("{:.2}", self.sent[at])));
        }
    }
}

fn figures(totals: &Totals) -> Vec<(String, String)> {
    let total = totals.clients_connected + totals.clients_disconnected;
    let counts = [
        ("clients/total", total),
        ("clients/connected", totals.clients_connected),
        ("clients/active", totals.clients_connected),
        ("clients/disconnected", totals.clients_disconnected),
        ("clients/inactive", totals.clients_disconnected),
        ("clients/expired", totals.clients_expired),
        ("subscriptions/count", totals.subscriptions),
        ("retained messages/count", totals.retained),
        ("store/messages/count", totals.stored),
        ("store/messages/bytes", totals.stored_bytes),
        ("messages/stored", totals.stored),
        ("publish/messages/received", totals.publish_received),
        ("publish/messages/sent", totals.publish_sent),
        ("publish/messages/dropped", totals.publish_dropped),
        ("publish/bytes/received", totals.publish_bytes_received),
        ("publish/bytes/sent", totals.publish_bytes_sent),
        ("messages/received", totals.publish_received),
        ("messages/sent", totals.publish_sent),
        ("bytes/received", totals.publish_bytes_received),
        ("bytes/sent", totals.publish_bytes_sent),
    ];
    let queued = &totals.queued;
    let queues = [
        ("queues/inboxes/count", totals.inboxes),
        ("queues/inboxes/messages", totals.stored),
        ("queues/inboxes/bytes", totals.stored_bytes),
        ("queues/channels/count", queued.space.channels),
        ("queues/channels/messages", queued.space.messages),
        ("queues/channels/bytes", queued.space.bytes),
        ("queues/members/count", queued.space.members),
        ("queues/leases/held", queued.leases.held),
        ("queues/leases/armed", queued.leases.armed),
        ("queues/leases/delegated", queued.leases.delegated),
        ("queues/leases/at risk", queued.holds.at_risk),
        ("queues/leases/lost", queued.holds.lost),
    ];
    let counts = counts.iter().chain(&queues);
    let mut figures: Vec<_> = counts.map(|(name, count)| ((*name).to_owned(), count.to_string())).collect();
    let node = &queued.node;
    figures.push(("lease/backend".to_owned(), node.home.word().to_owned()));
    figures.push(("lease/state".to_owned(), node.state.word().to_owned()));
    figures.push(("overload/level".to_owned(), totals.level.word().to_owned()));
    figures.push(("version".to_owned(), format!("exactmq version {}", env!("CARGO_PKG_VERSION"))));
    figures.push(("uptime".to_owned(), format!("{} seconds", totals.uptime_sec)));
    figures
}
