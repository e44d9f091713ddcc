//! Equal commands give byte-equal rows, whatever happened to the process in between; damaged rows are errors, never panics.
//! Checklist 14 (H-14): under random storms the counters equal a full recount (checked after every command).

use proptest::prelude::*;

use super::*;

/// One command, by small numbers so that they meet each other.
#[derive(Debug, Clone)]
enum Step {
    Lease(LeaseCommand),
    Beat(u64),
    Queue(QueueCommand),
    /// Bind, append, acknowledge as a well-behaved member would.
    Bind(u8, u8, bool, u64, u32),
    Put(u8, u8, bool),
    AckFirst(u8, u8),
    ClaimAndSettle(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let id = 1_u64..8;
    prop_oneof![
        2 => (1_000_u64..9_000).prop_map(|ttl_ms| Step::Lease(LeaseCommand::Grant { ttl_ms })),
        2 => (1_u64..3_000).prop_map(Step::Beat),
        2 => proptest::collection::vec(1_u64..30, 0..6).prop_map(|leases| Step::Lease(LeaseCommand::Keepalive { leases })),
        1 => (1_u64..30).prop_map(|lease| Step::Lease(LeaseCommand::Revoke { lease })),
        2 => (1_u32..9).prop_map(|limit| Step::Lease(LeaseCommand::Expire { limit })),
        6 => (0_u8..3, 0_u8..3, any::<bool>(), 1_u64..30, 1_u32..4).prop_map(|(name, kind, produce, lease, weight)| Step::Bind(name, kind, produce, lease, weight)),
        12 => (1_u8..16, 1_u8..4, any::<bool>()).prop_map(|(member, records, twice)| Step::Put(member, records, twice)),
        8 => (1_u8..16, 1_u8..4).prop_map(|(member, records)| Step::AckFirst(member, records)),
        6 => (1_u8..16, 0_u8..3).prop_map(|(member, how)| Step::ClaimAndSettle(member, how)),
        1 => id.clone().prop_map(|channel| Step::Queue(QueueCommand::Delete { channel })),
        1 => id.clone().prop_map(|channel| Step::Queue(QueueCommand::Seal { channel, reason: SealReason::Closed })),
        2 => (id.clone(), 1_u32..4).prop_map(|(channel, limit)| Step::Queue(QueueCommand::Reclaim { channel, limit })),
        2 => (1_u64..16).prop_map(|member| Step::Queue(QueueCommand::Withdraw { member })),
        1 => (1_u64..16, id, 0_u64..9).prop_map(|(member, channel, through)| Step::Queue(QueueCommand::Leave { member, delivered: vec![(channel, through)] })),
    ]
}

/// Turns a step into commands as the state of `space` suggests; the commands are then the log.
fn commands(
    space: &Space,
    bodies: &PlainBodies,
    step: &Step,
    nonce: u64,
) -> Vec<Result<LeaseCommand, QueueCommand>> {
    match step {
        Step::Lease(command) => vec![Ok(command.clone())],
        Step::Beat(by) => {
            let from = space.leases().clock();
            vec![Ok(LeaseCommand::Beat { from, to: from + by }), Ok(LeaseCommand::Expire { limit: 3 })]
        }
        Step::Queue(command) => vec![Err(command.clone())],
        Step::Bind(name, kind, produce, lease, weight) => {
            let kind = [Kind::Mpsc, Kind::Mpmc, Kind::Group][usize::from(*kind)];
            let role = if *produce { Role::Producer } else { Role::Consumer { credit: 4 } };
            let spec = Spec { messages_max: 6, bytes_max: 40, ttl_ms: 4_000 };
            let target = Target::Named { name: format!("n{name}{kind:?}").into(), kind, spec };
            let bind =
                Bind { target, role, lease: Hold::Own(*lease), nonce, weight: *weight, label: "p".into() };
            vec![Err(QueueCommand::Bind(Box::new(bind)))]
        }
        Step::Put(member, records, twice) => {
            let member = u64::from(*member);
            let sequence = space.member_stat(member).map_or(1, |stat| stat.appends + 1);
            let record = |number: u8| {
                let mut message = message(&vec![number; usize::from(number) * 2]);
                if number == 2 {
                    message.qos = QoS::ExactlyOnce;
                    message.expires_at = Some(Millis(77));
                }
                message
            };
            let messages: Vec<_> = (1..=*records).map(record).collect();
            let append = QueueCommand::Append { member, sequence, messages };
            vec![Err(append); 1 + usize::from(*twice)]
        }
        Step::AckFirst(member, records) => {
            let member = u64::from(*member);
            let owned = space.owned(member).unwrap_or_default();
            let ack = |owned: &Owned| {
                let mut page = Page::default();
                let at = (member, owned.channel, owned.epoch);
                let _ = space.read(at, 0, usize::from(*records), bodies, &mut page);
                let sparse = page.records.iter().skip(1).map(|record| record.offset).collect();
                let through = if *records == 3 { owned.base + 1 } else { 0 }.min(owned.end);
                let (channel, epoch) = (owned.channel, owned.epoch);
                Err(QueueCommand::Ack { member, channel, epoch, through, sparse })
            };
            owned.iter().map(ack).collect()
        }
        Step::ClaimAndSettle(member, how) => {
            let member = u64::from(*member);
            let mut page = Page::default();
            let _ = space.claimed(member, 0, 2, bodies, &mut page);
            let how = [Settle::Ack, Settle::Release, Settle::Discard][usize::from(*how)];
            let settles = page.records.iter().map(|record| (record.offset, how)).collect();
            vec![Err(QueueCommand::Settle { member, settles }), Err(QueueCommand::Claim { member, max: 2 })]
        }
    }
}

#[derive(Debug, Default)]
struct Replica {
    space: Space,
    bodies: PlainBodies,
    disk: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Replica {
    fn apply(&mut self, command: &Result<LeaseCommand, QueueCommand>) -> String {
        match command {
            Ok(lease) => format!("{:?}", self.space.apply_lease(lease, &mut self.bodies)),
            Err(queue) => format!("{:?}", self.space.apply_queue(queue, Millis(5), &mut self.bodies)),
        }
    }

    fn store(&mut self) {
        drain(&mut self.space, &self.bodies, &mut self.disk);
    }

    fn reload(&mut self) -> Result<(), String> {
        self.store();
        self.space = load(&self.disk)?;
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// One replica applies the log in one go, one stores its rows now and then, one is killed and loads what it stored.
    #[test]
    fn replicas_agree_byte_for_byte(steps in proptest::collection::vec(step(), 1..160), every in 1_usize..9) {
        let (mut plain, mut stored, mut killed) = (Replica::default(), Replica::default(), Replica::default());
        let mut at = 0;
        for (nonce, step) in steps.iter().enumerate() {
            for command in commands(&plain.space, &plain.bodies, step, nonce as u64) {
                at += 1;
                let reply = plain.apply(&command);
                prop_assert_eq!(&reply, &stored.apply(&command));
                prop_assert_eq!(&reply, &killed.apply(&command));
                prop_assert!(plain.space.check().is_ok(), "{:?} after {command:?}", plain.space.check());
                prop_assert_eq!(plain.bodies.len() as u64, plain.space.stat().messages);
                let wakes = plain.space.take_wakes();
                prop_assert_eq!(&wakes, &stored.space.take_wakes());
                prop_assert_eq!(&wakes, &killed.space.take_wakes());
                if at % every == 0 {
                    stored.store();
                    prop_assert!(killed.reload().is_ok());
                }
            }
        }
        stored.store();
        killed.store();
        let expected = dump(&plain.space, &plain.bodies);
        prop_assert_eq!(&stored.disk, &expected);
        prop_assert_eq!(&killed.disk, &expected);
        let loaded = load(&expected).expect("rows of a healthy space load");
        prop_assert_eq!(&dump(&loaded, &copy(&plain.bodies, plain.space.body_ids())), &expected);
    }

    /// P10: no damage to a stored row panics.
    #[test]
    fn damaged_rows_never_panic(steps in proptest::collection::vec(step(), 1..80), row in any::<prop::sample::Index>(), byte in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut replica = Replica::default();
        for (nonce, step) in steps.iter().enumerate() {
            for command in commands(&replica.space, &replica.bodies, step, nonce as u64) {
                replica.apply(&command);
            }
        }
        let mut rows = dump(&replica.space, &replica.bodies);
        prop_assume!(!rows.is_empty());
        let key = row.get(&rows.keys().cloned().collect::<Vec<_>>()).clone();
        let value = rows.get_mut(&key).expect("it was just listed");
        let at = byte.index(value.len());
        value[at] ^= 1 << bit;
        if let Ok(space) = load(&rows) {
            prop_assert!(space.check().is_ok());
        }
    }
}
