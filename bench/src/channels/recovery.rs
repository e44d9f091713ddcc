//! How long a channel is away when its process dies: a start on what is on disk, with a million records that wait.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use storage::queue::{
    ChanRole, ChanType, ChannelConfig, Endpoint, QueueError, Record, new_or_bind_with_unique_key,
};

use super::Place;

pub(crate) const NAME: &str = "recovery, 1000000 of 256 B";
const RECORDS: usize = 1_000_000;
const BATCH: usize = 1_000;

fn config() -> ChannelConfig {
    ChannelConfig {
        capacity_bytes: u64::MAX >> 1,
        ..ChannelConfig::new(RECORDS as u64, Duration::from_secs(3_600))
    }
}

async fn bind(place: &Place, role: ChanRole) -> Result<Endpoint, QueueError> {
    new_or_bind_with_unique_key(&place.queues, &config(), "q", ChanType::Mpsc, role).await
}

/// The process that is killed: fills a channel, says in how many milliseconds, and waits.
pub(super) async fn fill(dir: &Path) -> Result<()> {
    let place = Place::open(dir).await?;
    let producer = bind(&place, ChanRole::Producer).await?.producer()?;
    let began = Instant::now();
    for _ in 0..RECORDS / BATCH {
        producer.put_batch(vec![Record::new([b'.'; 256]); BATCH], None).await?;
    }
    println!("{}", began.elapsed().as_millis());
    std::future::pending().await
}

/// Kills a process that filled a channel, and starts on its files.
pub(super) async fn measure(dir: &Path) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg("fill").arg(dir).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    let filled = Duration::from_millis(line.trim().parse().context("it did not fill the channel")?);

    let began = Instant::now();
    let place = Place::open(dir).await?;
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
