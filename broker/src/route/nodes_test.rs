//! Routing between nodes: what is announced, who of a share is chosen, and what becomes of a message that another node sent.

use std::sync::Arc;

use gateway::link::LinkId;
use session::id::Key;
use session::lifecycle::SubscriptionOptions;
use session::message::{Message, QoS};
use session::topic::TopicFilter;
use storage::GroupId;

use super::*;

fn router() -> Router {
    let metrics = crate::metrics::Metrics::new(1, 1);
    let authority = crate::auth::Authority::open(&crate::config::Config::default(), metrics.control());
    Router::new(Arc::new(authority.expect("the defaults name no file")))
}

fn key(client_id: &str) -> Key {
    Key { namespace: "main".into(), client_id: client_id.into() }
}

fn link(slot: u32) -> LinkId {
    LinkId { worker: 0, slot, serial: 1 }
}

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a valid filter")
}

fn with(text: &str, qos: QoS) -> [(TopicFilter, SubscriptionOptions); 1] {
    let options = SubscriptionOptions { qos, no_local: false, retain_as_published: false, identifier: 0 };
    [(filter(text), options)]
}

fn outgoing(qos: QoS, stamp: Option<u64>) -> Outgoing {
    Outgoing { qos, retain: false, publisher: PartyId(0), queue_qos0_offline: false, stamp }
}

fn plan(router: &Router, topic: &str) -> std::rc::Rc<Plan> {
    PlanCache::new(Some(0)).plan(router.reader().load(), &router.readers(), topic)
}

/// Where one message on `s/1` goes: connection, inbox or node.
fn chosen(router: &Router, qos: QoS, stamp: Option<u64>) -> String {
    let mut route = Route::default();
    let matched = select(&plan(router, "s/1"), &outgoing(qos, stamp), &mut route);
    let live = route.live.iter().map(|target| format!("link {}", target.link.slot));
    assert!(route.durable.is_empty());
    let durable = route.shared.iter().map(|target| format!("inbox {}", target.group.0));
    let nodes = route.nodes.iter().map(|(node, share)| format!("node {node} {share:?}"));
    let all: Vec<String> = live.chain(durable).chain(nodes).collect();
    assert_eq!(matched, !all.is_empty());
    all.join(", ")
}

fn announced(router: &Router, set: &Announced) -> Vec<String> {
    assert_eq!(router.announced(), set.number());
    let mut all: Vec<String> = set.all().1.iter().map(ToString::to_string).collect();
    all.sort();
    all
}

/// P7: other nodes are told of transient sessions always, of durable ones while they are connected, and of those whose connection was
/// there before anybody asked.
#[test]
fn p7_live_subscriptions_are_announced() {
    let router = router();
    let transient = router.open(&key("t"), None, None);
    router.attach(&transient, link(1));
    router.subscribe(&transient, &with("a", QoS::AtMostOnce));
    router.subscribe(&transient, &with("$share/g/a", QoS::AtMostOnce));
    let durable = router.open(&key("d"), None, Some((GroupId(1), 5)));
    router.attach(&durable, link(2));
    router.subscribe(&durable, &with("b", QoS::AtLeastOnce));
    router.subscribe(&durable, &with("$share/g/b", QoS::AtLeastOnce));
    let set = router.announce();
    assert_eq!(announced(&router, &set), ["$share/g/a", "a", "b"]);
    router.subscribe(&durable, &with("c", QoS::AtLeastOnce));
    router.subscribe(&durable, &with("a", QoS::AtLeastOnce));
    router.unsubscribe(&durable, &[filter("b")]);
    assert_eq!(announced(&router, &set), ["$share/g/a", "a", "c"]);
    router.detach(&durable, link(2));
    assert_eq!(announced(&router, &set), ["$share/g/a", "a"]);
    router.subscribe(&durable, &with("d", QoS::AtLeastOnce));
    router.unsubscribe(&durable, &[filter("a")]);
    router.attach(&durable, link(3));
    router.detach(&durable, link(2));
    assert_eq!(announced(&router, &set), ["$share/g/a", "a", "c", "d"]);
    router.forget(&durable);
    router.forget(&transient);
    assert!(announced(&router, &set).is_empty());
}

/// [MQTT-4.8.2-4]: exactly one member of the cluster, by a rule that every publisher goes by.
#[test]
fn mqtt_4_8_2_4_a_share_over_nodes_chooses_one() {
    let share = "$share/g/s/#";
    let router = router();
    router.set_alone(false);
    assert_eq!(chosen(&router, QoS::AtLeastOnce, None), "");
    let durable = router.open(&key("d"), None, Some((GroupId(1), 5)));
    router.subscribe(&durable, &with(share, QoS::AtLeastOnce));
    assert_eq!(chosen(&router, QoS::AtLeastOnce, None), "inbox 1");
    assert_eq!(chosen(&router, QoS::AtMostOnce, None), "inbox 1", "it may be connected elsewhere");
    let parsed = filter(share);
    router.change_remote(2, [(&parsed, true)]);
    router.change_remote(3, [(&parsed, true)]);
    let both = [chosen(&router, QoS::AtLeastOnce, None), chosen(&router, QoS::AtMostOnce, None)];
    assert_eq!(both, [format!("node 2 Some({share:?})"), format!("node 3 Some({share:?})")]);
    assert_eq!(chosen(&router, QoS::ExactlyOnce, Some(7)), "inbox 1", "a repetition meets the same inbox");
    let transient = router.open(&key("t"), None, None);
    router.attach(&transient, link(9));
    router.subscribe(&transient, &with(share, QoS::AtLeastOnce));
    assert_eq!(chosen(&router, QoS::AtLeastOnce, None), "link 9");
    let message = Message::new("s/1", &[], b"x");
    router.forget(&transient);
    router.forget(&durable);
    let passed_on = router.route_shared(&Left::of(&share.into()), &message, None);
    assert!(passed_on.matched && passed_on.nodes.len() == 1, "a member that ends hands on to another node");
}

/// What another node sent goes to connections only: never to an inbox, never to a node, and not to its own publisher ([MQTT-3.8.3-3]).
#[test]
fn a_message_of_another_node_goes_to_connections_only() {
    let router = router();
    router.send_everything(&[4]);
    let transient = router.open(&key("t"), None, None);
    router.attach(&transient, link(1));
    router.subscribe(&transient, &with("s/#", QoS::AtLeastOnce));
    let mut own = with("s/#", QoS::AtMostOnce);
    own[0].1.no_local = true;
    let publisher = router.open(&key("p"), None, Some((GroupId(1), 5)));
    router.attach(&publisher, link(2));
    router.subscribe(&publisher, &own);
    let offline = router.open(&key("o"), None, Some((GroupId(2), 6)));
    router.subscribe(&offline, &with("s/#", QoS::AtLeastOnce));
    router.subscribe(&offline, &with("$share/g/s/#", QoS::AtLeastOnce));
    let member = router.open(&key("m"), None, None);
    router.attach(&member, link(3));
    router.subscribe(&member, &with("$share/g/s/#", QoS::AtMostOnce));

    let deliver = |publisher: Option<&str>, everyone: bool, shares: &[Arc<str>]| {
        let publisher = publisher.map(key);
        let foreign = Foreign { publisher: publisher.as_ref(), everyone, shares };
        let mut route = Route::default();
        select_foreign(&plan(&router, "s/1"), &outgoing(QoS::AtLeastOnce, None), &foreign, &mut route);
        assert!(route.durable.is_empty() && route.shared.is_empty() && route.nodes.is_empty());
        let mut slots: Vec<u32> = route.live.iter().map(|target| target.link.slot).collect();
        slots.sort_unstable();
        slots
    };
    let share: [Arc<str>; 1] = ["$share/g/s/#".into()];
    assert_eq!(deliver(Some("x"), true, &[]), [1, 2]);
    assert_eq!(deliver(Some("p"), true, &[]), [1]);
    assert_eq!(deliver(None, false, &share), [3]);
    assert_eq!(deliver(None, true, &share), [1, 2, 3]);
}
