//! Boots: who may propose, leases, and what a retirement does to the sessions of a boot (DESIGN §4, §7).

use super::*;
use crate::lifecycle::RetireProof;

fn second_boot(world: &mut World) -> Boot {
    let first = std::mem::replace(&mut world.boot, boot(2, "boot-b"));
    world.apply(Command::BootStart { lease_until: Millis(1_000_000) });
    first
}

fn retire(boot: Boot, observed_at: u64) -> Command {
    Command::BootRetire { boot, proof: RetireProof::CrashReceipt, observed_at: Millis(observed_at) }
}

#[test]
fn an_unknown_boot_is_refused_until_it_starts() {
    let mut world = World::new();
    world.boot = boot(9, "stranger");
    let connect = world.connect_command(&dial("c"));
    assert_eq!(refused(&world.apply(connect.clone())), Conflict::BootRetired);
    let start = Command::BootStart { lease_until: Millis(5_000) };
    let replies = world.apply_all(vec![Command::Tidy, start.clone(), connect, start]);
    assert_eq!(refused(&replies[0]), Conflict::BootRetired);
    assert_eq!(replies[1], Reply::Done { revision: 1, unchanged: false });
    assert!(matches!(replies[2], Reply::Row { unchanged: false, .. }));
    assert_eq!(replies[3], Reply::Done { revision: 1, unchanged: true });
}

#[test]
fn a_lease_is_renewed_by_its_revision_and_never_shrinks() {
    let mut world = World::new();
    let renew = |revision, until| Command::BootRenew { revision, lease_until: Millis(until) };
    assert_eq!(world.apply(renew(1, 1_030_000)), Reply::Done { revision: 2, unchanged: false });
    assert_eq!(world.apply(renew(1, 1_030_000)), Reply::Done { revision: 2, unchanged: true });
    assert_eq!(refused(&world.apply(renew(1, 1_040_000))), Conflict::Fenced);
    assert_eq!(refused(&world.apply(renew(2, 1_000_000))), Conflict::Illegal);
    assert_eq!(world.group.boot(&world.boot).unwrap().lease_until, Millis(1_030_000));
}

#[test]
fn commands_of_a_retired_boot_are_refused() {
    // DESIGN §5: every command carries its boot.
    let mut world = World::new();
    world.connect(&dial("c"));
    let late = world.disconnect_command("c", DisconnectKind::Normal);
    let lifetime = world.row("c").lifetime;
    let dead = second_boot(&mut world);
    assert_eq!(world.apply(retire(dead.clone(), 1_000)), Reply::Done { revision: 2, unchanged: false });
    assert_eq!(world.apply(retire(dead.clone(), 1_000)), Reply::Done { revision: 2, unchanged: true });
    world.boot = dead;
    let before = dump(&world.group, &world.disk);
    let append = Append {
        message: message("t", "zombie"),
        stamp: None,
        targets: vec![target(lifetime, QoS::AtLeastOnce)],
    };
    for command in [
        late,
        Command::Append(Box::new(append)),
        Command::BootRenew { revision: 2, lease_until: Millis(9_000_000) },
        Command::Retain { message: message("t", "zombie"), stamp: None },
        Command::Tidy,
        Command::BootStart { lease_until: Millis(9_000_000) },
    ] {
        assert_eq!(refused(&world.apply(command)), Conflict::BootRetired);
    }
    let mut after = dump(&world.group, &world.disk);
    after.insert(vec![1], before[&vec![1_u8]].clone());
    assert_eq!(before, after);
}

#[test]
fn a_boot_cannot_retire_itself_nor_a_stranger() {
    let mut world = World::new();
    let own = world.boot.clone();
    assert_eq!(refused(&world.apply(retire(own, 1_000))), Conflict::Illegal);
    assert_eq!(refused(&world.apply(retire(boot(7, "nobody"), 1_000))), Conflict::Missing);
}

#[test]
fn retirement_disconnects_every_active_session_of_the_boot_and_no_other() {
    // P6, scenario 40: the clients of a dead node get their Wills and expiries.
    let mut world = World::new();
    world.connect(&Dial { will: will(5), ..dial("delayed") });
    world.connect(&Dial { will: will(0), ..dial("prompt") });
    world.connect(&Dial { expiry_sec: 0, will: will(30), ..dial("transient") });
    world.connect(&Dial { expiry_sec: 0, ..dial("silent") });
    world.connect(&dial("offline"));
    let away = world.at(1_500).drop_connection("offline");
    world.at(3_000).connect(&dial("late"));
    let dead = second_boot(&mut world);
    world.connect(&Dial { will: will(0), ..dial("other") });
    world.at(90_000).apply(retire(dead, 2_000));
    for (client_id, state, will) in [
        (
            "delayed",
            SessionState::Offline { offline_expires_at: Millis(62_000) },
            Some((WillStage::Waiting, Some(Millis(7_000)))),
        ),
        (
            "prompt",
            SessionState::Offline { offline_expires_at: Millis(62_000) },
            Some((WillStage::Ready, Some(Millis(2_000)))),
        ),
        (
            "transient",
            SessionState::Ended { reason: EndReason::Expired },
            Some((WillStage::Ready, Some(Millis(2_000)))),
        ),
        ("late", SessionState::Offline { offline_expires_at: Millis(63_000) }, None),
        ("other", SessionState::Active, Some((WillStage::Armed, None))),
    ] {
        assert_eq!(world.row(client_id).state, state, "{client_id}");
        assert_eq!(world.will_of(client_id), will, "{client_id}");
    }
    assert_eq!(world.group.session(&key("silent")), None);
    assert_eq!(*world.row("offline"), away);
    assert!(world.group.boot(&boot(1, "boot-a")).unwrap().retired.is_some(), "the proof stays for its rows");
}

#[test]
fn retirement_is_never_recorded_after_the_lease_end() {
    let mut world = World::new();
    world.apply(Command::BootRenew { revision: 1, lease_until: Millis(1_000_000) });
    world.connect(&dial("c"));
    let dead = second_boot(&mut world);
    world.at(5_000_000).apply(retire(dead, 4_000_000));
    assert_eq!(world.row("c").state, SessionState::Offline { offline_expires_at: Millis(1_060_000) });
}

#[test]
fn what_a_dead_boot_wrote_is_taken_for_sent() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.append("a", &[(row.lifetime, QoS::AtLeastOnce)]);
    world.append("b", &[(row.lifetime, QoS::AtLeastOnce)]);
    let dead = second_boot(&mut world);
    world.apply(retire(dead, 1_000));
    world.append("c", &[(row.lifetime, QoS::AtLeastOnce)]);
    let sent: Vec<bool> = world.inbox("c").entries.iter().map(|entry| entry.maybe_sent).collect();
    assert_eq!(sent, [true, true, false]);
}

#[test]
fn sessions_of_a_retired_boot_can_be_taken_over() {
    let mut world = World::new();
    let (row, _) = world.connect(&dial("c"));
    world.append("a", &[(row.lifetime, QoS::AtLeastOnce)]);
    let dead = second_boot(&mut world);
    world.apply(retire(dead, 1_000));
    let (next, present) = world.connect(&dial("c"));
    assert!(present);
    assert_eq!(next.owner.node_id, 2);
    assert_eq!(world.payloads("c"), [(0, "a".to_owned())]);
}

#[test]
fn retired_boots_are_forgotten_when_no_row_names_them() {
    let mut world = World::new();
    world.connect(&dial("c"));
    let dead = second_boot(&mut world);
    world.apply(retire(dead.clone(), 1_000));
    world.at(40 * 24 * 3_600_000).apply(Command::Tidy);
    assert!(world.group.boot(&dead).is_some(), "a row names it: it is the proof that the owner stopped");
    world.connect(&dial("c"));
    world.apply(Command::Tidy);
    assert!(world.group.boot(&dead).is_none());
    world.boot = dead;
    assert_eq!(refused(&world.apply(Command::Tidy)), Conflict::BootRetired);
}

/// P1: a boot that is only said to be gone and renewed meanwhile is not retired.
#[test]
fn a_boot_that_renewed_is_not_retired_for_its_silence() {
    let mut world = World::new();
    world.connect(&dial("c"));
    let seen = world.group.boot(&world.boot).expect("it started").revision;
    world.apply(Command::BootRenew { revision: seen, lease_until: Millis(1_100_000) });
    let dead = second_boot(&mut world);
    let silent = |revision| Command::BootRetireSilent {
        boot: dead.clone(),
        revision,
        proof: RetireProof::Attested { text: "unplugged".into() },
        observed_at: Millis(2_000_000),
    };
    assert_eq!(refused(&world.apply(silent(seen))), Conflict::Fenced);
    assert_eq!(world.row("c").state, SessionState::Active);
    let stopped = Reply::Done { revision: seen + 2, unchanged: false };
    assert_eq!(world.at(2_000_000).apply(silent(seen + 1)), stopped);
    assert_eq!(world.row("c").state, SessionState::Offline { offline_expires_at: Millis(1_160_000) });
    // Repeating it, with whatever revision, is no change.
    assert!(matches!(world.apply(silent(seen)), Reply::Done { unchanged: true, .. }));
}

/// P9: what is said about a boot is bounded where it is stored.
#[test]
fn a_retirement_with_an_endless_text_is_refused() {
    let mut world = World::new();
    let dead = second_boot(&mut world);
    let text = "x".repeat(crate::limits::RETIRE_TEXT_BYTES_MAX + 1);
    let proof = RetireProof::Attested { text: text.into() };
    let retire = Command::BootRetire { boot: dead, proof, observed_at: Millis(1) };
    assert_eq!(refused(&world.apply(retire)), Conflict::Illegal);
}

/// The retirement of a full node is one small entry; how long `apply` takes is printed, not held against a limit.
#[test]
fn a_boot_with_many_sessions_is_retired_by_one_small_entry() {
    const SESSIONS: u32 = 10_000;
    let mut group = Group::new(1_000, 1 << 20);
    let (dead, other) = (boot(1, "boot-a"), boot(2, "boot-b"));
    let mut index = 0;
    let mut apply = |boot: &Boot, commands: Vec<Command>| {
        index += 1;
        let mut outcome = Outcome::default();
        group.apply(index, &Batch { boot: boot.clone(), at: Millis(1_000), commands }, &mut outcome);
        outcome
    };
    for boot in [&dead, &other] {
        apply(boot, vec![Command::BootStart { lease_until: Millis(1_000_000) }]);
    }
    let connect = |number: u32| {
        let owner = Owner {
            key: Key { namespace: "main".into(), client_id: format!("c{number}").into() },
            session_generation: 1,
            owner_generation: 1,
            node_id: 1,
            boot_id: "boot-a".into(),
            connection_id: u64::from(number) + 1,
        };
        Command::Connect(Box::new(Connect {
            owner,
            uid: None,
            previous: None,
            clean_start: false,
            expiry_sec: 60,
            will: will(0),
        }))
    };
    let connects: Vec<Command> = (0..SESSIONS).map(connect).collect();
    apply(&dead, connects);
    let retire = retire(dead, 1_000);
    let bytes = postcard::to_allocvec(&retire).expect("it has a stored form").len();
    assert!(bytes < 256, "{bytes}");
    let began = std::time::Instant::now();
    let outcome = apply(&other, vec![retire]);
    eprintln!("retirement of {SESSIONS} sessions with Wills in one group: {:?}", began.elapsed());
    assert!(matches!(outcome.replies[..], [Reply::Done { unchanged: false, .. }]));
    let stat = group.stat();
    assert_eq!((stat.sessions_active, stat.sessions_offline), (0, u64::from(SESSIONS)));
    assert_eq!(stat.wills_ready, u64::from(SESSIONS));
}
