//! The few threads that check passwords (about 25 ms of CPU each), and the bounded queue in front of them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Ends its threads when it is dropped.
#[derive(Debug)]
pub(super) struct Pool {
    queue: SyncSender<Job>,
}

impl Pool {
    pub(super) fn start(threads: usize, queue_max: usize) -> std::io::Result<Self> {
        let (queue, jobs) = sync_channel::<Job>(queue_max);
        let jobs = Arc::new(Mutex::new(jobs));
        for index in 0..threads.max(1) {
            let jobs = Arc::clone(&jobs);
            std::thread::Builder::new().name(format!("password-{index}")).spawn(move || work(&jobs))?;
        }
        Ok(Self { queue })
    }

    /// The result of `job`; `None` when the queue is full (or the job panicked).
    pub(super) async fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        let (done, result) = oneshot::channel();
        let job = move || {
            // A client that gave up is not worth the hashing.
            if !done.is_closed() {
                let _ = done.send(job());
            }
        };
        self.queue.try_send(Box::new(job)).ok()?;
        result.await.ok()
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        // The guard lives only while waiting: another thread takes the next job meanwhile.
        let job = jobs.lock().recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
