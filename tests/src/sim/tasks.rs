//! The tasks of one simulated process: they can be stopped (SIGSTOP), go on (SIGCONT) and killed (SIGKILL) together.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// Handles of finished tasks are forgotten when there are this many.
const HANDLES_SWEEP: usize = 512;

/// The power of one process.
#[derive(Debug, Default)]
pub struct Power(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    frozen: bool,
    dead: bool,
    wakers: Vec<Waker>,
    tasks: Vec<AbortHandle>,
}

struct Gated<F> {
    power: Arc<Power>,
    inner: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Future for Gated<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = self.power.0.lock();
            if state.dead {
                return Poll::Ready(());
            }
            if state.frozen {
                state.wakers.push(context.waker().clone());
                return Poll::Pending;
            }
        }
        self.inner.as_mut().poll(context)
    }
}

impl Power {
    /// Runs `future` as part of this process.
    pub fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        if self.is_dead() {
            return;
        }
        let task = tokio::spawn(Gated { power: self.clone(), inner: Box::pin(future) });
        let mut state = self.0.lock();
        if state.tasks.len() >= HANDLES_SWEEP && state.tasks.len().is_power_of_two() {
            state.tasks.retain(|task| !task.is_finished());
        }
        state.tasks.push(task.abort_handle());
    }

    pub fn freeze(&self) {
        self.0.lock().frozen = true;
    }

    pub fn thaw(&self) {
        let wakers = {
            let mut state = self.0.lock();
            state.frozen = false;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Nothing of this process runs any more.
    pub fn kill(&self) {
        let tasks = {
            let mut state = self.0.lock();
            state.dead = true;
            state.wakers.clear();
            std::mem::take(&mut state.tasks)
        };
        tasks.iter().for_each(AbortHandle::abort);
    }

    pub fn is_frozen(&self) -> bool {
        self.0.lock().frozen
    }

    pub fn is_dead(&self) -> bool {
        self.0.lock().dead
    }

    /// Alive and not stopped.
    pub fn runs(&self) -> bool {
        let state = self.0.lock();
        !state.dead && !state.frozen
    }
}
