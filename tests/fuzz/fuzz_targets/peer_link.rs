//! Any bytes as what a peer may send: frames, a hello, and Service 107 in both directions. Never a panic, and what is understood is
//! written to the same bytes.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use ownerrpc::link::hello::Hello;
use ownerrpc::link::{Limits, frame};
use ownerrpc::quiesce::{Request, Response};

fuzz_target!(|bytes: &[u8]| {
    frames(bytes);
    if let Ok(hello) = Hello::decode(bytes) {
        // What later versions append is not kept.
        assert!(bytes.starts_with(&hello.encode()));
    }
    if let Ok(request) = Request::decode(bytes) {
        assert_eq!(request.encode().expect("what was understood can be written"), bytes);
    }
    if let Ok(response) = Response::decode(bytes) {
        assert_eq!(response.encode().expect("what was understood can be written"), bytes);
    }
});

fn frames(bytes: &[u8]) {
    let limits = Limits::default();
    let mut buffer = BytesMut::from(bytes);
    let mut written = Vec::new();
    while let Ok(Some(found)) = frame::decode(&mut buffer, &limits) {
        written.extend_from_slice(&frame::header(found.service, found.request_id, found.payload.len()));
        written.extend_from_slice(&found.payload);
    }
    assert!(bytes.starts_with(&written));
}
