//! What a packet costs: decode and encode of the hot ones, beside `mqttbytes`. PUBLISH of QoS 1 with a topic of 28 bytes and a payload of
//! 64 bytes.

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{Criterion, criterion_group, criterion_main};
use gateway::codec::{self, AckType, Delivery, From, PublishTemplate, ReasonCode, Version};
use mqttbytes::{v4, v5};
use session::message::{Message, QoS};

const TOPIC: &str = "sensors/building-7/room-0042";
const PAYLOAD: [u8; 64] = [0x55; 64];
const SIZE_MAX: usize = 1 << 20;
/// Payload Format Indicator, Content Type and one User Property.
const PROPERTIES: &[u8] = b"\x01\x01\x03\x00\x04json\x26\x00\x04unit\x00\x01C";

fn packet(version: Version, properties: &[u8]) -> Vec<u8> {
    let message = Message::new(TOPIC, properties, &PAYLOAD);
    let delivery = Delivery { packet_id: 7, ..Delivery::of(&message, QoS::AtLeastOnce, false) };
    let mut out = Vec::new();
    delivery.write(version, SIZE_MAX, &mut out).expect("a legal packet");
    out
}

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    let cases = [
        ("publish_v3", Version::V311, packet(Version::V311, &[])),
        ("publish_v5", Version::V5, packet(Version::V5, &[])),
        ("publish_v5_properties", Version::V5, packet(Version::V5, PROPERTIES)),
    ];
    for (name, version, bytes) in &cases {
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                let frame =
                    codec::frame(*version, black_box(bytes), SIZE_MAX).expect("legal").expect("complete");
                codec::read_publish(*version, From::Client, frame).expect("legal")
            });
        });
        group.bench_function(format!("{name}_as_packet"), |bencher| {
            bencher.iter(|| {
                let frame =
                    codec::frame(*version, black_box(bytes), SIZE_MAX).expect("legal").expect("complete");
                codec::read(*version, From::Client, frame).expect("legal")
            });
        });
        group.bench_function(format!("{name}_mqttbytes"), |bencher| {
            bencher.iter_batched_ref(
                || BytesMut::from(&bytes[..]),
                |stream| match version {
                    Version::V311 => drop(black_box(v4::read(stream, SIZE_MAX))),
                    Version::V5 => drop(black_box(v5::read(stream, SIZE_MAX))),
                },
                criterion::BatchSize::SmallInput,
            );
        });
    }
    group.bench_function("puback_v5", |bencher| {
        bencher.iter(|| {
            let frame = codec::frame(Version::V5, black_box(b"\x40\x02\x00\x07"), SIZE_MAX);
            let frame = frame.expect("legal").expect("complete");
            codec::read(Version::V5, From::Client, frame).expect("legal")
        });
    });
    group.bench_function("puback_v5_mqttbytes", |bencher| {
        bencher.iter_batched_ref(
            || BytesMut::from(&b"\x40\x02\x00\x07"[..]),
            |stream| drop(black_box(v5::read(stream, SIZE_MAX))),
            criterion::BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    let message = Message::new(TOPIC, &[], &PAYLOAD);
    let mut out = Vec::with_capacity(4_096);
    for (name, version) in [("publish_v3", Version::V311), ("publish_v5", Version::V5)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                out.clear();
                let message = black_box(&message);
                let delivery = Delivery { packet_id: 7, ..Delivery::of(message, QoS::AtLeastOnce, false) };
                delivery.write(version, SIZE_MAX, &mut out).expect("fits");
                black_box(out.len())
            });
        });
        let template =
            PublishTemplate::new(version, &message, QoS::AtLeastOnce, false, &[], None).expect("fits");
        group.bench_function(format!("{name}_template_append"), |bencher| {
            bencher.iter(|| {
                out.clear();
                black_box(&template).append(black_box(7), false, &mut out);
                black_box(out.len())
            });
        });
    }
    let mut theirs = BytesMut::with_capacity(4_096);
    let mut publish = v4::Publish::new(TOPIC, mqttbytes::QoS::AtLeastOnce, PAYLOAD.to_vec());
    publish.pkid = 7;
    group.bench_function("publish_v3_mqttbytes", |bencher| {
        bencher.iter(|| {
            theirs.clear();
            black_box(&publish).write(&mut theirs).expect("theirs")
        });
    });
    let mut publish = v5::Publish::new(TOPIC, mqttbytes::QoS::AtLeastOnce, PAYLOAD.to_vec());
    publish.pkid = 7;
    group.bench_function("publish_v5_mqttbytes", |bencher| {
        bencher.iter(|| {
            theirs.clear();
            black_box(&publish).write(&mut theirs).expect("theirs")
        });
    });
    group.bench_function("puback_v5", |bencher| {
        bencher.iter(|| {
            out.clear();
            let id = black_box(7);
            codec::write_ack_short(Version::V5, AckType::PubAck, id, ReasonCode::Success, &mut out)
                .expect("legal");
            black_box(out.len())
        });
    });
    group.finish();
}

criterion_group!(benches, decode, encode);
criterion_main!(benches);
