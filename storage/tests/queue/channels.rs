//! Channels through the Rust API on every backend.

crate::on_every_backend!(cases:
    records_come_in_order_and_stay_until_acknowledged,
    checklist_1_a_crashed_consumer_loses_nothing,
    checklist_2_a_close_with_a_full_window_duplicates_nothing,
    checklist_3_a_batch_may_be_partial,
    checklist_7_a_zombie_is_fenced,
    checklist_9_the_other_consumers_drain_a_dead_one,
    checklist_10_a_late_member_finds_the_channel_of_a_creator_that_left,
    checklist_12_capacity_holds_under_64_producers_and_wakes_them,
    checklist_15_a_lost_lease_closes_its_endpoints,
    checklist_16_a_mismatch_is_typed,
    checklist_20_a_channel_ends_with_its_ttl,
    checklist_25_closing_the_store_closes_its_endpoints_first,
    checklist_25_an_acknowledgement_after_the_close_says_so,
    a_cancelled_get_loses_nothing,
    expired_records_are_skipped_and_counted,
    a_group_gives_each_record_to_one,
    the_stages_of_calls_are_counted,
);

mod cases {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use storage::queue::{ChanType, ChannelConfig, QueueError, Record, Stage};

    use crate::bench::{
        Bench, PATIENCE, bind_consumer, bind_producer, config, consumer, get, ids, payloads, producer,
    };

    const SOON: Option<Duration> = Some(Duration::from_millis(50));

    async fn put(producer: &storage::queue::Producer, numbers: std::ops::Range<u8>) {
        for number in numbers {
            producer.put_data([number]).await.unwrap();
        }
    }

    /// DESIGN §9 "Monitor": the stages of a call are parts of it, and none is missing.
    pub(super) async fn the_stages_of_calls_are_counted(bench: &Bench) {
        let store = bench.process();
        let config = ChannelConfig::new(1, Duration::from_secs(60));
        let producer = bind_producer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
        let consumer = bind_consumer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
        let producing = async { put(&producer, 0..3).await };
        let consuming = async {
            // The channel is full, and the next append waits for room.
            let full = || store.latency()[Stage::PutAppend as usize].count() >= 2;
            let deadline = Instant::now() + PATIENCE;
            while !full() {
                assert!(Instant::now() < deadline, "no second append");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for _ in 0..3 {
                let items = get(&consumer, 1).await;
                consumer.ack(&ids(&items)).await.unwrap();
            }
        };
        tokio::join!(producing, consuming);
        assert_eq!(consumer.get_data(1, SOON, 0).await, Err(QueueError::NoNewMessage));
        let stages = store.latency();
        let [put, put_room, put_append, get, get_wait, get_read, ack] = stages;
        assert_eq!((put.count(), get.count(), ack.count()), (3, 3, 3));
        assert!(put_room.count() >= 1 && put_append.count() >= 4, "{put_room} {put_append}");
        assert!(
            put.sum_ns >= put_room.sum_ns + put_append.sum_ns,
            "parts of {put}: {put_room}, {put_append}"
        );
        assert!(get_read.count() >= 4, "{get_read}, {get_wait}");
        store.close().await.unwrap();
    }

    pub(super) async fn records_come_in_order_and_stay_until_acknowledged(bench: &Bench) {
        for of in [ChanType::Mpsc, ChanType::Mpmc, ChanType::Group] {
            let store = bench.process();
            let name = format!("{of:?}");
            let producer = producer(&store, &name, of).await;
            let first = consumer(&store, &name, of).await;
            assert!(producer.created());
            assert_eq!(producer.chan_id(), first.chan_id());
            put(&producer, 0..10).await;
            let items = get(&first, 10).await;
            assert_eq!(payloads(&items), (0..10_u8).map(|number| vec![number]).collect::<Vec<_>>());
            first.ack(&ids(&items[..8])).await.unwrap();
            first.ack(&ids(&items[..8])).await.unwrap();
            first.close().await.unwrap();
            first.close().await.unwrap();
            assert!(matches!(first.get_data(1, SOON, 0).await, Err(QueueError::ChannelClosed(_))));
            let second = consumer(&store, &name, of).await;
            let again = get(&second, 2).await;
            assert_eq!(payloads(&again), [[8], [9]]);
            assert!(again.iter().all(|item| item.redelivered));
            second.ack(&ids(&again)).await.unwrap();
            assert_eq!(second.get_data(1, SOON, 0).await, Err(QueueError::NoNewMessage));
            assert_eq!(second.get_data(1, SOON, 0).await.unwrap_err().code(), 12_011);
            store.close().await.unwrap();
        }
    }

    /// Checklist 1 (H-01): what a consumer had in its window when it died comes again, marked; what it acknowledged does not.
    pub(super) async fn checklist_1_a_crashed_consumer_loses_nothing(bench: &Bench) {
        let (store, dies) = (bench.process(), bench.process());
        let producer = producer(&store, "q", ChanType::Mpsc).await;
        let crashed = consumer(&dies, "q", ChanType::Mpsc).await;
        put(&producer, 0..20).await;
        let items = get(&crashed, 12).await;
        crashed.ack(&ids(&items[..5])).await.unwrap();
        drop((crashed, dies));
        // Checklist 8: meanwhile producers notice nothing.
        put(&producer, 20..25).await;
        let next = consumer(&store, "q", ChanType::Mpsc).await;
        let items = get(&next, 20).await;
        assert_eq!(payloads(&items), (5..25_u8).map(|number| vec![number]).collect::<Vec<_>>());
        assert!(items[..7].iter().all(|item| item.redelivered));
        store.close().await.unwrap();
    }

    /// Checklist 2 (H-01): a clean close marks only what the application got; what was read ahead is as good as new.
    pub(super) async fn checklist_2_a_close_with_a_full_window_duplicates_nothing(bench: &Bench) {
        let store = bench.process();
        let producer = producer(&store, "q", ChanType::Mpsc).await;
        let first = consumer(&store, "q", ChanType::Mpsc).await;
        put(&producer, 0..30).await;
        let items = first.get_data(4, Some(PATIENCE), 20).await.unwrap();
        assert_eq!(items.len(), 4);
        first.ack(&ids(&items)).await.unwrap();
        first.close().await.unwrap();
        let second = consumer(&store, "q", ChanType::Mpsc).await;
        let items = get(&second, 26).await;
        assert_eq!(payloads(&items), (4..30_u8).map(|number| vec![number]).collect::<Vec<_>>());
        assert!(items.iter().all(|item| !item.redelivered));
        store.close().await.unwrap();
    }

    /// Checklist 3 (H-02)
    pub(super) async fn checklist_3_a_batch_may_be_partial(bench: &Bench) {
        let store = bench.process();
        let producer = producer(&store, "q", ChanType::Mpsc).await;
        let consumer = consumer(&store, "q", ChanType::Mpsc).await;
        put(&producer, 0..3).await;
        let items = consumer.get_data(10, Some(PATIENCE), 0).await.unwrap();
        assert_eq!(payloads(&items), [[0], [1], [2]]);
        store.close().await.unwrap();
    }

    /// Checklist 7 (H-07): after another one took over, nothing that the old one does counts.
    pub(super) async fn checklist_7_a_zombie_is_fenced(bench: &Bench) {
        let (store, paused) = (bench.process(), bench.process());
        let producer = producer(&store, "q", ChanType::Mpsc).await;
        let zombie = consumer(&paused, "q", ChanType::Mpsc).await;
        put(&producer, 0..2).await;
        let items = get(&zombie, 2).await;
        // Its lease ends behind its back.
        for view in paused.leases().view() {
            bench.backend_of(&view).revoke(view.lease).await.unwrap();
        }
        let next = consumer(&store, "q", ChanType::Mpsc).await;
        let acked = zombie.ack(&ids(&items)).await;
        assert!(matches!(acked, Err(QueueError::Fenced)), "{acked:?}");
        let read = zombie.get_data(1, Some(PATIENCE), 0).await;
        assert!(matches!(read, Err(QueueError::LeaseLost)), "{read:?}");
        assert_eq!(get(&next, 2).await.len(), 2);
        store.close().await.unwrap();
    }

    /// Checklist 9 (H-09): no new member is needed.
    pub(super) async fn checklist_9_the_other_consumers_drain_a_dead_one(bench: &Bench) {
        for of in [ChanType::Mpmc, ChanType::Group] {
            let (store, dies) = (bench.process(), bench.process());
            let name = format!("{of:?}");
            let producer = producer(&store, &name, of).await;
            let dead = consumer(&dies, &name, of).await;
            let live = consumer(&store, &name, of).await;
            put(&producer, 0..20).await;
            let in_flight = get(&dead, 5).await;
            assert_eq!(in_flight.len(), 5);
            drop((dead, dies));
            let mut seen = Vec::new();
            while seen.len() < 20 {
                let items = live.get_data(20, Some(PATIENCE), 0).await.unwrap();
                live.ack(&ids(&items)).await.unwrap();
                seen.extend(payloads(&items));
            }
            seen.sort();
            assert_eq!(seen, (0..20_u8).map(|number| vec![number]).collect::<Vec<_>>());
            store.close().await.unwrap();
        }
    }

    /// Checklist 10 (H-10)
    pub(super) async fn checklist_10_a_late_member_finds_the_channel_of_a_creator_that_left(bench: &Bench) {
        let (creator, other) = (bench.process(), bench.process());
        let config = ChannelConfig::new(10, Duration::from_secs(1));
        let made = bind_producer(&creator, "q", ChanType::Mpmc, &config).await.unwrap();
        let stays = bind_producer(&other, "q", ChanType::Mpmc, &config).await.unwrap();
        let id = made.chan_id();
        creator.close().await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        let late = bind_consumer(&other, "q", ChanType::Mpmc, &config).await.unwrap();
        assert_eq!(late.chan_id(), id);
        stays.put_data(b"x").await.unwrap();
        assert_eq!(get(&late, 1).await.len(), 1);
        other.close().await.unwrap();
    }

    /// Checklist 12 (H-13): never an eleventh record, and every waiting producer gets its turn without polling.
    pub(super) async fn checklist_12_capacity_holds_under_64_producers_and_wakes_them(bench: &Bench) {
        let store = bench.process();
        let config = config(10);
        let consumer = bind_consumer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
        let mut waiting = Vec::new();
        for number in 0..64_u8 {
            let producer = bind_producer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
            waiting.push(tokio::spawn(async move {
                producer.put_data([number]).await.unwrap();
                producer.close().await.unwrap();
            }));
        }
        let mut seen = Vec::new();
        while seen.len() < 64 {
            let items = consumer.get_data(64, Some(PATIENCE), 0).await.unwrap();
            assert!(items.len() <= 10, "{} records at once", items.len());
            consumer.ack(&ids(&items)).await.unwrap();
            seen.extend(payloads(&items));
        }
        for producer in waiting {
            producer.await.unwrap();
        }
        seen.sort();
        assert_eq!(seen, (0..64_u8).map(|number| vec![number]).collect::<Vec<_>>());
        // A bounded wait says that nothing was appended.
        let producer = bind_producer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
        put(&producer, 0..10).await;
        let full = producer.put_data_within([10], Duration::from_millis(50)).await;
        assert_eq!(full, Err(QueueError::MessageBufferFull));
        assert_eq!(get(&consumer, 10).await.len(), 10);
        store.close().await.unwrap();
    }

    /// Checklist 15 (H-15, H-16): a typed error, on every endpoint of the process, and no retry storm.
    pub(super) async fn checklist_15_a_lost_lease_closes_its_endpoints(bench: &Bench) {
        let store = bench.process();
        let config = config(1);
        let producer = Arc::new(bind_producer(&store, "q", ChanType::Mpsc, &config).await.unwrap());
        let consumer = Arc::new(bind_consumer(&store, "q2", ChanType::Mpsc, &config).await.unwrap());
        producer.put_data(b"full").await.unwrap();
        let put = tokio::spawn({
            let producer = Arc::clone(&producer);
            async move { producer.put_data(b"waits").await }
        });
        let got = tokio::spawn({
            let consumer = Arc::clone(&consumer);
            async move { consumer.get_data(1, None, 0).await }
        });
        let leases = store.leases().view();
        for view in &leases {
            let backend = bench.backend_of(view);
            backend.revoke(view.lease).await.unwrap();
        }
        let lost = tokio::time::timeout(PATIENCE, async { (put.await.unwrap(), got.await.unwrap()) }).await;
        assert_eq!(lost.unwrap(), (Err(QueueError::LeaseLost), Err(QueueError::LeaseLost)));
        assert_eq!(QueueError::LeaseLost.code(), 12_014);
        // A new endpoint gets a new lease.
        let again = bind_producer(&store, "q3", ChanType::Mpsc, &config).await.unwrap();
        again.put_data(b"x").await.unwrap();
        store.close().await.unwrap();
    }

    /// Checklist 16 (H-19)
    pub(super) async fn checklist_16_a_mismatch_is_typed(bench: &Bench) {
        let store = bench.process();
        producer(&store, "q", ChanType::Mpmc).await;
        for other in
            [ChannelConfig { capacity: 99, ..config(100) }, ChannelConfig { ttl: PATIENCE, ..config(100) }]
        {
            let refused = bind_producer(&store, "q", ChanType::Mpmc, &other).await;
            assert!(matches!(refused, Err(QueueError::Mismatch(_))), "{refused:?}");
        }
        let refused = bind_producer(&store, "q", ChanType::Mpsc, &config(100)).await;
        assert_eq!(refused.unwrap_err().code(), 13_001);
        store.close().await.unwrap();
    }

    /// Checklist 20 (H-23) by one: without members it ends, and the name makes a new one.
    pub(super) async fn checklist_20_a_channel_ends_with_its_ttl(bench: &Bench) {
        let (store, later) = (bench.process(), bench.process());
        let config = ChannelConfig::new(10, Duration::from_secs(1));
        let first = bind_producer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
        first.put_data(b"x").await.unwrap();
        store.close().await.unwrap();
        let start = Instant::now();
        loop {
            let next = bind_producer(&later, "q", ChanType::Mpsc, &config).await.unwrap();
            if next.created() {
                assert_ne!(next.chan_id(), first.chan_id());
                break;
            }
            assert!(start.elapsed() < PATIENCE, "the channel never ends");
            next.close().await.unwrap();
            tokio::time::sleep(Duration::from_millis(2_500)).await;
        }
        later.close().await.unwrap();
    }

    /// A consumer that was closed while its records were worked on is told that, not that somebody took them from it.
    pub(super) async fn checklist_25_an_acknowledgement_after_the_close_says_so(bench: &Bench) {
        let (store, other) = (bench.process(), bench.process());
        let config = config(5);
        let producer = bind_producer(&other, "q", ChanType::Mpmc, &config).await.unwrap();
        let consumer = bind_consumer(&store, "q", ChanType::Mpmc, &config).await.unwrap();
        put(&producer, 0..3).await;
        let items = get(&consumer, 3).await;
        consumer.close().await.unwrap();
        let heir = bind_consumer(&other, "q", ChanType::Mpmc, &config).await.unwrap();
        let again = get(&heir, 3).await;
        let late = consumer.ack(&ids(&items)).await;
        assert!(matches!(late, Err(QueueError::ChannelClosed(_))), "{late:?}");
        heir.ack(&ids(&again)).await.unwrap();
        other.close().await.unwrap();
        store.close().await.unwrap();
    }

    /// Checklist 25: endpoints first, under load; who waits is told; afterwards nothing is taken.
    pub(super) async fn checklist_25_closing_the_store_closes_its_endpoints_first(bench: &Bench) {
        let (store, other) = (bench.process(), bench.process());
        let config = config(5);
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let producer = bind_producer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
            tasks.push(tokio::spawn(async move {
                loop {
                    match producer.put_data(b"load").await {
                        Ok(()) => {}
                        Err(QueueError::ProducerClosed) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            }));
        }
        let consumer = bind_consumer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
        get(&consumer, 5).await;
        let waits = tokio::spawn(async move { consumer.get_data(100, None, 0).await });
        store.close().await.unwrap();
        store.close().await.unwrap();
        for task in tasks {
            tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        }
        let ended = tokio::time::timeout(PATIENCE, waits).await.unwrap().unwrap();
        assert!(matches!(ended, Ok(_) | Err(QueueError::ChannelClosed(_))), "{ended:?}");
        let refused = bind_producer(&store, "q", ChanType::Mpsc, &config).await;
        assert!(matches!(refused, Err(QueueError::ChannelClosed(_))), "{refused:?}");
        // Everybody left: the channel has no member of that process any more.
        bind_consumer(&other, "q", ChanType::Mpsc, &config).await.unwrap();
        other.close().await.unwrap();
    }

    pub(super) async fn a_cancelled_get_loses_nothing(bench: &Bench) {
        let store = bench.process();
        let producer = producer(&store, "q", ChanType::Mpsc).await;
        let consumer = consumer(&store, "q", ChanType::Mpsc).await;
        let sender = tokio::spawn(async move {
            put(&producer, 0..100).await;
            producer
        });
        let mut seen = Vec::new();
        let start = Instant::now();
        while seen.len() < 100 {
            assert!(start.elapsed() < PATIENCE);
            let patience = Duration::from_micros(seen.len() as u64 * 37 % 3_000);
            let Ok(got) = tokio::time::timeout(patience, consumer.get_data(3, None, 5)).await else {
                continue;
            };
            let items = got.unwrap();
            consumer.ack(&ids(&items)).await.unwrap();
            seen.extend(payloads(&items));
        }
        assert_eq!(seen, (0..100_u8).map(|number| vec![number]).collect::<Vec<_>>());
        sender.await.unwrap();
        store.close().await.unwrap();
    }

    /// an expired record is no error and no gap.
    pub(super) async fn expired_records_are_skipped_and_counted(bench: &Bench) {
        let store = bench.process();
        let producer = producer(&store, "q", ChanType::Mpsc).await;
        let consumer = consumer(&store, "q", ChanType::Mpsc).await;
        producer.put_data(Record::new(b"stale").expires_in(Duration::ZERO)).await.unwrap();
        producer.put_data(Record::new(b"fresh").expires_in(Duration::from_secs(600))).await.unwrap();
        assert_eq!(payloads(&get(&consumer, 1).await), [b"fresh"]);
        assert_eq!((consumer.stat().expired, consumer.stat().delivered), (1, 1));
        store.close().await.unwrap();
    }

    /// Lease spec 15.8: late binding, credit, release in place.
    pub(super) async fn a_group_gives_each_record_to_one(bench: &Bench) {
        let store = bench.process();
        let config = ChannelConfig { credit: 4, ..config(100) };
        let producer = bind_producer(&store, "g", ChanType::Group, &config).await.unwrap();
        let one = bind_consumer(&store, "g", ChanType::Group, &config).await.unwrap();
        let two = bind_consumer(&store, "g", ChanType::Group, &config).await.unwrap();
        put(&producer, 0..6).await;
        let first = one.get_data(100, Some(PATIENCE), 0).await.unwrap();
        assert_eq!(payloads(&first), [[0], [1], [2], [3]]);
        assert_eq!(one.get_data(1, SOON, 0).await, Err(QueueError::NoNewMessage), "its credit is used up");
        one.release(&ids(&first[1..3])).await.unwrap();
        let second = get(&two, 4).await;
        assert_eq!(payloads(&second), [[1], [2], [4], [5]]);
        assert!(second[0].redelivered && !second[2].redelivered);
        assert_eq!(one.ack(&ids(&second)).await, Err(QueueError::Fenced));
        two.ack(&ids(&second)).await.unwrap();
        store.close().await.unwrap();
    }
}
