//! Sockets that came in faster than their listener lets them: they wait here, unread, and are served in turn by address, so that a flood
//! from one address holds up nobody else.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::share::network;

/// Sockets of one listener that may wait.
const WAITING_MAX: usize = 1_024;
/// What a bucket holds: one second of its rate.
const BURST: Duration = Duration::from_secs(1);

/// A bucket of turns that fills at a rate and holds one second of it.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// When it is full.
    full_at: Option<Instant>,
}

impl Bucket {
    /// Takes one turn at `per_sec` a second (at least 1).
    ///
    /// # Errors
    /// There is none; how long until there is.
    pub(super) fn take(&mut self, per_sec: u32, now: Instant) -> Result<(), Duration> {
        let step = BURST / per_sec.max(1);
        let full_at = self.full_at.map_or(now, |at| at.max(now));
        let after = full_at + step;
        match after.duration_since(now).checked_sub(BURST) {
            Some(short) if !short.is_zero() => Err(short),
            _ => {
                self.full_at = Some(after);
                Ok(())
            }
        }
    }
}

/// Invariant: `turns` names every source of `waiting` once, and none of them has an empty queue.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: HashMap<IpAddr, VecDeque<Waiting>, RandomState>,
    turns: VecDeque<IpAddr>,
    len: usize,
}

#[derive(Debug)]
struct Waiting {
    socket: TcpStream,
    address: SocketAddr,
    until: Instant,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes a socket, which waits until then at most; whether none had to go for it. Where no more may wait, the last one of the address
    /// that has most waiting goes: the new one, if that is of this address.
    pub(super) fn push(&mut self, socket: TcpStream, address: SocketAddr, until: Instant) -> bool {
        let source = network(address.ip());
        let full = self.len >= WAITING_MAX;
        if full {
            let own = self.waiting.get(&source).map_or(0, VecDeque::len);
            let longest = self.waiting.iter().max_by_key(|(_, queue)| queue.len());
            let Some(of) = longest.filter(|(_, queue)| queue.len() > own + 1).map(|(of, _)| *of) else {
                return false;
            };
            // More than one waits there: its queue does not run empty.
            self.waiting.get_mut(&of).and_then(VecDeque::pop_back);
            self.len -= 1;
        }
        let queue = self.waiting.entry(source).or_default();
        if queue.is_empty() {
            self.turns.push_back(source);
        }
        queue.push_back(Waiting { socket, address, until });
        self.len += 1;
        !full
    }

    /// The next one in turn.
    pub(super) fn pop(&mut self) -> Option<(TcpStream, SocketAddr)> {
        let source = self.turns.pop_front()?;
        let queue = self.waiting.get_mut(&source)?;
        let next = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.waiting.remove(&source);
        } else {
            self.turns.push_back(source);
        }
        Some((next.socket, next.address))
    }

    /// Closes those that waited too long; how many.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let before = self.len;
        self.waiting.retain(|_, queue| {
            while queue.front().is_some_and(|first| first.until <= now) {
                queue.pop_front();
                self.len -= 1;
            }
            !queue.is_empty()
        });
        if self.len != before {
            self.turns.retain(|source| self.waiting.contains_key(source));
        }
        before - self.len
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// P9: a bucket gives its burst at once, then its rate, and never saves up more than the burst.
    #[test]
    fn p9_a_bucket_keeps_its_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::default();
        let taken = |bucket: &mut Bucket, at: Duration| {
            (0..1_000).take_while(|_| bucket.take(10, start + at).is_ok()).count()
        };
        assert_eq!(taken(&mut bucket, Duration::ZERO), 10);
        assert_eq!(bucket.take(10, start), Err(Duration::from_millis(100)));
        assert_eq!(taken(&mut bucket, Duration::from_millis(350)), 3);
        assert_eq!(taken(&mut bucket, Duration::from_secs(60)), 10);
        assert!(Bucket::default().take(1, start).is_ok(), "a rate of one a second lets one in");
    }

    /// P9: the address that floods waits for itself; what waits is bounded, and over when it waited too long.
    #[test]
    fn p9_waiting_sockets_are_served_in_turn_by_address() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let first = TcpStream::connect(at).expect("connects");
        let socket = || first.try_clone().expect("a descriptor");
        let from = |last: u8, port: u16| SocketAddr::from(([192, 0, 2, last], port));
        let start = Instant::now();
        let late = start + Duration::from_secs(5);
        let mut turns = Turns::default();
        for port in 1..=64 {
            assert!(turns.push(socket(), from(1, port), late));
        }
        assert!(turns.push(socket(), from(2, 1), start));
        let order: Vec<SocketAddr> =
            std::iter::from_fn(|| turns.pop()).map(|(_, from)| from).take(3).collect();
        assert_eq!(order, [from(1, 1), from(2, 1), from(1, 2)]);
        assert!(turns.push(socket(), from(2, 2), start));
        let waiting = turns.len;
        assert_eq!(turns.expire(start), 1, "the one that waited too long");
        assert_eq!(turns.expire(late), waiting - 1);
        assert!(turns.is_empty() && turns.pop().is_none() && turns.turns.is_empty());
    }
}
