//! Golden vectors and damaged payloads of services 130 and 140.

use proptest::prelude::*;

use super::super::queue::ForwardedShare;
use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key(client_id: &str) -> Key {
    Key { namespace: "n".into(), client_id: client_id.into() }
}

fn forward(topic: &str, publisher: Option<&str>, qos: QoS) -> Forward {
    let mut message = Message::new(topic, b"\x01\x01", b"pay");
    message.qos = qos;
    let shares = SmallVec::new();
    Forward { message: Arc::new(message), publisher: publisher.map(key), everyone: true, shares, done: None }
}

/// WIRE.md §8.
#[test]
fn route_calls_keep_their_layout() {
    let changes = [("a/#", true), ("b", false)];
    let logged = changes.map(|(filter, added)| RouteChange::Filter { filter: filter.into(), added });
    let encoded = delta(1, (1, 3), Millis(5), &logged);
    assert_eq!(
        hex(&encoded),
        "010100000000000000030000000000000001000000000000000501000361\
         2f2300000162"
    );
    let read = RouteCall::read(&encoded);
    assert_eq!(
        read,
        Ok(RouteCall::Delta {
            base: 1,
            through: 3,
            until: Millis(5),
            changes: changes.to_vec(),
            stored: Vec::new()
        })
    );
    assert_eq!(hex(&begin(1, 2)), "01020000000000000002");
    assert_eq!(RouteCall::read(&begin(1, 2)), Ok(RouteCall::Begin { round: 2 }));
    let encoded = chunk(1, 2, &["$share/g/a".into()]);
    assert_eq!(hex(&encoded), "0103000000000000000201000a2473686172652f672f61");
    assert_eq!(RouteCall::read(&encoded), Ok(RouteCall::Chunk { round: 2, filters: vec!["$share/g/a"] }));
    assert_eq!(hex(&finish(1, 2, 3, Millis(6))), "0104000000000000000200000000000000030000000000000006");
    assert_eq!(
        RouteCall::read(&finish(1, 2, 3, Millis(6))),
        Ok(RouteCall::Finish { round: 2, through: 3, until: Millis(6) })
    );
}

/// WIRE.md §9: topic, properties, payload, flags, expiry, publisher and shares cross unaltered.
#[test]
fn messages_keep_their_layout() {
    let first = forward("t", Some("c"), QoS::AtLeastOnce);
    let mut second = forward("u", Some("c"), QoS::AtMostOnce);
    let mut message = Message::clone(&second.message);
    (message.retain, message.expires_at) = (true, Some(Millis(9)));
    (second.message, second.everyone) = (Arc::new(message), false);
    second.shares.push(ForwardedShare { filter: "$share/g/u".into(), done: None });
    let encoded = batch(7, &[first, second]);
    assert_eq!(
        hex(&encoded),
        "010000000000000007000000029100016e0001630001740000000200000003010170617\
         96c000000000000000901000a2473686172652f672f75000175000000020000000301017061\
         79"
    );
    let (number, read, passed_over) = read_batch(&encoded).expect("legal");
    assert_eq!((number, read.len(), passed_over), (7, 2, 0));
    for received in &read {
        assert_eq!(received.publisher.as_deref(), Some(&key("c")));
        assert_eq!(
            (received.message.properties(), received.message.payload()),
            (&b"\x01\x01"[..], &b"pay"[..])
        );
    }
    assert_eq!(
        (read[0].message.qos, read[0].message.retain, read[0].everyone),
        (QoS::AtLeastOnce, false, true)
    );
    assert_eq!((read[1].message.expires_at, read[1].message.retain), (Some(Millis(9)), true));
    assert_eq!((&*read[1].shares[0], read[1].everyone), ("$share/g/u", false));
}

/// P10: a payload that is cut anywhere, or has something behind it, is refused.
#[test]
fn p10_damaged_payloads_are_refused() {
    let whole = batch(1, &[forward("t", Some("c"), QoS::ExactlyOnce), forward("t", None, QoS::AtMostOnce)]);
    for len in 0..whole.len() {
        assert!(read_batch(&whole[..len]).is_err(), "{len} bytes");
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(read_batch(&longer).is_err());
    let unnamed = [&batch(1, &[])[..9], &[0, 0, 0, 1, SAME_PUBLISHER]].concat();
    assert_eq!(read_batch(&unnamed).err(), Some(Malformed("a publisher that was not named")));
    assert!(RouteCall::read(&[1, 9, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    assert!(RouteCall::read(&delta(1, (4, 3), Millis(0), &[])).is_err());
    assert!(RouteCall::read(&[&begin(1, 2)[..], &[0]].concat()).is_err());
}

/// P9: a message whose topic nobody may publish to costs only itself; what stands around it is somebody else's.
#[test]
fn p9_one_bad_topic_does_not_cost_the_batch() {
    for bad in ["a/#", "", &"/".repeat(300)] {
        let messages = [
            forward("t", Some("c"), QoS::AtLeastOnce),
            forward(bad, Some("hostile"), QoS::AtMostOnce),
            forward("u", Some("hostile"), QoS::ExactlyOnce),
        ];
        let (_, read, passed_over) = read_batch(&batch(1, &messages)).expect("legal");
        let topics: Vec<&str> = read.iter().map(|received| received.message.topic()).collect();
        assert_eq!((&*topics, passed_over), (&["t", "u"][..], 1), "{bad:?}");
        assert_eq!((read[0].at, read[1].at), (0, 2), "an answer names places in the whole batch");
        assert_eq!(read[1].publisher.as_deref(), Some(&key("hostile")));
    }
}

/// P9: what a batch is reckoned to need is never less than what it needs.
#[test]
fn p9_a_batch_is_as_large_as_reckoned() {
    let messages: Vec<_> = ["a", "b", "b"].map(|id| forward("t/u", Some(id), QoS::AtMostOnce)).into();
    let reckoned = messages.iter().map(forward_bytes).sum::<usize>();
    assert!(batch(1, &messages).len() <= BATCH_HEADER_BYTES + reckoned);
}

proptest! {
    /// P10: whatever comes, it is read or refused.
    #[test]
    fn p10_any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Some(first) = bytes.first_mut() {
            *first = FORMAT;
        }
        let _ = read_batch(&bytes);
        let _ = RouteCall::read(&bytes);
    }
}

/// WIRE.md §9: an answer names the shares that nobody took a message for; an empty one, and one that cannot be read, none.
#[test]
fn an_answer_names_what_was_not_taken() {
    let list: Unserved = vec![(0, "$share/g/a".into()), (70_000, "$share/h/#".into())];
    let answer = unserved(&list);
    assert_eq!(read_unserved(&answer), list);
    assert!(unserved(&Unserved::new()).is_empty());
    assert!(read_unserved(&[]).is_empty() && read_unserved(&[9, 9]).is_empty());
    assert_eq!(read_unserved(&answer.slice(..answer.len() - 1)), list[..1]);
}

/// WIRE.md §8: format 2 tells of entries that changed stored subscriptions, the last one of each group counts; format 1 has no word for it.
#[test]
fn stored_changes_keep_their_layout() {
    let stored = |index| RouteChange::Stored { group: GroupId(3), index };
    let encoded = delta(2, (1, 3), Millis(5), &[stored(7), stored(9)]);
    assert_eq!(
        hex(&encoded),
        "020100000000000000030000000000000001000000000000000502000300000000000000070200030000000000000009"
    );
    let read =
        |stored| RouteCall::Delta { base: 1, through: 3, until: Millis(5), changes: Vec::new(), stored };
    assert_eq!(RouteCall::read(&encoded), Ok(read(vec![(GroupId(3), 9)])));
    let old = delta(1, (1, 3), Millis(5), &[stored(7)]);
    assert_eq!(RouteCall::read(&old), Ok(read(Vec::new())));
    let mut wrong = encoded.to_vec();
    wrong[0] = 1;
    assert!(RouteCall::read(&wrong).is_err());
    wrong[0] = ROUTES_NEWEST + 1;
    assert!(RouteCall::read(&wrong).is_err());
}

/// WIRE.md §8: from format 3 on an answer carries the mark of the caller, unless that cannot be reached.
#[test]
fn answers_keep_their_layout() {
    for format in [1, 2] {
        assert_eq!(hex(&told(format, TELL_ALL, 9)), "02");
    }
    assert_eq!(hex(&told(3, DONE, 9)), "010000000000000009");
    assert_eq!(hex(&told(3, NOT_REACHED, 9)), "03");
    assert_eq!(read_told(&told(3, DONE, 9)), Ok((DONE, Some(9))));
    assert_eq!(read_told(&[TELL_ALL]), Ok((TELL_ALL, None)));
    let marked = told(3, TELL_ALL, u64::MAX);
    (2..marked.len()).for_each(|len| assert!(read_told(&marked[..len]).is_err(), "{len} bytes"));
    assert!(read_told(&[]).is_err() && read_told(&[&marked[..], &[0]].concat()).is_err());
}
