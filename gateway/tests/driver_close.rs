//! Owner specification §11 and P9 over real sockets: the physical close, its notice, and the bounded outbox.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod driver_support;

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use driver_support::*;
use gateway::codec::{ReasonCode, Version};
use gateway::link::CloseRequest;
use gateway::service::Ended;
use session::message::QoS;

const TAKEN_OVER: CloseRequest = CloseRequest { notice: Some(ReasonCode::SessionTakenOver), reset: true };

/// Fills the outbox of a client that does not read; how many packets of 1 KiB were taken.
fn fill_outbox(bench: &Bench, client_id: &'static str) -> usize {
    let packet = template("full", &[0; 1024], QoS::AtMostOnce);
    let mut taken = 0;
    loop {
        let packet = packet.clone();
        let pushed = bench.on_worker(move |toy| {
            let link = toy.links.borrow()[client_id].clone();
            (0..100).take_while(|_| link.push_bytes(&packet)).count()
        });
        taken += pushed;
        assert!(taken < 1 << 20, "1 GiB for a client that does not read");
        if pushed == 0 {
            // Full once may mean that the task did not have its turn yet.
            std::thread::sleep(Duration::from_millis(20));
            let packet = template("full", &[0; 1024], QoS::AtMostOnce);
            if bench.on_worker(move |toy| !toy.links.borrow()[client_id].push_bytes(&packet)) {
                return taken;
            }
            taken += 1;
        }
    }
}

/// §11: `closed` is reported only after the peer's end shows the close; scenario 14: a v5 client sees 0x8E just before it.
#[test]
fn closed_follows_the_physical_close_and_the_notice_precedes_it() {
    let bench = Bench::new();
    for request in [TAKEN_OVER, CloseRequest { reset: false, ..TAKEN_OVER }] {
        let client = bench.connected("proof");
        bench.witness("proof", &client);
        bench.request_close("proof", request);
        let closed = bench.wait_closed("proof");
        let witnessed = closed.witnessed.unwrap();
        assert_eq!(witnessed.end, None, "the socket was closed in order: {witnessed:?}");
        assert!(matches!(witnessed.bytes.len(), 3 | 4), "DISCONNECT: {witnessed:?}");
        bench.log.closed.lock().unwrap().clear();
        let mut client = bench.connected("told");
        bench.request_close("told", request);
        client.expect_disconnect(0x8E);
    }
}

/// [MQTT-3.14.0-1] of 3.1.1: a 3.1.1 client is closed without a packet.
#[test]
fn v311_is_closed_without_a_notice() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V311, "old", |_| ()));
    client.expect(&[0x20, 2, 0, 0]);
    bench.request_close("old", TAKEN_OVER);
    client.expect_end();
}

/// Unread bytes of the client do not turn the close into a reset that swallows the notice.
#[test]
fn unread_input_does_not_destroy_the_notice() {
    let bench = Bench::new();
    let mut client = bench.connected("chatty");
    bench.on_worker(|toy| toy.paused.borrow_mut().push("chatty".into()));
    client.send(&publish("unread", 1, &[0; 10_000]));
    bench.request_close("chatty", TAKEN_OVER);
    client.expect_disconnect(0x8E);
    assert!(bench.published().is_empty());
}

/// Scenario 6, §11: a peer that never reads does not delay the close; it is reset, and what it did not take is gone.
#[test]
fn a_peer_that_does_not_read_is_reset_at_once() {
    let bench = Bench::new();
    let mut client = bench.connected("deaf");
    bench.witness("deaf", &client);
    fill_outbox(&bench, "deaf");
    bench.request_close("deaf", TAKEN_OVER);
    let closed = bench.wait_closed("deaf");
    assert_ne!(closed.witnessed.unwrap().end, Some(std::io::ErrorKind::WouldBlock));
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(&[0x8E]) && !rest.ends_with(&[0x8E, 0]), "no notice behind unread packets");
}

/// Scenario 89, P9: the outbox is bounded, others are unharmed, and it flows again when the client reads.
#[test]
fn outbox_is_bounded_and_flows_again() {
    let bench = Bench::new();
    let mut slow = bench.connected("reader");
    let taken = fill_outbox(&bench, "reader");
    let pending = bench.on_worker(|toy| toy.links.borrow()["reader"].pending());
    assert!(pending <= limits().outbox_bytes_max);
    let mut other = bench.connected("other");
    other.send(PINGREQ);
    other.expect(PINGRESP);
    for _ in 0..taken {
        assert_eq!(slow.packet().unwrap()[0], 0x30);
    }
    eventually("the service hears that there is room", || bench.log.drained.load(Ordering::SeqCst) > 0);
}

/// [MQTT-3.3.4-7], [MQTT-4.6.0-6]: exchanges beyond the client's window wait in order, QoS 0 passes.
#[test]
fn held_exchanges_keep_their_order_and_qos_0_passes() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "window", |connect| connect.receive_maximum = 1));
    client.expect_connack();
    bench.on_worker(|toy| {
        let link = toy.links.borrow()["window"].clone();
        assert!(link.push_exchange(&template("q1/a", b"", QoS::AtLeastOnce), false));
        assert!(link.push_exchange(&template("q1/b", b"", QoS::AtLeastOnce), false));
        assert!(link.push_bytes(&template("q0/c", b"", QoS::AtMostOnce)));
        assert!(link.push_message(delivery("q1/d", QoS::AtLeastOnce)));
        assert!(link.push_message(delivery("q0/e", QoS::AtMostOnce)));
    });
    let topics = |client: &mut Client<_>, n: usize| -> Vec<String> {
        (0..n).map(|_| String::from_utf8(client.packet().unwrap()[4..8].to_vec()).unwrap()).collect()
    };
    assert_eq!(topics(&mut client, 3), ["q1/a", "q0/c", "q0/e"]);
    client.send(&[0x40, 2, 0, 1]);
    assert_eq!(topics(&mut client, 1), ["q1/b"]);
    client.send(&[0x40, 2, 0, 2]);
    let last = client.packet().unwrap();
    assert_eq!((&last[4..8], &last[8..10]), (&b"q1/d"[..], &[0, 3][..]));
}

/// [MQTT-3.1.2-25], [MQTT-3.1.2-26]: an oversized PUBLISH is dropped for that client; aliases out stay within its maximum.
#[test]
fn deliveries_respect_packet_size_and_use_aliases() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "shape", |connect| {
        connect.maximum_packet_size = 60;
        connect.topic_alias_maximum = 1;
    }));
    client.expect_connack();
    bench.on_worker(|toy| {
        let link = toy.links.borrow()["shape"].clone();
        assert!(link.shape().wants_messages);
        assert!(link.push_bytes(&template("big", &[0; 100], QoS::AtMostOnce)), "counts as delivered");
        assert!(link.push_message(delivery("topic/one", QoS::AtMostOnce)));
        assert!(link.push_message(delivery("topic/one", QoS::AtMostOnce)));
    });
    client.expect(b"\x30\x10\x00\x09topic/one\x03\x23\x00\x01m");
    client.expect(b"\x30\x07\x00\x00\x03\x23\x00\x01m");
}

/// §7.8: a DISCONNECT that was sent before the connection was taken away counts, although nobody had read it.
#[test]
fn disconnect_in_unread_bytes_is_still_normal() {
    let bench = Bench::new();
    let mut client = bench.connected("race");
    bench.on_worker(|toy| toy.paused.borrow_mut().push("race".into()));
    client.send(&[&publish("unread", 1, b"")[..], DISCONNECT].concat());
    drop(client);
    bench.request_close("race", TAKEN_OVER);
    assert!(matches!(bench.wait_closed("race").ended, Ended::Normal { .. }));
    assert!(bench.published().is_empty());
}

/// §7.8: handling DISCONNECT needs no scope: the end stays normal when the owner is fenced.
#[test]
fn disconnect_behind_a_fenced_batch_is_still_normal() {
    let bench = Bench::new();
    let mut client = bench.connected("fenced");
    client.send(&[&publish("refused", 1, b"")[..], DISCONNECT].concat());
    assert!(matches!(bench.wait_closed("fenced").ended, Ended::Normal { .. }));
    assert!(bench.published().is_empty());
}

/// P10: a panic inside the service closes that socket, reports it, and harms nobody else.
#[test]
fn a_panic_in_the_service_closes_and_reports() {
    let bench = Bench::new();
    let mut other = bench.connected("other");
    let mut client = bench.connected("victim");
    bench.witness("victim", &client);
    client.send(&publish("panic", 1, b""));
    let closed = bench.wait_closed("victim");
    assert_ne!(closed.witnessed.unwrap().end, Some(std::io::ErrorKind::WouldBlock));
    other.send(PINGREQ);
    other.expect(PINGRESP);
}

/// A close that is asked for while CONNECT is decided waits for the decision and sends no CONNACK.
#[test]
fn close_during_connect_waits_for_its_end() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.send(&connect(Version::V5, "slow", |_| ()));
    eventually("CONNECT is worked on", || bench.log.connecting.load(Ordering::SeqCst) == 1);
    bench.on_worker(|toy| {
        toy.context.links.request_close_all(TAKEN_OVER);
        toy.released.set(true);
    });
    client.expect_end();
    assert!(matches!(bench.wait_closed("slow").ended, Ended::Unanswered { .. }));
}

/// Graceful stop: clients hear 0x8B, all sessions are reported, no task is left, nobody can connect.
#[test]
fn stop_closes_all_and_reports_all() {
    let mut bench = Bench::with(2, config());
    let mut clients: Vec<_> = (0..10).map(|number| bench.connected(&format!("c{number}"))).collect();
    let left = bench.gateway.take().unwrap().stop(PATIENCE);
    assert_eq!(left, 0);
    for client in &mut clients {
        client.expect_disconnect(0x8B);
    }
    assert_eq!(bench.log.closed.lock().unwrap().len(), 10);
    assert!(std::net::TcpStream::connect(bench.address).is_err());
}

/// DESIGN §2: each socket goes to the worker with the fewest connections.
#[test]
fn connections_are_balanced() {
    let bench = Bench::with(3, config());
    let mut clients: Vec<_> = (0..12).map(|number| bench.connected(&format!("c{number}"))).collect();
    assert_eq!(bench.gateway().connections(), [4, 4, 4]);
    clients.truncate(9);
    eventually("three are gone", || bench.gateway().connections().iter().sum::<usize>() == 9);
    clients.extend((0..3).map(|number| bench.connected(&format!("d{number}"))));
    assert_eq!(bench.gateway().connections(), [4, 4, 4]);
}

/// P9: a listener has a limit; more sockets are closed at once and leave no trace.
#[test]
fn connections_of_a_listener_are_bounded() {
    let mut config = config();
    config.connections_max = 2;
    let bench = Bench::with(1, config);
    let first = bench.connected("one");
    let _second = bench.connected("two");
    bench.client().expect_end();
    drop(first);
    eventually("one is gone", || bench.gateway().connections() == [1]);
    bench.connected("three");
}

/// P9: sockets leave descriptors for files: one that gets a number from the reserve is closed at once.
#[test]
fn sockets_leave_descriptors_for_files() {
    let mut config = config();
    config.descriptors_max = 3;
    let bench = Bench::with(1, config);
    bench.client().expect_end();
    assert_eq!(bench.gateway().connections(), [0]);
}

/// DESIGN §2: mail from any thread arrives in order, and is refused when the worker is gone.
#[test]
fn mail_arrives_in_order() {
    let mut bench = Bench::new();
    let mailbox = bench.gateway().mailboxes()[0].clone();
    for number in 0..100 {
        mailbox.push(number.to_string()).unwrap();
    }
    assert!(mailbox.extend((100..200).map(|number| number.to_string())));
    eventually("all mail is there", || bench.published().len() == 200);
    let numbers: Vec<String> = bench.published().into_iter().map(|(topic, _)| topic).collect();
    assert_eq!(numbers, (0..200).map(|number| number.to_string()).collect::<Vec<_>>());
    bench.gateway.take().unwrap().stop(PATIENCE);
    assert!(mailbox.push("late".into()).is_err());
}

/// P1, DESIGN §7: when the time of a session is over nothing goes out: neither a message that was pushed, nor an acknowledgement, nor the
/// answer to a ping; the socket is closed.
#[test]
fn p1_nothing_is_written_when_the_time_is_over() {
    let bench = Bench::new();
    let lapse = |client_id: &'static str| {
        bench.on_worker(move |toy| toy.lapsed.borrow_mut().push(client_id.into()));
    };
    let mut receiver = bench.connected("receiver");
    bench.on_worker(|toy| {
        toy.lapsed.borrow_mut().push("receiver".into());
        assert!(toy.links.borrow()["receiver"].push_bytes(&template("t", b"late", QoS::AtMostOnce)));
    });
    receiver.expect_end();
    let mut sender = bench.connected("sender");
    lapse("sender");
    sender.send(&publish("t", 1, b"unanswered"));
    sender.expect_end();
    let mut pinging = bench.connected("pinging");
    lapse("pinging");
    pinging.send(&[0xC0, 0]);
    pinging.expect_end();
    for client_id in ["receiver", "sender", "pinging"] {
        assert!(matches!(bench.wait_closed(client_id).ended, Ended::Abnormal { .. }));
    }
}

/// The same for what the socket did not take before: not even the rest of a packet follows. With nothing left that it is over may be said.
#[test]
fn p1_the_rest_of_a_packet_does_not_follow() {
    let bench = Bench::new();
    let mut slow = bench.connected("reader");
    let taken = fill_outbox(&bench, "reader");
    bench.on_worker(|toy| toy.lapsed.borrow_mut().push("reader".into()));
    bench.request_close("reader", TAKEN_OVER);
    bench.wait_closed("reader");
    // The kernel may have had some of it already; the close is a reset, and nothing is complete behind it.
    let mut received = Vec::new();
    let end = slow.stream.read_to_end(&mut received);
    assert!(end.is_err() || received.len() < taken * 1_024, "all of it came");
    let mut told = bench.connected("told");
    bench.on_worker(|toy| toy.lapsed.borrow_mut().push("told".into()));
    bench.request_close("told", TAKEN_OVER);
    told.expect_disconnect(0x8E);
}
