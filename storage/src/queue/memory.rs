//! The backend `memory`: one group in this process, gone with it. The same state machine as everywhere, hence the same promises but
//! durability.

use std::hash::{BuildHasher, RandomState};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use session::lease::LeaseCommand;
use session::queue::{Hold, Page, PlainBodies, QueueCommand, QueueReply, Space};
use session::time::Millis;

use super::{ChannelStore, Due, LogPage, LogRecord, Request, Response, Unavailable, Wakes};
use crate::lease::LeaseFuture;

/// Channels in memory.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<(Space, PlainBodies)>,
    wakes: Wakes,
    start: Instant,
    incarnation: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let state = Mutex::new((Space::default(), PlainBodies::default()));
        // Another one in every process and instance.
        let incarnation = RandomState::new().hash_one(std::process::id()) | 1;
        Self { state, wakes: Wakes::default(), start: Instant::now(), incarnation }
    }
}

impl MemoryStore {
    fn apply(&self, request: Request) -> Response {
        let mut state = self.state.lock();
        let (space, bodies) = &mut *state;
        let now = self.now();
        let lease_now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        if passes_time(&request) {
            let beat = LeaseCommand::Beat { from: space.leases().clock(), to: lease_now };
            space.apply_lease(&beat, bodies);
        }
        let response = match request {
            Request::Leases(commands) => {
                Response::Leases(commands.iter().map(|command| space.apply_lease(command, bodies)).collect())
            }
            Request::LeasesLeft(leases) => {
                Response::LeasesLeft(leases.iter().map(|lease| space.leases().left_ms(*lease)).collect())
            }
            Request::Queue(command) => {
                let reply = space.apply_queue(&command, now, bodies);
                if let QueueReply::Bound(bound) = &reply {
                    self.wakes.open(bound.member);
                }
                Response::Queue(reply)
            }
            Request::Owned { member } => Response::Owned(space.owned(member)),
            Request::Read { at, from, max } => {
                let mut page = Page::default();
                let read = space.read(at, from, max as usize, bodies, &mut page);
                Response::Page(read.map(|()| whole(page)))
            }
            Request::Claimed { member, from, max } => {
                let mut page = Page::default();
                let read = space.claimed(member, from, max as usize, bodies, &mut page);
                Response::Page(read.map(|()| whole(page)))
            }
            Request::Appends { member } => {
                Response::Appends(space.member_stat(member).map(|stat| stat.appends))
            }
            Request::Due => Response::Due(due(space, true, lease_now)),
            Request::Wait { .. } | Request::DueChanged => Response::Woken,
        };
        self.wakes.wake(&space.take_wakes(), |member| space.member_stat(member).is_some());
        if space.take_due_changed() {
            self.wakes.wake_keeper();
        }
        response
    }
}

impl ChannelStore for MemoryStore {
    fn name(&self) -> &str {
        "memory"
    }

    fn groups(&self) -> u16 {
        1
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn now(&self) -> Millis {
        wall()
    }

    fn call(&self, group: u16, request: Request) -> LeaseFuture<'_, Result<Response, Unavailable>> {
        Box::pin(async move {
            if group != 0 {
                return Err(Unavailable(format!("there is no group {group}")));
            }
            match request {
                Request::Wait { member } => self.wakes.wait(member).await,
                Request::DueChanged => self.wakes.due_changed().await,
                other => return Ok(self.apply(other)),
            }
            Ok(Response::Woken)
        })
    }
}

/// The wall clock: only for the expiry that producers gave their records.
pub(super) fn wall() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn whole(page: Page) -> LogPage {
    let record = |record: session::queue::Record| LogRecord {
        offset: record.offset,
        redelivered: record.redelivered,
        message: record.message,
    };
    LogPage { records: page.records.into_iter().map(record).collect(), next: page.next, sealed: page.sealed }
}

/// Whether lease time has to be up to date for it: it starts or ends the running of a lease.
pub(super) fn passes_time(request: &Request) -> bool {
    match request {
        Request::Leases(_) => true,
        Request::Queue(command) => matches!(
            command,
            QueueCommand::Bind(_)
                | QueueCommand::Leave { .. }
                | QueueCommand::LeaseGone { .. }
                | QueueCommand::Delete { .. }
        ),
        _ => false,
    }
}

/// What has to be done in a space.
pub(super) fn due(space: &Space, ours: bool, now: u64) -> Due {
    Due {
        ours,
        clock: space.leases().clock(),
        now,
        next_deadline: space.leases().next_deadline(),
        reclaimable: space.reclaimable().take(DUE_AT_ONCE).collect(),
        foreign: some_foreign(space, now),
    }
}

/// All, or, where they are too many for one look, others from beat to beat.
fn some_foreign(space: &Space, now: u64) -> Vec<Hold> {
    let all = space.foreign_holds().count();
    let looks = usize::try_from(now / FOREIGN_TURN_MS).unwrap_or_default();
    let from = if all > DUE_AT_ONCE { looks.wrapping_mul(DUE_AT_ONCE) % all } else { 0 };
    let some: Vec<Hold> = space.foreign_holds().skip(from).take(DUE_AT_ONCE).collect();
    let more = DUE_AT_ONCE.min(all) - some.len();
    some.into_iter().chain(space.foreign_holds().take(more)).collect()
}

/// Channels and leases that one look names.
const DUE_AT_ONCE: usize = 1_024;
/// How long a look names the same ones of more leases of other backends than that.
const FOREIGN_TURN_MS: u64 = 5_000;
