//! One client flips between three nodes every 50 ms under load (issue 3; scenarios 9, 16, 24): P1 and P4 hold, in order.

use std::sync::PoisonError;
use std::time::Duration;

use tests::Cluster;
use tests::history::Kind;
use tests::load::{Field, Habit, Publisher, Subscriber, account, quantile};

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// P1, P2, P4: every acknowledged message arrives in order, each takeover succeeds with the session present, and no old connection acts.
/// For the figures of a release: `EXACTMQ_FLIP_SECONDS=60 EXACTMQ_FLIP_RATE=5000`.
#[test]
fn a_client_that_flips_between_nodes_misses_nothing() {
    let seconds = number("EXACTMQ_FLIP_SECONDS", 5);
    let rate = number("EXACTMQ_FLIP_RATE", 300);
    let cluster = Cluster::of_three();
    let limit = Duration::from_secs(10);
    let field = Field::new(&cluster.mqtt(), limit, limit);
    let publishers: Vec<Publisher> = (1..=3)
        .map(|node| {
            let topic = format!("flip/{node}");
            Publisher::new(&field, &topic, 1, Kind::Plain, rate / 3, node)
        })
        .collect();
    let streams: Vec<u32> = publishers.iter().map(|publisher| publisher.stream).collect();
    let habit = Habit::Flip(Duration::from_millis(50));
    let mut subscriber = Subscriber::new(&field, "flipper", true, &streams, habit, 1);
    subscriber.qos = 1;
    let (pulse, takeovers) = (subscriber.pulse.clone(), subscriber.takeovers.clone());
    let reader = field.spawn(move |field| subscriber.run(&field));
    let publishers: Vec<_> =
        publishers.into_iter().map(|publisher| field.spawn(move |field| publisher.run(&field))).collect();
    assert!(field.open(std::slice::from_ref(&pulse)), "the client subscribes");
    std::thread::sleep(Duration::from_secs(seconds.into()));
    let (history, found) = field.drain(&publishers, &[pulse], Duration::from_secs(60));
    field.over.store(true, std::sync::atomic::Ordering::Release);
    let acknowledged: u32 = publishers.into_iter().map(|thread| thread.join().expect("a publisher")).sum();
    reader.join().expect("the subscriber");
    let mut takeovers = takeovers.lock().unwrap_or_else(PoisonError::into_inner).clone();
    println!(
        "{acknowledged} messages acknowledged in {seconds} s, {} takeovers, latency p50 {:?}, p99 {:?}, {} entries, {} violations",
        takeovers.len(),
        quantile(&mut takeovers, 0.5),
        quantile(&mut takeovers, 0.99),
        history.events.len(),
        found.len()
    );
    assert!(found.is_empty(), "{}", account(&history, &found, 5));
    assert!(takeovers.len() > 3 && acknowledged > 100, "{} {acknowledged}", takeovers.len());
}
