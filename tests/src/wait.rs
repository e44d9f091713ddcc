//! Waiting for an outcome, never for luck.

use std::time::{Duration, Instant};

/// Polls `condition` until it yields a value.
///
/// # Panics
/// After `limit`, naming `what`.
pub fn eventually<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
