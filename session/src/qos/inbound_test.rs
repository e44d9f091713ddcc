//! The inbound window against the rules and against a model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Scenarios 67 and 68, [MQTT-4.3.3-10]: one delivery, a PUBREC without complaint for each duplicate, also after a
/// reconnect; behind PUBREL the id is new.
#[test]
fn a_qos2_duplicate_is_received_once() {
    let mut window = Inbound::new(1, &[]);
    assert_eq!(window.publish_qos2(1), Ok(Received::New));
    for _ in 0..10 {
        assert_eq!(window.publish_qos2(1), Ok(Received::Duplicate));
    }
    let mut resumed = Inbound::new(1, &[1]);
    assert_eq!(resumed.publish_qos2(1), Ok(Received::Duplicate));
    assert_eq!(resumed.publish_qos2(1), Ok(Received::Duplicate));
    assert!(resumed.release(1));
    assert!(!resumed.release(1));
    assert_eq!(resumed.publish_qos2(1), Ok(Received::New));
}

/// Scenario 71: PUBREL of a resumed id finds it, of an unknown one does not.
#[test]
fn a_resumed_id_is_known_to_pubrel() {
    let mut window = Inbound::new(10, &[7]);
    assert!(window.release(7));
    assert!(!window.release(8));
}

/// Scenario 74: one id published a million times and never released costs one entry.
#[test]
fn an_id_that_is_never_released_costs_one_entry() {
    let mut window = Inbound::new(100, &[]);
    for _ in 0..1_000_000 {
        window.publish_qos2(1).expect("a duplicate is no new exchange");
    }
    assert_eq!((window.ids.len(), window.in_flight()), (1, 1));
}

/// Scenario 75, [MQTT-3.3.4-9]: exactly the Receive Maximum is allowed, QoS 1 and 2 together.
#[test]
fn the_receive_maximum_is_neither_exceeded_nor_short() {
    let mut window = Inbound::new(3, &[50, 51, 52, 53]);
    assert_eq!(window.publish_qos1(), Ok(()));
    assert_eq!(window.publish_qos2(1), Ok(Received::New));
    assert_eq!(window.publish_qos2(50), Ok(Received::Duplicate));
    assert_eq!(window.publish_qos1(), Err(InboundError::ReceiveMaximum));
    assert_eq!(window.publish_qos2(2), Err(InboundError::ReceiveMaximum));
    assert_eq!(window.publish_qos2(51), Err(InboundError::ReceiveMaximum));
    assert_eq!(window.publish_qos2(1), Ok(Received::Duplicate));
    window.acked();
    assert_eq!(window.publish_qos2(2), Ok(Received::New));
    window.refused(2);
    assert_eq!(window.publish_qos2(2), Ok(Received::New));
}

/// An idle connection costs tens of bytes; a burst does not stay.
#[test]
fn an_idle_window_is_small() {
    assert!(size_of::<Inbound>() <= 48);
    let mut window = Inbound::new(1_000, &[]);
    assert_eq!(window.ids.allocation_size(), 0);
    for id in 1..=1_000 {
        window.publish_qos2(id).expect("within the window");
    }
    for id in 1..=1_000 {
        assert!(window.release(id));
    }
    assert_eq!(window.ids.allocation_size(), 0);
}

proptest! {
    /// Against a map of id to "counts": the same answers, and never more in flight than the Receive Maximum.
    #[test]
    fn the_window_agrees_with_its_model(
        maximum in 1..6_u16,
        resumed in prop::collection::vec(1..8_u16, 0..5),
        steps in prop::collection::vec((0..5_u8, 1..8_u16), 0..80),
    ) {
        let mut window = Inbound::new(maximum, &resumed);
        let mut ids: BTreeMap<u16, bool> = resumed.iter().map(|&id| (id, false)).collect();
        let mut qos1 = 0_u16;
        for (kind, id) in steps {
            let counted = usize::from(qos1) + ids.values().filter(|&&counts| counts).count();
            let room = counted < usize::from(maximum);
            match kind {
                0 => {
                    prop_assert_eq!(window.publish_qos1().is_ok(), room);
                    qos1 += u16::from(room);
                }
                1 if qos1 > 0 => {
                    window.acked();
                    qos1 -= 1;
                }
                2 | 3 => {
                    let expected = match ids.get(&id) {
                        Some(true) => Ok(Received::Duplicate),
                        _ if !room => Err(InboundError::ReceiveMaximum),
                        Some(false) => Ok(Received::Duplicate),
                        None => Ok(Received::New),
                    };
                    prop_assert_eq!(window.publish_qos2(id), expected);
                    if expected.is_ok() {
                        ids.insert(id, true);
                    }
                }
                _ => prop_assert_eq!(window.release(id), ids.remove(&id).is_some()),
            }
            prop_assert!(window.in_flight() <= usize::from(maximum));
        }
    }
}
