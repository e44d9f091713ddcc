//! Retained messages (MQTT 5 §3.3.1.3, P7).

use super::*;
use crate::lifecycle::WillKey;

fn retained(world: &World, filter: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    world.group.retained(filter, &mut |topic, message, id| {
        let payload = world.body(id, message).payload().to_vec();
        found.push((topic.to_owned(), String::from_utf8(payload).unwrap()));
        true
    });
    found
}

fn retain(world: &mut World, topic: &str, payload: &str, expires_at: Option<u64>) -> Reply {
    let mut message = message(topic, payload);
    message.retain = true;
    message.expires_at = expires_at.map(Millis);
    world.apply(Command::Retain { message, stamp: None })
}

#[test]
fn the_last_one_is_kept_and_an_empty_one_removes_it() {
    let mut world = World::new();
    retain(&mut world, "a/b", "1", None);
    retain(&mut world, "a/c", "2", None);
    retain(&mut world, "a/b", "3", None);
    for _ in 0..2 {
        assert_eq!(retained(&world, "a/+"), [("a/b".into(), "3".into()), ("a/c".into(), "2".into())]);
        assert_eq!(world.group.stat().messages_stored, 2);
        world.reload();
    }
    assert_eq!(retain(&mut world, "a/b", "", None), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(retain(&mut world, "a/b", "", None), Reply::Done { revision: 0, unchanged: true });
    assert_eq!(retained(&world, "#"), [("a/c".into(), "2".into())]);
    assert_eq!(world.group.stat().retained, 1);
}

#[test]
fn expired_ones_are_not_seen_and_tidied_away() {
    // Scenario 59.
    let mut world = World::new();
    retain(&mut world, "a", "short", Some(3_000));
    retain(&mut world, "b", "replaced", Some(3_000));
    retain(&mut world, "b", "kept", None);
    world.reload();
    world.at(2_999).apply(Command::BootRenew { revision: 1, lease_until: Millis(1_000_000) });
    assert_eq!(retained(&world, "#").len(), 2);
    world.at(3_000).apply(Command::BootRenew { revision: 2, lease_until: Millis(1_000_000) });
    assert_eq!(retained(&world, "#"), [("b".into(), "kept".into())]);
    assert_eq!(world.group.stat().retained, 2);
    assert_eq!(world.apply(Command::Tidy), Reply::Reclaimed { removed: 1, done: true });
    assert_eq!((world.group.stat().retained, world.group.stat().messages_stored), (1, 1));
    retain(&mut world, "b", "late", Some(1_000));
    assert_eq!(world.group.stat().retained, 0, "expired on arrival: the old one is replaced by nothing");
}

/// P9: the limit is exact, a value is replaced and removed at it, and it is part of the rows.
#[test]
fn the_limit_holds_and_replacing_is_always_possible() {
    let mut world = World::new();
    assert!(matches!(world.apply(Command::RetainedQuota(2)), Reply::Done { unchanged: false, .. }));
    retain(&mut world, "a", "1", None);
    retain(&mut world, "b", "1", None);
    world.reload();
    assert_eq!(world.group.quota_retained(), 2);
    assert_eq!(retain(&mut world, "c", "1", None), Reply::Conflict(Conflict::Quota));
    assert_eq!(retain(&mut world, "a", "2", None), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(retain(&mut world, "c", "", None), Reply::Done { revision: 0, unchanged: true });
    assert_eq!(world.group.stat().retained, 2);
    retain(&mut world, "b", "", None);
    assert_eq!(retain(&mut world, "c", "1", None), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(retained(&world, "#"), [("a".into(), "2".into()), ("c".into(), "1".into())]);
}

/// A limit that was lowered below what is there removes nothing.
#[test]
fn a_lowered_limit_keeps_what_is_there() {
    let mut world = World::new();
    retain(&mut world, "a", "1", None);
    retain(&mut world, "b", "1", None);
    world.apply(Command::RetainedQuota(0));
    assert_eq!(retain(&mut world, "a", "2", None), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(retain(&mut world, "c", "1", None), Reply::Conflict(Conflict::Quota));
    assert_eq!(world.group.stat().retained, 2);
}

#[test]
fn a_topic_that_cannot_be_is_refused() {
    let mut world = World::new();
    assert_eq!(refused(&retain(&mut world, "", "x", None)), Conflict::Illegal);
    assert_eq!(refused(&retain(&mut world, "a\0b", "x", None)), Conflict::Illegal);
}

/// P7, [MQTT-4.3.3-10]: a QoS 2 publish that is repeated after a crash does not replace a newer value. The append of the same publish
/// is not its duplicate, though topic and inbox are of one group.
#[test]
fn a_repeated_publish_does_not_replace_a_newer_value() {
    let mut world = World::new();
    let (sub, _) = world.connect(&dial("sub"));
    let stamp = |sequence| Stamp::Publisher { key: key("far"), lifetime: 1, packet_id: 7, sequence };
    let retain = |world: &mut World, payload, stamp| {
        world.apply(Command::Retain { message: message("a", payload), stamp: Some(stamp) })
    };
    let done = |unchanged| Reply::Done { revision: 0, unchanged };
    assert_eq!(retain(&mut world, "old", stamp(1)), done(false));
    let to = [(sub.lifetime, QoS::ExactlyOnce)];
    let reply = world.append_stamped(message("a", "old"), Some(stamp(1)), &to);
    assert!(matches!(reply, Reply::Appended { accepted: 1, duplicate: false, .. }));
    assert_eq!(retain(&mut world, "new", stamp(2)), done(false));
    world.reload();
    for _ in 0..2 {
        assert_eq!(retain(&mut world, "old", stamp(1)), done(true));
        assert_eq!(retained(&world, "#"), [("a".into(), "new".into())]);
    }
    // A removal is a value too, and a Will fires once.
    assert_eq!(retain(&mut world, "", stamp(3)), done(false));
    assert_eq!(retain(&mut world, "new", stamp(2)), done(true));
    let will = WillKey { key: key("far"), session_generation: 1, will_generation: 1 };
    assert_eq!(retain(&mut world, "will", Stamp::Will(will.clone())), done(false));
    assert_eq!(retain(&mut world, "will", Stamp::Will(will)), done(true));
    assert_eq!(world.group.stat().retained, 1);
}
