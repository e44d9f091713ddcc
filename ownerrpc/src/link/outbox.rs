//! What waits to be written on one connection: control frames first, then calls or answers in their order.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::task::Waker;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::clock::Clock;
use super::control::Control;
use super::frame::{self, HEADER_BYTES, Violation};
use super::options::CALL_BYTES;

/// Bytes of control frames that may wait: some thousand pongs and refusals. Who lets more pile up does not read.
const CONTROL_BYTES_MAX: usize = 64 << 10;
/// Bytes that are put together for one write, unless a single frame is larger.
const BATCH_BYTES: usize = 256 << 10;
/// From this size on a payload is not copied but written from where it is.
const COPY_BYTES_MAX: usize = 8 << 10;
/// Pieces handed to one `writev`.
const SLICES_MAX: usize = 64;

/// Shared between the driver of a connection and those who have something to say on it.
pub(super) struct Outbox {
    state: Mutex<State>,
    /// Bytes that may still be queued: back-pressure.
    space: Semaphore,
}

#[derive(Default)]
struct State {
    control: BytesMut,
    frames: VecDeque<Queued>,
    /// The driver, while it has nothing to write.
    driver: Option<Waker>,
    finishing: bool,
    closed: bool,
}

pub(super) struct Queued {
    pub(super) service: u16,
    pub(super) request_id: u64,
    /// Calls only: milliseconds that it may take.
    pub(super) budget_ms: Option<u32>,
    pub(super) payload: Bytes,
}

/// The connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

/// What a driver finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Some,
    Nothing,
    /// Nothing, and nothing will come.
    Finished,
}

/// Bytes on their way into the socket.
#[derive(Default)]
pub(super) struct Batch {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    /// Of the queue's space; given back when all is written.
    cost: usize,
}

impl Outbox {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { state: Mutex::default(), space: Semaphore::new(bytes_max) }
    }

    /// Waits for space for a payload, first come first served.
    pub(super) async fn reserve(&self, payload_bytes: usize) -> Result<SemaphorePermit<'_>, Gone> {
        let cost = u32::try_from(payload_bytes + CALL_BYTES).map_err(|_| Gone)?;
        self.space.acquire_many(cost).await.map_err(|_| Gone)
    }

    /// Queues a frame for which space was reserved.
    pub(super) fn push(&self, queued: Queued, space: SemaphorePermit<'_>) -> Result<(), Gone> {
        debug_assert_eq!(space.num_permits(), queued.payload.len() + CALL_BYTES);
        let driver = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(Gone);
            }
            state.frames.push_back(queued);
            state.driver.take()
        };
        space.forget();
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(())
    }

    /// Queues a control frame ahead of all others.
    pub(super) fn control(&self, request_id: u64, control: &Control) -> Result<(), Violation> {
        let driver = {
            let mut state = self.state.lock();
            if state.control.len() > CONTROL_BYTES_MAX {
                return Err(Violation::Congested(CONTROL_BYTES_MAX));
            }
            control.write(request_id, &mut state.control);
            state.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(())
    }

    /// The driver writes what is queued and then closes the connection.
    pub(super) fn finish(&self) {
        let driver = {
            let mut state = self.state.lock();
            state.finishing = true;
            state.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// The connection is gone: whoever waits for space learns of it, and nothing more is queued.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let frames = std::mem::take(&mut state.frames);
        drop(state);
        drop(frames);
        self.space.close();
    }

    /// Moves queued frames into an empty batch, behind the time at which that happens. Keeps `driver` when there are none.
    pub(super) fn take(&self, batch: &mut Batch, clock: &dyn Clock, driver: &Waker) -> Taken {
        let mut state = self.state.lock();
        if state.control.is_empty() && state.frames.is_empty() {
            if state.finishing {
                return Taken::Finished;
            }
            if !state.driver.as_ref().is_some_and(|known| known.will_wake(driver)) {
                state.driver = Some(driver.clone());
            }
            return Taken::Nothing;
        }
        // Read under the lock: what is queued was said before this time.
        Control::Time(clock.now_ms().min(super::TIME_MS_MAX)).write(0, &mut batch.tail);
        batch.tail.put_slice(&state.control);
        state.control.clear();
        let mut bytes = batch.tail.len();
        while bytes < BATCH_BYTES {
            let Some(queued) = state.frames.pop_front() else { break };
            bytes += queued.payload.len() + CALL_BYTES;
            batch.push(queued);
        }
        drop(state);
        batch.seal();
        Taken::Some
    }

    /// Gives back the space of a batch that was written.
    pub(super) fn written(&self, batch: &mut Batch) {
        debug_assert!(batch.is_empty());
        self.space.add_permits(std::mem::take(&mut batch.cost));
    }

    #[cfg(test)]
    pub(super) fn available(&self) -> usize {
        self.space.available_permits()
    }
}

impl Batch {
    fn push(&mut self, queued: Queued) {
        self.cost += queued.payload.len() + CALL_BYTES;
        if let Some(ms) = queued.budget_ms {
            Control::Budget(ms).write(queued.request_id, &mut self.tail);
        }
        self.tail.put_slice(&frame::header(queued.service, queued.request_id, queued.payload.len()));
        if queued.payload.len() <= COPY_BYTES_MAX {
            self.tail.put_slice(&queued.payload);
        } else {
            self.seal();
            self.chunks.push_back(queued.payload);
        }
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// What to write next.
    pub(super) fn slices(&self) -> ([IoSlice<'_>; SLICES_MAX], usize) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(chunk);
            count += 1;
        }
        (slices, count)
    }

    /// `bytes` of it were written.
    pub(super) fn advance(&mut self, mut bytes: usize) {
        while let Some(chunk) = self.chunks.front_mut() {
            if bytes < chunk.len() {
                chunk.advance(bytes);
                return;
            }
            bytes -= chunk.len();
            self.chunks.pop_front();
        }
    }
}

const _: () = assert!(CALL_BYTES == 2 * HEADER_BYTES + 4, "a budget frame and the header of the call");

#[cfg(test)]
#[path = "outbox_test.rs"]
mod tests;
