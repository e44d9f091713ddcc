//! What a client meets on a plain socket: the connection machine and the driver together.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod driver_support;

use std::io::Write;

use driver_support::*;
use gateway::codec::Version;
use gateway::service::Ended;

/// Any byte split: one byte at a time, and each split in two, gives the same answers.
#[test]
fn any_byte_split_gives_the_same_answers() {
    let bench = Bench::new();
    let connect = connect(Version::V5, "split", |_| ());
    let stream = [&connect[..], &publish("t", 3, b"hello"), SUBSCRIBE, PINGREQ, DISCONNECT].concat();
    let answers = |client: &mut Client<_>| {
        client.expect_connack();
        client.expect(&[0x40, 2, 0, 3]);
        let suback = client.packet().unwrap();
        assert_eq!(suback[..4], [0x90, suback[1], 0, 9]);
        client.expect(PINGRESP);
        client.expect_end();
    };
    let mut client = bench.client();
    for byte in &stream {
        client.send(std::slice::from_ref(byte));
    }
    answers(&mut client);
    for at in 1..stream.len() {
        let mut client = bench.client();
        client.send(&stream[..at]);
        client.send(&stream[at..]);
        answers(&mut client);
    }
}

/// [MQTT-3.1.4-5]: packets may follow CONNECT at once; they wait for its outcome.
#[test]
fn packets_behind_connect_wait_for_connack() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&[&connect(Version::V5, "slow", |_| ())[..], SUBSCRIBE, PINGREQ].concat());
    eventually("CONNECT is worked on", || {
        bench.log.connecting.load(std::sync::atomic::Ordering::SeqCst) == 1
    });
    bench.on_worker(|toy| toy.released.set(true));
    client.expect_connack();
    assert_eq!(client.packet().unwrap()[0], 0x90);
    client.expect(PINGRESP);
}

/// Appendix C of the owner specification: a CONNECT that was begun is finished and reported, also when the peer left.
#[test]
fn connect_runs_to_its_end_when_the_peer_leaves() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "slow", |_| ()));
    eventually("CONNECT is worked on", || {
        bench.log.connecting.load(std::sync::atomic::Ordering::SeqCst) == 1
    });
    drop(client);
    bench.on_worker(|toy| toy.released.set(true));
    assert!(matches!(bench.wait_closed("slow").ended, Ended::Abnormal { .. }));
    assert_eq!(bench.log.closed.lock().unwrap().len(), 1);
}

/// [MQTT-3.1.0-1]: the first packet is CONNECT, else the socket is closed without an answer.
#[test]
fn first_packet_must_be_connect() {
    let bench = Bench::new();
    for bytes in [PINGREQ, SUBSCRIBE, b"GET / HTTP/1.1\r\n\r\n", &[0xF0, 0]] {
        let mut client = bench.client();
        client.send(bytes);
        client.expect_end();
    }
}

/// [MQTT-3.1.0-2]: a second CONNECT is a protocol error; 3.1.1 is closed without a word.
#[test]
fn second_connect_is_a_protocol_error() {
    let bench = Bench::new();
    let mut client = bench.connected("twice");
    client.send(&connect(Version::V5, "twice", |_| ()));
    client.expect_disconnect(0x82);
    let mut client = bench.client();
    let connect = connect(Version::V311, "old", |_| ());
    client.send(&connect);
    client.expect(&[0x20, 2, 0, 0]);
    client.send(&connect);
    client.expect_end();
}

/// Scenario 96: packets that only a server sends end the connection, and nobody dies.
#[test]
fn server_packets_from_a_client_end_the_connection() {
    let bench = Bench::new();
    let packets: [&[u8]; 5] =
        [&[0x20, 3, 0, 0, 0], &[0x90, 4, 0, 1, 0, 0], &[0xB0, 4, 0, 1, 0, 0], PINGRESP, &[0x29, 2, 0, 1]];
    for packet in packets {
        let mut client = bench.connected("server-like");
        client.send(packet);
        let answer = client.packet().expect("DISCONNECT");
        assert!(answer[0] == 0xE0 && matches!(answer[2], 0x81 | 0x82), "{answer:?}");
        client.expect_end();
    }
    let mut client = bench.client();
    client.send(b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x03\x21\x00\x14\x00\x00\x29\x02\x00\x01\xe0\x00");
    client.expect_connack();
    assert_eq!(client.packet().unwrap()[0], 0xE0);
    client.expect_end();
}

/// [MQTT-3.1.2-2], §3.1.2.2 and owner specification §7.2: refusals in the version of the client.
#[test]
fn refusals_speak_the_version_of_the_client() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "refuse", |_| ()));
    let connack = client.packet().unwrap();
    assert_eq!((connack[0], connack[3]), (0x20, 0x86));
    assert!(connack.ends_with(b"wrong password"), "asked for problem information");
    client.expect_end();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "refuse", |connect| connect.request_problem_information = false));
    client.expect(&[0x20, 3, 0, 0x86, 0]);
    client.expect_end();
    let mut client = bench.client();
    client.send(&connect(Version::V311, "refuse", |_| ()));
    client.expect(&[0x20, 2, 0, 4]);
    client.expect_end();
    let mut client = bench.client();
    client.send(b"\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x00");
    client.expect(&[0x20, 2, 0, 1]);
    client.expect_end();
    let mut client = bench.client();
    client.send(b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x3c\x00\x00\x00");
    client.expect(&[0x20, 3, 0, 0x84, 0]);
    client.expect_end();
}

/// Scenario 92: a huge first packet is refused by its length, before its bytes are buffered.
#[test]
fn oversize_before_connect_is_closed_at_once() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&[0x10, 0xFF, 0xFF, 0xFF, 0x7F]);
    client.expect_end();
}

/// [MQTT-3.2.2-15]: a packet above the server's maximum ends the connection with 0x95; one just below passes, however it is cut.
#[test]
fn packet_size_in_is_bounded_when_connected() {
    let bench = Bench::new();
    let mut client = bench.connected("big");
    let payload = vec![7; 1024 * 1024 - 20];
    for part in publish("big", 5, &payload).chunks(50_001) {
        client.send(part);
    }
    client.expect(&[0x40, 2, 0, 5]);
    assert_eq!(bench.published()[0].1, payload);
    client.send(&[0x32, 0x80, 0x80, 0x80, 1]);
    client.expect_disconnect(0x95);
}

/// [MQTT-3.3.2-8] and §3.3.2.3.4: aliases resolve to their topic; unknown and too large ones are 0x94.
#[test]
fn topic_aliases_in() {
    let bench = Bench::new();
    let mut client = bench.connected("alias");
    client.send(&[publish_alias("long/topic", 4), publish_alias("", 4), publish_alias("other", 4)].concat());
    client.send(&[&publish_alias("", 4)[..], PINGREQ].concat());
    client.expect(PINGRESP);
    let topics: Vec<String> = bench.published().into_iter().map(|(topic, _)| topic).collect();
    assert_eq!(topics, ["long/topic", "long/topic", "other", "other"]);
    client.send(&publish_alias("", 3));
    client.expect_disconnect(0x94);
    let mut client = bench.connected("alias");
    client.send(&publish_alias("long/topic", 5));
    client.expect_disconnect(0x94);
    let mut client = bench.connected("alias");
    client.send(&publish_alias("", 4));
    client.expect_disconnect(0x94);
}

/// [MQTT-3.1.2-22]: closed after one and a half times the keep alive without a packet, not before; v5 hears 0x8D.
#[test]
fn keep_alive_is_one_and_a_half_times() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "keep", |connect| connect.keep_alive_sec = 100));
    client.expect_connack();
    bench.advance_ms(140_000);
    client.send(PINGREQ);
    client.expect(PINGRESP);
    bench.advance_ms(140_000);
    assert!(bench.log.closed.lock().unwrap().is_empty());
    bench.advance_ms(11_000);
    client.expect_disconnect(0x8D);
    assert!(matches!(bench.wait_closed("keep").ended, Ended::Abnormal { .. }));
}

/// §3.1.2.10: a keep alive of 0 turns the mechanism off.
#[test]
fn keep_alive_zero_never_ends() {
    let bench = Bench::new();
    let mut client = bench.connected("for-ever");
    bench.advance_ms(1_000_000_000);
    client.send(PINGREQ);
    client.expect(PINGRESP);
}

/// P9: a client that the service does not read cannot show that it lives; it is not closed for that.
#[test]
fn keep_alive_rests_while_the_service_pauses_reading() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "paused", |connect| connect.keep_alive_sec = 10));
    client.expect_connack();
    bench.on_worker(|toy| toy.paused.borrow_mut().push("paused".into()));
    client.send(PINGREQ);
    client.send(&publish("p", 1, b""));
    bench.advance_ms(16_000);
    bench.on_worker(|toy| {
        toy.paused.borrow_mut().clear();
        toy.links.borrow()["paused"].wake();
    });
    client.expect(PINGRESP);
    client.expect(&[0x40, 2, 0, 1]);
}

/// Issue 5 §3, P9: packets that were read and are held back stay in order, and the service, which is to wake their connection, is asked
/// whether it may go on.
#[test]
fn packets_that_are_held_back_wait_for_the_service() {
    let bench = Bench::new();
    let mut client = bench.connected("fast");
    let batch =
        [publish("a", 1, b""), publish("enough", 2, b""), publish("b", 3, b""), PINGREQ.to_vec()].concat();
    client.send(&batch);
    client.expect(&[0x40, 2, 0, 1]);
    client.expect(&[0x40, 2, 0, 2]);
    eventually("the service is asked", || bench.log.not_read.load(std::sync::atomic::Ordering::SeqCst) > 0);
    assert_eq!(bench.published().len(), 2);
    bench.on_worker(|toy| {
        toy.paused.borrow_mut().clear();
        toy.links.borrow()["fast"].wake();
    });
    client.expect(&[0x40, 2, 0, 3]);
    client.expect(PINGRESP);
}

/// P9: a socket without a complete CONNECT is closed in bounded time, also when it drips bytes.
#[test]
fn connect_timeout_closes_half_a_connect() {
    let bench = Bench::new();
    let mut silent = bench.client();
    let mut dripping = bench.client();
    let connect = connect(Version::V5, "drip", |_| ());
    dripping.send(&connect[..5]);
    eventually("both are accepted", || bench.gateway().connections() == [2]);
    // The second deadline is set when the socket reaches its worker.
    bench.on_worker(|_| ());
    bench.advance_ms(11_000);
    silent.expect_end();
    dripping.expect_end();
    eventually("both are gone", || bench.gateway().connections() == [0]);
}

/// §3.14.2.2.2: an expiry of 0 in CONNECT cannot be raised in DISCONNECT (0x82), and the end is abnormal.
#[test]
fn expiry_zero_cannot_be_raised_by_disconnect() {
    let bench = Bench::new();
    let raise = [0xE0, 7, 0, 5, 0x11, 0, 0, 0, 9];
    let mut client = bench.connected("raise");
    client.send(&raise);
    client.expect_disconnect(0x82);
    assert!(matches!(bench.wait_closed("raise").ended, Ended::Abnormal { .. }));
    let mut client = bench.client();
    client.send(&connect(Version::V5, "keep", |connect| connect.session_expiry_sec = 5));
    client.expect_connack();
    client.send(&raise);
    client.expect_end();
    assert!(matches!(bench.wait_closed("keep").ended, Ended::Normal { session_expiry_sec: Some(9), .. }));
}

/// Scenario 42, [MQTT-3.14.4-3]: `E0 00` and `E0 01 00` are normal, `E0 01 04` and a bare EOF are not.
#[test]
fn only_disconnect_zero_is_normal() {
    let bench = Bench::new();
    for (client_id, bytes, normal) in
        [("a", DISCONNECT, true), ("b", &[0xE0, 1, 0], true), ("c", &[0xE0, 1, 4], false), ("d", &[], false)]
    {
        let mut client = bench.connected(client_id);
        client.send(bytes);
        drop(client);
        assert_eq!(matches!(bench.wait_closed(client_id).ended, Ended::Normal { .. }), normal, "{client_id}");
    }
}

/// §4.12: the exchange runs before CONNECT is decided, its data comes back, and it can be repeated later.
#[test]
fn enhanced_authentication_before_and_after_connack() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "auth", |connect| connect.authentication_method = Some("TOY")));
    let challenge = client.packet().unwrap();
    assert_eq!((challenge[0], challenge[2]), (0xF0, 0x18));
    assert!(challenge.ends_with(b"challenge"));
    let answer = |reason: u8| [&[0xF0, 8, reason, 6, 0x15, 0, 3][..], b"TOY"].concat();
    client.send(&answer(0x18));
    let connack = client.packet().unwrap();
    assert_eq!((connack[0], connack[3]), (0x20, 0));
    assert!(connack.windows(5).any(|window| window == b"proof"));
    client.send(&answer(0x19));
    assert_eq!(client.packet().unwrap()[2], 0x18);
    client.send(&[answer(0x18), PINGREQ.to_vec()].concat());
    assert_eq!(client.packet().unwrap()[..1], [0xF0]);
    client.expect(PINGRESP);
    // [MQTT-4.12.0-7]: not without an exchange under way.
    client.send(&answer(0x18));
    client.expect_disconnect(0x82);
}

/// [MQTT-4.12.0-5], -6, [MQTT-4.12.1-2]: the method of the CONNECT is that of every AUTH, without one there is no AUTH, and a
/// re-authentication that fails closes.
#[test]
fn the_authentication_method_stays() {
    let bench = Bench::new();
    let auth = |reason: u8, method: &[u8], data: &[u8]| {
        let mut properties = [&[0x15, 0, 3][..], method].concat();
        if !data.is_empty() {
            properties.extend([&[0x16, 0, data.len() as u8][..], data].concat());
        }
        let len = properties.len() as u8;
        [&[0xF0, len + 2, reason, len][..], &properties].concat()
    };
    let authenticated = |id: &str| {
        let mut client = bench.client();
        client.send(&connect(Version::V5, id, |connect| connect.authentication_method = Some("TOY")));
        assert_eq!(client.packet().unwrap()[0], 0xF0);
        client.send(&auth(0x18, b"TOY", b""));
        assert_eq!(client.packet().unwrap()[0], 0x20);
        client
    };
    let mut client = authenticated("other method");
    client.send(&auth(0x19, b"TOX", b""));
    client.expect_disconnect(0x82);
    let mut client = authenticated("wrong");
    client.send(&auth(0x19, b"TOY", b"wrong"));
    client.expect_disconnect(0x87);
    let mut client = bench.client();
    client.send(&connect(Version::V5, "none", |_| ()));
    let connack = client.packet().unwrap();
    assert!(!connack.windows(3).any(|window| window == [0x15, 0, 3]), "no method in CONNACK: {connack:02x?}");
    client.send(&auth(0x19, b"TOY", b""));
    client.expect_disconnect(0x82);
}

/// [MQTT-4.12.0-1]: a method that the server does not know is refused with 0x8C.
#[test]
fn unknown_authentication_method_is_refused() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "auth", |connect| connect.authentication_method = Some("NOPE")));
    assert_eq!(client.packet().unwrap()[3], 0x8C);
    client.expect_end();
}

/// [MQTT-3.1.2-24]: no packet to a client is larger than it allows; what is owed and does not fit ends the connection.
#[test]
fn maximum_packet_size_of_the_client_is_respected() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "tiny", |connect| connect.maximum_packet_size = 20));
    client.expect_connack();
    // The reason string is left out first.
    client.send(SUBSCRIBE);
    client.expect(&[0x90, 4, 0, 9, 0, 0]);
    let mut client = bench.client();
    client.send(&connect(Version::V5, "smallest", |connect| connect.maximum_packet_size = 3));
    client.expect_end();
}

/// [MQTT-3.1.2-29]: no reason string for a client that asked for no problem information.
#[test]
fn reason_strings_only_if_asked_for() {
    let bench = Bench::new();
    let mut client = bench.connected("verbose");
    client.send(SUBSCRIBE);
    assert!(client.packet().unwrap().windows(7).any(|window| window == b"granted"));
    let mut client = bench.client();
    client.send(&connect(Version::V5, "terse", |connect| connect.request_problem_information = false));
    client.expect_connack();
    client.send(SUBSCRIBE);
    client.expect(&[0x90, 4, 0, 9, 0, 0]);
}

/// P9: a client that sends and never reads is not read any more, and costs a bounded output.
#[test]
fn a_client_that_never_reads_answers_is_not_read_for_ever() {
    let bench = Bench::new();
    let client = bench.connected("writer");
    client.stream.set_nonblocking(true).unwrap();
    let pings = PINGREQ.repeat(32 * 1024);
    let mut stream = &client.stream;
    let mut stuck_since = std::time::Instant::now();
    let mut sent = 0;
    while stuck_since.elapsed() < std::time::Duration::from_secs(1) {
        match stream.write(&pings) {
            Ok(n) => {
                sent += n;
                stuck_since = std::time::Instant::now();
            }
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
        assert!(sent < 1 << 30, "1 GiB of unread answers was taken");
    }
    let mut other = bench.connected("other");
    other.send(PINGREQ);
    other.expect(PINGRESP);
}
