//! Every node is stopped and started in turn under load (issue 3, deliverable 6; scenarios 11, 24): clients reconnect, nothing that was
//! acknowledged is lost, and P1 to P8 hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tests::cluster::is_settled;
use tests::history::{Kind, What};
use tests::load::{Field, Habit, Publisher, Pulse, Subscriber, account};
use tests::{Cluster, eventually};

#[test]
fn a_rolling_restart_loses_nothing() {
    let mut cluster = Cluster::of_three();
    let limit = Duration::from_secs(10);
    let field = Field::new(&cluster.mqtt(), limit, limit);
    let publishers: Vec<Publisher> = [(1, 1), (2, 2), (3, 1)]
        .map(|(node, qos)| Publisher::new(&field, &format!("roll/{node}"), qos, Kind::Plain, 60, node))
        .into();
    let streams: Vec<u32> = publishers.iter().map(|publisher| publisher.stream).collect();
    let subscribers = [
        Subscriber::new(&field, "stays", true, &streams, Habit::Stay, 1),
        Subscriber::new(&field, "flips", true, &streams, Habit::Flip(Duration::from_millis(200)), 2),
        Subscriber::new(&field, "lives", false, &streams, Habit::Stay, 3),
    ];
    let pulses: Vec<Arc<Pulse>> = subscribers.iter().map(|subscriber| subscriber.pulse.clone()).collect();
    let readers = subscribers.map(|subscriber| field.spawn(move |field| subscriber.run(&field)));
    let publishers: Vec<_> =
        publishers.into_iter().map(|publisher| field.spawn(move |field| publisher.run(&field))).collect();
    assert!(field.open(&pulses), "everybody subscribes");
    for id in 1..=3_u8 {
        let began = Instant::now();
        field.recorder.note_node(What::Troubled { node: id });
        let node = cluster.node_mut(id.into());
        node.stop();
        let stopped = began.elapsed();
        node.restart();
        eventually("the node is back among the others", Duration::from_secs(60), || {
            cluster.nodes.iter().all(is_settled).then_some(())
        });
        field.recorder.note_node(What::Healed { node: id });
        println!("node {id}: stopped in {stopped:.2?}, back after {:.2?}", began.elapsed());
    }
    let (history, found) = field.drain(&publishers, &pulses, Duration::from_secs(60));
    field.over.store(true, Ordering::Release);
    let acknowledged: u32 = publishers.into_iter().map(|thread| thread.join().expect("a publisher")).sum();
    for reader in readers {
        reader.join().expect("a subscriber");
    }
    println!(
        "{acknowledged} messages acknowledged, {} entries, {} violations",
        history.events.len(),
        found.len()
    );
    assert!(found.is_empty(), "{}", account(&history, &found, 5));
}
