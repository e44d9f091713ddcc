//! Golden vectors of Service 107 (owner spec §4.5) and every rejection of §4.2 and §4.6, with the exact error.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use ownerrpc::quiesce::{
    DecodeError, EncodeError, FRAME_BYTES_LEGAL_MAX, FRAME_BYTES_MAX, Field, Request, Response, Status,
};
use proptest::prelude::*;
use session::id::{IdentityError, Key, Owner};

/// The request that the original published.
const GOLDEN: &str = "574b4d51010100016e000163000000000000000100000000000000020000000000000003000162\
                      0000000000000004";
const SECOND: &str = "574b4d51010100046d61696e0006636c69656e740000000000000001000000000000000100000000\
                      00000001002030303131323233333434353536363737383839396161626263636464656566660000\
                      000000000001";
const STATUSES: [(&str, Status); 5] = [
    (
        "574b4d71010100016e0001630000000000000001000000000000000200000000000000030001620000000000000004",
        Status::Quiesced,
    ),
    (
        "574b4d71010200016e0001630000000000000001000000000000000200000000000000030001620000000000000004",
        Status::Unproved,
    ),
    (
        "574b4d71010300016e0001630000000000000001000000000000000200000000000000030001620000000000000004",
        Status::Close,
    ),
    (
        "574b4d71010400016e0001630000000000000001000000000000000200000000000000030001620000000000000004",
        Status::Cancelled,
    ),
    (
        "574b4d71010500016e0001630000000000000001000000000000000200000000000000030001620000000000000004",
        Status::Deadline,
    ),
];
const LARGEST_SHA256: &str = "2356c7f5b66828229bc33ff066c25966cecf11d509127d252c6eea8e4e6b4889";

fn owner(namespace: &str, client_id: &str, numbers: [u64; 4], boot_id: &str) -> Owner {
    let [session_generation, owner_generation, node_id, connection_id] = numbers;
    Owner {
        key: Key { namespace: Arc::from(namespace), client_id: Arc::from(client_id) },
        session_generation,
        owner_generation,
        node_id,
        boot_id: Arc::from(boot_id),
        connection_id,
    }
}

fn golden_owner() -> Owner {
    owner("n", "c", [1, 2, 3, 4], "b")
}

fn largest_owner() -> Owner {
    owner(&"n".repeat(1_024), &"c".repeat(1_024), [u64::MAX; 4], &"b".repeat(128))
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Owner spec §4.5.
#[test]
fn requests_are_the_golden_bytes() {
    let second = owner("main", "client", [1, 1, 1, 1], "00112233445566778899aabbccddeeff");
    for (vector, owner) in [(GOLDEN, golden_owner()), (SECOND, second)] {
        let request = Request { owner };
        assert_eq!(hex(&request.encode().unwrap()), vector);
        assert_eq!(Request::decode(&bytes(vector)), Ok(request));
    }
    assert_eq!(bytes(GOLDEN).len(), 47);
}

/// Owner spec §4.5.
#[test]
fn all_five_statuses_are_the_golden_bytes() {
    for (vector, status) in STATUSES {
        let response = Response { status, owner: golden_owner() };
        assert_eq!(hex(&response.encode().unwrap()), vector);
        assert_eq!(Response::decode(&bytes(vector)), Ok(response));
    }
}

/// Owner spec §4.5: 2,220 bytes, and not one more.
#[test]
fn the_largest_request_has_2220_bytes() {
    let request = Request { owner: largest_owner() };
    let encoded = request.encode().unwrap();
    assert_eq!(encoded.len(), FRAME_BYTES_LEGAL_MAX);
    let digest = ring::digest::digest(&ring::digest::SHA256, &encoded);
    assert_eq!(hex(digest.as_ref()), LARGEST_SHA256);
    assert_eq!(Request::decode(&encoded), Ok(request));
    let response = Response { status: Status::Quiesced, owner: largest_owner() };
    assert_eq!(Response::decode(&response.encode().unwrap()), Ok(response));
}

/// Owner spec §4.6: every proper prefix.
#[test]
fn every_proper_prefix_of_a_golden_frame_is_refused() {
    let golden = bytes(GOLDEN);
    for len in 0..golden.len() {
        let expected = match len {
            0..6 => DecodeError::Short(len),
            6..9 => DecodeError::Truncated(Field::Namespace),
            9..12 => DecodeError::Truncated(Field::ClientId),
            12..20 => DecodeError::Truncated(Field::SessionGeneration),
            20..28 => DecodeError::Truncated(Field::OwnerGeneration),
            28..36 => DecodeError::Truncated(Field::NodeId),
            36..39 => DecodeError::Truncated(Field::BootId),
            _ => DecodeError::Truncated(Field::ConnectionId),
        };
        assert_eq!(Request::decode(&golden[..len]), Err(expected), "{len} bytes");
        let response = bytes(STATUSES[0].0);
        assert_eq!(Response::decode(&response[..len]), Err(expected), "{len} bytes");
    }
}

fn changed(at: usize, to: &[u8]) -> Vec<u8> {
    let mut frame = bytes(GOLDEN);
    frame[at..at + to.len()].copy_from_slice(to);
    frame
}

/// Owner spec §4.2 and §4.6, one line a rejection.
#[test]
fn malformed_requests_are_refused_with_their_reason() {
    let with = |hex: &str| bytes(&hex.replace(' ', ""));
    let cases: Vec<(Vec<u8>, DecodeError)> = vec![
        ([bytes(GOLDEN), vec![0]].concat(), DecodeError::Trailing(1)),
        (vec![0; 4_096], DecodeError::Long(4_096)),
        (b"{}".to_vec(), DecodeError::Short(2)),
        (vec![0; FRAME_BYTES_MAX + 1], DecodeError::Long(FRAME_BYTES_MAX + 1)),
        (vec![0; FRAME_BYTES_MAX], DecodeError::Magic([0; 4])),
        (changed(0, b"WKMq"), DecodeError::Magic(*b"WKMq")),
        (changed(4, &[2]), DecodeError::Format(2)),
        (changed(4, &[0]), DecodeError::Format(0)),
        (changed(5, &[2]), DecodeError::Operation(2)),
        (changed(5, &[0]), DecodeError::Operation(0)),
        (
            changed(6, &[0x04, 0x01]),
            DecodeError::Prefix { field: Field::Namespace, bytes: 1_025, limit: 1_024 },
        ),
        (
            changed(9, &[0xFF, 0xFF]),
            DecodeError::Prefix { field: Field::ClientId, bytes: 65_535, limit: 1_024 },
        ),
        (changed(36, &[0, 129]), DecodeError::Prefix { field: Field::BootId, bytes: 129, limit: 128 }),
        (changed(6, &[0x04, 0x00]), DecodeError::Truncated(Field::Namespace)),
        (changed(36, &[0, 128]), DecodeError::Truncated(Field::BootId)),
        (
            changed(12, &[0; 8]),
            DecodeError::Owner { field: Field::SessionGeneration, source: IdentityError::Zero },
        ),
        (
            changed(20, &[0; 8]),
            DecodeError::Owner { field: Field::OwnerGeneration, source: IdentityError::Zero },
        ),
        (changed(28, &[0; 8]), DecodeError::Owner { field: Field::NodeId, source: IdentityError::Zero }),
        (
            changed(39, &[0; 8]),
            DecodeError::Owner { field: Field::ConnectionId, source: IdentityError::Zero },
        ),
        (changed(8, b" "), DecodeError::Owner { field: Field::Namespace, source: IdentityError::Blank }),
        (changed(11, b"\0"), DecodeError::Owner { field: Field::ClientId, source: IdentityError::Nul }),
        (changed(38, &[0xFF]), DecodeError::Utf8(Field::BootId)),
        (
            with(
                "574b4d510101 0000 000163 0000000000000001 0000000000000002 0000000000000003 000162 0000000000000004",
            ),
            DecodeError::Owner { field: Field::Namespace, source: IdentityError::Empty },
        ),
        (
            with(
                "574b4d510101 00016e 0000 0000000000000001 0000000000000002 0000000000000003 000162 0000000000000004",
            ),
            DecodeError::Owner { field: Field::ClientId, source: IdentityError::Empty },
        ),
        (
            with(
                "574b4d510101 00016e 000163 0000000000000001 0000000000000002 0000000000000003 0000 0000000000000004",
            ),
            DecodeError::Owner { field: Field::BootId, source: IdentityError::Empty },
        ),
    ];
    for (frame, error) in cases {
        assert_eq!(Request::decode(&frame), Err(error), "{}", hex(&frame));
    }
}

/// Owner spec §4.2: a status outside 1 to 5, and a request in place of a response.
#[test]
fn malformed_responses_are_refused_with_their_reason() {
    for code in [0, 6, 255] {
        let mut frame = bytes(STATUSES[0].0);
        frame[5] = code;
        assert_eq!(Response::decode(&frame), Err(DecodeError::Status(code)));
    }
    assert_eq!(Response::decode(&bytes(GOLDEN)), Err(DecodeError::Magic(*b"WKMQ")));
    assert_eq!(Response::decode(&[]), Err(DecodeError::Short(0)));
    assert_eq!(Response::decode(&[1]), Err(DecodeError::Short(1)));
    assert_eq!(Response::decode(&[bytes(STATUSES[4].0), vec![9, 9]].concat()), Err(DecodeError::Trailing(2)));
}

/// Owner spec §4.2: what is not valid is not sent either.
#[test]
fn an_invalid_owner_is_not_encoded() {
    type Case = (fn(&mut Owner), Field, IdentityError);
    let cases: [Case; 7] = [
        (|owner| owner.key.namespace = Arc::from(""), Field::Namespace, IdentityError::Empty),
        (|owner| owner.key.client_id = Arc::from(" \t"), Field::ClientId, IdentityError::Blank),
        (|owner| owner.session_generation = 0, Field::SessionGeneration, IdentityError::Zero),
        (|owner| owner.owner_generation = 0, Field::OwnerGeneration, IdentityError::Zero),
        (|owner| owner.node_id = 0, Field::NodeId, IdentityError::Zero),
        (
            |owner| owner.boot_id = "b".repeat(129).into(),
            Field::BootId,
            IdentityError::TooLong { len: 129, limit: 128 },
        ),
        (|owner| owner.connection_id = 0, Field::ConnectionId, IdentityError::Zero),
    ];
    for (change, field, source) in cases {
        let mut owner = golden_owner();
        change(&mut owner);
        let error = EncodeError { field, source };
        assert_eq!(Request { owner: owner.clone() }.encode(), Err(error));
        assert_eq!(Response { status: Status::Quiesced, owner }.encode(), Err(error));
    }
}

fn identities(limit: usize) -> impl Strategy<Value = String> {
    "[^\u{0}]{1,40}"
        .prop_filter("an identity", move |value| session::id::check_identity(value, limit).is_ok())
}

fn owners() -> impl Strategy<Value = Owner> {
    let number = || 1..=u64::MAX;
    (identities(1_024), identities(1_024), [number(), number(), number(), number()], identities(128))
        .prop_map(|(namespace, client_id, numbers, boot_id)| owner(&namespace, &client_id, numbers, &boot_id))
}

proptest! {
    /// hex ↔ value ↔ hex for any owner; no truncation and no trailing byte is taken.
    #[test]
    fn frames_round_trip_and_nothing_shorter_or_longer_is_taken(
        owner in owners(), code in 1..=5_u8, tail in prop::collection::vec(any::<u8>(), 1..8)
    ) {
        let request = Request { owner: owner.clone() };
        let encoded = request.encode().unwrap();
        prop_assert_eq!(Request::decode(&encoded), Ok(request));
        let response = Response { status: Status::from_code(code).unwrap(), owner };
        let answer = response.encode().unwrap();
        prop_assert_eq!(Response::decode(&answer), Ok(response));
        for len in 0..encoded.len() {
            prop_assert!(Request::decode(&encoded[..len]).is_err());
            prop_assert!(Response::decode(&answer[..len]).is_err());
        }
        let longer = [&encoded[..], &tail].concat();
        prop_assert_eq!(Request::decode(&longer), Err(DecodeError::Trailing(tail.len())));
    }

    /// Whatever is taken is written back to the same bytes.
    #[test]
    fn mutated_frames_are_refused_or_mean_what_they_say(
        at in 0..47_usize, to in any::<u8>(), second in 0..47_usize, other in any::<u8>()
    ) {
        let mut frame = bytes(GOLDEN);
        frame[at] = to;
        frame[second] = other;
        if let Ok(request) = Request::decode(&frame) {
            prop_assert_eq!(&request.encode().unwrap()[..], &frame[..]);
        }
    }
}
