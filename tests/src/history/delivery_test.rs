//! P4, P5, P7: each rule passes a history that keeps it and convicts one that breaks it by one step.

use super::ownership_test::{EXACT, KEPT, LIVE, PLAIN, PUBLISHER, Script, WATCHER, X};
use super::{Message, What};

fn subscribed(stream: u32) -> Script {
    let mut script = Script::new();
    script.connect(PUBLISHER, 1_000, 1, false);
    script.connect(X, 1, 1, false);
    script.subscribe(X, 1, stream);
    script
}

#[test]
fn p4_everything_arrives() {
    let mut script = subscribed(PLAIN);
    for number in 1..=3 {
        let message = script.publish(PLAIN, number);
        script.take(X, 1, message, number as u16);
    }
    script.breaks(&[]);
}

#[test]
fn p4_an_acknowledged_message_is_lost() {
    let mut script = subscribed(PLAIN);
    script.publish(PLAIN, 1);
    let second = script.publish(PLAIN, 2);
    script.take(X, 1, second, 1);
    script.breaks(&["P4"]);
    script.history.drained = false;
    script.breaks(&[]);
}

#[test]
fn p4_a_message_without_acknowledgement_may_be_lost() {
    let mut script = subscribed(PLAIN);
    let message = Message { stream: PLAIN, number: 1 };
    script.say(PUBLISHER, 1_000, What::Publish { message, dup: false });
    script.breaks(&[]);
}

#[test]
fn p5_first_deliveries_out_of_order() {
    let mut script = subscribed(PLAIN);
    let [first, second] = [1, 2].map(|number| script.publish(PLAIN, number));
    script.take(X, 1, second, 1);
    script.connect(X, 2, 1, true);
    script.take(X, 2, first, 2);
    script.breaks(&["P5"]);
}

/// A live subscriber comes while messages of a publisher are on their way: the first of them passed before.
#[test]
fn p5_sent_again_what_passed_before_the_subscription() {
    for (sent_again, from_the_start, broken) in
        [(true, false, &[][..]), (false, false, &["P5"]), (true, true, &["P5"])]
    {
        let mut script = Script::new();
        script.connect(PUBLISHER, 1_000, 1, false);
        script.connect(LIVE, 1, 1, false);
        if from_the_start {
            script.subscribe(LIVE, 1, PLAIN);
        }
        let [first, second] = [1, 2].map(|number| Message { stream: PLAIN, number });
        for message in [first, second] {
            script.say(PUBLISHER, 1_000, What::Publish { message, dup: false });
        }
        if !from_the_start {
            script.subscribe(LIVE, 1, PLAIN);
        }
        script.take(LIVE, 1, second, 1);
        if sent_again {
            script.say(PUBLISHER, 1_000, What::Publish { message: first, dup: true });
        }
        script.take(LIVE, 1, first, 2);
        script.breaks(broken);
    }
}

#[test]
fn p5_redelivery_after_newer_messages_on_one_connection() {
    let mut script = subscribed(PLAIN);
    let [first, second] = [1, 2].map(|number| script.publish(PLAIN, number));
    script.deliver(X, 1, first, 1, false);
    script.connect(X, 2, 1, true);
    script.take(X, 2, second, 2);
    script.deliver(X, 2, first, 1, true);
    script.say(X, 2, What::Ack { message: first });
    script.breaks(&["P5"]);
}

#[test]
fn p5_redelivery_without_dup_or_with_another_packet_id() {
    for (packet_id, dup, broken) in [(7, true, &[][..]), (7, false, &["P5"]), (8, true, &["P5"])] {
        let mut script = subscribed(PLAIN);
        let message = script.publish(PLAIN, 1);
        script.deliver(X, 1, message, 7, false);
        script.connect(X, 2, 2, true);
        script.deliver(X, 2, message, packet_id, dup);
        script.say(X, 2, What::Ack { message });
        script.breaks(broken);
    }
}

#[test]
fn p5_a_message_sent_twice_by_its_publisher_may_arrive_twice_with_qos_1_only() {
    for (stream, broken) in [(PLAIN, &[][..]), (EXACT, &["P5"][..])] {
        let mut script = subscribed(stream);
        script.publish(stream, 1);
        let message = Message { stream, number: 1 };
        script.say(PUBLISHER, 1_000, What::Publish { message, dup: true });
        script.take(X, 1, message, 1);
        script.take(X, 1, message, 2);
        script.breaks(broken);
    }
}

#[test]
fn p5_twice_on_one_connection() {
    let mut script = subscribed(PLAIN);
    let message = script.publish(PLAIN, 1);
    script.deliver(X, 1, message, 1, false);
    script.deliver(X, 1, message, 1, true);
    script.say(X, 1, What::Ack { message });
    script.breaks(&["P5"]);
}

#[test]
fn p5_qos_2_again_after_its_pubrel() {
    let mut script = subscribed(EXACT);
    let message = script.publish(EXACT, 1);
    script.deliver(X, 1, message, 1, false);
    let asked = script.say(X, 1, What::Ack { message });
    script.say(X, 1, What::Released { message, asked });
    script.connect(X, 2, 1, true);
    script.breaks(&[]);
    script.deliver(X, 2, message, 1, true);
    script.say(X, 2, What::Ack { message });
    script.breaks(&["P5"]);
}

#[test]
fn p5_a_message_that_nobody_sent() {
    let mut script = subscribed(PLAIN);
    script.take(X, 1, Message { stream: PLAIN, number: 9 }, 1);
    script.breaks(&["P5"]);
}

#[test]
fn p7_suback_is_effective_for_live_subscribers() {
    let mut script = subscribed(PLAIN);
    script.connect(LIVE, 2, 3, false);
    script.subscribe(LIVE, 2, PLAIN);
    let message = script.publish(PLAIN, 1);
    script.take(X, 1, message, 1);
    script.breaks(&["P7"]);
    script.take(LIVE, 2, message, 1);
    script.breaks(&[]);
}

#[test]
fn p7_what_a_closed_live_subscriber_missed_is_nobodys_fault() {
    let mut script = Script::new();
    script.connect(LIVE, 2, 3, false);
    script.subscribe(LIVE, 2, PLAIN);
    script.publish(PLAIN, 1);
    script.say(LIVE, 2, What::Closed { by_client: true });
    script.breaks(&[]);
}

#[test]
fn p7_a_retained_value_older_than_the_acknowledged_one() {
    for (number, broken) in [(Some(2), &[][..]), (Some(1), &["P7"]), (None, &["P7"]), (Some(3), &["P7"])] {
        let mut script = Script::new();
        script.publish(KEPT, 1);
        script.publish(KEPT, 2);
        let asked = script.now() + 1;
        script.say(WATCHER, 5, What::Read { stream: KEPT, number, asked });
        script.breaks(broken);
    }
}

#[test]
fn p7_an_older_value_after_a_newer_one_that_was_never_acknowledged() {
    let mut script = Script::new();
    script.publish(KEPT, 1);
    script.say(PUBLISHER, 1_000, What::Publish { message: Message { stream: KEPT, number: 2 }, dup: false });
    let asked = script.now() + 1;
    script.say(WATCHER, 5, What::Read { stream: KEPT, number: Some(2), asked });
    script.breaks(&[]);
    let asked = script.now() + 1;
    script.say(WATCHER, 6, What::Read { stream: KEPT, number: Some(1), asked });
    script.breaks(&["P7"]);
}
