//! Any bytes, cut into packets and decoded in both versions and directions: never a panic, and what is understood is written and
//! read again to the same bytes.
#![no_main]

use gateway::codec::{self, From, Packet, Version};
use libfuzzer_sys::fuzz_target;

const SIZE_MAX: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(frame)) = codec::first_frame(bytes, SIZE_MAX) {
        let _ = codec::read_connect(frame);
        let _ = codec::refusal_version(frame.body);
    }
    for version in [Version::V311, Version::V5] {
        for from in [From::Client, From::Server] {
            stream(version, from, bytes);
        }
    }
});

fn stream(version: Version, from: From, mut bytes: &[u8]) {
    while let Ok(Some(frame)) = codec::frame(version, bytes, SIZE_MAX) {
        let Ok(packet) = codec::read(version, from, frame) else { return };
        round_trip(version, from, &packet);
        bytes = &bytes[frame.len..];
    }
}

fn round_trip(version: Version, from: From, packet: &Packet<'_>) {
    let version = if let Packet::Connect(connect) = packet { connect.version } else { version };
    let mut once = Vec::new();
    codec::write(version, packet, &mut once).expect("what was understood can be written");
    let frame = codec::frame(version, &once, SIZE_MAX).expect("legal").expect("complete");
    let again = codec::read(version, from, frame).expect("legal");
    let mut twice = Vec::new();
    codec::write(version, &again, &mut twice).expect("legal");
    assert_eq!(once, twice);
}
