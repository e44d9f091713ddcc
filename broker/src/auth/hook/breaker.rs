//! Leaves a hook alone that fails: after some failures in a row nobody asks it for a while, then one does.

use std::time::{Duration, Instant};

/// Failures in a row after which the hook is left alone.
const FAILURES_MAX: u32 = 5;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// ```text
/// closed ──5 failures──▶ open ──pause──▶ one asks ──success──▶ closed
///                          ▲───failure, twice the pause──┘
/// ```
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// Nobody asks before; `None`: closed.
    open_until: Option<Instant>,
    pause: Duration,
    /// One asks whether it is over.
    is_probed: bool,
}

impl Breaker {
    /// Whether the hook may be asked; who may tells [`Self::done`].
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        match self.open_until {
            None => true,
            Some(until) if now < until || self.is_probed => false,
            Some(_) => {
                self.is_probed = true;
                true
            }
        }
    }

    /// What came of it; whether the hook is left alone from now on.
    pub(super) fn done(&mut self, answered: bool, now: Instant) -> bool {
        if answered {
            *self = Self::default();
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let is_open = self.open_until.is_some();
        if is_open && !self.is_probed || self.failures < FAILURES_MAX {
            return false;
        }
        self.pause = if is_open { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        self.open_until = Some(now + self.pause);
        self.is_probed = false;
        !is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P9: a hook that is down costs nobody its timeout more than a few times, and is found again by one question.
    #[test]
    fn a_failing_hook_is_left_alone_and_tried_again() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut breaker = Breaker::default();
        for failure in 1..=5 {
            assert!(breaker.admits(at(0)));
            assert_eq!(breaker.done(false, at(0)), failure == 5);
        }
        assert!(!breaker.admits(at(999)));
        assert!(breaker.admits(at(1_000)) && !breaker.admits(at(1_000)), "one asks");
        assert!(!breaker.done(false, at(1_000)), "told once");
        assert!(!breaker.admits(at(2_999)) && breaker.admits(at(3_000)));
        // One that was asked before answers late, or fails late.
        let mut late = Breaker::default();
        let _ = (0..5).map(|_| late.done(false, at(0))).last();
        late.done(false, at(500));
        assert!(late.admits(at(1_000)), "a late failure moved the pause");
        breaker.done(true, at(3_000));
        assert!((0..9).all(|_| breaker.admits(at(3_000))));
        for round in 0_u64..20 {
            let _ = (0..5).map(|_| breaker.done(false, at(4_000))).last();
            let now = at(4_000 + round * 60_000);
            assert!(breaker.admits(now + PAUSE_MAX), "never longer than the longest pause");
            breaker.done(false, now + PAUSE_MAX);
        }
    }
}
