//! What a change under the registry's lock leaves to be done without it: no callback, wake-up or destructor of the shell
//! runs under the lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use super::entry::{Entry, Shared};
use super::registry::{CloseOutcome, Transport};
use super::table::Slot;
use crate::time::Tick;

#[derive(Default)]
pub(super) struct After {
    pub(super) wake: SmallVec<[Waker; 2]>,
    pub(super) close: SmallVec<[CloseRequest; 1]>,
    pub(super) retired: SmallVec<[Slot; 1]>,
}

/// A close attempt that is to start.
pub(super) struct CloseRequest {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) entry: Arc<Entry>,
}

impl After {
    /// To be called after the lock was released.
    pub(super) fn run(self, shared: &Shared, now: Tick) {
        for waker in self.wake {
            waker.wake();
        }
        for CloseRequest { transport, entry } in self.close {
            // A transport that panics costs its own owner an attempt, not the others of the page theirs.
            if catch_unwind(AssertUnwindSafe(|| transport.request_close(entry.owner()))).is_err() {
                shared.transport_closed(now, entry.owner(), CloseOutcome::Failed);
            }
        }
        drop(self.retired);
    }

    /// For changes that cannot ask a transport to close.
    pub(super) fn wake_all(self) {
        debug_assert!(self.close.is_empty());
        for waker in self.wake {
            waker.wake();
        }
    }
}
