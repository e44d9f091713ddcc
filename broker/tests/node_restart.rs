//! A whole node in this process: real store, real sockets. Two boots on one data directory, crashed and stopped in order; End with a
//! publish in progress.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Duration;

use broker::config::{Config, Sources};
use broker::node::{Node, Stopped};
use broker::usecase::EndInput;
use session::lifecycle::{EndReason, SessionState, WillMode};

use support::client::Client;

fn config(data_dir: &Path) -> Config {
    let flags = [
        ("node.data_dir", data_dir.to_str().unwrap()),
        ("listener.mqtt.address", "127.0.0.1:0"),
        ("admin.address", "off"),
        ("node.workers", "2"),
        ("storage.segment_bytes", "1048576"),
    ];
    let flags = flags.map(|(key, value)| ("--set".to_owned(), key.to_owned(), value.to_owned())).to_vec();
    Config::load(&Sources { file: None, environment: Vec::new(), flags }).unwrap().config
}

async fn connect(node: &Node, client_id: &str) -> (Client, bool) {
    let mut client = Client::dial(node.address("mqtt").unwrap()).await;
    let session_present = client.connect(client_id, 300).await;
    (client, session_present)
}

/// P4, P5, scenarios 49 and 50: what was acknowledged is there after a stop in order, and the session belongs to a new owner without
/// anybody's help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_a_session_goes_on_after_a_stop_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).await.unwrap();
    let (mut subscriber, session_present) = connect(&node, "sub").await;
    assert!(!session_present);
    subscriber.subscribe("t/#", 1).await;
    assert_eq!(node.stop(Duration::from_secs(10)).await, Stopped::Graceful);
    assert!(subscriber.is_closed().await);

    let node = Node::start(&config(dir.path())).await.unwrap();
    let (mut publisher, _) = connect(&node, "pub").await;
    publisher.publish("t/1", b"kept", 1).await;
    let (mut subscriber, session_present) = connect(&node, "sub").await;
    assert!(session_present);
    assert_eq!(subscriber.message().await, ("t/1".to_owned(), b"kept".to_vec()));
    assert_eq!(node.stop(Duration::from_secs(10)).await, Stopped::Graceful);
}

/// DESIGN §9: inbox quotas are state of the groups; a start with others in its configuration changes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configured_quotas_apply_to_existing_data() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    for messages in [1_000, 7, 7] {
        config.session.inbox_messages_max = messages;
        let node = Node::start(&config).await.unwrap();
        let store = &node.shared().store;
        for group in (0..store.groups()).map(storage::GroupId) {
            let quotas = store.read(group, session::lifecycle::Group::quotas);
            assert_eq!(quotas, (messages, config.session.inbox_bytes_max));
        }
        assert_eq!(node.stop(Duration::from_secs(10)).await, Stopped::Graceful);
    }
}

/// P2, scenario 15.3 of the owner spec: the receipt of the earlier boot proves that its owners stopped; CONNECT is not refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_sessions_of_an_earlier_boot_are_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut last_boot = None;
    for round in 0..3 {
        let node = Node::start(&config(dir.path())).await.unwrap();
        assert_ne!(last_boot.as_ref(), Some(&node.shared().boot.boot_id), "a boot id is never used twice");
        last_boot = Some(node.shared().boot.boot_id.clone());
        let (_client, session_present) = connect(&node, "c").await;
        assert_eq!(session_present, round > 0);
        assert_eq!(node.stop(Duration::from_secs(10)).await, Stopped::Graceful);
    }
}

/// P1, scenario 3, over real sockets: one of fifty stays and works, every loser is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_of_fifty_sockets_with_one_client_id_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).await.unwrap();
    let address = node.address("mqtt").unwrap();
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(50));
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let barrier = barrier.clone();
            tokio::spawn(async move {
                let mut client = Client::dial(address).await;
                barrier.wait().await;
                client.try_connect("same", 300).await.then_some(client)
            })
        })
        .collect();
    let mut accepted = Vec::new();
    for task in tasks {
        accepted.extend(task.await.unwrap());
    }
    let mut open = Vec::new();
    for mut client in accepted {
        if !client.is_closed_within(Duration::from_millis(500)).await {
            open.push(client);
        }
    }
    assert_eq!(open.len(), 1);
    let mut survivor = open.pop().unwrap();
    survivor.subscribe("x", 1).await;
    survivor.publish("x", b"alive", 1).await;
    assert_eq!(survivor.message().await.1, b"alive");
    node.stop(Duration::from_secs(10)).await;
}

/// P3: End closes the socket, ends the session and leaves the next CONNECT a new one; repeating it changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_end_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).await.unwrap();
    let (mut client, _) = connect(&node, "c").await;
    client.subscribe("t", 1).await;
    let shared = node.shared();
    let key = session::id::Key::new("main".into(), "c".into()).unwrap();
    let group = shared.store.group_of(&key);
    let row = shared.store.read(group, |rows| rows.session(&key).cloned()).unwrap();
    let input = EndInput {
        owner: row.owner.clone(),
        reason: EndReason::Revoked,
        will: WillMode::Publish,
        release: false,
    };
    let deadline = shared.clock.tick().plus_ms(5_000);
    let ended = shared.end(&input, deadline).await.unwrap();
    assert_eq!(ended.state, SessionState::Ended { reason: EndReason::Revoked });
    assert_eq!(shared.owners.snapshot().held, 0);
    assert_eq!(client.last_disconnect_reason().await, Some(0x98), "scenario 27: the client is told why");
    assert_eq!(shared.end(&input, deadline).await.map(|row| row.revision), Ok(ended.revision));
    let (_again, session_present) = connect(&node, "c").await;
    assert!(!session_present);
    assert_eq!(shared.end(&input, deadline).await, Err(broker::usecase::end::EndError::Fenced));
    node.stop(Duration::from_secs(10)).await;
}

/// A second process, or a second node on the same directory, does not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_data_directory_has_one_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).await.unwrap();
    assert!(Node::start(&config(dir.path())).await.is_err());
    node.stop(Duration::from_secs(10)).await;
}

/// [MQTT-3.1.4-3], presence: the Will of the connection that is taken over is published before anything of its successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_the_will_of_a_taken_over_connection_comes_before_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).await.unwrap();
    let (mut watcher, _) = connect(&node, "watcher").await;
    watcher.subscribe("presence/c", 1).await;
    let mut last = Client::dial(node.address("mqtt").unwrap()).await;
    last.connect_with_will("c", "presence/c", b"offline").await;
    for _ in 0..20 {
        let mut next = Client::dial(node.address("mqtt").unwrap()).await;
        next.connect_with_will("c", "presence/c", b"offline").await;
        next.publish("presence/c", b"online", 1).await;
        assert_eq!(watcher.message().await.1, b"offline");
        assert_eq!(watcher.message().await.1, b"online");
        last = next;
    }
    drop(last);
    assert_eq!(node.stop(Duration::from_secs(10)).await, Stopped::Graceful);
}

/// P3: an End that lands between the commit of a CONNECT and the opening of its routing handle leaves no handle behind: nobody would forget
/// it again. One that lands later takes the handle along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_an_ended_lifetime_leaves_no_routing_handle() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&config(dir.path())).await.unwrap();
    let shared = node.shared().clone();
    let key = session::id::Key::new("main".into(), "c".into()).unwrap();
    let group = shared.store.group_of(&key);
    let (mut client, _) = connect(&node, "c").await;
    client.subscribe("t/#", 1).await;
    let row = shared.store.read(group, |rows| rows.session(&key).cloned()).unwrap();
    assert!(shared.router.find(group, row.lifetime).is_some());
    let input =
        EndInput { owner: row.owner, reason: EndReason::Revoked, will: WillMode::Publish, release: false };
    shared.end(&input, shared.clock.tick().plus_ms(5_000)).await.unwrap();
    assert!(shared.router.find(group, row.lifetime).is_none(), "End takes the handle along");
    assert!(shared.router.is_empty());
    // The worker of a CONNECT that was committed before the End comes by only now.
    let (late, received) = shared.open_subscriber(&key, (None, None), Some((group, row.lifetime)));
    assert!(shared.router.find(group, row.lifetime).is_none(), "nobody would forget it");
    assert_eq!((late.subscription_count(), received), (0, Vec::new()));
    let (mut client, session_present) = connect(&node, "c").await;
    assert!(!session_present);
    client.subscribe("t/#", 1).await;
    let row = shared.store.read(group, |rows| rows.session(&key).cloned()).unwrap();
    assert!(shared.router.find(group, row.lifetime).is_some(), "a lifetime that lives has one");
    assert_eq!(node.stop(Duration::from_secs(10)).await, Stopped::Graceful);
}
