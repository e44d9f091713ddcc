//! Operations that took longer than `log.slow_ms`: counted, and logged at a bounded rate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::SlowLabel;

/// Lines about one kind of operation in one second.
const LINES_MAX: u32 = 5;
const SECOND: Duration = Duration::from_secs(1);

/// What is slow, how often it was, and how much of that was logged.
#[derive(Debug)]
pub struct SlowLog {
    /// `u64::MAX`: nothing is slow.
    threshold_ns: AtomicU64,
    counts: [AtomicU64; SlowLabel::COUNT],
    windows: [Mutex<Window>; SlowLabel::COUNT],
}

/// Lines of one kind since when.
#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u32,
    suppressed: u64,
}

/// A line that may be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    pub took_ms: u64,
    /// Slow operations of this kind that were not logged since the last line about it.
    pub suppressed: u64,
}

impl Default for SlowLog {
    /// Nothing is slow.
    fn default() -> Self {
        Self {
            threshold_ns: AtomicU64::new(u64::MAX),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            windows: std::array::from_fn(|_| {
                Mutex::new(Window { began: Instant::now(), lines: 0, suppressed: 0 })
            }),
        }
    }
}

impl SlowLog {
    /// `log.slow_ms`; 0: nothing is slow.
    #[must_use]
    pub fn new(slow_ms: u64) -> Self {
        let log = Self::default();
        log.set(slow_ms);
        log
    }

    /// Another `log.slow_ms`, from now on.
    pub fn set(&self, slow_ms: u64) {
        let threshold_ns = if slow_ms == 0 { u64::MAX } else { slow_ms.saturating_mul(1_000_000) };
        self.threshold_ns.store(threshold_ns, Ordering::Relaxed);
    }

    /// Counts an operation that was slow; the line to log about it, unless there were enough in this second.
    #[inline]
    pub fn look(&self, operation: SlowLabel, took_ns: u64) -> Option<Line> {
        if took_ns < self.threshold_ns.load(Ordering::Relaxed) {
            return None;
        }
        self.slow(operation, took_ns)
    }

    #[cold]
    fn slow(&self, operation: SlowLabel, took_ns: u64) -> Option<Line> {
        self.counts[operation as usize].fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let mut window = self.windows[operation as usize].lock();
        if now.saturating_duration_since(window.began) >= SECOND {
            (window.began, window.lines) = (now, 0);
        }
        if window.lines >= LINES_MAX {
            window.suppressed += 1;
            return None;
        }
        window.lines += 1;
        let suppressed = std::mem::take(&mut window.suppressed);
        Some(Line { took_ms: took_ns / 1_000_000, suppressed })
    }

    /// Slow operations since the start, in the order of the labels.
    #[must_use]
    pub fn counts(&self) -> [u64; SlowLabel::COUNT] {
        std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// P9: a slow disk makes every commit slow; the log gets a few lines a second, and how many more there were.
    #[tokio::test(start_paused = true)]
    async fn lines_are_bounded_and_what_is_left_out_is_counted() {
        let log = SlowLog::new(10);
        assert_eq!(log.look(SlowLabel::Commit, 10 * MS - 1), None);
        let lines = (0..100).filter(|_| log.look(SlowLabel::Commit, 12 * MS).is_some()).count();
        assert_eq!(lines, LINES_MAX as usize);
        assert!(log.look(SlowLabel::Admin, 10 * MS).is_some(), "each kind has lines of its own");
        tokio::time::advance(SECOND).await;
        let line = log.look(SlowLabel::Commit, 13 * MS);
        assert_eq!(line, Some(Line { took_ms: 13, suppressed: 100 - u64::from(LINES_MAX) }));
        assert_eq!(log.look(SlowLabel::Commit, 13 * MS).map(|line| line.suppressed), Some(0));
        assert_eq!(log.counts()[SlowLabel::Commit as usize], 102);
    }

    #[tokio::test]
    async fn zero_turns_it_off_and_a_reload_changes_it() {
        let log = SlowLog::new(0);
        assert_eq!(log.look(SlowLabel::Takeover, u64::MAX - 1), None);
        log.set(1);
        assert!(log.look(SlowLabel::Takeover, MS).is_some());
    }
}
