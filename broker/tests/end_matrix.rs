//! `End` under faults: the 20-fault matrix (owner spec §8.4) and its companions (§8.5), on the real lifecycle rows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use broker::clock::{ManualTime, NodeClock};
use broker::usecase::EndInput;
use broker::usecase::authority::{Authority, PointRead, Unavailable};
use broker::usecase::end::{Call, EndCase, EndError, Moment, Moments};
use broker::usecase::isolation::{Isolation, IsolationError, IsolationFuture};
use session::id::{Key, Owner};
use session::lifecycle::{
    Command, Conflict, EndReason, Reply, SessionRow, SessionState, WillMode, WillStage,
};
use session::time::{Millis, Tick};

use support::rows::{LEASE_MS, Rows, will};

/// Everything that may go wrong, by the numbers of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    InvalidReason,
    Cancelled,
    Missing,
    Foreign,
    Partial,
    Exhausted,
    Clock,
    WallClock,
    Unproved,
    Successor,
    CancelRead,
    CancelIsolation,
    PanicRead,
    PanicIsolation,
    LostReply,
    BadReceipt,
    LiveWillReceipt,
    ConflictStatus,
    PanicCommit,
    CancelCommit,
    /// Beyond the matrix: the store never answers.
    HangingCommit,
}

const SECRET: &str = "injected secret";

struct Bench {
    rows: Rows,
    fault: std::sync::Mutex<Fault>,
    cancelled: AtomicBool,
    /// Time that passes inside the isolation.
    isolation_ms: u64,
}

impl Bench {
    fn new(fault: Fault) -> Self {
        let bench = Self {
            rows: Rows::new(),
            fault: std::sync::Mutex::new(fault),
            cancelled: AtomicBool::new(fault == Fault::Cancelled),
            isolation_ms: 0,
        };
        bench.rows.connect("c", 3_600, Some(will(5)));
        bench.rows.time.advance_ms(1_000);
        bench
    }

    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap()
    }

    fn heal(&self) {
        *self.fault.lock().unwrap() = Fault::None;
        self.cancelled.store(false, Ordering::SeqCst);
    }

    fn cancel_on(&self, fault: Fault) {
        if self.fault() == fault {
            self.cancelled.store(true, Ordering::SeqCst);
        }
    }

    async fn end(&self, owner: &Owner, reason: EndReason) -> Result<SessionRow, EndError> {
        let case = EndCase { authority: self, isolation: self, clock: self, own: None };
        let call = Call { deadline: Tick(u64::MAX), cancelled: &self.cancelled };
        let input = EndInput { owner: owner.clone(), reason, will: WillMode::Publish, release: false };
        case.run(&call, &input, &|| 0).await
    }
}

impl Moments for Bench {
    fn now(&self) -> Option<Moment> {
        let moment = Moment { tick: self.rows.clock.tick(), at: self.rows.clock.millis() };
        match self.fault() {
            Fault::WallClock => None,
            Fault::Clock => Some(Moment { at: Millis(moment.at.0 - 2_000), ..moment }),
            _ => Some(moment),
        }
    }
}

impl Authority for Bench {
    async fn read(&self, key: &Key) -> Result<PointRead, Unavailable> {
        let mut read = self.rows.read(key);
        self.cancel_on(Fault::CancelRead);
        match self.fault() {
            Fault::Missing => read.row = None,
            Fault::Foreign => {
                let row = read.row.as_mut().unwrap();
                row.owner.key = Key::new("main".into(), "someone else".into()).unwrap();
                row.uid = Some("someone else".into());
            }
            Fault::Partial => read.complete = false,
            Fault::Exhausted => read.row.as_mut().unwrap().revision = u64::MAX,
            Fault::PanicRead => panic!("{SECRET}"),
            _ => {}
        }
        Ok(read)
    }

    async fn commit(
        &self,
        _key: &Key,
        before: Option<Command>,
        command: Command,
    ) -> Result<Reply, Unavailable> {
        assert!(before.is_none());
        let is_end = matches!(command, Command::End(_));
        if self.fault() == Fault::HangingCommit {
            return std::future::pending().await;
        }
        let mut reply = self.rows.apply(command);
        if !is_end {
            return Ok(reply);
        }
        self.cancel_on(Fault::CancelCommit);
        match (self.fault(), &mut reply) {
            (Fault::LostReply, _) => return Err(Unavailable),
            (Fault::PanicCommit, _) => panic!("{SECRET}"),
            (Fault::ConflictStatus, _) => reply = Reply::Conflict(Conflict::Fenced),
            (Fault::BadReceipt, Reply::Row { row, .. }) => row.revision += 1,
            (Fault::LiveWillReceipt, Reply::Row { row, .. }) => row.will_generation = 1,
            _ => {}
        }
        Ok(reply)
    }
}

impl Isolation for Bench {
    fn quiesce<'a>(&'a self, _owner: &'a Owner, _deadline: Tick) -> IsolationFuture<'a> {
        Box::pin(async move {
            self.rows.time.advance_ms(self.isolation_ms);
            self.cancel_on(Fault::CancelIsolation);
            match self.fault() {
                Fault::Unproved => Err(IsolationError::Unproved),
                Fault::PanicIsolation => panic!("{SECRET}"),
                Fault::Successor => {
                    self.rows.connect("c", 3_600, None);
                    Ok(())
                }
                _ => Ok(()),
            }
        })
    }
}

/// Owner spec §8.4, one row of the matrix.
async fn fault_row(fault: Fault, expected: EndError, ended: bool) {
    let bench = Bench::new(fault);
    let before = bench.rows.row("c").unwrap();
    let reason = if fault == Fault::InvalidReason { EndReason::CleanStart } else { EndReason::Revoked };
    let error = bench.end(&before.owner, reason).await.unwrap_err();
    assert_eq!(error, expected, "{fault:?}");
    assert!(!error.to_string().contains(SECRET) && !format!("{error:?}").contains(SECRET));
    let after = bench.rows.row("c").unwrap();
    if fault == Fault::Successor {
        assert_eq!(after.owner.owner_generation, before.owner.owner_generation + 1);
        assert_eq!(after.state, SessionState::Active, "the successor is untouched");
    } else if ended {
        assert_eq!(after.state, SessionState::Ended { reason: EndReason::Revoked }, "{fault:?}");
        assert_eq!(after.revision, before.revision + 1, "{fault:?}");
        bench.heal();
        let again = bench.end(&before.owner, EndReason::Revoked).await;
        assert_eq!(again.map(|row| row.revision), Ok(before.revision + 1), "{fault:?}");
        assert_eq!(bench.rows.row("c").unwrap().revision, before.revision + 1);
    } else {
        assert_eq!(after, before, "{fault:?} changed the row");
    }
}

/// P3, P10, owner spec §8.4: every fault is an error of its own kind, no text of a dependency gets out, and the row is as the matrix says.
#[tokio::test]
async fn p3_the_twenty_faults_of_end() {
    std::panic::set_hook(Box::new(|_| {}));
    let matrix = [
        (Fault::InvalidReason, EndError::Invalid, false),
        (Fault::Cancelled, EndError::Cancelled, false),
        (Fault::Missing, EndError::Fenced, false),
        (Fault::Foreign, EndError::Fenced, false),
        (Fault::Partial, EndError::Evidence, false),
        (Fault::Exhausted, EndError::Evidence, false),
        (Fault::Clock, EndError::Clock, false),
        (Fault::WallClock, EndError::Clock, false),
        (Fault::Unproved, EndError::Unproved, false),
        (Fault::Successor, EndError::Fenced, false),
        (Fault::CancelRead, EndError::Cancelled, false),
        (Fault::CancelIsolation, EndError::Cancelled, false),
        (Fault::PanicRead, EndError::LifecycleCallback, false),
        (Fault::PanicIsolation, EndError::LifecycleCallback, false),
        (Fault::LostReply, EndError::Unavailable, true),
        (Fault::BadReceipt, EndError::Evidence, true),
        (Fault::LiveWillReceipt, EndError::Evidence, true),
        (Fault::ConflictStatus, EndError::Conflict, true),
        (Fault::PanicCommit, EndError::LifecycleCallback, true),
        (Fault::CancelCommit, EndError::Cancelled, true),
    ];
    for (fault, expected, ended) in matrix {
        fault_row(fault, expected, ended).await;
    }
    let _ = std::panic::take_hook();
}

/// Owner spec §8.5: the Will is Ready with disconnected = due = the observation; a second End with another reason changes nothing; the next
/// CONNECT starts a new lifetime.
#[tokio::test]
async fn p3_the_first_reason_and_the_ready_will_stay() {
    let bench = Bench::new(Fault::None);
    let before = bench.rows.row("c").unwrap();
    let now = bench.rows.clock.millis();
    let row = bench.end(&before.owner, EndReason::Revoked).await.unwrap();
    assert_eq!(row.state, SessionState::Ended { reason: EndReason::Revoked });
    let will = bench.rows.last_will("c").unwrap();
    assert_eq!((will.stage, will.disconnected_at, will.due_at), (WillStage::Ready, Some(now), Some(now)));
    let second = bench.end(&before.owner, EndReason::Explicit).await.unwrap();
    assert_eq!(second, row);
    let (next, session_present) = bench.rows.connect("c", 3_600, None);
    assert!(!session_present);
    assert_eq!(next.owner.session_generation, before.owner.session_generation + 1);
    assert_eq!(bench.end(&before.owner, EndReason::Revoked).await, Err(EndError::Fenced));
}

/// Owner spec §8.5 "Will clocks", waiting: `disconnected` stays, `due` becomes the observation.
#[tokio::test]
async fn p6_end_brings_a_waiting_will_forward() {
    let bench = Bench::new(Fault::None);
    let before = bench.rows.row("c").unwrap();
    let disconnected = bench.rows.clock.millis();
    bench.rows.disconnect(&before.owner, false);
    bench.rows.time.advance_ms(2_000);
    let observed = bench.rows.clock.millis();
    bench.end(&before.owner, EndReason::Revoked).await.unwrap();
    let will = bench.rows.last_will("c").unwrap();
    assert_eq!(
        (will.stage, will.disconnected_at, will.due_at),
        (WillStage::Ready, Some(disconnected), Some(observed))
    );
}

/// Owner spec §8.5 "Will clocks", normal: a cancelled Will stays cancelled.
#[tokio::test]
async fn p6_end_does_not_revive_a_cancelled_will() {
    let bench = Bench::new(Fault::None);
    let before = bench.rows.row("c").unwrap();
    bench.rows.disconnect(&before.owner, true);
    bench.end(&before.owner, EndReason::Revoked).await.unwrap();
    assert_eq!(bench.rows.last_will("c"), None, "a cancelled Will leaves no row");
}

/// Owner spec §8.5 "Will clocks", expired_active: the lease ran out before End; the end counts from then.
#[tokio::test]
async fn p6_end_after_the_lease_counts_from_the_lease_end() {
    let bench = Bench::new(Fault::None);
    let before = bench.rows.row("c").unwrap();
    let lease_until = bench.rows.read(&before.owner.key).lease_until.unwrap();
    bench.rows.time.advance_ms(LEASE_MS + 60_000);
    bench.end(&before.owner, EndReason::Revoked).await.unwrap();
    let will = bench.rows.last_will("c").unwrap();
    assert_eq!(will.stage, WillStage::Ready);
    assert_eq!(will.disconnected_at, Some(lease_until));
    assert!(will.due_at.unwrap() <= lease_until.plus_ms(5_000));
}

/// Owner spec §8.5 "Will clocks", slow_isolation: 20 s inside the isolation change nothing.
#[tokio::test]
async fn p6_slow_isolation_does_not_move_the_observation() {
    let mut bench = Bench::new(Fault::None);
    bench.isolation_ms = 8_000;
    let before = bench.rows.row("c").unwrap();
    let observed = bench.rows.clock.millis();
    bench.end(&before.owner, EndReason::Revoked).await.unwrap();
    let will = bench.rows.last_will("c").unwrap();
    assert_eq!((will.disconnected_at, will.due_at), (Some(observed), Some(observed)));
}

/// The clock of the matrix is the product's clock, so that the seam hides nothing.
#[test]
fn the_node_clock_is_always_a_usable_moment() {
    let time = ManualTime::at(5_000);
    let clock = NodeClock::new(time.clone());
    let first = Moments::now(&clock).unwrap();
    time.set_wall(1_000);
    let second = Moments::now(&clock).unwrap();
    assert!(second.at >= first.at && second.tick >= first.tick);
}

/// Owner spec §8.4: a store that does not answer is not waited for beyond the deadline, for the End and for a lapsed owner's end alike.
#[tokio::test]
async fn p3_a_commit_without_an_answer_ends_at_the_deadline() {
    for lapsed in [false, true] {
        let bench = Bench::new(Fault::HangingCommit);
        let owner = bench.rows.row("c").unwrap().owner;
        if lapsed {
            bench.rows.time.advance_ms(LEASE_MS);
        }
        let case = EndCase { authority: &bench, isolation: &bench, clock: &bench, own: None };
        let call = Call { deadline: bench.rows.clock.tick().plus_ms(20), cancelled: &bench.cancelled };
        let input = EndInput { owner, reason: EndReason::Revoked, will: WillMode::Publish, release: false };
        assert_eq!(case.run(&call, &input, &|| 0).await, Err(EndError::Deadline));
    }
}

/// A forward step of the wall clock does not make an owner of this boot lapsed.
#[tokio::test]
async fn p6_end_judges_the_lease_of_this_boot_by_the_monotonic_clock() {
    let bench = Bench::new(Fault::None);
    let before = bench.rows.row("c").unwrap();
    let lease = bench.rows.clock.tick().plus_ms(LEASE_MS);
    bench.rows.time.set_wall(bench.rows.clock.millis().0 + 10 * LEASE_MS);
    let observed = bench.rows.clock.millis();
    let own = Some((&bench.rows.boot, lease));
    let case = EndCase { authority: &bench, isolation: &bench, clock: &bench, own };
    let call = Call { deadline: Tick(u64::MAX), cancelled: &bench.cancelled };
    let owner = before.owner.clone();
    let input = EndInput { owner, reason: EndReason::Revoked, will: WillMode::Publish, release: false };
    case.run(&call, &input, &|| 0).await.unwrap();
    assert_eq!(bench.rows.last_will("c").unwrap().disconnected_at, Some(observed));
}

/// [MQTT-4.8.2-5], P5: End leaves to other members of a share what its client cannot know of: what the closed connection reports as not
/// written; nothing without a report; and what an end that was recorded before says, whatever is believed now.
#[tokio::test]
async fn mqtt_4_8_2_5_end_keeps_what_its_client_may_know_of() {
    for (lapsed, offline, sent_through, left) in [
        (false, false, 1, &[1][..]),
        (true, false, 1, &[1]),
        (false, false, u64::MAX, &[]),
        (true, false, u64::MAX, &[]),
        (false, true, u64::MAX, &[0, 1]),
        (true, true, u64::MAX, &[0, 1]),
    ] {
        let bench = Bench::new(Fault::None);
        let row = bench.rows.row("c").unwrap();
        bench.rows.share(row.lifetime);
        bench.rows.share(row.lifetime);
        if offline {
            bench.rows.disconnect(&row.owner, false);
        }
        if lapsed {
            bench.rows.time.advance_ms(LEASE_MS);
        }
        let case = EndCase { authority: &bench, isolation: &bench, clock: &bench, own: None };
        let call = Call { deadline: Tick(u64::MAX), cancelled: &bench.cancelled };
        let (owner, will) = (row.owner.clone(), WillMode::Publish);
        let input = EndInput { owner, reason: EndReason::Revoked, will, release: false };
        case.run(&call, &input, &|| sent_through).await.unwrap();
        assert_eq!(bench.rows.inherited(row.lifetime), left, "{lapsed} {offline} {sent_through}");
    }
}
