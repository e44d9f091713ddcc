//! Denials stand in the log beside CONNECT (scenario 32: a revoked client does not slip back in).

use super::{World, dial, key, refused};
use crate::lifecycle::{Command, Conflict, DenyRow, EndReason, Reply, SessionState, Subject, WillMode};
use crate::limits;
use crate::time::Millis;

fn denial(subject: Subject, until: u64) -> Command {
    Command::Deny(Box::new(DenyRow {
        subject,
        since: Millis(1_000),
        until: Millis(until),
        reason: "left the company".into(),
    }))
}

fn user(name: &str) -> Subject {
    Subject::User(name.into())
}

/// Scenario 32: after the denial no CONNECT of that user commits, of another user it does; the session there is stays until its End.
#[test]
fn a_denied_user_does_not_connect() {
    let mut world = World::new();
    world.connect(&dial("a"));
    assert_eq!(world.apply(denial(user("alice"), u64::MAX)), Reply::Done { revision: 0, unchanged: false });
    assert_eq!(world.row("a").state, SessionState::Active);
    for client_id in ["a", "b"] {
        let connect = world.connect_command(&dial(client_id));
        assert_eq!(refused(&world.apply(connect)), Conflict::Denied);
    }
    let mut other = dial("c");
    other.uid = Some("bob");
    world.connect(&other);
    let end = world.end_command("a", EndReason::Revoked, WillMode::Publish);
    world.apply(end);
    let connect = world.connect_command(&dial("a"));
    assert_eq!(refused(&world.apply(connect)), Conflict::Denied);
    assert_eq!(world.apply(Command::Allow(user("alice"))), Reply::Done { revision: 0, unchanged: false });
    let (row, present) = world.connect(&dial("a"));
    assert!(!present && row.owner.session_generation == 2);
}

/// A denied ClientID is refused for every user, and only in its namespace.
#[test]
fn a_denied_client_id_is_refused_whoever_asks() {
    let mut world = World::new();
    world.apply(denial(Subject::Client(key("a")), u64::MAX));
    for uid in [None, Some("alice"), Some("bob")] {
        let mut dial = dial("a");
        dial.uid = uid;
        let connect = world.connect_command(&dial);
        assert_eq!(refused(&world.apply(connect)), Conflict::Denied);
    }
    let mut elsewhere = key("a");
    elsewhere.namespace = "other".into();
    assert!(!world.group.denies(&elsewhere, None, Millis(2_000)));
}

/// A CONNECT whose reply was lost is answered again: it was committed before the denial.
#[test]
fn an_exact_retry_of_a_connect_is_not_refused_afterwards() {
    let mut world = World::new();
    let connect = world.connect_command(&dial("a"));
    world.apply(connect.clone());
    world.apply(denial(user("alice"), u64::MAX));
    assert!(matches!(world.apply(connect), Reply::Row { unchanged: true, .. }));
}

/// A denial ends at its time, is forgotten by Tidy, and survives a restart until then.
#[test]
fn a_denial_has_an_end_and_survives_a_restart() {
    let mut world = World::new();
    world.apply(denial(user("alice"), 5_000));
    world.apply(denial(Subject::Client(key("z")), u64::MAX));
    world.reload();
    let connect = world.at(4_999).connect_command(&dial("a"));
    assert_eq!(refused(&world.apply(connect)), Conflict::Denied);
    world.at(5_000).connect(&dial("a"));
    assert_eq!(world.group.denied_after(None).count(), 2);
    world.apply(Command::Tidy);
    world.reload();
    let left: Vec<_> = world.group.denied_after(None).map(|row| row.subject.clone()).collect();
    assert_eq!(left, [Subject::Client(key("z"))]);
    assert_eq!(world.group.denied_after(Some(&left[0])).count(), 0);
}

/// P9, P10: a repetition changes nothing; what names nobody or is too long is refused.
#[test]
fn a_denial_is_idempotent_and_checked() {
    let mut world = World::new();
    world.apply(denial(user("alice"), 9_000));
    assert_eq!(world.apply(denial(user("alice"), 9_000)), Reply::Done { revision: 0, unchanged: true });
    assert_eq!(world.apply(Command::Allow(user("nobody"))), Reply::Done { revision: 0, unchanged: true });
    assert_eq!(refused(&world.apply(denial(user(""), 9_000))), Conflict::Illegal);
    let mut long = DenyRow { subject: user("x"), since: Millis(0), until: Millis(1), reason: "".into() };
    long.reason = "x".repeat(limits::DENY_REASON_BYTES_MAX + 1).into();
    assert_eq!(refused(&world.apply(Command::Deny(Box::new(long)))), Conflict::Illegal);
}
