//! Who is acknowledged when, packet by packet: nothing goes back to a sender before the receiver has said it.

use gateway::codec::{Filters, SubAck, Subscribe};

use super::*;
use crate::config::{BridgeTopic, TopicDirection, Topics};

const FREE: Capacity = Capacity {
    version: Version::V5,
    receive_maximum: 10,
    maximum_qos: QoS::ExactlyOnce,
    retain_available: true,
    packet_size_max: 1_000,
};

fn topics() -> TopicMap {
    let topic = BridgeTopic {
        filter: "#".into(),
        direction: TopicDirection::Both,
        qos: QoS::ExactlyOnce,
        local_prefix: "l/".into(),
        remote_prefix: "r/".into(),
    };
    TopicMap::new(&Topics([topic].into()))
}

fn relay(remote: Capacity) -> Relay {
    Relay::new(topics(), FREE, remote, None)
}

fn publish(topic: &'static str, qos: QoS, packet_id: u16, dup: bool) -> Packet<'static> {
    Packet::Publish(Publish {
        dup,
        qos,
        retain: true,
        topic,
        packet_id,
        topic_alias: None,
        message_expiry_sec: None,
        properties: &[],
        properties_forwardable: true,
        payload: b"it",
    })
}

fn ack(ack_type: AckType, packet_id: u16) -> Packet<'static> {
    Packet::Ack(Ack::new(ack_type, packet_id, ReasonCode::Success))
}

fn refusal(ack_type: AckType, packet_id: u16, reason: ReasonCode) -> Packet<'static> {
    Packet::Ack(Ack::new(ack_type, packet_id, reason))
}

/// `packet` comes from `side`.
fn give(relay: &mut Relay, side: Side, packet: &Packet<'_>) -> Result<(), Fault> {
    let version = relay.version(side);
    let mut bytes = Vec::new();
    codec::write(version, packet, &mut bytes).expect("it can be encoded");
    let frame = codec::frame(version, &bytes, usize::MAX).expect("well-formed").expect("whole");
    relay.handle(side, frame)
}

/// What went out to `side`, as text.
fn sent(relay: &mut Relay, side: Side) -> Vec<String> {
    let version = relay.version(side);
    let bytes = relay.unsent(side).to_vec();
    relay.advance(side, bytes.len());
    let mut rest = &bytes[..];
    let mut packets = Vec::new();
    while let Some(frame) = codec::frame(version, rest, usize::MAX).expect("well-formed") {
        rest = &rest[frame.len..];
        packets.push(match codec::read(version, codec::From::Client, frame).expect("well-formed") {
            Packet::Publish(it) => {
                format!(
                    "{} qos {} id {}{}{}",
                    it.topic,
                    it.qos as u8,
                    it.packet_id,
                    if it.retain { " retain" } else { "" },
                    if it.dup { " dup" } else { "" }
                )
            }
            Packet::Ack(it) => format!("{:?} {}", it.ack_type, it.packet_id),
            other => format!("{:?}", other.packet_type()),
        });
    }
    packets
}

/// Issue 5 §6: QoS 1 is acknowledged to its sender after the other side acknowledged it, under the same packet id.
#[test]
fn qos_1_is_acknowledged_behind_the_other_side() {
    let mut relay = relay(FREE);
    give(&mut relay, Side::Local, &publish("l/a", QoS::AtLeastOnce, 7, false)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Remote), ["r/a qos 1 id 7 retain"]);
    assert_eq!(sent(&mut relay, Side::Local), [""; 0]);
    give(&mut relay, Side::Remote, &ack(AckType::PubAck, 7)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Local), ["PubAck 7"]);
    assert_eq!(relay.counts(Side::Remote), Counts { passed: 1, dropped: 0 });
}

/// Issue 5 §6: each step of QoS 2 is passed on when it was answered, so that both sessions tell a repetition by its id.
#[test]
fn qos_2_is_passed_on_step_by_step() {
    let mut relay = relay(FREE);
    give(&mut relay, Side::Remote, &publish("r/a", QoS::ExactlyOnce, 9, true)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Local), ["l/a qos 2 id 9 retain dup"]);
    assert_eq!(sent(&mut relay, Side::Remote), [""; 0]);
    give(&mut relay, Side::Local, &ack(AckType::PubRec, 9)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Remote), ["PubRec 9"]);
    give(&mut relay, Side::Remote, &ack(AckType::PubRel, 9)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Local), ["PubRel 9"]);
    assert_eq!(sent(&mut relay, Side::Remote), [""; 0]);
    give(&mut relay, Side::Local, &ack(AckType::PubComp, 9)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Remote), ["PubComp 9"]);
}

/// P5: an exchange that an earlier connection began goes on where it was.
#[test]
fn a_release_of_an_earlier_connection_is_passed_on() {
    let mut relay = relay(FREE);
    give(&mut relay, Side::Local, &ack(AckType::PubRel, 3)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Remote), ["PubRel 3"]);
    give(&mut relay, Side::Remote, &refusal(AckType::PubComp, 3, ReasonCode::PacketIdentifierNotFound))
        .expect("taken");
    assert_eq!(sent(&mut relay, Side::Local), ["PubComp 3"]);
}

/// Issue 5 §6: what may be taken later ends the connections, so that it is sent again; what never will be is dropped, counted, and its
/// sender goes on.
#[test]
fn a_refusal_is_passing_or_final() {
    let mut relay = relay(FREE);
    give(&mut relay, Side::Local, &publish("l/a", QoS::AtLeastOnce, 1, false)).expect("taken");
    let passing = refusal(AckType::PubAck, 1, ReasonCode::UnspecifiedError);
    let fault = give(&mut relay, Side::Remote, &passing).expect_err("it ends");
    assert!(matches!(fault, Fault::NotNow { side: Side::Remote, packet_id: 1, .. }));
    let mut relay = self::relay(FREE);
    give(&mut relay, Side::Local, &publish("l/a", QoS::ExactlyOnce, 2, false)).expect("taken");
    give(&mut relay, Side::Remote, &refusal(AckType::PubRec, 2, ReasonCode::NotAuthorized)).expect("final");
    assert_eq!(sent(&mut relay, Side::Local), ["PubRec 2"]);
    give(&mut relay, Side::Local, &ack(AckType::PubRel, 2)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Local), ["PubComp 2"]);
    assert_eq!(relay.counts(Side::Remote), Counts { passed: 0, dropped: 1 });
    let mut given_up = Relay::new(topics(), FREE, FREE, Some((Side::Remote, 5)));
    give(&mut given_up, Side::Local, &publish("l/a", QoS::AtLeastOnce, 5, true)).expect("taken");
    give(&mut given_up, Side::Remote, &refusal(AckType::PubAck, 5, ReasonCode::QuotaExceeded))
        .expect("given up");
    assert_eq!(sent(&mut given_up, Side::Local), ["PubAck 5"]);
}

/// Issue 5 §6: a broker that takes less gets less: QoS, RETAIN, size; whoever sent it is answered in its own QoS.
#[test]
fn what_the_other_broker_does_not_take_is_mapped() {
    let mut relay = relay(Capacity { maximum_qos: QoS::AtLeastOnce, retain_available: false, ..FREE });
    give(&mut relay, Side::Local, &publish("l/a", QoS::ExactlyOnce, 4, false)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Remote)[0], "r/a qos 1 id 4");
    give(&mut relay, Side::Remote, &ack(AckType::PubAck, 4)).expect("taken");
    give(&mut relay, Side::Local, &ack(AckType::PubRel, 4)).expect("taken");
    assert_eq!(sent(&mut relay, Side::Local), ["PubRec 4", "PubComp 4"]);
    let mut small = self::relay(Capacity { packet_size_max: 10, ..FREE });
    give(&mut small, Side::Local, &publish("l/a-long-name", QoS::AtLeastOnce, 6, false)).expect("taken");
    assert_eq!(
        (sent(&mut small, Side::Remote).len(), sent(&mut small, Side::Local)),
        (0, vec!["PubAck 6".to_owned()])
    );
    assert_eq!(small.counts(Side::Remote).dropped, 1);
}

/// A message of no topic of the bridge, as an earlier configuration subscribed to, is nobody's loss and holds nothing up.
#[test]
fn what_is_not_exchanged_is_acknowledged() {
    let mut relay = relay(FREE);
    give(&mut relay, Side::Remote, &publish("x/a", QoS::AtLeastOnce, 1, false)).expect("taken");
    assert_eq!(
        (sent(&mut relay, Side::Local).len(), sent(&mut relay, Side::Remote)),
        (0, vec!["PubAck 1".to_owned()])
    );
}

/// P9, P5: what has no room waits, in its order, while everything that makes room still gets through, from both sides: a window full of QoS 2 ends
/// only with the PUBREL that the sender has for it behind more messages.
#[test]
fn a_full_window_is_emptied_by_what_comes_behind_it() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut relay = Relay::new(topics(), Capacity { receive_maximum: 2, ..FREE }, FREE, None);
        for packet_id in 1..=5 {
            assert!(relay.may_take(Side::Remote));
            give(&mut relay, Side::Remote, &publish("r/a", qos, packet_id, false)).expect("taken");
        }
        let mut passed = Vec::new();
        let note = |relay: &mut Relay, passed: &mut Vec<String>| {
            let packets = sent(relay, Side::Local);
            passed.extend(packets.into_iter().filter(|packet| packet.starts_with("l/")));
        };
        note(&mut relay, &mut passed);
        assert_eq!(passed.len(), 2, "{passed:?}");
        for packet_id in 1..=5 {
            let last = if qos == QoS::AtLeastOnce {
                AckType::PubAck
            } else {
                give(&mut relay, Side::Local, &ack(AckType::PubRec, packet_id)).expect("taken");
                assert!(relay.may_take(Side::Remote));
                give(&mut relay, Side::Remote, &ack(AckType::PubRel, packet_id)).expect("taken");
                AckType::PubComp
            };
            give(&mut relay, Side::Local, &ack(last, packet_id)).expect("taken");
            note(&mut relay, &mut passed);
            assert_eq!(passed.len(), 5.min(2 + usize::from(packet_id)), "{passed:?}");
        }
        assert_eq!(relay.counts(Side::Local).passed, 5);
    }
}

/// P9: a sender that keeps no window is told to, and costs no more memory than there is for it.
#[test]
fn a_sender_without_a_window_is_cut_off() {
    let mut relay = Relay::new(
        topics(),
        Capacity { receive_maximum: 1, packet_size_max: usize::MAX, ..FREE },
        FREE,
        None,
    );
    let payload = vec![b'z'; 1 << 20];
    let large = |packet_id| {
        let Packet::Publish(small) = publish("r/a", QoS::AtLeastOnce, packet_id, false) else {
            unreachable!()
        };
        Packet::Publish(Publish { payload: &payload, ..small })
    };
    let taken = (1..=64).take_while(|id| give(&mut relay, Side::Remote, &large(*id)).is_ok()).count();
    assert!((31..=33).contains(&taken), "{taken} MiB");
}

/// P5: when one side lost its session, the other one forgets the ids of that session before anything else comes to it: a new message
/// under one of them would pass for a repetition.
#[test]
fn a_sweep_is_over_before_anything_comes() {
    let mut relay = relay(FREE);
    relay.sweep(Side::Local).expect("it can be");
    assert!(!relay.may_take(Side::Remote) && relay.may_take(Side::Local) && !relay.is_ready());
    assert_eq!(sent(&mut relay, Side::Local).len(), usize::from(u16::MAX));
    for packet_id in 1..=u16::MAX {
        give(&mut relay, Side::Local, &ack(AckType::PubComp, packet_id)).expect("taken");
    }
    assert!(relay.may_take(Side::Remote) && relay.is_ready());
    assert_eq!(sent(&mut relay, Side::Remote), [""; 0]);
}

/// P10: what a broker may not send ends the connections; a subscription that it refuses is seen.
#[test]
fn what_breaks_the_protocol_is_a_fault() {
    for packet in [ack(AckType::PubAck, 1), ack(AckType::PubRec, 1), ack(AckType::PubComp, 1)] {
        assert!(give(&mut relay(FREE), Side::Remote, &packet).is_err(), "{packet:?}");
    }
    let mut twice = relay(FREE);
    give(&mut twice, Side::Local, &publish("l/a", QoS::AtLeastOnce, 1, false)).expect("taken");
    assert!(give(&mut twice, Side::Local, &publish("l/b", QoS::AtLeastOnce, 1, false)).is_err());
    let mut refused = relay(FREE);
    refused.expect_answer();
    assert!(!refused.is_ready());
    give(&mut refused, Side::Remote, &Packet::SubAck(SubAck::new(1, &[1, 0x87]))).expect("taken");
    assert_eq!(refused.refused(), Some((Side::Remote, ReasonCode::NotAuthorized)));
    assert!(refused.is_ready());
    let subscribe = Subscribe {
        packet_id: 1,
        identifier: 0,
        filters: Filters::new(Version::V5, &[0, 1, b'a', 0]).expect("one"),
        user_properties: codec::UserProperties::EMPTY,
    };
    assert!(give(&mut relay(FREE), Side::Remote, &Packet::Subscribe(subscribe)).is_err());
}
