//! All clients of a node lose it at once and come to the other two (issue 3; scenarios 11, 21, 24): the time to the last CONNACK.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tests::cluster::{durable, succeeds};
use tests::{Client, Cluster, Options};

/// CONNECTs of one thread that wait for their answer.
const BATCH: usize = 64;
const THREADS: usize = 8;
const LIMIT: Duration = Duration::from_secs(120);

/// For the figure of a release: `EXACTMQ_RECONNECT_CLIENTS=15000`.
fn clients() -> usize {
    std::env::var("EXACTMQ_RECONNECT_CLIENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

/// Connects clients `from..to` to these nodes in turn, batch by batch; a refused one tries again. Returns them with how many had their session.
fn connect(nodes: &[SocketAddr], from: usize, to: usize) -> (Vec<Client>, usize) {
    let end = Instant::now() + LIMIT;
    let (mut connected, mut present) = (Vec::new(), 0);
    let mut waiting: Vec<usize> = (from..to).rev().collect();
    while !waiting.is_empty() {
        assert!(Instant::now() < end, "{} clients are still refused after {LIMIT:?}", waiting.len());
        let batch: Vec<usize> = waiting.split_off(waiting.len().saturating_sub(BATCH));
        let opened = batch.into_iter().map(|number| {
            let opened = Client::try_open(nodes[number % nodes.len()], true, LIMIT).map(|mut client| {
                client.send(&durable(&format!("mass-{number}")).keep_alive(600).bytes());
                client
            });
            (number, opened)
        });
        let opened: Vec<_> = opened.collect();
        for (number, opened) in opened {
            let answer = opened.ok().map(|mut client| (client.poll(LIMIT), client));
            match answer {
                Some((Ok(Some(connack)), client)) if connack.kind() == 2 && connack.reason() == 0 => {
                    present += usize::from(connack.body[0] & 1);
                    connected.push(client);
                }
                _ => waiting.push(number),
            }
        }
    }
    (connected, present)
}

/// The same on several threads.
fn connect_all(nodes: &[SocketAddr], count: usize) -> (Vec<Client>, usize) {
    std::thread::scope(|scope| {
        let share = count.div_ceil(THREADS);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let range = (thread * share).min(count)..((thread + 1) * share).min(count);
                scope.spawn(move || connect(nodes, range.start, range.end))
            })
            .collect();
        let mut all = (Vec::new(), 0);
        for thread in threads {
            let (clients, present) = thread.join().expect("a thread of clients");
            all.0.extend(clients);
            all.1 += present;
        }
        all
    })
}

fn lose_node_3(how: &str, lose: impl FnOnce(&mut Cluster)) {
    let count = clients();
    let mut cluster = Cluster::of_three();
    let [first, second, third] = cluster.mqtt();
    let began = Instant::now();
    let (old, present) = connect_all(&[third], count);
    assert_eq!((old.len(), present), (count, 0));
    println!("{count} durable clients connected to one node in {:.2?}", began.elapsed());
    // Somebody else's clients are not to notice.
    let mut others = [(first, "other1"), (second, "other2")]
        .map(|(node, client_id)| Client::connect(node, &Options::v5(client_id)));
    let began = Instant::now();
    lose(&mut cluster);
    println!("{how}: the node was gone after {:.2?}", began.elapsed());
    drop(old);
    let began = Instant::now();
    let (new, present) = connect_all(&[first, second], count);
    println!("{how}: {count} clients have their CONNACK from the other two {:.2?} later", began.elapsed());
    assert_eq!((new.len(), present), (count, count), "each found its session");
    assert!(others.iter_mut().all(Client::is_alive), "clients of other nodes were not disturbed");
}

/// P2, P4: SIGTERM of the node and its restart: its next boot brings the proof that all its owners stopped.
#[test]
fn clients_of_a_node_that_restarts_come_to_the_others() {
    lose_node_3("SIGTERM and restart", |cluster| {
        let node = cluster.node_mut(3);
        node.stop();
        node.restart();
    });
}

/// P2, P4: kill -9 of the node, and an operator who says that it is off.
#[test]
fn clients_of_a_node_that_is_retired_come_to_the_others() {
    lose_node_3("kill -9 and node retire", |cluster| {
        let shown = cluster.node(1).cli(&["node", "show", "3", "--json"]);
        succeeds(&shown);
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        let boot = shown["boots"][0]["boot_id"].as_str().expect("a boot").to_owned();
        cluster.node_mut(3).kill();
        let attested = ["node", "retire", "3", "--boot", &boot, "--attest", "killed by this test", "--now"];
        tests::eventually("the retirement is committed", Duration::from_secs(30), || {
            cluster.node(1).cli(&attested).status.success().then_some(())
        });
    });
}
