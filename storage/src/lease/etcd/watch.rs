//! A watch on the keys of leases, which go with them: that one went is heard at once, not at the next look.
//!
//! It is a hint and no more: whoever hears it looks. So a watch that missed something (compacted away while it was cut off) says that there
//! are news, and goes on from where etcd stands now; that look is the resync.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Error, GetOptions, WatchFilterType, WatchOptions, WatchStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Endpoints;

/// Between two tries; doubles.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Longest wait for one answer.
const CALL_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The watch of one backend; ends with it.
pub(super) struct Watch {
    news: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Watch {
    pub(super) fn start(endpoints: Arc<Endpoints>, keys: String) -> Self {
        let (told, news) = watch::channel(0);
        let task = tokio::spawn(run(endpoints, keys, told));
        Self { news, task }
    }

    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.news.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(endpoints: Arc<Endpoints>, keys: String, told: watch::Sender<u64>) {
    // Revision to go on from; `None`: from now on, whatever was before.
    let mut from = None;
    let mut retry = RETRY_MIN;
    loop {
        let attempt = endpoints.attempt();
        let opened = open(attempt.client(), &keys, from);
        if let Ok(Ok((mut stream, revision))) = tokio::time::timeout(CALL_TIMEOUT, opened).await {
            attempt.answered();
            if from.is_none() {
                told.send_modify(|news| *news += 1);
            }
            retry = RETRY_MIN;
            from = listen(&mut stream, revision, &told).await;
        } else {
            drop(attempt);
        }
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// A watch that was taken by etcd, and the revision it begins with.
async fn open(
    client: &etcd_client::Client,
    keys: &str,
    from: Option<i64>,
) -> Result<(WatchStream, i64), Error> {
    let from = match from {
        Some(from) => from,
        None => {
            let count = GetOptions::new().with_prefix().with_count_only();
            let answer = client.kv_client().get(keys, Some(count)).await?;
            answer.header().map_or(0, |header| header.revision()) + 1
        }
    };
    // A watcher that has nothing to tell says how far it is, so that what it begins with anew is not compacted.
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(from)
        .with_filters([WatchFilterType::NoPut])
        .with_progress_notify();
    Ok((client.watch_client().watch(keys, Some(options)).await?, from))
}

/// Until the watch ends; the revision to go on from, `None` when something was missed.
async fn listen(stream: &mut WatchStream, mut from: i64, told: &watch::Sender<u64>) -> Option<i64> {
    while let Ok(Some(answer)) = stream.message().await {
        if answer.canceled() {
            return (answer.compact_revision() == 0).then_some(from);
        }
        if let Some(header) = answer.header() {
            from = from.max(header.revision() + 1);
        }
        if !answer.events().is_empty() {
            told.send_modify(|news| *news += 1);
        }
    }
    Some(from)
}
