//! The Prometheus page: sums over the shards, every label value of every family.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::labels::Label;
use super::{
    AuthOutcome, BUCKETS_NS, BridgeLabel, CloseReason, ConnectOutcome, Direction, DropReason, EndOutcome,
    Histogram, HomeLabel, IsolationOutcome, LeaseLabel, Level, Metrics, NodeLeaseLabel, OwnerState,
    PacketLabel, PauseReason, ProtocolLabel, QosLabel, RaftState, SessionLabel, Shard, SlowLabel, StageLabel,
    StandingLabel, SweepEvent, TakeoverOutcome, TurnedLabel, WillEvent, WillState,
};

const BYTES_EXPECTED: usize = 32 << 10;

pub(super) fn render(metrics: &Metrics) -> String {
    let mut page = Page { text: String::with_capacity(BYTES_EXPECTED), metrics };
    page.traffic();
    page.connections();
    page.ownership();
    page.store();
    page.queues();
    page.bridges();
    page.workers();
    page.watch();
    page.text
}

struct Page<'a> {
    text: String,
    metrics: &'a Metrics,
}

impl Page<'_> {
    fn traffic(&mut self) {
        self.directed::<QosLabel>(
            "exactmq_messages_total",
            "Messages from publishers and to subscribers.",
            "qos",
            |shard, d, q| &shard.messages[d][q],
        );
        self.directed::<PacketLabel>(
            "exactmq_packets_total",
            "MQTT packets from clients and queued for clients.",
            "type",
            |shard, d, p| &shard.packets[d][p],
        );
        self.directed::<PacketLabel>(
            "exactmq_packet_bytes_total",
            "Bytes of MQTT packets from clients and queued for clients.",
            "type",
            |shard, d, p| &shard.packet_bytes[d][p],
        );
        self.counter::<DropReason>(
            "exactmq_messages_dropped_total",
            "Messages dropped.",
            "reason",
            |shard, i| &shard.dropped[i],
        );
        self.counter::<PauseReason>(
            "exactmq_publishers_paused_total",
            "Times that a connection was not read because of what it publishes.",
            "reason",
            |shard, i| &shard.paused[i],
        );
    }

    fn connections(&mut self) {
        let name = "exactmq_sockets_turned_away_total";
        self.head(name, "Sockets closed before their CONNECT.", "counter");
        for (cell, word) in self.metrics.gauges.turned.iter().zip(TurnedLabel::words()) {
            let value = cell.load(Ordering::Relaxed);
            self.line(format_args!("{name}{{reason=\"{word}\"}} {value}"));
        }
        self.head("exactmq_connections", "Open connections.", "gauge");
        for (index, word) in ProtocolLabel::words().enumerate() {
            // A close on another shard may be summed before its open.
            let open =
                self.sum(|shard| &shard.opened[index]).saturating_sub(self.sum(|shard| &shard.closed[index]));
            self.line(format_args!("exactmq_connections{{protocol=\"{word}\"}} {open}"));
        }
        self.counter::<ProtocolLabel>(
            "exactmq_connections_opened_total",
            "Connections accepted.",
            "protocol",
            |shard, i| &shard.opened[i],
        );
        self.counter::<CloseReason>(
            "exactmq_connections_closed_total",
            "Connections closed.",
            "reason",
            |shard, i| &shard.close_reasons[i],
        );
        self.counter::<ConnectOutcome>(
            "exactmq_connects_total",
            "Answers to CONNECT.",
            "outcome",
            |shard, i| &shard.connects[i],
        );
        self.counter::<AuthOutcome>(
            "exactmq_authentications_total",
            "Authentications.",
            "outcome",
            |shard, i| &shard.auth[i],
        );
    }

    fn ownership(&mut self) {
        self.counter::<SweepEvent>(
            "exactmq_owner_sweep_total",
            "Work of the owner sweeper.",
            "event",
            |shard, i| &shard.sweeps[i],
        );
        self.gauges::<OwnerState>(
            "exactmq_owner_work",
            "The owner registry.",
            "state",
            &self.metrics.gauges.owners,
        );
        self.counter::<EndOutcome>("exactmq_end_total", "Results of End.", "outcome", |shard, i| {
            &shard.ends[i]
        });
        self.histogram::<TakeoverOutcome>(
            "exactmq_takeover_seconds",
            "CONNECT that met an active owner, until answered.",
            "outcome",
            |shard, i| &shard.takeovers[i],
        );
        self.histogram::<IsolationOutcome>(
            "exactmq_isolation_seconds",
            "Isolation of an owner.",
            "outcome",
            |shard, i| &shard.isolations[i],
        );
        self.gauges::<WillState>(
            "exactmq_will_backlog",
            "Wills that are not settled.",
            "state",
            &self.metrics.gauges.wills,
        );
        self.counter::<WillEvent>("exactmq_will_total", "What became of Wills.", "event", |shard, i| {
            &shard.wills[i]
        });
    }

    fn store(&mut self) {
        let metrics = self.metrics;
        let gauges = &metrics.gauges;
        self.gauges::<SessionLabel>("exactmq_sessions", "Session rows.", "state", &gauges.sessions);
        let single = [
            ("exactmq_subscriptions", "Subscriptions in the routing index.", &gauges.subscriptions),
            ("exactmq_retained_messages", "Retained messages.", &gauges.retained),
            ("exactmq_inboxes", "Inboxes of durable sessions, ended ones until reclaimed.", &gauges.inboxes),
            ("exactmq_inbox_messages", "Messages queued for durable sessions.", &gauges.inbox_messages),
            ("exactmq_inbox_bytes", "Bytes queued for durable sessions.", &gauges.inbox_bytes),
            ("exactmq_messages_stored", "Message bodies stored, each once.", &gauges.messages_stored),
            (
                "exactmq_messages_resident_bytes",
                "Bytes of message bodies in memory.",
                &gauges.messages_resident_bytes,
            ),
        ];
        self.single_gauges(&single);
        self.single_histogram(
            "exactmq_commit_seconds",
            "From a worker's proposal to the store until its reply.",
            |shard| &shard.commits,
        );
        self.head(
            "exactmq_fsync_seconds",
            "Fsyncs of the log, each with what they made durable together.",
            "histogram",
        );
        self.histogram_of("exactmq_fsync_seconds", &gauges.fsyncs);
        self.head("exactmq_raft_state", "1 for the role of this node in a group.", "gauge");
        for (group, cells) in metrics.raft.iter().enumerate() {
            for (index, word) in RaftState::words().enumerate() {
                let value = cells[index].load(Ordering::Relaxed);
                self.line(format_args!("exactmq_raft_state{{group=\"{group}\",state=\"{word}\"}} {value}"));
            }
        }
        self.head("exactmq_raft_log_index", "Last entry of a group's log on this node.", "gauge");
        for (group, cell) in metrics.raft_log.iter().enumerate() {
            let index = cell.load(Ordering::Relaxed);
            self.line(format_args!("exactmq_raft_log_index{{group=\"{group}\"}} {index}"));
        }
    }

    /// Name, help and value of each.
    fn single_gauges(&mut self, gauges: &[(&str, &str, &AtomicU64)]) {
        for (name, help, gauge) in gauges {
            self.head(name, help, "gauge");
            self.line(format_args!("{name} {}", gauge.load(Ordering::Relaxed)));
        }
    }

    fn queues(&mut self) {
        let gauges = &self.metrics.gauges;
        let single = [
            ("exactmq_queue_channels", "Channels of the queue layer.", &gauges.queue_channels),
            ("exactmq_queue_subchannels", "Sub-channels of MPMC channels.", &gauges.queue_subchannels),
            ("exactmq_queue_members", "Producers and consumers of channels.", &gauges.queue_members),
            ("exactmq_queue_messages", "Messages in channels, not acknowledged.", &gauges.queue_messages),
            ("exactmq_queue_bytes", "Bytes in channels, not acknowledged.", &gauges.queue_bytes),
            (
                "exactmq_queue_reclaimable",
                "Channels that wait for their reclamation.",
                &gauges.queue_reclaimable,
            ),
        ];
        self.single_gauges(&single);
        self.gauges::<LeaseLabel>("exactmq_leases", "Leases of the queue layer.", "state", &gauges.leases);
        self.gauges::<StandingLabel>(
            "exactmq_lease_holds",
            "Leases that this process keeps alive.",
            "standing",
            &gauges.holds,
        );
        self.head("exactmq_leases_lost_total", "Leases that this process lost.", "counter");
        let lost = gauges.leases_lost.load(Ordering::Relaxed);
        self.line(format_args!("exactmq_leases_lost_total {lost}"));
        let lag = Seconds(gauges.keepalive_lag_ns.load(Ordering::Relaxed));
        let help =
            "Since the last keepalive that succeeded, the longest of all leases that this process holds.";
        self.head("exactmq_lease_keepalive_lag_seconds", help, "gauge");
        self.line(format_args!("exactmq_lease_keepalive_lag_seconds {lag}"));
        self.head("exactmq_node_lease", "1 for how the lease stands under which this node serves.", "gauge");
        for (of_home, home) in gauges.node_lease.iter().zip(HomeLabel::words()) {
            for (cell, state) in of_home.iter().zip(NodeLeaseLabel::words()) {
                let value = cell.load(Ordering::Relaxed);
                self.line(format_args!("exactmq_node_lease{{backend=\"{home}\",state=\"{state}\"}} {value}"));
            }
        }
        self.histogram::<StageLabel>(
            "exactmq_queue_stage_seconds",
            "Stages of messages on their way through inboxes; one message at a time is measured per connection.",
            "stage",
            |shard, i| &shard.stages[i],
        );
    }

    fn bridges(&mut self) {
        let gauges = &self.metrics.gauges;
        self.gauges::<BridgeLabel>("exactmq_bridges", "Bridges to other brokers.", "state", &gauges.bridges);
        self.counter::<Direction>(
            "exactmq_bridge_messages_total",
            "Messages that the other side of a bridge took.",
            "direction",
            |shard, i| &shard.bridge_messages[i],
        );
        self.counter::<Direction>(
            "exactmq_bridge_dropped_total",
            "Messages that the other side of a bridge did not take for good.",
            "direction",
            |shard, i| &shard.bridge_dropped[i],
        );
    }

    fn workers(&mut self) {
        let workers = &self.metrics.shards[..self.metrics.shards.len() - 1];
        self.head("exactmq_worker_busy_seconds_total", "Time for which a worker did work.", "counter");
        for (index, shard) in workers.iter().enumerate() {
            let seconds = Seconds(shard.busy_ns.load(Ordering::Relaxed));
            self.line(format_args!("exactmq_worker_busy_seconds_total{{worker=\"{index}\"}} {seconds}"));
        }
        self.head("exactmq_worker_mailbox_depth", "Entries that wait in a worker's mailbox.", "gauge");
        for (index, shard) in workers.iter().enumerate() {
            let depth = shard.mailbox_depth.load(Ordering::Relaxed);
            self.line(format_args!("exactmq_worker_mailbox_depth{{worker=\"{index}\"}} {depth}"));
        }
        self.head("exactmq_worker_lag_seconds", "How late a worker was lately, at most.", "gauge");
        for (index, shard) in workers.iter().enumerate() {
            let seconds = Seconds(shard.lag_ns.load(Ordering::Relaxed));
            self.line(format_args!("exactmq_worker_lag_seconds{{worker=\"{index}\"}} {seconds}"));
        }
        let gauges = &self.metrics.gauges;
        self.gauges::<Level>(
            "exactmq_overload_level",
            "1 for how loaded the node is.",
            "level",
            &gauges.levels,
        );
        self.single_gauges(&[
            (
                "exactmq_memory_used_bytes",
                "Memory that the process has for itself, without pages of files.",
                &gauges.memory_used_bytes,
            ),
            ("exactmq_memory_max_bytes", "Memory that it may have.", &gauges.memory_max_bytes),
        ]);
    }

    fn watch(&mut self) {
        let gauges = &self.metrics.gauges;
        self.head("exactmq_slow_operations_total", "Operations that took at least log.slow_ms.", "counter");
        for (cell, word) in gauges.slow.iter().zip(SlowLabel::words()) {
            let value = cell.load(Ordering::Relaxed);
            self.line(format_args!("exactmq_slow_operations_total{{operation=\"{word}\"}} {value}"));
        }
        let [sent, dropped] = &gauges.spans;
        for (name, help, cell) in [
            ("exactmq_trace_spans_total", "Spans that the collector took.", sent),
            ("exactmq_trace_spans_dropped_total", "Spans that were dropped.", dropped),
        ] {
            self.head(name, help, "counter");
            self.line(format_args!("{name} {}", cell.load(Ordering::Relaxed)));
        }
        self.single_gauges(&[("exactmq_event_readers", "Readers of /v1/events.", &gauges.event_readers)]);
        let name = "exactmq_event_readers_dropped_total";
        self.head(name, "Readers of /v1/events that were too slow.", "counter");
        let dropped = gauges.event_readers_dropped.load(Ordering::Relaxed);
        self.line(format_args!("{name} {dropped}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(line);
        self.text.push('\n');
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn sum(&self, cell: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        self.metrics.shards.iter().fold(0, |sum, shard| sum.wrapping_add(cell(shard).load(Ordering::Relaxed)))
    }

    fn counter<L: Label>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        cell: impl Fn(&Shard, usize) -> &AtomicU64,
    ) {
        self.head(name, help, "counter");
        for (index, word) in L::words().enumerate() {
            let value = self.sum(|shard| cell(shard, index));
            self.line(format_args!("{name}{{{label}=\"{word}\"}} {value}"));
        }
    }

    fn directed<L: Label>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        cell: impl Fn(&Shard, usize, usize) -> &AtomicU64,
    ) {
        self.head(name, help, "counter");
        for (d, direction) in Direction::words().enumerate() {
            for (index, word) in L::words().enumerate() {
                let value = self.sum(|shard| cell(shard, d, index));
                self.line(format_args!("{name}{{direction=\"{direction}\",{label}=\"{word}\"}} {value}"));
            }
        }
    }

    fn gauges<L: Label>(&mut self, name: &str, help: &str, label: &str, cells: &[AtomicU64]) {
        self.head(name, help, "gauge");
        for (cell, word) in cells.iter().zip(L::words()) {
            self.line(format_args!("{name}{{{label}=\"{word}\"}} {}", cell.load(Ordering::Relaxed)));
        }
    }

    fn histogram<L: Label>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        of: impl Fn(&Shard, usize) -> &Histogram,
    ) {
        self.head(name, help, "histogram");
        for (index, word) in L::words().enumerate() {
            self.histogram_lines(name, &format!("{label}=\"{word}\""), |shard| of(shard, index));
        }
    }

    fn single_histogram(&mut self, name: &str, help: &str, of: impl Fn(&Shard) -> &Histogram) {
        self.head(name, help, "histogram");
        self.histogram_lines(name, "", of);
    }

    fn histogram_lines(&mut self, name: &str, labels: &str, of: impl Fn(&Shard) -> &Histogram) {
        let buckets = std::array::from_fn(|index| self.sum(|shard| &of(shard).buckets[index]));
        let sum_ns = self.sum(|shard| &of(shard).sum_ns);
        self.buckets(name, labels, &buckets, sum_ns);
    }

    /// One that is not sharded.
    fn histogram_of(&mut self, name: &str, histogram: &Histogram) {
        let buckets = std::array::from_fn(|index| histogram.buckets[index].load(Ordering::Relaxed));
        self.buckets(name, "", &buckets, histogram.sum_ns.load(Ordering::Relaxed));
    }

    fn buckets(&mut self, name: &str, labels: &str, buckets: &[u64; BUCKETS_NS.len() + 1], sum_ns: u64) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut cumulative = 0u64;
        for (bound, count) in BUCKETS_NS.iter().zip(buckets) {
            cumulative += count;
            let bound = Seconds(*bound);
            self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {cumulative}"));
        }
        cumulative += buckets[BUCKETS_NS.len()];
        let sum = Seconds(sum_ns);
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        self.line(format_args!("{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {cumulative}"));
        self.line(format_args!("{name}_sum{braced} {sum}"));
        self.line(format_args!("{name}_count{braced} {cumulative}"));
    }
}

/// Nanoseconds shown as decimal seconds, exactly.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, fraction) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{fraction:09}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}
