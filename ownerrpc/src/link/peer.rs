//! One peer that this node calls: it is dialled for as long as it is wanted, and refused at once while it cannot be reached.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt as _;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::calls::{Calls, Dialer};
use super::control::Control;
use super::driver::Driver;
use super::endpoint::Endpoint;
use super::error::{CallError, HandshakeError, LinkDown};
use super::handshake::{self, Agreed};
use super::observer::{Direction, PeerInfo};
use super::services::CONTROL_END;

/// Time for the last bytes of a link that is closed on purpose.
pub(super) const GOODBYE: Duration = Duration::from_millis(250);

/// The breaker. Calls never try a broken link: the task that dials does.
///
/// ```text
/// Starting ──dialled──▶ Up ──lost, left──▶ Down ──dialled──▶ Up
///    │                                     ▲  │ pause, doubled with each failure
///    └────────────not reached──────────────┘  └──not reached──▶ Down
/// any ──close──▶ Down (stopped, for ever)
/// ```
#[derive(Clone)]
enum State {
    /// The first attempt is under way: calls wait for it.
    Starting,
    Up(Arc<Calls>, Arc<PeerInfo>),
    /// Calls are refused at once.
    Down(Arc<LinkDown>),
}

/// What a peer looks like from outside.
#[derive(Debug, Clone)]
pub enum PeerState {
    /// The first attempt to reach it is under way.
    Starting,
    Up(Arc<PeerInfo>),
    Down(Arc<LinkDown>),
}

/// A handle to one peer. Dropping it closes the link at once.
pub struct Peer {
    shared: Arc<Shared>,
    stop: Mutex<Option<oneshot::Sender<Duration>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    endpoint: Arc<Endpoint>,
    node_id: u64,
    address: Mutex<Arc<str>>,
    state: watch::Sender<State>,
    /// Callers, those included that wait for a link, a slot or space.
    callers: Semaphore,
    /// Dial now.
    retry: Arc<Notify>,
}

impl Peer {
    /// Starts to dial `node_id` at `address` (`host:port`). Node id 0: whoever is there; for a node that joins.
    #[must_use]
    pub fn start(endpoint: Arc<Endpoint>, node_id: u64, address: &str) -> Self {
        let options = &endpoint.options;
        let shared = Arc::new(Shared {
            node_id,
            address: Mutex::new(Arc::from(address)),
            state: watch::Sender::new(State::Starting),
            callers: Semaphore::new(options.calls_max + options.calls_waiting_max),
            retry: Arc::new(Notify::new()),
            endpoint,
        });
        shared.endpoint.wait_for(node_id, &shared.retry);
        let (stop, stopped) = oneshot::channel();
        let task = shared.endpoint.runtime.spawn(run(Arc::clone(&shared), stopped));
        Self { shared, stop: Mutex::new(Some(stop)), task: Mutex::new(Some(task)) }
    }

    #[must_use]
    pub fn node_id(&self) -> u64 {
        self.shared.node_id
    }

    #[must_use]
    pub fn address(&self) -> Arc<str> {
        Arc::clone(&self.shared.address.lock())
    }

    /// Where to dial from now on; a link that is up stays.
    pub fn set_address(&self, address: &str) {
        *self.shared.address.lock() = Arc::from(address);
        self.retry();
    }

    /// Dials at once if it waits before the next attempt.
    pub fn retry(&self) {
        self.shared.retry.notify_one();
    }

    #[must_use]
    pub fn state(&self) -> PeerState {
        self.shared.state.borrow().public()
    }

    /// Waits until `wanted` holds; the caller bounds it in time.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&PeerState) -> bool) -> PeerState {
        let mut states = self.shared.state.subscribe();
        match states.wait_for(|state| wanted(&state.public())).await {
            Ok(state) => state.public(),
            Err(_) => self.state(),
        }
    }

    /// Calls a service of the peer and waits for the answer until `deadline`.
    ///
    /// Calls reach the peer in the order in which they were queued. When the write queue is full, or too many calls are under way,
    /// the caller waits. Dropping the future gives the call up; the peer may handle it all the same.
    ///
    /// # Errors
    /// As [`CallError`] lists. An unreachable peer is refused at once.
    pub async fn call(&self, service: u16, payload: Bytes, deadline: Instant) -> Result<Bytes, CallError> {
        if service < CONTROL_END {
            return Err(CallError::Reserved(service));
        }
        let (bytes, limit) = (payload.len(), self.shared.endpoint.limits.payload_bytes_max(service));
        if bytes > limit {
            return Err(CallError::TooLarge { service, bytes, limit });
        }
        if deadline <= Instant::now() {
            return Err(CallError::Deadline);
        }
        let _caller = self.shared.callers.try_acquire().map_err(|_| CallError::Busy(self.shared.node_id))?;
        let answer = async { self.link().await?.call(service, payload, deadline).await };
        timeout_at(deadline, answer).await.unwrap_or(Err(CallError::Deadline))
    }

    async fn link(&self) -> Result<Arc<Calls>, CallError> {
        if let Some(known) = self.shared.known_link() {
            return known;
        }
        let mut states = self.shared.state.subscribe();
        let _ = states.wait_for(|state| !matches!(state, State::Starting)).await;
        let stopped = || {
            let why = Arc::new(LinkDown::Stopped);
            Err(CallError::Unreachable { node_id: self.shared.node_id, why })
        };
        self.shared.known_link().unwrap_or_else(stopped)
    }

    /// Refuses new calls, gives those under way `grace` to be answered, says goodbye and closes the link.
    pub async fn close(&self, grace: Duration) {
        self.shared.set_down(Arc::new(LinkDown::Stopped));
        if let Some(stop) = self.stop.lock().take() {
            let _ = stop.send(grace);
        }
        let task = self.task.lock().take();
        if let Some(mut task) = task
            && timeout(grace + 2 * GOODBYE, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        self.shared.endpoint.forget(self.shared.node_id, &self.shared.retry);
    }
}

impl State {
    fn public(&self) -> PeerState {
        match self {
            Self::Starting => PeerState::Starting,
            Self::Up(_, info) => PeerState::Up(Arc::clone(info)),
            Self::Down(why) => PeerState::Down(Arc::clone(why)),
        }
    }
}

impl Shared {
    fn known_link(&self) -> Option<Result<Arc<Calls>, CallError>> {
        match &*self.state.borrow() {
            State::Starting => None,
            State::Up(calls, _) => Some(Ok(Arc::clone(calls))),
            State::Down(why) => {
                Some(Err(CallError::Unreachable { node_id: self.node_id, why: Arc::clone(why) }))
            }
        }
    }

    fn set_down(&self, why: Arc<LinkDown>) {
        self.state.send_replace(State::Down(why));
    }

    async fn dial(&self) -> Result<Agreed, LinkDown> {
        let timeout_ms = self.endpoint.options.handshake_ms;
        let dialled = timeout(Duration::from_millis(timeout_ms), self.connect_and_agree()).await;
        dialled.unwrap_or(Err(LinkDown::Handshake(HandshakeError::Timeout(timeout_ms))))
    }

    async fn connect_and_agree(&self) -> Result<Agreed, LinkDown> {
        let address = Arc::clone(&self.address.lock());
        let failed = |source| LinkDown::Connect { address: address.to_string(), source };
        let tcp = TcpStream::connect(&*address).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let security = self.endpoint.security();
        Ok(handshake::dial(&self.endpoint.node, &security, self.node_id, tcp).await?)
    }
}

/// Dials until it is stopped.
async fn run(shared: Arc<Shared>, mut stopped: oneshot::Receiver<Duration>) {
    let options = &shared.endpoint.options;
    let mut pause_ms = options.backoff_min_ms;
    loop {
        let dialled = tokio::select! {
            dialled = shared.dial() => dialled,
            _ = &mut stopped => return,
        };
        match dialled {
            Ok(agreed) => {
                let began = Instant::now();
                if carry(&shared, agreed, &mut stopped).await {
                    return;
                }
                // One that is lost again at once is not better than one that cannot be reached.
                if began.elapsed() >= Duration::from_millis(options.backoff_max_ms) {
                    pause_ms = options.backoff_min_ms;
                }
            }
            Err(why) => {
                shared.endpoint.observer.unreachable(shared.node_id, &why);
                shared.set_down(Arc::new(why));
            }
        }
        // Half of it at least: nodes that lost the same peer do not come back at the same time.
        let jittered = pause_ms - rand::rng().random_range(0..=pause_ms / 2);
        tokio::select! {
            () = sleep(Duration::from_millis(jittered)) => {}
            () = shared.retry.notified() => {}
            _ = &mut stopped => return,
        }
        pause_ms = (pause_ms * 2).min(options.backoff_max_ms);
    }
}

/// A link that came up goes down with all its calls, whatever ends it.
struct Carried<'a> {
    shared: &'a Shared,
    calls: Arc<Calls>,
    peer: Arc<PeerInfo>,
    why: Option<LinkDown>,
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        let why = Arc::new(self.why.take().unwrap_or(LinkDown::Stopped));
        // First the breaker, so that nobody who learns of the loss finds the link again.
        self.shared.set_down(Arc::clone(&why));
        self.calls.fail(Arc::clone(&why));
        self.shared.endpoint.observer.down(Direction::Outbound, &self.peer, &why);
    }
}

/// Carries one link from the handshake to its end. Whether it was stopped on purpose.
async fn carry(shared: &Shared, agreed: Agreed, stopped: &mut oneshot::Receiver<Duration>) -> bool {
    let Agreed { stream, peer } = agreed;
    let (left, goodbye) = oneshot::channel();
    let calls = Arc::new(Calls::new(peer.node_id, &shared.endpoint.options, left));
    // The first word of the link, so that time is told at once.
    let _ = calls.outbox.control(0, &Control::Ping);
    let side = Dialer { calls: Arc::clone(&calls) };
    let driver = Driver::new(stream, Arc::clone(&calls.outbox), side, shared.endpoint.dialer_environment());
    let mut driver = pin!(driver);
    let mut carried = Carried { shared, calls: Arc::clone(&calls), peer: Arc::clone(&peer), why: None };
    shared.endpoint.observer.up(Direction::Outbound, &peer);
    shared.state.send_replace(State::Up(Arc::clone(&calls), peer));
    let grace = tokio::select! {
        why = &mut driver => {
            carried.why = Some(why);
            return false;
        }
        grace = &mut *stopped => grace.unwrap_or_default(),
        Ok(()) = goodbye => {
            // New calls are refused; those under way are still answered before the peer closes.
            shared.set_down(Arc::new(LinkDown::Left));
            let _ = driver.as_mut().await;
            carried.why = Some(LinkDown::Left);
            return false;
        }
    };
    // `close` has set the state, but the link may have come up after that.
    shared.set_down(Arc::new(LinkDown::Stopped));
    say_goodbye(driver, &calls, grace).await;
    true
}

async fn say_goodbye(mut driver: impl Future<Output = LinkDown> + Unpin, calls: &Calls, grace: Duration) {
    tokio::select! {
        _ = &mut driver => return,
        () = calls.drained() => {}
        () = sleep(grace) => {}
    }
    let _ = calls.outbox.control(0, &Control::Goodbye);
    calls.outbox.finish();
    let _ = timeout(GOODBYE, driver).await;
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("node_id", &self.shared.node_id)
            .field("address", &self.address())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
