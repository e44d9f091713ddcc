//! Buffers of one worker thread: idle connections hold none, busy ones take them from here.

use std::cell::{Cell, RefCell};

/// Bytes that the pool keeps at most; more is given back to the allocator.
const POOL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A buffer that grew beyond this is not kept.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
const BUFFER_BYTES_MIN: usize = 512;

/// Bytes read from a socket in one turn.
pub(crate) const READ_BYTES_MAX: usize = 64 * 1024;
/// Room in front of the read bytes, where the rest of the turn before is put.
pub(crate) const HEADROOM: usize = 8 * 1024;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static POOLED: Cell<usize> = const { Cell::new(0) };
    static SCRATCH: RefCell<Option<Box<[u8]>>> = const { RefCell::new(None) };
}

/// An empty buffer.
pub(crate) fn take() -> Vec<u8> {
    let pooled = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
    match pooled {
        Some(buffer) => {
            POOLED.set(POOLED.get() - buffer.capacity());
            buffer
        }
        None => Vec::with_capacity(BUFFER_BYTES_MIN),
    }
}

/// Takes a buffer back; what it holds is forgotten.
pub(crate) fn give(mut buffer: Vec<u8>) {
    let capacity = buffer.capacity();
    if capacity == 0 || capacity > BUFFER_BYTES_MAX {
        return;
    }
    // At the end of the thread the pool may be gone already.
    let _ = POOL.try_with(|pool| {
        if POOLED.get() + capacity <= POOL_BYTES_MAX {
            POOLED.set(POOLED.get() + capacity);
            buffer.clear();
            pool.borrow_mut().push(buffer);
        }
    });
}

/// The worker's read buffer: [`HEADROOM`] and [`READ_BYTES_MAX`] bytes. Goes back when dropped.
pub(crate) struct Scratch(Box<[u8]>);

impl Scratch {
    pub(crate) fn take() -> Self {
        let kept = SCRATCH.try_with(RefCell::take).ok().flatten();
        Self(kept.unwrap_or_else(|| vec![0; HEADROOM + READ_BYTES_MAX].into()))
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        let _ = SCRATCH.try_with(|scratch| scratch.replace(Some(bytes)));
    }
}
