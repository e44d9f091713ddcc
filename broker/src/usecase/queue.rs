//! One CONNECT at a time per ClientID on this node: each is taken over in turn and the last one wins, instead of many candidates racing
//! for one commit.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use session::id::Key;
use tokio::sync::oneshot;

/// Locks of the table; ClientIDs hash into them.
const SHARDS: usize = 64;
/// CONNECTs that may wait behind one of the same ClientID; more are answered 0x89.
const WAITING_MAX: usize = 256;

type Waiters = VecDeque<oneshot::Sender<Turn>>;

#[derive(Debug)]
struct Shard {
    /// An entry exists while someone has the turn.
    keys: Mutex<HashMap<Key, Waiters, foldhash::fast::RandomState>>,
}

/// The queues. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ConnectQueue {
    shards: Arc<Vec<Shard>>,
    hasher: foldhash::fast::RandomState,
}

/// The right to connect as one key; dropping it passes it on, in the order of arrival.
#[derive(Debug)]
pub struct Turn {
    queue: ConnectQueue,
    key: Key,
}

/// Too many CONNECTs of this ClientID wait already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Default for ConnectQueue {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Shard { keys: Mutex::new(HashMap::default()) }).collect();
        Self { shards: Arc::new(shards), hasher: foldhash::fast::RandomState::default() }
    }
}

impl ConnectQueue {
    fn shard(&self, key: &Key) -> &Shard {
        use std::hash::BuildHasher as _;
        let hash = usize::try_from(self.hasher.hash_one(key) >> 32).unwrap_or(0);
        &self.shards[hash % SHARDS]
    }

    /// Takes the turn, or a place behind those who wait for it.
    ///
    /// # Errors
    /// [`Full`].
    pub fn enter(&self, key: &Key) -> Result<Entered, Full> {
        let mut keys = self.shard(key).keys.lock();
        if let Some(waiters) = keys.get_mut(key) {
            if waiters.len() >= WAITING_MAX {
                return Err(Full);
            }
            let (sender, receiver) = oneshot::channel();
            waiters.push_back(sender);
            return Ok(Entered::Waiting(receiver));
        }
        keys.insert(key.clone(), VecDeque::new());
        Ok(Entered::Now(Turn { queue: self.clone(), key: key.clone() }))
    }
}

/// A place in a queue.
#[derive(Debug)]
pub enum Entered {
    Now(Turn),
    /// Resolves to the turn. Dropping it gives the place up; a turn that was already sent passes itself on.
    Waiting(oneshot::Receiver<Turn>),
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut keys = self.queue.shard(&self.key).keys.lock();
            let waiter = keys.get_mut(&self.key).and_then(VecDeque::pop_front);
            if waiter.is_none() {
                keys.remove(&self.key);
            }
            waiter
        };
        if let Some(next) = next {
            // A waiter that is gone hands the turn back: it is dropped here, outside the lock, and so goes to the one behind.
            drop(next.send(Self { queue: self.queue.clone(), key: self.key.clone() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("main".into(), name.into()).unwrap()
    }

    /// Scenario 3: CONNECTs with one ClientID get their turn in the order of arrival; one that gave up is skipped.
    #[test]
    fn turns_pass_in_order_and_skip_those_who_left() {
        let queue = ConnectQueue::default();
        let Ok(Entered::Now(first)) = queue.enter(&key("x")) else { panic!("the queue is empty") };
        let Ok(Entered::Waiting(second)) = queue.enter(&key("x")) else { panic!("someone has the turn") };
        let Ok(Entered::Waiting(mut third)) = queue.enter(&key("x")) else { panic!("someone has the turn") };
        assert!(matches!(queue.enter(&key("y")), Ok(Entered::Now(_))), "other ClientIDs do not wait");
        drop(second);
        assert!(third.try_recv().is_err());
        drop(first);
        let turn = third.try_recv().expect("the turn came");
        drop(turn);
        assert!(matches!(queue.enter(&key("x")), Ok(Entered::Now(_))));
    }

    /// A turn that was sent to a waiter who left before taking it is not lost.
    #[test]
    fn an_untaken_turn_passes_itself_on() {
        let queue = ConnectQueue::default();
        let Ok(Entered::Now(first)) = queue.enter(&key("x")) else { panic!("the queue is empty") };
        let Ok(Entered::Waiting(second)) = queue.enter(&key("x")) else { panic!("someone has the turn") };
        let Ok(Entered::Waiting(mut third)) = queue.enter(&key("x")) else { panic!("someone has the turn") };
        drop(first);
        drop(second);
        assert!(third.try_recv().is_ok());
    }

    /// P9.
    #[test]
    fn the_queue_of_one_client_id_is_bounded() {
        let queue = ConnectQueue::default();
        let _first = queue.enter(&key("x"));
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| queue.enter(&key("x")).unwrap()).collect();
        assert_eq!(queue.enter(&key("x")).unwrap_err(), Full);
        drop(waiting);
    }
}
