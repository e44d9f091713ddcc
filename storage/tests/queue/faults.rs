//! Replies that get lost: what was done must neither be done again nor be forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use session::queue::QueueCommand;
use session::time::Millis;
use storage::lease::LeaseFuture;
use storage::queue::{
    ChanType, ChannelStore, MemoryStore, QueueOptions, QueueStore, Request, Response, Unavailable,
};

use crate::bench::{PATIENCE, consumer, get, ids, payloads, producer};

/// Loses the requests, or the replies, of some commands.
#[derive(Debug)]
struct Lossy {
    inner: MemoryStore,
    /// Counts changes; every third is lost on its way there, every fifth on its way back.
    changes: AtomicU32,
}

impl ChannelStore for Lossy {
    fn name(&self) -> &str {
        "lossy"
    }

    fn groups(&self) -> u16 {
        1
    }

    fn incarnation(&self) -> u64 {
        self.inner.incarnation()
    }

    fn now(&self) -> Millis {
        self.inner.now()
    }

    fn call(&self, group: u16, request: Request) -> LeaseFuture<'_, Result<Response, Unavailable>> {
        Box::pin(async move {
            let lossy = matches!(
                &request,
                Request::Queue(
                    QueueCommand::Bind(_) | QueueCommand::Append { .. } | QueueCommand::Claim { .. }
                )
            );
            let number = if lossy { self.changes.fetch_add(1, Ordering::Relaxed) + 1 } else { 1 };
            let lost = |way: &str| Unavailable(format!("lost on its way {way}"));
            if number % 3 == 0 {
                return Err(lost("there"));
            }
            let response = self.inner.call(group, request).await;
            if number % 5 == 0 { Err(lost("back")) } else { response }
        })
    }
}

/// Checklist 4 (H-03, H-04): whatever is lost on the way, each record is there once and in order, and no member is there twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checklist_4_lost_requests_and_replies_neither_lose_nor_duplicate() {
    for of in [ChanType::Mpsc, ChanType::Mpmc, ChanType::Group] {
        let channels = Arc::new(Lossy { inner: MemoryStore::default(), changes: AtomicU32::new(0) });
        let store =
            QueueStore::open(channels, QueueOptions { lease_ttl: PATIENCE, ..QueueOptions::default() });
        let producer = producer(&store, "q", of).await;
        let consumer = consumer(&store, "q", of).await;
        let sender = tokio::spawn(async move {
            for number in 0..40_u8 {
                producer.put_data([number]).await.unwrap();
            }
            producer
        });
        let mut seen = Vec::new();
        while seen.len() < 40 {
            let items = get(&consumer, 1).await;
            consumer.ack(&ids(&items)).await.unwrap();
            seen.extend(payloads(&items));
        }
        seen.sort();
        assert_eq!(seen, (0..40_u8).map(|number| vec![number]).collect::<Vec<_>>(), "{of:?}");
        let more = consumer.get_data(1, Some(Duration::from_millis(300)), 0).await;
        assert!(more.is_err(), "{of:?}: {more:?}");
        sender.await.unwrap();
        store.close().await.unwrap();
    }
}
