//! mosquitto's meaning of `topic` lines, as its manual has it.

use session::message::QoS;

use super::*;
use crate::config::BridgeTopic;

fn map(lines: &[(&str, TopicDirection, QoS, &str, &str)]) -> TopicMap {
    let topic =
        |&(filter, direction, qos, local, remote): &(&str, TopicDirection, QoS, &str, &str)| BridgeTopic {
            filter: filter.into(),
            direction,
            qos,
            local_prefix: local.into(),
            remote_prefix: remote.into(),
        };
    TopicMap::new(&Topics(lines.iter().map(topic).collect::<Vec<_>>().into()))
}

/// Issue 5 §6: `topic sensors/# both 1 local/ remote/`: the prefixes are taken off and put on both ways.
#[test]
fn prefixes_are_mapped_both_ways() {
    let map = map(&[("sensors/#", TopicDirection::Both, QoS::AtLeastOnce, "here/", "there/")]);
    assert_eq!(map.out("here/sensors/a").as_deref(), Some("there/sensors/a"));
    assert_eq!(map.out("here/sensors").as_deref(), Some("there/sensors"));
    assert_eq!(map.out("there/sensors/a"), None);
    assert_eq!(map.inward("there/sensors/a/b").as_deref(), Some("here/sensors/a/b"));
    assert_eq!(map.inward("here/sensors/a"), None);
}

/// Issue 5 §6: a direction is one; the first line that matches decides; an empty filter is the topic that its prefixes name.
#[test]
fn the_first_line_of_a_direction_decides() {
    let map = map(&[
        ("a/+", TopicDirection::Out, QoS::AtMostOnce, "", "first/"),
        ("a/#", TopicDirection::Out, QoS::ExactlyOnce, "", "second/"),
        ("", TopicDirection::In, QoS::AtLeastOnce, "local/topic", "remote/topic"),
    ]);
    assert_eq!(map.out("a/b").as_deref(), Some("first/a/b"));
    assert_eq!(map.out("a/b/c").as_deref(), Some("second/a/b/c"));
    assert_eq!(map.inward("a/b"), None);
    assert_eq!(map.inward("remote/topic").as_deref(), Some("local/topic"));
    assert_eq!(map.out("local/topic"), None);
}

/// [MQTT-4.7.2-1]: a leading wildcard takes no `$` topic over a bridge, and no name comes out longer than one may be.
#[test]
fn what_is_no_topic_is_not_exchanged() {
    let map = map(&[("#", TopicDirection::Both, QoS::AtLeastOnce, "", "far/")]);
    assert_eq!(map.out("$SYS/broker/uptime"), None);
    assert_eq!(map.out(&"x".repeat(65_533)), None);
    assert_eq!(map.inward("far/"), None);
}

/// Issue 5 §6: a filter of several lines is subscribed to once, with the highest QoS.
#[test]
fn a_filter_is_subscribed_to_once() {
    let map = map(&[
        ("a", TopicDirection::Out, QoS::AtMostOnce, "", "x/"),
        ("a", TopicDirection::Both, QoS::ExactlyOnce, "", "y/"),
    ]);
    let (local, remote) = map.wanted();
    let wanted = |filter: &str| vec![Wanted { filter: filter.into(), qos: QoS::ExactlyOnce }];
    assert_eq!((local, remote), (wanted("a"), wanted("y/a")));
}
