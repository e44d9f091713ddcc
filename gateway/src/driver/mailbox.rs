//! Mail from any thread to one worker: a push is an append under a short lock; only the first one after an empty box wakes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The sending side; cheap to clone. It has no bound of its own: each sender bounds what it has under way.
pub struct Mailbox<M>(Arc<Mutex<State<M>>>);

/// The one receiving side. When it is dropped, pushes are refused.
pub(crate) struct MailReceiver<M>(Arc<Mutex<State<M>>>);

struct State<M> {
    batch: Vec<M>,
    waker: Option<Waker>,
    open: bool,
}

impl<M> Mailbox<M> {
    pub(crate) fn new() -> (Self, MailReceiver<M>) {
        let state = Arc::new(Mutex::new(State { batch: Vec::new(), waker: None, open: true }));
        (Self(Arc::clone(&state)), MailReceiver(state))
    }

    /// Appends one; gives it back when the worker is gone.
    ///
    /// # Errors
    /// The worker has stopped.
    pub fn push(&self, mail: M) -> Result<(), M> {
        let waker = {
            let mut state = lock(&self.0);
            if !state.open {
                return Err(mail);
            }
            state.batch.push(mail);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Appends all under one lock; false (and all are dropped) when the worker is gone.
    pub fn extend(&self, mail: impl IntoIterator<Item = M>) -> bool {
        let waker = {
            let mut state = lock(&self.0);
            if !state.open {
                return false;
            }
            state.batch.extend(mail);
            if state.batch.is_empty() { None } else { state.waker.take() }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// How much waits.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.0).batch.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<M> MailReceiver<M> {
    /// Swaps everything that waits into the empty `batch`; pending when nothing waits.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, batch: &mut Vec<M>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.batch.is_empty() {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        std::mem::swap(&mut state.batch, batch);
        Poll::Ready(())
    }
}

impl<M> Drop for MailReceiver<M> {
    fn drop(&mut self) {
        let rest = {
            let mut state = lock(&self.0);
            state.open = false;
            std::mem::take(&mut state.batch)
        };
        drop(rest);
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("len", &self.len()).finish()
    }
}

/// A panic of a pusher cannot leave the vector half-changed, so poison is ignored.
fn lock<M>(state: &Mutex<State<M>>) -> MutexGuard<'_, State<M>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
