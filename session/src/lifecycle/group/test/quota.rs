//! Inbox quotas (scenario 64: 0, 1, the largest, by count and by bytes together).

use super::*;

fn accepted(world: &mut World, payload: &str) -> bool {
    let lifetime = world.row("c").lifetime;
    match world.append(payload, &[(lifetime, QoS::AtLeastOnce)]) {
        Reply::Appended { accepted, over_quota, missing: 0, duplicate: false } => {
            assert_eq!(accepted + over_quota, 1);
            accepted == 1
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn quotas_mean_what_they_say() {
    // Topic `t` and three bytes of payload: four bytes a message.
    for (messages, bytes, expected) in [
        (0, u64::MAX, 0),
        (u64::MAX, 0, 0),
        (1, u64::MAX, 1),
        (u64::MAX, 3, 0),
        (u64::MAX, 4, 1),
        (u64::MAX, 11, 2),
        (2, 12, 2),
        (3, 8, 2),
        (u64::MAX, u64::MAX, 5),
    ] {
        let mut world = World::with_quota(messages, bytes);
        world.connect(&dial("c"));
        let taken = (0..5).filter(|_| accepted(&mut world, "abc")).count();
        assert_eq!(taken, expected, "{messages} messages, {bytes} bytes");
        world.reload();
        assert!(expected == 5 || !accepted(&mut world, "abc"), "quotas are part of the rows");
    }
}

#[test]
fn acknowledgements_give_room_back_and_a_full_inbox_harms_no_other() {
    let mut world = World::with_quota(2, 1_000);
    let (c, _) = world.connect(&dial("c"));
    let (d, _) = world.connect(&dial("d"));
    world.append("1", &[(c.lifetime, QoS::AtLeastOnce)]);
    world.append("2", &[(c.lifetime, QoS::AtLeastOnce)]);
    let both = [(c.lifetime, QoS::AtLeastOnce), (d.lifetime, QoS::AtLeastOnce)];
    let reply = world.append("3", &both);
    assert_eq!(reply, Reply::Appended { accepted: 1, over_quota: 1, missing: 0, duplicate: false });
    world.ack("c", &[(0, AckKind::Settled)]);
    assert!(accepted(&mut world, "4"));
    assert_eq!(
        world.payloads("c"),
        [(1, "2".to_owned()), (2, "4".to_owned())],
        "offsets have no gap for a drop"
    );
}

#[test]
fn quotas_change_by_command() {
    let mut world = World::with_quota(1, 1_000);
    world.connect(&dial("c"));
    assert!(accepted(&mut world, "1"));
    assert!(!accepted(&mut world, "2"));
    let change = Command::Quotas { messages: 2, bytes: 1_000 };
    assert_eq!(world.apply(change.clone()), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(world.apply(change), Reply::Done { revision: 0, unchanged: true });
    assert!(accepted(&mut world, "2"));
    assert_eq!(world.group.quotas(), (2, 1_000));
}

#[test]
fn quota_end_takes_will_and_state_in_one_commit() {
    // Appendix B: overflow while Active or Offline ends the session with reason Quota.
    for offline in [false, true] {
        let mut world = World::new();
        world.connect(&Dial { will: will(5), ..dial("c") });
        if offline {
            world.at(2_000).drop_connection("c");
        }
        let end = world.at(3_000).end_command("c", EndReason::Quota, WillMode::Publish);
        let row = row_of(world.apply(end.clone()));
        assert_eq!(row.state, SessionState::Ended { reason: EndReason::Quota });
        assert_eq!(world.will_of("c"), Some((WillStage::Ready, Some(Millis(3_000)))));
        assert!(matches!(world.apply(end), Reply::Row { unchanged: true, .. }));
    }
}

fn rule(world: &mut World, rule: QuotaRule) {
    assert!(matches!(world.apply(Command::QuotaRule(rule)), Reply::Done { .. }));
    assert_eq!(world.group.quota_rule(), rule);
    world.reload();
    assert_eq!(world.group.quota_rule(), rule, "the rule is part of the rows");
}

/// `drop_old`: the oldest messages give way, as many as the new one needs, and the rest keeps its order and its offsets.
#[test]
fn the_oldest_messages_give_way() {
    let mut world = World::with_quota(3, 12);
    world.connect(&dial("c"));
    rule(&mut world, QuotaRule::DropOld);
    for payload in ["1", "2", "3", "4"] {
        assert_eq!(append_one(&mut world, payload, QoS::AtLeastOnce).0, 1, "{payload}");
    }
    assert_eq!(world.payloads("c"), [(1, "2".to_owned()), (2, "3".to_owned()), (3, "4".to_owned())]);
    assert_eq!(
        append_one(&mut world, "12345678", QoS::AtLeastOnce),
        (1, 2),
        "two of two bytes for nine of twelve"
    );
    assert_eq!(world.payloads("c"), [(3, "4".to_owned()), (4, "12345678".to_owned())]);
    assert_eq!(
        append_one(&mut world, "123456789012", QoS::AtLeastOnce),
        (0, 1),
        "it never fits: nothing else goes"
    );
    assert_eq!(world.payloads("c").len(), 2);
    // What a client acknowledges afterwards is gone already.
    world.ack("c", &[(0, AckKind::Settled)]);
    assert_eq!(world.payloads("c").len(), 2);
}

/// `drop_old`, [MQTT-4.3.3-10]: a QoS 2 message that its client may know of is kept, an unsent one is not.
#[test]
fn known_qos_2_messages_do_not_give_way() {
    let mut world = World::with_quota(2, 1_000);
    world.connect(&dial("c"));
    rule(&mut world, QuotaRule::DropOld);
    append_one(&mut world, "1", QoS::ExactlyOnce);
    append_one(&mut world, "2", QoS::ExactlyOnce);
    assert_eq!(append_one(&mut world, "3", QoS::ExactlyOnce), (0, 1), "a connection may have sent both");
    world.ack("c", &[(0, AckKind::Received)]);
    world.at(2_000).drop_connection("c");
    assert_eq!(append_one(&mut world, "4", QoS::ExactlyOnce), (1, 1), "the second was never written");
    assert_eq!(world.payloads("c"), [(0, "1".to_owned()), (2, "4".to_owned())]);
}

/// `end`: the message is dropped and the session reported; other rules report nothing.
#[test]
fn a_full_inbox_is_reported_for_its_end() {
    let mut world = World::with_quota(1, 1_000);
    let (row, _) = world.connect(&dial("c"));
    append_one(&mut world, "1", QoS::AtLeastOnce);
    for (which, expected) in
        [(QuotaRule::DropNew, vec![]), (QuotaRule::End, vec![row.lifetime]), (QuotaRule::DropOld, vec![])]
    {
        rule(&mut world, which);
        append_one(&mut world, "2", QoS::AtLeastOnce);
        assert_eq!(world.outcome.over_quota, expected, "{which:?}");
    }
}

/// Accepted, and dropped by quota.
fn append_one(world: &mut World, payload: &str, qos: QoS) -> (u32, u32) {
    let lifetime = world.row("c").lifetime;
    match world.append(payload, &[(lifetime, qos)]) {
        Reply::Appended { accepted, over_quota, missing: 0, duplicate: false } => (accepted, over_quota),
        other => panic!("{other:?}"),
    }
}
