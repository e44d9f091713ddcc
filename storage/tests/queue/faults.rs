//! Requests and replies that get lost: what was done must neither be done again nor be forgotten.

crate::on_every_backend!(cases:
    checklist_4_lost_requests_and_replies_neither_lose_nor_duplicate,
    checklist_23_an_end_fails_closed_at_every_point,
    checklist_25_a_child_that_cannot_close_keeps_its_store_open,
);

mod cases {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use session::queue::{QueueCommand, QueueReply, Refusal, SealReason};
    use session::time::Millis;
    use storage::lease::{LeaseFuture, Standing};
    use storage::queue::{ChanType, ChannelStore, QueueError, Request, Response, Unavailable};

    use crate::bench::{
        Bench, PATIENCE, bind_consumer, bind_producer, config, consumer, get, ids, payloads, producer,
    };

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Way {
        There,
        Back,
    }

    /// Which commands are lost.
    #[derive(Debug)]
    enum Plan {
        /// Every third Bind, Append or Claim on its way there, every fifth on its way back.
        Often,
        /// The one of this number.
        One(u32, Way),
        /// Every Leave, while it is set.
        Leaves(AtomicBool),
    }

    /// A store on a bad line.
    #[derive(Debug)]
    struct Faulty {
        inner: Arc<dyn ChannelStore>,
        plan: Plan,
        commands: AtomicU32,
    }

    impl Faulty {
        fn over(bench: &Bench, plan: Plan) -> Arc<Self> {
            Arc::new(Self { inner: Arc::clone(&bench.channels), plan, commands: AtomicU32::new(0) })
        }

        fn loses(&self, command: &QueueCommand) -> Option<Way> {
            let next = || self.commands.fetch_add(1, Ordering::Relaxed) + 1;
            match &self.plan {
                Plan::Often => match command {
                    QueueCommand::Bind(_) | QueueCommand::Append { .. } | QueueCommand::Claim { .. } => {
                        let number = next();
                        let back = (number % 5 == 0).then_some(Way::Back);
                        if number % 3 == 0 { Some(Way::There) } else { back }
                    }
                    _ => None,
                },
                Plan::One(at, way) => (next() == *at).then_some(*way),
                Plan::Leaves(broken) => {
                    let leave = matches!(command, QueueCommand::Leave { .. });
                    (leave && broken.load(Ordering::Acquire)).then_some(Way::There)
                }
            }
        }
    }

    impl ChannelStore for Faulty {
        fn name(&self) -> &str {
            self.inner.name()
        }

        fn groups(&self) -> u16 {
            self.inner.groups()
        }

        fn incarnation(&self) -> u64 {
            self.inner.incarnation()
        }

        fn now(&self) -> Millis {
            self.inner.now()
        }

        fn call(&self, group: u16, request: Request) -> LeaseFuture<'_, Result<Response, Unavailable>> {
            Box::pin(async move {
                let lost = match &request {
                    Request::Queue(command) => self.loses(command),
                    _ => None,
                };
                let error = |way: &str| Err(Unavailable(format!("lost on its way {way}")));
                if lost == Some(Way::There) {
                    return error("there");
                }
                let response = self.inner.call(group, request).await;
                if lost == Some(Way::Back) { error("back") } else { response }
            })
        }
    }

    /// Checklist 4 (H-03, H-04): whatever is lost on the way, each record is there once and in order, and no member is there twice.
    pub(super) async fn checklist_4_lost_requests_and_replies_neither_lose_nor_duplicate(bench: &Bench) {
        for of in [ChanType::Mpsc, ChanType::Mpmc, ChanType::Group] {
            let store = bench.process_over(Faulty::over(bench, Plan::Often));
            let name = format!("{of:?}");
            let producer = producer(&store, &name, of).await;
            let consumer = consumer(&store, &name, of).await;
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
            if of == ChanType::Group {
                // A record whose claim had no answer comes behind the next one.
                seen.sort();
            }
            assert_eq!(seen, (0..40_u8).map(|number| vec![number]).collect::<Vec<_>>(), "{of:?}");
            let more = consumer.get_data(1, Some(Duration::from_millis(300)), 0).await;
            assert!(more.is_err(), "{of:?}: {more:?}");
            sender.await.unwrap();
            store.close().await.unwrap();
        }
    }

    /// Repeats a command until it is answered.
    async fn insist(channels: &Faulty, group: u16, command: QueueCommand) -> QueueReply {
        for _ in 0..5 {
            match channels.call(group, Request::Queue(command.clone())).await {
                Ok(Response::Queue(reply)) => return reply,
                Ok(other) => panic!("{other:?}"),
                Err(_lost) => {}
            }
        }
        panic!("only one command is lost")
    }

    /// Repeats an acknowledgement or a close until it is answered.
    async fn again<F: Future<Output = Result<(), QueueError>>>(mut call: impl FnMut() -> F) {
        while let Err(error) = call().await {
            assert!(matches!(error, QueueError::Unavailable(_)), "{error}");
        }
    }

    /// Checklist 23 (lease spec 15.7) for channels: one that is in use is sealed, deleted and reclaimed, and its name is taken by a
    /// successor, while each single command of that is lost once, on its way there and on its way back. Whoever was told that it is done
    /// finds it done; repeating it finishes it; late repetitions leave the successor as it is.
    pub(super) async fn checklist_23_an_end_fails_closed_at_every_point(bench: &Bench) {
        let mut points = 0;
        for way in [Way::There, Way::Back] {
            for at in 1.. {
                let faulty = Faulty::over(bench, Plan::One(at, way));
                end_and_succeed(bench, &faulty, &format!("q{at}{way:?}")).await;
                if faulty.commands.load(Ordering::Relaxed) < at {
                    break;
                }
                points += 1;
            }
        }
        assert!(points >= 20, "{points} points of failure");
    }

    async fn end_and_succeed(bench: &Bench, faulty: &Arc<Faulty>, name: &str) {
        let (old, store) = (bench.process(), bench.process_over(Arc::clone(faulty) as _));
        let producer = producer(&old, name, ChanType::Mpsc).await;
        let reader = consumer(&old, name, ChanType::Mpsc).await;
        for number in 0..3_u8 {
            producer.put_data([number]).await.unwrap();
        }
        let read = get(&reader, 3).await;
        let (group, channel) = producer.chan_id();
        let seal = QueueCommand::Seal { channel, reason: SealReason::SessionEnded };
        let delete = QueueCommand::Delete { channel };
        let sealed = insist(faulty, group, seal.clone()).await;
        assert_eq!(sealed, QueueReply::Sealed { reason: SealReason::SessionEnded });
        let put = producer.put_data(b"late").await;
        assert!(matches!(put, Err(QueueError::ChannelClosed(_))), "{put:?}");
        let gone = QueueReply::Refused(Refusal::Missing);
        let deleted = insist(faulty, group, delete.clone()).await;
        // Missing: the reply was lost, and it is reclaimed by now.
        assert!(deleted == gone || deleted == QueueReply::Done, "{deleted:?}");
        assert_eq!(producer.put_data(b"late").await, Err(QueueError::LeaseLost));
        assert_eq!(reader.ack(&ids(&read)).await, Err(QueueError::Fenced), "the reader was dropped with it");

        let next = bind_producer(&store, name, ChanType::Mpsc, &config(100)).await.unwrap();
        assert!(next.created() && next.chan_id() != (group, channel));
        for number in 10..13_u8 {
            next.put_data([number]).await.unwrap();
        }
        // Whatever comes late is for the old one, or for nobody.
        let sealed = insist(faulty, group, seal).await;
        assert!(
            sealed == gone || sealed == QueueReply::Sealed { reason: SealReason::SessionEnded },
            "{sealed:?}"
        );
        let deleted = insist(faulty, group, delete).await;
        assert!(deleted == gone || deleted == QueueReply::Done, "{deleted:?}");
        let reclaim = QueueCommand::Reclaim { channel, limit: 2 };
        for _ in 0..2 {
            let reclaimed = insist(faulty, group, reclaim.clone()).await;
            assert!(reclaimed == gone || matches!(reclaimed, QueueReply::Reclaimed { .. }), "{reclaimed:?}");
        }
        let successor = bind_consumer(&store, name, ChanType::Mpsc, &config(100)).await.unwrap();
        let items = get(&successor, 3).await;
        assert_eq!(payloads(&items), [[10], [11], [12]]);
        again(|| async { successor.ack(&ids(&items)).await }).await;
        assert!(matches!(producer.put_data(b"late").await, Err(QueueError::LeaseLost)));
        again(|| async { next.close().await }).await;
        again(|| async { successor.close().await }).await;
        store.close().await.unwrap();
        old.close().await.unwrap();
    }

    /// Checklist 25: an endpoint that cannot close keeps its store open, by name of the error; closing again retries it; then no task
    /// of the store is left, and what it held is free at once.
    pub(super) async fn checklist_25_a_child_that_cannot_close_keeps_its_store_open(bench: &Bench) {
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let faulty = Faulty::over(bench, Plan::Leaves(AtomicBool::new(true)));
        // What the runtime and the backend need once is started by the first process.
        let other = bench.process();
        consumer(&other, "q", ChanType::Mpsc).await.close().await.unwrap();
        let before = tasks();
        let store = bench.process_over(Arc::clone(&faulty) as _);
        let producer = producer(&store, "q", ChanType::Mpsc).await;
        let reader = consumer(&store, "q", ChanType::Mpsc).await;
        producer.put_data(b"x").await.unwrap();
        assert_eq!(store.close().await, Err(QueueError::ResourceCleanup(2)));
        assert_eq!(QueueError::ResourceCleanup(2).code(), 13_002);
        let refused = bind_producer(&store, "q2", ChanType::Mpsc, &config(100)).await;
        assert!(matches!(refused, Err(QueueError::ChannelClosed(_))), "{refused:?}");
        let held = store.leases().view();
        assert!(held.iter().all(|view| view.standing != Standing::Lost) && !held.is_empty(), "{held:?}");
        assert!(matches!(reader.get_data(1, None, 0).await, Err(QueueError::ChannelClosed(_))));
        let Plan::Leaves(broken) = &faulty.plan else { unreachable!("it was made so") };
        broken.store(false, Ordering::Release);
        store.close().await.unwrap();
        assert!(store.leases().view().is_empty());
        let next = bind_consumer(&other, "q", ChanType::Mpsc, &config(100)).await.unwrap();
        assert_eq!(payloads(&get(&next, 1).await), [b"x"]);
        drop((store, producer, reader));
        let start = Instant::now();
        while tasks() > before {
            assert!(start.elapsed() < PATIENCE, "{} tasks, {before} before", tasks());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        other.close().await.unwrap();
    }
}
