//! The answering side of one connection: calls become tasks, bounded in number and bytes, and their answers are queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::control::Control;
use super::driver::Side;
use super::frame::{Frame, Violation};
use super::observer::PeerInfo;
use super::options::{CALL_MS_MAX, Options};
use super::outbox::{Outbox, Queued};
use super::refusal::{Refusal, RefusalKind};
use super::service::{Answer, Call, Service};
use super::services::Limits;

/// What the connection's driver and those who stop it share.
pub(super) struct Handling {
    pub(super) outbox: Arc<Outbox>,
    slots: Arc<Semaphore>,
    slots_max: u32,
    bytes: Arc<Semaphore>,
    stopping: AtomicBool,
}

/// The acceptor's side.
pub(super) struct Acceptor {
    handling: Arc<Handling>,
    service: Arc<dyn Service>,
    peer: Arc<PeerInfo>,
    limits: Arc<Limits>,
    /// The budget that came in front of the next call.
    budget: Option<(u64, u32)>,
    last_id: u64,
    tasks: JoinSet<()>,
}

/// A call that is being handled, and what it occupies.
struct Handled {
    outbox: Arc<Outbox>,
    limits: Arc<Limits>,
    service: u16,
    request_id: u64,
    deadline: Instant,
    _slot: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Handling {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            outbox: Arc::new(Outbox::new(options.write_queue_bytes_max)),
            slots: Arc::new(Semaphore::new(options.calls_max)),
            slots_max: options.calls_max as u32,
            bytes: Arc::new(Semaphore::new(options.handled_bytes_max)),
            stopping: AtomicBool::new(false),
        }
    }

    /// Tells the peer to make no more calls, and refuses those that are on their way.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // A peer that reads so little that this does not fit is closed by its driver.
        let _ = self.outbox.control(0, &Control::Goodbye);
    }

    /// Waits until no call is handled.
    pub(super) async fn drained(&self) {
        let _ = self.slots.acquire_many(self.slots_max).await;
    }
}

impl Acceptor {
    pub(super) fn new(
        handling: Arc<Handling>,
        service: Arc<dyn Service>,
        peer: Arc<PeerInfo>,
        limits: Arc<Limits>,
    ) -> Self {
        Self { handling, service, peer, limits, budget: None, last_id: 0, tasks: JoinSet::new() }
    }

    fn refuse(&self, request_id: u64, kind: RefusalKind, text: &'static str) -> Result<(), Violation> {
        self.handling.outbox.control(request_id, &Control::Refusal(Refusal::new(kind, text)))
    }

    fn take_budget(&mut self, request_id: u64) -> Result<u32, Violation> {
        match self.budget.take() {
            None => Ok(CALL_MS_MAX),
            Some((id, ms)) if id == request_id => Ok(ms.min(CALL_MS_MAX)),
            Some((id, _)) => Err(Violation::Budget(id)),
        }
    }

    fn admit(&self, payload_bytes: usize) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let slot = Arc::clone(&self.handling.slots).try_acquire_owned().ok()?;
        let bytes = u32::try_from(payload_bytes).ok()?;
        let bytes = Arc::clone(&self.handling.bytes).try_acquire_many_owned(bytes).ok()?;
        Some((slot, bytes))
    }
}

impl Side for Acceptor {
    fn control(&mut self, request_id: u64, control: Control) -> Result<(), Violation> {
        match control {
            Control::Ping => self.handling.outbox.control(request_id, &Control::Pong),
            Control::Budget(ms) => match self.budget.replace((request_id, ms)) {
                None => Ok(()),
                Some((id, _)) => Err(Violation::Budget(id)),
            },
            // Its end of the connection follows.
            Control::Goodbye | Control::Time(_) => Ok(()),
            Control::Pong => Err(Violation::Direction(5)),
            Control::Refusal(_) => Err(Violation::Direction(1)),
        }
    }

    fn service(&mut self, frame: Frame, cx: &mut Context<'_>) -> Result<(), Violation> {
        let Frame { service, request_id, payload } = frame;
        if request_id <= self.last_id {
            return Err(Violation::RequestId { id: request_id, last: self.last_id });
        }
        self.last_id = request_id;
        let budget_ms = self.take_budget(request_id)?;
        if self.handling.stopping.load(Ordering::Acquire) {
            return self.refuse(request_id, RefusalKind::Stopping, "");
        }
        // Never stops reading instead: pings must be answered while calls pile up.
        let Some((slot, bytes)) = self.admit(payload.len()) else {
            return self.refuse(request_id, RefusalKind::Busy, "");
        };
        let deadline = Instant::now() + Duration::from_millis(budget_ms.into());
        let handled = Handled {
            outbox: Arc::clone(&self.handling.outbox),
            limits: Arc::clone(&self.limits),
            service,
            request_id,
            deadline,
            _slot: slot,
            _bytes: bytes,
        };
        let answer = self.service.call(Call { peer: Arc::clone(&self.peer), service, payload, deadline });
        let mut task = Box::pin(handled.answer(answer));
        // Answers that are there at once need no task of their own; it would register its own waker anyway.
        if task.as_mut().poll(cx).is_pending() {
            self.tasks.spawn(task);
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Violation> {
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(_)) = self.tasks.poll_join_next(cx) {}
    }
}

impl Handled {
    async fn answer(self, answer: Answer) {
        let outcome = match timeout_at(self.deadline, answer).await {
            Ok(outcome) => outcome.and_then(|payload| self.check(payload)),
            Err(_) => Err(Refusal::new(RefusalKind::Deadline, "")),
        };
        match outcome {
            Ok(payload) => self.send(payload).await,
            // Cannot be told to a peer that does not read; its driver closes the link then.
            Err(refusal) => drop(self.outbox.control(self.request_id, &Control::Refusal(refusal))),
        }
    }

    fn check(&self, payload: Bytes) -> Result<Bytes, Refusal> {
        let limit = self.limits.payload_bytes_max(self.service);
        if payload.len() <= limit {
            return Ok(payload);
        }
        let text = format!("the answer has {} bytes, more than the {limit} allowed", payload.len());
        Err(Refusal::new(RefusalKind::Failed, text))
    }

    async fn send(&self, payload: Bytes) {
        // An answer that finds no place in time is of no use to anybody.
        let Ok(Ok(space)) = timeout_at(self.deadline, self.outbox.reserve(payload.len())).await else {
            return;
        };
        let (service, request_id) = (self.service, self.request_id);
        // Nobody is there to be told when the connection is gone.
        let _ = self.outbox.push(Queued { service, request_id, budget_ms: None, payload }, space);
    }
}
