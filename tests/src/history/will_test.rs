//! P6: the Will rules pass histories that keep them and convict those that break them by one step.

use super::ownership_test::{LIVE, Script, WATCHER, WILLS};
use super::{Message, NONE, What};

/// A watcher, and connection 7 with a Will.
fn carrier() -> Script {
    let mut script = Script::new();
    script.connect(WATCHER, 1, 1, false);
    script.subscribe(WATCHER, 1, WILLS);
    script.say(LIVE, 7, What::Connect { node: 2, user: 0, will: true });
    script.say(LIVE, 7, What::Connected { present: false });
    script
}

fn fires(script: &mut Script, packet_id: u16) {
    script.take(WATCHER, 1, Message { stream: WILLS, number: 7 }, packet_id);
}

#[test]
fn p6_once_after_a_break() {
    let mut script = carrier();
    script.breaks(&[]);
    script.say(LIVE, 7, What::Closed { by_client: true });
    script.breaks(&["P6"]);
    fires(&mut script, 1);
    script.breaks(&[]);
}

#[test]
fn p6_twice() {
    let mut script = carrier();
    script.say(LIVE, 7, What::Closed { by_client: true });
    fires(&mut script, 1);
    fires(&mut script, 2);
    let found = script.history.check();
    assert!(found.iter().any(|violation| violation.promise == "P6"), "{found:#?}");
}

#[test]
fn p6_after_a_clean_disconnect() {
    for (crashed, broken) in [(false, &["P6"][..]), (true, &[][..])] {
        let mut script = carrier();
        script.say(LIVE, 7, What::Disconnect);
        script.say(LIVE, 7, What::Closed { by_client: false });
        script.breaks(&[]);
        if crashed {
            script.say(NONE, NONE, What::Halted { node: 2 });
        }
        fires(&mut script, 1);
        script.breaks(broken);
    }
}

#[test]
fn p6_while_its_client_is_served() {
    let mut script = carrier();
    fires(&mut script, 1);
    let asked = script.now() + 1;
    script.say(LIVE, 7, What::Pong { asked });
    script.breaks(&["P6"]);
}

#[test]
fn p6_of_a_connection_that_carried_none() {
    let mut script = Script::new();
    script.connect(WATCHER, 1, 1, false);
    script.subscribe(WATCHER, 1, WILLS);
    fires(&mut script, 1);
    script.breaks(&["P6"]);
}
