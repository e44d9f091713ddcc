//! How long a channel is away when its process dies: a start on what is on disk, with a million records that wait.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use storage::queue::{ChanRole, ChanType, ChannelConfig, QueueError, Record, new_or_bind_with_unique_key};

use super::Place;

pub(crate) const NAME: &str = "recovery, 1000000 of 256 B";
const RECORDS: usize = 1_000_000;
const BATCH: usize = 1_000;

/// Fills a channel, then starts on a copy of the files as they are: what a kill -9 at this moment leaves.
pub(super) async fn measure(dir: &Path) -> Result<String> {
    let (data, copy) = (dir.join("data"), dir.join("copy"));
    let place = Place::open(&data).await?;
    let config = ChannelConfig {
        capacity_bytes: u64::MAX >> 1,
        ..ChannelConfig::new(RECORDS as u64, Duration::from_secs(3_600))
    };
    let bind = |place: &Place, role| {
        let queues = place.queues.clone();
        let config = config.clone();
        async move { new_or_bind_with_unique_key(&queues, &config, "q", ChanType::Mpsc, role).await }
    };
    let producer = bind(&place, ChanRole::Producer).await?.producer()?;
    let began = Instant::now();
    for _ in 0..RECORDS / BATCH {
        producer.put_batch(vec![Record::new([b'.'; 256]); BATCH], None).await?;
    }
    let filled = began.elapsed();
    let status = std::process::Command::new("cp").arg("-r").arg(&data).arg(&copy).status().context("cp")?;
    anyhow::ensure!(status.success(), "the files cannot be copied");
    drop(producer);
    place.close().await?;

    let began = Instant::now();
    let place = Place::open(&copy).await?;
    let opened = began.elapsed();
    let consumer = bind(&place, ChanRole::Consumer).await?.consumer()?;
    let mut left = RECORDS - consumer.get_data(1, None, 0).await?.len();
    let first = began.elapsed();
    while left > 0 {
        let items = match consumer.get_data(BATCH, Some(Duration::from_secs(1)), BATCH).await {
            Err(QueueError::NoNewMessage) => break,
            items => items?,
        };
        consumer.ack(&items.iter().map(|item| item.id).collect::<Vec<_>>()).await?;
        left -= items.len();
    }
    let drained = began.elapsed() - first;
    place.close().await?;
    anyhow::ensure!(left == 0, "{left} records were lost");
    let rate = |took: Duration| RECORDS as f64 / took.as_secs_f64() / 1e3;
    Ok(format!(
        "{NAME}: filled at {:.0} k/s; open after {:.2} s, first record after {:.2} s; drained at {:.0} k/s, nothing lost",
        rate(filled),
        opened.as_secs_f64(),
        first.as_secs_f64(),
        rate(drained)
    ))
}
