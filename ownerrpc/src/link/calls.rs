//! The calling side of one connection: who waits for which answer.

use std::sync::{Arc, OnceLock};
use std::task::Context;

use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::control::Control;
use super::driver::Side;
use super::error::{CallError, LinkDown};
use super::frame::{Frame, Violation};
use super::options::{CALL_MS_MAX, Options};
use super::outbox::{Outbox, Queued};

/// Calls under way on one connection.
pub(super) struct Calls {
    node_id: u64,
    pub(super) outbox: Arc<Outbox>,
    pending: Mutex<Pending>,
    in_flight: Semaphore,
    calls_max: u32,
    down: OnceLock<Arc<LinkDown>>,
    left: Mutex<Option<oneshot::Sender<()>>>,
}

#[derive(Default)]
struct Pending {
    last_id: u64,
    waiting: HashMap<u64, Waiting, RandomState>,
    closed: bool,
}

struct Waiting {
    service: u16,
    answer: oneshot::Sender<Result<Bytes, CallError>>,
}

/// Forgets a call whose caller went away.
struct Forget<'a> {
    calls: &'a Calls,
    request_id: u64,
}

impl Calls {
    /// `left` is told when the peer says goodbye.
    pub(super) fn new(node_id: u64, options: &Options, left: oneshot::Sender<()>) -> Self {
        Self {
            node_id,
            outbox: Arc::new(Outbox::new(options.write_queue_bytes_max)),
            pending: Mutex::default(),
            in_flight: Semaphore::new(options.calls_max),
            calls_max: options.calls_max as u32,
            down: OnceLock::new(),
            left: Mutex::new(Some(left)),
        }
    }

    /// One call. The caller bounds it in time; `deadline` tells the peer how much of it is left.
    pub(super) async fn call(
        &self,
        service: u16,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, CallError> {
        let _slot = self.in_flight.acquire().await.map_err(|_| self.unsent())?;
        let space = self.outbox.reserve(payload.len()).await.map_err(|_| self.unsent())?;
        let left = deadline.saturating_duration_since(Instant::now()).as_millis() + 1;
        let budget_ms = Some(u32::try_from(left).unwrap_or(CALL_MS_MAX).min(CALL_MS_MAX));
        let (answer, receiver) = oneshot::channel();
        let forget = {
            let mut pending = self.pending.lock();
            if pending.closed {
                return Err(self.unsent());
            }
            pending.last_id += 1;
            let request_id = pending.last_id;
            pending.waiting.insert(request_id, Waiting { service, answer });
            let forget = Forget { calls: self, request_id };
            // Under the lock: ids ascend on the wire.
            let queued = self.outbox.push(Queued { service, request_id, budget_ms, payload }, space);
            drop(pending);
            queued.map_err(|_| self.unsent())?;
            forget
        };
        let answer = receiver.await;
        drop(forget);
        answer.unwrap_or_else(|_| Err(self.lost()))
    }

    /// Everybody who waits learns at once that the connection is gone.
    pub(super) fn fail(&self, why: Arc<LinkDown>) {
        let _ = self.down.set(why);
        let waiting = {
            let mut pending = self.pending.lock();
            pending.closed = true;
            std::mem::take(&mut pending.waiting)
        };
        for waiting in waiting.into_values() {
            let _ = waiting.answer.send(Err(self.lost()));
        }
        self.in_flight.close();
        self.outbox.close();
    }

    /// Waits until no call is under way.
    pub(super) async fn drained(&self) {
        let _ = self.in_flight.acquire_many(self.calls_max).await;
    }

    fn answer(
        &self,
        request_id: u64,
        service: Option<u16>,
        answer: Result<Bytes, CallError>,
    ) -> Result<(), Violation> {
        let waiting = {
            let mut pending = self.pending.lock();
            if request_id == 0 || request_id > pending.last_id {
                return Err(Violation::Unasked(request_id));
            }
            match pending.waiting.remove(&request_id) {
                Some(waiting) => waiting,
                // Its caller does not wait any more.
                None => return Ok(()),
            }
        };
        if let Some(answered) = service
            && answered != waiting.service
        {
            return Err(Violation::Service { id: request_id, asked: waiting.service, answered });
        }
        let _ = waiting.answer.send(answer);
        Ok(())
    }

    fn why(&self) -> Arc<LinkDown> {
        self.down.get().cloned().unwrap_or_else(|| Arc::new(LinkDown::Stopped))
    }

    fn lost(&self) -> CallError {
        CallError::Lost { node_id: self.node_id, why: self.why() }
    }

    fn unsent(&self) -> CallError {
        CallError::Unreachable { node_id: self.node_id, why: self.why() }
    }
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let waiting = self.calls.pending.lock().waiting.remove(&self.request_id);
        drop(waiting);
    }
}

/// The dialer's side: it pings with every tick and takes answers.
pub(super) struct Dialer {
    pub(super) calls: Arc<Calls>,
}

impl Side for Dialer {
    fn control(&mut self, request_id: u64, control: Control) -> Result<(), Violation> {
        match control {
            Control::Pong => Ok(()),
            Control::Refusal(refusal) => {
                self.calls.answer(request_id, None, Err(CallError::Refused(refusal)))
            }
            Control::Goodbye => {
                if let Some(left) = self.calls.left.lock().take() {
                    let _ = left.send(());
                }
                Ok(())
            }
            Control::Ping => Err(Violation::Direction(4)),
            Control::Budget(_) => Err(Violation::Direction(3)),
            Control::Time(_) => Ok(()),
        }
    }

    fn service(&mut self, frame: Frame, _cx: &mut Context<'_>) -> Result<(), Violation> {
        self.calls.answer(frame.request_id, Some(frame.service), Ok(frame.payload))
    }

    fn tick(&mut self) -> Result<(), Violation> {
        self.calls.outbox.control(0, &Control::Ping)
    }

    fn poll(&mut self, _cx: &mut Context<'_>) {}
}
