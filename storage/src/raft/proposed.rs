//! What goes through openraft: a batch and, on the node that proposed it, who waits for it.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use session::lifecycle::{Batch, Reply};
use tokio::sync::Notify;

use crate::StorageError;
use crate::port::{CompletionPort, Done};

/// A batch, cheap to clone. It stays typed from the proposer to `apply`: it is encoded once, for the log, and decoded only
/// after a restart or on another node.
#[derive(Clone)]
pub(crate) struct Proposed(Arc<Inner>);

struct Inner {
    /// Number of the batch within its boot; 0: it was written before batches had numbers.
    serial: u64,
    batch: Batch,
    waiters: Mutex<Vec<Done>>,
    settled: Notify,
    failure: OnceLock<Arc<StorageError>>,
}

impl Proposed {
    pub(crate) fn new(serial: u64, batch: Batch, waiters: Vec<Done>) -> Self {
        let (waiters, settled, failure) = (Mutex::new(waiters), Notify::new(), OnceLock::new());
        Self(Arc::new(Inner { serial, batch, waiters, settled, failure }))
    }

    pub(crate) fn serial(&self) -> u64 {
        self.0.serial
    }

    /// Why it was lost.
    pub(crate) fn failure(&self) -> Option<Arc<StorageError>> {
        self.0.failure.get().cloned()
    }

    pub(crate) fn batch(&self) -> &Batch {
        &self.0.batch
    }

    /// Answers everybody, in order. Nothing happens when they were answered before.
    pub(crate) fn applied(&self, replies: Vec<Reply>) {
        let waiters = std::mem::take(&mut *self.0.waiters.lock());
        if !waiters.is_empty() {
            answer(waiters, replies.into_iter().map(Ok));
        }
        self.0.settled.notify_one();
    }

    /// Tells everybody who was not answered that the fate of the command is unknown.
    pub(crate) fn lost(&self, error: &Arc<StorageError>) {
        // The first reason stays.
        let _ = self.0.failure.set(Arc::clone(error));
        {
            // Told under the lock: whoever comes second goes on with the next batch, and by then the first ones must know.
            let mut waiters = self.0.waiters.lock();
            refuse(std::mem::take(&mut *waiters), error);
        }
        self.0.settled.notify_one();
    }

    /// Returns after [`Proposed::applied`] or [`Proposed::lost`].
    pub(crate) async fn settled(&self) {
        self.0.settled.notified().await;
    }
}

impl std::fmt::Debug for Proposed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proposed").field("commands", &self.0.batch.commands.len()).finish_non_exhaustive()
    }
}

impl PartialEq for Proposed {
    fn eq(&self, other: &Self) -> bool {
        self.0.batch == other.0.batch
    }
}

impl Serialize for Proposed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0.serial, &self.0.batch).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Proposed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (serial, batch) = <(u64, Batch)>::deserialize(deserializer)?;
        Ok(Self::new(serial, batch, Vec::new()))
    }
}

/// Tells everybody the same error.
pub(crate) fn refuse(waiters: Vec<Done>, error: &Arc<StorageError>) {
    answer(waiters, std::iter::repeat_with(|| Err(Arc::clone(error))));
}

/// Tells everybody that nothing of unknown fate can take effect any more.
pub(crate) fn decided(waiters: Vec<Done>) {
    if !waiters.is_empty() {
        answer(waiters, std::iter::repeat_with(|| Ok(Reply::Done { revision: 0, unchanged: true })));
    }
}

/// A token with its reply.
type Answered = (u64, Result<Reply, Arc<StorageError>>);

/// One call per port with all its replies.
fn answer(waiters: Vec<Done>, replies: impl Iterator<Item = Result<Reply, Arc<StorageError>>>) {
    let mut ports: Vec<(Arc<dyn CompletionPort>, Vec<Answered>)> = Vec::new();
    let mut last = 0;
    let expected = waiters.len();
    for (done, reply) in waiters.into_iter().zip(replies) {
        match done {
            Done::Nobody => {}
            // Who waited may have gone.
            Done::Once(sender) => drop(sender.send(reply)),
            Done::Port { port, token } => {
                if ports.get(last).is_none_or(|(known, _)| !same(known, &port)) {
                    last = ports.iter().position(|(known, _)| same(known, &port)).unwrap_or_else(|| {
                        ports.push((port, Vec::with_capacity(expected)));
                        ports.len() - 1
                    });
                }
                ports[last].1.push((token, reply));
            }
        }
    }
    for (port, batch) in ports {
        port.complete(batch);
    }
}

/// Whether two ports are one object.
fn same(a: &Arc<dyn CompletionPort>, b: &Arc<dyn CompletionPort>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use session::id::Boot;
    use session::time::Millis;

    use super::*;

    /// A port whose owner is told slowly; it lets somebody else learn of the same loss meanwhile.
    #[derive(Debug)]
    struct Slow {
        entered: Sender<()>,
        second_went_on: Mutex<Receiver<()>>,
    }

    impl CompletionPort for Slow {
        fn complete(&self, _batch: Vec<Answered>) {
            self.entered.send(()).expect("the test waits");
            let early = self.second_went_on.lock().recv_timeout(Duration::from_millis(50));
            assert!(early.is_err(), "who lost the batch too went on while its proposer did not know");
        }
    }

    /// P5: a batch that is lost in two ways at once (a snapshot, and its answer) is lost to nobody's surprise: both return when it was told.
    #[test]
    fn who_loses_a_batch_second_waits_until_it_is_told() {
        let (entered, is_entered) = channel();
        let (went_on, second_went_on) = channel();
        let port = Arc::new(Slow { entered, second_went_on: Mutex::new(second_went_on) });
        let boot = Boot { node_id: 1, boot_id: "b".into() };
        let batch = Batch { boot, at: Millis(0), commands: Vec::new() };
        let proposed = Proposed::new(1, batch, vec![Done::Port { port, token: 1 }]);
        let error = Arc::new(StorageError::Unavailable("lost".to_owned()));
        std::thread::scope(|threads| {
            let first = threads.spawn(|| proposed.lost(&error));
            is_entered.recv().expect("told");
            threads.spawn(|| {
                proposed.lost(&error);
                // The test may be over.
                let _ = went_on.send(());
            });
            first.join().expect("told in order");
        });
    }
}
