//! The proposer of a group: one proposal in flight, everything that arrives meanwhile goes into the next one.
//!
//! What becomes of a batch may stay unknown: its leader is gone. Then whoever waits learns that, what waits behind it is refused, and the
//! next batch is a fence: once it is applied the lost one was applied before, or never will be (`Group::apply`).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use session::id::{Boot, Key, Owner};
use session::lease::LeaseCommand;
use session::lifecycle::{Batch, Command, Stamp, Subject};
use session::queue::{QueueCommand, Target};
use tokio::sync::Notify;

use super::RaftGroup;
use super::forward::RETRY_PAUSE;
use super::proposed::{Proposed, decided, refuse};
use crate::StorageError;
use crate::port::Done;
use crate::store::{Clock, Proposal};

/// Commands of one log entry: bounds the time that `apply` holds the group's lock.
pub(super) const ENTRY_COMMANDS_MAX: usize = 4_096;
/// Bytes of one log entry; one larger command goes alone.
const ENTRY_BYTES_MAX: usize = 4 << 20;
/// Bytes that may wait in front of a group. Connections stop reading far below this (their open scopes are bounded); it is the last
/// wall against a disk that stands still.
const WAITING_BYTES_MAX: usize = 1 << 30;
/// Bytes that a command takes besides its names, bodies and lists, at most.
const COMMAND_BYTES: usize = 128;
/// Bytes of an owner besides its names: four numbers of at most ten bytes, three lengths.
const OWNER_BYTES: usize = 48;
/// Bytes of a filter in a list besides the filter: its length and options.
const FILTER_BYTES: usize = 16;
/// Bytes of a target without identifiers: a number, four bytes of flags and a length.
const TARGET_BYTES: usize = 16;
/// Bytes of a subscription identifier, whose number has 32 bits.
const IDENTIFIER_BYTES: usize = 5;
/// Bytes of a message besides topic, properties and payload.
const MESSAGE_BYTES: usize = 32;
/// Bytes of a number of 64 bits.
const NUMBER_BYTES: usize = 10;
/// Bytes of an acknowledgement: an offset and its kind.
const ACK_BYTES: usize = 11;

/// What waits for the next proposal.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Proposal>,
    bytes: usize,
    /// Who waits until nothing of unknown fate can take effect any more.
    undecided: Vec<Done>,
    /// The proposer sleeps and has to be woken.
    idle: bool,
    /// Who waited behind a lost batch is being told: until all know, nothing is taken, or it would stand before what they repeat.
    gives_up: bool,
    closed: Option<Arc<StorageError>>,
}

impl Intake {
    /// Takes proposals in order; wakes the proposer when it sleeps. Never blocks.
    pub(crate) fn submit(&self, proposals: Vec<Proposal>) {
        let bytes: usize = proposals.iter().map(|proposal| weight(&proposal.command)).sum();
        let error = {
            let mut state = self.state.lock();
            let behind = proposals.iter().any(|proposal| proposal.done.is_behind());
            match state.refusal(bytes, behind) {
                Some(error) => error,
                None => {
                    state.waiting.extend(proposals);
                    state.bytes += bytes;
                    if std::mem::take(&mut state.idle) {
                        self.wake.notify_one();
                    }
                    return;
                }
            }
        };
        refuse(proposals.into_iter().map(|proposal| proposal.done).collect(), &error);
    }

    /// Answers `done` once no batch whose fate is unknown now can take effect any more; with an error only when that will never be known.
    pub(crate) fn decide(&self, done: Done) {
        let error = {
            let mut state = self.state.lock();
            let Some(error) = state.closed.clone() else {
                state.undecided.push(done);
                if std::mem::take(&mut state.idle) {
                    self.wake.notify_one();
                }
                return;
            };
            error
        };
        refuse(vec![done], &error);
    }

    /// Refuses what waits and everything that comes.
    pub(crate) fn close(&self, error: Arc<StorageError>) {
        let (waiting, undecided) = {
            let mut state = self.state.lock();
            state.closed.get_or_insert_with(|| Arc::clone(&error));
            state.bytes = 0;
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.undecided))
        };
        self.wake.notify_one();
        refuse(waiting.into_iter().map(|proposal| proposal.done).chain(undecided).collect(), &error);
    }

    /// Refuses what waits: it was asked for behind a change whose fate is unknown now. Its connection repeats that change, and what came
    /// later must not stand before the repetition ([MQTT-4.6.0-6]). `undecided` waited for the lost batch, and goes on with the next one.
    fn give_up(&self, undecided: Vec<Done>, error: &Arc<StorageError>) {
        let waiting = {
            let mut state = self.state.lock();
            state.bytes = 0;
            state.gives_up = true;
            state.undecided.extend(undecided);
            std::mem::take(&mut state.waiting)
        };
        refuse(waiting.into_iter().map(|proposal| proposal.done).collect(), error);
        self.state.lock().gives_up = false;
    }

    /// The next log entry; `None` when closed.
    async fn next(&self) -> Option<Next> {
        loop {
            {
                let mut state = self.state.lock();
                if state.closed.is_some() {
                    return None;
                }
                if !state.waiting.is_empty() || !state.undecided.is_empty() {
                    return Some(state.take());
                }
                state.idle = true;
            }
            self.wake.notified().await;
        }
    }
}

/// A log entry to be.
struct Next {
    commands: Vec<Command>,
    waiters: Vec<Done>,
    /// Who learns by it that what was lost before has no effect any more. Without commands the entry is there for them.
    undecided: Vec<Done>,
}

impl State {
    fn refusal(&self, bytes: usize, behind: bool) -> Option<Arc<StorageError>> {
        if let Some(error) = &self.closed {
            return Some(Arc::clone(error));
        }
        if behind || self.gives_up {
            return Some(Arc::new(StorageError::Unavailable("a change before it was lost".to_owned())));
        }
        let full = self.bytes.saturating_add(bytes) > WAITING_BYTES_MAX && !self.waiting.is_empty();
        full.then(|| Arc::new(StorageError::Unavailable("too much waits for the disk".to_owned())))
    }

    fn take(&mut self) -> Next {
        let expected = self.waiting.len().min(ENTRY_COMMANDS_MAX);
        let (mut commands, mut waiters) = (Vec::with_capacity(expected), Vec::with_capacity(expected));
        let mut bytes = 0;
        while let Some(proposal) = self.waiting.front() {
            let weight = weight(&proposal.command);
            let full = commands.len() >= ENTRY_COMMANDS_MAX || bytes + weight > ENTRY_BYTES_MAX;
            if full && !commands.is_empty() {
                break;
            }
            bytes += weight;
            let Some(Proposal { command, done }) = self.waiting.pop_front() else { break };
            commands.push(command);
            waiters.push(done);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        Next { commands, waiters, undecided: std::mem::take(&mut self.undecided) }
    }
}

/// The proposer task of a group; ends when the intake is closed or the group failed.
pub(super) async fn run(group: RaftGroup, boot: Boot, clock: Arc<dyn Clock>) {
    let RaftGroup { intake, machine, .. } = &group;
    loop {
        // A log that grows faster than checkpoints free it must not fill the disk.
        machine.meter().relieved().await;
        let Some(Next { commands, waiters, undecided }) = intake.next().await else { return };
        let batch = Batch { boot: boot.clone(), at: clock.now(), commands };
        let proposed = Proposed::new(machine.forwarded().number(), batch, waiters);
        if let Err(fatal) = group.bring(&proposed).await {
            let error = Arc::new(fatal);
            proposed.lost(&error);
            refuse(undecided, &error);
            intake.close(error);
            return;
        }
        if let Some(error) = proposed.failure() {
            intake.give_up(undecided, &error);
            // The next one is proposed at once, and often fails at once.
            tokio::time::sleep(RETRY_PAUSE).await;
        } else {
            decided(undecided);
        }
    }
}

/// Bytes that a command takes in the log, at most: an entry that is larger than it is taken for does not fit the link to other nodes. Every
/// command is named, so that a new one is weighed.
fn weight(command: &Command) -> usize {
    COMMAND_BYTES
        + match command {
            Command::BootStart { .. }
            | Command::BootRenew { .. }
            | Command::Receive { .. }
            | Command::Release { .. }
            | Command::Routed { .. }
            | Command::Tidy
            | Command::Sent { .. }
            | Command::Quotas { .. }
            | Command::QuotaRule(_)
            | Command::RetainedQuota(_)
            | Command::StampRetention { .. } => 0,
            Command::BootRetire { boot, proof, .. } | Command::BootRetireSilent { boot, proof, .. } => {
                boot.boot_id.len() + proof.text().map_or(0, |text| text.len())
            }
            Command::Connect(connect) => {
                owner_weight(&connect.owner)
                    + connect.uid.as_ref().map_or(0, |uid| uid.len())
                    + connect.previous.as_ref().map_or(0, |(_, owner)| owner_weight(owner))
                    + connect.will.as_ref().map_or(0, |will| will.message.len())
            }
            Command::Disconnect(disconnect) => owner_weight(&disconnect.owner),
            Command::End(end) => owner_weight(&end.owner),
            Command::Reconcile { key, .. }
            | Command::Unbind { key, .. }
            | Command::Reclaim { key, .. }
            | Command::ReleaseBinding { key } => key_weight(key),
            Command::Deny(row) => subject_weight(&row.subject) + row.reason.len(),
            Command::Allow(subject) => subject_weight(subject),
            Command::Subscribe { filters, .. } => {
                filters.iter().map(|filter| filter.filter.len() + FILTER_BYTES).sum()
            }
            Command::Unsubscribe { filters, .. } => {
                filters.iter().map(|filter| filter.len() + FILTER_BYTES).sum()
            }
            Command::Rebound { offsets, .. } => offsets.len() * NUMBER_BYTES,
            Command::Lease(LeaseCommand::Keepalive { leases }) => leases.len() * NUMBER_BYTES,
            Command::Lease(_) => 0,
            Command::Queue(command) => queue_weight(command),
            Command::Append(append) | Command::Feed(append) => {
                let identifiers: usize = append.targets.iter().map(|target| target.identifiers.len()).sum();
                append.message.len()
                    + append.stamp.as_ref().map_or(0, stamp_weight)
                    + append.targets.len() * TARGET_BYTES
                    + identifiers * IDENTIFIER_BYTES
            }
            Command::Ack { acks, .. } => acks.len() * ACK_BYTES,
            Command::Retain { message, stamp } => message.len() + stamp.as_ref().map_or(0, stamp_weight),
            Command::WillClaim { will, .. }
            | Command::WillPublished { will }
            | Command::WillReject { will } => key_weight(&will.key),
        }
}

fn subject_weight(subject: &Subject) -> usize {
    match subject {
        Subject::User(user) => user.len(),
        Subject::Client(key) => key_weight(key),
    }
}

fn queue_weight(command: &QueueCommand) -> usize {
    match command {
        QueueCommand::Bind(bind) => {
            let name = match &bind.target {
                Target::Named { name, .. } => name.len(),
                Target::Channel(_) => 0,
            };
            name + bind.label.len()
        }
        QueueCommand::Leave { delivered, .. } => delivered.len() * NUMBER_BYTES * 2,
        QueueCommand::Append { messages, .. } => {
            messages.iter().map(|message| message.len() + MESSAGE_BYTES).sum()
        }
        QueueCommand::Ack { sparse, .. } => sparse.len() * NUMBER_BYTES,
        QueueCommand::Settle { settles, .. } => settles.len() * ACK_BYTES,
        QueueCommand::Withdraw { .. }
        | QueueCommand::Claim { .. }
        | QueueCommand::Seal { .. }
        | QueueCommand::Delete { .. }
        | QueueCommand::Reclaim { .. }
        | QueueCommand::LeaseGone { .. } => 0,
    }
}

fn key_weight(key: &Key) -> usize {
    key.namespace.len() + key.client_id.len()
}

fn owner_weight(owner: &Owner) -> usize {
    OWNER_BYTES + key_weight(&owner.key) + owner.boot_id.len()
}

fn stamp_weight(stamp: &Stamp) -> usize {
    match stamp {
        Stamp::Publisher { key, .. } => key_weight(key),
        Stamp::Will(will) => key_weight(&will.key),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use session::lifecycle::{
        Ack, AckKind, Append, Connect, Disconnect, DisconnectKind, End, EndReason, QuotaRule, RetireProof,
        SessionRef, SubscriptionOptions, SubscriptionRow, Target as Inbox, WillKey, WillMode, WillTemplate,
    };
    use session::message::{Message, QoS};
    use session::queue::{Bind, Hold, Kind, Role, Settle, Spec};
    use session::time::Millis;

    use super::*;

    /// Every number at its largest, so that it takes the most bytes, and every name as long as it may be.
    fn owner() -> Owner {
        Owner {
            key: Key { namespace: "n".repeat(1_024).into(), client_id: "c".repeat(1_024).into() },
            session_generation: u64::MAX,
            owner_generation: u64::MAX,
            node_id: u64::MAX,
            boot_id: "b".repeat(128).into(),
            connection_id: u64::MAX,
        }
    }

    fn message() -> Message {
        let mut message = Message::new(&"t".repeat(60_000), &[1; 70_000], &[2; 300_000]);
        message.qos = QoS::ExactlyOnce;
        message.expires_at = Some(Millis(u64::MAX));
        message
    }

    fn connect() -> Command {
        Command::Connect(Box::new(Connect {
            owner: owner(),
            uid: Some("u".repeat(1_024).into()),
            previous: Some((u64::MAX, owner())),
            clean_start: true,
            expiry_sec: u32::MAX,
            will: None,
        }))
    }

    const MOST: u64 = u64::MAX;
    const AT: Millis = Millis(u64::MAX);
    const SESSION: SessionRef = SessionRef { lifetime: MOST, owner_generation: MOST };

    fn will_key() -> WillKey {
        WillKey { key: owner().key, session_generation: MOST, will_generation: MOST }
    }

    fn samples() -> Vec<Command> {
        [small(), of_boots(), of_owners(), of_filters(), of_messages(), of_wills(), of_queues()].concat()
    }

    fn small() -> Vec<Command> {
        vec![
            Command::Ack {
                session: SESSION,
                acks: vec![Ack { offset: MOST, kind: AckKind::Received }; 1_000],
            },
            Command::Receive { session: SESSION, packet_id: u16::MAX },
            Command::Release { session: SESSION, packet_id: u16::MAX },
            Command::Tidy,
            Command::Sent { session: SESSION, through: MOST },
            Command::Quotas { messages: MOST, bytes: MOST },
            Command::QuotaRule(QuotaRule::End),
            Command::RetainedQuota(MOST),
            Command::StampRetention { ms: MOST },
        ]
    }

    fn of_boots() -> Vec<Command> {
        let boot = Boot { node_id: MOST, boot_id: "b".repeat(128).into() };
        let proof = RetireProof::Attested { text: "a".repeat(1_000).into() };
        vec![
            Command::BootStart { lease_until: AT },
            Command::BootRenew { revision: MOST, lease_until: AT },
            Command::BootRetire { boot: boot.clone(), proof: proof.clone(), observed_at: AT },
            Command::BootRetireSilent { boot, revision: MOST, proof, observed_at: AT },
        ]
    }

    fn of_owners() -> Vec<Command> {
        let (owner, key) = (owner(), owner().key);
        let Command::Connect(with_will) = connect() else { unreachable!() };
        let template =
            WillTemplate { message: message(), delay_sec: u32::MAX, message_expiry_sec: Some(u32::MAX) };
        let with_will = Connect { will: Some(template), ..*with_will };
        vec![
            connect(),
            Command::Connect(Box::new(with_will)),
            Command::Disconnect(Box::new(Disconnect {
                owner: owner.clone(),
                kind: DisconnectKind::WithWill,
                observed_at: AT,
                expiry_sec: Some(u32::MAX),
                sent_through: MOST,
            })),
            Command::End(Box::new(End {
                owner,
                revision: MOST,
                reason: EndReason::Explicit,
                observed_at: AT,
                will: WillMode::Suppress,
                sent_through: MOST,
            })),
            Command::Reconcile { key: key.clone(), revision: MOST },
            Command::Reclaim { key: key.clone(), revision: MOST, limit: u32::MAX, binding_until: AT },
            Command::ReleaseBinding { key },
        ]
    }

    fn of_filters() -> Vec<Command> {
        let filter: Arc<str> = "f".repeat(60_000).into();
        let options = SubscriptionOptions {
            qos: QoS::ExactlyOnce,
            no_local: true,
            retain_as_published: true,
            identifier: u32::MAX,
        };
        let rows = vec![SubscriptionRow { filter: Arc::clone(&filter), options }; 100];
        vec![
            Command::Subscribe { session: SESSION, filters: rows },
            Command::Unsubscribe { session: SESSION, filters: vec![filter; 100] },
        ]
    }

    fn of_messages() -> Vec<Command> {
        let target = Inbox {
            lifetime: MOST,
            qos: QoS::ExactlyOnce,
            retain: true,
            identifiers: [u32::MAX; 3].into_iter().collect(),
            shared: true,
        };
        let stamp =
            Stamp::Publisher { key: owner().key, lifetime: MOST, packet_id: u16::MAX, sequence: MOST };
        let append = |targets| {
            Box::new(Append {
                message: message(),
                stamp: Some(stamp.clone()),
                targets: vec![target.clone(); targets],
            })
        };
        vec![
            Command::Append(append(0)),
            Command::Feed(append(10_000)),
            Command::Retain { message: message(), stamp: Some(Stamp::Will(will_key())) },
            Command::Unbind { key: owner().key, revision: MOST, limit: u32::MAX },
            Command::Rebound { lifetime: MOST, offsets: vec![MOST; 1_000] },
        ]
    }

    fn of_wills() -> Vec<Command> {
        vec![
            Command::WillClaim { will: will_key(), lease_until: AT },
            Command::WillPublished { will: will_key() },
            Command::WillReject { will: will_key() },
        ]
    }

    fn of_queues() -> Vec<Command> {
        let bind = Bind {
            target: Target::Named {
                name: "q".repeat(1_024).into(),
                kind: Kind::Group,
                spec: Spec { messages_max: MOST, bytes_max: MOST, ttl_ms: MOST },
            },
            role: Role::Consumer { credit: u32::MAX },
            lease: Hold::Foreign { incarnation: MOST, lease: MOST },
            nonce: MOST,
            weight: u32::MAX,
            label: "l".repeat(1_024).into(),
        };
        let (messages, delivered) = (vec![message(), message()], vec![(MOST, MOST); 1_000]);
        let ack = QueueCommand::Ack {
            member: MOST,
            channel: MOST,
            epoch: MOST,
            through: MOST,
            sparse: vec![MOST; 1_000],
        };
        vec![
            Command::Lease(LeaseCommand::Keepalive { leases: vec![MOST; 1_000] }),
            Command::Lease(LeaseCommand::Arm { lease: MOST, ttl_ms: MOST }),
            Command::Queue(QueueCommand::Bind(Box::new(bind))),
            Command::Queue(QueueCommand::Leave { member: MOST, delivered }),
            Command::Queue(QueueCommand::Append { member: MOST, sequence: MOST, messages }),
            Command::Queue(ack),
            Command::Queue(QueueCommand::Settle {
                member: MOST,
                settles: vec![(MOST, Settle::Discard); 1_000],
            }),
        ]
    }

    fn encoded(commands: &[Command]) -> usize {
        commands.iter().map(|command| postcard::to_allocvec(command).unwrap().len()).sum()
    }

    /// P9: what bounds an entry is not less than its bytes, whatever is in it.
    #[test]
    fn no_command_is_larger_than_its_weight() {
        for command in samples() {
            let (weight, bytes) = (weight(&command), encoded(std::slice::from_ref(&command)));
            assert!(weight >= bytes, "{weight} for {bytes} bytes of {command:?}");
        }
    }

    /// P9: mass connects with the longest names make entries that fit a call over the peer link (8 MiB).
    #[test]
    fn an_entry_of_the_largest_connects_has_a_bound() {
        let mut state = State::default();
        let proposal = |command| Proposal { command, done: Done::Nobody };
        state.waiting.extend((0..ENTRY_COMMANDS_MAX).map(|_| proposal(connect())));
        let mut taken = 0;
        while !state.waiting.is_empty() {
            let commands = state.take().commands;
            taken += commands.len();
            assert!(encoded(&commands) <= ENTRY_BYTES_MAX);
        }
        assert_eq!(taken, ENTRY_COMMANDS_MAX);
    }

    /// Told that something was lost; its owner has not looked yet.
    #[derive(Debug, Default)]
    struct Behind(Mutex<Vec<u64>>);

    impl crate::port::CompletionPort for Behind {
        fn complete(&self, batch: Vec<(u64, Result<session::lifecycle::Reply, Arc<StorageError>>)>) {
            self.0.lock().extend(batch.iter().filter(|(_, reply)| reply.is_err()).map(|(token, _)| token));
        }

        fn is_behind(&self) -> bool {
            true
        }
    }

    /// [MQTT-4.6.0-6]: what is proposed by one who does not know yet that an earlier change was lost does not take its place.
    #[tokio::test]
    async fn who_has_not_learnt_of_a_loss_proposes_nothing() {
        let (intake, port) = (Intake::default(), Arc::new(Behind::default()));
        let done = Done::Port { port: Arc::clone(&port) as _, token: 7 };
        intake.submit(vec![Proposal { command: Command::Tidy, done }]);
        assert_eq!(*port.0.lock(), [7]);
        intake.submit(vec![Proposal { command: Command::Tidy, done: Done::Nobody }]);
        assert_eq!(intake.next().await.expect("open").commands.len(), 1);
    }

    /// P5: who waits for a decision gets an entry of its own when nothing else is proposed.
    #[tokio::test]
    async fn a_decision_needs_no_other_proposal() {
        let intake = Intake::default();
        intake.decide(Done::Nobody);
        let next = intake.next().await.expect("open");
        assert_eq!((next.commands.len(), next.undecided.len()), (0, 1));
        intake.give_up(next.undecided, &Arc::new(StorageError::Unavailable("lost".to_owned())));
        assert_eq!(intake.next().await.expect("open").undecided.len(), 1);
    }

    /// Proposes something else while it is told of a loss, as a worker's other thread may.
    #[derive(Debug)]
    struct Hasty(std::sync::OnceLock<Arc<Intake>>, Mutex<usize>);

    impl crate::port::CompletionPort for Hasty {
        fn complete(&self, batch: Vec<(u64, Result<session::lifecycle::Reply, Arc<StorageError>>)>) {
            *self.1.lock() += batch.len();
            if let (Some(intake), true) = (self.0.get(), *self.1.lock() == 1) {
                intake.submit(vec![Proposal { command: Command::Tidy, done: Done::Nobody }]);
            }
        }
    }

    /// [MQTT-4.6.0-6]: nothing gets in between a lost batch and those who waited behind it and are being told.
    #[tokio::test]
    async fn nothing_is_taken_while_a_loss_is_told() {
        let (intake, port) =
            (Arc::new(Intake::default()), Arc::new(Hasty(std::sync::OnceLock::new(), Mutex::new(0))));
        port.0.set(Arc::clone(&intake)).unwrap();
        let done = Done::Port { port: Arc::clone(&port) as _, token: 1 };
        intake.submit(vec![Proposal { command: Command::Tidy, done }]);
        intake.give_up(Vec::new(), &Arc::new(StorageError::Unavailable("lost".to_owned())));
        assert_eq!(*port.1.lock(), 1);
        assert!(intake.state.lock().waiting.is_empty(), "what came meanwhile was refused");
        intake.submit(vec![Proposal { command: Command::Tidy, done: Done::Nobody }]);
        assert_eq!(intake.state.lock().waiting.len(), 1);
    }
}
