//! What happened, in order: a hash that two runs of one seed must agree on, the last steps for a report, and the first violation.

use std::collections::VecDeque;
use std::fmt::{Arguments, Write};

use parking_lot::Mutex;

/// Steps that a report shows.
const TAIL: usize = 80;
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// The trace of one run.
#[derive(Debug, Default)]
pub struct Trace(Mutex<Steps>);

#[derive(Debug, Default)]
struct Steps {
    count: u64,
    hash: u64,
    tail: VecDeque<String>,
    violation: Option<String>,
}

impl Trace {
    /// Notes one step at `now_ms` of simulated time.
    pub fn step(&self, now_ms: u64, what: Arguments<'_>) {
        let mut steps = self.0.lock();
        let mut line = if steps.tail.len() == TAIL {
            let mut line = steps.tail.pop_front().unwrap_or_default();
            line.clear();
            line
        } else {
            String::new()
        };
        // Writing to a string cannot fail.
        let _ = write!(line, "{now_ms:>7} ms  {what}");
        let mut hash = if steps.count == 0 { FNV_OFFSET } else { steps.hash };
        for byte in line.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        steps.hash = hash;
        steps.count += 1;
        steps.tail.push_back(line);
    }

    /// Notes that a promise is broken; the first one counts.
    pub fn fail(&self, now_ms: u64, what: &str) {
        self.step(now_ms, format_args!("VIOLATION {what}"));
        self.0.lock().violation.get_or_insert_with(|| what.to_owned());
    }

    /// The first broken promise.
    pub fn violation(&self) -> Option<String> {
        self.0.lock().violation.clone()
    }

    /// Steps so far and their hash.
    pub fn sum(&self) -> (u64, u64) {
        let steps = self.0.lock();
        (steps.count, steps.hash)
    }

    /// The last steps.
    pub fn tail(&self) -> Vec<String> {
        self.0.lock().tail.iter().cloned().collect()
    }
}
