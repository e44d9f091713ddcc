//! The clients of a round: publishers of every QoS, durable subscribers that stay, flip and wander, live ones on every node, a writer and
//! readers of a retained topic, clients with Wills, and one that is ended by operators again and again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::history::{History, Kind, Violation};
use crate::load::{Field, Habit, Mourned, Publisher, Pulse, Reader, Subscriber, Victim};

/// Everybody.
pub(super) struct Crew {
    publishers: Vec<JoinHandle<u32>>,
    others: Vec<JoinHandle<()>>,
    pulses: Vec<Arc<Pulse>>,
    /// In time.
    pub(super) all_subscribed: bool,
}

impl Crew {
    pub(super) fn start(field: &Field, rate: u32, seed: u64, admins: [(SocketAddr, String); 3]) -> Self {
        let topic = |name: &str| format!("{seed}/{name}");
        let mut publishers: Vec<Publisher> = (1..=3)
            .map(|node| Publisher::new(field, &topic(&format!("once{node}")), 1, Kind::Plain, rate, node))
            .collect();
        publishers.push(Publisher::new(field, &topic("exact"), 2, Kind::Plain, rate, 2));
        let plain: Vec<u32> = publishers.iter().map(|publisher| publisher.stream).collect();
        let kept = Publisher::new(field, &topic("kept"), 1, Kind::Retained, 20, 1);
        let (kept_stream, wills) = (kept.stream, field.recorder.stream(&topic("wills"), 1, Kind::Will));
        publishers.push(kept);
        let mut subscribers = Vec::new();
        for (name, habit, node) in [
            ("stay", Habit::Stay, 1),
            ("flip", Habit::Flip(Duration::from_millis(300)), 2),
            ("wander1", Habit::Wander(seed), 3),
            ("wander2", Habit::Wander(seed ^ 1), 1),
        ] {
            let name = format!("{name}-{seed}");
            subscribers.push(Subscriber::new(field, &name, true, &plain, habit, node));
        }
        let watcher = format!("watcher-{seed}");
        subscribers.push(Subscriber::new(field, &watcher, true, &[wills], Habit::Stay, 3));
        for node in 1..=3 {
            let name = format!("live{node}-{seed}");
            subscribers.push(Subscriber::new(field, &name, false, &plain, Habit::Stay, node));
        }
        let pulses: Vec<_> = subscribers.iter().map(|subscriber| subscriber.pulse.clone()).collect();
        let mut others: Vec<JoinHandle<()>> = Vec::new();
        for subscriber in subscribers {
            others.push(field.spawn(move |field| subscriber.run(&field)));
        }
        for number in 0..2 {
            let mourned = Mourned::new(field, &format!("will{number}-{seed}"), wills, seed + number);
            others.push(field.spawn(move |field| mourned.run(&field)));
            let reader = Reader::new(field, &format!("reader{number}-{seed}"), kept_stream, seed + number);
            others.push(field.spawn(move |field| reader.run(&field)));
        }
        let victim = Victim::new(field, &format!("victim-{seed}"), admins, seed);
        others.push(field.spawn(move |field| victim.run(&field)));
        let publishers =
            publishers.into_iter().map(|publisher| field.spawn(move |field| publisher.run(&field))).collect();
        let all_subscribed = field.open(&pulses);
        Self { publishers, others, pulses, all_subscribed }
    }

    pub(super) fn drain(&self, field: &Field, limit: Duration) -> (History, Vec<Violation>) {
        field.drain(&self.publishers, &self.pulses, limit)
    }

    pub(super) fn join(self) {
        for publisher in self.publishers {
            publisher.join().expect("a publisher does not panic");
        }
        for other in self.others {
            other.join().expect("a client does not panic");
        }
    }
}
