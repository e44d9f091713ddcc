//! Promises of the metrics page: closed sets, all series present at zero, nothing lost between shards.

use std::collections::BTreeMap;

use super::*;

fn series(page: &str) -> BTreeMap<&str, &str> {
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').expect("name value"))
        .collect()
}

/// Owner spec §13.
#[test]
fn all_series_exist_at_zero_and_stay_the_same_set() {
    let metrics = Metrics::new(2, 4);
    let page = metrics.render();
    let before = series(&page);
    assert!(before.values().all(|value| *value == "0"), "{page}");
    assert!(before.keys().all(|name| name.starts_with("exactmq_")));
    for name in [
        "exactmq_owner_sweep_total{event=\"turns\"}",
        "exactmq_owner_work{state=\"uncertain\"}",
        "exactmq_raft_state{group=\"3\",state=\"leader\"}",
        "exactmq_raft_log_index{group=\"3\"}",
        "exactmq_worker_busy_seconds_total{worker=\"1\"}",
        "exactmq_messages_dropped_total{reason=\"outbox_full\"}",
        "exactmq_takeover_seconds_bucket{outcome=\"done\",le=\"+Inf\"}",
        "exactmq_commit_seconds_count",
        "exactmq_queue_stage_seconds_count{stage=\"client\"}",
        "exactmq_queue_reclaimable",
        "exactmq_leases{state=\"armed\"}",
        "exactmq_lease_holds{standing=\"at_risk\"}",
        "exactmq_leases_lost_total",
        "exactmq_node_lease{backend=\"etcd\",state=\"at_risk\"}",
        "exactmq_lease_keepalive_lag_seconds",
        "exactmq_fsync_seconds_count",
        "exactmq_packets_total{direction=\"out\",type=\"pingresp\"}",
        "exactmq_packet_bytes_total{direction=\"in\",type=\"publish\"}",
        "exactmq_publishers_paused_total{reason=\"user_rate\"}",
        "exactmq_sockets_turned_away_total{reason=\"silent\"}",
        "exactmq_overload_level{level=\"critical\"}",
        "exactmq_worker_lag_seconds{worker=\"1\"}",
        "exactmq_memory_max_bytes",
    ] {
        assert!(before.contains_key(name), "{name} is missing");
    }
    record_everything(&metrics.worker(0).expect("free"));
    record_everything(&metrics.control());
    let page = metrics.render();
    assert_eq!(before.keys().collect::<Vec<_>>(), series(&page).keys().collect::<Vec<_>>());
}

fn record_everything<W: Writer>(recorder: &Recorder<W>) {
    for direction in Direction::ALL {
        QosLabel::ALL.iter().for_each(|qos| recorder.messages(*direction, *qos, 1));
        PacketLabel::ALL.iter().for_each(|packet| recorder.packets(*direction, *packet, 1, 2));
    }
    recorder.bridged((1, 1), (1, 1));
    DropReason::ALL.iter().for_each(|reason| recorder.dropped(*reason, 1));
    PauseReason::ALL.iter().for_each(|reason| recorder.pause(*reason));
    ProtocolLabel::ALL.iter().for_each(|protocol| recorder.connection_opened(*protocol));
    CloseReason::ALL.iter().for_each(|reason| recorder.connection_closed(ProtocolLabel::Tcp, *reason));
    ConnectOutcome::ALL.iter().for_each(|outcome| recorder.connect(*outcome));
    AuthOutcome::ALL.iter().for_each(|outcome| recorder.auth(*outcome));
    EndOutcome::ALL.iter().for_each(|outcome| recorder.end(*outcome));
    WillEvent::ALL.iter().for_each(|event| recorder.will(*event));
    SweepEvent::ALL.iter().for_each(|event| recorder.sweep(*event, 1));
    TakeoverOutcome::ALL.iter().for_each(|outcome| recorder.takeover(*outcome, 1));
    IsolationOutcome::ALL.iter().for_each(|outcome| recorder.isolation(*outcome, 1));
    recorder.commit(1);
    StageLabel::ALL.iter().for_each(|stage| recorder.stage(*stage, 1));
    recorder.set_busy(1);
}

#[test]
fn the_page_has_a_type_for_every_family_and_no_family_twice() {
    let page = Metrics::new(1, 1).render();
    let types: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let unique: std::collections::BTreeSet<_> = types.iter().collect();
    assert_eq!(unique.len(), types.len());
    for name in series(&page).keys() {
        let family = name.split('{').next().expect("a name");
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| family.strip_suffix(suffix));
        assert!(types.contains(&family) || base.is_some_and(|base| types.contains(&base)), "{family}");
    }
}

/// docs/metrics.md says what each family is, with its labels and every value of a closed one; and of nothing else.
#[test]
fn the_document_of_metrics_has_exactly_the_families() {
    let document = include_str!("../../../docs/metrics.md");
    let page = Metrics::new(1, 1).render();
    let mut labels: BTreeMap<&str, std::collections::BTreeSet<&str>> = BTreeMap::new();
    for family in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        labels.insert(family, std::collections::BTreeSet::new());
    }
    for name in series(&page).keys() {
        let (name, rest) = name.split_once('{').unwrap_or((name, "}"));
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let of = labels.get_mut(base.filter(|_| page.contains("histogram")).unwrap_or(name));
        let Some(of) = of else { continue };
        for (label, value) in rest.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('=')) {
            if label == "le" {
                continue;
            }
            of.insert(label);
            let value = value.trim_matches('"');
            let open = ["worker", "group"].contains(&label);
            assert!(open || document.contains(&format!("`{value}`")), "{name}: {label} {value} is not told");
        }
    }
    let mut told = Vec::new();
    for line in document.lines().filter(|line| line.starts_with("| `exactmq_")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let family = cells[1].trim_matches('`');
        let expected = labels.get(family).unwrap_or_else(|| panic!("{family} is not there"));
        let named: std::collections::BTreeSet<&str> = cells[2]
            .split(", ")
            .map(|label| label.trim_matches('`'))
            .filter(|label| !label.is_empty())
            .collect();
        assert_eq!(&named, expected, "{family}");
        told.push(family);
    }
    told.sort_unstable();
    assert_eq!(told, labels.keys().copied().collect::<Vec<_>>());
}

#[test]
fn counts_of_all_threads_add_up() {
    let metrics = Metrics::new(2, 1);
    std::thread::scope(|scope| {
        for index in 0..2 {
            let recorder = metrics.worker(index).expect("free");
            scope.spawn(move || (0..10_000).for_each(|_| recorder.messages(Direction::In, QosLabel::One, 1)));
            let control = metrics.control();
            scope.spawn(move || (0..10_000).for_each(|_| control.messages(Direction::In, QosLabel::One, 1)));
        }
    });
    let page = metrics.render();
    assert_eq!(series(&page)["exactmq_messages_total{direction=\"in\",qos=\"1\"}"], "40000");
}

#[test]
fn a_worker_recorder_is_handed_out_once() {
    let metrics = Metrics::new(1, 1);
    assert!(metrics.worker(0).is_some());
    assert!(metrics.worker(0).is_none() && metrics.worker(1).is_none());
}

#[test]
fn a_histogram_is_cumulative_and_bounds_are_inclusive() {
    let metrics = Metrics::new(1, 1);
    let control = metrics.control();
    [1, 50_000, 50_001, 6_000_000_000].iter().for_each(|ns| control.commit(*ns));
    let page = metrics.render();
    let series = series(&page);
    assert_eq!(series["exactmq_commit_seconds_bucket{le=\"0.00005\"}"], "2");
    assert_eq!(series["exactmq_commit_seconds_bucket{le=\"0.0001\"}"], "3");
    assert_eq!(series["exactmq_commit_seconds_bucket{le=\"5\"}"], "3");
    assert_eq!(series["exactmq_commit_seconds_bucket{le=\"+Inf\"}"], "4");
    assert_eq!(series["exactmq_commit_seconds_sum"], "6.000100002");
    assert_eq!(series["exactmq_commit_seconds_count"], "4");
}

#[test]
fn connections_are_opened_less_closed_and_gauges_are_the_last_sample() {
    let metrics = Metrics::new(1, 1);
    let (worker, control) = (metrics.worker(0).expect("free"), metrics.control());
    (0..3).for_each(|_| worker.connection_opened(ProtocolLabel::Tls));
    control.connection_closed(ProtocolLabel::Tls, CloseReason::Abnormal);
    metrics.set_raft_state(0, RaftState::Candidate);
    metrics.set_raft_state(0, RaftState::Leader);
    metrics.set_raft_state(9, RaftState::Leader);
    metrics.set_raft_log_index(0, 17);
    metrics.set_raft_log_index(9, 1);
    worker.set_busy(1_500_000_000);
    worker.set_busy(2_500_000_000);
    let mut fsyncs = storage::Durations::default();
    (fsyncs.buckets[0], fsyncs.buckets[16], fsyncs.sum_ns) = (5, 2, 12_000_100_000);
    metrics.set_fsyncs(&fsyncs);
    worker.packets(Direction::Out, PacketLabel::PubAck, 3, 12);
    control.packets(Direction::Out, PacketLabel::PubAck, 1, 4);
    let page = metrics.render();
    let series = series(&page);
    assert_eq!(series["exactmq_connections{protocol=\"tls\"}"], "2");
    assert_eq!(series["exactmq_connections_closed_total{reason=\"abnormal\"}"], "1");
    assert_eq!(series["exactmq_raft_state{group=\"0\",state=\"leader\"}"], "1");
    assert_eq!(series["exactmq_raft_state{group=\"0\",state=\"candidate\"}"], "0");
    assert_eq!(series["exactmq_raft_log_index{group=\"0\"}"], "17");
    assert_eq!(series["exactmq_worker_busy_seconds_total{worker=\"0\"}"], "2.5");
    assert_eq!(series["exactmq_fsync_seconds_count"], "7");
    assert_eq!(series["exactmq_fsync_seconds_bucket{le=\"5\"}"], "5");
    assert_eq!(series["exactmq_fsync_seconds_sum"], "12.0001");
    assert_eq!(series["exactmq_packets_total{direction=\"out\",type=\"puback\"}"], "4");
    assert_eq!(series["exactmq_packet_bytes_total{direction=\"out\",type=\"puback\"}"], "16");
}

/// Lease spec 15.10: what is sampled of the queue layer is what is told, and the stages of all workers add up.
/// Issue 5 §3: one level at a time, and what the listeners turned away, as last sampled.
#[test]
fn the_load_is_told() {
    let metrics = Metrics::new(2, 1);
    metrics.set_level(Level::Busy);
    metrics.set_level(Level::Overloaded);
    metrics.set_worker_lag(1, 1_500_000_000);
    metrics.set_worker_lag(2, 1);
    metrics.set_turned(&[1, 2, 3, 4, 5]);
    let page = metrics.render();
    let series = series(&page);
    assert_eq!(series["exactmq_overload_level{level=\"busy\"}"], "0");
    assert_eq!(series["exactmq_overload_level{level=\"overloaded\"}"], "1");
    assert_eq!(series["exactmq_worker_lag_seconds{worker=\"1\"}"], "1.5");
    assert_eq!(series["exactmq_sockets_turned_away_total{reason=\"address\"}"], "3");
}

#[test]
fn queues_leases_and_stages_are_told() {
    let metrics = Metrics::new(2, 1);
    let queued = crate::shared::Queued {
        space: session::queue::SpaceStat {
            channels: 1,
            subs: 2,
            members: 3,
            messages: 4,
            bytes: 5,
            reclaimable: 6,
        },
        leases: session::lease::LeaseStat { held: 7, armed: 8, delegated: 9 },
        holds: storage::lease::HoldStat {
            held: 10,
            at_risk: 11,
            lost: 12,
            lag: std::time::Duration::from_millis(1_500),
        },
        node: crate::usecase::hold::NodeLease {
            home: crate::config::LeaseHome::Etcd,
            state: crate::usecase::hold::LeaseState::AtRisk,
        },
    };
    metrics.set_queues(&queued);
    metrics.worker(0).expect("free").stage(StageLabel::Client, 2_000_000);
    metrics.worker(1).expect("free").stage(StageLabel::Client, 40_000);
    let page = metrics.render();
    let told = series(&page);
    for (name, value) in [
        ("exactmq_queue_channels", "1"),
        ("exactmq_node_lease{backend=\"etcd\",state=\"at_risk\"}", "1"),
        ("exactmq_node_lease{backend=\"etcd\",state=\"held\"}", "0"),
        ("exactmq_node_lease{backend=\"embedded\",state=\"at_risk\"}", "0"),
        ("exactmq_queue_subchannels", "2"),
        ("exactmq_queue_members", "3"),
        ("exactmq_queue_messages", "4"),
        ("exactmq_queue_bytes", "5"),
        ("exactmq_queue_reclaimable", "6"),
        ("exactmq_leases{state=\"held\"}", "7"),
        ("exactmq_leases{state=\"armed\"}", "8"),
        ("exactmq_leases{state=\"delegated\"}", "9"),
        ("exactmq_lease_holds{standing=\"held\"}", "10"),
        ("exactmq_lease_holds{standing=\"at_risk\"}", "11"),
        ("exactmq_leases_lost_total", "12"),
        ("exactmq_lease_keepalive_lag_seconds", "1.5"),
        ("exactmq_queue_stage_seconds_count{stage=\"client\"}", "2"),
        ("exactmq_queue_stage_seconds_sum{stage=\"client\"}", "0.00204"),
        ("exactmq_queue_stage_seconds_count{stage=\"wait\"}", "0"),
    ] {
        assert_eq!(told.get(name), Some(&value), "{name}");
    }
    let stages = metrics.stages();
    assert_eq!(
        stages[StageLabel::Client as usize].to_string(),
        "n 2 avg 1.020 ms p50 <= 0.05 ms p99 <= 2.5 ms max <= 2.5 ms"
    );
    assert_eq!(stages[StageLabel::Read as usize].to_string(), "-");
}
