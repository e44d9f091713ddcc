//! The future of one connection: it reads, ticks and writes; what frames mean is decided by its [`Side`].

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::clock::Clock;
use super::control::Control;
use super::error::LinkDown;
use super::frame::{self, Frame, Violation};
use super::outbox::{Batch, Outbox, Taken};
use super::services::{CONTROL_END, Limits};
use super::stream::Stream;

/// Room made for one read.
const READ_BYTES: usize = 64 << 10;
/// Room that a read must find.
const READ_BYTES_MIN: usize = 16 << 10;
/// Reads of one turn, so that writing gets its turn too.
const READS_PER_TURN: usize = 16;
/// Ticks in a row without a byte received, or with bytes waiting and none taken, after which the peer is dead. With the tick in
/// which the last byte came that makes five.
const SILENT_TICKS: u32 = 4;
/// Ticks in which a dead peer is noticed, at most.
pub(super) const TICKS_TO_NOTICE: u64 = SILENT_TICKS as u64 + 1;

/// What a connection does with what it is told.
pub(super) trait Side {
    /// A control frame other than Time.
    fn control(&mut self, request_id: u64, control: Control) -> Result<(), Violation>;

    /// A frame of a service.
    fn service(&mut self, frame: Frame, cx: &mut Context<'_>) -> Result<(), Violation>;

    /// A tick has passed.
    fn tick(&mut self) -> Result<(), Violation>;

    /// Looks after what it has started.
    fn poll(&mut self, cx: &mut Context<'_>);
}

pub(super) struct Driver<S> {
    stream: Stream,
    read: BytesMut,
    batch: Batch,
    outbox: Arc<Outbox>,
    side: S,
    clock: Arc<dyn Clock>,
    limits: Arc<Limits>,
    ticks: Interval,
    heard: bool,
    silent_ticks: u32,
    written: bool,
    stalled_ticks: u32,
    /// The peer has said goodbye.
    left: bool,
    writing: Writing,
}

/// ```text
/// Open ──all queued is written, and nothing will follow──▶ Ending ──end told──▶ Ended
/// ```
/// The connection is over when the peer ends it too: closing a socket with unread bytes in it could destroy what was just written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    Open,
    Ending,
    Ended,
}

/// What drivers of a node have in common.
pub(super) struct Environment {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: Arc<Limits>,
    pub(super) tick: Duration,
}

impl<S: Side> Driver<S> {
    pub(super) fn new(stream: Stream, outbox: Arc<Outbox>, side: S, environment: Environment) -> Self {
        let Environment { clock, limits, tick } = environment;
        let mut ticks = interval_at(Instant::now() + tick, tick);
        // A process that was stopped and goes on has missed many ticks; its peer is to be blamed for one of them at most.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            stream,
            read: BytesMut::new(),
            batch: Batch::default(),
            outbox,
            side,
            clock,
            limits,
            ticks,
            heard: false,
            silent_ticks: 0,
            written: false,
            stalled_ticks: 0,
            left: false,
            writing: Writing::Open,
        }
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<LinkDown> {
        // Before the tick: what arrived while this task was not run counts.
        if let Err(down) = self.read(cx) {
            return Poll::Ready(down);
        }
        while self.ticks.poll_tick(cx).is_ready() {
            if let Err(down) = self.tick() {
                return Poll::Ready(down);
            }
        }
        self.side.poll(cx);
        self.poll_write(cx)
    }

    fn tick(&mut self) -> Result<(), LinkDown> {
        let heard = std::mem::take(&mut self.heard);
        let written = std::mem::take(&mut self.written) || self.batch.is_empty();
        self.silent_ticks = if heard { 0 } else { self.silent_ticks + 1 };
        self.stalled_ticks = if written { 0 } else { self.stalled_ticks + 1 };
        let ms = self.ticks.period().as_millis() as u64 * TICKS_TO_NOTICE;
        if self.silent_ticks >= SILENT_TICKS {
            return Err(LinkDown::Silent(ms));
        }
        if self.stalled_ticks >= SILENT_TICKS {
            return Err(LinkDown::Stalled(ms));
        }
        Ok(self.side.tick()?)
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), LinkDown> {
        for _ in 0..READS_PER_TURN {
            let missing = frame::missing(&self.read, self.limits.largest() + frame::HEADER_BYTES);
            let spare = self.read.capacity() - self.read.len();
            // A large frame gets its place at once, so that it is not moved about while it arrives.
            if spare < if missing == 0 { READ_BYTES_MIN } else { missing } {
                self.read.reserve(missing.max(READ_BYTES));
            }
            let bytes = match pin!(self.stream.read_buf(&mut self.read)).poll(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(bytes) => bytes?,
            };
            if bytes == 0 {
                return Err(match self.writing {
                    Writing::Ended => LinkDown::Stopped,
                    _ if self.left => LinkDown::Left,
                    _ => LinkDown::Eof,
                });
            }
            self.heard = true;
            while let Some(frame) = frame::decode(&mut self.read, &self.limits)? {
                self.handle(frame, cx)?;
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn handle(&mut self, frame: Frame, cx: &mut Context<'_>) -> Result<(), Violation> {
        if frame.service >= CONTROL_END {
            return self.side.service(frame, cx);
        }
        match Control::read(&frame)? {
            Control::Time(ms) => {
                self.clock.observe(ms);
                Ok(())
            }
            control => {
                self.left |= control == Control::Goodbye;
                self.side.control(frame.request_id, control)
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<LinkDown> {
        while self.writing == Writing::Open {
            if self.batch.is_empty() {
                match self.outbox.take(&mut self.batch, &*self.clock, cx.waker()) {
                    Taken::Some => {}
                    Taken::Nothing => return self.poll_flush(cx),
                    Taken::Finished => {
                        self.writing = Writing::Ending;
                        break;
                    }
                }
            }
            let (slices, count) = self.batch.slices();
            let wrote = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..count]));
            match wrote {
                Ok(0) => return Poll::Ready(LinkDown::Io(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    self.written = true;
                    self.batch.advance(bytes);
                }
                Err(error) => return Poll::Ready(LinkDown::Io(error)),
            }
            if self.batch.is_empty() {
                self.outbox.written(&mut self.batch);
            }
        }
        if self.writing == Writing::Ending {
            if let Err(error) = ready!(Pin::new(&mut self.stream).poll_shutdown(cx)) {
                return Poll::Ready(LinkDown::Io(error));
            }
            self.writing = Writing::Ended;
        }
        Poll::Pending
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<LinkDown> {
        match ready!(Pin::new(&mut self.stream).poll_flush(cx)) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(LinkDown::Io(error)),
        }
    }
}

/// Resolves when the connection is over. Dropping it closes the socket.
impl<S: Side + Unpin> Future for Driver<S> {
    type Output = LinkDown;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LinkDown> {
        self.get_mut().poll_turn(cx)
    }
}

/// However it ends, whoever waits for space learns of it.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

#[cfg(test)]
#[path = "driver_test.rs"]
mod tests;
