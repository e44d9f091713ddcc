//! Figures and how they are put side by side: medians over the runs, ratios of medians.

use std::time::Duration;

use hdrhistogram::Histogram;

/// What one run of one scenario measured; absent figures do not apply.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// Operations a second (deliveries, connects, …).
    pub(crate) rate: Option<f64>,
    /// Broker CPU in microseconds per operation.
    pub(crate) cpu_us: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    /// Bytes per connection, message or filter.
    pub(crate) bytes: Option<f64>,
    /// Seconds that the whole took.
    pub(crate) seconds: Option<f64>,
}

impl Figures {
    pub(crate) fn of_rate(operations: u64, elapsed: Duration, cpu: Duration) -> Self {
        let operations = operations.max(1) as f64;
        Self {
            rate: Some(operations / elapsed.as_secs_f64()),
            cpu_us: Some(cpu.as_secs_f64() * 1e6 / operations),
            ..Self::default()
        }
    }

    pub(crate) fn with_latency(mut self, nanoseconds: &Histogram<u64>) -> Self {
        if !nanoseconds.is_empty() {
            self.p50_us = Some(nanoseconds.value_at_quantile(0.5) as f64 / 1e3);
            self.p99_us = Some(nanoseconds.value_at_quantile(0.99) as f64 / 1e3);
        }
        self
    }
}

/// Figure by figure, the median of several runs.
pub(crate) fn median(runs: &[Figures]) -> Figures {
    let of = |pick: fn(&Figures) -> Option<f64>| {
        let mut values: Vec<f64> = runs.iter().filter_map(pick).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    Figures {
        rate: of(|run| run.rate),
        cpu_us: of(|run| run.cpu_us),
        p50_us: of(|run| run.p50_us),
        p99_us: of(|run| run.p99_us),
        bytes: of(|run| run.bytes),
        seconds: of(|run| run.seconds),
    }
}

/// One cell of the table.
pub(crate) fn cell(figures: &Figures) -> String {
    let mut parts = Vec::new();
    let mut add = |value: Option<f64>, form: fn(f64) -> String| parts.extend(value.map(form));
    add(figures.cpu_us, |value| format!("{value:.2} us"));
    add(figures.rate, rate);
    add(figures.p50_us, |value| format!("p50 {}", micros(value)));
    add(figures.p99_us, |value| format!("p99 {}", micros(value)));
    add(figures.bytes, |value| format!("{value:.0} B"));
    add(figures.seconds, |value| format!("{value:.2} s"));
    if parts.is_empty() { "–".into() } else { parts.join(", ") }
}

/// Peer divided by ours, figure by figure: above 1 we are cheaper or faster.
pub(crate) fn ratio(ours: &Figures, peer: &Figures) -> String {
    let over = |mine: Option<f64>, theirs: Option<f64>| match (mine, theirs) {
        (Some(mine), Some(theirs)) if mine > 0.0 && theirs > 0.0 => Some(theirs / mine),
        _ => None,
    };
    let mut parts = Vec::new();
    if let Some(value) = over(ours.cpu_us, peer.cpu_us) {
        parts.push(format!("CPU {value:.1}x"));
    }
    if let Some(value) = over(peer.rate, ours.rate) {
        parts.push(format!("rate {value:.1}x"));
    }
    if let Some(value) = over(ours.p99_us, peer.p99_us) {
        parts.push(format!("p99 {value:.1}x"));
    }
    if let Some(value) = over(ours.bytes, peer.bytes) {
        parts.push(format!("memory {value:.1}x"));
    }
    if parts.is_empty() { "–".into() } else { parts.join(", ") }
}

fn rate(value: f64) -> String {
    if value >= 1e6 { format!("{:.2} M/s", value / 1e6) } else { format!("{:.1} k/s", value / 1e3) }
}

fn micros(value: f64) -> String {
    if value >= 1_000.0 { format!("{:.2} ms", value / 1e3) } else { format!("{value:.0} us") }
}
