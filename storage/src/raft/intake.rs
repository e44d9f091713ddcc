//! The proposer of a group: one proposal in flight, everything that arrives meanwhile goes into the next one.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use session::id::Boot;
use session::lifecycle::{Batch, Command};
use session::queue::QueueCommand;
use tokio::sync::Notify;

use super::RaftGroup;
use super::proposed::{Proposed, refuse};
use crate::StorageError;
use crate::port::Done;
use crate::store::{Clock, Proposal};

/// Commands of one log entry: bounds the time that `apply` holds the group's lock.
const ENTRY_COMMANDS_MAX: usize = 4_096;
/// Bytes of one log entry, about; one larger command goes alone.
const ENTRY_BYTES_MAX: usize = 4 << 20;
/// Bytes that may wait in front of a group. Connections stop reading far below this (their open scopes are bounded); it is the last
/// wall against a disk that stands still.
const WAITING_BYTES_MAX: usize = 1 << 30;
/// Bytes that a command takes besides its bodies, about.
const COMMAND_BYTES: usize = 128;

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
    /// The proposer sleeps and has to be woken.
    idle: bool,
    closed: Option<Arc<StorageError>>,
}

impl Intake {
    /// Takes proposals in order; wakes the proposer when it sleeps. Never blocks.
    pub(crate) fn submit(&self, proposals: Vec<Proposal>) {
        let bytes: usize = proposals.iter().map(|proposal| weight(&proposal.command)).sum();
        let error = {
            let mut state = self.state.lock();
            match state.refusal(bytes) {
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

    /// Refuses what waits and everything that comes.
    pub(crate) fn close(&self, error: Arc<StorageError>) {
        let waiting = {
            let mut state = self.state.lock();
            state.closed.get_or_insert_with(|| Arc::clone(&error));
            state.bytes = 0;
            std::mem::take(&mut state.waiting)
        };
        self.wake.notify_one();
        refuse(waiting.into_iter().map(|proposal| proposal.done).collect(), &error);
    }

    /// The next log entry's commands and waiters; `None` when closed.
    async fn next(&self) -> Option<(Vec<Command>, Vec<Done>)> {
        loop {
            {
                let mut state = self.state.lock();
                if state.closed.is_some() {
                    return None;
                }
                if !state.waiting.is_empty() {
                    return Some(state.take());
                }
                state.idle = true;
            }
            self.wake.notified().await;
        }
    }
}

impl State {
    fn refusal(&self, bytes: usize) -> Option<Arc<StorageError>> {
        if let Some(error) = &self.closed {
            return Some(Arc::clone(error));
        }
        let full = self.bytes.saturating_add(bytes) > WAITING_BYTES_MAX && !self.waiting.is_empty();
        full.then(|| Arc::new(StorageError::Unavailable("too much waits for the disk".to_owned())))
    }

    fn take(&mut self) -> (Vec<Command>, Vec<Done>) {
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
        (commands, waiters)
    }
}

/// The proposer task of a group; ends when the intake is closed or the group failed.
pub(super) async fn run(group: RaftGroup, boot: Boot, clock: Arc<dyn Clock>) {
    let RaftGroup { intake, machine, .. } = &group;
    loop {
        // A log that grows faster than checkpoints free it must not fill the disk.
        machine.meter().relieved().await;
        let Some((commands, waiters)) = intake.next().await else { return };
        let batch = Batch { boot: boot.clone(), at: clock.now(), commands };
        let proposed = Proposed::new(machine.forwarded().number(), batch, waiters);
        if let Err(fatal) = group.bring(&proposed).await {
            let error = Arc::new(fatal);
            proposed.lost(&error);
            intake.close(error);
            return;
        }
    }
}

/// Bytes that a command takes in the log, about.
fn weight(command: &Command) -> usize {
    COMMAND_BYTES
        + match command {
            Command::Append(append) | Command::Feed(append) => {
                append.message.len() + append.targets.len() * size_of::<u64>() * 2
            }
            Command::Retain { message, .. } => message.len(),
            Command::Connect(connect) => connect.will.as_ref().map_or(0, |will| will.message.len()),
            Command::Subscribe { filters, .. } => {
                filters.iter().map(|filter| filter.filter.len() + size_of::<u64>()).sum()
            }
            Command::Unsubscribe { filters, .. } => filters.iter().map(|filter| filter.len()).sum(),
            Command::Ack { acks, .. } => acks.len() * size_of::<u64>(),
            Command::Queue(QueueCommand::Append { messages, .. }) => {
                messages.iter().map(|message| message.len() + COMMAND_BYTES).sum()
            }
            _ => 0,
        }
}
