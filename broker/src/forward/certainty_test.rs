//! Who waits for certainty gets it from a round that began after it came.

use std::sync::atomic::{AtomicU64, Ordering};

use storage::CompletionPort;
use tokio::sync::Semaphore;

use super::*;

/// Rounds end when the test says so.
#[derive(Debug)]
struct Rounds {
    begun: AtomicU64,
    may_end: Semaphore,
}

impl StoredRoutes for Rounds {
    fn is_alone(&self) -> bool {
        false
    }

    fn all(self: Arc<Self>) -> FollowFuture {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            self.may_end.acquire().await.map(tokio::sync::SemaphorePermit::forget).map_err(|_| closed())
        })
    }

    fn through(self: Arc<Self>, _entries: Vec<(GroupId, u64)>) -> FollowFuture {
        Box::pin(std::future::ready(Ok(())))
    }
}

type Told = Vec<(u64, bool)>;

#[derive(Debug, Default)]
struct Port(Mutex<Told>);

impl CompletionPort for Port {
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        self.0.lock().extend(batch.into_iter().map(|(token, reply)| (token, reply.is_ok())));
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// P7, P9: who comes during a round gets the next one; a stop answers everybody, with an error.
#[tokio::test]
async fn p7_a_round_serves_those_who_came_before_it() {
    let rounds = Arc::new(Rounds { begun: AtomicU64::new(0), may_end: Semaphore::new(0) });
    let certainty = Arc::new(Certainty::new(rounds.clone()));
    let port = Arc::<Port>::default();
    let wait = |token| certainty.wait(Waiter { port: port.clone(), token });
    let running = tokio::spawn(certainty.clone().run());
    wait(1);
    until(|| rounds.begun.load(Ordering::SeqCst) == 1).await;
    wait(2);
    wait(3);
    rounds.may_end.add_permits(1);
    until(|| rounds.begun.load(Ordering::SeqCst) == 2).await;
    assert_eq!(*port.0.lock(), [(1, true)]);
    rounds.may_end.add_permits(1);
    until(|| port.0.lock().len() == 3).await;
    assert!(port.0.lock().iter().all(|(_, known)| *known));
    wait(4);
    until(|| rounds.begun.load(Ordering::SeqCst) == 3).await;
    running.abort();
    certainty.close();
    wait(5);
    until(|| port.0.lock().len() == 5).await;
    assert!(port.0.lock().contains(&(4, false)) && port.0.lock().contains(&(5, false)));
}
