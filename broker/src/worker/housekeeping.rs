//! What a worker does four times a second: metrics, users that a reload removed, proofs that are over, `$SYS`.

use std::time::Duration;

use session::lifecycle::GroupStat;

use super::Worker;
use super::client::Event;
use super::stats::report_traffic;
use super::sys::Totals;
use crate::metrics::StageLabel;

impl Worker {
    pub(super) fn housekeep(&self) {
        if let Some(recorder) = &self.recorder {
            self.reported.set(self.stats.report(recorder, &self.reported.get()));
            self.reported_traffic.set(report_traffic(recorder, &self.reported_traffic.get()));
            // The thread of a worker runs one runtime, which counts this for itself.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                let busy = runtime.metrics().worker_total_busy_duration(0);
                recorder.set_busy(u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        self.recheck_users();
        self.wake_expired();
        self.wake_paced();
        let stored = self.shared.stored();
        if self.id == 0 {
            self.publish_sys(&stored);
        }
    }

    /// After a reload every connection looks whether its user may stay.
    fn recheck_users(&self) {
        let epoch = self.shared.auth.epoch();
        if self.users_checked.replace(epoch) != epoch {
            self.links.for_each(|link| link.push_event(Event::Wake));
        }
    }

    /// Connections whose proof is over look so, and end.
    fn wake_expired(&self) {
        let mut expiries = self.expiries.borrow_mut();
        while let Some((_, link)) = expiries.first().copied().filter(|(until, _)| *until <= self.now_ms.get())
        {
            expiries.pop_first();
            let _ = self.links.with(link, |link| link.push_event(Event::Wake));
        }
    }

    pub(super) fn set_mailbox_depth(&self, depth: usize) {
        if let Some(recorder) = &self.recorder {
            recorder.set_mailbox_depth(depth as u64);
        }
    }

    /// A message passed a stage on its way through an inbox.
    pub(super) fn stage(&self, stage: StageLabel, took_ns: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.stage(stage, took_ns);
        }
    }

    /// One worker speaks for the node.
    fn publish_sys(&self, stored: &GroupStat) {
        let interval_sec = self.options.sys_interval_sec;
        if interval_sec == 0 || self.now.get() < self.sys_due.get() {
            return;
        }
        self.sys_due.set(self.now.get().plus_ms(u64::from(interval_sec) * 1_000));
        let interval = Duration::from_secs(u64::from(interval_sec));
        self.shared.workers.sys().update(&self.totals(stored), interval, &self.publisher);
    }

    fn totals(&self, stored: &GroupStat) -> Totals {
        let counted = self.shared.workers.totals();
        Totals {
            uptime_sec: self.now.get().0 / 1_000_000_000,
            clients_connected: self.shared.owners.snapshot().active as u64,
            clients_disconnected: stored.sessions_offline,
            clients_expired: stored.sessions_ended,
            subscriptions: self.shared.router.len() as u64,
            retained: stored.retained,
            inboxes: stored.inboxes,
            queued: self.shared.queued(),
            stored: stored.inbox_messages,
            stored_bytes: stored.inbox_bytes,
            publish_received: counted.received.iter().sum(),
            publish_sent: counted.sent.iter().sum(),
            publish_dropped: counted.dropped.iter().sum(),
            publish_bytes_received: counted.received_bytes,
            publish_bytes_sent: counted.sent_bytes,
            level: self.level.get(),
        }
    }
}
