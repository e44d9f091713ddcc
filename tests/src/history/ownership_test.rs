//! P1, P2, P3, P8: each rule passes a history that keeps it and convicts one that breaks it by one step.

use super::record::Recorder;
use super::{History, Kind, Message, Micros, What};
use std::time::Duration;

/// A history written by hand: time passes by one millisecond a line.
pub(super) struct Script {
    recorder: Recorder,
    pub(super) history: History,
}

pub(super) const X: u32 = 0;
pub(super) const WATCHER: u32 = 1;
pub(super) const LIVE: u32 = 2;
pub(super) const PUBLISHER: u32 = 3;
pub(super) const PLAIN: u32 = 0;
pub(super) const EXACT: u32 = 1;
pub(super) const KEPT: u32 = 2;
pub(super) const WILLS: u32 = 3;

impl Script {
    pub(super) fn new() -> Self {
        let recorder = Recorder::new(Duration::from_secs(5));
        for (name, durable) in [("x", true), ("watcher", true), ("live", false), ("publisher", true)] {
            let _ = recorder.session(name, durable);
        }
        for (topic, qos, kind) in [
            ("plain", 1, Kind::Plain),
            ("exact", 2, Kind::Plain),
            ("kept", 1, Kind::Retained),
            ("wills", 1, Kind::Will),
        ] {
            let _ = recorder.stream(topic, qos, kind);
        }
        let history = recorder.history(true);
        Self { recorder, history }
    }

    /// Adds a line and returns its time.
    pub(super) fn say(&mut self, session: u32, connection: u32, what: What) -> Micros {
        let at = self.history.events.last().map_or(0, |event| event.at) + 1_000;
        self.history.events.push(super::Event { at, session, connection, what });
        at
    }

    pub(super) fn connect(&mut self, session: u32, connection: u32, node: u8, present: bool) -> Micros {
        self.say(session, connection, What::Connect { node, user: 0, will: false });
        self.say(session, connection, What::Connected { present })
    }

    pub(super) fn subscribe(&mut self, session: u32, connection: u32, stream: u32) {
        let asked = self.now();
        self.say(session, connection, What::Subscribed { stream, asked });
    }

    /// PUBLISH and its acknowledgement by connection 1,000 of the publisher.
    pub(super) fn publish(&mut self, stream: u32, number: u32) -> Message {
        let message = Message { stream, number };
        let asked = self.say(PUBLISHER, 1_000, What::Publish { message, dup: false });
        self.say(PUBLISHER, 1_000, What::Acknowledged { message, asked });
        message
    }

    pub(super) fn deliver(
        &mut self,
        session: u32,
        connection: u32,
        message: Message,
        packet_id: u16,
        dup: bool,
    ) {
        let qos = self.history.streams[message.stream as usize].qos;
        self.say(session, connection, What::Deliver { message, qos, packet_id, dup });
    }

    pub(super) fn take(&mut self, session: u32, connection: u32, message: Message, packet_id: u16) {
        self.deliver(session, connection, message, packet_id, false);
        self.say(session, connection, What::Ack { message });
    }

    pub(super) fn now(&self) -> Micros {
        self.history.events.last().map_or(0, |event| event.at)
    }

    /// Asserts that exactly these promises are broken.
    #[track_caller]
    pub(super) fn breaks(&self, promises: &[&str]) {
        let found = self.history.check();
        let broken: Vec<&str> = found.iter().map(|violation| violation.promise).collect();
        assert_eq!(broken, promises, "{found:#?}");
    }
}

/// A takeover of connection 1 by connection 2, with one message unacknowledged on the old one.
fn takeover() -> (Script, Message, Micros) {
    let mut script = Script::new();
    script.connect(X, 1, 1, false);
    script.subscribe(X, 1, PLAIN);
    let message = script.publish(PLAIN, 1);
    script.deliver(X, 1, message, 1, false);
    let at = script.connect(X, 2, 2, true);
    (script, message, at)
}

#[test]
fn p1_a_clean_takeover_passes() {
    let (mut script, message, _) = takeover();
    // What lay in the old socket may still be read.
    let asked = script.history.events[0].at;
    script.say(X, 1, What::Pong { asked });
    script.say(X, 1, What::Ack { message });
    script.say(X, 1, What::Closed { by_client: false });
    script.deliver(X, 2, message, 1, true);
    script.say(X, 2, What::Ack { message });
    script.breaks(&[]);
}

#[test]
fn p1_the_old_connection_answers_after_the_takeover() {
    let (mut script, message, at) = takeover();
    script.say(X, 1, What::Pong { asked: at + 1 });
    script.deliver(X, 2, message, 1, true);
    script.say(X, 2, What::Ack { message });
    script.breaks(&["P1"]);
}

#[test]
fn p1_the_old_connection_delivers_what_was_published_after_the_takeover() {
    let (mut script, message, _) = takeover();
    let newer = script.publish(PLAIN, 2);
    script.deliver(X, 1, newer, 2, false);
    script.deliver(X, 2, message, 1, true);
    script.say(X, 2, What::Ack { message });
    script.deliver(X, 2, newer, 2, true);
    script.say(X, 2, What::Ack { message: newer });
    let found = script.history.check();
    assert!(found.iter().any(|violation| violation.promise == "P1"), "{found:#?}");
}

#[test]
fn p1_an_acknowledgement_on_the_old_connection_counted() {
    let (mut script, message, _) = takeover();
    script.say(X, 1, What::Ack { message });
    script.breaks(&["P1"]);
}

#[test]
fn p1_the_old_connection_publishes_after_the_takeover() {
    let (mut script, message, _) = takeover();
    script.deliver(X, 2, message, 1, true);
    script.say(X, 2, What::Ack { message });
    let message = Message { stream: EXACT, number: 1 };
    let asked = script.say(X, 1, What::Publish { message, dup: false });
    script.say(X, 1, What::Acknowledged { message, asked });
    script.breaks(&["P1"]);
}

/// Two takeovers at once whose CONNACKs are read in another order than they were sent convict nobody.
#[test]
fn p1_a_race_of_takeovers_passes() {
    let mut script = Script::new();
    script.connect(X, 1, 1, false);
    script.say(X, 2, What::Connect { node: 2, user: 0, will: false });
    script.say(X, 3, What::Connect { node: 3, user: 0, will: false });
    script.say(X, 3, What::Connected { present: true });
    let asked = script.say(X, 2, What::Connected { present: true });
    script.say(X, 2, What::Pong { asked: asked + 1 });
    script.breaks(&[]);
}

#[test]
fn p2_a_takeover_from_a_halted_node() {
    for (revived_first, broken) in [(true, &[][..]), (false, &["P2"][..])] {
        let mut script = Script::new();
        script.connect(X, 1, 1, false);
        script.say(super::NONE, super::NONE, What::Halted { node: 1 });
        script.say(X, 2, What::Connect { node: 2, user: 0, will: false });
        script.say(X, 2, What::Refused { reason: 0x88 });
        script.say(X, 2, What::Closed { by_client: false });
        if revived_first {
            script.say(super::NONE, super::NONE, What::Revived { node: 1 });
        }
        script.connect(X, 3, 3, true);
        script.breaks(broken);
    }
}

#[test]
fn p2_a_connect_without_an_answer() {
    for troubled in [true, false] {
        let mut script = Script::new();
        if troubled {
            script.say(super::NONE, super::NONE, What::Troubled { node: 1 });
        }
        script.say(X, 1, What::Connect { node: 1, user: 0, will: false });
        script.connect(LIVE, 2, 2, false);
        let last = script.history.events.last_mut().expect("an event");
        last.at += 6_000_000;
        // The other client's own CONNECT took as long.
        script
            .history
            .events
            .retain(|event| event.session != LIVE || !matches!(event.what, What::Connect { .. }));
        script.breaks(if troubled { &[] } else { &["P2"] });
    }
}

#[test]
fn p3_an_ended_connection_answers() {
    let mut script = Script::new();
    script.connect(X, 1, 1, false);
    let asked = script.now();
    let told = script.say(X, 0, What::Ended { asked: asked + 1 });
    script.breaks(&[]);
    script.say(X, 1, What::Pong { asked: told + 1 });
    script.breaks(&["P3"]);
}

#[test]
fn p3_an_ended_session_is_found_again() {
    for (present, broken) in [(false, &[][..]), (true, &["P3"][..])] {
        let mut script = Script::new();
        script.connect(X, 1, 1, false);
        let asked = script.now() + 1;
        script.say(X, 0, What::Ended { asked });
        script.connect(X, 2, 1, present);
        script.breaks(broken);
    }
}

#[test]
fn p4_a_session_is_lost() {
    let mut script = Script::new();
    script.connect(X, 1, 1, false);
    script.connect(X, 2, 2, false);
    script.breaks(&["P4"]);
}

#[test]
fn p4_a_session_whose_end_was_asked_for_may_be_gone() {
    let mut script = Script::new();
    script.connect(X, 1, 1, false);
    let asked = script.now() + 1;
    script.say(X, 0, What::EndDoubted { asked });
    script.connect(X, 2, 2, false);
    script.breaks(&[]);
}

#[test]
fn p8_another_user_is_let_in() {
    let mut script = Script::new();
    script.connect(X, 1, 1, false);
    script.say(X, 2, What::Connect { node: 1, user: 1, will: false });
    script.say(X, 2, What::Refused { reason: 0x87 });
    script.breaks(&[]);
    script.say(X, 3, What::Connect { node: 1, user: 1, will: false });
    script.say(X, 3, What::Connected { present: true });
    script.breaks(&["P8"]);
}

/// The recorder's order is that of its times, whoever notes.
#[test]
fn entries_are_in_the_order_of_their_times() {
    let script = Script::new();
    std::thread::scope(|scope| {
        for connection in 0..4 {
            let recorder = script.recorder.clone();
            scope.spawn(move || {
                for _ in 0..500 {
                    recorder.note(X, connection, What::Disconnect);
                }
            });
        }
    });
    let history = script.recorder.history(true);
    assert_eq!(history.events.len(), 2_000);
    assert!(history.events.is_sorted_by_key(|event| event.at));
}
