//! Groups over three nodes: what a commit promises when nodes and ways fail (DESIGN §5).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/net.rs"]
mod net;
mod support;

use std::sync::Arc;
use std::time::Duration;

use net::{NOWHERE, Net, address, announce, groups, persist, three};
use session::lifecycle::{Command, Reply};
use session::message::Message;
use storage::{Done, Formation, GroupId, PeerAddress, StorageError, Store};
use support::eventually;

fn retain(topic: &str, payload: &str) -> Command {
    Command::Retain { message: Message::new(topic, &[], payload.as_bytes()), stamp: None }
}

fn read(store: &Store, topic: &str) -> Option<String> {
    let mut found = None;
    let mut visit = |message: Arc<Message>| {
        found = Some(String::from_utf8(message.payload().to_vec()).unwrap());
        false
    };
    store.retained(topic, &mut visit).unwrap();
    found
}

fn export(store: &Store, group: GroupId) -> Vec<u8> {
    let mut out = Vec::new();
    store.export(group, &mut out).unwrap();
    out
}

/// P4, DESIGN §5: whoever proposes, the reply follows a commit on a majority and the change is readable where it was proposed; equal logs
/// give byte-equal states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_proposes_and_all_states_are_equal() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    for (number, store) in (1..).zip(&stores) {
        for round in 0..20 {
            let topic = format!("t/{number}/{round}");
            let group = store.group_of_topic(&topic);
            persist(store, group, retain(&topic, "here")).await;
            assert_eq!(read(store, &topic).as_deref(), Some("here"), "read your own write");
        }
    }
    for store in &stores {
        for group in groups(store) {
            store.barrier(group).await.unwrap();
        }
        for status in store.status() {
            assert_eq!(status.voters, [1, 2, 3]);
            assert!(status.leader.is_some());
        }
    }
    for group in groups(&stores[0]) {
        assert_eq!(export(&stores[0], group), export(&stores[1], group));
        assert_eq!(export(&stores[0], group), export(&stores[2], group));
    }
}

/// P7: a read behind the barrier of any node sees every write that another node acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_behind_the_barrier_is_never_stale() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let group = stores[0].group_of_topic("t");
    for round in 0..100 {
        let writer = &stores[round % 3];
        persist(writer, group, retain("t", &round.to_string())).await;
        let reader = &stores[(round + 1) % 3];
        reader.barrier(group).await.unwrap();
        assert_eq!(read(reader, "t"), Some(round.to_string()));
    }
}

/// P4, scenario 22: the loss of one node loses nothing acknowledged; a node alone refuses in bounded time, and recovers by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_refuses_and_a_majority_goes_on() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let group = stores[0].group_of_topic("t");
    persist(&stores[0], group, retain("t", "before")).await;
    net.isolate(1);
    let refused =
        tokio::time::timeout(Duration::from_secs(10), stores[0].call(group, retain("t", "lost"))).await;
    assert!(matches!(refused, Ok(Err(_))), "bounded and refused: {refused:?}");
    let refused = tokio::time::timeout(Duration::from_secs(10), stores[0].barrier(group)).await;
    assert!(matches!(refused, Ok(Err(_))), "no read that may be stale: {refused:?}");
    persist(&stores[1], group, retain("t", "during")).await;
    stores[2].barrier(group).await.unwrap();
    assert_eq!(read(&stores[2], "t").as_deref(), Some("during"));
    net.heal();
    persist(&stores[0], group, retain("u", "after")).await;
    stores[0].barrier(group).await.unwrap();
    assert_eq!(read(&stores[0], "t").as_deref(), Some("during"));
}

/// P4: a node that was away while the others checkpointed and purged their logs catches up by a snapshot; restarted nodes wait for a
/// majority and elect (scenario 22).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_catches_up() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let group = stores[0].group_of_topic("t/0");
    drop(stores);
    net.stop(3).await;
    let first = net.way(0, 1).unwrap();
    let fat = "x".repeat(2_000);
    // More entries than the log keeps behind a checkpoint.
    for round in 0..1_200 {
        persist(&first, group, retain(&format!("t/{}", round % 300), &fat)).await;
    }
    first.checkpoint().await.unwrap();
    net.way(0, 2).unwrap().checkpoint().await.unwrap();
    drop(first);
    for node in [1, 2] {
        net.stop(node).await;
    }
    let mut stores = Vec::new();
    for node in [1, 2, 3] {
        stores.push(net.start(dir.path(), node, &format!("boot-{node}-again"), Formation::Alone).await);
    }
    for store in &stores {
        announce(store).await;
    }
    let third = stores[2].clone();
    eventually("node 3 has the snapshot", || read(&third, "t/299").is_some()).await;
    third.barrier(group).await.unwrap();
    persist(&third, group, retain("from/3", "y")).await;
    stores[0].barrier(group).await.unwrap();
    assert_eq!(export(&stores[0], group), export(&third, group));
}

/// DESIGN §5: a fourth node holds everything without a vote; when a voter is removed, it votes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_voter_is_replaced() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let fourth = net.start(dir.path(), 4, "boot-4", Formation::Join).await;
    stores[1].add_node(&address(4)).await.unwrap();
    announce(&fourth).await;
    assert!(fourth.status().iter().all(|status| status.voters == [1, 2, 3] && status.nodes.len() == 4));
    stores[1].remove_node(3).await.unwrap();
    assert!(stores[1].status().iter().all(|status| status.voters == [1, 2, 4] && status.nodes.len() == 3));
    let group = fourth.group_of_topic("t");
    persist(&fourth, group, retain("t", "v")).await;
    stores[0].barrier(group).await.unwrap();
    assert_eq!(read(&stores[0], "t").as_deref(), Some("v"));
}

/// P9, P10, scenario 22: a node that is not there is not taken in. As a voter it would hold up every commit, its own removal too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_be_reached_does_not_become_a_voter() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let first = net.start(dir.path(), 1, "boot-1", Formation::Alone).await;
    announce(&first).await;
    let refused = tokio::time::timeout(Duration::from_secs(30), first.add_node(&address(9))).await;
    let error = refused.expect("bounded").unwrap_err();
    assert!(error.to_string().contains("node 9 is not reachable"), "{error}");
    let group = first.group_of_topic("t");
    first.call(group, retain("t", "v")).await.unwrap();
    let _second = net.start(dir.path(), 2, "boot-2", Formation::Join).await;
    let wrong = PeerAddress { node_id: 2, address: NOWHERE.to_owned() };
    first.add_node(&wrong).await.unwrap_err();
    first.add_node(&address(2)).await.unwrap();
    assert!(first.status().iter().all(|status| status.voters == [1, 2] && status.nodes[1] == address(2)));
    persist(&first, group, retain("t", "w")).await;
}

/// P10: a corrected address of a node that takes part already is dialled from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_added_again_is_dialled_where_it_says() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let fourth = net.start(dir.path(), 4, "boot-4", Formation::Join).await;
    stores[0].add_node(&address(4)).await.unwrap();
    stores[0].set_address(&PeerAddress { node_id: 4, address: NOWHERE.to_owned() }).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), stores[0].add_node(&address(4))).await.unwrap().unwrap();
    let group = fourth.group_of_topic("t");
    persist(&stores[0], group, retain("t", "v")).await;
    fourth.barrier(group).await.unwrap();
    assert_eq!(read(&fourth, "t").as_deref(), Some("v"));
}

/// P5 [MQTT-4.6.0-6]: what was asked for behind a change that is lost is not done before the change is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_overtakes_a_lost_change() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let group = stores[0].group_of_topic("t");
    let at = stores[0].status()[usize::from(group.0)].leader.unwrap();
    let leader = stores[usize::try_from(at).unwrap() - 1].clone();
    let last = |store: &Store| store.status()[usize::from(group.0)].last_index;
    net.isolate(at);
    let before = last(&leader);
    let call = |payload: &'static str| {
        let leader = leader.clone();
        tokio::spawn(async move { leader.call(group, retain("t", payload)).await })
    };
    let first = call("first");
    eventually("the first is in the log", || last(&leader) > before).await;
    let second = call("second");
    let lost = tokio::time::timeout(Duration::from_secs(15), first).await.expect("bounded").unwrap();
    net.heal();
    assert!(lost.is_err());
    let second = tokio::time::timeout(Duration::from_secs(15), second).await.expect("bounded").unwrap();
    assert!(second.is_err(), "it was done before the first was repeated");
    persist(&leader, group, retain("u", "after")).await;
    assert_ne!(read(&leader, "t").as_deref(), Some("second"));
}

/// P5: a change whose fate is unknown is decided by the next one, not by time; then it has taken effect, or never will.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_change_is_decided_when_a_later_one_is_applied() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let group = stores[0].group_of_topic("t");
    let at = stores[0].status()[usize::from(group.0)].leader.unwrap();
    let store = stores[usize::try_from(at).unwrap() - 1].clone();
    net.isolate(at);
    let lost = tokio::time::timeout(Duration::from_secs(15), store.call(group, retain("t", "lost")));
    assert!(lost.await.expect("bounded").is_err());
    let (sender, mut decided) = tokio::sync::oneshot::channel();
    store.decide(group, Done::Once(sender));
    let later = tokio::time::timeout(Duration::from_secs(15), store.call(group, retain("u", "later")));
    assert!(later.await.expect("bounded").is_err(), "nothing is done without a majority");
    assert!(decided.try_recv().is_err(), "nobody can know");
    net.heal();
    let decided = tokio::time::timeout(Duration::from_secs(30), decided).await.expect("bounded").unwrap();
    assert!(decided.is_ok());
    let before = read(&store, "t");
    let other = &stores[usize::try_from(at).unwrap() % 3];
    persist(other, group, retain("u", "after")).await;
    assert_eq!(read(other, "t"), before, "it took effect after it was decided that it had not");
}

/// P9: a follower that is behind catches up over a slow link, also with an entry that takes longer than a heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_drains_over_a_slow_link() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let group = stores[0].group_of_topic("t/1");
    net.isolate(3);
    persist(&stores[0], group, retain("t/1", &"x".repeat(3 << 20))).await;
    for _ in 0..20 {
        persist(&stores[0], group, retain("t/1", &"y".repeat(300 << 10))).await;
    }
    net.0.lock().bytes_per_ms = Some(6_000);
    net.heal();
    let deadline = Duration::from_secs(30);
    let caught_up = async {
        while read(&stores[2], "t/1").is_none_or(|found| found.len() != 300 << 10) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(deadline, caught_up).await.expect("it catches up");
}

/// P9: a learner that is not there does not take the place of a voter that is removed: two would have to agree, and one is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_that_is_gone_does_not_replace_a_voter() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let _fourth = net.start(dir.path(), 4, "boot-4", Formation::Join).await;
    stores[0].add_node(&address(4)).await.unwrap();
    net.isolate(4);
    stores[0].remove_node(3).await.unwrap();
    assert!(stores[0].status().iter().all(|status| status.voters == [1, 2]));
    net.heal();
    stores[0].add_node(&address(4)).await.unwrap();
    assert!(stores[0].status().iter().all(|status| status.voters == [1, 2, 4]));
}

/// P10: what another version or a damaged link sends is refused by name, and nothing panics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_cannot_be_read_are_refused() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let store = net.start(dir.path(), 1, "boot-1", Formation::Alone).await;
    for request in
        [&b""[..], b"\x02", b"\x01\x00\x00", b"\x02\xff\xff\xff\xff\xff", b"\x02\x00\x05\x00trailing"]
    {
        let answer = store.serve_peer(request).await;
        assert!(!answer.is_empty());
    }
    let error: StorageError = store.remove_node(1).await.unwrap_err();
    assert!(error.to_string().contains("last node"), "{error}");
}

/// DESIGN §5, §6: a leader hands a group over while all nodes write to it: nothing is lost or doubled in between, and nobody waits as long as
/// for an election.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_handed_over_under_load() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    let group = GroupId(0);
    let topic_of = |number: usize| {
        (0..).map(|at| format!("t/{number}/{at}")).find(|topic| stores[0].group_of_topic(topic) == group)
    };
    let running = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let mut writers = Vec::new();
    for (number, store) in stores.iter().enumerate() {
        let (store, running, topic) = (store.clone(), running.clone(), topic_of(number).unwrap());
        writers.push(tokio::spawn(async move {
            let mut written = 0_u64;
            while running.load(std::sync::atomic::Ordering::SeqCst) {
                written += 1;
                let reply = store.call(group, retain(&topic, &written.to_string())).await;
                assert!(matches!(reply, Ok(Reply::Done { .. })), "{reply:?}");
            }
            (topic, written)
        }));
    }
    // To each node in turn, and back.
    for to in [2, 3, 1, 2] {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let leader = stores.iter().find(|store| store.leads(group)).cloned();
            if let Some(leader) = leader
                && leader.hand_over(group, to).await.is_ok()
            {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "handed over to {to}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(stores[usize::try_from(to).unwrap() - 1].leads(group));
    }
    running.store(false, std::sync::atomic::Ordering::SeqCst);
    for writer in writers {
        let (topic, written) = writer.await.unwrap();
        for store in &stores {
            store.barrier(group).await.unwrap();
            assert_eq!(read(store, &topic), Some(written.to_string()), "the last acknowledged value");
        }
    }
    for store in &stores {
        store.checkpoint().await.unwrap();
    }
    let states: Vec<Vec<u8>> = stores.iter().map(|store| export(store, group)).collect();
    assert!(states.iter().all(|state| *state == states[0]), "equal logs, equal states");
}

/// A node that stops hands all its groups over, and takes none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_gives_all_its_groups_up() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let stores = three(&net, dir.path()).await;
    eventually("a leader may hand over", || stores[0].leads(GroupId(0)) && stores[0].leads(GroupId(1))).await;
    assert_eq!(stores[0].give_up_leadership(&[2, 3], Duration::from_secs(30)).await, 0);
    for group in groups(&stores[0]) {
        assert!(!stores[0].leads(group));
        assert!(matches!(persist(&stores[0], group, retain("t", "x")).await, Reply::Done { .. }));
    }
    let given = stores[1].leads(GroupId(0));
    let (leader, group) = if given { (&stores[1], GroupId(0)) } else { (&stores[2], GroupId(0)) };
    eventually("the new leader knows it", || leader.leads(group)).await;
    assert!(leader.hand_over(group, 1).await.is_err(), "it leaves");
}
