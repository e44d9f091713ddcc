//! Several who want the same: shares of producers, consumers of different speed, records that are for one only.

crate::on_every_backend!(cases:
    checklist_11_weights_act_under_saturation,
    checklist_13_a_full_sub_channel_does_not_slow_the_others,
    checklist_26_an_exclusive_record_of_a_dead_consumer_is_for_nobody_else,
);

mod cases {
    use std::collections::VecDeque;
    use std::time::Duration;

    use storage::queue::{ChanType, ChannelConfig, QueueError, Record};

    use crate::bench::{
        Bench, PATIENCE, bind_consumer, bind_producer, config, consumer, get, ids, payloads, producer,
    };

    /// Checklist 11 (H-11): weights 1:2:3:4 under saturation give 10, 20, 30 and 40 per cent within 5 per cent of each.
    pub(super) async fn checklist_11_weights_act_under_saturation(bench: &Bench) {
        const CAPACITY: usize = 40;
        const COUNTED: u32 = 400;
        let store = bench.process();
        let config = config(CAPACITY as u64);
        let reader = bind_consumer(&store, "q", ChanType::Mpsc, &config).await.unwrap();
        let mut producers = Vec::new();
        // The lightest first: without weights it would have most.
        for weight in 1..=4_u8 {
            let own = ChannelConfig { weight: u32::from(weight), ..config.clone() };
            let producer = bind_producer(&store, "q", ChanType::Mpsc, &own).await.unwrap();
            producers.push(tokio::spawn(async move { while producer.put_data([weight]).await.is_ok() {} }));
        }
        let mut window: VecDeque<_> = get(&reader, CAPACITY).await.into();
        let mut delivered = [0_u32; 4];
        for round in 0..COUNTED + CAPACITY as u32 {
            // Full whenever room is made: everybody waits.
            let oldest = window.pop_front().unwrap();
            reader.ack(&[oldest.id]).await.unwrap();
            window.extend(get(&reader, 1).await);
            // What came in before there was any contention does not count.
            if round >= CAPACITY as u32 {
                delivered[usize::from(oldest.payload[0]) - 1] += 1;
            }
        }
        store.close().await.unwrap();
        for producer in producers {
            tokio::time::timeout(PATIENCE, producer).await.unwrap().unwrap();
        }
        for (count, part) in delivered.into_iter().zip([0.1, 0.2, 0.3, 0.4]) {
            let share = f64::from(count) / f64::from(COUNTED);
            assert!((share / part - 1.0).abs() <= 0.05, "{share} instead of {part}: {delivered:?}");
        }
    }

    /// Checklist 13 (H-13): while one sub-channel is full, all of its capacity and not one record more waits there; the others go on.
    pub(super) async fn checklist_13_a_full_sub_channel_does_not_slow_the_others(bench: &Bench) {
        let store = bench.process();
        let config = config(5);
        let producer = bind_producer(&store, "q", ChanType::Mpmc, &config).await.unwrap();
        let slow = bind_consumer(&store, "q", ChanType::Mpmc, &config).await.unwrap();
        let fast = bind_consumer(&store, "q", ChanType::Mpmc, &config).await.unwrap();
        let mut seen = Vec::new();
        for number in 0..60_u8 {
            // Never waits for the slow one.
            producer.put_data_within([number], PATIENCE).await.unwrap();
            while let Ok(items) = fast.get_data(5, Some(Duration::ZERO), 0).await {
                fast.ack(&ids(&items)).await.unwrap();
                seen.extend(payloads(&items));
            }
        }
        let late = get(&slow, 5).await;
        assert_eq!(slow.get_data(1, Some(Duration::ZERO), 0).await, Err(QueueError::NoNewMessage));
        seen.extend(payloads(&late));
        seen.sort();
        assert_eq!(seen, (0..60_u8).map(|number| vec![number]).collect::<Vec<_>>());
        store.close().await.unwrap();
    }

    /// Checklist 26 ([MQTT-4.8.2-5]): a record that is for one only, and was taken, goes with its consumer; others come to the next one.
    pub(super) async fn checklist_26_an_exclusive_record_of_a_dead_consumer_is_for_nobody_else(
        bench: &Bench,
    ) {
        let (store, dies) = (bench.process(), bench.process());
        let producer = producer(&store, "g", ChanType::Group).await;
        let dead = consumer(&dies, "g", ChanType::Group).await;
        let record = |number: u8| {
            let record = Record::new([number]);
            if number.is_multiple_of(2) { record.exclusive() } else { record }
        };
        for number in 0..6 {
            producer.put_data(record(number)).await.unwrap();
        }
        // Taken are 0 to 3, as its credit would have it; 4 and 5 never were.
        assert_eq!(payloads(&get(&dead, 4).await), [[0], [1], [2], [3]]);
        let live = consumer(&store, "g", ChanType::Group).await;
        let first = get(&live, 2).await;
        assert_eq!(payloads(&first), [[4], [5]]);
        drop((dead, dies));
        let left = get(&live, 2).await;
        assert_eq!(payloads(&left), [[1], [3]]);
        assert!(left.iter().all(|item| item.redelivered) && first.iter().all(|item| !item.redelivered));
        live.ack(&ids(&first)).await.unwrap();
        live.ack(&ids(&left)).await.unwrap();
        assert_eq!(live.get_data(1, Some(Duration::ZERO), 0).await, Err(QueueError::NoNewMessage));
        store.close().await.unwrap();
    }
}
