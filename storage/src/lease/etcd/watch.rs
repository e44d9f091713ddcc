//! A watch on the keys of leases, which go with them: that one went is heard at once, not at the next look.
//!
//! It is a hint and no more: whoever hears it looks. So a watch begins from now on and says that there are news: that look is the resync
//! of whatever was missed before, however long it was cut off and whatever was compacted meanwhile. It does not go on from the revision where it
//! broke off: etcd up to 3.5 does not tell a watch of a deletion whose revision is the very one that was compacted.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Error, WatchFilterType, WatchOptions, WatchStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Endpoints, is_of};

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
    pub(super) fn start(endpoints: Arc<Endpoints>, cluster: u64, keys: String) -> Self {
        let (told, news) = watch::channel(0);
        let task = tokio::spawn(run(endpoints, cluster, keys, told));
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

async fn run(endpoints: Arc<Endpoints>, cluster: u64, keys: String, told: watch::Sender<u64>) {
    let mut retry = RETRY_MIN;
    loop {
        let attempt = endpoints.attempt();
        let asked = async { open(&attempt.client().await?, cluster, &keys).await };
        let opened = tokio::time::timeout(CALL_TIMEOUT, asked).await;
        if let Ok(Ok(mut stream)) = opened {
            attempt.answered();
            retry = RETRY_MIN;
            told.send_modify(|news| *news += 1);
            listen(&mut stream, &told).await;
        } else {
            drop(attempt);
        }
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// A watch that etcd has taken: it tells of everything from now on.
async fn open(client: &Client, cluster: u64, keys: &str) -> Result<WatchStream, Error> {
    let options = WatchOptions::new().with_prefix().with_filters([WatchFilterType::NoPut]);
    let mut stream = client.watch_client().watch(keys, Some(options)).await?;
    match stream.message().await? {
        Some(answer) if answer.created() && !answer.canceled() => {
            is_of(cluster, answer.header()).map(|()| stream)
        }
        _ => Err(Error::WatchError("it was not taken".to_owned())),
    }
}

/// Until the watch ends: the connection broke, or etcd cancelled it.
async fn listen(stream: &mut WatchStream, told: &watch::Sender<u64>) {
    while let Ok(Some(answer)) = stream.message().await {
        if answer.canceled() {
            return;
        }
        if !answer.events().is_empty() {
            told.send_modify(|news| *news += 1);
        }
    }
}
