//! Routing rules, on a router and plans as workers use them.

use std::sync::Arc;

use gateway::link::LinkId;
use session::id::Key;
use session::lifecycle::{Stamp, SubscriptionOptions};
use session::message::{Message, QoS};
use session::topic::TopicFilter;
use storage::GroupId;

use super::*;
use crate::config::SharePick;

/// No ACL: everything is allowed.
fn router() -> Router {
    let metrics = crate::metrics::Metrics::new(1, 1);
    let authority = crate::auth::Authority::open(&crate::config::Config::default(), metrics.control());
    Router::new(Arc::new(authority.expect("the defaults name no file")))
}

fn key(client_id: &str) -> Key {
    Key { namespace: "main".into(), client_id: client_id.into() }
}

fn link(worker: u16, slot: u32) -> LinkId {
    LinkId { worker, slot, serial: 1 }
}

fn options(qos: QoS) -> SubscriptionOptions {
    SubscriptionOptions { qos, no_local: false, retain_as_published: false, identifier: 0 }
}

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a valid filter")
}

fn message(topic: &str, qos: QoS, retain: bool) -> Message {
    let mut message = Message::new(topic, &[], b"x");
    message.qos = qos;
    message.retain = retain;
    message
}

/// A connected session without inbox on worker 0.
fn transient(router: &Router, slot: u32) -> Arc<Subscriber> {
    let subscriber = router.open(&key(&format!("t{slot}")), None, None);
    router.attach(&subscriber, link(0, slot));
    subscriber
}

#[derive(Default)]
struct Deliveries {
    live: Vec<(u32, QoS, bool, Vec<u32>)>,
    durable: Vec<(u64, QoS, bool, Vec<u32>)>,
    remote: Vec<u16>,
    nodes: Vec<(u64, Option<String>)>,
    nobody: Vec<(String, Option<PartyId>)>,
}

impl Sink for Deliveries {
    fn live(&mut self, link: LinkId, shape: Shape<'_>) {
        self.live.push((link.slot, shape.qos, shape.retain, shape.identifiers.to_vec()));
    }

    fn remote(&mut self, worker: u16) {
        self.remote.push(worker);
    }

    fn node(&mut self, node: u64, share: Option<&Arc<str>>) {
        self.nodes.push((node, share.map(ToString::to_string)));
    }

    fn nobody(&mut self, share: &Arc<str>, member: Option<PartyId>) {
        self.nobody.push((share.to_string(), member));
    }

    fn durable(&mut self, _group: GroupId, target: session::lifecycle::Target, _share: Option<&Arc<str>>) {
        self.durable.push((target.lifetime, target.qos, target.retain, target.identifiers.to_vec()));
    }
}

fn deliver(router: &Router, message: &Message, publisher: PartyId) -> (Deliveries, bool) {
    let mut cache = PlanCache::new(Some(0));
    let mut reader = router.reader();
    let plan = cache.plan(reader.load(), &router.readers(), message.topic());
    let outgoing = Outgoing {
        qos: message.qos,
        retain: message.retain,
        publisher,
        queue_qos0_offline: false,
        stamp: None,
    };
    let mut deliveries = Deliveries::default();
    let matched = select(&plan, &outgoing, &mut deliveries);
    deliveries.live.sort();
    deliveries.durable.sort();
    (deliveries, matched)
}

/// [MQTT-3.3.4-2], [MQTT-3.3.4-3], [MQTT-3.3.4-5]: one delivery, maximum QoS, every identifier.
#[test]
fn overlapping_filters_of_one_subscriber_are_one_delivery() {
    let router = router();
    let subscriber = transient(&router, 1);
    router.subscribe(
        &subscriber,
        &[
            (filter("a/+"), SubscriptionOptions { identifier: 3, ..options(QoS::AtMostOnce) }),
            (filter("a/#"), SubscriptionOptions { identifier: 5, ..options(QoS::ExactlyOnce) }),
            (filter("b"), SubscriptionOptions { identifier: 9, ..options(QoS::ExactlyOnce) }),
        ],
    );
    let (mut deliveries, matched) = deliver(&router, &message("a/b", QoS::AtLeastOnce, false), PartyId(0));
    assert!(matched);
    assert_eq!(deliveries.live.len(), 1);
    deliveries.live[0].3.sort_unstable();
    assert_eq!(deliveries.live[0], (1, QoS::AtLeastOnce, false, vec![3, 5]));
}

/// The same beyond the length up to which overlaps are looked for by walking.
#[test]
fn overlaps_are_found_among_many_subscribers() {
    let router = router();
    let subscribers: Vec<_> = (0..100).map(|slot| transient(&router, slot)).collect();
    for subscriber in &subscribers {
        router.subscribe(
            subscriber,
            &[(filter("a/+"), options(QoS::AtLeastOnce)), (filter("#"), options(QoS::AtMostOnce))],
        );
    }
    let (deliveries, _) = deliver(&router, &message("a/b", QoS::ExactlyOnce, false), PartyId(0));
    assert_eq!(deliveries.live.len(), 100);
    assert!(deliveries.live.iter().all(|delivery| delivery.1 == QoS::AtLeastOnce));
}

/// [MQTT-3.8.3-3]: No Local holds per subscription, for the publisher itself only.
#[test]
fn no_local_spares_the_publisher_and_nobody_else() {
    let router = router();
    let publisher = transient(&router, 1);
    let other = transient(&router, 2);
    let no_local = SubscriptionOptions { no_local: true, ..options(QoS::AtLeastOnce) };
    router.subscribe(&publisher, &[(filter("a"), no_local)]);
    router.subscribe(&other, &[(filter("a"), no_local)]);
    let (deliveries, _) = deliver(&router, &message("a", QoS::AtLeastOnce, false), publisher.id());
    assert_eq!(deliveries.live.iter().map(|delivery| delivery.0).collect::<Vec<_>>(), [2]);

    // An overlapping subscription without No Local delivers, with what it grants alone.
    router.subscribe(
        &publisher,
        &[(filter("+"), SubscriptionOptions { identifier: 7, ..options(QoS::AtMostOnce) })],
    );
    let (deliveries, _) = deliver(&router, &message("a", QoS::AtLeastOnce, false), publisher.id());
    assert!(deliveries.live.contains(&(1, QoS::AtMostOnce, false, vec![7])));
}

/// [MQTT-3.3.1-12], [MQTT-3.3.1-13]: RETAIN is kept only where it was asked for.
#[test]
fn retain_as_published_if_any_matching_subscription_asks() {
    let router = router();
    let with = transient(&router, 1);
    let without = transient(&router, 2);
    let rap = SubscriptionOptions { retain_as_published: true, ..options(QoS::AtMostOnce) };
    router.subscribe(&with, &[(filter("a"), rap), (filter("#"), options(QoS::AtMostOnce))]);
    router.subscribe(&without, &[(filter("a"), options(QoS::AtMostOnce))]);
    let (deliveries, _) = deliver(&router, &message("a", QoS::AtMostOnce, true), PartyId(0));
    assert_eq!(
        deliveries.live.iter().map(|delivery| (delivery.0, delivery.2)).collect::<Vec<_>>(),
        [(1, true), (2, false)]
    );
}

/// §4.8.2: each message goes to one member, members take turns, a disconnected transient member gets none.
#[test]
fn a_share_group_rotates_over_connected_members() {
    let router = router();
    let members: Vec<_> = (0..3).map(|slot| transient(&router, slot)).collect();
    for member in &members {
        router.subscribe(member, &[(filter("$share/g/a/+"), options(QoS::AtLeastOnce))]);
    }
    let mut counts = [0; 3];
    let pick = |counts: &mut [usize; 3]| {
        let (deliveries, matched) = deliver(&router, &message("a/b", QoS::AtLeastOnce, false), PartyId(0));
        assert!(matched);
        assert_eq!(deliveries.live.len(), 1);
        counts[deliveries.live[0].0 as usize] += 1;
    };
    (0..300).for_each(|_| pick(&mut counts));
    assert_eq!(counts, [100; 3]);

    router.detach(&members[0], link(0, 0));
    let mut counts = [0; 3];
    (0..300).for_each(|_| pick(&mut counts));
    assert_eq!(counts[0], 0);
    assert!(counts[1] > 0 && counts[2] > 0);

    router.forget(&members[1]);
    let mut counts = [0; 3];
    (0..300).for_each(|_| pick(&mut counts));
    assert_eq!(counts, [0, 0, 300]);
    router.forget(&members[0]);
    router.forget(&members[2]);
    assert!(router.is_empty());
}

/// Scenario 86: an offline durable member takes messages only when nobody is connected.
#[test]
fn a_share_group_prefers_connected_members_to_offline_inboxes() {
    let router = router();
    let durable = router.open(&key("d"), None, Some((GroupId(0), 4)));
    let connected = transient(&router, 1);
    for member in [&durable, &connected] {
        router.subscribe(member, &[(filter("$share/g/a"), options(QoS::AtLeastOnce))]);
    }
    for _ in 0..10 {
        let (deliveries, _) = deliver(&router, &message("a", QoS::AtLeastOnce, false), PartyId(0));
        assert_eq!((deliveries.live.len(), deliveries.durable.len()), (1, 0));
    }
    router.forget(&connected);
    let (deliveries, _) = deliver(&router, &message("a", QoS::AtLeastOnce, false), PartyId(0));
    assert_eq!(deliveries.durable, [(4, QoS::AtLeastOnce, false, vec![])]);
}

/// Which of three connected members get thirty messages of each of twenty publishers, one load apart.
fn picked_by(router: &Router) -> Vec<[usize; 3]> {
    let members: Vec<_> = (0..3).map(|slot| transient(router, slot)).collect();
    for (load, member) in (0..).zip(&members) {
        router.subscribe(member, &[(filter("$share/g/a"), options(QoS::AtLeastOnce))]);
        member.set_load(load);
    }
    let of_publisher = |publisher| {
        let mut counts = [0; 3];
        for _ in 0..30 {
            let (deliveries, _) = deliver(router, &message("a", QoS::AtLeastOnce, false), PartyId(publisher));
            counts[deliveries.live[0].0 as usize] += 1;
        }
        counts
    };
    (100..120).map(of_publisher).collect()
}

/// DESIGN §9: least in flight by default; `session.share_pick` has others.
#[test]
fn a_share_group_picks_as_it_is_told() {
    assert!(
        picked_by(&router()).iter().all(|counts| *counts == [30, 0, 0]),
        "member 0 has nothing in flight"
    );
    let in_turn = picked_by(&router().picking(SharePick::RoundRobin));
    assert!(in_turn.iter().all(|counts| *counts == [10; 3]), "{in_turn:?}");
    let sticky = picked_by(&router().picking(SharePick::Sticky));
    assert!(sticky.iter().all(|counts| counts.contains(&30)), "{sticky:?}");
    let used = (0..3).filter(|member| sticky.iter().any(|counts| counts[*member] > 0)).count();
    assert!(used > 1, "publishers are spread: {sticky:?}");
}

/// MQTT 5 §4.8.2: a member that is gone by the time that the message is given to it has not taken it, whatever made it go.
#[test]
fn mqtt_4_8_2_a_member_that_went_after_it_was_chosen_leaves_the_message() {
    let router = router();
    let share = "$share/g/a";
    let [gone, other] = [1, 2].map(|slot| transient(&router, slot));
    for member in [&gone, &other] {
        router.subscribe(member, &[(filter(share), options(QoS::AtLeastOnce))]);
    }
    let mut cache = PlanCache::new(Some(0));
    let plan = cache.plan(router.reader().load(), &router.readers(), "a");
    let group = plan.shares[0].group.as_ref().expect("members are here");
    let outgoing = Outgoing {
        qos: QoS::AtLeastOnce,
        retain: false,
        publisher: PartyId(0),
        queue_qos0_offline: false,
        stamp: None,
    };
    let chosen = group.members.iter().find(|member| member.subscriber.id() == gone.id()).expect("a member");
    router.detach(&gone, link(0, 1));
    let mut deliveries = Deliveries::default();
    select::select_member(group, chosen, &outgoing, &mut deliveries);
    assert_eq!(deliveries.nobody, [(share.to_owned(), Some(gone.id()))]);
    assert!(deliveries.live.is_empty());

    // Whoever is sent it instead is none of those who were tried, and there is an end to it.
    let message = message("a", QoS::AtLeastOnce, false);
    let mut left = Left::of(&share.into());
    left.tried.add_member(other.id());
    let route = router.route_shared(&left, &message, None);
    assert!(!route.matched && route.live.is_empty());
    assert_eq!(route.unserved, [left]);
    router.attach(&gone, link(0, 3));
    let route = router.route_shared(&route.unserved[0], &message, None);
    assert!(route.matched && route.unserved.is_empty());
    assert_eq!(route.live.iter().map(|target| target.link.slot).collect::<Vec<_>>(), [3]);
}

/// MQTT 5 §4.8.2, [MQTT-3.1.2-5]: when nobody is connected, a message goes to an inbox that keeps it, not to one that takes QoS 0 and nothing
/// while its session is offline; from an inbox that turns out so it goes on.
#[test]
fn an_offline_member_that_keeps_nothing_does_not_swallow_a_shared_message() {
    let router = router();
    let members = [(1, QoS::AtMostOnce), (2, QoS::AtLeastOnce), (3, QoS::AtMostOnce)];
    for (lifetime, qos) in members {
        let member = router.open(&key(&format!("d{lifetime}")), None, Some((GroupId(0), lifetime)));
        router.subscribe(&member, &[(filter("$share/g/a"), options(qos))]);
    }
    let message = message("a", QoS::AtLeastOnce, false);
    for _ in 0..6 {
        let route = router.route(&message, PartyId(0), false, None);
        assert_eq!(route.shared.iter().map(|target| target.target.lifetime).collect::<Vec<_>>(), [2]);
    }
    router.forget_inbox(GroupId(0), 2);
    let route = router.route(&message, PartyId(0), false, None);
    assert!(route.shared.is_empty() && route.live.is_empty());
    assert_eq!(route.unserved.len(), 1, "both were tried, once");
    let there = filter("$share/g/a");
    router.change_remote(2, [(&there, true)]);
    let route = router.route(&message, PartyId(0), false, None);
    assert_eq!(route.nodes, [(2, Some("$share/g/a".into()))]);
}

/// [MQTT-4.3.3-10]: a message whose routing is repeated meets the same inbox, whoever connected or left in between.
#[test]
fn mqtt_4_3_3_10_a_repeated_message_meets_the_same_member_of_a_share_group() {
    let router = router();
    let shared = [(filter("$share/g/a"), options(QoS::ExactlyOnce))];
    let members: Vec<_> = (0..4)
        .map(|at| router.open(&key(&format!("d{at}")), None, Some((GroupId(at), u64::from(at) + 1))))
        .collect();
    members.iter().for_each(|member| {
        router.subscribe(member, &shared);
    });
    let message = message("a", QoS::ExactlyOnce, false);
    let picks = || -> Vec<u64> {
        (1..=200)
            .map(|sequence| {
                let stamp = Stamp::Publisher { key: key("p"), lifetime: 9, packet_id: 7, sequence };
                let route = router.route(&message, PartyId(0), false, Some(stamp_hash(&stamp)));
                assert!(route.live.is_empty());
                let [shared] = &route.shared[..] else { panic!("one member, not {route:?}") };
                shared.target.lifetime
            })
            .collect()
    };
    let first = picks();
    for lifetime in 1..=4 {
        assert!(first.iter().filter(|pick| **pick == lifetime).count() > 10, "everybody has a share");
    }
    router.attach(&members[2], link(0, 3));
    let connected = transient(&router, 9);
    router.subscribe(&connected, &shared);
    assert_eq!(picks(), first);
    router.forget(&members[3]);
    for (before, after) in first.iter().zip(picks()) {
        assert!(*before == 4 || after == *before, "only messages of the member that left move");
    }
    (0..3).for_each(|at| router.forget(&members[at]));
    let route = router.route(&message, PartyId(0), false, Some(5));
    assert_eq!((route.live.len(), route.shared.len()), (1, 0), "without an inbox: who is connected");
}

/// [MQTT-3.1.2-4] and the option for QoS 0: inboxes take QoS 1 and 2 always, QoS 0 goes past them to the connection.
#[test]
fn a_durable_session_gets_qos_0_live_and_the_rest_through_its_inbox() {
    let router = router();
    let durable = router.open(&key("d"), None, Some((GroupId(2), 9)));
    router.subscribe(&durable, &[(filter("a"), options(QoS::ExactlyOnce))]);
    let (offline, matched) = deliver(&router, &message("a", QoS::AtMostOnce, false), PartyId(0));
    assert!(matched && offline.live.is_empty() && offline.durable.is_empty());
    let kept = router.route(&message("a", QoS::AtMostOnce, false), PartyId(0), true, None);
    assert_eq!(kept.durable.len(), 1);

    router.attach(&durable, link(3, 8));
    let (deliveries, _) = deliver(&router, &message("a", QoS::AtMostOnce, false), PartyId(0));
    assert_eq!(deliveries.live, [(8, QoS::AtMostOnce, false, vec![])]);
    let (deliveries, _) = deliver(&router, &message("a", QoS::ExactlyOnce, false), PartyId(0));
    assert_eq!(deliveries.durable, [(9, QoS::ExactlyOnce, false, vec![])]);
}

#[test]
fn reopening_an_inbox_finds_the_same_handle_with_its_filters() {
    let router = router();
    router.restore([Restored {
        key: key("d"),
        user: None,
        inbox: (GroupId(1), 7),
        filters: vec![(filter("a/#"), options(QoS::AtLeastOnce))],
    }]);
    let again = router.open(&key("d"), None, Some((GroupId(1), 7)));
    assert_eq!(again.subscription_count(), 1);
    let new = router.subscribe(&again, &[(filter("a/#"), options(QoS::AtMostOnce))]);
    assert_eq!(new.as_slice(), [false]);
    router.forget_inbox(GroupId(1), 7);
    assert!(router.is_empty());
    assert!(router.find(GroupId(1), 7).is_none());
    assert_eq!(router.unsubscribe(&again, &[filter("a/#")]).as_slice(), [false]);
}

/// Connections of other workers are left to those workers; [MQTT-4.7.2-1] holds for leading wildcards.
#[test]
fn other_workers_resolve_their_own_connections() {
    let router = router();
    let here = transient(&router, 1);
    let there = router.open(&key("r"), None, None);
    router.attach(&there, link(1, 5));
    for subscriber in [&here, &there] {
        router.subscribe(subscriber, &[(filter("#"), options(QoS::AtMostOnce))]);
    }
    let (deliveries, _) = deliver(&router, &message("a", QoS::AtMostOnce, false), PartyId(0));
    assert_eq!(deliveries.live.len(), 1);
    assert_eq!(deliveries.remote, [1]);
    let (deliveries, matched) = deliver(&router, &message("$SYS/a", QoS::AtMostOnce, false), PartyId(0));
    assert!(!matched && deliveries.live.is_empty() && deliveries.remote.is_empty());
}

/// P7: a cached plan is never used for another version of the index.
#[test]
fn a_cached_plan_ends_with_its_version() {
    let router = router();
    let mut cache = PlanCache::new(Some(0));
    let mut reader = router.reader();
    assert!(cache.plan(reader.load(), &router.readers(), "a").is_empty());
    let subscriber = transient(&router, 1);
    router.subscribe(&subscriber, &[(filter("a"), options(QoS::AtMostOnce))]);
    assert_eq!(cache.plan(reader.load(), &router.readers(), "a").local.len(), 1);
    router.unsubscribe(&subscriber, &[filter("a")]);
    assert!(cache.plan(reader.load(), &router.readers(), "a").is_empty());
}
