//! The outbound window against the rules and against a model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Scenario 72, [MQTT-2.2.1-4]: more than 65,535 deliveries with ids in flight: none is used twice, 65,535 is
/// followed by 1.
#[test]
fn transient_ids_wrap_and_skip_those_in_flight() {
    let mut window = Outbound::new(10);
    let slow: Vec<u16> = (0..3).filter_map(|_| window.begin(false)).collect();
    assert_eq!(slow, [1, 2, 3]);
    let mut last = 3;
    for _ in 0..140_000 {
        let id = window.begin(false).expect("there is room");
        assert!(!slow.contains(&id));
        assert_eq!(id, if last == 65_535 { 4 } else { last + 1 });
        assert_eq!(window.puback(id), Ok(Settled::Transient));
        last = id;
    }
    for id in slow {
        assert_eq!(window.puback(id), Ok(Settled::Transient));
    }
}

/// DESIGN §9: the id comes from the offset, so that a resend after any crash has the same one.
#[test]
fn inbox_ids_come_from_offsets() {
    assert_eq!(inbox_packet_id(0), 1);
    assert_eq!(inbox_packet_id(65_534), 65_535);
    assert_eq!(inbox_packet_id(65_535), 1);
    assert_eq!(Outbound::new(1).begin_inbox(131_071, true, false), Some(2));
}

/// Scenario 72: an inbox entry waits for a transient exchange with its id, a transient one skips it.
#[test]
fn inbox_and_transient_ids_do_not_collide() {
    let mut window = Outbound::new(10);
    assert_eq!(window.begin_inbox(1, false, false), Some(2));
    assert_eq!(window.begin(false), Some(1));
    assert_eq!(window.begin(true), Some(3));
    assert_eq!(window.begin_inbox(2, false, false), None);
    assert_eq!(window.begin_inbox(1, false, false), None);
    assert_eq!(window.in_flight(), 3);
    assert_eq!(window.pubrec_refused(3), Ok(Settled::Transient));
    assert_eq!(window.begin_inbox(2, false, false), Some(3));
    assert_eq!(window.puback(3), Ok(Settled::Inbox { offset: 2 }));
}

/// [MQTT-4.3.2-3], [MQTT-4.3.3-4] and the table of §4.3.3: each acknowledgement fits one stage.
#[test]
fn acknowledgements_fit_the_stage() {
    let mut window = Outbound::new(10);
    let one = window.begin(false).expect("room");
    let two = window.begin(true).expect("room");
    assert_eq!(window.puback(9), Err(OutboundError::UnknownPacketId));
    assert_eq!(window.pubrec(9), Err(OutboundError::UnknownPacketId));
    assert_eq!(window.pubrec(one), Err(OutboundError::WrongKind));
    assert_eq!(window.pubcomp(one), Err(OutboundError::WrongKind));
    assert_eq!(window.pubrec_refused(one), Err(OutboundError::WrongKind));
    assert_eq!(window.puback(two), Err(OutboundError::WrongKind));
    assert_eq!(window.pubcomp(two), Err(OutboundError::WrongKind));
    assert_eq!(window.pubrec(two), Ok(Settled::Transient));
    assert_eq!(window.pubrec(two), Ok(Settled::Transient));
    assert_eq!(window.pubrec_refused(two), Err(OutboundError::WrongKind));
    assert_eq!(window.room(), 8);
    assert_eq!(window.pubcomp(two), Ok(Settled::Transient));
    assert_eq!(window.pubcomp(two), Err(OutboundError::UnknownPacketId));
    assert_eq!(window.puback(one), Ok(Settled::Transient));
    assert_eq!(window.room(), 10);
}

/// Scenario 69, [MQTT-4.4.0-1]: an owed PUBREL has its id again and goes out whatever the new Receive Maximum is.
#[test]
fn an_owed_pubrel_is_resumed() {
    let mut window = Outbound::new(1);
    for offset in 5..10 {
        assert_eq!(window.begin_inbox(offset, true, true), Some(inbox_packet_id(offset)));
    }
    assert_eq!(window.room(), 1);
    assert_eq!(window.begin_inbox(10, true, false), Some(11));
    assert_eq!(window.begin_inbox(11, true, false), None);
    assert_eq!(window.pubcomp(6), Ok(Settled::Inbox { offset: 5 }));
    assert_eq!(
        window.room(),
        0,
        "a PUBCOMP of an earlier connection does not raise the quota above its start"
    );
    assert_eq!(window.pubrec(11), Ok(Settled::Inbox { offset: 10 }));
    assert_eq!(window.pubcomp(11), Ok(Settled::Inbox { offset: 10 }));
    assert_eq!(window.room(), 1);
}

/// Scenario 61, §4.9: 30 reconnects with one QoS 2 exchange each leave the whole quota for the 31st.
#[test]
fn the_quota_starts_anew_with_each_connection() {
    for offset in 0..30 {
        let mut window = Outbound::new(1);
        let id = window.begin_inbox(offset, true, false).expect("the quota is whole");
        window.pubrec(id).expect("QoS 2");
        let mut resumed = Outbound::new(1);
        resumed.begin_inbox(offset, true, true).expect("an owed PUBREL");
        resumed.pubcomp(id).expect("PUBREL was owed");
        assert_eq!(resumed.room(), 1);
    }
}

/// All 65,535 ids in flight: no id, no endless search.
#[test]
fn every_id_in_flight() {
    let mut window = Outbound::new(u16::MAX);
    assert!((0..10).all(|offset| window.begin_inbox(offset, true, true).is_some()));
    assert_eq!((0..70_000).filter_map(|_| window.begin(false)).count(), 65_525);
    assert_eq!(window.in_flight(), 65_535);
    assert_eq!((window.room(), window.begin(false)), (10, None));
    assert_eq!(window.puback(40_000), Ok(Settled::Transient));
    assert_eq!(window.begin(false), Some(40_000));
}

/// An idle connection costs tens of bytes; a burst does not stay.
#[test]
fn an_idle_window_is_small() {
    assert!(size_of::<Outbound>() <= 48);
    let mut window = Outbound::new(1_000);
    assert_eq!(window.exchanges.allocation_size(), 0);
    let ids: Vec<u16> = (0..1_000).filter_map(|_| window.begin(false)).collect();
    for id in ids {
        window.puback(id).expect("in flight");
    }
    assert_eq!(window.exchanges.allocation_size(), 0);
}

#[derive(Debug, Clone)]
enum Op {
    Begin(bool),
    Inbox(u64, bool, bool),
    Ack(u8, u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        any::<bool>().prop_map(Op::Begin),
        (0..12_u64, any::<bool>(), any::<bool>())
            .prop_map(|(offset, two, received)| Op::Inbox(offset, two, received)),
        (0..4_u8, 1..14_u16).prop_map(|(kind, id)| Op::Ack(kind, id)),
    ]
}

/// Of an exchange: QoS 2, received, counts, offset.
type Model = BTreeMap<u16, (bool, bool, bool, Option<u64>)>;

fn expected_ack(model: &mut Model, kind: u8, id: u16) -> Result<Settled, OutboundError> {
    let Some((two, received, _, offset)) = model.get(&id).copied() else {
        return Err(OutboundError::UnknownPacketId);
    };
    let fits = match kind {
        0 => !two,
        1 => two,
        2 => two && !received,
        _ => two && received,
    };
    if !fits {
        return Err(OutboundError::WrongKind);
    }
    if kind == 1 {
        model.entry(id).and_modify(|exchange| exchange.1 = true);
    } else {
        model.remove(&id);
    }
    Ok(offset.map_or(Settled::Transient, |offset| Settled::Inbox { offset }))
}

proptest! {
    /// [MQTT-3.3.4-9] and §2.2.1: against a plain map of exchanges, the same answers, room and ids.
    #[test]
    fn the_window_agrees_with_its_model(maximum in 1..6_u16, ops in prop::collection::vec(op(), 0..120)) {
        let mut window = Outbound::new(maximum);
        let mut model = Model::new();
        for op in ops {
            let room = usize::from(maximum) - model.values().filter(|exchange| exchange.2).count();
            prop_assert_eq!(usize::from(window.room()), room);
            match op {
                Op::Begin(two) => {
                    let id = window.begin(two);
                    prop_assert_eq!(id.is_some(), room > 0);
                    if let Some(id) = id {
                        prop_assert!(id != 0 && model.insert(id, (two, false, true, None)).is_none());
                    }
                }
                Op::Inbox(offset, two, received) => {
                    let received = received && two;
                    let free = !model.contains_key(&inbox_packet_id(offset)) && (received || room > 0);
                    let id = window.begin_inbox(offset, two, received);
                    prop_assert_eq!(id, free.then(|| inbox_packet_id(offset)));
                    if let Some(id) = id {
                        model.insert(id, (two, received, !received, Some(offset)));
                    }
                }
                Op::Ack(kind, id) => {
                    let expected = expected_ack(&mut model, kind, id);
                    let got = match kind {
                        0 => window.puback(id),
                        1 => window.pubrec(id),
                        2 => window.pubrec_refused(id),
                        _ => window.pubcomp(id),
                    };
                    prop_assert_eq!(got, expected);
                }
            }
            prop_assert_eq!(window.in_flight(), model.len());
        }
    }
}
