//! Measures beside criterion's: bytes per thing, and the best of many short batches, which a busy machine disturbs least.

use std::hint::black_box;
use std::time::Instant;

const BATCH: u32 = 500;
const BATCHES: u32 = 4_000;

/// Makes something and prints how much resident memory each of its `count` parts costs.
pub(crate) fn bytes_each<T>(what: &str, count: usize, make: impl FnOnce() -> T) -> T {
    let before = resident_bytes();
    let made = make();
    println!("{what}: {} bytes each", resident_bytes().saturating_sub(before) / count);
    made
}

/// Prints the time of one `run` in the best batch and in the median one.
pub(crate) fn best<T>(what: &str, mut run: impl FnMut() -> T) {
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                black_box(run());
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    println!("{what}: best {:.1} ns, median {:.1} ns", batches[0], batches[batches.len() / 2]);
}

/// Bytes resident now, 0 where `/proc` does not tell. Pages are taken to have 4 KiB.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4_096
}
