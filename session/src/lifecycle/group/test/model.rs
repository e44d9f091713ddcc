//! Random histories, and the inbox against the simplest thing that could be right.

use proptest::prelude::*;

use super::*;
use crate::lifecycle::{RetireProof, WillKey};

const CLIENTS: [&str; 4] = ["c0", "c1", "c2", "c3"];

/// One step of a random history; clients and offsets are taken modulo what is there.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Connect {
        client: usize,
        clean_start: bool,
        expiry_sec: u32,
        will: Option<u32>,
        uid: bool,
    },
    Close {
        client: usize,
        normal: bool,
        expiry_sec: Option<u32>,
        sent: u64,
    },
    End {
        client: usize,
        suppress: bool,
    },
    Subscribe {
        client: usize,
        filter: u8,
    },
    Unsubscribe {
        client: usize,
        filter: u8,
    },
    Append {
        clients: u8,
        qos: u8,
        len: u16,
        expires_in: Option<u64>,
        stamp: Option<(usize, u16, u64)>,
    },
    Ack {
        client: usize,
        at: u64,
        received: bool,
    },
    Receive {
        client: usize,
        packet_id: u16,
    },
    Routed {
        client: usize,
        packet_id: u16,
        sequence: u64,
    },
    Release {
        client: usize,
        packet_id: u16,
    },
    Sent {
        client: usize,
        through: u64,
    },
    Retain {
        topic: u8,
        len: u16,
        expires_in: Option<u64>,
    },
    /// Whatever is due is done.
    Work {
        will: bool,
        retention: u64,
        limit: u32,
    },
    Tidy,
    Rule(QuotaRule),
    Wait {
        ms: u64,
    },
    /// The boot dies and another takes over.
    Reboot,
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS.len();
    let expires = || prop::option::weighted(0.3, 1_u64..20_000);
    prop_oneof![
        6 => (client.clone(), prop::bool::weighted(0.2), prop_oneof![Just(0), Just(3), Just(60), Just(u32::MAX)], prop::option::weighted(0.4, 0_u32..10), prop::bool::weighted(0.9))
            .prop_map(|(client, clean_start, expiry_sec, will, uid)| Step::Connect { client, clean_start, expiry_sec, will, uid }),
        4 => (client.clone(), any::<bool>(), prop::option::weighted(0.2, 0_u32..5), 0_u64..200)
            .prop_map(|(client, normal, expiry_sec, sent)| Step::Close { client, normal, expiry_sec, sent }),
        1 => (client.clone(), any::<bool>()).prop_map(|(client, suppress)| Step::End { client, suppress }),
        2 => (client.clone(), 0_u8..5).prop_map(|(client, filter)| Step::Subscribe { client, filter }),
        1 => (client.clone(), 0_u8..5).prop_map(|(client, filter)| Step::Unsubscribe { client, filter }),
        10 => (1_u8..16, 0_u8..3, 0_u16..300, expires(), prop::option::weighted(0.3, (client.clone(), 1_u16..4, 1_u64..6)))
            .prop_map(|(clients, qos, len, expires_in, stamp)| Step::Append { clients, qos, len, expires_in, stamp }),
        8 => (client.clone(), 0_u64..20, any::<bool>()).prop_map(|(client, at, received)| Step::Ack { client, at, received }),
        2 => (client.clone(), 1_u16..5).prop_map(|(client, packet_id)| Step::Receive { client, packet_id }),
        2 => (client.clone(), 1_u16..5, 1_u64..8)
            .prop_map(|(client, packet_id, sequence)| Step::Routed { client, packet_id, sequence }),
        2 => (client.clone(), 1_u16..5).prop_map(|(client, packet_id)| Step::Release { client, packet_id }),
        1 => (client, 0_u64..100).prop_map(|(client, through)| Step::Sent { client, through }),
        2 => (0_u8..5, 0_u16..50, expires()).prop_map(|(topic, len, expires_in)| Step::Retain { topic, len, expires_in }),
        3 => (any::<bool>(), 0_u64..5_000, 1_u32..6).prop_map(|(will, retention, limit)| Step::Work { will, retention, limit }),
        1 => Just(Step::Tidy),
        1 => prop_oneof![Just(QuotaRule::DropNew), Just(QuotaRule::DropOld), Just(QuotaRule::End)].prop_map(Step::Rule),
        4 => (1_u64..4_000).prop_map(|ms| Step::Wait { ms }),
        1 => Just(Step::Reboot),
    ]
}

pub(super) fn steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..max)
}

fn with_expiry(world: &World, mut message: Message, expires_in: Option<u64>) -> Message {
    message.expires_at = expires_in.map(|ms| Millis(world.now + ms));
    message
}

/// Does one step; steps that make no sense now become commands that are refused.
pub(super) fn run(world: &mut World, step: &Step) {
    match step {
        Step::Connect { client, clean_start, expiry_sec, will: delay, uid } => {
            let dial = Dial {
                client_id: CLIENTS[*client],
                uid: uid.then_some("alice"),
                clean_start: *clean_start,
                expiry_sec: *expiry_sec,
                will: delay.and_then(will),
            };
            let command = world.connect_command(&dial);
            world.apply(command);
        }
        Step::Wait { ms } => world.now += ms,
        Step::Tidy => drop(world.apply(Command::Tidy)),
        Step::Rule(rule) => drop(world.apply(Command::QuotaRule(*rule))),
        Step::Retain { topic, len, expires_in } => {
            let payload = "r".repeat(usize::from(*len));
            let message = with_expiry(world, message(&format!("retained/{topic}"), &payload), *expires_in);
            world.apply(Command::Retain { message, stamp: None });
        }
        Step::Append { clients, qos, len, expires_in, stamp } => {
            append(world, *clients, *qos, *len, *expires_in, *stamp);
        }
        Step::Work { will, retention, limit } => work(world, *will, *retention, *limit),
        Step::Reboot => reboot(world),
        Step::Close { client, .. }
        | Step::End { client, .. }
        | Step::Subscribe { client, .. }
        | Step::Unsubscribe { client, .. }
        | Step::Ack { client, .. }
        | Step::Receive { client, .. }
        | Step::Routed { client, .. }
        | Step::Release { client, .. }
        | Step::Sent { client, .. } => {
            if world.group.session(&key(CLIENTS[*client])).is_some() {
                let command = owner_command(world, step, CLIENTS[*client]);
                world.apply(command);
            }
        }
    }
}

fn owner_command(world: &World, step: &Step, client_id: &'static str) -> Command {
    let session = world.session(client_id);
    match step {
        Step::Close { normal, expiry_sec, sent, .. } => {
            let kind = if *normal { DisconnectKind::Normal } else { DisconnectKind::WithWill };
            let Command::Disconnect(mut close) = world.disconnect_command(client_id, kind) else {
                unreachable!()
            };
            close.expiry_sec = *expiry_sec;
            close.sent_through = *sent;
            Command::Disconnect(close)
        }
        Step::End { suppress, .. } => {
            let mode = if *suppress { WillMode::Suppress } else { WillMode::Publish };
            world.end_command(client_id, EndReason::Explicit, mode)
        }
        Step::Subscribe { filter, .. } => {
            let options = SubscriptionOptions {
                qos: QoS::AtLeastOnce,
                no_local: false,
                retain_as_published: false,
                identifier: u32::from(*filter),
            };
            let filter = format!("f/{filter}").into();
            Command::Subscribe { session, filters: vec![SubscriptionRow { filter, options }] }
        }
        Step::Unsubscribe { filter, .. } => {
            Command::Unsubscribe { session, filters: vec![format!("f/{filter}").into()] }
        }
        Step::Ack { at, received, .. } => {
            let base = world.group.inbox(session.lifetime).map_or(0, |stat| stat.base);
            let kind = if *received { AckKind::Received } else { AckKind::Settled };
            Command::Ack { session, acks: vec![Ack { offset: base + at, kind }] }
        }
        Step::Receive { packet_id, .. } => Command::Receive { session, packet_id: *packet_id },
        Step::Routed { packet_id, sequence, .. } => {
            Command::Routed { session, packet_id: *packet_id, sequence: *sequence }
        }
        Step::Release { packet_id, .. } => Command::Release { session, packet_id: *packet_id },
        Step::Sent { through, .. } => Command::Sent { session, through: *through },
        _ => unreachable!("only commands of an owner come here"),
    }
}

fn append(
    world: &mut World,
    clients: u8,
    qos: u8,
    len: u16,
    expires_in: Option<u64>,
    stamp: Option<(usize, u16, u64)>,
) {
    let mut targets = vec![(999, QoS::AtLeastOnce)];
    for (at, client_id) in CLIENTS.iter().enumerate() {
        if clients & (1 << at) != 0
            && let Some(row) = world.group.session(&key(client_id))
        {
            targets.push((row.lifetime, QoS::from_u8(qos).expect("below 3")));
        }
    }
    let stamp = stamp.and_then(|(client, packet_id, sequence)| {
        let lifetime = world.group.session(&key(CLIENTS[client]))?.lifetime;
        Some(Stamp::Publisher { key: key(CLIENTS[client]), lifetime, packet_id, sequence })
    });
    let message = with_expiry(world, message("t", &"p".repeat(usize::from(len))), expires_in);
    let shared =
        |(lifetime, qos): (u64, QoS)| Target { shared: len.is_multiple_of(2), ..target(lifetime, qos) };
    let targets = targets.into_iter().map(shared).collect();
    world.apply(Command::Append(Box::new(Append { message, stamp, targets })));
}

fn work(world: &mut World, publish: bool, retention: u64, limit: u32) {
    let mut due = Vec::new();
    world.group.due(Millis(world.now), 5, &mut due);
    for due in due {
        match due {
            crate::lifecycle::Due::Session { key, revision } => {
                world.apply(Command::Reconcile { key, revision });
            }
            crate::lifecycle::Due::Reclaim { key, revision } => {
                let binding_until = Millis(world.now + retention);
                world.apply(Command::Reclaim { key, revision, limit, binding_until });
            }
            crate::lifecycle::Due::Will(will) => execute(world, will, publish),
        }
    }
    for client_id in CLIENTS {
        rebind(world, &key(client_id), publish, limit);
    }
}

/// A session gives up what it shares, if it is away; some of it, or of what it gave up before, goes to others.
fn rebind(world: &mut World, key: &Key, goes: bool, limit: u32) {
    let Some((revision, lifetime)) = world.group.session(key).map(|row| (row.revision, row.lifetime)) else {
        return;
    };
    world.apply(Command::Unbind { key: key.clone(), revision, limit });
    if goes {
        let mut given_up = Vec::new();
        world.group.unbound(lifetime, 0, 3, &mut given_up);
        let offsets = given_up.iter().map(|one| one.offset).collect();
        world.apply(Command::Rebound { lifetime, offsets });
    }
}

fn execute(world: &mut World, will: WillKey, publish: bool) {
    world.apply(Command::WillClaim { will: will.clone(), lease_until: Millis(world.now + 1_000) });
    if publish {
        let targets: Vec<_> = CLIENTS
            .iter()
            .filter_map(|id| Some((world.group.session(&key(id))?.lifetime, QoS::AtLeastOnce)))
            .collect();
        world.append_stamped(message("will", "gone"), Some(Stamp::Will(will.clone())), &targets);
        world.apply(Command::WillPublished { will });
    }
}

fn reboot(world: &mut World) {
    let name = format!("boot-{}", world.index);
    let dead = std::mem::replace(&mut world.boot, boot(1, &name));
    let lease_until = Millis(world.now + 30_000);
    let observed_at = Millis(world.now);
    world.apply_all(vec![
        Command::BootStart { lease_until },
        Command::BootRetire { boot: dead, proof: RetireProof::CrashReceipt, observed_at },
    ]);
}

/// What an inbox is, said as simply as possible.
#[derive(Debug, Default)]
struct Model {
    /// (offset, payload, received).
    queued: Vec<(u64, String, bool)>,
    next: u64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// P4, P5: against the model, with a crash (rows written, process gone, rows loaded) at random points.
    #[test]
    fn inbox_agrees_with_the_model(ops in prop::collection::vec((0_u8..5, 0_u64..12, 0_usize..40), 1..200)) {
        let mut world = World::with_quota(30, 600);
        let (row, _) = world.connect(&dial("c"));
        let mut disk = Rows::new();
        let mut model = Model::default();
        for (op, pick, len) in ops {
            match op {
                0 | 1 => {
                    let payload = "x".repeat(len);
                    let bytes: usize = model.queued.iter().map(|(_, payload, _)| payload.len() + 1).sum();
                    let fits = model.queued.len() < 30 && bytes + len < 600;
                    world.append(&payload, &[(row.lifetime, QoS::ExactlyOnce)]);
                    if fits {
                        model.queued.push((model.next, payload, false));
                        model.next += 1;
                    }
                }
                2 | 3 => {
                    let Some(at) = (!model.queued.is_empty()).then(|| pick as usize % model.queued.len()) else { continue };
                    let offset = model.queued[at].0;
                    if op == 2 {
                        world.ack("c", &[(offset, AckKind::Settled)]);
                        model.queued.remove(at);
                    } else {
                        world.ack("c", &[(offset, AckKind::Received)]);
                        model.queued[at].2 = true;
                    }
                }
                _ => {
                    drain_into(&mut world.group, &mut disk);
                    world.group = load(&disk);
                    prop_assert!(world.group.check().is_ok());
                }
            }
            let read = world.inbox("c");
            let seen: Vec<_> = read.entries.iter().map(|entry| (entry.offset, entry.received)).collect();
            let expected: Vec<_> = model.queued.iter().map(|(offset, _, received)| (*offset, *received)).collect();
            prop_assert_eq!(seen, expected);
            for (entry, (_, payload, _)) in read.entries.iter().zip(&model.queued) {
                let body = match &entry.message {
                    Some(message) => Message::clone(message),
                    None => Group::decode_body(&disk[&Group::body_key(entry.message_id)]).unwrap(),
                };
                prop_assert_eq!(body.payload(), payload.as_bytes());
            }
            let first = model.queued.first().map_or(model.next, |(offset, _, _)| *offset);
            prop_assert_eq!((read.stat.base, read.stat.end), (first, model.next));
        }
    }
}
