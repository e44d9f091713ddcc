//! The write queue by itself: order, one batch for all, space.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::link::services::Limits;

#[derive(Debug)]
struct At(u64);

impl Clock for At {
    fn now_ms(&self) -> u64 {
        self.0
    }

    fn observe(&self, _ms: u64) {}
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn push(outbox: &Outbox, request_id: u64, payload: &[u8]) {
    let cost = u32::try_from(payload.len() + CALL_BYTES).expect("short");
    let space = outbox.space.try_acquire_many(cost).expect("room");
    let payload = Bytes::copy_from_slice(payload);
    let queued = Queued { service: 107, request_id, budget_ms: Some(9), payload };
    outbox.push(queued, space).expect("open");
}

/// The frames of a batch as (service, request id, bytes).
fn frames(batch: &mut Batch) -> Vec<(u16, u64, usize)> {
    let limits = Limits::default().with(107, 1 << 20);
    let mut wire = BytesMut::new();
    while !batch.is_empty() {
        let first = batch.slices().0[0].len();
        // Written in pieces, as a socket does.
        let some = first.div_ceil(2);
        wire.extend_from_slice(&batch.slices().0[0][..some]);
        batch.advance(some);
    }
    std::iter::from_fn(|| frame::decode(&mut wire, &limits).expect("legal"))
        .map(|frame| (frame.service, frame.request_id, frame.payload.len()))
        .collect()
}

/// WIRE.md §4: time leads every write; control frames overtake; calls keep their order; all of it is one batch.
#[test]
fn everything_that_waits_goes_in_one_batch() {
    let outbox = Outbox::new(1 << 20);
    push(&outbox, 1, b"one");
    push(&outbox, 2, &[2; COPY_BYTES_MAX + 1]);
    push(&outbox, 3, b"three");
    outbox.control(7, &Control::Ping).expect("room");
    let mut batch = Batch::default();
    assert_eq!(outbox.take(&mut batch, &At(5), Waker::noop()), Taken::Some);
    let expected = [
        (2, 0, 8),
        (4, 7, 0),
        (3, 1, 4),
        (107, 1, 3),
        (3, 2, 4),
        (107, 2, COPY_BYTES_MAX + 1),
        (3, 3, 4),
        (107, 3, 5),
    ];
    assert_eq!(frames(&mut batch), expected);
    assert!(outbox.available() < 1 << 20);
    outbox.written(&mut batch);
    assert_eq!(outbox.available(), 1 << 20);
    assert_eq!(outbox.take(&mut batch, &At(5), Waker::noop()), Taken::Nothing);
}

/// A batch is bounded; what does not fit follows in the next.
#[test]
fn a_batch_is_bounded() {
    let outbox = Outbox::new(8 << 20);
    for id in 0..10 {
        push(&outbox, id, &[0; 100 << 10]);
    }
    let mut sizes = Vec::new();
    let mut batch = Batch::default();
    while outbox.take(&mut batch, &At(5), Waker::noop()) == Taken::Some {
        sizes.push(frames(&mut batch).iter().filter(|(service, ..)| *service == 107).count());
        outbox.written(&mut batch);
    }
    assert_eq!(sizes, [3, 3, 3, 1]);
}

/// The driver is woken once from idle to busy, not once a frame.
#[test]
fn the_driver_is_woken_when_it_was_idle() {
    let outbox = Outbox::new(1 << 20);
    let wakes = Arc::new(Wakes::default());
    let driver = Waker::from(Arc::clone(&wakes));
    let mut batch = Batch::default();
    assert_eq!(outbox.take(&mut batch, &At(5), &driver), Taken::Nothing);
    push(&outbox, 1, b"a");
    push(&outbox, 2, b"b");
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
}

/// P9: control frames for a peer that does not read are bounded too.
#[test]
fn control_frames_do_not_pile_up() {
    let outbox = Outbox::new(1 << 20);
    let refused = (0..1_000_000).find_map(|id| outbox.control(id, &Control::Pong).err());
    assert_eq!(refused, Some(Violation::Congested(CONTROL_BYTES_MAX)));
    assert!(outbox.state.lock().control.len() <= CONTROL_BYTES_MAX + 2 * HEADER_BYTES);
}

#[test]
fn a_closed_outbox_takes_nothing_and_lets_nobody_wait() {
    let outbox = Outbox::new(1 << 20);
    let space = outbox.space.try_acquire_many(u32::try_from(CALL_BYTES).expect("short")).expect("room");
    outbox.close();
    let queued = Queued { service: 107, request_id: 1, budget_ms: None, payload: Bytes::new() };
    assert_eq!(outbox.push(queued, space), Err(Gone));
    assert!(outbox.space.is_closed());
}

#[test]
fn a_finishing_outbox_is_emptied_first() {
    let outbox = Outbox::new(1 << 20);
    push(&outbox, 1, b"a");
    outbox.finish();
    let mut batch = Batch::default();
    assert_eq!(outbox.take(&mut batch, &At(5), Waker::noop()), Taken::Some);
    frames(&mut batch);
    outbox.written(&mut batch);
    assert_eq!(outbox.take(&mut batch, &At(5), Waker::noop()), Taken::Finished);
}
