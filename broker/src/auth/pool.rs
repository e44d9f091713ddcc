//! The few threads that check passwords (about 25 ms of CPU each), and the bounded queue in front of them: one a source address, served
//! in turn, so that a flood from one address holds up nobody else.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use gateway::listener::network;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Ends its threads when it is dropped.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

/// Invariant: `turns` names every source of `jobs` once, and none of them has an empty queue.
struct Waiting {
    jobs: HashMap<IpAddr, VecDeque<Job>, foldhash::fast::RandomState>,
    turns: VecDeque<IpAddr>,
    len: usize,
    len_max: usize,
    closed: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn start(threads: usize, queue_max: usize) -> std::io::Result<Self> {
        let waiting = Waiting {
            jobs: HashMap::default(),
            turns: VecDeque::new(),
            len: 0,
            len_max: queue_max,
            closed: false,
        };
        let shared = Arc::new(Shared { waiting: Mutex::new(waiting), news: Condvar::new() });
        let pool = Self { shared };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            std::thread::Builder::new().name(format!("password-{index}")).spawn(move || work(&shared))?;
        }
        Ok(pool)
    }

    /// The result of `job`, asked for from `source`; `None` when the queue is full (or the job panicked). In a full queue the last one of the
    /// source that has most there gives way to one of a source that has less.
    pub(super) async fn run<R: Send + 'static>(
        &self,
        source: IpAddr,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        let (done, result) = oneshot::channel();
        let job = move || {
            // A client that gave up is not worth the hashing.
            if !done.is_closed() {
                let _ = done.send(job());
            }
        };
        // What gives way is dropped outside of the lock; its caller hears of it.
        let refused = self.shared.waiting.lock().push(network(source), Box::new(job));
        drop(refused);
        self.shared.news.notify_one();
        result.await.ok()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.waiting.lock().closed = true;
        self.shared.news.notify_all();
    }
}

impl Waiting {
    /// Takes the job, or returns the one that finds no place.
    fn push(&mut self, source: IpAddr, job: Job) -> Option<Job> {
        let mut refused = None;
        if self.len >= self.len_max {
            let own = self.jobs.get(&source).map_or(0, VecDeque::len);
            let longest =
                self.jobs.iter().max_by_key(|(_, queue)| queue.len()).map(|(of, queue)| (*of, queue.len()));
            match longest {
                Some((of, len)) if len > own + 1 => {
                    refused = self.jobs.get_mut(&of).and_then(VecDeque::pop_back);
                    self.len -= 1;
                }
                _ => return Some(job),
            }
        }
        let queue = self.jobs.entry(source).or_default();
        if queue.is_empty() {
            self.turns.push_back(source);
        }
        queue.push_back(job);
        self.len += 1;
        refused
    }

    fn pop(&mut self) -> Option<Job> {
        let source = self.turns.pop_front()?;
        let queue = self.jobs.get_mut(&source)?;
        let job = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.jobs.remove(&source);
        } else {
            self.turns.push_back(source);
        }
        Some(job)
    }
}

fn work(shared: &Shared) {
    loop {
        let job = {
            let mut waiting = shared.waiting.lock();
            loop {
                if let Some(job) = waiting.pop() {
                    break job;
                }
                if waiting.closed {
                    return;
                }
                shared.news.wait(&mut waiting);
            }
        };
        job();
    }
}
